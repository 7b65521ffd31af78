"""How a figure looks: from its description and the arms to a PNG and a PDF that print well.

Matplotlib is imported only when something is drawn, since its import takes most of a second.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bench.errors import UserError, unknown
from bench.figure_layout import NORMAL, SMALL, add_legend, add_watermark, axis_limits, set_ticks, size_inches, wrap_text
from bench.papers.arms import Arm, Array
from bench.papers.figures import FigureSpec, Guide, Line, Panel, lines

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

DPI = 300
ONE_COLUMN, TWO_COLUMNS = 3.3, 6.8
"""Widths in inches of a figure with one panel a row and with more."""
_ROW_HEIGHTS = {1: 2.25, 2: 2.2, 3: 1.85}
"""Inches that a row of so many panels is high."""

LINE_WIDTH = 1.2
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9", "#882255")
"""Okabe and Ito's colours, which everybody can tell apart, but Tol's wine for their yellow, too faint on white."""
_DASHES: tuple[Any, ...] = (
    "solid",
    (0, (5, 1.5)),
    (0, (1.2, 1.2)),
    (0, (6, 1.5, 1.2, 1.5)),
    (0, (2.6, 1.2)),
    (0, (10, 1.8)),
    (0, (6, 1.2, 1.2, 1.2, 1.2, 1.2)),
    (0, (10, 1.5, 3, 1.5)),
)
_MARKERS = ("o", "s", "^", "D", "v", "P", "*", "X")
_GUIDE_DASHES: tuple[Any, ...] = ((0, (4, 2)), (0, (1, 1.5)), (0, (7, 2, 1, 2)), "solid")

LABELS = {
    "step": "optimizer steps $t$",
    "loss": "training loss",
    "grad_norm": "norm of the gradient",
    "raw_step": "step size before its cap",
    "applied_step": "step size",
    "distance": "distance of directions\n" + r"$\|\,W/\|W\| - W_\mathrm{mm}/\|W_\mathrm{mm}\|\,\|$",
    "alignment": r"alignment of $W$ with $W_\mathrm{mm}$ (cosine)",
    "norm_W": r"$\|W\|$",
    "off_optimal": "1 \N{MINUS SIGN} softmax weight\non the optimal token",
    "on_optimal": "softmax weight\non the optimal token",
    "test_loss": "test loss",
    "train_error": "training error (fraction)",
    "test_error": "test error (fraction)",
    "attn_score": "softmax mass on\nrelevant tokens",
    "off_relevant": "1 \N{MINUS SIGN} softmax mass on\nrelevant tokens",
    "avg_norm_W": r"$H^{-1}\,\sum_h\,\|W_h\|$",
    "avg_norm_U": r"$H^{-1/2}\,\sum_h\,\|U_h\|$",
    "align_W": r"alignment of $W$ with the planted head (cosine)",
    "align_U": r"alignment of $U$ with the planted head (cosine)",
    "distance_u": "distance of directions\n" + r"$\|\,u/\|u\| - u_\mathrm{mm}/\|u_\mathrm{mm}\|\,\|$",
    "min_margin": "smallest margin",
    "mean_margin": "mean margin",
    "entropy": "entropy of attention (nats)",
}
"""What the axes call the columns that are known; another column is called by its name."""

_RC = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so that figures are the same everywhere
    "mathtext.fontset": "dejavusans",
    "font.size": NORMAL,
    "axes.titlesize": NORMAL,
    "axes.labelsize": NORMAL,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "legend.fontsize": SMALL,
    "figure.labelsize": SMALL,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.formatter.use_mathtext": True,
    "axes.formatter.limits": (-4, 5),
    "axes.formatter.useoffset": False,
    "pdf.fonttype": 42,  # fonts that journals accept
}


class LineStyle(NamedTuple):
    """How a curve is drawn."""

    color: str
    linestyle: Any
    marker: str


def draw(spec: FigureSpec, arms: Mapping[str, Arm], folder: Path, *, watermark: str = "") -> list[Path]:
    """Write `figure.png` (300 dpi) and `figure.pdf`; the same input gives the same bytes.

    Args:
        spec: what to draw.
        arms: by key, in the legend's order.
        folder: made if it is not there.
        watermark: large and pale across the figure.

    Raises:
        UserError: see `make`.
    """
    with house_style():
        figure = make(spec, arms, watermark=watermark)
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / "figure.png", folder / "figure.pdf"]
        figure.savefig(paths[0], dpi=DPI, metadata={"Software": None})
        figure.savefig(paths[1], metadata={"CreationDate": None})
    return paths


@contextmanager
def house_style() -> Iterator[None]:
    """Our settings instead of the user's, who may have a matplotlibrc."""
    import matplotlib.style

    with matplotlib.style.context(["default", _RC]):
        yield


def make(spec: FigureSpec, arms: Mapping[str, Arm], *, watermark: str = "") -> "Figure":
    """The figure, not yet written. Arms with one label, in different panels, share a style and a line in the legend.

    Raises:
        UserError: an arm is unknown, has no runs or lacks a column; a text is not legal; labels do not tell arms apart.
    """
    if not arms:
        raise UserError("there are no arms to draw")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with house_style():
        columns = min(spec.columns, len(spec.panels))
        rows = math.ceil(len(spec.panels) / columns)
        width = ONE_COLUMN if columns == 1 else TWO_COLUMNS
        height = rows * _ROW_HEIGHTS[columns]
        figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
        FigureCanvasAgg(figure)
        chosen = [_chosen(panel, arms) for panel in spec.panels]
        styles = line_styles([arm.label for panel_arms in chosen for arm in panel_arms], spec.ordered)
        words = _Words(spec)
        all_axes = list(figure.subplots(rows, columns, squeeze=False).flat)
        for k, (axes, panel) in enumerate(zip(all_axes, spec.panels, strict=False)):
            _draw_panel(axes, k, panel, chosen[k], styles, words)
            room = width / columns, _ROW_HEIGHTS[columns]
            _name_axes(axes, panel, f"({_letter(k)}) " if len(spec.panels) > 1 else "", room)
        for axes in all_axes[len(spec.panels) :]:
            axes.remove()
        figure.align_labels()

        handles = [words.shown[label] for label in styles if label in words.shown] + list(words.guides.values())
        legend = add_legend(figure, handles)
        below = figure.supxlabel(
            wrap_text(figure, words.text(), SMALL, width - 0.1), x=0.05 / width, ha="left", color="0.25"
        )
        extra = sum(size_inches(figure, artist)[1] for artist in (legend, below)) + 0.1
        figure.set_size_inches(width, round(height + extra, 2))
        if watermark:
            add_watermark(figure, watermark)
        return figure


def _chosen(panel: Panel, arms: Mapping[str, Arm]) -> list[Arm]:
    """The arms of a panel."""
    keys = list(arms) if panel.arms is None else panel.arms
    for key in keys:
        if key not in arms:
            raise unknown("arm", key, arms)
    chosen = [replace(arms[key], label=arms[key].label.removeprefix(panel.strip)) for key in keys]
    for label, count in Counter(arm.label for arm in chosen).items():
        if count > 1:
            raise UserError(f"{count} arms of the panel of {panel.y!r} are called {label!r}; choose one with `arms`")
    return chosen


def entry_styles(entries: Iterable[str], labels: Iterable[str]) -> dict[str, LineStyle]:
    """A style for each entry, the same in all figures of the same entries, and for labels that are no entry's name."""
    own = set(entries)
    return line_styles(sorted(own), ordered=False) | line_styles(sorted(set(labels) - own), ordered=False)


def line_styles(labels: Sequence[str], ordered: bool) -> dict[str, LineStyle]:
    """A style for each label; they differ in colour and, for print in grey, in dashes or, beyond eight, markers."""
    import matplotlib
    from matplotlib.colors import to_hex

    labels = list(dict.fromkeys(labels))
    if ordered:
        # From dark to light, without the end that white paper swallows.
        colours = [to_hex(colour) for colour in matplotlib.colormaps["viridis"](np.linspace(0, 0.87, len(labels)))]
    else:
        colours = [_COLOURS[i % len(_COLOURS)] for i in range(len(labels))]
    turns = [i // len(_DASHES) for i in range(len(labels))]
    return {
        label: LineStyle(colours[i], _DASHES[i % len(_DASHES)], _MARKERS[(i + turns[i]) % len(_MARKERS)])
        for i, label in enumerate(labels)
    }


class _Words:
    """Collects what legend and caption must say of the lines.

    Attributes:
        shown, guides: what stands in the legend, by label.
    """

    def __init__(self, spec: FigureSpec) -> None:
        self.spec = spec
        self.seeds: dict[str, dict[str, list[int]]] = {}  # panels by arm and number of seeds
        self.bands = self.ended = False
        self.shown: dict[str, Line2D] = {}
        self.guides: dict[str, Line2D] = {}
        self.facts: dict[str, list[int]] = {}
        for k, panel in enumerate(spec.panels):
            if (panel.smooth or 1) > 1:
                self.facts.setdefault(f"running mean over at most {panel.smooth} rows", []).append(k)

    def add(self, k: int, arm: Arm, drawn: Sequence[Line], seeds: int) -> None:
        """Note the lines of an arm in a panel."""
        of = "" if seeds == len(arm.tables) else f" of {len(arm.tables)}"
        self.seeds.setdefault(arm.label, {}).setdefault(f"{seeds}{of}", []).append(k)
        self.bands |= any(line.band is not None for line in drawn)
        floor = self.spec.panels[k].floor
        self.ended |= any(line.ended is not None and (floor is None or line.ended[1] >= floor) for line in drawn)
        panels = self.facts.setdefault("a line for each seed", [])
        if len(drawn) > 1 and k not in panels:
            panels.append(k)

    def text(self) -> str:
        """The caption, in one paragraph."""
        parts = [self._seeds()]
        for fact, panels in self.facts.items():
            where = "All" if len(panels) == len(self.spec.panels) else ", ".join(f"({_letter(k)})" for k in panels)
            parts += [f"{where}: {fact}."] if panels else []
        if self.ended:
            parts.append(
                "\N{MULTIPLICATION SIGN}: the first seed has no more values; the line goes on with the others."
            )
        if self.guides:
            parts.append("Grey: rates to compare with, no fits.")
        return " ".join(parts)

    def _seeds(self) -> str:
        tally = Counter(count for counts in self.seeds.values() for count, panels in counts.items() for _ in panels)
        most = max(tally, key=lambda count: (tally[count], int(count.split()[0])))
        others = []
        for label, counts in self.seeds.items():
            for count, panels in counts.items():
                where = "" if len(counts) == 1 else " in " + ", ".join(f"({_letter(k)})" for k in panels)
                others += [f"{label}{where}: {count}"] * (count != most)
        number = f"{most} seed{'' if most == '1' else 's'}" + (f" ({', '.join(others)})" if others else "")
        if not self.bands:
            return f"Lines: {number}."
        logs = {"y" in panel.log for panel in self.spec.panels}
        mean = "geometric mean" if logs == {True} else "mean"
        aside = ", geometric where y is logarithmic" if logs == {True, False} else ""
        return f"Lines: {mean} over {number}{aside}; bands: minimum to maximum over seeds."


def _letter(k: int) -> str:
    return chr(ord("a") + k)


def _draw_panel(
    axes: "Axes",
    k: int,
    panel: Panel,
    arms: Sequence[Arm],
    styles: Mapping[str, LineStyle],
    words: _Words,
) -> None:
    """Draw lines, bands and guides, and tell `words`."""
    from matplotlib.lines import Line2D

    if "x" in panel.log:
        axes.set_xscale("log")
    if "y" in panel.log:
        axes.set_yscale("log")
    drawn: list[list[Line]] = []
    for i, arm in enumerate(arms):
        style = styles[arm.label]
        arm_lines, seeds = lines(panel, arm)
        drawn.append(arm_lines)
        words.add(k, arm, arm_lines, seeds)
        looks: dict[str, Any] = dict(
            color=style.color, linestyle=style.linestyle, marker=style.marker, markersize=3, lw=LINE_WIDTH
        )
        words.shown.setdefault(arm.label, Line2D([], [], label=arm.label, **looks))
        for line in arm_lines:
            if line.band is not None:
                axes.fill_between(line.x, *line.band, color=style.color, alpha=0.18, linewidth=0, zorder=2)
            at = _marked(line.x, "x" in panel.log, i / len(arms))
            axes.plot(line.x, line.y, **looks, markevery=at, zorder=3 + 0.01 * i, solid_capstyle="butt")
            if line.ended:
                axes.plot(*line.ended, marker="x", color=style.color, markersize=5, markeredgewidth=1.1, zorder=5)
    every = [line for arm_lines in drawn for line in arm_lines]
    if every:
        axes.set_xlim(*axis_limits([line.x for line in every], "x" in panel.log, 0.02))
        axes.set_ylim(
            *axis_limits([v for line in every for v in line.band or (line.y,)], "y" in panel.log, 0.05, panel.floor)
        )
        for guide in panel.guides:
            number = list(words.guides).index(guide.label) if guide.label in words.guides else len(words.guides)
            dashes = _GUIDE_DASHES[number % len(_GUIDE_DASHES)]
            thin: dict[str, Any] = dict(color="0.35", linestyle=dashes, lw=0.8)
            axes.plot(*_guide_points(guide, every[0], panel, axes.get_ylim()), **thin, zorder=4)
            words.guides.setdefault(guide.label, Line2D([], [], label=guide.label, **thin))
    else:
        axes.text(0.5, 0.5, "no values", transform=axes.transAxes, ha="center", va="center", color="0.4")
    set_ticks(axes.xaxis, "x" in panel.log)
    set_ticks(axes.yaxis, "y" in panel.log)


def _marked(x: Array, log: bool, phase: float) -> list[int]:
    """The points that carry a marker: six, evenly over the line, at another place for each arm."""
    if len(x) < 3:
        return list(range(len(x)))
    position = np.log(x) if log else x
    wanted = position[0] + (position[-1] - position[0]) * (np.arange(6) + 0.1 + 0.8 * phase) / 6
    return sorted({int(np.abs(position - value).argmin()) for value in wanted})


def _guide_points(guide: Guide, line: Line, panel: Panel, y_range: tuple[float, float]) -> tuple[Array, Array]:
    """The guide's points inside of the panel."""
    log_x = "x" in panel.log
    position = np.log(line.x) if log_x else line.x
    low, high = position.min(), position.max()
    x = np.linspace((low + high) / 2, high, 200)
    x = np.exp(x) if log_x else x
    k = int(np.abs(position - (low + 3 * high) / 4).argmin())
    with np.errstate(all="ignore"):
        y = line.y[k] * (x / line.x[k]) ** guide.slope
        inside = (y >= y_range[0]) & (y <= y_range[1])
    return x[inside], y[inside]


def _name_axes(axes: "Axes", panel: Panel, letter: str, room: tuple[float, float]) -> None:
    """Title and labels, in lines that fit a panel so many inches wide and high."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    for name, column, long in (("x", panel.x, room[0] - 0.7), ("y", panel.y, room[1] - 0.5)):
        text = LABELS.get(column, column.replace("$", r"\$"))
        axes.set(**{f"{name}label": wrap_text(figure, text, NORMAL, long)})
    if title := (letter + panel.title).strip():
        axes.set_title(wrap_text(figure, title, NORMAL, room[0] - 0.7), loc="left")
