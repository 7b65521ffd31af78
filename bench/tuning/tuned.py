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
from bench.store.reports import StudyRecord, read_report, study_path
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


def tuned_yaml(found: StudyResult) -> str:
    """The winner's settings with their provenance, as the content of `configs/tuned/<task>/<optimizer>.yaml`.

    Raises:
        UserError: there is no winner.
    """
    import yaml

    if found.best is None:
        raise UserError(f"study {found.study.name}: no trial has a score, so there is nothing to write")
    spec, run = found.spec, found.best.runs[0]
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
    path = tuned_path(folder, found.spec)
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
    spec = found.spec
    content = tuned_yaml(found)
    path = tuned_path(folder, spec)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            temporary.write_text(content, "utf-8")
    return [path, *sensitivity.write(path.with_suffix(""), found.analyse(), command)]


def remember(found: StudyResult) -> None:
    """Write the study's record for boards (`studies/NAME.json`), and an Optuna journal (`studies/NAME.log`).

    A record of more trials of the same study stays. `optuna-dashboard` and `optuna.load_study` read the journal.

    Raises:
        RunFailed: the disk is full or unavailable.
    """
    spec, store = found.spec, found.study.store.folder
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
                "point": dict(trial.point),
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
    path = study_path(store, record.name)
    with suppress(Damaged, FileNotFoundError):
        before = read_report(path, StudyRecord)
        if vars(before) == vars(record) or len(before.trials) > len(record.trials):
            return
    record.write(store)
    with disk_errors(store), replacing(path.with_suffix(".log")) as temporary:
        temporary.touch()
        _mirror(found, journal(temporary))


def journal(path: Path) -> "BaseStorage":
    """The file as a storage of Optuna."""
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    return JournalStorage(JournalFileBackend(str(path)))


def mirror(found: StudyResult, url: str) -> None:
    """Add the trials of a study to a storage of Optuna, such as `sqlite:///studies.db`; those in it stay.

    Raises:
        UserError: the storage cannot be opened or written.
    """
    try:
        _mirror(found, url)
    except Exception as error:  # each kind of storage raises its own
        raise UserError(f"--storage {url}: {first_line(error)}") from None


def _mirror(found: StudyResult, storage: "str | BaseStorage") -> None:
    """Add the trials that a storage lacks."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    direction = "minimize" if found.spec.mode == "min" else "maximize"
    study = optuna.create_study(storage=storage, study_name=found.study.name, direction=direction, load_if_exists=True)
    known = {point_key(trial.params) for trial in study.get_trials(deepcopy=False)}
    for trial in found.trials:
        if point_key(trial.point) in known:
            continue
        score = found.scores[point_key(trial.point)]
        axes = {name: distribution(axis, trial.point[name]) for name, axis in found.spec.axes.items()}
        about = {"kind": trial.kind, "seeds": found.spec.seeds, "runs": [run.run_id for run in trial.runs]}
        study.add_trial(
            optuna.trial.create_trial(
                state=optuna.trial.TrialState.FAIL if score is None else optuna.trial.TrialState.COMPLETE,
                params=dict(trial.point),
                distributions=axes,
                value=score,
                user_attrs=about | ({"reason": trial.reason} if trial.reason else {}),
            )
        )
