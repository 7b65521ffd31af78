"""Stores from others: nothing that they name is imported or unpickled, text is escaped, and links are ignored."""

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from bench.api.verification import allowed
from bench.errors import UserError
from tests.conftest import Answer, Cli
from tests.stored import WILD, Store, add_run, add_study, begin, kill, put, record

EVIL = "from pathlib import Path\nPath(__file__).with_name('marker').touch()\n"
CLASS = """import torch


class X(torch.optim.SGD):
    def __init__(self, params, lr: float = 0.1):
        super().__init__(params, lr)
"""
NAMES = pytest.mark.parametrize("name", ["evil.py:X", "evil_pack:X"])


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


def said_once(answer: Answer, *words: str) -> None:
    assert answer.code == 2
    lines = [line for line in answer.err.splitlines() if line.startswith("bench: ")]
    assert len(lines) == 1, answer.err
    assert all(word in lines[0] for word in words), lines


def killed(here: Path, opt: str, package: str | None = None) -> str:
    """The name of an interrupted run in the store."""
    config = record("x").config | {"opt": opt, "task_options": {}, "opt_options": {}}
    versions = {} if package is None else {"opt_package": package}
    run = record("synthetic-evil-0123456789", config=config, status="killed", versions=versions, metrics={})
    put(here / "runs", run)
    return run.run_id


# -- names of code ----------------------------------------------------------------------------------------------------


@NAMES
def test_readers_import_nothing_that_a_store_names(
    cli: Cli, here: Path, imported: Callable[[], bool], name: str
) -> None:
    add_study(here / "runs", "s", opt=name)
    run_id = killed(here, name)
    add_run(here / "runs", "done", config=record("x").config | {"opt": name})
    for path in (here / "runs" / "evil.py", here / "runs" / run_id / "evil.py", here / "runs" / "sitecustomize.py"):
        path.write_text(EVIL)
    for words in (
        ("list", "runs", "--all"), ("list", "studies"), ("show", run_id), ("leaderboard", "--all"),
        ("report", "-o", "report.html"), ("sql", "from runs"), ("doctor",), ("merge", "runs", "copy"),
    ):  # fmt: skip
        assert cli(*words).code < 2, words
    assert f"--opt {name}" in cli("show", run_id).out
    assert not imported()
    assert not list(here.rglob("marker"))


def test_entry_points_of_installed_packages_need_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import EntryPoint

    from optimizers import OPTIMIZERS

    point = EntryPoint("far", "far_away:X", "bench.optimizers")
    monkeypatch.setattr(OPTIMIZERS, "announced", {"far": point})
    for name in ("far", "far_away:X", "sgd"):
        names = {"task": "synthetic", "opt": name}
        assert allowed(names, {}, "run x") == names
    for name in ("far_away:Y", "x.py:far", "torch.optim:NAdam"):
        with pytest.raises(UserError, match=f"imported only if you name it too: .* --opt {name}"):
            allowed({"task": "synthetic", "opt": name}, {}, "run x")
    names = {"task": "synthetic", "opt": "torch.optim:NAdam"}
    assert allowed(names, {"opt": [names["opt"]]}, "run x") == names


class Evil:
    def __reduce__(self):
        return os.mkdir, ("marker",)


def test_checkpoints_are_not_unpickled(cli: Cli, here: Path, imported: Callable[[], bool]) -> None:
    words = ("fit", "--task", "synthetic", "--opt", "ngd", "--trainer.max_steps", "3", "--device", "cpu")
    assert cli(*words).code == 0
    (run,) = Store(here / "runs").runs()
    shutil.rmtree(here / "runs")
    attempt = begin(here / "runs", run)
    torch.save({"callbacks": Evil()}, attempt.checkpoint)
    kill(attempt)
    answer = cli(*words)
    assert (answer.code, imported()) == (0, False)
    assert "last.ckpt cannot be used" in answer.err


# -- text and links ---------------------------------------------------------------------------------------------------


def test_text_from_a_store_is_escaped(cli: Cli, here: Path) -> None:
    add_run(here / "runs", "a", task=WILD, part=WILD, specimen=WILD, reason=WILD, formula=WILD)
    add_study(here / "runs", "s", opt=WILD)
    for words in (("list", "runs"), ("show", "a"), ("sql", "from runs"), ("leaderboard",), ("doctor",)):
        answer = cli(*words)
        assert "\x1b" not in answer.out + answer.err, words
    assert cli("report", "-o", "report.html").code == 0
    assert "<script>alert" not in (here / "report.html").read_text()
