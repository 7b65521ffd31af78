"""The commands report and plot."""

from dataclasses import replace

from bench.boards.cli import left_out, requested, warn
from bench.errors import UserError
from bench.grammar.parse import Args
from bench.output import answer, check_output, remark, write


def run_report(args: Args) -> int:
    """`bench report`: 0 done, 1 a run could not be read."""
    from bench.plots.report import page, stores_in_words

    if args.out.is_dir():
        raise UserError(f"-o {args.out}: it is a folder; name a file, such as -o {args.out / 'report.html'}")
    if not args.out.exists():
        check_output(args.out.parent)  # fail before the boards are made
    stores, what = requested(args)
    text = page(what, len(stores.runs), stores_in_words(stores), len(stores.damaged))
    code = warn(stores, what)
    write(args.out, text)
    if args.json:
        answer({"out": args.out, "runs": len(stores.runs), **left_out(stores, what)})
    return code


def run_plot(args: Args) -> int:
    """`bench plot`: 0 done, 1 a run could not be read."""
    if args.out is None:
        raise UserError(f"--out is missing; write bench plot {args.chart} -o {args.chart}.pdf (or .png, .svg, .html)")
    for name in ("y", "x"):
        if (value := getattr(args, name)) is not None and args.chart != "curves":
            raise UserError(f"--{name} {value}: only curves have selectable axes, not {args.chart}")
    from bench.plots.charts import CHARTS, curves, nothing_to_draw
    from bench.plots.theme import check_ending

    check_ending(args.out)
    stores, what = requested(args)
    chart = curves(what, args.y or "loss", args.x or "steps") if args.chart == "curves" else CHARTS[args.chart](what)
    code = warn(stores, what)
    if not chart.drawn:
        raise nothing_to_draw(chart)
    if args.no_caption:
        alone = [replace(panel, title="") for panel in chart.drawn]
        chart = replace(chart, panels=alone if len(alone) == 1 else chart.panels, caption="")
    write(args.out, chart.picture(args.out.suffix))
    for panel in (panel for panel in chart.panels if not panel.lines):
        remark("note", f"{panel.title}: not drawn, since {'; '.join(panel.notes)}")
    if args.json:
        panels = [{"title": p.title, "drawn": bool(p.lines), "note": "\n".join(p.notes)} for p in chart.panels]
        answer({"out": args.out, "panels": panels, **left_out(stores, what)})
    return code
