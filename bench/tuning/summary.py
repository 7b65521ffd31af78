"""Results of studies, as text and as JSON."""

from collections.abc import Sequence
from typing import Any

from bench.results.group import Group
from bench.results.render import shown
from bench.results.selection import score_text
from bench.results.table import Table
from bench.sweeps import sensitivity
from bench.text import options_text, plain
from bench.tuning.study import StudyResult


def result_lines(results: Sequence[StudyResult]) -> list[str]:
    """A table of the studies of each task, with failures."""
    lines: list[str] = []
    for task in dict.fromkeys(result.spec.task for result in results):
        of_task = [result for result in results if result.spec.task == task]
        metric, rows, failed = of_task[0].measure.words, [], []
        for result in of_task:
            best = "none" if result.best is None else options_text(result.best.point)
            score = None if result.score is None else score_text(result.score, result.spec.metric)
            trials = f"{len(result.trials)} of {len(result.trials) + result.missing}"
            fresh, gradients = result.measure.mean(Group.of(result.fresh)), sum(run.cost for run in result.runs)
            rows.append(
                (
                    result.spec.opt,
                    trials,
                    best,
                    score,
                    fresh,
                    "yes" if result.record.lr_at_boundary else "no",
                    f"{gradients:,}",
                )
            )
            failed += [f"{options_text(trial.point)}: {trial.reason}" for trial in result.trials if not trial.runs]
            failed += [f"fresh seed {seed}: {reason}" for seed, reason in result.fresh_failed.items()]
        heads = ["optimizer", "trials", "best", f"selection {metric}", f"fresh seeds: {metric} [95 % t-interval]"]
        table = shown(Table.of([*heads, "at edge", "gradients"], rows))
        lines += [task, *table, *(f"failed: {reason}" for reason in failed), ""]
    return lines


def lines(result: StudyResult) -> list[str]:
    """The results of one study for a terminal."""
    curves = sensitivity.lines(result.analyse()) if result.runs else []
    return [*curves, "", f"study {result.study.name}", *result_lines([result])[:-1]]


def as_json(result: StudyResult) -> dict[str, Any]:
    """The results in a form for strict JSON; costs are seconds of training and gradients of a batch."""
    record, fresh, mean = result.record, Group.of(result.fresh), result.measure.mean(Group.of(result.fresh))
    low, high = (None, None) if mean is None else mean.ends
    seeds = {"seeds": [run.config["seed"] for run in result.fresh], "values": result.measure.values(fresh)}
    cost = {
        f"{kind}_{what}": round(sum(getattr(run, name) for run in runs), 1)
        for kind, runs in (("trial", result.runs), ("fresh", result.fresh))
        for what, name in (("seconds", "wall_s"), ("gradient_evaluations", "cost"))
    }
    return plain(
        {"study": record.name, "task": record.task, "opt": record.opt, "sampler": record.sampler}
        | {"trials": len(record.trials), "missing": record.missing}
        | {"best": record.best and record.best["point"], "score": result.score}
        | {"fresh": seeds | {"mean": mean and mean.mean, "low": low, "high": high}}
        | {"lr_at_boundary": record.lr_at_boundary, "cost": cost, "tried": record.trials}
    )
