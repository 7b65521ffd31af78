"""The child process of the checks."""

import json
import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from bench.check.examiner import Examination
from bench.errors import UserError
from bench.machine import crowding
from bench.process import ROOT, python_command

START = 180.0
"""Seconds for importing torch, on a slow disk."""

INSIDE = "BENCH_CHECK_WORKER"
"""An environment variable that marks the child process."""

# The caller's path, where a conformance test may find its optimizer, with the suite's own packages first.
_CODE = """
import pickle, sys
root, path = pickle.load(sys.stdin.buffer)
sys.path[:] = [root, *path]
from bench.process import shield
shield()
sys.path[:] = path
from bench.check.examiner import main
main()
"""


class Ended(Exception):
    """The process ended before its work was done."""


class Child:
    """The process, in its own session, so that its forks end with it."""

    def __init__(self, examinations: Mapping[int, Examination], limit: float) -> None:
        self.limit = limit
        try:
            request = pickle.dumps((str(ROOT), sys.path)) + pickle.dumps((limit, dict(examinations)))
        except Exception as error:
            raise UserError(f"options must be plain values: {error}") from None
        self.output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__
        self.read, write = os.pipe()
        # No GPU: its driver's threads would not survive the fork of `ranks.py`, and the checks are the same without.
        alone = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", INSIDE: "1", "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(
            python_command("-c", _CODE, str(write)),
            stdin=subprocess.PIPE,
            stdout=self.output,
            stderr=subprocess.STDOUT,
            pass_fds=(write,),
            env={**os.environ, **alone},
            start_new_session=True,
        )
        os.close(write)
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(request)
            self.process.stdin.close()

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):  # without a limit, wait hangs if an interrupt in poll left its lock
            self.process.wait(5)
        os.close(self.read)
        self.output.close()

    def events(self) -> Iterator[dict[str, Any]]:
        """Its events, until it is done.

        Raises:
            Ended: the process ended early.
        """
        begun, allowed = time.monotonic(), START
        buffer = b""
        while True:
            line, newline, rest = buffer.partition(b"\n")
            if newline:
                buffer = rest
                with suppress(ValueError):
                    event = json.loads(line)
                    if isinstance(event, dict) and "event" in event:
                        begun, allowed = time.monotonic(), START if event["event"] == "ready" else self.limit
                        yield event
                        if event["event"] == "end":
                            return
                continue
            if time.monotonic() - begun > allowed * crowding():
                raise Ended(f"not finished after {self.limit:g} s")
            if select.select([self.read], [], [], 0.2)[0]:
                chunk = os.read(self.read, 65536)
                buffer += chunk
                if not chunk:
                    raise Ended(self._ending())
            elif self.process.poll() is not None:
                raise Ended(self._ending())

    def _ending(self) -> str:
        code = self.process.wait()
        how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with code {code}"
        self.output.seek(0, os.SEEK_END)
        self.output.seek(max(0, self.output.tell() - 2000))
        printed = self.output.read().decode(errors="replace").strip().rpartition("\n")[2]
        return f"the process ended {how}" + (f"; last printed: {printed[:200]}" if printed else "")
