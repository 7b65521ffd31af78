"""bench merge: finished results stay, nothing is copied by halves, and existing results are not touched."""

import hashlib
from pathlib import Path

import pytest

from bench.store.block import block_name
from bench.store.files import DONE, RUNS
from bench.store.reports import CheckRecord, StudyRecord, read_report, write_report
from bench.store.stores import Stores
from tests.stored import Store, add_block, add_run, add_study, begin, begin_block, kill, record


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
    """A store with a run `a`, blocks `bc` and `cd`, a study and a check; of two blocks the first by name is read."""
    folder = tmp_path / "source"
    add_run(folder, "a", lr=0.5)
    for ids, loss in (("cd", 2.0), ("bc", 1.0)):
        add_block(folder, ids, loss)
    add_study(folder, "s")
    write_report(folder, CheckRecord("ngd", True, {}, [{"check": "groups", "verdict": "pass"}]))
    return folder


FIRST = 2.0 if block_name(["c", "d"]) < block_name(["b", "c"]) else 1.0
"""The loss of run `c` in the block that is read."""


# -- what is copied ---------------------------------------------------------------------------------------------------


def test_a_store_is_copied_whole(cli, source, tmp_path):
    before = digest(source)
    answer = cli("merge", source, tmp_path / "new" / "dest")
    records = "1 record of studies and 1 record of checks"
    assert answer == (0, f"4 runs copied, 0 already there, 0 skipped; {records} copied\n", "")
    assert same(source, tmp_path / "new" / "dest")
    assert seen(tmp_path / "new" / "dest")["c"][1]["loss"] == [FIRST] * 3  # from the block that comes first
    stores = Stores([tmp_path / "new" / "dest"])
    assert [report.name for report in (*stores.studies, *stores.checks)] == ["s", "ngd"]
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


def test_the_finished_run_of_the_destination_stays(cli, tmp_path):
    add_run(tmp_path / "source", "a", final=0.125)
    add_run(tmp_path / "dest", "a")
    before = digest(tmp_path / "dest")
    answer = cli("merge", tmp_path / "source", tmp_path / "dest")
    assert (answer.code, answer.out) == (0, "0 runs copied, 1 already there, 0 skipped\n")
    assert answer.err == f"bench: warning: a has another result in {tmp_path / 'dest'}; that one is kept\n"
    assert digest(tmp_path / "dest") == before


def test_a_block_hides_no_run_of_the_destination(cli, tmp_path):
    add_block(tmp_path / "dest", "ab", 1.0)
    add_block(tmp_path / "source", "bc", 2.0, final=0.125)
    answer = cli("merge", tmp_path / "source", tmp_path / "dest")
    assert answer.out == "1 run copied, 1 already there, 0 skipped\n"
    losses = {run_id: columns["loss"][0] for run_id, (_, columns) in seen(tmp_path / "dest").items()}
    assert losses == {"a": 1.0, "b": 1.0, "c": 2.0}
    assert cli("merge", tmp_path / "source", tmp_path / "dest").out == "0 runs copied, 2 already there, 0 skipped\n"


def test_an_intact_record_takes_the_place_of_a_damaged_one(cli, tmp_path):
    add_block(tmp_path / "source", "ab")
    (add_block(tmp_path / "dest", "ab") / DONE / RUNS).write_bytes(b'{"run_id": "a", "conf')
    (tmp_path / "dest" / "empty").mkdir()
    assert cli("merge", tmp_path / "source", tmp_path / "dest").code == 0
    assert same(tmp_path / "source", tmp_path / "dest")


def test_the_destinations_record_of_a_study_stays(cli, tmp_path):
    add_study(tmp_path / "source", "s", 3)
    path = add_study(tmp_path / "dest", "s", 2).path(tmp_path / "dest")
    answer = cli("merge", tmp_path / "source", tmp_path / "dest")
    assert (answer.code, answer.err) == (0, f"bench: note: {path} differs from the one to copy; it is kept\n")
    assert len(read_report(path, StudyRecord).trials) == 2


# -- runs that are being trained --------------------------------------------------------------------------------------


def test_running_attempts_are_left_alone(cli, source, tmp_path):
    folder = begin(source, record("t", status="running"))
    block, _ = begin_block(source, "uv")
    answer = cli("merge", source, tmp_path / "dest")
    assert answer.out.startswith("4 runs copied, 0 already there, 3 skipped; 1 record of studies")
    assert sorted(answer.err.splitlines()) == [
        f"bench: note: {path} is in training" for path in sorted([block.folder, folder.folder])
    ]
    assert answer.code == 0
    assert list(seen(tmp_path / "dest")) == list("abcd")
    folder.drop()
    block.drop()
