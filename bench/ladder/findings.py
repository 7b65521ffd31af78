"""Findings of a ladder, from stored runs: no training, no database."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from bench.ladder import statistics
from bench.ladder.statistics import Array, Estimate, StepRatio, Trend
from bench.results.group import Group, Measure, Seed, final
from bench.results.selection import above_infimum, good_width
from bench.results.stats import Interval
from bench.store.record import RunResult, now
from bench.store.reports import LadderRecord, LadderRung, Predicted, StudyRecord
from bench.store.stores import Stores
from bench.text import CONVERGED, is_number

LEAST_EVALUATIONS = 3
"""Minimum number of evaluations of a curve. Ours."""
GRID_STEP = 0.5
"""Decades between the values of a grid's first range; other samplers count as no finer."""


FLOOR = math.log10(CONVERGED) + 1e-9
"""Logarithm of the smallest suboptimality gap, to rounding."""
ROUNDED = 2e-3
"""Largest relative difference of equal settings: ranges and points have four digits."""


@dataclass(frozen=True)
class Method:
    """An optimizer at a rung.

    Attributes:
        study: the study that tuned it.
        runs: on the fresh seeds, in their order.
        trials: runs of the trials.
    """

    study: StudyRecord
    runs: Sequence[RunResult]
    trials: Sequence[RunResult]

    @cached_property
    def fresh(self) -> Group:
        """The fresh runs by seed."""
        return Group.of(self.runs)

    @cached_property
    def point(self) -> Mapping[str, Any]:
        """The winning values of the searched settings; empty without a winner."""
        return self.study.winning_point or {}

    @property
    def setting(self) -> str:
        """The setting that is compared across rungs: the first searched one whose winning value is a number."""
        return next((name for name in self.study.axes if is_number(self.point.get(name))), "")

    @property
    def seconds(self) -> float:
        """Training seconds of all its runs."""
        return math.fsum(run.wall_s for run in (*self.runs, *self.trials))


@dataclass(frozen=True)
class Rung:
    """A completed rung.

    Attributes:
        number: from 1.
        record: its declaration, predictions and results.
        methods: by optimizer.
        reference: the optimizer that the others are compared with.
    """

    number: int
    record: LadderRung
    methods: Mapping[str, Method]
    reference: str

    @cached_property
    def runs(self) -> list[RunResult]:
        """All fresh runs."""
        return [run for method in self.methods.values() for run in method.runs]

    @cached_property
    def above(self) -> bool:
        """Whether losses are suboptimality gaps, which are compared by their logarithms."""
        return above_infimum(self.runs)

    @cached_property
    def measure(self) -> Measure:
        """The final metric."""
        run = self.runs[0]
        return final(run.metric, run.mode, self.above, split=run.split)

    @cached_property
    def seeds(self) -> list[Seed]:
        """The seeds that all methods with fresh runs have."""
        groups = [method.fresh for method in self.methods.values() if method.runs]
        return groups[0].common_seeds(*groups[1:]) if groups else []

    @cached_property
    def losses(self) -> dict[str, Array]:
        """The values that rank methods, by seed, smaller is better; without methods that lack a value for a seed."""
        found = dict[str, Array]()
        for opt, method in self.methods.items():
            values = self.measure.values(method.fresh, self.seeds) if method.runs else []
            there = [value for value in values if value is not None]
            if len(there) == len(values) >= 2:
                array = np.array(there, dtype=np.float64)
                found[opt] = np.log10(array) if self.measure.log else -array if self.measure.mode == "max" else array
        return found

    def places(self, opts: Iterable[str]) -> dict[str, int]:
        """How many of these rankable optimizers are better, by optimizer; those of equal means have the same place."""
        means = {opt: float(self.losses[opt].mean()) for opt in opts}
        return {opt: sum(other < own for other in means.values()) for opt, own in means.items()}

    def ordered(self, opts: Iterable[str]) -> str:
        """These rankable optimizers in words, best first: `adam = gd, sgd`."""
        places = self.places(opts)
        groups = itertools.groupby(sorted(places, key=lambda opt: (places[opt], opt)), places.__getitem__)
        return ", ".join(" = ".join(own) for _, own in groups)

    @cached_property
    def ratios(self) -> dict[str, StepRatio | str]:
        """The step ratio relative to the reference, by optimizer; or why there is none."""
        return {opt: self._ratio(opt) for opt in self.methods if opt != self.reference}

    def _ratio(self, opt: str) -> StepRatio | str:
        if self.reference not in self.methods:
            return f"{self.reference}: its study is not in the store"
        groups = {name: self.methods[name].fresh for name in (opt, self.reference)}
        for name, group in groups.items():
            if not group.runs:
                return f"{name}: no fresh runs; no tried setting could win (diverged, or its cap set nearly all steps)"
            if 2 * group.diverged >= len(group.runs):
                return f"{name}: {group.diverged} of {len(group.runs)} fresh seeds diverged, so it has no median"
        own, reference = groups.values()
        seeds = own.common_seeds(reference)
        if len(seeds) < 2:
            return f"{opt}: fewer than two seeds in common with {self.reference}"
        curves = [[self._curve(group.runs[seed]) for seed in seeds] for group in (own, reference)]
        steps = sorted({step for each in curves for curve in each for step in curve or ()})
        if len(steps) < LEAST_EVALUATIONS or {} in (curve for each in curves for curve in each):
            return f"{opt}: its evaluations or those of {self.reference} are too few for a curve"
        arrays = [np.array([_filled(curve, steps) for curve in each]) for each in curves]
        if self.above and all(2 * (each[:, -1] <= FLOOR).sum() >= len(seeds) for each in arrays):
            return f"{opt}: like {self.reference} at the floor of the loss, {CONVERGED:g}, on half of the seeds or more"
        runs = [*own.runs.values(), *reference.runs.values()]
        bent = any(run.config["trainer"].get("schedule", "constant") != "constant" for run in runs)
        floor = FLOOR if self.above else -math.inf
        try:
            return statistics.step_ratio(steps, *arrays, smooth=not bent, floor=floor)
        except ValueError as error:
            return f"{opt}: {error}"

    def _curve(self, run: RunResult) -> dict[float, float] | None:
        """The finite losses on the selection split by step, for suboptimality gaps their log10; None if diverged."""
        if run.status == "diverged":
            return None
        key = "excess" if self.above else "loss"
        found = {float(row["step"]): float(row.get(key, row.get("loss", math.nan))) for row in run.validations}
        finite = {step: loss for step, loss in found.items() if step > 0 and math.isfinite(loss)}
        return {step: math.log10(max(loss, CONVERGED)) if self.above else loss for step, loss in finite.items()}

    @property
    def seconds(self) -> float:
        """Training seconds of all runs."""
        return math.fsum(method.seconds for method in self.methods.values())

    @property
    def begun(self) -> str:
        """When the first of its runs began; empty if unknown."""
        moments = [run.begun for method in self.methods.values() for run in (*method.runs, *method.trials)]
        return min((moment for moment in moments if moment), default="")


def _filled(curve: Mapping[float, float] | None, steps: Sequence[float]) -> Array:
    """A curve interpolated at these steps; after an early end it stays at its last value. Infinite if diverged."""
    if curve is None:
        return np.full(len(steps), math.inf)
    own = sorted(curve)
    return np.interp(np.log(steps), np.log(own), [curve[step] for step in own])


@dataclass(frozen=True)
class Transfer:
    """How a setting changes along the ladder.

    Attributes:
        setting: its dotted name.
        best: by rung, the winning value; None without a winner.
        usable: by rung, width in decades of the range with scores nearly as good as the best, and whether it reaches an
            end of the tried values, so that it is a lower bound; None if one value was tried.
        exponent: a of best ~ size^a; None if it cannot be fitted.
        regrets: by rung from the second, how much worse the previous rung's winner scores than the rung's own, as a
            fraction, or as a factor for suboptimality gaps; None if it was not tried or has no score.
    """

    setting: str
    best: list[float | None]
    usable: list[tuple[float, bool] | None]
    exponent: Interval | None
    regrets: list[float | None]


@dataclass(frozen=True)
class Findings:
    """The findings of a ladder.

    Attributes:
        record: of the ladder.
        rungs: the completed ones that have fresh runs.
        lost: number of runs of the record that are missing in the store.
    """

    record: LadderRecord
    rungs: list[Rung]
    lost: int

    @property
    def others(self) -> list[str]:
        """The optimizers that are compared with the reference."""
        return [opt for opt in self.record.opts if opt != self.record.reference]

    @property
    def sizes(self) -> list[float]:
        """Sizes of the completed rungs on the axis."""
        return [rung.record["at"] for rung in self.rungs]

    def ratios(self, opt: str) -> list[tuple[float, StepRatio]]:
        """Sizes of the rungs with a step ratio, and that ratio."""
        found = [(rung.record["at"], rung.ratios.get(opt)) for rung in self.rungs]
        return [(at, of) for at, of in found if isinstance(of, StepRatio)]

    def estimates(self, opt: str) -> tuple[list[float], list[Estimate]]:
        """log10 of the sizes of rungs with a finite error, and their estimates of the logarithmic step ratio."""
        there = [(at, of.estimate) for at, of in self.ratios(opt) if math.isfinite(of.estimate.error)]
        return [math.log10(at) for at, _ in there], [of for _, of in there]

    def trend(self, opt: str) -> Trend | None:
        """Change of the logarithmic ratio per decade of size; None below two rungs."""
        x, estimates = self.estimates(opt)
        return statistics.trend(x, estimates) if len(x) > 1 else None

    @cached_property
    def ranked(self) -> list[str]:
        """The optimizers that are rankable at all rungs."""
        return [opt for opt in self.record.opts if all(opt in rung.losses for rung in self.rungs)]

    @cached_property
    def losses(self) -> list[Array]:
        """By rung, the values that rank them (`Rung.losses`), by method and seed."""
        return [np.array([rung.losses[opt] for opt in self.ranked]) for rung in self.rungs]

    def agreement(self, k: int) -> Interval | None:
        """Kendall's tau between a rung and the last one; None for fewer than two rankable optimizers."""
        return statistics.kendall(self.losses[k], self.losses[-1]) if len(self.ranked) > 1 else None

    @cached_property
    def final_from(self) -> tuple[int, int] | None:
        """Numbers of the rungs from which on the ranking is the last one: by means, and by significant differences."""
        if len(self.ranked) < 2:
            return None
        first, sure = statistics.final_from(self.losses)
        return self.rungs[first].number, self.rungs[sure].number

    def regret(self, k: int) -> tuple[str, Interval] | None:
        """The winner of a rung, and its regret at the last rung; None if no optimizer is rankable, or several tie."""
        best = [opt for opt, place in self.rungs[k].places(self.ranked).items() if place == 0]
        if len(best) != 1:
            return None
        return best[0], statistics.regret(self.losses[-1], self.ranked.index(best[0]))

    def cost(self, k: int) -> float | None:
        """Training time up to this rung, whose ranges depend on earlier ones, as a fraction of that of all rungs.

        None if no time is known.
        """
        seconds = [rung.seconds for rung in self.rungs]
        return math.fsum(seconds[: k + 1]) / whole if (whole := math.fsum(seconds)) else None

    def transfer(self, opt: str) -> Transfer:
        """How the setting of an optimizer changes along the ladder."""
        methods = [rung.methods.get(opt) for rung in self.rungs]
        setting = next((m.setting for m in methods if m is not None and m.setting), "")
        best = [
            float(m.point[setting]) if setting and m is not None and m.setting == setting else None for m in methods
        ]
        there = [(at, value) for at, value in zip(self.sizes, best, strict=True) if value]
        fit = statistics.exponent(*zip(*there, strict=True), step=GRID_STEP) if len(there) > 1 else None
        usable = [m and _usable(m, setting, rung.above) for m, rung in zip(methods, self.rungs, strict=True)]
        steps = zip(methods, methods[1:], self.rungs[1:], strict=False)
        regrets = [before and here and _carried(before, here, rung.above) for before, here, rung in steps]
        return Transfer(setting, best, usable, fit, regrets)


def _usable(method: Method, setting: str, above: bool) -> tuple[float, bool] | None:
    """Width in decades of the range around the best value with scores nearly as good, and whether it is a bound."""
    return good_width(method.study, setting, "loss" if above else method.study.metric, gap=above)


def _carried(before: Method, here: Method, above: bool) -> float | None:
    """How much worse the previous rung's winning settings score here than the winner here."""
    carried, best = (
        next((trial["score"] for trial in reversed(here.study.trials) if _is_same(trial["point"], point)), None)
        for point in (before.point, here.point)
    )
    if carried is None or best is None:
        return None
    if above:
        return max(carried, CONVERGED) / max(best, CONVERGED)
    return (carried - best) * (1 if here.study.mode == "min" else -1) / abs(best) if best else None


def _is_same(tried: Mapping[str, Any], point: Mapping[str, Any]) -> bool:
    """Whether two points are equal up to the rounding of ranges to four digits."""
    return tried.keys() == point.keys() and all(
        math.isclose(x, tried[name], rel_tol=ROUNDED) if is_number(x) and is_number(tried[name]) else x == tried[name]
        for name, x in point.items()
    )


def findings(record: LadderRecord, stores: Stores) -> Findings:
    """The findings of the finished rungs of a ladder."""
    runs = {run.run_id: run for run in stores.runs if run.finished}
    studies = {study.name: study for study in stores.studies}
    rungs, lost = list[Rung](), 0
    for number, rung in enumerate(record.rungs, 1):
        methods = dict[str, Method]()
        for opt, name in rung["studies"].items():
            fresh, study = rung["fresh"].get(opt, []), studies.get(name)
            if study is None:
                lost += len(fresh)
                continue
            own, tried = ([runs[run_id] for run_id in ids if run_id in runs] for ids in (fresh, sorted(study.run_ids)))
            lost += len(fresh) - len(own)
            methods[opt] = Method(study, own, tried)
        if any(method.runs for method in methods.values()):
            rungs.append(Rung(number, rung, methods, record.reference))
    return Findings(record, rungs, lost)


# -- predictions ------------------------------------------------------------------------------------------------------


def predicted(record: LadderRecord, stores: Stores, k: int) -> Predicted:
    """The prediction of a rung from the previous ones.

    Lines extrapolate step ratios (`statistics.predict`) and final losses; the latter give the order.

    Args:
        record: of the ladder.
        stores: with its runs.
        k: index of the next rung, at least 1.
    """
    return extrapolated(findings(record, stores), record.rungs[k]["at"])


def extrapolated(found: Findings, size: float) -> Predicted:
    """The prediction of a rung.

    Args:
        found: findings of the rungs before it.
        size: of the rung on the axis.
    """
    at = math.log10(size)
    ratios = dict[str, list[float | None]]()
    for opt in found.record.opts:
        x, estimates = found.estimates(opt)
        if estimates:
            said = statistics.predict(x, estimates, at)
            ratios[opt] = [said.mean, *said.ends]
    losses, x = dict[str, float](), [math.log10(each) for each in found.sizes]
    for opt in found.ranked if x else []:
        means = [float(rung.losses[opt].mean()) for rung in found.rungs]
        losses[opt] = float(np.polyval(np.polyfit(x, means, min(1, len(x) - 1)), at))
    order = sorted(losses, key=lambda opt: (losses[opt], opt))
    return {"made": now(), "rungs": len(found.rungs), "ratios": ratios, "order": order}


def intervals(of: Predicted | None) -> dict[str, Interval]:
    """The predicted logarithms of step ratios, by optimizer, with their prediction intervals."""
    return {
        opt: Interval(mean or 0.0, -math.inf if low is None else low, math.inf if high is None else high, 0)
        for opt, (mean, low, high) in (of["ratios"] if of else {}).items()
    }


@dataclass(frozen=True)
class Score:
    """A prediction and its measurement.

    Attributes:
        opt: the optimizer.
        said, measured: predicted and measured logarithm of the step ratio; None if there is none.
        held: whether the prediction interval contains the measured value; None without a measurement, or if a bound
            leaves it open.
    """

    opt: str
    said: Interval
    measured: Interval | None
    held: bool | None


def scores(rung: Rung) -> list[Score]:
    """The predictions of a rung, scored."""
    found = list[Score]()
    for opt, said in intervals(rung.record["predicted"]).items():
        of = rung.ratios.get(opt)
        if not isinstance(of, StepRatio):
            found.append(Score(opt, said, None, None))
            continue
        value, bound = of.interval.mean, of.interval.bound
        is_open = (bound == ">=" and value <= said.high) or (bound == "<=" and value >= said.low)
        held = None if is_open else said.low <= value <= said.high
        found.append(Score(opt, said, of.interval, held))
    return found


def was_before(rung: Rung) -> bool | None:
    """Whether the prediction was written before any run of the rung began; None without a prediction."""
    said = rung.record["predicted"]
    return None if said is None else said["made"] <= rung.begun
