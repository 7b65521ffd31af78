"""`bench sweep`: what is stored and shown, what stops it, and how it continues."""

import errno
import json
import signal
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bench.execute.choice
import bench.execute.execute
import bench.execute.here
import bench.store.files
import bench.sweeps.sensitivity
from bench.config.run_config import RunConfig, decided, resolve
from bench.config.values import read_seeds
from bench.execute.choice import Choices, single_step
from bench.lanes.engine import Lanes
from bench.progress import SweepProgress
from bench.store.store import Store
from bench.sweeps.grid import configurations
from bench.train.memory import Peak
from tasks import TASKS
from tests import tiny
from tests.stored import unfinished

STEPS = 20
SMALL = ("--task", "synthetic", "--trainer.max_steps", STEPS, "--device", "cpu")
FOUR = ("--opt", "ngd", "--opt.lr", "0.1,1", "--seeds", 2)
SIXTEEN = ("--opt", "ngd", "--opt.lr", "0.01:1:8", "--seeds", 2)
LANES = ("--engine", "lanes", "--width", 4)
OUT = "swept/synthetic/ngd-4d5b6112"
"""The folder of table and plot of the sweep FOUR, which must never change."""
FILES = ["sensitivity.md", "sensitivity.pdf", "sensitivity.png"]
CLOCKS = ("wall_s", "train_s", "seconds_to_target", "memory", "begun", "plan")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Tables and plots go to a folder below the current one, unless told otherwise."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def sweep(cli, monkeypatch):
    """`bench sweep` without writing files, which takes longer than such a training."""
    monkeypatch.setattr("bench.sweeps.sensitivity.write", lambda folder, shown, command: [])
    monkeypatch.setattr(SweepProgress, "LINE_SECONDS", inf)  # no time-based lines
    return lambda *words: cli("sweep", *(SMALL[2:] if "--task" in words else SMALL), *words)


def configs_of(store: Path, opt: str = "ngd", lr: str = "0.1,1", seeds: str = "2", **words: Any) -> list[RunConfig]:
    named = {key.replace("__", "."): value for key, value in words.items()}
    settings = {"task": "synthetic", "opt": opt, "opt.lr": lr, "trainer.max_steps": str(STEPS)} | named
    return configurations(settings, read_seeds(seeds), {"store": store, "device": "cpu"})[0]


def outcome(store: Path) -> dict[str, tuple[dict, dict]]:
    """The results of all runs of a store, without times: records and tables."""
    results = {}
    for run in Store(store).runs():
        record = {name: value for name, value in asdict(run).items() if name not in CLOCKS}
        record["validations"] = [{k: v for k, v in row.items() if k != "train_s"} for row in run.validations]
        record["config"] = {**run.config, "trainer": run.config["trainer"] | {"checkpoint_seconds": None}}
        record["chosen"] = run.chosen | {"trainer.checkpoint_seconds": None}
        results[run.run_id] = record, Store(store).tables(run.run_id)
    return results


def same(one: object, other: object) -> bool:
    np.testing.assert_equal(one, other)  # treats NaN as equal to NaN
    return True


def statuses(store: Path) -> Counter:
    return Counter((run.status, run.engine) for run in Store(store).runs())


def finished(store: Path) -> dict[str, int]:
    """Finished blocks of several runs, by name, with their number of runs."""
    paths = store.glob("block-*/done/runs.jsonl")
    return {path.parents[1].name: len(path.read_text().splitlines()) for path in paths}


def snapshot(folder: Path) -> dict[Path, tuple[int, int]]:
    """All files of a folder, with times and sizes."""
    return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in folder.rglob("*")}


def strict_json(text: str) -> Any:
    def refuse(token: str):
        raise AssertionError(f"{token} is not JSON")

    return json.loads(text, parse_constant=refuse)


def last_line(answer) -> str:
    """The error that a command ends with: one line on standard error, nothing on standard output."""
    assert answer.out == ""
    assert "Traceback" not in answer.err
    assert answer.err.count("bench: error: ") == 1
    return answer.err.splitlines()[-1].removeprefix("bench: error: ")


def no_space(*args: object, **kwargs: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def trained(monkeypatch) -> list[list[str]]:
    """The run ids of every block and single run that was actually trained."""
    seen: list[list[str]] = []
    block, one = bench.execute.here.train_block, bench.execute.here.run

    def train_block(grid, *args, **options):
        seen.append([config.run_id for row in grid for config in row])
        return block(grid, *args, **options)

    def run(config, **options):
        seen.append([config.run_id])
        return one(config, **options)

    monkeypatch.setattr(bench.execute.here, "train_block", train_block)
    monkeypatch.setattr(bench.execute.here, "run", run)
    return seen


@pytest.fixture
def tiny_task() -> None:
    tiny.register()


# -- results --------------------------------------------------------------------------------------------------------


def test_a_dry_run_lists_the_runs_and_writes_nothing(cli, store, here):
    answer = cli("sweep", *SMALL, *FOUR, "--dry-run")
    assert answer == (
        0,
        "".join(
            f"{config.run_id}  opt ngd, opt.lr {config.opt_options['lr']:g}, seed {config.seed}\n"
            for config in configs_of(store)
        ),
        "bench: 4 runs, 4 of them to be trained\n",
    )
    as_json = cli("sweep", *SMALL, *FOUR, "--dry-run", "--json").out
    assert as_json.count("\n") == 1
    assert list(strict_json(as_json).values())[-1] == {"opt": "ngd", "opt.lr": 1.0, "seed": 1}
    assert list(here.iterdir()) == []


def test_the_same_command_trains_nothing_again(sweep, store, trained):
    first = sweep(*FOUR, *LANES)
    assert trained
    trained.clear()
    before = outcome(store)
    again = sweep(*FOUR)
    assert again == (0, first.out, "all 4 runs are stored\n")
    assert trained == []
    assert same(outcome(store), before)


@pytest.mark.parametrize(
    ("option", "status", "diverged"), [("lr", "completed", "0/2"), ("weight_decay", "diverged", "2/2")]
)
@pytest.mark.numeric
def test_a_lane_may_end_before_the_others(sweep, store, option, status, diverged):
    answer = sweep("--opt", "gd", f"--opt.{option}", "0.1,1e300", "--seeds", 2, *LANES)
    assert answer.code == 0
    results = {(run.config["opt_options"][option], run.status, run.steps == STEPS) for run in Store(store).runs()}
    assert results == {(0.1, "completed", True), (1e300, status, False)}
    assert diverged in next(line for line in answer.out.splitlines() if "1e+300" in line)


@pytest.mark.numeric
def test_both_engines_give_the_same_results(sweep, store, tmp_path):
    words = ("--opt", "ngd,ps,adam", "--opt.lr", "0.1", "--seeds", "3,5")
    assert sweep(*words, *LANES).code == 0
    assert sweep(*words, "--engine", "lightning", "--store", tmp_path / "alone").code == 0
    together, alone = outcome(store), outcome(tmp_path / "alone")
    assert together.keys() == alone.keys()
    assert len(together) == 6
    for run_id, (record, tables) in together.items():
        other, others = alone[run_id]
        assert (record["engine"], other["engine"]) == ("lanes", "lightning")
        assert record["final"] == pytest.approx(other["final"], rel=1e-9)
        assert record["best"] == pytest.approx(other["best"], rel=1e-9)
        assert (record["status"], record["steps"], record["best_step"]) == tuple(
            other[name] for name in ("status", "steps", "best_step")
        )
        assert tables.keys() == others.keys() == {"curve", "measurements"}
        for name, table in tables.items():
            for column, values in table.items():
                np.testing.assert_allclose(values, others[name][column], rtol=1e-9, atol=1e-12)


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
    monkeypatch.setitem(TASKS, "tiny", tiny.TINY)
    words = {"task": "tiny", "opt": "sgd", "task.dropout": 0.5, "store": tmp_path}
    step, before = single_step(decided(resolve(words))), torch.random.get_rng_state()
    step()
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize(
    ("words", "alone", "lanes", "message", "engine"),
    [
        ((), 1e-3, 1e-4, "4 lanes at once; a step of one takes 25 us, 1,000 us in a plain loop", "lanes"),
        (
            (),
            1e-4,
            1e-3,
            "runs one by one, since a step in lanes takes at best 2.50 times as long"
            " (--engine lanes uses lanes anyway)",
            "lightning",
        ),
        (LANES[:2], 1e-4, 1e-3, "4 lanes at once; a step of one takes 250 us, 100 us in a plain loop", "lanes"),
    ],
)
def test_the_faster_engine_trains_unless_one_is_named(sweep, store, seconds, words, alone, lanes, message, engine):
    seconds(alone, lanes)
    assert sweep(*FOUR, *words).err == f"synthetic: {message}\n"
    assert statuses(store) == {("completed", engine): 4}


@pytest.mark.parametrize(("processes", "width"), [(1, 8), (16, 2)])
def test_processes_on_a_device_share_its_memory(seconds, monkeypatch, processes, width):
    monkeypatch.setattr(bench.execute.choice, "usable_memory", lambda device: 40 * 2**30)
    seconds(1e-3, 1e-4)
    monkeypatch.setattr(bench.execute.choice, "watch_peak", lambda device: nullcontext(Peak(8 * 2**30)))
    monkeypatch.setattr(bench.execute.choice, "_WIDTHS", (8,))
    group = [resolve({"task": "synthetic", "opt": "ngd", "opt.lr": 0.1 * n, "device": "cpu"}) for n in range(1, 9)]
    choices = Choices("auto", None, lambda line: None, processes)
    assert choices.of(group).width == width


OBSTACLES = [
    (("--precision", "16-mixed"), "--precision 16-mixed: lanes train in 32-true or 64-true"),
    (("--trainer.max_seconds", "100"), "--trainer.max_seconds 100: lanes share the time, so their budget is in steps"),
    (("--logger", "csv"), "--logger csv: a logger follows one run"),
    (
        ("--task", "tiny", "--opt.lr", "0.1,1", *(word for k, v in tiny.SIZES.items() for word in (f"--{k}", v))),
        "the task tiny does not say that its loss is a function of weights and batch (TaskSpec.lanes)",
    ),
]


@pytest.mark.parametrize(("words", "reason"), OBSTACLES)
def test_runs_that_cannot_be_lanes_are_refused_on_request(sweep, store, tiny_task, words, reason):
    answer = sweep("--opt", "sgd", "--opt.lr", "0.1,1", "--seeds", 1, *words, "--engine", "lanes")
    assert (answer.code, last_line(answer)) == (2, f"--engine lanes: {reason}; use --engine lightning")
    assert not store.exists()


@pytest.mark.parametrize(("words", "reason"), OBSTACLES)
def test_runs_that_cannot_be_lanes_go_one_by_one(sweep, store, tiny_task, words, reason):
    answer = sweep("--opt", "sgd,sngd", "--opt.lr", "0.1", "--seeds", 1, "--trainer.max_steps", 3, *words)
    assert answer.code == 0, answer.err
    assert answer.err.count(f": runs one by one, since {reason}\n") == 1
    assert set(statuses(store)) == {("completed", "lightning")}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--opt.lr", "0.1,-1"), "--opt.lr=-1.0 is out of range: it must be in [0, inf)"),
        (("--trainer.batch_size", "full,5"), "--trainer.batch_size 5: ngd is a full-batch method"),
    ],
)
def test_a_wrong_setting_is_found_before_anything_is_trained(sweep, store, words, message):
    answer = sweep(*FOUR, *words)
    assert (answer.code, last_line(answer)[: len(message)]) == (2, message)
    assert not store.exists()


# -- memory ---------------------------------------------------------------------------------------------------------

SHORT = [
    MemoryError("Unable to allocate 8. GiB"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:119] DefaultCPUAllocator: can't allocate memory\nwith more lines"),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
]


@pytest.fixture
def breaks(monkeypatch) -> Callable[..., None]:
    """Let steps with more than this many lanes fail, from one step to another."""
    step = Lanes.step

    def set_up(error: Exception, more_than: int = 0, after: int = 0, before: float = inf) -> None:
        def broken(self: Lanes) -> torch.Tensor:
            if self.alive.size > more_than and after <= self.steps_done < before:
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


def test_a_crash_is_one_line_and_its_traceback_is_kept(sweep, store, breaks):
    breaks(RuntimeError("expected scalar type Half\nand more"), after=5)
    answer = sweep(*FOUR, *LANES)
    assert answer.code == 1
    (folder,) = store.glob("block-*")
    trace = folder / "traceback.txt"
    broken = f"4 ngd lanes failed: RuntimeError: expected scalar type Half; the traceback is in {trace}"
    assert f"{broken}; continuing with one run at a time" in answer.err
    assert last_line(answer).startswith("the first 3 failed, the last with: 1 ngd lane failed: RuntimeError: expected")
    assert trace.read_text().startswith("Traceback (most recent call last):\n")
    assert "in training_step" in trace.read_text()
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
def whole(sweep, tmp_path) -> dict[str, tuple[dict, dict]]:
    """The results of an uninterrupted sweep."""
    assert sweep(*SIXTEEN, *LANES, *OFTEN, "--store", tmp_path / "whole").code == 0
    return outcome(tmp_path / "whole")


@pytest.mark.matrix(keep=1)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_same_command_resumes_after_a_signal(sweep, store, interrupt, whole, trained, number):
    handler = signal.getsignal(number)
    interrupt(4 * STEPS + 4 * 12, number)
    answer = sweep(*SIXTEEN, *LANES, *OFTEN)
    assert (answer.code, answer.out) == (130, "")
    assert answer.err.splitlines()[-1] == STOPPED
    assert signal.getsignal(number) == handler
    assert statuses(store) == {("completed", "lanes"): 4, ("killed", "lanes"): 4}
    (left,) = unfinished(store)
    assert (list(left.runs), left.busy) == (trained[-1], False)
    before = snapshot(store / next(iter(finished(store))))
    trained.clear()
    answer = sweep(*SIXTEEN, *LANES, *OFTEN)
    assert (answer.code, answer.err) == (0, "4 of 16 runs are stored\n")
    assert list(map(len, trained)) == [4, 4, 4]
    assert trained[0] == list(left.runs)
    assert snapshot(next(iter(before)).parent) == before
    assert same(outcome(store), whole)


def test_blocks_of_another_width_are_removed_when_their_runs_have_finished(sweep, store, interrupt):
    interrupt(8 * 12)
    assert sweep(*SIXTEEN, "--engine", "lanes", "--width", 8, *OFTEN).code == 130
    (left,) = unfinished(store)
    assert sweep(*SIXTEEN, *LANES, *OFTEN).code == 0
    assert not left.folder.exists()
    assert statuses(store) == {("completed", "lanes"): 16}


# -- several at once ------------------------------------------------------------------------------------------------


# -- disks ----------------------------------------------------------------------------------------------------------


# -- progress -------------------------------------------------------------------------------------------------------


def test_progress_is_a_line_now_and_then(sweep, monkeypatch):
    monkeypatch.setattr(SweepProgress, "LINE_SECONDS", 0)
    lines = sweep("--opt", "gd", "--opt.lr", 1, "--opt.weight_decay", "0,1e300", "--seeds", 2, *LANES).err.splitlines()
    assert all(line.startswith("sweep synthetic  ") for line in lines)
    counts = [line.split("  ")[1].split(", ")[:2] for line in lines]
    assert counts[0] == ["0/4 runs", "4 in training"]
    assert ["2/4 runs", "2 in training"] in counts
    assert counts[-1] == ["4/4 runs", "0 in training"]
    assert lines[-1].endswith("(gd lr 1)")
    assert "trial-steps/s, best 0.0" in lines[-1]


# -- words ----------------------------------------------------------------------------------------------------------
