"""`bench sweep`: what is stored and shown, what stops it, and how it continues."""

import json
import re
import signal
from collections import Counter
from collections.abc import Callable
from math import inf
from pathlib import Path
from shutil import rmtree

import pytest
import torch

import bench.execute.choice
from bench.config.run_config import RunConfig, resolve, with_device
from bench.config.values import read_seeds
from bench.execute.choice import single_step
from bench.lanes.engine import Lanes
from bench.progress import SweepProgress
from bench.sweeps.grid import configurations
from tasks import TASKS
from tests import tiny
from tests.outcomes import outcome
from tests.stored import Store, unfinished

STEPS = 20
SMALL = ("--task", "synthetic", "--trainer.max_steps", STEPS, "--device", "cpu")
FOUR = ("--opt", "ngd", "--opt.lr", "0.1,1", "--seeds", 2)
SIXTEEN = ("--opt", "ngd", "--opt.lr", "0.01:1:8", "--seeds", 2)
LANES = ("--engine", "lanes", "--width", 4)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Tables and plots go to a folder below the current one, unless a command names another."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def sweep(cli, monkeypatch):
    """`bench sweep` without writing files, which takes longer than such a training."""
    monkeypatch.setattr("bench.sweeps.sensitivity.write", lambda folder, shown, command: [])
    monkeypatch.setattr(SweepProgress, "LINE_SECONDS", inf)  # no time-based lines
    return lambda *words: cli("sweep", *(SMALL[2:] if "--task" in words else SMALL), *words)


def configs_of(store: Path) -> list[RunConfig]:
    settings = {"task": "synthetic", "opt": "ngd", "opt.lr": "0.1,1", "trainer.max_steps": str(STEPS)}
    return configurations(settings, read_seeds("2"), {"store": store, "device": "cpu"})[0]


def statuses(store: Path) -> Counter:
    return Counter((run.status, run.engine) for run in Store(store).runs())


def finished(store: Path) -> dict[str, int]:
    """Finished blocks of several runs, by name, with their number of runs."""
    paths = store.glob("block-*/done/runs.jsonl")
    return {path.parents[1].name: len(path.read_text().splitlines()) for path in paths}


def last_line(answer) -> str:
    """The error that a command ends with: one line on standard error, nothing on standard output."""
    assert answer.out == ""
    assert "Traceback" not in answer.err
    assert answer.err.count("bench: error: ") == 1
    return answer.err.splitlines()[-1].removeprefix("bench: error: ")


def begun(store: Path) -> dict[str, str]:
    """When the finished runs began, by id."""
    return {run.run_id: run.begun for run in Store(store).runs() if run.finished}


@pytest.fixture
def tiny_task() -> None:
    tiny.register()


# -- results --------------------------------------------------------------------------------------------------------


def test_a_dry_run_lists_the_runs_and_writes_nothing(cli, store, here):
    answer = cli("sweep", *SMALL, *FOUR, "--dry-run")
    rates = [(config.run_id, f"{config.opt_options['lr']:g}", config.seed) for config in configs_of(store)]
    lines = [f"{run_id}  opt ngd, opt.lr {lr}, seed {seed}" for run_id, lr, seed in rates]
    assert (answer.out.splitlines(), answer.err) == (lines, "bench: 4 runs, 4 of them to be trained\n")
    as_json = json.loads(cli("sweep", *SMALL, *FOUR, "--dry-run", "--json").out)
    assert as_json[rates[-1][0]] == {"opt": "ngd", "opt.lr": 1.0, "seed": 1}
    assert list(here.iterdir()) == []


def test_the_same_command_trains_nothing_again(sweep, store):
    first = sweep(*FOUR, *LANES)
    before = begun(store)
    assert sweep(*FOUR) == (0, first.out, "all 4 runs are stored\n")
    assert begun(store) == before


# -- how it is trained ----------------------------------------------------------------------------------------------


@pytest.fixture
def seconds(monkeypatch) -> Callable[[float, float], None]:
    """Set the apparent duration of a step: of a single run, and of any number of lanes."""

    def take(alone: float, lanes: float) -> None:
        monkeypatch.setattr(bench.execute.choice, "single_step", lambda *run: "alone")
        monkeypatch.setattr(bench.execute.choice, "seconds_of", lambda step, ahead: {"alone": alone}.get(step, lanes))

    return take


def test_a_timed_step_has_the_dropout_of_training(tmp_path, monkeypatch):
    """Torch's own takes a quarter of a ViT's step on a CPU, so that lanes seemed faster than they are."""
    monkeypatch.setitem(TASKS.built_in, "tiny", tiny.TINY)
    words = {"task": "tiny", "opt": "sgd", "task.dropout": 0.5, "store": tmp_path}
    step, before = single_step(with_device(resolve(words))), torch.random.get_rng_state()
    step()
    assert torch.equal(torch.random.get_rng_state(), before)


SLOW = "runs one by one, since a step in lanes takes at best 2.50 times as long (--engine lanes uses lanes anyway)"


@pytest.mark.parametrize(
    ("words", "alone", "lanes", "message", "engine"),
    [
        ((), 1e-3, 1e-4, "4 lanes at once; a step of one takes 25 us, 1,000 us in a plain loop", "lanes"),
        ((), 1e-4, 1e-3, SLOW, "lightning"),
        (LANES[:2], 1e-4, 1e-3, "4 lanes at once; a step of one takes 250 us, 100 us in a plain loop", "lanes"),
    ],
)
def test_the_faster_engine_trains_unless_one_is_named(sweep, store, seconds, words, alone, lanes, message, engine):
    seconds(alone, lanes)
    assert sweep(*FOUR, *words).err == f"synthetic: {message}\n"
    assert statuses(store) == {("completed", engine): 4}


def test_a_repeated_sweep_goes_on_one_by_one_whatever_it_would_measure(sweep, store, seconds):
    seconds(1e-4, 1e-3)
    sweep(*FOUR)
    rmtree(next(store.glob("synthetic-*")))
    seconds(1e-3, 1e-4)
    assert sweep(*FOUR).code == 0
    assert statuses(store) == {("completed", "lightning"): 4}


OBSTACLES = [
    (("--precision", "16-mixed"), "--precision 16-mixed: lanes train in 32-true or 64-true"),
    (("--trainer.max_seconds", "100"), "--trainer.max_seconds 100: lanes share the time, so their budget is in steps"),
    (("--logger", "csv"), "--logger csv: a logger follows one run"),
    (
        ("--task", "tiny", "--opt.lr", "0.1,1", *(word for k, v in tiny.SIZES.items() for word in (f"--{k}", v))),
        "the loss of tiny may be no function of weights and batch (TaskSpec.lanes)",
    ),
]


@pytest.mark.parametrize(("words", "reason"), OBSTACLES)
def test_runs_that_cannot_be_lanes_go_one_by_one_unless_lanes_are_requested(sweep, store, tiny_task, words, reason):
    settings = ("--opt", "sgd,sngd", "--opt.lr", "0.1", "--seeds", 1, "--trainer.max_steps", 3, *words)
    refused = sweep(*settings, "--engine", "lanes")
    assert (refused.code, last_line(refused)) == (2, f"--engine lanes: {reason}; use --engine lightning")
    assert not store.exists()
    answer = sweep(*settings)
    assert answer.code == 0, answer.err
    assert answer.err.count(f": runs one by one, since {reason}\n") == 1
    assert set(statuses(store)) == {("completed", "lightning")}


def test_a_wrong_setting_is_found_before_anything_is_trained(sweep, store):
    answer = sweep(*FOUR, "--opt.lr", "0.1,-1")
    assert (answer.code, last_line(answer)) == (2, "--opt.lr=-1.0 is out of range: it must be in [0, inf)")
    assert not store.exists()


# -- memory ---------------------------------------------------------------------------------------------------------

SHORT = [
    MemoryError("Unable to allocate 8. GiB"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:119] DefaultCPUAllocator: can't allocate memory\nwith more lines"),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
]


@pytest.fixture
def breaks(monkeypatch) -> Callable[..., None]:
    """Let steps with more than this many lanes fail, from a step on."""
    step = Lanes.step

    def set_up(error: Exception, more_than: int = 0, after: int = 0) -> None:
        def broken(self: Lanes) -> torch.Tensor:
            if self.alive.size > more_than and after <= self.steps_done:
                raise error
            return step(self)

        monkeypatch.setattr(Lanes, "step", broken)

    return set_up


@pytest.mark.matrix(keep=1)
@pytest.mark.parametrize("error", SHORT, ids=lambda error: type(error).__name__)
def test_with_too_little_memory_it_goes_on_in_smaller_blocks(sweep, store, breaks, error):
    breaks(error, more_than=4)
    answer = sweep(*SIXTEEN, "--engine", "lanes", "--width", 16)
    assert answer.code == 0
    assert answer.err.splitlines() == [
        "16 lanes at once need more memory than available; continuing with 8",
        "8 lanes at once need more memory than available; continuing with 4",
    ]
    assert statuses(store) == {("completed", "lanes"): 16}
    assert list(finished(store).values()) == [4, 4, 4, 4]
    assert unfinished(store) == []


@pytest.mark.matrix(keep=1)
@pytest.mark.parametrize("error", SHORT, ids=lambda error: type(error).__name__)
def test_a_lane_that_does_not_fit_alone_is_one_line(sweep, store, breaks, error):
    breaks(error)
    answer = sweep(*FOUR, *LANES)
    assert answer.code == 1
    line = last_line(answer)
    assert line.startswith("run synthetic-ngd-")
    assert f" alone needs more memory than available: {type(error).__name__}: {str(error).splitlines()[0]}" in line
    assert list(Store(store).runs()) == []
    assert list(store.iterdir()) == []
    breaks(SHORT[0], more_than=99)  # mended
    assert sweep(*FOUR, *LANES).code == 0


# -- what breaks ----------------------------------------------------------------------------------------------------


def test_a_crash_is_one_line_with_its_place(sweep, store, breaks):
    breaks(RuntimeError("expected scalar type Half\nand more"), after=5)
    answer = sweep(*FOUR, *LANES)
    assert answer.code == 1
    (folder,) = store.glob("block-*")
    broken = r"4 ngd lanes failed: RuntimeError: expected scalar type Half \(.*\.py, line \d+\)"
    assert re.search(f"{broken}; continuing with one run at a time", answer.err)
    assert last_line(answer).startswith("the first 3 failed, the last with: 1 ngd lane failed: RuntimeError: expected")
    assert Store(store).contents().damaged == []
    assert statuses(store) == {("failed", "lanes"): 4}
    breaks(SHORT[0], more_than=99)  # mended
    assert sweep(*FOUR, *LANES).code == 0
    assert statuses(store) == {("completed", "lanes"): 4}
    assert [path.name for path in folder.iterdir()] == ["done"]


def test_lanes_that_break_while_measured_train_one_by_one(sweep, store, breaks):
    breaks(RuntimeError("vmap: It looks like you're calling .item() on a Tensor.\nand more"))
    answer = sweep(*FOUR)
    assert (answer.code, answer.err) == (
        0,
        "synthetic: runs one by one, since lanes break here"
        " (RuntimeError: vmap: It looks like you're calling .item() on a Tensor.)\n",
    )
    assert statuses(store) == {("completed", "lightning"): 4}


# -- interrupted ----------------------------------------------------------------------------------------------------


@pytest.fixture
def interrupt(monkeypatch):
    """Send this process a signal when a sweep has taken this many steps of single runs."""
    advance = SweepProgress.advance

    def at(steps: int, number: int = signal.SIGINT) -> None:
        def advance_and_interrupt(self, *args, **options):
            advance(self, *args, **options)
            if self.steps >= steps:
                monkeypatch.setattr(SweepProgress, "advance", advance)
                signal.raise_signal(number)

        monkeypatch.setattr(SweepProgress, "advance", advance_and_interrupt)

    return at


STOPPED = "bench: stopped; finished runs are stored, and the same command continues"
OFTEN = ("--trainer.val_every", 4, "--trainer.checkpoint_seconds", 1e-9)


@pytest.fixture
def whole(sweep, tmp_path):
    """The results of an uninterrupted sweep."""
    assert sweep(*SIXTEEN, *LANES, *OFTEN, "--store", tmp_path / "whole").code == 0
    return outcome(tmp_path / "whole")


@pytest.mark.matrix(keep=1)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_same_command_resumes_after_a_signal(sweep, store, interrupt, whole, number):
    handler = signal.getsignal(number)
    interrupt(4 * STEPS + 4 * 12, number)
    answer = sweep(*SIXTEEN, *LANES, *OFTEN)
    assert (answer.code, answer.out) == (130, "")
    assert answer.err.splitlines()[-1] == STOPPED
    assert signal.getsignal(number) == handler
    assert statuses(store) == {("completed", "lanes"): 4, ("killed", "lanes"): 4}
    (left,) = unfinished(store)
    assert (len(left.runs), left.busy) == (4, False)
    before = begun(store)
    answer = sweep(*SIXTEEN, *LANES, *OFTEN)
    assert (answer.code, answer.err) == (0, "4 of 16 runs are stored\n")
    assert before.items() <= begun(store).items()
    assert outcome(store) == whole


# -- progress -------------------------------------------------------------------------------------------------------


def test_progress_is_a_line_now_and_then(sweep, monkeypatch):
    monkeypatch.setattr(SweepProgress, "LINE_SECONDS", 0)
    lines = sweep("--opt", "gd", "--opt.lr", 1, "--opt.weight_decay", "0,1e300", "--seeds", 2, *LANES).err.splitlines()
    assert lines[0] == "sweep synthetic  0/4 runs  ETA -"
    assert any(line.startswith("sweep synthetic  2/4 runs  ETA ") for line in lines)
    assert re.fullmatch(r"sweep synthetic  4/4 runs  ETA 0 s  best 0\.0\d+ \(gd lr 1\)", lines[-1])
