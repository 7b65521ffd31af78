"""No module of the working folder or of PYTHONPATH replaces the suite's, in any process that it starts."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench.process import ROOT, bench_command
from tests.stored import Store

SHADOW = "raise SystemExit('a module of the working folder was imported')\n"
MINE = """
import torch


class Mine(torch.optim.SGD):
    def __init__(self, params, lr: float = 0.1) -> None:
        super().__init__(params, lr=lr)
"""
LOOKER = """
from pathlib import Path


def look(how):
    import optimizers, tasks
    Path(how).write_text(f"{optimizers.__file__} {tasks.__file__}")
"""
NOSY = """
import multiprocessing, subprocess, sys
import torch
from looker import look

CODE = "import optimizers, tasks; print(optimizers.__file__, tasks.__file__, end='')"


class Nosy(torch.optim.SGD):
    def __init__(self, params, lr: float = 0.1) -> None:
        super().__init__(params, lr=lr)
        for how in ("spawn", "forkserver"):
            process = multiprocessing.get_context(how).Process(target=look, args=(how,))
            process.start()
            process.join()
        with open("python", "w") as file:
            subprocess.run([sys.executable, "-c", CODE], stdout=file)
"""
SCRIPT = Path(sys.executable).with_name("bench")
SHORT = ("--task", "synthetic", "--trainer.max_steps", "5", "--device", "cpu")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a user's project."""
    folder = tmp_path / "paper"
    (folder / "optimizers").mkdir(parents=True)
    for name in ("bench.py", "tasks.py", "optimizers/__init__.py"):
        (folder / name).write_text(SHADOW)
    (folder / "optimizers" / "mine.py").write_text(MINE)
    (folder / "optimizers" / "nosy.py").write_text(NOSY)
    (folder / "optimizers" / "looker.py").write_text(LOOKER)
    monkeypatch.chdir(folder)
    for name in ("PYTHONPATH", "PYTHONSAFEPATH"):
        monkeypatch.delenv(name, raising=False)
    return folder


def started(*command: object, ok: bool = True, **variables: str) -> "subprocess.CompletedProcess[str]":
    words = list(map(str, command))
    env = os.environ | variables
    done = subprocess.run(words, capture_output=True, text=True, env=env, timeout=300, check=False)
    assert (done.returncode == 0) == ok, done.stderr
    assert "was imported" not in done.stdout + done.stderr or not ok
    return done


# -- starting ---------------------------------------------------------------------------------------------------------


def test_the_program_starts_in_such_a_folder(here: Path) -> None:
    listed = started(SCRIPT, "list", "optimizers").stdout
    assert listed.startswith("gd ")
    assert started(sys.executable, "-P", "-m", "bench", "list", "optimizers").stdout == listed
    assert started(*bench_command("list", "optimizers")).stdout == listed
    refused = started(sys.executable, "-m", "bench", "list", "optimizers", ok=False)
    assert "a module of the working folder was imported" in refused.stderr  # bench.py, before the suite is imported
    (here / "bench.py").unlink()
    assert started(sys.executable, "-m", "bench", "list", "optimizers").stdout == listed
    for place in (".", str(here)):
        assert started(SCRIPT, "list", "optimizers", PYTHONPATH=place).stdout == listed
        assert started(sys.executable, "-m", "bench", "list", "optimizers", PYTHONPATH=place).stdout == listed


# -- behaviour --------------------------------------------------------------------------------------------------------

TRAINED = {
    "fit --opt optimizers/mine.py:Mine --trainer.devices 2 --trainer.strategy ddp": 1,
    "fit --opt optimizers/mine.py:Mine --trainer.devices 2 --trainer.strategy fsdp": 1,
    "sweep --opt ngd,optimizers/mine.py:Mine --opt.lr 0.1,1 --seeds 2": 8,
    "tune --opt ngd --opt.lr 0.1,1 --seeds 1 --report_seeds 1 --workers 2": 3,
    "tune --opt optimizers/mine.py:Mine --opt.lr 0.1,1 --seeds 1 --report_seeds 1 --workers 1"
    " --trainer.devices 2 --trainer.strategy ddp": 3,
}
"""Commands that start processes of all kinds, and their numbers of runs."""


@pytest.mark.deep
@pytest.mark.parametrize("pythonpath", ["", "."])
@pytest.mark.parametrize("words", TRAINED)
def test_processes_that_train_find_the_suite(here: Path, store: Path, words: str, pythonpath: str) -> None:
    (here / "bench.py").unlink()  # which PYTHONPATH puts before the installed suite
    started(SCRIPT, *words.split(), *SHORT, PYTHONPATH=pythonpath)
    assert [run.status for run in Store(store).runs()] == ["completed"] * TRAINED[words]


@pytest.mark.deep
@pytest.mark.parametrize("start", [[SCRIPT], [sys.executable, "-P", "-m", "bench"]], ids=["bench", "python"])
def test_a_run_and_processes_that_its_code_starts_find_the_suite(here: Path, store: Path, start: list[object]) -> None:
    started(*start, "fit", *SHORT, "--opt", "optimizers/nosy.py:Nosy")
    for how in ("spawn", "forkserver", "python"):
        assert (here / how).read_text() == f"{ROOT}/optimizers/__init__.py {ROOT}/tasks/__init__.py"
    assert [run.status for run in Store(store).runs()] == ["completed"]


@pytest.mark.deep
def test_a_papers_experiment_finds_the_suite(here: Path, store: Path) -> None:
    words = ("vasudeva2025/base-recipe", "--quick", "--trainer.max_steps", 20, "--device", "cpu")
    started(SCRIPT, "reproduce", *words)
    assert {run.status for run in Store(store).runs()} == {"completed"}


@pytest.mark.deep
@pytest.mark.parametrize("opt", ["ngd", "optimizers/mine.py:Mine"])
def test_the_conformance_kit_finds_the_suite(here: Path, opt: str) -> None:
    output = started(SCRIPT, "check", opt).stdout
    assert re.search(rf"^{opt}: no fault; \d+ pass, \d+ not applicable$", output, re.MULTILINE)


# -- output for people ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--task", "lm", "--opt", "optimizers.mine:Mine"),
            "there is no module 'optimizers.mine' here; is its package installed in",
        ),
        (
            ("--task", "lm", "--opt", "nothing:Mine"),
            "there is no module 'nothing' here; is its package installed in this environment?",
        ),
        (("--opt", "ngd", "--task", "tasks:Mine"), "tasks has no 'Mine'"),
    ],
)
def test_a_module_that_does_not_exist_is_named(cli, words: tuple[str, ...], message: str) -> None:
    answer = cli("fit", *words)
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
    assert answer.err.startswith(f"bench: error: {message}")
