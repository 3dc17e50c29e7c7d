"""What transformers logs while a model runs, kept off the user's screen."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_advice() -> Iterator[None]:
    """Drop what transformers warns of; what is wrong is told by an exception, or by a note of the result."""
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            yield
    finally:
        logging.set_verbosity(verbosity)
