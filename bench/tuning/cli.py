"""The commands around studies: tune, suite, studies, worker."""

import argparse
import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.errors import RunFailed, UserError
from bench.tuning.design import EXTENSION_LIMIT
from bench.words import Parser, add_places, read

if TYPE_CHECKING:
    from bench.tuning.studies import Studies
    from bench.tuning.study import Study
    from bench.tuning.tuned import Outcome

ENGINES = ("auto", "lanes", "lightning")


def _tune(words: list[str]) -> int:
    parser = Parser(
        prog="bench tune",
        description="Find an optimizer's hyperparameters on a task: trials on seeds of their own, chosen on validation, then the"
        " winner on fresh seeds. Writes TASK/OPT.yaml, which `bench fit --tuned` takes, and a plot of sensitivity.",
        epilog="Settings in dotted form as in `bench fit`. Searched is what the optimizer declares (`bench show sngd`), and what is given as"
        " a range (--opt.lr 1e-3:1e1), a grid (--opt.lr 1e-3:1e1:9) or a list (--opt.momentum 0,0.9); a single value fixes it."
        " The same command goes on with what is stored; with more --trials it adds to it.",
    )
    parser.add_argument("--task", help="as `bench list tasks` prints it")
    parser.add_argument("--opt", help="as `bench list optimizers` prints it")
    parser.add_argument(
        "--trials", type=int,
        help="settings that are tried (default: nine half decades around the range's middle, be the range wider or narrower);"
        f" a grid may extend up to {EXTENSION_LIMIT} values beyond an edge, also of a range that was given, while the best lies there",
    )  # fmt: skip
    parser.add_argument("--seeds", help="runs of a trial: how many (2 is 1000 and 1001), or which (5,6); default 2")
    parser.add_argument(
        "--report_seeds",
        "--report-seeds",
        help="fresh seeds of the winner: how many (5 is 0 to 4), or which",
    )
    parser.add_argument(
        "--sampler", choices=("grid", "qmc", "tpe"),
        help="grid: half decades, more at an edge (default); qmc: quasi-random; tpe: the grid, then refinements around its best, labelled",
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
    parser.add_argument("--print", action="store_true", help="with --slurm: print the script, do not submit it")
    parser.add_argument(
        "--sbatch",
        default="",
        metavar="OPTIONS",
        help="further options for sbatch: --sbatch='--partition=gpu --time=4:00:00'",
    )
    _add_workers(parser)
    _add_storage(parser)
    add_places(parser)
    command = shlex.join(["bench", "tune", *_without_storage(words)])
    args, settings = read(parser, words, ("task", "opt", "device", "precision", "data_seed"))
    from bench.papers.reproduce import make_output
    from bench.tuning.progress import TuningProgress, spoken
    from bench.tuning.selection import CONVERGED
    from bench.tuning.slurm import script
    from bench.tuning.trials import check_name
    from bench.tuning.tune import make_request, make_spec, promise, reporting_seeds, tuning_seeds, work
    from bench.tuning.workers import slots

    places = {"data": args.data, "store": args.store}
    tpe = args.sampler == "tpe"
    study = _studies(args, make=False).open(args.resume) if args.resume else None
    if study is not None:
        own = {"seeds", "report_seeds", "prune", "name", *([] if tpe else ["sampler"])}
        given = [*settings, *(name for name in sorted(own) if getattr(args, name) is not None)]
        if given:
            raise UserError(f"--resume takes the study's own settings; leave --{given[0]} out")
        spec, name, before = study.spec, study.name, study.request
        trials = (before.trials or None) if args.trials is None else args.trials
        retries, report = before.retries if args.retries is None else args.retries, before.report
        out = args.out or Path(before.out or "tuned")
    else:
        fresh = "5" if args.report_seeds is None else args.report_seeds
        trials, retries, report = args.trials, 2 if args.retries is None else args.retries, fresh != "0"
        spec = make_spec(
            settings, sampler=None if tpe else args.sampler, seeds=tuning_seeds(args.seeds or "2"),
            report_seeds=reporting_seeds(fresh) if report else [], prune=bool(args.prune), places=places,
        )  # fmt: skip
        name = spec.name if args.name is None else check_name(args.name)
        out = args.out or Path("tuned")
    request = make_request(spec.design, trials, tpe=tpe, retries=retries, report=report)
    if args.out is not None:
        request = request.model_copy(update={"out": str(args.out.absolute())})
    if args.print and not args.slurm:
        raise UserError("--print prints the script of --slurm; write both")
    if args.slurm and args.storage is None and not args.print:
        raise UserError(
            "--slurm: SQLite is not safe on the file systems that nodes share; give the address of a PostgreSQL"
            " (--storage postgresql+psycopg://USER:PASSWORD@HOST/NAME, or $BENCH_STORAGE)"
        )
    text = ""
    if args.slurm:
        text = script(name, spec, request.trials, args.workers, places, args.engine, _sbatch_options(args.sbatch))
    else:
        slots(args.workers, spec.typical(places))  # refuses what this machine has not
    if args.dry_run:
        points = [w.point for w in spec.design.wanted({}, spec.mode, CONVERGED, request.trials, request.total)]
        print(json.dumps(points) if args.json else "\n".join(map(spoken, points)))
        _say(f"study {name}: {promise(spec, request.trials)}")
        return 0
    if args.print and args.storage is None:
        print(text, end="")
        _say(
            f"no --storage was given, so study {name} is in no database yet: the same command with --storage puts it there,"
            " and the script then works as it is"
        )
        return 0
    make_output(out)  # before hours of training
    if study is None:
        study = _studies(args).create(spec, args.name)
    asked = study.ask(request)
    if asked.trials > request.trials:
        _say(
            f"the study has {asked.trials} trials already; `bench studies {name} --budget {request.trials}` shows"
            f" what {request.trials} would have found"
        )
    if args.slurm:
        return _slurm(study, text, args)
    progress = TuningProgress(f"study {study.name}", spec.metric)
    if not work(study, args.workers, places, args.engine, progress):
        progress.say(
            f"bench: stopped; nothing is lost, and the same command (or bench tune --resume {study.name}) goes on"
        )
        return 130
    return _show(study, None, as_json=args.json, out=out, command=command, store=args.store)


def _sbatch_options(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UserError(f"--sbatch {text}: {str(error).lower()}") from None


def _slurm(study: "Study", text: str, args: argparse.Namespace) -> int:
    from bench.papers.reproduce import make_output
    from bench.tuning.slurm import submit

    if args.print:
        print(text, end="")
        return 0
    make_output(args.store)  # or Slurm could not write its log
    print(submit(study, text, args.store))
    print(
        f"when it is done: bench tune --resume {study.name} writes the settings; bench studies {study.name} shows how far it is"
    )
    return 0


def _show(
    study: "Study",
    budget: int | None,
    *,
    as_json: bool,
    out: Path | None = None,
    command: str = "",
    store: Path | None = None,
) -> int:
    """Print what a study has found, and write it if there are places for it."""
    from bench.tuning import tuned

    found = tuned.outcome(study, budget)
    if store is not None:
        tuned.remember(found, store)
        _say(tuned.missing_runs(found, store))
    shown = tuned.analyse(found) if found.runs else None
    paths: list[Path] = []
    if out is not None and found.best is not None:
        _say(tuned.replaced(out, found))
        paths = tuned.write(out, found, command)
    if as_json:
        print(json.dumps(tuned.as_json(found) | {"out": str(out) if paths else None}))
    else:
        print("\n".join(tuned.lines(found, shown)))
        if paths:
            print(f"written to {out}: {', '.join(str(path.relative_to(out or '.')) for path in paths)}")
            print(f"use it: {_use(found, out)}")
    return 0 if found.best is not None else 1


def _say(note: str | None) -> None:
    if note is not None:
        print(f"bench: {note}", file=sys.stderr, flush=True)


def _use(found: "Outcome", out: Path | None) -> str:
    """The command that trains as the winner was trained."""
    from bench.tuning.tuned import conditions, tuned_path

    spec, folder = found.study.spec, Path(out or ".")
    here = folder.absolute() == Path("tuned").absolute()
    there = ["--tuned"] if here else ["--config", str(tuned_path(folder, spec))]
    words = [word for name, value in conditions(found).items() for word in (f"--{name}", value)]
    return shlex.join(["bench", "fit", "--task", spec.task, "--opt", spec.opt, *there, *words])


# -- studies, worker --------------------------------------------------------------------------------------------------


def _list_studies(words: list[str]) -> int:
    parser = Parser(prog="bench studies", description="List the studies of a database, or show what one has found.")
    parser.add_argument("name", nargs="?", help="show this study")
    parser.add_argument("--budget", type=int, help="what so many trials would have found, from what is stored")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    _add_storage(parser)
    add_places(parser)
    args = parser.parse_args(words)
    if args.budget is not None and args.name is None:
        raise UserError(f"--budget {args.budget}: name a study: bench studies NAME --budget {args.budget}")
    from bench.tuning import tuned
    from bench.tuning.progress import counted, spoken
    from bench.tuning.studies import NoDatabase

    try:
        studies = _studies(args, make=False)
    except NoDatabase as error:
        if args.name is not None:
            raise
        print("{}" if args.json else f"no studies in {error.shown}")
        return 0
    if args.name is not None:
        return _show(studies.open(args.name), args.budget, as_json=args.json)
    rows: dict[str, dict[str, Any]] = {}
    for name in studies.names():
        try:
            study = studies.open(name)
            found = tuned.outcome(study)
        except RunFailed:  # the database has gone away
            raise
        except UserError as error:
            rows[name] = {"error": str(error)}
            continue
        running = sum(trial.state == "running" for trial in study.trials())
        rows[name] = {
            "trials": len(found.scored) + len(found.refined), "missing": found.missing, "running": running,
            "best": None if found.best is None else spoken(found.best.point), "score": found.score,
            "fresh": found.fresh_interval and found.fresh_interval.mean,
        }  # fmt: skip
    if args.json:
        print(json.dumps(rows))
    elif not rows:
        print(f"no studies in {studies.shown}")
    width = max(map(len, rows), default=0)
    for name, row in rows.items():
        if "error" in row:
            _say(f"{name} cannot be shown: {row['error']}")
        elif not args.json:
            score = "" if row["score"] is None else f"best {row['best']}: {row['score']:.4g}"
            fresh = "" if row["fresh"] is None else f", fresh seeds {row['fresh']:.4g}"
            counts = f"{row['trials']} of {counted(row['trials'] + row['missing'], 'trial')}"
            counts += f", {row['running']} running" * bool(row["running"])
            print(f"{name:<{width}}  {counts:<16}  {score}{fresh}".rstrip())
    return int(any("error" in row for row in rows.values()))


def _worker(words: list[str]) -> int:
    parser = Parser(
        prog="bench worker", description="Take trials of a study and train them until nothing is left to do. Start as many as there are devices."
    )  # fmt: skip
    parser.add_argument("--study", help="its name, as `bench studies` prints it")
    parser.add_argument("--engine", choices=ENGINES, default="auto", help="as in `bench tune`")
    parser.add_argument(
        "--shared-by",
        type=int,
        default=1,
        help="workers that share the trials, where lanes take many at once (default 1)",
    )
    parser.add_argument("--events", action="store_true", help=argparse.SUPPRESS)  # for the process that started us
    _add_storage(parser)
    add_places(parser)
    args = parser.parse_args(words)
    if args.study is None and not args.events:
        raise UserError("--study is missing; `bench studies` lists their names")
    studies, out = _studies(args, make=False), sys.stdout
    study = studies.open(args.study) if args.study is not None else None
    with redirect_stdout(sys.stderr):
        from bench.tuning import tuned
        from bench.tuning.worker import Worker, supervised

        if study is None:  # whatever libraries print, C ones too, must not get among the events
            out = os.fdopen(os.dup(1), "w")
            os.dup2(2, 1)

        places = {"data": args.data, "store": args.store}
        tell = _as_events(out) if study is None else _as_lines(study)
        worker = Worker(places, tell, engine=args.engine, shared_by=args.shared_by)
        for each in [study] if study is not None else map(studies.open, supervised()):
            if not worker.work(each):
                return 130
            tuned.remember(tuned.outcome(each), args.store)
            tell({"done": each.name})
    return 0


def _as_events(out: Any) -> Callable[[Mapping[str, Any]], None]:
    def tell(event: Mapping[str, Any]) -> None:
        with suppress(OSError):  # if nobody listens any more, the end of standard input says what to do
            print(json.dumps(event), file=out, flush=True)

    return tell


def _as_lines(study: "Study") -> Callable[[Mapping[str, Any]], None]:
    from bench.tuning.progress import TuningProgress

    progress = TuningProgress(f"study {study.name}", study.spec.metric)

    def tell(event: Mapping[str, Any]) -> None:
        if "ended" in event:
            progress.counted(study.trials(), study.request.trials)
        progress.event(0, event)

    return tell


# -- suite ------------------------------------------------------------------------------------------------------------


def _suite(words: list[str]) -> int:
    parser = Parser(
        prog="bench suite",
        description="Tune each optimizer on each task with the same number of trials, then run the winners on fresh seeds."
        " What is stored is not trained again, so the same command goes on after an interruption.",
    )
    parser.add_argument("file", help="a YAML file, or the name of one in configs/suites")
    parser.add_argument(
        "--plan", action="store_true", help="print what would run, what is stored, and about how long it takes"
    )
    parser.add_argument(
        "--jobs", default="auto", help="worker processes, or auto (default): one for each GPU, or each processor"
    )
    parser.add_argument("--engine", choices=ENGINES, default="auto", help="as in `bench tune`")
    parser.add_argument("--out", type=Path, default=Path("tuned"), help="where settings and plots go (default: tuned)")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    _add_storage(parser)
    add_places(parser)
    command = shlex.join(["bench", "suite", *_without_storage(words)])
    args = parser.parse_args(words)
    from bench.papers.reproduce import make_output
    from bench.tuning import suite, tuned
    from bench.tuning.studies import NoDatabase
    from bench.tuning.workers import Workers, slots

    places = {"data": args.data, "store": args.store}
    asked = suite.load(args.file)
    try:
        specs = asked.specs(places)
    except UserError as error:
        raise UserError(f"{args.file}: {error}") from None
    cut = min((slots(args.jobs, spec.typical(places), option="--jobs") for spec in specs), key=len)
    if args.plan:
        studies = None
        with suppress(NoDatabase):
            studies = _studies(args, make=False)
        with redirect_stdout(sys.stderr):
            steps = suite.plan(asked, studies, places, suite.measured(places, cut[0].threads))
        if args.json:
            print(json.dumps([vars(step) | {"spec": step.spec.model_dump(mode="json")} for step in steps]))
        else:
            print("\n".join([asked.title, *suite.plan_lines(steps, len(cut))]))
        return 0
    make_output(args.out)  # before hours of training
    studies = _studies(args)

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    with Workers(studies, cut, places, args.engine) as workers:
        done = suite.carry_out(asked, studies, places, workers, say)
    if done is None:
        say("bench: stopped; nothing is lost, and the same command goes on")
        return 130
    found = [tuned.outcome(study) for study in done]
    for each in found:
        tuned.remember(each, args.store)
        _say(tuned.missing_runs(each, args.store))
        _say(tuned.replaced(args.out, each) if each.best is not None else None)
    paths = suite.write(args.out, found, command)
    if args.json:
        print(json.dumps({"out": str(args.out), "studies": [tuned.as_json(each) for each in found]}))
    else:
        print("\n".join([asked.title, "", *suite.result_lines(found)]))
        print(f"written to {args.out}: {len(paths)} files, such as {paths[-4] if paths else 'none'}")
    return 0 if all(each.best is not None for each in found) else 1


# -- what they share --------------------------------------------------------------------------------------------------


def _add_workers(parser: Parser) -> None:
    parser.add_argument(
        "--workers", default="auto", help="worker processes, or auto (default): one for each GPU, or each processor"
    )
    parser.add_argument(
        "--engine", choices=ENGINES, default="auto",
        help="lanes: many trials as one program; lightning: one after the other; auto (default): what a short measurement finds faster",
    )  # fmt: skip


def _add_storage(parser: Parser) -> None:
    parser.add_argument(
        "--storage", default=os.environ.get("BENCH_STORAGE"),
        help="the studies' database: sqlite:///FILE or postgresql+psycopg://USER:PASSWORD@HOST/NAME"
        " (default: $BENCH_STORAGE, else studies.db in the store)",
    )  # fmt: skip


def _studies(args: argparse.Namespace, *, make: bool = True) -> "Studies":
    from bench.tuning.studies import Studies

    asked = None if args.storage else f"--store {args.store}"
    return Studies(args.storage or f"sqlite:///{args.store / 'studies.db'}", make=make, asked=asked)


def _without_storage(words: list[str]) -> list[str]:
    """The words without the database, whose password is nobody's business."""
    kept, skip = [], False
    for word in words:
        if not skip and not word.startswith("--storage"):
            kept.append(word)
        skip = word == "--storage"
    return kept


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "tune": _tune,
    "suite": _suite,
    "studies": _list_studies,
    "worker": _worker,
}


def main(words: list[str]) -> int:
    """One of these commands, with its name as the first word; see `bench.cli.main`."""
    return COMMANDS[words[0]](words[1:])
