"""Running a user's module: what it raises becomes one clear line."""

from collections.abc import Iterator
from contextlib import contextmanager

from headwise.errors import HeadwiseError, ModelError, describe


@contextmanager
def run_or_explain(name: str) -> Iterator[None]:
    """Turn what a user's module raises in a forward or backward pass into a ModelError that names it."""
    try:
        yield
    except HeadwiseError:
        raise
    except Exception as error:
        raise ModelError(f"running {name} raised {describe(error)}") from error
