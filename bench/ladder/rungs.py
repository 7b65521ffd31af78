"""A ladder and its rungs: their studies, one after the other.

A rung is a suite of one task at one size. Its ranges lie around the winning settings of the previous rung, so a rung
depends only on earlier rungs.
"""

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.config.checks import check
from bench.errors import RunFailed, UserError
from bench.grammar.values import typed
from bench.ladder.findings import predicted
from bench.ladder.sizes import Rule, Size, in_words
from bench.output import note
from bench.store.load import Damaged
from bench.store.record import now
from bench.store.reports import Declared, LadderRecord, LadderRung, StudyRecord, read_report, study_path
from bench.store.stores import Stores
from bench.text import plain
from bench.tuning import tuned
from bench.tuning.design import Sampler
from bench.tuning.studies import Studies
from bench.tuning.study import Study
from bench.tuning.study_result import study_result
from bench.tuning.suite import Suite, Tune
from bench.tuning.trials import StudySpec
from bench.tuning.tune import default_trials
from optimizers.plugins import slug

Words = Mapping[str, Any]


@dataclass(frozen=True)
class Ladder:
    """The declaration of a ladder.

    Attributes:
        task, opts: names.
        reference: the optimizer that the others are compared with, one of `opts`.
        words: settings of all runs, in dotted form.
        own: settings of each optimizer; a range or a list of values is searched.
        rule: the growth rule.
        trials: number of trials of each optimizer at the first rung; None for the default.
        margin: half the width in decades of the ranges around the previous rung's winner that later rungs search.
        sampler: of the designs.
        prune: stop bad trials early.
        seeds, fresh: seeds of the trials, and of the winners.
    """

    task: str
    opts: list[str]
    reference: str
    words: Words
    own: Mapping[str, Words]
    rule: Rule
    trials: int | None
    margin: float
    sampler: Sampler
    prune: bool
    seeds: list[int]
    fresh: list[int]

    @property
    def declared(self) -> Declared:
        """All settings that determine its results and have no field in the record."""
        rule = {name: getattr(self.rule, name) for name in ("ratio", "tokens", "start")}
        own = {name: getattr(self, name) for name in ("trials", "margin", "sampler", "prune", "seeds", "fresh")}
        return plain({"settings": self.words, "own": self.own, **rule, **own})

    @property
    def name(self) -> str:
        """`TASK-ladder-HASH`; it does not depend on the number of rungs."""
        text = json.dumps([self.task, self.opts, self.reference, self.rule.axis, self.declared], sort_keys=True)
        return f"{slug(self.task)}-ladder-{hashlib.sha256(text.encode()).hexdigest()[:8]}"

    def record(self, sizes: Sequence[Size]) -> LadderRecord:
        """Its record before training."""
        rungs = [LadderRung(**plain(vars(size)), predicted=None, studies={}, fresh={}, done="") for size in sizes]
        rule = in_words(self.rule, self.task)
        return LadderRecord(
            self.name, self.task, self.opts, self.reference, self.rule.axis, self.declared, rule, now(), rungs
        )

    def suite(self, settings: Words, winners: Mapping[str, Words], places: Words) -> Suite:
        """The suite of a rung.

        Args:
            settings: of its size.
            winners: winning values of the searched settings at the previous rung, by optimizer; empty at the first.
            places: paths of data and store.

        Raises:
            UserError: a setting is illegal, or budgets cannot be made equal.
        """
        specs = self._suite(settings, {}, None).specs(places)
        if len({spec.trainer.batch_size for spec in specs}) > 1:
            sizes = ", ".join(f"{spec.opt} {spec.trainer.batch_size}" for spec in specs)
            raise UserError(
                f"batch sizes differ, which makes different problems ({sizes}); give --trainer.batch_size to all"
            )
        step = math.lcm(*(spec.design.combinations for spec in specs))
        wanted = max(default_trials(spec.design) for spec in specs) if self.trials is None else self.trials
        if winners:
            wanted = min(wanted, math.ceil(4 * self.margin) + 1)  # half decades
        trials = -(-wanted // step) * step
        around = {
            spec.opt: _around(spec, winners[spec.opt], self.margin, places) for spec in specs if spec.opt in winners
        }
        return self._suite(settings, around, trials)

    def _suite(self, settings: Words, around: Mapping[str, Words], trials: int | None) -> Suite:
        return Suite(
            title=f"ladder {self.name}",
            tasks={self.task: dict(settings)},
            optimizers={name: {**self.own[name], **around.get(name, {})} for name in self.opts},
            settings=dict(self.words),
            tune=Tune(trials=trials, seeds=self.seeds, sampler=self.sampler, prune=self.prune),
            seeds=self.fresh,
        )


def _around(spec: StudySpec, winner: Words, margin: float, places: Words) -> dict[str, str]:
    """Ranges around the winner, which is the first point of the design.

    If the optimizer refuses an end (a momentum above 1), the range ends where that of the first rung does, and is
    narrower. If less than a decade is left for a grid, or 0.01 for a Halton sequence, the first rung's range is taken.
    """
    found, narrowest = dict[str, str](), 1.0 if spec.design.sampler == "grid" else 0.01
    for name, axis in spec.design.ranges.items():
        value, first = winner[name], spec.design.first[name]
        legal = [_is_legal(spec, {**winner, name: end}, places) for end in _ends(value, first, 2 * margin)]
        room = math.log10(value / axis.low) / first, math.log10(axis.high / value) / (1 - first)
        width = min([2 * margin, *(max(0.0, each) for each, fits in zip(room, legal, strict=True) if not fits)])
        low, high = _ends(value, first, width)
        if width < min(narrowest, 2 * margin):
            low, high = axis.low, axis.high
        found[name] = f"{low if legal[0] else max(low, axis.low):g}:{high if legal[1] else min(high, axis.high):g}"
    return found


def _ends(value: float, first: float, width: float) -> tuple[float, float]:
    """The ends of a range of this width in decades in which a value has this relative place."""
    low = value / 10 ** (width * first)
    return typed(low), typed(low * 10**width)


def _is_legal(spec: StudySpec, point: Words, places: Words) -> bool:
    """Whether the optimizer accepts these values."""
    try:
        check(spec.config(point, spec.seeds[0], places))
    except UserError:
        return False
    return True


# -- execution --------------------------------------------------------------------------------------------------------


def climb(
    ladder: Ladder,
    sizes: Sequence[Size],
    studies: Studies,
    places: Mapping[str, Path],
    train: Callable[[Suite], list[Study] | None],
) -> bool:
    """Train the rungs in order, each after its prediction; False if a signal asked to stop.

    Stored runs are not trained again. A completed rung never changes.

    Args:
        ladder: the ladder.
        sizes: of its rungs.
        studies: the database of its studies.
        places: paths of data and store.
        train: runs a suite; returns None if it was stopped.

    Raises:
        UserError: a run cannot be trained; finished runs are stored.
        RunFailed: budgets turned out unequal, or the disk is full.
    """
    store = places["store"]

    def settle(k: int, key: str, **found: Any) -> None:
        """Add to the record of a rung, unless another process was faster: then it has the key."""
        with studies.lock():
            record = begun(ladder, sizes, store)
            rung: Any = record.rungs[k]
            if not rung[key]:
                rung.update(found)
                record.write(store)

    for k, size in enumerate(sizes):
        with studies.lock():
            record = begun(ladder, sizes, store)
        rung = record.rungs[k]
        if rung["done"]:
            continue
        if k and rung["predicted"] is None:
            settle(k, "predicted", predicted=predicted(record, Stores([store]), k))
        suite = ladder.suite(rung["settings"], winners_of(record, k - 1, store) if k else {}, places)
        note(f"rung {k + 1} of {len(sizes)}: {size.parameters:,} parameters, {size.steps:,} steps")
        done = train(suite)
        if done is None:
            return False
        found = [study_result(study) for study in done]
        if len({len(each.trials) for each in found}) > 1 or any(each.missing for each in found):
            trials = ", ".join(f"{each.study.spec.opt} {len(each.trials)}" for each in found)
            raise RunFailed(f"budgets are not equal: {trials} trials; some failed: see `bench studies`")
        for each in found:
            tuned.remember(each, store)
        names = {each.study.spec.opt: each.study.name for each in found}
        fresh = {each.study.spec.opt: [run.run_id for run in each.fresh] for each in found}
        settle(k, "done", studies=names, fresh=fresh, done=now())
    return True


def stored(ladder: Ladder, store: Path) -> LadderRecord:
    """The ladder's stored record; one without rungs if it does not exist.

    Raises:
        RunFailed: the stored record is damaged.
    """
    fresh = ladder.record([])
    try:
        return read_report(fresh.places(store)[0], LadderRecord)
    except FileNotFoundError:
        return fresh
    except Damaged as error:
        raise RunFailed(f"{error}; move it away; the same command rebuilds it from stored runs") from None


def begun(ladder: Ladder, sizes: Sequence[Size], store: Path) -> LadderRecord:
    """The ladder's stored record, extended if more rungs are requested; created if it does not exist.

    Raises:
        RunFailed: the stored record is damaged, or the disk is full.
    """
    fresh, there = ladder.record(sizes), stored(ladder, store)
    if len(there.rungs) < len(sizes):
        there = replace(there, rungs=[*there.rungs, *fresh.rungs[len(there.rungs) :]])
        there.write(store)
    return there


def winners_of(record: LadderRecord, k: int, store: Path) -> dict[str, Words]:
    """Winning values of the searched settings at a rung, by optimizer, without optimizers that have no winner.

    Raises:
        RunFailed: the record of a study is missing in the store, or damaged.
    """
    found: dict[str, Words] = {}
    for opt, name in record.rungs[k]["studies"].items():
        path = study_path(store, name)
        try:
            point = read_report(path, StudyRecord).winning_point
        except (FileNotFoundError, Damaged) as error:
            why = error if isinstance(error, Damaged) else f"{path} is missing"
            raise RunFailed(f"{why}; it contains the winners of rung {k + 1}; restore it") from None
        if point is not None:
            found[opt] = point
    return found
