"""Training and measuring in this process, which is the command's or a worker."""

from collections.abc import Callable, Sequence

from bench.config.run_config import RunConfig
from bench.config.tuned import TunedBy
from bench.errors import RunBroke
from bench.execute import Effort
from bench.execute.apart import run_apart
from bench.execute.blocks import Block, Choice
from bench.execute.choice import Choices
from bench.lanes.runs import train_block
from bench.progress import RunInPlan, SweepProgress
from bench.train.memory import keep_freed_memory
from bench.train.runner import run
from bench.train.stop import StopRequest


def train(block: Block, stop: StopRequest, progress: SweepProgress, plan: str, tuned_by: TunedBy | None) -> bool:
    """Train a block; False if a signal asked to stop.

    Args:
        block: the runs.
        stop: a stop request.
        progress: shows the progress.
        plan: purpose of the runs (`RunResult.plan`).
        tuned_by: the study that found their hyperparameters.

    Raises:
        RunBusy: another process trains some of the runs.
        RunBroke: it failed.
        UserError: it cannot be trained.
        RunFailed: the disk is full or gone.
        Exception: memory is short (`bench.train.memory.ran_out`).
    """
    keep_freed_memory()
    if block.lanes:
        results = train_block(block.grid, stop, progress, plan=plan, tuned_by=tuned_by, width=block.width)
        return results is not None
    ((config,),) = block.grid
    shown = RunInPlan(progress)
    try:
        if config.trainer.ranks > 1:
            result = run_apart(config, stop)
        else:
            result = run(config, progress=shown.bar, stop=stop, plan=plan, tuned_by=tuned_by)
    except RunBroke:
        shown.end()
        raise
    except KeyboardInterrupt:
        return False
    if result.status == "killed":
        return False
    shown.end(result)
    return True


def choose(
    groups: Sequence[Sequence[RunConfig]],
    effort: Effort,
    processes: int,
    say: Callable[[str], None],
    stop: StopRequest,
    measured: dict[object, Choice],
) -> list[Choice]:
    """How groups of runs with one `block_key` are executed, the largest first (`Choices`).

    Raises:
        UserError: a run cannot be trained.
    """
    choices = Choices(effort.engine, effort.width, say, processes, stop, measured)
    return [choices.of(group) for group in groups]
