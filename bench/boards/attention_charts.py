"""Charts of observations (`--trainer.observe`) against optimizer steps."""

from collections.abc import Callable, Mapping

import numpy as np

from bench.boards.attention import NONE, SHOWN, over_heads
from bench.boards.collect import Collected
from bench.boards.curves import over_steps, series
from bench.results.chart import Array, Chart, Panel
from bench.store.tables import Columns

CURVED = {
    "sharpness": "sharpness x step size (edge of gradient descent: 2)",
    "edge": "curvature x step along the update (edge: 2)",
    "noise_scale": "gradient noise scale (samples)",
    "update_cosine": "cosine of successive updates",
    "update_ratio_matrix": "update / weights of matrices",
}
"""Quantities of `bench plot stability`."""


def attention(found: Collected) -> Chart:
    """Means over heads against optimizer steps, a panel for each problem and quantity."""
    return _chart(found, "attention", SHOWN, over_heads)


def stability(found: Collected) -> Chart:
    """Sharpness times step size, gradient noise and updates against optimizer steps."""

    def of_model(tables: Mapping[str, Columns], name: str) -> tuple[Array, Array] | None:
        table, curve = tables.get("measurements", {}), tables.get("curve", {})
        if name != "sharpness":
            return (table["step"], table[name]) if name in table else None
        if name not in table or "applied_step" not in curve:
            return None
        made = np.maximum(np.searchsorted(curve["step"], table["step"], side="right") - 1, 0)
        return table["step"], table["sharpness"] * curve["applied_step"][made]

    return _chart(found, "stability", CURVED, of_model)


def _chart(
    found: Collected,
    kind: str,
    quantities: Mapping[str, str],
    read: Callable[[Mapping[str, Columns], str], tuple[Array, Array] | None],
) -> Chart:
    panels = []
    for i, (problem, entries) in enumerate(found.problems.items()):
        tables = {entry.name: found.every(entry) for entry in entries}
        for name, words in quantities.items():
            lines = {
                own: [_finite(read(each, name)) for each in there]
                for own, there in tables.items()
                if any(read(each, name) is not None for each in there)
            }
            if lines:
                title = f"{words}: {problem.name}"
                panels.append(over_steps(f"{kind}-{i}-{name}", problem, title, words, lines, log_x=True))
    if not panels:
        panels.append(Panel(kind, kind, "optimizer steps", kind, note=NONE))
    return Chart(panels, series(found))


def _finite(line: tuple[Array, Array] | None) -> tuple[Array, Array] | None:
    """Steps and finite values; None if there are none."""
    if line is None:
        return None
    there = np.isfinite(line[1])
    return (line[0][there], line[1][there]) if there.any() else None
