"""Results of studies: as text and JSON, as settings for `bench fit --config`, as record and journal in the store."""

import shlex
from collections.abc import Sequence
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any

from bench.errors import UserError, first_line
from bench.output import writing
from bench.results.group import Group
from bench.results.render import shown
from bench.results.selection import GAP, above_infimum, score_text
from bench.results.table import Table
from bench.store.files import Damaged, disk_errors, replacing
from bench.store.record import RunResult
from bench.store.reports import StudyRecord, read_report, write_report
from bench.text import CONVERGED, cell, clean, counted, listed, options_text, plain, seeds_in_words
from bench.tuning.design import distribution, point_key
from bench.tuning.spec import VERSIONS, StudySpec
from bench.tuning.study import StudyResult
from optimizers import TASK_VALUE
from optimizers.plugins import slug


def trial_lines(study: StudyRecord, runs: Sequence[RunResult]) -> list[str]:
    """The trials of a study with these runs as a table; * marks the winner."""
    metric = f"{study.select_split or 'selection'} {study.metric}{GAP * above_infimum(runs)}"
    states = ["diverged" if t["runs"] and t["score"] is None else t["state"] for t in study.trials]
    rows = [
        ("*" * (study.winner in t["runs"]), options_text(t["point"]), t["kind"], state, t["score"])
        for t, state in zip(study.trials, states, strict=True)
    ]
    ties = above_infimum(runs) and sum(t["score"] is not None and t["score"] <= CONVERGED for t in study.trials) > 1
    tie = f"gaps below {CONVERGED:g} tie, and the smallest step size wins (our rule)"
    first = f"{study.name}: {study.opt} on {study.task}, sampler {study.sampler}, seeds {seeds_in_words(study.seeds)}"
    table = Table.of(("", "settings", "kind", "state", metric.rstrip()), rows)
    return [clean(first), *shown(table), *[tie] * ties, *[f"{study.missing} more to try"] * bool(study.missing)]


def result_lines(result: StudyResult) -> list[str]:
    """The winner of a study in a line, and what failed."""
    record, fresh = result.record, result.measure.mean(Group.of(result.fresh))
    line = f"{record.task} {record.opt}: no setting has a score"
    if result.best is not None and result.score is not None:
        score, trials = score_text(result.score, record.metric), counted(len(record.trials), "trial")
        line = f"{record.task} {record.opt}: best of {trials}: {options_text(result.best.point)}, score {score}"
        line += f"; on {counted(len(result.fresh), 'fresh seed')} {result.measure.words} {cell(fresh)}" * bool(fresh)
        line += f"; at the edge: {listed(record.edges)}" * bool(record.edges)
    failed = [f"failed: {options_text(trial.point)}: {trial.reason}" for trial in result.trials if not trial.runs]
    return [line, *failed, *(f"failed: fresh seed {seed}: {why}" for seed, why in result.fresh_failed.items())]


def as_json(result: StudyResult) -> dict[str, Any]:
    """The results in a form for strict JSON."""
    record, best, fresh = result.record, result.record.best, Group.of(result.fresh)
    mean = result.measure.mean(fresh)
    low, high = (None, None) if mean is None else mean.ends
    seeds = {"seeds": [run.config["seed"] for run in result.fresh], "values": result.measure.values(fresh)}
    return plain(
        {"study": record.name, "task": record.task, "opt": record.opt, "sampler": record.sampler}
        | {"trials": len(record.trials), "missing": record.missing, "score": best and best["score"]}
        | {"best": best and best["point"]}
        | {"fresh": seeds | {"mean": mean and mean.mean, "low": low, "high": high}}
        | {"lr_at_boundary": record.lr_at_boundary, "tried": record.trials}
    )


def write(folder: Path, result: StudyResult) -> None:
    """Write the winner's settings with their provenance to `TASK/OPT.yaml`."""
    import yaml

    assert result.best is not None
    spec, run, path = result.spec, result.best.runs[0], _path(folder, result.spec)
    # Defaults are written too: later changes of them must not change tuned settings.
    options = run.config["opt_options"].items()
    values = result.hyperparameters | {k: v for k, v in options if v is not None and v is not False and v != TASK_VALUE}
    names = ("torch", "lightning", *VERSIONS)
    settings = {name: value for name, value in spec.settings.items() if value is not None and name[:4] != "opt."}
    provenance = {
        "study": spec.name,
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
    record, store = result.record, result.study.places["store"]
    path = record.path(store)
    with suppress(Damaged, FileNotFoundError):
        before = read_report(path, StudyRecord)
        if before == record or len(before.trials) > len(record.trials):
            return
    with disk_errors(store):
        write_report(store, record)
        with replacing(path.with_suffix(".log")) as temporary:
            temporary.touch()
            _mirror(result, temporary)


def mirror(url: str, *results: StudyResult) -> None:
    """Open an Optuna storage such as `sqlite:///studies.db`, and add trials of studies; `UserError` if that fails."""
    try:
        import optuna

        storage = optuna.storages.get_storage(url)
        for result in results:
            _mirror(result, storage)
    except Exception as error:  # each kind of storage raises its own
        raise UserError(f"--storage {url}: {first_line(error)}") from None


def _mirror(result: StudyResult, place: Any) -> None:
    """Add the trials that a journal in a file, or a storage, lacks."""
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    storage = JournalStorage(JournalFileBackend(str(place))) if isinstance(place, Path) else place
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    direction = "minimize" if result.spec.mode == "min" else "maximize"
    study = optuna.create_study(storage=storage, study_name=result.spec.name, direction=direction, load_if_exists=True)
    known = {point_key(trial.params) for trial in study.get_trials(deepcopy=False)}
    for trial in (trial for trial in result.record.trials if point_key(trial["point"]) not in known):
        point, score = trial["point"], trial["score"]
        axes = {name: distribution(axis, point[name]) for name, axis in result.spec.axes.items()}
        about = {"kind": trial["kind"], "seeds": result.spec.seeds, "runs": trial["runs"]}
        state = optuna.trial.TrialState["FAIL" if score is None else "COMPLETE"]
        study.add_trial(
            optuna.trial.create_trial(state=state, params=point, distributions=axes, value=score, user_attrs=about)
        )
