"""What watches a run: the curve, evaluation, target, divergence, budget, checkpoints and the request to stop."""

import math
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.loggers import Logger
from torch import Tensor

from bench.machine import is_main_process
from bench.progress import Progress
from bench.store import RunFolder, RunResult
from tasks import TaskSpec
from tasks.base import CurveRow, Task

DIVERGED_FACTOR = 100
"""A run has diverged when the median loss since the last look exceeds this many times (1 + first loss). Ours."""

_BATCH_TAGS = ("batch/loss", "batch/grad_norm", "batch/raw_step", "batch/applied_step")


class StopRequest:
    """Notes SIGINT and SIGTERM instead of dying of them; a second one interrupts at once.

    Attributes:
        signal: the one that asked the run to stop, or None.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._listening = False

    def note(self, number: int, frame: FrameType | None = None) -> None:
        """Handle a signal.

        Raises:
            KeyboardInterrupt: at the second one.
        """
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number
        if is_main_process():
            os.write(2, b"\nbench: finishing the steps at hand and saving; once more to stop at once\n")

    def take_over(self) -> None:
        """Handle the signals, in place of whoever does now; Lightning's own handler ends a run without a checkpoint."""
        if self._listening:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, self.note)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Listen as long as the context lasts; outside the main thread whoever runs us handles signals."""
        self._listening = threading.current_thread() is threading.main_thread()
        old = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        self.take_over()
        try:
            yield
        finally:
            if self._listening:
                for number, handler in old.items():
                    signal.signal(number, handler)


class Recorder(pl.Callback):
    """Fills a RunResult while the task trains, and decides when the run ends.

    All ranks take the same decisions: they see the same averaged losses, and what differs (clocks, signals) is
    agreed on. Only rank 0 has a folder and writes.
    """

    def __init__(
        self,
        result: RunResult,
        spec: TaskSpec,
        folder: RunFolder | None,
        checkpoint: Path,
        stop: StopRequest,
        progress: Progress,
        *,
        val_every: int,
        max_seconds: float | None,
        checkpoint_seconds: float,
        loggers: Sequence[Logger],
    ) -> None:
        self.result, self.spec, self.folder, self.stop, self.progress = result, spec, folder, stop, progress
        self.val_every, self.max_seconds, self.checkpoint_seconds, self.loggers = (
            val_every,
            max_seconds,
            checkpoint_seconds,
            loggers,
        )
        self.checkpoint = checkpoint
        self.first_loss: float | None = None
        self.best_selected: float | None = None
        self.capped = 0
        self._aside = 0.0
        self._checkpointed = time.monotonic()

    # -- what a resumed run needs ---------------------------------------------------------------------------------

    _KEPT = (
        "best_step",
        "validations",
        "steps",
        "skipped",
        "steps_to_target",
        "seconds_to_target",
        "wall_s",
        "train_s",
    )

    def state_dict(self) -> dict[str, Any]:
        """The part of the record that a resumed run goes on from."""
        return {
            "result": {name: getattr(self.result, name) for name in self._KEPT},
            "first_loss": self.first_loss, "best_selected": self.best_selected, "capped": self.capped,
        }  # fmt: skip

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a record."""
        for name, value in state_dict["result"].items():
            setattr(self.result, name, value)
        self.first_loss, self.best_selected, self.capped = (
            state_dict[k] for k in ("first_loss", "best_selected", "capped")
        )

    # -- Lightning's hooks ----------------------------------------------------------------------------------------

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clocks."""
        self.stop.take_over()
        if self.folder is not None and self.result.steps:
            self.folder.truncate(self.result.steps)
        self._start = time.monotonic() - self.result.wall_s
        self._aside = self.result.wall_s - self.result.train_s
        self.progress.start(self.result.steps)

    def on_train_batch_end(  # type: ignore[override]
        self, trainer: pl.Trainer, pl_module: Task, outputs: Any, batch: tuple[int, int], batch_idx: int
    ) -> None:
        """Take over the curve of the steps just made, and decide how to go on."""
        rows = to_host(pl_module.record.curve, pl_module.data.loss_offset.get("train", 0.0))
        pl_module.record.curve.clear()
        bad = next((i for i, row in enumerate(rows) if not _sound(row, _scaler(trainer) is not None)), None)
        if bad is not None:
            rows = rows[: bad + 1]
        elif pl_module.plan.batch_size == pl_module.data.sizes["train"]:
            rows = rows[: _moving(rows) + 1]
        first = self.result.steps
        self.result.steps += len(rows)
        self._record(rows, first)
        self._record_measurements(pl_module)
        self._clock()
        self.progress.update(self.result.steps, rows[-1][0], rows[-1][3], lambda: _batch_accuracy(pl_module))
        self._judge(trainer, pl_module, rows, bad is not None)
        if self.result.status == "running" and self.result.steps >= pl_module.plan.total_steps:
            self.result.status = "completed"
        due = self.result.steps % self.val_every == 0
        if self.result.status == "completed" or (self.result.status == "running" and due):
            self._validate(pl_module)
        if self.result.status == "running":
            self._agree(trainer)  # after the evaluation, so that a checkpoint holds it
            if self.result.status == "timeout" and not due:
                self._validate(pl_module)
        trainer.should_stop = self.result.status != "running"

    def on_train_end(self, trainer: pl.Trainer, pl_module: Task) -> None:  # type: ignore[override]
        """Report the metric at the final and the best weights."""
        result = self.result
        self.progress.stop()
        if result.status in ("killed", "running"):
            return
        if result.steps > result.skipped:
            result.cap_share = self.capped / (result.steps - result.skipped)
        begun = time.monotonic()
        if result.status != "diverged":
            result.final = self._report("final", pl_module)
            if result.final is None:
                self._diverged("the final weights give values that are not finite")
        if pl_module.best_weights is not None:
            if result.best_step == result.steps and result.final is not None:
                result.best, result.metrics["best"] = result.final, result.metrics["final"]
            else:
                pl_module.load_best_weights()
                result.best = self._report("best", pl_module)
        self._aside += time.monotonic() - begun
        self._clock()

    # -- decisions ------------------------------------------------------------------------------------------------

    def _record(self, rows: Sequence[tuple[float, float, float, float]], first: int) -> None:
        """Add the steps after step `first` to the curve."""
        self.capped += sum(applied < raw for _, _, raw, applied in rows)
        self.result.skipped += sum(not math.isfinite(norm) for _, norm, _, _ in rows)
        numbered = [(first + i + 1, *row) for i, row in enumerate(rows)]
        if self.folder is not None:
            self.folder.append_curve(numbered)
        for logger in self.loggers:
            for step, *values in numbered:
                logger.log_metrics(dict(zip(_BATCH_TAGS, values, strict=True)), step)

    def _record_measurements(self, task: Task) -> None:
        """Keep what was measured up to the last step that counts."""
        for points, values in task.record.measurements:
            if not values:
                continue
            table = torch.stack(list(values.values()), dim=1).tolist()
            rows = [(step, *row) for step, row in zip(points, table, strict=True) if step <= self.result.steps]
            if self.folder is not None:
                self.folder.append_measurements(list(values), rows)
            for logger in self.loggers:
                for step, *row in rows:
                    logger.log_metrics({f"measured/{k}": v for k, v in zip(values, row, strict=True)}, step)
        task.record.measurements.clear()

    def _judge(self, trainer: pl.Trainer, task: Task, rows: Sequence[tuple[float, ...]], bad: bool) -> None:
        """End the run if it has diverged or can go no further."""
        losses, norms = [row[0] for row in rows], [row[1] for row in rows]
        if self.first_loss is None:
            self.first_loss = losses[0]
        median, scaler = sorted(losses)[len(losses) // 2], _scaler(trainer)
        if bad:
            self._diverged(f"loss or gradient is not finite at step {self.result.steps}")
        elif median > DIVERGED_FACTOR * (1 + abs(self.first_loss)):
            self._diverged(f"the loss grew from {self.first_loss:.3g} to {median:.3g} by step {self.result.steps}")
        elif scaler is not None and not any(map(math.isfinite, norms)) and scaler.get_scale() < 1:
            self._diverged(f"every gradient overflows in half precision at step {self.result.steps}")
        elif task.plan.batch_size == task.data.sizes["train"] and norms[-1] == 0:
            self.result.status, self.result.reason = "completed", "converged: the gradient is 0 in this precision"

    def _report(self, which: str, task: Task) -> float | None:
        """Record the metrics of the present weights on the reporting split; None if they are not finite."""
        values = task.evaluate(self.result.split)
        if not all(map(math.isfinite, values.values())):
            return None
        self.result.metrics[which] = dict(values)
        return values[self.spec.metric]

    def _diverged(self, reason: str) -> None:
        self.result.status, self.result.reason = "diverged", reason

    def _validate(self, task: Task) -> None:
        begun = time.monotonic()
        values = task.evaluate(task.data.select)
        self._aside += time.monotonic() - begun
        self._clock()
        if not all(map(math.isfinite, values.values())):
            self._diverged(f"the {task.data.select} metrics are not finite at step {self.result.steps}")
            return
        self.result.validations.append({"step": self.result.steps, "train_s": self.result.train_s, **values})
        value = values[self.spec.metric]
        if self.best_selected is None or self._better(value, self.best_selected):
            self.best_selected, self.result.best_step = value, self.result.steps
            task.keep_best_weights()
        target = self.spec.target
        if target is not None and self.result.steps_to_target is None and not self._better(target, value):
            self.result.steps_to_target = self.result.steps
            self.result.seconds_to_target = self.result.train_s
        for logger in self.loggers:
            logger.log_metrics({f"{task.data.select}/{name}": x for name, x in values.items()}, self.result.steps)
        self.progress.validated(self.result.steps, task.data.select, values)

    def _better(self, a: float, b: float) -> bool:
        return a > b if self.spec.mode == "max" else a < b

    def _agree(self, trainer: pl.Trainer) -> None:
        """Look at clocks and signals, the same on all ranks, and stop or save."""
        timeout = self.max_seconds is not None and self.result.train_s >= self.max_seconds
        due = time.monotonic() - self._checkpointed >= self.checkpoint_seconds
        flags = [self.stop.signal or 0, int(timeout), int(due)]
        if trainer.world_size > 1:
            shared = torch.tensor(flags, device=trainer.strategy.root_device)
            torch.distributed.all_reduce(shared, torch.distributed.ReduceOp.MAX)
            flags = shared.tolist()
        number, timeout, due = flags
        if number or due:
            self._save(trainer)
        if number:
            self.stop.signal = number
            self.result.status = "killed"
            self.result.reason = f"stopped by {signal.Signals(number).name} at step {self.result.steps}"
        elif timeout:
            self.result.status = "timeout"
            self.result.reason = f"max_seconds={self.max_seconds:g} were over at step {self.result.steps}"

    def _save(self, trainer: pl.Trainer) -> None:
        begun = time.monotonic()
        temporary = self.checkpoint.with_suffix(".tmp")
        trainer.save_checkpoint(temporary)
        if trainer.is_global_zero:
            temporary.replace(self.checkpoint)
        self._checkpointed = time.monotonic()
        self._aside += self._checkpointed - begun
        self._clock()

    def _clock(self) -> None:
        self.result.wall_s = time.monotonic() - self._start
        self.result.train_s = self.result.wall_s - self._aside


def to_host(curve: list[CurveRow], loss_offset: float) -> list[tuple[float, float, float, float]]:
    """The rows as floats, with one transfer for each column."""

    def column(values: tuple[Any, ...]) -> list[float]:
        if all(isinstance(value, Tensor) for value in values):
            return torch.stack(values).tolist()
        return [float(value) for value in values]

    losses, *rest = (column(values) for values in zip(*curve, strict=True))
    return list(zip([loss + loss_offset for loss in losses], *rest, strict=True))


def _sound(row: tuple[float, float, float, float], scaled: bool) -> bool:
    # With a gradient scaler an overflow of the gradient is an ordinary event: that step was skipped.
    return math.isfinite(row[0]) and (scaled or math.isfinite(row[1]))


def _moving(rows: Sequence[tuple[float, float, float, float]]) -> int:
    """How many rows there are before the gradient is 0 for good; in the full batch that is convergence."""
    still = next((i for i, row in enumerate(reversed(rows)) if row[1] != 0), len(rows))
    return len(rows) - still


def _scaler(trainer: pl.Trainer) -> Any:
    return getattr(trainer.precision_plugin, "scaler", None)


def _batch_accuracy(task: Task) -> float | None:
    metric, outcome = task.metrics().get("accuracy"), task.record.outcome
    if metric is None or outcome is None:
        return None
    return float(metric.to(task.device)(outcome.predictions.detach(), outcome.labels))
