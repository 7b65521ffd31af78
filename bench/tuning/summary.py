"""Results of a study, as text and as JSON."""

from collections import Counter
from typing import Any

from bench.results.group import Group
from bench.results.render import shown
from bench.results.selection import cap_share, score_text
from bench.results.table import Table
from bench.sweeps import sensitivity
from bench.text import counted, duration, options_text, plain, seeds_in_words
from bench.tuning.space import point_key
from bench.tuning.study import StudyResult


def lines(result: StudyResult) -> list[str]:
    """The table for a terminal."""
    spec, best, cost = result.spec, result.best, cost_of(result)
    kinds = Counter(f"by {trial.kind}" for trial in result.trials if trial.kind != "design")
    kinds |= {"failed": sum(not trial.runs for trial in result.trials), "not done yet": result.missing}
    counts = [f"{counted(len(result.trials), 'trial')} of {counted(len(spec.seeds), 'seed')}"]
    counts += [f"{n} {what}" for what, n in kinds.items() if n]
    facts = [("study", f"{result.study.name}: {', '.join(counts)}")]
    if best is None:
        facts.append(("best", "none: no trial has a score"))
    else:
        score = "-" if result.score is None else score_text(result.score, spec.metric)
        kind = "" if best.kind == "design" else f" ({best.kind})"
        select = f"selection {spec.metric}{result.metric_suffix} {score}, median of seeds {seeds_in_words(spec.seeds)}"
        facts.append(("best", f"{options_text(best.point)}{kind}: {select} (optimistic)"))
        facts.append(("fresh", _fresh(result)))
        edge = "yes: the optimum may be outside the tried values" if result.lr_at_boundary else "no"
        facts.append(("edge", f"lr_at_boundary: {edge}"))
    trials = f"trials {duration(cost['trial_seconds'])} and {cost['trial_gradient_evaluations']:,} gradient evaluations"
    fresh = f"fresh seeds {duration(cost['fresh_seconds'])} and {cost['fresh_gradient_evaluations']:,}"
    facts += [("cost", f"{trials} (of a batch), {fresh}"), *(("note", note) for note in _notes(result))]
    return [*(sensitivity.lines(result.analyse()) if result.runs else []), "", *shown(Table.facts(facts, least=7))]


def _notes(result: StudyResult) -> list[str]:
    notes = [f"not the whole task: {part}" for part in sorted({run.part for run in result.runs if run.part})]
    if result.study.trials < 9:
        few = counted(result.study.trials, "trial")
        notes.append(f"{few}: a small design; results for publication take 9 or more (our rule)")
    for name, axis in result.spec.design.ranges.items():
        value = axis.middle if result.best is None else result.best.point[name]
        if not axis.low <= value <= axis.high:
            notes.append(f"{name} {value:g} is outside of {axis.low:g}:{axis.high:g}; the grid is centred there")
    notes += [f"{options_text(trial.point)} failed: {trial.reason}" for trial in result.trials if not trial.runs]
    notes += [f"fresh seed {seed} failed: {reason}" for seed, reason in result.fresh_failed.items()]
    saturated = sum(run.saturated_at is not None for run in result.fresh)
    return notes + [sensitivity.SATURATED] * (2 * saturated >= max(1, len(result.fresh)))


def _fresh(result: StudyResult) -> str:
    if not result.fresh:
        return "none yet"
    split = f"{result.fresh[0].split} {result.fresh[0].metric}{result.metric_suffix}"
    seeds = seeds_in_words([run.config["seed"] for run in result.fresh])
    interval = result.fresh_interval
    if interval is None:
        lost = result.measure.values(Group.of(result.fresh)).count(None)
        return f"{split}: {lost} of {len(result.fresh)} runs diverged or have no value (seeds {seeds})"
    ends = f", 95 % t-interval [{interval.low:.4g}, {interval.high:.4g}]" if interval.n > 1 else ": no interval"
    left = len(result.spec.report_seeds) - interval.n - len(result.fresh_failed)
    mean = f"{'geometric mean ' * result.measure.log}{interval.mean:.4g}{ends}"
    return f"{split} {mean} (seeds {seeds})" + f", {left} not done yet" * bool(left)


def cost_of(result: StudyResult) -> dict[str, float]:
    """Seconds of training and batch gradients (optimizer steps), of the trials and of the fresh seeds."""
    return {
        f"{kind}_{what}": round(sum(getattr(run, name) for run in runs), 1)
        for kind, runs in (("trial", result.runs), ("fresh", result.fresh))
        for what, name in (("seconds", "wall_s"), ("gradient_evaluations", "steps"))
    }


def as_json(result: StudyResult) -> dict[str, Any]:
    """The results in a form for strict JSON."""
    interval = result.fresh_interval
    low, high = (None, None) if interval is None else interval.ends
    tried = [
        {"point": t.point, "kind": t.kind, "state": "completed" if t.runs else "failed"}
        | {"score": result.scores.get(point_key(t.point)), "cap_share": cap_share(t.runs)}
        for t in result.trials
    ]
    fresh = {
        "seeds": [run.config["seed"] for run in result.fresh],
        "values": result.measure.values(Group.of(result.fresh)),
    }
    return plain(
        {"study": result.study.name, "task": result.spec.task, "opt": result.spec.opt, "sampler": result.spec.sampler}
        | {"trials": len(result.trials), "missing": result.missing}
        | {"best": None if result.best is None else result.best.point, "score": result.score}
        | {"fresh": fresh | {"mean": interval and interval.mean, "low": low, "high": high}}
        | {"lr_at_boundary": result.lr_at_boundary, "cost": cost_of(result), "tried": tried}
    )
