"""The pages of `results/observatory`: attention of the published runs; `make publish` writes them."""

from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap

from bench.boards import BOARDS
from bench.boards.charts import attention, stability
from bench.boards.collect import Collected
from bench.results.draw import picture
from bench.results.render import markdown
from bench.results.table import Table
from bench.text import listed

FOLDER = Path("results/observatory")
CHARTS = {"attention": attention, "stability": stability}
ABOUT = """Theory says that normalized and Polyak steps drive the attention of one head towards a single token, in the
direction of a max-margin solution (Vasudeva et al. 2025). Does this show in a trained model? These are the shipped
fresh seeds of the reference suite: each optimizer with its tuned settings, measured with `--trainer.observe`.
`bench show TASK` defines each quantity. Less entropy means sparser attention. The most attended token is that to which
all queries of a row together attend most. A query that can attend only to itself, as the first of a causal row, counts
as saturated. Under normalized GD theory says that the distance of the direction from its limit falls at least like
t^-0.5; here the final direction stands for the limit."""
NORMALIZED = {"sngd"}
"""The optimizers of which theory states the rate."""
RATE = 0.5
"""The smallest exponent of the direction's distance that theory allows under normalized GD (Vasudeva et al. 2025)."""


def path(task: str) -> Path:
    """The file of a task's page."""
    return FOLDER / task / "README.md"


def page(task: str, found: Collected) -> str | None:
    """The page of a task: the answer in words, charts and tables; None without observations."""
    board = BOARDS["attention"](found)
    if not board.tables:
        return None
    tables = markdown([board]).partition("\n")[2].strip()
    lines = [f"# What trained attention looks like on `{task}`", "", *wrap(ABOUT, 120), ""]
    lines += [*wrap(f"**{_answer(board.tables)}**", 120), ""]
    for name in CHARTS:
        lines += [f"![{name} of {task} against optimizer steps]({name}.png)", ""]
    commands = [f"bench leaderboard --board attention --task {task}"]
    commands += [f"bench plot {name} --task {task} -o {name}.png" for name in CHARTS]
    return "\n".join([*lines, tables, "", "Made from `results/reference` by:", "", "```sh", *commands, "```", ""])


def _answer(tables: Sequence[Table]) -> str:
    """The verdicts on sparsity and direction, in words."""
    first, *others = tables
    reference = next((row["opt"] for row in first.rows if row["verdict"] == "reference"), None)
    verdicts = {row["opt"]: row["verdict"] for row in first.rows}
    sparser = listed([opt for opt, verdict in verdicts.items() if verdict == "sparser"]) or "none of the others"
    said = [f"At equal training loss, {sparser} had sparser attention than {reference}."]
    for verdict in sorted({*verdicts.values()} - {None, "reference", "sparser"}):
        said.append(f"{verdict.capitalize()}: {listed([opt for opt, own in verdicts.items() if own == verdict])}.")
    rates = {row["opt"]: row["rate"] for table in others for row in table.rows if row["rate"] is not None}
    for opt in NORMALIZED & rates.keys():
        rate = rates[opt]
        how = "more slowly than" if rate.high < RATE else "at least like" if rate.low >= RATE else "about like"
        said.append(
            f"Between 1 % and 10 % of the steps, the direction of W_QK under {opt} approached its final one {how}"
            f" t^-{RATE}."
        )
    return " ".join(said)


def publish(task: str, found: Collected) -> None:
    """Write a task's page and its charts, if its runs were observed."""
    text = page(task, found)
    if text is None:
        return
    path(task).parent.mkdir(parents=True, exist_ok=True)
    path(task).write_text(text, "utf-8")
    for name, chart in CHARTS.items():
        path(task).with_name(f"{name}.png").write_bytes(picture(chart(found).shown, ".png"))
