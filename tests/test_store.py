"""The store: a block is trained by one process, written atomically, and its runs are read one by one by everybody."""

import errno
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.errors import RunBusy, RunFailed
from bench.store.block import CURVE_FIELDS
from bench.store.record import RunResult
from bench.store.writer import BlockWriter
from tests.conftest import Cli
from tests.stored import Store, add_block, add_run, begin, begin_block, kill, record, unfinished

FIT = ("fit", "--task", "synthetic", "--opt", "sngd", "--trainer.max_steps", "20", "--device", "cpu")
FULL = "No space left on device; free some space, then repeat the command"
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


def no_space(*args: object, **kwargs: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def snapshot(folder: Path) -> dict[Path, tuple[int, bytes]]:
    """All files of a folder, with times and contents."""
    return {path: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"") for path in folder.rglob("*")}


def begun() -> list[RunResult]:
    return [record(i, status="running", steps=0, engine="lanes") for i in IDS]


def results(**changes: Any) -> list[RunResult]:
    facts = {"x": float("nan")}
    return [record(i, **{"final": 0.5, "steps": STEPS[i], "engine": "lanes", "facts": facts} | changes) for i in IDS]


def train(writer: BlockWriter, first: int = 0, last: int = 6) -> None:
    """Add the steps after `first`, two at a time, as training does."""
    for step in range(first, last, 2):
        writer.append_curve(CURVE[step : step + 2])
        due = [i for i, point in enumerate(POINTS) if step < point <= step + 2 or point == step == 0]
        writer.append_measurements(NAMES, [POINTS[i] for i in due], MEASURED[due])


def make_block(store: Store, **changes: Any) -> Path:
    writer = BlockWriter(store.folder, begun(), again=True)
    train(writer)
    writer.end(results(**changes))
    return writer.folder


def expected(run_id: str) -> dict[str, dict[str, Any]]:
    lane, steps = IDS.index(run_id), STEPS[run_id]
    points = [i for i, point in enumerate(POINTS) if point <= steps]
    curve = np.where(np.isfinite(CURVE), CURVE, np.nan)[:steps, lane]
    measured = np.array(POINTS, float)[points], *MEASURED[points, lane].T
    return {
        "measurements": dict(zip(["step", *NAMES], measured, strict=True)),
        "curve": dict(zip(CURVE_FIELDS, [np.arange(1.0, steps + 1), *curve.T], strict=True)),
    }


def is_whole(store: Store) -> bool:
    for run_id in IDS:
        np.testing.assert_equal(store.tables(run_id), expected(run_id))  # treats NaN as equal to NaN
    return store.contents().damaged == []


# -- finished blocks --------------------------------------------------------------------------------------------------


def test_runs_of_a_block_are_read_one_by_one(kept: Store) -> None:
    folder = make_block(kept)
    assert [run.run_id for run in kept.runs()] == sorted(IDS)
    for result in results():
        options = result.config["opt_options"] | {"max_step": "inf"}
        assert kept.get(result.run_id) == replace(
            result, facts={"x": None}, config=result.config | {"opt_options": options}
        )
        assert kept.place(result.run_id) == folder
    assert is_whole(kept)
    names = ["curve.parquet", "measurements.parquet", "runs.jsonl"]
    assert sorted(path.name for path in folder.rglob("*")) == sorted(["done", *names])


def test_tables_and_records_can_be_read_by_other_programs(kept: Store) -> None:
    import pyarrow.parquet as pq

    done = make_block(kept, final=float("nan")) / "done"
    table = pq.read_table(done / "curve.parquet")
    assert table.column_names == ["run_id", *CURVE_FIELDS]
    assert table["run_id"].to_pylist() == ["a"] * 2 + ["b"] * 6 + ["c"] * 6
    assert table["step"].to_pylist() == [1, 2, *range(1, 7), *range(1, 7)]
    assert table["loss"].null_count == 1
    assert pq.read_table(done / "measurements.parquet", filters=[("run_id", "==", "c")])["angle"].null_count == 4
    first, *_ = (done / "runs.jsonl").read_text().splitlines()
    assert "NaN" not in first
    assert "Infinity" not in first
    assert json.loads(first)["final"] is None


@pytest.mark.parametrize("changes", [{"facts": {"n": object}}, {"steps": -1}, {"versions": {"torch": []}}])
def test_a_record_that_cannot_be_read_again_is_not_written(kept: Store, changes: dict[str, Any]) -> None:
    with pytest.raises(RunFailed, match="a record cannot be stored: "):
        begin(kept.folder, record("a", **changes))
    assert kept.get("a") is None
    writer = begin(kept.folder, record("a"))
    with pytest.raises(RunFailed, match="a record cannot be stored: "):
        writer.end([record("a", **changes)])
    writer.leave([record("a", status="failed")])
    assert [run.status for run in kept.runs()] == ["failed"]


def test_the_best_of_several_blocks_with_a_run_is_read(kept: Store) -> None:
    writer = begin(kept.folder, record("a", final=2.0), (0.125, 0.25, 0.5))
    assert [run.status for run in Store(kept.folder).runs()] == ["running"]
    block = add_block(kept.folder, "bac", 0.5, final=1.0)
    assert {run.run_id: run.final for run in kept.runs()} == {"a": 1.0, "b": 1.0, "c": 1.0}  # it has finished
    assert kept.place("a") == block
    writer.end([record("a", final=2.0)])
    assert {run.run_id: run.final for run in kept.runs()} == {"a": 2.0, "b": 1.0, "c": 1.0}  # it has the run's name
    assert kept.tables("a")["curve"]["loss"].tolist() == [0.125, 0.25, 0.5]
    (kept.folder / "a/done/runs.jsonl").write_text("{")
    assert kept.contents("a").blocks["a"].runs["a"].final == 1.0
    assert kept.tables("a")["curve"]["loss"].tolist() == [0.5] * 3


def test_a_run_in_a_block_of_several_is_not_trained_again(kept: Store, cli: Cli) -> None:
    assert cli(*FIT).code == 0
    (run,) = kept.runs()
    shutil.rmtree(kept.folder)
    lanes = [replace(run, engine="lanes", thinned=True), record("b", thinned=True)]
    BlockWriter(kept.folder, [replace(lane, status="running") for lane in lanes]).end(lanes)
    assert "already stored" in cli(*FIT).err
    assert not (kept.folder / run.run_id).exists()
    assert cli(*FIT, "--rerun").code == 0
    assert [run.engine for run in kept.contents([run.run_id]).finished.values()] == ["lightning"]


def test_repeated_runs_are_read_anew(kept: Store) -> None:
    for value in (0.5, 0.25):
        add_block(kept.folder, "ab", value, final=value)
        assert kept.contents(["a"]).finished["a"].final == value
        assert kept.tables("a")["curve"]["loss"].tolist() == [value] * 3
        assert kept.tables("a")["measurements"]["angle"].tolist() == [value]


# -- blocks in training -----------------------------------------------------------------------------------------------


def test_a_block_in_training_is_seen_until_its_process_ends(kept: Store) -> None:
    writer = BlockWriter(kept.folder, begun())
    train(writer, last=2)
    writer.flush()
    (block,) = unfinished(kept.folder)
    assert (block.folder, list(block.runs), block.busy) == (writer.folder, IDS, True)
    assert {run.status for run in kept.runs()} == {"running"}
    assert kept.contents(IDS).finished == {}
    kill(writer)
    assert {(run.status, run.steps) for run in kept.runs()} == {("killed", 2)}
    shutil.rmtree(writer.folder)
    assert [*kept.runs()] == []


def test_a_killed_attempt_hides_no_block_in_training(kept: Store) -> None:
    kill(begin(kept.folder, record("a")))
    assert [run.status for run in kept.runs()] == ["killed"]
    writer, _ = begin_block(kept.folder, "ba")
    assert {run.run_id: run.status for run in kept.runs()} == {"a": "running", "b": "running"}
    writer.drop()


BEGIN = """
import sys
from pathlib import Path
from tests.test_store import BlockWriter, begun

BlockWriter(Path(sys.argv[1]), begun())
"""


def test_a_block_is_trained_by_one_process(kept: Store) -> None:
    writer = BlockWriter(kept.folder, begun())
    for again in (False, True):
        with pytest.raises(RunBusy, match=r"the block of runs block-\w{16} is in training by another process"):
            BlockWriter(kept.folder, begun(), again=again)
    process = subprocess.run([sys.executable, "-c", BEGIN, kept.folder], capture_output=True, text=True)
    assert "RunBusy" in process.stderr
    train(writer)
    writer.end(results())
    with pytest.raises(RunBusy, match="was just trained by another process"):
        BlockWriter(kept.folder, begun())
    assert is_whole(kept)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + b"\x00" * 100])
def test_no_run_is_finished_with_fewer_rows_than_steps(kept: Store, content: bytes) -> None:
    writer = BlockWriter(kept.folder, begun())
    train(writer, last=2)
    writer.flush()
    next(writer.folder.glob("part-*.curve.*")).write_bytes(content)
    train(writer, first=2)
    with pytest.raises(RunFailed, match=r"part-0+2\.curve\.parquet: .*: the store changed"):
        writer.end(results())
    assert kept.contents(IDS).finished == {}


def test_readers_write_nothing(kept: Store, cli: Cli) -> None:
    add_run(kept.folder, "a")
    add_block(kept.folder, "bc")
    kill(begin(kept.folder, record("d")))
    kill(begin_block(kept.folder, "ef")[0])
    (add_run(kept.folder, "g") / "done/runs.jsonl").write_text("{")
    before = snapshot(kept.folder)
    assert cli("list", "runs", "--all", "--store", kept.folder).out.count("killed") == 3
    for words in (("show", "d"), ("doctor",), ("sql", "from curves")):
        assert "Traceback" not in cli(*words, "--store", kept.folder).err
    assert snapshot(kept.folder) == before


# -- writing fails ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["write_records", "write_table", "write_block", "lightning.pytorch.Trainer.save_checkpoint"]
)
def test_a_full_disk_is_one_line_and_frees_the_run(
    cli: Cli, store: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with monkeypatch.context() as full:
        full.setattr(name if "." in name else f"bench.store.writer.{name}", no_space)
        answer = cli(*FIT, "--trainer.checkpoint_seconds", "1e-3")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.splitlines()[-1] == f"bench: error: cannot write to the store {store}: {FULL}"
    assert "Traceback" not in answer.err
    assert {run.status for run in Store(store).runs()} <= {"failed"}
    assert cli(*FIT).code == 0


def delete(store: Path) -> None:
    shutil.rmtree(store)


def move(store: Path) -> None:
    store.rename(store.with_name("moved"))


def copy(store: Path) -> None:
    shutil.copytree(store, store.with_name("copy"))
    shutil.rmtree(store)
    store.with_name("copy").rename(store)


@pytest.mark.parametrize("change", [delete, move, copy])
def test_a_store_that_changes_under_a_run_is_one_line_and_stays_so(
    cli: Cli, store: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None]
) -> None:
    append, before = BlockWriter.append_curve, dict[Path, Any]()

    def changing(self: BlockWriter, rows: Any) -> None:
        append(self, rows)
        change(store)
        before.update(snapshot(store))

    monkeypatch.setattr(BlockWriter, "append_curve", changing)
    answer = cli(*FIT)
    assert (answer.code, answer.out) == (1, "")
    assert re.search("was deleted, moved or replaced during", answer.err.splitlines()[-1])
    assert "Traceback" not in answer.err
    assert snapshot(store) == before


def test_blocks_that_share_a_run_do_not_train_at_once(tmp_path: Path) -> None:
    """Two commands with overlapping grids that begin at the same instant see each other only when they write."""
    store, shared = tmp_path / "runs", [record("a", status="running"), record("b", status="running")]
    first = BlockWriter(store, shared)
    with pytest.raises(RunBusy, match="by another process"):
        BlockWriter(store, [shared[1], record("c", status="running")])
    assert [path.name for path in store.iterdir()] == [first.folder.name]
    first.drop()
    BlockWriter(store, [shared[1], record("c", status="running")]).drop()
