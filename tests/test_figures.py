"""Figures: they show the arms, are printable, and are identical every time."""

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import yaml
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from bench.errors import UserError
from bench.papers.arms import Arm
from bench.papers.figure_chart import LABELS, constants_map, describe
from bench.papers.figures import MOST_POINTS, FigureSpec, Guide, Panel, lines
from bench.papers.verdicts import Finding
from bench.results import draw as drawing
from bench.results.draw import DPI, picture, write_pictures
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
  - {y: distance, log: xy, title: Direction, guides: [{slope: -0.5, label: "$t^{-1/2}$"}, {slope: -0.75, label: slow}]}
  - {y: off_optimal, log: y, title: Sparsity, floor: 1e-12}
  - {y: norm_W, x_max: 300}
  - {y: loss, smooth: 5, arms: [gd, ps]}
""")
)
SIX = FigureSpec(panels=[Panel(y="distance"), Panel(y="loss", log="y")], ordered=True)


def make(spec: FigureSpec, arms: Mapping[str, Arm], **options: str) -> Figure:
    return drawing.make(describe(spec, arms, **options))


def draw(spec: FigureSpec, arms: Mapping[str, Arm], folder: Path) -> list[Path]:
    return write_pictures(describe(spec, arms), folder / "figure")


def texts(figure) -> list[Text]:
    figure.draw_without_rendering()
    return [text for text in figure.findobj(Text) if text.get_visible() and text.get_text()]


def caption(figure) -> str:
    return figure.get_supxlabel().replace("\n", " ")


def legend(figure) -> list[str]:
    return [text.get_text().replace("\N{NO-BREAK SPACE}", " ") for text in figure.legends[0].get_texts()]


def arm_lines(axes) -> list:
    return [line for line in axes.get_lines() if line.get_linewidth() > 1 and line.get_marker() != "x"]


# -- files ----------------------------------------------------------------------------------------------------------


@pytest.mark.matrix(keep=1)
@pytest.mark.parametrize(
    ("spec", "arms", "width"),
    [(ONE, METHODS, 990), (FOUR, METHODS, 2040), (SIX, HEADS, 2040), (ONE, {"a": arm("a", 1.0, seeds=1)}, 990)],
)
def test_a_figure_is_reproducible_as_png_and_pdf(tmp_path, spec, arms, width):
    png, pdf = draw(spec, arms, tmp_path / "new" / "folder")
    assert (png.name, pdf.name) == ("figure.png", "figure.pdf")
    with Image.open(png) as image:
        image.load()
        height = round(make(spec, arms).get_figheight() * DPI)
        assert image.size == (width, height)
        assert image.info["dpi"] == pytest.approx((DPI, DPI), abs=0.1)
    assert pdf.read_bytes().startswith(b"%PDF")
    assert b"/CreationDate" not in pdf.read_bytes()
    again = draw(spec, arms, tmp_path / "again")
    assert [path.read_bytes() for path in again] == [png.read_bytes(), pdf.read_bytes()]


# -- what print needs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("spec", "arms"), [(ONE, METHODS), (FOUR, METHODS), (SIX, HEADS)])
def test_nothing_is_too_small_or_outside_of_the_figure(spec, arms):
    figure = make(spec, arms, watermark="smoke run, not a result")
    for text in texts(figure):
        assert text.get_fontsize() >= 7, text
    below, mark = (next(t for t in figure.texts if t.get_text().startswith(word)) for word in ("Lines", "smoke"))
    assert below.get_window_extent().y0 >= 0
    for axes in figure.axes:
        box = axes.get_tightbbox()
        assert box.x0 >= 0
        assert box.y0 >= below.get_window_extent().y1
        assert box.x1 <= figure.bbox.x1
        assert box.y1 <= figure.legends[0].get_window_extent().y0
    for text in (figure.legends[0], below, mark):
        assert figure.bbox.x0 <= text.get_window_extent().x0 < text.get_window_extent().x1 <= figure.bbox.x1


@pytest.mark.parametrize(("spec", "arms"), [(ONE, METHODS), (FOUR, METHODS), (SIX, HEADS)])
def test_axes_are_labelled_and_scaled_as_asked(spec, arms):
    figure = make(spec, arms)
    assert len(figure.axes) == len(spec.panels)
    for axes, panel in zip(figure.axes, spec.panels, strict=True):
        assert axes.get_xlabel() == LABELS["step"]
        assert axes.get_ylabel().replace("\n", " ") == LABELS[panel.y].replace("\n", " ")
        assert (axes.get_xscale() == "log", axes.get_yscale() == "log") == ("x" in panel.log, "y" in panel.log)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("n", [3, 6, 8])
def test_lines_differ_in_colour_and_without_colour(n, ordered):
    arms = {str(i): column(STEPS + i, label=str(i)) for i in range(n)}
    (axes,) = make(FigureSpec(panels=[Panel(y="v")], ordered=ordered), arms).axes
    drawn = arm_lines(axes)
    assert len({repr(line._unscaled_dash_pattern) for line in drawn}) == n
    assert len({line.get_marker() for line in drawn}) == n
    assert len({to_hex(line.get_color()) for line in drawn}) >= min(n, 7)


def test_panels_of_two_methods_share_styles_by_heads():
    arms = {f"{method} H = {h}": arm(f"{method} H = {h}", 0.01 * h) for method in ("GD", "Adam") for h in (1, 2)}
    panels = [Panel(y="loss", strip=f"{m} ", arms=[f"{m} H = 1", f"{m} H = 2"]) for m in ("GD", "Adam")]
    figure = make(FigureSpec(panels=panels, ordered=True), arms)
    assert legend(figure) == ["H = 1", "H = 2"]
    left, right = ([line.get_color() for line in arm_lines(axes)] for axes in figure.axes)
    assert left == right
    assert len(set(left)) == 2


def test_panels_share_a_legend_that_reads_row_by_row():
    figure = make(FOUR, METHODS)
    assert legend(figure) == ["GD", "NGD", "PS", "$t^{-1/2}$", "slow"]
    assert not any(axes.get_legend() for axes in figure.axes)
    many = {str(i): column(STEPS, label=f"method {i}") for i in range(10)}
    narrow = make(FigureSpec(panels=[Panel(y="v")]), many)
    narrow.draw_without_rendering()
    entries = narrow.legends[0].get_texts()
    by_place = sorted(entries, key=lambda text: (-round(text.get_window_extent().y0), text.get_window_extent().x0))
    assert [text.get_text() for text in by_place] == [f"method {i}" for i in range(10)]


# -- what is shown of the numbers -------------------------------------------------------------------------------------


def test_a_line_is_the_mean_and_a_band_all_seeds():
    two = column(np.array([1.0, 4.0]), np.array([4.0, 16.0]))
    ((line,), seeds) = lines(Panel(y="v"), two)
    assert seeds == 2
    assert line.y.tolist() == [2.5, 10]
    assert line.band is not None
    assert [side.tolist() for side in line.band] == [[1, 4], [4, 16]]
    ((line,), _) = lines(Panel(y="v", log="y"), two)
    np.testing.assert_allclose(line.y, [2, 8])
    ((line,), _) = lines(Panel(y="v"), column(np.array([1.0, 4.0])))
    assert line.band is None


def test_a_run_without_values_is_named_and_not_drawn():
    some, none = ({"step": STEPS, "v": np.ones(len(STEPS))},), ({"step": STEPS, "other": STEPS},)
    arms = {
        "a fine": arm_of("a fine", (some, some), statuses=("completed", "completed")),
        "a bad": arm_of("a bad", (some, none), statuses=("completed", "diverged")),
        "b fine": arm_of("b fine", (some, some), statuses=("completed", "completed")),
        "b bad": arm_of("b bad", (none, none), statuses=("diverged", "diverged")),
    }
    panels = [Panel(y="v", strip=f"{name} ", arms=[f"{name} fine", f"{name} bad"]) for name in "ab"]
    text = caption(make(FigureSpec(panels=panels), arms))
    assert text.startswith("Lines: mean over 2 seeds (bad in (a): 1 of 2, bad in (b): 0 of 2)")
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
    figure = make(ONE, METHODS)
    assert [m.get_xdata()[0] for m in figure.axes[0].get_lines() if m.get_marker() == "x"] == [350]
    assert "\N{MULTIPLICATION SIGN}: the first seed ends" in caption(figure)
    assert "\N{MULTIPLICATION SIGN}" not in caption(make(ONE, HEADS))


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, 5e-324])
def test_values_without_a_logarithm_are_left_out(bad):
    values = np.exp(-STEPS / 50)
    values[[0, 7, -1]] = bad
    ((line,), _) = lines(Panel(y="v", log="xy"), column(values, steps=STEPS))
    assert (line.x > 0).all()
    assert len(line.x) >= len(STEPS) - 3
    np.testing.assert_allclose(line.y, np.exp(-line.x / 50))
    make(FigureSpec(panels=[Panel(y="v", log="xy")]), {"a": column(values)}).draw_without_rendering()


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
def test_odd_numbers_are_drawn_without_a_warning(values, log):
    figure = make(FigureSpec(panels=[Panel(y="v", log=log)]), {"a": column(values)})
    figure.draw_without_rendering()
    assert len(arm_lines(figure.axes[0])) == (0 if "no values" in [t.get_text() for t in figure.axes[0].texts] else 1)


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
    assert "(d): running mean over at most 5 steps." in caption(make(FOUR, METHODS))


def test_seeds_with_different_x_are_averaged_at_equal_x():
    ((line,), _) = lines(Panel(y="off_optimal", x="norm_W", log="y"), METHODS["gd"])
    np.testing.assert_allclose(line.y, 0.8 * np.exp(-line.x))
    assert line.band is not None
    np.testing.assert_allclose(line.band[0], line.band[1])


def test_seeds_that_cannot_be_averaged_have_a_line_each():
    panel = Panel(y="norm_W", x="wave")
    assert len(lines(panel, METHODS["gd"])[0]) == 5
    assert "All: a line for each seed." in caption(make(FigureSpec(panels=[panel]), METHODS))


def test_limits_are_those_asked_for():
    figure = make(FOUR, METHODS)
    assert figure.axes[1].get_ylim()[0] == pytest.approx(1e-12)
    assert figure.axes[1].get_ylim()[1] < 10
    assert 300 <= figure.axes[2].get_xlim()[1] < 320
    (low,) = make(FigureSpec(panels=[Panel(y="off_optimal", log="y", floor=1e-300)]), HEADS).axes
    assert low.get_ylim()[0] > 1e-290
    (high,) = make(FigureSpec(panels=[Panel(y="off_optimal", floor=7)]), METHODS).axes
    assert high.get_ylim()[0] < 0.8 < high.get_ylim()[1]


def test_a_guide_follows_the_first_arm_within_the_panel():
    guide = Guide(slope=-0.5, label="$t^{-1/2}$")
    figure = make(FigureSpec(panels=[Panel(y="distance", log="xy", guides=[guide])]), METHODS)
    (axes,) = figure.axes
    x, y = axes.get_lines()[-1].get_data()
    np.testing.assert_allclose(y / y[0], (x / x[0]) ** -0.5)
    ((first,), _) = lines(Panel(y="distance", log="xy"), METHODS["gd"])
    gap = np.log(np.interp(x, first.x, first.y) / y)
    assert gap.min() < 1e-3 < gap.max() + 2e-3
    assert axes.get_ylim() == make(ONE, METHODS).axes[0].get_ylim()
    assert legend(figure)[-1] == guide.label
    assert "not fits" in caption(figure)


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
    assert caption(make(FigureSpec(panels=panels), arms)).startswith(text)


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
        (FigureSpec(panels=[Panel(y="loss", title="$x_$")]), METHODS, "formula"),
        (ONE, {"a": arm(r"$\nonsense$", 1.0)}, "formula"),
    ],
)
def test_impossible_charts_are_refused(spec, arms, message, tmp_path):
    with pytest.raises(UserError, match=message):
        draw(spec, arms, tmp_path / "figure")
    assert not (tmp_path / "figure").exists()


# -- maps of constants ------------------------------------------------------------------------------------------------


def test_a_map_has_panels_by_constant_and_marks_by_verdict():
    grid = [{"task.S": s, "task.sigma": 0.1, "times.opt.lr": k} for s in (1.0, 2.0) for k in (0.1, 1.0)]
    verdicts = ["holds", "fails", "undecided", "holds"]
    region = [(at, {"train": Finding(v, 1, 0, 2, "", "")}) for at, v in zip(grid, verdicts, strict=True)]
    figure = constants_map(region)
    assert [(panel.title, panel.x) for panel in figure.panels] == [
        ("S = 1.0", "factor of lr"),
        ("S = 2.0", "factor of lr"),
    ]
    assert [dict(panel.x_ticks or {}) for panel in figure.panels] == [{0: "0.1", 1: "1.0"}] * 2
    marks = [{t.name: (t.x.tolist(), t.y.tolist()) for t in panel.traces} for panel in figure.panels]
    assert marks == [{"holds": ([0], [0]), "fails": ([1], [0])}, {"holds": ([1], [0]), "undecided": ([0], [0])}]
    assert picture(figure, ".png").startswith(b"\x89PNG")


def test_a_map_of_one_constant_has_one_panel():
    region = [({"task.d": 3}, {"x": Finding("holds", 1, 0, 2, "", "")}), ({"task.d": 4}, {})]
    (panel,) = constants_map(region).panels
    assert [(t.name, t.x.tolist()) for t in panel.traces] == [("holds", [0])]
