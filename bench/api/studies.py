"""`bench.tune` and `bench.suite`: studies, alone and with equal budgets."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.api.results import Study
from bench.api.training import crew_of, in_time, note_ignored, note_long
from bench.config.values import read_seeds, reference_folder
from bench.errors import UserError
from bench.execute import Effort
from bench.output import Answer, check_output, note
from bench.progress import doing
from bench.store.stores import Stores
from bench.sweeps.grid import settings_in
from bench.text import counted, options_text
from bench.tuning import suite as suites
from bench.tuning import tuned
from bench.tuning.spec import Sampler, make_spec, trials_of, tuning_seeds
from bench.tuning.study import Study as Plan
from bench.tuning.study import StudyResult, equalize
from bench.tuning.summary import as_json, result_lines

if TYPE_CHECKING:
    from bench.execute.cluster import Crew
    from bench.tuning.suite import Suite


def study_of(
    words: Mapping[str, Any],
    config: Path | None,
    places: Mapping[str, Path],
    *,
    sampler: Sampler | None,
    trials: int | None,
    seeds: str,
    report_seeds: str,
) -> Plan:
    """The requested study; `UserError` as for `bench.tuning.spec.make_spec`."""
    spec = make_spec(
        settings_in(config) | dict(words),
        sampler=sampler,
        seeds=tuning_seeds(seeds),
        report_seeds=[] if report_seeds == "0" else read_seeds(report_seeds, "--report_seeds", 5),
        places=places,
    )
    return Plan(spec, trials_of(spec.design, trials, len(spec.seeds)), places, report=False)


def dry_run(study: Plan, effort: Effort) -> Answer:
    """The trials of the design."""
    crew_of(effort, [study.spec], study.places)  # raises if it cannot be trained here
    points = [wanted.point for wanted in study.spec.design.wanted(study.trials)]
    note(f"study {study.name}: {counted(study.trials, 'trial')} of {counted(len(study.spec.seeds), 'seed')}")
    return Answer(points, [*map(options_text, points)])


def crew_for(todo: Sequence[Sequence[Plan]], effort: Effort, places: Mapping[str, Path]) -> "Crew | None":
    """The processes that train the studies of tasks; None if all is stored, `UserError` if one cannot be trained."""
    for studies in todo:
        equalize(studies)
    every = [study for studies in todo for study in studies]
    note_ignored([study.spec for study in every], places)
    is_stored = not any(study.result().todo for study in every)
    return None if is_stored else crew_of(effort, [study.spec for study in every], places)


def train(
    todo: Sequence[Sequence[Plan]], crew: "Crew | None", effort: Effort, *, progress: bool = True
) -> list[StudyResult]:
    """Train what the studies of tasks want, as far as the budget allows, and write their records into the store."""
    every = [study for studies in todo for study in studies]
    if crew is not None:
        note_long(effort, every, every[0].places, crew)
        from bench.tuning.training import carry_out

        with crew:
            in_time(effort, lambda: all(carry_out(studies, crew, effort, progress=progress) for studies in todo))
    results = [study.result() for study in every]
    with doing("writing the studies"):
        for result in results:
            tuned.remember(result)
    return results


def tune(
    study: Plan,
    effort: Effort,
    folder: Path | None,
    storage: str | None,
    *,
    progress: bool,
    command: Sequence[str] | None,
) -> Study:
    """Train what a study lacks, and write the winner's settings and a plot into a folder, if given."""
    if folder is not None:
        check_output(folder)  # fail before hours of training
    (result,) = train([[study]], crew_for([[study]], effort, study.places), effort, progress=progress)
    if storage:
        tuned.mirror(result, storage)
    paths = [] if folder is None else suites.write(folder, [result], shlex.join(command or ["bench.tune"]))
    return Study(result, study.places["store"], folder if paths else None)


def suite(
    file: str,
    tasks: Sequence[str] | None,
    opts: Sequence[str] | None,
    places: Mapping[str, Path],
    effort: Effort,
    out: Path,
    *,
    dry: bool,
    command: Sequence[str] | None,
) -> Answer:
    """Tune the optimizers of a suite's tasks, run the winners, and write their settings."""
    parts = suites.narrowed(suites.load(file), tasks, opts)
    try:
        todo = [studies for part in parts for studies in part.studies(places)]
    except UserError as error:
        raise UserError(f"{file}: {error}") from None
    if dry:
        return plan_of(parts, places, effort)
    crew = crew_for(todo, effort, places)
    check_output(out)  # fail before hours of training
    results = train(todo, crew, effort)
    paths = suites.write(out, results, shlex.join(command or ["bench", "suite", file]))
    lines = [
        " + ".join(part.title for part in parts),
        "",
        *result_lines(results),
        f"written to {out}: {len(paths)} files",
    ]
    code = int(any(result.best is None for result in results))
    return Answer({"out": out, "studies": [as_json(result) for result in results]}, lines, code)


def plan_of(parts: "Sequence[Suite]", places: Mapping[str, Path], effort: Effort) -> Answer:
    """What suites would run, which part is stored, and the estimated time of the rest."""
    todo = [studies for part in parts for studies in part.studies(places)]
    every = [study for studies in todo for study in studies]
    crew = crew_for(todo, effort, places) or crew_of(effort, [study.spec for study in every], places)
    with redirect_stdout(sys.stderr):
        rows = suites.plan(every, suites.measured(places, crew.threads))
    if (folder := reference_folder()) is not None:
        lacking = {row["study"] for row in rows if row["trials"][0] < row["trials"][1]}
        if any(study.name in lacking for study in Stores([], folder).studies):
            note(f"bench merge {folder} {places['store']} copies shipped studies, which are then not trained again")
    return Answer(rows, [" + ".join(part.title for part in parts), *suites.plan_lines(rows, crew.shares)])
