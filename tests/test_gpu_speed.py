"""The measurements of `make gpu`, here on the CPU."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from bench.train.callbacks import Recorder
from benchmarks import training
from benchmarks.gpu.speed import SPEED, lanes_of


@pytest.mark.deep
@pytest.mark.parametrize("task", ["synthetic", "cifar10"])
def test_the_speed_of_lanes_is_measured_at_growing_widths(task: str) -> None:
    rows = lanes_of(task)("cpu", True)
    assert [row.what for row in rows] == [f"{task}, {width} lanes: a step of one" for width in (1, 4)]
    assert all(value > 0 for row in rows for value in row.values)


def test_an_interrupted_run_is_no_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = Recorder.on_train_start

    def interrupted(*args: Any) -> None:
        start(*args)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Recorder, "on_train_start", interrupted)
    config = training.configure("synthetic", "ngd", 500, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        training.by_bench(config)()


@pytest.mark.deep
def test_bert_is_measured_in_tokens_against_plain_lightning() -> None:
    ratio, ours, plain = SPEED["bert"]("cpu", True)
    assert (ratio.baseline, ratio.bound, ratio.at_least) == ("plain Lightning", 1, True)
    for together, a, b in zip(ratio.values, ours.values, plain.values, strict=True):
        assert together == pytest.approx(a / b)
