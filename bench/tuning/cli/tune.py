"""`bench tune`."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.errors import UserError
from bench.execute import Effort
from bench.grammar.commands import parse
from bench.grammar.parse import Args
from bench.output import check_output, note, reply
from bench.tuning.cli.shared import fewest_slots, in_time, show
from optimizers.plugins import bare

if TYPE_CHECKING:
    from bench.tuning.study import Study
    from bench.tuning.trials import Request, StudySpec


def main(args: Args) -> int:
    """`bench tune` with these arguments: 0 done, 1 no trial has a score, 130 stopped."""
    command = shlex.join(["bench", "tune", *args.words])
    from bench.progress import doing

    with doing("importing optuna"):
        from bench.config.plugins import naming
        from bench.sweeps.grid import settings_in
        from bench.text import options_text
        from bench.tuning.progress import TuningProgress
        from bench.tuning.studies import Studies
        from bench.tuning.tune import promise, work

    places = {"data": args.data, "store": args.store}
    settings = settings_in(args.config) | args.of_runs
    asked = _of_study(args, settings) if args.resume else of_words(args, settings, places)
    study, spec, name, request, out = asked
    effort = Effort(request.engine or "auto", args.width)
    fewest_slots(args.workers, [spec], places, request.engine)  # raises if it cannot be trained here
    if args.dry_run:
        points = [w.point for w in spec.design.wanted(request.trials, request.total)]
        reply(args, points, map(options_text, points))
        note(f"study {name}: {promise(spec, request.trials)}")
        return 0
    check_output(out)  # fail before hours of training
    if study is None:
        study = Studies(args.store).create(spec, args.name)
    stored = study.ask(request)
    if stored.trials > request.trials:
        note(f"the study already has {stored.trials} trials, and the result is that of all of them")
    usual = parse("tune", []).store
    store = [] if args.store == usual else ["--store", str(args.store)]
    progress = TuningProgress(f"study {study.name}", spec.metric)
    again = shlex.join(["bench", "tune", "--resume", study.name, *naming(spec.names), *store])
    if not in_time(
        args,
        lambda: work(study, args.workers, places, effort, progress),
        "the same command with a larger one continues",
        f"stopped; nothing is lost, and the same command (or {again}) continues",
    ):
        return 130
    return show(study, as_json=args.json, out=out, command=command, store=args.store)


class StudyRequest(NamedTuple):
    """The request of a command, and the study that it continues, if any."""

    study: "Study | None"
    spec: "StudySpec"
    name: str
    request: "Request"
    out: Path


def _of_study(args: Args, settings: dict[str, Any]) -> StudyRequest:
    """The request to an existing study, with the options given now."""
    from bench.tuning.studies import Studies

    study = Studies(args.store, make=False).open(args.resume)
    own = {"seeds", "report_seeds", "name", *([] if args.sampler == "tpe" else ["sampler"])}
    named = {kind: [settings[kind]] for kind in ("task", "opt") if kind in settings}
    other = [kind for kind, (name,) in named.items() if bare(name) != bare(study.spec.names[kind])]
    given = ["config"] * (args.config is not None) + [*other, *(name for name in settings if name not in named)]
    given += [name for name in sorted(own) if getattr(args, name) not in (None, False)]
    if given:
        raise UserError(f"--resume takes the study's own settings; remove --{given[0]}")
    study.admit(named, ["bench", "tune", *args.words])
    # A suite's study waits for the others before its fresh seeds run; resumed alone it waits for none.
    before = study.request.model_copy(update={"report": bool(study.spec.report_seeds)})
    request = _request(args, study.spec, before)
    return StudyRequest(study, study.spec, study.name, request, args.out or Path(before.out or "tuned"))


def _request(args: Args, spec: "StudySpec", before: "Request") -> "Request":
    """The request of the options given now, based on the one so far."""
    from bench.tuning.tune import make_request

    return make_request(
        spec.design,
        (before.trials or None) if args.trials is None else args.trials,
        tpe=args.sampler == "tpe",
        retries=before.retries if args.retries is None else args.retries,
        report=before.report,
        out=args.out,
        engine=args.engine or before.engine,
        seeds=len(spec.seeds),
        usual=before.trials or None,
    )


def of_words(args: Args, settings: dict[str, Any], places: dict[str, Path]) -> StudyRequest:
    """The request to a new study, or to one that the same command began earlier."""
    from bench.tuning.trials import Request, check_name
    from bench.tuning.tune import make_spec, reporting_seeds, tuning_seeds

    fresh = "7" if args.report_seeds is None else args.report_seeds
    report = fresh != "0"
    spec = make_spec(
        settings,
        sampler=None if args.sampler == "tpe" else args.sampler,
        seeds=tuning_seeds(args.seeds or "2"),
        report_seeds=reporting_seeds(fresh) if report else [],
        places=places,
    )
    name = spec.name if args.name is None else check_name(args.name)
    request = _request(args, spec, Request(report=report, engine="auto"))
    return StudyRequest(None, spec, name, request, args.out or Path("tuned"))
