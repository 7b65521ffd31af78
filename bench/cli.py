"""The command line: words to calls. Nothing heavy is imported before it is needed."""

import argparse
import errno
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from bench import process
from bench.errors import MAKE_ROOM, RunFailed, UserError, unknown, unknown_run
from bench.machine import is_main_process
from bench.output import add_stores, remark, stores_of, warn_of
from bench.text import clean, plain
from bench.words import Parser, add_places, names_of, place, split
from optimizers.plugins import PluginError, foreign


def program() -> NoReturn:
    """`main` as a process of its own."""
    process.begin()
    code = _exit_code(sys.argv[1:])
    if foreign:
        sys.exit(code)  # Python closes the files that they may have left open
    process.end(code)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit: 0 done, 1 something broke on the way, 2 the request cannot be carried out."""
    sys.exit(_exit_code(list(sys.argv[1:] if argv is None else argv)))


def _exit_code(words: list[str]) -> int:
    try:
        code = _dispatch(words)
        sys.stdout.flush()
    except (UserError, PluginError) as error:
        remark("error", error)
        code = getattr(error, "exit_code", UserError.exit_code)
    except BrokenPipeError:  # `bench list tasks | head`
        code = 0
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still to be flushed must not break too
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        where = f" ({error.filename})" if error.filename else ""
        print(f"bench: error: the disk is full{where}{MAKE_ROOM}", file=sys.stderr)
        code = RunFailed.exit_code
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        print("bench: interrupted", file=sys.stderr)
        code = 130
    return code


def _dispatch(words: list[str]) -> int:
    parser = Parser(
        prog="bench",
        description="Compare optimizers on attention models.",
        epilog="Start with: bench fit --task synthetic --opt ngd",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="bench [-h] [--version] COMMAND ...",
    )
    parser.add_argument("--version", action="store_true", help="print the version")
    sub = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, (_, what) in COMMANDS.items():
        sub.add_parser(name, help=what)
    if words and not words[0].startswith("-"):
        if words[0] not in COMMANDS:
            raise unknown("command", words[0], COMMANDS)
        return COMMANDS[words[0]][0](words[1:])
    args = parser.parse_args(words)
    if args.version:
        from bench import __version__

        print(__version__)
    else:
        parser.print_help()
    return 0


# -- fit ----------------------------------------------------------------------------------------------------------


def _fit(words: list[str]) -> int:
    settings, flags = split(
        words, valued={"config", "resume"}, switches={"tuned", "rerun", "dry-run", "json", "help", "h"}
    )
    if "help" in flags or "h" in flags:
        from bench.describe import fit_help

        print(fit_help(settings.get("task"), settings.get("opt")))
        return 0
    places = {name: place(name, settings.get(name)) for name in ("data", "store")}
    if "resume" in flags:
        command = ["bench", "fit", *words]
        run = Path(flags["resume"])
        if run.name != flags["resume"]:  # the path of a run's folder
            places["store"] = settings["store"] = run.parent
        more = flags.keys() & {"config", "tuned", "rerun"}
        if more:
            raise UserError(f"--resume takes the run's own settings; leave --{min(more)} out")
        config = _stored_config(run.name, settings, places, command)
    else:
        from bench.config import resolve

        path = Path(flags["config"]) if "config" in flags else None
        config = resolve(settings, config=path, tuned="tuned" in flags, fallback=places)
    study = None
    if "tuned" in flags:
        from bench.settings import tuned_by
        from bench.tuned import tuned_file

        study = tuned_by(config)
        print(f"bench: settings from {tuned_file(config.task, config.opt)}", file=sys.stderr)
    if "dry-run" in flags:
        return _dry_run(config, as_json="json" in flags)
    result = _stored_result(config) if "rerun" not in flags else None
    if result is not None:
        logged = ", so nothing goes to a logger" if config.logger else ""
        print(f"bench: already stored{logged}; --rerun trains again", file=sys.stderr)
    else:
        from bench.runner import run

        with redirect_stdout(sys.stderr):  # standard output is for the result alone, whatever a library prints
            result = run(config, rerun="rerun" in flags, progress=True, tuned_by=study)
    if is_main_process():
        from bench.report import result_json, result_lines

        if "json" in flags:
            print(json.dumps(result_json(result, config.store)))
        else:
            print("\n".join(result_lines(result, config.store)))
    return {"killed": 130, "failed": 1}.get(result.status, 0)


def _stored_config(run_id: str, settings: dict[str, Any], places: dict[str, Path], command: list[str]) -> Any:
    """The configuration of a run that was interrupted, with places from here."""
    from bench.config import resolve, settings_of
    from bench.plugins import allowed
    from bench.store.record import RESUMABLE
    from bench.store.store import Store
    from optimizers.plugins import bare

    named = {kind: [str(settings.pop(kind))] for kind in ("task", "opt") if kind in settings}
    more = settings.keys() - {"store", "data", "logger"}
    if more:
        raise UserError(
            f"--resume takes the run's own settings; --{min(more)} cannot be changed (start a new run instead)"
        )
    store = places["store"]
    kept = Store(store)
    result = kept.get(run_id)
    if result is None:
        if not kept.folder.is_dir():
            raise UserError(f"there is no store {store}; name it with --store DIR")
        raise unknown_run(run_id, (run.run_id for run in kept.runs()), f"the store {store}")
    for kind, (name,) in named.items():
        if bare(name) != bare(result.config[kind]):
            raise UserError(
                f"--{kind} {name}: run {run_id} was begun with {result.config[kind]}, which cannot be changed"
                " (start a new run instead)"
            )
    names = allowed(result.config, result.versions, named, f"run {run_id}", command)
    config = resolve(settings_of(result.config) | names | places | settings)
    if config.run_id != run_id:
        raise UserError(
            f"run {run_id} was begun by another version of its task or optimizer and cannot be continued;"
            " train again without --resume"
        )
    if result.status in RESUMABLE and result.engine == "lanes":
        raise UserError(
            f"run {run_id} was {result.status} in a sweep, which trains it beside others; give the sweep's command"
            " again, or train the run alone without --resume"
        )
    if result.status in RESUMABLE and kept.checkpoint(run_id) is None:
        raise UserError(f"run {run_id} was {result.status} before its first checkpoint; train again without --resume")
    return config


def _stored_result(config: Any) -> Any:
    """The finished run of this configuration, found without importing what trains."""
    from bench.config import on_device
    from bench.store.store import Store

    return Store(config.store).finished(on_device(config).run_id)


def _dry_run(config: Any, *, as_json: bool) -> int:
    import yaml

    from bench.checks import check
    from bench.config import on_device

    config = on_device(config)
    check(config)
    shown = plain(config.model_dump(mode="python"))
    if as_json:
        print(json.dumps({"run_id": config.run_id, **shown}))
        return 0
    for name in ("task", "opt"):
        shown[name] = {"name": shown[name], **shown.pop(f"{name}_options")}
    # A comment, so that `--config` reads the rest back.
    print(f"# run_id: {config.run_id}\n{yaml.safe_dump(shown, sort_keys=False)}", end="")
    return 0


# -- list, show, doctor -------------------------------------------------------------------------------------------


def _list(words: list[str]) -> int:
    parser = Parser(
        prog="bench list", description="List tasks, optimizers, or the stored runs, newest first.",
        epilog="Runs that differ in their seeds alone share a line, with the median of their results. The runs of a"
        " study share one, and so do those that sweeps made of an optimizer on a problem, with the median at the best"
        " settings. A run whose record has no date has that of its file. Exit code 1: something could not be read.",
    )  # fmt: skip
    parser.add_argument("what", choices=("tasks", "optimizers", "runs"))
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else; of runs an object for each")
    runs = parser.add_argument_group("runs")
    add_stores(runs)
    runs.add_argument("--task", type=names_of, default=[], metavar="A,B", help="only these tasks")
    runs.add_argument("--opt", type=names_of, default=[], metavar="A,B", help="only these optimizers")
    runs.add_argument("--status", type=names_of, default=[], metavar="A,B", help="only these: running, failed, ...")
    runs.add_argument(
        "--since", default="", metavar="WHEN", help="only runs that began then or later: 2026-11-22, 30m, 2h, 3d, 1w"
    )
    runs.add_argument("--study", default="", metavar="NAME", help="the trials of this study, a line for each point")
    runs.add_argument("--all", action="store_true", help="a line for each run")
    runs.add_argument(
        "--sort", default="date", metavar="BY", help="date (default), time, steps, result, task, opt, status or run"
    )
    runs.add_argument("--limit", type=int, metavar="N", help="so many lines at most")
    args = parser.parse_args(words)
    if args.what == "runs":
        return _list_runs(args)
    for name, value in vars(args).items():
        if name not in ("what", "json") and value != parser.get_default(name):
            raise UserError(f"--{name}: it chooses runs (`bench list runs`); leave it out to list {args.what}")
    from bench.text import aligned
    from optimizers import OPTIMIZERS
    from tasks import TASKS

    if args.what == "tasks":
        rows = {name: TASKS.describe(name) or TASKS[name].title for name in TASKS}
    else:
        rows = {name: OPTIMIZERS.describe(name) or OPTIMIZERS[name].formula for name in OPTIMIZERS}
    print(json.dumps(rows) if args.json else "\n".join(aligned([list(map(clean, row)) for row in rows.items()])))
    return 0


def _list_runs(args: argparse.Namespace) -> int:
    from bench import terminal
    from bench.store import listing
    from bench.store.stores import Stores

    for status in args.status:
        if status not in listing.STATUSES:
            raise unknown("status", status, listing.STATUSES)
    if args.sort not in listing.SORTS:
        raise unknown("order of --sort", args.sort, listing.SORTS)
    if args.limit is not None and args.limit < 1:
        raise UserError(f"--limit {args.limit}: it must be at least 1")
    asked = listing.Asked(
        args.task, args.opt, args.status, listing.since(args.since) if args.since else "", args.study, args.sort,
        each=args.all or args.json,
    )  # fmt: skip
    folders = stores_of(args)
    if args.store is None or len(folders) == 1:
        folders = [folder for folder in folders if folder.is_dir()]
    stores = Stores(folders)
    found = listing.lines(stores, asked) if stores.runs else []
    shown = found[: args.limit]
    if args.json:
        print(json.dumps(plain(listing.as_json(shown, stores)), allow_nan=False))
    elif shown:
        print("\n".join(terminal.table(listing.rows(shown), terminal.columns())))
    else:
        where = stores.shown or " and ".join(map(str, stores_of(args)))
        print(clean(f"no {'such ' * bool(stores.runs)}runs in {where}"))
    code = warn_of(stores)
    if len(found) > len(shown):
        remark("note", f"{len(found) - len(shown)} more; --limit {len(found)} shows all")
    return code


def _show(words: list[str]) -> int:
    parser = Parser(
        prog="bench show", description="Describe a task, an optimizer, a paper's experiment or a stored run.",
        epilog="Of a run: result, settings, curve, notes, and the commands that repeat, resume and plot it.",
    )  # fmt: skip
    parser.add_argument("name", help="a task, an optimizer, an experiment, the id of a run, or the path of its folder")
    add_stores(parser)
    args = parser.parse_args(words)
    name = args.name
    from optimizers import OPTIMIZERS
    from tasks import TASKS

    if name in OPTIMIZERS:
        from bench.describe import describe_optimizer

        print(describe_optimizer(OPTIMIZERS[name]))
        return 0
    if name in TASKS:
        from bench.describe import describe_task

        print(describe_task(TASKS[name]))
        return 0
    path = Path(name)
    folders = [path.parent] if path.name != name and path.parent.is_dir() else stores_of(args)
    likely = name.count("/") != 1 or path.is_absolute()  # experiments are called PAPER/EXPERIMENT, and read statistics
    if likely and (page := _page_of_run(path.name, folders)):
        print(page)
        return 0
    from bench.papers.experiments import experiments, load, unknown_name

    if name in experiments():
        from bench.describe import describe_experiment

        print(describe_experiment(name, load(name)))
        return 0
    if not likely and (page := _page_of_run(path.name, folders)):
        print(page)
        return 0
    from bench.store.stores import Stores

    stores = Stores([folder for folder in folders if folder.is_dir()])
    broken = [each for each in stores.damaged if path.name in each.path.parts]
    if broken:
        remark("error", broken[0])
        return RunFailed.exit_code
    begun = [run_id for run_id in stores.blocks if run_id.startswith(path.name)]
    near = begun[:1] or get_close_matches(path.name, stores.blocks, n=1, cutoff=0.9)  # ids end in a digest
    if near:
        raise unknown(f"run in {stores.shown}", path.name, near)
    raise unknown_name("task, optimizer, experiment or run", name, [*TASKS, *OPTIMIZERS, *experiments()])


def _page_of_run(run_id: str, folders: Sequence[Path]) -> str | None:
    """What is shown of a run, or None if no store has it."""
    from bench.store.store import Store

    if not any(Store(folder).get(run_id) for folder in folders if folder.is_dir()):
        return None
    from bench.store import show
    from bench.store.compare import find

    return "\n".join(show.lines(*find(run_id, [folder for folder in folders if folder.is_dir()])))


def _doctor(words: list[str]) -> int:
    parser = Parser(prog="bench doctor", description="Check this machine, its data and its store.")
    add_places(parser)
    args = parser.parse_args(words)
    from bench.doctor import examine

    return examine(args.data, args.store)


# -- all ----------------------------------------------------------------------------------------------------------

Command = Callable[[list[str]], int]


def _in(module: str, *first: str) -> Command:
    """Commands that have a module of their own, which is imported when one is called."""
    return lambda words: import_module(module).main([*first, *words])


COMMANDS: dict[str, tuple[Command, str]] = {
    "fit": (_fit, "train one task with one optimizer and store the result"),
    "sweep": (_in("bench.sweeps.cli"),
              "train many learning rates and seeds as one program: table and plot of sensitivity"),
    "tune": (_in("bench.tuning.cli.tune"), "find an optimizer's hyperparameters on a task, with many workers"),
    "suite": (_in("bench.tuning.cli.suite"),
              "tune optimizers on tasks at equal budgets, then run the winners, as one plan"),
    "studies": (_in("bench.tuning.cli.studies"), "list studies, or show what one has found, with a smaller budget too"),
    "worker": (_in("bench.tuning.cli.worker"), "join a study, from any machine that reaches its database"),
    "leaderboard": (_in("bench.boards.cli", "leaderboard"),
                    "rank optimizers from the stored runs, with intervals and ties"),
    "report": (_in("bench.boards.cli", "report"),
               "write boards, charts and commands as one HTML page that needs no network"),
    "plot": (_in("bench.boards.cli", "plot"),
             "draw stored runs for a paper: curves, sensitivity, profiles, step sizes, budgets"),
    "reproduce": (_in("bench.papers.cli"), "run a paper's experiment: figure, data and tested claims"),
    "sql": (_in("bench.store.cli", "sql"), "ask about runs, curves, measurements and trials with SQL"),
    "merge": (_in("bench.store.cli", "merge"), "copy the runs of stores into another one"),
    "diff": (_in("bench.store.cli", "diff"), "show what differs between two runs"),
    "new": (_in("bench.new"), "write a package with an optimizer or a task of your own"),
    "check": (_in("bench.check.cli"), "check that an optimizer does what training code expects, plug-ins too"),
    "list": (_list, "list tasks, optimizers or runs"),
    "show": (_show, "describe a task, an optimizer, a paper's experiment or a stored run"),
    "data": (_in("bench.data"), "show which files of a task's data are here, or fetch and tokenise them"),
    "doctor": (_doctor, "check this machine, its data and its store"),
}  # fmt: skip
"""What each command does, in the order of `bench --help`; they are given the words behind their name."""


if __name__ == "__main__":
    program()
