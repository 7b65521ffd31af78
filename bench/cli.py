"""The command line: arguments to calls. Heavy imports happen only when needed."""

import errno
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from bench import process
from bench.errors import ANYTHING, MAKE_ROOM, RunFailed, UserError, check_known, unknown, unknown_run, was_interrupted
from bench.grammar.commands import COMMANDS, ELSEWHERE, RUNNING, parse
from bench.grammar.parse import HELP, Args, check_settings, unknown_command
from bench.grammar.values import place
from bench.machine import is_main_process
from bench.output import answer, existing_stores, remark, stores_of, warn_of
from bench.text import clean, plain
from optimizers.plugins import PluginError, foreign

_CONTINUING = ("sweep", "reproduce", "tune", "suite", "compare", "race", "ladder", "worker")
"""The commands that go on where they stopped."""
_TRAINING = ("quickstart", "fit", *_CONTINUING)
"""The commands that train."""


def program() -> NoReturn:
    """`main` as a separate process."""
    process.begin()
    code = _exit_code(sys.argv[1:])
    if foreign:
        sys.exit(code)  # Python closes files that are still open
    process.end(code)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit: 0 done, 1 failed while running, 2 invalid request."""
    sys.exit(_exit_code(list(sys.argv[1:] if argv is None else argv)))


def _exit_code(words: list[str]) -> int:
    try:
        code = dispatch(words)
        sys.stdout.flush()
    except (UserError, PluginError) as error:
        remark("error", error)
        code = getattr(error, "exit_code", UserError.exit_code)
    except BrokenPipeError:  # `bench list tasks | head`
        code = 0
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the final flush must not fail too
    except (Exception, KeyboardInterrupt) as error:
        if was_interrupted(error):
            continues = bool(words) and words[0] in _CONTINUING
            print("bench: interrupted" + "; the same command continues" * continues, file=sys.stderr)
            return 130
        full = _disk_full(error)
        short = full or _memory_short(error, words)
        if short is None:
            raise
        remark("error", short)
        code = RunFailed.exit_code
        if full:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


def _disk_full(error: BaseException) -> str | None:
    """The message for a full disk; None for other errors."""
    if not isinstance(error, OSError) or error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return None
    where = f" ({error.filename})" if error.filename else ""
    return f"the disk is full{where}{MAKE_ROOM}"


def _memory_short(error: BaseException, words: Sequence[str]) -> str | None:
    """The message for lack of memory, from torch or Python; None for other errors."""
    from bench.train.memory import ran_out

    if not ran_out(error):
        return None
    asked = re.search(r"allocate (\d[\d.]* ?[A-Za-z]+)", str(error))
    amount = f" for {asked[1]}" if asked else ""
    todo = (
        "make the task or the batch smaller (--task.*, --trainer.batch_size, --trainer.micro_batch_size)"
        if any(name in words for name in _TRAINING)
        else "end other programs, or request less"
    )
    return f"not enough memory{amount}; {todo}"


def dispatch(words: list[str]) -> int:
    """Run one command and return its exit code.

    Raises:
        UserError: the request is invalid.
    """
    if words[:2] == ["completion", "next"]:
        from bench.grammar.complete import following

        print("".join(f"{word}\n" for word in following(words[2:])), end="")
        return 0
    if words[:2] == ["worker", "--cuts"]:  # internal, from `bench.execute`
        from bench.execute import child

        return child.main()
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    name = next((word for word in words if word not in HELP), None)
    if name is None:
        from bench.grammar.help import program_help

        print(program_help())
        return 0
    if name == "--version":
        from bench import __version__

        print(__version__)
        return 0
    if name not in COMMANDS:
        raise unknown_command(name, list(COMMANDS))
    words = [word for i, word in enumerate(words) if i != words.index(name)]
    if any(word in HELP for word in words):
        from bench.grammar.help import command_help

        print(command_help(COMMANDS[name], words))
        return 0
    return _MAINS[name](parse(name, words))


# -- fit ----------------------------------------------------------------------------------------------------------


def _fit(args: Args) -> int:
    from bench.progress import doing

    settings = args.of_runs
    places = {name: place(name) if getattr(args, name) is None else getattr(args, name) for name in ("data", "store")}
    if args.resume is not None:
        command = ["bench", "fit", *args.words]
        run = Path(args.resume)
        if run.name != args.resume:  # the path of a run's folder
            places["store"] = settings["store"] = run.parent
        more = [name for name in ("config", "rerun", "tuned") if getattr(args, name)]
        if more:
            raise UserError(f"--resume takes the run's own settings; remove --{more[0]}")
        config = _stored_config(run.name, settings, places, command)
    else:
        check_settings(COMMANDS["fit"], settings)
        with doing("reading the settings"):
            from bench.config.run_config import resolve

            config = resolve(settings, config=args.config, tuned=args.tuned, fallback=places)
    sources: Mapping[tuple[str, str], Any] = {}
    if args.tuned:
        from bench.config.settings import sources_of
        from bench.config.tuned import tuned_file

        sources = sources_of([config])
        print(f"bench: settings from {tuned_file(config.task, config.opt)}", file=sys.stderr)
    if args.seeds is not None:
        from bench.commands.seeds import fit_seeds

        return fit_seeds(config, args, sources)
    if more := [option.name for option in (*RUNNING, *ELSEWHERE) if getattr(args, option.name)]:
        raise UserError(f"--{more[0]} is for several runs; give --seeds too, or leave it out")
    if args.dry_run:
        return _dry_run(config, as_json=args.json)
    from bench.store.store import stored_result

    result = stored_result(config) if not args.rerun else None
    if result is not None:
        logged = ", so nothing goes to a logger" if config.logger else ""
        print(f"bench: already stored{logged}; --rerun trains again", file=sys.stderr)
    else:
        from bench.config.checks import check_early, check_places

        check_early(config)
        check_places([config])
        with doing("importing torch"):
            from bench.train.runner import run

        with redirect_stdout(sys.stderr):  # standard output is only for the result, regardless of what libraries print
            result = run(config, rerun=args.rerun, progress=True, tuned_by=sources.get((config.task, config.opt)))
    if is_main_process():
        from bench.run_summary import result_json, result_lines

        if args.json:
            answer(result_json(result, config.store))
        else:
            print("\n".join(result_lines(result, config.store)))
    return {"killed": 130, "failed": 1}.get(result.status, 0)


def _stored_config(run_id: str, settings: dict[str, Any], places: dict[str, Path], command: list[str]) -> Any:
    """The configuration of an interrupted run, with folders from the command line."""
    from bench.config.plugins import allowed
    from bench.config.run_config import resolve, settings_of
    from bench.store.record import RESUMABLE
    from bench.store.store import Store
    from bench.store.stores import no_store
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
            raise no_store(store, "name it with --store DIR")
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
            f"run {run_id} was started with another version of its task or optimizer and cannot continue;"
            " train again without --resume"
        )
    if result.status in RESUMABLE and result.engine == "lanes":
        raise UserError(
            f"run {run_id} was {result.status} in a sweep, which trains it with others; repeat the sweep's command,"
            " or train the run alone without --resume"
        )
    if result.status in RESUMABLE and kept.checkpoint(run_id) is None:
        raise UserError(f"run {run_id} was {result.status} before its first checkpoint; train again without --resume")
    return config


def _dry_run(config: Any, *, as_json: bool) -> int:
    import yaml

    from bench.config.checks import check
    from bench.config.run_config import on_device

    config = on_device(config)
    check(config)
    shown = plain(config.model_dump(mode="python"))
    if as_json:
        answer({"run_id": config.run_id, **shown})
        return 0
    for name in ("task", "opt"):
        shown[name] = {"name": shown[name], **shown.pop(f"{name}_options")}
    # A comment, so that `--config` reads the rest back.
    print(f"# run_id: {config.run_id}\n{yaml.safe_dump(shown, sort_keys=False)}", end="")
    return 0


# -- list, show, completion ---------------------------------------------------------------------------------------


def _list(args: Args) -> int:
    if args.what == "runs":
        return _list_runs(args)
    usual, own = parse("list", [args.what]), ("json", "store") if args.what == "plans" else ("json",)
    for option in COMMANDS["list"].options:
        if option.name not in own and getattr(args, option.key) != getattr(usual, option.key):
            raise UserError(f"{option.flag}: it selects runs (`bench list runs`); remove it to list {args.what}")
    if args.what == "plans":
        return _list_plans(args)
    from bench.results.render import shown
    from bench.results.table import Table
    from optimizers import OPTIMIZERS
    from tasks import TASKS

    if args.what == "tasks":
        rows = {name: TASKS.describe(name) or TASKS[name].title for name in TASKS}
    else:
        rows = {name: OPTIMIZERS.describe(name) or OPTIMIZERS[name].formula for name in OPTIMIZERS}
    if args.json:
        answer(rows)
    else:
        print("\n".join(shown(Table.facts(rows.items()))))
    return 0


def _list_plans(args: Args) -> int:
    from bench.execute.plan import open_plans, progress_of
    from bench.results.render import shown
    from bench.results.table import Table

    found, code = list[tuple[str, int, int, Path]](), 0
    for store in existing_stores(args):
        for name in open_plans(store):
            try:
                found.append((name, *progress_of(store, name), store))
            except UserError as error:
                remark("warning", error)
                code = 1
    if args.json:
        answer([{"plan": n, "stored": stored, "runs": runs, "store": store} for n, stored, runs, store in found])
    elif found:
        rows = [[n, f"{stored} of {runs} runs stored", str(store)] for n, stored, runs, store in found]
        print("\n".join(shown(Table.of(["plan", "progress", "store"], rows))))
    else:
        print(clean(f"no plans in {' and '.join(map(str, stores_of(args)))}"))
    return code


def _list_runs(args: Args) -> int:
    from bench.browse import listing
    from bench.results.render import shown as as_lines
    from bench.store.stores import Stores

    check_known("status", args.status, listing.STATUSES)
    asked = listing.Filters(
        args.task,
        args.opt,
        args.status,
        listing.since(args.since) if args.since else "",
        args.study,
        args.sort,
        each=args.all or args.json,
    )
    stores = Stores(existing_stores(args))
    found = listing.lines(stores, asked) if stores.runs else []
    shown = found[: args.limit]
    if args.json:
        answer(listing.as_json(shown, stores))
    elif shown:
        print("\n".join(as_lines(listing.table(shown))))
    else:
        where = stores.shown or " and ".join(map(str, stores_of(args)))
        print(clean(f"no {'such ' * bool(stores.runs)}runs in {where}"))
    code = warn_of(stores)
    if len(found) > len(shown):
        remark("note", f"{len(found) - len(shown)} more; --limit {len(found)} shows all")
    return code


def _show(args: Args) -> int:
    name = args.name
    from optimizers import OPTIMIZERS
    from optimizers.plugins import load
    from tasks import TASKS, TaskSpec

    if name in OPTIMIZERS and not (":" in name and isinstance(load(name), TaskSpec)):
        from bench.commands.describe import describe_optimizer, optimizer_json

        if args.json:
            answer(optimizer_json(OPTIMIZERS[name]))
        else:
            print(describe_optimizer(OPTIMIZERS[name]))
        return 0
    if name in TASKS:
        from bench.commands.describe import describe_task, task_json

        if not args.json:
            print(describe_task(TASKS[name]))
        from bench.commands.parameters import model_parameters, parameter_lines

        known = model_parameters(name, args.data)
        if args.json:
            answer(task_json(TASKS[name]) | ({"unknown": known} if isinstance(known, str) else {"parameters": known}))
        else:
            print("\n".join(["", *parameter_lines(known)]))
        return 0
    path = Path(name)
    folders = [path.parent] if path.name != name and path.parent.is_dir() else existing_stores(args)
    likely = name.count("/") != 1 or path.is_absolute()  # experiments are PAPER/EXPERIMENT, and importing them is slow
    if likely and (code := _show_run(path.name, folders, as_json=args.json)) is not None:
        return code
    from bench.papers.experiments import experiments, load

    if name in experiments():
        from bench.commands.describe import describe_experiment

        experiment = load(name)
        if args.json:
            answer({"kind": "experiment", "name": name} | experiment.model_dump(mode="json"))
        else:
            print(describe_experiment(name, experiment))
        return 0
    if not likely and (code := _show_run(path.name, folders, as_json=args.json)) is not None:
        return code
    from bench.store.stores import Stores

    stores = Stores(folders)
    broken = [each for each in stores.damaged if path.name in each.path.parts]
    if broken:
        remark("error", broken[0])
        return RunFailed.exit_code
    begun = [run_id for run_id in stores.blocks if run_id.startswith(path.name)]
    near = begun[:1] or get_close_matches(path.name, stores.blocks, n=1, cutoff=0.9)  # ids end in a digest
    if near:
        raise unknown(f"run in {stores.shown}", path.name, near)
    raise unknown(ANYTHING, name, [*TASKS, *OPTIMIZERS, *experiments()])


def _show_run(run_id: str, folders: Sequence[Path], *, as_json: bool) -> int | None:
    """Show a run: the exit code, 1 if its tables cannot be read; None if no store has it."""
    from bench.store.store import Store

    if not any(Store(folder).get(run_id) for folder in folders):
        return None
    from bench.browse import show
    from bench.browse.compare import find

    run, store = find(run_id, folders)
    if as_json:
        found, whole = show.as_json(run, store)
        answer(found)
    else:
        lines, whole = show.lines(run, store)
        print("\n".join(lines))
    return 0 if whole else RunFailed.exit_code


def _completion(args: Args) -> int:
    from bench.grammar.complete import SCRIPTS

    print(SCRIPTS[args.shell], end="")
    return 0


# -- all ----------------------------------------------------------------------------------------------------------

Command = Callable[[Args], int]


def _in(module: str, function: str = "main") -> Command:
    """A command with its own module, imported on use."""
    return lambda args: getattr(import_module(module), function)(args)


_MAINS: dict[str, Command] = {
    "quickstart": _in("bench.commands.quickstart"),
    "fit": _fit,
    "sweep": _in("bench.sweeps.cli"),
    "compare": _in("bench.commands.comparison"),
    "ladder": _in("bench.ladder.cli"),
    "race": _in("bench.commands.race"),
    **{name: _in(f"bench.tuning.cli.{name}") for name in ("tune", "suite", "studies", "worker")},
    **{name: _in("bench.boards.cli", f"run_{name}") for name in ("leaderboard", "report", "plot")},
    **{name: _in("bench.papers.cli", f"run_{name}") for name in ("reproduce", "claims")},
    **{name: _in("bench.browse.cli", f"run_{name}") for name in ("sql", "merge", "bundle", "diff")},
    "verify": _in("bench.commands.verify"),
    "new": _in("bench.commands.new"),
    "check": _in("bench.check.cli"),
    "list": _list,
    "show": _show,
    "data": _in("bench.commands.data"),
    "doctor": _in("bench.commands.doctor"),
    "completion": _completion,
}
"""The function of each command, called with its arguments."""


if __name__ == "__main__":
    program()
