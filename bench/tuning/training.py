"""Training of what studies want."""

from collections.abc import Sequence
from itertools import zip_longest

from bench.errors import RunBroke
from bench.execute import Effort
from bench.execute.execute import Crew, execute
from bench.execute.plan import missing
from bench.progress import SweepProgress
from bench.tuning.study import Study


def carry_out(studies: Sequence[Study], crew: Crew, effort: Effort, progress: SweepProgress) -> bool:
    """Train what studies want, until all are finished; False if a signal asked to stop.

    Runs of all studies alternate, so that a budget of time is shared. A run that fails costs its point the score.

    Raises:
        UserError: a run cannot be trained, or more runs are wanted than the budget allows.
        RunFailed: the first runs failed, the disk is full or gone, or workers die at start.
    """
    while True:
        todo = {study.name: results.todo for study in studies if (results := study.result()).todo}
        if not todo:
            return True
        configs = [config for row in zip_longest(*todo.values()) for config in row if config is not None]
        if effort.budget is not None:
            crew.trained += len(missing(configs))
            effort.budget.refuse_beyond(crew.trained)
        titles = {config.run_id: f"study {name}" for name, several in todo.items() for config in several}
        try:
            if not execute(configs, progress, effort, plan=titles, crew=crew):
                return False
        except RunBroke as error:
            if not error.runs:
                raise
            for study in studies:
                study.failed |= error.runs
