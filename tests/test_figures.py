"""Figures: they show the arms, are printable, and are identical every time."""

import json
import math
import re
from collections.abc import Mapping
from typing import Any

import altair as alt
import numpy as np
import pytest
import yaml

from bench.errors import UserError
from bench.papers.arms import Arm
from bench.papers.figure_chart import LABELS, constants_map, describe
from bench.papers.figures import MOST_POINTS, FigureSpec, Guide, Panel, lines
from bench.papers.verdicts import Finding
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
        measured = {
            "step": steps,
            "distance": (1 + speed * steps) ** -0.5,
            "off_optimal": 0.8 * np.exp(-speed * steps),
            "norm_W": speed * steps,
            "wave": np.sin(speed * steps),
        }
        tables.append([measured, {"step": steps[1:], "loss": 0.7 * np.exp(-speed * steps[1:])}])
    return arm_of(label, tables)


def column(values: np.ndarray, *more: np.ndarray, label: str = "a", steps: np.ndarray | None = None) -> Arm:
    """An arm with one run for each array, as its column v."""
    every = (values, *more)
    return arm_of(label, [[{"step": np.arange(len(v)) if steps is None else steps, "v": v}] for v in every])


METHODS = {"gd": arm("GD", 0.01), "ngd": arm("NGD", 0.1), "ps": arm("PS", 1.0, until={2: 350})}
HEADS = {f"h{h}": arm(f"H = {h}", 0.01 * h) for h in (1, 2, 4, 8, 16, 32)}
ONE = FigureSpec(panels=[Panel(y="distance", log="xy")])
FOUR = FigureSpec.model_validate(
    yaml.safe_load("""
panels:
  - {y: distance, log: xy, title: Direction, guides: [{slope: -0.5, label: "t^(-1/2)"}, {slope: -0.75, label: slow}]}
  - {y: off_optimal, log: y, title: Sparsity, floor: 1e-12}
  - {y: norm_W, x_max: 300}
  - {y: loss, smooth: 5, arms: [gd, ps]}
""")
)


def caption(spec: FigureSpec, arms: Mapping[str, Arm]) -> str:
    return text_below(describe(spec, arms).panels)


def first(spec: FigureSpec, arms: Mapping[str, Arm]) -> Any:
    return describe(spec, arms).panels[0]


# -- files ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [ONE, FOUR], ids=["one", "four"])
def test_a_figure_is_written_as_png_and_pdf_and_is_valid(tmp_path, spec):
    chart = describe(spec, METHODS, watermark="smoke run, not a result").spec(live=False)
    alt.Chart.from_dict(chart, validate=True)
    png, pdf = write_pictures(chart, tmp_path / "new" / "folder" / "figure")
    assert (png.name, pdf.name) == ("figure.png", "figure.pdf")
    assert pdf.read_bytes().startswith(b"%PDF")
    assert picture(chart, ".png") == png.read_bytes()
    svg = picture(chart, ".svg").decode()
    assert "smoke run, not a result" in svg
    assert svg.count("mark-text role-axis-title") == 2 * len(spec.panels)
    for label in ("GD", "NGD", "PS"):
        assert len(re.findall(f">{label}</text>", svg)) == 1  # one legend
    assert (">slow</text>" in svg) == (spec is FOUR)  # the name of a guide


def test_axes_are_labelled_and_scaled_as_asked():
    for drawn, panel in zip(describe(FOUR, METHODS).panels, FOUR.panels, strict=True):
        assert (drawn.x, drawn.y, drawn.log) == (LABELS["step"], LABELS[panel.y], panel.log)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("n", [3, 6, 8])
def test_lines_differ_in_colour_and_without_colour(n, ordered):
    arms = {str(i): column(STEPS + i, label=str(i)) for i in range(n)}
    drawn = describe(FigureSpec(panels=[Panel(y="v")], ordered=ordered), arms).styles.values()
    assert len({look.color for look in drawn}) == len({str(look.dash) for look in drawn}) == n
    assert len({look.shape for look in drawn}) == n


def test_panels_of_two_methods_share_styles_by_heads():
    arms = {f"{method} H = {h}": arm(f"{method} H = {h}", 0.01 * h) for method in ("GD", "Adam") for h in (1, 2)}
    panels = [Panel(y="loss", strip=f"{m} ", arms=[f"{m} H = 1", f"{m} H = 2"]) for m in ("GD", "Adam")]
    figure = describe(FigureSpec(panels=panels, ordered=True), arms)
    assert [panel.names for panel in figure.panels] == [["H = 1", "H = 2"]] * 2
    assert len({look.color for look in figure.styles.values()}) == 2


# -- what is shown of the numbers -------------------------------------------------------------------------------------


def test_a_line_is_the_mean_and_a_band_all_seeds():
    two = column(np.array([1.0, 4.0]), np.array([4.0, 16.0]))
    ((line,), seeds) = lines(Panel(y="v"), two)
    assert seeds == 2
    assert line.y.tolist() == [2.5, 10]
    assert line.low is not None
    assert line.high is not None
    assert (line.low.tolist(), line.high.tolist()) == ([1, 4], [4, 16])
    ((line,), _) = lines(Panel(y="v", log="y"), two)
    np.testing.assert_allclose(line.y, [2, 8])
    ((line,), _) = lines(Panel(y="v"), column(np.array([1.0, 4.0])))
    assert line.low is None


def test_a_run_without_values_is_named_and_not_drawn():
    some, none = ({"step": STEPS, "v": np.ones(len(STEPS))},), ({"step": STEPS, "other": STEPS},)
    arms = {
        "a fine": arm_of("a fine", (some, some), statuses=("completed", "completed")),
        "a bad": arm_of("a bad", (some, none), statuses=("completed", "diverged")),
        "b fine": arm_of("b fine", (some, some), statuses=("completed", "completed")),
        "b bad": arm_of("b bad", (none, none), statuses=("diverged", "diverged")),
    }
    panels = [Panel(y="v", strip=f"{name} ", arms=[f"{name} fine", f"{name} bad"]) for name in "ab"]
    text = caption(FigureSpec(panels=panels), arms)
    assert text.startswith("(a): lines: mean over 2 seeds (bad: 1 of 2); bands: minimum to maximum over seeds. (b)")
    assert lines(panels[1], arms["b bad"]) == ([], 0)
    completed = arm_of("b bad", (none,))
    with pytest.raises(UserError, match="has no table with v"):
        lines(panels[1], completed)


def test_a_seed_that_ends_early_is_marked_and_told():
    ((line,), seeds) = lines(Panel(y="distance"), METHODS["ps"])
    assert seeds == 5
    assert line.cross is not None
    assert line.cross[0] == 350
    assert line.x[-1] == 500
    assert "\N{MULTIPLICATION SIGN}: the first seed ends" in caption(ONE, METHODS)
    assert "\N{MULTIPLICATION SIGN}" not in caption(ONE, HEADS)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, 5e-324])
def test_values_without_a_logarithm_are_left_out(bad):
    values = np.exp(-STEPS / 50)
    values[[0, 7, -1]] = bad
    ((line,), _) = lines(Panel(y="v", log="xy"), column(values, steps=STEPS))
    assert (line.x > 0).all()
    assert len(line.x) >= len(STEPS) - 3
    np.testing.assert_allclose(line.y, np.exp(-line.x / 50))
    assert describe(FigureSpec(panels=[Panel(y="v", log="xy")]), {"a": column(values)}).picture(".svg")


@pytest.mark.matrix(keep=8)
@pytest.mark.parametrize("log", ["", "x", "y", "xy"])
@pytest.mark.parametrize(
    "values",
    [
        STEPS * math.nan,
        STEPS * 0,
        STEPS[:0],
        STEPS[:1],
        -STEPS,
        STEPS * 0 + math.log(2),
        10 ** (STEPS - 300),
        math.log(2) - STEPS * 1e-10,
        np.where(STEPS < 5, 0.5, 1e308),
        np.where(STEPS < 5, -1e308, 1e308),
    ],
    ids=["nan", "zero", "empty", "one row", "negative", "constant", "wide", "nearly constant", "huge", "both huge"],
)
def test_odd_numbers_are_drawn(values, log):
    figure = describe(FigureSpec(panels=[Panel(y="v", log=log)]), {"a": column(values)})
    assert json.dumps(figure.spec(live=False), allow_nan=False)
    svg = figure.picture(".svg").decode()
    assert not re.search("NaN|Infinity|undefined", svg)


def test_thinning_is_even_on_the_axis_and_keeps_the_ends():
    values = np.arange(100_000.0)
    ((linear,), _) = lines(Panel(y="v"), column(values))
    assert len(linear.x) <= MOST_POINTS
    assert (linear.x[0], linear.x[-1]) == (0, 99_999)
    assert np.ptp(np.diff(linear.x)) <= 1
    ((log,), _) = lines(Panel(y="v", log="x"), column(values))
    assert (log.x[0], log.x[-1]) == (1, 99_999)
    assert np.array_equal(log.x[:100], np.arange(1, 101))
    assert np.diff(np.log(log.x[500:])).max() < 3 * np.diff(np.log(log.x[500:])).min()
    assert np.array_equal(log.y, log.x)


def test_smoothing_is_a_mean_over_steps():
    ((line,), _) = lines(Panel(y="v", smooth=2, log="y"), column(np.array([1.0, 3, 0, 4])))
    assert line.x.tolist() == [0.5, 1.5, 2.5]
    np.testing.assert_allclose(line.y, [2, 1.5, 2])
    ((line,), _) = lines(Panel(y="v", smooth=50), column(np.array([1.0, 3])))
    assert (line.x.tolist(), line.y.tolist()) == ([0.5], [2])
    # A thinned curve: a window of 20 steps has 2 of its rows.
    thin = column(np.arange(10.0), steps=np.arange(0, 100, 10))
    ((line,), _) = lines(Panel(y="v", smooth=20), thin)
    assert line.x.tolist() == [5, 15, 25, 35, 45, 55, 65, 75, 85]
    assert line.y.tolist() == [0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5]
    assert "running mean over at most 5 steps" in caption(FOUR, METHODS)


def test_seeds_with_different_x_are_averaged_at_equal_x():
    ((line,), _) = lines(Panel(y="off_optimal", x="norm_W", log="y"), METHODS["gd"])
    np.testing.assert_allclose(line.y, 0.8 * np.exp(-line.x))
    np.testing.assert_allclose(line.low, line.high)


def test_seeds_that_cannot_be_averaged_have_a_line_each():
    panel = Panel(y="norm_W", x="wave")
    assert len(lines(panel, METHODS["gd"])[0]) == 5
    assert "a line for each seed." in caption(FigureSpec(panels=[panel]), METHODS)


def test_limits_are_those_asked_for():
    _, sparsity, norms, _ = describe(FOUR, METHODS).panels
    assert sparsity.limits is not None
    assert sparsity.limits[0] == pytest.approx(1e-12)
    assert sparsity.limits[1] < 10
    assert max(line.x[-1] for line in norms.lines) <= 300
    low, high = (
        first(FigureSpec(panels=[Panel(y="off_optimal", log=log, floor=floor)]), METHODS).limits
        for log, floor in (("y", 1e-300), ("", 7))
    )
    assert low[0] > 1e-290
    assert high[0] < 0.8 < high[1]


def test_a_guide_follows_the_first_arm_within_the_panel():
    guide = Guide(slope=-0.5, label="t^(-1/2)")
    spec = FigureSpec(panels=[Panel(y="distance", log="xy", guides=[guide])])
    panel = first(spec, METHODS)
    ((name, x, y, *_),) = panel.guides
    assert name == guide.label
    np.testing.assert_allclose(y / y[0], (x / x[0]) ** -0.5)
    gap = np.log(np.interp(x, panel.lines[0].x, panel.lines[0].y) / y)
    assert gap.min() < 1e-3 < gap.max() + 2e-3
    assert panel.limits == first(ONE, METHODS).limits
    assert "not fits" in caption(spec, METHODS)


@pytest.mark.parametrize(
    ("panels", "arms", "text"),
    [
        (
            [Panel(y="distance", log="y")],
            HEADS,
            "Lines: geometric mean over 5 seeds; bands: minimum to maximum over seeds.",
        ),
        ([Panel(y="distance")], HEADS, "Lines: mean over 5 seeds; bands: minimum to maximum over seeds."),
        ([Panel(y="v")], {"a": column(STEPS)}, "Lines: 1 seed."),
        ([Panel(y="loss")], METHODS | {"one": arm("One", 1.0, seeds=1)}, "Lines: mean over 5 seeds (One: 1); bands:"),
    ],
)
def test_the_caption_says_what_lines_and_bands_are(panels, arms, text):
    assert caption(FigureSpec(panels=panels), arms).startswith(text)


# -- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "arms", "message"),
    [
        (
            FigureSpec(panels=[Panel(y="distanse")]),
            METHODS,
            "cannot draw 'distanse'.*GD has no table with distanse.*it has dist",
        ),
        (FigureSpec(panels=[Panel(y="loss", x="norm_W")]), METHODS, "GD has no table with loss, norm_W"),
        (FigureSpec(panels=[Panel(y="loss", arms=["gd", "ngf"])]), METHODS, "unknown arm 'ngf'; did you mean 'ngd'"),
        (ONE, {}, "no arms"),
        (ONE, {"a": arm_of("A", [])}, "arm 'A' has no runs"),
        (ONE, {"a": METHODS["gd"], "b": METHODS["gd"]}, "2 arms .* have the label 'GD'"),
    ],
)
def test_impossible_charts_are_refused(spec, arms, message):
    with pytest.raises(UserError, match=message):
        describe(spec, arms)


# -- maps of constants ------------------------------------------------------------------------------------------------


def test_a_map_has_panels_by_constant_and_marks_by_verdict():
    grid = [{"task.S": s, "task.sigma": 0.1, "times.opt.lr": k} for s in (1.0, 2.0) for k in (0.1, 1.0)]
    verdicts = ["holds", "fails", "undecided", "holds"]
    region = [(at, {"train": Finding(v, 1, 0, 2, "", "")}) for at, v in zip(grid, verdicts, strict=True)]
    chart = constants_map(region)
    alt.Chart.from_dict(chart, validate=True)
    assert [tuple(row.values()) for row in chart["data"]["values"]] == [
        ("S = 1.0", "0.1", "train", "holds"),
        ("S = 1.0", "1.0", "train", "fails"),
        ("S = 2.0", "0.1", "train", "undecided"),
        ("S = 2.0", "1.0", "train", "holds"),
    ]
    assert chart["spec"]["encoding"]["x"]["title"] == "factor of lr"
    assert picture(chart, ".png").startswith(b"\x89PNG")


def test_a_map_of_one_constant_has_one_panel():
    region = [({"task.d": 3}, {"x": Finding("holds", 1, 0, 2, "", "")}), ({"task.d": 4}, {})]
    assert constants_map(region)["data"]["values"] == [{"panel": "", "at": "3", "claim": "x", "verdict": "holds"}]
