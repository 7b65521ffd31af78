"""Presentation of a ladder's findings: tables, charts, and the verdict in words."""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np

from bench.boards.explain import tried
from bench.boards.shared import lost
from bench.ladder.findings import Findings, Method, Rung, Score, extrapolated, intervals, scores, was_before
from bench.ladder.sizes import MODEL
from bench.ladder.statistics import StepRatio, Trend
from bench.process import as_options
from bench.results.chart import Chart, Panel, Trace
from bench.results.selection import USABLE_FACTOR, USABLE_SHARE
from bench.results.stats import Interval, exp
from bench.results.table import Board, Column, Table
from bench.store.record import made_on
from bench.text import cell, counted, duration, listed, word_of

UNITS = dict.fromkeys(MODEL, "parameters") | {"epochs": "steps", "data": "training samples"}
"""The unit of each axis."""


def factor(of: Interval) -> Interval:
    """A ratio from its logarithm."""
    return replace(of, mean=exp(of.mean), low=exp(of.low), high=exp(of.high))


def size(at: float) -> str:
    """A size as short text: 26.7 k, 1.2 M."""
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if at >= 0.9995 * unit:  # which is rounded to it
            return f"{at / unit:.3g} {letter}"
    return f"{at:g}"


def _unit(found: Findings) -> str:
    return UNITS[found.record.axis]


# -- tables -----------------------------------------------------------------------------------------------------------


def boards(found: Findings) -> list[Board]:
    """All tables."""
    rungs = Board("rungs", "Rungs", [_rungs(found)], _notes(found))
    if not found.rungs:
        return [rungs]
    return [
        Board("efficiency", "Steps at equal loss", [_efficiency(found), _trends(found)]),
        Board("predictions", "Predictions, made before their rung and scored after it", [_predictions(found)]),
        Board("ranking", "Ranking at each rung", [_ranking(found), _losses(found)]),
        Board("settings", "How settings change with size", [_settings(found), _tried(found)]),
        rungs,
    ]


def _at(rung: Rung) -> str:
    return f"rung {rung.number}: {size(rung.record['at'])}"


def _efficiency(found: Findings) -> Table:
    reference = found.record.reference
    columns = [Column("opt", "optimizer", "name")]
    help_ = f"steps relative to {reference} at equal loss; below 1 is better"
    columns += [Column(f"rung {rung.number}", _at(rung), help_, 3) for rung in found.rungs]
    rows, reasons = list[dict[str, Any]](), dict[str, None]()
    for opt in found.others:
        row: dict[str, Any] = {"opt": opt}
        for rung in found.rungs:
            of, key = rung.ratios.get(opt, f"{opt}: its study is not in the store"), f"rung {rung.number}"
            row[key] = factor(of.interval) if isinstance(of, StepRatio) else None
            if isinstance(of, str):
                reasons[f"{key}: {of}"] = None
            elif of.beyond:
                reasons[f"{key}: {opt}: {_beyond(of)}"] = None
        rows.append(row)
    notes = [
        *reasons,
        "Each fresh seed has a ratio, at the worse of the two final losses on the selection split; curves are"
        " interpolated over the logarithm of the step. The value is the Hodges-Lehmann estimate over seeds. The"
        " interval is that of the median by order statistics; it covers 95 % for any distribution (93.75 % with five"
        " seeds). Its end is infinite or zero if it is beyond the evaluations, or if a seed diverged",
    ]
    return Table(f"steps against tuned {reference}", columns, rows, notes)


def _beyond(of: StepRatio) -> str:
    """What seeds beyond the evaluations mean for a ratio."""
    seeds = f"seeds with a ratio beyond the evaluations, or diverged: {of.beyond} of {of.interval.n}"
    if math.isinf(of.estimate.error):
        what = "a bound" if of.interval.bound else "the median"
        return f"{seeds}; the value is {what}, and trends and later predictions leave it out"
    return f"{seeds}; the value does not depend on how far, and its error counts them at the first evaluation"


def _trends(found: Findings) -> Table:
    columns = [
        Column("opt", "optimizer", "name"),
        Column("trend", "factor per decade", "change of the ratio of steps when the size grows tenfold", 3),
        Column("called", "trend", "whether the 95 % interval excludes 1"),
        Column("misfit", "misfit", "p-value of the scatter around the line, if only seeds vary", 2),
    ]
    trends = {opt: of for opt in found.others if (of := found.trend(opt))}
    rows = [(opt, factor(of.slope), _called(found, opt, of), of.misfit) for opt, of in trends.items()]
    wide = ", ".join(opt for opt, of in trends.items() if of.widened)
    notes = [f"{wide}: rungs scatter more than seeds explain, so the interval comes from their scatter"] * bool(wide)
    if any(len(found.estimates(opt)[0]) == 2 for opt in trends):
        notes.append("a line through two rungs has no residuals, so its interval includes only the noise of seeds")
    if trends:
        notes.append(
            "of the intervals that come from seeds alone, 5 % exclude 1 if the true factor is 1 and tuning adds no"
            " noise, and more if it does"
        )
    return Table.of(columns, rows, "trend of the ratio of steps", notes)


def _called(found: Findings, opt: str, of: Trend) -> str:
    """The trend in words, by the ratios of steps at the first and last rung that count in it."""
    if of.slope.low <= 0 <= of.slope.high:
        return "none found"
    led, leads = (found.estimates(opt)[1][k].value < 0 for k in (0, -1))
    if led != leads:
        said = "from lead to lag" if led else "from lag to lead"
    else:
        said = f"its {'lead' if leads else 'lag'} {'grows' if (of.slope.mean < 0) == leads else 'shrinks'}"
    return said + ", if only seeds vary" * (not of.widened)


def _predictions(found: Findings) -> Table:
    columns = [
        Column("rung", "rung", "predicted from the rungs before it"),
        Column("opt", "optimizer", "name"),
        Column("said", "predicted", "ratio of steps, with the 95 % prediction interval", 3),
        Column("measured", "measured", "ratio of steps, with its interval", 3),
        Column("held", "held", "whether the prediction interval contains the measured ratio"),
        Column("made", "made", "when the prediction was written, in UTC"),
        Column("begun", "first run began", "of the rung, in UTC"),
    ]
    rows, notes = list[dict[str, Any]](), list[str]()
    for rung in found.rungs:
        said = rung.record["predicted"]
        if said is None:
            continue
        for each in scores(rung):
            row: dict[str, Any] = {"rung": rung.number, "opt": each.opt, "said": factor(each.said)}
            measured = each.measured and factor(each.measured)
            rows.append(row | {"measured": measured, "held": each.held, "made": said["made"], "begun": rung.begun})
        if said["order"]:
            order, measured = ", ".join(said["order"]), rung.ordered(opt for opt in said["order"] if opt in rung.losses)
            same = "as measured" if measured == order else f"measured {measured}"
            notes.append(f"rung {rung.number}: predicted order {order}; {same}")
        if not was_before(rung):
            notes.append(f"rung {rung.number}: it had runs before the prediction, which therefore does not count")
        if different := _different(found, rung):
            notes.append(
                f"rung {rung.number}: this version predicts {different} from the stored runs; the prediction in the"
                " record is from an earlier version, or from other runs"
            )
    for number, coming in enumerate(found.record.rungs, 1):
        if not coming["done"] and (said := coming["predicted"]):
            for opt, of in intervals(said).items():
                rows.append({"rung": number, "opt": opt, "said": factor(of), "made": said["made"]})
            break
    if held := _held(found):
        correct = sum(bool(each.held) for each in held)
        notes.insert(0, f"{correct} of {len(held)} measured ratios are within their prediction interval")
    if errors := _errors(found):
        line, same = map(exp, errors)
        notes.insert(
            1,
            f"lines through two or more rungs miss the measured ratio by a factor of {cell(line, 3)} (geometric mean);"
            f" the ratio of the previous rung misses it by {cell(same, 3)}",
        )
    return Table("ratio of steps, predicted from the rungs before", columns, rows, notes)


def _errors(found: Findings) -> tuple[float, float] | None:
    """Mean absolute errors of extrapolated lines, and of assuming no change since the last rung; of log ratios."""
    pairs = list[tuple[float, float]]()
    for k, rung in enumerate(found.rungs):
        before = replace(found, rungs=found.rungs[:k])
        for each in scores(rung) if was_before(rung) else ():
            used = before.estimates(each.opt)[1]
            if each.measured and not each.measured.bound and len(used) > 1:
                value = each.measured.mean
                pairs.append((abs(each.said.mean - value), abs(used[-1].value - value)))
    return tuple(np.mean(pairs, 0).tolist()) if pairs else None


def _different(found: Findings, rung: Rung) -> str:
    """The prediction of this version in words, where ratio or interval differ by more than 1 % from the record."""
    said, before = intervals(rung.record["predicted"]), [each for each in found.rungs if each.number < rung.number]
    today = intervals(extrapolated(replace(found, rungs=before), rung.record["at"]))
    words = list[str]()
    for opt in found.others:
        one, other = said.get(opt), today.get(opt)
        if one is None or other is None:
            same = one is other
        else:
            same = np.allclose(*([of.mean, of.low, of.high] for of in (one, other)), rtol=0, atol=0.01)
        if not same:
            words.append(f"{opt} {cell(factor(other), 3)}" if other else f"nothing for {opt}")
    return ", ".join(words)


def _held(found: Findings) -> list[Score]:
    """The measured predictions that held or did not, of the rungs that were predicted before they began."""
    return [each for rung in found.rungs if was_before(rung) for each in scores(rung) if each.held is not None]


def _ranking(found: Findings) -> Table:
    measure = found.rungs[-1].measure
    unit = "decades of loss" if measure.log else measure.words
    columns = [
        Column("rung", "rung", "number"),
        Column("at", _unit(found), "size on the axis", form=size),
        Column(
            "order", "order", "optimizers by the mean of their final metric, best first; =: equal means", wraps=False
        ),
        Column("tau", "Kendall's tau", "between this order and that of the last rung, with 95 % interval", 3),
        Column("chosen", "choice", "winner of this rung"),
        Column(
            "regret",
            f"regret ({unit})",
            "how much worse this choice is at the last rung than the last rung's winner",
            3,
        ),
        Column("cost", "cost", "training time up to this rung as a fraction of that of all rungs", 2),
    ]
    rows = list[tuple[Any, ...]]()
    for k, rung in enumerate(found.rungs):
        order, (chosen, regret) = rung.ordered(rung.losses), found.regret(k) or (None, None)
        rows.append((rung.number, rung.record["at"], order, found.agreement(k), chosen, regret, found.cost(k)))
    notes = list[str]()
    if found.final_from is not None:
        first, sure = found.final_from
        notes.append(
            f"the ranking equals that of the last rung from rung {first} on by means, from rung {sure} on by"
            " significant differences"
        )
    notes.append(
        "the interval of tau allows for pairs without significant difference (paired t-tests with Holm's"
        " correction); the interval of the regret stays valid although the same seeds choose the best method, the"
        " regret itself is overestimated if methods are equal"
    )
    if left := _not_ranked(found):
        notes.append(f"not in tau, regret and the final ranking: a fresh seed diverged or is missing at a rung: {left}")
    return Table.of(columns, rows, "order by final metric", notes)


def _not_ranked(found: Findings) -> str:
    return ", ".join(opt for opt in found.record.opts if opt not in found.ranked)


def _losses(found: Findings) -> Table:
    columns = [Column("opt", "optimizer", "name")]
    columns += [Column(f"rung {r.number}", _at(r), f"{r.measure.words}, mean over fresh seeds") for r in found.rungs]
    rows = list[dict[str, Any]]()
    for opt in found.record.opts:
        row: dict[str, Any] = {"opt": opt}
        for rung in found.rungs:
            method = rung.methods.get(opt)
            if method is not None and method.runs:
                row[f"rung {rung.number}"] = rung.measure.mean(method.fresh) or lost(method.fresh)
        rows.append(row)
    return Table(found.rungs[-1].measure.words, columns, rows)


def _settings(found: Findings) -> Table:
    columns = [
        Column("opt", "optimizer", "name"),
        Column("setting", "setting", "the first searched setting"),
        Column("best", "best by rung", "winning value"),
        Column("exponent", "exponent a", "of best ~ size^a, by least squares over the rungs, with 95 % interval", 2),
        Column(
            "usable",
            "usable decades",
            f"by rung: range around the best value with scores within {_near(found.rungs[-1])} of the best; >= if it"
            " reaches an end of the tried values",
        ),
        Column(
            "regrets",
            "worse with the previous setting",
            "by rung from the second: how much worse the previous rung's"
            " winning settings score, as a share of the best score; a factor for suboptimality gaps",
        ),
    ]
    transfers, above = {opt: found.transfer(opt) for opt in found.record.opts}, found.rungs[-1].above
    rows = [
        (opt, of.setting, _list(of.best), of.exponent, _list(map(_bounded, of.usable)), _list(of.regrets))
        for opt, of in transfers.items()
    ]
    notes = [
        "scores are those of the tuning seeds, which chose the best; “-” was not tried or diverged",
        f"usable decades: scores within {_near(found.rungs[-1])} of the best, >= up to an end of the tried values",
        f"worse with the previous setting: {'a factor, 1' if above else 'a share, 0'} if nothing is lost",
    ]
    return Table.of(columns, rows, "the first searched setting", notes)


def _tried(found: Findings) -> Table:
    """The tried values of all searched settings at each rung, and the chosen ones."""
    columns = ["optimizer", *(f"rung {rung.number}" for rung in found.rungs)]
    rows = [(opt, *(_searched(rung.methods.get(opt)) for rung in found.rungs)) for opt in found.record.opts]
    edges = [
        f"{opt} at rung {rung.number} ({listed(m.study.edges)})"
        for rung in found.rungs
        for opt, m in rung.methods.items()
        if m.study.edges
    ]
    notes = [f"chosen at the edge of the tried values: {', '.join(edges)}"] * bool(edges)
    return Table.of(columns, rows, "tried values of the searched settings, and the chosen ones in brackets", notes)


def _searched(method: Method | None) -> str | None:
    """Tried values and the chosen one of each searched setting, as text."""
    if method is None:
        return None
    chosen = {axis: f" ({word_of(value)})" for axis, value in method.point.items()}
    return "; ".join(f"{axis} {values}{chosen.get(axis, '')}" for axis, values in tried(method.study).items())


def _bounded(width: tuple[float, bool] | None) -> str | None:
    return width and f"{'>=' * width[1]}{cell(width[0], 3)}"


def _list(values: Iterable[float | str | None]) -> str:
    return ", ".join(cell(value, 3) for value in values)


def _rungs(found: Findings) -> Table:
    done = {rung.number: rung for rung in found.rungs}
    columns = [
        Column("rung", "rung", "number"),
        Column("parameters", "parameters", "of the model", form="{:,}".format),
        Column("steps", "steps", "of each run", form="{:,}".format),
        Column("settings", "settings", "of the rung"),
        Column("trials", "trials each", "settings tried by each optimizer"),
        Column("fresh", "fresh seeds", "runs of each winner"),
        Column("time", "training", "seconds of all runs"),
        Column("state", "finished", "in UTC"),
    ]
    rows = list[tuple[Any, ...]]()
    for number, rung in enumerate(found.record.rungs, 1):
        own = done.get(number)
        settings = " ".join(f"{name} {value}" for name, value in rung["settings"].items())
        methods = own.methods.values() if own else ()
        trials, fresh = {len(m.study.trials) for m in methods}, {len(m.runs) for m in methods}
        time, state = duration(own.seconds) if own else None, rung["done"] or "unfinished"
        rows.append((number, rung["parameters"], rung["steps"], settings, _span(trials), _span(fresh), time, state))
    return Table.of(columns, rows, "sizes and budgets")


def _span(numbers: Collection[int]) -> int | str | None:
    return " or ".join(map(str, sorted(numbers))) if len(numbers) > 1 else next(iter(numbers), None)


_SAMPLERS = {
    "grid": "a grid extends beyond an edge while the best point is there",
    "qmc": "each search is a Halton sequence, which never leaves its ranges; its first point is the winning value,"
    " at 1/2 of the first range, 1/3 of the second and 1/5 of the third",
}


def _notes(found: Findings) -> list[str]:
    declared, width = found.record.declared, f"{2 * found.record.declared['margin']:.3g}"
    settings = [("all optimizers", declared["settings"]), *declared["own"].items()]
    runs = [run for rung in found.rungs for m in rung.methods.values() for run in (*m.runs, *m.trials)]
    return [
        *(f"Settings of {whose}: {' '.join(as_options(own))}." for whose, own in settings if own),
        *found.record.rule,
        f"From the second rung on, ranges have {width} decades around the winning value of the previous rung, or fewer"
        f" where the optimizer refuses values; {_SAMPLERS[declared['sampler']]}. An optimizer without a winner keeps"
        " its ranges. At each rung all optimizers have the same number of trials.",
        *cut(found),
        *([f"Machines and versions: {made_on(runs)}."] if runs else []),
    ]


def cut(found: Findings) -> list[str]:
    """Reductions, in sentences."""
    lines, declared = list[str](), found.record.declared
    rungs = found.record.rungs
    if left := [f"{k} ({size(rung['at'])})" for k, rung in enumerate(rungs, 1) if not rung["done"]]:
        lines.append(f"Reduced: rung {', '.join(left)} of {len(rungs)} is not done; only its predictions are shown.")
    there = {rung.number for rung in found.rungs}
    if empty := [str(k) for k, rung in enumerate(rungs, 1) if rung["done"] and k not in there]:
        lines.append(f"Rung {', '.join(empty)} is not shown: no optimizer has a winner, or its fresh runs are missing.")
    if len(declared["seeds"]) < 2:
        lines.append("Reduced: trials have one seed, so the choice of winners has the noise of that seed.")
    if len(declared["fresh"]) < 5:
        lines.append(f"Reduced: {len(declared['fresh'])} fresh seeds, with which ratios have no intervals.")
    parts = sorted({run.part for rung in found.rungs for run in rung.runs if run.part})
    lines += [f"Reduced: {part}." for part in parts]
    if found.lost:
        lines.append(f"Missing in the store: {counted(found.lost, 'run')} of the record.")
    return lines


# -- charts -----------------------------------------------------------------------------------------------------------


def charts(found: Findings) -> dict[str, Chart]:
    """Efficiency against size; best settings against size; regret against cost."""
    return {"efficiency": _efficiency_chart(found), "settings": _settings_chart(found), "regret": _regret_chart(found)}


def _trace(
    name: str, points: Sequence[tuple[float, Interval]], most: float = math.inf, least: float = -math.inf
) -> Trace:
    """Intervals as a curve with a band; ends outside (least, most) are open."""
    x, y, low, high = np.array([(x, of.mean, of.low, of.high) for x, of in points]).T
    band = np.where(low > least, low, -math.inf), np.where(high < most, high, math.inf)
    return Trace(name, x, y, band, marks="all")


def _efficiency_chart(found: Findings) -> Chart:
    reference = found.record.reference
    factors = {opt: _factors(found, opt) for opt in found.others}
    traces = [_trace(opt, points, 1e6, 0) for opt, points in factors.items() if points]
    ends = np.array([min(found.sizes, default=1.0), max(found.sizes, default=10.0)])
    seeds = len(found.record.declared["fresh"])
    bands = [f"bands: {'93.75' if seeds == 5 else '95'} % interval over {seeds} fresh seeds"] * (seeds >= 5)
    if bands and any(np.isinf(end).any() for trace in traces for end in trace.band or ()):
        bands.append("a band that reaches the edge ends at 0 or infinity")
    if missing := [opt for opt in found.others if not factors[opt]]:
        bands.append(f"no ratio of {listed(missing)}")
    panel = Panel(
        "efficiency",
        f"steps at equal loss, per step of {reference}",
        _unit(found),
        f"steps / steps of {reference}",
        "xy",
        traces,
        "\n".join([*bands, f"below 1: fewer steps than {reference}"]),
        guides=[Trace(reference, ends, np.ones(2))] if traces else (),
    )
    return Chart([panel], {opt: opt for opt in found.record.opts}, columns=1)


def _settings_chart(found: Findings) -> Chart:
    traces, names = list[Trace](), dict[str, list[str]]()
    for opt in found.record.opts:
        of = found.transfer(opt)
        there = [(at, best) for at, best in zip(found.sizes, of.best, strict=True) if best]
        if there:
            traces.append(Trace(opt, *np.array(there).T, marks="all"))
            names.setdefault(of.setting, []).append(opt)
    panel = Panel(
        "settings",
        "selected setting",
        _unit(found),
        "first searched setting",
        "xy",
        traces,
        "settings: " * bool(names) + ", ".join(f"{setting} of {listed(opts)}" for setting, opts in names.items()),
    )
    return Chart([panel], {opt: opt for opt in found.record.opts}, columns=1)


def _regret_chart(found: Findings) -> Chart:
    costs = [found.cost(k) for k in range(len(found.rungs))]
    points = [(cost, of[1]) for k, cost in enumerate(costs) if cost is not None and (of := found.regret(k))]
    traces = [_trace("choice by a rung", points)] if any(of.high for _, of in points) else []
    words = found.rungs[-1].measure.words if found.rungs else "metric"
    panel = Panel(
        "regret",
        "regret of choosing by a cheap rung",
        "training time up to the rung / that of all rungs",
        f"regret in {words}",
        "x",
        traces,
        "bands: 95 % interval over fresh seeds",
    )
    return Chart([panel], {}, columns=1)


# -- words ------------------------------------------------------------------------------------------------------------


def verdict(found: Findings) -> list[str]:
    """The findings, in sentences."""
    if not found.rungs:
        return ["No rung is done yet."]
    if len(found.rungs) == 1:
        return ["One rung is done; a second one is needed to test predictions.", *_leads(found)]
    first, last, lines = found.rungs[0], found.rungs[-1], list[str]()
    if found.final_from is not None:
        before, after = (rung.places(found.ranked) for rung in (first, last))
        same = sum(before[opt] == after[opt] for opt in found.ranked)
        without = f"; without {left}" if (left := _not_ranked(found)) else ""
        lines.append(
            f"{same} of {len(found.ranked)} methods have the same rank at {size(first.record['at'])} and at"
            f" {size(last.record['at'])} {_unit(found)} (Kendall's tau of the rankings:"
            f" {cell(found.agreement(0), 3)}{without})."
        )
        means, sure = found.final_from
        whole = f"equals that of the last rung from rung {means} on"
        if means == last.number:
            whole = "of the last rung differs from that of the rung before"
        reversed_ = f"; no significant difference from rung {sure} on is reversed at the last rung"
        lines.append(f"The ranking by means {whole}{reversed_ * (sure < last.number)}.")
    lines += _leads(found)
    if regret := found.regret(0):
        (chosen, of), share = regret, found.cost(0)
        what = (
            f"{cell(of, 3)} {'decades of loss' if last.measure.log else last.measure.words}" if of.high else "nothing"
        )
        lines.append(
            f"The first rung chooses {chosen} and takes {cell(share and 100 * share, 2)} % of the training time of all"
            f" rungs; this choice loses {what} at the last rung."
        )
    lines += _carried_over(found)
    if held := _held(found):
        flat = " (from one rung, the prediction is that nothing changes)" * (len(found.rungs) == 2)
        spans = [exp(each.said.high - each.said.low) for each in held if each.held]
        wide = f"; their intervals have a median width of a factor of {cell(median(spans), 3)}" if spans else ""
        lines.append(f"Of {len(held)} predictions made before a rung, {len(spans)} were correct{flat}{wide}.")
    return lines


def _leads(found: Findings) -> list[str]:
    lines, reference = list[str](), found.record.reference
    for opt in found.others:
        if not (points := _factors(found, opt)):
            continue
        (first, begin), (last, end) = points[0], points[-1]
        text = f"{opt} needs {cell(begin, 3)} times the steps of {reference} at {size(first)}"
        if len(points) > 1:
            text += f" and {cell(end, 3)} at {size(last)}"
            used = found.estimates(opt)[0]
            if of := found.trend(opt):
                word = "change" if len(used) == 2 else "trend"
                left = [size(at) for at, _ in points if math.log10(at) not in used]
                some = f" without {listed(left)}" * bool(left)
                text += f"; {word}{some}: {_called(found, opt, of)} (factor {cell(factor(of.slope), 3)} per decade)"
        lines.append(text + ".")
    if lines:
        lines.append(
            "Intervals of ratios do not include the noise of tuning; those of trends do only where rungs scatter more"
            " than seeds explain."
        )
    return lines


def _carried_over(found: Findings) -> list[str]:
    """Whether the winning settings of a rung are good at the next one, in sentences."""
    within, worse, untried = list[str](), list[str](), dict[int, list[str]]()
    for opt in found.record.opts:
        regrets = [*zip(found.transfer(opt).regrets, found.rungs[1:], strict=True)]
        known = [of <= (USABLE_FACTOR if rung.above else USABLE_SHARE) for of, rung in regrets if of is not None]
        if known:
            (within if all(known) else worse).append(opt)
            for of, rung in regrets:
                if of is None:
                    untried.setdefault(rung.number, []).append(opt)
    if not within and not worse:
        return ["Whether settings carry over is unknown: no rung tried the winning settings of the previous one."]
    near = f"within {_near(found.rungs[-1])} of the best score"
    said = f"stay {near} for {listed(within)}" if within else f"do not stay {near} for {listed(worse)}"
    if within and worse:
        said += f", but not for {listed(worse)}"
    count = len(within) + len(worse)
    gaps = [f"at rung {k}{f' for {listed(opts)}' * (len(opts) < count)}" for k, opts in sorted(untried.items())]
    if never := [opt for opt in found.record.opts if opt not in (*within, *worse)]:
        gaps.append(f"at each rung for {listed(never)}")
    unknown = f" (unknown {'; '.join(gaps)})" if gaps else ""
    return [f"Winning settings of the previous rung {said}{unknown}."]


def _factors(found: Findings, opt: str) -> list[tuple[float, Interval]]:
    """Sizes of the rungs with a step ratio, and that ratio."""
    return [(at, factor(of.interval)) for at, of in found.ratios(opt)]


def _near(rung: Rung) -> str:
    return f"a factor of {USABLE_FACTOR:g}" if rung.above else f"{100 * USABLE_SHARE:g} %"
