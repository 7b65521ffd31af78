"""`bench tune`."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.execute import Effort
from bench.grammar.parse import Args
from bench.output import check_output, note, reply
from bench.tuning.cli.shared import fewest_slots, in_time, show

if TYPE_CHECKING:
    from bench.tuning.trials import Request, StudySpec


def main(args: Args) -> int:
    """`bench tune` with these arguments: 0 done, 1 no trial has a score, 130 stopped."""
    command = shlex.join(["bench", "tune", *args.words])
    from bench.progress import doing

    with doing("importing optuna"):
        from bench.sweeps.grid import settings_in
        from bench.text import options_text
        from bench.tuning.progress import TuningProgress
        from bench.tuning.studies import Studies
        from bench.tuning.tune import promise, work

    places = {"data": args.data, "store": args.store}
    spec, request = of_words(args, settings_in(args.config) | args.of_runs, places)
    out = args.out or Path("tuned")
    effort = Effort(request.engine or "auto", args.width)
    fewest_slots(args.workers, [spec], places, request.engine)  # raises if it cannot be trained here
    if args.dry_run:
        points = [w.point for w in spec.design.wanted(request.trials, request.total)]
        reply(args, points, map(options_text, points))
        note(f"study {args.name or spec.name}: {promise(spec, request.trials)}")
        return 0
    check_output(out)  # fail before hours of training
    study = Studies(args.store).create(spec, args.name)
    stored = study.ask(request)
    if stored.trials > request.trials:
        note(f"the study already has {stored.trials} trials, and the result is that of all of them")
    progress = TuningProgress(f"study {study.name}", spec.metric)
    if not in_time(
        args,
        lambda: work(study, args.workers, places, effort, progress),
        "the same command with a larger one continues",
    ):
        return 130
    return show(study, as_json=args.json, out=out, command=command, store=args.store)


def of_words(args: Args, settings: dict[str, Any], places: dict[str, Path]) -> "tuple[StudySpec, Request]":
    """The study that the command requests, which an earlier command may have begun, and the request to it.

    Raises:
        UserError: a setting is unknown or illegal, or there is nothing to search.
    """
    from bench.tuning.trials import check_name
    from bench.tuning.tune import make_request, make_spec, reporting_seeds, tuning_seeds

    fresh = "7" if args.report_seeds is None else args.report_seeds
    report = fresh != "0"
    spec = make_spec(
        settings,
        sampler=None if args.sampler == "tpe" else args.sampler,
        seeds=tuning_seeds(args.seeds or "2"),
        report_seeds=reporting_seeds(fresh) if report else [],
        places=places,
    )
    if args.name is not None:
        check_name(args.name)
    request = make_request(
        spec.design,
        args.trials,
        tpe=args.sampler == "tpe",
        retries=2 if args.retries is None else args.retries,
        report=report,
        engine=args.engine,
        seeds=len(spec.seeds),
    )
    return spec, request
