"""A run on several devices, as a process of its own, which starts the other ranks."""

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
from bench.errors import RunBroke, RunBusy
from bench.process import bench_command
from bench.store.record import RunResult
from bench.store.store import Store
from bench.train.stop import StopRequest


def run_apart(config: RunConfig, stop: StopRequest) -> RunResult:
    """Train a run with `bench fit`; a stop request reaches it as SIGTERM, and becomes a KeyboardInterrupt."""
    store = Store(config.store)
    stored = store.get(config.run_id)
    if stored is not None and stored.status == "running":
        raise RunBusy(f"run {config.run_id} is in training by another process")
    settings: dict[str, Any] = settings_of(config.model_dump(mode="json", exclude={"data", "store", "logger"}))
    with tempfile.TemporaryDirectory() as folder:
        path, log = Path(folder, "config.json"), Path(folder, "log")
        path.write_text(json.dumps(settings), "utf-8")  # JSON is valid YAML
        words = ["fit", "--config", str(path), "--store", str(config.store), "--data", str(config.data), "--json"]
        with log.open("w") as stream:
            process = subprocess.Popen(
                bench_command(*words), stdout=subprocess.DEVNULL, stderr=stream, start_new_session=True
            )
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
        lines = log.read_text("utf-8", "replace").strip().splitlines()
    result = store.get(config.run_id)
    if result is not None and result.finished:
        return result
    if stop.signal is not None:
        raise KeyboardInterrupt
    last = lines[-1] if lines else f"exit code {process.returncode}"
    raise RunBroke(f"run {config.run_id} failed: {last.removeprefix('bench: error: ')}")
