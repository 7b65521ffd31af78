"""A model of a block: whenever a call to the file system fails, it keeps its results or checkpoint, or gets new ones.

Results that are replaced (`--rerun`) are lost if the call fails that moves the new ones to their place.

The k-th call below the store fails and all later ones, as after a kill or on a full disk. Python's audit events are
those calls: open, rename, mkdir, unlink, rmdir.
"""

import errno
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from bench.errors import RunBusy, RunFailed, UserError
from bench.store import files
from bench.store.block import parts_in
from bench.store.files import replacing
from bench.store.merge import merge
from bench.store.stores import last_checkpoint
from bench.store.writer import BlockWriter
from tests.stored import Store
from tests.test_store import IDS, begun, is_whole, results, train

CALLS = {"open": 0, "os.rename": 1, "os.mkdir": 0, "os.remove": 0, "os.rmdir": 0}
"""Audit events, with the argument that is the path at fault."""


class Killed(BaseException):
    """The end of the process: nothing is cleaned up after it."""


class Faults:
    """Lets calls below a folder fail."""

    folder, left, waiting = "", 0, False
    error: BaseException | None = None
    events: tuple[str, ...] = ()

    def hook(self, event: str, args: tuple[Any, ...]) -> None:
        """The audit hook: let the call fail, if it is its turn."""
        if self.error is None or self.waiting or event not in CALLS:
            return
        path = args[CALLS[event]]
        if not isinstance(path, str | os.PathLike) or not os.fspath(path).startswith(self.folder):
            return
        if isinstance(self.error, OSError) and (event in ("os.remove", "os.rmdir") or args[1] == "r"):
            return  # a full disk can be read, and emptied
        self.left -= self.left < 0 or event in self.events
        if self.left < 0:
            raise self.error


faults = Faults()
sys.addaudithook(faults.hook)  # for ever: there is no way to remove one
ERRORS = {"killed": Killed(), "full": OSError(errno.ENOSPC, "No space left on device")}
Fault = tuple[str, tuple[str, ...], int, bool]
"""The error; the calls that count; how many of them work; whether they count from the end of training only."""
renames = st.tuples(st.just(("os.rename",)), st.integers(0, 5), st.just(True))
others = st.tuples(st.just((*CALLS,)), st.integers(0, 30), st.booleans())
failures = st.one_of(renames, others).flatmap(lambda fault: st.sampled_from(sorted(ERRORS)).map(lambda k: (k, *fault)))
any_fault = st.one_of(st.none(), failures, failures, failures)


@contextmanager
def failing(folder: Path, fault: Fault | None) -> Iterator[None]:
    """Let calls fail. A kill drops the locks."""
    if fault is not None:
        kind, faults.events, faults.left, faults.waiting = fault
        faults.folder, faults.error = str(folder), ERRORS[kind]
    try:
        yield
    except Killed:
        pass
    except UserError as disk:
        if "No space left" not in str(disk):
            raise
    finally:
        faults.error, faults.waiting = None, False
        files._held.clear()


class BlockMachine(RuleBasedStateMachine):
    """A block that is trained, repeated and merged while calls fail."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.store, self.other = Store(self.folder / "runs"), Store(self.folder / "other")
        writer = BlockWriter(self.other.folder, begun())
        train(writer)
        writer.end(results(final=0.125))
        self.final: float | None = None

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    @rule(fault=any_fault, again=st.booleans(), new=st.sampled_from([0.25, 0.5]), last=st.sampled_from([4, 6, 6]))
    def training(self, fault: Fault | None, again: bool, new: float, last: int) -> None:
        """Train as a command does: from a checkpoint if there is one, to the end or until it is stopped."""
        busy = self.final is not None and not again
        with failing(self.store.folder, fault), suppress(RunBusy) if busy else nullcontext():
            self._train(again, new, last)
        self._check(None if busy or last < 6 else new, sure=fault is None)

    def _check(self, new: float | None, *, sure: bool) -> None:
        """The block has its new results, for sure if nothing failed, or the results or the checkpoint that it had."""
        run = self.store.get("a")
        final = run.final if run is not None and run.finished else None
        allowed = {self.final} if new is None else {self.final, new, None}
        assert final == new if sure and new is not None else final in allowed
        self.final = final

    def _train(self, again: bool, final: float, last: int) -> None:
        checkpoint = last_checkpoint(self.store.folder, IDS, lanes=True)
        saved = 0 if checkpoint is None else int(checkpoint.read_text())
        if checkpoint is not None:
            assert saved in {step for step, _ in parts_in(checkpoint.parent)}, "a checkpoint without its rows"
        writer = BlockWriter(self.store.folder, begun(), resume=saved, again=again)
        try:
            for step in range(saved, last, 2):
                train(writer, first=step, last=step + 2)
                self._save(writer, step + 2)
            faults.waiting = False
            if last == 6:
                writer.end(results(final=final))
            else:
                writer.leave(begun())
        except RunFailed:
            writer.leave(results(status="failed"))
            raise
        finally:
            writer.drop()

    @staticmethod
    def _save(writer: BlockWriter, step: int) -> None:
        writer.flush()
        try:
            with replacing(writer.checkpoint) as temporary:
                temporary.write_text(str(step))
        except OSError as error:
            raise RunFailed(str(error)) from None

    @rule(fault=any_fault)
    def merging(self, fault: Fault | None) -> None:
        """Merge a store that has the block's results."""
        with failing(self.store.folder, fault):
            faults.waiting = False
            merge([self.other.folder], self.store.folder)
        self._check(0.125 if self.final is None else None, sure=fault is None)

    @invariant()
    def is_readable(self) -> None:
        """Readers see whole results, or runs that can be resumed; never damage."""
        contents = self.store.contents()
        assert contents.damaged == []
        runs = [block.runs[run_id] for run_id, block in contents.blocks.items()]
        if self.final is None:
            assert {run.status for run in runs} <= {"killed", "failed"}
        else:
            assert [run.final for run in runs] == [self.final] * len(IDS)
            assert is_whole(self.store)


BlockMachine.TestCase.settings = settings(max_examples=50, stateful_step_count=8, deadline=None)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a kill leaves files open
class TestBlock(BlockMachine.TestCase):
    """The machine as a test."""
