"""Findings of a ladder, from stored runs: no training, no database."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from bench.errors import RunFailed
from bench.ladder import statistics
from bench.ladder.statistics import Array, Estimate, Trend
from bench.results.group import Group, Measure, Seed, final
from bench.results.selection import CONVERGED, End, above_infimum
from bench.results.stats import Interval
from bench.store.load import Damaged
from bench.store.record import RunResult, now
from bench.store.reports import LadderRecord, LadderRung, Predicted, StudyRecord, read_report
from bench.store.stores import Stores

LEAST_EVALUATIONS = 3
"""Minimum number of evaluations of a curve. Ours."""
NEAR = 0.05
"""A setting is usable if its score is within this fraction of the best one. Ours."""
NEAR_LOG = 2.0
"""The same for suboptimality gaps: at most this factor times the best one. Ours."""
GRID_STEPS = {"grid": (0.5, 1.0)}
"""Decades between the values of a grid's first range, and of further ranges."""


def read_ladder(path: Path) -> LadderRecord:
    """The record of a ladder.

    Raises:
        FileNotFoundError: it does not exist.
        RunFailed: it is damaged.
    """
    try:
        return read_report(path, LadderRecord)
    except Damaged as error:
        raise RunFailed(f"{error}; move it away; the same command rebuilds it from stored runs") from None


@dataclass(frozen=True)
class Method:
    """An optimizer at a rung.

    Attributes:
        opt: its name.
        study: the study that tuned it.
        point: the winning values of the searched settings; None without a winner.
        runs: on the fresh seeds, in their order.
        trials: runs of the trials.
    """

    opt: str
    study: StudyRecord
    point: Mapping[str, Any] | None
    runs: Sequence[RunResult]
    trials: Sequence[RunResult]

    @property
    def setting(self) -> str:
        """The setting that is compared across rungs: the first searched one that is a number."""
        numbers = [name for name in self.study.axes if isinstance((self.point or {}).get(name), int | float)]
        return numbers[0] if numbers else ""

    @property
    def value(self) -> float | None:
        """Its winning value."""
        return float(self.point[self.setting]) if self.point is not None and self.setting else None

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
        return bool(self.runs) and above_infimum(self.runs)

    @cached_property
    def measure(self) -> Measure:
        """The final metric."""
        run = self.runs[0]
        words = f"{run.split} {run.metric}" + " (suboptimality gap)" * self.above
        return final(words, run.mode, self.above)

    @cached_property
    def seeds(self) -> list[Seed]:
        """The seeds that all methods with fresh runs have."""
        groups = [Group.of(method.runs) for method in self.methods.values() if method.runs]
        return groups[0].common_seeds(*groups[1:]) if groups else []

    @cached_property
    def losses(self) -> dict[str, Array]:
        """The values that rank methods, by seed, smaller is better; without methods that lack a value for a seed."""
        found = dict[str, Array]()
        for opt, method in self.methods.items():
            values = self.measure.values(Group.of(method.runs), self.seeds) if method.runs else []
            there = [value for value in values if value is not None]
            if len(there) == len(values) >= 2:
                array = np.array(there, dtype=np.float64)
                found[opt] = np.log10(array) if self.measure.log else -array if self.measure.mode == "max" else array
        return found

    @property
    def order(self) -> list[str]:
        """The rankable optimizers, sorted by their means, best first."""
        return sorted(self.losses, key=lambda opt: (float(self.losses[opt].mean()), opt))

    def values(self, opt: str) -> list[End]:
        """The final metric of an optimizer, by fresh seed."""
        return self.measure.values(Group.of(self.methods[opt].runs))

    @cached_property
    def ratios(self) -> dict[str, Interval | str]:
        """Logarithm of the step ratio relative to the reference, by optimizer; or why there is none."""
        return {opt: self._ratio(opt) for opt in self.methods if opt != self.reference}

    def _ratio(self, opt: str) -> Interval | str:
        own, reference = (self.methods[name].runs for name in (opt, self.reference))
        for name, runs in ((opt, own), (self.reference, reference)):
            if lost := sum(run.status == "diverged" for run in runs):
                return f"{name}: {lost} of {len(runs)} fresh seeds diverged"
        pairs = [Group.of(runs) for runs in (own, reference)]
        seeds = pairs[0].common_seeds(pairs[1])
        if len(seeds) < 2:
            return f"{opt}: fewer than two seeds in common with {self.reference}"
        curves = [[self._curve(group.runs[seed]) for seed in seeds] for group in pairs]
        steps = sorted({step for each in curves for curve in each for step in curve})
        if len(steps) < LEAST_EVALUATIONS:
            return f"{opt}: {len(steps)} evaluations are too few for a curve"
        arrays = [np.array([_filled(curve, steps) for curve in each]) for each in curves]
        bent = any(run.config["trainer"].get("schedule", "constant") != "constant" for run in (*own, *reference))
        return statistics.step_ratio(steps, *arrays, smooth=not bent)

    def _curve(self, run: RunResult) -> dict[int, float]:
        """The loss on the selection split by step; for suboptimality gaps, its log10."""
        key = "excess" if self.above else "loss"
        found = {int(row["step"]): float(row.get(key, row.get("loss", math.nan))) for row in run.validations}
        if self.above:
            return {step: math.log10(max(loss, CONVERGED)) for step, loss in found.items()}
        return {step: loss for step, loss in found.items() if math.isfinite(loss)}

    @property
    def seconds(self) -> float:
        """Training seconds of all runs."""
        return math.fsum(method.seconds for method in self.methods.values())

    @property
    def begun(self) -> str:
        """When the first of its runs began; empty if unknown."""
        moments = [run.begun for method in self.methods.values() for run in (*method.runs, *method.trials)]
        return min((moment for moment in moments if moment), default="")


def _filled(curve: Mapping[int, float], steps: Sequence[int]) -> Array:
    """A curve interpolated at these steps; after an early end it stays at its last value."""
    own = sorted(curve)
    return np.interp(np.log(steps), np.log(own), [curve[step] for step in own])


@dataclass(frozen=True)
class Transfer:
    """How a setting changes along the ladder.

    Attributes:
        setting: its dotted name.
        best: by rung, the winning value; None without a winner.
        usable: by rung, width in decades of the range with scores nearly as good as the best; None if one value was
            tried.
        exponent: a of best ~ size^a; None if it cannot be fitted.
        regrets: by rung, how much worse the previous rung's winner scores than the rung's own, as a fraction, or as a
            factor for suboptimality gaps; None if it was not tried or has no score.
    """

    setting: str
    best: list[float | None]
    usable: list[float | None]
    exponent: Interval | None
    regrets: list[float | None]


@dataclass(frozen=True)
class Findings:
    """The findings of a ladder.

    Attributes:
        record: of the ladder.
        rungs: the completed ones.
        lost: number of runs of the record that are missing in the store.
    """

    record: LadderRecord
    rungs: list[Rung]
    lost: int

    @property
    def sizes(self) -> list[float]:
        """Sizes of the completed rungs on the axis."""
        return [rung.record["at"] for rung in self.rungs]

    def estimates(self, opt: str) -> tuple[list[float], list[Estimate]]:
        """log10 of the sizes of rungs with a finite interval, and their estimates of the logarithmic step ratio."""
        found = [(rung.record["at"], rung.ratios.get(opt)) for rung in self.rungs]
        there = [(at, of) for at, of in found if isinstance(of, Interval) and _closed(of)]
        return [math.log10(at) for at, _ in there], [Estimate.of(of) for _, of in there]

    def trend(self, opt: str) -> Trend | None:
        """Change of the logarithmic ratio per decade of size; None below two rungs."""
        x, estimates = self.estimates(opt)
        return statistics.trend(x, estimates) if len(x) > 1 else None

    @cached_property
    def ranked(self) -> list[str]:
        """The optimizers that are rankable at all rungs."""
        return [opt for opt in self.record.opts if all(opt in rung.losses for rung in self.rungs)]

    def agreement(self, k: int) -> Interval | None:
        """Kendall's tau between a rung and the last one; None for fewer than two rankable optimizers."""
        if len(self.ranked) < 2:
            return None
        one, last = (np.array([rung.losses[opt] for opt in self.ranked]) for rung in (self.rungs[k], self.rungs[-1]))
        return statistics.kendall(one, last)

    @cached_property
    def final_from(self) -> tuple[int, int] | None:
        """Numbers of the rungs from which on the ranking is the last one: by means, and by significant differences."""
        if len(self.ranked) < 2:
            return None
        first, sure = statistics.final_from([np.array([r.losses[o] for o in self.ranked]) for r in self.rungs])
        return first + 1, sure + 1

    def regret(self, k: int) -> tuple[str, Interval] | None:
        """The winner of a rung, and its regret at the last rung; None if no optimizer is rankable."""
        if not self.ranked:
            return None
        chosen = next(opt for opt in self.rungs[k].order if opt in self.ranked)
        values = np.array([self.rungs[-1].losses[opt] for opt in self.ranked])
        return chosen, statistics.regret(values, self.ranked.index(chosen))

    def transfer(self, opt: str) -> Transfer:
        """How the setting of an optimizer changes along the ladder."""
        methods = [rung.methods.get(opt) for rung in self.rungs]
        setting = next((method.setting for method in methods if method is not None and method.setting), "")
        best = [None if m is None or m.setting != setting else m.value for m in methods]
        there = [(at, value) for at, value in zip(self.sizes, best, strict=True) if value]
        fit = None
        if len(there) > 1:
            sampler = next(m.study.sampler for m in methods if m is not None)
            fit = statistics.exponent(*zip(*there, strict=True), step=GRID_STEPS.get(sampler, (0.5,))[0])
        usable = [
            None if m is None else _usable(m, setting, rung.above) for m, rung in zip(methods, self.rungs, strict=True)
        ]
        regrets = [
            None,
            *(_carried(a, b, rung.above) for a, b, rung in zip(methods, methods[1:], self.rungs[1:], strict=False)),
        ]
        return Transfer(setting, best, usable, fit, regrets[: len(methods)])


def _closed(interval: Interval) -> bool:
    return math.isfinite(interval.low) and math.isfinite(interval.high)


def _usable(method: Method, setting: str, above: bool) -> float | None:
    """Width in decades of the range around the best value with scores nearly as good."""
    mode, by_value = method.study.mode, dict[float, float]()
    sign = 1 if mode == "min" else -1
    there = [(_number(t["point"][setting]), t["score"]) for t in method.study.trials if setting in t["point"]]
    tried = sorted({value for value, _ in there})
    for value, score in there:
        if score is not None:
            by_value[value] = min(by_value.get(value, math.inf), sign * score)
    if len(tried) < 2 or not by_value:
        return None
    best = min(by_value, key=lambda value: (by_value[value], value))
    top = by_value[best]
    limit = max(top, CONVERGED) * NEAR_LOG if above else top + NEAR * abs(top)
    good, place = [by_value.get(value, math.inf) <= limit for value in tried], tried.index(best)
    low = next((i + 1 for i in range(place, -1, -1) if not good[i]), 0)
    high = next((i - 1 for i in range(place, len(tried)) if not good[i]), len(tried) - 1)
    return math.log10(tried[high] / tried[low])


def _carried(before: Method | None, here: Method | None, above: bool) -> float | None:
    """How much worse the previous rung's winning settings score here than the winner here."""
    if before is None or here is None or before.point is None:
        return None
    scores = {_key(trial["point"]): trial["score"] for trial in here.study.trials}
    carried, best = scores.get(_key(before.point)), scores.get(_key(here.point or {}))
    if carried is None or best is None:
        return None
    if above:
        return max(carried, CONVERGED) / max(best, CONVERGED)
    return (carried - best) * (1 if here.study.mode == "min" else -1) / abs(best) if best else None


def _number(value: Any) -> float:
    return float(value)


def _key(point: Mapping[str, Any]) -> str:
    return repr(sorted((name, float(v) if isinstance(v, int | float) else v) for name, v in point.items()))


def findings(record: LadderRecord, stores: Stores) -> Findings:
    """The findings of the finished rungs of a ladder."""
    runs = {run.run_id: run for run in stores.runs if run.finished}
    studies = {study.name: study for study in stores.studies}
    rungs, lost = list[Rung](), 0
    for number, rung in enumerate(record.rungs, 1):
        if not rung["done"]:
            break
        methods = dict[str, Method]()
        for opt, name in rung["studies"].items():
            study = studies.get(name)
            if study is None:
                lost += len(rung["fresh"][opt])
                continue
            points = [
                trial["point"] for trial in study.trials if study.winner is not None and study.winner in trial["runs"]
            ]
            fresh = [runs[run_id] for run_id in rung["fresh"][opt] if run_id in runs]
            lost += len(rung["fresh"][opt]) - len(fresh)
            tried = [runs[run_id] for run_id in sorted(study.run_ids) if run_id in runs]
            methods[opt] = Method(opt, study, points[0] if points else None, fresh, tried)
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
    found = findings(record, stores)
    before = found.rungs[:k]
    at = math.log10(record.rungs[k]["at"])
    part = Findings(record, before, 0)
    ratios = dict[str, list[float | None]]()
    for opt in record.opts:
        x, estimates = part.estimates(opt)
        if estimates:
            said = statistics.predict(x, estimates, at)
            ratios[opt] = [said.mean, *said.ends]
    losses = dict[str, float]()
    for opt in part.ranked if before else []:
        means = [float(rung.losses[opt].mean()) for rung in before]
        line = np.polyfit([math.log10(rung.record["at"]) for rung in before], means, min(1, len(before) - 1))
        losses[opt] = float(np.polyval(line, at))
    return {
        "made": now(),
        "rungs": len(before),
        "ratios": ratios,
        "order": sorted(losses, key=lambda o: (losses[o], o)),
    }


@dataclass(frozen=True)
class Score:
    """A prediction and its measurement.

    Attributes:
        opt: the optimizer.
        said, measured: predicted and measured logarithm of the step ratio; None if there is none.
        held: whether the prediction interval contains the measured value.
    """

    opt: str
    said: Interval
    measured: Interval | None
    held: bool | None


def scores(rung: Rung) -> list[Score]:
    """The predictions of a rung, scored."""
    found = list[Score]()
    for opt, (mean, low, high) in ((rung.record["predicted"] or {}).get("ratios") or {}).items():
        said = Interval(mean or 0.0, -math.inf if low is None else low, math.inf if high is None else high, 0)
        of = rung.ratios.get(opt)
        measured = of if isinstance(of, Interval) else None
        found.append(Score(opt, said, measured, None if measured is None else said.low <= measured.mean <= said.high))
    return found


def was_before(rung: Rung) -> bool | None:
    """Whether the prediction was written before any run of the rung began; None without a prediction."""
    said = rung.record["predicted"]
    return None if said is None else said["made"] <= rung.begun
