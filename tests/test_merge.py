"""bench merge: finished results stay, nothing is copied by halves, and existing results are not touched."""

import errno
import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import bench.store.merge
from bench.check.report import Report, Verdict, write_verdict
from bench.store.block import DONE, RUNS, name_of
from bench.store.reports import StudyRecord, read_report
from bench.store.store import Store
from bench.store.stores import Stores
from bench.store.tables import write_columns
from bench.store.writer import write_records
from tests.stored import WILD, add_block, add_run, add_study, begin, begin_block, kill, record, unfinished


def no_space(*args: object, **kwargs: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def digest(folder: Path) -> str:
    """Digest of all files of a folder: names, bytes, times."""
    found = hashlib.sha256()
    for path in [folder, *sorted(folder.rglob("*"))]:
        content = path.read_bytes() if path.is_file() else b""
        found.update(f"{path.relative_to(folder)} {path.stat().st_mtime_ns} {len(content)}\n".encode() + content)
    return found.hexdigest()


def seen(store: Path) -> dict[str, tuple]:
    """Everything that readers see of a store: records and losses by run."""
    kept = Store(store)
    return {
        run.run_id: (run, {name: column.tolist() for name, column in kept.tables(run.run_id).get("curve", {}).items()})
        for run in kept.runs()
    }


def same(one: Path, other: Path) -> bool:
    assert repr(seen(one)) == repr(seen(other))  # treats NaN as equal to NaN
    assert len(seen(one)) > 0
    return True


def no_trace(store: Path) -> bool:
    return not [path for path in store.rglob("*") if path.name[0] == "." or path.name == "lock"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A store with a run `a`, blocks `bc` and `cd`, and a study; of two blocks the first by name is read."""
    folder = tmp_path / "source"
    add_run(folder, "a", lr=0.5)
    for ids, loss in (("cd", 2.0), ("bc", 1.0)):
        add_block(folder, ids, loss)
    add_study(folder, "s")
    return folder


FIRST = 2.0 if name_of(["c", "d"]) < name_of(["b", "c"]) else 1.0
"""The loss of run `c` in the block that is read."""


# -- what is copied ---------------------------------------------------------------------------------------------------


def test_a_store_is_copied_whole(cli, source, tmp_path):
    before = digest(source)
    answer = cli("merge", source, tmp_path / "new" / "dest")
    assert answer == (0, "4 runs copied, 1 already there, 0 skipped; 1 record of studies copied\n", "")
    assert same(source, tmp_path / "new" / "dest")
    assert seen(tmp_path / "new" / "dest")["c"][1]["loss"] == [FIRST] * 3  # from the block that comes first
    stores = Stores([tmp_path / "new" / "dest"])
    assert [study.name for study in stores.studies] == ["s"]
    assert stores.damaged == []
    assert no_trace(tmp_path / "new" / "dest")
    assert digest(source) == before


def test_merging_again_changes_nothing(cli, source, tmp_path):
    dest = tmp_path / "dest"
    kill(begin(source, record("k", status="running")))
    assert cli("merge", source, dest).code == 0
    before = digest(dest), digest(source)
    for words in ((source, dest), (source, source, dest), (dest, source)):
        answer = cli("merge", *words)
        assert answer.code == 0
        assert answer.out.startswith("0 runs copied, ")
    assert (digest(dest), digest(source)) == before


def test_several_stores_come_together(cli, source, tmp_path):
    for name in ("x", "y"):
        add_run(tmp_path / name, name)
    assert cli("merge", source, tmp_path / "x", tmp_path / "y", tmp_path / "dest").out.startswith("6 runs copied, 1 ")
    assert list(seen(tmp_path / "dest")) == ["a", "b", "c", "d", "x", "y"]


def test_a_store_may_lie_in_the_destination(cli, source, tmp_path):
    shutil.move(source, tmp_path / "dest" / "theirs")
    assert cli("merge", tmp_path / "dest" / "theirs", tmp_path / "dest").code == 0
    assert same(tmp_path / "dest" / "theirs", tmp_path / "dest")


def test_names_of_any_kind(cli, tmp_path):
    store = tmp_path / "it's a [1]*? <store> ü 漢"
    for name in ("ü漢", "a.b+c-d", "_"):
        add_run(store, name, task=WILD)
    assert cli("merge", store, tmp_path / "dest").code == 0
    assert same(store, tmp_path / "dest")


# -- one run in both --------------------------------------------------------------------------------------------------


def begin_unfinished(store: Path, run_id: str) -> Path:
    writer = begin(store, record(run_id), [9.0])
    writer.checkpoint.touch()
    writer.leave([record(run_id, status="failed", final=None)])
    return store / run_id


@pytest.mark.parametrize("add", [add_run, add_block])
def test_a_finished_run_takes_the_place_of_an_unfinished_one(cli, tmp_path, add):
    add(tmp_path / "source", "a")
    begin_unfinished(tmp_path / "dest", "a")
    assert cli("merge", tmp_path / "source", tmp_path / "dest").out == "1 run copied, 0 already there, 0 skipped\n"
    assert same(tmp_path / "source", tmp_path / "dest")
    assert not list(tmp_path.glob("dest/**/last.ckpt"))
    assert no_trace(tmp_path / "dest")
    assert cli("merge", tmp_path / "source", tmp_path / "dest").out == "0 runs copied, 1 already there, 0 skipped\n"


def test_an_unfinished_run_is_not_copied(cli, tmp_path):
    folder = begin_unfinished(tmp_path / "source", "a")
    add_run(tmp_path / "dest", "b")
    before = digest(tmp_path / "dest")
    answer = cli("merge", tmp_path / "source", tmp_path / "dest")
    assert (answer.out, answer.err) == (
        "0 runs copied, 0 already there, 1 skipped\n",
        f"bench: note: {folder} has not finished\n",
    )
    assert digest(tmp_path / "dest") == before


def test_a_finished_block_takes_the_place_of_an_unfinished_one(cli, tmp_path):
    add_block(tmp_path / "source", "ab")
    block, _ = begin_block(tmp_path / "dest", "ab")
    block.checkpoint.touch()
    block.close()
    assert cli("merge", tmp_path / "source", tmp_path / "dest").out == "2 runs copied, 0 already there, 0 skipped\n"
    assert same(tmp_path / "source", tmp_path / "dest")
    assert unfinished(tmp_path / "dest") == []


@pytest.mark.parametrize("theirs", [add_run, add_block])
@pytest.mark.parametrize("ours", [add_run, add_block])
def test_the_finished_run_of_the_destination_stays(cli, tmp_path, theirs, ours):
    theirs(tmp_path / "source", "a", final=0.125)
    ours(tmp_path / "dest", "a")
    before = digest(tmp_path / "dest")
    answer = cli("merge", tmp_path / "source", tmp_path / "dest")
    assert (answer.code, answer.out) == (0, "0 runs copied, 1 already there, 0 skipped\n")
    assert answer.err == f"bench: warning: a has another result in {tmp_path / 'dest'}; that one is kept\n"
    assert digest(tmp_path / "dest") == before


def test_equal_results_are_no_matter(cli, tmp_path):
    add_run(tmp_path / "source", "a", wall_s=5.0)
    add_run(tmp_path / "dest", "a", wall_s=6.0)
    assert cli("merge", tmp_path / "source", tmp_path / "dest").err == ""


def test_a_block_hides_no_run_of_the_destination(cli, tmp_path):
    add_block(tmp_path / "dest", "ab", 1.0)
    add_block(tmp_path / "source", "bc", 2.0, final=0.125)
    answer = cli("merge", tmp_path / "source", tmp_path / "dest")
    assert answer.out == "1 run copied, 1 already there, 0 skipped\n"
    losses = {run_id: columns["loss"][0] for run_id, (_, columns) in seen(tmp_path / "dest").items()}
    assert losses == {"a": 1.0, "b": 1.0, "c": 2.0}
    assert cli("merge", tmp_path / "source", tmp_path / "dest").out == "0 runs copied, 2 already there, 0 skipped\n"


@pytest.mark.parametrize("content", [b"", b'{"run_id": "a", "conf', b'{"run_id": "a", "config": null}\n'])
@pytest.mark.parametrize("ids", ["a", "ab"])
def test_an_intact_record_takes_the_place_of_a_damaged_one(cli, tmp_path, ids, content):
    add_block(tmp_path / "source", ids)
    (add_block(tmp_path / "dest", ids) / DONE / RUNS).write_bytes(content)
    (tmp_path / "dest" / "empty").mkdir()
    assert cli("merge", tmp_path / "source", tmp_path / "dest").code == 0
    assert same(tmp_path / "source", tmp_path / "dest")


def test_reports_of_checks_are_merged(cli, tmp_path):
    source, dest = tmp_path / "source", tmp_path / "dest"
    for opt in ("adam", "sgd"):
        write_verdict(source, Report(opt, verdicts=(Verdict("groups", "pass"),)))
    write_verdict(dest, Report("sgd", verdicts=(Verdict("groups", "fail"),)))
    (source / "checks" / "torn.json").write_text("{")
    answer = cli("merge", source, dest)
    assert (answer.code, answer.out) == (1, "0 runs copied, 0 already there, 0 skipped; 1 record of checks copied\n")
    assert f"{source / 'checks' / 'torn.json'}: " in answer.err
    assert {c.name: c.failed for c in Stores([dest]).checks} == {"adam": [], "sgd": ["groups"]}
    assert no_trace(dest)
    (source / "checks" / "torn.json").unlink()
    write_verdict(source, Report("adam", verdicts=(Verdict("groups", "error"),)))
    assert cli("merge", source, dest).code == 0  # as on boards that read both, the worse report counts
    assert {c.name: c.failed for c in Stores([dest]).checks} == {"adam": ["groups"], "sgd": ["groups"]}


def test_different_studies_of_one_name_are_both_kept(cli, tmp_path):
    stores = [tmp_path / name for name in ("a", "b")]
    for store, axes in zip(stores, (["opt.lr"], ["opt.lr", "opt.momentum"]), strict=True):
        add_study(store, "s", axes=axes)
    for _ in range(2):
        cli("merge", *stores, tmp_path / "dest")
        merged = Stores([tmp_path / "dest"]).studies
        assert [vars(study) for study in merged] == [vars(study) for study in Stores(stores).studies]
        assert len(merged) == 2


@pytest.mark.parametrize(("theirs", "ours", "kept"), [(3, 2, 3), (2, 3, 3)])
def test_the_later_record_of_a_study_stays(cli, tmp_path, theirs, ours, kept):
    add_study(tmp_path / "source", "s", theirs)
    path = add_study(tmp_path / "dest", "s", ours)
    assert cli("merge", tmp_path / "source", tmp_path / "dest").code == 0
    assert len(read_report(path, StudyRecord).trials) == kept
    assert no_trace(tmp_path / "dest")


# -- runs that are being trained --------------------------------------------------------------------------------------


def test_running_attempts_are_left_alone(cli, source, tmp_path):
    folder = begin(source, record("t", status="running"))
    block, _ = begin_block(source, "uv")
    answer = cli("merge", source, tmp_path / "dest")
    assert answer.out == "4 runs copied, 1 already there, 3 skipped; 1 record of studies copied\n"
    assert sorted(answer.err.splitlines()) == [
        f"bench: note: {path} is in training" for path in sorted([block.folder, folder.folder])
    ]
    assert answer.code == 0
    assert list(seen(tmp_path / "dest")) == list("abcd")
    folder.drop()
    block.drop()


@pytest.mark.parametrize("add", [add_run, add_block])
def test_running_attempts_of_the_destination_are_left_alone(cli, tmp_path, add):
    add(tmp_path / "source", "a")
    folder = begin(tmp_path / "dest", record("a", status="running"), [9.0])
    answer = cli("merge", tmp_path / "source", tmp_path / "dest")
    assert answer.code == 0
    assert f"{folder.folder} is in training" in answer.err
    assert Store(tmp_path / "dest").get("a").status == "running"
    folder.drop()


@pytest.mark.deep
def test_several_processes_merge_at_a_time(cli, source, tmp_path):
    merger = [sys.executable, "-m", "bench.cli", "merge", source, tmp_path / "dest"]
    processes = [subprocess.Popen(merger, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(3)]
    answers = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0] * 3, answers
    assert same(source, tmp_path / "dest")
    assert no_trace(tmp_path / "dest")


# -- writing breaks ---------------------------------------------------------------------------------------


def test_a_file_of_a_source_that_cannot_be_read(cli, source, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: not path.match("a/done/curve.parquet"))
    answer = cli("merge", source, tmp_path / "dest")
    assert (answer.code, answer.err.count("\n")) == (1, 1)
    assert f"{source / 'a' / DONE / 'curve.parquet'}: it cannot be read" in answer.err
    assert list(seen(tmp_path / "dest")) == list("bcd")


@pytest.mark.parametrize("name", ["file", "file/dest"])
def test_a_destination_below_a_file(cli, source, tmp_path, name):
    (tmp_path / "file").touch()
    answer = cli("merge", source, tmp_path / name)
    assert (answer.code, answer.out) == (2, "")
    why = "Not a directory; name another DEST"
    assert answer.err == f"bench: error: cannot write to the store {tmp_path / name}: {why}\n"


def test_a_destination_that_may_only_be_read(cli, source, tmp_path, monkeypatch):
    add_run(tmp_path / "dest", "z")
    before = digest(tmp_path / "dest")

    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    with monkeypatch.context() as locked:
        locked.setattr(Path, "mkdir", refuse)
        answer = cli("merge", source, tmp_path / "dest")
    assert (answer.code, answer.out) == (2, "")
    why = "Read-only file system; name another DEST"
    assert answer.err == f"bench: error: cannot write to the store {tmp_path / 'dest'}: {why}\n"
    assert digest(tmp_path / "dest") == before


def test_an_interrupt_leaves_no_trace(cli, source, tmp_path, monkeypatch):
    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as stopped:
        stopped.setattr(bench.store.merge, "copy", interrupt)
        assert cli("merge", source, tmp_path / "dest") == (130, "", "bench: interrupted\n")
    assert list((tmp_path / "dest").iterdir()) == []


def test_stores_that_cannot_be_merged(cli, source, tmp_path):
    def fails(*words: object) -> str:
        answer = cli("merge", *words)
        assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
        return answer.err

    before = digest(source)
    assert "bench merge needs SOURCE" in fails()
    assert "bench merge needs DEST" in fails(source)
    assert f"there is no store {tmp_path / 'nowhere'}; name an existing one" in fails(tmp_path / "nowhere", source)
    same = source / ".." / source.name
    for words in ((source, source), (same, source), (source, tmp_path, source)):
        assert "is both source and destination; change one of them" in fails(*words)
    assert f"is inside the store {source}" in fails(source, source / "dest")
    assert f"{source / 'a'} is the folder of a run" in fails(source / "a", tmp_path / "dest")
    assert digest(source) == before


def test_a_long_merge_says_how_far_it_is(cli, source, tmp_path, monkeypatch):
    monkeypatch.setattr(bench.store.merge, "_SECONDS", -1)
    answer = cli("merge", source, tmp_path / "dest")
    assert answer.err.splitlines()[1] == f"bench: {source}: 1 of 3 folders, 1 run copied"


def thin(source: Path, into: Path) -> None:
    """Put the run `a` and the block `bc` of a store into another one, with the ends of each curve."""
    for ids in ("a", "bc"):
        runs = [replace(Store(source).get(run_id), thinned=True) for run_id in ids]
        done = into / name_of(list(ids)) / DONE
        done.mkdir(parents=True)
        write_records(done / RUNS, runs)
        ends = {
            run_id: {name: column[[0, -1]] for name, column in Store(source).tables(run_id)["curve"].items()}
            for run_id in ids
        }
        write_columns(done / "curve.parquet", ends)


def test_a_whole_curve_replaces_a_thinned_one_of_the_same_result(source: Path, tmp_path: Path) -> None:
    into = tmp_path / "mine"
    thin(source, into)
    before = seen(into)
    found = bench.store.merge.merge([source], into, print)
    assert (found.copied, found.there, found.differing, found.damaged) == (4, 1, [], [])
    for run_id in "abc":
        assert len(Store(into).tables(run_id)["curve"]["step"]) == 3 > len(before[run_id][1]["step"])
        assert not Store(into).get(run_id).thinned
    assert bench.store.merge.merge([source], into, print).copied == 0
    assert not list(into.rglob("replaced"))
    thin(source, other := tmp_path / "thin")
    assert bench.store.merge.merge([other], into, print).copied == 0  # nor the other way round


def test_a_thinned_curve_of_another_result_stays(source: Path, tmp_path: Path) -> None:
    into = tmp_path / "mine"
    thin(source, into)
    path = into / "a" / DONE / RUNS
    write_records(path, [replace(Store(into).get("a"), final=0.125, metrics={"final": {"loss": 0.125}})])
    assert bench.store.merge.merge([source], into, print).differing == ["a"]
    assert Store(into).get("a").thinned


def test_the_copy_of_a_run_with_its_whole_curve_is_read(source: Path, tmp_path: Path) -> None:
    thin(source, other := tmp_path / "thin")
    for folders in ([source, other], [other, source]):
        stores = Stores(folders)
        assert [stores.blocks[run_id].runs[run_id].thinned for run_id in "abc"] == [False] * 3
        assert len(stores.tables("b")["curve"]["step"]) == 3


@pytest.mark.parametrize("name", ["studies", "checks"])
def test_a_folder_of_records_that_cannot_be_read_is_named(source: Path, tmp_path: Path, name: str) -> None:
    if (source / name).is_dir():
        shutil.rmtree(source / name)
    (source / name).write_text("no folder")
    (said,) = Stores([source]).damaged
    assert str(said) == f"{source / name}: it cannot be read (Not a directory)"
    assert [str(each) for each in bench.store.merge.merge([source], tmp_path / "mine", print).damaged] == [str(said)]
