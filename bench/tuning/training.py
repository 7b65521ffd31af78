"""Training of what studies want."""

from collections.abc import Sequence
from itertools import zip_longest

from bench.config.checks import check_places
from bench.errors import RunBroke
from bench.execute import Effort
from bench.execute.blocks import missing
from bench.execute.cluster import Crew
from bench.execute.execute import execute
from bench.progress import SweepProgress, say
from bench.text import counted, listed
from bench.tuning.study import Study
from bench.tuning.suite import Suite


def carry_out(studies: Sequence[Study], crew: Crew, effort: Effort, progress: SweepProgress) -> bool:
    """Train what studies want, until all are finished; False if a signal asked to stop.

    Runs of all studies alternate, so that a budget of time is shared. A run that fails costs its point the score.

    Raises:
        UserError: a run cannot be trained, or more runs are wanted than the budget allows.
        RunFailed: the first runs failed, or the disk is full or gone.
    """
    while todo := {study.name: wanted for study in studies if (wanted := study.result().todo)}:
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
    return True


def carry_out_suite(
    suite: Suite, studies: Sequence[Study], crew: Crew, effort: Effort, *, progress: bool = True
) -> bool:
    """Tune the optimizers of a task, top up to equal budgets, and run the winners; False if a signal asked to stop."""
    spec = studies[0].spec
    while True:
        suite.advance(studies)
        todo = [config for study in studies for config in study.result().todo]
        if not todo:
            return True
        check_places(todo)
        what = "fresh seeds" if studies[0].report else "tuning"
        if progress:
            names, trials = (
                listed([study.spec.opt for study in studies]),
                max(max(study.total, study.trials) for study in studies),
            )
            say(f"{spec.task}: {what} of {names}, {counted(trials, 'trial')} each")
        shown = SweepProgress(f"{spec.task}: {what}", spec.mode, enabled=progress)
        if not carry_out(studies, crew, effort, shown):
            return False
