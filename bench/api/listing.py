"""`bench list` and `bench show`."""

import re
import shlex
from collections.abc import Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.api.boards import reading
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
    from bench.results.render import shown
    from bench.store.stores import Stores

    check_known("status", status or [], listing.STATUSES)
    begun = listing.since(since) if since else ""
    stores = Stores(existing_stores(folders))
    with reading():
        selected = listing.selected(stores, task or [], opt or [], status or [], begun) if stores.runs else []
    lines = listing.lines(stores, selected, fold=not every)
    code = warn_of(stores)
    none = clean(f"no {'such ' * bool(stores.runs)}runs in {_shown(stores.shown, folders)}")
    text = shown(listing.table(lines)) if lines else [none]
    return Answer(partial(listing.as_json, selected, stores), text, code)


def _shown(stores: str, folders: Sequence[Path]) -> str:
    from bench.config.values import place

    return stores or " and ".join(map(str, folders or [place("store")]))


def studies(folders: Sequence[Path]) -> Answer:
    """Studies with their winners."""
    from bench.results.render import shown
    from bench.results.table import Table
    from bench.store.stores import Stores

    stores = Stores(existing_stores(folders))
    rows: list[dict[str, Any]] = []
    lines: list[tuple[str, ...]] = []
    for study in stores.studies:
        best = None if study.winning_point is None else options_text(study.winning_point)
        counts = {"trials": len(study.trials), "missing": study.missing}
        rows.append({"study": study.name, "task": study.task, "opt": study.opt, **counts})
        rows[-1] |= {"best": best, "score": study.score}
        result = "no winner" if study.score is None else f"best {best}: {study.score:.4g}"
        lines.append((study.name, f"{len(study.trials)} of {counted(sum(counts.values()), 'trial')}", result))
    none = [clean(f"no studies in {_shown('', folders)}")]
    return Answer(rows, shown(Table.of([""] * 3, lines)) if rows else none, warn_of(stores))


def show(name: str, folders: Sequence[Path]) -> Answer:
    """What has this name; UserError if nothing has it."""
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
    is_experiment = name.count("/") == 1 and not path.is_absolute()  # PAPER/EXPERIMENT; importing them is slow
    if not is_experiment and (run := _run(path.name, places)) is not None:
        return run
    from bench.papers.experiments import experiments, load

    if name in experiments():
        value = {"kind": "experiment", "name": name} | load(name).model_dump(mode="json")
        return Answer(value, [f"# run it: bench reproduce {name}", experiments()[name].read_text("utf-8").rstrip()])
    if is_experiment and (run := _run(path.name, places)) is not None:
        return run
    from bench.store.stores import Stores

    stores = Stores(places)
    if study := next((study for study in stores.studies if study.name == path.name), None):
        return Answer(vars(study), _study_lines(study, [run for run in stores.runs if run.run_id in study.run_ids]))
    if broken := [damaged for damaged in stores.damaged if path.name in damaged.path.parts]:
        raise RunFailed(str(broken[0]))
    if begun := [run_id for run_id in stores.blocks if run_id.startswith(path.name)]:
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
    from bench.text import seeds_in_words

    metric = f"{study.select_split or 'selection'} {study.metric}{GAP * above_infimum(runs)}"
    rows = [
        ("*" * (study.winner in t["runs"]), options_text(t["point"]), t["kind"], t["state"], t["score"])
        for t in study.trials
    ]
    first = f"{study.name}: {study.opt} on {study.task}, sampler {study.sampler}, seeds {seeds_in_words(study.seeds)}"
    table = Table.of(("", "settings", "kind", "state", metric.rstrip()), rows)
    which = shlex.join(["--task", study.task, "--opt", study.opt])
    plots = f"plot it: bench plot sensitivity {which}; its fresh seeds: bench plot curves {which}"
    return [first, *shown(table), *[f"{study.missing} more to try"] * bool(study.missing), clean(plots)]


def _run(run_id: str, folders: Sequence[Path]) -> Answer | None:
    """A run; None if no store has it."""
    from bench.store.store import Store

    stored = [(run, store) for store in (Store(folder.resolve()) for folder in folders) if (run := store.get(run_id))]
    if not stored:
        return None
    from bench.browse import show

    run, store = min(stored, key=lambda copy: not copy[0].finished)
    return Answer(show.as_json(run, store), show.lines(run, store))
