"""The Python API: the functions behind the commands, with Python values as arguments.

Settings have the same names and meaning as on the command line. Errors are `bench.UserError`, with the same
messages. Stored runs are not trained again, so the same call continues after an interruption. An interrupt saves the
state and raises KeyboardInterrupt.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from bench.api.arguments import (
    arguments_of,
    board_input,
    folders_of,
    listed_optimizers,
    places_of,
    results_of_runs,
    session,
    training,
    words_of,
    words_of_seeds,
)
from bench.api.figures import altair_chart
from bench.api.results import Comparison, Study, Sweep, Table
from bench.api.runs import Run, Runs
from bench.errors import UserError, check_known
from bench.grammar.commands import COMMANDS
from bench.grammar.parse import check_settings
from bench.grammar.values import read_seeds
from bench.progress import SweepProgress

if TYPE_CHECKING:
    import altair as alt

    from bench.api.arguments import Engine, Opt, Place, Seeds, Settings

__all__ = ["board", "compare", "fit", "load", "plot", "sweep", "tune"]


@overload
def fit(task: str, opt: "Opt", *, seeds: None = None, seed: int | None = None, **settings: Any) -> Run: ...
@overload
def fit(task: str, opt: "Opt", *, seeds: "Seeds", **settings: Any) -> Runs: ...
def fit(
    task: str,
    opt: "Opt",
    *,
    seeds: "Seeds | None" = None,
    seed: int | None = None,
    task_options: "Settings | None" = None,
    trainer: "Settings | None" = None,
    settings: "Settings | None" = None,
    tuned: bool = False,
    data_seed: int | None = None,
    precision: str | None = None,
    device: str | None = None,
    logger: str | None = None,
    engine: "Engine | None" = None,
    workers: int | str | None = None,
    cluster: str | None = None,
    width: int | None = None,
    data: "Place | None" = None,
    store: "Place | None" = None,
    rerun: bool = False,
    progress: bool = True,
    **hyperparameters: Any,
) -> Run | Runs:
    """Train one task with one optimizer and store the run, or a run for each of several seeds (`bench fit`).

    A stored run is returned at once.

    Args:
        task: a name as `bench list tasks` prints it, or `file.py:SPEC`.
        opt: a name as `bench list optimizers` prints it, `file.py:Class`, or an optimizer class.
        seeds: seeds of several runs: a number (5: 0 to 4) or a list. The result is then `Runs` with the mean
            `Runs.mean`.
        seed: seed of one run: determines problem instance, initialisation and dropout, in [0, 2^63); 0 by default.
        task_options: options of the task by name (`bench show TASK` lists them).
        trainer: budget, batch and schedule by name: `{"max_epochs": 2, "batch_size": 64}`.
        settings: further settings in dotted form: `{"opt.matrix.lr": 0.01}`; they override the other arguments.
        tuned: use the tuned hyperparameters of this task and optimizer unless given otherwise.
        data_seed: determines the data order; the seed by default.
        precision: `32-true`, `bf16-mixed`, `16-mixed` or `64-true`; the task's by default.
        device: `cpu`, `cuda`, `mps` or `auto`.
        logger: also log to `tensorboard`, `csv` or `wandb` (extras).
        engine: for several seeds: `lanes` (vectorised runs), `lightning` (one run at a time), or `auto` (default), the
            faster one.
        workers: for several seeds: number of processes that share the runs, this one included, or `auto`; one for each
            GPU by default, and on a CPU only this process.
        cluster: address of a Dask cluster that trains instead, or its scheduler's file.
        width: for several seeds: maximum number of lanes at once; measured by default.
        data: folder of the data sets; $BENCH_DATA by default, else `./data`.
        store: folder of the stored runs; $BENCH_STORE by default, else `./runs`.
        rerun: train one run again although it is stored.
        progress: show progress on standard error.
        hyperparameters: of the optimizer: `lr=0.1`; `matrix={"lr": 0.01}` for the parameters of one role.

    Raises:
        UserError: a name is unknown, a value illegal, data are missing, or the class has no source.
        RunFailed: the run failed; the store records it.
        KeyboardInterrupt: the run was interrupted; its state is saved, and the same call continues.
    """
    with training(progress, rerun=rerun, tuned=tuned):
        where = places_of(data, store)
        top = {"seed": seed, "data_seed": data_seed, "precision": precision, "device": device, "logger": logger}
        words = words_of(task, [opt], where["store"], task_options, trainer, settings, hyperparameters, top)
        check_settings(COMMANDS["fit"], words)
        from bench.config.run_config import resolve
        from bench.config.settings import sources_of
        from bench.store.store import Store

        config = resolve(words, tuned=tuned, fallback=where)
        effort = {"engine": engine, "workers": workers, "cluster": cluster, "width": width}
        if seeds is not None:
            if one := [*(["seed"] if "seed" in words else []), *(["rerun"] if rerun else [])]:
                raise UserError(f"{one[0]} is for one run; remove it or seeds")
            from bench.commands.seeds import with_seeds

            configs = with_seeds(config, read_seeds(words_of_seeds("seeds", seeds)), words)
            shown = SweepProgress(f"{config.task} {config.opt}", config.task_spec.mode, enabled=progress)
            return results_of_runs(configs, shown, "fit", effort, sources_of(configs) if tuned else {})
        if more := [name for name, value in effort.items() if value is not None]:
            raise UserError(f"{more[0]} is for several runs; give seeds too, or remove it")
        if config.trainer.ranks > 1:
            raise UserError(
                "trainer.devices and trainer.num_nodes: a run with several processes restarts its command in each of"
                " them; use `bench fit`, and `bench.load` for the result"
            )
        sources = sources_of([config]) if tuned else {}
        result = None if rerun else Store(config.store).result_of(config)
        if result is None:
            from bench.config.checks import check_early, check_places

            check_early(config)
            check_places([config])
            from bench.train.runner import run

            result = run(config, rerun=rerun, progress=progress, tuned_by=sources.get((config.task, config.opt)))
        if result.status == "killed":
            raise KeyboardInterrupt(f"run {result.run_id} was stopped and saved; the same call continues")
        return Run(result, config.store)


def sweep(
    task: str,
    opt: "Opt | Sequence[Opt]",
    *,
    seeds: "Seeds" = 8,
    task_options: "Settings | None" = None,
    trainer: "Settings | None" = None,
    settings: "Settings | None" = None,
    tuned: bool = False,
    data_seed: int | None = None,
    precision: str | None = None,
    device: str | None = None,
    engine: "Engine" = "auto",
    workers: int | str | None = None,
    cluster: str | None = None,
    width: int | None = None,
    data: "Place | None" = None,
    store: "Place | None" = None,
    progress: bool = True,
    **hyperparameters: Any,
) -> Sweep:
    """Train many settings and seeds, vectorised if that is faster, and return how results depend on them.

    As in `bench sweep`, an optimizer without a varied setting gets a grid over its search range.

    Args:
        task: as for `fit`.
        opt: one optimizer or several, each as for `fit`.
        seeds: a number (8: 0 to 7) or a list.
        task_options: as for `fit`; a list gives several values.
        trainer: as for `fit`; a list gives several values.
        settings: as for `fit`; a list gives several values; `{"opt.adam.lr": [1e-3, 1e-2]}` is for adam alone.
        tuned: use the tuned hyperparameters unless given otherwise.
        data_seed: as for `fit`.
        precision: as for `fit`.
        device: as for `fit`.
        engine: as for `fit`.
        workers: as for `fit`.
        cluster: as for `fit`.
        width: as for `fit`.
        data: as for `fit`.
        store: as for `fit`.
        progress: as for `fit`.
        hyperparameters: values, lists of them, or log-spaced ranges: `lr="1e-3:1e1:16"`.

    Raises:
        UserError: as for `fit`.
        RunFailed: runs failed; the others are stored.
        KeyboardInterrupt: the sweep was interrupted; the same call continues.
    """
    with training(progress, tuned=tuned):
        where = places_of(data, store)
        opts = listed_optimizers(opt)
        top = {"data_seed": data_seed, "precision": precision, "device": device}
        words = words_of(task, opts, where["store"], task_options, trainer, settings, hyperparameters, top)
        from bench.config.settings import sources_of
        from bench.execute.blocks import check_all
        from bench.sweeps.grid import configurations
        from bench.sweeps.sensitivity import analyse

        configs, varied = configurations(words, read_seeds(words_of_seeds("seeds", seeds)), where, tuned=tuned)
        check_all(configs, early=True)
        mode = configs[0].task_spec.mode
        shown = SweepProgress(f"sweep {configs[0].task}", mode, enabled=progress)
        effort = {"engine": engine, "workers": workers, "cluster": cluster, "width": width}
        runs = results_of_runs(configs, shown, "sweep", effort, sources_of(configs) if tuned else {})
        return Sweep(runs, analyse([run.result for run in runs], varied, mode))


def tune(
    task: str,
    opt: "Opt",
    *,
    trials: int | None = None,
    seeds: "Seeds" = 2,
    report_seeds: "Seeds" = 7,
    sampler: Literal["grid", "qmc", "tpe"] | None = None,
    task_options: "Settings | None" = None,
    trainer: "Settings | None" = None,
    settings: "Settings | None" = None,
    data_seed: int | None = None,
    precision: str | None = None,
    device: str | None = None,
    engine: "Engine | None" = None,
    workers: int | str = "auto",
    cluster: str | None = None,
    width: int | None = None,
    data: "Place | None" = None,
    store: "Place | None" = None,
    progress: bool = True,
    **hyperparameters: Any,
) -> Study:
    """Tune an optimizer's hyperparameters on separate seeds, then run the winner on fresh seeds (`bench tune`).

    Only the store is written; `Study.write` writes the settings for `tuned=True`.

    Args:
        task: as for `fit`.
        opt: as for `fit`.
        trials: number of tried settings; nine by default, around the middles of the ranges.
        seeds: seeds of each trial: a number (2: 1000 and 1001) or a list.
        report_seeds: fresh seeds of the winner: a number (7: 0 to 6) or a list; 0 for none; fewer than 7 decide
            nothing.
        sampler: `grid` (default), `qmc` or `tpe`.
        task_options: as for `fit`.
        trainer: as for `fit`.
        settings: as for `fit`.
        data_seed: as for `fit`.
        precision: as for `fit`.
        device: as for `fit`.
        engine: as for `fit`.
        workers: number of processes that share the runs, this one included, or `auto`: one for each GPU, or else for
            each processor.
        cluster: as for `fit`.
        width: as for `fit`.
        data: as for `fit`.
        store: as for `fit`.
        progress: as for `fit`.
        hyperparameters: a single value fixes one; a range (`lr="1e-3:1e1"`) or a list is searched, in addition to
            the search space that the optimizer declares.

    Raises:
        UserError: as for `fit`, or there is nothing to search.
        RunFailed: workers die at start.
        KeyboardInterrupt: the study was interrupted; the same call continues.
    """
    with training(progress):
        where = places_of(data, store)
        top = {"data_seed": data_seed, "precision": precision, "device": device}
        words = words_of(task, [opt], where["store"], task_options, trainer, settings, hyperparameters, top)
        from bench.execute import Effort
        from bench.progress import SweepProgress
        from bench.tuning import tuned
        from bench.tuning.cli.shared import crew_of
        from bench.tuning.cli.tune import study_of
        from bench.tuning.training import carry_out

        design = {"trials": trials, "seeds": seeds, "report_seeds": report_seeds, "sampler": sampler}
        how = {"engine": engine, "workers": workers, "cluster": cluster, "width": width}
        args = arguments_of("tune", words, where, design | how)
        study = study_of(args, words, where)
        shown = SweepProgress(f"study {study.name}", study.spec.mode, enabled=progress)
        with crew_of(Effort.of(args), [study.spec], where) as crew:
            if not carry_out([study], crew, Effort.of(args), shown):
                raise KeyboardInterrupt(f"study {study.name} was stopped; nothing is lost, and the same call continues")
        result = study.result()
        tuned.remember(result)
        return Study(result, where["store"])


def compare(
    task: str,
    opt: "Opt | Sequence[Opt]",
    *,
    against: "str | Sequence[str] | None" = None,
    trials: int | None = None,
    seeds: "Seeds | None" = None,
    report_seeds: "Seeds" = 7,
    anyway: bool = False,
    reference_results: bool = True,
    task_options: "Settings | None" = None,
    trainer: "Settings | None" = None,
    settings: "Settings | None" = None,
    data_seed: int | None = None,
    precision: str | None = None,
    device: str | None = None,
    engine: "Engine" = "auto",
    workers: int | str = "auto",
    cluster: str | None = None,
    width: int | None = None,
    data: "Place | None" = None,
    store: "Place | None" = None,
    progress: bool = True,
    **hyperparameters: Any,
) -> Comparison:
    """Check optimizers, tune them and baselines with equal budgets, and rank the winners on fresh seeds.

    As `bench compare`. Only the store is written.

    Args:
        task: as for `fit`.
        opt: one optimizer or several, each as for `fit`.
        against: baselines, tuned with the same budget; the first is the reference. By default adamw, or gd for
            full-batch problems.
        trials: number of tried settings of each; by default as many as in the reference results, or nine.
        seeds: seeds of each trial: a number (2: 1000 and 1001) or a list; by default those of the reference results,
            or two.
        report_seeds: fresh seeds of each winner: a number (7: 0 to 6) or a list; fewer than 7 decide nothing.
        anyway: continue although a failed check changes results.
        reference_results: use the baseline of the suite's reference results if they include this problem, instead of
            tuning it again.
        task_options: as for `fit`.
        trainer: as for `fit`.
        settings: as for `fit`; `{"opt.adamw.lr": "1e-4:1e-2"}` is for adamw alone.
        data_seed: as for `fit`.
        precision: as for `fit`.
        device: as for `fit`.
        engine: as for `fit`.
        workers: as for `tune`.
        cluster: as for `fit`.
        width: as for `fit`.
        data: as for `fit`.
        store: as for `fit`.
        progress: as for `fit`.
        hyperparameters: as for `tune`; of `opt`, not of the baselines.

    Raises:
        UserError: as for `tune`, or there is nothing to compare with.
        RunFailed: a failed check changes results.
        KeyboardInterrupt: the comparison was interrupted; the same call continues.
    """
    with training(progress, anyway=anyway, reference_results=reference_results):
        where = places_of(data, store)
        opts = listed_optimizers(opt)
        top = {"data_seed": data_seed, "precision": precision, "device": device}
        words = words_of(task, opts, where["store"], task_options, trainer, settings, hyperparameters, top)
        from bench.commands import comparison

        design = {"against": against, "trials": trials, "seeds": seeds, "report_seeds": report_seeds}
        how = {"engine": engine, "workers": workers, "cluster": cluster, "width": width}
        switches = {"anyway": anyway, "no_reference": not reference_results}
        args = arguments_of("compare", words, where, design | how | switches)
        contest = comparison.ask(args)
        with contest.crew:
            if not comparison.carry_out(contest, args, contest.crew, progress=progress):
                raise KeyboardInterrupt("the comparison was stopped; nothing is lost, and the same call continues")
        results = comparison.results_of(contest)
        ranking = comparison.ranking(results, args)
        studies = {result.spec.opt: Study(result, where["store"]) for result in results}
        return Comparison(studies, ranking.said, ranking)


def load(store: "Place | Sequence[Place] | None" = None) -> Runs:
    """All runs of a store, or of several read as one; plug-ins named in them are not imported.

    `Runs.damaged` lists what could not be read.

    Args:
        store: one folder or several; $BENCH_STORE by default, else `./runs`.

    Raises:
        UserError: a folder does not exist.
    """
    from bench.store.stores import Stores

    stores = Stores(folders_of(store))
    runs = [Run(run, stores.place(run.run_id).parent) for run in stores.runs]
    return Runs(runs, [str(each) for each in stores.damaged])


def board(
    name: str = "quality",
    *,
    store: "Place | Sequence[Place] | None" = None,
    task: str | Sequence[str] | None = None,
    opt: str | Sequence[str] | None = None,
    only: "Settings | None" = None,
    settings: Literal["best", "tuned", "default", "all"] = "best",
    mixed_versions: bool = False,
    reference: str | None = None,
    target: float | None = None,
    reference_results: bool = True,
) -> Table:
    """Compare optimizers from the stored runs, with verdicts and intervals (`bench leaderboard`).

    Args:
        name: `quality`, `pairs`, `speed`, `theory` or `attention`.
        store: as for `load`.
        task: only these tasks.
        opt: only these optimizers.
        only: settings that runs must have: `{"trainer.max_steps": 1000}`.
        settings: of each optimizer: `best` takes the tuned ones, else the defaults, else those set by hand if there
            is only one.
        mixed_versions: compare runs of different versions anyway.
        reference: optimizer to compare the others with; adamw by default, or gd for full-batch problems.
        target: for the board `speed`: a value of the metric; the task's by default.
        reference_results: also read the suite's reference results, if shipped.

    Raises:
        UserError: a name is unknown, versions are mixed, or there is nothing to show.
    """
    from bench.boards import BOARDS

    check_known("board", [str(name)], BOARDS)
    with session(progress=True, mixed_versions=mixed_versions, reference_results=reference_results):
        choice = {"task": task, "opt": opt, "settings": settings, "reference": reference, "target": target}
        stores, asked = board_input(store, only, choice, mixed_versions, reference_results)
        made = BOARDS[name](asked)
        return Table(made, tuple(dict.fromkeys([*map(str, stores.damaged), *asked.damaged, *asked.notes])))


def plot(
    chart: str = "forest",
    *,
    y: str | None = None,
    x: Literal["steps", "epochs", "seconds"] | None = None,
    store: "Place | Sequence[Place] | None" = None,
    task: str | Sequence[str] | None = None,
    opt: str | Sequence[str] | None = None,
    only: "Settings | None" = None,
    settings: Literal["best", "tuned", "default", "all"] = "best",
    mixed_versions: bool = False,
    reference: str | None = None,
    target: float | None = None,
    reference_results: bool = True,
) -> "alt.TopLevelMixin":
    """Draw stored runs, a panel for each problem (`bench plot`).

    Args:
        chart: `forest`, `curves`, `sensitivity`, `profile`, `steps`, `budget`, `attention` or
            `stability`.
        y: for `curves`: a column such as `grad_norm`, or an evaluated quantity such as `accuracy` or `val_loss`; the
            training loss by default.
        x: for `curves`: `steps` (the default), `epochs` or `seconds`.
        store: as for `load`.
        task: as for `board`.
        opt: as for `board`.
        only: as for `board`.
        settings: as for `board`.
        mixed_versions: as for `board`.
        reference: as for `board`.
        target: as for `board`.
        reference_results: as for `board`.

    Raises:
        UserError: as for `board`, or there is nothing to draw.
    """
    from bench.plots.charts import CHARTS, curves, nothing_to_draw
    from bench.plots.curves import X_AXES

    check_known("chart", [str(chart)], CHARTS)
    if not isinstance(y, str | None):
        raise UserError(f"y={y!r}: write the name of a column, such as 'grad_norm'")
    for name, value in (("y", y), ("x", x)):
        if value is not None and chart != "curves":
            raise UserError(f"{name}={value!r}: only curves have selectable axes, not {chart}")
    check_known("x axis", [] if x is None else [str(x)], X_AXES)
    with session(progress=True, mixed_versions=mixed_versions, reference_results=reference_results):
        choice = {"task": task, "opt": opt, "settings": settings, "reference": reference, "target": target}
        _, asked = board_input(store, only, choice, mixed_versions, reference_results)
        drawn = curves(asked, y or "loss", x or "steps") if chart == "curves" else CHARTS[chart](asked)
        if not drawn.drawn:
            raise nothing_to_draw(drawn)
        return altair_chart(drawn.spec())
