"""Damaged stores: commands name what is damaged and use the rest; none ends with a traceback."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.store.stores import Stores
from bench.text import plain
from tests.conftest import Answer, Cli
from tests.outcomes import leftovers, outcome
from tests.stored import Store, add_run, add_study, record

SWEEP = (
    "sweep", "--task", "synthetic", "--trainer.max_steps", "60", "--trainer.val_every", "10", "--device", "cpu",
    "--opt", "ngd", "--opt.lr", "0.1,1", "--engine", "lanes", "--width", "2",
)  # fmt: skip
GOOD = plain(vars(record("a")))


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def warns_once(answer: Answer, *words: str) -> None:
    assert answer.code == 1
    lines = [line for line in answer.err.splitlines() if line.startswith("bench: ")]
    assert len(lines) == 1, answer.err
    assert all(word in lines[0] for word in words), lines
    assert len(lines[0]) < 700


# -- runs -------------------------------------------------------------------------------------------------------------


def changed(**changes: Any) -> bytes:
    return json.dumps(GOOD | changes).encode()


DAMAGED = {
    "torn": (changed()[:200], ""),
    "empty": (b"", "it has not the records of a"),
    "a list": (b"[]", ""),
    "no UTF-8": (b"\xff\x00", ""),
    "an unknown field": (changed(new=1), "new: "),
    "another run's record": (changed(run_id="b"), "it has not the records of a"),
    "an unknown status": (changed(status="done"), "status: it must be "),
    "an unfinished run": (changed(status="running"), "it has not the records of a, or they have an impossible status"),
    "text for a number": (changed(target="low"), "target: it must be a number"),
    "a number for text": (changed(begun=5), "begun: it must be text"),
    "no date": (changed(begun="soon"), "begun: it must "),
    "negative steps": (changed(steps=-1), "steps: it must be greater than or equal to 0"),
    "half a configuration": (changed(config={"task": "synthetic"}), "a: the settings of its configuration are task"),
    "an evaluation without step": (changed(validations=[{"loss": 0.5}]), "a: an evaluation lacks its step or seconds"),
    "another identity": (changed(identity={"task": "mnist"}), "a: run_id is not the hash of its identity"),
}


@pytest.mark.parametrize(("content", "why"), DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_record_is_named_and_left_out(cli: Cli, here: Path, content: bytes, why: str) -> None:
    path = add_run(here / "runs", "a") / "done" / "runs.jsonl"
    path.write_bytes(content)
    add_run(here / "runs", "sound")
    for words in (("list", "runs"), ("sql", "select run_id from runs"), ("leaderboard",), ("merge", "runs", "copy")):
        warns_once(cli(*words), f"{path.relative_to(here)}: {why}")
    assert [run.run_id for run in Store(here / "copy").runs()] == ["sound"]


def other_rows(path: Path) -> None:
    shutil.copy(path.with_name("measurements.parquet"), path)


def shorter(path: Path) -> None:
    other = add_run(path.parents[3] / "other", "a", [0.5])
    shutil.copy(other / "done" / path.name, path)


TABLES = {
    "torn": (lambda path: path.write_bytes(b"PAR1"), ""),
    "missing": (Path.unlink, "it has 0 rows of a, which took 3 steps"),
    "other columns": (other_rows, "its columns are run_id, step, error"),
    "fewer rows": (shorter, "it has 1 rows of a, which took 3 steps"),
}


@pytest.mark.parametrize(("harm", "why"), TABLES.values(), ids=TABLES)
def test_a_damaged_table_is_named_and_left_out(cli: Cli, here: Path, harm: Callable[[Path], object], why: str) -> None:
    path = add_run(here / "runs", "a") / "done" / "curve.parquet"
    harm(path)
    add_run(here / "runs", "sound")
    warns_once(answer := cli("sql", "select count(*) as n from curves"), f"{path.relative_to(here)}: {why}")
    assert answer.out == "n\n3\n"
    warns_once(cli("merge", "runs", "copy"), f"{path.relative_to(here)}: {why}")
    assert [run.run_id for run in Store(here / "copy").runs()] == ["sound"]


@pytest.mark.parametrize(
    "harm",
    [
        lambda done: os.truncate(done / "runs.jsonl", 200),
        lambda done: [path.unlink() for path in done.iterdir()],
        lambda done: (shutil.rmtree(done), done.write_text("notes")),
        lambda done: shutil.copy(add_run(done.parents[2] / "other", "b") / "done" / "runs.jsonl", done),
    ],
    ids=["torn", "empty", "a file", "another run"],
)
def test_unreadable_results_are_neither_replaced_nor_lost(cli: Cli, here: Path, harm: Callable[[Path], object]) -> None:
    fit = ("fit", "--task", "synthetic", "--opt", "sngd", "--trainer.max_steps", "20", "--device", "cpu")
    assert cli(*fit).code == 0
    whole = outcome(here / "runs")
    (done,) = here.glob("runs/*/done")
    harm(done)
    answer = cli(*fit)
    assert (answer.code, answer.out) == (2, "")
    last = answer.err.splitlines()[-1]
    assert last.startswith(f"bench: error: {done} cannot be used (")
    assert last.endswith("); move it away, and repeat the command")
    done.rename(done.with_name("moved"))
    assert cli(*fit).code == 0
    assert outcome(here / "runs") == whole


# -- checkpoints of lanes (those of single runs: test_resume) ---------------------------------------------------------


def test_lanes_restart_without_a_usable_checkpoint(cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli(*SWEEP, "--store", "whole").code == 0
    with monkeypatch.context() as patch:
        patch.setattr("bench.progress.SweepProgress.advance", lambda *args: os.kill(os.getpid(), 2))
        assert cli(*SWEEP).code == 130
    (checkpoint,) = here.glob("runs/*/last.ckpt")
    os.truncate(checkpoint, checkpoint.stat().st_size // 2)
    answer = cli(*SWEEP)
    assert answer.code == 0, answer.err
    assert answer.err.count("cannot be used") == answer.err.count("training starts from the beginning") == 1
    assert outcome(here / "runs") == outcome(here / "whole")
    assert leftovers(here / "runs") == []


# -- studies and settings ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("folder", "content"), [("studies", "{"), ("studies", "[]"), ("checks", "{}")])
def test_a_damaged_report_is_named_and_left_out(cli: Cli, here: Path, folder: str, content: str) -> None:
    add_run(here / "runs", "a")
    add_study(here / "runs", "s")
    path = here / "runs" / folder / "t.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(content)
    warns_once(answer := cli("sql", "select distinct study from trials"), f"runs/{folder}/t.json: ")
    assert answer.out == "study\ns\n"
    warns_once(cli("merge", "runs", "copy"), f"runs/{folder}/t.json: ")
    assert Stores([here / "copy"]).damaged == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("opt: {name: sgd}\nprovenance: words", "provenance must"),
        ("opt: {name: sgd}\nprovenance: {seeds: []}", "provenance must"),
    ],
)
def test_damaged_tuned_settings_are_named(cli: Cli, here: Path, text: str, words: str) -> None:
    (path := here / "tuned/synthetic/sgd.yaml").parent.mkdir(parents=True)
    path.write_text(text)
    answer = cli("fit", "--task", "synthetic", "--opt", "sgd", "--tuned", "--dry-run")
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
    assert f"tuned/synthetic/sgd.yaml is damaged ({words}" in answer.err
    assert "repair it, or move it away and tune again" in answer.err
