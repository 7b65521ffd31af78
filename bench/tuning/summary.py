"""Results of a study, as text and as JSON."""

from collections import Counter
from typing import Any

from bench.results.render import shown
from bench.results.selection import cap_share, score_text
from bench.results.table import Table
from bench.sweeps import sensitivity
from bench.text import counted, duration, options_text, plain, seeds_in_words
from bench.tuning.space import point_key
from bench.tuning.study import StudyResult
from optimizers import LogUniform


def lines(result: StudyResult) -> list[str]:
    """The table for a terminal."""
    spec, best = result.spec, result.best
    added = [f"{n} by {kind}" for kind, n in result.added.items()]
    states = Counter(trial.state for trial in result.trials)
    counts = f"{counted(len(result.trials), 'trial')} of {counted(len(spec.seeds), 'seed')}"
    counts += f" ({', '.join(added)})" * bool(added)
    more = [
        (states["failed"], "failed"),
        (result.missing, "not done yet"),
    ]
    facts = [("study", f"{result.study.name}: {', '.join([counts, *(f'{n} {what}' for n, what in more if n)])}")]
    if best is None:
        facts.append(("best", "none: no trial has a score"))
    else:
        select = f"selection {spec.metric}{result.metric_suffix}"
        kind = "" if best.kind == "design" else f" ({best.kind})"
        score = "-" if result.score is None else score_text(result.score, spec.metric)
        chosen = f"{score}, median of seeds {seeds_in_words(spec.seeds)} (optimistic)"
        facts.append(("best", f"{options_text(best.point)}{kind}: {select} {chosen}"))
        facts.append(("fresh", _fresh(result)))
        edge = "yes: the optimum may be outside the tried values" if result.lr_at_boundary else "no"
        facts.append(("edge", f"lr_at_boundary: {edge}"))
    cost = result.cost
    trials = f"trials {duration(cost['trial_seconds'])} and {cost['trial_gradient_evaluations']:,} gradient evaluations"
    fresh = f"fresh seeds {duration(cost['fresh_seconds'])} and {cost['fresh_gradient_evaluations']:,}"
    facts.append(("cost", f"{trials} (of a batch), {fresh}"))
    facts += [("note", note) for note in _notes(result)]
    return [*(sensitivity.lines(result.analyse()) if result.runs else []), "", *shown(Table.facts(facts, least=7))]


def _notes(result: StudyResult) -> list[str]:
    notes = []
    for part in sorted({run.part for run in result.runs if run.part}):
        notes.append(f"not the whole task: {part}")
    if result.study.trials < 9:
        notes.append(
            f"{counted(result.study.trials, 'trial')}: a small design; results for publication take 9 or more"
            " (our rule)"
        )
    for name, axis in result.spec.axes.items():
        value = result.best.point[name] if result.best is not None else None
        if isinstance(axis, LogUniform) and value is not None and not axis.low <= value <= axis.high:
            notes.append(
                f"{name} {value:g} is outside of {axis.low:g}:{axis.high:g}; the grid is centred on that range"
            )
    for trial in result.trials:
        if trial.state == "failed":
            notes.append(f"{options_text(trial.point)} {trial.state}: {trial.reason}")
    notes += [f"fresh seed {seed} failed: {reason}" for seed, reason in result.fresh_failed.items()]
    if 2 * sum(run.saturated_at is not None for run in result.fresh) >= max(1, len(result.fresh)):
        notes.append(sensitivity.SATURATED)
    return notes


def _fresh(result: StudyResult) -> str:
    spec = result.spec
    if not result.fresh:
        return "none yet"
    split = f"{result.fresh[0].split} {result.fresh[0].metric}{result.metric_suffix}"
    seeds = seeds_in_words([run.config["seed"] for run in result.fresh])
    interval = result.fresh_interval
    if interval is None:
        lost = result.fresh_values.count(None)
        return f"{split}: {lost} of {len(result.fresh)} runs diverged or have no value (seeds {seeds})"
    wide = (
        f", 95 % t-interval [{interval.low:.4g}, {interval.high:.4g}]" if interval.n > 1 else ": one run, no interval"
    )
    left = len(spec.report_seeds) - interval.n - len(result.fresh_failed)
    mean = "geometric mean " * result.measure.log
    return f"{split} {mean}{interval.mean:.4g}{wide} (seeds {seeds})" + f", {left} not done yet" * bool(left)


def as_json(result: StudyResult) -> dict[str, Any]:
    """The results in a form for strict JSON."""
    spec, interval = result.spec, result.fresh_interval
    return plain(
        {
            "study": result.study.name,
            "task": spec.task,
            "opt": spec.opt,
            "sampler": spec.sampler,
            "trials": len(result.trials),
            "missing": result.missing,
            "best": None if result.best is None else result.best.point,
            "score": result.score,
            "fresh": {
                "seeds": [run.config["seed"] for run in result.fresh],
                "values": result.fresh_values,
                "mean": interval and interval.mean,
                "low": interval and interval.ends[0],
                "high": interval and interval.ends[1],
            },
            "lr_at_boundary": result.lr_at_boundary,
            "cost": result.cost,
            "tried": [
                {
                    "point": t.point,
                    "kind": t.kind,
                    "state": t.state,
                    "score": result.scores.get(point_key(t.point)),
                    "cap_share": cap_share(t.runs),
                }
                for t in result.trials
            ],
        }
    )
