"""Blocks: one process claims the runs of a block, which are stored together and read individually."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import bench.store.attempt
import bench.store.claims
import numpy as np
import pytest
from bench.store.attempt import Attempt
from bench.store.claims import CLAIM, PATIENCE_SECONDS

import bench.store.block
import bench.store.files
import bench.store.tables
from bench.errors import RunBusy, RunFailed, UserError
from bench.store.load import Damaged
from bench.store.record import RunResult
from bench.store.store import Store
from bench.store.tables import CURVE_FIELDS
from tests.stored import disown, kill, record

IDS = ["b", "a", "c"]  # lanes need not be sorted
STEPS = {"b": 6, "a": 2, "c": 6}
"""Run a diverged early."""

draw = np.random.default_rng(0)
CURVE = draw.random((6, 3, 4))
CURVE[2:, 1] = np.nan
CURVE[0, 0, :3] = np.nan, np.inf, -np.inf
POINTS, NAMES = [0, 2, 4, 6], ["error", "angle"]
MEASURED = draw.random((4, 3, 2))
MEASURED[:, 2, 1] = np.nan


@pytest.fixture
def kept(store: Path) -> Store:
    return Store(store)


def begun() -> list[RunResult]:
    return [record(i, status="running", steps=0, engine="lanes") for i in IDS]


def results(**changes) -> list[RunResult]:
    return [
        record(i, **{"final": 0.5, "steps": STEPS[i], "engine": "lanes", "facts": {"x": float("nan")}} | changes)
        for i in IDS
    ]


def train(attempt: Attempt, first: int = 0, last: int = 6) -> None:
    """Add the steps after `first`, two at a time, as training does."""
    for step in range(first, last, 2):
        attempt.append_curve(CURVE[step : step + 2])
        due = [i for i, point in enumerate(POINTS) if step < point <= step + 2 or point == step == 0]
        attempt.append_measurements(NAMES, [POINTS[i] for i in due], MEASURED[due])


def make_block(store: Store, **changes) -> Attempt:
    attempt = store.begin(begun(), resume=False, again=True)
    train(attempt)
    attempt.end(results(**changes))
    return attempt


def interrupted(store: Store, last: int = 4) -> Attempt:
    """A block whose process saved a checkpoint at step 2, continued and was killed."""
    attempt = store.begin(begun())
    train(attempt, last=2)
    attempt.checkpoint.write_text("2")
    train(attempt, first=2, last=last)
    kill(attempt)
    return attempt


def same(one, other) -> bool:
    np.testing.assert_equal(one, other)  # treats NaN as equal to NaN
    return True


def expected(run_id: str) -> dict[str, dict[str, np.ndarray]]:
    lane, steps = IDS.index(run_id), STEPS[run_id]
    points = [i for i, point in enumerate(POINTS) if point <= steps]
    curve = np.where(np.isfinite(CURVE), CURVE, np.nan)[:steps, lane]
    return {
        "measurements": dict(
            zip(["step", *NAMES], [np.array(POINTS, float)[points], *MEASURED[points, lane].T], strict=True)
        ),
        "curve": dict(zip(CURVE_FIELDS, [np.arange(1.0, steps + 1), *curve.T], strict=True)),
    }


def all_there(store: Store) -> bool:
    return store.contents().damaged == [] and all(same(store.tables(run_id), expected(run_id)) for run_id in IDS)


def no_leftovers(folder: Path) -> bool:
    """Whether a store contains only results."""
    names = {path.relative_to(folder).parts[1] for path in folder.rglob("*") if path.parent != folder}
    return names == {"done"} and not list(folder.rglob("*.tmp"))


def no_space(*args: object, **kwargs: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


# -- finished blocks ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row_group", [1, 12, 10_000])  # a lane, two lanes, all lanes together
def test_runs_of_a_block_are_read_one_by_one(kept, monkeypatch, row_group):
    monkeypatch.setattr(bench.store.tables, "ROW_GROUP", row_group)
    attempt = make_block(kept)
    assert [run.run_id for run in kept.runs()] == sorted(IDS)
    for result in results():
        options = result.config["opt_options"] | {"max_step": "inf"}
        stored = kept.finished_all([result.run_id]).get(result.run_id)
        assert stored == replace(result, facts={"x": None}, config=result.config | {"opt_options": options})
        assert kept.place(result.run_id) == attempt.folder
    assert all_there(kept)
    assert kept.get("d") is None
    assert kept.place("d") == kept.folder / "d"
    assert kept.tables("d") == {}
    assert kept.unfinished() == []
    assert [path.name for path in attempt.folder.iterdir()] == ["done"]
    names = ["curve.parquet", "measurements.parquet", "runs.jsonl"]
    assert sorted(path.name for path in (attempt.folder / "done").iterdir()) == names


def test_a_lane_reads_as_a_run_of_its_own(kept, tmp_path):
    make_block(kept)
    alone = Store(tmp_path / "alone")
    for lane, result in enumerate(results()):
        attempt = alone.begin([replace(result, status="running")])
        assert attempt.folder.name == result.run_id
        attempt.append_curve(CURVE[: result.steps, [lane]])
        due = [i for i, point in enumerate(POINTS) if point <= result.steps]
        attempt.append_measurements(NAMES, [POINTS[i] for i in due], MEASURED[due][:, [lane]])
        attempt.end([result])
        assert alone.get(result.run_id) == kept.get(result.run_id)
        one, other = alone.tables(result.run_id), kept.tables(result.run_id)
        assert same(one, other)
        assert [(k, list(v)) for k, v in one.items()] == [(k, list(v)) for k, v in other.items()]


def test_a_block_has_the_same_name_for_the_same_runs_in_the_same_order(kept):
    folders = {make_block(kept).folder for _ in range(2)}
    assert len(folders) == 1
    other = kept.begin(list(reversed(begun())))
    assert other.folder not in folders
    other.close()


def test_a_block_is_a_parquet_table_for_other_programs(kept):
    import pyarrow.parquet as pq

    done = make_block(kept).folder / "done"
    table = pq.read_table(done / "curve.parquet")
    assert table.column_names == ["run_id", *CURVE_FIELDS]
    assert table["run_id"].to_pylist() == ["a"] * 2 + ["b"] * 6 + ["c"] * 6
    assert table["step"].to_pylist() == [1, 2, *range(1, 7), *range(1, 7)]
    assert table["loss"].null_count == 1
    assert pq.read_table(done / "measurements.parquet", filters=[("run_id", "==", "c")])["angle"].null_count == 4


def test_lanes_that_measure_nothing_or_end_at_once(kept):
    kept.begin(begun()).end(results(steps=0))
    assert kept.tables("a") == {}
    attempt = kept.begin(begun(), again=True)
    attempt.append_curve(CURVE)
    attempt.append_measurements([], [0, 2], np.empty((2, 3, 0)))
    attempt.end(results(steps=0))
    assert kept.tables("a").keys() == {"curve"}
    assert all(len(column) == 0 for column in kept.tables("a")["curve"].values())
    attempt = kept.begin(begun(), again=True)
    attempt.append_curve(CURVE[:0])
    attempt.append_measurements(NAMES, [], np.empty((0, 3, 2)))
    attempt.end(results(steps=0))
    assert [list(table) for table in kept.tables("a").values()] == [["step", *NAMES], list(CURVE_FIELDS)]
    assert kept.contents().damaged == []


def test_a_curve_reads_the_same_while_and_after_the_run(kept):
    attempt = kept.begin(begun())
    train(attempt)
    growing = {run_id: kept.tables(run_id) for run_id in IDS}
    attempt.end(results())
    for run_id, tables in growing.items():
        rows = {name: len(columns["step"]) for name, columns in kept.tables(run_id).items()}
        assert same(kept.tables(run_id), {n: {k: v[: rows[n]] for k, v in own.items()} for n, own in tables.items()})


@pytest.mark.parametrize("while_reading", [False, True], ids=["before it is read", "between its tables"])
@pytest.mark.parametrize("last", [2, 6])
def test_a_block_that_ends_after_it_was_found_reads_as_its_results(kept, monkeypatch, last, while_reading):
    attempt = kept.begin(begun())
    train(attempt, last=last)
    found = kept.contents().runs
    finish = [lambda: (train(attempt, first=last), attempt.end(results()))]
    read = bench.store.block.read_raw

    def read_raw(path: Path, *args: Any) -> Any:
        if path.stem == "curve" and finish:
            finish.pop()()
        return read(path, *args)

    if while_reading:
        monkeypatch.setattr(bench.store.block, "read_raw", read_raw)
    else:
        finish.pop()()
    for run_id in IDS:
        assert same(found[run_id].tables(run_id), expected(run_id))


def test_an_attempt_that_is_removed_after_it_was_found_has_no_tables(kept):
    attempt = kept.begin(begun())
    train(attempt)
    found = kept.find("a")
    shutil.rmtree(attempt.folder)
    assert found.tables("a") == {}
    attempt.close()


def test_a_finished_block_that_is_removed_after_it_was_found_is_damaged(kept):
    attempt = make_block(kept)
    found = kept.find("a")
    shutil.rmtree(attempt.folder)
    with pytest.raises(Damaged, match="it was removed while it was being read"):
        found.tables("a")


def test_a_block_that_is_trained_again_while_it_is_read_has_its_new_tables(kept, monkeypatch):
    folder = make_block(kept).folder
    found, read = kept.find("a"), bench.store.block.read_parquet

    def late(path, run_id):
        """Read after the results have been replaced: as another file, in the same place."""
        monkeypatch.setattr(bench.store.block, "read_parquet", read)
        (folder / "done").rename(folder / "replaced")
        try:
            return read(path, run_id)
        finally:
            shutil.copytree(folder / "replaced", folder / "done")
            shutil.rmtree(folder / "replaced")

    monkeypatch.setattr(bench.store.block, "read_parquet", late)
    assert len(found.tables("a")["curve"]["step"]) == 2

    def later(path, run_id):
        """Read while the results are being replaced."""
        if (folder / "done").exists():
            (folder / "done").rename(folder / "replaced")
        return read(path, run_id)

    found = kept.find("a")
    monkeypatch.setattr(bench.store.block, "read_parquet", later)
    assert len(found.tables("a")["curve"]["step"]) == 2


@pytest.mark.parametrize("thinned", [False, True])
def test_a_curve_has_no_steps_after_the_last_of_its_run(kept, thinned):
    path = make_block(kept, thinned=thinned).folder / "done" / "curve.parquet"
    tables = {run_id: kept.tables(run_id)["curve"] for run_id in IDS}
    tables["a"]["step"] = np.array([1, 3])
    bench.store.tables.write_columns(path, tables)
    with pytest.raises(UserError, match="it has step 3 of a, which took 2 steps"):
        kept.tables("a")
    assert len(kept.tables("b")["curve"]["step"]) == 6


# -- one process at a time ------------------------------------------------------------------------------------------


def test_a_block_in_progress_is_seen_and_not_damaged(kept):
    attempt = kept.begin(begun())
    train(attempt, last=2)
    (found,) = Store(kept.folder).unfinished()
    assert (found.folder, list(found.runs), found.busy) == (attempt.folder, IDS, True)
    assert kept.contents().damaged == []
    assert (kept.get("a").status, kept.finished_all(["a"]).get("a")) == ("running", None)
    assert same(kept.tables("b")["curve"]["step"], np.arange(1.0, 3))
    attempt.checkpoint.touch()
    attempt.close()
    attempt.close()
    assert [block.busy for block in kept.unfinished()] == [False]
    assert kept.get("a").status == "killed"


def test_a_disk_without_room_for_the_curves_is_found_before_training(kept, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=3 * 80_020_000 - 1))
    with pytest.raises(RunFailed, match=r"has 240 MB left, and the block of runs block-\w+ needs 240 MB; free"):
        kept.begin(begun(), steps=1_000_000)
    assert not list(kept.folder.iterdir())
    kept.begin(begun(), steps=999_999).drop()


BEGIN = """
import sys
from pathlib import Path
from types import SimpleNamespace
from tests.test_blocks import Store, begun

Store(Path(sys.argv[1])).begin(begun())
"""


def test_a_block_is_trained_by_one_process(kept):
    attempt = kept.begin(begun())
    with pytest.raises(RunBusy, match=r"the block of runs block-\w{16} is in training by another process"):
        kept.begin(begun())
    with pytest.raises(RunBusy, match="is in training by another process"):
        kept.begin(begun(), again=True)
    process = subprocess.run([sys.executable, "-c", BEGIN, kept.folder], capture_output=True, text=True)
    assert "RunBusy" in process.stderr
    other = kept.begin([record("d", status="running")])
    train(attempt)
    attempt.end(results())
    assert all_there(Store(kept.folder))
    with pytest.raises(RunBusy, match="was just trained by another process"):
        kept.begin(begun())
    other.drop()
    assert no_leftovers(kept.folder)


def elsewhere(attempt: Attempt, silent: float) -> Path:
    """Give an attempt to a process of another machine, whose last heartbeat is this old."""
    claim = attempt.path / CLAIM
    bench.store.claims._claimed.discard(attempt.path)
    bench.store.files.write_json(claim, {**json.loads(claim.read_bytes()), "host": "elsewhere"})
    seen = claim.stat().st_mtime - silent
    os.utime(claim, (seen, seen))
    return claim


def test_a_process_of_another_machine_lives_as_long_as_it_gives_signs_of_life(kept):
    attempt = kept.begin(begun())
    claim = elsewhere(attempt, PATIENCE_SECONDS / 2)
    assert [block.busy for block in kept.unfinished()] == [True]
    with pytest.raises(RunBusy):
        kept.begin(begun())
    claim = elsewhere(attempt, 2 * PATIENCE_SECONDS)
    assert [block.busy for block in kept.unfinished()] == [False]
    assert kept.get("a").status == "killed"
    os.utime(claim)
    assert kept.get("a").status == "running"
    attempt.close()


def test_clocks_that_differ_do_no_harm(kept, monkeypatch):
    attempt = kept.begin(begun())
    elsewhere(attempt, 0)
    monkeypatch.setattr(bench.store.claims.time, "time", lambda: 1e10)  # our clock, not that of the file system
    with pytest.raises(RunBusy):
        kept.begin(begun())
    attempt.close()


def test_a_process_gives_signs_of_life_until_it_gives_up(kept, monkeypatch):
    monkeypatch.setattr(bench.store.claims, "BEAT_SECONDS", 1e-3)
    bench.store.claims.start_beating.cache_clear()
    attempt = kept.begin(begun())
    claim = attempt.path / CLAIM
    os.utime(claim, (1, 1))
    while claim.stat().st_mtime == 1:
        pass
    attempt.leave(begun())
    assert not claim.exists()
    assert kept.get("a").status == "killed"


def test_a_process_that_was_taken_for_dead_says_so_and_leaves_what_others_do(kept):
    attempt = kept.begin(begun())
    train(attempt, last=2)
    elsewhere(attempt, 2 * PATIENCE_SECONDS)
    other = kept.begin(begun())
    assert other.path.name == "attempt-2"
    for call in (
        lambda: train(attempt, first=2),
        attempt.sync,
        lambda: attempt.end(results()),
    ):
        with pytest.raises(RunFailed, match=r"another process took over .*attempt-1, because this one did not respond"):
            call()
    attempt.leave(results(status="failed"))
    attempt.drop()
    train(other)
    other.end(results())
    assert all_there(kept)
    assert no_leftovers(kept.folder)


@pytest.mark.parametrize("again", [False, True])
def test_if_two_processes_take_a_block_at_once_one_gets_it(kept, monkeypatch, again):
    write = bench.store.attempt.write_records
    taken = []

    def write_records(*args):  # the last step before the attempt is renamed into place
        write(*args)
        if not taken:
            taken.append(None)
            taken[0] = kept.begin(begun(), again=again)

    monkeypatch.setattr(bench.store.attempt, "write_records", write_records)
    with pytest.raises(RunBusy, match="is in training by another process"):
        kept.begin(begun(), again=again)
    assert [path.name for path in taken[0].folder.iterdir()] == ["attempt-1"]
    train(taken[0])
    taken[0].end(results())
    assert all_there(kept)


@pytest.mark.parametrize("again", [False, True])
def test_a_block_that_ends_while_it_is_taken_is_not_trained_again(kept, monkeypatch, again):
    left = interrupted(kept)
    write = bench.store.attempt.write_records
    calls = []

    def write_records(*args):
        write(*args)
        calls.append(args)
        if len(calls) == 1:
            make_block(kept)  # another process, from start to end

    monkeypatch.setattr(bench.store.attempt, "write_records", write_records)
    with pytest.raises(RunBusy, match="was just trained by another process"):
        kept.begin(begun(), again=again)
    assert all_there(kept)
    assert left.folder.exists()
    assert no_leftovers(kept.folder)


def test_if_two_processes_repeat_a_block_the_first_counts(kept):
    make_block(kept)
    one = kept.begin(begun(), again=True)
    train(one)
    elsewhere(one, 2 * PATIENCE_SECONDS)
    other = kept.begin(begun(), again=True)
    train(other)
    other.end(results(final=0.25))
    with pytest.raises(RunFailed):
        one.end(results(final=0.125))
    one.drop()
    assert kept.get("a").final == 0.25
    assert all_there(kept)


def test_results_that_came_meanwhile_stay(kept, tmp_path):
    attempt = kept.begin(begun())
    train(attempt)
    make_block(Store(tmp_path / "more"), final=0.25)  # and they are copied here
    shutil.copytree(tmp_path / "more", kept.folder, dirs_exist_ok=True)
    with pytest.raises(RunBusy, match="was just trained by another process"):
        attempt.end(results())
    attempt.drop()
    assert kept.get("a").final == 0.25
    assert all_there(kept)
    assert no_leftovers(kept.folder)


def test_results_stay_until_there_are_others(kept):
    make_block(kept)
    attempt = kept.begin(begun(), again=True)
    train(attempt, last=2)
    attempt.checkpoint.touch()
    assert all_there(kept)
    assert kept.unfinished() == []
    kill(attempt)
    assert all_there(kept)
    attempt = kept.begin(begun(), resume=False, again=True)
    train(attempt)
    assert kept.get("a").final == 0.5
    attempt.end(results(final=0.25))
    assert kept.get("a").final == 0.25
    assert all_there(kept)
    assert no_leftovers(kept.folder)


def test_a_folder_that_another_removes_meanwhile_is_made_again(kept, monkeypatch):
    attempt = kept.begin(begun())
    make = Path.mkdir

    def mkdir(self: Path, *args: Any, **kwargs: Any) -> None:
        if self.parent == attempt.folder and attempt.folder.exists():
            monkeypatch.undo()
            attempt.drop()
            raise FileNotFoundError
        make(self, *args, **kwargs)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    other = kept.begin(begun())
    train(other)
    other.end(results())
    assert all_there(kept)


@pytest.mark.parametrize("number", [999_999_999, 10**9, 10**20])
def test_a_folder_named_like_an_attempt_of_any_number_does_no_harm(kept, number):
    foreign = kept.folder / bench.store.block.name_of(IDS) / f"attempt-{number}"
    foreign.mkdir(parents=True)
    assert [damaged.path for damaged in kept.contents().damaged] == [foreign]
    attempt = kept.begin(begun())
    assert attempt.path.name == f"attempt-{number + 1}"
    assert kept.get("a").status == "running"
    train(attempt)
    attempt.end(results())
    assert all_there(kept)
    assert no_leftovers(kept.folder)


def linked(path: Path) -> None:
    path.symlink_to(path.parent)


@pytest.mark.parametrize("put", [Path.touch, linked])
def test_a_file_in_the_place_of_an_attempt_is_named(kept, put):
    kept.folder.mkdir()
    path = kept.folder / bench.store.block.name_of(IDS) / "attempt-1"
    path.parent.mkdir()
    put(path)
    with pytest.raises(UserError, match=rf"^{path} cannot be created \(Not a directory\): move what is in its place"):
        kept.begin(begun())
    assert list(path.parent.iterdir()) == [path]
    path.unlink()
    attempt = kept.begin(begun())
    put(path.with_name("attempt-2"))  # it is no process that takes over
    train(attempt)
    attempt.end(results())
    assert all_there(kept)


def test_an_attempt_that_none_can_follow_is_named(kept):
    last = kept.folder / bench.store.block.name_of(IDS) / f"attempt-{10**247 - 1}"
    last.mkdir(parents=True)
    with pytest.raises(UserError, match=r"attempt-10+ cannot be created \(File name too long\): move .* out of the"):
        kept.begin(begun())
    assert list(last.parent.iterdir()) == [last]


# -- interrupted blocks ---------------------------------------------------------------------------------------------


def test_an_attempt_leaves_nothing_unless_it_can_go_on(kept):
    attempt = kept.begin(begun())
    train(attempt, last=4)
    attempt.drop()
    assert list(kept.folder.iterdir()) == []
    attempt = kept.begin(begun())
    train(attempt, last=4)
    attempt.checkpoint.touch()
    attempt.drop()
    attempt = kept.begin(begun())
    assert attempt.checkpoint.is_file()
    attempt.truncate(2)
    train(attempt, first=2)
    attempt.end(results())
    assert all_there(kept)
    attempt.drop()
    assert all_there(kept)


def test_a_new_attempt_takes_nothing_over_and_a_resumed_one_all(kept):
    interrupted(kept)
    resumed = kept.begin(begun())
    assert resumed.checkpoint.read_text() == "2"
    assert kept.last_checkpoint(IDS, lanes=True) == resumed.checkpoint
    assert kept.last_checkpoint(IDS) is None
    assert len(kept.tables("c")["curve"]["step"]) == 4
    kill(resumed)
    new = kept.begin(begun(), resume=False)
    assert not new.checkpoint.exists()
    assert kept.tables("c") == {}
    new.drop()


def test_lanes_in_another_order_begin_afresh(kept):
    interrupted(kept)
    attempt = kept.begin(list(reversed(begun())))
    assert not attempt.checkpoint.exists()
    attempt.append_curve(CURVE[:1])
    attempt.end(list(reversed(results(steps=1))))
    assert len(kept.tables("a")["curve"]["step"]) == 1
    assert kept.tables("a").keys() == {"curve"}


TRAINER = """
import sys
from pathlib import Path
from types import SimpleNamespace
from tests.test_blocks import Store, begun, train

attempt = Store(Path(sys.argv[1])).begin(begun())
train(attempt, last=2)
attempt.checkpoint.write_text("2")
train(attempt, first=2, last=4)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("torn", [0, 5, 50])
def test_a_killed_block_goes_on_from_its_checkpoint(kept, torn):
    trainer = subprocess.Popen(
        [sys.executable, "-c", TRAINER, kept.folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert trainer.stdout
    assert trainer.stdout.readline() == b"ready\n"
    assert [block.busy for block in kept.unfinished()] == [True]
    with pytest.raises(RunBusy):
        kept.begin(begun())
    os.kill(trainer.pid, signal.SIGKILL)
    trainer.communicate()
    (left,) = kept.unfinished()
    assert (list(left.runs), left.busy) == (IDS, False)
    assert {run.status for run in kept.runs()} == {"killed"}
    assert kept.contents().damaged == []
    for name in ("curve.raw", "measurements.raw"):
        path = left.at / name
        os.truncate(path, path.stat().st_size - torn)
    attempt = kept.begin(begun())
    assert attempt.checkpoint.read_text() == "2"
    attempt.truncate(2)
    train(attempt, first=2)
    attempt.end(results())
    assert all_there(kept)
    assert no_leftovers(kept.folder)


def test_measurements_of_other_names_than_a_block_began_with_are_refused(kept):
    attempt = kept.begin(begun())
    attempt.append_measurements(["a"], [0], np.zeros((1, 3, 1)))
    with pytest.raises(RunFailed, match=r"began with the columns a, and the task now gives b"):
        attempt.append_measurements(["b"], [10], np.zeros((1, 3, 1)))
    attempt.end(results(steps=0))
    assert kept.tables("a")["measurements"]["a"].tolist() == [0.0]


@pytest.mark.parametrize("content", [b"", b"[", b'["loss"]', b"5\n", b"\x00" * 100, b'{"a": \n'])
def test_no_run_is_finished_with_fewer_rows_than_steps(kept, content):
    interrupted(kept)
    (left,) = kept.unfinished()
    (left.at / "curve.raw").write_bytes(content)
    attempt = kept.begin(begun())
    attempt.truncate(2)
    train(attempt, first=2)
    with pytest.raises(RunFailed, match=r"the curve of \w in .* has \d rows, and it made \d steps: the store changed"):
        attempt.end(results())
    attempt.drop()
    assert kept.finished_all(["b"]) == {}


def test_a_thinned_curve_may_have_fewer_rows(kept):
    attempt = kept.begin(begun())
    attempt.append_curve(CURVE[:2])
    attempt.end(results(thinned=True))
    assert len(kept.tables("b")["curve"]["step"]) == 2


# -- damage ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"", b"\xff\x00\n", b"[]\n", b"{}", b'{"run_id": "a"}\n', b'{"run_id": "a", "c'])
def test_damaged_records_are_named_and_trained_again(kept, content):
    done = make_block(kept).folder / "done"
    (done / "runs.jsonl").write_bytes(content)
    (damaged,) = kept.contents().damaged
    assert damaged.path == done / "runs.jsonl"
    assert (kept.get("a"), list(kept.runs()), kept.tables("a")) == (None, [], {})
    attempt = kept.begin(begun())  # which is no `--rerun`
    train(attempt)
    attempt.end(results())
    assert all_there(kept)
    assert (attempt.folder / "done.unreadable" / "runs.jsonl").read_bytes() == content
    shutil.rmtree(attempt.folder / "done.unreadable")
    assert no_leftovers(kept.folder)


@pytest.mark.parametrize("name", ["curve", "measurements"])
@pytest.mark.parametrize("content", [b"", b"PAR1 and no more"])
def test_a_damaged_table_is_named(kept, name, content):
    done = make_block(kept).folder / "done"
    (done / f"{name}.parquet").write_bytes(content)
    with pytest.raises(UserError, match=r"cannot read the tables of run a: .*block-.*; copy the folder again"):
        kept.tables("a")


def test_one_damaged_record_costs_one_run(kept):
    path = make_block(kept).folder / "done/runs.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1][:50] + b"\n" + lines[2])
    assert [run.run_id for run in kept.runs()] == ["b", "c"]
    (damaged,) = kept.contents().damaged
    assert damaged.path == path
    assert damaged.why.startswith("line 2: ")
    assert same(kept.tables("c"), expected("c"))
    assert kept.get("a") is None


def test_damage_within_a_table_is_one_line(kept):
    path = make_block(kept).folder / "done/curve.parquet"
    table = bytearray(path.read_bytes())
    table[4:200] = b"\xff" * 196
    path.write_bytes(table)
    with pytest.raises(UserError, match="cannot read the tables of run b"):
        kept.tables("b")


def test_no_flipped_bit_of_a_value_goes_unnoticed(kept):
    path = make_block(kept).folder / "done/curve.parquet"
    intact = path.read_bytes()
    length = int.from_bytes(intact[-8:-4], "little")
    for place in range(4, len(intact) - length - 8, 7):
        text = bytearray(intact)
        text[place] ^= 1
        path.write_bytes(text)
        with suppress(UserError):
            assert same(kept.tables("b"), expected("b"))


def test_a_block_without_its_curve_is_damaged(kept):
    done = make_block(kept).folder / "done"
    (done / "curve.parquet").unlink()
    with pytest.raises(UserError, match="does not exist"):
        kept.tables("b")


@pytest.mark.parametrize("content", [None, b"", b"[]\n", b'{"b": ', b"\xff"])
def test_an_attempt_without_a_request_is_named_and_started_again(kept, content):
    left = interrupted(kept)
    (left.path / "runs.jsonl").unlink()
    if content is not None:
        (left.path / "runs.jsonl").write_bytes(content)
    assert kept.unfinished() == []
    assert [each.path.is_relative_to(left.path) for each in kept.contents().damaged] == [True]
    assert kept.last_checkpoint(IDS, lanes=True) is None
    make_block(kept)
    assert all_there(kept)
    assert no_leftovers(kept.folder)


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b'{"host": 1', None])
def test_a_claim_that_cannot_be_read_is_given_up(kept, content):
    left = interrupted(kept)
    (left.path / CLAIM).unlink()
    if content is not None:
        (left.path / CLAIM).write_bytes(content)
    assert kept.get("a").status == "killed"
    make_block(kept)
    assert all_there(kept)


# -- writing breaks -------------------------------------------------------------------------------------------------


def test_a_store_that_may_only_be_read(kept, monkeypatch):
    make_block(kept)

    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(bench.store.attempt.Path, "mkdir", refuse)
    with pytest.raises(UserError, match=r"cannot write to the store .*: Read-only.*; choose another with --store DIR"):
        kept.begin(begun(), again=True)
    assert all_there(kept)
    assert len(list(kept.runs())) == 3


def test_a_store_below_a_file(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot write to the store .*: Not a directory"):
        Store(tmp_path / "file" / "runs").begin(begun())


@pytest.mark.parametrize(
    ("where", "name"),
    [(bench.store.files.json, "dump"), (bench.store.files, "sync"), (bench.store.attempt, "write_records")]
    + [(bench.store.attempt, "RawTable"), (Path, "rename"), (Path, "replace")],
)
def test_a_full_disk_at_the_start_frees_the_block(kept, monkeypatch, where, name):
    left = interrupted(kept)
    with monkeypatch.context() as full:
        full.setattr(where, name, no_space)
        with pytest.raises(UserError, match=f"cannot write to the store {kept.folder}: No space left on device"):
            kept.begin(begun())
    assert list(left.folder.iterdir()) == [left.path]
    attempt = kept.begin(begun())
    attempt.truncate(2)
    train(attempt, first=2)
    attempt.end(results())
    assert all_there(kept)


class FullFile:
    """A file on a full disk."""

    write = no_space

    def __init__(self, file: Any) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@pytest.mark.parametrize("name", ["_curve", "_measurements"])
def test_a_full_disk_in_mid_run(kept, name):
    attempt = kept.begin(begun())
    train(attempt, last=2)
    attempt.checkpoint.touch()
    table = getattr(attempt, name)
    table._file = FullFile(table._file)
    with pytest.raises(RunFailed, match=f"cannot write to the store {kept.folder}: No space left on device"):
        train(attempt, first=2)
    attempt.drop()
    attempt = kept.begin(begun())
    attempt.truncate(2)
    train(attempt, first=2)
    attempt.end(results())
    assert all_there(kept)


Break = Callable[[pytest.MonkeyPatch], None]


def at(name: str, method: str) -> Break:
    """Fail when a file or folder of this name is moved into place by `rename` or `replace`."""

    def patch(full: pytest.MonkeyPatch) -> None:
        usual = getattr(Path, method)
        full.setattr(Path, method, lambda self, to: no_space() if to.name == name else usual(self, to))

    return patch


STAGES = [
    *(at(name, "replace") for name in ("curve.parquet", "measurements.parquet", "runs.jsonl")),
    at("done", "rename"),
    lambda full: full.setattr(bench.store.attempt, "sync", no_space),
    lambda full: full.setattr(bench.store.files.os, "fsync", no_space),
    lambda full: full.setattr(bench.store.attempt.RawTable, "write", no_space),
]


@pytest.mark.parametrize("stage", [*STAGES, at("replaced", "rename")])
def test_a_full_disk_at_the_end_keeps_what_there_is(kept, monkeypatch, stage):
    make_block(kept, final=0.25)
    attempt = kept.begin(begun(), again=True)
    train(attempt)
    attempt.checkpoint.touch()
    with monkeypatch.context() as full:
        stage(full)
        with pytest.raises(RunFailed, match=f"cannot write to the store {kept.folder}: No space left on device"):
            attempt.end(results())
    attempt.leave(results(status="failed"))
    assert kept.get("a").final == 0.25
    assert all_there(kept)
    kept.begin(begun(), again=True).end(results())
    assert kept.get("a").final == 0.5
    assert all_there(kept)
    assert no_leftovers(kept.folder)


class Killed(BaseException):
    """The end of the process: nothing is cleaned up after it."""


def killed_after(number: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A wrapper of functions: the first calls work, and none after them."""
    left = iter(range(number))

    def wrap(usual: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            if next(left, None) is None:
                raise Killed
            return usual(*args, **named)

        return call

    return wrap


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("number", range(20))
def test_a_kill_at_any_step_of_the_end_loses_nothing(kept, monkeypatch, again, number):
    """The process is killed before its n-th operation on the folder."""
    if again:
        make_block(kept, final=0.25)
    attempt = kept.begin(begun(), again=again)
    train(attempt)
    attempt.checkpoint.touch()
    step = killed_after(number)
    with monkeypatch.context() as dying:
        for name in ("rename", "replace", "mkdir", "unlink", "rmdir"):
            dying.setattr(bench.store.attempt.Path, name, step(getattr(Path, name)))
        dying.setattr(os, "unlink", step(os.unlink))
        dying.setattr(os, "rmdir", step(os.rmdir))
        dying.setattr(bench.store.files.os, "fsync", step(os.fsync))
        with suppress(Killed):
            attempt.end(results())
        claim = attempt.path / CLAIM
    if claim.exists():
        kill(attempt)
    found = kept.get("a")
    assert kept.contents().damaged == []
    assert found.final == 0.5 if found.status == "completed" and not again else found.final in (0.25, 0.5)
    assert found.status == "completed" or not again
    if found.status == "killed":
        kept.begin(begun()).end(results())
    assert all_there(kept)
    attempt = kept.begin(begun(), again=True, resume=False)
    train(attempt)
    attempt.end(results(final=0.125))
    assert kept.get("a").final == 0.125
    assert all_there(kept)
    assert no_leftovers(kept.folder)


@pytest.mark.parametrize("number", range(6))
def test_a_kill_at_any_step_of_the_start_loses_nothing(kept, monkeypatch, number):
    old = interrupted(kept)
    step = killed_after(number)
    with monkeypatch.context() as dying:
        for name in ("rename", "replace", "mkdir", "unlink", "hardlink_to"):
            dying.setattr(bench.store.attempt.Path, name, step(getattr(Path, name)))
        dying.setattr(bench.store.attempt, "remove", step(bench.store.files.remove))
        try:
            begun_again = kept.begin(begun())
        except Killed:
            pass
        else:
            kill(begun_again)
    assert kept.contents().damaged == []
    assert kept.get("a").status == "killed"
    for path in old.folder.glob(".*"):
        if (path / CLAIM).exists():
            disown(path)
        os.utime(path, (1, 1))  # a process that prepares an attempt has some time to claim it
    attempt = kept.begin(begun())
    assert attempt.checkpoint.read_text() == "2"
    attempt.truncate(2)
    train(attempt, first=2)
    attempt.end(results())
    assert all_there(kept)
    assert no_leftovers(old.folder.parent)


# -- a store that changes during a run ------------------------------------------------------------------------------


def deleted(attempt: Attempt) -> None:
    shutil.rmtree(attempt.folder.parent)


def moved(attempt: Attempt) -> None:
    attempt.folder.rename(attempt.folder.parent / "moved")


def copied_anew(attempt: Attempt) -> None:
    shutil.copytree(attempt.folder.parent, attempt.folder.parent.with_name("copy"))
    shutil.rmtree(attempt.folder.parent)
    attempt.folder.parent.with_name("copy").rename(attempt.folder.parent)


def without_claim(attempt: Attempt) -> None:
    (attempt.path / CLAIM).unlink()


def snapshot(folder: Path) -> dict[Path, tuple[int, bytes]]:
    """All files of a folder, with time and content."""
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("change", [deleted, moved, copied_anew, without_claim])
@pytest.mark.parametrize(
    "call",
    [
        lambda attempt: train(attempt, first=2),
        Attempt.sync,
        lambda attempt: attempt.end(results(steps=2)),
    ],
)
def test_a_store_that_changes_under_a_run_ends_it_and_nothing_is_written(kept, change, call):
    attempt = kept.begin(begun())
    train(attempt, last=2)
    change(attempt)
    before = snapshot(kept.folder)
    with pytest.raises(RunFailed, match=r"was deleted, moved or replaced during .*; repeat the command"):
        call(attempt)
    attempt.keep_traceback(ValueError())
    attempt.leave(results(status="failed"))
    attempt.drop()
    assert snapshot(kept.folder) == before
    assert kept.folder.exists() == bool(before)


@pytest.mark.parametrize("name", ["curve", "measurements"])
@pytest.mark.parametrize("replaced", [False, True])
def test_a_table_that_is_replaced_under_a_run_ends_it(kept, name, replaced):
    attempt = kept.begin(begun())
    train(attempt, last=2)
    path = attempt.path / f"{name}.raw"
    text = path.read_bytes()
    path.unlink()
    if replaced:
        path.write_bytes(text)
    with pytest.raises(RunFailed, match=rf"{name}.raw was deleted or replaced while the run trained"):
        train(attempt, first=2)
    attempt.drop()


@pytest.mark.parametrize("name", ["curve", "measurements"])
@pytest.mark.parametrize("change", [-1, 8])
def test_a_table_that_is_changed_in_place_under_a_run_ends_it(kept, name, change):
    attempt = kept.begin(begun())
    train(attempt, last=2)
    path = attempt.path / f"{name}.raw"
    os.truncate(path, path.stat().st_size + change)
    with pytest.raises(RunFailed, match=rf"{name}.raw was changed while the run trained"):
        train(attempt, first=2)
    attempt.drop()
