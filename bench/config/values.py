"""Parsing of values, the same for all commands: numbers, lists, seeds, ranges, folders."""

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from bench.errors import UserError

MOST_SEED = 2**63 - 1
"""The largest seed: tables of runs, DuckDB and torch's generators store it as a signed 64-bit integer."""
SEED_RANGE = f"an integer from 0 to {MOST_SEED} (2^63 - 1)"
MOST_RUNS = 100_000
"""Most runs of one command; more are probably a typo, and their list alone would fill the memory. Ours."""
DEFAULT_POINTS = 9  # of a range LOW:HIGH that does not state it. Ours.
FOLDERS = {"data": "data", "store": "runs"}
"""Default folders of data and runs, if neither `--data` and `--store` nor their variables are set."""


def refuse_too_many(what: str, runs: int) -> None:
    """Refuse more runs (`runs` is a lower bound) than `what`, an option as typed, may ask for (UserError)."""
    if runs > MOST_RUNS:
        number = f"{runs:,}" if runs < 10**18 else "more than 10^18"
        limit = f"a command makes from 1 to {MOST_RUNS:,}, so request fewer values, seeds or trials"
        raise UserError(f"{what}: {number} runs; {limit}")


def parts(text: object, option: str = "") -> list[str]:
    """The parts of `A,B`, or of a list; `A,` has one. UserError if one between two others is empty."""
    words = [part.strip() for part in str(text).strip(", \t").split(",")]
    if isinstance(text, list):
        return list(map(str, text))
    if len(words) > 1 and not all(words):
        raise UserError(f"{option} {text}: there is no value between two commas; add it, or remove one".strip())
    return list(filter(None, words))


Seeds = int | str | Sequence[int]


def read_seeds(given: Seeds, option: str = "--seeds") -> list[int]:
    """Seeds from a count (`5` is 0 to 4), a list (`3,5,8`) or a range (`10:15` is 10 to 14), also in a list.

    UserError, with the option, if it is none of these, or has too many or large seeds.
    """
    text = ",".join(map(str, given)) if isinstance(given, Sequence) and not isinstance(given, str) else str(given)
    ranges = list[range]()
    with suppress(ValueError):
        ends = [part.partition(":") for part in parts(text)]
        ranges = [range(int(low), int(high) if colon else int(low) + 1) for low, colon, high in ends]
    if ranges and counts_seeds(given):
        ranges = [range(ranges[0].start)]
    refuse_too_many(f"{option} {text}", sum(max(0, seeds.stop - seeds.start) for seeds in ranges))
    seeds = list(dict.fromkeys(seed for span in ranges for seed in span))
    if not seeds or min(seeds) < 0 or max(seeds) > MOST_SEED or not all(ranges):
        how = f"write how many ({option} 5), or which ({option} 3,5,8, or {option} 10:15)"
        raise UserError(f"{option} {text}: {how}; a seed is {SEED_RANGE}")
    return seeds


def counts_seeds(given: Seeds) -> bool:
    """Whether the argument states how many seeds, not which."""
    return isinstance(given, int) or (isinstance(given, str) and not {",", ":"} & {*given})


def log_grid(low: float, high: float, points: int) -> list[float]:
    """Log-spaced values from low to high, rounded to four digits."""
    return [typed(low * (high / low) ** (i / (points - 1))) for i in range(points)]


def typed(value: float) -> float:
    """The value rounded to four digits, so that it can be typed again."""
    return float(f"{value:.4g}")


def read_range(key: str, raw: str) -> tuple[float, float, int]:
    """The ends of the range `LOW:HIGH:POINTS` on a log scale, and its points, nine if not given (UserError)."""
    with suppress(ValueError):
        low, high, *points = raw.split(":")
        ends, (count,) = (float(low), float(high)), map(int, points or [DEFAULT_POINTS])
        refuse_too_many(f"--{key} {raw}", count)
        if 1e-100 <= ends[0] < ends[1] <= 1e100 and count > 1:
            return *ends, count
    rule = "LOW:HIGH or LOW:HIGH:POINTS with 0 < LOW < HIGH, both between 1e-100 and 1e100, and at least 2 points"
    raise UserError(f"--{key} {raw}: a range is {rule}, such as 1e-3:1e1:16")


class Budget(NamedTuple):
    """The time after which a command stops."""

    text: str
    seconds: float


_UNITS = {"s": 1, "min": 60, "m": 60, "h": 3600, "d": 86400}


def read_budget(text: str) -> Budget:
    """A time: `90min`, `6h`, `2d` (UserError)."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?(s|min|m|h|d)", text.strip())
    if match and 0 < (seconds := float(match[1]) * _UNITS[match[2]]) < 1e9:
        return Budget(text, seconds)
    raise UserError(f"--budget {text}: write a time (--budget 6h, 90min, 2d)")


def place(name: str, given: str | None = None) -> Path:
    """The folder that `--data` or `--store` names, else its environment variable, else the default (UserError)."""
    variable = f"BENCH_{name.upper()}"
    text = os.environ.get(variable, FOLDERS[name]) if given is None else given
    if not text.strip() or is_no_folder(Path(text)):
        why = "it is a file, not a folder" if text.strip() else "it must name a folder or file"
        raise UserError(f"--{name} (or {variable}) {text[:100]!r}: {why}; leave it out for ./{FOLDERS[name]}")
    return Path(text)


def is_no_folder(path: Path) -> bool:
    """Whether the path exists and is not a folder."""
    return os.path.exists(path) and not os.path.isdir(path)  # noqa: PTH110, PTH112 - False if it is not permitted


def existing(path: Path) -> Path:
    """The path, or its nearest parent that exists, even as a broken link."""
    return next(place for place in (path, *path.absolute().parents) if os.path.lexists(place))


def reference_folder() -> Path | None:
    """The shipped store of reference results, or `BENCH_REFERENCE`; None for none, UserError if it is missing."""
    named = os.environ.get("BENCH_REFERENCE")
    folder = _shipped("reference", "results/reference/runs") if named is None else Path(named)
    if named and not folder.is_dir():
        raise UserError(f"BENCH_REFERENCE={named}: there is no such folder; unset it, or set it to '' for none")
    return folder if named != "" and folder.is_dir() else None


def community_folders() -> list[Path]:
    """The stores of results that others have submitted (`docs/submit.md`), in a checkout."""
    return sorted((Path(__file__).parents[2] / "results" / "community").glob("*/runs"))


def configs_folder() -> Path:
    """The folder `configs`, in a checkout or in an installed wheel."""
    return _shipped("configs", "configs")


def experiments() -> dict[str, Path]:
    """The YAML files of papers' experiments by name, `<paper>/<experiment>`."""
    paths = sorted((configs_folder() / "papers").glob("*/*.yaml"))
    return {f"{path.parent.name}/{path.stem}": path for path in paths}


def suites() -> dict[str, Path]:
    """The YAML files of the shipped suites by name."""
    return {path.stem: path for path in sorted((configs_folder() / "suites").glob("*.yaml"))}


def _shipped(installed: str, checkout: str) -> Path:
    here = Path(__file__).parents[1]
    return here / installed if (here / installed).is_dir() else here.parent / checkout
