"""without_collections: hold off Python's collector of reference cycles."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collections() -> Iterator[None]:
    """Hold off the collector: what makes many thousand small objects and no garbage would wait for it in vain.

    What is in a cycle is then released at no moment that depends on how much else was made.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
