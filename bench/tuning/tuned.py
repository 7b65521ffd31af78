"""The files of a study: the winner's settings for `bench fit --tuned`, the plot, and the record in the store."""

from datetime import date
from pathlib import Path

from bench.errors import UserError
from bench.output import writing
from bench.results.selection import End, cap_share, is_capped
from bench.store.files import replacing
from bench.store.reports import StudyRecord
from bench.sweeps import sensitivity
from bench.text import options_text, plain, seeds_in_words
from bench.tuning.space import point_key
from bench.tuning.study_result import StudyResult, analyse
from bench.tuning.trials import StudySpec, Trial
from optimizers import TASK_VALUE
from optimizers.plugins import slug


def tuned_yaml(found: StudyResult) -> str:
    """The winner's settings with their provenance, as the content of `configs/tuned/<task>/<optimizer>.yaml`.

    Raises:
        UserError: there is no winner.
    """
    import yaml

    if found.best is None:
        raise UserError(f"study {found.study.name}: no trial has a score, so there is nothing to write")
    spec, run = found.study.spec, found.best.runs[0]
    # Defaults are written too: later changes of them must not change tuned settings.
    every = run.config["opt_options"].items()
    values = found.hyperparameters | {k: v for k, v in every if v is not None and v is not False and v != TASK_VALUE}
    where = run.environment.get("gpu") or run.environment.get("cpu")
    machine = f"{where}, " * bool(where) + f"{run.environment.get('threads')} threads a run"
    interval, main = found.fresh_interval, spec.design.main
    tried = sorted(found.trials, key=lambda trial: trial.point[main]) if main else found.trials
    settings = {k: v for k, v in spec.settings.items() if v is not None and not k.startswith("opt.")}
    content = {
        "task": spec.task,
        "opt": {"name": spec.opt} | values,
        "provenance": {
            "study": found.study.name,
            "found": (
                f"{date.today()}, torch {run.versions.get('torch')}, lightning"
                f" {run.versions.get('lightning')}, {machine}"
            ),
            "versions": {
                name: run.versions[name]
                for name in ("task", "opt", "rest", "task_package", "opt_package")
                if name in run.versions
            },
            "engine": ", ".join(sorted({run.engine for run in found.runs})),
            "how": f"bench tune: {'half-decade log grid' if spec.sampler == 'grid' else 'Halton sequence'};"
            " score: median over the tuning seeds of the last evaluation during training of"
            f" {run.metric}{found.metric_suffix} on the selection split",
            "select_split": found.select_split or None,
            "settings": settings,
            "trials": len(found.trials),
            **{kind.replace("-", "_"): n for kind, n in found.added.items()},
            "part_of_the_data": run.part or "all",
            "tuning_seeds": seeds_in_words(spec.seeds),
            "score": found.score,
            "lr_at_boundary": found.lr_at_boundary,
            "fresh_seeds": seeds_in_words([r.config["seed"] for r in found.fresh]) if found.fresh else "not run",
            "fresh": {
                "metric": f"{run.split}/{run.metric}{found.metric_suffix}",
                "values": found.fresh_values,
                **({"failed": dict(found.fresh_failed)} if found.fresh_failed else {}),
                "mean": interval and interval.mean,
                "interval_95": list(interval.ends) if interval else None,
            },
            "cost": found.cost,
            "tried": {options_text(t.point): _tried(t, found.scores.get(point_key(t.point))) for t in tried},
        },
    }
    return yaml.safe_dump(plain(content), sort_keys=False, width=120)


def _tried(trial: Trial, score: End) -> str:
    diverged = sum(run.status == "diverged" for run in trial.runs)
    text = "diverged" if score is None else f"{score:.6g}"
    if trial.state == "failed":
        text = trial.state
    elif is_capped(trial.runs):
        text = "not chosen"
    text += f", {diverged} of {len(trial.runs)} seeds diverged" if diverged and score is not None else ""
    text += f", cap bound on {share:.0%} of the steps" if (share := cap_share(trial.runs)) else ""
    return text + (f" ({trial.kind})" if trial.kind != "design" else "")


def tuned_path(folder: Path, spec: StudySpec) -> Path:
    """The path of the settings of a study."""
    return folder / slug(spec.task) / f"{slug(spec.opt)}.yaml"


def write(folder: Path, found: StudyResult, command: str) -> list[Path]:
    """Write `TASK/OPT.yaml`, and `TASK/OPT/sensitivity.{md,csv,png,pdf}`.

    Raises:
        UserError: the folder cannot be written, or there is no winner.
    """
    spec = found.study.spec
    content = tuned_yaml(found)
    path = tuned_path(folder, spec)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            temporary.write_text(content, "utf-8")
    return [path, *sensitivity.write(path.with_suffix(""), analyse(found), command)]


def remember(found: StudyResult, store: Path) -> None:
    """Write the study's record into a store, so that boards need no database.

    Raises:
        RunFailed: as in `Record.write`.
    """
    spec = found.study.spec
    record = StudyRecord(
        name=found.study.name,
        task=spec.task,
        opt=spec.opt,
        seeds=spec.seeds,
        axes=list(spec.axes),
        mode=spec.mode,
        sampler=spec.sampler,
        trials=[
            {
                "point": trial.point,
                "kind": trial.kind,
                "state": trial.state,
                "score": found.scores.get(point_key(trial.point)),
                "runs": [run.run_id for run in trial.runs],
            }
            for trial in found.trials
        ],
        winner=found.best.runs[0].run_id if found.best is not None and found.best.runs else None,
        lr_at_boundary=found.lr_at_boundary,
        missing=found.missing,
        metric=spec.metric,
        select_split=found.select_split,
    )
    record.write(store)
