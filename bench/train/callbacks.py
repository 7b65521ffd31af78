"""Lightning callbacks that record training: curves, evaluation, budget and checkpoints."""

import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.loggers import Logger
from numpy.typing import NDArray
from torch import Tensor

from bench.config.run_config import RunConfig
from bench.progress import Progress
from bench.store.files import disk_errors
from bench.store.record import RunResult
from bench.store.writer import BlockWriter
from bench.train.checkpoints import STEPS, save
from bench.train.stop import StopRequest
from bench.train.watch import Watch, summarize
from tasks.core.task import Task
from tasks.core.training_step import CurveRow

_BATCH_TAGS = ("batch/loss", "batch/grad_norm", "batch/raw_step", "batch/applied_step")


class BaseRecorder(pl.Callback):
    """Common part of the recorders of one run and of many: clocks, checkpoints and stop requests.

    All ranks make the same decisions: they see the same averaged losses, and they agree on clocks and signals.
    Only rank 0 has a writer.
    """

    def __init__(self, config: RunConfig, task: Task, writer: BlockWriter | None, stop: StopRequest) -> None:
        self.writer, self.stop, self.checkpoint_seconds = writer, stop, config.trainer.checkpoint_seconds
        per_epoch = task.data.sizes["train"] // task.plan.batch_size
        self.val_every = config.trainer.val_every or max(per_epoch, -(-task.plan.total_steps // 20))
        self.measured = list[dict[str, float]]()  # of each run, after its last step
        self._checkpointed = time.monotonic()
        self._aside = 0.0

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Handle signals as usual again: all ranks are connected."""
        self.stop.take_over()

    def begin(self, wall_s: float = 0.0, train_s: float = 0.0) -> None:
        """Start the clocks; a resumed run has already used some time."""
        self.stop.take_over()
        self._start = time.monotonic() - wall_s
        self._aside = wall_s - train_s

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Time outside training."""
        begun = time.monotonic()
        yield
        self._aside += time.monotonic() - begun

    def seconds(self) -> tuple[float, float]:
        """Seconds since the start, and seconds of training."""
        wall = time.monotonic() - self._start
        return wall, wall - self._aside

    def agree(self, trainer: pl.Trainer, timeout: bool = False) -> tuple[int, bool]:
        """Check clocks and signals, consistently on all ranks, and save if it is time.

        Returns:
            The stop signal, or 0, and whether the time limit is reached on any rank.
        """
        due = time.monotonic() - self._checkpointed >= self.checkpoint_seconds
        flags = [self.stop.signal or 0, int(timeout), int(due)]
        if trainer.world_size > 1:
            shared = torch.tensor(flags, device=trainer.strategy.root_device)
            torch.distributed.all_reduce(shared, torch.distributed.ReduceOp.MAX)
            flags = shared.tolist()
        number, over, due = flags
        if number or due:
            with self.aside():
                self._save(trainer)
        if number:
            self.stop.heard(number)
        return number, bool(over)

    def _save(self, trainer: pl.Trainer) -> None:
        if self.writer is None:
            save(trainer, Path("last.ckpt"))  # rank 0 writes it
        else:
            self.writer.flush()
            with disk_errors(self.writer.store):
                save(trainer, self.writer.checkpoint)
        self._checkpointed = time.monotonic()


class Recorder(BaseRecorder):
    """Fills a RunResult while the task trains, and decides when the run ends."""

    def __init__(
        self,
        config: RunConfig,
        result: RunResult,
        writer: BlockWriter | None,
        stop: StopRequest,
        progress: Progress,
        task: Task,
        loggers: Sequence[Logger],
    ) -> None:
        super().__init__(config, task, writer, stop)
        self.result, self.progress, self.loggers = result, progress, loggers
        self.max_seconds = config.trainer.max_seconds
        self.watch = Watch(result, task.plan.batch_size == task.data.sizes["train"])

    def state_dict(self) -> dict[str, Any]:
        """The part of the record that a resumed run needs."""
        return {**self.watch.state_dict(), STEPS: self.result.steps}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume from a record."""
        self.watch.load_state_dict(state_dict)

    # -- Lightning's hooks ----------------------------------------------------------------------------------------

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clocks."""
        self.begin(self.result.wall_s, self.result.train_s)
        self.progress.start(self.result.cost)

    def on_train_batch_end(  # type: ignore[override]
        self, trainer: pl.Trainer, pl_module: Task, outputs: Any, batch: tuple[int, int], batch_idx: int
    ) -> None:
        """Add the last steps to the curve, and decide how to continue."""
        rows = to_host(pl_module.record.curve, pl_module.data.loss_offset.get("train", 0.0))
        pl_module.record.curve.clear()
        self.result.engine = "compiled" if pl_module.plan.compiled else "lightning"
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        (summary,) = summarize(rows[:, None], full_batch=self.watch.full_batch, scaled=scaler is not None)
        rows = rows[: summary.steps]
        first = self.result.steps + 1
        self.watch.take(summary)
        self.watch.computed(pl_module.evaluations - pl_module.steps_done)
        if self.writer is not None:
            self.writer.append_curve(rows[:, None])
        for logger in self.loggers:
            for step, values in enumerate(rows.tolist(), first):
                logger.log_metrics(dict(zip(_BATCH_TAGS, values, strict=True)), step)
        self._record_measurements(pl_module)
        self._clock()
        self.progress.update(self.result.cost, rows[-1, 0], rows[-1, 3], lambda: _batch_accuracy(pl_module))
        if self.watch.running and scaler is not None and summary.skipped == summary.steps and scaler.get_scale() < 1:
            self.watch.diverged(f"every gradient overflows in half precision at step {self.result.steps}")
        if self.watch.running and pl_module.spent:
            self.result.status = "completed"
        due = self.result.steps % self.val_every == 0
        if self.result.status == "completed" or (self.watch.running and due):
            self._validate(pl_module)
        if self.watch.running:
            self._agree(trainer)  # after the evaluation, so that the checkpoint includes it
            if self.result.status == "timeout" and not due:
                self._validate(pl_module)
        trainer.should_stop = not self.watch.running

    def on_train_end(self, trainer: pl.Trainer, pl_module: Task) -> None:  # type: ignore[override]
        """Report the metric at the final and the best weights."""
        result = self.result
        self.progress.stop(self.result.cost)
        if result.status in ("killed", "running"):
            return
        self.watch.close()
        with self.aside():
            if result.status != "diverged":
                self._report("final", pl_module)
                if pl_module.plan.measure_every:
                    with pl_module.in_eval_mode():
                        self.measured = [{name: float(value) for name, value in pl_module.measure().items()}]
            if pl_module.best_weights is not None:
                if result.best_step == result.steps and result.final is not None:
                    result.best, result.metrics["best"] = result.final, result.metrics["final"]
                else:
                    pl_module.load_best_weights()
                    self._report("best", pl_module)
        self._clock()

    # -- records and decisions ------------------------------------------------------------------------------------

    def _record_measurements(self, task: Task) -> None:
        """Keep measurements up to the last valid step."""
        for points, values in task.record.measurements:
            steps = [step for step in points if step <= self.result.steps]
            if not values or not steps:
                continue
            table = torch.stack(list(values.values()), dim=1)[: len(steps)].cpu().double().numpy()
            if self.writer is not None:
                self.writer.append_measurements(list(values), steps, table[:, None])
            for logger in self.loggers:
                for step, row in zip(steps, table.tolist(), strict=True):
                    logger.log_metrics({f"measured/{k}": v for k, v in zip(values, row, strict=True)}, step)
        task.record.measurements.clear()

    def _report(self, which: Literal["final", "best"], task: Task) -> None:
        """Record the metrics of the current weights on the reporting splits."""
        first, *others = (task.evaluate(split, best=which == "best") for split in (self.result.split, *task.data.also))
        self.watch.reported(which, first, dict(zip(task.data.also, others, strict=True)))

    def _validate(self, task: Task) -> None:
        with self.aside():
            values = task.evaluate(task.data.select)
        self._clock()
        if self.watch.validated(values):
            task.keep_best_weights()
        if self.result.status == "diverged":
            return
        for logger in self.loggers:
            logger.log_metrics({f"{task.data.select}/{name}": x for name, x in values.items()}, self.result.steps)
        self.progress.validated(self.result.steps, task.data.select, values)

    def _agree(self, trainer: pl.Trainer) -> None:
        over = self.max_seconds is not None and self.result.train_s >= self.max_seconds
        number, timeout = self.agree(trainer, over)
        self._clock()
        if number:
            self.result.status = "killed"
            self.result.reason = f"stopped by {signal.Signals(number).name} at step {self.result.steps}"
        elif timeout:
            self.result.status = "timeout"
            self.result.reason = f"max_seconds={self.max_seconds:g} elapsed at step {self.result.steps}"

    def _clock(self) -> None:
        self.result.wall_s, self.result.train_s = self.seconds()


def to_host(curve: list[CurveRow], loss_offset: float) -> NDArray[np.float64]:
    """Loss, gradient norm, raw and applied step size, shape (steps, 4), with one transfer for each."""

    def column(values: tuple[Any, ...]) -> NDArray[np.float64]:
        if all(isinstance(value, Tensor) for value in values):
            return torch.stack(values).cpu().double().numpy()
        return np.array([float(value) for value in values])

    rows = np.stack([column(values) for values in zip(*curve, strict=True)], axis=1)
    rows[:, 0] += loss_offset
    return rows


def _batch_accuracy(task: Task) -> float | None:
    metric, outcome = task.metrics().get("accuracy"), task.record.outcome
    if metric is None or outcome is None:
        return None
    return float(metric.to(task.device)(outcome.predictions.detach(), outcome.labels))
