"""Plug-ins import from one public place, CONTRIBUTING.md lists all folders, and run ids do not depend on places."""

import re
import subprocess
import sys
from itertools import chain

import pytest

import optimizers
import tasks
from bench.config.run_config import resolve
from tests.tiny import ROOT

IDS = {
    "synthetic": "6ae396a53d",
    "synthetic_joint": "d69001ca58",
    "mha_dm1": "173c084fec",
    "mha_planted": "d900bf1517",
    "attention_matrix": "3739220f85",
    "mnist": "4cde4ace50",
    "cifar10": "fa36fbe85b",
    "mnli": "d130d077f3",
    "sst2": "989511d64d",
    "squad": "316ebc415a",
    "lm": "cf9a7202c2",
}


@pytest.mark.parametrize("package", [tasks, optimizers], ids=lambda package: package.__name__)
def test_every_public_name_is_there(package) -> None:
    assert {name for name in package.__all__ if getattr(package, name) is None} == set()
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        package.Nothing  # noqa: B018
    with pytest.raises(ImportError, match="Nothing"):
        exec(f"from {package.__name__} import Nothing")


def test_only_what_needs_torch_imports_it() -> None:
    code = (
        "import sys\nfrom tasks import TASKS, DataError, TaskSpec\nfrom optimizers import OptimizerSpec\n"
        "heavy = {'torch', 'lightning', 'numpy', 'pyarrow'} & set(sys.modules)\nassert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)


def test_templates_and_documents_import_from_the_public_place() -> None:
    texts = [*(ROOT / "bench" / "api" / "templates").rglob("*.j2"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]
    lines = chain.from_iterable(path.read_text("utf-8").splitlines() for path in texts)
    found = [match for line in lines if (match := re.search(r"\bfrom (tasks|optimizers)(\.\w+)* import (.+)", line))]
    assert len(found) >= 5
    for match in found:
        assert match[2] is None, match[0]
        names = re.findall(r"\w+", match[3].partition("`")[0])
        assert set(names) <= set({"tasks": tasks, "optimizers": optimizers}[match[1]].__all__), match[0]


def test_contributing_names_every_folder_of_the_product() -> None:
    rows = re.findall(r"^\| `([\w/]+)` \|", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.MULTILINE)
    modules = [
        path.parent.relative_to(ROOT) for top in ("bench", "tasks") for path in (ROOT / top).glob("*/__init__.py")
    ]
    assert sorted(row for row in rows if "/" in row) == sorted(map(str, modules))


@pytest.mark.parametrize(("task", "run_id"), IDS.items())
def test_a_run_keeps_its_identity_wherever_its_task_lies(task: str, run_id: str) -> None:
    assert resolve({"task": task, "opt": "adam", "opt.lr": 1e-3}).run_id == f"{task}-adam-{run_id}"
