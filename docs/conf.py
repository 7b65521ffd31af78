"""The documentation site. `make docs` builds it strictly and without a network."""

import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT))

from bench import __version__  # noqa: E402
from bench.boards.collect import collect  # noqa: E402
from bench.cli.commands import COMMANDS  # noqa: E402
from bench.cli.help import command_help, trainer_lines  # noqa: E402
from bench.commands.describe import hyperparameter_rows, rows  # noqa: E402
from bench.config.options import task_options  # noqa: E402
from bench.config.run_config import resolve  # noqa: E402
from bench.config.values import reference_folder  # noqa: E402
from bench.plots.report import page  # noqa: E402
from bench.store.stores import Stores  # noqa: E402
from bench.train.runner import build  # noqa: E402
from optimizers import OPTIMIZERS, OptimizerSpec  # noqa: E402
from tasks import TASKS, TaskSpec  # noqa: E402

project = "Attention optimizer bench"
version = release = __version__
copyright = "the authors, Apache-2.0"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = project
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_extra_path = ["_extra"]
exclude_patterns = ["_build", "_extra"]
myst_heading_anchors = 3
myst_enable_extensions = ["attrs_inline"]
# Pages of results may begin below heading level 1.
suppress_warnings = ["myst.header"]
napoleon_google_docstring = True
napoleon_use_ivar = True
napoleon_attr_annotations = False
autodoc_typehints = "none"  # parameters are annotated with their help
autodoc_member_order = "bysource"
pygments_style = "friendly"
# Docstrings use single backticks for code, and options begin with two hyphens.
default_role = "code"
smartquotes = False

# Parameters, samples and reported split of tasks that need files, counted by building each task with its complete data.
# Those of the encoders are for bert-base-uncased.
COUNTED = {
    "mnist": ("72,074", "55,000 / 5,000 / 10,000 images", "test"),
    "cifar10": ("75,082", "45,000 / 5,000 / 10,000 images", "test"),
    "mnli": ("109,484,547", "387,702 / 5,000 / 9,815 pairs", "matched validation"),
    "civil_comments": ("109,483,778", "1,799,874 / 5,000 / 97,320 comments", "test"),
    "sst2": ("109,483,778", "65,349 / 2,000 / 872 phrases", "GLUE's validation"),
    "squad": ("108,893,186", "87,599 (a tenth of the articles for selection) / 10,570 questions", "validation"),
    "lm": ("673,152", "15,686 / 1,743 (also reported) rows of 64 characters of tiny Shakespeare", "validation"),
}

# The pages of results are outside this folder, where GitHub shows them; the site has copies.
RESULTS = HERE / "results"
shutil.rmtree(RESULTS, ignore_errors=True)
PAGES = {".md", ".png", ".svg", ".pdf", ".html", ".json"}
shutil.copytree(
    ROOT / "results",
    RESULTS,
    ignore=lambda folder, names: [n for n in names if (Path(folder) / n).is_file() and Path(n).suffix not in PAGES],
)

# The report on the shipped runs, which the page `explore` embeds.
STORES = Stores([], reference_folder())
(HERE / "_extra").mkdir(exist_ok=True)
(HERE / "_extra" / "report.html").write_text(page(collect(STORES), STORES), "utf-8")


def as_on_the_site(app: Sphinx, docname: str, source: list[str]) -> None:
    """Adapt code fences and links, which are written for GitHub and the tests, to the site."""
    text = re.sub(r"^```(sh|python) .*$", r"```\1", source[0], flags=re.MULTILINE)
    up = "../" * (docname.count("/") + 1)
    if docname.startswith("results/"):
        # Pages of results link to files of the repository, which the site does not have: show their names instead.
        text = re.sub(r"\[([^\]]*)\]\(((?:\.\./)+(?!.*\.(?:png|svg)\))[^)]*)\)", r"\1 (`\2`)", text)
        if docname.startswith("results/tuned/"):
            # These pages name their task only below the tables.
            text = text.replace("# ", f"# `{docname.split('/')[2]}`: ", 1)
        text = f"---\norphan: true\n---\n\n{text}"
    else:
        text = text.replace(f"]({up}results/", f"]({up.removesuffix('../')}results/")
    source[0] = text


def for_narrow_screens(app: Sphinx, doctree: nodes.document) -> None:
    """Mark long cells and wide figures for `site.css`; no line breaks before a percent sign or inside two hyphens."""
    for image in doctree.findall(nodes.image):
        # The header of a PNG has its width. Figures with one panel have less than 1,200 pixels.
        if image["uri"].endswith(".png") and int.from_bytes((HERE / image["uri"]).read_bytes()[16:20]) > 1200:
            image["classes"].append("wide")
    for cell in doctree.findall(nodes.entry):
        if len(cell.astext()) > 60:
            cell["classes"].append("long")
    for text in list(doctree.findall(nodes.Text)):
        if not isinstance(text.parent, nodes.literal | nodes.literal_block):
            # Between a parameter and its meaning, Sphinx writes two hyphens.
            shown = ": " if text == " -- " else re.sub(r"(?<=\d) %", "\u00a0%", text)
            if shown != text:
                text.parent.replace(text, nodes.Text(shown))


def optimizer_lines(spec: OptimizerSpec) -> str:
    """An optimizer with its options."""
    return "\n".join([spec.formula, f"source: {spec.source}", "", *hyperparameter_rows(spec)])


SECTIONS: dict[str, Callable[[], dict[str, str]]] = {
    "commands": lambda: {f"bench {name}": command_help(name) for name in COMMANDS},
    "trainer": lambda: {"Training options": "\n".join(trainer_lines())},
    "tasks": lambda: {
        f"task {name}": "\n".join([spec.title, "", *rows("task", task_options(spec))]) for name, spec in TASKS.items()
    },
    "optimizers": lambda: {f"optimizer {name}": optimizer_lines(spec) for name, spec in OPTIMIZERS.items()},
}
"""Titles and preformatted texts of generated pages, as a terminal shows them, by the directive `bench-NAME`."""


class Sections(SphinxDirective):
    """The sections of a generated page."""

    def run(self) -> list[nodes.Node]:
        """The sections."""
        sections: list[nodes.Node] = []
        for title, text in SECTIONS[self.name.removeprefix("bench-")]().items():
            section = nodes.section(ids=[nodes.make_id(title)], names=[title])
            section += [nodes.title(title, title), nodes.literal_block(text, text, language="text")]
            sections.append(section)
        return sections


class Overview(SphinxDirective):
    """A table of all tasks: model, parameters, samples, metric, target and budget."""

    HEADS = (
        "task",
        "model and data",
        "parameters",
        "samples: training / selection / reported",
        "metric",
        "infimum or target",
        "default budget",
    )

    def run(self) -> list[nodes.Node]:
        """The table."""
        table, group = nodes.table(), nodes.tgroup(cols=len(self.HEADS))
        head, body = nodes.thead(), nodes.tbody()
        group += [nodes.colspec(colwidth=1) for _ in self.HEADS]
        group += [head, body]
        table += group
        head += self.line([nodes.paragraph("", name) for name in self.HEADS])
        for name, spec in TASKS.built_in.items():
            first = nodes.paragraph("", "", nodes.literal(name, name))
            body += self.line([first, *(nodes.paragraph("", text) for text in self.cells(name, spec))])
        return [table]

    def line(self, cells: list[nodes.paragraph]) -> nodes.row:
        """A row of the table."""
        return nodes.row("", *(nodes.entry("", cell) for cell in cells))

    def cells(self, name: str, spec: TaskSpec) -> list[str]:
        """The cells after the task's name."""
        if name in COUNTED:
            parameters, samples, split = COUNTED[name]
            bound = "none" if spec.target is None else f"target {spec.target:g}"
        else:
            model, _ = build(resolve({"task": name, "opt": "sgd", "device": "cpu"}))
            data, split = model.data, model.data.report
            parameters = f"{sum(p.numel() for p in model.parameters()):,}"
            held_out = data.sizes[data.select] if data.select != "train" else None
            reported = data.sizes[split] if split != "train" else None
            sizes = [f"{data.sizes['train']:,}", *(f"{n:,}" for n in (held_out, reported) if n is not None)]
            samples = " / ".join(sizes) + " (all on training samples)" * (len(sizes) == 1)
            bound = "0" if data.f_star == 0 else f"{data.f_star:.4g} with seed 0; it depends on the seed"
            bound = f"infimum {bound}"
        better = "higher" if spec.mode == "max" else "lower"
        budget = " and ".join(f"{n:,} {limit.removeprefix('max_')}" for limit, n in spec.budget.items())
        batch = "full batch" if spec.batch_size == "full" else f"batches of {spec.batch_size}"
        precision = {"64-true": "float64", "32-true": "float32"}[spec.precision]
        metric = f"{spec.metric} on {split}, {better} is better"
        return [spec.title, parameters, samples, metric, bound, f"{budget}, {batch}, {precision}"]


def setup(app: Sphinx) -> dict[str, Any]:
    """Entry point for Sphinx."""
    app.connect("source-read", as_on_the_site)
    app.connect("doctree-read", for_narrow_screens)
    app.add_directive("bench-overview", Overview)
    for name in SECTIONS:
        app.add_directive(f"bench-{name}", Sections)
    return {"parallel_read_safe": True}
