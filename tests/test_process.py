"""The program ends quickly, but does everything that is due at its end."""

import gc
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PREPARED = """
import atexit, threading, time
from pathlib import Path
import bench.cli as cli

class Last:
    def __del__(self):
        Path("taken apart").touch()

def late():
    time.sleep(1)
    Path("thread").touch()

def dispatch(words):
    global last
    last = Last()
    atexit.register(Path("atexit").touch)
    threading.Thread(target=late).start()
    print("said", end="")
    return {end}

cli.dispatch = dispatch
cli.program()
"""

OPTIMIZER = """
import gc
from torch.optim import SGD

log = open("log", "w")


class Noted(SGD):
    def step(self, closure=None):
        print(gc.get_threshold(), gc.get_freeze_count() > 0, file=log)
        return super().step(closure)
"""


def program(*words: object, cwd: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def bench(*words: object, cwd: Path) -> "subprocess.CompletedProcess[str]":
    return program("-P", "-m", "bench", *words, cwd=cwd)


@pytest.mark.parametrize("code", [0, 3])
def test_threads_and_exit_handlers_are_waited_for_and_modules_are_not_torn_down(code: int, tmp_path: Path) -> None:
    done = program("-c", PREPARED.replace("{end}", str(code)), cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (code, "said", "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["atexit", "thread"]


@pytest.mark.deep
def test_with_a_plug_in_open_files_are_closed_and_garbage_is_collected_as_usual(tmp_path: Path) -> None:
    (tmp_path / "optimizers.py").write_text(OPTIMIZER)  # with the name of a package of the suite
    words = ("fit", "--task", "synthetic", "--opt", "optimizers.py:Noted", "--trainer.max_steps", 5, "--json")
    done = bench(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "leaked" not in done.stderr
    assert json.loads(done.stdout)["steps"] == 5
    thresholds = (tmp_path / "log").read_text().splitlines()
    assert thresholds[-5:] == [f"{gc.get_threshold()} True"] * 5  # during the run; before, a step is tested


@pytest.mark.parametrize(("given", "policy"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_waiting_threads_leave_the_processor_to_others_unless_the_user_decides(
    given: str | None, policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    if given is not None:
        monkeypatch.setenv("OMP_WAIT_POLICY", given)
    done = bench("doctor", cwd=tmp_path)
    assert f"OMP_WAIT_POLICY {policy}" in done.stdout


SCRIPT = Path(sys.executable).with_name("bench")


@pytest.mark.parametrize("module", ["typing", "bench.errors", "bench.cli.commands", "bench.cli"])
@pytest.mark.parametrize("start", [[SCRIPT], [sys.executable, "-P", "-m", "bench"]], ids=["script", "module"])
def test_ctrl_c_while_the_program_imports_is_one_line(start: list[object], module: str, tmp_path: Path) -> None:
    """`sitecustomize` interrupts the import of a module."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "class Interrupts:\n"
        "    def find_spec(name, path=None, target=None):\n"
        f"        if name == {module!r} and 'bench' in sys.modules:\n"
        "            signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupts)\n"
        f"sys.modules.pop({module!r}, None)\n"
    )
    words = [*map(str, start), "list", "tasks"]
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "bench: interrupted\n")


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_during_imports_ends_the_program_even_if_a_library_catches_it(name: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "class Interrupts:\n"
        "    def find_spec(name, path=None, target=None):\n"
        "        if name == 'numpy.linalg':\n"
        "            try:\n"
        f"                signal.raise_signal(signal.{name})\n"
        "            except BaseException:\n"
        "                raise ImportError('as a library may say')\n"
        "sys.meta_path.insert(0, Interrupts)\n"
    )
    env = os.environ | {"PYTHONPATH": str(tmp_path), "BENCH_STORE": str(tmp_path / "runs")}
    words = [str(SCRIPT), "fit", "--task", "synthetic", "--opt", "sgd"]
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr.splitlines()[-1] == "bench: interrupted"
    assert "Traceback" not in done.stderr
