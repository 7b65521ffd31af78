"""`bench fit --seeds`: one run for each of several seeds, and their mean."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bench.config.run_config import RunConfig, on_device
from bench.config.tuned import Sources
from bench.errors import UserError
from bench.execute import Effort
from bench.execute.blocks import check_all
from bench.execute.command import dry_run, results_of
from bench.grammar.parse import Args
from bench.output import reply
from bench.progress import SweepProgress
from bench.results.render import shown
from bench.results.table import Column, Table
from bench.run_summary import remarks_on, result_json
from bench.store.record import RunResult
from bench.sweeps.grid import settings_in
from bench.text import cell

if TYPE_CHECKING:
    from bench.results.group import Measure
    from bench.results.stats import Interval

ONE_RUN = ("resume", "rerun")
"""Options of `bench fit` for a single run."""


def with_seeds(config: RunConfig, seeds: Sequence[int], given: Mapping[str, Any]) -> list[RunConfig]:
    """A run for each seed; the order of the samples follows it unless given.

    Raises:
        UserError: a run cannot be trained.
    """
    follows = "data_seed" not in given
    config = on_device(config)
    configs = [config.model_copy(update={"seed": seed, **({"data_seed": seed} if follows else {})}) for seed in seeds]
    check_all(configs, early=True)
    return configs


def fit_seeds(config: RunConfig, args: Args, sources: Sources) -> int:
    """Train with each seed and print the results: 0 done, 130 stopped.

    Raises:
        UserError: a run cannot be trained, or an option is only for a single run.
        RunFailed: as in `bench.execute.execute.execute`.
    """
    if more := [*(["seed"] if "seed" in args.of_runs else []), *(name for name in ONE_RUN if getattr(args, name))]:
        raise UserError(f"--{more[0]} is for one run; remove it or --seeds")
    configs = with_seeds(config, args.seeds, {**settings_in(args.config), **args.of_runs})
    if args.dry_run:
        return dry_run(args, configs, [{"seed": each.seed} for each in configs])
    progress = SweepProgress(f"{config.task} {config.opt}", config.task_spec.mode)
    results = results_of(configs, progress, Effort.of(args), plan="fit", sources=sources)
    if results is None:
        return 130
    measure, mean = mean_of(results)
    found = {
        "runs": [result_json(run, config.store) for run in results],
        "mean_of": measure.words,
        "mean": mean and mean.mean,
        "t_interval_95": mean.ends if mean is not None and mean.n > 1 and not mean.bound else None,
    }
    reply(args, found, lines(results, measure, mean))
    return 0


def mean_of(results: Sequence[RunResult]) -> "tuple[Measure, Interval | None]":
    """Final metric, and its mean with a 95 % t-interval, as on boards; no mean if a run has no value."""
    from bench.results.group import Group, final
    from bench.results.selection import above_infimum

    first = results[0]
    measure = final(first.metric, first.mode, above_infimum(results), split=first.split)
    return measure, measure.mean(Group.of(results))


def lines(results: Sequence[RunResult], measure: "Measure", mean: "Interval | None") -> list[str]:
    """The results as a table, a row for each seed, and their mean."""
    first = results[0]
    metric = f"{first.split} {first.metric}"
    seconds = Column("wall_s", "time", unit="s", form=lambda seconds: f"{seconds:.1f}")
    rows = ((run.config["seed"], run.status, run.final, run.steps, run.wall_s, run.run_id) for run in results)
    table = Table.of(["seed", "status", metric, "steps", seconds, "run"], rows)
    if mean is None:
        said = f"no mean: {sum(run.status == 'diverged' for run in results)} of {len(results)} seeds diverged"
    elif mean.n == 1:
        said = f"{measure.words} {cell(mean)} with one seed, so there is no interval"
    else:
        kind = "in the geometric mean" if measure.log else "on average"
        said = f"{measure.words} {cell(mean)} {kind} over {mean.n} seeds" + ", with 95 % t-interval" * (not mean.bound)
    remarks = dict.fromkeys(f"note: {each}" for run in results for each in remarks_on(run))
    return [*shown(table), said, *remarks]
