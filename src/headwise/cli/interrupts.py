"""heed_interrupts: an interrupt ends the command at once, whatever runs when it comes."""

import _thread
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SECONDS_LATER = 0.005


@contextmanager
def heed_interrupts() -> Iterator[None]:
    """Let SIGINT raise KeyboardInterrupt outside of finalisers alone, in which Python would drop it.

    A tape of a step is told by finalisers when its tensors go, so many an interrupt comes in one of them.
    """
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not is_default or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _send() -> None:
    if hasattr(signal, "pthread_kill"):  # wakes a thread that waits, too
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    else:
        _thread.interrupt_main()


def _interrupt(number: int, frame: FrameType | None) -> None:
    while frame is not None:
        if frame.f_code.co_name == "__del__":
            threading.Timer(SECONDS_LATER, _send).start()
            return
        frame = frame.f_back
    raise KeyboardInterrupt
