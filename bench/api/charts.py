"""The report, and charts of stored runs."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from bench.api.boards import Chosen
from bench.errors import UserError
from bench.output import Answer, check_output, remark, write

if TYPE_CHECKING:
    import altair as alt


def report(choose: Callable[[], Chosen], out: Path) -> Answer:
    """Write the page.

    Raises:
        UserError: it cannot be written.
    """
    from bench.plots.report import page, stores_in_words

    if out.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"-o {out}: the report is a page; name a file that ends in .html")
    if out.is_dir():
        raise UserError(f"-o {out}: it is a folder; name a file, such as -o {out / 'report.html'}")
    if not out.exists():
        check_output(out.parent)  # fail before the boards are made
    chosen = choose()
    stores = chosen.stores
    text = page(chosen.entries, len(stores.runs), stores_in_words(stores), len(stores.damaged))
    code = chosen.warn()
    write(out, text)
    return Answer({"out": out, "runs": len(stores.runs), **chosen.left_out}, [], code)


def plot(choose: Callable[[], Chosen], chart: str, out: Path | None, y: str, x: str) -> "alt.TopLevelMixin | Answer":
    """Draw a chart into a file, or return it for Altair.

    Raises:
        UserError: there is nothing to draw, or an axis cannot be chosen.
    """
    from bench.plots.charts import CHARTS, curves, nothing_to_draw
    from bench.plots.theme import check_ending

    for name, value, default in (("y", y, "loss"), ("x", x, "steps")):
        if value != default and chart != "curves":
            raise UserError(f"--{name} {value}: only curves have selectable axes, not {chart}")
    if out is not None:
        check_ending(out)
    chosen = choose()
    figure = curves(chosen.entries, y, x) if chart == "curves" else CHARTS[chart](chosen.entries)
    code = chosen.warn()
    if not figure.drawn:
        raise nothing_to_draw(figure)
    if out is None:
        from bench.api.figures import altair_chart

        return altair_chart(figure.spec())
    write(out, figure.picture(out.suffix))
    for panel in (panel for panel in figure.panels if not panel.lines):
        remark("note", f"{panel.title}: not drawn, since {'; '.join(panel.notes)}")
    panels = [{"title": p.title, "drawn": bool(p.lines), "note": "\n".join(p.notes)} for p in figure.panels]
    return Answer({"out": out, "panels": panels, **chosen.left_out}, [], code)
