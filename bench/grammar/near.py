"""Corrections of misspelt words: Damerau-Levenshtein distance, with ties broken towards swapped letters."""

import re
from collections.abc import Iterable

_SWAP = 0.9
"""Cost of swapping two adjacent letters; any other edit costs 1."""


def distance(a: str, b: str) -> float:
    """Edit distance: insertions, deletions, substitutions, and swaps of adjacent letters."""
    before: list[float] = []
    row = [float(j) for j in range(len(b) + 1)]
    for i, letter in enumerate(a, 1):
        earlier, before, row = before, row, [float(i)]
        for j, other in enumerate(b, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != other))
            if i > 1 and j > 1 and letter == b[j - 2] and other == a[i - 2]:
                cost = min(cost, earlier[j - 2] + _SWAP)
            row.append(cost)
    return row[-1]


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known name closest to a misspelt word; None if none is close.

    Dashes equal underscores, and case is ignored. In `trainer.max_steps` and `deora2024/fig2` the part after the last
    dot or slash is enough.
    """
    best, least = None, float("inf")
    typed = _plain(word)
    for name in known:
        full = _plain(name)
        group, _, tail = full.rpartition("/" if "/" in full else ".")
        own, _, end = typed.rpartition("/" if "/" in typed else ".")
        if not typed.strip("._-/"):
            return None
        costs = [_cost(typed, full)]
        if group:
            costs.append(_cost(end, tail) + (0.1 if not own or own == group else _cost(own, group)))
        if min(costs) < least:
            best, least = name, min(costs)
    return best


def _cost(typed: str, name: str) -> float:
    """The distance, infinite if it is too large for the number of letters; a long enough prefix counts as close."""
    n = len(typed)
    if typed != name and (len(name) == 1 or (n == 1 and typed not in name)):
        return float("inf")
    few = n <= 3 or (n == 4 and typed[:2] != name[:2]) or (n == 5 and typed[0] != name[0])
    most = 1 if few else 2 if n <= 7 else max(3, n // 4)
    cost = distance(typed, name) if abs(len(name) - n) <= most else float("inf")
    if cost <= most:
        return cost
    begun = n >= 3 and name.startswith(typed) and name[n : n + 1] != "."
    return 4 + len(name) / 100 if begun else float("inf")


def _plain(word: str) -> str:
    return re.sub(r"^[-\u2010-\u2015\u2212]+", "", word).replace("-", "_").lower()
