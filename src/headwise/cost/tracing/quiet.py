"""Keeping what torch and transformers log about a run on fake tensors off the user's screen."""

import logging
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager


@contextmanager
def quiet_trace() -> Iterator[None]:
    """Drop, of this thread, what torch logs of operations that fail on fake tensors and transformers' warnings.

    What fails is told by an exception; torch would print its own traceback beside it.
    """
    thread = threading.get_ident()

    def is_of_others(record: logging.LogRecord) -> bool:
        return record.thread != thread

    def is_of_others_or_error(record: logging.LogRecord) -> bool:
        return record.thread != thread or record.levelno > logging.WARNING

    with ExitStack() as stack:
        fake_tensors = logging.getLogger("torch._subclasses.fake_tensor")
        fake_tensors.addFilter(is_of_others)
        stack.callback(fake_tensors.removeFilter, is_of_others)
        for handler in logging.getLogger("transformers").handlers:  # a logger's own filters miss those of its parts
            handler.addFilter(is_of_others_or_error)
            stack.callback(handler.removeFilter, is_of_others_or_error)
        yield
