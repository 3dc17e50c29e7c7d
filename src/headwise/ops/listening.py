"""Who hears of calls of `attention`: nobody, or one listener in this context."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

from headwise.ops.call import Call

_listener: ContextVar[Callable[[Call], None] | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Callable[[Call], None] | None) -> Iterator[None]:
    """Show every call of `attention` in this context to `listener`, checked and before it is computed; None: to nobody.

    Calls inside of a compiled graph are not heard.
    """
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def current_listener() -> Callable[[Call], None] | None:
    """Return who is to hear of calls; None: nobody."""
    return None if torch.compiler.is_compiling() else _listener.get()
