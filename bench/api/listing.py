"""`bench list` and `bench show`."""

import re
from collections.abc import Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.errors import ANYTHING, RunFailed, check_known, unknown, unknown_run
from bench.output import Answer, existing_stores, warn_of
from bench.text import clean, counted, options_text

if TYPE_CHECKING:
    from bench.store.record import RunResult
    from bench.store.reports import StudyRecord


def names(what: str) -> Answer:
    """Tasks or optimizers, with a description of each."""
    from bench.results.render import shown
    from bench.results.table import Table
    from optimizers import OPTIMIZERS
    from tasks import TASKS

    if what == "tasks":
        rows = {name: TASKS.describe(name) or TASKS[name].title for name in TASKS}
    elif what == "optimizers":
        rows = {name: OPTIMIZERS.describe(name) or OPTIMIZERS[name].formula for name in OPTIMIZERS}
    else:
        raise unknown("kind", what, ("tasks", "optimizers", "runs", "studies"))
    return Answer(rows, shown(Table.facts(rows.items())))


def runs(
    folders: Sequence[Path],
    *,
    task: list[str] | None,
    opt: list[str] | None,
    status: list[str] | None,
    since: str | None,
    every: bool,
) -> Answer:
    """Stored runs, newest first."""
    from bench.browse import listing
    from bench.results.render import shown as as_lines
    from bench.store.stores import Stores

    check_known("status", status or [], listing.STATUSES)
    begun = listing.since(since) if since else ""
    stores = Stores(existing_stores(folders))
    filters = partial(listing.Filters, task or [], opt or [], status or [], begun)
    lines = listing.lines(stores, filters(each=every)) if stores.runs else []
    code = warn_of(stores)
    if lines:
        text = as_lines(listing.table(lines))
    else:
        text = [clean(f"no {'such ' * bool(stores.runs)}runs in {_shown(stores.shown, folders)}")]

    def data() -> list[dict[str, Any]]:
        return listing.as_json(listing.lines(stores, filters(each=True)) if stores.runs else [], stores)

    return Answer(data, text, code)


def _shown(stores: str, folders: Sequence[Path]) -> str:
    from bench.config.values import place

    return stores or " and ".join(map(str, folders or [place("store")]))


def studies(folders: Sequence[Path]) -> Answer:
    """Studies with their winners."""
    from bench.results.render import shown
    from bench.results.table import Table
    from bench.store.stores import Stores

    stores = Stores(existing_stores(folders))
    rows = [
        {
            "study": study.name,
            "task": study.task,
            "opt": study.opt,
            "trials": len(study.trials),
            "missing": study.missing,
            "best": None if study.winning_point is None else options_text(study.winning_point),
            "score": study.score,
        }
        for study in stores.studies
    ]
    lines = [
        (
            row["study"],
            f"{row['trials']} of {counted(row['trials'] + row['missing'], 'trial')}",
            "no winner" if row["score"] is None else f"best {row['best']}: {row['score']:.4g}",
        )
        for row in rows
    ]
    none = [clean(f"no studies in {_shown('', folders)}")]
    return Answer(rows, shown(Table.of([""] * 3, lines)) if rows else none, warn_of(stores))


def show(name: str, folders: Sequence[Path]) -> Answer:
    """What has this name.

    Raises:
        UserError: nothing has it.
    """
    from optimizers import OPTIMIZERS
    from optimizers.plugins import load
    from tasks import TASKS, TaskSpec

    if name in OPTIMIZERS and not (":" in name and isinstance(load(name), TaskSpec)):
        from bench.commands.describe import describe_optimizer, optimizer_json

        return Answer(optimizer_json(OPTIMIZERS[name]), [describe_optimizer(OPTIMIZERS[name])])
    if name in TASKS:
        from bench.commands.describe import describe_task, task_json

        return Answer(task_json(TASKS[name]), [describe_task(TASKS[name])])
    path = Path(name)
    places = [path.parent] if path.name != name and path.parent.is_dir() else existing_stores(folders)
    likely = name.count("/") != 1 or path.is_absolute()  # experiments are PAPER/EXPERIMENT, and importing them is slow
    if likely and (run := _run(path.name, places)) is not None:
        return run
    from bench.papers.experiments import experiments, load

    if name in experiments():
        value = {"kind": "experiment", "name": name} | load(name).model_dump(mode="json")
        return Answer(value, [f"# run it: bench reproduce {name}", experiments()[name].read_text("utf-8").rstrip()])
    if not likely and (run := _run(path.name, places)) is not None:
        return run
    from bench.store.stores import Stores

    stores = Stores(places)
    if study := next((study for study in stores.studies if study.name == path.name), None):
        return Answer(vars(study), _study_lines(study, [run for run in stores.runs if run.run_id in study.run_ids]))
    broken = [each for each in stores.damaged if path.name in each.path.parts]
    if broken:
        raise RunFailed(str(broken[0]))
    begun = [run_id for run_id in stores.blocks if run_id.startswith(path.name)]
    if begun:
        raise unknown("run", path.name, begun[:1], f" in {stores.shown}")
    near = get_close_matches(path.name, stores.blocks, n=1, cutoff=0.9)
    if near or re.fullmatch(r".+-[0-9a-f]{10}", path.name):  # ids end in a digest
        raise unknown_run(path.name, stores.blocks, _shown(stores.shown, folders))
    raise unknown(ANYTHING, name, [*TASKS, *OPTIMIZERS, *experiments()])


def _study_lines(study: "StudyRecord", runs: "Sequence[RunResult]") -> list[str]:
    """The trials of a study as a table; * marks the winner."""
    from bench.results.render import shown
    from bench.results.selection import GAP, above_infimum
    from bench.results.table import Table
    from bench.text import options_text, seeds_in_words

    metric = f"{study.select_split or 'selection'} {study.metric}{GAP * above_infimum(runs)}"
    rows = [
        ("*" * (study.winner in trial["runs"]), options_text(trial["point"]), trial["kind"], trial["state"])
        + (trial["score"],)
        for trial in study.trials
    ]
    first = f"{study.name}: {study.opt} on {study.task}, sampler {study.sampler}, seeds {seeds_in_words(study.seeds)}"
    table = Table.of(("", "settings", "kind", "state", metric.rstrip()), rows)
    return [first, *shown(table), *[f"{study.missing} more to try"] * bool(study.missing)]


def _run(run_id: str, folders: Sequence[Path]) -> Answer | None:
    """A run; None if no store has it."""
    from bench.store.store import Store

    stored = [(run, store) for store in (Store(folder.resolve()) for folder in folders) if (run := store.get(run_id))]
    if not stored:
        return None
    from bench.browse import show

    run, store = min(stored, key=lambda each: not each[0].finished)
    return Answer(show.as_json(run, store), show.lines(run, store))
