"""Figures of experiments: what they show of the arms' numbers, and that they can be printed."""

import math
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pytest

from bench.errors import UserError
from bench.papers.arms import Arm
from bench.papers.figures import LABELS, FigureSpec, Panel, describe
from bench.plots.panels import Line
from bench.plots.theme import picture
from tests.arms import arm_of

STEPS = np.arange(0, 501, 10.0)


def arm(label: str, rate: float, seeds: int = 5, until: dict[int, float] | None = None) -> Arm:
    """Decaying curves; `until` ends seeds early."""
    tables = []
    for seed in range(seeds):
        speed = rate * (1 + 0.1 * seed)
        steps = STEPS[(until or {}).get(seed, math.inf) >= STEPS]
        decay = np.exp(-speed * steps)
        measured = {"distance": (1 + speed * steps) ** -0.5, "off_optimal": 0.8 * decay, "norm_W": speed * steps}
        tables.append([{"step": steps, **measured}, {"step": steps[1:], "loss": 0.7 * decay[1:]}])
    return arm_of(label, tables)


def column(*values: Any, label: str = "a", steps: np.ndarray | None = None) -> Arm:
    """An arm with one run for each array, as its column v."""
    runs = [np.array(v, dtype=float) for v in values]
    return arm_of(label, [[{"step": np.arange(len(v)) if steps is None else steps, "v": v}] for v in runs])


def drawn(arms: dict[str, Arm], **panel: Any) -> list[Line]:
    (shown,) = describe(FigureSpec(panels=[Panel(**({"y": "v"} | panel))]), arms).panels
    return list(shown.lines)


METHODS = {"gd": arm("GD", 0.01), "ngd": arm("NGD", 0.1), "ps": arm("PS", 1.0, until={2: 350})}
FOUR = FigureSpec.model_validate(
    {
        "panels": [
            {"y": "distance", "log": "xy", "title": "Direction"},
            {"y": "off_optimal", "log": "y"},
            {"y": "loss", "smooth": 5, "arms": ["gd", "ps"]},
        ]
    }
)


def test_a_figure_is_written_as_png_and_pdf_and_is_valid(tmp_path: Path) -> None:
    figure = describe(FOUR, METHODS, "smoke run, no result")
    chart = figure.spec()
    alt.Chart.from_dict(chart, validate=True)
    png, pdf = figure.write(tmp_path / "figure")
    assert pdf.read_bytes().startswith(b"%PDF")
    assert picture(chart, ".png") == png.read_bytes()
    svg = picture(chart, ".svg").decode()
    for text in ("Smoke run, no result", LABELS["step"], ">GD</text>", ">NGD</text>", ">PS</text>"):
        assert text in svg


def test_panels_of_two_methods_share_styles_by_heads() -> None:
    arms = {f"{method} H = {h}": arm(f"{method} H = {h}", 0.01 * h) for method in ("GD", "Adam") for h in (1, 2)}
    panels = [Panel(y="loss", strip=f"{m} ", arms=[f"{m} H = 1", f"{m} H = 2"]) for m in ("GD", "Adam")]
    figure = describe(FigureSpec(panels=panels, ordered=True), arms)
    assert [panel.names for panel in figure.panels] == [["H = 1", "H = 2"]] * 2
    assert len({look.color for look in figure.styles.values()}) == 2


def test_a_line_is_the_mean_with_its_interval() -> None:
    (line,) = drawn({"a": column([1, 4], [4, 16], [7, 1])})
    assert (line.name, line.x.tolist(), line.y.tolist()) == ("a", [0, 1], [4, 7])
    assert line.low is not None
    assert (line.low < line.y).all()
    (line,) = drawn({"a": column([1, 4], [4, 16], [2, 1])}, log="y")
    np.testing.assert_allclose(line.y, [2, 4])
    assert len(drawn({"a": column([1, 4], [2, 3])})) == 2  # a line for each of few seeds


def test_a_seed_that_ends_early_cuts_the_line() -> None:
    until = {2: 350.0}
    cut = arm_of("PS", [[{"step": STEPS[until.get(k, 500) >= STEPS], "v": STEPS[until.get(k, 500) >= STEPS]}]
                        for k in range(3)], statuses=["completed", "completed", "diverged"])  # fmt: skip
    (panel,) = describe(FigureSpec(panels=[Panel(y="v")]), {"ps": cut}).panels
    assert panel.lines[0].x[-1] == 350
    assert "PS is drawn up to step 350: later steps lack values of some runs" in panel.notes


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_values_without_a_logarithm_are_left_out(bad: float) -> None:
    values = np.exp(-STEPS / 50)
    values[[0, 7, -1]] = bad
    (line,) = drawn({"a": column(values, steps=STEPS)}, log="xy")
    assert (line.x > 0).all()
    assert len(line.x) >= len(STEPS) - 3
    np.testing.assert_allclose(line.y, np.exp(-line.x / 50))


def test_smoothing_is_a_mean_over_steps() -> None:
    (line,) = drawn({"a": column([1, 3, 0, 4])}, smooth=2)
    assert (line.x.tolist(), line.y.tolist()) == ([0.5, 1.5, 2.5], [2, 1.5, 2])
    # A thinned curve: a window of 20 steps has 2 of its rows.
    (line,) = drawn({"a": column(np.arange(10), steps=np.arange(0, 100, 10.0))}, smooth=20)
    assert line.x.tolist() == [5, 15, 25, 35, 45, 55, 65, 75, 85]


@pytest.mark.parametrize(
    ("panel", "arms", "message"),
    [
        ({"y": "distanse"}, METHODS, "unknown column 'distanse'; did you mean 'distance'"),
        ({"y": "loss", "arms": ["gd", "ngf"]}, METHODS, "unknown arm 'ngf'; did you mean 'ngd'"),
        ({"y": "loss"}, {"a": arm_of("A", [])}, "arm 'a' has no runs"),
    ],
)
def test_impossible_charts_are_refused(panel: dict[str, Any], arms: dict[str, Arm], message: str) -> None:
    with pytest.raises(UserError, match=message):
        describe(FigureSpec.model_validate({"panels": [panel]}), arms)
