"""The budget of a command: a time."""

import re
from contextlib import suppress
from typing import Any

import pytest

from bench.config.values import read_budget
from bench.train import stop
from tests.test_cli import fails
from tests.waiting import until

TUNE = ("tune", "--task", "synthetic", "--opt", "ngd", "--device", "cpu", "--trainer.max_steps", "5")


@pytest.mark.parametrize(("text", "seconds"), [("6h", 21600), ("90min", 5400), ("1.5h", 5400), ("30 s", 30)])
def test_a_budget_is_a_time(text: str, seconds: float) -> None:
    assert read_budget(text).seconds == seconds


@pytest.mark.parametrize("text", ["6", "-3h", "6 weeks", "1e9d", "6h30"])
def test_other_budgets_are_refused(cli, text: str) -> None:
    assert "write a time (--budget 6h, 90min, 2d)" in fails(cli, *TUNE, f"--budget={text}")


def wait_before_anybody_listens(*args: Any, **more: Any) -> bool:
    until(lambda: False, "an interrupt")
    return False


def lose_the_first_interrupt(*args: Any, **more: Any) -> bool:
    with suppress(KeyboardInterrupt):  # as Python does in a finalizer
        wait_before_anybody_listens(*args)
    return wait_before_anybody_listens(*args)


@pytest.mark.parametrize("work", [wait_before_anybody_listens, lose_the_first_interrupt], ids=["unheard", "lost"])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # so Python loses an interrupt
def test_a_time_that_is_spent_shows_the_result_so_far(cli, monkeypatch, tmp_path, work) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("bench.tuning.study.execute", work)
    monkeypatch.setattr(stop, "AGAIN", 0.2)
    answer = cli(*TUNE, "--trainer.max_steps", 100_000, "--budget", "0.2s", "--workers", 1)
    assert answer.code == 1  # no trial has a score yet
    assert re.search(r"25 runs take about \S+ min with 1 worker, more than the budget of 0\.2s: all opt", answer.err)
    assert "the budget of 0.2s is spent; this is the result so far, and the same command continues" in answer.err


SWEEP = ("sweep", "--task", "synthetic", "--opt", "ngd", "--opt.lr", "0.1,1", "--seeds", 2, "--device", "cpu")


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.deep)])
def test_a_plan_whose_time_is_spent_stops_as_at_ctrl_c(cli, tmp_path, monkeypatch, workers: int) -> None:
    monkeypatch.chdir(tmp_path)
    words = (*SWEEP, "--opt.lr", "1e-9,1e-8", "--trainer.max_steps", 1_000_000, "--workers", workers)
    answer = cli(*words, "--budget", "3s")
    assert answer.code == 130
    assert "bench: the budget of 3s is spent; 0 of 4 runs are stored, and the same command continues" in answer.err
