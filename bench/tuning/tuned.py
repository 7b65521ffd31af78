"""The files of a study: the winner's settings for `bench fit --config`, and the record and journal in the store."""

import shlex
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any

from bench.errors import UserError, first_line
from bench.output import writing
from bench.store.files import Damaged, disk_errors, replacing
from bench.store.reports import StudyRecord, read_report, study_path
from bench.text import plain, seeds_in_words
from bench.tuning.design import distribution, point_key
from bench.tuning.spec import StudySpec
from bench.tuning.study import StudyResult
from optimizers import TASK_VALUE
from optimizers.plugins import slug


def write(folder: Path, result: StudyResult) -> Path:
    """Write the winner's settings with their provenance to `TASK/OPT.yaml`."""
    import yaml

    assert result.best is not None
    spec, run, path = result.spec, result.best.runs[0], _path(folder, result.spec)
    # Defaults are written too: later changes of them must not change tuned settings.
    options = run.config["opt_options"].items()
    values = result.hyperparameters | {k: v for k, v in options if v is not None and v is not False and v != TASK_VALUE}
    names = ("torch", "lightning", "task", "opt", "rest", "task_package", "opt_package")
    settings = {name: value for name, value in spec.settings.items() if value is not None and name[:4] != "opt."}
    provenance = {
        "study": result.study.name,
        "date": str(date.today()),
        "versions": {name: run.versions[name] for name in names if name in run.versions},
        "settings": settings,
        "seeds": seeds_in_words(spec.seeds),
        "split": result.record.select_split or None,
        "score": result.score,
    }
    chosen = {name: value for name, value in settings.items() if name in spec.chosen and name != "device"}
    content = {"task": spec.task, "opt": {"name": spec.opt} | values} | chosen | {"provenance": provenance}
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            temporary.write_text(yaml.safe_dump(plain(content), sort_keys=False, width=120), "utf-8")
    return path


def _path(folder: Path, spec: StudySpec) -> Path:
    return folder / slug(spec.task) / f"{slug(spec.opt)}.yaml"


def use_line(folder: Path, spec: StudySpec) -> str:
    """The command that trains with the settings of a study in a folder, with a seed that did not choose them."""
    seed = ["--seed", str(max(spec.seeds) + 1)] * (0 in spec.seeds)
    return shlex.join(["bench", "fit", "--config", str(_path(folder, spec)), *seed])


def remember(result: StudyResult) -> None:
    """Write the study's record for boards (`studies/NAME.json`), and an Optuna journal (`studies/NAME.log`).

    A record of more trials of the same study stays. `optuna-dashboard` and `optuna.load_study` read the journal.
    """
    record, store = result.record, result.study.store.folder
    path = study_path(store, record.name)
    with suppress(Damaged, FileNotFoundError):
        before = read_report(path, StudyRecord)
        if vars(before) == vars(record) or len(before.trials) > len(record.trials):
            return
    record.write(store)
    with disk_errors(store), replacing(path.with_suffix(".log")) as temporary:
        temporary.touch()
        _mirror(result, journal(temporary))


def journal(path: Path) -> Any:
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


def _mirror(result: StudyResult, storage: Any) -> None:
    """Add the trials that a storage lacks."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    direction = "minimize" if result.spec.mode == "min" else "maximize"
    study = optuna.create_study(storage=storage, study_name=result.study.name, direction=direction, load_if_exists=True)
    known = {point_key(trial.params) for trial in study.get_trials(deepcopy=False)}
    for trial in (trial for trial in result.record.trials if point_key(trial["point"]) not in known):
        point, score = trial["point"], trial["score"]
        axes = {name: distribution(axis, point[name]) for name, axis in result.spec.axes.items()}
        about = {"kind": trial["kind"], "seeds": result.spec.seeds, "runs": trial["runs"]}
        state = optuna.trial.TrialState["FAIL" if score is None else "COMPLETE"]
        study.add_trial(
            optuna.trial.create_trial(state=state, params=point, distributions=axes, value=score, user_attrs=about)
        )
