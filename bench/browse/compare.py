"""Differences between two runs: `bench diff`."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.config.run_config import settings_of
from bench.errors import unknown_run
from bench.results.render import shown
from bench.results.table import Column, Table
from bench.store.record import RunResult
from bench.store.store import Store
from bench.store.stores import Stores
from bench.text import cell, plain

_RESULTS = (
    "status",
    "reason",
    "metric",
    "split",
    "select_split",
    "final",
    "best",
    "best_step",
    "metrics",
    "steps",
    "skipped",
    "steps_to_target",
    "cap_share",
    "saturated_at",
    "step_of",
    "part",
    "facts",
    "engine",
)


def find(word: str, folders: Sequence[Path]) -> tuple[RunResult, Store]:
    """A run and its store; of several, the first finished one.

    Args:
        word: the run's id, or the path of its folder.
        folders: stores to search for an id.

    Raises:
        UserError: there is no such run or store.
    """
    path = Path(word)
    if path.name != word:
        folders = [path.parent]
    stores = Stores(folders)
    found = [(run, store) for store in stores.stores if (run := store.get(path.name))]
    if not found:
        raise unknown_run(path.name, (run.run_id for run in stores.runs), stores.shown)
    return min(found, key=lambda each: not each[0].finished)


def compare(one: tuple[RunResult, Store], other: tuple[RunResult, Store]) -> dict[str, Any]:
    """Differences as strict JSON: pairs of values by name; a missing value is None.

    Raises:
        UserError: a record or a table is damaged.
    """
    runs = one[0], other[0]
    found: dict[str, Any] = {
        "runs": [run.run_id for run in runs],
        "stores": [str(store.folder) for _, store in (one, other)],
        "settings": _differing(*(settings_of(run.config) for run in runs)),
        "versions": _differing(*(run.versions for run in runs)),
        "environment": _differing(*(run.environment for run in runs)),
        "results": _differing(*({name: getattr(run, name) for name in _RESULTS} for run in runs)),
        "curve": _curves(*(store.tables(run.run_id).get("curve", {}) for run, store in (one, other))),
    }
    curve = found["curve"]
    same_curve = curve["first_difference"] is None and {*curve["steps"]} == {curve["shared"]}
    parts = ("settings", "versions", "environment", "results")
    return plain(found | {"equal": same_curve and not any(found[part] for part in parts)})


def _differing(one: Any, other: Any) -> dict[str, list[Any]]:
    first, second = _flat(one), _flat(other)
    names = [*first, *(name for name in second if name not in first)]
    pairs = {name: [first.get(name), second.get(name)] for name in names}
    return {name: pair for name, pair in pairs.items() if json.dumps(pair[0]) != json.dumps(pair[1])}


def _flat(values: Any, before: str = "") -> dict[str, Any]:
    """Values by dotted name, as strict JSON."""
    if not isinstance(values, Mapping):
        return {before: plain(values)}
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= _flat(value, f"{before}.{name}" if before else str(name))
    return found


def _curves(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Agreement of two loss curves; differences are relative to the larger value."""
    import numpy as np

    one, other = (table or {"step": np.empty(0), "loss": np.empty(0)} for table in (one, other))
    steps, first, second = np.intersect1d(one["step"], other["step"], return_indices=True)
    a, b = one["loss"][first], other["loss"][second]
    differ = (a != b) & ~(np.isnan(a) & np.isnan(b))
    both = differ & np.isfinite(a) & np.isfinite(b)
    relative = np.zeros(len(a))
    relative[both] = np.abs(a[both] - b[both]) / np.maximum(np.abs(a[both]), np.abs(b[both]))
    return {
        "steps": [len(one["step"]), len(other["step"])],
        "shared": len(steps),
        "differing": int(differ.sum()),
        "first_difference": int(steps[differ.argmax()]) if differ.any() else None,
        "largest": float(relative.max()) if both.any() else None,
        "largest_at": int(steps[relative.argmax()]) if both.any() else None,
    }


def lines(found: Mapping[str, Any]) -> list[str]:
    """The output of `compare` as text."""
    if found["equal"]:
        return [
            f"{_named(found, 0)} and {_named(found, 1)} are equal in settings, versions, environment, results and curve"
        ]
    rows, same = list[tuple[str, Any, Any]](), list[str]()
    for part in ("settings", "versions", "environment", "results"):
        if found[part]:
            rows += [(part, "", ""), *((f"  {name}", *pair) for name, pair in found[part].items())]
        else:
            same.append(part)
    named = (Column(str(i), _named(found, i), digits=8, side="left") for i in range(2))
    table = Table.of([Column("name"), *named], rows)
    return [*shown(table), _curve_line(found["curve"]), *([f"equal: {', '.join(same)}"] if same else [])]


def _named(found: Mapping[str, Any], which: int) -> str:
    ids = found["runs"]
    where = f" in {found['stores'][which]}" if ids[0] == ids[1] else ""
    return cell(ids[which] + where)


def _curve_line(curve: Mapping[str, Any]) -> str:
    length = f"{curve['steps'][0]} and {curve['steps'][1]} steps, {curve['shared']} of them shared"
    if curve["first_difference"] is None:
        return f"curve: {length}; no loss differs"
    most = (
        f", by at most {curve['largest']:.3g} of the larger one (step {curve['largest_at']})"
        if curve["largest"]
        else ""
    )
    first = curve["first_difference"]
    return f"curve: {length}; the loss differs at {curve['differing']} of them, from step {first} on{most}"
