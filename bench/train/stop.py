"""Requests to stop: signals are noted when they arrive and handled when training can be saved."""

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from bench import process
from bench.errors import was_interrupted
from bench.machine import is_main_process

ONE_REQUEST_SECONDS = 0.5
"""Signals within this many seconds are one request: Ctrl-C comes directly and from a parent that passes it on. Ours."""
IMPORT_SECONDS = 0.2
"""Seconds until an interrupt during an import is repeated. Ours."""
AGAIN = 5.0
"""Seconds after which an interrupt without a handler is repeated: Python loses one that is raised during garbage
collection. Ours."""


class StopRequest:
    """Notes SIGINT and SIGTERM instead of ending the process; a later one interrupts at once."""

    def __init__(self) -> None:
        self.signal: int | None = None  # that asked the run to stop
        self.at_once = False  # whether there was a second request
        self._listening = False
        self._noted = -math.inf

    def note(self, number: int, frame: FrameType | None = None) -> None:
        """Handle a signal.

        Raises:
            KeyboardInterrupt: at the second one, unless it belongs to the first request.
        """
        if self.signal is not None:
            if time.monotonic() - self._noted < ONE_REQUEST_SECONDS:
                return
            self.at_once = True
            raise KeyboardInterrupt
        self._noted = time.monotonic()
        self.signal = number
        if is_main_process():
            with suppress(OSError):  # standard error may be closed
                os.write(2, b"\nbench: finishing the current steps and saving; interrupt again to stop at once\n")

    def heard(self, number: int) -> None:
        """Note that another rank was asked to stop; the same request may still reach this one."""
        if self.signal is None:
            self._noted = time.monotonic()
        self.signal = number

    def leave_to_system(self) -> None:
        """Until `take_over`, let a signal end this process: torch waits for other machines in C++, without handlers."""
        if self._listening:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)

    def take_over(self) -> None:
        """Replace the current signal handlers; Lightning's would end a run without a checkpoint."""
        if self._listening:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, self.note)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handle signals within the context; outside the main thread the caller handles them."""
        self._listening = threading.current_thread() is threading.main_thread()
        old = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        self.take_over()
        try:
            yield
        finally:
            if self._listening:
                for number, handler in old.items():
                    signal.signal(number, handler)


@contextmanager
def deadline(seconds: float | None) -> Iterator[Callable[[], bool]]:
    """Interrupt the context after `seconds`, as Ctrl-C would; yields a function: whether that has happened.

    Without a signal handler, as before and after training, the interrupt ends the context without an error.
    """
    over: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        over.append(number)
        if process.importing(frame):  # an interrupt would end the process
            signal.setitimer(signal.ITIMER_REAL, IMPORT_SECONDS)
            return
        if signal.getsignal(signal.SIGINT) in (signal.default_int_handler, process.interrupt):
            signal.setitimer(signal.ITIMER_REAL, AGAIN)
        signal.raise_signal(signal.SIGINT)

    if seconds is None:
        yield lambda: False
        return
    old = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield lambda: bool(over)
    except BaseException as error:
        if not (over and was_interrupted(error)):
            raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
