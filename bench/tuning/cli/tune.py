"""`bench tune`."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.execute import Effort
from bench.grammar.parse import Args
from bench.output import answer, check_output, note, reply
from bench.process import as_options
from bench.progress import SweepProgress, doing
from bench.text import clean
from bench.tuning.cli.shared import crew_of, in_time, note_long

if TYPE_CHECKING:
    from bench.tuning.study import Study, StudyResult


def main(args: Args) -> int:
    """`bench tune` with these arguments: 0 done, 1 no trial has a score, 130 stopped."""
    command = shlex.join(["bench", "tune", *args.words])
    from bench.sweeps.grid import settings_in
    from bench.text import options_text

    places = {"data": args.data, "store": args.store}
    study = study_of(args, settings_in(args.config) | args.of_runs, places)
    note(f"study {study.name}: {study.spec.promise(study.trials)}")
    if args.dry_run:
        crew_of(Effort.of(args), [study.spec], places)  # raises if it cannot be trained here
        points = [w.point for w in study.spec.design.wanted(study.trials)]
        reply(args, points, map(options_text, points))
        return 0
    out = args.out or Path("tuned")
    check_output(out)  # fail before hours of training
    result = study.result()
    if result.todo:
        crew, progress = (
            crew_of(Effort.of(args), [study.spec], places),
            SweepProgress(f"study {study.name}", study.spec.mode),
        )
        note_long(args, [study], places, crew)
        from bench.tuning.training import carry_out

        with crew:
            if not in_time(args, lambda: carry_out([study], crew, Effort.of(args), progress)):
                return 130
        result = study.result()
    return show(result, args, out, command)


def study_of(args: Args, settings: Mapping[str, Any], places: Mapping[str, Path]) -> "Study":
    """The study that a command requests.

    Raises:
        UserError: as for `bench.tuning.spec.make_spec`.
    """
    from bench.tuning.spec import make_spec, reporting_seeds, trials_of, tuning_seeds

    fresh = "7" if args.report_seeds is None else args.report_seeds
    spec = make_spec(
        settings,
        sampler=args.sampler,
        seeds=tuning_seeds(args.seeds or "2"),
        report_seeds=reporting_seeds(fresh) if fresh != "0" else [],
        places=places,
    )
    trials = trials_of(spec.design, args.trials, len(spec.seeds))
    from bench.tuning.study import Study

    return Study(spec, trials, places)


def show(result: "StudyResult", args: Args, out: Path, command: str) -> int:
    """Print and write the results of a study; the exit code."""
    from bench.tuning import summary, tuned

    with doing("writing the study"):
        tuned.remember(result)
        if args.storage:
            tuned.mirror(result, args.storage)
    paths: list[Path] = []
    if result.best is not None:
        note(tuned.replaced(out, result))
        paths = tuned.write(out, result, command)
    if args.json:
        answer(summary.as_json(result) | {"out": out if paths else None})
    else:
        print("\n".join(map(clean, summary.lines(result))))
        if paths:
            print(f"written to {out}: {', '.join(str(path.relative_to(out)) for path in paths)}")
            print(f"use it: {_use(result, out)}")
    return int(result.best is None)


def _use(result: "StudyResult", out: Path) -> str:
    """The command that trains with the winner's settings."""
    from bench.tuning.tuned import tuned_path

    spec = result.spec
    here = out.absolute() == Path("tuned").absolute()
    source = ["--tuned"] if here else ["--config", str(tuned_path(out, spec))]
    chosen = {name: spec.settings[name] for name in spec.chosen if not name.startswith("opt.")}  # budget, device, ...
    given = {k: ",".join(map(str, v)) if isinstance(v, list) else v for k, v in chosen.items() if v is not None}
    seed = {"seed": max(spec.seeds) + 1} if 0 in spec.seeds else {}  # `--tuned` refuses seeds that chose the settings
    return shlex.join(["bench", "fit", "--task", spec.task, "--opt", spec.opt, *source, *as_options(given | seed)])
