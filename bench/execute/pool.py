"""Worker processes on this machine: one for each slot, replaced if it dies."""

import json
import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from queue import Empty, Queue
from typing import Any

from bench.errors import RunFailed, UserError
from bench.execute.slots import Slot
from bench.process import worker_command

MAX_FAILED_STARTS = 3
"""Number of deaths in a row before any training after which the command gives up. Ours."""
PATIENCE_SECONDS = 120
"""Seconds for stopped workers to save their state. Ours."""

Event = Mapping[str, Any]
"""A message of a worker: `done` when it has finished its job; `doing` with its activity other than training, empty when
that is over; other keys are for the listener."""


@dataclass
class WorkerProcess:
    """A process of the pool.

    Attributes:
        slot: number of its slot.
        process: handle of the process.
    """

    slot: int
    process: "subprocess.Popen[str]"
    _said: deque[str] = field(default_factory=lambda: deque(maxlen=30))
    _readers: list[threading.Thread] = field(default_factory=list)
    _began: bool = False
    _asked: bool = False

    def _hear_out(self) -> None:
        """Read the remaining output of an ended process."""
        for reader in self._readers:
            reader.join(5)  # its children may keep the pipe open
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.close()


class Pool(AbstractContextManager["Pool"]):
    """Worker processes, which process jobs one after another.

    A worker reads jobs from its standard input, one per line, and writes events to its standard output, one line of
    JSON each. The end of its standard input, or SIGTERM, asks it to stop.

    Args:
        slots: resources of each worker, by number.
    """

    def __init__(self, slots: Mapping[int, Slot]) -> None:
        self.slots = slots
        self._running: dict[int, WorkerProcess] = {}
        self._busy: set[int] = set()
        self._events: Queue[tuple[WorkerProcess, Event]] = Queue()
        self._stillborn = 0

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self.stop(0 if kind is KeyboardInterrupt else PATIENCE_SECONDS)

    def start(self) -> None:
        """Start the workers; they wait for a job."""
        for slot in self.slots.keys() - self._running.keys():
            self._running[slot] = self._start(slot)

    def work(
        self,
        job: str,
        hear: Callable[[int, Event], None],
        died: Callable[[int], None],
        say: Callable[[str], object],
        stop: Callable[[], bool],
    ) -> None:
        """Let all workers work on a job until each has finished, or they are asked to stop.

        Args:
            job: a line for the workers.
            hear: called with a worker's slot and its event.
            died: called with the slot of a worker that died unasked.
            say: shows a line.
            stop: whether to ask the workers to stop; `Pool.stop` waits for them.

        Raises:
            UserError: a worker reports that the job cannot be done here.
            RunFailed: a run failed, or workers die at start.
        """
        for slot in self.slots:
            self._send(slot, job)
        while self._busy:
            self._listen(hear)
            if stop():
                self._ask_to_stop()
                return
            for worker in [worker for worker in self._running.values() if worker.process.poll() is not None]:
                del self._running[worker.slot]
                worker._hear_out()
                self._listen(hear)
                if worker.slot in self._busy:
                    self._refuse_or_report(worker, died, say)
                    self._send(worker.slot, job)

    def _send(self, slot: int, job: str) -> None:
        """Give the job to a worker; start the worker if it does not run."""
        if slot not in self._running:
            self._running[slot] = self._start(slot)
        self._busy.add(slot)
        stdin = self._running[slot].process.stdin
        assert stdin is not None
        with suppress(BrokenPipeError):  # it has just died; `work` will notice
            print(job, file=stdin, flush=True)

    def _start(self, index: int) -> WorkerProcess:
        slot = self.slots[index]
        process = subprocess.Popen(
            worker_command(),
            env={**os.environ, **slot.environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,  # only this process gets Ctrl-C, and asks its workers to stop
        )
        slot.pin(process.pid)
        worker = WorkerProcess(index, process)
        for target in (self._read_events, self._read_errors):
            worker._readers.append(threading.Thread(target=target, args=(worker,), daemon=True))
            worker._readers[-1].start()
        return worker

    def _read_events(self, worker: WorkerProcess) -> None:
        assert worker.process.stdout is not None
        with worker.process.stdout as lines:
            for line in lines:
                try:
                    event = json.loads(line)
                except ValueError:  # output of a library
                    continue
                if isinstance(event, dict):
                    self._events.put((worker, event))

    def _read_errors(self, worker: WorkerProcess) -> None:
        assert worker.process.stderr is not None
        with worker.process.stderr as lines:
            for line in lines:
                if line.strip():
                    worker._said.append(line.rstrip())

    def _listen(self, hear: Callable[[int, Event], None]) -> None:
        """Dispatch the events since the last call."""
        with suppress(Empty):
            worker, event = self._events.get(timeout=0.2)
            while True:
                if "progress" in event:
                    worker._began, self._stillborn = True, 0
                if "done" in event:
                    self._busy.discard(worker.slot)
                hear(worker.slot, event)
                worker, event = self._events.get_nowait()

    def _refuse_or_report(
        self, worker: WorkerProcess, died: Callable[[int], None], say: Callable[[str], object]
    ) -> None:
        """Raise the error of an ended worker, or report its death."""
        code = worker.process.returncode
        errors = [line.partition("error: ")[2] for line in worker._said if line.startswith("bench: error: ")]
        if errors:
            raise (UserError if code == UserError.exit_code else RunFailed)(errors[-1])
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        if code != 130:  # 130: it was asked to stop
            say(f"worker {worker.slot + 1} died ({how}); starting another")
            died(worker.slot)
        self._stillborn += not worker._began
        if self._stillborn >= MAX_FAILED_STARTS:
            last = worker._said[-1] if worker._said else "it printed nothing"
            raise RunFailed(f"workers die at start ({how}): {last}")

    def _ask_to_stop(self) -> None:
        """Send SIGTERM once: a second one would interrupt a worker that saves its state."""
        for worker in self._running.values():
            if not worker._asked:
                worker._asked = True
                with suppress(ProcessLookupError):
                    worker.process.send_signal(signal.SIGTERM)

    def stop(self, seconds: float = PATIENCE_SECONDS) -> None:
        """Ask the workers to stop and wait for them; after `seconds`, or at Ctrl-C, kill them."""
        self._ask_to_stop()
        running, self._running = list(self._running.values()), {}
        end = time.monotonic() + seconds
        try:
            for worker in running:
                worker.process.wait(max(0.0, end - time.monotonic()))
        except (KeyboardInterrupt, subprocess.TimeoutExpired):
            for worker in running:
                worker.process.kill()
                worker.process.wait()
        finally:
            for worker in running:
                worker._hear_out()
