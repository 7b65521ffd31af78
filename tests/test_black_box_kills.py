"""Commands that are killed and repeated end with the results of an undisturbed command.

These tests know only commands, processes and files, so they hold for any store and engine. A command is killed after
its store has changed a drawn number of times.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

SMALL = "--task synthetic --device cpu --trainer.checkpoint_seconds 0.01"
COMMANDS = {
    "fit": f"fit {SMALL} --opt sps --opt.gamma 2 --trainer.batch_size 5 --trainer.max_steps 1500",
    "sweep": f"sweep {SMALL} --opt ngd --opt.lr 0.01:1:4 --seeds 2 --engine lanes --width 4 --trainer.max_steps 4000",
    "tune": f"tune {SMALL} --opt ngd --trials 3 --seeds 1 --report_seeds 1 --workers 2 --engine lightning"
    " --trainer.max_steps 400 --out tuned",
}
CLOCKS = {"seconds_to_target", "wall_s", "train_s", "begun", "plan"}
PATIENCE = 300.0
"""Seconds."""


class Command:
    """A running `bench` command."""

    def __init__(self, words: str, folder: Path) -> None:
        with (folder / "log").open("a") as log:
            self.process = subprocess.Popen(
                (sys.executable, "-P", "-m", "bench", *words.split(), "--store", "runs"),
                cwd=folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def end(self) -> int:
        """Wait for the exit code."""
        return self.process.wait(PATIENCE)

    def kill(self) -> None:
        """Kill every process of the command's session, workers included."""
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                if int(stat.read_text().rpartition(")")[2].split()[3]) == self.process.pid:
                    os.kill(int(stat.parent.name), signal.SIGKILL)
        self.process.wait(PATIENCE)


def changes(folder: Path, command: Command) -> Iterator[int]:
    """Count the changes to files of a folder until the command ends."""
    count, before = 0, dict[Path, tuple[int, int]]()
    while command.process.poll() is None:
        now = dict[Path, tuple[int, int]]()
        for parent, _, names in os.walk(folder):
            for path in (Path(parent, name) for name in names):
                with suppress(OSError):
                    stat = path.stat()
                    now[path] = (stat.st_size, stat.st_mtime_ns)
        if now != before:
            count, before = count + 1, now
            yield count
        time.sleep(0.002)


QUERY = """select *, (select list({step: step, loss: loss, norm: grad_norm} order by step) from curves
where curves.run_id = runs.run_id) as curve from runs where status = 'completed'"""


def results(folder: Path) -> dict[str, str]:
    """Each completed run with its curve, as text (NaN is not equal to NaN); reading must succeed after any kill."""
    words = ("sql", QUERY, "--no-reference", "--store", str(folder / "runs"), "--json")
    done = subprocess.run((sys.executable, "-P", "-m", "bench", *words), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    runs = json.loads(done.stdout)
    for run in runs:
        run["settings"].pop("trainer.checkpoint_seconds")
    return {run["run_id"]: json.dumps({k: v for k, v in run.items() if k not in CLOCKS}) for run in runs}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[dict[str, str], int]]:
    """The results of a command, and how often it changes its store."""

    @cache
    def of(kind: str) -> tuple[dict[str, str], int]:
        folder = tmp_path_factory.mktemp(kind)
        command = Command(COMMANDS[kind], folder)
        count = max(changes(folder / "runs", command))
        assert command.end() == 0, (folder / "log").read_text()
        return results(folder), count

    return of


@pytest.mark.matrix(keep=0, ci=4)
@pytest.mark.parametrize("n", range(30))
@pytest.mark.parametrize("kind", COMMANDS)
def test_a_killed_command_repeats_to_the_same_results(tmp_path: Path, undisturbed, kind: str, n: int) -> None:
    whole, count = undisturbed(kind)
    assert whole
    moment = random.Random(f"{kind} {n}").randint(1, count)
    command = Command(COMMANDS[kind], tmp_path)
    for change in changes(tmp_path / "runs", command):
        if change == moment:
            break
    command.kill()
    kept = results(tmp_path)
    assert kept.items() <= whole.items()
    again = Command(COMMANDS[kind], tmp_path)
    assert again.end() == 0, (tmp_path / "log").read_text()
    assert results(tmp_path) == whole
