"""The pages of `results/observatory`: attention of the published runs; `make publish` writes them."""

from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap

from bench.boards import BOARDS
from bench.boards.collect import Collected
from bench.plots.curves import attention
from bench.results.render import markdown
from bench.results.table import Table
from bench.text import cell, listed

FOLDER = Path("results/observatory")
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
STILL = 0.99
"""Cosine of the initial and the final direction from which the rate of its convergence says nothing. Ours."""


def path(task: str) -> Path:
    """The file of a task's page."""
    return FOLDER / task / "README.md"


def page(task: str, found: Collected) -> str | None:
    """The page of a task: the answer in words, chart and tables; None without observations."""
    board = BOARDS["attention"](found)
    if not board.tables:
        return None
    tables = markdown([board]).partition("\n")[2].strip()
    lines = [f"# What trained attention looks like on `{task}`", "", *wrap(ABOUT, 120), ""]
    if answer := _answer(board.tables):
        lines += [*wrap(f"**{answer}**", 120), ""]
    lines += [f"![attention of {task} against optimizer steps](attention.png)", ""]
    commands = [f"bench leaderboard --board attention --task {task}"]
    commands += [f"bench plot attention --task {task} -o attention.png"]
    return "\n".join([*lines, tables, "", "Made from `results/reference` by:", "", "```sh", *commands, "```", ""])


def _answer(tables: Sequence[Table]) -> str:
    """The verdicts on sparsity and direction, in words."""
    first, *others = tables
    reference = next((row for row in first.rows if row["verdict"] == "reference"), None)

    def those(verdict: str) -> str:
        rows = [row for row in first.rows if row["verdict"] == verdict]
        return listed([f"{row['opt']} ({cell(row['difference'], 2)} nats)" for row in rows]) or "none of the others"

    said = []
    if reference is not None:
        said.append(f"At equal training loss, {those('sparser')} had sparser attention than {reference['opt']}.")
        if any(row["verdict"] == "less sparse" for row in first.rows):
            said.append(f"Less sparse: {those('less sparse')}.")
        start, end = (cell(reference[f"{when}_entropy"], 3) for when in ("start", "end"))
        said.append(f"During training with {reference['opt']}, entropy went from {start} to {end} nats.")
    rest: dict[str, list[str]] = {}
    for row in first.rows:
        if row["verdict"] not in (None, "reference", "sparser", "less sparse"):
            rest.setdefault(row["verdict"], []).append(row["opt"])
    for verdict, opts in sorted(rest.items()):
        was = f"{listed(opts)} {'was' if len(opts) == 1 else 'were'} {verdict}."
        said.append(was if verdict.startswith("not compared") else f"{verdict.capitalize()}: {listed(opts)}.")
    rows = {row["opt"]: row for table in others for row in table.rows if row["rate"] is not None}
    for opt in NORMALIZED & rows.keys():
        rate = rows[opt]["rate"]
        if rows[opt]["cosine_0"].low >= STILL:
            said.append(f"The direction of W_QK under {opt} hardly moved.")
            continue
        how = "more slowly than" if rate.high < RATE else "at least like" if rate.low >= RATE else "about like"
        said.append(
            f"Between 1 % and 10 % of the steps, the direction of W_QK under {opt} approached its final one {how}"
            f" t^-{RATE}."
        )
    return " ".join(said)


def draw(task: str, found: Collected) -> None:
    """Write the chart of a task's page."""
    path(task).with_name("attention.png").write_bytes(attention(found).picture(".png"))
