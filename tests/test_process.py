"""The program ends quickly, yet with all that was to be done at its end."""

import gc
import json
import subprocess
import sys
from pathlib import Path

import pytest

OPTIMIZER = """
import atexit, gc, threading, time
from pathlib import Path

from torch.optim import SGD

HERE = Path(__file__).parent


def late() -> None:
    time.sleep(1)
    (HERE / "thread").touch()


class Noted(SGD):
    def step(self, closure=None):
        if self not in seen:
            seen.append(self)
            (HERE / "threshold").write_text(str(gc.get_threshold()))
            atexit.register((HERE / "atexit").touch)
            threading.Thread(target=late).start()
        return super().step(closure)


seen = []
"""


def program(*words: object, cwd: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "bench.cli", *map(str, words)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def test_threads_and_what_is_registered_for_the_end_are_waited_for_and_garbage_is_collected_as_usual(
    tmp_path: Path,
) -> None:
    (tmp_path / "noted.py").write_text(OPTIMIZER)
    words = ("fit", "--task", "synthetic", "--opt", "noted.py:Noted", "--trainer.max_steps", 5, "--json")
    done = program(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["steps"] == 5
    assert (tmp_path / "atexit").exists()
    assert (tmp_path / "thread").exists()
    assert (tmp_path / "threshold").read_text() == str(gc.get_threshold())


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [(("list", "tasks"), 0, ""), (("list", "things"), 2, "bench: error: "), (("fitt",), 2, "bench: error: ")],
)
def test_the_code_of_the_end_is_the_commands(words: tuple[str, ...], code: int, said: str, tmp_path: Path) -> None:
    done = program(*words, cwd=tmp_path)
    assert (done.returncode, bool(done.stdout)) == (code, code == 0)
    assert done.stderr.startswith(said)
    assert bool(done.stderr) is bool(said)


def test_what_breaks_is_shown_and_no_success(tmp_path: Path) -> None:
    code = "import bench.cli as cli; cli._dispatch = lambda words: 1 / 0; cli.program()"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.endswith("ZeroDivisionError: division by zero\n")
