"""The documents keep their word: their commands parse and their code runs."""

import re
import shlex
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from bench.config import resolve
from bench.grammar.commands import parse
from bench.options import read_options
from tests.tiny import ROOT

README, CONTRIBUTING = ((ROOT / name).read_text("utf-8") for name in ("README.md", "CONTRIBUTING.md"))
FITS = re.findall(r"^(?:uv run )?bench fit (?!.*RUN_ID)(.*--task.*?)(?: {2,}#.*)?$", README, re.MULTILINE)


def block(text: str, kind: str) -> str:
    found = re.findall(rf"^```{kind}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert len(found) == 1
    return found[0]


def test_the_first_thing_in_the_readme_is_one_line_of_set_up() -> None:
    run, tests = block(README, "sh first").splitlines()
    assert run == "pip install uv && uv run bench fit --task synthetic --opt ngd"
    assert tests == "pip install uv && uv run pytest"


@pytest.mark.parametrize("words", FITS)
def test_every_run_in_the_readme_is_a_legal_configuration(words: str) -> None:
    args = parse("fit", shlex.split(words))
    settings = args.of_runs
    assert resolve(settings, tuned=args.tuned).run_id.startswith(f"{settings['task']}-{settings['opt']}-")


def test_the_readmes_optimizers_are_made_as_shown() -> None:
    model = torch.nn.Linear(2, 1)

    def closure() -> torch.Tensor:
        loss = model(torch.ones(1, 2)).square().sum()
        loss.backward()
        return loss

    exec(block(README, "python"), {"model": model, "closure": closure})


def test_the_example_optimizer_runs_and_explains_its_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sign_gd.py").write_text(block(CONTRIBUTING, "python"), "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert read_options("sign_gd:SignGD", ("params",))["lr"].help == "step of every coordinate, in [0, inf)."
    module: ModuleType = __import__("sign_gd")
    monkeypatch.setitem(sys.modules, "sign_gd", module)
    weight = torch.nn.Parameter(torch.tensor([3.0, -3.0]))
    weight.grad = weight.detach().clone()
    module.SignGD([weight], lr=1.0).step()
    assert weight.tolist() == [2.0, -2.0]
    with pytest.raises(ValueError, match="lr=-1 is out of range"):
        module.SignGD([weight], lr=-1)
