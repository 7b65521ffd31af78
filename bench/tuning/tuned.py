"""What a study has found: the winner with its score on fresh seeds, what it cost, and the files that say so."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

from bench.config import read_yaml, resolve, settings_of
from bench.errors import UserError
from bench.options import optimizer_options
from bench.papers.reproduction import duration
from bench.report import CAP_SHARE_TO_REPORT
from bench.stats import Interval, t_interval
from bench.storage.files import disk_errors, plain, replacing, write_json
from bench.storage.record import RunResult
from bench.storage.store import Store
from bench.storage.stores import StudyRecord, study_path
from bench.sweeps import sensitivity
from bench.tuning.design import replay
from bench.tuning.progress import counted, spoken
from bench.tuning.selection import End, above_infimum, final_value
from bench.tuning.space import Range, point_key
from bench.tuning.study import Study
from bench.tuning.trials import StudySpec, Trial
from optimizers import OPTIMIZERS
from optimizers.plugins import slug
from tasks import TASKS


@dataclass(frozen=True)
class Outcome:
    """What a study, or a smaller budget replayed from it, has found.

    Attributes:
        study: where from.
        scored: the trials of the design that count, one for each point, in the order in which they were wanted.
        refined: those that TPE added.
        scores: of the points by `point_key`; None for those without one.
        best: the winner, or None if no trial has a score.
        fresh: the winner's runs on the fresh seeds that are there.
        fresh_failed: why others of them came to nothing, by seed.
        lr_at_boundary: whether the best value of the axis along which the design goes, most often lr, lies at the boundary of
            those tried.
        missing: points that the budget would have tried and the study has not.
    """

    study: Study
    scored: list[Trial]
    refined: list[Trial]
    scores: Mapping[str, End]
    best: Trial | None
    fresh: list[RunResult]
    fresh_failed: Mapping[int, str]
    lr_at_boundary: bool
    missing: int

    @property
    def runs(self) -> list[RunResult]:
        """All runs of the trials, without the fresh seeds."""
        return [run for trial in (*self.scored, *self.refined) for run in trial.runs]

    @property
    def score(self) -> End:
        """The winner's score on the seeds of the trials, which flatters it."""
        return None if self.best is None else self.scores[point_key(self.best.point)]

    @property
    def above_infimum(self) -> bool:
        """Whether scores and fresh values are losses above their infimum."""
        return above_infimum([*self.runs, *self.fresh])

    @property
    def fresh_values(self) -> list[End]:
        """The metric on the reporting split, by fresh seed; None for one that diverged."""
        return [final_value(run, self.above_infimum) for run in self.fresh]

    @property
    def fresh_interval(self) -> Interval | None:
        """Mean of the metric on the reporting split with a 95 % t-interval; None if a seed diverged or none is there."""
        values = [value for value in self.fresh_values if value is not None]
        return t_interval(values) if values and len(values) == len(self.fresh) else None

    @property
    def cost(self) -> dict[str, float]:
        """Seconds of training and gradients of a batch (optimizer steps), of the trials and of the fresh seeds.

        Attempts that came to nothing are left out.
        """
        return {
            "trial_seconds": round(sum(run.wall_s for run in self.runs), 1),
            "trial_gradient_evaluations": sum(run.steps for run in self.runs),
            "fresh_seconds": round(sum(run.wall_s for run in self.fresh), 1),
            "fresh_gradient_evaluations": sum(run.steps for run in self.fresh),
        }


def outcome(study: Study, budget: int | None = None) -> Outcome:
    """What a study has found.

    Args:
        study: any, finished or not.
        budget: what so many trials of the design would have found, from what is stored; without refinement.

    Raises:
        UserError: the budget is none, or greater than what is stored.
    """
    trials = study.trials()
    own = [trial for trial in trials if not trial.fresh]
    scores, least = study.scores(own)
    request, spec = study.request, study.spec
    if request.trials < 1:
        raise UserError(
            f"study {study.name} was made, and no trials were asked of it; `bench tune --resume {study.name}` begins it"
        )
    if budget is not None and not 1 <= budget <= request.trials:
        raise UserError(
            f"--budget {budget}: {study.name} has {request.trials} trials in its design; ask for 1 to {request.trials}"
        )
    total = request.total if budget is None else 0
    found = replay(spec.design, scores, spec.mode, least, request.trials if budget is None else budget, total)
    last = {
        point_key(trial.point): trial for trial in own if trial.state != "failed" or point_key(trial.point) in scores
    }
    scored = [last[each.key] for each in found.scored]
    refined = [] if budget is not None else [t for k, t in last.items() if t.kind == "refinement" and k in scores]
    best = study.best([*scored, *refined])
    winner = [trial for trial in trials if trial.fresh and best is not None and trial.point == best.point]
    fresh = sorted((trial for trial in winner if trial.state == "completed"), key=lambda trial: trial.seeds)
    failed = {trial.seeds[0]: trial.reason or "" for trial in winner if trial.state == "failed"}
    for trial in winner:
        if trial.state != "failed":
            failed.pop(trial.seeds[0], None)
    tried = [trial.point for trial in (*scored, *refined)]
    edge = best is not None and spec.design.at_boundary(tried, best.point)
    runs = [run for trial in fresh for run in trial.runs]
    return Outcome(study, scored, refined, scores, best, runs, failed, edge, len(found.missing))


def lines(found: Outcome, shown: sensitivity.Sensitivity | None) -> list[str]:
    """The table for a terminal."""
    spec, best = found.study.spec, found.best
    kinds = {kind: sum(trial.kind == kind for trial in found.scored) for kind in ("extension", "top-up")}
    added = [f"{n} by {kind}" for kind, n in kinds.items() if n]
    failed = sum(trial.state == "failed" for trial in found.scored)
    pruned = sum(trial.state == "pruned" for trial in found.scored)
    counts = f"{counted(len(found.scored), 'trial')} of {counted(len(spec.seeds), 'seed')}"
    counts += f" ({', '.join(added)})" * bool(added)
    more = [f"{len(found.refined)} refinements by TPE"] * bool(found.refined)
    more += [f"{failed} failed"] * bool(failed) + [f"{pruned} pruned (--prune)"] * bool(pruned)
    more += [f"{found.missing} not done yet"] * bool(found.missing)
    text = [
        *(sensitivity.lines(shown) if shown else []),
        "",
        f"study    {found.study.name}: {', '.join([counts, *more])}",
    ]
    if best is None:
        text.append("best     none: no trial has a score")
    else:
        select = f"selection {TASKS[spec.task].metric}{_above(found)}"
        kind = "" if best.kind == "design" else f" ({best.kind})"
        text.append(
            f"best     {spoken(best.point)}{kind}: {select} {found.score:.4g}, median of seeds {_seeds(spec.seeds)}, which flatters it"
        )
        text.append(f"fresh    {_fresh(found)}")
        edge = "yes: the optimum may lie outside of what was tried" if found.lr_at_boundary else "no"
        text.append(f"edge     lr_at_boundary: {edge}")
    cost = found.cost
    text.append(
        f"cost     trials {duration(cost['trial_seconds'])} and {cost['trial_gradient_evaluations']:,} gradient evaluations (of a batch),"
        f" fresh seeds {duration(cost['fresh_seconds'])} and {cost['fresh_gradient_evaluations']:,}"
    )
    text += [f"note     {note}" for note in _notes(found)]
    return text


def _notes(found: Outcome) -> list[str]:
    notes = []
    if found.best is not None and any((run.cap_share or 0) > CAP_SHARE_TO_REPORT for run in found.best.runs):
        notes.append(
            "the step cap bound on nearly all steps of the winner: it is SGD with a fixed step under another name"
        )
    for part in sorted({run.part for run in found.runs if run.part}):
        notes.append(f"not the whole task: {part}")
    if found.study.request.trials < 9:
        notes.append(
            f"{found.study.request.trials} trials are a small design; results for publication take 9 or more (our rule)"
        )
    for name, axis in found.study.spec.axes.items():
        value = found.best.point[name] if found.best is not None else None
        if isinstance(axis, Range) and value is not None and not axis.low <= value <= axis.high:
            notes.append(f"{name} {value:g} lies beyond {axis.low:g}:{axis.high:g}, around whose middle the grid lies")
    for trial in found.scored:
        if trial.state in ("failed", "pruned"):
            notes.append(f"{spoken(trial.point)} {trial.state}: {trial.reason}")
    notes += [f"fresh seed {seed} failed: {reason}" for seed, reason in found.fresh_failed.items()]
    return notes


def _fresh(found: Outcome) -> str:
    spec = found.study.spec
    if not found.fresh:
        return "none yet"
    split = f"{found.fresh[0].split} {found.fresh[0].metric}{_above(found)}"
    seeds = _seeds([run.config["seed"] for run in found.fresh])
    interval = found.fresh_interval
    if interval is None:
        diverged = sum(run.status == "diverged" for run in found.fresh)
        return f"{split}: {diverged} of {len(found.fresh)} runs diverged (seeds {seeds})"
    wide = (
        f", 95 % t-interval [{interval.low:.4g}, {interval.high:.4g}]" if interval.n > 1 else ": one run, no interval"
    )
    left = len(spec.report_seeds) - interval.n - len(found.fresh_failed)
    return f"{split} {interval.mean:.4g}{wide} (seeds {seeds})" + f", {left} still to come" * bool(left)


def _seeds(seeds: Sequence[int]) -> str:
    row = len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[-1] + 1))
    return f"{seeds[0]} to {seeds[-1]}" if row else ", ".join(map(str, seeds))


def _above(found: Outcome) -> str:
    return " above its infimum" * found.above_infimum


def as_json(found: Outcome) -> dict[str, Any]:
    """What was found, as strict JSON can hold it."""
    spec, interval = found.study.spec, found.fresh_interval
    return plain(
        {
            "study": found.study.name, "task": spec.task, "opt": spec.opt, "sampler": spec.sampler,
            "trials": len(found.scored), "refinements": len(found.refined), "missing": found.missing,
            "best": None if found.best is None else found.best.point, "score": found.score,
            "fresh": {
                "seeds": [run.config["seed"] for run in found.fresh], "values": found.fresh_values,
                "mean": interval and interval.mean, "low": interval and _finite(interval.low), "high": interval and _finite(interval.high),
            },
            "lr_at_boundary": found.lr_at_boundary, "cost": found.cost, "pruning": spec.prune,
            "tried": [
                {"point": t.point, "kind": t.kind, "state": t.state, "score": found.scores.get(point_key(t.point))}
                for t in (*found.scored, *found.refined)
            ],
        }
    )  # fmt: skip


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def tuned_yaml(found: Outcome) -> str:
    """The winner as `configs/tuned/<task>/<optimizer>.yaml` holds it, with where it comes from.

    Raises:
        UserError: there is no winner.
    """
    import yaml

    if found.best is None:
        raise UserError(f"study {found.study.name}: no trial has a score, so there is nothing to write")
    spec, run = found.study.spec, found.best.runs[0]
    defaults = {f"opt.{option.name}": option.default for option in optimizer_options(OPTIMIZERS[spec.opt]).values()}
    fixed = {k: v for k, v in spec.settings.items() if k.startswith("opt.") and v != plain(defaults.get(k))}
    # Parsed once more by the run, so that numbers are numbers.
    values = {name: run.config["opt_options"][name[4:]] for name in (*fixed, *found.best.point)}
    machine = ", ".join(
        filter(
            None,
            (
                run.environment.get("gpu") or run.environment.get("cpu"),
                f"{run.environment.get('threads')} threads a run",
            ),
        )
    )
    kinds = {
        kind: sum(t.kind == kind for t in (*found.scored, *found.refined))
        for kind in ("extension", "top-up", "refinement")
    }
    interval, cost = found.fresh_interval, found.cost
    settings = {k: v for k, v in spec.settings.items() if v is not None and not k.startswith("opt.")}
    content = {
        "task": spec.task,
        "opt": {"name": spec.opt} | {name[4:]: value for name, value in values.items()},
        "provenance": {
            "study": found.study.name,
            "found": f"{date.today()}, torch {run.versions.get('torch')}, lightning {run.versions.get('lightning')}, {machine}",
            "versions": {
                name: run.versions[name]
                for name in ("task", "opt", "task_package", "opt_package")
                if name in run.versions
            },
            "engine": ", ".join(sorted({run.engine for run in found.runs})),
            "how": f"bench tune: {'half-decade log grid' if spec.sampler == 'grid' else 'Halton sequence'}; score: median over the tuning seeds of"
            f" the last evaluation during training of {run.metric}{_above(found)} on the selection split",
            "settings": settings,
            "trials": len(found.scored) + len(found.refined),
            **{kind.replace("-", "_"): n for kind, n in kinds.items() if n},
            **({"pruning": "trials worse than the median of the others were stopped early"} if spec.prune else {}),
            "part_of_the_data": run.part or "all",
            "tuning_seeds": _seeds(spec.seeds),
            "score": found.score,
            "lr_at_boundary": found.lr_at_boundary,
            "fresh_seeds": _seeds([r.config["seed"] for r in found.fresh]) if found.fresh else "not run",
            "fresh": {
                "metric": f"{run.split}/{run.metric}{_above(found)}",
                "values": found.fresh_values,
                **({"failed": dict(found.fresh_failed)} if found.fresh_failed else {}),
                "mean": interval and interval.mean,
                "interval_95": [_finite(interval.low), _finite(interval.high)] if interval else None,
            },
            "cost": cost,
            "tried": {
                spoken(t.point): _tried(t, found.scores.get(point_key(t.point))) for t in _in_order(found)
            },
        },
    }  # fmt: skip
    return yaml.safe_dump(plain(content), sort_keys=False, width=120)


def _in_order(found: Outcome) -> list[Trial]:
    main, trials = found.study.spec.design.main, [*found.scored, *found.refined]
    return sorted(trials, key=lambda trial: trial.point[main]) if main else trials


def _tried(trial: Trial, score: End) -> str:
    diverged = sum(run.status == "diverged" for run in trial.runs)
    text = trial.state if trial.state in ("failed", "pruned") else "diverged" if score is None else f"{score:.6g}"
    caps = [run.cap_share for run in trial.runs if run.cap_share is not None]
    text += f", {diverged} of {len(trial.runs)} seeds diverged" if diverged and score is not None else ""
    text += f", cap bound on {sum(caps) / len(caps):.0%} of the steps" if caps and sum(caps) else ""
    return text + (f" ({trial.kind})" if trial.kind != "design" else "")


def tuned_path(folder: Path, spec: StudySpec) -> Path:
    """Where the settings of a study lie."""
    return folder / spec.task / f"{slug(spec.opt)}.yaml"


def replaced(folder: Path, found: Outcome) -> str | None:
    """What is lost when the settings are written there, or None: those of another study, or of none."""
    path = tuned_path(folder, found.study.spec)
    if not path.is_file():
        return None
    try:
        before = (read_yaml(path).get("provenance") or {}).get("study")
    except (UserError, AttributeError):
        before = None
    if before == found.study.name:
        return None
    return f"{path} was of {f'study {before}' if before else 'no study'}; it is now of study {found.study.name}"


def missing_runs(found: Outcome, store: Path) -> str | None:
    """Which runs the study has and the store has not, or None."""
    kept, runs = Store(store), [*found.runs, *found.fresh]
    gone = sum(kept.get(run.run_id) is None for run in runs)
    return (
        f"{gone} of the study's {counted(len(runs), 'run')} are not in the store {store}: deleted, or trained where the store is"
        " another. The result below is the study's own and whole; for boards and curves train them again with the same command and"
        " another --name, or merge the other store into this one (bench merge)"
        if gone
        else None
    )


def conditions(found: Outcome) -> dict[str, str]:
    """The settings of the study's runs, as words, that are not what a run has anyway: its budget, its device."""
    spec = found.study.spec
    own = {name: value for name, value in spec.settings.items() if value is not None}
    opt = {name: value for name, value in own.items() if name.startswith("opt.")} | (
        found.best.point if found.best else {}
    )
    usual = plain(settings_of(resolve({"task": spec.task, "opt": spec.opt, **opt}).model_dump()))
    return {
        name: ",".join(map(str, value)) if isinstance(value, list) else str(value)
        for name, value in own.items()
        if name not in opt and value != usual.get(name)
    }


def write(folder: Path, found: Outcome, command: str) -> list[Path]:
    """Write `TASK/OPT.yaml`, and `TASK/OPT/sensitivity.{md,csv,png,pdf}`.

    Args:
        folder: made if it is not there.
        found: what to write.
        command: what made it.

    Raises:
        UserError: the folder cannot be written, or there is no winner.
    """
    spec = found.study.spec
    content = tuned_yaml(found)
    path = tuned_path(folder, spec)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            temporary.write_text(content, "utf-8")
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror or error}; choose another folder with --out DIR"
        ) from None
    return [path, *sensitivity.write(path.with_suffix(""), analyse(found), command)]


def remember(found: Outcome, store: Path) -> None:
    """Leave the study's record in a store, so that boards need no database.

    Raises:
        RunFailed: the disk is full or gone.
    """
    spec, trials = found.study.spec, [*found.scored, *found.refined]
    record = StudyRecord(
        name=found.study.name, task=spec.task, opt=spec.opt, seeds=spec.seeds, axes=list(spec.axes), mode=spec.mode,
        sampler=spec.sampler, prune=spec.prune,
        trials=[
            {
                "point": trial.point, "kind": trial.kind, "state": trial.state,
                "score": found.scores.get(point_key(trial.point)), "runs": [run.run_id for run in trial.runs],
            }
            for trial in trials
        ],
        winner=found.best.runs[0].run_id if found.best is not None and found.best.runs else None,
        lr_at_boundary=found.lr_at_boundary, missing=found.missing,
    )  # fmt: skip
    path = study_path(store, found.study.name)
    with disk_errors(store):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, vars(record), indent=1)


def analyse(found: Outcome) -> sensitivity.Sensitivity:
    """How the result depends on what was searched.

    Raises:
        UserError: no run has ended.
    """
    pruned = {run.run_id for trial in found.scored if trial.state == "pruned" for run in trial.runs}
    state: Any = "pruned"  # which says more than `killed`
    runs = [replace(run, status=state) if run.run_id in pruned else run for run in found.runs]
    return sensitivity.analyse(runs, list(found.study.spec.axes), found.study.spec.mode)
