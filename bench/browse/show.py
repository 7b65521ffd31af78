"""`bench show RUN`: state, result, settings and commands of a stored run."""

import shlex
from pathlib import Path
from typing import Any

from bench.browse.listing import local, seconds_text, studies_of
from bench.config.run_config import settings_of
from bench.results.render import shown
from bench.results.table import Table
from bench.run_summary import commands, remarks_on, result_json
from bench.store.record import RESUMABLE, RunResult
from bench.store.stores import Stores
from bench.terminal import columns, wrapped
from bench.text import cell, word_of


def lines(run: RunResult, folder: Path) -> list[str]:
    """The page, as wide as the terminal; text in the record is untrusted."""
    wide, data = columns(), as_json(run, folder)
    words = {k: f"{cell(k)} {'none' if v is None else cell(word_of(v))}" for k, v in data["settings"].items()}
    chosen = [name for name in words if run.chosen.get(name) is not None and name not in ("task", "opt")]
    others = [text for name, text in words.items() if name not in (*chosen, "task", "opt")]
    parts = {
        "result": _result(run),
        "settings beyond the defaults": [f"  --{words[name]}" for name in chosen],
        "other settings": wrapped(others, wide or 80, "  "),
        "the trained model writes": [f"  | {cell(line)}" for line in (run.specimen or "").split("\n") if line],
        "notes": [part for note in data["notes"] for part in wrapped(cell(note).split(" "), wide, "  ", " ")],
        "commands": [x for what, line in _commands(run, folder.parent).items() for x in (f"  # {what}", f"  {line}")],
    }
    head = [cell(f"{run.run_id}: {run.status}"), *shown(Table.facts(_facts(run, data).items()), "  ")]
    return head + [line for title, part in parts.items() if part for line in ("", f"{title}:", *part)]


def as_json(run: RunResult, folder: Path) -> dict[str, Any]:
    """The run, whose block is in this folder, in a form for JSON."""
    store = folder.parent
    return {
        "kind": "run",
        **result_json(run, store),
        "begun": run.begun or None,
        "made_for": run.plan,
        "study": studies_of(Stores([store])).get(run.run_id),
        **{name: getattr(run, name) for name in ("tuned_by", "best_step", "metrics")},
        "settings": settings_of(run.config),
        **{name: getattr(run, name) for name in ("chosen", "versions", "environment")},
        "notes": ([run.reason] if run.reason else []) + remarks_on(run),
        "commands": list(_commands(run, store).values()),
        "folder": folder,
    }


def _facts(run: RunResult, data: dict[str, Any]) -> dict[str, str | None]:
    reached = "not reached" if run.steps_to_target is None else f"step {run.steps_to_target}"
    target = "" if run.target is None else f"; target {run.target:g}: {reached}"
    facts = {
        "task": f"{run.task}: {run.split} {run.metric} ({run.mode}){target}",
        "optimizer": run.config["opt"] + f": {run.formula}" * bool(run.formula),
        "seed": str(run.config["seed"]),
        "begun": local(run.begun),
        "time": f"{seconds_text(run.wall_s)}, {seconds_text(run.train_s)} without evaluations",
        "steps": f"{run.steps}" + f", with {run.cost} gradients of the batch" * (run.cost != run.steps),
        "made for": f"study {data['study']}" if data["study"] else run.plan,
        "tuned by": run.tuned_by,
        "machine": run.machine,
        "versions": ", ".join(f"{k} {run.versions[k]}" for k in ("suite", "torch", "lightning") if k in run.versions),
        "folder": str(data["folder"]),
    }
    return {name: text for name, text in facts.items() if text}


def _result(run: RunResult) -> list[str]:
    values: dict[str, list[str]] = {}
    for at, name in enumerate(("final", "best")):
        for key, value in run.metrics.get(name, {}).items():
            split, of_split = (key, value) if isinstance(value, dict) else (run.split, {key: value})
            for metric, number in of_split.items():
                values.setdefault(f"  {split} {metric}", ["-", "-"])[at] = cell(number, 6)
    head = ["", "last step", "best step" if run.best_step is None else f"best step ({run.best_step})"]
    return shown(Table.of(head, ([name, *ends] for name, ends in values.items()))) if values else ["  none"]


def _commands(run: RunResult, store: Path) -> dict[str, str]:
    """Shell commands by purpose; all names are quoted."""
    (again,) = commands([run])
    by_purpose = {"train it again, in another store": cell(f"{again} --store again")}
    if run.status in RESUMABLE:
        by_purpose["continue it"] = cell(f"{again} {shlex.join(['--store', str(store)])}")
    return by_purpose
