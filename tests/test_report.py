"""The report: complete, exact, reproducible, safe for any names, and working in a real browser."""

import base64
import hashlib
import html
import json
import re
import shlex
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from bench.boards import BOARDS
from bench.boards.collect import Collected
from bench.cli import dispatch as results
from bench.cli.commands import parse
from bench.config.run_config import resolve
from bench.plots.charts import CHARTS
from bench.plots.report import page
from bench.run_summary import commands
from bench.store.files import DONE
from bench.store.record import RunResult
from bench.store.stores import Stores
from tests.test_charts import HOSTILE, add_run, collect_all, everything


class Reader:
    """The contents of a page: tags with their attributes, text, and scripts separately."""

    def __init__(self, page: str) -> None:
        parts = re.split(r"<script[^>]*>(.*?)</script>", page, flags=re.DOTALL)
        body, self.scripts = re.sub(r"<style>.*?</style>", "", "".join(parts[::2]), flags=re.DOTALL), parts[1::2]
        self.tags = [
            (tag, {name: html.unescape(value) for name, value in re.findall(r'([\w-]+)="([^"]*)"', words)})
            for tag, words in re.findall(r"<([a-z]\w*)([^>]*)>", body)
        ]
        self.text = html.unescape(re.sub(r"<[^>]+>", "", body))

    def of(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.tags if name == tag]


def report(what: Collected, *stores: Path) -> str:
    return page(what, Stores(stores))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A page with everything in it, and with malicious names."""
    store = tmp_path_factory.mktemp("hostile") / "runs"
    return report(everything(store), store)


# -- contents of the page -------------------------------------------------------------------------------------------


def test_the_page_is_whole_and_in_order(hostile):
    read = Reader(hostile)
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
    text = report(collect_all(store), store)
    rows = re.findall(r'<tr data-opt="([^"]*)"( class="ours")?><th scope="row">.*?</tr>', text)[:4]
    assert rows == [("mine.py:Mine", ' class="ours"'), ("adamw", ""), ("gd", ""), ("muon", "")]
    cells = re.findall(r'<td data-in="0" class="(\w*)" title="([^"]*)">(\S+) <small>([^<]*)</small>', text)
    shown = [("better", "▲", "0.6035"), ("", "ref.", "0.5035"), ("better", "▲", "0.7035")]
    assert [(kind, mark, value) for kind, _, mark, value in cells] == shown
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
        {"task": "synthetic", "opt": "sgd", "seed": 3, "data_seed": 0},
    ],
)
def test_the_command_of_a_row_makes_its_runs(words):
    config = resolve(words | {"device": "cpu"})
    run = RunResult(**json.loads(json.dumps(config.record_fields)))
    (command,) = commands([run])
    call = parse("fit", shlex.split(command)[2:]).keywords
    again = resolve(call.pop("settings") | {k: v for k, v in call.items() if k != "command"})
    assert again.run_id == config.run_id


# -- malicious values -----------------------------------------------------------------------------------------------


def test_names_are_words_and_nothing_else(hostile):
    read = Reader(hostile)
    assert HOSTILE in read.text
    assert len(read.scripts) == 3
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


FLAGS = (
    "headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "no-first-run",
    "disable-background-networking", "host-resolver-rules=MAP * ~NOTFOUND", "enable-logging=stderr",
    "virtual-time-budget=20000", "run-all-compositor-stages-before-draw", "dump-dom",
)  # fmt: skip
"""In virtual time, a page that waits takes no time."""


def with_script(text: str, script: str) -> str:
    """A page with another script that it runs."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return text.replace("script-src ", f"script-src 'sha256-{digest}' ", 1) + f'<script type="module">{script}</script>'


def evaluate(page: Path, script: str, *, dark: bool = False) -> tuple[Any, list[str]]:
    """What a script in a page, the body of an async function, returns as JSON; and the lines of the console."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("no chromium: apt-get install chromium")
    answer = '{const pre = document.createElement("pre"); pre.id = "answer"; document.body.append(pre);'
    answer += "pre.textContent = JSON.stringify(await (async () => {" + script + "})());}"
    copy = page.with_name(f"{page.stem}-tested.html")
    copy.write_text(with_script(page.read_text("utf-8"), answer), "utf-8")
    look = f"blink-settings=preferredColorScheme={int(not dark)}"
    flags = [*FLAGS, f"user-data-dir={page.parent / 'chromium'}", look]
    command = [program, *(f"--{flag}" for flag in flags), copy.as_uri()]
    process = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    value = re.search(r'<pre id="answer">(.*?)</pre>', process.stdout, re.DOTALL)
    console = [line for line in process.stderr.splitlines() if "CONSOLE" in line]
    assert value is not None, console
    return json.loads(html.unescape(value[1])), console


@pytest.fixture
def shown(hostile: str, tmp_path: Path) -> Path:
    path = tmp_path / "report.html"
    path.write_text(hostile, "utf-8")
    return path


@pytest.mark.deep
def test_the_page_works_alone_and_its_button_switches_light_and_dark(shown):
    script = """
        const style = (words) => getComputedStyle(document.querySelector(words));
        const colours = () => [style("body").backgroundColor, style("#curves-0 .plot svg").filter];
        document.querySelector("#curves-0").closest("details").open = true;
        document.querySelector("#curves-0").scrollIntoView();
        while (!document.querySelector("#curves-0").view) await new Promise((done) => setTimeout(done, 20));
        const button = document.querySelector("#theme"), first = [colours(), button.textContent];
        button.click();
        return [first, [colours(), button.textContent], performance.getEntriesByType("resource").length];
    """
    (light, changed, loaded), console = evaluate(shown, script)
    assert (console, loaded) == ([], 0)
    assert (light[0][0], light[1], changed[1]) == ("rgb(255, 255, 255)", "Dark colours", "Light colours")
    assert light[0][1] != changed[0][1]
    (dark, again, _), console = evaluate(shown, script, dark=True)
    assert (dark, again, console) == (changed, light, [])


@pytest.mark.deep
def test_a_script_that_gets_into_the_page_does_not_run(shown):
    harm = "<script>window.harmed = true</script><img src=x onerror='window.harmed = true'>"
    shown.write_text(shown.read_text("utf-8").replace("<main", f"{harm}<main"), "utf-8")
    harmed, console = evaluate(shown, "return window.harmed === true;")
    assert not harmed
    assert any("Content Security Policy" in line for line in console)


@pytest.mark.deep
def test_charts_show_values_isolate_a_name_and_obey_the_filter(store, tmp_path):
    for seed in range(3):
        add_run(store, seed=seed, loss=[4000.0, 2000.0, 1000.0])
        add_run(store, opt="adam", seed=seed, loss=[4.0, 2.0, 1.0])
    path = tmp_path / "a.html"
    path.write_text(report(collect_all(store), store), "utf-8")
    tip, first, isolated, rows, hidden, lines = evaluate(
        path,
        """
        const all = (words) => [...document.querySelectorAll(words)], chart = document.querySelector("#curves-0");
        const wait = async (ready) => { while (!ready()) await new Promise((done) => setTimeout(done, 20)); };
        const lines = () => all("#curves-0 .mark-line path").map((path) => +path.getAttribute("opacity"));
        const act = (kind, part) => {
            const box = part.getBoundingClientRect(), place = {clientX: box.x + 1, clientY: box.y + 1};
            part.dispatchEvent(new PointerEvent(kind, {bubbles: true, ...place}));
        };
        chart.scrollIntoView();
        await wait(() => chart.view);
        const first = lines();
        act("pointermove", all("#curves-0 .mark-symbol path")[5]);  // the points of adam come first
        await wait(() => document.querySelector("#vg-tooltip-element.visible"));
        const tip = document.querySelector("#vg-tooltip-element").textContent;
        act("click", document.querySelector("#curves-0 .role-legend-label text"));
        await wait(() => lines().includes(1) && lines().some((opacity) => opacity < 1));
        const isolated = lines();
        for (const words of ["[data-name=sgd]", "[data-task='0']"]) document.querySelector(`.chip${words}`).click();
        const rows = all("tr[data-opt=sgd]:not([hidden])").length, hidden = document.querySelector("#problem-0").hidden;
        document.querySelector(".chip[data-task='0']").click();
        await wait(() => lines().length === 1);
        return [tip, first, isolated, rows, hidden, lines().length];
        """,
    )[0]
    assert "sgd" in tip
    assert "1000" in tip
    assert (first, isolated) == ([1, 1], [1, pytest.approx(0.08)])
    assert (rows, hidden, lines) == (0, True, 1)


@pytest.mark.deep
def test_tables_sort_by_words_and_numbers_with_missing_values_last(store, tmp_path):
    for opt, final in (("sgd", 0.5), ("adam", 9), ("adamw", None), ("sngd", 10)):
        for seed in range(3 if final else 2):
            add_run(store, opt=opt, seed=seed, words={"opt.lr": 0.1}, final=final)
    path = tmp_path / "a.html"
    path.write_text(report(collect_all(store, settings="all"), store), "utf-8")
    (words, numbers, sorts), console = evaluate(
        path,
        """
        const table = document.querySelectorAll("table")[1], heads = [...table.tHead.rows[0].cells];
        const sorted = (name) => {
            heads.find((head) => head.textContent === name).querySelector("button").click();
            return [...table.tBodies[0].rows].map((row) => row.querySelector("th").textContent);
        };
        const twice = (name) => [sorted(name), sorted(name)];
        return [twice("optimizer"), twice("test accuracy"), heads.map((head) => head.ariaSort).sort().slice(0, 2)];
        """,
    )
    assert words == [["adam", "adamw", "sgd", "sngd"], ["sngd", "sgd", "adamw", "adam"]]
    assert numbers == [["sgd", "adam", "sngd", "adamw"], ["sngd", "adam", "sgd", "adamw"]]
    assert (sorts, console) == (["descending", "none"], [])


@pytest.mark.deep
def test_a_phone_scrolls_tables_in_their_boxes(shown, tmp_path):
    frame = tmp_path / "frame.html"  # windows are wider
    frame.write_text(f'<meta content="script-src "><iframe width=390 height=900 src="{shown.as_uri()}"></iframe>')
    script = """
        addEventListener("message", (event) => window.widths = event.data);
        while (!window.widths) await new Promise((done) => setTimeout(done, 20));
        return window.widths;
    """
    widths = "[...document.querySelectorAll('html, .scroll')].map((box) => box.scrollWidth)"
    posted = f"addEventListener('load', () => parent.postMessage({widths}, '*'))"
    shown.write_text(with_script(shown.read_text("utf-8"), posted), "utf-8")
    (whole, *boxes), _ = evaluate(frame, script)
    assert whole <= 390 < max(boxes)
