"""The files of a study: the winner's settings for `bench fit --tuned`, the plot, and the record in the store."""

from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from bench.config.tuned import read_tuned
from bench.errors import UserError, first_line
from bench.output import writing
from bench.store.files import disk_errors, replacing
from bench.store.load import Damaged
from bench.store.reports import StudyRecord, StudyTrial, read_report, study_path
from bench.sweeps import sensitivity
from bench.text import counted, plain, seeds_in_words
from bench.tuning.design import distribution
from bench.tuning.space import point_key
from bench.tuning.spec import StudySpec
from bench.tuning.study import StudyResult
from optimizers import TASK_VALUE
from optimizers.plugins import slug

if TYPE_CHECKING:
    from optuna.storages import BaseStorage


def tuned_yaml(result: StudyResult) -> str:
    """The winner's settings with their provenance, as `configs/tuned/TASK/OPT.yaml`; `UserError` without a winner."""
    import yaml

    if result.best is None:
        raise UserError(f"study {result.study.name}: no trial has a score, so there is nothing to write")
    spec, run = result.spec, result.best.runs[0]
    # Defaults are written too: later changes of them must not change tuned settings.
    options = run.config["opt_options"].items()
    values = result.hyperparameters | {k: v for k, v in options if v is not None and v is not False and v != TASK_VALUE}
    where = run.environment.get("gpu") or run.environment.get("cpu")
    names = ("torch", "lightning", "task", "opt", "rest", "task_package", "opt_package")
    provenance = {
        "study": result.study.name,
        "date": str(date.today()),
        "machine": f"{where}, " * bool(where) + counted(run.environment.get("threads") or 1, "thread") + " a run",
        "versions": {name: run.versions[name] for name in names if name in run.versions},
        "settings": {k: v for k, v in spec.settings.items() if v is not None and not k.startswith("opt.")},
        "trials": len(result.trials),
        "seeds": seeds_in_words(spec.seeds),
        "metric": f"{run.metric}{result.metric_suffix}",
        "split": _select_split(result) or None,
        "score": result.score,
        "edge": result.lr_at_boundary,
    }
    content = {"task": spec.task, "opt": {"name": spec.opt} | values, "provenance": provenance}
    return yaml.safe_dump(plain(content), sort_keys=False, width=120)


def _select_split(result: StudyResult) -> str:
    """The split on which its trials were compared; empty if unknown."""
    splits = {run.select_split for run in result.runs}
    return splits.pop() if len(splits) == 1 else ""


def tuned_path(folder: Path, spec: StudySpec) -> Path:
    """The path of the settings of a study."""
    return folder / slug(spec.task) / f"{slug(spec.opt)}.yaml"


def replaced(folder: Path, result: StudyResult) -> str | None:
    """A note if writing the settings replaces a file of another study, or of none; else None."""
    path, before = tuned_path(folder, result.spec), None
    if not path.is_file():
        return None
    with suppress(UserError):
        before = read_tuned(path).study
    if before == result.study.name:
        return None
    of = f"study {before}" if before else "no study"
    return f"{path} belonged to {of}; it now belongs to study {result.study.name}"


def write(folder: Path, result: StudyResult, command: str) -> list[Path]:
    """Write `TASK/OPT.yaml`, and `TASK/OPT/sensitivity.{md,png,pdf}`; `UserError` without a winner."""
    content, path = tuned_yaml(result), tuned_path(folder, result.spec)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            temporary.write_text(content, "utf-8")
    return [path, *sensitivity.write(path.with_suffix(""), result.analyse(), command)]


def remember(result: StudyResult) -> None:
    """Write the study's record for boards (`studies/NAME.json`), and an Optuna journal (`studies/NAME.log`).

    A record of more trials of the same study stays. `optuna-dashboard` and `optuna.load_study` read the journal.

    Raises:
        RunFailed: the disk is full or unavailable.
    """
    spec, store = result.spec, result.study.store.folder
    trials: list[StudyTrial] = [
        {
            "point": dict(trial.point),
            "kind": trial.kind,
            "state": "completed" if trial.runs else "failed",
            "score": result.scores.get(point_key(trial.point)),
            "runs": [run.run_id for run in trial.runs],
        }
        for trial in result.trials
    ]
    record = StudyRecord(
        name=spec.name,
        axes=list(spec.axes),
        trials=trials,
        winner=None if result.best is None else result.best.runs[0].run_id,
        lr_at_boundary=result.lr_at_boundary,
        missing=result.missing,
        select_split=_select_split(result),
        **spec.model_dump(include={"task", "opt", "seeds", "mode", "sampler", "metric"}),
    )
    path = study_path(store, record.name)
    with suppress(Damaged, FileNotFoundError):
        before = read_report(path, StudyRecord)
        if vars(before) == vars(record) or len(before.trials) > len(record.trials):
            return
    record.write(store)
    with disk_errors(store), replacing(path.with_suffix(".log")) as temporary:
        temporary.touch()
        _mirror(result, journal(temporary))


def journal(path: Path) -> "BaseStorage":
    """The file as a storage of Optuna."""
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    return JournalStorage(JournalFileBackend(str(path)))


def mirror(result: StudyResult, url: str) -> None:
    """Add the trials of a study to an Optuna storage such as `sqlite:///studies.db`; `UserError` if that fails."""
    try:
        _mirror(result, url)
    except Exception as error:  # each kind of storage raises its own
        raise UserError(f"--storage {url}: {first_line(error)}") from None


def _mirror(result: StudyResult, storage: "str | BaseStorage") -> None:
    """Add the trials that a storage lacks."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    direction = "minimize" if result.spec.mode == "min" else "maximize"
    study = optuna.create_study(storage=storage, study_name=result.study.name, direction=direction, load_if_exists=True)
    known = {point_key(trial.params) for trial in study.get_trials(deepcopy=False)}
    for trial in result.trials:
        if point_key(trial.point) in known:
            continue
        score = result.scores[point_key(trial.point)]
        about = {"kind": trial.kind, "seeds": result.spec.seeds, "runs": [run.run_id for run in trial.runs]}
        study.add_trial(
            optuna.trial.create_trial(
                state=optuna.trial.TrialState.FAIL if score is None else optuna.trial.TrialState.COMPLETE,
                params=dict(trial.point),
                distributions={name: distribution(axis, trial.point[name]) for name, axis in result.spec.axes.items()},
                value=score,
                user_attrs=about | ({"reason": trial.reason} if trial.reason else {}),
            )
        )
