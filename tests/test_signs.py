"""Early output: refusals before torch is imported, the first lines on a terminal, and progress bars."""

import fcntl
import hashlib
import http.server
import io
import json
import os
import pty
import re
import struct
import subprocess
import sys
import tarfile
import termios
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.progress import Progress, clock, doing, say
from tasks.core.files import DataError, md5
from tasks.vision.sources import ImageSource

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
CLEAR = "\r\x1b[K"


def without_torch(*words: object, cwd: Path) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-P", "-c", WITHOUT_TORCH, *map(str, words)]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


FIT = "fit --task synthetic --opt sgd"
SWEEP = "sweep --task synthetic --opt sgd --opt.lr 1,2 --seeds 1"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (f"{FIT} --opt.lr -1", "--opt.lr=-1.0 is out of range: it must be in [0, inf)"),
        ("fit --task synthetic --opt ngd --trainer.batch_size 5", "ngd is a full-batch method"),
        (f"{FIT} --store file/below", "cannot write to the store file/below: Not a directory; choose another"),
        ("fit --task cifar10 --opt sgd --data nowhere", "missing data: data_batch_1, "),
        ("fit --task civil_comments --opt sgd --data .", "missing data: train.parquet, test.parquet expected in"),
        ("fit --task lm --opt sgd --data .", "missing data: input.txt expected in tiny_shakespeare"),
        ("fit --task lm --opt sgd --task.corpus none", "--task.corpus=none is not known"),
        (f"{SWEEP} --store file", "'file': it is a file, not a folder; name"),
        ("sweep --task mnist --opt sgd --opt.lr 1,2 --data .", "missing data: train-images-idx3-ubyte.gz, "),
        ("tune --task synthetic --opt sgd --trials 2 --opt.momentum -1", "--opt.momentum=-1.0 is out of range"),
        ("suite vision --data .", "missing data: train-images-idx3-ubyte.gz, "),
        ("reproduce vasudeva2025/mnist --quick --data .", "missing data: train-images-idx3-ubyte.gz, "),
    ],
)
@pytest.mark.matrix(keep=3)
def test_early_faults_are_reported_without_torch(words: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = without_torch(*words.split(), cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    line = done.stderr.splitlines()[-1]
    assert line.startswith("bench: error: ")
    assert said in line


class Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        """Log nothing."""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A server's address, and the folder that it serves."""
    folder = tmp_path / "served"
    folder.mkdir()
    handler = partial(Silent, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/", folder
        server.shutdown()


def test_missing_files_are_fetched_and_others_are_left_alone(served: tuple[str, Path], tmp_path: Path) -> None:
    url, folder = served
    digests = {}
    (folder / "mine").mkdir()
    for name in ("a", "b"):
        (folder / "mine" / name).write_text(name)
        digests[name] = hashlib.md5(name.encode()).hexdigest()
    with tarfile.open(folder / "mine.tar.gz", "w:gz") as archive:
        archive.add(folder / "mine", "mine")
    for place in (f"{url}mine/", f"{url}mine.tar.gz"):
        root = tmp_path / ("files" if place.endswith("/") else "archive")
        source = ImageSource("mine", digests, place)
        source.require_whole(root)
        assert {path.name: md5(path) for path in (root / "mine").iterdir()} == digests
        (root / "mine" / "a").write_text("mine")
        (root / "mine" / "b").unlink()
        source.require(root)
        assert (root / "mine" / "a").read_text() == "mine"
        with pytest.raises(DataError, match=r"damaged data file .*a: 4 bytes"):
            source.require_whole(root)
    (folder / "mine" / "b").unlink()
    (root / "mine" / "b").unlink()
    with pytest.raises(DataError, match=r"missing data: b expected in .*, and downloading failed \(.*404.*\); copy"):
        ImageSource("mine", digests, f"{url}mine/").require(root)
    with pytest.raises(DataError, match="downloading failed"):
        ImageSource("mine", digests, f"{url}other/").require(tmp_path / "new" / "data")
    assert not (tmp_path / "new").exists()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_the_innermost_activity(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    with doing("one"), suppress(KeyError), doing("two"):
        say("a line")
        raise KeyError
    lines = ["one ...", "two ...", "", "a line\n", "two ...", "one ...", ""]
    assert shown.getvalue() == "".join(line if line.endswith("\n") else CLEAR + line for line in lines)


def test_nothing_is_shown_elsewhere(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with doing("one"):
        pass
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("LOCAL_RANK", "1")
    with doing("two"):
        assert isinstance(sys.stderr, Terminal)
        assert sys.stderr.getvalue() == ""
    assert capsys.readouterr() == ("", "")


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
    assert re.search(r"step 400/400  .*ETA 0:00  step size 0\.5", bars[-1])
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h")  # the cursor is visible again
    assert lines[-1].startswith("synthetic sgd: completed")


@pytest.mark.parametrize(("step", "total", "seconds"), [(640, 2750, 46), (0, 1, None), (999_999, 1_000_000, 360_000)])
def test_the_line_of_a_run_begins_with_step_and_time_left(step: int, total: int, seconds: float | None) -> None:
    bar = Progress(total, "civil_comments adamw", epoch=550)
    bar.validated(step, "val", {"accuracy": 0.2})
    line = bar.line(SimpleNamespace(completed=step, speed=None if seconds is None else 45.21, time_remaining=seconds))
    first = f"civil_comments adamw  step {step:,}/{total:,}  ETA {clock(seconds)}"
    assert line.startswith(f"{first}  epoch ")
    assert len(first) <= 60


def test_json_stays_alone_on_standard_output(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    answer = cli(*FIT.split(), "--trainer.max_steps", 2, "--json")
    assert json.loads(answer.out)["steps"] == 2
    assert CLEAR + "reading the settings ..." in shown.getvalue()
