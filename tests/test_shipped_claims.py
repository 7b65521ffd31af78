"""`bench reproduce --claims`: the verdicts of all papers, from pages stored as data, and what quotes them."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench.api.papers import RESULTS
from bench.papers.reproduction import CORRECTION
from bench.papers.shipped import OURS, counts, read
from bench.results.render import markdown_table
from bench.text import in_markdown

ROOT = Path(__file__).parents[1]
CLAIM: dict[str, Any] = {
    "name": "x",
    "paper": "it falls",
    "said": "holds",
    "text": "it fell by 2",
    "effect": 2.0,
    "low": 1.0,
    "high": None,
    "unit": "nats",
}


def page(folder: Path, place: str, *claims: dict[str, Any], **changes: Any) -> None:
    path = folder / place / "claims.json"
    path.parent.mkdir(parents=True)
    content = {"experiment": place, "title": "t", "correction": CORRECTION, "claims": [CLAIM | c for c in claims]}
    path.write_text(json.dumps(content | changes))


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    folder = tmp_path / "pages"
    page(folder, "a2020/fig1", {}, {"name": "y", "said": "small run: points to fails"})
    page(folder, "a2020/fig2", {"said": "depends on unpublished constants"}, correction="none was made")
    page(folder, "b2021/fig1", {"name": "|z|", "effect": None, "low": None}, {"name": "q", "ours": True})
    return folder


def test_a_table_of_counts_and_one_of_claims(cli: Any, pages: Path) -> None:
    answer = cli("reproduce", pages, "--claims", "--json")
    assert answer.code == 0, answer.err
    (board,) = json.loads(answer.out)
    counts, claims = board["tables"]
    assert counts["rows"] == [
        {"paper": "a2020", "holds": 1, "depends on unpublished constants": 1, "small run: points to fails": 1},
        {"paper": "b2021", "holds": 1},
    ]
    assert [(row["experiment"], row["claim"], row["said"]) for row in claims["rows"]] == [
        ("a2020/fig1", "x", "holds"),
        ("a2020/fig1", "y", "small run: points to fails"),
        ("a2020/fig2", "x", "depends on unpublished constants"),
        ("b2021/fig1", "|z|", "holds"),
        ("b2021/fig1", "q", "holds"),
    ]
    assert [row["paper"] for row in claims["rows"]] == ["it falls"] * 4 + ["ours: it falls"]
    assert (claims["rows"][0]["effect"], claims["rows"][0]["low"], claims["rows"][0]["high"]) == (2, 1, None)
    assert claims["notes"] == ["a2020/fig2: none was made"]
    assert board["notes"] == [CORRECTION, OURS]


@pytest.mark.parametrize("kind", ["txt", "md", "csv", "tex", "html"])
def test_every_format_has_every_claim(cli: Any, pages: Path, kind: str) -> None:
    assert cli("reproduce", pages, "--claims", "-o", pages / f"claims.{kind}").code == 0
    written = (pages / f"claims.{kind}").read_text("utf-8")
    for text in ("a2020/fig1", "small run: points to fails", "it falls"):
        assert text in written


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("empty",), "empty has no claims (PAPER/EXPERIMENT/claims.json); name an output folder of"),
        (("a2021",), "unknown paper 'a2021'"),
        (("pages", "-o", "x.xml"), "-o x.xml: .xml names no format"),
    ],
)
def test_bad_requests_are_one_line(
    cli: Any, pages: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(pages.parent)
    Path("empty").mkdir()
    answer = cli("reproduce", *words, "--claims")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith(f"bench: error: {message}")
    assert answer.err.count("\n") == 1


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_text("{"), "invalid JSON: "),
        (lambda path: path.write_text("[]"), "run the experiment again"),
        (lambda path: path.write_text("{}"), "experiment: field required; run the experiment again"),
        (lambda path: path.write_text(path.read_text().replace('"holds"', '"shines"')), "claims: 0: said: "),
        (lambda path: path.write_text(path.read_text().replace("null", "NaN")), "claims: 0: effect: "),
    ],
)
def test_a_damaged_page_is_named(cli: Any, pages: Path, damage: Any, message: str) -> None:
    damage(pages / "b2021" / "fig1" / "claims.json")
    answer = cli("reproduce", pages, "--claims", "--json")
    assert answer.code == 2
    assert message in answer.err
    assert answer.err.count("\n") == 1


def test_names_in_pages_do_no_harm(cli: Any, tmp_path: Path) -> None:
    page(tmp_path, "a2020/fig1", {"name": "<script>\x1b[31m|"}, experiment="a2020/<b>x|")
    for kind in ("txt", "md", "html"):
        assert cli("reproduce", tmp_path, "--claims", "-o", tmp_path / f"claims.{kind}").code == 0
        out = (tmp_path / f"claims.{kind}").read_text("utf-8")
        assert "\x1b" not in out
        assert "<script>" not in out or kind == "txt"


# -- what is shipped --------------------------------------------------------------------------------------------------


def test_documents_quote_the_shipped_pages() -> None:
    """The docs agree with the pages; `make publish` updates them."""
    pages = read(RESULTS)
    text = (ROOT / "docs" / "results.md").read_text()
    table = "\n".join(markdown_table(counts(pages)))
    assert f"<!-- leaderboard claims -->\n{table}\n<!-- /leaderboard -->" in text
    for page in pages:
        assert f"results/{page.experiment}/report.md" in text


def test_shipped_pages_say_what_their_json_says() -> None:
    for experiment in read(RESULTS):
        text = (RESULTS / experiment.experiment / "report.md").read_text()
        for claim in experiment.claims:
            assert f"| **{claim.said}** | {claim.name} |" in text, (experiment.experiment, claim.name)
            assert in_markdown(claim.text) in text, (experiment.experiment, claim.name)
