"""Worker processes on this machine: one for each slot of devices, watched, and replaced when they die."""

import json
import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from queue import Empty, Queue
from typing import Any

from bench.config import RunConfig
from bench.errors import RunFailed, UserError
from bench.machine import lives
from bench.process import bench_command
from bench.tuning.progress import TuningProgress
from bench.tuning.studies import Studies
from bench.tuning.study import Study

STILLBORN = 3
"""A worker that dies so often in a row before it has taken a trial is not replaced any more. Ours."""
PATIENCE_SECONDS = 120
"""Time for workers that were asked to stop to save their state. Ours."""


@dataclass(frozen=True)
class Slot:
    """What a worker has for itself.

    Attributes:
        cpus: processors that it is pinned to; none for all.
        gpus: for CUDA_VISIBLE_DEVICES; none for what the machine says.
        threads: of torch.
    """

    cpus: tuple[int, ...] = ()
    gpus: tuple[str, ...] = ()
    threads: int = 1

    @property
    def environment(self) -> dict[str, str]:
        """Variables that make libraries keep to it."""
        return {"OMP_NUM_THREADS": str(self.threads)} | (
            {"CUDA_VISIBLE_DEVICES": ",".join(self.gpus)} if self.gpus else {}
        )


def slots(workers: str, config: RunConfig, trials: int | None = None) -> list[Slot]:
    """Cut this machine into slots: each as many GPUs as a run wants, or a share of the processors.

    Args:
        workers: how many, or `auto`: as many as the GPUs serve; on a CPU one for each processor, but no more than
            trials.
        config: a run, with its device decided.
        trials: of the study, if they are known.

    Raises:
        UserError: there are not so many.
    """
    ranks, cpus = config.trainer.devices, _cpus()
    gpus = _gpus() if config.device == "cuda" else []
    most = 1 if config.device == "mps" else max(1, len(gpus or cpus) // ranks)
    try:
        count = min(most, trials or most) if workers == "auto" else int(workers)
    except ValueError:
        count = 0
    if count < 1:
        raise UserError(f"--workers {workers}: write how many (--workers 2), or auto")
    if gpus and count > most:
        raise UserError(
            f"--workers {count}: {len(gpus)} GPUs serve {most} workers at {ranks} a run; use --workers {most}"
        )
    share = max(1, len(cpus) // count)
    pinned = [tuple(cpus[i * share : (i + 1) * share]) if count <= len(cpus) else () for i in range(count)]
    own = [tuple(gpus[i * ranks : (i + 1) * ranks]) for i in range(count)]
    return [Slot(pinned[i], own[i], max(1, share // ranks)) for i in range(count)]


def _cpus() -> list[int]:
    with suppress(AttributeError):  # no such thing on a Mac
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _gpus() -> list[str]:
    import torch

    given = [part for part in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if part]
    return given or [str(i) for i in range(torch.cuda.device_count())]


@dataclass
class _Process:
    """A worker of ours."""

    slot: int
    process: "subprocess.Popen[str]"
    said: deque[str] = field(default_factory=lambda: deque(maxlen=30))
    readers: list[threading.Thread] = field(default_factory=list)
    began: bool = False

    def hear_out(self) -> None:
        """Read all that it has said, now that it has ended."""
        for reader in self.readers:
            reader.join(5)  # a child of it may keep the pipe open
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.close()


class Workers:
    """Worker processes on this machine, which work on one study after another.

    Args:
        studies: where the studies are.
        slots: what each worker has.
        places: where data and store are.
        engine: as in `bench.tuning.worker.Worker`.
        named: what they are told that they may import (`bench.plugins.naming`), of the studies that are to come.
    """

    def __init__(
        self, studies: Studies, slots: Sequence[Slot], places: Mapping[str, Any], engine: str, named: Sequence[str] = ()
    ) -> None:
        self.studies, self.slots, self.places, self.engine, self.named = studies, slots, places, engine, named
        self._running: dict[int, _Process] = {}
        self._busy: set[int] = set()
        self._events: Queue[tuple[_Process, Mapping[str, Any]]] = Queue()
        self._stillborn = 0

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *error: object) -> None:
        self._stop()

    def work(self, study: Study, progress: TuningProgress) -> bool:
        """Let them work until nothing is left to do; False if a signal asked to stop, and then they have ended.

        Args:
            study: what to work on.
            progress: shows what they do.

        Raises:
            UserError: a worker says that trials cannot be made here.
            RunFailed: workers die as soon as they are started.
        """
        self.study, self.progress = study, progress
        try:
            with _sigterm_as_interrupt(), progress.showing(len(self.slots)):
                for i in range(len(self.slots)):
                    self._send(i)
                self._count()
                while self._busy:
                    self._listen()
                    for worker in [worker for worker in self._running.values() if worker.process.poll() is not None]:
                        del self._running[worker.slot]
                        if self._replace(worker):
                            self._send(worker.slot)
            return True
        except KeyboardInterrupt:
            progress.say("bench: asking the workers to stop; once more to stop at once")
            self._stop()
            return False

    def _send(self, index: int) -> None:
        """Give the study to a worker, which is started if it is not there."""
        if index not in self._running:
            self._running[index] = self._start(index)
        worker = self._running[index]
        self._busy.add(index)
        assert worker.process.stdin is not None
        with suppress(BrokenPipeError):  # it has just died, which will be noticed
            print(self.study.name, file=worker.process.stdin, flush=True)

    def _start(self, index: int) -> _Process:
        slot = self.slots[index]
        command = bench_command("worker", "--events", "--engine", self.engine)
        command += ["--shared-by", str(len(self.slots)), *self.named]
        command += [word for name, place in self.places.items() for word in (f"--{name}", str(place))]
        environment = os.environ | slot.environment
        # Not among the arguments, which everybody on the machine can read.
        environment["BENCH_STORAGE"] = self.studies.url.render_as_string(hide_password=False)
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, errors="replace", start_new_session=True,  # Ctrl-C is for us, who hand it on
        )  # fmt: skip
        if slot.cpus and hasattr(os, "sched_setaffinity"):
            with suppress(OSError):
                os.sched_setaffinity(process.pid, slot.cpus)
        worker = _Process(index, process)
        for target in (self._read_events, self._read_errors):
            worker.readers.append(threading.Thread(target=target, args=(worker,), daemon=True))
            worker.readers[-1].start()
        return worker

    def _read_events(self, worker: _Process) -> None:
        assert worker.process.stdout is not None
        with worker.process.stdout as lines:
            for line in lines:
                try:
                    event = json.loads(line)
                except ValueError:  # a library prints
                    continue
                if isinstance(event, dict):
                    self._events.put((worker, event))

    def _read_errors(self, worker: _Process) -> None:
        assert worker.process.stderr is not None
        with worker.process.stderr as lines:
            for line in lines:
                if line.strip():
                    worker.said.append(line.rstrip())

    def _listen(self) -> None:
        """Show what has happened since."""
        with suppress(Empty):
            worker, event = self._events.get(timeout=0.2)
            while True:
                if "trial" in event or "lanes" in event:
                    worker.began, self._stillborn = True, 0
                if event.get("done") == self.study.name:
                    self._busy.discard(worker.slot)
                if "ended" in event:
                    self._count()
                self.progress.event(worker.slot, event)
                worker, event = self._events.get_nowait()

    def _count(self) -> None:
        with suppress(RunFailed):  # the database is away; what is shown can wait
            self.progress.counted(self.study.trials(), self.study.request.trials)

    def _replace(self, worker: _Process) -> bool:
        """Whether a worker that has ended is to be replaced."""
        worker.hear_out()
        self._listen()
        if worker.slot not in self._busy:
            return False
        code = worker.process.returncode
        errors = [line.partition("error: ")[2] for line in worker.said if line.startswith("bench: error: ")]
        if errors:
            raise (UserError if code == UserError.exit_code else RunFailed)(errors[-1])
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        if code != 130:  # not one that gave its trial back
            self.progress.say(f"worker {worker.slot + 1} died ({how}); starting another")
            for trial in self.study.trials():
                # The same number on another machine is another process.
                ours = trial.worker.get("pid") == worker.process.pid and lives(trial.worker) is False
                if trial.state == "running" and ours:
                    self.study.fail(trial, f"its worker died ({how})")
        self._stillborn += not worker.began
        if self._stillborn >= STILLBORN:
            last = worker.said[-1] if worker.said else "it said nothing"
            raise RunFailed(f"workers die as soon as they are started ({how}): {last}")
        return True

    def _stop(self) -> None:
        """Ask the workers to give their trials back, and see that they end."""
        running, self._running = list(self._running.values()), {}
        for worker in running:
            with suppress(ProcessLookupError):
                worker.process.send_signal(signal.SIGTERM)
        end = time.monotonic() + PATIENCE_SECONDS
        try:
            for worker in running:
                worker.process.wait(max(0.1, end - time.monotonic()))
        except (KeyboardInterrupt, subprocess.TimeoutExpired):
            for worker in running:
                worker.process.kill()
                worker.process.wait()
        finally:
            for worker in running:
                worker.hear_out()


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    old = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, old)
