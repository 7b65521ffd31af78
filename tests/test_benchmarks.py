"""`make bench`: its cases measure, and a bound is judged by the median."""

import os
import signal
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from bench.train.callbacks import Recorder
from benchmarks import loops
from benchmarks.__main__ import SUBJECTS
from benchmarks.timing import Case


@pytest.mark.parametrize("place", SUBJECTS.values())
def test_every_subject_exists(place: str) -> None:
    module, _, function = place.partition(":")
    assert callable(getattr(import_module(f"benchmarks.{module}"), function))


@pytest.mark.deep
@pytest.mark.parametrize("name", ["synthetic", "widths", "lanes", "cifar10", "store"])
def test_a_subject_measures(name: str) -> None:
    module, _, function = SUBJECTS[name].partition(":")
    cases = list(getattr(import_module(f"benchmarks.{module}"), function)(True, "cpu"))
    assert all(value > 0 for case in cases for value in case.values)


def test_a_bound_is_judged_by_the_median() -> None:
    assert str(Case("a", "b", [1, 5, 2], 2)) == "a, against b: 2x [1, 5], bound <= 2x: within"
    assert str(Case("a", "", [1, 5, 2], 3, at_least=True, unit=" s")) == "a: 2 s [1, 5], bound >= 3 s: OUTSIDE"


def test_an_interrupted_run_is_no_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = Recorder.on_train_start

    def interrupted(*args: Any) -> None:
        start(*args)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Recorder, "on_train_start", interrupted)
    config = loops.configure("synthetic", "ngd", 500, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        loops.program(config)()
