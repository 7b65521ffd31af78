"""Plans: other processes join them through the store or as a Slurm array; also failed runs."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
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
from bench.execute.choice import Choices
from bench.execute.cuts import Cut, Group, balanced
from bench.execute.here import train_cuts
from bench.execute.plan import Plan, load, open_plans
from bench.execute.pool import Pool
from bench.process import bench_command
from bench.progress import Advance, RunInPlan, SweepProgress
from bench.store.record import RunResult
from bench.store.store import Store
from bench.train.stop import StopRequest
from optimizers import Parameter
from optimizers.groups import divide
from tests.daemons import until
from tests.slow import GATE, HELD, SLOW
from tests.test_kills import leftovers, outcome

SWEEP = ("sweep", "--task", "synthetic", "--opt", "ngd", "--opt.lr", "0.1:1:4", "--seeds", "2", "--device", "cpu")
SMALL = (*SWEEP, "--trainer.max_steps", "30")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BENCH_STORE", str(tmp_path / "runs"))
    return tmp_path


def plan_of(answer: Any) -> tuple[str, list[str]]:
    """The name of a plan, and the command that joins it."""
    assert answer.code == 0, answer.err
    name = answer.out.split()[1]
    return name, shlex.split(answer.out.partition("that sees it: bench ")[2])


@pytest.mark.deep
def test_a_plan_waits_in_the_store_until_somebody_works_on_it(cli, here: Path) -> None:
    created = cli(*SMALL, "--create", "--workers", "2")
    name, words = plan_of(created)
    assert created.out.startswith(
        f"plan {name} of 8 runs is in {here}/runs; to work on it, on any machine that sees it"
    )
    assert words[:3] == ["worker", "--plan", name]
    assert words[words.index("--store") + 1] == f"{here}/runs"
    assert open_plans(here / "runs") == [name]
    assert [path.name for path in (here / "runs").iterdir()] == ["plans"]
    worked = cli(*words)
    assert (worked.code, worked.out) == (0, "")
    assert open_plans(here / "runs") == []
    assert Counter(run.status for run in Store(here / "runs").runs()) == {"completed": 8}
    assert {run.plan for run in Store(here / "runs").runs()} == {"sweep"}
    shown = cli(*SMALL)
    assert (shown.code, shown.err) == (0, "all 8 runs are stored\n")
    again = cli(*SMALL, "--create")
    assert again.err == "bench: all 8 runs are stored; the command without --slurm or --create shows the result\n"
    assert "it is finished or misspelt; existing plans: none" in cli(*words).err


@pytest.mark.deep
def test_leftovers_of_a_killed_writer_are_removed_with_its_plan(cli, here: Path) -> None:
    plan_of(cli(*SMALL, "--create"))
    (folder,) = (here / "runs" / "plans").iterdir()
    (folder.parent / "begun").mkdir()
    for left in (folder, folder.parent / "begun"):
        (left / ".0123abcd").write_text('{"tit')
    assert cli(*SMALL).code == 0
    assert not folder.parent.exists()


def test_runs_of_a_plan_are_those_of_the_command(cli, here: Path) -> None:
    words = ("--engine", "lanes", "--width", "4")
    _, join = plan_of(cli(*SMALL, *words, "--create"))
    assert cli(*join).code == 0
    assert cli(*SMALL, *words, "--store", here / "own").code == 0
    assert outcome(here / "runs") == outcome(here / "own")


@pytest.mark.deep
def test_a_plan_says_how_its_runs_are_made(cli, here: Path) -> None:
    name, join = plan_of(cli(*SMALL, "--engine", "lightning", "--create", "--workers", "3"))
    plan = load(name, {"data": here, "store": here / "runs"})
    assert (plan.engine, plan.width, plan.shares, plan.name) == ("lightning", None, 3, name)
    assert cli(*join).code == 0
    assert {run.engine for run in Store(here / "runs").runs()} == {"lightning"}


def test_a_plan_says_where_tuned_settings_come_from(here: Path) -> None:
    config = resolve({"task": "synthetic", "opt": "ngd", "device": "cpu", "store": here / "runs"})
    for tuned_by in (None, TunedBy("a study", "val"), TunedBy("ngd.yaml", None)):
        sources = {} if tuned_by is None else {("synthetic", "ngd"): tuned_by}
        plan = Plan("fit", [config], sources=sources)
        plan.keep()
        loaded = load(plan.name, {"data": here, "store": here / "runs"})
        assert (loaded.sources, loaded.tuned_by(config)) == (sources, tuned_by)
        plan.forget()


@pytest.mark.deep
def test_an_experiment_is_a_plan_too(cli, here: Path) -> None:
    words = ("reproduce", "vasudeva2025/fixed-decoder", "--quick", "--trainer.max_steps", "20", "--device", "cpu")
    _, join = plan_of(cli(*words, "--create"))
    assert cli(*join).code == 0
    shown = cli(*words)
    assert shown.code == 0, shown.err
    assert "runs are stored" in shown.err
    assert {run.plan for run in Store(here / "runs").runs()} == {"experiment vasudeva2025/fixed-decoder"}


@pytest.mark.deep
def test_several_seeds_are_a_plan_too(cli, here: Path) -> None:
    words = ("fit", "--task", "synthetic", "--opt", "ngd", "--trainer.max_steps", "20", "--device", "cpu")
    _, join = plan_of(cli(*words, "--seeds", "3", "--create"))
    assert cli(*join).code == 0
    shown = cli(*words, "--seeds", "3")
    assert (shown.code, shown.err) == (0, "all 3 runs are stored\n")
    assert {run.plan for run in Store(here / "runs").runs()} == {"fit"}


@pytest.mark.parametrize("more", [("--create",), ("--slurm",), ("--storage", "postgresql+psycopg://a:b@host/c")])
def test_one_run_is_no_plan(cli, here: Path, more: tuple[str, ...]) -> None:
    answer = cli("fit", "--task", "synthetic", "--opt", "ngd", "--device", "cpu", *more)
    assert (answer.code, answer.err) == (
        2,
        f"bench: error: {more[0]} is for several runs; give --seeds too, or leave it out\n",
    )


def test_infinite_values_survive_in_a_plan(cli, here: Path) -> None:
    _, join = plan_of(cli("sweep", "--task", "synthetic", "--opt", "sngd", "--opt.lr", "0.1,1", "--opt.max_step", "inf",
                          "--seeds", "1", "--trainer.max_steps", "5", "--device", "cpu", "--create"))  # fmt: skip
    assert cli(*join).code == 0
    assert len(list(Store(here / "runs").runs())) == 2


# -- from others ------------------------------------------------------------------------------------------------------


def test_a_plan_imports_only_named_plug_ins(cli, here: Path) -> None:
    plugin = here / "mine.py"
    plugin.write_text("from torch.optim import SGD\nclass Mine(SGD):\n    pass\n")
    words = ("sweep", "--task", "synthetic", "--opt", "mine.py:Mine", "--opt.lr", "0.1,1", "--seeds", "1",
             "--trainer.max_steps", "5", "--device", "cpu", "--create")  # fmt: skip
    name, join = plan_of(cli(*words))
    assert join[3:5] == ["--opt", f"{here}/mine.py:Mine"]
    unnamed = cli("worker", "--plan", name)
    assert unnamed.code == 2
    assert "and imports it only if you name it too" in unnamed.err
    assert shlex.join(["--opt", "mine.py:Mine"]) in unnamed.err
    plugin.write_text(plugin.read_text() + "# changed\n")
    changed = cli(*join)
    assert changed.code == 2
    assert f"began with {here}/mine.py:Mine as file " in changed.err
    assert not list((here / "runs").glob("synthetic-*"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda plan: plan["common"].update({"trainer.max_steps": 40}), "was requested with another version"),
        (lambda plan: plan["common"].update({"trainer.max_stepz": 40}), "did you mean"),
        (lambda plan: plan["common"].pop("opt"), "'opt' is missing or invalid; repeat the original command"),
        (lambda plan: plan["common"].update({"task": ["x"]}), "repeat the original command"),
        (lambda plan: plan.update(width=0), "width: "),
        (lambda plan: plan.update(shares=0), "shares: "),
        (lambda plan: plan.update(engine="lightning"), "it contains the plan sweep-"),
        (lambda plan: plan.update(title="\x1b]0;x"), "it contains the plan "),
        (lambda plan: plan.update(runs={}), "it has no runs"),
        (lambda plan: plan.update(more=1), "more: extra inputs are not permitted"),
        (lambda plan: plan.update(engine="magic"), "engine: "),
        (lambda plan: plan["code"].clear(), "repeat the original command"),
        (lambda plan: plan["runs"].update({"../../x": {}}), ": it must match pattern"),
    ],
)
def test_a_plan_that_somebody_changed_is_refused(cli, here: Path, change: Any, message: str) -> None:
    name, join = plan_of(cli(*SMALL, "--create"))
    path = here / "runs" / "plans" / name / "plan.json"
    plan = json.loads(path.read_text())
    change(plan)
    path.write_text(json.dumps(plan))
    answer = cli(*join)
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
    assert message in answer.err
    assert not list((here / "runs").glob("synthetic-*"))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\0", '{"title": 1}'])
def test_a_damaged_plan_is_one_line(cli, here: Path, text: str) -> None:
    name, join = plan_of(cli(*SMALL, "--create"))
    (here / "runs" / "plans" / name / "plan.json").write_text(text)
    answer = cli(*join)
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "repeat the original command" in answer.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((*SMALL[:-4], "--trainer.max_steps", "5", "--create"), "may differ from this machine's; write --device"),
        ((*SMALL, "--create", "--slurm"), "remove one of them"),
        ((*SMALL, "--print"), "--print prints the script of --slurm; write both"),
        ((*SMALL, "--slurm", "--print", "--workers", "0"), "--workers 0: write how many"),
        ((*SMALL, "--slurm", "--print", "--sbatch", "'"), "--sbatch ': no closing quotation"),
        (("worker", "--plan", "../x"), "there is no plan "),
        (("worker", "--plan", "x", "--study", "y"), "--study is for studies; remove it"),
        (("worker", "--plan", "x", "--engine", "lanes"), "--engine is for studies; remove it"),
        (("worker", "--plan", "x", "--width", "2"), "--width is for studies; remove it"),
        (("worker", "--plan", "x", "--shared-by", "2"), "--shared-by is for studies; remove it"),
        (("worker",), "--plan or --study is missing; plans in "),
    ],
)
def test_words_that_make_no_plan(cli, here: Path, words: tuple[str, ...], message: str) -> None:
    answer = cli(*words)
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
    assert message in answer.err
    assert not (here / "runs").exists()


@pytest.mark.matrix(keep=1)
@pytest.mark.parametrize("which", ["plan", "folder"])
def test_a_link_in_the_place_of_a_plan_is_not_followed(cli, here: Path, which: str) -> None:
    name, _ = plan_of(cli(*SMALL, "--create"))
    mine = here / "mine"
    mine.mkdir()
    (mine / "thesis.tex").write_text("years")
    plans = here / "runs" / "plans"
    shutil.rmtree(plans)
    if which == "plan":
        plans.mkdir()
        (plans / name).symlink_to(mine)
    else:
        plans.symlink_to(mine)
    refused = cli(*SMALL, "--create")
    assert (refused.code, refused.out) == (2, "")
    assert "is a symbolic link, and links are not followed" in refused.err
    assert cli(*SMALL, "--engine", "lightning").code == (0 if which == "plan" else 2)  # of another name
    assert cli("sweep", *SMALL[1:-1], "5", "--opt.lr", "0.1", "--seeds", "1").code == 0  # one run has no plan
    assert [path.name for path in mine.iterdir()] == ["thesis.tex"]


@pytest.mark.deep
def test_a_plan_switches_no_logger_on(cli, here: Path) -> None:
    name, join = plan_of(cli(*SMALL, "--create"))
    path = here / "runs" / "plans" / name / "plan.json"
    plan = json.loads(path.read_text())
    plan["common"]["logger"] = "csv"
    path.write_text(json.dumps(plan))
    assert cli(*join).code == 0
    assert not list((here / "runs").rglob("csv"))


@pytest.mark.deep
def test_a_damaged_plan_is_written_again_by_its_command(cli, here: Path) -> None:
    name, join = plan_of(cli(*SMALL, "--create"))
    (here / "runs" / "plans" / name / "plan.json").write_text("{")
    assert plan_of(cli(*SMALL, "--create")) == (name, join)
    assert cli(*join).code == 0


@pytest.mark.deep
def test_plans_that_were_finished_under_another_name_go_too(cli, here: Path) -> None:
    plan_of(cli(*SMALL, "--create", "--workers", "3"))
    assert cli(*SMALL).code == 0
    assert not (here / "runs" / "plans").exists()


@pytest.mark.parametrize("words", [("--json",), ("--out", "x"), ("--logger", "csv")])
def test_settings_that_a_plan_cannot_store_are_refused(cli, here: Path, words: tuple[str, ...]) -> None:
    answer = cli(*SMALL, *words, "--create")
    assert (answer.code, answer.out) == (2, "")
    assert (
        answer.err
        == f"bench: error: {words[0]} is for runs made by this command; remove it with --create and --slurm\n"
    )
    assert not (here / "runs").exists()


@pytest.mark.deep
def test_a_plan_says_what_memory_it_was_given(cli, here: Path) -> None:
    _, join = plan_of(cli(*SMALL, "--memory", "8G", "--create"))
    assert join[3:5] == ["--memory", "8G"]
    assert cli(*join).code == 0


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
    assert train_cuts(Plan("p", [config]), [Cut(False, False, [[[config]]])], progress, StopRequest())
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
    assert not (here / "runs" / "plans").exists()


# -- several workers --------------------------------------------------------------------------------------------------


def start(words: list[str], folder: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "bench", *words]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


@pytest.mark.deep
def test_workers_that_join_share_the_runs_and_one_that_is_killed_loses_nothing(cli, here: Path) -> None:
    words = (
        *SWEEP,
        "--trainer.max_steps",
        "400",
        "--engine",
        "lanes",
        "--width",
        "2",
        "--trainer.checkpoint_seconds",
        "1e-3",
    )
    _, join = plan_of(cli(*words, "--create", "--workers", "2"))
    workers = [start(join, here) for _ in range(2)]
    while not list((here / "runs").glob("*/attempt-1/last.ckpt")) and workers[0].poll() is None:
        time.sleep(0.01)
    workers[0].send_signal(signal.SIGKILL)
    for worker, code in zip(workers, (-signal.SIGKILL, 0), strict=True):
        _, err = worker.communicate(timeout=300)
        assert worker.returncode == code, err
    assert cli(*words, "--store", here / "own").code == 0
    assert outcome(here / "runs") == outcome(here / "own")
    assert leftovers(here / "runs") == []


def test_a_script_for_slurm_joins_the_plan(cli, here: Path) -> None:
    answer = cli(*SMALL, "--slurm", "--print", "--workers", "3", "--sbatch=--partition=gpu")
    assert answer.code == 0, answer.err
    assert not (here / "runs").exists()
    assert subprocess.run(["bash", "-n"], input=answer.out, text=True, check=False).returncode == 0
    assert "#SBATCH --array=0-2\n" in answer.out
    assert "#SBATCH --partition=gpu\n" in answer.out
    assert "gres" not in answer.out
    assert "BENCH_STORAGE" not in answer.out
    (line,) = (line.removesuffix(" &") for line in answer.out.splitlines() if " -m bench " in line)
    words = shlex.split(line)
    name, _ = plan_of(cli(*SMALL, "--create", "--workers", "3"))
    assert words[:7] == [*bench_command("worker"), "--plan", name]
    assert words[words.index("--store") + 1] == str(here / "runs")
    for_gpus = cli(*SMALL[:-3], "cuda", "--slurm", "--print")
    assert for_gpus.code == 0, for_gpus.err
    assert "#SBATCH --gres=gpu:1\n" in for_gpus.out


def test_a_refused_submission_removes_only_a_plan_of_its_own(cli, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> str:
        raise UserError("--slurm: sbatch refused it")

    monkeypatch.setattr("bench.execute.elsewhere.need_slurm", lambda: None)
    monkeypatch.setattr("bench.execute.elsewhere.submit", refuse)
    assert cli(*SMALL, "--slurm", "--workers", "2").code == 2
    assert open_plans(here / "runs") == []
    name, _ = plan_of(cli(*SMALL, "--create", "--workers", "2"))
    assert cli(*SMALL, "--slurm", "--workers", "2").code == 2
    assert open_plans(here / "runs") == [name]


@pytest.mark.deep
def test_a_sweep_as_an_array_survives_a_requeue(slurm, cli, here: Path) -> None:
    gate = here / "gate"
    gate.mkdir()
    own = {"OMP_NUM_THREADS": "1", "BENCH_STORE": str(here / "runs"), GATE: str(gate)}
    env = os.environ | slurm.env | own  # Slurm has the environment of its start
    words = ["sweep", "--task", "synthetic", "--opt", HELD, "--opt.lr", "0.1:1:6", "--seeds", "1", "--device", "cpu",
             "--trainer.max_steps", "300", "--trainer.val_every", "20", "--engine", "lightning"]  # fmt: skip
    command = [sys.executable, "-m", "bench", *words, "--slurm", "--workers", "2"]
    done = subprocess.run(command, env=env, cwd=here, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    job = done.stdout.split("Submitted batch job ")[1].partition(",")[0]
    until(lambda: len(list(gate.glob("trains-*"))) == 2, "both tasks train", seconds=300)
    (gate / "open").touch()
    slurm.requeue(f"{job}_1")
    until(lambda: not slurm("squeue", "-h"), "the array has ended", seconds=300)
    assert "Restarts=1" in slurm("scontrol", "show", "job", f"{job}_1")
    assert Counter(run.status for run in Store(here / "runs").runs()) == {"completed": 6}
    assert open_plans(here / "runs") == []
    assert cli(*words, "--store", here / "own").code == 0
    assert outcome(here / "runs") == outcome(here / "own")


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
    answer = cli(*fragile(here, 0.2), "--engine", engine, "--width", "1" if engine == "lanes" else "4")
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
    cuts, progress = [Cut(False, False, [[[config]]])], SweepProgress("", "min", enabled=False)
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
    cuts = [Cut(lanes=False, compiled=False, blocks=[[[config]]]) for config in configs]
    assert train_cuts(Plan("p", configs), cuts, SweepProgress("", "min", enabled=False), StopRequest())
    assert tried == ["gd", "ngd", "ps", "gd"]
    assert Counter(run.status for run in Store(here / "runs").runs()) == {"completed": 3}


@pytest.mark.deep
def test_plans_are_listed_with_their_stored_runs(cli, here: Path) -> None:
    assert cli("list", "plans") == (0, "no plans in runs\n".replace("runs", f"{here}/runs"), "")
    name, join = plan_of(cli(*SMALL, "--create"))
    other, _ = plan_of(cli(*SMALL, "--opt.lr", "0.1,0.2", "--create"))
    assert cli(*SMALL, "--opt.lr", "0.1").code == 0
    answer = cli("list", "plans", "--json")
    assert (answer.code, json.loads(answer.out)) == (
        0,
        [
            {"plan": each, "stored": 2, "runs": runs, "store": f"{here}/runs"}
            for each, runs in sorted([(name, 8), (other, 4)])
        ],
    )
    (here / "runs" / "plans" / name / "plan.json").write_text("[" * 9000)
    answer = cli("list", "plans")
    assert answer.code == 1
    assert [line.split()[:4] for line in answer.out.splitlines()[1:]] == [[other, "2", "of", "4"]]
    assert answer.err.count("\n") == 1
    assert name in answer.err
    assert cli(*join).code == 2
    refused = cli("list", "plans", "--task", "mnist")
    assert (refused.code, refused.out) == (2, "")


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


MATRIX = Parameter("w", (2, 2), "matrix")


class FakeLanes:
    """Lanes with an empty update."""

    def __init__(self, grid: Any, *, compiled: bool = False) -> None:
        self.compiled = compiled
        self.plan = SimpleNamespace(total_steps=100, parts=divide(grid[0][0].opt_spec, None, {}, [MATRIX]))

    def update_alone(self) -> Callable[[], bool]:
        return lambda: self.compiled


@pytest.mark.parametrize(
    ("opt", "most", "plain", "compiled", "said"),
    [
        ("adam", 1e6, 1.0, 0.25, "4 times as fast, and 0 s more of compiling; used for 400 s"),
        ("adam", 1e6, 1.0, 1.25, "0.8 times as fast, and 0 s more of compiling; not used for 400 s"),
        ("adam", 1e6, 0.01, 0.001, ""),  # 4 s of updates
        ("adam", 9.0, 1.0, 0.25, ""),  # the whole training takes less time than compiling would have to save
        (SLOW, 1e6, 1.0, 0.25, ""),  # it has no pure update
    ],
)
def test_an_update_is_compiled_where_that_saves_time(
    monkeypatch: pytest.MonkeyPatch, opt: str, most: float, plain: float, compiled: float, said: str
) -> None:
    monkeypatch.setattr(bench.execute.choice, "make_lanes", FakeLanes)
    monkeypatch.setattr(bench.execute.choice, "seconds_of", lambda update, ahead: compiled if update() else plain)
    lines: list[str] = []
    blocks = [[[resolve({"task": "synthetic", "opt": opt, "opt.lr": lr})]] for lr in (0.1, 0.2, 0.3, 0.4)]
    assert Choices("lanes", None, None, lines.append).compile_pays(blocks, most) == ("; used" in said)
    assert [line.partition("the update ")[2].partition(" of updates")[0] for line in lines] == [said] * bool(said)
