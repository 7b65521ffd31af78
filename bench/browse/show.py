"""`bench show RUN`: state, result, settings and commands of a stored run."""

import shlex
from collections.abc import Mapping
from typing import Any

from bench.browse.listing import local, planned_by
from bench.config.plugins import naming
from bench.config.run_config import settings_of
from bench.results.render import shown
from bench.results.table import Table
from bench.run_summary import fit_words, remarks_on, result_json
from bench.store.block import TRACEBACK
from bench.store.record import RESUMABLE, RunResult
from bench.store.store import Store
from bench.store.stores import Stores
from bench.terminal import columns, wrapped
from bench.text import cell, duration, word_of


def lines(run: RunResult, store: Store) -> list[str]:
    """The page, as wide as the terminal; text in the record is untrusted."""
    wide, study = columns(), _study(run, store)
    settings = {name: value for name, value in settings_of(run.config).items() if name not in ("task", "opt")}
    chosen = {name: value for name, value in settings.items() if name in run.chosen and value is not None}
    usual = {name: value for name, value in settings.items() if name not in chosen}
    more: list[tuple[str, list[str]]] = [
        ("result", _result(run)),
        ("settings beyond the defaults", [f"  --{cell(name)} {_word(value)}" for name, value in chosen.items()]),
        ("other settings", wrapped([f"{cell(k)} {_word(v)}" for k, v in usual.items()], wide or 80, "  ")),
        ("the trained model writes", [f"  | {cell(line)}" for line in (run.specimen or "").split("\n") if line]),
        ("notes", [part for note in _notes(run) for part in wrapped(cell(note).split(" "), wide, "  ", " ")]),
    ]
    page = [cell(f"{run.run_id}: {run.status}"), *_facts(run, store, study)]
    for title, part in more:
        if part:
            page += ["", f"{title}:", *part]
    page += ["", "commands:"]
    page += [line for what, words in _commands(run, store, study).items() for line in (f"  # {what}", f"  {words}")]
    return page


def as_json(run: RunResult, store: Store) -> dict[str, Any]:
    """The run in a form for JSON."""
    study = _study(run, store)
    return {
        "kind": "run",
        **result_json(run, store.folder),
        "begun": run.begun or None,
        "made_for": run.plan,
        "study": study or planned_by(run),
        "tuned_by": run.tuned_by,
        "best_step": run.best_step,
        "metrics": run.metrics,
        "settings": settings_of(run.config),
        "chosen": run.chosen,
        "versions": run.versions,
        "environment": run.environment,
        "notes": _notes(run),
        "commands": list(_commands(run, store, study).values()),
        "folder": store.place(run.run_id),
    }


def _word(value: Any) -> str:
    return "none" if value is None else cell(word_of(value))


def _facts(run: RunResult, store: Store, study: str | None) -> list[str]:
    config, place, study = run.config, store.place(run.run_id), study or planned_by(run)
    seeds = f"{config['seed']}" + f", order of samples {config['data_seed']}" * (config["data_seed"] != config["seed"])
    evaluated = f" with evaluations, {_seconds(run.train_s)} without" if run.train_s else ""
    target = "" if run.target is None else f"; target {run.target:g}, {_reached(run)}"
    versions = ", ".join(
        f"{name} {run.versions[name]}" for name in ("suite", "torch", "lightning") if name in run.versions
    )
    facts = {
        "task": run.task
        + f" ({config['task']})" * bool(run.task_name)
        + f": {run.split} {run.metric} ({run.mode}){target}",
        "optimizer": config["opt"] + f": {run.formula}" * bool(run.formula),
        "seed": seeds,
        "begun": local(run.begun),
        "time": f"{_seconds(run.wall_s)}{evaluated}",
        "steps": f"{run.steps}" + f", {run.skipped} of them not taken" * bool(run.skipped),
        "made for": f"study {study}" if study else run.plan,
        "tuned by": run.tuned_by,
        "machine": run.machine,
        "versions": versions,
        "folder": str(place),
        "traceback": str(next(place.glob(f"*/{TRACEBACK}"), "")) if run.status == "failed" else "",
    }
    return shown(Table.facts([(name, text) for name, text in facts.items() if text], least=9), "  ")


def _study(run: RunResult, store: Store) -> str | None:
    """The name of the recorded study that has the run in a trial, or None."""
    return next((each.name for each in Stores([store.folder]).studies if run.run_id in each.run_ids), None)


def _seconds(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds < 10 else duration(min(seconds, 1e12))


def _reached(run: RunResult) -> str:
    if run.steps_to_target is None:
        return "not reached"
    return f"reached at step {run.steps_to_target} after {_seconds(run.seconds_to_target or 0.0)}"


def _result(run: RunResult) -> list[str]:
    """The metrics by split at the last and the best step; without them, the last evaluation."""
    found: dict[str, list[str]] = {}
    which = ("final", "best")
    for at, name in enumerate(which):
        for split, values in _by_split(run.metrics.get(name, {}), run.split).items():
            for metric, value in values.items():
                found.setdefault(f"{split} {metric}", ["-", "-"])[at] = cell(value, 6)
    if found:
        head = ["", "last step", "best step" if run.best_step is None else f"best step ({run.best_step})"]
        return shown(Table.of(head, ([f"  {name}", *values] for name, values in found.items())))
    if run.validations:
        step, last = run.validations[-1]["step"], {**run.validations[-1]}
        text = ", ".join(f"{cell(k)} {cell(v, 6)}" for k, v in last.items() if k not in ("step", "train_s"))
        return [f"  at step {step}, on the selection split: {text}"]
    return ["  none"]


def _by_split(metrics: Mapping[str, Any], split: str) -> dict[str, dict[str, Any]]:
    own = {name: value for name, value in metrics.items() if not isinstance(value, dict)}
    return {split: own} | {name: value for name, value in metrics.items() if isinstance(value, dict)}


def _notes(run: RunResult) -> list[str]:
    return ([run.reason] if run.reason else []) + remarks_on(run)


def _commands(run: RunResult, store: Store, study: str | None) -> dict[str, str]:
    """Shell commands by purpose; all names are quoted."""
    place = shlex.join(["--store", str(store.folder)])
    order = run.config["data_seed"]
    seeds = f"--seed {run.config['seed']}" + f" --data_seed {order}" * (order != run.config["seed"])
    found = {"train it again, in another store": f"{fit_words(run)} {seeds} --store again"}
    if run.status in RESUMABLE and store.last_checkpoint([run.run_id]):
        again = ["bench", "fit", "--resume", run.run_id, *naming(run.config)]
        found["continue it"] = f"{shlex.join(again)} {place}"
    elif run.status in RESUMABLE:
        alone = "continue the sweep with its command; alone it starts from step 0"
        what = alone if run.engine == "lanes" else "it has no checkpoint, so it starts from step 0"
        found[what] = f"{fit_words(run)} {seeds} {place}"
    own = ["--task", run.config["task"], "--opt", run.config["opt"]]
    if study is not None:  # boards and curves exclude trials
        found["plot its study"] = f"{shlex.join(['bench', 'plot', 'sensitivity', *own])} {place} -o study.png"
    else:
        only = {"seed": run.config["seed"]} | {k: v for k, v in run.chosen.items() if v is not None}
        words = ["bench", "plot", "curves", *own, "--settings", "all"]
        words += [word for name, value in only.items() for word in ("--only", f"{name}={word_of(value)}")]
        found["plot its curve"] = f"{shlex.join(words)} {place} -o {shlex.quote(f'{run.run_id}.png')}"
    return {what: cell(words) for what, words in found.items()}
