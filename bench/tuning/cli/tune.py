"""`bench tune`."""

import argparse
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.errors import UserError
from bench.tuning.cli.shared import add_storage, as_typed, note, open_studies, show, without_storage
from bench.tuning.design import EXTENSION_LIMIT
from bench.words import Parser, add_engine, add_places, read
from optimizers.plugins import bare

if TYPE_CHECKING:
    from bench.tuning.study import Study
    from bench.tuning.trials import Request, StudySpec


def main(words: list[str]) -> int:
    """`bench tune` with these words: 0 done, 1 no trial has a score, 130 stopped.

    Raises:
        UserError: the request cannot be carried out.
    """
    command = shlex.join(["bench", "tune", *without_storage(words)])
    args, settings = read(_parser(), words, ("task", "opt", "device", "precision", "data_seed"))
    from bench.execute.slots import slots
    from bench.papers.reproduce import make_output
    from bench.plugins import naming
    from bench.tuning.progress import TuningProgress, spoken
    from bench.tuning.selection import CONVERGED
    from bench.tuning.slurm import script
    from bench.tuning.tune import promise, work

    if args.print and not args.slurm:
        raise UserError("--print prints the script of --slurm; write both")
    if args.create and args.slurm:
        raise UserError("--create puts the study into its database, and --slurm does so too: leave one of them out")
    places = {"data": args.data, "store": args.store}
    asked = _of_study(args, settings, words) if args.resume else _of_words(args, settings, places)
    study, spec, name, request, out = asked
    engine = request.engine or "auto"
    if args.slurm and args.storage is None and not args.print:
        raise UserError(
            "--slurm: SQLite is not safe on the file systems that nodes share; give the address of a PostgreSQL"
            " (--storage postgresql+psycopg://USER:PASSWORD@HOST/NAME, or $BENCH_STORAGE)"
        )
    text = ""
    if args.slurm:
        text = script(name, spec, request.trials, args.workers, places, engine, _sbatch_options(args.sbatch))
    elif not args.create:
        slots(args.workers, spec.typical(places))  # refuses what this machine has not
    if args.dry_run:
        points = [w.point for w in spec.design.wanted({}, spec.mode, CONVERGED, request.trials, request.total)]
        print(json.dumps(points) if args.json else "\n".join(map(spoken, points)))
        note(f"study {name}: {promise(spec, request.trials)}")
        return 0
    if args.print:
        print(text, end="")
        if study is None or request != study.request:
            where = "" if args.storage else " and with --storage URL"
            note(
                f"study {name} must be in the database as it is asked for here:"
                f" the same command with --create instead of --slurm --print{where} puts it there"
            )
        return 0
    if not args.create:
        make_output(out)  # before hours of training
    if study is None:
        study = open_studies(args).create(spec, args.name)
    stored = study.ask(request)
    if stored.trials > request.trials:
        note(
            f"the study has {stored.trials} trials already; `bench studies {name} --budget {request.trials}` shows"
            f" what {request.trials} would have found"
        )
    if args.create:
        worker = shlex.join(["bench", "worker", "--study", study.name, *naming(spec.names)])
        print(f"study {study.name} is in {study.studies.shown}; to work on it: {worker}")
        return 0
    if args.slurm:
        return _slurm(study, text, args)
    progress = TuningProgress(f"study {study.name}", spec.metric)
    if not work(study, args.workers, places, engine, progress):
        progress.say(
            "bench: stopped; nothing is lost, and the same command"
            f" (or {shlex.join(['bench', 'tune', '--resume', study.name, *naming(spec.names)])}) goes on"
        )
        return 130
    return show(study, None, as_json=args.json, out=out, command=command, store=args.store)


class _Asked(NamedTuple):
    """What a command asks for, and the study that it names, if it goes on with one."""

    study: "Study | None"
    spec: "StudySpec"
    name: str
    request: "Request"
    out: Path


def _of_study(args: argparse.Namespace, settings: dict[str, Any], words: list[str]) -> _Asked:
    """As the study was asked for, but for what is given."""
    from bench.tuning.tune import make_request

    tpe = args.sampler == "tpe"
    study = open_studies(args, make=False, read_only=args.print).open(args.resume)
    own = {"seeds", "report_seeds", "prune", "name", *([] if tpe else ["sampler"])}
    named = {kind: [settings[kind]] for kind in ("task", "opt") if kind in settings}
    other = [kind for kind, (name,) in named.items() if bare(name) != bare(study.spec.names[kind])]
    given = [*other, *(name for name in settings if name not in named)]
    given += [name for name in sorted(own) if getattr(args, name) is not None]
    if given:
        raise UserError(f"--resume takes the study's own settings; leave --{given[0]} out")
    study.admit(named, as_typed("tune", words))
    before = study.request
    request = make_request(
        study.spec.design, (before.trials or None) if args.trials is None else args.trials, tpe=tpe,
        retries=before.retries if args.retries is None else args.retries, report=before.report, out=args.out,
        engine=args.engine or before.engine, seeds=len(study.spec.seeds),
    )  # fmt: skip
    return _Asked(study, study.spec, study.name, request, args.out or _remembered(before.out))


def _remembered(out: str | None) -> Path:
    """Where a study's settings go; one that somebody else made may name any place.

    Raises:
        UserError: it names one outside of this folder.
    """
    path = Path(out or "tuned")
    if not path.resolve().is_relative_to(Path.cwd().resolve()):
        raise UserError(f"the study's settings go to {path}, outside of this folder: name it again, --out {path}")
    return path


def _of_words(args: argparse.Namespace, settings: dict[str, Any], places: dict[str, Path]) -> _Asked:
    """A new study, or one that this command has begun before."""
    from bench.tuning.trials import check_name
    from bench.tuning.tune import make_request, make_spec, reporting_seeds, tuning_seeds

    tpe, fresh = args.sampler == "tpe", "5" if args.report_seeds is None else args.report_seeds
    report = fresh != "0"
    spec = make_spec(
        settings, sampler=None if tpe else args.sampler, seeds=tuning_seeds(args.seeds or "2"),
        report_seeds=reporting_seeds(fresh) if report else [], prune=bool(args.prune), places=places,
    )  # fmt: skip
    name = spec.name if args.name is None else check_name(args.name)
    retries = 2 if args.retries is None else args.retries
    request = make_request(
        spec.design, args.trials, tpe=tpe, retries=retries, report=report, out=args.out,
        engine=args.engine or "auto", seeds=len(spec.seeds),
    )  # fmt: skip
    return _Asked(None, spec, name, request, args.out or Path("tuned"))


def _parser() -> Parser:
    parser = Parser(
        prog="bench tune",
        description="Find an optimizer's hyperparameters on a task: trials on seeds of their own,"
        " chosen on validation, then the winner on fresh seeds. Writes TASK/OPT.yaml,"
        " which `bench fit --tuned` takes, and a plot of sensitivity.",
        epilog="Settings in dotted form as in `bench fit`. Searched is what the optimizer declares"
        " (`bench show sngd`), and what is given as a range (--opt.lr 1e-3:1e1), a grid (--opt.lr 1e-3:1e1:9) or a"
        " list (--opt.momentum 0,0.9); a single value fixes it. The same command goes on with what is stored;"
        " with more --trials it adds to it.",
    )
    parser.add_argument("--task", help="as `bench list tasks` prints it")
    parser.add_argument("--opt", help="as `bench list optimizers` prints it")
    parser.add_argument(
        "--trials", type=int,
        help="settings that are tried (default: nine half decades around the range's middle,"
        f" be the range wider or narrower); a grid may extend up to {EXTENSION_LIMIT} values beyond an edge,"
        " also of a range that was given, while the best lies there",
    )  # fmt: skip
    parser.add_argument("--seeds", help="runs of a trial: how many (2 is 1000 and 1001), or which (5,6); default 2")
    parser.add_argument(
        "--report_seeds",
        "--report-seeds",
        help="fresh seeds of the winner: how many (5 is 0 to 4), or which",
    )
    parser.add_argument(
        "--sampler", choices=("grid", "qmc", "tpe"),
        help="grid: half decades, more at an edge (default); qmc: quasi-random; tpe: the grid,"
             " then refinements around its best, labelled",
    )  # fmt: skip
    parser.add_argument(
        "--prune",
        action="store_true",
        default=None,
        help="stop trials that are worse than the median of the others; labelled",
    )
    parser.add_argument("--retries", type=int, help="how often a trial that came to nothing is tried again (default 2)")
    parser.add_argument("--name", help="of the study (default: TASK-OPT-HASH)")
    parser.add_argument("--resume", metavar="NAME", help="go on with this study as it was asked for")
    parser.add_argument(
        "--out",
        type=Path,
        help="where TASK/OPT.yaml and the plot go (default: tuned; with --resume where they went before)",
    )
    parser.add_argument("--device", help="cpu, cuda, mps or auto (default auto)")
    parser.add_argument("--precision", help="32-true, bf16-mixed, 16-mixed or 64-true (default: the task's)")
    parser.add_argument("--data_seed", "--data-seed", help="decides the order of the samples; the seed by default")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    parser.add_argument("--dry-run", action="store_true", help="print the trials of the design and stop")
    parser.add_argument(
        "--slurm", action="store_true", help="submit the workers to Slurm as an array, one task a GPU, and stop"
    )
    parser.add_argument(
        "--print", action="store_true", help="with --slurm: print the script and stop; no database is written to"
    )
    parser.add_argument(
        "--create",
        action="store_true",
        help="put the study into its database and stop; `bench worker` works on it",
    )
    parser.add_argument(
        "--sbatch",
        default="",
        metavar="OPTIONS",
        help="further options for sbatch: --sbatch='--partition=gpu --time=4:00:00'",
    )
    parser.add_argument(
        "--workers", default="auto", help="worker processes, or auto (default): one for each GPU, or each processor"
    )
    add_engine(parser)
    parser.set_defaults(engine=None)  # with --resume the study's own
    add_storage(parser)
    add_places(parser)
    return parser


def _sbatch_options(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UserError(f"--sbatch {text}: {str(error).lower()}") from None


def _slurm(study: "Study", text: str, args: argparse.Namespace) -> int:
    from bench.papers.reproduce import make_output
    from bench.tuning.slurm import submit

    make_output(args.store)  # or Slurm could not write its log
    print(submit(study, text, args.store))
    print(
        f"when it is done: bench tune --resume {study.name} writes the settings;"
        f" bench studies {study.name} shows how far it is"
    )
    return 0
