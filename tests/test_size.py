"""`make size` lowers the recorded numbers of lines, and `--check` refuses a tree that has grown."""

import subprocess
from pathlib import Path

import pytest

from tools import size

RECORDED = "[tool.size]\nproduct = {}\ntests = {}\n"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with five lines in the product, two of them in a folder without a ceiling, and four in the tests."""
    for name, lines in {"bench/api.py": 2, "bench/old/a.py": 2, "tasks/core/b.py": 1, "tests/c.py": 4}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("\n" * lines)
    (tmp_path / "bench/untracked.md").write_text("\n")
    subprocess.run("git init -q && git add .", cwd=tmp_path, shell=True, check=True)
    return tmp_path


@pytest.mark.parametrize(
    ("product", "tests", "message"),
    [
        (5, 4, None),
        (9, 9, None),
        (4, 4, "size: 5 lines of product, 1 more than recorded ([tool.size] in pyproject.toml): shorten the code"),
        (5, 1, "size: 4 lines of tests, 3 more than recorded ([tool.size] in pyproject.toml): shorten the code"),
    ],
)
def test_a_tree_that_has_grown_is_refused(tree: Path, product: int, tests: int, message: str | None) -> None:
    (tree / "pyproject.toml").write_text(RECORDED.format(product, tests))
    assert size.main(["--check"], tree) == message
    assert (tree / "pyproject.toml").read_text() == RECORDED.format(product, tests)


def test_recorded_figures_fall_and_never_rise(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tree / "pyproject.toml").write_text(RECORDED.format(7, 3))
    assert size.main([], tree) is None
    assert (tree / "pyproject.toml").read_text() == RECORDED.format(5, 3)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["bench/api,", "bench/cli,", "bench/config,", "bench/commands", "2", "2800"] in rows
    assert ["bench/old", "2", "-"] in rows
    assert ["tests", "4", "22000"] in rows
