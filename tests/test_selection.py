"""Selection: the value that ranks a run, medians with divergence as the worst value, the first of equals."""

import math

import pytest

from bench.results.selection import above_infimum, best_index, final_value, seed_median, selection_value
from bench.store.record import RunResult
from bench.text import CONVERGED


def run(final=None, status="completed", metric="loss", excess=None, evaluations=(), **changes) -> RunResult:
    values = {metric: final} | ({} if excess is None else {"excess": excess})
    rows = [{"step": i, "train_s": 0.0, **values} for i, values in enumerate(evaluations)]
    metrics = {} if final is None else {"final": values}
    changes |= {"metric": metric, "split": "test", "final": final, "metrics": metrics, "validations": rows}
    return RunResult("run", {}, status, **changes)


# -- the value of a run ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "above", "final", "value"),
    [
        (run(3.0), False, 3, 3),
        (run(3.0, evaluations=[{"loss": 9.0}, {"loss": 4.0}]), False, 3, 4),  # the last
        (run(3.0, status="timeout", evaluations=[{"loss": 4.0}]), False, 3, 4),
        (run(0.9, metric="accuracy", evaluations=[{"loss": 4.0, "accuracy": 0.5}]), False, 0.9, 0.5),
        (run(3.0, excess=1.0), True, 1, 1),
        (run(3.0, excess=1.0, evaluations=[{"loss": 4.0, "excess": 2.0}]), True, 1, 2),
        (run(3.0, excess=1.0, evaluations=[{"loss": 4.0, "excess": 2.0}]), False, 3, 4),
        (run(3.0, excess=0.0, evaluations=[{"loss": 4.0, "excess": 0.0}]), True, 0, 0),
        (run(3.0, excess=1.0, evaluations=[{"loss": 4.0}]), True, 1, 1),  # the infimum on that split is not known
        (run(None), False, None, None),
        (run(None, evaluations=[{"loss": 4.0}]), False, None, 4),
        (run(3.0, status="diverged", evaluations=[{"loss": 4.0}]), False, None, None),
        (run(3.0, status="diverged"), False, None, None),
        (run(3.0, status="diverged", excess=1.0), True, None, None),
    ],
)
def test_the_value_of_a_run(result, above, final, value):
    assert (final_value(result, above), selection_value(result, above)) == (final, value)


@pytest.mark.parametrize(
    ("runs", "above"),
    [
        ([run(3.0, excess=1.0), run(2.0, excess=0.0), run(None)], True),  # a run without a value does not matter
        ([run(3.0, excess=1.0), run(2.0)], False),
        ([run(3.0, excess=1.0, status="diverged")], True),
        ([run(0.5, metric="accuracy", excess=1.0)], False),
        ([run(3.0, excess=1.0, scale="log")], True),
        ([run(3.0, excess=1.0, scale="linear")], False),  # the task declares that differences are compared
    ],
)
def test_whether_losses_are_compared_above_their_infimum(runs, above):
    assert above_infimum(runs) is above


# -- over seeds -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "mode", "median"),
    [
        ([4.0, 1.0, 3.0, 2.0], "min", 2.5),
        ([1.0], "max", 1),
        ([1.0, 2.0, 3.0, None], "min", 2.5),
        ([1.0, 2.0, 3.0, None], "max", 1.5),
        ([1.0, 2.0, None], "min", 2),
        ([1.0, 2.0, None, None], "max", None),  # exactly half
        ([None], "min", None),
        ([], "min", None),
        ([1e308, 1.7e308], "min", None),
    ],
)
def test_the_median_over_seeds(values, mode, median):
    assert seed_median(values, mode) == median


# -- over settings --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scores", "mode", "least", "best"),
    [
        ([9.0, 1.0, 2.0], "min", -math.inf, 1),
        ([9.0, 1.0, 2.0], "max", -math.inf, 0),
        ([None, 3.0, None], "min", -math.inf, 1),
        ([1.0, 1.0, 1.0, 1.0], "min", -math.inf, 0),
        ([1.0, 5.0, 1.0, 5.0, 1.0], "max", -math.inf, 1),
        ([1e-3, 1e-17, 1e-30, 0.0], "min", CONVERGED, 1),
        ([None, None], "max", -math.inf, None),
        ([0.0, -0.0], "min", -math.inf, 0),
    ],
)
def test_the_best_is_the_first_of_equals(scores, mode, least, best):
    assert best_index(scores, mode, least) == best
