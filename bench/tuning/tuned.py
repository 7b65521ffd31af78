"""The files of a study: the winner's settings for `bench fit --tuned`, the plot, and the record in the store."""

from datetime import date
from pathlib import Path

from bench.config.tuned import read_tuned
from bench.errors import UserError
from bench.output import writing
from bench.store.files import replacing
from bench.store.reports import StudyRecord
from bench.sweeps import sensitivity
from bench.text import counted, plain, seeds_in_words
from bench.tuning.space import point_key
from bench.tuning.study_result import StudyResult, analyse
from bench.tuning.trials import StudySpec
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
    machine = f"{where}, " * bool(where) + counted(run.environment.get("threads") or 1, "thread") + " a run"
    names = ("torch", "lightning", "task", "opt", "rest", "task_package", "opt_package")
    content = {
        "task": spec.task,
        "opt": {"name": spec.opt} | values,
        "provenance": {
            "study": found.study.name,
            "date": str(date.today()),
            "machine": machine,
            "versions": {name: run.versions[name] for name in names if name in run.versions},
            "settings": {k: v for k, v in spec.settings.items() if v is not None and not k.startswith("opt.")},
            "trials": len(found.trials),
            "seeds": seeds_in_words(spec.seeds),
            "metric": f"{run.metric}{found.metric_suffix}",
            "split": found.select_split or None,
            "score": found.score,
            "edge": found.lr_at_boundary,
        },
    }
    return yaml.safe_dump(plain(content), sort_keys=False, width=120)


def tuned_path(folder: Path, spec: StudySpec) -> Path:
    """The path of the settings of a study."""
    return folder / slug(spec.task) / f"{slug(spec.opt)}.yaml"


def replaced(folder: Path, found: StudyResult) -> str | None:
    """A note if writing the settings replaces a file of another study, or of none; else None."""
    path = tuned_path(folder, found.study.spec)
    if not path.is_file():
        return None
    try:
        before = read_tuned(path).study
    except UserError:
        before = None
    if before == found.study.name:
        return None
    of = f"study {before}" if before else "no study"
    return f"{path} belonged to {of}; it now belongs to study {found.study.name}"


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
