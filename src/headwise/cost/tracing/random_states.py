"""The states of the CPU's random generator that checkpointing keeps: torch makes them without an operation.

torch has one `get_rng_state` for the whole process. So ours stands in its place once, from the first listener to the
last, and tells all of them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock

import torch
from torch import Tensor

Listener = Callable[[Tensor], None]


class _RandomStates:
    def __init__(self) -> None:
        self._lock = Lock()
        self._listeners: tuple[Listener, ...] = ()
        self._get = torch.get_rng_state

    def add(self, listener: Listener) -> None:
        with self._lock:
            if not self._listeners:
                self._get = torch.get_rng_state
                torch.get_rng_state = self._get_and_tell
            self._listeners += (listener,)

    def remove(self, listener: Listener) -> None:
        with self._lock:
            self._listeners = tuple(one for one in self._listeners if one is not listener)
            if not self._listeners:
                torch.get_rng_state = self._get

    def _get_and_tell(self) -> Tensor:
        state = self._get()
        for listener in self._listeners:
            listener(state)
        return state


_states = _RandomStates()


@contextmanager
def listen_to_random_states(listener: Listener) -> Iterator[None]:
    """Call `listener` with every state of the CPU's random generator that is asked for inside, by any thread."""
    _states.add(listener)
    try:
        yield
    finally:
        _states.remove(listener)
