"""Tests with many cells: which are quick, which are deep, and which `.ci/run` runs too (see CONTRIBUTING.md)."""

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a test marked `matrix(keep=N, ci=M)`, N cells stay quick, M more are marked `ci`, and all but N `deep`."""
    matrices = defaultdict(list)
    for item in items:
        if item.get_closest_marker("matrix") and not item.get_closest_marker("deep"):
            matrices[item.nodeid.partition("[")[0]].append(item)
    for cells in matrices.values():
        counts = cells[0].get_closest_marker("matrix").kwargs
        quick = covering(cells, counts.get("keep"))
        deep = [cell for cell in cells if cell not in quick]
        for cell in deep:
            cell.add_marker("deep")
        for cell in covering(deep, counts.get("ci", 0)):
            cell.add_marker("ci")


def covering(cells: Sequence[pytest.Item], most: int | None = None) -> list[pytest.Item]:
    """The cells that cover most words in the names of all cells, so most levels of each parameter.

    Args:
        cells: of one test, with names as in `test_x[synthetic-sngd-4micro]`.
        most: how many at most; by default the fewest that cover all words.
    """
    words = {cell: set(re.findall(r"[\w.+]+", cell.nodeid.partition("[")[2])) for cell in cells}
    chosen: list[pytest.Item] = []
    seen: set[str] = set()
    while len(chosen) < (len(cells) if most is None else min(most, len(cells))):
        best = max((cell for cell in cells if cell not in chosen), key=lambda cell: len(words[cell] - seen))
        if chosen and words[best] <= seen:
            break
        chosen.append(best)
        seen |= words[best]
    return chosen


def selected(request: pytest.FixtureRequest, parameter: str) -> set[Any]:
    """The values of a parameter with which tests of this file use the requesting fixture, which prepares only those."""
    items = [item for item in request.session.items if item.path == request.path]
    cells = [
        item.callspec.params for item in items if request.fixturename in item.fixturenames and hasattr(item, "callspec")
    ]
    return {params[parameter] for params in cells if parameter in params}
