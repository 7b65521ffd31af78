"""`--logger` passes the curve and the evaluations to Lightning's loggers."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from bench.cli import main
from bench.config.run_config import resolve
from bench.errors import UserError
from bench.train.runner import _loggers
from tests.stored import Store

STEPS = 20
CURVE = ("batch/loss", "batch/grad_norm", "batch/raw_step", "batch/applied_step")


def fit(store: Path, *words: str) -> int | str | None:
    run = ["fit", "--task", "synthetic", "--opt", "ngd", "--trainer.max_steps", str(STEPS), "--store", str(store)]
    with pytest.raises(SystemExit) as exit_:
        main([*run, *words])
    return exit_.value.code


def record(store: Path) -> dict[str, Any]:
    [path] = store.glob("*/done/runs.jsonl")
    return json.loads(path.read_text())


def test_csv(tmp_path: Path) -> None:
    assert fit(tmp_path, "--logger", "csv", "--trainer.val_every", "5") == 0
    [path] = tmp_path.glob("*/csv/version_0/metrics.csv")
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    curve = [row for row in rows if row["batch/raw_step"]]
    assert [int(row["step"]) for row in curve] == list(range(1, STEPS + 1))
    assert all(float(row[name]) > 0 for row in curve for name in CURVE)
    evaluations = {int(row["step"]): float(row["train/accuracy"]) for row in rows if row["train/accuracy"]}
    stored = record(tmp_path)["validations"]
    assert evaluations == {v["step"]: v["accuracy"] for v in stored}
    assert list(evaluations) == [5, 10, 15, 20]


def test_csv_of_a_second_attempt_keeps_the_first(tmp_path: Path) -> None:
    for words in ([], ["--rerun"]):
        assert fit(tmp_path, "--logger", "csv", *words) == 0
    first, second = sorted(tmp_path.glob("*/csv/version_*/metrics.csv"))
    assert first.read_text() == second.read_text()


def test_tensorboard(tmp_path: Path) -> None:
    assert fit(tmp_path, "--logger", "tensorboard") == 0
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    [path] = tmp_path.glob("*/tensorboard/version_0/events.out.tfevents.*")
    events = EventAccumulator(str(path.parent))
    events.Reload()
    for name in CURVE[1:]:
        assert [event.step for event in events.Scalars(name)] == list(range(1, STEPS + 1))
    assert {"train/loss", "train/accuracy", "batch/loss"} <= set(events.Tags()["scalars"])


@pytest.mark.parametrize(
    ("logger", "flags"),
    [
        ("tensorboard", ["fabric.loggers.tensorboard._TENSORBOARD", "fabric.loggers.tensorboard._TENSORBOARDX"]),
        ("wandb", ["pytorch.loggers.wandb._WANDB"]),
    ],
)
def test_missing_package(logger: str, flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for flag in flags:
        monkeypatch.setattr(f"lightning.{flag}_AVAILABLE", False)
    config = resolve({"task": "synthetic", "opt": "ngd", "logger": logger, "store": tmp_path})
    with pytest.raises(UserError) as error:
        _loggers(config)
    assert error.value.exit_code == 2
    assert str(error.value) == (f"--logger {logger}: the package {logger} is not installed: uv sync --extra {logger}")


class Failing:
    """A logger whose server has stopped by the time it is closed."""

    def log_hyperparams(self, params: object) -> None: ...

    def log_metrics(self, metrics: object, step: int) -> None: ...

    def finalize(self, status: str) -> None:
        raise ConnectionError("the server has gone")


def test_a_logger_that_fails_at_the_end_costs_a_line_and_not_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("bench.train.runner._loggers", lambda config: [Failing()])
    assert fit(tmp_path, "--logger", "csv") == 0
    assert "bench: warning: Failing could not finish: the server has gone" in capsys.readouterr().err
    [result] = Store(tmp_path).runs()
    assert (result.status, result.steps) == ("completed", STEPS)
