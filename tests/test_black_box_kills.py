"""Commands that are killed and repeated end with the results of an undisturbed command.

These tests know only commands, processes and files, so they hold for any store and engine. A command is killed after
its store has changed a drawn number of times. `BENCH_KILLS` is the number of kills of each command.
"""

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

from bench.process import bench_command
from tests.programs import Program

SMALL = "--task synthetic --device cpu --trainer.checkpoint_seconds 0.01"
NGD = f"{SMALL} --opt ngd --trials 3 --seeds 1 --engine lightning --trainer.max_steps 400"
COMMANDS = {
    "fit": f"fit {SMALL} --opt sps --opt.gamma 2 --trainer.batch_size 5 --trainer.max_steps 1500",
    "sweep": f"sweep {SMALL} --opt ngd --opt.lr 0.01:1:4 --seeds 2 --engine lanes --width 4 --trainer.max_steps 4000",
    "compare": f"compare {NGD} --against gd --report_seeds 2 --workers 1 --out compared",
    "tune": f"tune {NGD} --report_seeds 1 --workers 2 --out tuned",
}
KILLS = int(os.environ.get("BENCH_KILLS", "30"))
CHANGING = {"seconds_to_target", "wall_s", "train_s", "begun", "plan", "study"}
"""Clocks; and `study`, which names the planned study of a fresh run until the study has ended."""
PATIENCE = 300.0  # seconds


class Command:
    """A running `bench` command; one that trains in its own process is forked from one that has imported torch."""

    def __init__(self, words: Sequence[str], folder: Path) -> None:
        self.place = folder / f"program-{len(list(folder.iterdir()))}"
        arguments = [*words, "--store", str(folder / "runs")]
        if "--workers 2" in " ".join(words):
            self.place.mkdir()
            with (self.place / "out").open("w") as out, (self.place / "err").open("w") as err:
                process = subprocess.Popen(
                    bench_command(*arguments), cwd=self.place, stdout=out, stderr=err, start_new_session=True
                )
            self.pid, self.code, self._wait = process.pid, process.poll, process.wait
        else:
            child = Program(self.place, arguments).process
            self.pid, self.code, self._wait = child.pid, lambda: child.exitcode, child.join

    def end(self) -> tuple[int | None, str, str]:
        """Wait for its exit code, output and errors."""
        self._wait(PATIENCE)
        return self.code(), *((self.place / name).read_text() for name in ("out", "err"))

    def kill(self) -> None:
        """Kill every process of the command's session, workers included."""
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                if int(stat.read_text().rpartition(")")[2].split()[3]) == self.pid:
                    os.kill(int(stat.parent.name), signal.SIGKILL)
        self.end()


def changes(folder: Path, command: Command) -> Iterator[int]:
    """Count the changes to files of a folder until the command ends."""
    count, before = 0, dict[Path, tuple[int, int]]()
    while command.code() is None:
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
    code, out, err = Command(["sql", QUERY, "--no-reference", "--json"], folder).end()
    assert (code, err) == (0, "")
    runs = json.loads(out)
    for run in runs:
        run["settings"].pop("trainer.checkpoint_seconds")
    return {run["run_id"]: json.dumps({k: v for k, v in run.items() if k not in CHANGING}) for run in runs}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[dict[str, str], int]]:
    """The results of a command, and how often it changes its store."""

    @cache
    def of(kind: str) -> tuple[dict[str, str], int]:
        folder = tmp_path_factory.mktemp(kind)
        command = Command(COMMANDS[kind].split(), folder)
        count = max(changes(folder / "runs", command))
        assert command.end()[0] == 0, command.end()
        return results(folder), count

    return of


@pytest.mark.matrix(keep=0, ci=4)
@pytest.mark.parametrize("n", range(KILLS))
@pytest.mark.parametrize("kind", COMMANDS)
def test_a_killed_command_repeats_to_the_same_results(tmp_path: Path, undisturbed, kind: str, n: int) -> None:
    whole, count = undisturbed(kind)
    assert whole
    moment = random.Random(f"{kind} {n}").randint(1, count)
    command = Command(COMMANDS[kind].split(), tmp_path)
    for change in changes(tmp_path / "runs", command):
        if change == moment:
            break
    command.kill()
    (tmp_path / "runs").mkdir(exist_ok=True)
    assert results(tmp_path).items() <= whole.items()
    again = Command(COMMANDS[kind].split(), tmp_path)
    assert again.end()[0] == 0, again.end()
    assert results(tmp_path) == whole
