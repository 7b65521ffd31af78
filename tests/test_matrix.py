"""The matrix: everything in a module ends in a row, and names and notes are escaped in every format."""

import json
from pathlib import Path

import pytest

from bench.check.matrix import members
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
"""
VERDICTS = {
    "Again": (0, "pass", "pass", ""),  # Good is the same; a class of a file may be named too
    "Good": (0, "pass", "pass", ""),
    "sgd": (0, "pass", "pass", ""),
    "torch.optim:NAdam": (0, "pass", "pass", ""),
    "FirstOnly": (1, "pass", "FAIL", "two groups"),
    "Abstract": ("not built", "ERROR", "n.a.", "NotImplementedError"),
    "Leaves": ("not built", "ERROR", "n.a.", "the process ended"),
    "Needy": ("not built", "ERROR", "n.a.", "--opt.friend is required"),
    "Rude": ("not built", "ERROR", "n.a.", "ValueError: <script>"),
}


@pytest.mark.deep
def test_every_behaviour_ends_in_a_row_and_no_format_lets_names_or_notes_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    zoo, page = tmp_path / "zoo.py", tmp_path / "m.html"
    zoo.write_text(ZOO.replace("PRIVATE", str(PRIVATE)))
    words = ["--matrix", f"{zoo},sgd,torch.optim:NAdam,{zoo}:Good", "--only", "builds,groups", "--limit", "20"]
    outputs = [word for name in ("m.md", "m.html", "m.json") for word in ("-o", str(tmp_path / name))]
    assert dispatch(["check", *words, *outputs, "--store", str(tmp_path / "store")]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert f"9/9 {zoo}:Good: no fault" in err
    (board,) = json.loads((tmp_path / "m.json").read_text())
    packages, matrix, totals, failures = (table["rows"] for table in board["tables"])
    assert [*packages[0].values()][1:] == [7, 3, 2, 2]
    assert [*totals[0].values()][-4:] == [4, 1, 0, 4]
    notes = {row["0"].rpartition(":")[2]: row["2"] for row in failures}
    rows = {row["0"].replace(f"{zoo}:", ""): (row["2"], row["4"], row["5"]) for row in matrix}
    assert rows.keys() == VERDICTS.keys()
    for name, (*row, note) in VERDICTS.items():
        faults, groups, builds = rows[name]
        assert [faults, builds, groups] == row, name
        assert note in notes.get(name.rpartition(":")[2], "")
    assert [row["2"] for row in matrix] == [0, 0, 0, 0, 1, *["not built"] * 4]  # the best first
    assert "&lt;script&gt;alert(1)" in page.read_text()
    assert not [word for word in ("<script", "secret", "src=", "href=", "url(") if word in page.read_text()]
    assert "| torch.optim:NAdam | torch " in (tmp_path / "m.md").read_text()
    assert not [word for word in ("<script", "secret") if word in (tmp_path / "m.md").read_text()]


@pytest.mark.deep
def test_modules_are_named_like_optimizers_with_a_colon_and_torchs_own_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "muon.py").write_text("from torch.optim import SGD\n\nclass Own(SGD): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    packages = members(["muon", "muon:", "torch.optim"])
    assert {"muon", "muon:Own"} <= packages.keys()
    assert {"torch.optim:Adam", "torch.optim:LBFGS"} <= packages.keys()
    assert "torch.optim:Optimizer" not in packages


@pytest.mark.matrix(keep=3)
@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("snggd", "Did you mean 'sngd'"),
        ("torch.optim:Adm", "did you mean 'Adam'"),
        ("json", "no public torch.optim.Optimizer class in json"),
        ("tests/nowhere.py", "there is no file tests/nowhere.py"),
        ("exits.py", "importing exits.py: the process ended"),
        ("divides.py", "ZeroDivisionError"),
    ],
)
def test_a_word_without_optimizers_is_one_line(
    word: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "exits.py").write_text("import os; os._exit(7)")
    (tmp_path / "divides.py").write_text("1 / 0")
    with pytest.raises(UserError, match=message):
        members([word])
