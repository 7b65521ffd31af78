"""A ladder and its rungs: their studies, one after the other.

A rung is a suite of one task at one size. The winning settings of the previous rung are the centres of its ranges, so a
rung depends only on earlier rungs.
"""

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.errors import RunFailed, UserError
from bench.grammar.values import typed
from bench.ladder.findings import predicted, read_ladder
from bench.ladder.sizes import Rule, Size, in_words
from bench.store.record import now
from bench.store.reports import LadderRecord, LadderRung, StudyRecord, read_report
from bench.store.stores import Stores
from bench.text import plain
from bench.tuning import tuned
from bench.tuning.design import Sampler
from bench.tuning.studies import Studies
from bench.tuning.study import Study
from bench.tuning.study_result import StudyResult, study_result
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
        margin: decades on either side of the previous rung's winner that later rungs search.
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
    def declared(self) -> dict[str, Any]:
        """All settings that determine its results and have no field in the record."""
        return plain(
            {
                "settings": dict(self.words),
                "own": {name: dict(own) for name, own in self.own.items()},
                "ratio": self.rule.ratio,
                "tokens": self.rule.tokens,
                "start": self.rule.start,
                "trials": self.trials,
                "margin": self.margin,
                "sampler": self.sampler,
                "prune": self.prune,
                "seeds": self.seeds,
                "fresh": self.fresh,
            }
        )

    @property
    def name(self) -> str:
        """`TASK-ladder-HASH`; it does not depend on the number of rungs."""
        text = json.dumps([self.task, self.opts, self.reference, self.rule.axis, self.declared], sort_keys=True)
        return f"{slug(self.task)}-ladder-{hashlib.sha256(text.encode()).hexdigest()[:8]}"

    def record(self, sizes: Sequence[Size]) -> LadderRecord:
        """Its record before training."""
        rungs: list[LadderRung] = [
            {
                "at": size.at,
                "parameters": size.parameters,
                "steps": size.steps,
                "settings": plain(size.settings),
                "predicted": None,
                "studies": {},
                "fresh": {},
                "done": "",
            }
            for size in sizes
        ]
        return LadderRecord(
            self.name,
            self.task,
            self.opts,
            self.reference,
            self.rule.axis,
            self.declared,
            in_words(self.rule, {**self.words, "task": self.task}),
            now(),
            rungs,
        )

    def suite(self, size: Size | LadderRung, winners: Mapping[str, Words], places: Words) -> Suite:
        """The suite of a rung.

        Args:
            size: of the rung.
            winners: winning values of the searched settings at the previous rung, by optimizer; empty at the first.
            places: paths of data and store.

        Raises:
            UserError: a setting is illegal, or budgets cannot be made equal.
        """
        settings = size["settings"] if isinstance(size, dict) else size.settings
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
        centred = {spec.opt: _centred(spec, winners.get(spec.opt), self.margin) for spec in specs}
        return self._suite(settings, centred, trials)

    def _suite(self, settings: Words, centred: Mapping[str, Words], trials: int | None) -> Suite:
        return Suite(
            title=f"ladder {self.name}",
            tasks={self.task: dict(settings)},
            optimizers={name: {**self.own[name], **centred.get(name, {})} for name in self.opts},
            settings=dict(self.words),
            tune=Tune(trials=trials, seeds=self.seeds, sampler=self.sampler, prune=self.prune),
            seeds=self.fresh,
        )


def _centred(spec: StudySpec, winner: Words | None, margin: float) -> dict[str, str]:
    """Ranges around a winner; without one the ranges stay."""
    around = {name: winner[name] for name in spec.design.ranges if winner is not None}
    return {name: f"{typed(x / 10**margin):g}:{typed(x * 10**margin):g}" for name, x in around.items()}


# -- execution --------------------------------------------------------------------------------------------------------


def climb(
    ladder: Ladder,
    sizes: Sequence[Size],
    studies: Studies,
    places: Mapping[str, Path],
    train: Callable[[Suite], list[Study] | None],
    say: Callable[[str], object],
) -> bool:
    """Train the rungs in order, each after its prediction; False if a signal asked to stop.

    Stored runs are not trained again. A completed rung never changes.

    Args:
        ladder: the ladder.
        sizes: of its rungs.
        studies: the database of its studies.
        places: paths of data and store.
        train: runs a suite; returns None if it was stopped.
        say: shows a line of progress.

    Raises:
        UserError: a run cannot be trained; finished runs are stored.
        RunFailed: budgets turned out unequal, or the disk is full.
    """
    store = places["store"]
    for k, size in enumerate(sizes):
        with studies.lock():
            record = begun(ladder, sizes, store)
        rung = record.rungs[k]
        if rung["done"]:
            continue
        if k and rung["predicted"] is None:
            said = predicted(record, Stores([store]), k)
            with studies.lock():  # another process may have been faster
                record = begun(ladder, sizes, store)
                if record.rungs[k]["predicted"] is None:
                    record.rungs[k]["predicted"] = said
                    record.write(store)
        suite = ladder.suite(rung, winners_of(record, k - 1, store) if k else {}, places)
        say(f"rung {k + 1} of {len(sizes)}: {size.parameters:,} parameters, {size.steps:,} steps")
        done = train(suite)
        if done is None:
            return False
        found = [study_result(study) for study in done]
        _refuse_unequal(found)
        for each in found:
            tuned.remember(each, store)
        with studies.lock():
            record = begun(ladder, sizes, store)
            if not record.rungs[k]["done"]:
                rung = record.rungs[k]
                rung["studies"] = {each.study.spec.opt: each.study.name for each in found}
                rung["fresh"] = {each.study.spec.opt: [run.run_id for run in each.fresh] for each in found}
                rung["done"] = now()
                record.write(store)
    return True


def _refuse_unequal(found: Sequence[StudyResult]) -> None:
    """Refuse to continue if optimizers had different budgets.

    Raises:
        RunFailed: the budgets differ.
    """
    trials = {each.study.spec.opt: len(each.trials) for each in found}
    if len({*trials.values()}) > 1 or any(each.missing for each in found):
        shown = ", ".join(f"{name} {count}" for name, count in trials.items())
        raise RunFailed(f"budgets are not equal: {shown} trials; some failed: see `bench studies`")


def begun(ladder: Ladder, sizes: Sequence[Size], store: Path) -> LadderRecord:
    """The ladder's stored record, extended if more rungs are requested; created if it does not exist.

    Raises:
        RunFailed: the stored record is damaged, or the disk is full.
    """
    fresh = ladder.record(sizes)
    try:
        there = read_ladder(fresh.places(store)[0])
    except FileNotFoundError:
        there = None
    if there is None:
        fresh.write(store)
        return fresh
    if len(there.rungs) < len(sizes):
        there = replace(there, rungs=[*there.rungs, *fresh.rungs[len(there.rungs) :]])
        there.write(store)
    return there


def winners_of(record: LadderRecord, k: int, store: Path) -> dict[str, Words]:
    """Winning values of the searched settings at a rung, by optimizer, without optimizers that have no winner.

    Raises:
        RunFailed: the record of a study is missing in the store.
    """
    found: dict[str, Words] = {}
    for opt, name in record.rungs[k]["studies"].items():
        path = store / "studies" / f"{name}.json"
        try:
            study = read_report(path, StudyRecord)
        except FileNotFoundError:
            raise RunFailed(f"{path} is missing; it contains the winners of rung {k + 1}; restore it") from None
        for trial in study.trials:
            if study.winner is not None and study.winner in trial["runs"]:
                found[opt] = trial["point"]
    return found
