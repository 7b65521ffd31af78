"""The program: each function is a command of the same name, with the same parameters (`bench/cli`).

Settings have the same names and meaning in both. Errors are `bench.UserError`. Stored runs are not trained again, so
the same call continues after an interruption. An interrupt saves the state and raises KeyboardInterrupt.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Unpack, overload

from bench.api.boards import leaderboard, plot, report
from bench.api.calls import Call, Executing, Fitting, Names, Opt, Place, Seeds, Settings, Task, names, path_of, public
from bench.api.checking import check
from bench.api.experiments import quickstart, reproduce
from bench.api.packages import new
from bench.api.stores import list_, load, merge, show, sql
from bench.config.values import read_seeds
from bench.output import Answer

if TYPE_CHECKING:
    from bench.api.results import Comparison, Run, Runs, Study, Sweep

__all__ = [  # noqa: RUF022 - in the order of `bench --help`
    "quickstart", "fit", "sweep", "tune", "suite", "compare", "leaderboard", "report", "plot", "check",
    "reproduce", "list_", "show", "sql", "load", "data", "doctor", "new", "merge", "verify",
]  # fmt: skip


@overload
def fit(
    task: Task | None, opt: Opt | None, *, seed: int | None = None, seeds: None = None, **more: Unpack[Fitting]
) -> "Run": ...
@overload
def fit(task: Task | None, opt: Opt | None, *, seeds: Seeds, **more: Unpack[Fitting]) -> "Runs": ...
@public
def fit(
    task: Task | None = None,
    opt: Opt | None = None,
    *,
    seed: int | None = None,
    seeds: Seeds | None = None,
    tuned: bool = False,
    rerun: bool = False,
    logger: str | None = None,
    **more: Unpack[Fitting],
) -> "Run | Runs | Answer":
    """Train one task with one optimizer and store the result.

    A stored run is returned at once, and an interrupted one continues (on CPUs bit for bit).

    Args:
        seeds: one run per seed: a number (5: seeds 0 to 4) or a list (3,5,8; 10:15 is 10 to 14).
        tuned: use the settings in tuned/TASK/OPT.yaml, else the shipped ones; not on seeds that chose them.
        rerun: train again even if the result is stored.

    Raises:
        UserError: a name is unknown, a value illegal, data are missing, or the class has no source.
        RunFailed: the run failed; the store records it.
        KeyboardInterrupt: the run was interrupted; its state is saved, and the same call continues.
    """
    from bench.api import fitting

    call = Call(more, task, [] if opt is None else [opt], seed=seed, logger=logger)
    return fitting.fit(call, seeds, tuned=tuned, rerun=rerun)


@public
def sweep(
    task: Task | None = None,
    opt: Opt | Sequence[Opt] | None = None,
    *,
    seeds: Seeds = 8,
    tuned: bool = False,
    out: Place | None = None,
    logger: str | None = None,
    **more: Unpack[Fitting],
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
    call = Call(more, task, names("opt", opt) or [], logger=logger)
    from bench.api import fitting

    return fitting.sweep(call, read_seeds(seeds), path_of(out), tuned=tuned)


@public
def tune(
    task: Task | None = None,
    opt: Opt | None = None,
    *,
    trials: int | None = None,
    seeds: Seeds = 2,
    report_seeds: Seeds = 7,
    sampler: Literal["grid", "refine", "qmc", "tpe"] | None = None,
    storage: str | None = None,
    out: Place | None = None,
    **more: Unpack[Fitting],
) -> "Study | Answer":
    """Find an optimizer's hyperparameters on a task: trials on separate seeds, the winner on fresh seeds.

    The winner is chosen on validation data. The search is centred on the ranges that the optimizer declares (`bench
    show sngd`), or on a given range (--opt.lr 1e-3:1e1). A grid (--opt.lr 1e-3:1e1:9) or a list (--opt.momentum 0,0.9)
    is tried unchanged. A single value fixes a setting. The same call continues a study; with more trials it adds them.

    Args:
        seeds: tuning seeds of each trial: a number (default 2: seeds 1000 and 1001) or a list.
        sampler: grid: half decades of the first range, decades of the second, more at an edge; refine (default for up
            to two ranges): then the neighbours of the best, at half the spacing and at a quarter; qmc: Halton sequence;
            tpe (default for more): Optuna's TPE after nine points of that sequence.
        storage: also add the trials to this storage of Optuna, such as sqlite:///studies.db.
        out: folder of TASK/OPT.yaml; the command writes to tuned by default.
    """
    more.setdefault("workers", "auto")
    call = Call(more, task, [] if opt is None else [opt])
    from bench.api import studies

    return studies.tune(call, sampler, trials, seeds, report_seeds, path_of(out), storage)


@public
def suite(
    file: str,
    *,
    out: Place = "tuned",
    **more: Unpack[Executing],
) -> Answer:
    """Tune optimizers on tasks with equal numbers of trials, then run the winners on fresh seeds.

    Exit code 1: an optimizer has no winner.

    Args:
        file: a YAML file, or the name of one in configs/suites.
        out: folder of settings, or of the table and figure of a ladder (default: tuned).
    """
    more.setdefault("workers", "auto")
    call = Call(more)
    from bench.api import studies

    return studies.suite(file, call, Path(out))


@public
def compare(
    task: Names | None = None,
    opt: Opt | Sequence[Opt] | None = None,
    *,
    against: Names | None = None,
    trials: int | None = None,
    seeds: Seeds | None = None,
    report_seeds: Seeds = 7,
    anyway: bool = False,
    out: Place | None = None,
    **more: Unpack[Fitting],
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
    call, baselines = Call(more, opts=names("opt", opt) or []), names("against", against)
    from bench.api import comparison

    tasks = names("task", task)
    return comparison.compare(call, tasks, baselines, trials, seeds, report_seeds, path_of(out), anyway=anyway)


@public
def data(
    kind: Literal["status", "prepare"],
    *,
    task: str | None = None,
    settings: Settings | None = None,
    data: Place | None = None,
    progress: bool = True,
) -> Answer:
    """Show which files of a task's data exist, or fetch them over the network, and tokenise texts.

    `prepare` also takes the task's options: bench data prepare --task mnli --task.model DIR. Tokens are cached in
    $BENCH_CACHE, else ~/.cache/attention-optimizer-bench. Exit code 1: a file is missing or damaged.

    Args:
        kind: status: the state of files; prepare: fetch and tokenise.
        task: the task; without it, `status` shows all tasks that have files.
    """
    from bench.commands import data as files

    return files.data(kind, task, Call({"data": data}).places["data"], dict(settings or {}))


@public
def doctor(*, data: Place | None = None, store: Place | None = None, progress: bool = True) -> Answer:
    """Check this machine, its data and its store; the lines say how to fix what does not work.

    Exit code 1: something will not work.
    """
    from bench.commands import doctor as diagnoses

    return diagnoses.doctor(**Call({"data": data, "store": store}).places, named=data is not None)


@public
def verify(
    path: Place | None = None,
    *,
    runs: int = 3,
    task: Names | None = None,
    opt: Names | None = None,
    data: Place | None = None,
    progress: bool = True,
) -> Answer:
    """Retrain a random sample of the runs of a store or of the reference results, and compare.

    On the same type of processor, with the same versions and engine, a run must agree bit for bit; otherwise up to
    rounding, or within the spread over seeds. Plug-ins that the store names are imported only if `opt` or `task` also
    names them. Exit code 1: a run was refuted or is damaged, or no run could be repeated.

    Args:
        path: a store (default: the reference results).
        runs: number of runs.
        task: only of these tasks; a plug-in as file.py:SPEC.
        opt: only of these optimizers; a plug-in as file.py:NAME.
    """
    from bench.api.verification import verify

    places = Call({"data": data}).places
    return verify(path_of(path), runs, names("task", task), names("opt", opt), places["data"])
