"""The matrix: everything in a module ends in a row, and names and notes are escaped in every format."""

import json
from pathlib import Path

import pytest

from bench.check.matrix import Row, as_text, members, rows, said, tables
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
CHECKED = ["builds", "groups"]
SKIPPED = ["error", "not applicable"]
VERDICTS = {
    "Abstract": (SKIPPED, "NotImplementedError"),
    "Again": (["pass", "pass"], ""),  # Good is the same; a class of a file may be named too
    "FirstOnly": (["pass", "fail"], "two groups"),
    "Leaves": (SKIPPED, "the process ended"),
    "Needy": (SKIPPED, "--opt.friend is required"),
    "Rude": (SKIPPED, "ValueError: <script>"),
    "Sleeps": (["pass", "error"], "not finished after"),
    "sgd": (["pass", "pass"], ""),
    "torch.optim:NAdam": (["pass", "pass"], ""),
    "Good": (["pass", "pass"], ""),
}


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("zoo") / "zoo.py"
    path.write_text(ZOO.replace("PRIVATE", str(PRIVATE)))
    return path


@pytest.fixture(scope="module")
def checked(zoo: Path) -> list[Row]:
    shown: list[tuple[str, str]] = []
    groups = members([str(zoo), "sgd", "torch.optim:NAdam", f"{zoo}:Good"])
    show = rows(groups, only=CHECKED, limit=20, show=lambda report, verdict: shown.append((report.name, verdict.check)))
    result = list(show)
    assert sorted(shown) == sorted((row.report.name, check) for row in result for check in CHECKED)
    return result


@pytest.mark.deep
def test_every_behaviour_of_an_optimizer_ends_in_a_row(checked: list[Row], zoo: Path) -> None:
    named = {row.report.name.replace(f"{zoo}:", ""): row for row in checked}
    assert list(named) == list(VERDICTS)
    for name, (words, note) in VERDICTS.items():
        verdicts = named[name].report.verdicts
        assert [verdict.verdict for verdict in verdicts] == words, name
        assert note in " ".join(v.note for v in verdicts if not v.ok)
    starts = {"Again": "file ", "sgd": "attention-optimizer-bench ", "torch.optim:NAdam": "torch "}
    assert all(named[name].package.startswith(start) for name, start in starts.items())


@pytest.mark.deep
def test_modules_are_named_like_optimizers_with_a_colon_and_torchs_own_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "muon.py").write_text("from torch.optim import SGD\n\nclass Own(SGD): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    first, second, torchs = members(["muon", "muon:", "torch.optim"])
    assert (list(first), list(second)) == (["muon"], ["muon:Own"])
    assert {"torch.optim:Adam", "torch.optim:LBFGS"} <= torchs.keys()
    assert "torch.optim:Optimizer" not in torchs


@pytest.mark.deep
def test_the_tables_count_and_no_format_lets_names_or_notes_out(checked: list[Row]) -> None:
    packages, matrix, totals = tables(checked).values()
    assert packages.values.tolist()[0][1:] == [8, 4, 2, 2]
    # Optimizers without faults first, then the others, then those that cannot be built.
    assert matrix["faults"].tolist() == [0, 0, 0, 0, 1, 1, *["not built"] * 4]
    assert totals.set_index("check").loc["groups"].tolist()[2:] == [4, 1, 1, 4]
    page, table, answer = (as_text(checked, kind) for kind in ("html", "md", "json"))
    assert "&lt;script&gt;alert(1)" in page
    assert not [word for word in ("<script", "secret", "src=", "href=", "url(") if word in page]
    assert "| torch.optim:NAdam | torch " in table
    assert not [word for word in ("<script", "secret") if word in table + answer.replace("<script>alert", "")]
    assert json.loads(answer)["tables"]["Optimizers and checks"][4]["groups"] == "FAIL"


def test_paths_of_this_machine_stay_here() -> None:
    file = Path("/", "somewhere", "env-1", "lib", "python3.11", "site-packages", "momo", "momo.py")
    verdict = Verdict("groups", "error", note=f"X: no ({file}, line 7)")
    assert said(verdict) == "groups ERROR: X: no (momo/momo.py, line 7)"


def test_a_report_without_anything_is_shown() -> None:
    text = as_text([Row("nothing", Report("x", verdicts=(Verdict("builds", "error", note="gone"),)))], "md")
    assert "| x | nothing | not built |  | ERROR |" in text


@pytest.mark.matrix(keep=2)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--matrix", "torchvison,sgd"], "no module 'torchvison' here.* Did you mean 'torchvision'"),
        (["--matrix", "snggd"], "Did you mean 'sngd'"),
        (["--matrix", "torch.optim:Adm"], "did you mean 'Adam'"),
        (["--matrix", "json"], "no public torch.optim.Optimizer class in json"),
        (["--matrix", "tests/nowhere.py"], "there is no file tests/nowhere.py"),
        (["--matrix", ""], "--matrix '': it is empty"),
        (["--matrix", "sgd", "--only", "grups"], "did you mean 'groups'"),
        (["--matrix", "sgd", "-o", "x.doc"], "must be one of .html, .json, .md"),
        (["--matrix", "sgd", "-o", "nowhere/x.md"], "its folder does not exist"),
        (["--matrix", "sgd", "--opt.lr", "1"], "remove the name, --opt"),
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
    assert json.loads(capsys.readouterr().out)["title"] == "Conformance of 2 optimizers"
