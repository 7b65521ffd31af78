"""Plans: how runs are divided into blocks and shared by workers; also failed runs."""

import os
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from distributed import LocalCluster

import bench.execute.here
import bench.train.runner
from bench.config.run_config import RunConfig, on_device, resolve
from bench.errors import RunBusy, UserError
from bench.execute import Effort
from bench.execute.blocks import Block, Choice
from bench.execute.choice import Choices
from bench.execute.cluster import Crew
from bench.execute.execute import execute
from bench.execute.worker import Message
from bench.progress import SweepProgress
from bench.store.record import RunResult
from bench.train.stop import StopRequest
from tests.outcomes import leftovers, outcome
from tests.stored import Store

SWEEP = ("sweep", "--task", "synthetic", "--opt", "ngd", "--opt.lr", "0.1:1:4", "--seeds", "2", "--device", "cpu")
SMALL = (*SWEEP, "--trainer.max_steps", "30")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BENCH_STORE", str(tmp_path / "runs"))
    return tmp_path


def configs(store: Path, *, opt: str = "ngd", **words: Any) -> list[RunConfig]:
    """Two learning rates."""
    base = {"task": "synthetic", "opt": opt, "device": "cpu", "store": store, "data": store.parent}
    return [resolve(base | words | {"opt.lr": lr}) for lr in (0.1, 1.0)]


def test_a_worker_refuses_other_code(here: Path) -> None:
    (here / "mine.py").write_text("from torch.optim import SGD\nclass Mine(SGD):\n    pass\n")
    message = Message.of(Block([configs(here / "runs", opt="mine.py:Mine")], lanes=True), "", None)
    with pytest.raises(UserError, match=r"a worker has other code of synthetic or mine\.py:Mine; repeat the command"):
        replace(message, run_ids=["mine-0"]).moved()


def test_an_interrupted_command_repeats_its_blocks(cli, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second measurement would choose other blocks, but the stored runs decide."""
    widths, sizes = iter((2, 4)), list[int]()
    monkeypatch.setattr(Choices, "of", lambda *_: Choice(lanes=True, width=next(widths)))
    train = bench.execute.here.train_block

    def train_block(grid: Any, stop: StopRequest, *args: Any, **named: Any) -> Any:
        sizes.append(sum(map(len, grid)))
        if len(sizes) == 2:
            stop.signal = signal.SIGINT
        return train(grid, stop, *args, **named)

    monkeypatch.setattr(bench.execute.here, "train_block", train_block)
    assert cli(*SMALL).code == 130
    assert cli(*SMALL).code == 0
    assert sizes == [2, 2, 2, 2, 2]


# -- single runs and workers ------------------------------------------------------------------------------------------


DEADLY = """
import os
from torch.optim import SGD

class Deadly(SGD):
    def __init__(self, params, lr: float = 0.1) -> None:
        super().__init__(params, lr=lr)

    def step(self, closure=None):
        if self.param_groups[0]["lr"] == 0.2:
            os._exit(3)
        return super().step(closure)
"""


@pytest.mark.deep
def test_a_run_that_kills_its_workers_harms_no_other(cli, here: Path) -> None:
    (here / "deadly.py").write_text(DEADLY)
    words = ("--opt", "deadly.py:Deadly", "--opt.lr", "0.1,0.2,0.4", "--seeds", "1", "--engine", "lightning")
    answer = cli(
        "sweep", "--task", "synthetic", *words, "--trainer.max_steps", "5", "--device", "cpu", "--workers", "2"
    )
    assert answer.code == 1
    assert answer.err.splitlines()[-1].endswith("failed: 3 workers died of it (killed, out of memory, or a crash)")
    stored = {run.config["opt_options"]["lr"]: run.status for run in Store(here / "runs").runs()}
    assert (stored[0.1], stored[0.4]) == ("completed", "completed")


@pytest.mark.deep
@pytest.mark.parametrize("shared", [True, False])
def test_a_cluster_stores_the_same_results(cli, here: Path, monkeypatch: pytest.MonkeyPatch, shared: bool) -> None:
    words = (*SMALL, "--engine", "lanes", "--width", "4")
    assert cli(*words, "--store", here / "alone").code == 0
    if not shared:
        message = Message.of
        monkeypatch.setattr(Message, "of", lambda block, topic, token: message(block, topic, "elsewhere"))
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster:
        answer = cli(*words, "--cluster", cluster.scheduler_address)
    assert answer.code == 0, answer.err
    assert outcome(here / "runs") == outcome(here / "alone")
    assert leftovers(here / "runs") == []


@pytest.mark.parametrize("content", ["{", "{}", "[]", '{"address": 5}'])
def test_a_file_of_no_scheduler_is_one_line(cli, here: Path, content: str) -> None:
    (here / "scheduler.json").write_text(content)
    answer = cli(*SMALL, "--cluster", "scheduler.json")
    assert answer.code == 2
    assert "--cluster scheduler.json: no Dask cluster with workers answers (" in answer.err.splitlines()[-1]


@pytest.mark.deep
def test_workers_have_their_share_of_the_processors(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("bench.execute.cluster._cpus", lambda: 6)
    config = on_device(resolve({"task": "synthetic", "opt": "gd", "device": "cpu"}))
    with Crew(Effort(workers="2"), config) as crew:
        crew.start()
        assert {*crew._client.run(torch.get_num_threads).values()} == {min(3, os.cpu_count() or 1)}


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


def fragile(folder: Path, *bad: float, rates: str = "0.1,0.2,0.4,0.8") -> tuple[str, ...]:
    (folder / "fragile.py").write_text(f"BAD = {bad}\n{FRAGILE}")
    return ("sweep", "--task", "synthetic", "--opt", "fragile.py:Fragile", "--opt.lr", rates, "--seeds", "1",
            "--trainer.max_steps", "5", "--device", "cpu")  # fmt: skip


@pytest.mark.matrix(keep=1)
@pytest.mark.parametrize("engine", ["lightning", "auto", "lanes"])
def test_a_run_that_breaks_harms_no_other(cli, here: Path, engine: str) -> None:
    answer = cli(*fragile(here, 0.2), "--engine", engine, "--width", "4")
    assert answer.code == 1
    assert answer.err.splitlines()[-1].startswith("bench: error: ")
    assert "this step is too long" in answer.err.splitlines()[-1]
    rows = [line.removeprefix("*").split() for line in answer.out.splitlines() if line.endswith("0/1")]
    assert [(row[0], row[-1]) for row in rows] == [("0.1", "0/1"), ("0.4", "0/1"), ("0.8", "0/1")]
    stored = {run.config["opt_options"]["lr"]: run.status for run in Store(here / "runs").runs()}
    assert stored == {0.1: "completed", 0.2: "failed", 0.4: "completed", 0.8: "completed"}


@pytest.mark.parametrize(
    ("bad", "says", "ended"),
    [
        ((0.1, 0.2, 0.4), "the first 3 failed, the last with: run synthetic-", {"failed": 3}),
        ((0.2, 0.4, 0.8), "3 runs failed: synthetic-", {"failed": 3, "completed": 2}),
    ],
)
def test_three_that_break_end_the_command_before_one_has_ended_only(
    cli, here: Path, bad: tuple[float, ...], says: str, ended: dict[str, int]
) -> None:
    answer = cli(*fragile(here, *bad, rates="0.1,0.2,0.4,0.8,1.6"), "--engine", "lightning")
    assert answer.code == 1
    assert answer.err.splitlines()[-1].startswith(f"bench: error: {says}")
    assert Counter(run.status for run in Store(here / "runs").runs()) == ended


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
    assert execute(configs, SweepProgress("", "min", enabled=False), Crew(Effort(), configs[0]))
    assert tried == ["gd", "ngd", "ps", "gd"]
    assert Counter(run.status for run in Store(here / "runs").runs()) == {"completed": 3}
