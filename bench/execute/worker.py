"""What a Dask worker does: train a block of runs.

Importing this module does not import torch, so that a worker can report that import.
"""

import os
import pickle
import signal
import time
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock, Thread
from typing import Any

import cloudpickle

from bench import process
from bench.config.run_config import on_device
from bench.config.values import place
from bench.errors import UserError
from bench.execute.blocks import Block
from bench.progress import Advance, SweepProgress, doing, hearing
from bench.store.files import DONE
from bench.train.stop import StopRequest
from optimizers.plugins import session

REPORT_SECONDS = 0.5
"""Seconds between reports of progress. Ours."""

_alone = Lock()  # torch's seeds and default types belong to the process, and a worker may have several threads
_stops: dict[str, StopRequest] = {}


def dask_setup(worker: object) -> None:
    """Prepare a local worker: its output must not reach the terminal, and Ctrl-C is for the command only."""
    process.shield()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    Thread(target=import_module, args=["bench.execute.here"], daemon=True).start()  # before the first block comes


def ask_to_stop(topic: str) -> None:
    """Let the training of a command, if any, save its state and end."""
    if (stop := _stops.get(topic)) is not None:
        stop.heard(signal.SIGTERM)


@dataclass(frozen=True)
class Message:
    """What a worker needs to train a block."""

    block: Block
    run_ids: Sequence[str]
    topic: str  # of the command's events
    token: str | None  # a file in the command's store; None if the worker is on the same machine
    folder: Path  # names of plug-ins may be relative to it
    session: bytes  # its objects, by cloudpickle
    mode: Any  # of the metric

    @classmethod
    def of(cls, block: Block, topic: str, token: str | None) -> "Message":
        """The message of a command about a block."""
        mode = block.first.task_spec.mode
        return cls(block, [*block.runs], topic, token, Path.cwd(), cloudpickle.dumps(session), mode)

    def moved(self, **places: Path) -> Block:
        """The block with the worker's places; UserError if its code of a task or an optimizer is not the command's."""
        grid = [[on_device(run.model_copy(update=places)) for run in row] for row in self.block.grid]
        block = replace(self.block, grid=grid)
        if [*block.runs] != self.run_ids:
            raise UserError(f"a worker has other code of {block.first.task} or {block.first.opt}; repeat the command")
        return block


def train(message: Message) -> tuple[bool, dict[str, dict[str, bytes]]]:
    """Train a block of runs: a task of Dask; errors as for `bench.execute.here.train`.

    Returns whether it has ended, or else was asked to stop; and, if this machine does not have the command's store,
    the files of finished blocks, by block and name.
    """
    topic, first, stop = message.topic, message.block.first, StopRequest()
    with _alone:
        os.environ.pop("SLURM_PROCID", None)  # the number of the worker, not of a rank
        with suppress(OSError):
            os.chdir(message.folder)
        shared = message.token is None or (first.store / message.token).exists()
        progress, files = WorkerProgress(topic, message.mode), dict[str, dict[str, bytes]]()
        _stops[topic] = stop
        try:
            with (
                hearing(lambda what: progress.tell(doing=what)),
                nullcontext(first.store) if shared else TemporaryDirectory() as store,
            ):
                with doing("importing torch"):  # waits for the thread of `dask_setup`: two at once would break torch
                    from bench.execute import here
                session.update(pickle.loads(message.session))
                block = message.moved(store=Path(store), data=first.data if first.data.exists() else place("data"))
                ended = here.train(block, stop, progress)
                for path in Path(store).glob(f"*/{DONE}/*") if ended and not shared else ():
                    files.setdefault(path.parents[1].name, {})[path.name] = path.read_bytes()
                return ended, files
        finally:
            del _stops[topic]


class WorkerProgress(SweepProgress):
    """Reports the progress of this worker as events of Dask with a topic."""

    def __init__(self, topic: str, mode: Any) -> None:
        super().__init__("", mode, enabled=False)
        from distributed import get_worker

        self._worker, self._topic = get_worker(), topic
        self._last, self._steps, self._ended = 0.0, 0, list[str]()

    def tell(self, **event: object) -> None:
        """Send an event to the command."""
        self._worker.log_event(self._topic, {"worker": str(self._worker.name), **event})

    def add(self, worker: int, advance: Advance) -> None:
        """Send the progress, at most every `REPORT_SECONDS` or when runs end."""
        super().add(worker, advance)
        self._steps += advance.steps
        self._ended += advance.ended
        if not advance.alive or advance.ended or time.monotonic() - self._last > REPORT_SECONDS:
            self._last = time.monotonic()
            self.tell(progress=[*Advance(self._steps, advance.alive, advance.share, self._ended, self.best)])
            self._steps, self._ended = 0, []

    def say(self, line: str) -> None:
        """Send the line."""
        self.tell(say=line)
