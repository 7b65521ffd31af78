"""Processes that are stopped or compete, and disks that fail: nothing is lost or repeated, results agree bit for bit.

`test_black_box_kills.py` kills commands, `test_store_faults.py` lets calls of the store fail.
"""

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from bench.store.block import blocks_in
from tests.outcomes import leftovers, outcome
from tests.programs import Program, nothing
from tests.slow import SLOW

SMALL = ("--task", "synthetic", "--trainer.val_every", "10", "--device", "cpu", "--trainer.checkpoint_seconds", "1e-3")
LANES = ("--engine", "lanes", "--width", "4")
SPS = ("--opt", "sps", "--opt.gamma", "2", "--opt.max_step", "5")
SWEEP = ("sweep", *SMALL, "--opt", "ngd", "--seeds", "2", "--trainer.max_steps", "30")
COMMANDS = {
    "fit": ("fit", *SMALL, *SPS, "--trainer.batch_size", "5", "--trainer.max_steps", "60"),
    "lanes": (*SWEEP, "--opt.lr", "0.01:1:4", *LANES),
    "one by one": (*SWEEP, "--opt.lr", "0.1,1", "--engine", "lightning"),
}
SHARED = (*SWEEP, "--opt.lr", "0.01:1:6", "--workers", "2", "--engine", "lanes", "--width", "3")
WITH_WORKERS = {
    "sweep": (*SHARED, "--trainer.max_steps", "1500"),
    # Blocks are left when the worker has imported torch.
    "long sweep": (*SHARED, "--opt", SLOW, "--opt.lr", "0.01:1:6", "--trainer.max_steps", "400"),
}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """Start programs; kill those that still run after the test."""
    started: list[Program] = []

    def begin(*words: object, prepare: Callable[..., None] = nothing, args: tuple[object, ...] = ()) -> Program:
        started.append(Program(tmp_path / f"program-{len(started)}", words, prepare, *args))
        return started[-1]

    yield begin
    for program in started:
        program.close()


def one_error(end: tuple[int | None, str, str], code: int) -> str:
    """The last line of a program's output, its only error; progress comes before it."""
    assert end[:2] == (code, ""), end
    assert "Traceback" not in end[2]
    assert end[2].count("bench: error: ") == 1, end
    return end[2].splitlines()[-1]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Any]]:
    """The results of an uninterrupted command."""

    @cache
    def of(kind: str) -> dict[str, Any]:
        folder = tmp_path_factory.mktemp("whole")
        store = folder / "runs"
        program = Program(folder / "program", (*(COMMANDS | WITH_WORKERS)[kind], "--store", store))
        assert program.end()[0] == 0, program.end()
        assert leftovers(store) == []
        return outcome(store)

    return of


def training_worker(store: Path, command: int) -> int | None:
    """A worker of a command that has saved the state of a block."""
    if list(store.glob("*/last.ckpt")):
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                parent = int(stat.read_text().rpartition(")")[2].split()[1])
                if parent == command and b"spawn_main" in (stat.parent / "cmdline").read_bytes():
                    return int(stat.parent.name)
    return None


@pytest.mark.deep
def test_a_worker_that_is_killed_is_replaced_and_its_block_goes_on(start, store: Path, whole) -> None:
    program = start(*WITH_WORKERS["long sweep"], "--store", store)
    os.kill(program.until(lambda: training_worker(store, program.pid)), signal.SIGKILL)
    code, _, err = program.end()
    assert code == 0, err
    assert "a worker died; its runs continue in another" in err
    assert outcome(store) == whole("long sweep")
    assert leftovers(store) == []


# -- several at once ------------------------------------------------------------------------------------------------


@pytest.mark.deep
def test_a_signal_stops_the_workers_and_the_same_command_goes_on(start, store: Path, whole) -> None:
    words = (*WITH_WORKERS["sweep"], "--store", store)
    program = start(*words)
    program.until(lambda: list(store.glob("*/last.ckpt")))
    program.send(signal.SIGINT)
    code, _, err = program.end()
    assert code == 130, err
    assert "the same command continues" in err
    assert start(*words).end()[0] == 0
    assert outcome(store) == whole("sweep")


@pytest.mark.deep
@pytest.mark.parametrize("kind", COMMANDS)
def test_two_that_want_the_same_runs_train_each_once(start, store: Path, whole, kind: str) -> None:
    words = (*COMMANDS[kind], "--store", store)
    ends = [program.end() for program in [start(*words), start(*words)]]
    codes = sorted(code for code, _, _ in ends)
    assert codes in ([0, 0], [0, 2])
    for end in ends:
        if end[0] == 2:
            assert kind == "fit"
            assert "another process" in one_error(end, 2)
    assert outcome(store) == whole(kind)
    assert leftovers(store) == []
    assert sorted(run_id for block in blocks_in(store) for run_id in block.runs) == sorted(outcome(store))


@pytest.mark.deep
def test_two_sweeps_whose_grids_overlap_share_what_both_want(start, store: Path, tmp_path: Path) -> None:
    def words(lr: str, *more: object) -> tuple[object, ...]:
        return ("sweep", *SMALL, "--opt", "ngd", "--opt.lr", lr, "--seeds", "2", "--trainer.max_steps", "30", *more)

    ends = [p.end() for p in [start(*words(lr, *LANES, "--store", store)) for lr in ("0.1,0.2,0.4", "0.2,0.4,0.8,1.6")]]
    assert [code for code, _, _ in ends] == [0, 0], ends
    alone = start(*words("0.1,0.2,0.4,0.8,1.6", "--engine", "lanes", "--width", "1", "--store", tmp_path / "alone"))
    assert alone.end()[0] == 0
    found, expected = outcome(store), outcome(tmp_path / "alone")
    assert found.keys() == expected.keys()
    assert {own[0]["status"] for own in found.values()} == {"completed"}
    assert leftovers(store) == []
    assert sorted(run_id for block in blocks_in(store) for run_id in block.runs) == sorted(outcome(store))


@pytest.mark.deep
@pytest.mark.parametrize("kind", COMMANDS)
def test_readers_beside_a_writer_see_whole_records_and_tables(cli, start, store: Path, whole, kind: str) -> None:
    store.mkdir()
    writer = start(*COMMANDS[kind], "--store", store)
    counts = []
    while writer.process.is_alive():
        listed = cli("list", "runs", "--store", store)
        assert (listed.code, listed.err) == (0, "")
        query = "select count(*) as n, count(distinct (run_id, step)) as m from curves"
        asked = cli("sql", query, "--store", store, "--json")
        assert (asked.code, asked.err) == (0, "")
        (row,) = json.loads(asked.out)
        assert row["n"] == row["m"]
        counts.append(row["n"])
    assert writer.end()[0] == 0
    assert counts == sorted(counts)
    assert outcome(store) == whole(kind)


# -- disks ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """A separate file system, if mounting is permitted."""
    made: list[Path] = []

    def mounted(*options: str) -> Path:
        folder = tmp_path / f"disk-{len(made)}"
        folder.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", *options, "none", folder], capture_output=True).returncode:
            pytest.skip("may not mount a file system")
        made.append(folder)
        return folder

    yield mounted
    for folder in made:
        subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.deep
@pytest.mark.parametrize("kind", [pytest.param("lanes", marks=pytest.mark.deep), "fit"])
@pytest.mark.parametrize(
    "size", [16, pytest.param(48, marks=pytest.mark.deep), pytest.param(96, marks=pytest.mark.deep)]
)
def test_a_disk_that_fills_up_is_one_line_and_with_room_it_goes_on(
    cli, start, mount, whole, kind: str, size: int
) -> None:
    disk = mount("-o", "size=4m")
    room, store = disk / "room", disk / "runs"
    words = (*COMMANDS[kind], "--store", store)
    room.write_bytes(bytes((4096 - size) * 1024))
    error = one_error(start(*words).end(), 1 if store.exists() else 2)
    assert "No space left on device" in error or "disk is full" in error
    listed = cli("list", "runs", "--store", store)
    assert (listed.code, listed.err) == (0, "")
    room.unlink()
    assert start(*words).end()[0] == 0
    assert outcome(store) == whole(kind)
    assert leftovers(store) == []


@pytest.mark.deep
@pytest.mark.parametrize("kind", ["lanes", "fit"])
def test_a_disk_that_may_only_be_read_is_one_line(cli, start, mount, whole, kind: str) -> None:
    disk = mount()
    store = disk / "runs"
    words = (*COMMANDS[kind], "--store", store)
    assert start(*words).end()[0] == 0
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    assert start(*words).end()[0] == 0  # existing results are shown
    listed = cli("list", "runs", "--store", store)
    assert (listed.code, listed.err) == (0, "")
    error = one_error(start(*words, "--seed" if kind == "fit" else "--data_seed", "7").end(), 2)
    assert "Read-only file system" in error
    assert outcome(store) == whole(kind)
