"""`bench list` and `bench show`."""

import re
import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from bench.api import parameters as p
from bench.api.boards import reading
from bench.api.calls import folders, names, public
from bench.config.values import experiments, place
from bench.errors import ANYTHING, RunFailed, UserError, check_known, unknown, unknown_run
from bench.output import Answer, existing_stores, warn_of
from bench.text import clean, counted, options_text


@public
def list_(
    kind: Literal["tasks", "optimizers", "experiments", "checks", "runs", "studies"],
    *,
    task: p.Names | None = None,
    opt: p.Names | None = None,
    status: p.Names | None = None,
    all: bool = False,
    store: p.Stores = None,
    progress: bool = True,
) -> Answer:
    """List tasks, optimizers, experiments of papers, checks, stored runs (newest first), or studies.

    The filters apply to runs. Runs that differ only in their seeds share a line, with the median of their results. The
    runs of a study share a line, and so do the sweeps of an optimizer on a problem, with the median at the best
    settings. Exit code 1: something could not be read.

    Args:
        kind: of the names.
        task: only these tasks: A,B.
        opt: only these optimizers: A,B.
        status: only these statuses: running, failed, ...
        all: one line per run.
    """
    filters = {"task": names("task", task), "opt": names("opt", opt), "status": names("status", status)}
    places = folders(store)
    if kind == "runs":
        return _runs(places, **filters, every=all)
    filters |= {"all": all or None, "store": None if kind == "studies" else store}
    for name, value in filters.items():
        if value is not None:
            raise UserError(f"--{name}: it selects runs (`bench list runs`); remove it to list {kind}")
    return _studies(places) if kind == "studies" else _names(kind)


def _names(kind: str) -> Answer:
    """Tasks, optimizers, experiments or checks, with a description of each."""
    from bench.results.render import shown
    from bench.results.table import Table
    from optimizers import OPTIMIZERS
    from tasks import TASKS

    if kind == "experiments":
        from bench.api import papers

        return papers.listed()
    if kind == "checks":
        from bench.api import checking

        return checking.listed()
    if kind == "tasks":
        rows = {name: TASKS.describe(name) or TASKS[name].title for name in TASKS}
    else:
        rows = {name: OPTIMIZERS.describe(name) or OPTIMIZERS[name].formula for name in OPTIMIZERS}
    return Answer(rows, shown(Table.facts(rows.items())))


def _runs(places: Sequence[Path], *, task: Any, opt: Any, status: Any, every: bool) -> Answer:
    """Stored runs, newest first."""
    from bench.browse import listing
    from bench.results.render import shown
    from bench.store.stores import Stores

    check_known("status", status or [], listing.STATUSES)
    stores = Stores(existing_stores(places))
    with reading():
        selected = listing.selected(stores, task or [], opt or [], status or []) if stores.runs else []
    code = warn_of(stores)
    none = clean(f"no {'such ' * bool(stores.runs)}runs in {stores.shown or place('store')}")
    text = shown(listing.table(stores, selected, fold=not every)) if selected else [none]
    return Answer(partial(listing.as_json, selected, stores), text, code)


def _studies(places: Sequence[Path]) -> Answer:
    """Studies with their winners."""
    from bench.results.render import shown
    from bench.results.table import Table
    from bench.store.stores import Stores

    stores = Stores(existing_stores(places))
    rows: list[dict[str, Any]] = []
    lines: list[tuple[str, ...]] = []
    for study in stores.studies:
        best, score = (None, None) if study.best is None else (options_text(study.best["point"]), study.best["score"])
        counts = {"trials": len(study.trials), "missing": study.missing}
        rows.append({"study": study.name, "task": study.task, "opt": study.opt, **counts})
        rows[-1] |= {"best": best, "score": score}
        result = "no winner" if score is None else f"best {best}: {score:.4g}"
        lines.append((study.name, f"{len(study.trials)} of {counted(sum(counts.values()), 'trial')}", result))
    none = [clean(f"no studies in {stores.shown or place('store')}")]
    return Answer(rows, shown(Table.of([""] * 3, lines)) if rows else none, warn_of(stores))


@public
def show(name: str, *, store: p.Stores = None, progress: bool = True) -> Answer:
    """Describe a task, an optimizer, a paper's experiment, a study or a stored run.

    For a run: result, settings, notes, and the commands that repeat and resume it.

    Args:
        name: a task, an optimizer, an experiment, a study, the id of a run, or the path of its folder.
    """
    from bench.commands import describe
    from optimizers import OPTIMIZERS
    from optimizers.plugins import load
    from tasks import TASKS, TaskSpec

    if name in OPTIMIZERS and not (":" in name and isinstance(load(name), TaskSpec)):
        return describe.optimizer(OPTIMIZERS[name])
    if name in TASKS:
        return describe.task(TASKS[name])
    if name in experiments():
        from bench.papers.experiments import load as load_experiment

        value = {"kind": "experiment", "name": name} | load_experiment(name).model_dump(mode="json")
        return Answer(value, [f"# run it: bench reproduce {name}", experiments()[name].read_text("utf-8").rstrip()])
    path = Path(name)
    is_path = path.name != name and path.parent.is_dir()
    places = [path.parent] if is_path else existing_stores(folders(store))
    if (run := _run(path.name, places)) is not None:
        return run
    from bench.store.stores import Stores

    stores = Stores(places)
    if study := next((study for study in stores.studies if study.name == path.name), None):
        from bench.tuning.tuned import trial_lines

        which = clean(shlex.join(["--task", study.task, "--opt", study.opt]))
        plots = f"plot it: bench plot sensitivity {which}; its fresh seeds: bench plot curves {which}"
        runs = [run for run in stores.runs if run.run_id in study.run_ids]
        return Answer(vars(study), [*map(clean, trial_lines(study, runs)), plots])
    if broken := [damaged for damaged in stores.damaged if path.name in damaged.path.parts]:
        raise RunFailed(str(broken[0]))
    if re.fullmatch(r".+-[0-9a-f]{7,10}", path.name):  # ids of runs end in a digest
        raise unknown_run(path.name, stores.blocks, stores.shown or str(place("store")))
    raise unknown(ANYTHING, name, [*TASKS, *OPTIMIZERS, *experiments()])


def _run(run_id: str, folders: Sequence[Path]) -> Answer | None:
    """A run; None if no store has it."""
    from bench.store.store import Store

    stored = [(run, store) for store in (Store(folder.resolve()) for folder in folders) if (run := store.get(run_id))]
    if not stored:
        return None
    from bench.browse import show

    run, store = min(stored, key=lambda copy: not copy[0].finished)
    return Answer(show.as_json(run, store), show.lines(run, store))
