"""Blocks: one process claims the runs of a block, which are stored together and read individually."""

import errno
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bench.store.block
import bench.store.files
import bench.store.writer
from bench.errors import RunBusy, RunFailed, UserError
from bench.store.record import RunResult
from bench.store.store import Store
from bench.store.tables import CURVE_FIELDS
from bench.store.writer import BlockWriter
from tests.stored import kill, record, unfinished

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


def train(writer: BlockWriter, first: int = 0, last: int = 6) -> None:
    """Add the steps after `first`, two at a time, as training does."""
    for step in range(first, last, 2):
        writer.append_curve(CURVE[step : step + 2])
        due = [i for i, point in enumerate(POINTS) if step < point <= step + 2 or point == step == 0]
        writer.append_measurements(NAMES, [POINTS[i] for i in due], MEASURED[due])


def make_block(store: Store, **changes) -> BlockWriter:
    writer = store.begin(begun(), resume=False, again=True)
    train(writer)
    writer.end(results(**changes))
    return writer


def interrupted(store: Store, last: int = 4) -> BlockWriter:
    """A block whose process saved a checkpoint at step 2, continued and was killed."""
    writer = store.begin(begun())
    train(writer, last=2)
    writer.flush()
    writer.checkpoint.write_text("2")
    train(writer, first=2, last=last)
    writer.flush()
    kill(writer)
    return writer


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


# -- finished blocks ------------------------------------------------------------------------------------------------


def test_runs_of_a_block_are_read_one_by_one(kept):
    writer = make_block(kept)
    assert [run.run_id for run in kept.runs()] == sorted(IDS)
    for result in results():
        options = result.config["opt_options"] | {"max_step": "inf"}
        stored = kept.finished_all([result.run_id]).get(result.run_id)
        assert stored == replace(result, facts={"x": None}, config=result.config | {"opt_options": options})
        assert kept.place(result.run_id) == writer.folder
    assert all_there(kept)
    assert kept.get("d") is None
    assert kept.place("d") == kept.folder / "d"
    assert kept.tables("d") == {}
    assert unfinished(kept.folder) == []
    assert [path.name for path in writer.folder.iterdir()] == ["done"]
    names = ["curve.parquet", "measurements.parquet", "runs.jsonl"]
    assert sorted(path.name for path in (writer.folder / "done").iterdir()) == names


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
    writer = kept.begin(begun(), again=True)
    writer.append_curve(CURVE)
    writer.append_measurements([], [0, 2], np.empty((2, 3, 0)))
    writer.end(results(steps=0))
    assert kept.tables("a").keys() == {"curve"}
    assert all(len(column) == 0 for column in kept.tables("a")["curve"].values())
    assert kept.contents().damaged == []


@pytest.mark.parametrize("while_reading", [False, True], ids=["before it is read", "while it is read"])
@pytest.mark.parametrize("last", [2, 6])
def test_a_block_that_ends_after_it_was_found_reads_as_its_results(kept, monkeypatch, last, while_reading):
    writer = kept.begin(begun())
    train(writer, last=last)
    writer.flush()
    found = kept.find_all(IDS)
    finish = [lambda: (train(writer, first=last), writer.end(results()))]
    read = bench.store.block.read_parts

    def read_parts(*args: Any) -> Any:
        if finish:
            finish.pop()()
        return read(*args)

    if while_reading:
        monkeypatch.setattr(bench.store.block, "read_parts", read_parts)
    else:
        finish.pop()()
    for run_id in IDS:
        assert same(found[run_id].tables(run_id), expected(run_id))


def test_an_attempt_that_is_removed_after_it_was_found_has_no_tables(kept):
    writer = kept.begin(begun())
    train(writer)
    found = kept.find_all("a")["a"]
    shutil.rmtree(writer.folder)
    assert found.tables("a") == {}
    writer.close()


# -- one process at a time ------------------------------------------------------------------------------------------


def test_a_block_in_progress_is_seen_and_not_damaged(kept):
    writer = kept.begin(begun())
    train(writer, last=2)
    writer.flush()
    (found,) = unfinished(kept.folder)
    assert (found.folder, list(found.runs), found.busy) == (writer.folder, IDS, True)
    assert kept.contents().damaged == []
    assert (kept.get("a").status, kept.finished_all(["a"]).get("a")) == ("running", None)
    assert same(kept.tables("b")["curve"]["step"], np.arange(1.0, 3))
    writer.checkpoint.touch()
    writer.close()
    writer.close()
    assert [block.busy for block in unfinished(kept.folder)] == [False]
    assert kept.get("a").status == "killed"


BEGIN = """
import sys
from pathlib import Path
from types import SimpleNamespace
from tests.test_blocks import Store, begun

Store(Path(sys.argv[1])).begin(begun())
"""


def test_a_block_is_trained_by_one_process(kept):
    writer = kept.begin(begun())
    with pytest.raises(RunBusy, match=r"the block of runs block-\w{16} is in training by another process"):
        kept.begin(begun())
    with pytest.raises(RunBusy, match="is in training by another process"):
        kept.begin(begun(), again=True)
    process = subprocess.run([sys.executable, "-c", BEGIN, kept.folder], capture_output=True, text=True)
    assert "RunBusy" in process.stderr
    other = kept.begin([record("d", status="running")])
    train(writer)
    writer.end(results())
    assert all_there(Store(kept.folder))
    with pytest.raises(RunBusy, match="was just trained by another process"):
        kept.begin(begun())
    other.drop()
    assert no_leftovers(kept.folder)


# -- interrupted blocks ---------------------------------------------------------------------------------------------


def test_an_attempt_leaves_nothing_unless_it_can_go_on(kept):
    writer = kept.begin(begun())
    train(writer, last=4)
    writer.drop()
    assert list(kept.folder.iterdir()) == []
    writer = kept.begin(begun())
    train(writer, last=2)
    writer.flush()
    writer.checkpoint.touch()
    writer.drop()
    writer = kept.begin(begun())
    assert writer.checkpoint.is_file()
    writer.truncate(2)
    train(writer, first=2)
    writer.end(results())
    assert all_there(kept)
    writer.drop()
    assert all_there(kept)


def test_measurements_of_other_names_than_a_block_began_with_are_refused(kept):
    writer = kept.begin(begun())
    writer.append_measurements(["a"], [0], np.zeros((1, 3, 1)))
    writer.append_measurements(["b"], [10], np.zeros((1, 3, 1)))
    with pytest.raises(RunFailed, match=r"began with a, and the task now gives b"):
        writer.end(results(steps=0))
    writer.close()


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", b"PK\x03\x04" + b"\x00" * 100])
def test_no_run_is_finished_with_fewer_rows_than_steps(kept, content):
    interrupted(kept)
    (left,) = unfinished(kept.folder)
    (left.at / "part-000000000002.npz").write_bytes(content)
    writer = kept.begin(begun())
    writer.truncate(2)
    train(writer, first=2)
    with pytest.raises(RunFailed, match=r"part-0+2\.npz: it cannot be read .*: the store changed"):
        writer.end(results())
    writer.drop()
    assert kept.finished_all(["b"]) == {}


# -- damage ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"", b"\xff\x00\n", b"[]\n", b"{}", b'{"run_id": "a"}\n', b'{"run_id": "a", "c'])
def test_damaged_records_are_named_and_trained_again(kept, content):
    done = make_block(kept).folder / "done"
    (done / "runs.jsonl").write_bytes(content)
    (damaged,) = kept.contents().damaged
    assert damaged.path == done / "runs.jsonl"
    assert (kept.get("a"), list(kept.runs()), kept.tables("a")) == (None, [], {})
    writer = kept.begin(begun(), again=True)
    train(writer)
    writer.end(results())
    assert all_there(kept)
    assert no_leftovers(kept.folder)


@pytest.mark.parametrize("name", ["curve", "measurements"])
@pytest.mark.parametrize("content", [b"", b"PAR1 and no more"])
def test_a_damaged_table_is_named(kept, name, content):
    done = make_block(kept).folder / "done"
    (done / f"{name}.parquet").write_bytes(content)
    with pytest.raises(UserError, match=r"cannot read the tables of run a: .*block-.*; copy the folder again"):
        kept.tables("a")


@pytest.mark.parametrize("content", [b"", b"[]\n", b'{"b": ', b"\xff"])
def test_an_attempt_without_a_request_is_named_and_started_again(kept, content):
    left = interrupted(kept)
    (left.folder / "runs.jsonl").write_bytes(content)
    assert unfinished(kept.folder) == []
    assert [each.path.is_relative_to(left.folder) for each in kept.contents().damaged] == [True]
    assert kept.last_checkpoint(IDS, lanes=True) is None
    make_block(kept)
    assert all_there(kept)
    assert no_leftovers(kept.folder)


# -- writing breaks -------------------------------------------------------------------------------------------------


def test_a_store_that_may_only_be_read(kept, monkeypatch):
    make_block(kept)

    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(bench.store.writer.Path, "mkdir", refuse)
    with pytest.raises(UserError, match=r"cannot write to the store .*: Read-only.*; choose another with --store DIR"):
        kept.begin(begun(), again=True)
    assert all_there(kept)
    assert len(list(kept.runs())) == 3


# -- a store that changes during a run ------------------------------------------------------------------------------
