"""Commands in separate processes, which tests can stop and kill."""

import multiprocessing
import os
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import bench.sweeps.sensitivity
from bench.cli import main

PATIENCE = 300
T = TypeVar("T")


def nothing() -> None:
    """No preparation."""


class Program:
    """A command in its own process group, forked from a server that has imported everything."""

    def __init__(
        self, folder: Path, words: Sequence[object], prepare: Callable[..., None] = nothing, *args: object
    ) -> None:
        folder.mkdir()
        for name in ("out", "err"):
            (folder / name).touch()
        self.folder, self.words = folder, words
        server = multiprocessing.get_context("forkserver")
        server.set_forkserver_preload(["bench.execute.here", "bench.sweeps.sensitivity", prepare.__module__])
        self.process = server.Process(target=command, args=(folder, list(map(str, words)), prepare, args))
        self.process.start()

    @property
    def pid(self) -> int:
        """The number of the process."""
        assert self.process.pid is not None
        return self.process.pid

    def until(self, reached: Callable[[], T]) -> T:
        """Wait until the condition holds; returns its value."""
        give_up = time.monotonic() + PATIENCE
        while not (value := reached()):
            assert self.process.is_alive(), f"the program ended early: {self.end()}"
            assert time.monotonic() < give_up
            time.sleep(0.005)
        return value

    def send(self, number: int) -> None:
        os.kill(self.pid, number)

    def end(self) -> tuple[int | None, str, str]:
        """Wait for it: exit code, standard output, standard error."""
        self.process.join(PATIENCE)
        return self.process.exitcode, *((self.folder / name).read_text() for name in ("out", "err"))

    def close(self) -> None:
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def command(folder: Path, words: list[str], prepare: Callable[..., None], args: tuple[Any, ...]) -> None:
    """The main function of the process."""
    os.setsid()
    os.chdir(folder)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT), number)
    warnings.simplefilter("error")
    bench.sweeps.sensitivity.write = lambda *args: []
    prepare(*args)
    main(words)
