"""Search spaces and designs: parsing, the points to try next, when a grid grows, and replay of smaller budgets."""

import itertools
import json
import math
import subprocess
import sys
from dataclasses import replace
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.config.values import log_grid
from bench.errors import UserError
from bench.store.reports import edges_of
from bench.text import CONVERGED
from bench.tuning.design import EXTENSION_LIMIT, LONGEST_GRID, Design, Scores, Wanted
from bench.tuning.space import Point, point_key, read_space, space_as_json, space_from_json
from bench.tuning.spec import default_trials
from optimizers import OPTIMIZERS, LogUniform

LR = LogUniform(1e-3, 1e1)
ALL = -math.inf
often = settings(max_examples=200, deadline=None, derandomize=True, database=None)


def message(call, *args, **kwargs) -> str:
    with pytest.raises(UserError) as error:
        call(*args, **kwargs)
    assert error.value.exit_code == 2
    assert "\n" not in str(error.value)
    return str(error.value)


# -- words ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("opt", "words", "space", "fixed"),
    [
        ("ngd", {}, {"opt.lr": LR}, {}),
        ("sps", {}, {"opt.max_step": LogUniform(1e-2, 1e1), "opt.c": LogUniform(0.1, 1e3)}, {}),
        ("sgdm", {}, {"opt.lr": LR, "opt.momentum": (0.7, 0.9, 0.97)}, {}),
        ("adamw", {"opt.lr": "1e-4:1e-1"},
         {"opt.lr": LogUniform(1e-4, 1e-1), "opt.weight_decay": LogUniform(1e-3, 1e-1)}, {}),  # lr stays the first
        ("muon", {"opt.lr": "0.1"}, {"opt.rest.lr": LogUniform(1e-4, 1e-2)}, {"opt.lr": "0.1"}),
        ("muon", {"opt.rest": "sgd"}, {"opt.lr": LogUniform(1e-3, 1.0)}, {"opt.rest": "sgd"}),  # with its own lr
        ("adam", {"opt.lr": "1e-4:1"}, {"opt.lr": LogUniform(1e-4, 1.0)}, {}),
        ("sgd", {"opt.lr": "1e-2:1:3"}, {"opt.lr": (0.01, 0.1, 1.0)}, {}),
        ("sgd", {"opt.lr": "0.5, 1e-1,"}, {"opt.lr": (0.5, 0.1)}, {}),
        ("sgd", {"opt.momentum": "0,0.9"}, {"opt.lr": LR, "opt.momentum": (0.0, 0.9)}, {}),
        ("sgd", {"opt.momentum": "0,0.9", "opt.lr": "1e-3:1"},
         {"opt.lr": LogUniform(1e-3, 1.0), "opt.momentum": (0.0, 0.9)}, {}),
        ("sgd", {"opt.momentum": "0,0.9", "opt.lr": "0.1"}, {"opt.momentum": (0.0, 0.9)}, {"opt.lr": "0.1"}),
        ("sgd", {"opt.momentum": "0,0.9", "opt.lr": 0.1}, {"opt.momentum": (0.0, 0.9)}, {"opt.lr": 0.1}),
        ("sgd", {"opt.weight_decay": "1e-5:1e-2"}, {"opt.lr": LR, "opt.weight_decay": LogUniform(1e-5, 1e-2)}, {}),
        ("sgd", {"opt.nesterov": "true,false", "opt.momentum": "0.9"},
         {"opt.lr": LR, "opt.nesterov": (True, False)}, {"opt.momentum": "0.9"}),
        ("sgd", {"opt.momentum": "0.9,"}, {"opt.lr": LR}, {"opt.momentum": "0.9"}),  # a list of one
        ("adam", {"opt.betas": "0.8,0.99"}, {"opt.lr": LogUniform(1e-5, 1e-1)}, {"opt.betas": "0.8,0.99"}),
        ("sngd", {"opt.max_step": "1,inf"}, {"opt.lr": LogUniform(1e-4, 1.0), "opt.max_step": (1.0, math.inf)}, {}),
        ("sps", {"opt.f_star": "task,0", "opt.c": "1"},
         {"opt.max_step": LogUniform(1e-2, 1e1), "opt.f_star": ("task", 0.0)}, {"opt.c": "1"}),
        ("sps", {"opt.batches_per_epoch": "1:100:3", "opt.max_step": "1", "opt.c": "1"},
         {"opt.batches_per_epoch": (1, 10, 100)}, {"opt.max_step": "1", "opt.c": "1"}),
        ("ngd", {"task": "synthetic", "opt": "ngd", "task.n": "20", "trainer.max_steps": "5", "store": "a:b,c"},
         {"opt.lr": LR},
         {"task": "synthetic", "opt": "ngd", "task.n": "20", "trainer.max_steps": "5", "store": "a:b,c"}),
    ],
)  # fmt: skip
def test_searched_and_fixed_settings(opt, words, space, fixed):
    found, rest = read_space(words, opt)
    assert list(found.items()) == list(space.items())  # in this order
    for name, axis in space.items():
        if isinstance(axis, tuple):
            assert list(map(type, found[name])) == list(map(type, axis))
    assert rest == fixed


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_can_be_tuned_without_a_word(name):
    space, fixed = read_space({}, name)
    assert list(space) == [f"opt.{key}" for key in OPTIMIZERS[name].search]
    assert fixed == {}
    assert default_trials(Design(space, "grid")) == 9  # a method with more hyperparameters gets no more trials
    assert len(Design(space, "grid").wanted(9)) == 9


RANGE = "a range is LOW:HIGH with 0 < LOW < HIGH, both between 1e-100 and 1e100, such as 1e-3:1e1"
GRID = "a grid is LOW:HIGH:POINTS, or LOW:HIGH, with 0 < LOW < HIGH and at least 2 points, such as 1e-3:1e1:16"


@pytest.mark.parametrize(
    ("opt", "words", "error"),
    [
        *(("ngd", {"opt.lr": word}, f"--opt.lr {word}: {RANGE}")
          for word in ("1:0.1", "1:1", "0:1", "-1:1", "a:1", "1:", ":1", ":", "1:inf", "nan:1", "1e-200:1", "0.1,1:2")),
        *(("ngd", {"opt.lr": word}, f"--opt.lr {word}: {GRID}")
          for word in ("1:0.1:3", "0:1:3", "1:2:1", "1:2:x", "1:2:3:4", "::", "1:2:2.5")),
        ("ngd", {"opt.lr": ","}, "--opt.lr ,: the list is empty"),
        ("ngd", {"opt.lr": "0.1,0.1"}, "--opt.lr 0.1,0.1: 0.1 is given twice; give each value once"),
        ("ngd", {"opt.lr": "0.1,1,1e-1"}, "--opt.lr 0.1,1,1e-1: 0.1 is given twice; give each value once"),
        ("ngd", {"opt.lr": "1:1.00001:4"}, "--opt.lr 1:1.00001:4: 1.0 is given twice; give each value once"),
        ("ngd", {"opt.lr": "0.1,fast"}, "--opt.lr 'fast': it takes a number"),
        ("sps", {"opt.batches_per_epoch": "1:100:4"}, "--opt.batches_per_epoch 4.642: it takes a whole number"),
        ("sps", {"opt.batches_per_epoch": "1:100"},
         "--opt.batches_per_epoch 1:100: it takes a whole number, which has no range; give values such as A,B"),
        ("sgd", {"opt.nesterov": "1:2"},
         "--opt.nesterov 1:2: it takes true or false, which has no range; give values such as A,B"),
        ("adam", {"opt.betas": "0.8:0.9"}, "--opt.betas 0.8:0.9: it takes float,float, which has no range"),
        ("ngd", {"opt.lrr": "1e-3:1"}, "unknown option '--opt.lrr'; did you mean '--opt.lr'?"),
        ("ngd", {"opt.lrr": "0.1"}, "unknown option '--opt.lrr'; did you mean '--opt.lr'?"),
        ("ngd", {"opt.ngd.lr": "0.1,1"}, "unknown option '--opt.ngd.lr'; did you mean '--opt.lr'?"),
        ("ngdd", {}, "unknown optimizer 'ngdd'; did you mean 'ngd'?"),
        ("ngd", {"opt.lr": "0.1"},
         "--opt.lr 0.1: no setting of ngd is left to tune; give a range (--opt.lr LOW:HIGH) or values (--opt.lr A,B)"),
        ("sps", {"opt.max_step": 1, "opt.c": "0.5"}, "--opt.max_step 1 --opt.c 0.5: no setting of sps is left to tune"),
        ("ngd", {"task": "synthetic", "task.n": "10,20"},
         "--task.n 10,20: only hyperparameters (--opt.NAME) are tuned; give one value"),
        ("ngd", {"trainer.max_steps": "5:50"}, "--trainer.max_steps 5:50: only hyperparameters"),
        ("ngd", {"task": "nowhere", "task.n": "10:20:3"}, "--task.n 10:20:3: only hyperparameters"),
    ],
)  # fmt: skip
def test_words_that_are_refused(opt, words, error):
    assert message(read_space, words, opt).startswith(error)


def test_an_optimizer_without_a_search_range_asks_for_one(monkeypatch):
    monkeypatch.setitem(OPTIMIZERS, "ngd", replace(OPTIMIZERS["ngd"], search={}))
    assert message(read_space, {}, "ngd") == (
        "--opt ngd: no setting of ngd is left to tune, since it declares no range; its numbers are opt.lr,"
        " opt.momentum, opt.weight_decay; give a range (--opt.lr LOW:HIGH) or values (--opt.lr A,B)"
    )
    assert read_space({"opt.lr": "0.1:1"}, "ngd")[0] == {"opt.lr": LogUniform(0.1, 1.0)}


def test_a_tuple_is_one_value():
    space, fixed = read_space({"task": "synthetic", "opt.betas": "0.8,0.9"}, "adam")
    assert (list(space), fixed["opt.betas"]) == (["opt.lr"], "0.8,0.9")


# -- JSON -----------------------------------------------------------------------------------------------------------

scalars = (
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | st.sampled_from(["task", "inf", ""])
)
ranges = st.tuples(st.floats(1e-100, 1e99), st.floats(1.001, 10)).map(
    lambda ends: LogUniform(ends[0], ends[0] * ends[1])
)
spaces = st.dictionaries(
    st.sampled_from(["opt.lr", "opt.a", "opt.z", "opt.max_step"]),
    ranges | st.lists(scalars, min_size=1, max_size=4).map(tuple),
)


@often
@given(spaces)
def test_a_space_survives_json(space):
    text = json.dumps(space_as_json(space), allow_nan=False, sort_keys=True)
    again = space_from_json(json.loads(text))
    assert list(map(repr, again.items())) == list(map(repr, space.items()))  # with order, types, and signs of zeros


def test_json_of_a_space():
    assert space_as_json({"opt.lr": LR, "opt.max_step": (1.0, math.inf)}) == [
        {"name": "opt.lr", "low": 0.001, "high": 10.0},
        {"name": "opt.max_step", "values": [1.0, {"number": "inf"}]},
    ]


def test_equal_points_have_one_key():
    assert point_key({"opt.lr": 1, "opt.c": 0.5}) == point_key({"opt.c": 0.5, "opt.lr": 1.0})
    assert point_key({"opt.lr": -0.0}) == point_key({"opt.lr": 0})
    assert json.loads(point_key({"opt.lr": 0.1, "opt.nesterov": True})) == {"opt.lr": 0.1, "opt.nesterov": True}
    keys = {point_key({"x": x}) for x in (0.1, 1, True, "1", "true", None, math.inf, "inf", 0.10000000000000002)}
    assert len(keys) == 9


# -- a grid ---------------------------------------------------------------------------------------------------------

GRID1 = Design({"opt.lr": LR}, "grid")


def rates(design: Design, trials: int, known=None, total=0, mode="min", least=ALL) -> list[float]:
    return [each.point["opt.lr"] for each in design.wanted(trials, total, Scores(known or {}, mode, least))]


def simulate(design: Design, score, trials: int, total=0, mode="min", least=ALL, most=10_000):
    """Tune: take points one by one, in the order in which the design wants them."""
    known: dict[str, float | None] = {}
    order: list[Wanted] = []
    for _ in range(most):
        wanted = design.wanted(trials, total, Scores(known, mode, least))
        assert wanted[: len(order)] == order  # tried points stay, in their order
        new = [each for each in wanted if each.key not in known]
        if not new:
            assert len(wanted) == len(order)
            return order, known
        order.append(new[0])
        known[new[0].key] = score(new[0].point)
    raise AssertionError("it does not end")


def kinds(order: list[Wanted]) -> dict[float, str]:
    return {each.point["opt.lr"]: each.kind for each in order}


def valley(best: float):
    """Losses with a minimum at this point."""
    return lambda point: abs(math.log10(point["opt.lr"] / best))


def test_a_grid_is_of_half_decades_from_the_middle_outwards():
    assert rates(GRID1, 9) == [0.1, 0.03162, 0.3162, 0.01, 1.0, 0.003162, 3.162, 0.001, 10.0]
    assert sorted(rates(GRID1, 9)) == log_grid(1e-3, 1e1, 9)
    assert rates(GRID1, 1) == [0.1]
    assert {each.kind for each in GRID1.wanted(9)} == {"design"}


@pytest.mark.parametrize(
    ("low", "high", "middle"),
    [
        (1e-5, 1e-1, 1e-3),
        (1e-4, 1.0, 0.01),
        (1e-2, 1e1, 0.3162),
        (1e-3, 1e-1, 0.01),
        (0.02, 0.5, 0.1),
        (1e-3, 10**-0.5, 0.01),  # halfway between 0.01 and 0.03162, rounded down
        (1e-2, 10**0.5, 0.1),
        (1.0, 10**0.5, 1.0),
        (1e-100, 1e100, 1.0),
        (0.98, 9.8, 3.162),
    ],
)
def test_the_middle_of_a_grid(low, high, middle):
    assert rates(Design({"opt.lr": LogUniform(low, high)}, "grid"), 1) == [middle]


def test_the_other_axes_vary_fastest():
    space = {"opt.nesterov": (True, False), "opt.lr": LR, "opt.momentum": (0.0, 0.9)}
    wanted = Design(space, "grid").wanted(8)
    assert [tuple(each.point.items()) for each in wanted[:5]] == [
        (("opt.nesterov", n), ("opt.lr", lr), ("opt.momentum", m))
        for lr, n, m in [(0.1, True, 0.0), (0.1, True, 0.9), (0.1, False, 0.0), (0.1, False, 0.9), (0.03162, True, 0.0)]
    ]


def test_a_grid_grows_where_its_best_is_at_an_edge():
    order, known = simulate(GRID1, valley(1e-4), 5)
    assert kinds(order) == {
        0.1: "design",
        0.03162: "design",
        0.3162: "design",
        0.01: "design",
        1.0: "design",
        0.003162: "extension",
        0.001: "extension",
        0.0003162: "extension",
        0.0001: "extension",
        3.162e-05: "extension",
        1e-05: "extension",
    }
    assert GRID1.best([each.point for each in order], Scores(known)) == {"opt.lr": 1e-4}
    order, _ = simulate(GRID1, lambda point: -valley(3.162)(point), 5, mode="max")
    assert list(kinds(order))[5:] == [3.162, 10.0]
    assert len(simulate(GRID1, valley(0.1), 5)[0]) == 5


def test_a_grid_grows_only_so_far():
    for score, edge in ((lambda p: p["opt.lr"], 1e-6), (lambda p: -p["opt.lr"], 1e4), (lambda p: None, 1e-6)):
        order, _ = simulate(GRID1, score, 5)
        assert list(kinds(order).values()).count("extension") == EXTENSION_LIMIT
        assert edge in kinds(order)
        assert len(order) == 5 + EXTENSION_LIMIT


def test_how_far_a_grid_may_grow_is_known_before():
    grid, values = Design({"opt.lr": LR}, "grid"), Design({"opt.lr": LR, "opt.momentum": (0.0, 0.9)}, "grid")
    for design, trials, more in ((grid, 1, 0), (grid, 2, 8), (values, 2, 0), (values, 4, 16)):
        known = {}
        while lacking := [w for w in design.wanted(trials, 0, Scores(known)) if w.key not in known]:
            known |= {w.key: w.point["opt.lr"] for w in lacking}  # the smallest is always the best
        assert (design.may_grow_by(trials), len(known)) == (more, trials + more)
    assert Design({"opt.lr": LR}, "qmc").may_grow_by(9) == Design({"opt.lr": (0.1, 1.0)}, "grid").may_grow_by(2) == 0


def test_a_grid_of_one_value_does_not_grow():
    assert len(simulate(GRID1, lambda p: None, 1)[0]) == 1
    assert len(simulate(Design({"opt.lr": LR, "opt.c": (1, 2)}, "grid"), lambda p: p["opt.c"], 2)[0]) == 2


def test_if_all_diverged_smaller_steps_are_tried():
    order, _ = simulate(GRID1, lambda p: 1.0 if p["opt.lr"] < 0.005 else None, 3)
    assert kinds(order) == dict.fromkeys((0.1, 0.03162, 0.3162), "design") | dict.fromkeys(
        (0.01, 0.003162, 0.001, 0.0003162), "extension"
    )  # the middle one of three equals is not at an edge


def test_equals_do_not_let_a_grid_grow():
    order, known = simulate(GRID1, lambda p: 1e-20 * p["opt.lr"], 5, least=CONVERGED)
    assert len(order) == 5
    assert GRID1.best([each.point for each in order], Scores(known, least=CONVERGED)) == {"opt.lr": 0.1}


def test_a_grid_grows_with_all_combinations_if_the_best_of_all_is_at_an_edge():
    design = Design({"opt.lr": LR, "opt.momentum": (0.0, 0.9)}, "grid")
    order, _ = simulate(design, lambda p: valley(1e-2)(p) - 9 * p["opt.momentum"] * (p["opt.lr"] == 1.0), 10)
    assert [(each.point["opt.lr"], each.point["opt.momentum"]) for each in order[10:]] == [
        (3.162, 0.0),
        (3.162, 0.9),
        (10.0, 0.0),
        (10.0, 0.9),
    ]
    order, _ = simulate(design, lambda p: valley(0.1)(p) - p["opt.momentum"], 10)
    assert len(order) == 10  # whatever the best on the other axes


def test_a_top_up_goes_on_with_the_order_and_lets_the_grid_grow_again():
    order, _ = simulate(GRID1, valley(0.1), 5, total=8)
    assert list(kinds(order).items())[5:] == [(0.003162, "top-up"), (3.162, "top-up"), (0.001, "top-up")]
    order, _ = simulate(GRID1, valley(3.162), 5, total=8)
    assert list(kinds(order).items())[5:] == [(3.162, "extension"), (10.0, "extension"), (0.003162, "top-up")]
    order, _ = simulate(GRID1, lambda p: 0.5 if p["opt.lr"] > 5 else valley(0.1)(p) + 1, 5, total=9)
    assert list(kinds(order).items())[5:] == [
        (0.003162, "top-up"),
        (3.162, "top-up"),
        (0.001, "top-up"),
        (10.0, "top-up"),
        (31.62, "extension"),
        (100.0, "extension"),
    ]
    design = Design({"opt.lr": LR, "opt.c": (1, 2, 3)}, "grid")
    order, _ = simulate(design, valley(0.1), 9, total=13)
    assert len(order) == 15  # whole combinations
    assert len(simulate(GRID1, valley(0.1), 5, total=3)[0]) == 5


def test_a_grown_grid_that_may_not_grow_is_topped_up():
    order, _ = simulate(GRID1, lambda p: None, 3, total=14)
    assert list(kinds(order).values()) == ["design"] * 3 + ["extension"] * 8 + ["top-up"] * 3
    assert list(kinds(order))[11:] == [1.0, 3.162, 10.0]  # the points below have been tried


TWO_RANGES = Design({"opt.lr": LogUniform(1e-4, 1.0), "opt.c": LogUniform(0.1, 100.0)}, "grid")


def test_a_grid_of_two_ranges_goes_outwards_by_their_widths():
    order = TWO_RANGES.wanted(9)
    assert [(each.point["opt.lr"], each.point["opt.c"]) for each in order] == [
        (0.01, 1.0),
        (0.003162, 1.0),
        (0.03162, 1.0),
        (0.001, 1.0),
        (0.1, 1.0),
        (0.01, 0.1),
        (0.01, 10.0),
        (0.003162, 0.1),
        (0.003162, 10.0),
    ]


def test_a_grid_of_two_ranges_grows_beside_its_best_until_all_neighbours_are_tried():
    def bowl(point):
        return math.log10(point["opt.lr"] / 0.1) ** 2 + math.log10(point["opt.c"] / 10) ** 2

    order, known = simulate(TWO_RANGES, bowl, 9)
    best = TWO_RANGES.best([each.point for each in order], Scores(known))
    assert best == {"opt.lr": 0.1, "opt.c": 10.0}
    grown = {(each.point["opt.lr"], each.point["opt.c"]) for each in order[9:]}
    assert {each.kind for each in order[9:]} == {"extension"}
    assert len(grown) <= EXTENSION_LIMIT
    assert (0.1, 10.0) in grown


def test_if_all_diverged_on_two_ranges_smaller_values_of_the_first_are_tried():
    order, _ = simulate(TWO_RANGES, lambda p: 1.0 if p["opt.lr"] < 0.0005 else None, 9)
    assert [each.point["opt.lr"] for each in order[9:11]] == [0.0003162, 0.0001]


def test_a_grid_grows_by_what_there_is_room_for_the_nearest_of_each_side_first():
    space = {f"opt.{name}": LogUniform(1e-4, 1.0) for name in "abcd"}
    design = Design(space, "grid")
    order, _ = simulate(design, lambda p: -math.log10(p["opt.d"]), 9, mode="min")
    assert [each.kind for each in order[9:]] == ["extension"] * EXTENSION_LIMIT


def test_if_all_is_capped_a_grid_does_not_grow_towards_smaller_steps():
    design, known = GRID1, {}
    for each in design.wanted(5):
        known[each.key] = None
    assert len(design.wanted(5, 0, Scores(known))) == 7  # as if all had diverged
    assert len(design.wanted(5, 0, Scores(known, capped=[each.key for each in design.wanted(5)]))) == 5


def test_values_alone_are_their_product():
    design = Design({"opt.lr": (0.1, 1.0), "opt.nesterov": (True, False)}, "grid")
    order, _ = simulate(design, lambda p: p["opt.lr"], 4)
    assert [tuple(each.point.values()) for each in order] == [(0.1, True), (0.1, False), (1.0, True), (1.0, False)]
    assert [each.kind for each in order] == ["design"] * 4


@pytest.mark.parametrize(
    ("space", "trials", "total", "error"),
    [
        ({"opt.lr": LR}, 0, 0, "--trials 0: at least one setting is needed"),
        ({"opt.lr": LR}, -3, 0, "--trials -3: at least one setting is needed"),
        ({"opt.lr": (1, 2)}, 0, 0, "--trials 0: at least one setting is needed"),
        ({"opt.lr": LR, "opt.c": (1, 2, 3)}, 10, 0,
         "--trials 10: each value of opt.lr is tried with 3 combinations of the others, so it must be a multiple of"
         " 3: 9 or 12"),
        ({"opt.lr": LR, "opt.c": (1, 2, 3)}, 2, 0,
         ("--trials 2: each value of opt.lr is tried with 3 combinations of the others,"
          " so it must be a multiple of 3: 3")),
        ({"opt.lr": (1, 2), "opt.c": (1, 2)}, 9, 0, "--trials 9: these values make 4 settings: write --trials 4"),
        ({"opt.lr": (1,)}, 2, 0, "--trials 2: these values make 1 setting: write --trials 1"),
        ({"opt.lr": (1, 2)}, 2, 3,
         "3 settings are impossible: these values make 2 settings; give a range (LOW:HIGH) instead"),
        ({"opt.lr": LR}, 501, 0, "--trials 501: a grid has at most 500 points here"),
        ({"opt.lr": LR, "opt.c": (1, 2)}, 2, 1001,
         "--trials 1001: a grid has at most 1000 points here"),
    ],
)  # fmt: skip
def test_grids_that_are_refused(space, trials, total, error):
    assert message(Design(space, "grid").wanted, trials, total) == error


@pytest.mark.deep
@pytest.mark.parametrize("low", [1e-100, 1e99])
def test_the_longest_grid_has_numbers_only(low):
    design = Design({"opt.lr": LogUniform(low, low * 10)}, "grid")
    order, _ = simulate(design, lambda p: None if low < 1 else -p["opt.lr"], LONGEST_GRID)
    assert len({each.key for each in order}) == LONGEST_GRID + EXTENSION_LIMIT
    assert all(0 < each.point["opt.lr"] < math.inf for each in order)


def test_a_grid_has_no_range_that_is_narrower_than_its_step():
    assert message(Design, {"opt.lr": LR, "opt.c": LogUniform(1, 9)}, "grid") == (
        "--opt.c 1:9: narrower than a grid step, a decade; use --sampler qmc, or give values such as A,B"
    )
    assert message(Design, {"opt.momentum": LogUniform(0.5, 0.9)}, "grid") == (
        "--opt.momentum 0.5:0.9: narrower than a grid step, half a decade; use --sampler qmc, or give values such as"
        " A,B"
    )
    Design({"opt.momentum": LogUniform(0.5, 0.9), "opt.lr": LR}, "qmc")
    for low, high in ((1e-3, 3.162e-3), (3.162e-3, 1e-2)):
        assert low <= rates(Design({"opt.lr": LogUniform(low, high)}, "grid"), 1)[0] <= high


# -- a sequence -----------------------------------------------------------------------------------------------------

TWO = {"opt.lr": LogUniform(1e-4, 1e0), "opt.momentum": (0.0, 0.9, 0.99)}


def test_a_sequence_fills_the_box():
    wanted = Design({"opt.lr": LogUniform(1e-4, 1e0)}, "qmc").wanted(7)
    assert [each.point["opt.lr"] for each in wanted] == [0.01, 0.001, 0.1, 0.0003162, 0.03162, 0.003162, 0.3162]
    wanted = Design(TWO, "qmc").wanted(6)
    assert [tuple(each.point.values()) for each in wanted] == [
        (0.01, 0.9),
        (0.001, 0.99),
        (0.1, 0.0),
        (0.0003162, 0.9),
        (0.03162, 0.99),
        (0.003162, 0.0),
    ]
    assert {each.kind for each in wanted} == {"design"}


@pytest.mark.parametrize(("low", "high"), [(0.99991, 0.999999), (0.50001, 0.50003)])
def test_rounding_does_not_lead_out_of_a_range(low, high):
    (value,) = rates(Design({"opt.lr": LogUniform(low, high)}, "qmc"), 1)
    assert value in (low, high)


@pytest.mark.parametrize("parts", [2, 3, 5, 7])
def test_a_sequence_takes_equal_parts_of_values(parts):
    names = [f"opt.{name}" for name in "abcd"]
    design = Design(
        {name: tuple(range(parts)) if i == [2, 3, 5, 7].index(parts) else LR for i, name in enumerate(names)}, "qmc"
    )
    taken = [next(v for v in each.point.values() if isinstance(v, int)) for each in design.wanted(5 * parts - 1)]
    assert sorted(taken.count(v) for v in range(parts)) == [4, *[5] * (parts - 1)]  # the origin is left out


def test_a_sequence_does_not_grow_and_is_topped_up_with_its_next_points():
    design = Design(TWO, "qmc")
    order, _ = simulate(design, lambda p: None, 6, total=9)
    assert [each.kind for each in order] == ["design"] * 6 + ["top-up"] * 3
    assert [each.point for each in order] == [each.point for each in design.wanted(9)]


def test_equal_points_are_tried_once():
    design = Design({"opt.a": (1, 2), "opt.b": (True, False), "opt.c": ("x", "y", "z")}, "qmc")
    points = [each.point for each in design.wanted(12)]
    assert {tuple(p.values()) for p in points} == set(itertools.product((1, 2), (True, False), ("x", "y", "z")))
    assert message(design.wanted, 13) == ("--trials 13: there are only 12 settings; request no more, or widen a range")
    assert "--trials 20: there are only 12" in message(design.wanted, 5, 20)
    narrow = Design({"opt.lr": LogUniform(1.0, 1.002)}, "qmc")
    assert sorted(rates(narrow, 3)) == [1.0, 1.001, 1.002]
    assert "only 3 settings" in message(narrow.wanted, 4)


@pytest.mark.parametrize("trials", [0, -1])
def test_a_sequence_has_points(trials):
    assert message(Design(TWO, "qmc").wanted, trials) == f"--trials {trials}: at least one setting is needed"


@often
@given(st.floats(1e-8, 1e8), st.floats(1.5, 1e8), st.integers(1, 40))
def test_a_sequence_stays_in_its_range_with_four_digits(low, factor, trials):
    space = LogUniform(low, low * factor)
    for value in rates(Design({"opt.lr": space}, "qmc"), trials):
        assert space.low <= value <= space.high
        assert value in (float(f"{value:.4g}"), space.low, space.high)


# -- designs of any kind --------------------------------------------------------------------------------------------

values = st.sampled_from([(0.0, 0.9), (1, 2, 3), (True, False), ("a",), (0.5, math.inf, 0.1), ("task", 0.0)])
decades = st.tuples(st.integers(-12, 6), st.integers(1, 12)).map(
    lambda ends: LogUniform(10 ** (ends[0] / 2), 10 ** (sum(ends) / 2))
)


@st.composite
def designs(draw) -> tuple[Design, int, int]:
    """A design, the number of trials in one of its steps, and the largest possible number."""
    sampler = draw(st.sampled_from(["grid", "qmc"]))
    axes = draw(st.lists(values, max_size=2))
    at = draw(st.integers(0, len(axes)))
    axes[at:at] = [draw(decades)]
    if draw(st.booleans()):
        axes.append(draw(decades.filter(lambda axis: axis.high > 9 * axis.low)))
    space = {f"opt.{'abcd'[i]}": axis for i, axis in enumerate(axes)}
    step = math.prod(len(axis) for axis in axes if isinstance(axis, tuple)) if sampler == "grid" else 1
    return Design(space, sampler), step, 6 * step if sampler == "grid" else 14


def scores_of(design: Design, data) -> dict:
    """A score for each point, drawn when it is first needed, with ties and None."""
    found: dict[str, float | None] = {}
    some = st.none() | st.sampled_from([1e-20, 1e-18, 0.1, 0.2, 0.3]) | st.floats(-5, 5)
    weight = data.draw(st.sampled_from([-1.0, 0.0, 1.0]))  # a slope leads to an edge

    def score(point):
        key = point_key(point)
        if key not in found:
            value = data.draw(some)
            slope = weight * math.log10(point[design.main])
            found[key] = value if value is None else value + slope
        return found[key]

    return score


@often
@given(designs(), st.data())
def test_a_smaller_design_is_the_beginning_of_a_larger_one(drawn, data):
    design, step, most = drawn
    whole = [each.point for each in design.wanted(most)]
    assert len(whole) == most
    assert len({point_key(point) for point in whole}) == most
    for trials in range(step, most, step):
        assert [each.point for each in design.wanted(trials, 0, Scores({}, "max", 0.0))] == whole[:trials]


@pytest.mark.deep
@often
@given(designs(), st.data(), st.sampled_from(["min", "max"]), st.sampled_from([ALL, CONVERGED]))
def test_a_tuning_ends_without_trying_anything_twice(drawn, data, mode, least):
    design, step, most = drawn
    trials = data.draw(st.integers(1, most // step)) * step
    total = data.draw(st.integers(0, 2 * most))
    order, known = simulate(design, scores_of(design, data), trials, total, mode, least)
    assert len(known) == len(order)
    assert len(order) >= max(trials, total)
    assert [each.kind for each in order[:trials]] == ["design"] * trials
    assert "design" not in {each.kind for each in order[trials:]}
    grown = [each for each in order if each.kind == "extension"]
    assert len(grown) <= EXTENSION_LIMIT * step
    assert len(grown) % step == 0
    assert all(each.point.keys() == design.space.keys() and list(each.point) == list(design.space) for each in order)
    if design.sampler == "qmc":
        assert not grown
        assert len(order) == max(trials, total)


@pytest.mark.deep
@often
@given(designs(), st.data(), st.sampled_from(["min", "max"]))
def test_a_score_that_comes_to_be_known_only_appends_points(drawn, data, mode):
    design, step, most = drawn
    trials = data.draw(st.integers(1, most // step)) * step
    total = data.draw(st.integers(0, most))
    order, known = simulate(design, scores_of(design, data), trials, total, mode)
    order_of_ends = data.draw(st.permutations(list(known)))  # workers finish in any order
    told: dict[str, float | None] = {point_key({"opt.z": 1}): -1e9}  # a point of another design
    before = design.wanted(trials, total, Scores(told, mode))
    for key in order_of_ends:
        told[key] = known[key]
        after = design.wanted(trials, total, Scores(told, mode))
        assert after[: len(before)] == before
        assert after == design.wanted(trials, total, Scores(dict(reversed(told.items())), mode))
        before = after
    assert before == order


class Replay(NamedTuple):
    """What a study shows of a smaller budget: its best point, the tried points, and those without a known score."""

    best: Point | None
    scored: list[Wanted]
    missing: list[Point]


def replay(design: Design, trials: int, total: int, scores: Scores) -> Replay:
    wanted = design.wanted(trials, total, scores)
    scored = [each for each in wanted if each.key in scores.by_key]
    missing = [each.point for each in wanted if each.key not in scores.by_key]
    return Replay(design.best([each.point for each in scored], scores), scored, missing)


@pytest.mark.deep
@often
@given(designs(), st.data(), st.sampled_from(["min", "max"]), st.sampled_from([ALL, CONVERGED]))
def test_a_replay_equals_a_study_of_that_budget(drawn, data, mode, least):
    design, step, most = drawn
    score = scores_of(design, data)
    order, known = simulate(design, score, most, 0, mode, least)
    for trials in range(step, most + 1, step):
        found = replay(design, trials, 0, Scores(known, mode, least))
        real, scores = simulate(design, score, trials, 0, mode, least)
        if found.missing:  # the smaller one grew beyond the points of the larger one
            keys = [point_key(point) for point in found.missing]
            assert not set(keys) & known.keys()
            assert [each for each in real if each.key in known][: len(found.scored)] == found.scored
            assert keys[0] in scores
            found = replay(design, trials, 0, Scores(known | scores, mode, least))
        assert found.scored == real
        assert found.missing == []
        assert found.best == design.best([each.point for each in real], Scores(scores, mode, least))
        assert (found.best is None) == all(value is None for value in scores.values())
        if found.best is not None:
            values = [max(v, least) for v in scores.values() if v is not None]
            assert max(scores[point_key(found.best)], least) == (min(values) if mode == "min" else max(values))
    assert [each.point for each in replay(design, most, 0, Scores(known, mode, least)).scored] == [
        each.point for each in order
    ]


def test_a_replay_counts_missing_points():
    _, known = simulate(GRID1, valley(0.1), 5)
    assert replay(GRID1, 3, 0, Scores(known)) == Replay({"opt.lr": 0.1}, GRID1.wanted(3), [])
    more = replay(GRID1, 7, 0, Scores(known))
    assert (len(more.scored), more.missing) == (5, [{"opt.lr": 0.003162}, {"opt.lr": 3.162}])
    assert replay(GRID1, 1, 0, Scores()) == Replay(None, [], [{"opt.lr": 0.1}])
    assert replay(GRID1, 1, 0, Scores(dict.fromkeys(known))).best is None
    with pytest.raises(UserError, match="--trials 0: "):
        replay(GRID1, 0, 0, Scores(known))


def test_a_replay_grows_as_the_tuning_would_have():
    _, known = simulate(GRID1, valley(10.0), 9)
    best, scored, missing = replay(GRID1, 3, 0, Scores(known))
    assert (best, missing) == ({"opt.lr": 10.0}, [])
    assert [(each.point["opt.lr"], each.kind) for each in scored[3:]] == [
        (1.0, "extension"),
        (3.162, "extension"),
        (10.0, "extension"),
        (31.62, "extension"),
    ]
    assert replay(GRID1, 3, 8, Scores(known)).missing == []
    assert replay(GRID1, 3, 8, Scores(known)).scored[-1] == Wanted({"opt.lr": 0.01}, "top-up")


# -- the best, its edge and its neighbours --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("space", "main"),
    [
        ({"opt.a": (1, 2), "opt.lr": LR}, "opt.lr"),
        ({"opt.n": (True, False), "opt.a": (2, 1), "opt.b": (1, 2)}, "opt.a"),
        ({"opt.n": (True, False), "opt.f": ("task", 0.0)}, None),
    ],
)
def test_the_main_axis(space, main):
    assert Design(space, "grid").main == main


@pytest.mark.deep
@often
@given(designs(), st.data())
def test_the_best_does_not_depend_on_the_order_of_points(drawn, data):
    design, _, most = drawn
    points = [each.point for each in design.wanted(most)]
    scores = {point_key(point): data.draw(st.sampled_from([None, 1.0, 2.0])) for point in points}
    best = design.best(points, Scores(scores))
    assert design.best(data.draw(st.permutations(points)), Scores(scores)) == best
    assert len(set(map(design.position, points))) == most


@pytest.mark.parametrize(
    ("best", "edge"), [(1e-3, True), (10.0, True), (3.162e-3, False), (0.1, False), (3.162, False)]
)
def test_the_edge_of_a_grid(best: float, edge: bool):
    points = [each.point for each in GRID1.wanted(9)]
    assert edges_of(["opt.lr"], points, {"opt.lr": best}) == ["lr"] * edge


def test_the_edge_is_that_of_the_tried_values():
    order, known = simulate(GRID1, valley(1e-4), 5)
    points = [each.point for each in order]
    assert not edges_of(["opt.lr"], points, {"opt.lr": 1e-4})
    order, known = simulate(GRID1, lambda p: p["opt.lr"], 5)  # it grew to its limit
    points = [each.point for each in order]
    best = GRID1.best(points, Scores(known))
    assert best is not None
    assert edges_of(["opt.lr"], points, best) == ["lr"]


def test_the_edge_among_values_and_words():
    design = Design({"opt.n": (True, False), "opt.lr": (1.0, 0.1, 10.0)}, "grid")
    points = [each.point for each in design.wanted(6)]
    edges = [edges_of(design.space, points, point) for point in points]
    assert edges == [[] if point["opt.lr"] == 1.0 else ["lr"] for point in points]
    assert not edges_of(["opt.c"], [{"opt.c": 1}, {"opt.c": 2}], {"opt.c": 1})  # two values are no range


def test_torch_and_optuna_are_not_imported():
    code = (
        "import bench.tuning.design, bench.tuning.space, bench.results.selection, sys;"
        " print({'torch', 'optuna', 'scipy'} & sys.modules.keys())"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
