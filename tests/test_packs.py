"""Packs: runs that were trained together are stored together, and read as any other run."""

import errno
import io
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import bench.store.packs
import bench.store.raw_table
import numpy as np
import pytest
from bench.store.packs import PackFolder

import bench.store.files
from bench.errors import RunBusy, RunFailed, UserError
from bench.store.record import RunResult
from bench.store.store import Store
from bench.store.tables import CURVE_FIELDS

FIT = ("fit", "--task", "synthetic", "--opt", "sngd", "--trainer.max_steps", "20", "--device", "cpu")
IDS = ["b", "a", "c"]  # lanes need no order
CONFIGS = {run_id: {"task": "synthetic", "seed": lane, "lr": float("inf")} for lane, run_id in enumerate(IDS)}
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


def results(**changes) -> list[RunResult]:
    return [
        replace(
            RunResult(i, CONFIGS[i], "completed", final=0.5, steps=STEPS[i], engine="lanes", facts={"x": float("nan")}),
            **changes,
        )
        for i in IDS
    ]


def train(pack: PackFolder, first: int = 0, last: int = 6) -> None:
    """The steps after `first`, two at a time, as a training would hand them over."""
    for step in range(first, last, 2):
        pack.append_curve(CURVE[step : step + 2])
        due = [i for i, point in enumerate(POINTS) if step < point <= step + 2 or point == step == 0]
        pack.append_measurements(NAMES, [POINTS[i] for i in due], MEASURED[due])


def make_pack(store: Store, **changes) -> PackFolder:
    pack = store.begin_pack(CONFIGS)
    train(pack)
    pack.end(results(**changes))
    return pack


def same(one, other) -> bool:
    np.testing.assert_equal(one, other)  # NaN is NaN
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
    return all(same(store.tables(run_id), expected(run_id)) for run_id in IDS)


def no_space(*args: object, **kwargs: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


# -- finished packs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row_group", [1, 12, 10_000])  # a lane, two lanes, all lanes together
def test_what_was_trained_together_reads_run_by_run(kept, monkeypatch, row_group):
    monkeypatch.setattr(bench.store.raw_table, "ROW_GROUP", row_group)
    pack = make_pack(kept)
    assert [run.run_id for run in kept.runs()] == sorted(IDS)
    for result in results():
        stored = kept.finished(result.run_id)
        assert stored == replace(result, facts={"x": None}, config=result.config | {"lr": "inf"})
        assert kept.place(result.run_id) == pack.folder
    assert all_there(kept)
    assert kept.get("d") is None
    assert kept.place("d") == kept.folder / "d"
    assert kept.tables("d") == {}
    assert kept.unreadable() == []
    assert kept.unfinished_packs() == []
    assert sorted(path.name for path in pack.folder.iterdir()) == [
        "curve.parquet", "measurements.parquet", "run.lock", "runs.jsonl",
    ]  # fmt: skip


def test_a_lane_reads_as_a_run_of_its_own(kept, tmp_path):
    make_pack(kept)
    alone = Store(tmp_path / "alone")
    for lane, result in enumerate(results()):
        folder = alone.begin(result)
        folder.append_curve([(step + 1, *CURVE[step, lane].tolist()) for step in range(result.steps)])
        due = [i for i, point in enumerate(POINTS) if point <= result.steps]
        folder.append_measurements(NAMES, [(POINTS[i], *MEASURED[i, lane].tolist()) for i in due])
        folder.end(keep_checkpoint=False)
        assert alone.get(result.run_id) == kept.get(result.run_id)
        one, other = alone.tables(result.run_id), kept.tables(result.run_id)
        assert same(one, other)
        assert [(k, list(v)) for k, v in one.items()] == [(k, list(v)) for k, v in other.items()]


def test_a_pack_is_a_parquet_table_for_other_programs(kept):
    import pyarrow.parquet as pq

    pack = make_pack(kept)
    table = pq.read_table(pack.folder / "curve.parquet")
    assert table.column_names == ["run_id", *CURVE_FIELDS]
    assert table["run_id"].to_pylist() == ["a"] * 2 + ["b"] * 6 + ["c"] * 6
    assert table["step"].to_pylist() == [1, 2, *range(1, 7), *range(1, 7)]
    assert table["loss"].null_count == 1
    assert pq.read_table(pack.folder / "measurements.parquet", filters=[("run_id", "==", "c")])["angle"].null_count == 4


def test_lanes_that_measure_nothing_or_end_at_once(kept):
    pack = kept.begin_pack(CONFIGS)
    pack.end(results(steps=0))
    assert kept.tables("a") == {}
    assert kept.unreadable() == []
    pack = kept.begin_pack(CONFIGS)
    pack.append_curve(CURVE)
    pack.append_measurements([], [0, 2], np.empty((2, 3, 0)))
    pack.end(results(steps=0))
    assert kept.tables("a").keys() == {"curve"}
    assert all(len(column) == 0 for column in kept.tables("a")["curve"].values())
    pack = kept.begin_pack(CONFIGS)
    pack.append_curve(CURVE[:0])
    pack.append_measurements(NAMES, [], np.empty((0, 3, 2)))
    pack.end(results(steps=0))
    assert [list(table) for table in kept.tables("a").values()] == [["step", *NAMES], list(CURVE_FIELDS)]
    assert kept.unreadable() == []


def test_a_store_in_use_sees_packs_that_others_finish(kept):
    other = Store(kept.folder)
    assert other.get("a") is None
    pack = kept.begin_pack(CONFIGS)
    assert (other.get("a"), list(other.runs())) == (None, [])
    train(pack)
    pack.end(results())
    assert other.get("a") == kept.get("a") is not None
    make_pack(kept, final=0.25)  # the same runs once more
    assert other.get("a").final == 0.25
    shutil.rmtree(pack.folder)
    assert other.get("a") is None


def test_a_folder_that_has_rested_is_not_looked_through_again(kept, monkeypatch):
    make_pack(kept)
    os.utime(kept.folder, (1, 1))
    assert kept.get("a") is not None
    monkeypatch.setattr(bench.store.packs, "_folders", no_space)
    assert kept.get("a") is not None
    monkeypatch.undo()
    kept.begin(replace(results()[0], run_id="d")).end(keep_checkpoint=False)
    assert {run.run_id for run in kept.runs()} == {*IDS, "d"}


def test_another_process_finds_the_runs(kept, cli):
    make_pack(kept)
    answer = cli("list", "runs", "--store", kept.folder)
    assert [line.split()[0] for line in answer.out.splitlines()] == ["a", "b", "c"]
    read = "import sys; from pathlib import Path; from bench.store.store import Store; s = Store(Path(sys.argv[1])); print(s.get('a').steps, *s.tables('a'))"
    process = subprocess.run([sys.executable, "-c", read, kept.folder], capture_output=True, text=True, check=True)
    assert process.stdout == "2 measurements curve\n"


def test_a_run_in_a_pack_is_not_trained_again(kept, cli):
    assert cli(*FIT).code == 0
    (run,) = kept.runs()
    pack = kept.begin_pack({run.run_id: run.config})
    pack.end([replace(run, engine="lanes")])
    shutil.rmtree(kept.folder / run.run_id)
    assert "already stored" in cli(*FIT).err
    assert not (kept.folder / run.run_id).exists()
    assert cli(*FIT, "--rerun").code == 0
    assert kept.get(run.run_id).engine == "lightning"


def test_a_folder_of_its_own_comes_before_packs(kept):
    make_pack(kept)
    folder = kept.begin(RunResult("a", {"task": "own"}, "completed", steps=1))
    folder.append_curve([(1, 0.5, 0.5, 0.5, 0.5)])
    folder.end(keep_checkpoint=False)
    assert kept.get("a").config == {"task": "own"}
    assert kept.place("a") == kept.folder / "a"
    assert kept.tables("a").keys() == {"curve"}
    assert [run.run_id for run in kept.runs()] == sorted(IDS)
    (kept.folder / "a" / "run.json").write_text("{")
    assert kept.get("a").engine == "lanes"
    assert same(kept.tables("a"), expected("a"))


def test_the_newer_pack_comes_first(kept):
    packs = []
    for i, more in enumerate(["x", "y", "z"]):
        pack = kept.begin_pack({"a": {}, more: {}})
        pack.append_curve(np.full((1, 2, 4), float(i)))
        pack.end([RunResult(name, {}, "completed", steps=1, final=float(i)) for name in ("a", more)])
        packs.append(pack.folder)
    for age, i in enumerate([1, 2, 0]):
        os.utime(packs[i] / "runs.jsonl", (1e9 - age, 1e9 - age))
    assert (kept.get("a").final, kept.place("a"), kept.tables("a")["curve"]["loss"]) == (1.0, packs[1], 1.0)
    (packs[1] / "runs.jsonl").write_text('{"run_id": "a", "config"')
    assert kept.get("a").final == 2.0
    assert kept.unreadable() == [packs[1]]
    assert [run.run_id for run in kept.runs()] == ["a", "x", "z"]


def test_stores_merge_by_copying(kept, tmp_path):
    other = Store(tmp_path / "more")
    make_pack(other)
    kept.begin(RunResult("d", {}, "completed")).end(keep_checkpoint=False)
    assert kept.get("a") is None
    shutil.copytree(other.folder, kept.folder, dirs_exist_ok=True)
    assert [run.run_id for run in kept.runs()] == ["a", "b", "c", "d"]
    assert all_there(kept)


# -- damage ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content"),
    [("runs.jsonl", text) for text in (b"", b"\xff\x00\n", b"[]\n", b"{}", b'{"run_id": "a"}\n', b'{"run_id": "a", "c')]
    + [(f"{table}.parquet", content) for table in ("curve", "measurements") for content in (b"", b"PAR1 and no more")],
)
def test_a_damaged_pack_is_named(kept, name, content):
    pack = make_pack(kept)
    (pack.folder / name).write_bytes(content)
    assert kept.unreadable() == [pack.folder]
    if name == "runs.jsonl":
        assert (kept.get("a"), list(kept.runs()), kept.tables("a")) == (None, [], {})
        make_pack(kept)  # which mends it
        assert all_there(kept)
    else:
        with pytest.raises(UserError, match=r"cannot read the tables of run a in .*lanes-.*; copy the folder again"):
            kept.tables("a")


def test_one_damaged_record_costs_one_run(kept):
    pack = make_pack(kept)
    lines = (pack.folder / "runs.jsonl").read_bytes().splitlines(keepends=True)
    (pack.folder / "runs.jsonl").write_bytes(lines[0] + lines[1][:50] + b"\n" + lines[2])
    assert [run.run_id for run in kept.runs()] == ["b", "c"]
    assert kept.unreadable() == [pack.folder]


def test_a_pack_without_its_tables_is_named(kept):
    pack = make_pack(kept)
    for path in pack.folder.glob("*.parquet"):
        path.unlink()
    assert kept.unreadable() == [pack.folder]


def test_damage_within_a_table_is_one_line(kept):
    pack = make_pack(kept)
    table = bytearray((pack.folder / "curve.parquet").read_bytes())
    table[4:200] = b"\xff" * 196
    (pack.folder / "curve.parquet").write_bytes(table)
    with pytest.raises(UserError, match="cannot read the tables of run b"):
        kept.tables("b")


@pytest.mark.parametrize("content", [None, b"", b"[]", b'{"b": ', b"\xff"])
def test_a_pack_that_does_not_say_what_it_trains_is_named_and_begun_afresh(kept, content):
    pack = kept.begin_pack(CONFIGS)
    pack.append_curve(CURVE)
    pack.checkpoint.touch()
    pack.abandon()
    (pack.folder / "lanes.json").unlink()
    if content is not None:
        (pack.folder / "lanes.json").write_bytes(content)
    assert kept.unfinished_packs() == []
    assert kept.unreadable() == [pack.folder]
    make_pack(kept)
    assert all_there(kept)


@pytest.mark.parametrize("content", [b"", b"[", b'["loss"]', b"5\n", b"\x00" * 100, b'{"a": \n'])
def test_raw_tables_without_a_head_are_begun_afresh(kept, content):
    pack = kept.begin_pack(CONFIGS)
    pack.append_curve(CURVE[:2])
    pack.checkpoint.touch()
    pack.abandon()
    (pack.folder / "curve.raw").write_bytes(content)
    pack = kept.begin_pack(CONFIGS)
    pack.truncate(2)
    pack.append_curve(CURVE[2:])
    pack.end(results())
    assert same(kept.tables("c")["curve"]["step"], np.arange(3.0, 7))  # steps keep their numbers


# -- packs in progress ----------------------------------------------------------------------------------------------


def test_a_pack_in_progress_is_listed_and_not_damaged(kept):
    pack = kept.begin_pack(CONFIGS)
    train(pack, last=2)
    (found,) = Store(kept.folder).unfinished_packs()
    assert (found.folder, list(found.configs), found.busy) == (pack.folder, IDS, True)
    assert found.configs["a"] == {"task": "synthetic", "seed": 1, "lr": "inf"}
    assert kept.unreadable() == []
    assert (kept.get("a"), kept.finished("a"), list(kept.runs()), kept.tables("a")) == (None, None, [], {})
    pack.checkpoint.touch()
    pack.abandon()
    pack.abandon()
    assert [pack.busy for pack in kept.unfinished_packs()] == [False]


def test_a_pack_is_trained_by_one_process(kept):
    pack = kept.begin_pack(CONFIGS)
    with pytest.raises(RunBusy, match=r"the pack of runs lanes-\w{10} is being trained by another process now"):
        kept.begin_pack(dict(reversed(CONFIGS.items())))
    begin = "import sys; from pathlib import Path; from bench.store.store import Store; Store(Path(sys.argv[1])).begin_pack({'a': {}, 'b': {}, 'c': {}})"
    process = subprocess.run([sys.executable, "-c", begin, kept.folder], capture_output=True, text=True)
    assert "RunBusy" in process.stderr
    other = kept.begin_pack({"d": {}})
    train(pack)
    pack.end(results())
    assert all_there(kept)
    other.abandon()


def test_an_abandoned_pack_leaves_nothing_unless_it_can_go_on(kept):
    pack = kept.begin_pack(CONFIGS)
    train(pack, last=4)
    pack.abandon()
    assert list(kept.folder.iterdir()) == []
    pack = kept.begin_pack(CONFIGS)
    train(pack, last=4)
    pack.checkpoint.touch()
    pack.abandon()
    pack = kept.begin_pack(CONFIGS)
    assert pack.checkpoint.is_file()
    pack.truncate(2)
    train(pack, first=2)
    pack.end(results())
    assert all_there(kept)
    pack.abandon()
    assert all_there(kept)


@pytest.mark.parametrize(("order", "checkpoint"), [(sorted(IDS), True), (IDS, False)])
def test_lanes_in_another_order_and_packs_without_a_checkpoint_begin_afresh(kept, order, checkpoint):
    pack = kept.begin_pack(CONFIGS)
    train(pack)
    pack.checkpoint.touch()
    pack.abandon()
    if not checkpoint:
        pack.checkpoint.unlink()
    pack = kept.begin_pack({run_id: CONFIGS[run_id] for run_id in order})
    assert not pack.checkpoint.exists()
    pack.append_curve(CURVE[:1])
    pack.end([result for run_id in order for result in results() if result.run_id == run_id])
    assert len(kept.tables("a")["curve"]["step"]) == 1
    assert kept.tables("a").keys() == {"curve"}


TRAINER = """
import sys
from pathlib import Path
sys.path.insert(0, str(Path(sys.argv[2])))
from tests.test_packs import CONFIGS, CURVE, Store, train

pack = Store(Path(sys.argv[1])).begin_pack(CONFIGS)
train(pack, last=2)
pack.checkpoint.write_text("2")
train(pack, first=2, last=4)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("torn", [0, 5, 50])
def test_a_killed_pack_goes_on_from_its_checkpoint(kept, torn):
    kept.begin(RunResult("own", {}, "completed")).end(keep_checkpoint=False)
    trainer = subprocess.Popen(
        [sys.executable, "-c", TRAINER, kept.folder, Path(__file__).parents[1]],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert trainer.stdout
    assert trainer.stdout.readline() == b"ready\n"
    assert [pack.busy for pack in kept.unfinished_packs()] == [True]
    with pytest.raises(RunBusy):
        kept.begin_pack(CONFIGS)
    os.kill(trainer.pid, signal.SIGKILL)
    trainer.communicate()
    (left,) = kept.unfinished_packs()
    assert (list(left.configs), left.busy) == (IDS, False)
    assert [run.run_id for run in kept.runs()] == ["own"]
    assert kept.unreadable() == []
    for name in ("curve.raw", "measurements.raw"):
        path = left.folder / name
        os.truncate(path, path.stat().st_size - torn)
    pack = kept.begin_pack(left.configs)
    assert pack.checkpoint.read_text() == "2"
    pack.truncate(2)
    train(pack, first=2)
    pack.end(results())
    assert all_there(kept)
    assert kept.unfinished_packs() == []


def test_measurements_of_other_names_than_a_pack_began_with_are_refused(kept):
    pack = kept.begin_pack(CONFIGS)
    pack.append_measurements(["a"], [0], np.zeros((1, 3, 1)))
    with pytest.raises(RunFailed, match=r"begun with the columns a, and the task now gives b"):
        pack.append_measurements(["b"], [10], np.zeros((1, 3, 1)))
    pack.abandon()


# -- writing breaks -------------------------------------------------------------------------------------------------


def test_a_store_that_may_only_be_read(kept, monkeypatch):
    make_pack(kept)
    monkeypatch.setattr(bench.store.files.os, "open", lambda *args: no_space() if args[1] & os.O_CREAT else -1)
    with pytest.raises(UserError, match=r"cannot write to the store .*; choose another with --store DIR"):
        kept.begin_pack(CONFIGS)
    assert all_there(kept)
    assert len(list(kept.runs())) == 3


def test_a_store_below_a_file(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot write to the store .*: Not a directory"):
        Store(tmp_path / "file" / "runs").begin_pack(CONFIGS)


def test_a_full_disk_at_the_start_frees_the_pack(kept, monkeypatch):
    with monkeypatch.context() as full:
        full.setattr(bench.store.files.json, "dump", no_space)
        with pytest.raises(RunFailed, match=f"cannot write to the store {kept.folder}: No space left on device"):
            kept.begin_pack(CONFIGS)
    make_pack(kept)


@pytest.mark.parametrize("table", ["_curve", "_measurements"])
def test_a_full_disk_in_mid_run(kept, table):
    class FullFile(io.BytesIO):
        write = no_space

    pack = kept.begin_pack(CONFIGS)
    train(pack, last=2)
    pack.checkpoint.touch()
    getattr(pack, table).close()
    getattr(pack, table)._file = FullFile()
    with pytest.raises(RunFailed, match=f"cannot write to the store {kept.folder}: No space left on device"):
        train(pack, first=2)
    pack.abandon()
    pack = kept.begin_pack(CONFIGS)
    pack.truncate(2)
    train(pack, first=2)
    pack.end(results())
    assert all_there(kept)


@pytest.mark.parametrize("name", ["curve.parquet", "measurements.parquet", "runs.jsonl"])
def test_a_full_disk_at_the_end_keeps_what_there_is(kept, monkeypatch, name):
    pack = kept.begin_pack(CONFIGS)
    train(pack)
    pack.checkpoint.touch()
    replace = Path.replace
    with monkeypatch.context() as full:
        full.setattr(Path, "replace", lambda self, to: no_space() if to.name == name else replace(self, to))
        with pytest.raises(RunFailed, match=f"cannot write to the store {kept.folder}: No space left on device"):
            pack.end(results())
    pack.abandon()
    assert kept.get("a") is None
    assert not list(kept.folder.rglob("*.tmp"))
    (left,) = kept.unfinished_packs()
    assert not left.busy
    kept.begin_pack(left.configs).end(results())
    assert all_there(kept)


def test_what_a_kill_leaves_of_an_end_is_no_harm(kept):
    pack = kept.begin_pack(CONFIGS)
    train(pack)
    aside = shutil.copytree(pack.folder, kept.folder.parent / "aside")
    pack.end(results())
    shutil.copytree(aside, pack.folder, dirs_exist_ok=True)  # records written, raw tables not yet removed
    (pack.folder / "last.ckpt").touch()
    (pack.folder / "curve.parquet.0.tmp").touch()
    assert all_there(kept)
    assert (kept.unfinished_packs(), kept.unreadable()) == ([], [])
    pack = kept.begin_pack(CONFIGS)
    assert not pack.checkpoint.exists()
    train(pack)
    pack.end(results())
    assert all_there(kept)
    assert not list(kept.folder.rglob("*.tmp"))
