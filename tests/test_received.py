"""Untrusted records and studies that name code: none of it is imported, changed or followed without a request."""

import hashlib
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.config.plugins import allowed
from bench.errors import UserError
from bench.process import bench_command
from bench.store.record import RunResult
from bench.tuning.studies import Studies
from bench.tuning.study import Study
from optimizers.plugins import provenance
from tests.conftest import Answer
from tests.stored import put
from tests.test_studies import begin, drain

EVIL = "from pathlib import Path\nPath(__file__).with_name('marker').touch()\n"
CLASS = """import torch


class X(torch.optim.SGD):
    def __init__(self, params, lr: float = 0.1):
        super().__init__(params, lr)
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a file and a module that leave a mark when they are imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))
    (tmp_path / "evil.py").write_text(EVIL + CLASS)
    (tmp_path / "evil_pack").mkdir()
    (tmp_path / "evil_pack/__init__.py").write_text(EVIL.replace("with_name(", "parent.with_name(") + CLASS)
    return tmp_path


@pytest.fixture
def imported(here: Path) -> Callable[[], bool]:
    """Whether one of them was imported."""
    return (here / "marker").exists


def database(here: Path) -> Path:
    return here / "runs" / "studies.db"


def finished(here: Path, name: str = "mine", trials: int = 3) -> Study:
    study = begin(here / "runs", trials, name=name)
    drain(study)
    return study


def change(here: Path, *statements: str) -> None:
    with sqlite3.connect(database(here)) as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


def said_once(answer: Answer, *words: str) -> None:
    assert "Traceback" not in answer.err
    lines = [line for line in answer.err.splitlines() if line.startswith("bench: ")]
    assert len(lines) == 1, answer.err
    assert all(word in lines[0] for word in words), lines


# -- studies that name code -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["evil.py:X", "evil_pack:X"])
@pytest.mark.parametrize("kind", ["task", "opt"])
def test_readers_of_a_study_import_nothing_that_it_names(
    cli, here: Path, imported: Callable[[], bool], kind: str, name: str
) -> None:
    finished(here)
    change(here, *own_names(kind, name))
    for words in ((), ("--json",)):
        answer = cli("list", "studies", *words)
        assert answer.code == 0, answer.err
        assert "mine" in answer.out
    assert not imported()


def own_names(kind: str, name: str) -> list[str]:
    before = {"task": '"task": "synthetic"', "opt": '"opt": "sgd"'}[kind]
    after = f'"{kind}": "{name}"'
    return [
        f"UPDATE {table} SET value_json = replace(value_json, '{before}', '{after}')"
        for table in ("study_user_attributes", "trial_user_attributes")
    ]


def test_a_folder_named_as_ours_is_not_taken_for_ours_by_a_worker(here: Path) -> None:
    (here / "optimizers").mkdir()
    (here / "optimizers/__init__.py").write_text(EVIL.replace("with_name(", "parent.with_name("))
    command = bench_command("list", "studies")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, (here / "marker").exists()) == (0, False), done.stderr


# -- runs that name code ----------------------------------------------------------------------------------------------


def killed(here: Path, opt: str, package: str | None = None) -> str:
    """The name of an interrupted run in the store."""
    run = RunResult(
        run_id="synthetic-evil-0123456789", status="killed", steps=1, metric="loss", split="train",
        config={
            "task": "synthetic", "task_options": {}, "opt": opt, "opt_options": {}, "trainer": {"max_steps": 2},
            "seed": 0, "data_seed": 0, "precision": "64-true", "device": "cpu",
        },
        versions={} if package is None else {"opt_package": package},
    )  # fmt: skip
    put(here / "runs", run)
    return run.run_id


@pytest.mark.parametrize("name", ["mine/RUN/evil.py:X", "evil_pack:X"])
def test_resuming_a_run_requires_naming_its_unchanged_code(
    cli, here: Path, imported: Callable[[], bool], name: str
) -> None:
    (here / "mine/RUN").mkdir(parents=True)
    (here / "evil.py").rename(here / "mine/RUN/evil.py")
    run_id = killed(here, name, "file 0123456789ab")
    answer = cli("fit", "--resume", run_id, "--json")
    assert (answer.code, answer.out) == (2, "")
    said_once(answer, f"run {run_id} names {name}, and imports it only if you name it too: ")
    assert answer.err.endswith(f"bench fit --resume {run_id} --json --opt {name}\n")
    answer = cli("fit", "--resume", run_id, "--opt", name)
    assert answer.code == 2
    said_once(answer, f"run {run_id} began with {name} as file 0123456789ab, and here it is {provenance(name)}, so")
    answer = cli("fit", "--resume", run_id, "--opt", "sgd")
    assert answer.code == 2
    said_once(answer, f"--opt sgd: run {run_id} was begun with {name}, which cannot be changed")
    assert not imported()
    assert not (here / "mine/RUN/marker").exists()


def test_named_and_unchanged_code_is_imported_from_any_place(cli, here: Path) -> None:
    run_id = killed(here, "far/away/evil.py:X", provenance("evil.py:X"))
    answer = cli("fit", "--resume", run_id, "--opt", "evil.py:X")
    said_once(answer, "cannot continue; train again")  # its id is invalid: it was made up
    assert (here / "marker").exists()


def test_entry_points_of_installed_packages_need_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import EntryPoint

    from optimizers import OPTIMIZERS

    point = EntryPoint("far", "far_away:X", "bench.optimizers")
    monkeypatch.setattr(OPTIMIZERS, "announced", {"far": [point]})
    for name in ("far", "far_away:X", "sgd"):
        names = {"task": "synthetic", "opt": name}
        assert allowed(names, {}, {}, "run x", []) == names
    for name in ("far_away:Y", "x.py:far", "torch.optim:NAdam"):
        with pytest.raises(UserError, match="and imports it only if you name it too: bench --opt"):
            allowed({"task": "synthetic", "opt": name}, {}, {}, "run x", ["bench"])
    names = {"task": "synthetic", "opt": "torch.optim:NAdam"}
    assert allowed(names, {}, {"opt": [names["opt"]]}, "run x", []) == names
    with pytest.raises(UserError, match="was trained with gone of gone 1; install that version"):
        allowed({"task": "synthetic", "opt": "gone"}, {"opt_package": "gone 1"}, {}, "run x", [])


# -- readers change nothing -------------------------------------------------------------------------------------------


def state(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for path in folder.rglob("*")
    }


def whole(path: Path) -> None:
    finished(path.parent.parent)
    database(path.parent.parent).rename(path)


def truncated(path: Path) -> None:
    whole(path)
    path.write_bytes(path.read_bytes()[:20_000])


def in_wal(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode=wal")
        connection.execute("CREATE TABLE t (x)")
    connection.close()


def half_written(path: Path) -> None:
    """A process is killed in the middle of a write."""
    whole(path)
    code = (
        f"import os, sqlite3\nc = sqlite3.connect({str(path)!r})\nc.execute('PRAGMA cache_size = 1')\n"
        "c.execute('CREATE TABLE t (x)')\n"
        "for i in range(2000): c.execute('INSERT INTO t VALUES (?)', ('x' * 1000,))\nos.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code], check=False)
    assert path.with_name(f"{path.name}-journal").is_file()


DATABASES: dict[str, tuple[Callable[[Path], Any], int, str]] = {
    "whole": (whole, 0, ""),
    "empty": (Path.touch, 0, ""),
    "without tables": (lambda path: sqlite3.connect(path).execute("CREATE TABLE t (x)"), 0, ""),
    "of views": (lambda path: sqlite3.connect(path).execute("CREATE VIEW studies AS SELECT 1"), 0, ""),
    "truncated": (truncated, 1, "is damaged or not a database"),
    "no database": (
        lambda path: path.write_text("It was a dark and stormy night. " * 100),
        1,
        "file is not a database",
    ),
    "a folder": (Path.mkdir, 2, "is not a file"),
    "half written": (half_written, 1, "a process died while writing to it; the command of a study repairs"),
    "in mode WAL": (in_wal, 1, "is in SQLite's mode WAL"),
}


@pytest.mark.parametrize("kind", DATABASES)
def test_a_reader_leaves_the_database_and_its_folder_as_they_are(cli, here: Path, kind: str) -> None:
    make, code, words = DATABASES[kind]
    (folder := here / "a store, 50% #1?").mkdir()
    make(folder / "studies.db")
    (folder / "studies.db.lock").unlink(missing_ok=True)
    before = state(folder)
    answer = cli("list", "studies", "--store", folder)
    assert answer.code == code, answer.err
    if words:
        said_once(answer, words)
    else:
        assert answer.err == ""
        assert ("mine" in answer.out) == (kind == "whole")
    assert state(folder) == before


# -- damaged rows -----------------------------------------------------------------------------------------------------

OF_MINE = "study_id = (SELECT study_id FROM studies WHERE study_name = 'mine')"
A_TRIAL = f"trial_id = (SELECT min(trial_id) FROM trials WHERE {OF_MINE})"
DEEP = "[" * 100_000
STUDIES = {
    "bench": ["'{}'", "'null'", "'['", f"'{DEEP}'", "x'ff00'", "NULL", "12",
              "replace(value_json, '\"min\"', '\"mid\"')", "replace(value_json, '\"sgd\"', '7')",
              "replace(value_json, '0.001', '-1')", "replace(value_json, '10.0', '1e999')",
              "replace(value_json, '\"grid\"', '\"grid\", \"new\": 1')",
              "replace(value_json, 'opt.lr', 'trainer.devices')",
              "replace(value_json, '[1000, 1001]', '[]')", "replace(value_json, '[1000, 1001]', '[0, 0]')",
              "replace(value_json, '\"trainer.devices\": 1', '\"trainer.devices\": \"1; rm\"')",
              "replace(value_json, '\"task.n\"', '\"store\"')"],
    "request": ["'{}x'", "NULL", "'{\"trials\": -1}'", "'{\"trials\": \"9\"}'", "'{\"trials\": 99999}'", f"'{DEEP}'"],
}  # fmt: skip
TRIALS = {
    "point": ["'{}'", "'{\"opt.lr\": \"x\"}'", "'{\"opt.lr\": NaN}'", "'{\"opt.lr\": -1}'",
              "'{\"opt.lr\": 0.1, \"opt.x\": 1}'", "x'ff'"],
    "kind": ["'\"evil\"'", "'\"fresh\"'", "'7'"],
    "seeds": ["'[]'", "'[-1]'", "'[7, 8]'", "'{}'"],
    "runs": ["'[]'", "'[{}]'", "'7'", "NULL", f"'{DEEP}'", "replace(value_json, '\"loss\"', '\"lose\"')",
             "replace(value_json, '\"sgd\"', '\"evil.py:X\"')", "replace(value_json, '\"completed\"', '\"running\"')",
             "replace(value_json, '\"wall_s\": 0.5', '\"wall_s\": NaN')",
             "replace(value_json, '\"step\"', '\"stop\"')"],
    "worker": ["'[]'", "'{\"pid\": -1, \"started\": null}'", "'{\"pid\": \"x\", \"started\": 1}'"],
}  # fmt: skip


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, several in STUDIES.items() for value in several])
def test_a_damaged_study_is_named_and_left_out(cli, whole_store: bytes, here: Path, key: str, value: str) -> None:
    restore(here, whole_store)
    change(here, f"UPDATE study_user_attributes SET value_json = {value} WHERE key = '{key}' AND {OF_MINE}")
    answer = cli("list", "studies")
    assert answer.code == 1
    assert answer.out.startswith("other ")
    said_once(answer, "mine")
    assert cli("list", "studies", "--json").code == 1


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, several in TRIALS.items() for value in several])
def test_a_damaged_trial_is_named_and_left_out(cli, whole_store: bytes, here: Path, key: str, value: str) -> None:
    restore(here, whole_store)
    change(here, f"UPDATE trial_user_attributes SET value_json = {value} WHERE key = '{key}' AND {A_TRIAL}")
    answer = cli("list", "studies")
    assert answer.code == 1
    assert "mine   2 of 3 trials" in answer.out
    assert "other  3 of 3 trials" in answer.out
    said_once(answer, "warning: study mine: trial 0: ", "; it is ignored")


@pytest.mark.parametrize(
    "statement",
    [
        f"UPDATE trials SET state = 'WAT' WHERE {A_TRIAL}",
        f"UPDATE trials SET state = x'ff' WHERE {A_TRIAL}",
        f"UPDATE trials SET number = 'x' WHERE {A_TRIAL}",
    ],
)
def test_a_damaged_row_of_a_trial_is_named_and_left_out(cli, whole_store: bytes, here: Path, statement: str) -> None:
    restore(here, whole_store)
    change(here, "PRAGMA ignore_check_constraints = 1", statement)
    answer = cli("list", "studies")
    assert answer.code == 1
    said_once(answer, "warning: study mine: trial ", "its number or its state is invalid; it is ignored")


@pytest.mark.parametrize(
    "statements",
    [
        ["UPDATE trials SET datetime_start = 'yesterday', datetime_complete = x'ff'"],
        ["UPDATE trial_params SET distribution_json = '[', param_value = 'x'"],
        ["DELETE FROM version_info", "DELETE FROM alembic_version"],
        ["UPDATE study_directions SET direction = 'UP'"],
    ],
)
def test_unused_parts_of_a_database_may_be_anything(cli, whole_store: bytes, here: Path, statements: list[str]) -> None:
    restore(here, whole_store)
    change(here, "PRAGMA ignore_check_constraints = 1", *statements)
    answer = cli("list", "studies")
    assert (answer.code, answer.err) == (0, "")


@pytest.mark.parametrize("name", ["../mine", "mi\x1bne", ".mine", "a" * 300, "mine\nbench: fine"])
def test_a_name_that_leads_elsewhere_is_none(cli, whole_store: bytes, here: Path, name: str) -> None:
    restore(here, whole_store)
    change(here, f"UPDATE studies SET study_name = '{name}' WHERE study_name = 'mine'")
    answer = cli("list", "studies")
    assert answer.code == 1
    assert "its name is invalid" in answer.err
    said_once(answer, "is unreadable: study ")
    assert "\x1b" not in answer.err


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM studies WHERE study_name = 'mine (fresh seeds)'",
        "DELETE FROM study_user_attributes WHERE key = 'request' AND " + OF_MINE,
    ],
)
def test_a_study_with_a_missing_part_is_named(cli, whole_store: bytes, here: Path, statement: str) -> None:
    restore(here, whole_store)
    change(here, statement)
    answer = cli("list", "studies")
    assert answer.code == 1
    said_once(answer, "study mine ", " is damaged, or was made by another version of this suite (")


@pytest.fixture(scope="module")
def whole_store(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A database with the studies `mine` and `other`."""
    folder = tmp_path_factory.mktemp("studies")
    for name in ("mine", "other"):
        finished(folder, name)
    return database(folder).read_bytes()


def restore(here: Path, content: bytes) -> None:
    database(here).parent.mkdir()
    database(here).write_bytes(content)


# -- tuned settings ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("opt: {name: sgd, lr: {deep: 1}}", "opt"),
        ("opt: {name: sgd, lr: [[1]]}", "opt"),
        ("opt: {name: sgd}\nprovenance: words", "provenance"),
        ("opt: {name: sgd}\nprovenance: {study: 7}", "provenance.study"),
        ("opt: {name: sgd}\nprovenance: {settings: 7}", "provenance.settings"),
        ("opt: {name: sgd}\nprovenance: {versions: {task: []}}", "provenance.versions"),
    ],
)
def test_damaged_tuned_settings_are_named(cli, here: Path, text: str, words: str) -> None:
    (path := here / "tuned/synthetic/sgd.yaml").parent.mkdir(parents=True)
    path.write_text(text)
    answer = cli("fit", "--task", "synthetic", "--opt", "sgd", "--tuned", "--dry-run")
    assert (answer.code, answer.out) == (2, "")
    said_once(answer, f"tuned/synthetic/sgd.yaml is damaged ({words}", "repair it, or move it away and tune again")


def test_links_in_a_store_of_somebody_are_not_written_through(cli, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, outside = here / "runs", here / "outside"
    outside.mkdir()
    (outside / "victim").write_text("precious")
    begin(store, 1)
    lock = store / "studies.db.lock"
    lock.unlink()
    lock.symlink_to(outside / "victim")
    with pytest.raises(UserError):
        Studies(store)
    lock.unlink()
    (store / "studies.db").rename(outside / "db")
    (store / "studies.db").symlink_to(outside / "db")
    before = (outside / "db").read_bytes()
    with pytest.raises(UserError, match="is a symbolic link, and links are not followed"):
        Studies(store)
    assert ((outside / "victim").read_text(), (outside / "db").read_bytes()) == ("precious", before)
