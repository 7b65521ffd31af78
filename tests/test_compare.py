"""`bench compare`: from a file to a table with verdicts, through check, suite and board."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import bench.api.comparison
from bench.store.stores import Stores
from tests.stored import Store
from tests.test_cli import fails
from tests.tiny import ROOT

MINE = """
import torch


class Signs(torch.optim.Optimizer):
    def __init__(self, params, lr: float = 0.01):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        with torch.enable_grad():
            loss = closure() if closure is not None else None
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(p.grad.sign() * group["lr"])
        return loss


class Forgets(Signs):
    def step(self, closure=None):
        self.taken = getattr(self, "taken", 0) + 1
        for group in self.param_groups:
            group["lr"], kept = group["lr"] / self.taken, group["lr"]
        loss = super().step(closure)
        for group in self.param_groups:
            group["lr"] = kept
        return loss
"""
COMPARE = (
    "compare", "--task", "synthetic", "--opt", "my.py:Signs", "--opt.lr", "0.001,0.003", "--opt.gd.lr", "0.1,1",
    "--trainer.max_steps", "5", "--device", "cpu", "--workers", "1",
)  # fmt: skip


@pytest.fixture(autouse=True)
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my.py").write_text(MINE)


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.api.comparison, "_check", lambda *args, **more: None)


def test_from_a_file_to_a_verdict_and_again_without_training(cli, store: Path, unchecked: None) -> None:
    first = cli(*COMPARE, "--json")
    result = json.loads(first.out)
    rows = {row["opt"]: row for row in result["boards"][0]["tables"][0]["rows"]}
    assert first.code == 0
    assert rows["gd"]["verdict"] == "reference"
    assert rows["my.py:Signs"]["verdict"] in ("better", "worse")
    assert [(row["trials"], row["n"], row["settings"]) for row in rows.values()] == [(2, 7, "tuned")] * 2
    assert "better than gd (tuned" in result["said"][0]
    assert "each has 2 trials of 2 seeds, and 7 fresh seeds" in first.err
    assert [study["opt"] for study in result["studies"]] == [*rows]  # best first
    kept = {run.run_id: run.begun for run in Store(store).runs()}
    assert len(kept) == 22
    out = Path("compared/synthetic/my.Signs")
    assert all((out / f"{name}.png").stat().st_size > 10_000 for name in ("forest", "evaluations"))
    assert result["said"][0] in (out / "quality.md").read_text()
    assert (out / "tuned/synthetic/my.Signs.yaml").is_file()
    again = cli(*COMPARE, "--json")
    assert again.out == first.out
    assert {run.run_id: run.begun for run in Store(store).runs()} == kept


@pytest.mark.deep
def test_the_tuned_settings_train_as_tuned_and_a_stored_comparison_needs_no_torch(cli) -> None:
    words = [word.replace("my.py:Signs", "ngd") for word in COMPARE]
    answer = cli(*words)
    line = "bench fit --config compared/synthetic/ngd/tuned/synthetic/ngd.yaml"
    assert f"use ngd as tuned: {line}\n" in answer.out
    assert cli(*line.split()[1:], "--device", "cpu").err == "bench: already stored; --rerun trains again\n"
    program = f"import sys; from bench.cli import dispatch; dispatch({words}); assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, answer.out)


@pytest.mark.deep
def test_the_board_has_the_named_optimizers_as_these_studies_tuned_them(cli, unchecked: None) -> None:
    """Another study of the reference has more trials, and an optimizer outside the comparison is tuned."""
    for opt in ("gd", "ngd"):
        cli("tune", "--task", "synthetic", "--opt", opt, "--opt.lr", "0.1,1,2", *COMPARE[9:], "--report_seeds", "2")
    rows = json.loads(cli(*COMPARE, "--json").out)["boards"][0]["tables"][0]["rows"]
    assert {row["opt"]: (row["trials"], row["n"]) for row in rows} == {"gd": (2, 7), "my.py:Signs": (2, 7)}


@pytest.mark.deep
def test_checks_are_on_the_board_and_grids_are_topped_up(cli) -> None:
    words = [word for word in COMPARE if word not in ("--opt.lr", "0.001,0.003", "--opt.gd.lr", "0.1,1")]
    answer = cli(*words, "--trials", 2, "--report_seeds", 3, "--against", "gd,ngd", "--json")
    result = json.loads(answer.out)
    rows = {row["opt"]: row for row in result["boards"][0]["tables"][0]["rows"]}
    assert "my.py:Signs: no fault" in answer.err
    assert rows["my.py:Signs"]["conformance"] == "pass"
    assert len({row["trials"] for row in rows.values()}) == 1
    assert rows.keys() == {"gd", "ngd", "my.py:Signs"}
    assert {row["n"] for row in rows.values()} == {3}


@pytest.mark.deep
def test_an_optimizer_that_fails_a_check_is_stopped_unless_somebody_goes_on_anyway(cli, store: Path) -> None:
    words = [w.replace("Signs", "Forgets") for w in COMPARE]
    why = "fails resume, group_values, real_run, which changes results: bench check my.py:Forgets gives advice"
    answer = cli(*words)
    assert (answer.code, answer.err.splitlines()[-1]) == (1, f"bench: error: my.py:Forgets {why}; --anyway continues")
    assert not list(Store(store).runs())
    answer = cli(*words, "--anyway")
    assert answer.code == 0
    assert f"bench: my.py:Forgets {why}\n" in answer.err
    assert "fails group_values, real_run, resume" in answer.out


@pytest.mark.deep
def test_a_dry_run_is_a_plan_and_nothing_else(cli, store: Path) -> None:
    rows = json.loads(cli(*COMPARE, "--dry-run", "--json").out)
    assert {row["opt"]: (row["trials"], row["fresh"]) for row in rows} == dict.fromkeys(
        ("gd", "my.py:Signs"), ([0, 2], [0, 7])
    )
    assert not store.exists()
    assert not Path("compared").exists()


TASKS = tuple("synthetic,mha_planted" if word == "synthetic" else word for word in COMPARE)


@pytest.mark.deep
def test_several_tasks_give_one_board_with_a_verdict_for_each(cli, store: Path, unchecked: None) -> None:
    answer = cli(*TASKS, "--json")
    assert answer.code == 0, answer.err
    result = json.loads(answer.out)
    over, *tables = result["boards"][0]["tables"]
    assert over["title"] == "over all tasks"
    assert [len(table["rows"]) for table in tables] == [2, 2]
    (mine,) = (row for row in over["rows"] if row["opt"] == "my.py:Signs")
    for table in tables:
        assert mine[table["title"]] == next(row["verdict"] for row in table["rows"] if row["opt"] == mine["opt"])
    assert [line.partition(",")[0] for line in result["said"][:2]] == ["mha_planted", "synthetic"]
    out = Path("compared/synthetic-mha_planted/my.Signs")
    assert {path.name for path in (out / "tuned").iterdir()} >= {"synthetic", "mha_planted"}
    begun = {run.run_id: run.begun for run in Store(store).runs()}
    assert len(begun) == 44
    assert "over all tasks" not in cli(*COMPARE).out  # one of them alone is stored already
    assert {run.run_id: run.begun for run in Store(store).runs()} == begun


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "--opt is missing: name one or more optimizers"),
        ("--opt ngd", "--task is missing"),
        ("--task synthetic --opt ngdd", "unknown optimizer 'ngdd'; did you mean 'ngd'?"),
        ("--task synthetic --opt my.py:None", "my.py has no 'None'"),
        ("--task synthetic --opt gd", "--opt gd: it is the reference itself; name another one with --against"),
        ("--task synthetic --opt ngd --opt.adamw.lr 1", "--opt.adamw.lr: it is not part of the comparison; name it"),
        ("--task mnist --opt gd,sgd", "batch sizes full (gd) and 100 (sgd) make different problems"),
        ("--task synthetic --opt ngd --seeds 0,1", "--seeds and --report_seeds share 0, 1"),
        ("--task synthetic --opt ngd --seed 3", "unknown option '--seed'; did you mean '--seeds'?"),
    ],
)
def test_words_that_cannot_be(cli, store: Path, words: str, message: str) -> None:
    assert message in fails(cli, "compare", *words.split())
    assert not store.exists()


@pytest.mark.deep
def test_a_baseline_of_the_reference_results_is_not_tuned_again(
    cli, unchecked: None, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("--task", "synthetic", "--trainer.max_steps", "5", "--device", "cpu", "--workers", "1")
    tuned = cli("tune", "--opt", "gd", *words, "--trials", 3, "--seeds", 1, "--report_seeds", 7, "--store", "ref")
    assert tuned.code == 0, tuned.err
    monkeypatch.setenv("BENCH_REFERENCE", "ref")
    answer = cli("compare", "--opt", "my.py:Signs", "--opt.lr", "0.0001:0.01", *words, "--json")
    assert answer.code == 0, answer.err
    result = json.loads(answer.out)
    (study,) = result["studies"]
    assert study["opt"] == "my.py:Signs"
    rows = {row["opt"]: row for row in result["boards"][0]["tables"][0]["rows"]}
    assert rows["gd"]["is_reference"]
    assert "shipped" in rows["gd"]["flags"][0]
    assert rows["my.py:Signs"]["n"] == 7
    shipped, mine = (sum(len(study.trials) for study in Stores([folder]).studies) for folder in (Path("ref"), store))
    assert mine >= shipped
    assert not any(run.config["opt"] == "gd" for run in Store(store).runs())


def test_a_shipped_baseline_is_used_at_its_own_budget_only(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_REFERENCE", str(ROOT / "results/reference/runs"))
    words = ("compare", "--task", "mha_dm1", "--opt", "ngd", "--device", "cpu", "--dry-run")
    for given in ((), ("--trials", 25, "--budget", "2h")):
        answer = cli(*words, *given)
        shipped = "(gd: reference results of 25 trials): each has 25 trials of 5 seeds"
        assert f"ngd against gd on mha_dm1 {shipped}" in answer.out
        assert "tuned too" not in answer.err
    answer = cli(*words, "--trials", 3)
    assert "ngd against gd on mha_dm1: each has 3 trials of 2 seeds" in answer.out
    assert "gd: tuned too, since no reference results have these" in answer.err
    answer = cli(*words, "--against", "adamw,ps")
    assert "(adamw and ps: reference results of 25 trials): each has 25 trials of 5 seeds" in answer.out
    assert "132 runs to do" in answer.out
    assert "gd and sgdm: tuned too, since" in cli(*words, "--against", "gd,sgdm").err


def test_an_optimizer_that_ignores_the_schedule_is_named_before_training(cli) -> None:
    words = ("compare", "--task", "synthetic", "--opt", "ps", "--device", "cpu", "--trainer.max_steps", "5")
    answer = cli(*words, "--trainer.schedule", "cosine", "--dry-run")
    assert "--trainer.schedule has no effect on ps: it needs none" in answer.err
