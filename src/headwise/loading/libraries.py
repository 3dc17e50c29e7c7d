"""transformers as it is used here: imported when needed, quiet, and what it raises in one line."""

import io
import pickle
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from typing import Any

from headwise.errors import HeadwiseError, MissingExtraError, ModelError, describe


def import_transformers() -> Any:
    """Return the module, or raise MissingExtraError with the line that installs it."""
    try:
        import transformers
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise
        raise MissingExtraError("transformers", "hf") from None
    return transformers


@contextmanager
def quiet(transformers: Any) -> Iterator[None]:
    """Silence transformers' progress bars and log lines while it loads, and put its settings back.

    Its GGUF reader draws a bar that no setting turns off, hence the redirection.
    """
    logging = transformers.utils.logging
    verbosity, progress = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.set_verbosity(verbosity)
        if progress:
            logging.enable_progress_bar()


@contextmanager
def one_line(what: str) -> Iterator[None]:
    """Turn whatever a library raises over a user's file into one clear line."""
    try:
        yield
    except HeadwiseError:
        raise
    except RuntimeError as error:
        if "ignore_mismatched_sizes" not in str(error):
            raise ModelError(f"{what} cannot be loaded: {describe(error)}") from error
        raise ModelError(f"{what} cannot be loaded: its weights have other shapes than its config.json says") from error
    except pickle.UnpicklingError as error:
        raise ModelError(
            f"{what} cannot be loaded: its weights are a pickle that holds more than tensors, "
            "and code in a file is never run; save them as safetensors"
        ) from error
    except Exception as error:
        raise ModelError(f"{what} cannot be loaded: {describe(error)}") from error
