"""torch's fused encoder path, which passes the layers of nn.Transformer by: off for as long as somebody listens."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

import torch


class _FastPath:
    """The switch of the process: the first listener turns it off, the last one puts it back."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.num_listeners = 0
        self.was_enabled = True

    def change_listeners(self, by: int) -> None:
        with self.lock:
            if self.num_listeners == 0:
                self.was_enabled = torch.backends.mha.get_fastpath_enabled()
            self.num_listeners += by
            torch.backends.mha.set_fastpath_enabled(self.was_enabled and self.num_listeners == 0)


_FAST_PATH = _FastPath()


@contextmanager
def without_fast_path() -> Iterator[None]:
    """Keep the path off, in the whole process; after the last of several listeners it is as the first one found it."""
    _FAST_PATH.change_listeners(1)
    try:
        yield
    finally:
        _FAST_PATH.change_listeners(-1)
