"""No module of the working folder or of PYTHONPATH replaces the suite's, in any process that it starts."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench.process import ROOT, bench_command
from bench.store.store import Store

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


def test_the_suite_starts_from_its_own_folder_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert started(sys.executable, "-m", "bench", "--version").stdout.strip()


# -- behaviour --------------------------------------------------------------------------------------------------------


@pytest.mark.deep
def test_a_run_and_processes_that_its_code_starts_find_the_suite(here: Path, store: Path) -> None:
    started(SCRIPT, "fit", *SHORT, "--opt", "optimizers/nosy.py:Nosy")
    own = f"{ROOT}/optimizers/__init__.py {ROOT}/tasks/__init__.py"
    for how in ("spawn", "forkserver", "python"):
        assert (here / how).read_text() == own
    assert [run.status for run in Store(store).runs()] == ["completed"]


@pytest.mark.deep
@pytest.mark.parametrize("start", ["bench", "python"])
def test_ranks_find_the_suite(here: Path, store: Path, start: str) -> None:
    begin = [SCRIPT] if start == "bench" else [sys.executable, "-P", "-m", "bench"]
    for strategy in ("ddp", "fsdp"):
        words = ("--trainer.devices", 2, "--trainer.strategy", strategy, "--seed", len(strategy))
        started(*begin, "fit", *SHORT, "--opt", "optimizers/mine.py:Mine", *words)
    assert [run.status for run in Store(store).runs()] == ["completed"] * 2


@pytest.mark.deep
def test_a_sweep_finds_the_suite(here: Path, store: Path) -> None:
    done = started(SCRIPT, "sweep", *SHORT, "--opt", "ngd,optimizers/mine.py:Mine", "--opt.lr", "0.1,1", "--seeds", 2)
    assert "written to swept/synthetic/ngd-mine.Mine-" in done.stdout
    assert {run.status for run in Store(store).runs()} == {"completed"}


@pytest.mark.deep
@pytest.mark.parametrize(("opt", "devices"), [("ngd", 1), ("optimizers/mine.py:Mine", 2)])
def test_workers_and_their_ranks_find_the_suite(here: Path, store: Path, opt: str, devices: int) -> None:
    words = (*SHORT, "--opt", opt, "--opt.lr", "0.1,1", "--seeds", 1, "--report_seeds", 1)
    several = ("--trainer.devices", 2, "--trainer.strategy", "ddp") if devices == 2 else ()
    started(SCRIPT, "tune", *words, *several, "--workers", 3 - devices)
    assert len([run for run in Store(store).runs() if run.status == "completed"]) == 3


@pytest.mark.deep
def test_a_papers_experiment_finds_the_suite(here: Path, store: Path) -> None:
    words = ("vasudeva2025/base-recipe", "--quick", "--trainer.max_steps", 20, "--device", "cpu")
    started(SCRIPT, "reproduce", *words)
    assert {run.status for run in Store(store).runs()} == {"completed"}


@pytest.mark.deep
@pytest.mark.parametrize("opt", ["ngd", "optimizers/mine.py:Mine"])
def test_the_conformance_kit_finds_the_suite(here: Path, opt: str) -> None:
    said = started(SCRIPT, "check", opt).stdout
    assert re.search(rf"^{opt}: no fault; \d+ pass, \d+ not applicable$", said, re.MULTILINE)


@pytest.mark.deep
def test_the_conformance_kit_finds_the_suite_where_a_test_has_the_folder_on_its_path(here: Path) -> None:
    code = (
        "import sys; sys.path.pop(0); import bench.check.run as run, optimizers, tasks; sys.path.insert(0, '.');"
        " print(run.report_on('ngd', quick=True))"
    )
    started(sys.executable, "-c", code)


@pytest.mark.deep
def test_the_program_works_with_the_folder_in_pythonpath(here: Path, store: Path) -> None:
    (here / "bench.py").unlink()
    words = ("--opt", "optimizers/mine.py:Mine", "--trainer.devices", 2, "--trainer.strategy", "ddp")
    started(SCRIPT, "fit", *SHORT, *words, PYTHONPATH=".")
    started(SCRIPT, "check", "ngd", PYTHONPATH=str(here))
    tune = ("--opt", "ngd", "--opt.lr", "0.1,1", "--seeds", 1, "--report_seeds", 1)
    started(SCRIPT, "tune", *SHORT, *tune, PYTHONPATH=".")
    assert {run.status for run in Store(store).runs()} == {"completed"}


# -- output for people ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["opt", "task"])
@pytest.mark.parametrize(
    ("name", "what", "instead"),
    [
        ("optimizers.mine:Mine", "there is no module 'optimizers.mine'", "optimizers/mine.py:Mine"),
        ("tasks:Mine", "tasks has no 'Mine'", "tasks.py:Mine"),
        ("bench:Mine", "bench has no 'Mine'", "bench.py:Mine"),
        ("optimizers:Mine", "optimizers has no 'Mine'", "optimizers/__init__.py:Mine"),
        ("optimizers.mine:Mine.Inner", "there is no module 'optimizers.mine'", "optimizers/mine.py:Mine.Inner"),
    ],
)
def test_a_module_that_the_suite_hides_is_named_as_a_file(cli, kind: str, name: str, what: str, instead: str) -> None:
    words = {"task": "synthetic", "opt": "ngd"} | {kind: name}
    answer = cli("fit", *(word for each in words.items() for word in (f"--{each[0]}", each[1])))
    top = name.partition(":")[0].partition(".")[0]
    hides = f": {top!r} is the suite's own package, which shadows that of this folder; write {instead}\n"
    assert (answer.code, answer.out, answer.err) == (2, "", f"bench: error: {what}{hides}")


def test_a_module_that_another_package_hides_is_named_as_a_file(cli, here: Path) -> None:
    (here / "yaml.py").write_text(MINE)
    answer = cli("fit", "--task", "synthetic", "--opt", "yaml:Mine")
    assert answer.code == 2
    assert "yaml has no 'Mine': 'yaml' is the package in " in answer.err
    assert answer.err.endswith("which shadows that of this folder; write yaml.py:Mine\n")


@pytest.mark.parametrize("name", ["optimizers.nothing:Mine", "nothing:Mine"])
def test_a_module_that_is_nowhere_hides_nothing(cli, name: str) -> None:
    answer = cli("fit", "--task", "synthetic", "--opt", name)
    module = name.partition(":")[0]
    message = f"there is no module {module!r} here; is its package installed in this environment?"
    assert (answer.code, answer.err) == (2, f"bench: error: {message}\n")
