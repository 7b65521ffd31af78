"""What a Dask worker does: train a block of runs.

Importing this module does not import torch, so that a worker can report that import.
"""

import gc
import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from importlib import import_module
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock, Thread
from typing import Any

from bench import process
from bench.config.plugins import adopt, packed
from bench.config.run_config import RunConfig, on_device, resolve, settings_of
from bench.config.settings import as_stored
from bench.config.tuned import TunedBy
from bench.config.values import place
from bench.errors import RunBroke, UserError, first_line
from bench.execute.blocks import Block
from bench.progress import Advance, SweepProgress, doing, hearing
from bench.store.block import DONE
from bench.train.memory import give_back, ran_out
from bench.train.stop import StopRequest

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


def as_job(configs: Sequence[Sequence[RunConfig]], **more: Any) -> str:
    """Rows of runs of one command, and other values, as JSON for `train`."""
    first = configs[0][0]
    rows = [[{"id": config.run_id, "settings": settings_of(as_stored(config))} for config in row] for row in configs]
    places = {"data": str(first.data.absolute()), "store": str(first.store.absolute()), "logger": first.logger}
    common = {"rows": rows, "places": places, "folder": str(Path.cwd()), "mode": first.task_spec.mode}
    return json.dumps({**common, "session": packed(), **more})


def configs_of(job: Mapping[str, Any]) -> list[list[RunConfig]]:
    """The rows of runs in a job; UserError if the code of a task or an optimizer differs from the command's."""
    adopt(job["session"])
    with suppress(OSError):  # names of plug-ins may be relative
        os.chdir(job["folder"])
    rows = [[on_device(resolve(run["settings"] | job["places"], recorded=True)) for run in row] for row in job["rows"]]
    for config, run in zip(chain(*rows), chain(*job["rows"]), strict=True):
        if config.run_id != run["id"]:
            raise UserError(f"a worker has other code of {config.task} or {config.opt}; repeat the command")
    return rows


def train(text: str) -> tuple[bool, dict[str, dict[str, bytes]]]:
    """Train a block of runs: a task of Dask, with the text of `as_job`. Memory that is short is a MemoryError.

    Returns whether it has ended, or else was asked to stop; and, if this machine does not have the command's store,
    the files of finished blocks, by block and name.
    """
    job = json.loads(text)
    short = ""
    with _alone:
        os.environ.pop("SLURM_PROCID", None)  # the number of the worker, not of a rank
        try:
            return _train(job)
        except (MemoryError, RuntimeError) as error:
            if not ran_out(error):
                raise
            short = first_line(error)
        gc.collect()  # outside, where no traceback keeps the memory
        give_back()
        raise MemoryError(short)


def _train(job: Mapping[str, Any]) -> tuple[bool, dict[str, dict[str, bytes]]]:
    places, topic, files = job["places"], job["topic"], dict[str, dict[str, bytes]]()
    shared = job["token"] is None or Path(places["store"], job["token"]).exists()
    progress, stop = WorkerProgress(topic, job["mode"]), StopRequest()
    _stops[topic] = stop
    try:
        with (
            hearing(lambda what: progress.tell(doing=what)),
            nullcontext() if shared else TemporaryDirectory() as folder,
        ):
            with doing("importing torch"):
                from bench.execute import here
            places["store"] = folder or places["store"]
            if not Path(places["data"]).exists():
                places["data"] = str(place("data"))
            block = Block(configs_of(job), job["lanes"], job["width"])
            ended = here.train(block, stop, progress, job["plan"], job["tuned_by"] and TunedBy(*job["tuned_by"]))
            for path in Path(folder).glob(f"*/{DONE}/*") if folder is not None and ended else ():
                files.setdefault(path.parents[1].name, {})[path.name] = path.read_bytes()
            return ended, files
    except RunBroke as error:
        if shared:
            raise
        raise RunBroke(str(error).partition("; the traceback is in")[0]) from None  # it went with the folder
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
