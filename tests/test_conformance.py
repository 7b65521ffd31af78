"""The page of published optimizers: every behaviour ends in a row, and notes are escaped."""

from pathlib import Path

import pytest

from tools.conformance import board, public

ZOO = """
import os
from torch.optim import SGD
from tests import mutants

class Good(mutants.Sound): pass

class _Hidden(mutants.Sound): pass

class FirstOnly(mutants.FirstGroupOnly): pass

Late = Good  # the same under another name

class Needy(mutants.Sound):
    def __init__(self, params, friend): super().__init__(params)

class Rude(mutants.Sound):
    def __init__(self, params): raise ValueError("<script>alert(1)</script> | `x`")

class Leaves(mutants.Sound):
    def step(self, closure=None): os._exit(7)
"""
VERDICTS = {
    "Good": (0, "pass", "pass", ""),
    "FirstOnly": (1, "pass", "FAIL", "two groups"),
    "Leaves": ("not built", "ERROR", "n.a.", "the process ended"),
    "Needy": ("not built", "ERROR", "n.a.", "--opt.friend is required"),
    "Rude": ("not built", "ERROR", "n.a.", "ValueError: <script>"),
}


@pytest.mark.deep
def test_every_behaviour_ends_in_a_row(tmp_path: Path) -> None:
    zoo = tmp_path / "zoo.py"
    zoo.write_text(ZOO)
    page = board(public(str(zoo)), ["builds", "groups"])
    assert page.title == "Conformance of 5 optimizers, of which 2 could be built"
    matrix, failures = (table.rows for table in page.tables)
    notes = {row["0"].rpartition(":")[2]: row["2"] for row in failures}
    rows = {row["0"].rpartition(":")[2]: [row["2"], row["4"], row["5"]] for row in matrix}
    assert rows == {name: row for name, (*row, _) in VERDICTS.items()}
    assert all(note in notes.get(name, "") for name, (*_, note) in VERDICTS.items())
