"""Designs: which points of a search space are tried next.

A design is a pure function of the scores that are known. So a tuning that was interrupted goes on where it was, and
what a smaller budget would have found can be read from the scores of a larger one (`replay`).
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from bench.errors import UserError
from bench.grammar.values import refuse_too_many, typed
from bench.results.selection import End, Mode, best_index
from bench.tuning.space import Axis, Key, Point, Range, Space, is_number, point_key

Sampler = Literal["grid", "qmc"]
Kind = Literal["design", "extension", "top-up", "refinement", "fresh"]
"""Why a point is tried; the last two are a study's own and never a design's."""

EXTENSION_LIMIT = 8
"""Values by which a grid's main axis may grow while its best lies at an edge, also beyond a given range. Ours."""
EXTENSION_STEP = 2
"""Values that it grows by at a time: a decade. Ours."""
LONGEST_GRID = 500
"""Half decades that a grid may span; beyond lie no numbers."""


class Wanted(NamedTuple):
    """A point that is to be tried.

    Attributes:
        point: a value for each name of the space.
        kind: why: it is of the design, the best lay at the design's edge, or there were fewer points than asked for.
    """

    point: Point
    kind: Kind

    @property
    def key(self) -> Key:
        """The point as text."""
        return point_key(self.point)


class Replay(NamedTuple):
    """What a tuning would have found.

    Attributes:
        best: the best point of those whose score is known; None if there is none.
        scored: what it would have tried, as far as the scores are known.
        missing: points that it would try next and whose scores are not known; if there are any, the rest says little.
    """

    best: Point | None
    scored: list[Wanted]
    missing: list[Point]


@dataclass(frozen=True)
class Design:
    """The points of a space that a tuning tries, and their order.

    `grid` takes half decades of the one range, 10 ** (j / 2) with four digits, from the range's middle outwards, each
    with all combinations of the other axes' values; so the range decides where the grid lies and the number of trials
    how far it goes. If the best lies at an edge the grid grows there. Without a range it is all combinations.
    `qmc` takes points of an unscrambled Halton sequence.

    Either way a design of fewer trials is the beginning of one of more.

    Attributes:
        space: what is searched.
        sampler: how.

    Raises:
        UserError: a grid has several ranges, or one that is narrower than its step.
    """

    space: Space
    sampler: Sampler

    def __post_init__(self) -> None:
        if self.sampler == "qmc":
            return
        ranges = {name: axis for name, axis in self.space.items() if isinstance(axis, Range)}
        if len(ranges) > 1:
            names = ", ".join(f"--{name}" for name in ranges)
            raise UserError(f"{names}: a grid has one range; use --sampler qmc, or give values (A,B) for all but one")
        for name, axis in ranges.items():
            if math.log10(axis.high / axis.low) < 0.499:  # 1e-3:3.162e-3 is a step
                raise UserError(
                    f"--{name} {axis.low:g}:{axis.high:g}: narrower than a grid's step, half a decade;"
                    " use --sampler qmc, or give values, as A,B"
                )

    @property
    def main(self) -> str | None:
        """The name of the axis that points are ordered by: the first range, else the first of numbers."""
        ranges = [name for name, axis in self.space.items() if isinstance(axis, Range)]
        numbers = [n for n, axis in self.space.items() if not isinstance(axis, Range) and all(map(is_number, axis))]
        return next(iter([*ranges, *numbers]), None)

    @property
    def can_grow(self) -> bool:
        """Whether there are more points than any number of trials asks for."""
        return self.sampler == "qmc" or any(isinstance(axis, Range) for axis in self.space.values())

    def may_grow_by(self, trials: int) -> int:
        """Points that there may be beyond so many, if the best lies at an edge."""
        others = math.prod(len(axis) for axis in self.space.values() if not isinstance(axis, Range))
        return EXTENSION_LIMIT * others if self.sampler == "grid" and self.can_grow and trials > others else 0

    def wanted(self, known: Mapping[Key, End], mode: Mode, least: float, trials: int, total: int = 0) -> list[Wanted]:
        """All points that are wanted so far, in the order in which they are tried.

        Those that are not known are what is to be tried next; when all are known the tuning has ended. Scores that come
        to be known only ever append points.

        Args:
            known: scores by point; of points that this design does not want, they are not looked at.
            mode: of the metric.
            least: scores below it count as equal; minus infinity if every difference tells.
            trials: points of the design.
            total: points there must be in the end at least. When the best is at no edge, or the grid has grown as far
                as it may, the next points of the design's order are added.

        Raises:
            UserError: there is no such design.
        """
        if trials < 1:
            raise UserError(f"--trials {trials}: at least one setting has to be tried")
        refuse_too_many(f"--trials {max(trials, total)}", max(trials, total))
        combinations = math.prod(len(axis) for axis in self.space.values() if not isinstance(axis, Range))
        refuse_too_many("all combinations of these values", combinations)
        if self.sampler == "qmc":
            points = self._sequence(max(trials, total))
            return [Wanted(point, "design" if i < trials else "top-up") for i, point in enumerate(points)]
        if not self.can_grow:
            return self._product(trials, total)
        return self._grown(known, mode, least, trials, total)

    def best(self, points: Sequence[Point], scores: Mapping[Key, End], mode: Mode, least: float) -> Point | None:
        """The best of the points whose scores are known, the middle one of equals by `position`; None if none is.

        Args:
            points: in any order.
            scores: by point.
            mode: of the metric.
            least: scores below it count as equal; minus infinity if every difference tells.
        """
        there = sorted((point for point in points if point_key(point) in scores), key=self.position)
        best = best_index([scores[point_key(point)] for point in there], mode, least)
        return None if best is None else there[best]

    def position(self, point: Point) -> tuple[float, ...]:
        """What points are ordered by: the main axis, then the others as they are given."""
        main = self.main
        others = [
            point[name] if isinstance(axis, Range) else axis.index(point[name])
            for name, axis in self.space.items()
            if name != main
        ]
        return tuple(others) if main is None else (point[main], *others)

    def at_boundary(self, points: Sequence[Point], best: Point) -> bool:
        """Whether the best lies at the boundary of what was tried along the main axis; False if there is none.

        On a grid and among values: it is the lowest or the highest that was tried, or the only one. In a range of which
        a sequence took N points: it lies within 1/N of an end, in the logarithm.

        Args:
            points: all that were tried.
            best: one of them.
        """
        main = self.main
        if main is None:
            return False
        axis, value = self.space[main], best[main]
        if isinstance(axis, Range) and self.sampler == "qmc":
            share = math.log(value / axis.low) / math.log(axis.high / axis.low)
            return min(share, 1 - share) <= 1 / len(points)
        tried = [point[main] for point in points]
        return value in (min(tried), max(tried))

    def around(self, point: Point) -> Space:
        """The space from a point to its neighbours on a grid: half a decade either way in each range; values stay."""
        return {
            name: self._near(axis, point[name]) if isinstance(axis, Range) else axis
            for name, axis in self.space.items()
        }

    def _near(self, axis: Range, value: float) -> Range:
        j = round(2 * math.log10(value), 3)  # of a value with four digits
        low, high = (typed(10 ** ((j + step) / 2)) for step in (-1, 1))
        return Range(low, high) if self.sampler == "grid" else Range(max(low, axis.low), min(high, axis.high))

    # -- grid --

    def _product(self, trials: int, total: int) -> list[Wanted]:
        points = list(_combinations(self.space))
        if trials != len(points):
            raise UserError(
                f"--trials {trials}: these values make {_settings(len(points))}: write --trials {len(points)}"
            )
        if total > trials:
            raise UserError(
                f"there cannot be {total} settings: these values make {_settings(trials)};"
                " give a range (LOW:HIGH) instead"
            )
        return [Wanted(point, "design") for point in points]

    def _grown(self, known: Mapping[Key, End], mode: Mode, least: float, trials: int, total: int) -> list[Wanted]:
        name, axis = next((name, axis) for name, axis in self.space.items() if isinstance(axis, Range))
        others = list(_combinations({other: axis for other, axis in self.space.items() if other != name}))
        if trials % len(others):
            near = [str(n * len(others)) for n in (trials // len(others), trials // len(others) + 1) if n]
            raise UserError(
                f"--trials {trials}: each value of {name} is tried with {len(others)} combinations of the"
                f" others, so that it has to be a multiple of {len(others)}: {' or '.join(near)}"
            )
        if max(trials, total) > LONGEST_GRID * len(others):
            raise UserError(
                f"--trials {max(trials, total)}: a grid of half decades has at most"
                f" {LONGEST_GRID * len(others)} points here"
            )

        def points(j: int) -> list[Point]:
            value = typed(10 ** (j / 2))
            return [{key: value if key == name else other[key] for key in self.space} for other in others]

        kinds: dict[int, Kind] = dict.fromkeys(itertools.islice(_outwards(axis), trials // len(others)), "design")
        while True:
            wanted = [Wanted(point, kind) for j, kind in kinds.items() for point in points(j)]
            if any(each.key not in known for each in wanted):
                return wanted
            best = self.best([each.point for each in wanted], known, mode, least)
            grow = _beyond(kinds, None if best is None else best[name])
            if grow:
                kinds |= dict.fromkeys(grow, "extension")
            elif len(wanted) < total:
                lacking = -(-total // len(others)) - len(kinds)
                kinds |= dict.fromkeys(
                    itertools.islice((j for j in _outwards(axis) if j not in kinds), lacking), "top-up"
                )
            else:
                return wanted

    # -- qmc --

    def _sequence(self, count: int) -> list[Point]:
        found: dict[Key, Point] = {}
        drawn, enough = count, 100 * count + 10_000  # more than a space of so many points needs
        while len(found) < count:
            if drawn > enough:
                raise UserError(
                    f"--trials {count}: there are only {_settings(len(found))} that differ;"
                    " ask for no more, or widen a range"
                )
            for row in _halton(len(self.space), drawn):
                point = {name: _at(axis, u) for (name, axis), u in zip(self.space.items(), row, strict=True)}
                found.setdefault(point_key(point), point)
            drawn *= 2
        return list(found.values())[:count]


def replay(design: Design, scores: Mapping[Key, End], mode: Mode, least: float, trials: int, total: int = 0) -> Replay:
    """What a tuning of this design would have found, from scores that are known.

    Args:
        design: what it would try.
        scores: by point; there may be others among them.
        mode: of the metric.
        least: scores below it count as equal; minus infinity if every difference tells.
        trials: points of the design.
        total: as in `Design.wanted`.

    Raises:
        UserError: there is no such design.
    """
    wanted = design.wanted(scores, mode, least, trials, total)
    scored = [each for each in wanted if each.key in scores]
    missing = [each.point for each in wanted if each.key not in scores]
    return Replay(design.best([each.point for each in scored], scores, mode, least), scored, missing)


def _combinations(space: Space) -> Iterator[Point]:
    """All combinations of values; the last axis varies fastest."""
    axes = [axis for axis in space.values() if not isinstance(axis, Range)]
    return (dict(zip(space, values, strict=True)) for values in itertools.product(*axes))


def _outwards(axis: Range) -> Iterator[int]:
    """Half decades from the middle of a range: c, c - 1, c + 1, c - 2, ..."""
    middle = round(math.log10(axis.low) + math.log10(axis.high), 9)  # in half decades; rounding errors decide no ties
    centre = math.ceil(middle - 0.5)
    yield centre
    for i in itertools.count(1):
        yield from (centre - i, centre + i)


def _beyond(kinds: Mapping[int, Kind], best: float | None) -> list[int]:
    """By which half decades the grid grows, if it does."""
    low, high = min(kinds), max(kinds)
    grown = list(kinds.values()).count("extension")
    if len(kinds) < 2 or grown + EXTENSION_STEP > EXTENSION_LIMIT:
        return []
    if best is None or best == typed(10 ** (low / 2)):  # where all diverge, the steps were too large
        return [low - i for i in range(1, EXTENSION_STEP + 1)]
    return [high + i for i in range(1, EXTENSION_STEP + 1)] if best == typed(10 ** (high / 2)) else []


def _settings(count: int) -> str:
    return "1 setting" if count == 1 else f"{count} settings"


@lru_cache(maxsize=32)
def _halton(dimensions: int, count: int) -> list[tuple[float, ...]]:
    """The first points of the sequence, without the origin."""
    from scipy.stats import qmc  # takes a second to import

    return list(map(tuple, qmc.Halton(dimensions, scramble=False).random(count + 1)[1:].tolist()))


def _at(axis: Axis, u: float) -> Any:
    if isinstance(axis, Range):
        value = typed(axis.low * (axis.high / axis.low) ** u)
        return min(max(value, axis.low), axis.high)  # rounding may not lead out
    return axis[int(u * len(axis) + 1e-9)]  # 3/5 may be rounded down
