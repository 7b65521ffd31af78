"""What the functions that tune have in common."""

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

from bench.config.checks import check_early, check_engine, check_places
from bench.execute import CONTINUES, Effort
from bench.output import note
from bench.text import counted, duration, listed

if TYPE_CHECKING:
    from bench.execute.cluster import Crew
    from bench.tuning.spec import StudySpec
    from bench.tuning.study import Study


def note_ignored(specs: "Sequence[StudySpec]", places: Mapping[str, Path]) -> None:
    """Name the optimizers that ignore the requested schedule."""
    configs = {spec.opt: spec.typical(places) for spec in specs}
    some = [opt for opt, config in configs.items() if config.trainer.is_scheduled and config.traits.unscheduled]
    if some:
        note(f"--trainer.schedule has no effect on {listed(some)}: {'they need' if len(some) > 1 else 'it needs'} none")


def crew_of(effort: Effort, specs: "Sequence[StudySpec]", places: Mapping[str, Path]) -> "Crew":
    """The processes that train studies: as many as every study allows on this machine (UserError)."""
    from bench.execute.cluster import Crew

    typical = [spec.typical(places) for spec in specs]
    for config in typical:
        check_early(config)
    check_engine(effort.engine, typical)
    check_places(typical)
    if effort.cluster is not None:
        return Crew(effort, typical[0])
    return min((Crew(effort, config) for config in typical), key=lambda crew: crew.shares)


def note_long(effort: Effort, studies: "Sequence[Study]", places: Mapping[str, Path], crew: "Crew") -> None:
    """Say before training that a budget of time will not suffice for studies, as far as steps can be timed."""
    budget = effort.budget
    if budget is None or not any(study.result().todo for study in studies):
        return
    from bench.tuning.suite import measured, plan

    with redirect_stdout(sys.stderr):
        rows = plan(studies, measured(places, crew.threads))
    seconds = sum(row["seconds"] for row in rows) / crew.shares
    if seconds > budget.seconds:
        runs = counted(sum(row["runs"] for row in rows), "run")
        note(
            f"{runs} take about {duration(seconds)} with {counted(crew.shares, 'worker')}, more than the budget of"
            f" {budget.text}: all optimizers will have fewer trials; {CONTINUES}"
        )


def in_time(effort: Effort, work: Callable[[], object]) -> None:
    """Do the work until it is done or its time is spent, which a note says.

    KeyboardInterrupt if a signal stopped it; `work` then returned something false.
    """
    from bench.train.stop import deadline

    budget, done = effort.budget, None
    with redirect_stdout(sys.stderr), deadline(budget and budget.seconds) as spent:
        done = work()
    if done:
        return
    if budget is None or not spent():
        raise KeyboardInterrupt(f"stopped; nothing is lost, and {CONTINUES}")
    note(f"the budget of {budget.text} is spent; this is the result so far, and {CONTINUES}")
