"""What must not change: results that commands give now equal those in `tests/golden`.

Ids, verdicts and words must be equal. Numbers of boards agree to 1e-9. Numbers of training are equal where torch and
the processor are those that made the file; elsewhere they agree to 1e-9 in float64 and 1e-3 in float32.
"""

import json
import math
from typing import Any

import pytest

from tests.conftest import folder_with
from tests.golden import make

FLOAT32 = ("mnist", "lm")
DATA = {"mnist": "MNIST/raw/train-images-idx3-ubyte.gz", "lm": "tiny_shakespeare/input.txt"}


def golden(part: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (make.FOLDER / f"{part}.jsonl").read_text("utf-8").splitlines()]


def difference(old: Any, new: Any, tolerance: float, place: str = "") -> str | None:
    """Where two values first differ; floats may differ by this share of their size."""
    if isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys():
        pairs = [(f"{place}.{key}", old[key], new[key]) for key in old]
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = [(f"{place}[{i}]", *pair) for i, pair in enumerate(zip(old, new, strict=True))]
    elif isinstance(old, float) and isinstance(new, float):
        return None if math.isclose(old, new, rel_tol=tolerance, abs_tol=tolerance * 1e-12) else f"{place}: {old} {new}"
    else:
        return None if type(old) is type(new) and old == new else f"{place}: {old!r} {new!r}"
    return next((text for where, a, b in pairs if (text := difference(a, b, tolerance, where))), None)


@pytest.mark.parametrize("part", ["boards", "run_ids", "claims"])
def test_results_equal_the_golden_file(part: str) -> None:
    assert difference(golden(part), list(make.PARTS[part]()), 1e-9) is None


@pytest.mark.numeric
@pytest.mark.matrix(keep=1, ci=3)
@pytest.mark.parametrize(("task", "engine"), sorted({(row["task"], row["engine"]) for row in golden("training")}))
def test_training_equals_the_golden_file(task: str, engine: str) -> None:
    if task in DATA:
        folder_with(DATA[task])
    old = [row for row in golden("training") if (row["task"], row["engine"]) == (task, engine)]
    assert len(old) >= len(make.STOCHASTIC)
    same = make.machine() == json.loads((make.FOLDER / "machine.json").read_text("utf-8"))
    tolerance = 0.0 if same else 1e-3 if task in FLOAT32 else 1e-9
    assert difference(old, list(make.training([task], [engine])), tolerance) is None


def test_a_changed_number_is_a_difference() -> None:
    old = golden("training")
    new = [{**row, "loss": row["loss"] * (1 + 1e-8)} for row in old]
    assert difference(old, new, 1e-9) is not None
