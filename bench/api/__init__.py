"""The program: each function is a command of the same name, with the same parameters (`bench/cli`).

Settings have the same names and meaning in both. Errors are `bench.UserError`. Stored runs are not trained again, so
the same call continues after an interruption. An interrupt saves the state and raises KeyboardInterrupt.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from bench.api import arguments as a
from bench.api import parameters as p
from bench.api.calls import Call, public
from bench.api.source import name_of
from bench.errors import UserError, check_known
from bench.output import Answer, Shown

if TYPE_CHECKING:
    import altair as alt

    from bench.api.results import Comparison, Study, Sweep, Table
    from bench.api.runs import Run, Runs

__all__ = [  # noqa: RUF022 - in the order of `bench --help`
    "quickstart", "fit", "sweep", "tune", "suite", "compare", "leaderboard", "report", "plot", "check",
    "reproduce", "list_", "show", "sql", "load", "data", "doctor", "new", "merge", "verify",
]  # fmt: skip


@public
def quickstart(*, out: p.Place = "quickstart.png", **more: Unpack[p.InStore]) -> Answer:
    """Train four optimizers on a small task with seven seeds, rank them, and draw their curves.

    Nothing is downloaded or tuned. If its runs are stored, it takes about 2 s.

    Args:
        out: plot, ends in .png, .pdf, .svg or .html (default: quickstart.png).
    """
    from bench.api.introduction import quickstart

    call = Call(more)
    return quickstart(Path(out), call.places, progress=call.progress)


@overload
def fit(
    task: p.Task | None, opt: p.Opt | None, *, seed: int | None = None, seeds: None = None, **more: Unpack[p.Fitting]
) -> "Run": ...
@overload
def fit(task: p.Task | None, opt: p.Opt | None, *, seeds: p.Seeds, **more: Unpack[p.Fitting]) -> "Runs": ...
@public
def fit(
    task: p.Task | None = None,
    opt: p.Opt | None = None,
    *,
    seed: int | None = None,
    seeds: p.Seeds | None = None,
    tuned: bool = False,
    resume: str | None = None,
    rerun: bool = False,
    logger: str | None = None,
    **more: Unpack[p.Fitting],
) -> "Run | Runs | Answer":
    """Train one task with one optimizer and store the result.

    A stored run is returned at once.

    Args:
        seed: seed of problem instance, initialisation and dropout, from 0 (default 0).
        seeds: one run per seed, and their mean: a number (5: seeds 0 to 4) or a list (3,5,8; 10:15 is 10 to 14).
        tuned: use the settings in tuned/TASK/OPT.yaml, else the shipped ones; not on seeds that chose them.
        resume: continue this interrupted run (on CPUs bit for bit).
        rerun: train again even if the result is stored.

    Raises:
        UserError: a name is unknown, a value illegal, data are missing, or the class has no source.
        RunFailed: the run failed; the store records it.
        KeyboardInterrupt: the run was interrupted; its state is saved, and the same call continues.
    """
    from bench.api import fitting

    several = None if seeds is None else a.seeds_of(seeds)
    call = Call(more, task, [] if opt is None else [opt], seed=seed, logger=logger)
    words = call.words | {name: path for name, path in call.folders.items() if name not in call.words}
    if resume is not None:
        given = [name for name, value in (("config", call.config), ("rerun", rerun), ("tuned", tuned)) if value]
        configuration = fitting.resumed(resume, words, call.places, given, call.command)
    else:
        configuration = fitting.configuration(words, call.config, call.places, tuned=tuned)
    sources = fitting.sources(configuration, several) if tuned else {}
    if several is None:
        if given := [name for name, value in call.efforts.items() if value is not None]:
            raise UserError(f"--{given[0]} is for several runs; give --seeds too, or leave it out")
        if call.dry_run:
            return fitting.dry_run(configuration)
        is_command = call.command is not None
        return fitting.fit(configuration, sources, rerun=rerun, progress=call.progress, is_command=is_command)
    for name, value in (("seed", words.get("seed")), ("resume", resume), ("rerun", rerun or None)):
        if value is not None:
            raise UserError(f"--{name} is for one run; remove it or --seeds")
    configs = fitting.with_seeds(configuration, several, words, call.config)
    if call.dry_run:
        return fitting.runs.dry_run(configs, call.effort, [{"seed": config.seed} for config in configs])
    return fitting.fit_seeds(configs, call.effort, sources, progress=call.progress)


@public
def sweep(
    task: p.Task | None = None,
    opt: p.Opt | Sequence[p.Opt] | None = None,
    *,
    seeds: p.Seeds = 8,
    tuned: bool = False,
    out: p.Place | None = None,
    logger: str | None = None,
    **more: Unpack[p.Fitting],
) -> "Sweep | Answer":
    """Train many settings and seeds, vectorised where that is faster, and show how results depend on them.

    A setting may be a range LOW:HIGH or LOW:HIGH:POINTS, log-spaced (--opt.lr 1e-3:1e1:16), or a list (--task.sigma
    0.2,0.4). --opt.adam.lr is for adam alone. An optimizer without a varied setting gets a grid over its search range
    (`bench show adam`), unless --tuned fixes its settings.

    Args:
        seeds: a number (default 8: seeds 0 to 7) or a list (3,5,8; 10:15 is 10 to 14).
        tuned: fix the settings to those in tuned/TASK/OPT.yaml, or else the shipped ones.
        out: folder of table and plot; the command writes to swept/TASK/OPT-HASH by default.
    """
    call = Call(more, task, a.optimizers_of(opt), logger=logger)
    from bench.api import sweeping

    request = sweeping.request(call.words, a.seeds_of(seeds), call.places, call.config, tuned=tuned)
    if call.dry_run:
        return sweeping.dry_run(request, call.effort)
    folder = a.path_of("out", out) or (sweeping.default_folder(request) if call.command is not None else None)
    return sweeping.sweep(request, call.effort, folder, progress=call.progress, command=call.command)


@public
def tune(
    task: p.Task | None = None,
    opt: p.Opt | None = None,
    *,
    trials: int | None = None,
    seeds: p.Seeds = 2,
    report_seeds: p.Seeds = 7,
    sampler: Literal["grid", "qmc", "tpe"] | None = None,
    storage: str | None = None,
    out: p.Place | None = None,
    **more: Unpack[p.Fitting],
) -> "Study | Answer":
    """Find an optimizer's hyperparameters on a task: trials on separate seeds, the winner on fresh seeds.

    The winner is chosen on validation data. The search is centred on the ranges that the optimizer declares (`bench
    show sngd`), or on a given range (--opt.lr 1e-3:1e1). A grid (--opt.lr 1e-3:1e1:9) or a list (--opt.momentum 0,0.9)
    is tried unchanged. A single value fixes a setting. The same call continues a study; with more trials it adds them.

    Args:
        seeds: tuning seeds of each trial: a number (default 2: seeds 1000 and 1001) or a list.
        sampler: grid (default for up to two ranges): half decades of the first range, decades of the second, more at
            an edge; qmc: Halton sequence; tpe (default for more): Optuna's TPE after nine points of that sequence.
        storage: also add the trials to this storage of Optuna, such as sqlite:///studies.db.
        out: folder of TASK/OPT.yaml and the plot; the command writes to tuned by default.
    """
    more.setdefault("workers", "auto")
    call = Call(more, task, [] if opt is None else [opt])
    from bench.api import studies

    study = studies.study_of(
        call.words,
        call.config,
        call.places,
        sampler=sampler,
        trials=trials,
        seeds=a.seeds_text("seeds", seeds),
        report_seeds=a.seeds_text("report_seeds", report_seeds),
    )
    if call.dry_run:
        return studies.dry_run(study, call.effort)
    folder = a.path_of("out", out) or (Path("tuned") if call.command is not None else None)
    return studies.tune(study, call.effort, folder, storage, progress=call.progress, command=call.command)


@public
def suite(
    file: str,
    *,
    task: p.Names | None = None,
    opt: p.Names | None = None,
    out: p.Place = "tuned",
    **more: Unpack[p.Executing],
) -> Answer:
    """Tune optimizers on tasks with equal numbers of trials, then run the winners on fresh seeds.

    Exit code 1: an optimizer has no winner.

    Args:
        file: a YAML file, or the name of one in configs/suites.
        task: only these of its tasks: A,B.
        opt: only these of its optimizers: A,B.
        out: folder of settings and plots (default: tuned).
    """
    more.setdefault("workers", "auto")
    call = Call(more)
    from bench.api import studies

    chosen = a.names_of("task", task), a.names_of("opt", opt)
    return studies.suite(file, *chosen, call.places, call.effort, Path(out), dry=call.dry_run, command=call.command)


@public
def compare(
    task: p.Names | None = None,
    opt: p.Opt | Sequence[p.Opt] | None = None,
    *,
    against: p.Names | None = None,
    trials: int | None = None,
    seeds: p.Seeds | None = None,
    report_seeds: p.Seeds = 7,
    no_reference: bool = False,
    anyway: bool = False,
    out: p.Place | None = None,
    **more: Unpack[p.Fitting],
) -> "Comparison | Answer":
    """Compare optimizers with a baseline: checks, tuning with equal budgets, fresh seeds, verdicts, a plot.

    The search is centred on the ranges that an optimizer declares, or on --opt.lr LOW:HIGH. --opt.NAME is for all
    optimizers of --opt, and --opt.adamw.NAME for adamw alone. If the reference results include the baseline, it is not
    tuned again, and the others get its number of trials. Exit code 1: an optimizer has no winner.

    Args:
        task: one or more tasks, as `bench list tasks` prints them: mnist,lm.
        against: baselines to tune as well; the first is the reference (default: adamw, or gd for full batches).
        seeds: tuning seeds of each trial: a number (2: seeds 1000 and 1001) or a list; default 2, or those of the
            reference results.
        anyway: continue even if a failed check changes results.
        out: folder of tables, plots and settings; the command writes to compared/TASK/OPT by default.
    """
    more.setdefault("workers", "auto")
    call = Call(more, opts=a.optimizers_of(opt))
    from bench.api import comparison

    request = comparison.Request(
        words=call.words,
        config=call.config,
        tasks=a.names_of("task", task) or [],
        against=a.names_of("against", against),
        trials=a.number("trials", trials, 1),
        seeds=None if seeds is None else a.seeds_text("seeds", seeds),
        report_seeds=a.seeds_text("report_seeds", report_seeds),
        reference=not no_reference,
        anyway=anyway,
        places=call.places,
        effort=call.effort,
        progress=call.progress,
    )
    return (
        comparison.dry_run(request)
        if call.dry_run
        else comparison.compare(request, a.path_of("out", out), call.command)
    )


@public
def leaderboard(
    board: p.Names | None = None,
    *,
    explain: str | None = None,
    format: Literal["table", "md", "csv", "json", "tex", "html"] | None = None,
    out: p.Place | None = None,
    target: float | None = None,
    **choice: Unpack[p.Choice],
) -> "Table | Answer":
    """Compare optimizers from the stored runs, with verdicts that stay valid when seeds are added, and intervals.

    Exit code 1: a run could not be read.

    Args:
        board: quality (final metric at the tuned settings), pairs (all pairs of optimizers), speed (steps and seconds
            to the target), theory (alignment, rates), attention (runs with --trainer.observe), all, or a function
            of yours (my_board.py:board); without one, the verdicts of all optimizers on all tasks (in a file: quality).
        explain: explain this row instead: search space, trials, split, cost, reductions, commands.
        format: format on standard output (default: table); a file's is that of its ending.
        out: write to this file: .md, .csv, .json, .tex, .html or .txt.
        target: value of the metric that counts as reached, for `speed` (default: the task's).
    """
    from bench.api import boards

    file = a.path_of("out", out)
    kind = boards.format_of_boards(file, format)
    names = a.names_of("board", board)
    check_known("board", [name for name in names or [] if ":" not in name], [*boards.BOARD_NAMES, "all"])
    chosen = _chosen(choice, target)
    if explain is not None:
        return boards.explained(chosen, explain, file)
    return boards.leaderboard(chosen, names, file, kind)


def _chosen(choice: p.Choice, target: float | None = None) -> Any:
    """The entries of the stored runs that a call selects."""
    from bench.api import boards

    return boards.requested(
        a.folders_of(choice.get("store")),
        tasks=a.names_of("task", choice.get("task")),
        opts=a.names_of("opt", choice.get("opt")),
        only=a.pairs_of("only", choice.get("only"), "NAME=VALUE, as in --only trainer.max_steps=1000"),
        settings=choice.get("settings", "best"),
        shipped=not choice.get("no_reference", False),
        reference=choice.get("reference"),
        target=boards.finite(target),
    )


@public
def report(*, out: p.Place = "report.html", **choice: Unpack[p.Choice]) -> Answer:
    """Write boards, charts and the commands behind each row as one HTML page that needs no network.

    The same store gives a bit-identical page. Exit code 1: a run could not be read.

    Args:
        out: the page (default: report.html).
    """
    from bench.api import charts

    return charts.report(partial(_chosen, choice), Path(out))


@public
def plot(
    chart: Literal["forest", "curves", "sensitivity", "profile", "attention"] = "forest",
    *,
    out: p.Place | None = None,
    y: str = "loss",
    x: Literal["steps", "epochs", "seconds"] = "steps",
    **choice: Unpack[p.Choice],
) -> "alt.TopLevelMixin | Answer":
    """Draw stored runs for a paper, one panel per problem.

    Exit code 1: a run could not be read.

    Args:
        chart: forest: effect of each optimizer against the reference, with interval and verdict; curves: training
            loss, or --y COLUMN, against optimizer steps; sensitivity: score of each trial against the searched
            settings; profile: share of runs that have reached the target against the budget; attention: measurements
            of runs with --trainer.observe.
        out: file, ends in .png, .pdf, .svg or .html; Python returns an Altair chart without one.
        y: for curves: a column such as grad_norm or alignment, or an evaluated quantity such as accuracy or val_loss
            (default loss).
        x: for curves (default steps).
    """
    from bench.api import charts

    return charts.plot(partial(_chosen, choice), chart, a.path_of("out", out), y, x)


@public
def check(
    optimizer: p.Opt | None = None,
    *,
    task: str | None = None,
    only: p.Names | None = None,
    reference: str | None = None,
    quick: bool = False,
    limit: float = 30,
    **more: Unpack[p.Checking],
) -> Any:
    """Check that an optimizer or a task behaves as training code expects: resume, groups, schedules, closures, DDP, ...

    Options such as --opt.lr 0.1 set its hyperparameters, and --task.NAME VALUE those of a task. `bench list checks`
    says what each checks. Exit code 1: a failure changes results or blocks a set-up.

    Args:
        optimizer: an optimizer of `bench list optimizers`, module:Class or file.py:Class.
        task: check this task instead.
        only: only these checks: A,B.
        reference: another optimizer, whose steps its own must equal.
        quick: leave out the checks that start processes and trainings: DDP, FSDP2, lanes, ...
        limit: time limit of one check in seconds (default 30).
    """
    if not 0 < limit < float("inf"):
        raise UserError(f"--limit {limit}: it is not a time; write seconds, as in --limit 30")
    from bench.api import checking

    call = Call(more)
    name = optimizer if optimizer is None else name_of(optimizer)
    return checking.check(
        name, task, a.names_of("only", only), reference, call.words, call.places, quick=quick, limit=limit
    )


@public
def reproduce(
    name: str | None = None,
    *,
    claims: bool = False,
    quick: bool = False,
    search: bool = False,
    seeds: p.Seeds | None = None,
    out: p.Place | None = None,
    device: str = "auto",
    settings: p.Settings | None = None,
    **more: Unpack[p.Executing],
) -> Shown:
    """Run a paper's experiment and write a figure, the data behind it, and a page with tested claims.

    Settings in dotted form, as in `bench fit`, change all arms: --trainer.max_epochs 5. A claim holds, fails or is
    undecided only for an experiment as its paper defines it; the page 'Reproduce a paper' of the docs defines the other
    verdicts.

    Args:
        name: an experiment of `bench list experiments`.
        claims: show the verdicts on the claims of all papers, of paper NAME, or of the pages in folder NAME.
        quick: few seeds and steps, under a minute; not evidence.
        search: also search the constants that the paper does not state.
        seeds: a number (5: those of the experiment first, then the next integers) or a list (0,1,2; 10:15).
        out: folder of the output (default: reproduced/NAME, NAME-quick, NAME-changed).
    """
    from bench.api import papers

    folder = a.path_of("out", out)
    if claims:
        return papers.claims(name, folder)
    call = Call(more)
    changes = a.settings_of_call(settings=settings)
    places = {**call.places, "device": changes.pop("device", device)}
    version = papers.version(quick, search, None if seeds is None else a.seeds_text("seeds", seeds), changes)
    return papers.reproduce(name, folder, places, version, call.effort, dry=call.dry_run)


@public
def list_(
    what: Literal["tasks", "optimizers", "experiments", "checks", "runs", "studies"],
    *,
    task: p.Names | None = None,
    opt: p.Names | None = None,
    status: p.Names | None = None,
    since: str | None = None,
    all: bool = False,
    **stores: Unpack[p.InStores],
) -> Answer:
    """List tasks, optimizers, experiments of papers, checks, stored runs (newest first), or studies.

    The filters apply to runs. Runs that differ only in their seeds share a line, with the median of their results. The
    runs of a study share a line, and so do the sweeps of an optimizer on a problem, with the median at the best
    settings. Exit code 1: something could not be read.

    Args:
        what: kind of the names.
        task: only these tasks: A,B.
        opt: only these optimizers: A,B.
        status: only these statuses: running, failed, ...
        since: only runs that began since this date (2026-11-22) or within this time (30m, 2h, 3d, 1w).
        all: one line per run.
    """
    from bench.api import listing

    store = stores.get("store")
    filters = {"task": a.names_of("task", task), "opt": a.names_of("opt", opt), "status": a.names_of("status", status)}
    if what == "runs":
        return listing.runs(a.folders_of(store), **filters, since=since, every=all)
    given = {**filters, "since": since, "all": all or None, "store": None if what == "studies" else store}
    if extra := [name for name, value in given.items() if value is not None]:
        raise UserError(f"--{extra[0]}: it selects runs (`bench list runs`); remove it to list {what}")
    if what == "experiments":
        from bench.api import papers

        return papers.listed()
    if what == "checks":
        from bench.api import checking

        return checking.listed()
    return listing.studies(a.folders_of(store)) if what == "studies" else listing.names(what)


@public
def show(name: str, **stores: Unpack[p.InStores]) -> Answer:
    """Describe a task, an optimizer, a paper's experiment, a study or a stored run.

    For a run: result, settings, notes, and the commands that repeat, resume and plot it.

    Args:
        name: a task, an optimizer, an experiment, a study, the id of a run, or the path of its folder.
    """
    from bench.api import listing

    return listing.show(name, a.folders_of(stores.get("store")))


@public
def sql(
    query: str,
    *,
    no_reference: bool = False,
    format: Literal["table", "md", "csv", "json"] | None = None,
    out: p.Place | None = None,
    **stores: Unpack[p.InStores],
) -> Answer:
    """Query runs, curves, measurements and trials of studies with DuckDB's SQL.

    Views: runs, evaluations, curves, measurements, trials; `bench sql 'describe runs'` lists the columns of one.
    settings->>'opt.lr' is a setting of a run. Example: bench sql "select opt, count(final), avg(final) from runs where
    task = 'synthetic' and study is null group by opt". Exit code 1: something could not be read and was left out.

    Args:
        query: one read-only statement.
        format: format on standard output.
        out: write to this file: .md, .csv, .json or .txt.
    """
    from bench.api.stores import sql

    return sql(query, a.folders_of(stores.get("store")), a.path_of("out", out), format, reference=not no_reference)


@public
def load(store: Sequence[p.Place] | p.Place | None = None) -> "Runs":
    """All runs of a store, or of several read as one; plug-ins named in them are not imported.

    `Runs.damaged` lists what could not be read.

    Args:
        store: one folder or several; $BENCH_STORE by default, else `./runs`.
    """
    from bench.api.runs import Run, Runs
    from bench.store.stores import Stores

    stores = Stores(a.folders_of(store) or [a.folder_of("store", None)])
    runs = [Run(run, stores.place(run.run_id).parent) for run in stores.runs]
    return Runs(runs, list(map(str, stores.damaged)))


@public
def data(
    what: Literal["status", "prepare"],
    *,
    task: str | None = None,
    settings: p.Settings | None = None,
    **more: Unpack[p.WithData],
) -> Answer:
    """Show which files of a task's data exist, or fetch them over the network, and tokenise texts.

    `prepare` also takes the task's options: bench data prepare --task mnli --task.model DIR. Tokens are cached in
    $BENCH_CACHE, else ~/.cache/attention-optimizer-bench. Exit code 1: a file is missing or damaged.

    Args:
        what: status: the state of files; prepare: fetch and tokenise.
        task: the task; without it, `status` shows all tasks that have files.
    """
    from bench.commands import data as files

    return files.data(what, task, Call(more).places["data"], dict(settings or {}))


@public
def doctor(**more: Unpack[p.Stored]) -> Answer:
    """Check this machine, its data and its store; the lines say how to fix what does not work.

    Exit code 1: something will not work.
    """
    from bench.commands import doctor as diagnoses

    return diagnoses.doctor(**Call(more).places, named="data" in more)


@public
def new(kind: Literal["optimizer", "task"], name: str, *, out: p.Place | None = None) -> Answer:
    """Write a small, complete package with an optimizer or a task of your own: class, spec, test, README.

    Args:
        kind: of the package.
        name: name of the package, and of the optimizer or task: my_opt.
        out: folder to create (default: ./NAME).
    """
    from bench.commands.new import new

    return new(kind, name, a.path_of("out", out) or Path(name))


@public
def merge(*folders: p.Place) -> Answer:
    """Copy the runs of stores, and their records of studies and checks, into another store, the last one given.

    Runs in the destination are kept, but a finished run replaces an unfinished one. The same call continues an
    interrupted merge. Exit code 1: something could not be read.

    Args:
        folders: stores, which are only read, and last the destination.
    """
    from bench.api import stores

    if len(folders) < 2:
        raise UserError("bench merge needs a store and a destination: bench merge SOURCE ... DEST")
    *sources, destination = map(Path, folders)
    return stores.merge(sources, destination)


@public
def verify(
    path: p.Place | None = None,
    *,
    runs: int = 3,
    seed: int | None = None,
    task: p.Names | None = None,
    opt: p.Names | None = None,
    **more: Unpack[p.WithData],
) -> Answer:
    """Retrain a random sample of the runs of a store or of the reference results, and compare.

    On the same type of processor, with the same versions and engine, a run must agree bit for bit; otherwise up to
    rounding, or within the spread over seeds. Plug-ins that the store names are imported only if `opt` or `task` also
    names them. Exit code 1: a run was refuted or is damaged, or no run could be repeated.

    Args:
        path: a store (default: the reference results).
        runs: number of runs.
        seed: seed of the random sample (default: different each time).
        task: only of these tasks; a plug-in as file.py:SPEC.
        opt: only of these optimizers; a plug-in as file.py:NAME.
    """
    from bench.api.verification import verify

    return verify(
        a.path_of("path", path), a.number("runs", runs, 1), a.number("seed", seed, 0), a.names_of("task", task),
        a.names_of("opt", opt), Call(more).places["data"],
    )  # fmt: skip
