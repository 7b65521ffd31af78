"""`bench reproduce --claims`: the verdicts of all papers, from the shipped pages, and what quotes them."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench.api.experiments import RESULTS
from bench.papers.reproduction import CORRECTION
from bench.papers.shipped import OURS, counts, read
from bench.results.render import markdown_table
from bench.text import in_markdown

ROOT = Path(__file__).parents[1]
CLAIM: dict[str, Any] = {"name": "x", "paper": "it falls", "said": "holds", "text": "it fell by 2", "effect": 2.0,
                         "low": 1.0, "high": None, "unit": "nats", "ours": False}  # fmt: skip


@pytest.fixture
def pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shipped pages."""
    monkeypatch.setattr("bench.api.experiments.RESULTS", tmp_path / "pages")
    for experiment, changes in {
        "a2020/fig1": [{}, {"name": "y", "said": "not tested at this scale"}],
        "a2020/fig2": [{"said": "depends on unpublished constants"}],
        "b2021/fig1": [{"name": "|z|", "effect": None, "low": None}, {"name": "q", "ours": True}],
    }.items():
        (tmp_path / "pages" / experiment).mkdir(parents=True)
        content = {"experiment": experiment, "claims": [CLAIM | change for change in changes]}
        (tmp_path / "pages" / experiment / "claims.json").write_text(json.dumps(content))


def test_a_table_of_counts_and_one_of_claims(cli: Any, pages: None) -> None:
    answer = cli("reproduce", "--claims", "--json")
    assert answer.code == 0, answer.err
    (board,) = json.loads(answer.out)
    counts, claims = board["tables"]
    assert counts["rows"] == [
        {"paper": "a2020", "holds": 1, "depends on unpublished constants": 1, "not tested at this scale": 1},
        {"paper": "b2021", "holds": 1},
    ]
    assert [(row["experiment"], row["claim"], row["said"]) for row in claims["rows"]] == [
        ("a2020/fig1", "x", "holds"),
        ("a2020/fig1", "y", "not tested at this scale"),
        ("a2020/fig2", "x", "depends on unpublished constants"),
        ("b2021/fig1", "|z|", "holds"),
        ("b2021/fig1", "q", "holds"),
    ]
    assert [row["paper"] for row in claims["rows"]] == ["it falls"] * 4 + ["ours: it falls"]
    assert (claims["rows"][0]["effect"], claims["rows"][0]["low"], claims["rows"][0]["high"]) == (2, 1, None)
    assert board["notes"] == [CORRECTION, OURS]


def test_one_paper_is_written_to_a_file(cli: Any, pages: None, tmp_path: Path) -> None:
    assert cli("reproduce", "a2020", "--claims", "-o", tmp_path / "claims.md").code == 0
    written = (tmp_path / "claims.md").read_text("utf-8")
    assert "a2020/fig1" in written
    assert "b2021" not in written
    assert cli("reproduce", "a2021", "--claims").err.startswith("bench: error: unknown paper 'a2021'")


# -- what is shipped --------------------------------------------------------------------------------------------------


def test_documents_quote_the_shipped_pages() -> None:
    """The docs agree with the pages; `make publish` updates them."""
    pages = read(RESULTS)
    text = (ROOT / "docs" / "results.md").read_text()
    table = "\n".join(markdown_table(counts(pages)))
    assert f"<!-- leaderboard claims -->\n{table}\n<!-- /leaderboard -->" in text
    for page in pages:
        assert f"results/{page['experiment']}/report.md" in text


def test_shipped_pages_say_what_their_json_says() -> None:
    for page in read(RESULTS):
        text = (RESULTS / page["experiment"] / "report.md").read_text()
        for claim in page["claims"]:
            assert f"| **{claim['said']}** | {claim['name']} |" in text, (page["experiment"], claim["name"])
            assert in_markdown(claim["text"]) in text, (page["experiment"], claim["name"])
