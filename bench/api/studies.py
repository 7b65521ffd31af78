"""`bench.tune` and `bench.suite`: studies, alone and with equal budgets."""

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

from bench.api.results import Study
from bench.api.training import crew_of, in_time, note_ignored, note_long
from bench.config.values import Seeds, read_seeds, reference_folder
from bench.errors import UserError
from bench.output import Answer, check_output, note
from bench.progress import doing
from bench.store.stores import Stores
from bench.text import counted, options_text
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
    crew_of(call.effort, [study.spec], study.places)  # raises if it cannot be trained here
    points = [wanted.point for wanted in study.spec.design.wanted(study.trials)]
    note(f"study {study.name}: {counted(study.trials, 'trial')} of {counted(len(study.spec.seeds), 'seed')}")
    return Answer(points, [*map(options_text, points)])


def crew_for(todo: Sequence[Sequence[Plan]], call: "Call") -> "Crew | None":
    """The processes that train the studies of tasks; None if all is stored, `UserError` if one cannot be trained."""
    for studies in todo:
        equalize(studies)
    every = [study for studies in todo for study in studies]
    note_ignored([study.spec for study in every], call.places)
    is_stored = not any(study.result().todo for study in every)
    return None if is_stored else crew_of(call.effort, [study.spec for study in every], call.places)


def train(todo: Sequence[Sequence[Plan]], crew: "Crew | None", call: "Call") -> list[StudyResult]:
    """Train what the studies of tasks want, as far as the budget allows, and write their records into the store."""
    every, effort = [study for studies in todo for study in studies], call.effort
    if crew is not None:
        note_long(effort, every, every[0].places, crew)
        from bench.tuning.training import carry_out

        with crew:
            in_time(effort, lambda: all(carry_out(studies, crew, effort, progress=call.progress) for studies in todo))
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
    places, todo = call.places, [studies for part in parts for studies in part.studies(call.places)]
    every = [study for studies in todo for study in studies]
    crew = crew_for(todo, call) or crew_of(call.effort, [study.spec for study in every], places)
    with redirect_stdout(sys.stderr):
        rows = suites.plan(every, suites.measured(places, crew.threads))
    if (folder := reference_folder()) is not None:
        lacking = {row["study"] for row in rows if row["trials"][0] < row["trials"][1]}
        if any(study.name in lacking for study in Stores([], folder).studies):
            note(f"bench merge {folder} {places['store']} copies shipped studies, which are then not trained again")
    return Answer(rows, [" + ".join(part.title for part in parts), *suites.plan_lines(rows, crew.shares)])
