"""The documents are correct: their commands parse or run, their code runs, their links have targets."""

import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.cli.commands import COMMANDS, parse
from bench.config.run_config import resolve
from optimizers import OPTIMIZERS
from tasks import TASKS
from tests.conftest import Cli
from tests.tiny import ROOT

README = (ROOT / "README.md").read_text("utf-8")
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted(path for path in (ROOT / "docs").glob("*/*.md") if path.parent.name in ("guides", "concepts", "reference")),
]
OTHERS = (
    "pip install",
    "uv pip install",
    "export ",
    "python -m venv",
    "python3 -m venv",
    ".uv/bin/",
    "source ",
    "unzip ",
)
"""Beginnings of other commands in the documents."""
RUN_ELSEWHERE = {
    "docs/start.md": ".ci/run",
    "docs/guides/optimizer.md": "tests/test_plugins.py",
    "docs/guides/task.md": "tests/test_user_data.py",
}
"""Pages with blocks that are executed, and the file that executes them."""


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def block(text: str, kind: str) -> str:
    found = re.findall(rf"^```{kind}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert len(found) == 1
    return found[0]


def commands() -> Iterator[tuple[str, str]]:
    """Every command in a shell block, with its page."""
    for page in PAGES:
        for own in re.findall(r"^ *```sh\b[^\n]*\n(.*?)^ *```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE):
            for line in own.replace("\\\n", " ").splitlines():
                if line.strip():
                    yield name_of(page), line.strip()


SHELL = list(commands())
BENCH = [each for _, line in SHELL for each in line.replace("uv run ", "").split(" && ") if each.startswith("bench ")]
FITS = sorted({line for line in BENCH if line.startswith("bench fit ") and "--task" in line})


def test_the_first_thing_in_the_readme_is_one_line_of_set_up() -> None:
    run, tests = block(README, "sh first").splitlines()
    assert run == "python3 -m venv .uv && .uv/bin/pip install -q uv && .uv/bin/uv run bench quickstart"
    assert tests == ".uv/bin/uv run pytest"


def test_readme_limits_and_contributing_are_short() -> None:
    lines = README.splitlines()
    board = range(lines.index("<!-- reference -->"), lines.index("<!-- /reference -->"))
    assert len(lines) <= 150
    assert len((ROOT / "docs/limits.md").read_text("utf-8").splitlines()) <= 40
    assert (ROOT / "CONTRIBUTING.md").stat().st_size <= 10_000
    assert [line for i, line in enumerate(lines) if len(line) > 120 and i not in board] == []


def test_there_are_many_commands_and_every_one_is_shown() -> None:
    assert len(BENCH) > 100
    assert {line.split()[1] for line in BENCH} >= COMMANDS.keys() - {"data"}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_command_is_legal(page: Path) -> None:
    for own, line in SHELL:
        if own == name_of(page):
            line = line.removeprefix("uv run ")
            for each in line.split(" && "):
                program, *words = shlex.split(each, comments=True)
                if program in ("bench", "uv") and "bench" in (program, *words[:2]):
                    name, *words = words if program == "bench" else words[2:]
                    assert name in COMMANDS or name in ("-h", "--help"), line
                    if name in COMMANDS and not {"-h", "--help"} & {*words}:
                        parse(name, words)
                elif program == "make":
                    assert re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), line
                else:
                    assert each.startswith((*OTHERS, ". ", "uv run pytest", "uv sync", "optuna-dashboard")), line


@pytest.mark.parametrize("line", FITS)
def test_every_run_in_the_docs_is_a_legal_configuration(line: str) -> None:
    keywords = dict(parse("fit", shlex.split(line, comments=True)[2:]).keywords)
    settings = {name: keywords[name] for name in ("task", "opt", "seed", "precision") if name in keywords}
    settings |= keywords["settings"]
    names = settings["task"], settings.get("opt", ":")
    if ":" not in "".join(names) and "config" not in keywords:
        assert (names[0] in TASKS, names[1] in OPTIMIZERS or names[1] == "my_opt") == (True, True)
        if names[1] == "my_opt":  # which `bench new` makes
            return
        assert resolve(settings, tuned=keywords.get("tuned", False)).run_id.startswith(
            f"{settings['task']}-{settings['opt']}-"
        )


def test_the_runner_of_code_blocks_names_their_page() -> None:
    pages = {name_of(page) for page in PAGES if re.search(r"^```sh run", page.read_text("utf-8"), re.MULTILINE)}
    assert pages == RUN_ELSEWHERE.keys()
    for page, by in RUN_ELSEWHERE.items():
        assert page in (ROOT / by).read_text("utf-8")


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as on GitHub and the site."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    text = re.sub(r"^ *```.*?^ *```|`[^`\n]*`", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), target
        assert not anchor or anchor in anchors(there.read_text("utf-8")), target


def test_every_page_is_in_the_contents() -> None:
    index = (ROOT / "docs/index.md").read_text("utf-8")
    named = {
        line
        for own in re.findall(r"^```\{toctree\}\n(.*?)^```", index, re.DOTALL | re.MULTILINE)
        for line in own.splitlines()
        if line and not line.startswith(":")
    }
    assert named == {name_of(page).removeprefix("docs/").removesuffix(".md") for page in PAGES[2:]} - {"index"}


@pytest.mark.deep
def test_the_site_builds_strictly(tmp_path: Path) -> None:
    pytest.importorskip("myst_parser", reason="the group `docs` is not installed: make docs")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "docs", str(tmp_path / "site")]
    env = {name: value for name, value in os.environ.items() if name != "BENCH_REFERENCE"} | {"PYTHONWARNINGS": ""}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "bench-quickstart" in (tmp_path / "site/reference/commands.html").read_text("utf-8")


ANSWER = re.compile(r"^```sh\nbench (.*?)\n```\n\n```json\n(.*?)\n```$", re.DOTALL | re.MULTILINE)


def shortened(value: Any, depth: int = 0) -> Any:
    """An answer with three dots for further elements of lists, keys of nested objects and characters of texts."""
    if isinstance(value, dict):
        keys = [*value][: 6 if depth else None]
        more = {"...": "..."} if len(keys) < len(value) else {}
        return {key: shortened(value[key], depth + 1) for key in keys} | more
    if isinstance(value, list):
        return [shortened(each, depth) for each in value[:1]] + ["..."] * (len(value) > 1)
    return f"{value[:60]}..." if isinstance(value, str) and len(value) > 60 else value


def shape(value: Any) -> Any:
    """The keys and nesting of an answer."""
    if isinstance(value, dict):
        return {key: shape(each) for key, each in value.items()}
    return [shape(each) for each in value[:1]] if isinstance(value, list) else None


@pytest.mark.deep
def test_the_docs_show_the_answers_of_all_commands(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake_mnist: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs/reference/json.md").read_text("utf-8")
    shown: dict[str, Any] = {}
    answers: dict[str, Any] = {}

    def answered(block: re.Match[str]) -> str:
        command, text = block.groups()
        shown[command] = json.loads(text.replace("\n", " "))
        answer = cli(*shlex.split(command))
        assert answer.code == 0, answer.err
        text = answer.out.replace(f"{tmp_path}/", "").replace(f"{ROOT}/", "")
        answers[command] = shortened(json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON")))
        text = textwrap.fill(json.dumps(answers[command]), 118, break_long_words=False, break_on_hyphens=False)
        return f"```sh\nbench {command}\n```\n\n```json\n{text}\n```"

    (tmp_path / "json.md").write_text(ANSWER.sub(answered, page), "utf-8")
    assert {command.split()[0] for command in answers} == COMMANDS.keys()
    for command, answer in answers.items():
        assert shape(shown[command]) == shape(answer), f"{command}: copy {tmp_path}/json.md to docs/reference"


def test_the_guides_optimizers_are_made_as_shown() -> None:
    model = torch.nn.Linear(2, 1)

    def closure() -> torch.Tensor:
        loss = model(torch.ones(1, 2)).square().sum()
        loss.backward()
        return loss

    exec(block((ROOT / "docs/guides/compare.md").read_text("utf-8"), "python"), {"model": model, "closure": closure})


def test_lines_of_documents_are_short() -> None:
    """Tables, code and generated results may have longer lines."""
    pages = [*ROOT.glob("[A-Z]*.md"), *(page for page in (ROOT / "docs").rglob("*.md") if "_build" not in page.parts)]
    for page in pages:
        if page.is_relative_to(ROOT / "docs" / "results"):
            continue
        text = re.sub(r"^( *)```.*?^\1```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
        assert [line for line in text.splitlines() if len(line) > 120 and not line.startswith("|")] == [], page
