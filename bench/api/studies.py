"""`bench.tune` and `bench.suite`: studies, alone and with equal budgets."""

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from bench.tuning.study import StudyResult, carry_out, results_of
from bench.tuning.tuned import as_json, result_lines

if TYPE_CHECKING:
    from bench.api.calls import Call
    from bench.execute.cluster import Crew
    from bench.tuning.suite import Suite

Todo = Sequence[Sequence[Plan]]
"""The studies of each task."""


def study_of(call: "Call", sampler: Sampler | None, trials: int | None, seeds: Seeds, report_seeds: Seeds) -> Plan:
    """The requested study; `UserError` as for `bench.tuning.spec.make_spec`."""
    fresh = [] if str(report_seeds) == "0" else read_seeds(report_seeds, "--report_seeds", 5)
    spec = make_spec(call.settings, sampler=sampler, seeds=tuning_seeds(seeds), report_seeds=fresh, places=call.places)
    return Plan(spec, trials_of(spec.design, trials, len(spec.seeds)), call.places)


def dry_run(study: Plan, call: "Call") -> Answer:
    """The trials of the design."""
    crew_of([[study]], call)  # raises if it cannot be trained here
    points = [trial.point for trial in study.spec.design.wanted(study.trials)]
    note(f"study {study.name}: {counted(study.trials, 'trial')} of {counted(len(study.spec.seeds), 'seed')}")
    return Answer(points, [*map(options_text, points)])


def crew_for(todo: Todo, call: "Call") -> "Crew | None":
    """The processes that train studies (`crew_of`); None if all is stored."""
    return crew_of(todo, call) if any(result.todo for studies in todo for result in results_of(studies)) else None


def crew_of(todo: Todo, call: "Call") -> "Crew":
    """The processes that train studies: as many as every study allows on this machine (UserError)."""
    from bench.execute.cluster import Crew

    configs = [study.spec.typical(call.places) for studies in todo for study in studies]
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


def _plan(todo: Todo, crew: "Crew", call: "Call") -> list[dict[str, Any]]:
    """What is stored and what is to do, with an estimate of its time (`bench.tuning.suite.plan`)."""
    with redirect_stdout(sys.stderr):
        with doing("importing torch"):
            from bench.train.threads import set_threads

        set_threads(crew.threads)
        return suites.plan(todo, lambda spec: suites.seconds_of_run(spec, call.places))


def train(todo: Todo, crew: "Crew | None", call: "Call", folder: Path | None) -> list[StudyResult]:
    """Train what the studies of tasks want, as far as the budget allows, and write their records and settings.

    It says before training that a budget will not suffice. KeyboardInterrupt if a signal stopped it.
    """
    budget = call.effort.budget
    if crew is not None and budget is not None:
        rows = _plan(todo, crew, call)
        seconds = sum(row["seconds"] for row in rows) / crew.shares
        if seconds > budget.seconds:
            runs = counted(sum(row["runs"] for row in rows), "run")
            note(
                f"{runs} take about {duration(seconds)} with {counted(crew.shares, 'worker')}, more than the budget of"
                f" {budget.text}: all optimizers will have fewer trials; {CONTINUES}"
            )
    if crew is not None:
        from bench.train.stop import deadline

        done = False
        with crew, redirect_stdout(sys.stderr), deadline(budget and budget.seconds) as spent:
            done = all(carry_out(studies, crew, progress=call.progress) for studies in todo)
        if not done and (budget is None or not spent()):
            raise KeyboardInterrupt(f"stopped; nothing is lost, and {CONTINUES}")
        if not done and budget is not None:
            note(f"the budget of {budget.text} is spent; this is the result so far, and {CONTINUES}")
    results = [result for studies in todo for result in results_of(studies)]
    with doing("writing the studies"):
        for result in results:
            tuned.remember(result)
            if folder is not None and result.best is not None:
                tuned.write(folder, result)
    return results


def tune(study: Plan, call: "Call", folder: Path | None, storage: str | None) -> Study:
    """Train what a study lacks; for the command, or into a given folder, write the winner's settings."""
    if folder is None and call.command is not None:
        folder = Path("tuned")
    if folder is not None:
        check_output(folder)  # fail before hours of training
    (result,) = train([[study]], crew_for([[study]], call), call, folder)
    if storage:
        tuned.mirror(result, storage)
    return Study(result, study.places["store"], folder if result.best is not None else None)


def suite(file: str, call: "Call", out: Path) -> Answer:
    """Tune the optimizers of a suite's tasks, run the winners, and write their settings."""
    parts = suites.load(file)
    try:
        todo = [studies for part in parts for studies in part.studies(call.places)]
    except UserError as error:
        raise UserError(f"{file}: {error}") from None
    if call.dry_run:
        return plan_of(parts, call)
    crew = crew_for(todo, call)
    check_output(out)  # fail before hours of training
    results = train(todo, crew, call, out)
    lines = [line for result in results for line in result_lines(result)]
    code = int(any(result.best is None for result in results))
    data = {"out": out, "studies": [as_json(result) for result in results]}
    return Answer(data, [" + ".join(part.title for part in parts), *lines, f"settings: {out}"], code)


def plan_of(parts: "Sequence[Suite]", call: "Call") -> Answer:
    """What suites would run, which part is stored, and the estimated time of the rest."""
    todo = [studies for part in parts for studies in part.studies(call.places)]
    crew = crew_of(todo, call)
    rows = _plan(todo, crew, call)
    return Answer(rows, [" + ".join(part.title for part in parts), *suites.plan_lines(rows, crew.shares)])
