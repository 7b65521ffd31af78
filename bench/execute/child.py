"""The worker process of `execute`: reads jobs from standard input and writes events to standard output, as JSON lines.

Importing this module does not import torch, so that a worker can report that import.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from queue import Queue
from typing import Any, Literal

from bench.errors import RunBroke
from bench.progress import Advance, SweepProgress, doing, hearing
from bench.train.stop import StopRequest

TELL_SECONDS = 0.5
"""Seconds between progress events of a worker. Ours."""


class WorkerProgress(SweepProgress):
    """Reports the progress of this worker."""

    def __init__(self, tell: Callable[[Mapping[str, Any]], None], mode: Literal["min", "max"]) -> None:
        super().__init__("", mode, enabled=False)
        self._tell, self._last = tell, 0.0
        self._steps, self._ended = 0, list[str]()

    def add(self, worker: int, made: Advance) -> None:
        """Send the progress, at most every `TELL_SECONDS` or when runs end."""
        super().add(worker, made)
        self._steps += made.steps
        self._ended += made.ended
        if made.ended or time.monotonic() - self._last > TELL_SECONDS:
            self._last = time.monotonic()
            self._tell({"progress": Advance(self._steps, made.alive, made.share, self._ended, self.best)})
            self._steps, self._ended = 0, []

    def say(self, line: str) -> None:
        """Send the line."""
        self._tell({"say": line})

    def waiting(self, runs: int) -> None:
        """Say nothing: the other processes are mostly of the same command, whose lines show it."""


def lines() -> Iterator[str]:
    """Lines from standard input; its end, when the parent ends, asks this process to stop.

    They are read from the call on: a job may be longer than the pipe holds, and the parent must not wait for imports.
    """
    queue: Queue[str] = Queue()

    def read() -> None:
        for line in sys.stdin:
            queue.put(line.strip())
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=read, daemon=True).start()
    return iter(queue.get, None)


def events() -> Callable[[Mapping[str, Any]], None]:
    """The event writer; from now on, all other output, even from C libraries, goes to standard error."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def tell(event: Mapping[str, Any]) -> None:
        with suppress(OSError):  # the parent is gone; the end of standard input stops this process
            print(json.dumps(event), file=out, flush=True)

    return tell


def main() -> int:
    """Train runs of plans until asked to stop; returns 130."""
    tell, jobs = events(), lines()
    with hearing(lambda what: tell({"doing": what})):
        with doing("importing torch"):
            from bench.execute.cuts import cuts_of
            from bench.execute.here import train_cuts
            from bench.execute.plan import Plan
        stop = StopRequest()
        for line in jobs:
            job = json.loads(line)
            made = True
            with suppress(RunBroke), stop.listening():  # the parent finds failures in the records
                plan = Plan.from_json(job["plan"])
                cuts = cuts_of(job["cuts"], plan.by_id)
                made = train_cuts(plan, cuts, WorkerProgress(tell, plan.mode), stop, since=job["since"])
            if not made or stop.signal is not None:
                break
            tell({"done": True})
    return 130
