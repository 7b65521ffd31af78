"""`bench.tune` and `bench.suite`: studies, alone and with equal budgets."""

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

from bench.api.results import Study
from bench.config.checks import check_early, check_engine, check_places
from bench.config.values import Seeds, read_seeds
from bench.errors import UserError
from bench.execute import CONTINUES
from bench.output import Answer, check_output, note
from bench.progress import doing
from bench.text import counted, duration, listed, options_text
from bench.tuning import suite as suites
from bench.tuning import tuned
from bench.tuning.spec import Sampler, make_spec, trials_of, tuning_seeds
from bench.tuning.study import Study as Plan
from bench.tuning.study import StudyResult, equalize
from bench.tuning.summary import as_json, result_lines

if TYPE_CHECKING:
    from bench.api.calls import Call
    from bench.execute.cluster import Crew
    from bench.tuning.suite import Suite


def study_of(call: "Call", sampler: Sampler | None, trials: int | None, seeds: Seeds, report_seeds: Seeds) -> Plan:
    """The requested study; `UserError` as for `bench.tuning.spec.make_spec`."""
    fresh = [] if str(report_seeds) == "0" else read_seeds(report_seeds, "--report_seeds", 5)
    spec = make_spec(call.settings, sampler=sampler, seeds=tuning_seeds(seeds), report_seeds=fresh, places=call.places)
    return Plan(spec, trials_of(spec.design, trials, len(spec.seeds)), call.places, report=False)


def dry_run(study: Plan, call: "Call") -> Answer:
    """The trials of the design."""
    crew_of([study], call)  # raises if it cannot be trained here
    points = [wanted.point for wanted in study.spec.design.wanted(study.trials)]
    note(f"study {study.name}: {counted(study.trials, 'trial')} of {counted(len(study.spec.seeds), 'seed')}")
    return Answer(points, [*map(options_text, points)])


def crew_for(todo: Sequence[Sequence[Plan]], call: "Call") -> "Crew | None":
    """The processes that train the studies of tasks; None if all is stored, `UserError` if one cannot be trained."""
    for studies in todo:
        equalize(studies)
    every = [study for studies in todo for study in studies]
    return crew_of(every, call) if any(study.result().todo for study in every) else None


def crew_of(studies: Sequence[Plan], call: "Call") -> "Crew":
    """The processes that train studies: as many as every study allows on this machine (UserError)."""
    from bench.execute.cluster import Crew

    configs = [study.spec.typical(call.places) for study in studies]
    for config in configs:
        check_early(config)
    check_engine(call.effort.engine, configs)
    check_places(configs)
    if some := dict.fromkeys(c.opt for c in configs if c.trainer.is_scheduled and c.traits.unscheduled):
        why = "they need none" if len(some) > 1 else "it needs none"
        note(f"--trainer.schedule has no effect on {listed([*some])}: {why}")
    if call.effort.cluster is not None:
        return Crew(call.effort, configs[0])
    return min((Crew(call.effort, config) for config in configs), key=lambda crew: crew.shares)


def _note_long(studies: Sequence[Plan], crew: "Crew", call: "Call") -> None:
    """Say before training that a budget will not suffice for studies, as far as steps can be timed."""
    budget = call.effort.budget
    if budget is None:
        return
    with redirect_stdout(sys.stderr):
        rows = suites.plan(studies, suites.measured(call.places, crew.threads))
    seconds = sum(row["seconds"] for row in rows) / crew.shares
    if seconds > budget.seconds:
        runs = counted(sum(row["runs"] for row in rows), "run")
        note(
            f"{runs} take about {duration(seconds)} with {counted(crew.shares, 'worker')}, more than the budget of"
            f" {budget.text}: all optimizers will have fewer trials; {CONTINUES}"
        )


def train(todo: Sequence[Sequence[Plan]], crew: "Crew | None", call: "Call") -> list[StudyResult]:
    """Train what the studies of tasks want, as far as the budget allows, and write their records into the store.

    KeyboardInterrupt if a signal stopped it.
    """
    every, budget = [study for studies in todo for study in studies], call.effort.budget
    if crew is not None:
        _note_long(every, crew, call)
        from bench.train.stop import deadline
        from bench.tuning.training import carry_out

        done = False
        with crew, redirect_stdout(sys.stderr), deadline(budget and budget.seconds) as spent:
            done = all(carry_out(studies, crew, progress=call.progress) for studies in todo)
        if not done and (budget is None or not spent()):
            raise KeyboardInterrupt(f"stopped; nothing is lost, and {CONTINUES}")
        if not done and budget is not None:
            note(f"the budget of {budget.text} is spent; this is the result so far, and {CONTINUES}")
    results = [study.result() for study in every]
    with doing("writing the studies"):
        for result in results:
            tuned.remember(result)
    return results


def tune(study: Plan, call: "Call", folder: Path | None, storage: str | None) -> Study:
    """Train what a study lacks; for the command, or into a given folder, write the winner's settings and a plot."""
    if folder is None and call.command is not None:
        folder = Path("tuned")
    if folder is not None:
        check_output(folder)  # fail before hours of training
    (result,) = train([[study]], crew_for([[study]], call), call)
    if storage:
        tuned.mirror(result, storage)
    paths = [] if folder is None else suites.write(folder, [result], call.made_by("bench.tune"))
    return Study(result, study.places["store"], folder if paths else None)


def suite(file: str, tasks: Sequence[str] | None, opts: Sequence[str] | None, call: "Call", out: Path) -> Answer:
    """Tune the optimizers of a suite's tasks, run the winners, and write their settings."""
    parts = suites.narrowed(suites.load(file), tasks, opts)
    try:
        todo = [studies for part in parts for studies in part.studies(call.places)]
    except UserError as error:
        raise UserError(f"{file}: {error}") from None
    if call.dry_run:
        return plan_of(parts, call)
    crew = crew_for(todo, call)
    check_output(out)  # fail before hours of training
    results = train(todo, crew, call)
    paths = suites.write(out, results, call.made_by(f"bench suite {file}"))
    lines = [
        " + ".join(part.title for part in parts),
        "",
        *result_lines(results),
        f"written to {out}: {len(paths)} files",
    ]
    code = int(any(result.best is None for result in results))
    return Answer({"out": out, "studies": [as_json(result) for result in results]}, lines, code)


def plan_of(parts: "Sequence[Suite]", call: "Call") -> Answer:
    """What suites would run, which part is stored, and the estimated time of the rest."""
    todo = [studies for part in parts for studies in part.studies(call.places)]
    every = [study for studies in todo for study in studies]
    crew = crew_for(todo, call) or crew_of(every, call)
    with redirect_stdout(sys.stderr):
        rows = suites.plan(every, suites.measured(call.places, crew.threads))
    return Answer(rows, [" + ".join(part.title for part in parts), *suites.plan_lines(rows, crew.shares)])
