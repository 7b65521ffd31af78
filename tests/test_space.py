"""Search spaces and designs: parsing, the points to try next, when a grid grows, and replay of smaller budgets."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.config.values import log_grid
from bench.errors import UserError
from bench.store.reports import StudyRecord
from bench.text import CONVERGED
from bench.tuning.design import EXTENSION_LIMIT, Design, Scores, Trial, point_key
from bench.tuning.spec import read_space, trials_of
from optimizers import OPTIMIZERS, LogUniform

LR = LogUniform(1e-3, 1e1)
ALL = -math.inf
often = settings(max_examples=200, deadline=None, derandomize=True, database=None)


# -- words ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("opt", "words", "space", "fixed"),
    [
        ("sgdm", {}, {"opt.lr": LR, "opt.momentum": (0.7, 0.9, 0.97)}, {}),
        ("adamw", {"opt.lr": "1e-4:1e-1"},
         {"opt.lr": LogUniform(1e-4, 1e-1), "opt.weight_decay": LogUniform(1e-3, 1e-1)}, {}),  # lr stays the first
        ("muon", {"opt.lr": "0.1"}, {"opt.rest.lr": LogUniform(1e-4, 1e-2)}, {"opt.lr": "0.1"}),
        ("muon", {"opt.rest": "sgd"}, {"opt.lr": LogUniform(1e-3, 1.0)}, {"opt.rest": "sgd"}),  # with its own lr
        ("sgd", {"opt.lr": "1e-2:1:3"}, {"opt.lr": (0.01, 0.1, 1.0)}, {}),
        ("sgd", {"opt.lr": "0.5, 1e-1, 0.5,"}, {"opt.lr": (0.5, 0.1)}, {}),
        ("sgd", {"opt.momentum": "0,0.9", "opt.lr": 0.1}, {"opt.momentum": (0.0, 0.9)}, {"opt.lr": 0.1}),
        ("sgd", {"opt.nesterov": "true,false", "opt.momentum": "0.9,"},
         {"opt.lr": LR, "opt.nesterov": (True, False)}, {"opt.momentum": "0.9"}),
        ("adam", {"opt.betas": "0.8,0.99"}, {"opt.lr": LogUniform(1e-5, 1e-1)}, {"opt.betas": "0.8,0.99"}),
        ("sngd", {"opt.max_step": "1,inf"}, {"opt.lr": LogUniform(1e-4, 1.0), "opt.max_step": (1.0, math.inf)}, {}),
        ("sps", {"opt.f_star": "task,0", "opt.c": "1"},
         {"opt.max_step": LogUniform(1e-2, 1e1), "opt.f_star": ("task", 0.0)}, {"opt.c": "1"}),
        ("ngd", {"task": "synthetic", "task.n": "20", "store": "a:b,c"},
         {"opt.lr": LR}, {"task": "synthetic", "task.n": "20", "store": "a:b,c"}),
    ],
)  # fmt: skip
def test_searched_and_fixed_settings(opt: str, words: dict, space: dict, fixed: dict) -> None:
    searched, rest = read_space(words, opt)
    assert list(map(repr, searched.items())) == list(map(repr, space.items()))  # with order and types
    assert rest == fixed


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_is_tuned_with_nine_trials_by_default(name: str) -> None:
    space, fixed = read_space({}, name)
    assert (list(space), fixed) == ([f"opt.{key}" for key in OPTIMIZERS[name].search], {})
    assert trials_of(Design(space, "grid"), None) == 9


@pytest.mark.parametrize(
    ("opt", "words", "error"),
    [
        *(("ngd", {"opt.lr": word}, f"--opt.lr {word}: a range is LOW:HIGH or LOW:HIGH:POINTS with 0 < LOW < HIGH, ")
          for word in ("1:0.1", "0:1", "a:1", ":", "nan:1", "0.1,1:2", "1:0.1:3", "1:2:1", "1:2:x")),
        ("ngd", {"opt.lr": "0.1,fast"}, "--opt.lr 'fast': it takes a number"),
        ("sgd", {"opt.nesterov": "1:2"},
         "--opt.nesterov 1:2: it takes true or false, which has no range; give values such as A,B"),
        ("ngd", {"opt.lrr": "1e-3:1"}, "unknown option '--opt.lrr'; did you mean '--opt.lr'?"),
        ("sps", {"opt.max_step": 1, "opt.c": "0.5"}, "no setting of sps is left to tune: give a range"),
        ("ngd", {"task": "synthetic", "task.n": "10,20"},
         "--task.n 10,20: only hyperparameters (--opt.NAME) are tuned; give one value"),
    ],
)  # fmt: skip
def test_words_that_are_refused(opt: str, words: dict, error: str) -> None:
    with pytest.raises(UserError) as raised:
        read_space(words, opt)
    assert str(raised.value).startswith(error)


def test_equal_points_have_one_key() -> None:
    assert point_key({"opt.lr": 1, "opt.c": 0.5}) == point_key({"opt.c": 0.5, "opt.lr": 1.0})
    assert point_key({"opt.lr": -0.0}) == point_key({"opt.lr": 0})
    assert len({point_key({"x": x}) for x in (0.1, 1, True, "1", "true", None, math.inf, "inf", 0.1 + 2e-17)}) == 9


# -- a grid ---------------------------------------------------------------------------------------------------------

GRID1 = Design({"opt.lr": LR}, "grid")
TWO_RANGES = Design({"opt.lr": LogUniform(1e-4, 1.0), "opt.c": LogUniform(0.1, 100.0)}, "grid")


def rates(design: Design, trials: int) -> list[float]:
    return [wanted.point["opt.lr"] for wanted in design.wanted(trials)]


def simulate(design: Design, score, trials: int, total=0, mode="min", least=ALL):
    """Tune: take points one by one, in the order in which the design wants them."""
    known: dict[str, float | None] = {}
    order: list[Trial] = []
    while True:
        wanted = design.wanted(trials, total, Scores(known, mode, least))
        assert wanted[: len(order)] == order  # tried points stay, in their order
        new = [candidate for candidate in wanted if candidate.key not in known]
        if not new:
            assert len(wanted) == len(order)
            return order, known
        order.append(new[0])
        known[new[0].key] = score(new[0].point)


def valley(best: float):
    """Losses with a minimum at this learning rate."""
    return lambda point: abs(math.log10(point["opt.lr"] / best))


def test_a_grid_is_of_half_decades_from_the_middle_outwards() -> None:
    assert rates(GRID1, 9) == [0.1, 0.03162, 0.3162, 0.01, 1.0, 0.003162, 3.162, 0.001, 10.0]
    assert sorted(rates(GRID1, 9)) == log_grid(1e-3, 1e1, 9)
    middles = {(1e-2, 1e1): 0.3162, (1e-3, 10**-0.5): 0.01, (1.0, 10**0.5): 1.0, (1e-100, 1e100): 1.0}
    assert {ends: rates(Design({"opt.lr": LogUniform(*ends)}, "grid"), 1)[0] for ends in middles} == middles


def test_other_values_vary_fastest() -> None:
    space = {"opt.nesterov": (True, False), "opt.lr": LR, "opt.momentum": (0.0, 0.9)}
    points = [tuple(wanted.point.values()) for wanted in Design(space, "grid").wanted(8)]
    assert points[:3] == [(True, 0.1, 0.0), (True, 0.1, 0.9), (False, 0.1, 0.0)]
    assert points[4] == (True, 0.03162, 0.0)


@pytest.mark.parametrize(
    ("score", "trials", "options", "more"),
    [
        (valley(1e-4), 5, {}, {"extension": [0.003162, 0.001, 0.0003162, 0.0001, 3.162e-05, 1e-05]}),
        (lambda p: -valley(3.162)(p), 5, {"mode": "max"}, {"extension": [3.162, 10.0]}),
        (valley(0.1), 5, {}, {}),
        (lambda p: None, 1, {}, {}),
        (lambda p: p["opt.lr"] if p["opt.lr"] < 0.005 else None, 3, {}, {"extension": [
            0.01, 0.003162, 0.001, 0.0003162, 0.0001, 3.162e-05, 1e-05, 3.162e-06]}),
        (lambda p: 1e-20 if p["opt.lr"] > 0.002 else 1, 5, {"least": CONVERGED}, {"extension": [0.003162, 0.001]}),
        (valley(0.1), 5, {"total": 8}, {"top-up": [0.003162, 3.162, 0.001]}),
        (valley(3.162), 5, {"total": 8}, {"extension": [3.162, 10.0], "top-up": [0.003162]}),
        (lambda p: 0.5 if p["opt.lr"] > 5 else valley(0.1)(p) + 1, 5, {"total": 9},
         {"top-up": [0.003162, 3.162, 0.001, 10.0], "extension": [31.62, 100.0]}),
    ],
)  # fmt: skip
def test_a_grid_grows_where_its_best_is_at_an_edge(score: Any, trials: int, options: Any, more: dict) -> None:
    order, _ = simulate(GRID1, score, trials, **options)
    added = {kind: [w.point["opt.lr"] for w in order if w.kind == kind] for kind in ("extension", "top-up")}
    assert {kind: values for kind, values in added.items() if values} == more


def test_refinement_adds_the_neighbours_of_the_best_at_half_and_a_quarter_of_the_spacing() -> None:
    def bowl(point: Any) -> float:
        return valley(0.05)(point) + math.log10(point["opt.c"] / 3) ** 2

    order, _ = simulate(Design({"opt.lr": LR}, "refine"), valley(0.05), 9, total=14)
    near = [trial.point["opt.lr"] for trial in order[9:]]
    assert (near[:4], {trial.kind for trial in order[9:13]}) == ([0.01778, 0.05623, 0.04217, 0.07499], {"refinement"})
    assert order[13].kind == "top-up"
    two = Design(TWO_RANGES.space, "refine")
    order, known = simulate(two, bowl, 9)
    assert [trial.kind for trial in order].count("refinement") == 8
    assert two.best([trial.point for trial in order], Scores(known)) == {"opt.lr": 0.04217, "opt.c": 3.162}
    tied = Design({"opt.lr": (1.0, 0.1), "opt.c": LR}, "refine").best
    points = [{"opt.lr": lr, "opt.c": c} for lr in (1.0, 0.1) for c in (1.0, 10.0)]
    assert tied(points, Scores(dict.fromkeys(map(point_key, points), 1.0))) == {"opt.lr": 0.1, "opt.c": 1.0}
    assert simulate(Design({"opt.lr": LR}, "refine"), lambda p: None, 1) == simulate(GRID1, lambda p: None, 1)


def test_a_grid_that_was_topped_up_is_not_refined() -> None:
    design = Design({"opt.lr": LR}, "refine")
    order, _ = simulate(design, lambda p: p["opt.lr"] if p["opt.lr"] > 1 else None, 3, 20)
    assert [trial.kind for trial in order] == ["design"] * 3 + ["extension"] * 8 + ["top-up"] * 9


def test_a_grid_grows_only_so_far() -> None:
    pairs = Design({"opt.lr": LR, "opt.momentum": (0.0, 0.9)}, "grid")
    for design, trials in ((GRID1, 1), (GRID1, 5), (pairs, 2), (pairs, 4)):
        for sign in (1, -1):
            order, _ = simulate(design, lambda p, sign=sign: sign * p["opt.lr"], trials)
            assert len(order) == trials + EXTENSION_LIMIT * (design.combinations if trials > design.combinations else 0)


def test_a_grid_of_two_ranges_goes_outwards_and_grows_beside_its_best() -> None:
    def bowl(point: Any) -> float:
        return math.log10(point["opt.lr"] / 0.1) ** 2 + math.log10(point["opt.c"] / 10) ** 2

    order, known = simulate(TWO_RANGES, bowl, 9)
    assert [tuple(wanted.point.values()) for wanted in order[:9]] == [
        (0.01, 1.0), (0.003162, 1.0), (0.03162, 1.0), (0.001, 1.0), (0.1, 1.0), (0.01, 0.1), (0.01, 10.0),
        (0.003162, 0.1), (0.003162, 10.0),
    ]  # fmt: skip
    assert TWO_RANGES.best([w.point for w in order], Scores(known)) == {"opt.lr": 0.1, "opt.c": 10.0}
    assert 0 < len(order[9:]) <= EXTENSION_LIMIT
    diverged, _ = simulate(TWO_RANGES, lambda p: 1.0 if p["opt.lr"] < 0.0005 else None, 9)
    assert [wanted.point["opt.lr"] for wanted in diverged[9:11]] == [0.0003162, 0.0001]


@pytest.mark.parametrize(
    ("space", "trials", "total", "error"),
    [
        ({"opt.lr": LR, "opt.c": (1, 2, 3)}, 10, 0, "--trials 10: it must be a multiple of 3, since each value of"),
        ({"opt.lr": (1, 2), "opt.c": (1, 2)}, 9, 0, "--trials 9: these values make 4 settings: write --trials 4, or"),
        ({"opt.lr": LR, "opt.c": (1, 2)}, 2, 1001, "--trials 1001: a grid has at most 1000 points here"),
    ],
)
def test_grids_that_are_refused(space: dict, trials: int, total: int, error: str) -> None:
    with pytest.raises(UserError) as raised:
        Design(space, "grid").wanted(trials, total)
    assert str(raised.value).startswith(error)


# -- a sequence -----------------------------------------------------------------------------------------------------


def test_a_sequence_fills_the_box() -> None:
    assert rates(Design({"opt.lr": LogUniform(1e-4, 1e0)}, "qmc"), 5) == [0.01, 0.001, 0.1, 0.0003162, 0.03162]
    design = Design({"opt.lr": LogUniform(1e-4, 1e0), "opt.momentum": (0.0, 0.9, 0.99)}, "qmc")
    points = [(0.01, 0.9), (0.001, 0.99), (0.1, 0.0), (0.0003162, 0.9), (0.03162, 0.99), (0.003162, 0.0)]
    assert [tuple(wanted.point.values()) for wanted in design.wanted(6)] == points
    assert [wanted.kind for wanted in design.wanted(4, 6)] == ["design"] * 4 + ["top-up"] * 2


@often
@given(st.floats(1e-8, 1e8), st.floats(1.5, 1e8), st.integers(1, 40))
def test_a_sequence_stays_in_its_range_with_four_digits(low: float, factor: float, trials: int) -> None:
    space = LogUniform(low, low * factor)
    for value in rates(Design({"opt.lr": space}, "qmc"), trials):
        assert space.low <= value <= space.high
        assert value in (float(f"{value:.4g}"), space.low, space.high)


# -- designs of any kind --------------------------------------------------------------------------------------------

lists = st.lists(st.sampled_from([(0.0, 0.9), (1, 2, 3), (True, False), ("a",), ("task", 0.0)]), max_size=2)
decades = st.tuples(st.integers(-12, 6), st.integers(1, 12)).map(
    lambda ends: LogUniform(10 ** (ends[0] / 2), 10 ** (sum(ends) / 2))
)


@pytest.mark.deep
@often
@given(
    st.sampled_from(["grid", "qmc"]), lists, st.lists(decades, min_size=1, max_size=2),
    st.randoms(use_true_random=False), st.sampled_from(["min", "max"]), st.sampled_from([ALL, CONVERGED]),
)  # fmt: skip
def test_tuning_ends_and_smaller_budgets_are_prefixes(sampler, lists, ranges, draw, mode, least) -> None:
    design = Design({f"opt.{i}": axis for i, axis in enumerate([*lists[:1], *ranges, *lists[1:]])}, sampler)
    trials, total = draw.randint(1, 6) * design.step, draw.randint(0, 12 * design.step)
    weight = draw.choice([-1.0, 0.0, 1.0])  # a slope leads to an edge

    def score(point) -> float | None:
        value = draw.choice([None, 1e-20, 0.1, 0.2, draw.uniform(-5, 5)])
        return value and value + weight * math.log10(point[next(iter(design.ranges))])

    order, known = simulate(design, score, trials, total, mode, least)
    assert len(known) == len(order) >= max(trials, total)  # nothing twice
    assert [wanted.kind for wanted in order[:trials]] == ["design"] * trials
    assert [wanted.kind for wanted in order].count("extension") <= EXTENSION_LIMIT * design.step
    points = [wanted.point for wanted in order]
    assert [wanted.point for wanted in design.wanted(trials + design.step)][:trials] == points[:trials]
    best = design.best(points, Scores(known, mode, least))
    assert best == design.best(draw.sample(points, len(points)), Scores(known, mode, least))
    finite = [max(value, least) for value in known.values() if value is not None]
    assert (best is None) == (not finite)
    if best is not None:
        assert max(known[point_key(best)] or 0.0, least) == (min(finite) if mode == "min" else max(finite))


def edges_of(axes: list[str], points, best) -> list[str]:
    about = {"kind": "design", "state": "completed", "score": 1.0}
    trials: Any = [{"point": point, "runs": [str(i)], **about} for i, point in enumerate(points)]
    return StudyRecord("s", "t", "o", [0], axes, "min", "grid", trials, str(points.index(best)), False).edges


def test_the_edge_is_that_of_the_tried_numbers() -> None:
    grown = [wanted.point for wanted in simulate(GRID1, valley(1e-4), 5)[0]]
    assert edges_of(["opt.lr"], grown, {"opt.lr": 1e-4}) == []
    assert edges_of(["opt.lr"], grown, {"opt.lr": 1e-5}) == ["lr"]
    points = [wanted.point for wanted in Design({"opt.n": (True, False), "opt.lr": (1.0, 0.1, 10.0)}, "grid").wanted(6)]
    assert [edges_of(["opt.n", "opt.lr"], points, point) for point in points[:3]] == [[], ["lr"], ["lr"]]
    assert not edges_of(["opt.c"], [{"opt.c": 1}, {"opt.c": 2}], {"opt.c": 1})  # two values are no range
