"""Functions on names and stores: list, show, sql, load and merge."""

import json
import re
import shlex
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from bench.api.calls import Folders, Names, Place, folders, names, path_of, public
from bench.config.values import experiments, place
from bench.errors import ANYTHING, RunFailed, UserError, check_known, nearest, unknown
from bench.output import Answer, existing_stores, format_of, note, open_stores, remark, warn_of, write
from bench.text import clean, counted, options_text

if TYPE_CHECKING:
    from bench.api.results import Runs


@public
def list_(
    kind: Literal["tasks", "optimizers", "experiments", "checks", "runs", "studies"],
    *,
    task: Names | None = None,
    opt: Names | None = None,
    status: Names | None = None,
    all: bool = False,
    store: Folders = None,
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
    if kind != "runs":
        others = {"all": all or None, "store": None if kind == "studies" else store}
        for name, value in (filters | others).items():
            if value is not None:
                raise UserError(f"--{name}: it selects runs (`bench list runs`); remove it to list {kind}")
    if kind not in ("runs", "studies"):
        return _names(kind)
    from bench.browse import listing
    from bench.results.render import shown
    from bench.results.table import Column, Table
    from bench.store.stores import Stores

    tasks, opts, statuses = (given or [] for given in filters.values())
    check_known("status", statuses, listing.STATUSES)
    stores = Stores(existing_stores(folders(store)))
    if kind == "studies":
        rows: Any = [
            {"study": s.name, "task": s.task, "opt": s.opt, "trials": len(s.trials), "missing": s.missing}
            | {"best": None if s.best is None else options_text(s.best["point"])}
            | {"score": None if s.best is None else s.best["score"]}
            for s in stores.studies
        ]
        table = Table("", [Column(key, key) for key in ("study", "trials", "missing", "best", "score")], rows)
    else:
        runs = listing.selected(stores, tasks, opts, statuses) if stores.runs else []
        table, rows = listing.table(stores, runs, fold=not all), partial(listing.as_json, runs, stores)
    none = clean(f"no {'such ' * (kind == 'runs' and bool(stores.runs))}{kind} in {stores.shown or place('store')}")
    return Answer(rows, shown(table) if table.rows else [none], warn_of(stores))


def _names(kind: str) -> Answer:
    """Tasks, optimizers, experiments or checks, with a description of each."""
    from bench.check import GROUPS, Kind, catalogue
    from bench.results.render import shown
    from bench.results.table import Column, Table
    from optimizers import OPTIMIZERS
    from tasks import TASKS

    if kind == "checks":
        checks = {of: {name: asdict(check) for name, check in catalogue(of).items()} for of in get_args(Kind)}
        rows = [(of, name, GROUPS[c["severity"]], c["meaning"]) for of in checks for name, c in checks[of].items()]
        columns = [Column(title, title, wraps=title == "meaning") for title in ("of", "check", "failure", "meaning")]
        return Answer(checks, shown(Table.of(columns, rows)))
    if kind == "experiments":
        from bench.papers.experiments import load

        rows = {name: load(name).title for name in experiments()}
    else:
        registry: Any = TASKS if kind == "tasks" else OPTIMIZERS
        title = "title" if kind == "tasks" else "formula"
        rows = {name: registry.describe(name) or getattr(registry[name], title) for name in registry}
        for plugin in registry.hidden():
            note(f"{plugin} is not used: the suite has its own of that name; choose another name")
    return Answer(rows, shown(Table.facts(rows.items())))


@public
def show(name: str, *, store: Folders = None, progress: bool = True) -> Answer:
    """Describe a task, an optimizer, a paper's experiment, a study or a stored run.

    For a run: result, settings, notes, and the commands that repeat and resume it.

    Args:
        name: a task, an optimizer, an experiment, a study, the id of a run, or the path of its folder.
    """
    from bench.commands import describe
    from bench.store.stores import Contents, Stores
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
    blocks = (Contents([place.resolve()], [path.name]).blocks.get(path.name) for place in places)
    if copies := [(block.runs[path.name], block.folder) for block in blocks if block is not None]:
        from bench.browse import show as description

        run, folder = min(copies, key=lambda copy: not copy[0].finished)
        return Answer(description.as_json(run, folder), description.lines(run, folder))
    stores = Stores(places)
    if study := next((study for study in stores.studies if study.name == path.name), None):
        from bench.tuning.tuned import trial_lines

        which = clean(shlex.join(["--task", study.task, "--opt", study.opt]))
        plots = f"plot it: bench plot sensitivity {which}; its fresh seeds: bench plot curves {which}"
        runs = [run for run in stores.runs if run.run_id in study.run_ids]
        return Answer(vars(study), [*trial_lines(study, runs), plots])
    if broken := [damaged for damaged in stores.damaged if path.name in damaged.path.parts]:
        raise RunFailed(str(broken[0]))
    if re.fullmatch(r".+-[0-9a-f]{7,10}", path.name):  # ids of runs end in a digest
        near = nearest(path.name, stores.blocks, least=0.9)
        hint = f"did you mean {near!r}?" if near else "`bench list runs --store DIR` lists the runs of a store"
        raise UserError(f"unknown run {path.name!r} in {stores.shown or place('store')}; {hint}")
    raise unknown(ANYTHING, name, [*TASKS, *OPTIMIZERS, *experiments()])


@public
def sql(
    query: str,
    *,
    no_reference: bool = False,
    out: Place | None = None,
    store: Folders = None,
    progress: bool = True,
) -> Answer:
    """Query runs, curves, measurements and trials of studies with DuckDB's SQL.

    Views: runs, evaluations, curves, measurements, trials; `bench sql 'describe runs'` lists the columns of one. They
    include the reference results. settings->>'opt.lr' is a setting of a run. Example: bench sql "select opt, avg(final)
    from runs where task = 'synthetic' and study is null group by opt". Exit code 1: something could not be read.

    Args:
        query: one read-only statement.
        out: write to this file: .md, .csv, .json or .txt.
    """
    from bench.browse.sql import STREAMS, ask, written

    file = path_of(out)
    kind = "table" if file is None else format_of(file, STREAMS)
    stores = open_stores(folders(store), reference=not no_reference)
    answer = ask(stores, query)
    code, text = warn_of(stores, answer.damaged), written(answer, kind, to_file=file is not None)
    if file is not None:
        write(file, text)
        return Answer(None, [], code)
    return Answer(lambda: json.loads(written(answer, "json", to_file=False)), text.split("\n"), code)


@public
def load(store: Folders = None) -> "Runs":
    """All runs of a store, or of several read as one; plug-ins named in them are not imported.

    `Runs.damaged` lists what could not be read.

    Args:
        store: one folder or several; $BENCH_STORE by default, else `./runs`.
    """
    from bench.api.results import Run, Runs
    from bench.store.stores import Stores

    stores = Stores(folders(store) or [place("store")])
    runs = [Run(run, stores.blocks[run.run_id].folder.parent) for run in stores.runs]
    return Runs(runs, list(map(str, stores.damaged)))


@public
def merge(*folders: Place) -> Answer:
    """Copy the runs of stores, and their records of studies and checks, into another store, the last one given.

    Runs in the destination are kept, but a finished run replaces an unfinished one. The same call continues an
    interrupted merge. Exit code 1: something could not be read.

    Args:
        folders: stores, which are only read, and last the destination.
    """
    from bench.store.merge import merge as copy

    if len(folders) < 2:
        raise UserError("bench merge needs a store and a destination: bench merge SOURCE ... DEST")
    *sources, destination = map(Path, folders)
    merged = copy(sources, destination)
    for what in merged.damaged:
        remark("warning", f"{what}; it is not copied")
    for run_id in dict.fromkeys(merged.differing):
        remark("warning", f"{run_id} has another result in {destination}; that one is kept")
    for text in dict.fromkeys(merged.notes):
        note(f"note: {text}")
    counts = {"copied": merged.copied, "there": merged.existing, "skipped": merged.skipped, **merged.records}
    data = {"dest": destination, **counts, "differing": merged.differing, "damaged": [*map(str, merged.damaged)]}
    records = [f"{counted(n, 'record')} of {what}" for what, n in merged.records.items() if n]
    line = f"{counted(merged.copied, 'run')} copied, {merged.existing} already there, {merged.skipped} skipped"
    return Answer(data, [line + f"; {' and '.join(records)} copied" * bool(records)], int(bool(merged.damaged)))
