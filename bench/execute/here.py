"""Training a block in this process, which is the command's or a worker."""

import gc
import json
import os
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.config.run_config import RunConfig, settings_of
from bench.errors import RunBroke, RunBusy, first_line
from bench.execute.blocks import Block
from bench.lanes.runs import train_block
from bench.process import as_options, bench_command
from bench.progress import SweepProgress
from bench.store.record import RunResult
from bench.store.stores import Contents
from bench.train.memory import give_back, keep_freed_memory, ran_out
from bench.train.runner import run
from bench.train.stop import StopRequest


def train(block: Block, stop: StopRequest, progress: SweepProgress) -> bool:
    """Train a block; False if a signal asked to stop.

    RunBusy if another process trains some of the runs, RunBroke if it failed, MemoryError if lanes need more memory
    than available; other errors end the command.
    """
    keep_freed_memory()
    about: dict[str, Any] = {"plan": block.plan, "tuned_by": block.tuned_by}
    if block.lanes:
        try:
            return train_block(block.grid, stop, progress, width=block.width, **about) is not None
        except (MemoryError, RuntimeError) as error:
            if not ran_out(error):
                raise
            short = first_line(error)
        gc.collect()  # here, where no traceback keeps the memory
        give_back()
        raise MemoryError(short)
    config = block.first
    try:
        if config.trainer.ranks > 1:
            result = _run_apart(config, stop)
        else:
            result = run(config, progress=progress, stop=stop, **about)
    except RunBroke:
        progress.advance(0, 0, [])
        raise
    except KeyboardInterrupt:
        return False
    if result.status == "killed":
        return False
    progress.advance(0, 0, [result])
    return True


def _run_apart(config: RunConfig, stop: StopRequest) -> RunResult:
    """Train a run on several devices with `bench fit`, which starts the ranks; a stop request reaches it as SIGTERM."""
    stored = Contents([config.store], [config.run_id]).get(config.run_id)
    if stored is not None and stored.status == "running":
        raise RunBusy(f"run {config.run_id} is in training by another process")
    settings: dict[str, Any] = settings_of(config.model_dump(mode="json", exclude={"data", "store", "logger"}))
    with tempfile.TemporaryDirectory() as folder, Path(folder, "log").open("w+", errors="replace") as log:
        path = Path(folder, "config.json")
        path.write_text(json.dumps(settings), "utf-8")  # JSON is valid YAML
        words = ["fit", "--json", *as_options({"config": path, "store": config.store, "data": config.data})]
        process = subprocess.Popen(bench_command(*words), stdout=subprocess.DEVNULL, stderr=log, start_new_session=True)
        try:
            while process.poll() is None:
                time.sleep(0.2)
                if stop.signal is not None:
                    process.terminate()
                    process.wait()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # remaining ranks
            process.wait()
        log.seek(0)
        last = [f"exit code {process.returncode}", *log.read().strip().splitlines()][-1]
    result = Contents([config.store], [config.run_id]).get(config.run_id)
    if result is not None and result.finished:
        return result
    if stop.signal is not None:
        raise KeyboardInterrupt
    raise RunBroke(f"run {config.run_id} failed: {last.removeprefix('bench: error: ')}")
