"""The program: each function is a command of the same name, with the same parameters (`bench/cli`).

Settings have the same names and meaning in both. Errors are `bench.UserError`. Stored runs are not trained again, so
the same call continues after an interruption. An interrupt saves the state and raises KeyboardInterrupt.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, overload

from bench.api import parameters as p
from bench.api.arguments import (
    check_switches,
    effort_of,
    folder_of,
    folders_of,
    names_of,
    number,
    optimizers_of,
    pairs_of,
    path_of,
    places_of,
    seeds_of,
    seeds_text,
    session,
    settings_of_call,
)
from bench.api.parameters import Opt, documented, option, word, words
from bench.api.source import name_of
from bench.errors import UserError, check_known, unknown
from bench.output import Answer, Shown

if TYPE_CHECKING:
    import altair as alt

    from bench.api.results import Comparison, Study, Sweep, Table
    from bench.api.runs import Run, Runs

__all__ = [  # noqa: RUF022 - in the order of `bench --help`
    "quickstart", "fit", "sweep", "tune", "suite", "compare", "leaderboard", "report", "plot", "check",
    "reproduce", "list_", "show", "sql", "load", "data", "doctor", "new", "merge", "verify",
]  # fmt: skip


@documented
def quickstart(
    *,
    out: Annotated[p.Place, word("Plot, ends in .png, .pdf, .svg or .html (default: quickstart.png).", "-o")] = (
        "quickstart.png"
    ),
    data: p.Data = None,
    store: p.Store = None,
    progress: p.Progress = True,
) -> Shown:
    """Train four optimizers on a small task with seven seeds, rank them, and draw their curves.

    Nothing is downloaded or tuned. If its runs are stored, it takes about 2 s.

    Raises:
        UserError: the plot's name has another ending.
    """
    from bench.api.training import training

    with training(progress):
        from bench.api.introduction import quickstart

        return quickstart(path_of("out", out) or Path(), places_of(data, store), progress=progress)


@overload
def fit(task: str, opt: "p.Opt", *, seeds: None = None, **settings: Any) -> "Run": ...
@overload
def fit(task: str, opt: "p.Opt", *, seeds: "p.Seeds", **settings: Any) -> "Runs": ...
@documented
def fit(
    task: p.Task = None,
    opt: p.OneOpt = None,
    *,
    seed: p.Seed = None,
    seeds: Annotated[
        p.Seeds | None,
        word("One run per seed, and their mean: a number (5: seeds 0 to 4) or a list (3,5,8; 10:15 is 10 to 14)."),
    ] = None,
    data_seed: p.DataSeed = None,
    config: p.Config = None,
    tuned: Annotated[
        bool,
        option("Use the settings in tuned/TASK/OPT.yaml, else the shipped ones; not on seeds that chose them."),
    ] = False,
    device: p.Device = None,
    precision: p.Precision = None,
    logger: p.Logger = None,
    engine: p.Engine = None,
    workers: p.Workers = None,
    cluster: p.Cluster = None,
    width: p.Width = None,
    budget: p.Budget = None,
    resume: Annotated[str | None, word("Continue this interrupted run (on CPUs bit for bit).")] = None,
    rerun: Annotated[bool, option("Train again even if the result is stored.")] = False,
    dry_run: Annotated[bool, option("Print the resolved configuration, and exit.")] = False,
    data: p.Data = None,
    store: p.Store = None,
    task_options: p.TaskSettings = None,
    trainer: p.TrainerSettings = None,
    settings: p.AllSettings = None,
    progress: p.Progress = True,
    command: p.Command = None,
    **hyperparameters: Any,
) -> "Run | Runs | Answer":
    """Train one task with one optimizer and store the result.

    A stored run is returned at once.

    Raises:
        UserError: a name is unknown, a value illegal, data are missing, or the class has no source.
        RunFailed: the run failed; the store records it.
        KeyboardInterrupt: the run was interrupted; its state is saved, and the same call continues.
    """
    check_switches(tuned=tuned, rerun=rerun)
    several = None if seeds is None else seeds_of(seeds)
    from bench.api.training import training

    with training(progress):
        places = places_of(data, store)
        top = {"seed": seed, "data_seed": data_seed, "precision": precision, "device": device, "logger": logger}
        top |= {name: path for name, path in places.items() if (data, store)[name == "store"] is not None}
        words = settings_of_call(
            places["store"], task, [] if opt is None else [opt], task_options, trainer, settings, hyperparameters, **top
        )
        from bench.api import fitting

        if resume is not None:
            given = [name for name, value in (("config", config), ("rerun", rerun), ("tuned", tuned)) if value]
            configuration = fitting.resumed(resume, words, places, given, command)
        else:
            configuration = fitting.configuration(words, path_of("config", config), places, tuned=tuned)
        sources = fitting.sources(configuration, several) if tuned else {}
        efforts = {"engine": engine, "workers": workers, "cluster": cluster, "width": width, "budget": budget}
        if several is not None:
            if single := [
                name
                for name, value in (("seed", seed), ("resume", resume), ("rerun", rerun or None))
                if value is not None
            ]:
                raise UserError(f"--{single[0]} is for one run; remove it or --seeds")
            configs = fitting.with_seeds(configuration, several, words, path_of("config", config))
            effort = effort_of(**efforts)
            if dry_run:
                return fitting.runs.dry_run(configs, effort, [{"seed": each.seed} for each in configs])
            return fitting.fit_seeds(configs, effort, sources, progress=progress)
        if given := [name for name, value in efforts.items() if value is not None]:
            raise UserError(f"--{given[0]} is for several runs; give --seeds too, or leave it out")
        if dry_run:
            return fitting.dry_run(configuration)
        return fitting.fit(configuration, sources, rerun=rerun, progress=progress, is_command=command is not None)


@documented
def sweep(
    task: p.Task = None,
    opt: p.Opts = None,
    *,
    seeds: Annotated[p.Seeds, word("A number (default 8: seeds 0 to 7) or a list (3,5,8; 10:15 is 10 to 14).")] = 8,
    config: p.Config = None,
    tuned: Annotated[bool, option("Fix the settings to those in tuned/TASK/OPT.yaml, or else the shipped ones.")] = (
        False
    ),
    engine: p.Engine = None,
    workers: p.Workers = None,
    cluster: p.Cluster = None,
    width: p.Width = None,
    budget: p.Budget = None,
    out: Annotated[
        p.Place | None,
        word("Folder of table and plot; the command writes to swept/TASK/OPT-HASH by default.", "-o"),
    ] = None,
    device: p.Device = None,
    precision: Annotated[str | None, word("Lanes need 32-true or 64-true (default: the task's).")] = None,
    data_seed: p.DataSeed = None,
    logger: p.Logger = None,
    dry_run: p.DryRun = False,
    data: p.Data = None,
    store: p.Store = None,
    task_options: p.TaskSettings = None,
    trainer: p.TrainerSettings = None,
    settings: p.AllSettings = None,
    progress: p.Progress = True,
    command: p.Command = None,
    **hyperparameters: Any,
) -> "Sweep | Answer":
    """Train many settings and seeds, vectorised where that is faster, and show how results depend on them.

    A setting may be a range LOW:HIGH or LOW:HIGH:POINTS, log-spaced (--opt.lr 1e-3:1e1:16), or a list (--task.sigma
    0.2,0.4). --opt.adam.lr is for adam alone. An optimizer without a varied setting gets a grid over its search range
    (`bench show adam`), unless --tuned fixes its settings.

    Raises:
        UserError: as for `fit`.
        RunFailed: runs failed; the others are stored.
        KeyboardInterrupt: the sweep was interrupted; the same call continues.
    """
    check_switches(tuned=tuned)
    from bench.api.training import training

    with training(progress):
        places = places_of(data, store)
        top = {"data_seed": data_seed, "precision": precision, "device": device, "logger": logger}
        words = settings_of_call(
            places["store"], task, optimizers_of(opt), task_options, trainer, settings, hyperparameters, **top
        )
        from bench.api import sweeping

        request = sweeping.request(words, seeds_of(seeds), places, path_of("config", config), tuned=tuned)
        effort = effort_of(engine, workers, cluster, width, budget)
        if dry_run:
            return sweeping.dry_run(request, effort)
        folder = path_of("out", out) or (sweeping.default_folder(request) if command is not None else None)
        return sweeping.sweep(request, effort, folder, progress=progress, command=command)


@documented
def tune(
    task: p.Task = None,
    opt: p.OneOpt = None,
    *,
    config: p.Config = None,
    trials: p.Trials = None,
    budget: p.Budget = None,
    seeds: p.TuningSeeds = None,
    report_seeds: p.ReportSeeds = None,
    sampler: Annotated[
        Literal["grid", "qmc", "tpe"] | None,
        option(
            "grid (default for up to two ranges): half decades of the first range, decades of the second, more at an"
            " edge; qmc: Halton sequence; tpe (default for more): Optuna's TPE after nine points of that sequence."
        ),
    ] = None,
    storage: Annotated[
        str | None, word("Also add the trials to this storage of Optuna, such as sqlite:///studies.db.")
    ] = None,
    out: Annotated[
        p.Place | None, word("Folder of TASK/OPT.yaml and the plot; the command writes to tuned by default.", "-o")
    ] = None,
    device: p.Device = None,
    precision: p.Precision = None,
    data_seed: p.DataSeed = None,
    dry_run: Annotated[bool, option("Print the trials of the design, and exit.")] = False,
    workers: p.Workers = "auto",
    cluster: p.Cluster = None,
    engine: p.Engine = None,
    width: p.Width = None,
    data: p.Data = None,
    store: p.Store = None,
    task_options: p.TaskSettings = None,
    trainer: p.TrainerSettings = None,
    settings: p.AllSettings = None,
    progress: p.Progress = True,
    command: p.Command = None,
    **hyperparameters: Any,
) -> "Study | Answer":
    """Find an optimizer's hyperparameters on a task: trials on separate seeds, the winner on fresh seeds.

    The winner is chosen on validation data. The search is centred on the ranges that the optimizer declares (`bench
    show sngd`), or on a given range (--opt.lr 1e-3:1e1). A grid (--opt.lr 1e-3:1e1:9) or a list (--opt.momentum 0,0.9)
    is tried unchanged. A single value fixes a setting. The same call continues a study; with more trials it adds them.

    Raises:
        UserError: as for `fit`, or there is nothing to search.
        RunFailed: workers die at start.
        KeyboardInterrupt: the study was interrupted; the same call continues.
    """
    from bench.api.training import training

    with training(progress):
        places = places_of(data, store)
        top = {"data_seed": data_seed, "precision": precision, "device": device}
        words = settings_of_call(
            places["store"], task, [] if opt is None else [opt], task_options, trainer, settings, hyperparameters, **top
        )
        if sampler is not None and sampler not in ("grid", "qmc", "tpe"):
            raise unknown("sampler", str(sampler), ("grid", "qmc", "tpe"))
        from bench.api import studies

        study = studies.study_of(
            words,
            path_of("config", config),
            places,
            sampler=sampler,
            trials=number("trials", trials),
            seeds=seeds_text("seeds", 2 if seeds is None else seeds),
            report_seeds=seeds_text("report_seeds", 7 if report_seeds is None else report_seeds),
        )
        effort = effort_of(engine, workers, cluster, width, budget)
        if dry_run:
            return studies.dry_run(study, effort)
        folder = path_of("out", out) or (Path("tuned") if command is not None else None)
        return studies.tune(study, effort, folder, storage, progress=progress, command=command)


@documented
def suite(
    file: Annotated[str, word("A YAML file, or the name of one in configs/suites.")],
    *,
    task: Annotated[p.Names | None, words("Only these of its tasks: A,B.")] = None,
    opt: Annotated[p.Names | None, words("Only these of its optimizers: A,B.")] = None,
    workers: p.Workers = "auto",
    cluster: p.Cluster = None,
    engine: p.Engine = None,
    width: p.Width = None,
    budget: p.Budget = None,
    out: Annotated[p.Place, word("Folder of settings and plots (default: tuned).", "-o")] = "tuned",
    dry_run: Annotated[bool, option("Print the plan, its stored part, and its approximate duration; then exit.")] = (
        False
    ),
    data: p.Data = None,
    store: p.Store = None,
    progress: p.Progress = True,
    command: p.Command = None,
) -> Answer:
    """Tune optimizers on tasks with equal numbers of trials, then run the winners on fresh seeds.

    Exit code 1: an optimizer has no winner.

    Raises:
        UserError: the file is invalid, or a run cannot be trained.
        KeyboardInterrupt: the suite was interrupted; the same call continues.
    """
    from bench.api.training import training

    with training(progress):
        from bench.api import studies

        effort = effort_of(engine, workers, cluster, width, budget)
        chosen = names_of("task", task), names_of("opt", opt)
        folder = path_of("out", out) or Path("tuned")
        return studies.suite(file, *chosen, places_of(data, store), effort, folder, dry=dry_run, command=command)


@documented
def compare(
    task: Annotated[p.Names | None, words("One or more tasks, as `bench list tasks` prints them: mnist,lm.")] = None,
    opt: p.Opts = None,
    *,
    against: Annotated[
        p.Names | None,
        words("Baselines to tune as well; the first is the reference (default: adamw, or gd for full batches)."),
    ] = None,
    config: p.Config = None,
    trials: p.Trials = None,
    seeds: Annotated[
        p.Seeds | None,
        word(
            "Tuning seeds of each trial: a number (2: seeds 1000 and 1001) or a list; default 2, or those of the"
            " reference results."
        ),
    ] = None,
    report_seeds: p.ReportSeeds = 7,
    no_reference: p.NoReference = False,
    budget: p.Budget = None,
    anyway: Annotated[bool, option("Continue even if a failed check changes results.")] = False,
    out: Annotated[
        p.Place | None,
        word("Folder of tables, plots and settings; the command writes to compared/TASK/OPT by default.", "-o"),
    ] = None,
    device: p.Device = None,
    precision: p.Precision = None,
    data_seed: p.DataSeed = None,
    dry_run: Annotated[bool, option("Print the plan, its stored part, and its approximate duration; then exit.")] = (
        False
    ),
    workers: p.Workers = "auto",
    cluster: p.Cluster = None,
    engine: p.Engine = None,
    width: p.Width = None,
    data: p.Data = None,
    store: p.Store = None,
    task_options: p.TaskSettings = None,
    trainer: p.TrainerSettings = None,
    settings: p.AllSettings = None,
    progress: p.Progress = True,
    command: p.Command = None,
    **hyperparameters: Any,
) -> "Comparison | Answer":
    """Compare optimizers with a baseline: checks, tuning with equal budgets, fresh seeds, verdicts, a plot.

    The search is centred on the ranges that an optimizer declares, or on --opt.lr LOW:HIGH. --opt.NAME is for all
    optimizers of --opt, and --opt.adamw.NAME for adamw alone. If the reference results include the baseline, it is not
    tuned again, and the others get its number of trials. Exit code 1: an optimizer has no winner.

    Raises:
        UserError: as for `tune`, or there is nothing to compare with.
        RunFailed: a failed check changes results.
        KeyboardInterrupt: the comparison was interrupted; the same call continues.
    """
    check_switches(anyway=anyway, no_reference=no_reference)
    from bench.api.training import training

    with training(progress):
        places = places_of(data, store)
        top = {"data_seed": data_seed, "precision": precision, "device": device}
        words = settings_of_call(
            places["store"], None, optimizers_of(opt), task_options, trainer, settings, hyperparameters, **top
        )
        from bench.api import comparison

        request = comparison.Request(
            words=words,
            config=path_of("config", config),
            tasks=names_of("task", task) or [],
            against=names_of("against", against),
            trials=number("trials", trials, 1),
            seeds=None if seeds is None else seeds_text("seeds", seeds),
            report_seeds=seeds_text("report_seeds", 7 if report_seeds is None else report_seeds),
            reference=not no_reference,
            anyway=anyway,
            places=places,
            effort=effort_of(engine, workers, cluster, width, budget),
            progress=progress,
        )
        if dry_run:
            return comparison.dry_run(request)
        return comparison.compare(request, path_of("out", out), command)


@documented
def leaderboard(
    board: Annotated[
        p.Names | None,
        words(
            "quality (final metric at the tuned settings), pairs (all pairs of optimizers), speed (steps and seconds to"
            " the target), theory (alignment, rates), attention (runs with --trainer.observe) or a function of yours"
            " (my_board.py:board); without one, the verdicts of all optimizers on all tasks (in a file: quality)."
        ),
    ] = None,
    *,
    all: Annotated[bool, option("Print all boards.")] = False,
    explain: Annotated[
        str | None, word("Explain this row instead: search space, trials, split, cost, reductions, commands.")
    ] = None,
    format: Annotated[
        Literal["table", "md", "csv", "json", "tex", "html"] | None,
        option("Format on standard output (default: table); a file's is that of its ending."),
    ] = None,
    out: Annotated[p.Place | None, word("Write to this file: .md, .csv, .json, .tex, .html or .txt.", "-o")] = None,
    task: p.OnlyTasks = None,
    opt: p.OnlyOpts = None,
    store: p.Stores = None,
    settings: p.Which = "best",
    only: p.Only = None,
    no_reference: p.NoReference = False,
    mixed_versions: p.Mixed = False,
    reference: p.Reference = None,
    target: p.Target = None,
    progress: p.Progress = True,
) -> "Table | Answer":
    """Compare optimizers from the stored runs, with verdicts that stay valid when seeds are added, and intervals.

    Exit code 1: a run could not be read.

    Raises:
        UserError: a name is unknown, versions are mixed, or there is nothing to show.
    """
    with session(progress=progress):
        from bench.api import boards

        file = path_of("out", out)
        kind = boards.format_of_boards(file, format)
        names = ["all"] if all else names_of("board", board)
        check_known("board", [name for name in names or [] if ":" not in name], [*boards.BOARD_NAMES, "all"])
        chosen = _chosen(task, opt, store, settings, only, no_reference, mixed_versions, reference, target)
        if explain is not None:
            return boards.explained(chosen, explain, file)
        return boards.leaderboard(chosen, names, file, kind)


def _chosen(
    task: Any, opt: Any, store: Any, which: str, only: Any, no_reference: bool, mixed: bool, reference: Any,
    target: Any,
) -> Any:  # fmt: skip
    """The entries of the stored runs that a call selects."""
    from bench.api import boards

    check_switches(no_reference=no_reference, mixed_versions=mixed)
    if which not in ("best", "tuned", "default", "all"):
        raise unknown("settings", str(which), ("best", "tuned", "default", "all"))
    return boards.requested(
        folders_of(store),
        tasks=names_of("task", task),
        opts=names_of("opt", opt),
        only=pairs_of("only", only, "NAME=VALUE, as in --only trainer.max_steps=1000"),
        settings=which,
        shipped=not no_reference,
        mixed_versions=mixed,
        reference=reference,
        target=boards.finite(target),
    )


@documented
def report(
    *,
    out: Annotated[p.Place, word("The page (default: report.html).", "-o")] = "report.html",
    task: p.OnlyTasks = None,
    opt: p.OnlyOpts = None,
    store: p.Stores = None,
    settings: p.Which = "best",
    only: p.Only = None,
    no_reference: p.NoReference = False,
    mixed_versions: p.Mixed = False,
    reference: p.Reference = None,
    target: p.Target = None,
    progress: p.Progress = True,
) -> Answer:
    """Write boards, charts and the commands behind each row as one HTML page that needs no network.

    The same store gives a bit-identical page. Exit code 1: a run could not be read.

    Raises:
        UserError: as for `leaderboard`, or the page cannot be written.
    """
    with session(progress=progress):
        from bench.api import charts

        chosen = partial(_chosen, task, opt, store, settings, only, no_reference, mixed_versions, reference, target)
        return charts.report(chosen, path_of("out", out) or Path())


@documented
def plot(
    chart: Annotated[
        Literal["forest", "curves", "sensitivity", "profile", "steps", "budget", "attention", "stability"],
        option(
            "forest: effect of each optimizer against the reference, with interval and verdict; curves: training"
            " loss, or --y COLUMN, against optimizer steps; sensitivity: score of each trial against the searched"
            " settings; profile: share of runs that have reached the target against the budget; steps: step sizes"
            " before and after their cap; budget: expected best of k trials; attention, stability: measurements of"
            " runs with --trainer.observe."
        ),
    ] = "forest",
    *,
    out: Annotated[
        p.Place | None,
        word("File, ends in .png, .pdf, .svg or .html; Python returns an Altair chart without one.", "-o"),
    ] = None,
    y: Annotated[
        str | None,
        word(
            "For curves: a column such as grad_norm or alignment, or an evaluated quantity such as accuracy or val_loss"
            " (default loss)."
        ),
    ] = None,
    x: Annotated[Literal["steps", "epochs", "seconds"] | None, option("For curves (default steps).")] = None,
    no_caption: Annotated[bool, option("Omit the text below the panels and the title of a single panel.")] = False,
    task: p.OnlyTasks = None,
    opt: p.OnlyOpts = None,
    store: p.Stores = None,
    settings: p.Which = "best",
    only: p.Only = None,
    no_reference: p.NoReference = False,
    mixed_versions: p.Mixed = False,
    reference: p.Reference = None,
    target: p.Target = None,
    progress: p.Progress = True,
    command: p.Command = None,
) -> "alt.TopLevelMixin | Answer":
    """Draw stored runs for a paper, one panel per problem.

    Exit code 1: a run could not be read.

    Raises:
        UserError: as for `leaderboard`, or there is nothing to draw.
    """
    check_switches(no_caption=no_caption)
    with session(progress=progress):
        from bench.api import charts

        if command is not None and out is None:
            raise UserError(f"--out is missing; write bench plot {chart} -o {chart}.pdf (or .png, .svg, .html)")
        chosen = partial(_chosen, task, opt, store, settings, only, no_reference, mixed_versions, reference, target)
        return charts.plot(chosen, chart, path_of("out", out), y, x, caption=not no_caption)


@documented
def check(
    optimizer: Annotated[
        Opt | None, word("An optimizer of `bench list optimizers`, module:Class or file.py:Class.")
    ] = (None),
    *,
    task: Annotated[str | None, word("Check this task instead, with its options as --task.NAME VALUE.")] = None,
    matrix: Annotated[
        p.Names | None,
        words(
            "Check many optimizers, one row of a table each: a module (torch.optim) or file for all of its classes,"
            " module:Class, or a name; write muon: for a module with an optimizer's name."
        ),
    ] = None,
    out: Annotated[
        Sequence[p.Place] | p.Place | None,
        words(
            "File of the matrix: .html, .md or .json (default: Markdown on standard output); may be"
            " given several times.",
            "-o",
        ),
    ] = None,
    only: Annotated[p.Names | None, words("Only these checks: A,B.")] = None,
    reference: Annotated[
        str | None, word("What its steps must equal: another optimizer, or module:function in float64 on flat vectors.")
    ] = None,
    quick: Annotated[
        bool, option("Leave out the checks that start processes and trainings: DDP, FSDP2, lanes, ...")
    ] = False,
    limit: Annotated[float | None, option("Time limit of one check in seconds (default 30).")] = None,
    list: Annotated[bool, option("List the checks: meaning, tolerance, and how to mend a failure.")] = False,
    data: p.Data = None,
    store: p.Store = None,
    settings: p.AllSettings = None,
    progress: p.Progress = True,
    **hyperparameters: Any,
) -> Any:
    """Check that an optimizer or a task behaves as training code expects: resume, groups, schedules, closures, DDP, ...

    Options such as --opt.lr 0.1 set its hyperparameters. Exit code 1: a failure changes results or blocks a set-up.

    Raises:
        UserError: there is no such optimizer, task, check or option.
    """
    check_switches(quick=quick, list=list)
    if limit is not None and not 0 < limit < float("inf"):
        raise UserError(f"--limit {limit}: it is not a time; write seconds, as in --limit 30")
    with session(progress=progress):
        from bench.api import checking as kit

        if list:
            return kit.listed()
        places = places_of(data, store)
        dotted = settings_of_call(places["store"], settings=settings, hyperparameters=hyperparameters)
        name = optimizer if optimizer is None else name_of(optimizer, places["store"])
        several = [
            path for each in ([out] if isinstance(out, str | Path) else out or []) if (path := path_of("out", each))
        ]
        return kit.check(
            name, task, names_of("matrix", matrix), several, names_of("only", only), reference, dotted, places,
            quick=quick, limit=limit,
        )  # fmt: skip


@documented
def reproduce(
    name: Annotated[str | None, word("An experiment, see `bench reproduce --list`.")] = None,
    *,
    list: Annotated[bool, option("List the experiments, and exit.")] = False,
    claims: Annotated[
        bool,
        option("Show the verdicts on the claims of all papers, of paper NAME, or of the pages in folder NAME."),
    ] = False,
    quick: Annotated[bool, option("Few seeds and steps, under a minute; not evidence.")] = False,
    search: Annotated[bool, option("Also search the constants that the paper does not state.")] = False,
    seeds: Annotated[
        p.Seeds | None,
        word("A number (5: those of the experiment first, then the next integers) or a list (0,1,2; 10:15)."),
    ] = None,
    out: Annotated[
        p.Place | None,
        word("Folder of the output (default: reproduced/NAME, NAME-quick, NAME-changed).", "-o"),
    ] = None,
    device: Annotated[str, word("cpu, cuda, mps or auto.")] = "auto",
    engine: p.Engine = None,
    workers: p.Workers = None,
    cluster: p.Cluster = None,
    width: p.Width = None,
    budget: p.Budget = None,
    dry_run: p.DryRun = False,
    data: p.Data = None,
    store: p.Store = None,
    settings: p.AllSettings = None,
    progress: p.Progress = True,
) -> Shown:
    """Run a paper's experiment and write a figure, the data behind it, and a page with tested claims.

    Settings in dotted form, as in `bench fit`, change all arms: --trainer.max_epochs 5. A claim holds, fails or is
    undecided only for an experiment as its paper defines it; the page 'Reproduce a paper' of the docs defines the other
    verdicts.

    Raises:
        UserError: the experiment is unknown, or a run cannot be trained.
        KeyboardInterrupt: it was interrupted; the same call continues.
    """
    check_switches(list=list, claims=claims, quick=quick, search=search)
    from bench.api.training import training

    with training(progress):
        from bench.api import papers

        folder = path_of("out", out)
        if claims:
            return papers.claims(name, folder)
        if list:
            return papers.listed()
        counted = None if seeds is None else seeds_text("seeds", seeds)
        effort = effort_of(engine, workers, cluster, width, budget)
        places = {**places_of(data, store), "device": device}
        version = papers.version(quick, search, counted, settings_of_call(places["store"], settings=settings))
        return papers.reproduce(name, folder, places, version, effort, dry=dry_run)


@documented
def list_(
    what: Annotated[Literal["tasks", "optimizers", "runs", "studies"], option("What to list.")],
    *,
    store: p.Stores = None,
    task: p.OnlyTasks = None,
    opt: p.OnlyOpts = None,
    status: Annotated[p.Names | None, words("Only these statuses: running, failed, ...")] = None,
    since: Annotated[
        str | None,
        word("Only runs that began since this date (2026-11-22) or within this time (30m, 2h, 3d, 1w)."),
    ] = None,
    all: Annotated[bool, option("One line per run.")] = False,
) -> Answer:
    """List tasks, optimizers, stored runs (newest first), or studies.

    The filters apply to runs. Runs that differ only in their seeds share a line, with the median of their results. The
    runs of a study share a line, and so do the sweeps of an optimizer on a problem, with the median at the best
    settings. Exit code 1: something could not be read.

    Raises:
        UserError: a store or a name does not exist.
    """
    from bench.api import listing

    filters = {"task": task, "opt": opt, "status": status}
    chosen = {name: names_of(name, value) for name, value in filters.items()}
    given = {**filters, "since": since, "all": all or None} | ({} if what == "studies" else {"store": store})
    if what != "runs" and (extra := [name for name, value in given.items() if value]):
        raise UserError(f"--{extra[0]}: it selects runs (`bench list runs`); remove it to list {what}")
    with session():
        if what == "runs":
            return listing.runs(folders_of(store), **chosen, since=since, every=all)
        return listing.studies(folders_of(store)) if what == "studies" else listing.names(what)


@documented
def show(
    name: Annotated[
        str, word("A task, an optimizer, an experiment, a study, the id of a run, or the path of its folder.")
    ],
    *,
    store: p.Stores = None,
) -> Answer:
    """Describe a task, an optimizer, a paper's experiment, a study or a stored run.

    For a run: result, settings, notes, and the commands that repeat, resume and plot it.

    Raises:
        UserError: there is nothing of this name.
    """
    from bench.api import listing

    with session():
        return listing.show(name, folders_of(store))


@documented
def sql(
    query: Annotated[str, word("One read-only statement.")],
    *,
    store: p.Stores = None,
    no_reference: p.NoReference = False,
    format: Annotated[Literal["table", "md", "csv", "json"] | None, option("Format on standard output.")] = None,
    out: Annotated[p.Place | None, word("Write to this file: .md, .csv, .json or .txt.", "-o")] = None,
) -> Answer:
    """Query runs, curves, measurements and trials of studies with DuckDB's SQL.

    Views: runs, evaluations, curves, measurements, trials; `bench sql 'describe runs'` lists the columns of one.
    settings->>'opt.lr' is a setting of a run. Example: bench sql "select opt, count(final), avg(final) from runs where
    task = 'synthetic' and study is null group by opt". Exit code 1: something could not be read and was left out.

    Raises:
        UserError: the statement is invalid.
    """
    from bench.api import stores

    with session():
        return stores.sql(query, folders_of(store), path_of("out", out), format, reference=not no_reference)


def load(store: p.Stores = None) -> "Runs":
    """All runs of a store, or of several read as one; plug-ins named in them are not imported.

    `Runs.damaged` lists what could not be read.

    Args:
        store: one folder or several; $BENCH_STORE by default, else `./runs`.

    Raises:
        UserError: a folder does not exist.
    """
    from bench.api.runs import Run, Runs
    from bench.store.stores import Stores

    stores = Stores(folders_of(store) or [folder_of("store", None)])
    runs = [Run(run, stores.place(run.run_id).parent) for run in stores.runs]
    return Runs(runs, [str(each) for each in stores.damaged])


@documented
def data(
    what: Annotated[Literal["status", "prepare"], option("status: the state of files; prepare: fetch and tokenise.")],
    *,
    task: Annotated[str | None, word("The task; without it, `status` shows all tasks that have files.")] = None,
    data: p.Data = None,
    settings: p.AllSettings = None,
) -> Answer:
    """Show which files of a task's data exist, or fetch them over the network, and tokenise texts.

    `prepare` also takes the task's options: bench data prepare --task mnli --task.model DIR. Tokens are cached in
    $BENCH_CACHE, else ~/.cache/attention-optimizer-bench. Exit code 1: a file is missing or damaged.

    Raises:
        UserError: a name is unknown, or data cannot be fetched.
    """
    from bench.commands import data as files

    check_known("word", [str(what)], ("status", "prepare"))
    with session():
        return files.data(what, task, folder_of("data", data), dict(settings or {}))


@documented
def doctor(*, data: p.Data = None, store: p.Store = None) -> Answer:
    """Check this machine, its data and its store; the lines say how to fix what does not work.

    Exit code 1: something will not work.
    """
    from bench.commands import doctor as diagnoses

    with session():
        return diagnoses.doctor(**places_of(data, store))


@documented
def new(
    kind: Annotated[Literal["optimizer", "task"], option("What to create.")],
    name: Annotated[str, word("Name of the package, and of the optimizer or task: my_opt.")],
    *,
    out: Annotated[p.Place | None, word("Folder to create (default: ./NAME).", "-o")] = None,
) -> Answer:
    """Write a small, complete package with an optimizer or a task of your own: class, spec, test, README.

    Raises:
        UserError: the name is illegal or taken, or the folder cannot be written.
    """
    from bench.commands.new import new

    return new(kind, name, path_of("out", out) or Path(name))


def merge(*folders: Annotated[p.Place, word("Stores, which are only read, and last the destination.")]) -> Answer:
    """Copy the runs of stores, and their records of studies and checks, into another store, the last one given.

    Runs in the destination are kept, but a finished run replaces an unfinished one. The same call continues an
    interrupted merge. Exit code 1: something could not be read.

    Raises:
        UserError: there are fewer than two folders, or a store does not exist.
    """
    from bench.api import stores

    if len(folders) < 2:
        raise UserError("bench merge needs a store and a destination: bench merge SOURCE ... DEST")
    if None in folders:
        raise UserError(f"folders={folders!r}: write paths")
    *sources, destination = [path for each in folders if (path := path_of("store", each)) is not None]
    return stores.merge(sources, destination)


@documented
def verify(
    path: Annotated[p.Place | None, word("A store (default: the reference results).")] = None,
    *,
    runs: Annotated[int, word("Number of runs.")] = 3,
    seed: Annotated[int | None, word("Seed of the random sample (default: different each time).")] = None,
    task: Annotated[p.Names | None, words("Only of these tasks; a plug-in as file.py:SPEC.")] = None,
    opt: Annotated[p.Names | None, words("Only of these optimizers; a plug-in as file.py:NAME.")] = None,
    data: p.Data = None,
    progress: p.Progress = True,
) -> Answer:
    """Retrain a random sample of the runs of a store or of the reference results, and compare.

    On the same type of processor, with the same versions and engine, a run must agree bit for bit; otherwise up to
    rounding, or within the spread over seeds. Plug-ins that the store names are imported only if `opt` or `task` also
    names them. Exit code 1: a run was refuted or is damaged, or no run could be repeated.

    Raises:
        UserError: there is nothing to verify.
    """
    from bench.api.training import training

    with training(progress):
        from bench.api.verification import verify

        return verify(
            path_of("path", path), number("runs", runs, 1), number("seed", seed, 0), names_of("task", task),
            names_of("opt", opt), folder_of("data", data),
        )  # fmt: skip
