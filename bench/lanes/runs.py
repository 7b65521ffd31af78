"""Train a block of lanes with Lightning and store each lane as an ordinary run."""

import signal
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from numpy.typing import NDArray

from bench.config.files import TunedBy
from bench.config.run_config import RunConfig
from bench.errors import RunBroke, RunBusy, UserError, described
from bench.lanes.engine import Lanes
from bench.lanes.module import LanesModule
from bench.lanes.optimizers import Weights
from bench.progress import SweepProgress
from bench.store.record import RunResult
from bench.store.stores import Contents, last_checkpoint
from bench.store.writer import BlockWriter
from bench.text import counted
from bench.train.callbacks import BaseRecorder
from bench.train.checkpoints import STEPS, usable_steps
from bench.train.memory import peak_memory, ran_out
from bench.train.runner import StepRanges, build, make_trainer, new_result, quiet
from bench.train.stop import StopRequest
from bench.train.training_plan import make_plan
from bench.train.watch import Watch, summarize

Grid = Sequence[Sequence[RunConfig]]
"""Configurations of a block, shape (G, R): a row shares task, seed and data seed; all share one `block_key`."""


def make_lanes(grid: Grid, *, solved: bool = False) -> Lanes:
    """The lanes of a block in their initial state; an illegal option or missing data are a UserError.

    With `solved` the facts about the problems, which may take long, are computed while the data have full precision.
    """
    first = grid[0][0]
    tasks, plans, data = [], [], None
    for row in grid:
        task, _ = build(row[0], data)
        data = None if task.data.seeded else task.data
        if solved:
            task.data.facts()
        tasks.append(task)
        plans.append([make_plan(config, task) for config in row])
    plans[0][0].make_optimizer(tasks[0].parameters())  # raises as it would for a single run
    dtype = torch.float64 if first.precision == "64-true" else torch.float32
    return Lanes(tasks, plans, torch.device(first.device), dtype)


def train_block(
    grid: Grid,
    stop: StopRequest,
    progress: SweepProgress,
    *,
    plan: str | None = None,
    tuned_by: TunedBy | None = None,
    width: int | None = None,
) -> list[RunResult] | None:
    """Train the runs of a block and store them together; None if a signal asked to stop.

    An interrupted block continues from its checkpoint.

    Args:
        grid: the configurations.
        stop: listens to signals.
        progress: shows the progress.
        plan: purpose of the runs (`RunResult.plan`).
        tuned_by: the source of their hyperparameters.
        width: the measured maximum of lanes, for the record: a repeated command makes the same blocks.

    Raises:
        RunBusy: another process is training this block, or just finished it.
        UserError: the configuration cannot be trained, or the store cannot be written.
        RunBroke: the training failed.
        RunFailed: the disk is full or unavailable.
        Exception: memory is short (`bench.train.memory.ran_out`).
    """
    first = grid[0][0]
    configs = [config for row in grid for config in row]
    contents = Contents([first.store], (config.run_id for config in configs))
    if any(block.busy or block.done for block in contents.blocks.values()):
        raise RunBusy("another process is training some of these runs, or has just finished them")
    lanes: Lanes | None = None
    writer: BlockWriter | None = None
    saved = 0
    try:
        lanes = make_lanes(grid, solved=True)
        results = [
            new_result(config, task, lanes.plan, plan, tuned_by)
            for row, task in zip(grid, lanes.tasks, strict=True)
            for config in row
        ]
        for result in results:
            result.engine = "lanes"
            if width is not None:
                result.environment["width"] = width
        checkpoint = last_checkpoint(first.store, [result.run_id for result in results], lanes=True)
        saved = usable_steps(checkpoint, put_aside=True)
        for result in results:
            if saved and (earlier := contents.get(result.run_id)) is not None:
                result.begun, result.plan = earlier.begun or result.begun, earlier.plan
        writer = BlockWriter(first.store, results, resume=saved)
        recorder = LanesRecorder(first, results, lanes, writer, stop, progress)
        module = LanesModule(lanes)
        with quiet():
            trainer = make_trainer(first, [recorder])
            several = first.traits.calls_closure_again  # so lanes may spend their budgets at any step
            steps = StepRanges(lanes, recorder.val_every, 1 if several else first.task_spec.steps_per_call)
            trainer.fit(module, steps, ckpt_path=writer.checkpoint if saved else None, weights_only=True)
        if recorder.killed:
            why = f"stopped by {signal.Signals(stop.signal or signal.SIGTERM).name} at step {lanes.steps_done}"
            writer.leave([replace(result, status="killed", reason=why) for result in results])
            return None
        for result in results:
            result.memory = peak_memory()
        writer.end(results, recorder.measured)
    except SystemExit:
        if stop.signal is None:
            raise
        return None  # Lightning turns a KeyboardInterrupt into an exit with code 1
    except Exception as error:
        if writer is not None and ran_out(error) and len(configs) > 1:
            writer.checkpoint.unlink(missing_ok=True)  # smaller blocks cannot continue from it
        if isinstance(error, UserError) or ran_out(error):
            raise
        why = described(error)
        if writer is not None:
            writer.leave([replace(result, status="failed", reason=why) for result in writer.runs])
            why += f"; delete {writer.folder} to begin anew" * bool(saved)
        raise RunBroke(f"{counted(len(configs), f'{first.opt} lane')} failed: {why}") from error
    finally:
        if writer is not None:
            writer.drop()
        if lanes is not None:
            vars(lanes).clear()  # a Trainer's reference cycles would keep the weights until garbage collection
    return results


class LanesRecorder(BaseRecorder):
    """Fills the records of many runs while they train together, and decides when each of them ends.

    A lane's seconds are its share of the program's time: each interval is divided by the number of lanes that trained.
    """

    def __init__(
        self,
        config: RunConfig,
        results: Sequence[RunResult],
        lanes: Lanes,
        writer: BlockWriter,
        stop: StopRequest,
        progress: SweepProgress,
    ) -> None:
        super().__init__(config, lanes.tasks[0], writer, stop)
        self.lanes, self.block, self.progress = lanes, writer, progress
        data = lanes.tasks[0].data
        self.select, self.report, self.also = data.select, data.report, data.also
        self.watches = [Watch(result, lanes.full_batch) for result in results]
        offsets = [task.data.loss_offset.get("train", 0.0) for task in lanes.tasks]
        self.offsets = np.repeat(offsets, lanes.shape[1])
        self.killed = False

    def state_dict(self) -> dict[str, Any]:
        """The part of the records that a resumed block needs."""
        return {"watches": [watch.state_dict() for watch in self.watches], STEPS: self.lanes.steps_done}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from saved records."""
        for watch, state in zip(self.watches, state_dict["watches"], strict=True):
            watch.load_state_dict(state)
        self._update_alive()

    def on_train_start(self, trainer: pl.Trainer, pl_module: LanesModule) -> None:  # type: ignore[override]
        """Start the clocks."""
        self._advance(0, [watch for watch in self.watches if not watch.running])
        self.begin()
        self._clocked = (0.0, 0.0)

    def on_train_batch_end(  # type: ignore[override]
        self, trainer: pl.Trainer, pl_module: LanesModule, outputs: Any, batch: tuple[int, int], batch_idx: int
    ) -> None:
        """Record the curves of the last steps, and decide which lanes continue."""
        lanes = self.lanes
        training = [watch for watch in self.watches if watch.running]
        rows = pl_module.history.flatten(2).cpu().double().numpy().transpose(0, 2, 1)
        rows[..., 0] += self.offsets
        summaries, evaluations = summarize(rows, full_batch=lanes.full_batch), lanes.evaluations.ravel().tolist()
        for watch, summary, count in zip(self.watches, summaries, evaluations, strict=True):
            if watch.running:
                watch.take(summary)
                watch.computed(count - lanes.steps_done)
                if watch.running and count >= lanes.plan.total_steps:
                    watch.result.status = "completed"
        self.block.append_curve(rows)
        self._record_measurements(pl_module)
        self._clock(training)
        due = lanes.steps_done % self.val_every == 0
        looked_at = [w for w in training if w.result.status == "completed" or (w.running and due)]
        if looked_at:
            self._validate(looked_at)
            self._clock(training)
        ended = [watch for watch in training if not watch.running]
        lanes.keep(lanes.final, self._mask(ended))
        self._update_alive()
        self._advance(len(rows) * len(training), ended, looked_at)
        if lanes.alive.any():
            number, _ = self.agree(trainer)
            self.killed = bool(number)
        trainer.should_stop = self.killed or not lanes.alive.any()

    def on_train_end(self, trainer: pl.Trainer, pl_module: LanesModule) -> None:  # type: ignore[override]
        """Report the metric at the final and the best weights."""
        if self.killed:
            return
        with self.aside():
            final, best = self._reports(self.lanes.final), self._reports(self.lanes.best)
            if self.lanes.plan.measure_every:
                measured = self.lanes.measure([self.lanes.final])
                rows = self._rows({name: value[0].cpu().double().numpy() for name, value in measured.items()})
                ended = [watch.result.status != "diverged" for watch in self.watches]
                self.measured = [row if kept else {} for row, kept in zip(rows, ended, strict=True)]
        for watch, last, chosen in zip(self.watches, final, best, strict=True):
            result = watch.result
            watch.close()
            if result.status != "diverged":
                watch.reported("final", *last)
            if result.best_step is not None:
                watch.reported("best", *chosen)
        self._clock(self.watches)

    def _validate(self, watches: Sequence[Watch]) -> None:
        with self.aside():
            values = self._rows(self.lanes.evaluate_split(self.select))
            chosen = {id(watch) for watch in watches}
            better = [w for w, row in zip(self.watches, values, strict=True) if id(w) in chosen and w.validated(row)]
            self.lanes.keep(self.lanes.best, self._mask(better))

    def _record_measurements(self, module: LanesModule) -> None:
        for steps, by_name in module.measured:
            if by_name:
                values = torch.stack(list(by_name.values()), dim=-1).flatten(1, 2)
                self.block.append_measurements(list(by_name), steps, values.cpu().double().numpy())
        module.measured.clear()

    def _advance(self, steps: int, ended: Sequence[Watch], evaluated: Sequence[Watch] = ()) -> None:
        share = self.lanes.steps_done / self.lanes.plan.total_steps
        alive = int(self.lanes.alive.sum())
        self.progress.advance(steps, alive, [w.result for w in ended], share, [w.result for w in evaluated])

    def _reports(self, weights: Weights) -> list[tuple[dict[str, float], dict[str, dict[str, float]]]]:
        """For each lane, the values on the reporting split, and those on other splits by split."""
        first, *others = (self._rows(self.lanes.evaluate_split(split, weights)) for split in (self.report, *self.also))
        return [(values, dict(zip(self.also, more, strict=True))) for values, *more in zip(first, *others, strict=True)]

    def _rows(self, values: dict[str, NDArray[np.float64]]) -> list[dict[str, float]]:
        columns = [column.ravel().tolist() for column in values.values()]
        return [dict(zip(values, row, strict=True)) for row in zip(*columns, strict=True)]

    def _mask(self, watches: Sequence[Watch]) -> NDArray[np.bool_]:
        chosen = {id(watch) for watch in watches}
        return np.array([id(watch) in chosen for watch in self.watches]).reshape(self.lanes.shape)

    def _update_alive(self) -> None:
        self.lanes.alive = np.array([watch.running for watch in self.watches]).reshape(self.lanes.shape)

    def _clock(self, watches: Sequence[Watch]) -> None:
        """Divide the time since the last call among these lanes."""
        now = self.seconds()
        wall, train = (new - old for new, old in zip(now, self._clocked, strict=True))
        self._clocked = now
        for watch in watches:
            watch.result.wall_s += wall / len(watches)
            watch.result.train_s += train / len(watches)
