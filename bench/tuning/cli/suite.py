"""`bench suite`."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from bench.errors import UserError
from bench.execute import Effort
from bench.grammar.parse import Args
from bench.grammar.values import suite_file
from bench.output import check_output, note, reply
from bench.train.stop import deadline
from bench.tuning.cli.shared import STOPPED, fewest_slots, note_ignored

if TYPE_CHECKING:
    from bench.execute.slots import Slot
    from bench.tuning.studies import Studies
    from bench.tuning.study import Study
    from bench.tuning.suite import Suite


def main(args: Args) -> int:
    """`bench suite` with these arguments: 0 done, 1 an optimizer has no winner, 130 stopped."""
    command = shlex.join(["bench", "suite", *args.words])
    from bench.progress import doing

    suite_file(args.file)  # before slow imports
    budget = args.budget
    with doing("importing optuna"):
        from bench.tuning import suite, tuned
        from bench.tuning.studies import Studies
        from bench.tuning.study_result import study_result
        from bench.tuning.summary import as_json

    places = {"data": args.data, "store": args.store}
    parts = suite.narrowed(suite.load(args.file), args.task, args.opt)
    try:
        specs = [spec for part in parts for spec in part.specs(places)]
    except UserError as error:
        raise UserError(f"{args.file}: {error}") from None
    cut = fewest_slots(args.workers, specs, places, args.engine)
    if args.dry_run:
        return show_plan(args, parts, places, cut)
    check_output(args.out)  # fail before hours of training
    done = None
    with deadline(budget and budget.seconds) as spent:
        done = train(args, parts, Studies(args.store), places, cut)
    if done is None:
        note(f"the budget of {budget.text} is spent; the same command continues" if budget and spent() else STOPPED)
        return 130
    found = [study_result(study) for study in done]
    for each in found:
        tuned.remember(each, args.store)
    paths = suite.write(args.out, found, command)
    lines = [" + ".join(part.title for part in parts), "", *suite.result_lines(found)]
    lines.append(f"written to {args.out}: {len(paths)} files, such as {paths[0] if paths else 'none'}")
    reply(args, {"out": args.out, "studies": [as_json(each) for each in found]}, lines)
    return 0 if all(each.best is not None for each in found) else 1


def show_plan(args: Args, parts: "Sequence[Suite]", places: Mapping[str, Path], cut: Sequence["Slot"]) -> int:
    """Print what a suite would run, which part is stored, and the estimated time of the rest.

    Raises:
        UserError: budgets cannot be made equal, or data are missing.
    """
    from bench.tuning import suite
    from bench.tuning.studies import NoDatabase, Studies

    studies = None
    with suppress(NoDatabase):
        studies = Studies(args.store, read_only=True)
    with redirect_stdout(sys.stderr):
        measure = suite.measured(places, cut[0].threads)
        steps = [step for part in parts for step in suite.plan(part, studies, places, measure)]
    note_ignored([step.spec for step in steps], places)
    lines = [" + ".join(part.title for part in parts), *suite.plan_lines(steps, len(cut))]
    reply(args, [vars(step) | {"spec": step.spec.model_dump(mode="json")} for step in steps], lines)
    return 0


def train(
    args: Args,
    parts: "Sequence[Suite]",
    studies: "Studies",
    places: Mapping[str, Path],
    cut: Sequence["Slot"],
    *,
    progress: bool = True,
) -> "list[Study] | None":
    """Run a suite with workers on this machine; None if a signal asked to stop.

    Raises:
        UserError: a run cannot be trained; finished runs are stored.
    """
    from bench.tuning import suite
    from bench.tuning.workers import Workers

    specs = [spec for part in parts for spec in part.specs(places)]
    note_ignored(specs, places)
    every: list[Study] = []
    with Workers(cut, places, Effort.of(args)) as workers:
        for part in parts:
            done = suite.carry_out(part, studies, places, workers, progress=progress)
            if done is None:
                return None
            every += done
    return every
