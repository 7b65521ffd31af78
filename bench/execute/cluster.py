"""The processes that train a command's runs: this one, or a Dask cluster."""

import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from multiprocessing import spawn
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any
from uuid import uuid4

from bench import process
from bench.config.run_config import RunConfig
from bench.errors import RunBroke, RunFailed, UserError, first_line
from bench.execute import Effort, worker
from bench.execute.blocks import Block, Choice
from bench.progress import Advance, SweepProgress, doing, say
from bench.store.files import Lock, making, remove, replacing
from bench.store.writer import new_results
from bench.text import counted
from bench.train.memory import give_back
from bench.train.stop import StopRequest

MAX_DEATHS = 3
"""Number of workers that a block may end. Ours."""
WAIT_SECONDS = 120
"""Seconds to wait for the first worker of a cluster. Ours."""
POLL_SECONDS = 0.5
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_NEVER = logging.CRITICAL + 1
_SETTINGS = {
    "logging": dict.fromkeys(("distributed", "distributed.client", "tornado", "tornado.application", "bokeh"), _NEVER),
    "distributed.scheduler.allowed-failures": MAX_DEATHS - 1,
    "distributed.scheduler.worker-ttl": None,  # a step may keep a worker busy for long
    "distributed.worker.profile.enabled": False,
}
_usual_preparation = spawn.get_preparation_data


class WorkersDied(RunBroke):
    """A block ended its worker process several times."""


def resources(workers: str, config: RunConfig, runs: int | None = None) -> list[dict[str, str]]:
    """The environment of each worker on this machine: the GPUs that a run needs, or a share of the processors.

    `auto` is one worker for each set of GPUs, or for each processor, but no more than runs. UserError if the number is
    invalid, or there are too few GPUs.
    """
    ranks, cpus = config.trainer.devices, _cpus()
    gpus = _gpus() if config.device == "cuda" else []
    most = 1 if config.device == "mps" else max(1, len(gpus or range(cpus)) // ranks)
    if workers != "auto" and not (workers.isascii() and workers.isdigit() and int(workers)):
        raise UserError(f"--workers {workers}: write how many (--workers 2), or auto")
    count = min(most if workers == "auto" else int(workers), runs or sys.maxsize)
    if gpus and count > most:
        raise UserError(
            f"--workers {count}: {len(gpus)} GPUs can serve {most} workers with {ranks} per run; use --workers {most}"
        )
    share = os.environ.get("OMP_NUM_THREADS") or str(max(1, cpus // count // ranks))
    threads = dict.fromkeys(THREADS, share)  # else Dask sets 1
    sets = [",".join(gpus[i * ranks : (i + 1) * ranks]) for i in range(count)]
    return [threads | ({"CUDA_VISIBLE_DEVICES": one} if gpus else {}) for one in sets]


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1  # not on macOS


def _gpus() -> list[str]:
    import torch

    given = [part for part in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if part]
    return given or [str(i) for i in range(torch.cuda.device_count())]


class Crew(AbstractContextManager["Crew"]):
    """The processes that train `runs` runs, such as `config`, from the first missing one to the end of the context."""

    def __init__(self, effort: Effort, config: RunConfig, runs: int | None = None) -> None:
        workers = effort.workers or ("auto" if config.device == "cuda" else "1")
        self.effort, self.cluster = effort, effort.cluster
        self._workers = [] if self.cluster else resources(workers, config, runs)
        self.measured = dict[object, Choice]()  # the best number of lanes
        self._topic = f"bench-{uuid4().hex}"
        self._client: Any = None
        self._local: Any = None
        self._progress: SweepProgress | None = None
        self._slots: dict[str, int] = {}
        self._running: dict[str, Block] = {}
        self._ended: SimpleQueue[Any] = SimpleQueue()

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Ask the workers to stop, and wait for them; or end them at once, after Ctrl-C and at another one."""
        try:
            if kind is not KeyboardInterrupt:
                for _ in self._ends(lambda: True):
                    pass
        finally:
            for nanny in list(self._local.workers.values()) if self._local else ():
                nanny.auto_restart = False
                with suppress(ProcessLookupError, TypeError):
                    os.kill(nanny.pid, signal.SIGKILL)  # they have saved their state
            for opened in filter(None, (self._client, self._local)):
                with suppress(Exception):
                    opened.close(timeout=5)
            self._client = self._local = None
            spawn.get_preparation_data = _usual_preparation

    @property
    def is_here(self) -> bool:
        """Whether this process trains."""
        return len(self._workers) == 1

    @property
    def shares(self) -> int:
        """The number of processes that share the runs."""
        return len(self._workers) or (1 if self._client is None else max(1, len(self._client.nthreads())))

    @property
    def threads(self) -> int:
        """The number of threads of each process of this machine."""
        return int(self._workers[0]["OMP_NUM_THREADS"]) if self._workers else 1

    def start(self) -> None:
        """Connect to the cluster, or start it; does nothing the second time. UserError if it has no workers."""
        if self._client is not None:
            return
        import dask

        dask.config.set(_SETTINGS)
        if self.cluster is None:
            say(f"bench: starting {counted(len(self._workers), 'worker')}")
        with doing("starting workers"):
            self._client = self._start() if self.cluster is None else _connected(self.cluster)
        self._client.subscribe_topic(self._topic, lambda event: self._hear(event[1]))
        self._client.subscribe_topic("all", lambda event: self._hear_of_death(event[1]))

    def _start(self) -> Any:
        """A client of new workers on this machine."""
        from distributed import Client, Nanny, Scheduler, SpecCluster
        from distributed.utils import LoopRunner

        usual = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            runner = LoopRunner()
            runner.start()  # workers inherit the signal mask of its thread: Ctrl-C is for this process
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, usual)
        spawn.get_preparation_data = _preparation
        has_page = find_spec("bokeh") is not None
        here = {"host": "127.0.0.1"}
        common = {"nthreads": 1, "memory_limit": 0, "preload": ["bench.execute.worker"], "silence_logs": _NEVER, **here}
        page = {"dashboard": has_page, "dashboard_address": "127.0.0.1:0"}
        self._local = SpecCluster(
            {i: {"cls": Nanny, "options": common | {"env": env}} for i, env in enumerate(self._workers)},
            {"cls": Scheduler, "options": here | page},
            loop=runner.loop,
            silence_logs=_NEVER,  # pyright: ignore[reportArgumentType] - a level, says its documentation
        )
        if has_page:
            say(f"bench: dashboard of the workers: {self._local.dashboard_link}")
        return Client(self._local)

    @contextmanager
    def serving(self, progress: SweepProgress, store: Path) -> Iterator[None]:
        """Show what workers report within the context; workers of a cluster look there for a file in the store."""
        token = store / f".{self._topic}"
        self._progress = progress
        if self.cluster is not None:
            with making(store):
                store.mkdir(parents=True, exist_ok=True)
                token.touch()
        try:
            yield
        finally:
            self._progress = None
            remove(token)

    def _hear(self, event: Mapping[str, Any]) -> None:
        slot = self._slots.setdefault(event["worker"], len(self._slots))
        if (progress := self._progress) is not None and "say" in event:
            progress.say(event["say"])
        elif progress is not None and "doing" in event:
            progress.doing(slot, event["doing"])
        elif progress is not None:
            progress.add(slot, Advance(*event["progress"]))

    def _hear_of_death(self, event: Mapping[str, Any]) -> None:
        if event.get("action") == "remove-worker" and not event["expected"] and self._progress is not None:
            self._progress.say("a worker died; its runs continue in another")
            self._progress.workers.clear()  # the living ones report again

    def choose(self, group: Sequence[RunConfig], progress: SweepProgress, stop: StopRequest) -> Choice:
        """How a group of runs is executed (`Choices`); pass the largest first."""
        from bench.execute.choice import Choices
        from bench.train.threads import set_threads

        if not self.is_here:
            set_threads(self.threads)  # as in the workers
        choice = Choices(self.effort, progress.say, stop, self.measured).of(group)
        give_back()
        return choice

    def train(
        self, blocks: Iterator[Block], stop: StopRequest, progress: SweepProgress
    ) -> Iterator[tuple[Block, Callable[[], bool]]]:
        """Blocks with functions that train them, or that return how workers have ended (`bench.execute.here.train`)."""
        if self.is_here:
            from bench.execute import here

            for block in blocks:
                yield block, partial(here.train, block, stop, progress)
            return
        token = f".{self._topic}" if self.cluster else None
        while True:
            while len(self._running) < self.shares and (block := next(blocks, None)) is not None:
                future = self._client.submit(worker.train, worker.Message.of(block, self._topic, token), pure=False)
                self._running[future.key] = block
                future.add_done_callback(self._ended.put)
            if (end := next(self._ends(lambda: stop.signal is not None), None)) is None:
                return
            yield end[0], partial(_trained, *end)

    def _ends(self, stopped: Callable[[], bool]) -> Iterator[tuple[Block, Any]]:
        """The blocks that end, with Dask's futures; once `stopped`, the workers are asked to save their state."""
        while self._running:
            if stopped():  # repeated, since a block may have begun just now
                self._client.run(worker.ask_to_stop, self._topic, on_error="ignore")
            with suppress(Empty):
                future = self._ended.get(timeout=POLL_SECONDS)
                yield self._running.pop(future.key), future


def _trained(block: Block, future: Any) -> bool:
    """The result of a block, or its error; files of a worker that does not have the store are written into it.

    WorkersDied if it ended its workers, RunFailed if the cluster is gone.
    """
    from distributed import KilledWorker
    from distributed.client import FutureCancelledError

    first, count = block.first, len(block.runs)
    what = f"run {first.run_id}" if count == 1 else f"a block of {count} {first.opt} lanes"
    try:
        ended, files = future.result()
    except KilledWorker as error:
        deaths = counted(error.allowed_failures + 1, "worker")
        raise WorkersDied(f"{what} failed: {deaths} died of it (killed, out of memory, or a crash)") from None
    except FutureCancelledError:
        raise RunFailed(f"the cluster has lost {what}; repeat the command") from None
    store = first.store
    for name, contents in files.items():
        with making(store), Lock(store / name), new_results(store / name) as out:
            for file, content in contents.items():
                with replacing(out / file) as temporary:
                    temporary.write_bytes(content)
    return ended


def _connected(address: str) -> Any:
    """A client of a cluster that has a worker; UserError if there is none."""
    from distributed import Client

    try:
        file = Path(address)
        client = Client(json.loads(file.read_bytes())["address"] if file.is_file() else address, set_as_default=False)
        client.wait_for_workers(1, timeout=WAIT_SECONDS)
    except (OSError, ValueError, LookupError, TypeError) as error:  # includes TimeoutError
        raise UserError(f"--cluster {address}: no Dask cluster with workers answers ({first_line(error)})") from None
    return client


def _preparation(name: str) -> dict[str, Any]:
    """What a new worker does first: it imports no user's script, and its import path begins with the suite's."""
    usual = _usual_preparation(name)
    usual["sys_path"] = [str(process.ROOT), *usual["sys_path"]]
    return {key: value for key, value in usual.items() if not key.startswith("init_main")}
