"""Designs: the points of a search space to try next.

A design is a pure function of the known scores. So interrupted tuning continues where it stopped, and the scores of a
large budget give the result of any smaller one (`Design.wanted`).
"""

import heapq
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from bench.config.values import refuse_too_many, typed
from bench.errors import UserError
from bench.results.selection import End, Mode, best_index
from bench.store.record import RunResult
from bench.text import counted, is_number
from optimizers import LogUniform

Axis = LogUniform | tuple[Any, ...]  # a range, or a list of values
Space = dict[str, Axis]  # the searched settings, by dotted name (`opt.lr`)
Point = Mapping[str, Any]  # a value for each name of a space
Key = str  # a point as text (`point_key`)
Sampler = Literal["grid", "refine", "qmc", "tpe"]
Place = tuple[float, ...]
"""A grid point in units of steps: for each range, the number of steps from the value 1."""
Kind = Literal["design", "extension", "refinement", "top-up"]
"""Why a point is tried: it is part of the design, the best was at an edge, it is near the best, or there were fewer
than requested."""
TPE_STARTUP, TPE_ROUND = 9, 2
"""Points of the Halton sequence before TPE suggests any, and points at once, which keep two workers busy. Ours."""
EXTENSION_LIMIT = 8
"""Maximum number of places added to a grid while its best is at an edge, even beyond a given range. Ours."""
ROUNDS = 2
"""Rounds of refinement, each with half the spacing of the one before. Ours."""
LONGEST_GRID = 500  # half decades, which approach the range of float64


class Trial(NamedTuple):
    """A point of a design, with its finished runs, one for each tuning seed; none and a reason if it failed."""

    point: Point
    kind: Kind
    runs: Sequence[RunResult] = ()
    reason: str = ""

    @property
    def key(self) -> Key:
        """The point's `point_key`."""
        return point_key(self.point)


def point_key(point: Point) -> Key:
    """The point as JSON, equal for equal points: sorted names, numbers as floats without -0."""
    plain = {name: value + 0.0 if is_number(value) else value for name, value in point.items()}
    return json.dumps(plain, sort_keys=True)


@dataclass(frozen=True)
class Scores:
    """The scores of the points tried so far, None for one that cannot be the best; those below `least` are equal."""

    by_key: Mapping[Key, End] = field(default_factory=dict)
    mode: Mode = "min"
    least: float = -math.inf


class Design:
    """The points of a space that tuning tries, and their order; a design of fewer trials is a prefix of one of more.

    `grid` takes half decades of the first range, 10 ** (j / 2) with four digits, and decades of any further one, each
    with all combinations of the other axes' values, the place nearest to the ranges' middles first (distances relative
    to their widths). While a neighbour of the best place has not been tried, it grows there by a decade. Without a
    range, it has all combinations. `refine` is a grid that, once grown, adds the neighbours of the best in each range
    at half the spacing, then at a quarter. `qmc` takes points of an unscrambled Halton sequence; `tpe` begins with it,
    then takes the suggestions of Optuna's `TPESampler`. By default, up to two ranges are refined, and more are searched
    by TPE. The number of points is a multiple of `step`.
    """

    def __init__(self, space: Space, sampler: Sampler | None = None) -> None:
        self.space = space
        self.ranges = {name: axis for name, axis in space.items() if isinstance(axis, LogUniform)}
        self.lists = {name: axis for name, axis in space.items() if not isinstance(axis, LogUniform)}
        self.combinations = math.prod(map(len, self.lists.values()))
        self.sampler: Sampler = sampler or ("tpe" if len(self.ranges) > 2 else "refine" if self.ranges else "grid")
        self.step = self.combinations if self.sampler in ("grid", "refine") else 1

    def wanted(self, trials: int, total: int = 0, scores: Scores | None = None) -> list[Trial]:
        """All points wanted so far, in their order; `UserError` if no design has this number.

        Those without a known score are to be tried next; new scores only append points. If a grid, grown and refined,
        has fewer than `total`, the next ones in its order are added.
        """
        count, scores = max(trials, total), scores or Scores()
        refuse_too_many(f"--trials {count}", count)
        refuse_too_many("all combinations of these values", self.combinations)
        if self.sampler in ("grid", "refine") and self.ranges:
            return self._grown(scores, trials, total)
        if self.sampler == "qmc":
            points = self._sequence(count)
        elif self.sampler == "tpe":
            points = self._suggested(count, scores)
        elif (trials, count) == (self.combinations, trials):
            points = self._combinations()
        else:
            what = f"these values make {counted(self.combinations, 'setting')}: write --trials {self.combinations}"
            raise UserError(f"--trials {count}: {what}, or give a range (LOW:HIGH)")
        return [Trial(point, "design" if i < trials else "top-up") for i, point in enumerate(points)]

    def best(self, points: Sequence[Point], scores: Scores) -> Point | None:
        """The best point with a known score, the first of equals by `_position`; None if there is none."""
        known = sorted((point for point in points if point_key(point) in scores.by_key), key=self._position)
        best = best_index([scores.by_key[point_key(point)] for point in known], scores.mode, scores.least)
        return None if best is None else known[best]

    def _position(self, point: Point) -> tuple[float, ...]:
        """Sort key of points: by the values of ranges and lists of numbers, by the order of other lists."""
        listed = {name: values for name, values in self.lists.items() if not all(map(is_number, values))}
        return tuple(listed[name].index(value) if name in listed else value for name, value in point.items())

    def _combinations(self) -> list[Point]:
        """All combinations of the listed values; the last axis varies fastest."""
        return [dict(zip(self.lists, values, strict=True)) for values in itertools.product(*self.lists.values())]

    def _grown(self, scores: Scores, trials: int, total: int) -> list[Trial]:
        ranges, others = self.ranges, self._combinations()
        steps = [1, *[2] * len(self.space)][: len(ranges)]  # in half decades
        if trials % len(others):
            why = f"since each value of {' and '.join(ranges)} is tried with all combinations of the others"
            raise UserError(f"--trials {trials}: it must be a multiple of {len(others)}, {why}")
        if max(trials, total) > (most := LONGEST_GRID * len(others)):
            raise UserError(f"--trials {max(trials, total)}: a grid has at most {most} points here")

        def points(place: Place) -> list[Point]:
            at = {name: typed(10 ** (j * step / 2)) for name, j, step in zip(ranges, place, steps, strict=True)}
            return [{name: {**at, **other}[name] for name in self.space} for other in others]

        outwards = [*itertools.islice(_outwards([*ranges.values()], steps), max(trials, total) // len(others) + 1)]
        kinds: dict[Place, Kind] = dict.fromkeys(outwards[: trials // len(others)], "design")
        rounds = 0
        while True:
            by_place = {place: points(place) for place in kinds}
            wanted = [Trial(point, kind) for place, kind in kinds.items() for point in by_place[place]]
            if any(candidate.key not in scores.by_key for candidate in wanted):
                return wanted
            best = self.best([candidate.point for candidate in wanted], scores)
            best_place, grow = next((place for place in kinds if best in by_place[place]), None), []
            topped_up = "top-up" in kinds.values()  # then it is not refined, or budgets would never become equal
            if not rounds:
                grow = _beyond(kinds, best_place, steps)
            if grow:
                kinds |= dict.fromkeys(grow, "extension")
            elif best_place is not None and self.sampler == "refine" and rounds < ROUNDS and not topped_up:
                rounds += 1
                near = [_moved(best_place, k, sign * 0.5**rounds) for k in range(len(ranges)) for sign in (-1, 1)]
                kinds |= dict.fromkeys([place for place in near if place not in kinds], "refinement")
            elif len(wanted) < total:
                lacking = -(-total // len(others)) - len(kinds)
                kinds |= dict.fromkeys([place for place in outwards if place not in kinds][:lacking], "top-up")
            else:
                return wanted

    def _sequence(self, count: int) -> list[Point]:
        points: dict[Key, Point] = {}
        for row in _halton(len(self.space), 10 * count + 10_000):  # enough for `count` points if there are so many
            point = {name: _at(axis, u) for (name, axis), u in zip(self.space.items(), row, strict=True)}
            points.setdefault(point_key(point), point)
            if len(points) == count:
                return list(points.values())
        raise UserError(f"--trials {count}: there are only {len(points)} settings; request no more, or widen a range")

    def _suggested(self, count: int, scores: Scores) -> list[Point]:
        """The sequence's first points, then rounds of TPE's suggestions, each a function of the rounds before."""
        points = self._sequence(min(count, TPE_STARTUP))
        while len(points) < count and all(point_key(point) in scores.by_key for point in points):
            points += self._round(points, scores)[: count - len(points)]
        return points

    def _round(self, points: Sequence[Point], scores: Scores) -> list[Point]:
        """The points that TPE suggests after these."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        axes = {name: distribution(axis) for name, axis in self.space.items()}
        direction, worst = ("minimize", math.inf) if scores.mode == "min" else ("maximize", -math.inf)
        sampler = optuna.samplers.TPESampler(seed=len(points), n_startup_trials=0)
        study, known = optuna.create_study(direction=direction, sampler=sampler), {point_key(p): p for p in points}
        for key, point in known.items():
            value = worst if (score := scores.by_key[key]) is None else score
            study.add_trial(optuna.trial.create_trial(params=dict(point), distributions=axes, value=value))
        for _ in range(20 * TPE_ROUND):
            params = study.ask(axes).params
            point = {name: _within(axis, params[name]) for name, axis in self.space.items()}
            known.setdefault(point_key(point), point)
            if len(known) == len(points) + TPE_ROUND:
                break
        return [*known.values()][len(points) :] or self._sequence(len(points) + TPE_ROUND)[len(points) :]


def distribution(axis: Axis, *values: Any) -> Any:
    """An axis as an Optuna distribution that includes these values: grids may grow beyond a range."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    if not isinstance(axis, LogUniform):
        return CategoricalDistribution(axis)
    return FloatDistribution(min(axis.low, *values, axis.high), max(axis.low, *values, axis.high), log=True)


def _within(axis: Axis, value: Any) -> Any:
    """The value, with four digits and within a range, which rounding must not leave."""
    return min(max(typed(value), axis.low), axis.high) if isinstance(axis, LogUniform) else value


def _at(axis: Axis, u: float) -> Any:
    if isinstance(axis, LogUniform):
        return _within(axis, axis.low * (axis.high / axis.low) ** u)
    return axis[int(u * len(axis) + 1e-9)]  # a float such as 3/5 may be slightly too small


def _outwards(ranges: Sequence[LogUniform], steps: Sequence[int]) -> Iterator[Place]:
    """Places of a grid from the middle outwards; of equally near ones, the lower first."""
    axes = list(zip(ranges, steps, strict=True))
    middles = [(math.log10(axis.low) + math.log10(axis.high)) / step for axis, step in axes]
    centre = [math.ceil(round(middle, 9) - 0.5) for middle in middles]  # rounded, so that float errors decide no ties
    widths = [2 * math.log10(axis.high / axis.low) / step for axis, step in axes]
    near: list[tuple[float, Place]] = [(0.0, (0,) * len(axes))]
    seen = set[Place]()
    while True:
        _, offsets = heapq.heappop(near)
        if offsets in seen:
            continue
        seen.add(offsets)
        yield tuple(c + i for c, i in zip(centre, offsets, strict=True))
        for beside in (_moved(offsets, k, sign) for k, sign in itertools.product(range(len(axes)), (-1, 1))):
            distance = math.hypot(*(i / width for i, width in zip(beside, widths, strict=True)))
            heapq.heappush(near, (round(distance, 9), beside))


def _beyond(kinds: Mapping[Place, Kind], best: Place | None, steps: Sequence[int]) -> list[Place]:
    """The places to add to a grid: a decade on each untried side of the best.

    If all points diverged, the step sizes were too large: the grid grows below its lowest place in the first range.
    """
    if len(kinds) < 2:
        return []
    sides = [(0, -1)] if best is None else itertools.product(range(len(steps)), (-1, 1))
    place = min(kinds) if best is None else best
    untried = [(k, sign) for k, sign in sides if _moved(place, k, sign) not in kinds]
    # Nearest places first, if the limit does not allow all.
    grow = [_moved(place, k, sign * i) for i in (1, 2) for k, sign in untried if i * steps[k] <= 2]
    room = EXTENSION_LIMIT - list(kinds.values()).count("extension")
    return [place for place in grow if place not in kinds][:room]


def _moved(place: Place, axis: int, by: float) -> Place:
    return (*place[:axis], place[axis] + by, *place[axis + 1 :])


@lru_cache(maxsize=32)
def _halton(dimensions: int, count: int) -> list[tuple[float, ...]]:
    """The first points of the sequence, without the origin."""
    from scipy.stats import qmc  # takes a second to import

    return list(map(tuple, qmc.Halton(dimensions, scramble=False).random(count + 1)[1:].tolist()))
