"""`bench list` and `bench show`."""

import re
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from bench.errors import ANYTHING, RunFailed, UserError, check_known, unknown, unknown_run
from bench.grammar.commands import COMMANDS, parse
from bench.grammar.parse import Args
from bench.output import answer, existing_stores, remark, reply, stores_of, warn_of
from bench.text import clean

if TYPE_CHECKING:
    from bench.store.reports import StudyRecord


def run_list(args: Args) -> int:
    """`bench list`: 0 done, 1 something could not be read."""
    if args.what == "runs":
        return _list_runs(args)
    usual = parse("list", [args.what])
    own = ("json", "store") if args.what == "studies" else ("json",)
    for option in COMMANDS["list"].options:
        if option.name not in own and getattr(args, option.key) != getattr(usual, option.key):
            raise UserError(f"{option.flag}: it selects runs (`bench list runs`); remove it to list {args.what}")
    if args.what == "studies":
        from bench.tuning.cli.studies import list_studies

        return list_studies(args)
    from bench.results.render import shown
    from bench.results.table import Table
    from optimizers import OPTIMIZERS
    from tasks import TASKS

    if args.what == "tasks":
        rows = {name: TASKS.describe(name) or TASKS[name].title for name in TASKS}
    else:
        rows = {name: OPTIMIZERS.describe(name) or OPTIMIZERS[name].formula for name in OPTIMIZERS}
    reply(args, rows, shown(Table.facts(rows.items())))
    return 0


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


def run_show(args: Args) -> int:
    """`bench show`: 0 done, 1 the run cannot be read."""
    name = args.name
    from optimizers import OPTIMIZERS
    from optimizers.plugins import load
    from tasks import TASKS, TaskSpec

    if name in OPTIMIZERS and not (":" in name and isinstance(load(name), TaskSpec)):
        from bench.commands.describe import describe_optimizer, optimizer_json

        reply(args, optimizer_json(OPTIMIZERS[name]), [describe_optimizer(OPTIMIZERS[name])])
        return 0
    if name in TASKS:
        from bench.commands.describe import describe_task, task_json

        reply(args, task_json(TASKS[name]), [describe_task(TASKS[name])])
        return 0
    path = Path(name)
    folders = [path.parent] if path.name != name and path.parent.is_dir() else existing_stores(args)
    likely = name.count("/") != 1 or path.is_absolute()  # experiments are PAPER/EXPERIMENT, and importing them is slow
    if likely and (code := _show_run(path.name, folders, as_json=args.json)) is not None:
        return code
    from bench.papers.experiments import experiments, load

    if name in experiments():
        value = {"kind": "experiment", "name": name} | load(name).model_dump(mode="json")
        reply(args, value, [f"# run it: bench reproduce {name}", experiments()[name].read_text("utf-8").rstrip()])
        return 0
    if not likely and (code := _show_run(path.name, folders, as_json=args.json)) is not None:
        return code
    from bench.store.stores import Stores

    stores = Stores(folders)
    if study := next((study for study in stores.studies if study.name == path.name), None):
        reply(args, vars(study), _study_lines(study))
        return 0
    broken = [each for each in stores.damaged if path.name in each.path.parts]
    if broken:
        remark("error", broken[0])
        return RunFailed.exit_code
    begun = [run_id for run_id in stores.blocks if run_id.startswith(path.name)]
    if begun:
        raise unknown("run", path.name, begun[:1], f" in {stores.shown}")
    near = get_close_matches(path.name, stores.blocks, n=1, cutoff=0.9)
    if near or re.fullmatch(r".+-[0-9a-f]{10}", path.name):  # ids end in a digest
        raise unknown_run(path.name, stores.blocks, stores.shown or " and ".join(map(str, stores_of(args))))
    raise unknown(ANYTHING, name, [*TASKS, *OPTIMIZERS, *experiments()])


def _study_lines(study: "StudyRecord") -> list[str]:
    """The trials of a study as a table; * marks the winner."""
    from bench.results.render import shown
    from bench.results.table import Table
    from bench.text import options_text, seeds_in_words

    rows = [
        ("*" * (study.winner in trial["runs"]), options_text(trial["point"]), trial["kind"], trial["state"])
        + (trial["score"],)
        for trial in study.trials
    ]
    first = f"{study.name}: {study.opt} on {study.task}, sampler {study.sampler}, seeds {seeds_in_words(study.seeds)}"
    heads = ("", "settings", "kind", "state", f"{study.select_split or 'selection'} {study.metric}".rstrip())
    return [first, *shown(Table.of(heads, rows)), *[f"{study.missing} more to try"] * bool(study.missing)]


def _show_run(run_id: str, folders: Sequence[Path], *, as_json: bool) -> int | None:
    """Show a run: the exit code; None if no store has it."""
    from bench.store.store import Store

    found = [(run, store) for store in (Store(folder.resolve()) for folder in folders) if (run := store.get(run_id))]
    if not found:
        return None
    from bench.browse import show

    run, store = min(found, key=lambda each: not each[0].finished)
    if as_json:
        answer(show.as_json(run, store))
    else:
        print("\n".join(show.lines(run, store)))
    return 0
