"""The budget of a command: a time."""

import json
from contextlib import suppress
from typing import Any

import pytest
from bench.tuning.workers import Workers

from bench.execute.pool import Pool
from bench.grammar.values import read_budget
from bench.train import stop
from tests.test_cli import fails
from tests.waiting import until

TUNE = ("tune", "--task", "synthetic", "--opt", "ngd", "--device", "cpu", "--trainer.max_steps", "5")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("6h", 21600),
        ("90min", 5400),
        ("1.5h", 5400),
        ("30 s", 30),
        ("2d", 172800),
    ],
)
def test_a_budget_is_a_time(text: str, seconds: float) -> None:
    assert read_budget(text).seconds == seconds


@pytest.mark.parametrize("text", ["", "6", "0h", "200runs", "-3h", "6 weeks", "h", "1e9d", "6h30"])
def test_other_budgets_are_refused(cli, text: str) -> None:
    assert "write a time (--budget 6h, 90min, 2d)" in fails(cli, *TUNE, f"--budget={text}")


def wait_for_a_request(self: Pool, *args: Any) -> bool:
    until(args[-1], "a request to stop")
    return False


def wait_before_anybody_listens(*args: Any) -> bool:
    until(lambda: False, "an interrupt")
    return False


def lose_the_first_interrupt(*args: Any) -> bool:
    with suppress(KeyboardInterrupt):  # as Python does in a finalizer
        wait_before_anybody_listens(*args)
    return wait_before_anybody_listens(*args)


@pytest.mark.parametrize(
    ("place", "work"),
    [(Pool, wait_for_a_request), (Workers, wait_before_anybody_listens), (Workers, lose_the_first_interrupt)],
    ids=["heard", "unheard", "lost"],
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # so Python loses an interrupt
def test_a_time_that_is_spent_stops_the_workers_and_shows_the_result(cli, monkeypatch, tmp_path, place, work) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(place, "work", work)
    monkeypatch.setattr(stop, "AGAIN", 0.2)
    answer = cli(*TUNE, "--budget", "0.2s")
    assert answer.code == 1  # no trial has a score yet
    assert "the budget of 0.2s is spent; the same command with a larger one continues" in answer.err


SWEEP = ("sweep", "--task", "synthetic", "--opt", "ngd", "--opt.lr", "0.1,1", "--seeds", 2, "--device", "cpu")


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.deep)])
def test_a_plan_whose_time_is_spent_stops_as_at_ctrl_c(cli, tmp_path, monkeypatch, workers: int) -> None:
    monkeypatch.chdir(tmp_path)
    words = (*SWEEP, "--opt.lr", "1e-9,1e-8", "--trainer.max_steps", 1_000_000, "--workers", workers)
    answer = cli(*words, "--budget", "3s")
    assert answer.code == 130
    assert "bench: the budget of 3s is spent; 0 of 4 runs are stored, and the same command continues" in answer.err


def test_a_suite_whose_time_is_spent_stops_as_at_ctrl_c(cli, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Workers, "work", wait_before_anybody_listens)
    suite = {"title": "s", "tasks": ["synthetic"], "optimizers": ["gd"], "seeds": 1, "tune": {"trials": 2, "seeds": 1}}
    (tmp_path / "s.yaml").write_text(json.dumps(suite | {"settings": {"trainer.max_steps": 5, "device": "cpu"}}))
    answer = cli("suite", "s.yaml", "--budget", "0.5s")
    assert (answer.code, "the budget of 0.5s is spent; the same command continues" in answer.err) == (130, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "fit --task synthetic --opt gd --budget 1h",
            "--budget is for several runs; give --seeds too, or leave it out",
        ),
        ("reproduce vasudeva2025/joint --budget 1.5runs", "write a time (--budget 6h, 90min, 2d)"),
    ],
)
def test_budgets_of_plans_that_cannot_be(cli, words: str, message: str) -> None:
    assert message in fails(cli, *words.split())
