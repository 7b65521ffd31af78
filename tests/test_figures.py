"""Figures of experiments: what they show of the arms' numbers, and that they can be printed."""

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pytest

from bench.errors import UserError
from bench.papers.arms import Arm
from bench.papers.figures import LABELS, MOST_POINTS, FigureSpec, Panel, constants_map, describe, mean_line
from bench.papers.verdicts import Finding
from bench.plots.panels import Line
from bench.plots.panels import caption as text_below
from bench.plots.theme import picture, write_pictures
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


def line(source: Arm, **panel: Any) -> Line:
    drawn, _ = mean_line(Panel(**({"y": "v"} | panel)), {source.label: source}, source)
    return drawn


METHODS = {"gd": arm("GD", 0.01), "ngd": arm("NGD", 0.1), "ps": arm("PS", 1.0, until={2: 350})}
FOUR = FigureSpec.model_validate(
    {
        "panels": [
            {"y": "distance", "log": "xy", "title": "Direction", "guides": [{"slope": -0.5, "label": "slow"}]},
            {"y": "off_optimal", "log": "y", "floor": 1e-12},
            {"y": "norm_W", "x_max": 300},
            {"y": "loss", "smooth": 5, "arms": ["gd", "ps"]},
        ]
    }
)


def caption(spec: FigureSpec, arms: Mapping[str, Arm]) -> str:
    return text_below(describe(spec, arms).panels)


def test_a_figure_is_written_as_png_and_pdf_and_is_valid(tmp_path: Path) -> None:
    chart = describe(FOUR, METHODS, watermark="smoke run, not a result").spec(live=False)
    alt.Chart.from_dict(chart, validate=True)
    png, pdf = write_pictures(chart, tmp_path / "new" / "folder" / "figure")
    assert pdf.read_bytes().startswith(b"%PDF")
    assert picture(chart, ".png") == png.read_bytes()
    svg = picture(chart, ".svg").decode()
    for text in ("smoke run, not a result", ">slow</text>", LABELS["step"], ">GD</text>", ">NGD</text>", ">PS</text>"):
        assert text in svg


def test_panels_of_two_methods_share_styles_by_heads() -> None:
    arms = {f"{method} H = {h}": arm(f"{method} H = {h}", 0.01 * h) for method in ("GD", "Adam") for h in (1, 2)}
    panels = [Panel(y="loss", strip=f"{m} ", arms=[f"{m} H = 1", f"{m} H = 2"]) for m in ("GD", "Adam")]
    figure = describe(FigureSpec(panels=panels, ordered=True), arms)
    assert [panel.names for panel in figure.panels] == [["H = 1", "H = 2"]] * 2
    assert len({look.color for look in figure.styles.values()}) == 2


def test_a_line_is_the_mean_and_a_band_all_seeds() -> None:
    two = column([1, 4], [4, 16])
    name, x, y, low, high, cross = line(two)
    assert (name, x.tolist(), y.tolist(), cross) == ("a", [0, 1], [2.5, 10], None)
    assert low is not None
    assert high is not None
    assert (low.tolist(), high.tolist()) == ([1, 4], [4, 16])
    np.testing.assert_allclose(line(two, log="y").y, [2, 8])
    assert line(column([1, 4])).low is None


def test_a_run_without_values_is_counted_and_not_drawn() -> None:
    some, none = ({"step": STEPS, "v": np.ones(len(STEPS))},), ({"step": STEPS, "other": STEPS},)
    arms = {
        "fine": arm_of("fine", (some, some)),
        "bad": arm_of("bad", (some, none), statuses=("completed", "diverged")),
    }
    text = caption(FigureSpec(panels=[Panel(y="v")]), arms)
    assert text == "Lines: mean over 2 seeds (bad: 1 of 2); bands: minimum to maximum over seeds."


def test_a_seed_that_ends_early_is_marked_and_told() -> None:
    drawn, seeds = mean_line(FOUR.panels[0], METHODS, METHODS["ps"])
    assert seeds == 5
    assert drawn.cross is not None
    assert (drawn.cross[0], drawn.x[-1]) == (350, 500)
    assert "\N{MULTIPLICATION SIGN}: the first seed ends" in caption(FOUR, METHODS)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, 5e-324])
def test_values_without_a_logarithm_are_left_out(bad: float) -> None:
    values = np.exp(-STEPS / 50)
    values[[0, 7, -1]] = bad
    drawn = line(column(values, steps=STEPS), log="xy")
    assert (drawn.x > 0).all()
    assert len(drawn.x) >= len(STEPS) - 3
    np.testing.assert_allclose(drawn.y, np.exp(-drawn.x / 50))


@pytest.mark.matrix(keep=8)
@pytest.mark.parametrize("log", ["", "x", "y", "xy"])
@pytest.mark.parametrize(
    "values",
    [
        STEPS * math.nan,
        STEPS * 0,
        STEPS[:0],
        -STEPS,
        10 ** (STEPS - 300),
        np.where(STEPS < 5, -1e308, 1e308),
    ],
    ids=["nan", "zero", "empty", "negative", "wide", "huge"],
)
def test_odd_numbers_are_drawn(values: np.ndarray, log: str) -> None:
    figure = describe(FigureSpec.model_validate({"panels": [{"y": "v", "log": log}]}), {"a": column(values)})
    assert json.dumps(figure.spec(live=False), allow_nan=False)
    assert not re.search("NaN|Infinity|undefined", figure.picture(".svg").decode())


def test_thinning_is_even_on_the_axis_and_keeps_the_ends() -> None:
    drawn = line(column(np.arange(100_000)), log="x")
    assert len(drawn.x) <= MOST_POINTS
    assert (drawn.x[0], drawn.x[-1]) == (1, 99_999)
    assert np.diff(np.log(drawn.x[500:])).max() < 3 * np.diff(np.log(drawn.x[500:])).min()


def test_smoothing_is_a_mean_over_steps() -> None:
    drawn = line(column([1, 3, 0, 4]), smooth=2, log="y")
    assert drawn.x.tolist() == [0.5, 1.5, 2.5]
    np.testing.assert_allclose(drawn.y, [2, 1.5, 2])
    # A thinned curve: a window of 20 steps has 2 of its rows.
    thin = line(column(np.arange(10), steps=np.arange(0, 100, 10.0)), smooth=20)
    assert thin.x.tolist() == [5, 15, 25, 35, 45, 55, 65, 75, 85]
    np.testing.assert_allclose(thin.y, thin.x / 10)


def test_seeds_with_different_x_are_averaged_at_equal_x() -> None:
    drawn = line(METHODS["gd"], y="off_optimal", x="norm_W", log="y")
    np.testing.assert_allclose(drawn.y, 0.8 * np.exp(-drawn.x))


def test_limits_and_guides_are_those_of_the_description() -> None:
    direction, sparsity, norms, _ = describe(FOUR, METHODS).panels
    assert sparsity.limits is not None
    assert sparsity.limits[0] == pytest.approx(1e-12)
    assert max(line.x[-1] for line in norms.lines) <= 300
    ((name, x, y, *_),) = direction.guides
    assert name == "slow"
    np.testing.assert_allclose(y / y[0], (x / x[0]) ** -0.5)


@pytest.mark.parametrize(
    ("panel", "arms", "message"),
    [
        ({"y": "distanse"}, METHODS, "unknown column 'distanse'; did you mean 'distance'"),
        ({"y": "loss", "x": "norm_W"}, METHODS, "columns loss and norm_W are of different tables"),
        ({"y": "loss", "arms": ["gd", "ngf"]}, METHODS, "unknown arm 'ngf'; did you mean 'ngd'"),
        ({"y": "loss"}, {"a": arm_of("A", [])}, "arm 'a' has no runs"),
        ({"y": "loss"}, {"a": METHODS["gd"], "b": METHODS["gd"]}, "two arms .* have the label 'GD'"),
    ],
)
def test_impossible_charts_are_refused(panel: dict[str, Any], arms: dict[str, Arm], message: str) -> None:
    with pytest.raises(UserError, match=message):
        describe(FigureSpec.model_validate({"panels": [panel]}), arms)


def test_a_map_marks_verdicts_by_the_constants_that_vary() -> None:
    grid = [{"task.S": s, "task.sigma": 0.1, "times.opt.lr": k} for s in (1.0, 2.0) for k in (0.1, 1.0)]
    verdicts: list[Any] = ["holds", "fails", "undecided", "holds"]
    region = [(at, {"train": Finding(v, 1, 0, 2, "", "")}) for at, v in zip(grid, verdicts, strict=True)]
    chart = constants_map(region)
    alt.Chart.from_dict(chart, validate=True)
    rows = [tuple(row.values()) for row in chart["data"]["values"]]
    places = ["1.0, 0.1", "1.0, 1.0", "2.0, 0.1", "2.0, 1.0"]
    assert rows == [(at, "train", verdict) for at, verdict in zip(places, verdicts, strict=True)]
    assert chart["encoding"]["x"]["title"] == "S, times.opt.lr"
    assert picture(chart, ".png").startswith(b"\x89PNG")
