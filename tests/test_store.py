"""The store: records are written atomically, and readable by everybody."""

import errno
import json
import re
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import bench.store.block
import bench.store.load
import bench.store.writer
from bench.errors import RunFailed
from bench.run_summary import result_lines
from bench.store.record import RunResult
from bench.store.store import Store
from bench.text import plain
from bench.train.stop import StopRequest
from tests.stored import add_block, add_run, begin, begin_block, kill, read_curve, record, unfinished

FIT = ("fit", "--task", "synthetic", "--opt", "sngd", "--trainer.max_steps", "20", "--device", "cpu")
FULL = "No space left on device; free some space, then repeat the command"


@pytest.fixture
def kept(store: Path) -> Store:
    return Store(store)


def no_space(*args: object, **kwargs: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def runs_file(run: Path) -> Path:
    return run / "done/runs.jsonl"


def as_json(result: RunResult, **changes: Any) -> dict[str, Any]:
    return plain(vars(result)) | changes


def snapshot(folder: Path) -> dict[Path, tuple[int, bytes]]:
    """All files of a folder, with times and contents."""
    return {path: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"") for path in folder.rglob("*")}


# -- records --------------------------------------------------------------------------------------------------------


def test_a_record_reads_as_it_was_written(kept):
    result = record("a", metrics={"final": {"loss": 0.25, "accuracy": 1.0, "other split": {"loss": 0.5}}})
    add_run(kept.folder, "a", metrics=result.metrics)
    options = {"lr": 0.1, "max_step": "inf"}
    assert kept.get("a") == replace(result, config=result.config | {"opt_options": options})
    assert list(kept.runs()) == [kept.get("a")]


"""Fields added to records later, with the values read for older records."""


def test_a_missing_run_is_none(kept):
    assert kept.get("a") is None
    assert kept.tables("a") == {}
    assert kept.last_checkpoint(["a"]) is None
    assert kept.place("a") == kept.folder / "a"
    assert list(kept.runs()) == []
    assert unfinished(kept.folder) == []
    assert kept.contents().damaged == []
    assert kept.find_all(["a"]) == {}
    assert not kept.folder.exists()


def test_records_are_strict_json(kept):
    add_run(kept.folder, "a", final=float("nan"))

    def refuse(token):
        raise AssertionError(token)

    stored = json.loads(runs_file(kept.folder / "a").read_text(), parse_constant=refuse)
    assert stored["final"] is None
    assert float(stored["config"]["opt_options"]["max_step"]) == float("inf")


@pytest.mark.parametrize("changes", [{"facts": {"n": object}}, {"steps": -1}, {"versions": {"torch": []}}])
def test_a_record_that_cannot_be_read_again_is_not_written(kept, changes):
    with pytest.raises(RunFailed, match="a record cannot be stored: "):
        begin(kept.folder, record("a", **changes))
    assert kept.get("a") is None
    writer = begin(kept.folder, record("a"))
    with pytest.raises(RunFailed, match=r"a record cannot be stored: |rows, and it made -1 steps"):
        writer.end([record("a", **changes)])
    writer.leave([record("a", status="failed", reason="so")])
    assert (kept.get("a").status, kept.contents().damaged) == ("failed", [])


# -- several blocks with one run ------------------------------------------------------------------------------------


def finals(store: Store) -> dict[str, float | None]:
    """The final value of each run, by all ways of reading."""
    found = {run.run_id: run for run in store.runs()}
    assert found == {run_id: store.get(run_id) for run_id in found}
    assert found == {run_id: block.runs[run_id] for run_id, block in store.find_all(found).items()}
    return {run_id: run.final for run_id, run in found.items()}


def test_the_block_of_its_own_comes_before_others(kept):
    add_block(kept.folder, "bac", 0.5, final=1.0)
    add_run(kept.folder, "a", (0.125, 0.25), final=2.0)
    assert finals(kept) == {"a": 2.0, "b": 1.0, "c": 1.0}
    assert kept.place("a") == kept.folder / "a"
    assert kept.tables("a")["curve"]["loss"].tolist() == [0.125, 0.25]
    assert [block.runs["a"].final for block in kept.contents().blocks["a"]] == [2.0, 1.0]
    runs_file(kept.folder / "a").write_text("{")
    assert finals(kept) == {"a": 1.0, "b": 1.0, "c": 1.0}
    assert kept.tables("a")["curve"]["loss"].tolist() == [0.5] * 3


def test_a_finished_run_comes_before_others(kept):
    writer = begin(kept.folder, record("a", final=2.0))
    assert finals(kept) == {"a": 2.0}
    folder = add_block(kept.folder, "ab", final=1.0)
    assert finals(kept) == {"a": 1.0, "b": 1.0}
    assert (kept.place("a"), kept.get("a").status) == (folder, "completed")
    writer.end([record("a", final=2.0)])
    assert finals(kept) == {"a": 2.0, "b": 1.0}


def test_a_store_in_use_sees_blocks_that_others_begin_and_finish(kept):
    other: Any = Store(kept.folder)
    assert other.get("a") is None
    writer, results = begin_block(kept.folder, "bac")
    assert other.get("a").status == "running"
    writer.end(results)
    assert other.get("a").status == "completed"
    add_block(kept.folder, "bac", final=0.75)  # the same runs once more
    assert other.get("a").final == 0.75
    shutil.rmtree(writer.folder)
    assert other.get("a") is None


def test_a_run_in_a_block_of_several_is_not_trained_again(kept, cli):
    assert cli(*FIT).code == 0
    (run,) = kept.runs()
    shutil.rmtree(kept.folder)
    others = [replace(run, engine="lanes"), record("b")]
    writer = kept.begin([replace(each, status="running") for each in others])
    writer.end([replace(each, thinned=True) for each in others])
    assert "already stored" in cli(*FIT).err
    assert not (kept.folder / run.run_id).exists()
    assert cli(*FIT, "--rerun").code == 0
    assert kept.get(run.run_id).engine == "lightning"


# -- readers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("checkpoint", [True, False])
def test_a_run_whose_process_is_gone_is_shown_as_killed(kept, checkpoint):
    writer = begin(kept.folder, record("a"))
    assert kept.get("a").status == "running"
    if checkpoint:
        writer.checkpoint.touch()
    kill(writer)
    killed = kept.get("a")
    assert killed.status == "killed"
    assert ("before its first checkpoint" in killed.reason) != checkpoint
    assert (f"bench fit --resume a --store {kept.folder}" in " ".join(result_lines(killed, kept.folder))) == checkpoint


def test_readers_write_nothing(kept, cli):
    add_run(kept.folder, "a")
    add_block(kept.folder, "bc")
    kill(begin(kept.folder, record("d")))
    kill(begin_block(kept.folder, "ef")[0])
    runs_file(add_run(kept.folder, "g")).write_text("{")
    before = snapshot(kept.folder)
    assert cli("list", "runs", "--all", "--store", kept.folder).out.count("killed") == 3
    cli("show", "d", "--store", kept.folder)
    cli("doctor", "--store", kept.folder)
    assert unfinished(kept.folder) != []
    assert kept.tables("d") != {}
    assert snapshot(kept.folder) == before


@pytest.mark.parametrize("name", ["write_records", "write_part", "write_block"])
def test_a_full_disk_is_one_line_and_frees_the_run(cli, store, monkeypatch, name):
    with monkeypatch.context() as full:
        full.setattr(bench.store.writer, name, no_space)
        answer = cli(*FIT, "--trainer.checkpoint_seconds", "1e-3")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.splitlines()[-1] == f"bench: error: cannot write to the store {store}: {FULL}"
    assert "Traceback" not in answer.err
    assert {run.status for run in Store(store).runs()} <= {"failed"}
    assert cli(*FIT).code == 0


# -- writing breaks -------------------------------------------------------------------------------------------------


def test_a_full_disk_for_the_checkpoint_of_a_run_that_is_stopped_is_one_line(cli, store, monkeypatch):
    class Stopped(StopRequest):
        def __init__(self) -> None:
            super().__init__()
            self.signal = signal.SIGINT

    with monkeypatch.context() as full:
        full.setattr("bench.train.runner.StopRequest", Stopped)
        full.setattr("lightning.pytorch.Trainer.save_checkpoint", no_space)
        answer = cli(*FIT)
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.splitlines()[-1] == f"bench: error: cannot write to the store {store}: {FULL}"
    assert list(store.rglob("traceback.txt")) == []
    assert cli(*FIT).code == 0


@pytest.mark.parametrize("change", ["deleted", "moved", "copied"])
def test_a_store_that_changes_under_a_run_is_one_line_and_stays_so(cli, store, monkeypatch, change):
    append = bench.store.writer.BlockWriter.append_curve

    def changing(self: Any, rows: Any) -> None:
        append(self, rows)
        if change == "copied":
            shutil.copytree(store, store.with_name("copy"))
        if change == "moved":
            store.rename(store.with_name("moved"))
        else:
            shutil.rmtree(store)
        if change == "copied":
            store.with_name("copy").rename(store)
        before.update(snapshot(store))

    before: dict[Path, Any] = {}
    with monkeypatch.context() as patch:
        patch.setattr(bench.store.writer.BlockWriter, "append_curve", changing)
        answer = cli(*FIT)
    assert (answer.code, answer.out) == (1, "")
    assert re.search("was deleted, moved or replaced during", answer.err.splitlines()[-1])
    assert "Traceback" not in answer.err
    assert snapshot(store) == before
    assert store.exists() == (change == "copied")


# -- several at once ------------------------------------------------------------------------------------------------


def test_a_run_is_trained_by_one_process(cli, store, kept):
    cli(*FIT)
    (run,) = kept.runs()
    shutil.rmtree(store)
    writer = kept.begin([replace(run, status="running")])
    for words in (FIT, (*FIT, "--rerun"), ("fit", "--resume", run.run_id)):
        answer = cli(*words)
        assert (answer.code, answer.out) == (2, "")
        assert answer.err == f"bench: error: run {run.run_id} is in training by another process\n"
    writer.drop()
    assert cli(*FIT).code == 0


# -- curves ---------------------------------------------------------------------------------------------------------


def test_values_that_are_not_finite_read_as_none(kept):
    writer = begin(kept.folder, record("a"), (float("inf"), None, float("-inf")))
    rows = [(step, None, 1.0, 0.1, 0.1) for step in (1, 2, 3)]
    assert read_curve(kept.folder / "a") == rows
    writer.end([record("a")])
    assert read_curve(kept.folder / "a") == rows
