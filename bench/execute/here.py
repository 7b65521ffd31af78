"""Training a block in this process, which is the command's or a worker."""

from bench.config.tuned import TunedBy
from bench.errors import RunBroke
from bench.execute.apart import run_apart
from bench.execute.blocks import Block
from bench.lanes.runs import train_block
from bench.progress import RunInPlan, SweepProgress
from bench.train.memory import keep_freed_memory
from bench.train.runner import run
from bench.train.stop import StopRequest


def train(block: Block, stop: StopRequest, progress: SweepProgress, plan: str, tuned_by: TunedBy | None) -> bool:
    """Train a block for a purpose (`RunResult.plan`); False if a signal asked to stop.

    RunBusy if another process trains some of the runs, RunBroke if it failed; other errors end the command, but for
    lack of memory (`bench.train.memory.ran_out`).
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
