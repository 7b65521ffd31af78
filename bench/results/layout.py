"""Common parts of figures: ticks of axes, legends that fit, wrapped text, a watermark."""

import math
import re
from typing import TYPE_CHECKING, Any

from bench.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend
    from matplotlib.lines import Line2D

SMALL, NORMAL = 7.0, 8.0
"""Font sizes in points."""


def set_ticks(axis: "Axis", log: bool) -> None:
    """Ticks for a small panel."""
    from matplotlib import ticker

    def digits(value: float, _: object = None) -> str:
        return f"{value:g}" if 1e-3 < value < 1e4 else powers(value)

    powers = ticker.LogFormatterSciNotation(minor_thresholds=(math.inf, math.inf))
    axis.set_tick_params(which="both", labelsize=SMALL, width=0.6)
    low, high = axis.get_view_interval()
    decades = math.log10(high) - math.log10(low) if log else 0
    if decades >= 1.6:
        axis.set_major_locator(ticker.LogLocator(numticks=7))
        axis.set_major_formatter(ticker.LogFormatterMathtext())
        within = tuple(range(2, 10)) if decades < 8 else (1.0,)
        axis.set_minor_locator(ticker.LogLocator(subs=within, numticks=99) if decades < 40 else ticker.NullLocator())
        axis.set_minor_formatter(ticker.NullFormatter())
    elif decades > 0.9:  # one or two powers of ten are too few
        axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(digits)
        axis.set_minor_locator(ticker.NullLocator())
    else:
        axis.set_major_locator(ticker.MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
        axis.set_major_formatter(ticker.ScalarFormatter())
        axis.set_minor_locator(ticker.NullLocator())
    axis.axes.grid(axis="both", which="major", color="0.9", linewidth=0.4, zorder=0)


def add_legend(figure: "Figure", handles: "list[Line2D]") -> "Legend":
    """One legend above all panels, read row by row, as wide as the figure allows."""
    width = figure.get_figwidth() - 0.1
    for handle in handles:
        handle.set_label(wrap_text(figure, str(handle.get_label()), SMALL, width - 0.6))

    def attempt(columns: int) -> "Legend":
        by_column = [handle for c in range(columns) for handle in handles[c::columns]]
        return figure.legend(
            handles=by_column,
            loc="outside upper center",
            ncols=columns,
            frameon=False,
            handlelength=3,
            handletextpad=0.6,
            columnspacing=1.4,
            borderpad=0.2,
            labelspacing=0.35,
        )

    columns = len(handles)
    legend = attempt(columns)
    while columns > 1 and size_inches(figure, legend)[0] > width:
        legend.remove()
        columns -= 1
        legend = attempt(columns)
    legend.remove()
    rows = math.ceil(len(handles) / columns)
    return attempt(math.ceil(len(handles) / rows))


def size_inches(figure: "Figure", artist: Any) -> tuple[float, float]:
    """Width and height of an artist."""
    canvas: Any = figure.canvas  # Agg's canvas has a renderer
    extent = artist.get_window_extent(canvas.get_renderer())
    return extent.width / figure.dpi, extent.height / figure.dpi


def wrap_text(figure: "Figure", text: str, size: float, inches: float) -> str:
    """The text wrapped to this width; formulas and words are not broken.

    Raises:
        UserError: it has an invalid formula.
    """

    def width(line: str) -> float:
        artist = figure.text(0, 0, line, fontsize=size)
        try:
            return size_inches(figure, artist)[0]
        except ValueError as error:
            raise UserError(f"the text {text!r} has an invalid formula; write \\$ for a dollar") from error
        finally:
            artist.remove()

    done = []
    for paragraph in text.split("\n"):
        line = ""
        tied = re.sub(r" ([=<>]) ", "\N{NO-BREAK SPACE}\\1\N{NO-BREAK SPACE}", paragraph)
        for word in re.findall(r"(?:\$[^$]*\$|[^ ])+", tied):
            longer = f"{line} {word}".strip()
            if line and width(longer) > inches:
                done.append(line)
                longer = word
            line = longer
        width(line)
        done.append(line)
    return "\n".join(done)


def add_watermark(figure: "Figure", text: str) -> None:
    """Write large and pale text across the figure."""
    width, height = figure.get_size_inches()
    mark = figure.text(0.5, 0.5, text, ha="center", va="center", rotation=25, fontsize=60, zorder=10)
    mark.set(color="0.5", alpha=0.3, in_layout=False)
    across, tall = size_inches(figure, mark)
    mark.set_fontsize(max(SMALL, 60 * min(0.9 * width / across, 0.9 * height / tall, 1)))
