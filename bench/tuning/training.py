"""Training of what studies want."""

from collections.abc import Sequence
from itertools import zip_longest

from bench.config.checks import check_places
from bench.errors import RunBroke
from bench.execute import Effort
from bench.execute.cluster import Crew
from bench.execute.execute import execute
from bench.progress import SweepProgress
from bench.text import listed
from bench.tuning.study import Study, equalize


def carry_out(studies: Sequence[Study], crew: Crew, effort: Effort, *, progress: bool = True) -> bool:
    """Tune the optimizers of a task, top up to equal budgets, and run the winners; False if a signal asked to stop.

    Runs of all studies alternate, so that a budget of time is shared. A run that fails costs its point the score.
    """
    views = dict[bool, SweepProgress]()
    while True:
        equalize(studies)
        todo = {f"study {study.name}": runs for study in studies if (runs := study.result().todo)}
        configs = [config for row in zip_longest(*todo.values()) for config in row if config is not None]
        if not configs:
            return True
        check_places(configs)
        phase = "fresh seeds" if (fresh := studies[0].report) else "tuning"
        label = f"{studies[0].spec.task}: {phase} of {listed([study.spec.opt for study in studies])}"
        view = views.setdefault(fresh, SweepProgress(label, studies[0].spec.mode, enabled=progress))
        titles = {config.run_id: title for title, runs in todo.items() for config in runs}
        try:
            if not execute(configs, view, effort, plan=titles, crew=crew):
                return False
        except RunBroke as error:
            if not error.runs:
                raise
            for study in studies:
                study.failed |= error.runs
