"""Which tests run by default: all but the deep ones, and a few cells of each matrix (see CONTRIBUTING.md)."""

import re
import shlex
import zlib
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest

APART = ("kill", "zoo", "minilm")
"""Marks of tests that run neither in the quick suite nor in the deep one."""

LARGE, SHARE = 10, 4
"""Of a matrix of more than `LARGE` cells, CI runs one deep cell in `SHARE`; `make test-all` runs it whole."""

NAMED = "not zoo and not minilm"
"""The `-m` expression for tests that are named one by one."""


def pytest_configure(config: pytest.Config) -> None:
    """Run tests named by node id, deep or not, unless `-m` says otherwise."""
    words = config.getini("addopts")
    words = shlex.split(words) if isinstance(words, str) else words
    usual = words[words.index("-m") + 1]
    if config.option.markexpr == usual and config.args and all("::" in word for word in config.args):
        config.option.markexpr = NAMED


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as deep the tests that need a browser, and all cells of a matrix except those that are kept.

    Of the deep cells of a large matrix, all but one in `SHARE`, chosen by their names, are marked `whole` as well: CI
    leaves them out.
    """
    matrices = defaultdict(list)
    for item in items:
        if "chromium" in fixtures_of(item):
            deepen(item)
        if item.get_closest_marker("matrix"):
            matrices[item.nodeid.partition("[")[0]].append(item)
    for cells in matrices.values():
        mark = cells[0].get_closest_marker("matrix")
        shallow = [item for item in cells if not item.get_closest_marker("deep")]
        keep = kept([cell(item) for item in shallow], mark.kwargs.get("keep"))
        for i, item in enumerate(shallow):
            if i not in keep:
                deepen(item)
                if len(cells) > LARGE and zlib.crc32(cell(item).encode()) % SHARE:
                    item.add_marker("whole")


def selected(request: pytest.FixtureRequest, parameter: str) -> set[Any]:
    """The values of a parameter with which tests of this file use the requesting fixture, which prepares only those."""
    items = [item for item in request.session.items if item.path == request.path]
    cells = [getattr(item, "callspec", None) for item in items if request.fixturename in fixtures_of(item)]
    return {cell.params[parameter] for cell in cells if cell is not None and parameter in cell.params}


def fixtures_of(item: pytest.Item) -> list[str]:
    """The names of the fixtures that a test uses."""
    return getattr(item, "fixturenames", [])


def cell(item: pytest.Item) -> str:
    """The part in brackets after the name of a test."""
    return item.nodeid.partition("[")[2].removesuffix("]")


def deepen(item: pytest.Item) -> None:
    if not any(map(item.get_closest_marker, APART)):
        item.add_marker("deep")


def kept(cells: Sequence[str], keep: int | None = None) -> set[int]:
    """The cells that cover most words in the names of all cells, so most levels of each parameter.

    Args:
        cells: names, as in `synthetic-sngd-4micro`.
        keep: how many at most; by default the fewest that cover all words.
    """
    words = [set(re.findall(r"[\w.+]+", name)) for name in cells]
    chosen: set[int] = set()
    seen: set[str] = set()
    while len(chosen) < (len(cells) if keep is None else min(keep, len(cells))):
        i = max((i for i in range(len(cells)) if i not in chosen), key=lambda i: (len(words[i] - seen), -i))
        if chosen and words[i] <= seen:
            break
        chosen.add(i)
        seen |= words[i]
    return chosen
