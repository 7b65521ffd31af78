"""Shared parts of the commands for studies: checks, and budgets of time."""

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

from bench.grammar.parse import Args
from bench.output import note
from bench.text import counted, duration, listed
from bench.train.stop import deadline

if TYPE_CHECKING:
    from bench.execute import Effort
    from bench.execute.cluster import Crew
    from bench.tuning.spec import StudySpec
    from bench.tuning.study import Study

SPENT = "this is the result so far, and the same command continues"
STOPPED = "stopped; nothing is lost, and the same command continues"


def note_ignored(specs: "Sequence[StudySpec]", places: Mapping[str, Path]) -> None:
    """Name the optimizers that ignore the requested schedule."""
    configs = {spec.opt: spec.typical(places) for spec in specs}
    some = [opt for opt, config in configs.items() if config.trainer.is_scheduled and config.traits.unscheduled]
    if some:
        note(f"--trainer.schedule has no effect on {listed(some)}: {'they need' if len(some) > 1 else 'it needs'} none")


def crew_of(effort: "Effort", specs: "Sequence[StudySpec]", places: Mapping[str, Path]) -> "Crew":
    """The processes that train studies: as many as every study allows on this machine.

    Raises:
        UserError: a study cannot be trained here, or not with this engine.
    """
    from bench.config.checks import check_early, check_engine, check_places

    typical = [spec.typical(places) for spec in specs]
    for config in typical:
        check_early(config)
    check_engine(effort.engine, typical)
    check_places(typical)
    from bench.execute.cluster import Crew

    if effort.cluster is not None:
        return Crew(effort, typical[0])
    return min((Crew(effort, config) for config in typical), key=lambda crew: crew.shares)


def note_long(args: Args, studies: "Sequence[Study]", places: Mapping[str, Path], crew: "Crew") -> None:
    """Say before training that a budget of time will not suffice for studies, as far as steps can be timed."""
    budget = args.budget
    if budget is None or budget.seconds is None or not any(study.result().todo for study in studies):
        return
    from bench.tuning.suite import measured, plan

    with redirect_stdout(sys.stderr):
        steps = plan(studies, measured(places, crew.threads))
    seconds = sum(step.seconds for step in steps) / crew.shares
    if seconds > budget.seconds:
        runs = counted(sum(step.runs_left for step in steps), "run")
        note(
            f"{runs} take about {duration(seconds)} with {counted(crew.shares, 'worker')}, more than the budget of"
            f" {budget.text}: all optimizers will have fewer trials; the same command continues"
        )


def in_time(args: Args, work: Callable[[], object]) -> bool:
    """Whether to show results after the work: it is done, or its time is spent; False if a signal stopped it.

    Args:
        args: with `budget`; a note says what ended the work early.
        work: returns something false if a signal stopped it.
    """
    done: object = False
    with deadline(args.budget and args.budget.seconds) as spent:
        done = work()
    if done:
        return True
    note(f"the budget of {args.budget.text} is spent; {SPENT}" if spent() else STOPPED)
    return spent()
