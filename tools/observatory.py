"""The pages of `results/observatory`: attention of the published runs; `make publish` writes them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

from bench.boards import BOARDS, BoardInput
from bench.boards.attention_charts import attention, stability
from bench.results.draw import picture
from bench.results.render import markdown
from bench.results.table import Table
from bench.text import cell, listed

FOLDER = Path("results/observatory")
CHARTS = {"attention": attention, "stability": stability}
ABOUT = """Theory says that normalized and Polyak steps drive the attention of one head towards a single token, in the
direction of a max-margin solution (Vasudeva et al. 2025). Does this show in a trained model? These are the shipped
fresh seeds of the reference suite: each optimizer with its tuned settings, measured with `--trainer.observe`. Less
entropy means sparser attention; `bench show TASK` defines each quantity."""
RATE = 0.5
"""The smallest exponent of the direction's distance that theory allows under normalized GD (Vasudeva et al. 2025)."""


def path(task: str) -> Path:
    """The file of a task's page."""
    return FOLDER / task / "README.md"


def page(task: str, asked: BoardInput) -> str | None:
    """The page of a task: the answer in words, charts and tables; None without observations."""
    board = BOARDS["attention"](asked)
    if not board.tables:
        return None
    tables = markdown([board]).partition("\n")[2].strip()
    lines = [f"# What trained attention looks like on `{task}`", "", *wrap(ABOUT, 120), ""]
    lines += [f"**{_answer(board.tables)}**", ""]
    for name in CHARTS:
        lines += [f"![{name} of {task} against optimizer steps]({name}.png)", ""]
    commands = [f"bench leaderboard --board attention --task {task}"]
    commands += [f"bench plot {name} --task {task} -o {name}.png" for name in CHARTS]
    return "\n".join([*lines, tables, "", "Made from `results/reference` by:", "", "```sh", *commands, "```", ""])


def _answer(tables: Sequence[Table]) -> str:
    """The verdicts on sparsity and direction, in words."""
    first, *others = tables
    reference = next((row["opt"] for row in first.rows if row["verdict"] == "reference"), None)
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in first.rows:
        if row["verdict"] not in ("reference", None):
            groups.setdefault(row["verdict"], []).append(row)
    words = {word: f"{word} than under {reference}" for word in ("sparser", "less sparse")}
    told = [
        f"{words.get(word, word)}: " + listed([f"{row['opt']} ({cell(row['difference'])} nats)" for row in rows])
        for word, rows in groups.items()
    ]
    said = [f"Attention at equal training loss: {'; '.join(told) or 'nothing to compare'}."]
    rates = []
    for row in (row for table in others for row in table.rows if row["rate"] is not None):
        side = "at least" if row["rate"].low >= RATE else "below" if row["rate"].high < RATE else "near"
        rates.append(f"{row['opt']} {cell(row['rate'])} ({side} {RATE})")
    if rates:
        said.append(f"Exponent of the distance of W_QK's direction from the final one: {listed(rates)}.")
    return " ".join(said)


def publish(task: str, asked: BoardInput) -> None:
    """Write a task's page and its charts, if its runs were observed."""
    text = page(task, asked)
    if text is None:
        return
    path(task).parent.mkdir(parents=True, exist_ok=True)
    path(task).write_text(text, "utf-8")
    for name, chart in CHARTS.items():
        path(task).with_name(f"{name}.png").write_bytes(picture(chart(asked).shown, ".png"))
