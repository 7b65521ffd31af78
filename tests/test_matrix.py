"""The matrix: everything in a module ends in a row, and names and notes are escaped in every format."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from bench.check.matrix import CHECKS, MATRIX_CHECKS, Row, as_text, board, members, rows, said
from bench.check.report import Report, Verdict
from bench.cli import dispatch
from bench.errors import UserError

PRIVATE = Path("/", "somewhere", "secret", "place", "file.py")
ZOO = """
import os, time
from torch.optim import SGD, Optimizer
from tests import mutants

print("a module may print")

class Good(mutants.Sound): pass

class _Hidden(mutants.Sound): pass

class FirstOnly(mutants.FirstGroupOnly): pass

Again = Good  # the same under another name
HELPER = Good([__import__("torch").ones(1)])

class Needy(mutants.Sound):
    def __init__(self, params, friend): super().__init__(params)

class Wraps(mutants.Sound):
    def __init__(self, params, base_optimizer): super().__init__(params)

class OfModel(mutants.Sound):
    def __init__(self, model, lr: float = 0.1): super().__init__(model.parameters())

class Abstract(Optimizer):
    def __init__(self, params, lr: float = 0.1): super().__init__(params, dict(lr=lr))

class Rude(mutants.Sound):
    def __init__(self, params): raise ValueError("<script>alert(1)</script> | `x` PRIVATE")

class Leaves(mutants.Sound):
    def step(self, closure=None): os._exit(7)

class Sleeps(mutants.Sound):
    def add_param_group(self, group):
        if getattr(self, "param_groups", None): time.sleep(1000)
        super().add_param_group(group)
"""
CHECKED = ["builds", "groups", "memory"]


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("zoo") / "zoo.py"
    path.write_text(ZOO.replace("PRIVATE", str(PRIVATE)))
    return path


@pytest.fixture(scope="module")
def found(zoo: Path) -> list[Row]:
    shown: list[tuple[str, str]] = []
    groups = members([str(zoo), "sgd", "torch.optim:NAdam", f"{zoo}:Good"])
    result = list(
        rows(
            groups,
            only=CHECKED,
            limit=20,
            show=lambda report, verdict: shown.append((report.name, verdict.check)),
        )
    )
    assert sorted(shown) == sorted((row.report.name, check) for row in result for check in CHECKED)
    return result


def names(found: list[Row], zoo: Path) -> list[str]:
    return [row.report.name.replace(f"{zoo}:", "") for row in found]


@pytest.mark.deep
def test_a_module_with_the_name_of_an_optimizer_is_named_with_a_colon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "muon.py").write_text("from torch.optim import SGD\n\nclass Own(SGD): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert [list(group) for group in members(["muon", "muon:"])] == [["muon"], ["muon:Own"]]


@pytest.mark.deep
def test_a_module_stands_for_its_public_optimizers_once(found: list[Row], zoo: Path) -> None:
    own = [
        "Abstract",
        "Again",
        "FirstOnly",
        "Leaves",
        "Needy",
        "OfModel",
        "Rude",
        "Sleeps",
        "Wraps",
    ]  # Good is the same as Again; a class of a file may be named too
    assert names(found, zoo) == [*own, "sgd", "torch.optim:NAdam", "Good"]
    packages = {name: row.package for name, row in zip(names(found, zoo), found, strict=True)}
    assert packages["Again"].startswith("file ")
    assert packages["sgd"].startswith("attention-optimizer-bench ")
    assert packages["torch.optim:NAdam"].startswith("torch ")


@pytest.mark.deep
def test_torchs_own_are_there_where_they_are_asked_for() -> None:
    (found,) = members(["torch.optim"])
    assert {"torch.optim:Adam", "torch.optim:LBFGS"} <= found.keys()
    assert "torch.optim:Optimizer" not in found


@pytest.mark.deep
@pytest.mark.parametrize(
    ("name", "words", "note"),
    [
        ("Again", ["pass", "pass", "pass"], ""),
        ("FirstOnly", ["pass", "fail", "pass"], ""),
        ("Needy", ["error", "not applicable", "not applicable"], "--opt.friend is required"),
        (
            "Wraps",
            ["error", "not applicable", "not applicable"],
            "--opt.base_optimizer is required",
        ),
        ("OfModel", ["error", "not applicable", "not applicable"], "Error"),
        ("Abstract", ["error", "not applicable", "not applicable"], "NotImplementedError"),
        ("Rude", ["error", "not applicable", "not applicable"], "ValueError: <script>"),
        ("Leaves", ["error", "not applicable", "not applicable"], "the process ended"),
        ("Sleeps", ["pass", "error", "pass"], "not finished after"),
        ("sgd", ["pass", "pass", "pass"], ""),
    ],
)
def test_every_behaviour_of_an_optimizer_ends_in_a_row(
    name: str, words: list[str], note: str, found: list[Row], zoo: Path
) -> None:
    report = dict(zip(names(found, zoo), found, strict=True))[name].report
    assert [report[check].verdict for check in CHECKED] == words
    assert note in " ".join(v.note for v in report.verdicts if not v.ok)


@pytest.mark.deep
def test_the_board_counts(found: list[Row]) -> None:
    packages, table, not_built, checks = board(found).tables
    assert {row["package"]: (row["optimizers"], row["built"], row["clean"], row["spotless"]) for row in packages.rows}[
        found[0].package
    ] == (10, 4, 2, 2)
    # Optimizers without faults first, then the others, then those that cannot be built.
    assert [row["faults"] for row in table.rows] == [0, 0, 0, 0, 1, 1, *["not built"] * 6]
    assert [row["opt"].rpartition(":")[2] for row in not_built.rows] == [
        "Abstract",
        "Leaves",
        "Needy",
        "OfModel",
        "Rude",
        "Wraps",
    ]
    assert [row["check"] for row in checks.rows] == ["groups", "builds", "memory"]  # the worst first
    groups = next(row for row in checks.rows if row["check"] == "groups")
    assert [groups[word] for word in ("pass", "fail", "error", "not applicable")] == [4, 1, 1, 6]
    assert table.rows[0]["memory"] == "1"  # reported, so the number itself
    assert len(table.notes) == 2


def test_paths_of_this_machine_stay_here() -> None:
    file = Path("/", "somewhere", "env-1", "lib", "python3.11", "site-packages", "momo", "momo.py")
    verdict = Verdict("groups", "error", note=f"X: no ({file}, line 7)")
    assert said(verdict) == "groups ERROR: X: no (momo/momo.py, line 7)"


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.deep
def test_the_page_is_whole_escaped_and_for_all(found: list[Row]) -> None:
    text = as_text(found, "html", ["<b>note</b>"])
    page = Page(text)
    assert page.open == []
    kinds = [tag for tag, _ in page.tags]
    assert "script" not in kinds
    assert "&lt;script&gt;alert(1)" in text
    assert "b" not in kinds
    assert not [
        value
        for tag, attrs in page.tags
        for name, value in attrs.items()
        if name in ("src", "href") or name[:2] == "on"
    ]
    assert "url(" not in text
    assert kinds.count("caption") == kinds.count("table") == 4
    assert {attrs.get("scope") for tag, attrs in page.tags if tag == "th"} == {"col", "row"}
    assert "prefers-color-scheme: dark" in text
    titles = [attrs.get("title") or "" for tag, attrs in page.tags if tag == "td"]
    assert any(re.match(r"groups FAIL: .* \(at most 1e-09\)", title) for title in titles)
    assert "secret" not in text


@pytest.mark.deep
def test_other_formats_hold_all_of_it(found: list[Row]) -> None:
    table = as_text(found, "md")
    assert "| torch.optim:NAdam | torch " in table
    assert "<script>" not in table
    assert "file.py" in table
    assert "secret" not in table
    assert json.loads(as_text(found, "json"))[0]["tables"][1]["rows"][4]["groups"] == "FAIL"
    assert as_text(found, "csv").count("FAIL") == 1


def test_all_checks_but_the_reference_are_made() -> None:
    assert set(MATRIX_CHECKS) == CHECKS.keys() - {"reference"}


# ---- Requests --------------------------------------------------------------------------------------------------------


@pytest.mark.matrix(keep=2)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--matrix", "torchvison,sgd"],
            "no module 'torchvison' here; is its package installed.* Did you mean 'torchvision'",
        ),
        (["--matrix", "snggd"], "Did you mean 'sngd'"),
        (["--matrix", "torch.optim:Adm"], "did you mean 'Adam'"),
        (["--matrix", "json"], "no public torch.optim.Optimizer class in json"),
        (["--matrix", "tests/nowhere.py"], "there is no file tests/nowhere.py"),
        (["--matrix", ""], "--matrix '': it is empty"),
        (["--matrix", "sgd", "--only", "grups"], "did you mean 'groups'"),
        (["--matrix", "sgd", "-o", "x.doc"], "must be one of .md, .html"),
        (["--matrix", "sgd", "-o", "nowhere/x.md"], "its folder does not exist"),
        (["--matrix", "sgd", "--opt.lr", "1"], "remove the name, --opt"),
        (["sgd", "--matrix", "sgd"], "remove the name, --opt"),
        (["sgd", "-o", "x.md"], "-o is for --matrix"),
    ],
)
def test_a_bad_request_says_what_to_do(words: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        dispatch(["check", *words])


@pytest.mark.matrix(keep=1)
@pytest.mark.parametrize(
    ("code", "message"), [("import os; os._exit(7)", "ended with code 7"), ("1 / 0", "ZeroDivisionError")]
)
def test_a_module_that_cannot_be_imported_is_one_line(code: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(code)
    with pytest.raises(UserError, match=message):
        dispatch(["check", "--matrix", f"{tmp_path}/mine.py"])


@pytest.mark.deep
def test_the_command_writes_every_file_that_it_is_given(
    tmp_path: Path, zoo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--matrix", f"sgd,{zoo}:FirstOnly", "--only", "groups", "--store", str(tmp_path / "store")]
    assert dispatch(["check", *words, "-o", f"{tmp_path}/m.md", "-o", f"{tmp_path}/m.html"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert f"2/2 {zoo}:FirstOnly: 1 fault (changes results: groups)" in err
    assert "| sgd | attention-optimizer-bench" in (tmp_path / "m.md").read_text()
    assert (tmp_path / "m.html").read_text().startswith("<!doctype html>")
    assert dispatch(["check", *words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["title"] == "Conformance of 2 optimizers"


def test_a_report_without_anything_is_shown() -> None:
    text = as_text([Row("nothing", Report("x", verdicts=(Verdict("builds", "error", note="gone"),)))], "md")
    assert "| x | nothing | not built | ERROR |" in text
