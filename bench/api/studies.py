"""`bench.tune` and `bench.suite`: studies, alone and with equal budgets."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.api.results import Study
from bench.api.training import crew_of, in_time, note_ignored, note_long
from bench.config.values import reference_folder, suite_file
from bench.errors import UserError
from bench.execute import Effort
from bench.output import Answer, check_output, note
from bench.progress import SweepProgress, doing
from bench.store.stores import Stores
from bench.sweeps.grid import settings_in
from bench.text import options_text
from bench.tuning import suite as suites
from bench.tuning import tuned
from bench.tuning.spec import Sampler, make_spec, reporting_seeds, trials_of, tuning_seeds
from bench.tuning.study import Study as Plan
from bench.tuning.summary import as_json

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
    """The requested study.

    Raises:
        UserError: as for `bench.tuning.spec.make_spec`.
    """
    spec = make_spec(
        settings_in(config) | dict(words),
        sampler=sampler,
        seeds=tuning_seeds(seeds),
        report_seeds=[] if report_seeds == "0" else reporting_seeds(report_seeds),
        places=places,
    )
    return Plan(spec, trials_of(spec.design, trials, len(spec.seeds)), places)


def dry_run(study: Plan, effort: Effort) -> Answer:
    """The trials of the design."""
    crew_of(effort, [study.spec], study.places)  # raises if it cannot be trained here
    points = [wanted.point for wanted in study.spec.design.wanted(study.trials)]
    note(f"study {study.name}: {study.spec.promise(study.trials)}")
    return Answer(points, [*map(options_text, points)])


def tune(
    study: Plan,
    effort: Effort,
    folder: Path | None,
    storage: str | None,
    *,
    progress: bool,
    command: Sequence[str] | None,
) -> Study:
    """Train what a study lacks, and write the winner's settings and a plot into a folder, if given.

    Raises:
        UserError: as for `bench.tune`.
        KeyboardInterrupt: it was stopped.
    """
    if command is not None:
        note(f"study {study.name}: {study.spec.promise(study.trials)}")
    if folder is not None:
        check_output(folder)  # fail before hours of training
    result = study.result()
    if result.todo:
        crew = crew_of(effort, [study.spec], study.places)
        note_long(effort, [study], study.places, crew)
        from bench.tuning.training import carry_out

        view = SweepProgress(f"study {study.name}", study.spec.mode, enabled=progress)
        with crew:
            in_time(effort, lambda: carry_out([study], crew, effort, view))
        result = study.result()
    with doing("writing the study"):
        tuned.remember(result)
        if storage:
            tuned.mirror(result, storage)
    paths: list[Path] = []
    if folder is not None and result.best is not None:
        note(tuned.replaced(folder, result))
        paths = tuned.write(folder, result, shlex.join(command or ["bench.tune"]))
    return Study(result, study.places["store"], folder if paths else None, tuple(paths))


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
    """Tune the optimizers of a suite's tasks, run the winners, and write their settings.

    Raises:
        UserError: the file is invalid, or a run cannot be trained.
        KeyboardInterrupt: it was stopped.
    """
    suite_file(file)
    parts = suites.narrowed(suites.load(file), tasks, opts)
    try:
        specs = [spec for part in parts for spec in part.specs(places)]
    except UserError as error:
        raise UserError(f"{file}: {error}") from None
    crew = crew_of(effort, specs, places)
    if dry:
        return plan_of(parts, places, crew)
    check_output(out)  # fail before hours of training
    note_ignored(specs, places)
    todo = [(part, studies) for part in parts for studies in part.studies(places)]
    note_long(effort, [study for _, studies in todo for study in studies], places, crew)
    from bench.tuning.training import carry_out_suite

    with crew:
        in_time(effort, lambda: all(carry_out_suite(part, studies, crew, effort) for part, studies in todo))
    results = [study.result() for _, studies in todo for study in studies]
    for result in results:
        tuned.remember(result)
        note(tuned.replaced(out, result) if result.best is not None else None)
    paths = suites.write(out, results, shlex.join(command or ["bench", "suite", file]))
    lines = [" + ".join(part.title for part in parts), "", *suites.result_lines(results)]
    lines.append(f"written to {out}: {len(paths)} files, such as {paths[0] if paths else 'none'}")
    code = int(any(result.best is None for result in results))
    return Answer({"out": out, "studies": [as_json(result) for result in results]}, lines, code)


def plan_of(parts: "Sequence[Suite]", places: Mapping[str, Path], crew: "Crew") -> Answer:
    """What suites would run, which part is stored, and the estimated time of the rest.

    Raises:
        UserError: budgets cannot be made equal, or data are missing.
    """
    with redirect_stdout(sys.stderr):
        measure = suites.measured(places, crew.threads)
        steps = list[suites.Step]()
        for part in parts:
            for studies in part.studies(places):
                part.advance(studies)
                steps += suites.plan(studies, measure)
    if (folder := reference_folder()) is not None:
        shipped = {study.name for study in Stores([], folder).studies}
        count = sum(step.spec.name in shipped and step.trials[1] < step.trials[0] for step in steps)
        note(
            f"{count} of these studies {'is' if count == 1 else 'are'} shipped: bench merge {folder} {places['store']}"
            " copies their runs, which are then not trained again"
            if count
            else None
        )
    note_ignored([step.spec for step in steps], places)
    lines = [" + ".join(part.title for part in parts), *suites.plan_lines(steps, crew.shares)]
    return Answer([vars(step) | {"spec": step.spec.model_dump(mode="json")} for step in steps], lines)
