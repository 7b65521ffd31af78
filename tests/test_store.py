"""The store: records are written whole, readable by anybody, and trained by one process at a time."""

import errno
import io
import json
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

import bench.store.files
from bench.callbacks import StopRequest
from bench.errors import RunFailed, UserError
from bench.report import result_lines
from bench.store.record import RunResult
from bench.store.store import Store
from bench.store.tables import CURVE_FIELDS, read_curve
from bench.text import plain

FIT = ("fit", "--task", "synthetic", "--opt", "sngd", "--trainer.max_steps", "20", "--device", "cpu")
FULL = "No space left on device; make room, then give the same command again"
DONE = RunResult("a", {"task": "synthetic", "opt": "ngd"}, status="completed", final=0.5, steps=3)


@pytest.fixture
def kept(store: Path) -> Store:
    return Store(store)


def no_space(*args: object, **kwargs: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def no_leftovers(folder: Path) -> bool:
    return not list(folder.rglob("*.tmp"))


# -- records --------------------------------------------------------------------------------------------------------


def test_a_record_reads_as_it_was_written(kept):
    folder = kept.begin(replace(DONE, status="running"))
    folder.result.status = "completed"
    folder.result.metrics = {"final": {"loss": 0.25, "accuracy": None}}
    folder.end(keep_checkpoint=False)
    assert kept.get("a") == folder.result
    assert list(kept.runs()) == [folder.result]
    assert no_leftovers(kept.folder)


def test_a_record_of_before_there_were_lanes_reads(kept):
    kept.begin(DONE).end(keep_checkpoint=False)
    path = kept.folder / "a" / "run.json"
    record = json.loads(path.read_text())
    assert record.pop("engine") == "lightning"
    path.write_text(json.dumps(record))
    assert kept.get("a") == DONE


def test_what_is_not_there_is_none(kept):
    assert kept.get("a") is None
    assert list(kept.runs()) == []
    assert kept.unreadable() == []


def test_records_are_strict_json(kept):
    result = replace(DONE, final=float("nan"), config={"opt_options": {"max_step": float("inf")}})
    kept.begin(result).end(keep_checkpoint=False)

    def refuse(token):
        raise AssertionError(token)

    record = json.loads((kept.folder / "a" / "run.json").read_text(), parse_constant=refuse)
    assert record["final"] is None
    assert float(record["config"]["opt_options"]["max_step"]) == float("inf")


def test_plain_values():
    value = {"a": float("nan"), "b": [float("-inf"), 1.5], "c": (Path("x"), None), 1: True}
    assert plain(value) == {"a": None, "b": ["-inf", 1.5], "c": ["x", None], "1": True}


@pytest.mark.parametrize(
    "content", [b'{"run_id": "torn", "conf', b"", b"[]", b"{}", b"\xff\x00", b'{"run_id": "b", "config": {}, "new": 1}']
)
def test_a_damaged_record_is_skipped_and_named(kept, content):
    kept.begin(DONE).end(keep_checkpoint=False)
    (kept.folder / "torn").mkdir()
    (kept.folder / "torn" / "run.json").write_bytes(content)
    (kept.folder / "empty").mkdir()
    assert [run.run_id for run in kept.runs()] == ["a"]
    assert kept.get("torn") is None
    assert kept.unreadable() == [kept.folder / "empty", kept.folder / "torn"]


def test_a_run_with_a_damaged_record_is_trained_again(cli, store):
    cli(*FIT)
    (record,) = store.glob("*/run.json")
    whole = json.loads(record.read_text())
    record.write_text(record.read_text()[:200])
    assert cli(*FIT).code == 0
    assert json.loads(record.read_text())["final"] == whole["final"]


def test_a_copied_store_reads(cli, store, tmp_path):
    cli(*FIT)
    shutil.copytree(store, tmp_path / "copy")
    (run,) = Store(store).runs()
    assert list(Store(tmp_path / "copy").runs()) == [run]
    assert read_curve(tmp_path / "copy" / run.run_id) == read_curve(store / run.run_id)


def test_stores_merge_by_copying(kept, tmp_path):
    for name, store in (("a", kept), ("b", Store(tmp_path / "more"))):
        store.begin(replace(DONE, run_id=name)).end(keep_checkpoint=False)
    shutil.copytree(tmp_path / "more", kept.folder, dirs_exist_ok=True)
    assert [run.run_id for run in kept.runs()] == ["a", "b"]


# -- writing breaks -------------------------------------------------------------------------------------------------


def test_a_write_that_breaks_halfway_leaves_the_old_record(kept, monkeypatch):
    kept.begin(DONE).end(keep_checkpoint=False)

    def half(value, file, **kwargs):
        file.write('{"run_id": ')
        no_space()

    monkeypatch.setattr(bench.store.files.json, "dump", half)
    with pytest.raises(OSError, match="No space"):
        kept.write(replace(DONE, steps=4))
    assert kept.get("a") == DONE
    assert no_leftovers(kept.folder)


def test_a_full_disk_at_the_start_is_one_line_and_frees_the_run(cli, store, monkeypatch):
    with monkeypatch.context() as full:
        full.setattr(bench.store.files.json, "dump", no_space)
        answer = cli(*FIT)
    assert (answer.code, answer.out) == (1, "")
    assert answer.err == f"bench: error: cannot write to the store {store}: {FULL}\n"
    assert cli(*FIT).code == 0


def test_a_full_disk_in_mid_run_is_one_line_and_frees_the_run(cli, store, monkeypatch):
    class FullFile(io.StringIO):
        write = no_space

    begin = Store.begin

    def begin_on_full_disk(self, *args, **kwargs):
        folder = begin(self, *args, **kwargs)
        folder._curve._file.close()
        folder._curve._file = FullFile()
        return folder

    with monkeypatch.context() as full:
        full.setattr(Store, "begin", begin_on_full_disk)
        answer = cli(*FIT)
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.splitlines()[-1] == f"bench: error: cannot write to the store {store}: {FULL}"
    assert "Traceback" not in answer.err
    (run,) = Store(store).runs()
    assert run.status == "failed"
    assert "No space left on device" in run.reason
    assert cli(*FIT).code == 0


def test_a_full_disk_for_the_checkpoint_of_a_run_that_is_stopped_is_one_line(cli, store, monkeypatch):
    class Stopped(StopRequest):
        def __init__(self) -> None:
            super().__init__()
            self.signal = signal.SIGINT

    with monkeypatch.context() as full:
        full.setattr("bench.runner.StopRequest", Stopped)
        full.setattr("lightning.pytorch.Trainer.save_checkpoint", no_space)
        answer = cli(*FIT)
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.splitlines()[-1] == f"bench: error: cannot write to the store {store}: {FULL}"
    (run,) = Store(store).runs()
    assert not Store(store).checkpoint(run.run_id).with_name("traceback.txt").exists()
    assert cli(*FIT).code == 0


def test_a_full_disk_at_the_end_is_one_line_and_frees_the_run(cli, store, monkeypatch):
    write = Store.write
    with monkeypatch.context() as full:
        full.setattr(
            Store, "write", lambda self, result: write(self, result) if result.status == "running" else no_space()
        )
        answer = cli(*FIT)
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.splitlines()[-1].startswith("bench: error: cannot write the result of synthetic-sngd-")
    assert "Traceback" not in answer.err
    assert next(iter(Store(store).runs())).status == "killed"
    assert cli(*FIT).code == 0


# -- runs that ended without a word ---------------------------------------------------------------------------------


def test_a_run_is_running_as_long_as_its_process_holds_it(kept):
    folder = kept.begin(replace(DONE, status="running"))
    assert kept.get("a").status == "running"
    folder.result.status = "completed"
    folder.end(keep_checkpoint=False)
    assert kept.get("a").status == "completed"


@pytest.mark.parametrize("checkpoint", [True, False])
def test_a_run_whose_process_is_gone_is_killed(kept, checkpoint):
    (kept.folder / "a").mkdir(parents=True)
    kept.write(replace(DONE, status="running"))
    if checkpoint:
        (kept.folder / "a" / "last.ckpt").touch()
    killed = kept.get("a")
    assert killed.status == "killed"
    assert ("before its first checkpoint" in killed.reason) != checkpoint
    assert (f"bench fit --resume a --store {kept.folder}" in " ".join(result_lines(killed, kept.folder))) == checkpoint
    assert json.loads((kept.folder / "a" / "run.json").read_text())["status"] == "killed"


def test_a_store_that_may_only_be_read_shows_the_truth(kept, monkeypatch):
    (kept.folder / "a").mkdir(parents=True)
    kept.write(replace(DONE, status="running"))
    monkeypatch.setattr(Store, "write", no_space)
    assert kept.get("a").status == "killed"


# -- several at once ------------------------------------------------------------------------------------------------


def test_a_run_is_trained_by_one_process(cli, store, kept):
    cli(*FIT)
    (run,) = kept.runs()
    folder = kept.begin(replace(run, status="running"))
    with pytest.raises(UserError, match="is being trained by another process now"):
        kept.begin(run)
    for words in (FIT, (*FIT, "--rerun"), ("fit", "--resume", run.run_id)):
        answer = cli(*words)
        assert (answer.code, answer.out) == (2, "")
        assert answer.err == f"bench: error: run {run.run_id} is being trained by another process now\n"
    folder.result.status = "completed"
    folder.end(keep_checkpoint=False)
    assert cli(*FIT).code == 0


WRITER = """
import sys
from pathlib import Path
from bench.store.store import RunResult, Store

store, name = Store(Path(sys.argv[1])), sys.argv[2]
for i in range(40):
    folder = store.begin(RunResult(f"{name}-{i}", {"task": name}))
    folder.append_curve([(1, 0.5, 0.5, 0.5, 0.5), (2, 0.25, 0.5, 0.5, 0.5)])
    assert all(run.status in ("running", "completed") for run in store.runs()), "a run in progress was taken for killed"
    folder.result.status, folder.result.steps = "completed", 2
    folder.end(keep_checkpoint=False)
    store.write(RunResult("shared", {"writer": name, "i": i}, status="completed"))
"""


def test_processes_that_write_one_store_lose_nothing(kept):
    (kept.folder / "shared").mkdir(parents=True)
    writers = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", WRITER, str(kept.folder), name], stderr=subprocess.PIPE, text=True
        )
        for name in ("left", "right")
    ]
    assert [(w.communicate()[1], w.returncode) for w in writers] == [("", 0), ("", 0)]
    runs = {run.run_id: run for run in kept.runs()}
    assert runs.keys() == {f"{name}-{i}" for name in ("left", "right") for i in range(40)} | {"shared"}
    assert {run.status for run in runs.values()} == {"completed"}
    assert all(len(read_curve(kept.folder / name)) == 2 for name in runs if name != "shared")
    assert runs["shared"].config["i"] == 39
    assert kept.unreadable() == []
    assert no_leftovers(kept.folder)


def test_threads_that_write_one_record_leave_it_whole(kept):
    (kept.folder / "a").mkdir(parents=True)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: kept.write(replace(DONE, steps=i, reason="x" * 10_000)), range(100)))
    assert kept.get("a").steps in range(100)
    assert no_leftovers(kept.folder)


# -- curves ---------------------------------------------------------------------------------------------------------

ROWS = [(1, 0.5, 2.0, 0.1, 0.1), (2, 0.4, 1.0, 0.2, 0.1), (3, 0.3, 0.5, 0.4, 0.1)]


def test_a_curve_reads_the_same_while_and_after_the_run(kept):
    folder = kept.begin(replace(DONE, status="running"))
    folder.append_curve(ROWS[:2])
    assert read_curve(folder.folder) == ROWS[:2]
    folder.append_curve(ROWS[2:])
    folder.end(keep_checkpoint=False)
    assert not (folder.folder / "curve.jsonl").exists()
    assert read_curve(folder.folder) == ROWS


def test_a_curve_is_a_parquet_table(kept):
    import pyarrow.parquet as pq

    folder = kept.begin(replace(DONE, status="running"))
    folder.append_curve(ROWS)
    folder.end(keep_checkpoint=False)
    table = pq.read_table(folder.folder / "curve.parquet")
    assert tuple(table.column_names) == CURVE_FIELDS
    assert table.column("loss").to_pylist() == [0.5, 0.4, 0.3]


def test_a_damaged_table_is_one_line(kept):
    folder = kept.begin(replace(DONE, status="running"))
    folder.append_curve(ROWS)
    folder.end(keep_checkpoint=False)
    (folder.folder / "curve.parquet").write_bytes(b"PAR1")
    with pytest.raises(UserError, match=r"cannot read the tables of run a in .*; copy the folder again"):
        kept.tables("a")


def test_a_curve_without_steps_is_empty(kept):
    folder = kept.begin(replace(DONE, status="running"))
    folder.end(keep_checkpoint=False)
    assert read_curve(folder.folder) == []
    assert read_curve(kept.folder / "nothing") == []


def test_values_that_are_not_finite_read_as_none(kept):
    folder = kept.begin(replace(DONE, status="running"))
    folder.append_curve([(1, float("nan"), float("inf"), float("-inf"), 0.1)])
    assert read_curve(folder.folder) == [(1, None, None, None, 0.1)]
    folder.end(keep_checkpoint=False)
    assert read_curve(folder.folder) == [(1, None, None, None, 0.1)]


@pytest.mark.parametrize("torn", ["", "[3", "[3, 0.3, 0.5, 0.4, 0.1", "[3, 0.3]\n"])
def test_only_the_torn_last_line_of_a_curve_is_lost(kept, torn):
    folder = kept.begin(replace(DONE, status="running"))
    folder.append_curve(ROWS[:2])
    with (folder.folder / "curve.jsonl").open("a") as file:
        file.write(torn)
    assert read_curve(folder.folder) == ROWS[:2]
    folder.truncate(1)
    folder.append_curve(ROWS[1:])
    folder.end(keep_checkpoint=False)
    assert read_curve(folder.folder) == ROWS


def test_a_new_run_takes_nothing_over_and_a_resumed_one_all(kept):
    folder = kept.begin(replace(DONE, status="running"))
    folder.append_curve(ROWS)
    folder.checkpoint.touch()
    folder.end(keep_checkpoint=True)
    resumed = kept.begin(replace(DONE, status="running"), resume=True)
    assert resumed.checkpoint.exists()
    assert read_curve(resumed.folder) == ROWS
    resumed.end(keep_checkpoint=True)
    new = kept.begin(replace(DONE, status="running"))
    assert not new.checkpoint.exists()
    assert read_curve(new.folder) == []
    new.end(keep_checkpoint=False)


def test_beginning_fails_with_the_lock_free(kept, monkeypatch):
    with monkeypatch.context() as full:
        full.setattr(Store, "write", no_space)
        with pytest.raises(RunFailed, match="No space left on device"):
            kept.begin(DONE)
    kept.begin(DONE).end(keep_checkpoint=False)


def test_measurements_of_other_names_than_a_run_began_with_are_refused(kept):
    folder = kept.begin(replace(DONE, status="running"))
    folder.append_measurements(["a"], [(0, 1.0)])
    with pytest.raises(RunFailed, match=r"begun with the columns step, a, and the task now gives step, b"):
        folder.append_measurements(["b"], [(10, 2.0)])
    folder.end(keep_checkpoint=False)
    assert kept.tables("a")["measurements"]["a"].tolist() == [1.0]
