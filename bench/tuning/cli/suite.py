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
from bench.process import as_options
from bench.train.stop import deadline
from bench.tuning.cli.shared import STOPPED, fewest_slots, need_server, note_ignored, open_studies, without_storage
from optimizers.plugins import slug

if TYPE_CHECKING:
    from bench.execute.slots import Slot
    from bench.tuning.studies import Studies
    from bench.tuning.study import Study
    from bench.tuning.suite import Suite
    from bench.tuning.trials import StudySpec


def main(args: Args) -> int:
    """`bench suite` with these arguments: 0 done, 1 an optimizer has no winner, 130 stopped."""
    command = shlex.join(["bench", "suite", *without_storage(args.words)])
    from bench.progress import doing

    suite_file(args.file)  # before slow imports
    budget = args.budget
    if budget is not None and budget.runs is not None:
        raise UserError(f"--budget {budget.text}: a suite takes a time (6h, 90min); its file bounds its trials")
    with doing("importing optuna"):
        from bench.execute.elsewhere import made_elsewhere
        from bench.tuning import suite, tuned
        from bench.tuning.study_result import missing_runs, study_result
        from bench.tuning.summary import as_json

    places = {"data": args.data, "store": args.store}
    parts = suite.narrowed(suite.load(args.file), args.task, args.opt)
    try:
        specs = [spec for part in parts for spec in part.specs(places)]
    except UserError as error:
        raise UserError(f"{args.file}: {error}") from None
    if args.print and not args.slurm:
        raise UserError("--print prints the script of --slurm; write both")
    if not args.dry_run and made_elsewhere(args):
        return _slurm(args, parts, places)
    cut = fewest_slots(args.workers, specs, places, args.engine)
    if args.dry_run:
        return show_plan(args, parts, places, cut)
    if not args.train_only:
        check_output(args.out)  # fail before hours of training
    done = None
    with deadline(budget and budget.seconds) as spent:
        done = train(args, parts, open_studies(args), places, cut)
    if done is None:
        note(f"the budget of {budget.text} is spent; the same command continues" if budget and spent() else STOPPED)
        return 130
    found = [study_result(study) for study in done]
    for each in found:
        tuned.remember(each, args.store)
    if args.train_only:
        return 0
    for each in found:
        note(missing_runs(each, args.store))
        note(tuned.replaced(args.out, each) if each.best is not None else None)
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
    from bench.execute.database import NoDatabase
    from bench.grammar.values import reference_folder
    from bench.store.stores import Stores
    from bench.tuning import suite

    studies = None
    with suppress(NoDatabase):
        studies = open_studies(args, read_only=True)
    with redirect_stdout(sys.stderr):
        measure = suite.measured(places, cut[0].threads)
        steps = [step for part in parts for step in suite.plan(part, studies, places, measure)]
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
    from bench.config.plugins import naming
    from bench.tuning import suite
    from bench.tuning.workers import Workers

    specs = [spec for part in parts for spec in part.specs(places)]
    note_ignored(specs, places)
    named = naming(*(spec.names for spec in specs))
    shared_by = max(getattr(args, "shared_by", None) or 1, len(cut))
    every: list[Study] = []
    with Workers(studies, cut, places, Effort.of(args), named, shared_by) as workers:
        for part in parts:
            done = suite.carry_out(part, studies, places, workers, progress=progress)
            if done is None:
                return None
            every += done
    return every


def _slurm(args: Args, parts: Sequence["Suite"], places: Mapping[str, Path]) -> int:
    """Submit an array whose tasks all run this command and share the work; or print its script."""
    cells = [(spec, part.tune.trials) for part in parts for spec in part.specs(places)]
    file = str(Path(args.file).absolute()) if Path(args.file).is_file() else args.file
    chosen = {name: ",".join(own) for name in ("task", "opt") if (own := getattr(args, name))}
    words = ["suite", file, *as_options(chosen), "--train-only"]
    return submit_array(args, f"suite-{slug(Path(args.file).stem)}", words, cells, places)


def submit_array(
    args: Args,
    name: str,
    words: Sequence[str],
    cells: "Sequence[tuple[StudySpec, int | None]]",
    places: Mapping[str, Path],
) -> int:
    """Submit an array whose tasks all run one command and share its work; or print the script.

    Raises:
        UserError: tasks cannot share a database, or a run needs several machines.
    """
    from bench.execute.slurm import submit
    from bench.tuning.tune import make_request, slurm_script

    need_server(args)
    trials = [(spec, make_request(spec.design, asked).trials) for spec, asked in cells]
    words = [*words, "--workers", "1"]
    text = slurm_script(name, words, trials, args.workers, places, Effort.of(args), args.sbatch)
    if args.print:
        print(text, end="")
        return 0
    print(submit(name, text, args.store, {"BENCH_STORAGE": args.storage}))
    print("when it is done, the same command without --slurm writes the results")
    return 0
