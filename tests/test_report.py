"""The report: complete, exact, reproducible, safe for any names, and working in a real browser."""

import base64
import hashlib
import json
import re
import shlex
import shutil
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from PIL import Image, ImageStat

from bench.boards import BOARDS
from bench.boards.collect import Collected
from bench.cli import dispatch as results
from bench.cli.commands import parse
from bench.config.run_config import resolve
from bench.config.settings import described
from bench.plots.charts import CHARTS
from bench.plots.report import page
from bench.run_summary import fit_words
from bench.store.block import DONE
from bench.store.record import RunResult
from bench.store.stores import Stores
from tests.browser import Chromium, Page
from tests.test_charts import HOSTILE, add_run, add_study, collect_all, everything


class Reader(HTMLParser):
    """The contents of a page: tags with their attributes, words by the tag around them, scripts separately."""

    VOID = ("meta", "br", "link", "img", "input")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[tuple[str, str]] = []
        self.scripts: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data
        else:
            self.words.append((self.open[-1] if self.open else "", data))

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def text(self) -> str:
        return " ".join(word for tag, word in self.words if tag not in ("style", "title"))


def report(what: Collected, runs: int = 4) -> str:
    return page(what, runs, "the store “runs”")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A page with everything in it, and with malicious names."""
    return report(everything(tmp_path_factory.mktemp("hostile") / "runs"))


# -- contents of the page -------------------------------------------------------------------------------------------


def test_the_page_is_whole_and_in_order(hostile):
    read = Reader(hostile)
    assert not read.open
    assert read.of("html")[0]["lang"] == "en"
    assert len(read.of("title")) == len(read.of("h1")) == len(read.of("main")) == 1
    levels = [int(tag[1]) for tag, _ in read.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert all(b <= a + 1 for a, b in pairwise(levels))
    ids = [attributes["id"] for _, attributes in read.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [link["href"] for link in read.of("a")]
    assert all(link and link[0] == "#" and link[1:] in ids for link in links)
    charts = {key.rpartition("-")[0] for figure in read.of("figure") if (key := figure["id"])}
    assert charts == CHARTS.keys() - {"attention"}
    for label in (a["aria-labelledby"] for _, a in read.tags if "aria-labelledby" in a):
        assert label in ids


def test_the_first_table_has_the_verdict_of_each_optimizer_on_each_task_the_readers_own_first(store):
    for seed in range(8):
        for opt, gain in (("adamw", 0.0), ("muon", 0.2), ("mine.py:Mine", 0.1)):
            add_run(store, opt=opt, seed=seed, final=0.5 + gain + 0.001 * seed)
        add_run(store, "synthetic", "gd", seed)
    text = report(collect_all(store))
    rows = re.findall(r'<tr data-opt="([^"]*)"( class="ours")?><th scope="row">.*?</tr>', text)[:4]
    assert rows == [("mine.py:Mine", ' class="ours"'), ("adamw", ""), ("gd", ""), ("muon", "")]
    cells = re.findall(r'<td data-in="0" class="(\w*)" title="([^"]*)">(\S+) <small>([^<]*)</small>', text)
    assert [(kind, mark, value) for kind, _, mark, value in cells] == [
        ("better", "▲", "0.6035"),
        ("", "ref.", "0.5035"),
        ("better", "▲", "0.7035"),
    ]
    assert cells[0][1].startswith("mine.py:Mine on mnist: better; gain over adamw (default): 0.1")
    assert '<details class="problem" id="problem-0" data-in="0" open>' in text
    assert '<details class="problem" id="problem-1" data-in="1">' in text  # no run of Mine
    assert "Tasks without your runs: 1" in text


def test_notes_of_boards_tables_and_charts_are_shown(store):
    what = everything(store)
    text = re.sub(r"\s+", " ", Reader(report(what)).text)
    for board in (board for make in BOARDS.values() if (board := make(what)).tables):
        for note in (*board.notes, *(note for table in board.tables for note in table.notes)):
            assert re.sub(r"\s+", " ", note) in text
    for panel in (panel for make in CHARTS.values() for panel in make(what).drawn):
        for line in panel.notes:
            assert re.sub(r"\s+", " ", line) in text


@pytest.mark.deep
def test_reports_are_reproducible_and_name_no_machine(store, tmp_path, capsys):
    everything(store)
    elsewhere = tmp_path / "elsewhere" / "runs"
    shutil.copytree(store, elsewhere)
    pages = [tmp_path / f"{name}.html" for name in "abc"]
    for path, folder in zip(pages, (store, store, elsewhere), strict=True):
        assert results(["report", "-o", str(path), "--store", str(folder)]) == 0
    assert capsys.readouterr().err.endswith(f"written to {pages[-1]}\n")
    assert pages[0].read_bytes() == pages[1].read_bytes() == pages[2].read_bytes()
    text = pages[0].read_text("utf-8")
    assert str(tmp_path) not in text
    assert "in the store “runs”" in re.sub(r"\s+", " ", text)


@pytest.mark.parametrize("command", [["report"], ["plot", "curves"]])
def test_a_run_with_a_damaged_table_is_named(store, tmp_path, capsys, command):
    for seed in range(4):
        run_id = add_run(store, seed=seed)
    (store / run_id / DONE / "curve.parquet").write_bytes(b"PAR1")
    out = tmp_path / ("a.html" if command == ["report"] else "a.svg")
    assert results([*command, "-o", str(out)]) == 1
    assert capsys.readouterr().err.count(f"cannot read the tables of run {run_id}") == 1
    text = re.sub(r"\s+", " ", out.read_text("utf-8"))
    assert command != ["report"] or "sgd: 1 of 4 runs have no such values" in text
    assert command != ["report"] or "1 record could not be read" in text


# -- commands -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        {"task": "synthetic", "opt": "ngd"},
        {"task": "synthetic", "opt": "adam", "opt.lr": 1e-5, "opt.betas": "0.5,0.75", "opt.amsgrad": True},
        {"task": "mnist", "opt": "sps", "opt.max_step": "inf", "trainer.max_epochs": 5, "trainer.max_steps": 10},
        {"task": "mnist", "opt": "sgd", "trainer.batch_size": "full", "task.n_train": 1000, "task.flip": True},
        {"task": "mnist", "opt": "sps", "opt.f_star": 0.25, "trainer.gradient_clip_val": 0.1, "precision": "64-true"},
        {"task": "cifar10", "opt": "sgd", "trainer.max_epochs": 0.5, "trainer.val_every": 7, "seed": 3, "data_seed": 4},
    ],
)
def test_the_command_of_a_row_makes_its_runs(words):
    config = resolve(words | {"device": "cpu"})
    run = RunResult(**json.loads(json.dumps(described(config))))
    call = parse("fit", shlex.split(fit_words(run))[2:]).keywords
    given = call.pop("settings") | {k: v for k, v in call.items() if k != "command"}
    again = resolve(given | {name: words[name] for name in ("seed", "data_seed") if name in words})
    assert again.run_id == config.run_id


# -- malicious values -----------------------------------------------------------------------------------------------


def test_names_are_words_and_nothing_else(hostile):
    read = Reader(hostile)
    assert HOSTILE in read.text
    assert [script.get("type") for script in read.of("script")] == ["application/json", "module", "module"]
    assert HOSTILE in json.loads(read.scripts[0])["charts"]["curves-0"]["names"]
    assert "<" not in read.scripts[0]
    assert not read.of("b")
    assert not [name for _, attributes in read.tags for name in attributes if name.startswith("on")]


def test_the_page_runs_its_scripts_alone_and_loads_nothing(hostile):
    read = Reader(hostile)
    (policy,) = (m["content"] for m in read.of("meta") if m.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    rules = {name: value for name, _, value in (rule.strip().partition(" ") for rule in policy.split(";"))}
    assert rules["default-src"] == "'none'"
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in read.scripts[1:]]
    assert rules["script-src"].split() == [f"'sha256-{digest}'" for digest in digests]
    assert "http" not in policy
    for _, attributes in read.tags:
        assert "src" not in attributes
        assert not str(attributes.get("href", "")).startswith(("http", "//"))


# -- in a browser ---------------------------------------------------------------------------------------------------


@pytest.fixture
def shown(hostile: str, tmp_path: Path) -> Path:
    path = tmp_path / "report.html"
    path.write_text(hostile, "utf-8")
    return path


def column(tab: Page, table: int, name: str) -> tuple[list[str], list[str]]:
    """The words of a column, and the `aria-sort` of all columns."""
    script = f"""(() => {{
        const table = document.querySelectorAll("table")[{table}], heads = [...table.tHead.rows[0].cells];
        const at = heads.findIndex((head) => head.textContent === {json.dumps(name)});
        return [[...table.tBodies[0].rows].map((row) => row.cells[at].textContent), heads.map((head) => head.ariaSort)];
    }})()"""
    words, sorts = tab.evaluate(script)
    return words, sorts


def focus(tab: Page, table: int, name: str) -> None:
    heads = f'[...document.querySelectorAll("table")[{table}].querySelectorAll("thead button")]'
    tab.evaluate(f"{heads}.find((button) => button.textContent === {json.dumps(name)}).focus()")


def settle(tab: Page) -> None:
    """Wait until the requested change is painted."""
    tab.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


@pytest.mark.deep
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_works_without_a_network_and_without_a_complaint(chromium: Chromium, shown, dark):
    with chromium.page(shown, dark=dark) as tab:
        settle(tab)
        assert tab.complaints == []
        assert tab.requests == [shown.resolve().as_uri()]
        assert tab.evaluate("document.title")


@pytest.mark.deep
def test_a_script_that_gets_into_the_page_does_not_run(chromium: Chromium, shown):
    harm = "<script>window.harmed = true</script><img src=x onerror='window.harmed = true'>"
    text = shown.read_text("utf-8").replace("<main", f"{harm}<img src='https://example.org/a.png'><main")
    shown.write_text(text, "utf-8")
    with chromium.page(shown) as tab:
        assert tab.evaluate("window.harmed") is None
        assert any("Content Security Policy" in complaint for complaint in tab.complaints)


READY = """(async () => {
    while (!document.querySelector("#curves-0")?.view) await new Promise((done) => setTimeout(done, 20));
})()"""


@pytest.mark.deep
def test_charts_show_values_isolate_a_name_and_obey_the_filter(chromium: Chromium, store, tmp_path):
    for seed in range(3):
        add_run(store, seed=seed, loss=[4000.0, 2000.0, 1000.0])
        add_run(store, opt="adam", seed=seed, loss=[4.0, 2.0, 1.0])
    path = tmp_path / "a.html"
    path.write_text(report(collect_all(store)), "utf-8")
    lines = '[...document.querySelectorAll("#curves-0 .mark-line path")].map((path) => +path.getAttribute("opacity"))'
    with chromium.page(path) as tab:
        tab.evaluate(READY)
        assert tab.evaluate(lines) == [1, 1]
        # The last point of sgd: the points of adam come first.
        x, y = tab.evaluate("""(() => {
            document.querySelector("#curves-0").scrollIntoView();
            const box = document.querySelectorAll("#curves-0 .mark-symbol path")[5].getBoundingClientRect();
            return [box.x + box.width / 2, box.y + box.height / 2];
        })()""")
        tab.call("Input.dispatchMouseEvent", type="mouseMoved", x=x + 1, y=y)
        settle(tab)
        tip = tab.evaluate('document.querySelector("#vg-tooltip-element.visible")?.textContent')
        assert "sgd" in tip
        assert "1000" in tip
        place = """(() => {
            const box = document.querySelector("#curves-0 .role-legend-label text").getBoundingClientRect();
            return [box.x + 3, box.y + 3];
        })()"""
        x, y = tab.evaluate(place)
        for kind in ("mousePressed", "mouseReleased"):
            tab.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
        settle(tab)
        assert tab.evaluate(lines) == [1, pytest.approx(0.08)]
        for words in ('[data-name="sgd"]', '[data-task="0"]'):
            tab.evaluate(f"document.querySelector('.chip{words}').click()")
        settle(tab)
        assert tab.evaluate('document.querySelectorAll("tr[data-opt=sgd]:not([hidden])").length') == 0
        assert tab.evaluate('document.querySelector("#problem-0").hidden')
        tab.evaluate("document.querySelector('.chip[data-task=\"0\"]').click()")
        tab.evaluate(
            '(async () => { while (document.querySelectorAll("#curves-0 .mark-line path").length != 1)'
            " await new Promise((done) => setTimeout(done, 20)); })()"
        )
        assert tab.complaints == []


@pytest.mark.deep
def test_tables_sort_by_keyboard(chromium: Chromium, store, tmp_path):
    key = "Enter", "\r"
    for opt, lr in (("sgd", 0.1), ("adam", 0.1), ("adamw", 0.1), ("sngd", 0.1)):
        for seed in range(2 if opt == "adamw" else 3):
            add_run(store, opt=opt, seed=seed, words={"opt.lr": lr}, final={"sgd": 0.5, "adam": 9, "sngd": 10}.get(opt))
    path = tmp_path / "a.html"
    path.write_text(report(collect_all(store, settings="all")), "utf-8")
    with chromium.page(path) as tab:
        names, sorts = column(tab, 1, "optimizer")
        assert set(sorts) == {"none"}
        focus(tab, 1, "optimizer")
        tab.press(*key)
        names, sorts = column(tab, 1, "optimizer")
        assert names == sorted(names) == ["adam", "adamw", "sgd", "sngd"]
        assert sorted(set(sorts)) == ["ascending", "none"]
        tab.press(*key)
        names, sorts = column(tab, 1, "optimizer")
        assert names == ["sngd", "sgd", "adamw", "adam"]
        assert "descending" in sorts
        # Numbers by value; missing values stay last.
        focus(tab, 1, "test accuracy")
        tab.press(*key)
        assert column(tab, 1, "optimizer")[0] == ["sgd", "adam", "sngd", "adamw"]
        tab.press(*key)
        assert column(tab, 1, "optimizer")[0] == ["sngd", "adam", "sgd", "adamw"]
        tab.press(*key)
        assert tab.evaluate('document.querySelectorAll("th[aria-sort=ascending]").length') == 1


def colours(tab: Page, path: Path) -> tuple[float, str]:
    """How bright the page is, and what changes the colours of a chart."""
    tab.evaluate(f'document.getElementById("curves-0").scrollIntoView(); {READY}')
    settle(tab)
    tab.screenshot(path)
    with Image.open(path) as image:
        bright = ImageStat.Stat(image.convert("L")).mean[0]
    return bright, tab.evaluate('getComputedStyle(document.querySelector("#curves-0 svg")).filter')


@pytest.mark.deep
def test_the_button_switches_light_and_dark(chromium: Chromium, shown, tmp_path):
    seen = {}
    for dark in (False, True):
        with chromium.page(shown, dark=dark) as tab:
            seen[dark] = colours(tab, tmp_path / f"{dark}.png")
            name = tab.evaluate('document.getElementById("theme").textContent')
            assert name == ("Light colours" if dark else "Dark colours")
            tab.evaluate('document.getElementById("theme").focus()')
            tab.press("Enter", "\r")
            changed = colours(tab, tmp_path / f"{dark}-changed.png")
            assert (changed[0] < 100) != dark
            assert changed[1] != seen[dark][1]
            assert tab.evaluate("localStorage.length + document.cookie.length") == 0
            assert tab.complaints == []
    assert seen[False][0] > 200 > 60 > seen[True][0]
    assert seen[False][1] != seen[True][1]


@pytest.mark.deep
def test_a_phone_scrolls_tables_in_their_boxes(chromium: Chromium, shown):
    with chromium.page(shown, width=390) as tab:
        settle(tab)
        assert tab.evaluate("document.documentElement.scrollWidth") <= 390
        assert (
            tab.evaluate("Math.max(...[...document.querySelectorAll('.scroll')].map((box) => box.scrollWidth))") > 390
        )


def test_studies_of_several_stores_are_named_on_one_page(store, tmp_path):
    other = tmp_path / "other"
    winner = add_run(store, seed=1000)
    for seed in range(3):
        add_run(other, seed=seed)
    add_study(store, "mnist", "sgd", {0.1: 0.5}, winner)
    assert results(["report", "-o", str(tmp_path / "a.html"), "--store", str(store), "--store", str(other)]) == 0
    text = re.sub(r"\s+", " ", (tmp_path / "a.html").read_text("utf-8"))
    assert "4 runs in the stores “runs” and “other”" in text
    assert "mnist-sgd-study" in text
    assert len(Stores([store, other]).runs) == 4
