"""`bench suite`."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

from bench.errors import UserError
from bench.execute import Effort
from bench.grammar.parse import Args
from bench.grammar.values import suite_file
from bench.output import check_output, note, reply
from bench.tuning.cli.shared import crew_of, in_time, note_ignored, note_long

if TYPE_CHECKING:
    from bench.execute.cluster import Crew
    from bench.tuning.suite import Suite


def main(args: Args) -> int:
    """`bench suite` with these arguments: 0 done, 1 an optimizer has no winner, 130 stopped."""
    command = shlex.join(["bench", "suite", *args.words])
    suite_file(args.file)  # before slow imports
    from bench.tuning import suite, tuned
    from bench.tuning.summary import as_json

    places = {"data": args.data, "store": args.store}
    parts = suite.narrowed(suite.load(args.file), args.task, args.opt)
    try:
        specs = [spec for part in parts for spec in part.specs(places)]
    except UserError as error:
        raise UserError(f"{args.file}: {error}") from None
    crew = crew_of(Effort.of(args), specs, places)
    if args.dry_run:
        return show_plan(args, parts, places, crew)
    check_output(args.out)  # fail before hours of training
    note_ignored(specs, places)
    tasks = [(part, studies) for part in parts for studies in part.studies(places)]
    note_long(args, [study for _, studies in tasks for study in studies], places, crew)
    from bench.tuning.training import carry_out_suite

    with crew:
        if not in_time(args, lambda: all(carry_out_suite(*task, crew, Effort.of(args)) for task in tasks)):
            return 130
    results = [study.result() for _, studies in tasks for study in studies]
    for result in results:
        tuned.remember(result)
        note(tuned.replaced(args.out, result) if result.best is not None else None)
    paths = suite.write(args.out, results, command)
    lines = [" + ".join(part.title for part in parts), "", *suite.result_lines(results)]
    lines.append(f"written to {args.out}: {len(paths)} files, such as {paths[0] if paths else 'none'}")
    reply(args, {"out": args.out, "studies": [as_json(result) for result in results]}, lines)
    return 0 if all(result.best is not None for result in results) else 1


def show_plan(args: Args, suites: "Sequence[Suite]", places: Mapping[str, Path], crew: "Crew") -> int:
    """Print what suites would run, which part is stored, and the estimated time of the rest.

    Raises:
        UserError: budgets cannot be made equal, or data are missing.
    """
    from bench.grammar.values import reference_folder
    from bench.store.stores import Stores
    from bench.tuning import suite

    with redirect_stdout(sys.stderr):
        measure = suite.measured(places, crew.threads)
        steps = list[suite.Step]()
        for part in suites:
            for studies in part.studies(places):
                part.advance(studies)
                steps += suite.plan(studies, measure)
    if (folder := reference_folder()) is not None:
        shipped = {study.name for study in Stores([], folder).studies}
        count = sum(step.spec.name in shipped and step.trials[1] < step.trials[0] for step in steps)
        note(
            f"{count} of these studies {'is' if count == 1 else 'are'} shipped: bench merge {folder} {args.store}"
            " copies their runs, which are then not trained again"
            if count
            else None
        )
    note_ignored([step.spec for step in steps], places)
    lines = [" + ".join(part.title for part in suites), *suite.plan_lines(steps, crew.shares)]
    reply(args, [vars(step) | {"spec": step.spec.model_dump(mode="json")} for step in steps], lines)
    return 0
