"""`bench race`: a plan that adds seeds to undecided pairs, until all are decided or the budget is spent.

All start with a few seeds. After each round every open pair gets the fewest seeds that can decide it (`next_seeds`), or
none if a decision is unlikely. Verdicts hold however often they are checked (`bench.results.sequential`), so a race has
the same error rate as all seeds at once.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from bench.errors import UserError, check_known
from bench.grammar.parse import Args
from bench.grammar.values import MOST_SEED, SEED_RANGE, reference_folder
from bench.output import answer
from bench.text import counted

if TYPE_CHECKING:
    from bench.boards.collect import Collected
    from bench.config.run_config import RunConfig
    from bench.config.tuned import Sources
    from bench.results.sequential import Comparison
    from bench.store.record import RunResult

FIRST_SEEDS = 5
"""Number of initial seeds, if `--seeds` does not say. Ours."""
MOST_SEEDS = 50
"""Maximum number of seeds of a pair; the default of `--most`. Ours."""


@dataclass
class Racer:
    """An optimizer with its settings on a task.

    Attributes:
        config: with its first seed.
        seeds: number of its seeds, from the first one on.
        history: after each round, its number of seeds and their verdict against the reference.
    """

    config: "RunConfig"
    seeds: int
    history: list[tuple[int, "Comparison | str | None"]] = field(default_factory=list)

    @property
    def configs(self) -> list["RunConfig"]:
        """Its runs."""
        numbers = range(self.config.seed, self.config.seed + self.seeds)
        return [self.config.model_copy(update={"seed": seed, "data_seed": seed}) for seed in numbers]


def wanted(standing: Sequence["Comparison | str | None"], seeds: Sequence[int], most: int) -> list[int]:
    """Number of seeds for each racer of a task in the next round; the reference has as many as any open pair needs.

    Args:
        standing: of each against the reference; None for the reference itself, words without a comparison.
        seeds: current number of each.
        most: maximum number of seeds of a pair.
    """
    from bench.results.sequential import Comparison, next_seeds

    found = [
        n if not isinstance(each, Comparison) or each.decided else next_seeds(each.n, each.wins, each.losses, most) or n
        for each, n in zip(standing, seeds, strict=True)
    ]
    most_wanted = max((n for each, n in zip(standing, found, strict=True) if each is not None), default=0)
    return [max(n, most_wanted) if each is None else n for each, n in zip(standing, found, strict=True)]


def main(args: Args) -> int:
    """`bench race` with these arguments: 0 done, 130 stopped."""
    from bench.progress import doing

    with doing("reading the settings"):
        from bench.execute.blocks import check_all
        from bench.execute.command import dry_run

        racers = _racers(args)
        every = [config for own in racers.values() for racer in own for config in racer.configs]
        check_all(every, early=True)
        first = len({config.run_id for config in every})
        if args.budget is not None and args.budget.runs is not None and args.budget.runs < first:
            seeds = next(iter(racers.values()))[0].seeds
            raise UserError(f"--budget {args.budget.text}: the first {seeds} seeds of all optimizers need {first} runs")
    if args.dry_run:
        return dry_run(args, every, [{"task": own.task, "opt": own.opt, "seed": own.seed} for own in every])
    ended = _race(racers, args)
    if ended is None:
        return 130
    found, why = ended
    _show(racers, found, why, args)
    return 0


def _racers(args: Args) -> dict[str, list[Racer]]:
    """The racers by task, the reference first."""
    from bench.boards.entries import default_reference
    from bench.config.run_config import on_device, resolve
    from bench.grammar.values import parts
    from bench.results.sequential import LEAST_SEEDS
    from bench.sweeps.grid import by_optimizer, settings_in
    from optimizers import OPTIMIZERS
    from tasks import TASKS

    settings = settings_in(args.config) | args.of_runs
    names = list(dict.fromkeys(parts(settings.pop("opt", ""))))
    if "seed" in settings or "data_seed" in settings:
        raise UserError("--seed: a race starts with several and adds more; write --seeds COUNT for the initial ones")
    if len(names) + (args.reference is not None and args.reference not in names) < 2:
        raise UserError("--opt: a race needs two optimizers or more, such as --opt adam,sngd")
    seeds = [*range(FIRST_SEEDS)] if args.seeds is None else args.seeds
    start = seeds[0]
    if len(seeds) < 2 or seeds != [*range(start, start + len(seeds))]:
        raise UserError("--seeds: a race begins with two or more consecutive seeds: --seeds 5, or --seeds 10:15")
    if start + args.most - 1 > MOST_SEED:
        raise UserError(
            f"--seeds: with --most {args.most} the last seed is {start + args.most - 1}; it is {SEED_RANGE}"
        )
    if args.most < max(len(seeds), LEAST_SEEDS):
        raise UserError(f"--most {args.most}: a number below {LEAST_SEEDS} or below --seeds decides nothing")
    check_known("optimizer", names, OPTIMIZERS)
    places = {"data": args.data, "store": args.store}
    racers: dict[str, list[Racer]] = {}
    for task in dict.fromkeys(args.task):
        reference = args.reference or default_reference(settings.get("trainer.batch_size", TASKS[task].batch_size))
        if reference not in names and args.reference is None:
            raise UserError(
                f"--opt: the reference of {task}, {reference}, is not in the race; add it or name another"
                f" with --reference"
            )
        common, own = by_optimizer(settings, [*names, *([reference] if reference not in names else [])])
        racers[task] = []
        for name in sorted(own, key=lambda name: name != reference):
            words = {**common, **own[name], "task": task, "opt": name, "seed": start}
            config = on_device(resolve(words, tuned=args.tuned, fallback=places))
            racers[task].append(Racer(config, len(seeds)))
        if args.tuned:
            _on_fresh_seeds(racers[task], args)
    return racers


def _on_fresh_seeds(racers: Sequence[Racer], args: Args) -> None:
    """Let racers with tuned settings begin after the seeds that chose these, if `--seeds` does not say where.

    Raises:
        UserError: the race would reach one of these seeds.
    """
    from bench.config.settings import tuning_seeds

    chosen = {seed for racer in racers for seed in tuning_seeds(racer.config)}
    start = racers[0].config.seed
    width = max(MOST_SEEDS, args.most)
    while args.seeds is None and (near := [seed for seed in chosen if start <= seed < start + width]):
        start = max(near) + 1
    if there := [seed for seed in chosen if start <= seed < start + args.most]:
        raise UserError(
            f"seed {min(there)} helped to choose tuned settings of {racers[0].config.task}, so its result would be"
            f" optimistic: take other --seeds or a smaller --most than {args.most}"
        )
    for racer in racers:
        racer.config = racer.config.model_copy(update={"seed": start, "data_seed": start})


def _race(racers: Mapping[str, list[Racer]], args: Args) -> tuple["Collected", str] | None:
    """Run rounds until the end; the results and the reason of the end, or None if stopped."""
    from bench.config.settings import sources_of

    begun = time.monotonic()
    sources = sources_of(racer.config for own in racers.values() for racer in own) if args.tuned else {}
    while True:
        results = _results(racers, sources, args)
        if results is None:
            return None
        found = _compare(racers, results, args)
        after = {
            task: wanted([r.history[-1][1] for r in own], [r.seeds for r in own], args.most)
            for task, own in racers.items()
        }
        more = sum(n - racer.seeds for task, own in racers.items() for racer, n in zip(own, after[task], strict=True))
        if not more:
            others = [racer.history[-1][1] for own in racers.values() for racer in own[1:]]
            if all(isinstance(each, str) for each in others):
                return found, "no optimizer can be compared with the reference; the table says why"
            return found, "every verdict is decided, or further seeds are unlikely to change it"
        budget = args.budget
        if budget is not None and budget.runs is not None and budget.runs < len(results) + more:
            return found, f"the budget of {budget.text} does not cover the {more} runs of the next round"
        if budget is not None and budget.seconds is not None and time.monotonic() - begun > budget.seconds:
            return found, f"the budget of {budget.text} is spent; the same command continues"
        for task, own in racers.items():
            for racer, n in zip(own, after[task], strict=True):
                racer.seeds = n


def _results(racers: Mapping[str, list[Racer]], sources: "Sources", args: Args) -> "list[RunResult] | None":
    from bench.execute import Effort
    from bench.execute.command import results_of
    from bench.progress import SweepProgress

    results: list[RunResult] = []
    for task, own in racers.items():
        configs = [config for racer in own for config in racer.configs]
        progress = SweepProgress(f"race {task}", own[0].config.task_spec.mode)
        effort = replace(Effort.of(args), budget=None)  # it is the race's, and ends between rounds
        there = results_of(configs, progress, effort, plan="race", sources=sources)
        if there is None:
            return None
        results += there
    return results


def _compare(racers: Mapping[str, list[Racer]], results: "Sequence[RunResult]", args: Args) -> "Collected":
    """The results as input of boards; each racer's verdict is added to its history."""
    from bench.boards.collect import Collected
    from bench.boards.quality import judged
    from bench.store.stores import Stores

    stores = Stores([args.store], reference_folder()) if args.tuned else None
    found = Collected.of(results, {}.__getitem__, args.reference, stores)
    places = {run.run_id: entry for entry in found.all for run in entry.runs.values()}
    for own in racers.values():
        mine = [places[racer.config.run_id] for racer in own]
        _, verdicts, _ = judged(found, mine[0].problem)
        for racer, entry in zip(own, mine, strict=True):
            racer.history.append((racer.seeds, verdicts.of(entry)))
    return found


def _show(racers: Mapping[str, list[Racer]], found: "Collected", why: str, args: Args) -> None:
    from bench.boards.quality import quality
    from bench.results.render import as_json, written
    from bench.results.table import Board, Column, Table

    runs = sum(racer.seeds for own in racers.values() for racer in own)
    boards = [quality(found)]
    rows: list[dict[str, Any]] = [
        {"task": task, "opt": racer.config.opt, "bought": [_bought(n, said) for n, said in dict(racer.history).items()]}
        for task, own in racers.items()
        for racer in own[1:]
    ]
    columns = [
        Column("task", "task", "name"),
        Column("opt", "optimizer", "name"),
        Column("bought", "result of each round", "number of seeds: wins, and the verdict if decided"),
    ]
    notes = [f"{counted(runs, 'run')}; {why}"]
    boards.append(Board("race", "The race", [Table("seeds by round", columns, rows)], notes))
    if args.json:
        answer({"runs": runs, "ended": why, "boards": as_json(boards)})
    else:
        print(written(boards, "table", None), end="")


def _bought(n: int, standing: "Comparison | str | None") -> str:
    if standing is None or isinstance(standing, str):
        return f"{n}: {standing}"
    return f"{n}: won {standing.wins}" + f", {standing.words} (decided at {standing.told})" * standing.decided
