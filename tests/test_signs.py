"""Early output: refusals before torch is imported, the first lines on a terminal, and progress bars."""

import fcntl
import io
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from bench.progress import Advance, SweepProgress, doing, say

WITHOUT_TORCH = """
import os
import sys
import time
import urllib.request

# As without the driver of a GPU, which torch would have to be asked about.
there = os.path.exists
os.path.exists = lambda path: not str(path).startswith("/dev/") and there(path)

def no_network(*args, **more):
    raise OSError("no network")

urllib.request.urlopen = no_network
from bench.cli import main
try:
    main(sys.argv[1:])
finally:
    assert not {"torch", "lightning"} & set(sys.modules)
"""


def without_torch(*words: object, cwd: Path) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-P", "-c", WITHOUT_TORCH, *map(str, words)]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


FIT = "fit --task synthetic --opt sgd"
SWEEP = "sweep --task synthetic --opt sgd --opt.lr 1,2 --seeds 1"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("fit --task synthetic --opt ngd --trainer.batch_size 5", "ngd is a full-batch method"),
        (f"{FIT} --store file/below", "cannot write to the store file/below: Not a directory; choose another"),
        ("fit --task cifar10 --opt sgd --data nowhere", "missing data: data_batch_1, "),
        ("fit --task lm --opt sgd --data .", "missing data: input.txt expected in tiny_shakespeare"),
        ("fit --task lm --opt sgd --task.corpus none", "--task.corpus=none is not known"),
        (f"{SWEEP} --store file", "'file': it is a file, not a folder; leave"),
        ("suite vision --data .", "missing data: train-images-idx3-ubyte.gz, "),
        ("reproduce vasudeva2025/mnist --quick --data .", "missing data: train-images-idx3-ubyte.gz, "),
    ],
)
@pytest.mark.matrix(keep=3)
def test_early_faults_are_reported_without_torch(words: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = without_torch(*words.split(), cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    line = done.stderr.splitlines()[-1]
    assert line.startswith("bench: error: ")
    assert message in line


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_the_innermost_activity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", shown := Terminal())
    with doing("one"), suppress(KeyError), doing("two"):
        say("a line")
        raise KeyError
    assert lines_of(shown.getvalue()) == ["one ...", "two ...", "a line", "two ...", "one ..."]


def test_nothing_is_shown_elsewhere(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with doing("one"):
        pass
    monkeypatch.setattr(sys, "stderr", rank := Terminal())
    monkeypatch.setenv("LOCAL_RANK", "1")
    with doing("two"):
        assert rank.getvalue() == ""
    assert capsys.readouterr() == ("", "")


def test_a_terminal_shows_a_line_for_all_runs_and_one_for_each_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", shown := Terminal())
    monkeypatch.setattr("bench.progress.REDRAW_SECONDS", 0)
    view = SweepProgress("tuning", "min")
    with view.showing(9, processes=2):
        view.add(1, Advance(10, 4, 0.5, ["a"], (0.25, "sgd lr 1")))
        view.doing(0, "importing torch")
    lines = ["tuning  1/9 runs  ETA 0 s  best 0.25 (sgd lr 1)", "1  importing torch", "2  4 in training, 50%"]
    assert [line.strip() for line in lines_of(shown.getvalue())[-3:]] == lines


def at_terminal(*words: object, cwd: Path, columns: int = 80) -> tuple[int, str]:
    """The exit code of a command at a pseudo terminal, and its output."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    command = [sys.executable, "-P", "-m", "bench", *map(str, words)]
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
    with subprocess.Popen(
        command, cwd=cwd, stdin=theirs, stdout=theirs, stderr=theirs, env=environment | {"TERM": "xterm"}
    ) as program:
        os.close(theirs)
        output = b""
        with suppress(OSError):  # no process has the terminal open any more
            while piece := os.read(ours, 65536):
                output += piece
    os.close(ours)
    return program.returncode, output.decode()


def lines_of(text: str) -> list[str]:
    """The output on the terminal, line by line."""
    pieces = re.split(r"[\r\n]+|\x1b\[2K", text)
    return [line.rstrip() for piece in pieces if (line := re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", piece)).strip()]


@pytest.mark.deep
def test_a_run_reports_its_activity_from_the_start(tmp_path: Path) -> None:
    words = (*FIT.split(), "--trainer.max_steps", 400, "--opt.lr", "0.5")
    code, text = at_terminal(*words, cwd=tmp_path, columns=60)
    lines = lines_of(text)
    assert code == 0, text
    assert lines[0] == "reading the settings ..."
    assert lines.index("importing torch ...") < lines.index("making the data of synthetic ...")
    bars = [line for line in lines if "ETA" in line]
    assert max(map(len, bars)) <= 60
    assert all(re.search(r"step [\d,]+/400  ", line) for line in bars)
    assert re.search(r"step 400/400  .*ETA 0 s  step size 0\.5", bars[-1])
    assert "\x1b[?25l" not in text  # the cursor stays visible
    assert lines[-1].startswith("synthetic sgd: completed")


def test_json_stays_alone_on_standard_output(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", shown := Terminal())
    answer = cli(*FIT.split(), "--trainer.max_steps", 2, "--json")
    assert json.loads(answer.out)["steps"] == 2
    assert lines_of(shown.getvalue())[0] == "reading the settings ..."
