"""Plans: how runs are divided into blocks and shared by workers; also failed runs."""

import json
import signal
import time
from collections import Counter
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bench.execute.choice
import bench.execute.here
import bench.train.runner
from bench.config.run_config import RunConfig, resolve
from bench.config.tuned import TunedBy
from bench.errors import RunBroke, RunBusy, UserError
from bench.execute.blocks import rectangles
from bench.execute.choice import Choice, Choices
from bench.execute.cuts import Cut, Group, balanced, cut
from bench.execute.here import train_cuts
from bench.execute.plan import Plan
from bench.execute.pool import Pool
from bench.progress import Advance, RunInPlan, SweepProgress
from bench.store.record import RunResult
from bench.store.store import Store
from bench.train.stop import StopRequest

SWEEP = ("sweep", "--task", "synthetic", "--opt", "ngd", "--opt.lr", "0.1:1:4", "--seeds", "2", "--device", "cpu")
SMALL = (*SWEEP, "--trainer.max_steps", "30")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BENCH_STORE", str(tmp_path / "runs"))
    return tmp_path


def plan_of(store: Path, *, opt: str = "ngd", **words: Any) -> Plan:
    """A plan of two learning rates."""
    base = {"task": "synthetic", "opt": opt, "device": "cpu", "store": store, "data": store.parent}
    return Plan("p", [resolve(base | words | {"opt.lr": lr}) for lr in (0.1, 1.0)], "lanes")


def in_worker(plan: Plan) -> Plan:
    """A plan as a worker process gets it."""
    return Plan.from_json(json.loads(json.dumps(plan.as_json(), allow_nan=False)))


@pytest.mark.parametrize("tuned_by", [None, TunedBy("a study", "val"), TunedBy("ngd.yaml", None)])
def test_a_worker_gets_the_plan_of_its_command(here: Path, tuned_by: TunedBy | None) -> None:
    sources = {} if tuned_by is None else {("synthetic", "ngd"): tuned_by}
    plan = replace(plan_of(here / "runs"), sources=sources)
    got = in_worker(plan)
    assert [*got.by_id] == [*plan.by_id]
    assert got.configs == plan.configs
    assert (got.title, got.engine, got.sources) == (plan.title, plan.engine, sources)


@pytest.mark.parametrize(("name", "value"), [("max_step", inf), ("gamma", 1e-300)])
def test_extreme_values_reach_a_worker(here: Path, name: str, value: float) -> None:
    plan = plan_of(here / "runs", opt="sngd" if name == "max_step" else "sps", **{f"opt.{name}": value})
    assert in_worker(plan).configs == plan.configs


def test_a_worker_refuses_code_that_has_changed(here: Path) -> None:
    plugin = here / "mine.py"
    plugin.write_text("from torch.optim import SGD\nclass Mine(SGD):\n    pass\n")
    content = plan_of(here / "runs", opt="mine.py:Mine").as_json()
    first, *_ = content["runs"]
    content["runs"] = {f"{first}0": content["runs"][first]}
    with pytest.raises(UserError, match=r"the code of synthetic or mine\.py:Mine has changed; repeat the command"):
        Plan.from_json(content)


# -- the blocks, which stay the same ----------------------------------------------------------------------------------


def progress() -> SweepProgress:
    return SweepProgress("", "min", enabled=False)


def test_a_repeated_command_has_the_same_blocks(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, width = plan_of(here / "runs"), iter((1, 2))
    monkeypatch.setattr(Choices, "of", lambda *_: Choice(lanes=True, width=next(width), seconds=(0.0, 1.0)))
    blocks = [[len(grid) for grid in cut(plan, progress(), StopRequest())[0].blocks] for _ in range(2)]
    assert blocks == [[1, 1], [1, 1]]
    assert [path.name for path in (here / "runs" / "cuts").iterdir()] == [f"{plan.name}.json"]


def test_blocks_of_a_stopped_command_are_not_recorded(here: Path) -> None:
    stop = StopRequest()
    stop.signal = signal.SIGINT
    assert cut(plan_of(here / "runs"), progress(), stop)
    assert not (here / "runs").exists()


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "\0", '{"cuts": 1}', '{"cuts": []}',
     '{"cuts": [{"lanes": true, "blocks": [["../../x"]]}]}'],
)  # fmt: skip
def test_damaged_blocks_are_cut_again(here: Path, text: str) -> None:
    plan = replace(plan_of(here / "runs"), width=2)
    plan.cuts.parent.mkdir(parents=True)
    plan.cuts.write_text(text)
    (found,) = cut(plan, progress(), StopRequest())
    assert [config.run_id for config in found.runs] == [*plan.by_id]
    assert json.loads(plan.cuts.read_text())["cuts"][0]["blocks"] == [[*plan.by_id]]


@pytest.mark.deep
def test_finished_cuts_and_leftovers_of_killed_writers_are_removed(cli, here: Path) -> None:
    folder = here / "runs" / "cuts"
    for words in (("--width", "2"), ("--width", "4")):
        plan_words = (*SMALL, "--engine", "lanes", *words)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".0123abcd").write_text('{"cu')
        assert cli(*plan_words).code == 0
        assert not folder.exists()


# -- single runs and workers ------------------------------------------------------------------------------------------


def test_runs_that_are_made_alone_say_how_far_they_are(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[tuple[int, str]] = []

    def add(self: SweepProgress, worker: int, made: Advance) -> None:
        added(self, worker, made)
        shown.append((made.steps, self.workers()[0]))

    added = SweepProgress.add
    monkeypatch.setattr(SweepProgress, "add", add)
    monkeypatch.setattr(RunInPlan, "TOLD_SECONDS", 0)
    progress = SweepProgress("", "min", enabled=False)
    progress.processes = 2
    config = resolve({"task": "synthetic", "opt": "ngd", "trainer.max_steps": 4, "device": "cpu"})
    assert train_cuts(Plan("p", [config]), [Cut(False, [[[config]]])], progress, StopRequest())
    assert shown == [
        (0, "1 in training, 0%"),
        (1, "1 in training, 25%"),
        (1, "1 in training, 50%"),
        (1, "1 in training, 75%"),
        (1, "1 in training, 100%"),
        (0, "waits"),
    ]


@pytest.mark.deep
def test_more_workers_than_runs(cli, here: Path) -> None:
    words = ("fit", "--task", "synthetic", "--opt", "ngd", "--trainer.max_steps", "5", "--device", "cpu")
    answer = cli(*words, "--seeds", "1", "--workers", "2")
    assert answer.code == 0, answer.err
    assert "with one seed, so there is no interval" in answer.out


@pytest.mark.deep
def test_a_command_goes_on_without_workers_that_refuse(cli, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> bool:
        raise UserError("this machine is no good")

    with monkeypatch.context() as patch:
        patch.setattr(Pool, "work", refuse)
        answer = cli(*SMALL, "--workers", "2")
    assert answer.code == 0, answer.err
    assert "continuing without further workers: this machine is no good" in answer.err
    assert len(list(Store(here / "runs").runs())) == 8
    assert not (here / "runs" / "cuts").exists()


# -- broken runs ------------------------------------------------------------------------------------------------------

FRAGILE = '''
from torch.optim import SGD

class Fragile(SGD):
    """SGD that cannot take some steps."""

    def __init__(self, params, lr: float = 0.1) -> None:
        super().__init__(params, lr=lr)

    def step(self, closure=None):
        if self.param_groups[0]["lr"] in BAD:
            raise ArithmeticError("this step is too long")
        return super().step(closure)
'''


def fragile(folder: Path, *bad: float) -> tuple[str, ...]:
    (folder / "fragile.py").write_text(f"BAD = {bad}\n{FRAGILE}")
    return ("sweep", "--task", "synthetic", "--opt", "fragile.py:Fragile", "--opt.lr", "0.1,0.2,0.4,0.8", "--seeds",
            "1", "--trainer.max_steps", "5", "--device", "cpu")  # fmt: skip


@pytest.mark.matrix(keep=1)
@pytest.mark.parametrize("engine", ["lightning", "auto", "lanes"])
def test_a_run_that_breaks_harms_no_other(cli, here: Path, engine: str) -> None:
    answer = cli(*fragile(here, 0.2), "--engine", engine, "--width", "4")
    assert answer.code == 1
    assert answer.err.splitlines()[-1].startswith("bench: error: ")
    assert "this step is too long" in answer.err.splitlines()[-1]
    rows = [line.removeprefix("*").split() for line in answer.out.splitlines()[2:6]]
    assert [(row[0], row[1] == "failed", row[-1]) for row in rows] == [
        ("0.1", False, "0/1"), ("0.2", True, "-"), ("0.4", False, "0/1"), ("0.8", False, "0/1"),
    ]  # fmt: skip
    stored = {run.config["opt_options"]["lr"]: run.status for run in Store(here / "runs").runs()}
    assert stored == {0.1: "completed", 0.2: "failed", 0.4: "completed", 0.8: "completed"}


@pytest.mark.deep
def test_a_run_that_breaks_in_a_worker_harms_no_other(cli, here: Path) -> None:
    answer = cli(*fragile(here, 0.2), "--engine", "lightning", "--workers", "2")
    assert answer.code == 1
    stored = {run.config["opt_options"]["lr"]: run for run in Store(here / "runs").runs()}
    assert {lr: run.status for lr, run in stored.items()} == {
        0.1: "completed",
        0.2: "failed",
        0.4: "completed",
        0.8: "completed",
    }
    last = answer.err.splitlines()[-1]
    assert last.startswith(f"bench: error: run {stored[0.2].run_id} failed: ")
    assert "this step is too long" in last
    assert len(answer.out.splitlines()[2:5]) == 3


def test_three_that_break_before_one_has_ended_end_the_command(cli, here: Path) -> None:
    answer = cli(*fragile(here, 0.1, 0.2, 0.4), "--engine", "lightning")
    assert answer.code == 1
    assert answer.err.splitlines()[-1].startswith("bench: error: the first 3 failed, the last with: run synthetic-")
    assert Counter(run.status for run in Store(here / "runs").runs()) == {"failed": 3}


@pytest.mark.deep
@pytest.mark.parametrize("engine", ["lightning", "lanes"])
def test_a_value_that_breaks_with_all_seeds_keeps_no_other_value_from_being_tried(cli, here: Path, engine: str) -> None:
    words = fragile(here, 0.2)
    words = (*words[: words.index("--seeds")], "--seeds", "4", *words[words.index("--seeds") + 2 :])
    for _ in range(2):  # the same command again
        answer = cli(*words, "--engine", engine, *(["--width", "1"] if engine == "lanes" else []))
        assert answer.code == 1
        stored = Counter((run.config["opt_options"]["lr"], run.status) for run in Store(here / "runs").runs())
        assert stored == {(0.1, "completed"): 4, (0.2, "failed"): 4, (0.4, "completed"): 4, (0.8, "completed"): 4}


def test_runs_that_failed_since_the_command_began_are_not_repeated(here: Path) -> None:
    fragile(here, 0.2)
    settings = {"task": "synthetic", "trainer.max_steps": 5, "device": "cpu", "store": here / "runs"}
    config = resolve(settings | {"opt": "fragile.py:Fragile", "opt.lr": 0.2})
    cuts, progress = [Cut(False, [[[config]]])], SweepProgress("", "min", enabled=False)
    before, tried = time.time() - 60, []
    for since in (None, before, None):
        with pytest.raises(RunBroke, match="this step is too long"):
            train_cuts(Plan("p", [config]), cuts, progress, StopRequest(), since=since)
        tried.append(len(list((here / "runs" / config.run_id).glob("attempt-*"))))
    assert tried == [1, 1, 2]


def test_a_worker_takes_free_blocks_before_it_waits(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"task": "synthetic", "trainer.max_steps": 5, "device": "cpu", "store": here / "runs"}
    configs = [resolve(settings | {"opt": opt}) for opt in ("gd", "ngd", "ps")]
    tried = []

    def run(config: RunConfig, **words: Any) -> RunResult:
        tried.append(config.opt)
        if tried.count("gd") == 1 and config.opt == "gd":
            raise RunBusy("another process trains it")
        return bench.train.runner.run(config, **words)

    monkeypatch.setattr(bench.execute.here, "run", run)
    cuts = [Cut(lanes=False, blocks=[[[config]]]) for config in configs]
    assert train_cuts(Plan("p", configs), cuts, SweepProgress("", "min", enabled=False), StopRequest())
    assert tried == ["gd", "ngd", "ps", "gd"]
    assert Counter(run.status for run in Store(here / "runs").runs()) == {"completed": 3}


# -- how runs are distributed -----------------------------------------------------------------------------------------


def a_group(opt: str, seeds: int, lanes: int, steps: int) -> list[RunConfig]:
    return [
        resolve({"task": "synthetic", "opt": opt, "opt.lr": 0.1 + lane, "seed": seed, "trainer.max_steps": steps})
        for seed in range(seeds)
        for lane in range(lanes)
    ]


LANES = a_group("gd", 1, 40, 10)


def sizes_of(blocks: list[list[Any]]) -> list[list[int]]:
    return [[sum(map(len, block)) for block in own] for own in blocks]


@pytest.mark.parametrize(
    ("groups", "shares", "sizes"),
    [
        ([("gd", 10, 1, 100, 100)], 1, [[10]]),
        ([("gd", 10, 1, 100, 4)], 1, [[3, 3, 4]]),
        ([("gd", 10, 1, 100, 100)], 2, [[5, 5]]),
        ([("gd", 1, 100, 100, 100)], 3, [[33, 33, 34]]),
        ([("gd", 10, 1, 100, 10), ("ngd", 10, 1, 100, 10), ("ps", 10, 1, 10, 10)], 2, [[10], [10], [10]]),
        ([("gd", 10, 1, 200, 10), ("ngd", 10, 1, 50, 10), ("ps", 10, 1, 10, 10)], 2, [[5, 5], [10], [10]]),
        ([("gd", 10, 1, 100, 10), ("ngd", 10, 1, 100, 10), ("ps", 10, 1, 100, 10)], 2, [[10], [10], [5, 5]]),
        ([("gd", 2, 1, 100, 10)], 8, [[1, 1]]),
        ([("gd", 3, 1, 100, 1), ("ngd", 10, 1, 10, 10)], 2, [[1, 1, 1], [10]]),  # the longest cannot be split
    ],
)
def test_each_process_gets_about_the_same_work(
    groups: list[tuple[str, int, int, int, int]], shares: int, sizes: list[list[int]]
) -> None:
    runs = [a_group(*group[:4]) for group in groups]
    own_groups = [Group(own, group[4], (0.0, group[3])) for own, group in zip(runs, groups, strict=True)]
    blocks = balanced(own_groups, shares)
    assert sizes_of(blocks) == sizes
    for own, found in zip(runs, blocks, strict=True):
        assert Counter(config.run_id for block in found for row in block for config in row) == Counter(
            config.run_id for config in own
        )


@pytest.mark.parametrize(
    ("fixed", "each", "sizes"),
    [
        (0.0, 1.0, [[5, 5], [5, 5]]),
        (40.0, 1.0, [[10], [10]]),  # a block of five takes nearly as long as one of ten
    ],
)
def test_blocks_are_cut_where_that_saves_time(fixed: float, each: float, sizes: list[list[int]]) -> None:
    groups = [
        Group(a_group(opt, 10, 1, steps), 10, (fixed * steps, each * steps))
        for opt, steps in (("gd", 200), ("ngd", 120))
    ]
    assert sizes_of(balanced(groups, 2)) == sizes


@pytest.mark.deep
@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 40), st.integers(1, 50), st.floats(0, 1), st.floats(1e-6, 1)), min_size=1, max_size=4
    ),
    st.integers(1, 5),
)
def test_cutting_makes_no_process_take_longer(groups: list[tuple[int, int, float, float]], shares: int) -> None:
    own = [Group(LANES[:lanes], width, (fixed, each)) for lanes, width, fixed, each in groups]

    def last(cuts: list[list[Any]]) -> float:
        loads = [0.0] * shares
        for size in sorted(
            (g.seconds(block) for g, blocks in zip(own, cuts, strict=True) for block in blocks), reverse=True
        ):
            loads[loads.index(min(loads))] += size
        return max(loads)

    found = balanced(own, shares)
    assert last(found) <= last([list(rectangles(group.runs, group.width)) for group in own]) * (1 + 1e-12)
    for group, blocks in zip(own, found, strict=True):
        assert all(sum(map(len, block)) <= group.width for block in blocks)
        assert sorted(run.run_id for block in blocks for row in block for run in row) == sorted(
            run.run_id for run in group.runs
        )
