"""The parts of a sweep: words, seeds and blocks."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.config.run_config import RunConfig, resolve
from bench.config.values import DEFAULT_POINTS, log_grid, read_seeds
from bench.errors import UserError
from bench.execute.blocks import block_key, rectangles
from bench.sweeps.grid import configurations
from optimizers import OPTIMIZERS

PLACES = {"data": "data", "store": "runs", "device": "cpu"}


def grid(seeds: str = "1", **words: Any) -> list[RunConfig]:
    return configurations(dotted(words), read_seeds(seeds), PLACES)[0]


def varied(**words: Any) -> list[str]:
    return configurations(dotted(words), [0], PLACES)[1]


def dotted(words: dict[str, Any]) -> dict[str, Any]:
    return {"task": "synthetic", "opt": "ngd"} | {key.replace("__", "."): value for key, value in words.items()}


def refused(seeds: str = "1", **words: Any) -> str:
    with pytest.raises(UserError) as error:
        grid(seeds, **words)
    assert error.value.exit_code == 2
    assert "\n" not in str(error.value)
    return str(error.value)


def rates(configs: list[RunConfig]) -> list[float]:
    return [config.opt_options["lr"] for config in configs]


# -- values ---------------------------------------------------------------------------------------------------------


def test_a_grid_is_even_in_the_logarithm_and_can_be_typed_again():
    assert rates(grid(opt__lr="1e-3:1e1:5")) == [0.001, 0.01, 0.1, 1.0, 10.0]
    assert rates(grid(opt__lr="1:2:2")) == [1.0, 2.0]
    assert log_grid(1e-3, 1e1, 16) == [
        0.001, 0.001848, 0.003415, 0.00631, 0.01166, 0.02154, 0.03981, 0.07356,
        0.1359, 0.2512, 0.4642, 0.8577, 1.585, 2.929, 5.412, 10.0,
    ]  # fmt: skip


TOO_MANY = "runs; a command makes from 1 to 100,000, so request fewer values, seeds or trials"


@pytest.mark.parametrize(
    ("seeds", "words", "message"),
    [
        ("50001", {"opt__lr": "1,2"}, f"this sweep: 100,002 {TOO_MANY}"),
        ("1", {"opt__lr": "1e-3:1:999999999"}, f"--opt.lr 1e-3:1:999999999: 999,999,999 {TOO_MANY}"),
        ("6000", {"opt": "ngd,gd"}, f"this sweep: 108,000 {TOO_MANY}"),
    ],
)
def test_more_runs_than_can_be_meant_are_counted_and_not_made(seeds, words, message, monkeypatch):
    monkeypatch.setattr("bench.sweeps.grid.resolve", None)  # which builds a run
    assert message in refused(seeds, **words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"opt.lr": "0.1,fast"}, "--opt.lr 'fast': it takes a number"),
        ({"task.n": "10:1000:4"}, "--task.n 46.42: it takes a whole number"),
        ({"trainer.max_steps": "10,0"}, "--trainer.max_steps '0': it must be greater than or equal to 1"),
        ({"data_seed": "1,2"}, "--data_seed '1,2': it "),
        ({"opt": ","}, "--opt is missing: name one or more optimizers, such as --opt ngd,adam"),
        ({"task": ""}, "--task is missing; see `bench list tasks`"),
        ({"opt": "ngd,adm"}, "unknown optimizer 'adm'; did you mean 'adam'?"),
        ({"opt.ngd.lrr": "0.1,1"}, "unknown option '--opt.lrr'; did you mean '--opt.lr'?"),
        ({"opt.lr": ","}, "--opt.lr ,: the list is empty"),
        ({"opt.lr": "0.1,,1"}, "--opt.lr 0.1,,1: there is no value between two commas"),
        ({"opt": "ngd,adam", "opt.adm.lr": "1"}, "unknown optimizer or role of --opt 'adm'; did you mean 'adam'?"),
        ({"opt": "ngd,adam", "opt.betas": "0.9,0.99"}, "unknown option '--opt.betas'"),
        ({"seed": "3"}, "--seed 3: a sweep has several; write --seeds 3,... or --seeds COUNT"),
    ],
)
def test_words_that_are_refused(words, message):
    assert message in refused(**words)


# -- optimizers -----------------------------------------------------------------------------------------------------


def test_an_option_may_be_for_one_optimizer_alone():
    configs = grid(opt="ngd, adam", opt__lr="0.1,1", opt__adam__lr="1e-3,1e-2,1e-1", opt__adam__betas="0.8,0.9")
    assert [c.opt for c in configs] == ["ngd"] * 2 + ["adam"] * 3
    assert rates(configs) == [0.1, 1.0, 0.001, 0.01, 0.1]
    assert {c.opt_options["betas"] for c in configs if c.opt == "adam"} == {(0.8, 0.9)}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_without_varied_settings_is_searched_over_its_range(name):
    configs = grid(opt=name)
    option, span = next(iter(OPTIMIZERS[name].search.items()))  # tuning has more ranges, a sweep only one
    assert [c.opt_options[option] for c in configs] == log_grid(span.low, span.high, DEFAULT_POINTS)
    assert (configs[0].opt_options[option], configs[-1].opt_options[option]) == (span.low, span.high)
    assert varied(opt=name) == [f"opt.{option}"]


def test_given_settings_are_not_searched():
    assert rates(grid(opt__lr="0.5")) == [0.5]
    assert rates(grid(opt__lr="0.5", task__sigma="0.2,0.4")) == [0.5, 0.5]
    assert len(grid(task__sigma="0.2,0.4")) == 2 * DEFAULT_POINTS
    assert rates(grid(opt="sgd", opt__momentum="0,0.9")) == [0.1, 0.1]  # its default
    configs = grid(opt="ngd,adam", opt__ngd__lr="0.5")
    assert [c.opt for c in configs] == ["ngd"] + ["adam"] * DEFAULT_POINTS


@pytest.mark.parametrize("key", ["opt.my-opt.py:Mine.lr", "opt.my_opt.py:Mine.lr", "opt.Mine.lr"])
def test_a_plug_in_has_values_of_its_own(key, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("my-opt.py").write_text("from torch.optim import SGD\n\nclass Mine(SGD):\n    pass\n")
    words = {"opt": "my-opt.py:Mine,adam", "task": "synthetic", "opt.lr": "0.5"}
    configs = configurations(words | {key.replace("my-opt", "my_opt"): "0.1,0.2"}, [0], PLACES)[0]
    assert [config.opt for config in configs] == ["my-opt.py:Mine", "my-opt.py:Mine", "adam"]
    assert rates(configs) == [0.1, 0.2, 0.5]


# -- seeds ----------------------------------------------------------------------------------------------------------


def test_the_order_of_samples_follows_the_seed_unless_given():
    assert [(c.seed, c.data_seed) for c in grid("3", opt__lr="1")] == [(0, 0), (1, 1), (2, 2)]
    assert [(c.seed, c.data_seed) for c in grid("3", opt__lr="1", data_seed="0")] == [(0, 0), (1, 0), (2, 0)]


# -- identity -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        {"opt.lr": "1e-3:1e1:3"},
        {"opt": "adam", "opt.betas": "0.8,0.9", "opt.lr": "0.1,1", "opt.amsgrad": True},
        {"opt": "sps", "opt.max_step": "0.1,inf", "trainer.batch_size": "5", "opt.f_star": "-0.5"},
        {"opt": "sgd", "opt.lr": "1", "task.n": "10,20", "trainer.max_epochs": "1.5,3"},
        {"opt.lr": "1", "data_seed": "3", "precision": "32-true", "trainer.val_every": "2,4"},
    ],
)
def test_the_runs_are_those_of_bench_fit(cli, words):
    for config in grid("4,2", **words):
        options = []
        for group, values in (("opt", config.opt_options), ("task", config.task_options)):
            options += [
                f"--{group}.{k}={','.join(map(str, v)) if isinstance(v, tuple) else v}" for k, v in values.items()
            ]
        options += [f"--trainer.{k}={v}" for k, v in config.trainer.model_dump().items() if v is not None]
        given = ["--task", config.task, "--opt", config.opt, "--seed", config.seed, "--precision", config.precision]
        given += ["--data_seed", config.data_seed] if "data_seed" in words else []
        answer = cli("fit", *given, *options, "--device", "cpu", "--dry-run", "--json")
        assert json.loads(answer.out)["run_id"] == config.run_id


# -- blocks ---------------------------------------------------------------------------------------------------------


BASE = resolve({"task": "synthetic", "opt": "sgd", "opt.lr": "1", "trainer.max_steps": "5", **PLACES})


@st.composite
def runs(draw) -> list[RunConfig]:
    """Problems, each with its own lanes, in any order."""
    lanes = draw(st.lists(st.integers(1, 40), min_size=1, max_size=9))
    configs = [
        BASE.model_copy(update={"seed": seed, "data_seed": seed // 2, "opt_options": {"lr": float(lane)}})
        for seed, count in enumerate(lanes)
        for lane in range(count)
    ]
    return draw(st.permutations(configs)) if len(configs) < 30 else configs


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(runs(), st.integers(1, 64))
def test_blocks_are_rectangles_that_cover_all_runs_once(configs, width):
    blocks = list(rectangles(configs, width))
    assert sorted(id(c) for block in blocks for row in block for c in row) == sorted(map(id, configs))
    for block in blocks:
        assert len({len(row) for row in block}) == 1
        assert sum(map(len, block)) <= width
        assert all(len({(config.seed, config.data_seed) for config in row}) == 1 for row in block)
        assert len({(row[0].seed, row[0].data_seed) for row in block}) == len(block)


APART = [
    {"trainer.max_steps": "5,10"},
    {"trainer.batch_size": "5,10"},
    {"opt": "adam", "opt.amsgrad": "true,false", "opt.lr": "1"},
    {"opt": "sps", "opt.f_star": "task,0", "opt.max_step": "1"},
    {"task.recipe": "sphere,equal_scores"},
    {"opt": "sgd,gd", "trainer.batch_size": "full"},
]
TOGETHER = [{"opt.lr": "0.1,1"}, {"opt": "adam", "opt.eps": "1e-8,1e-4", "opt.lr": "0.1:1:3"}]


@pytest.mark.parametrize("words", APART, ids=repr)
def test_runs_that_cannot_share_a_program(words):
    configs = grid(**{"opt": "sgd"} | words)
    assert len({block_key(config) for config in configs}) > 1


@pytest.mark.parametrize("words", TOGETHER, ids=repr)
def test_runs_that_share_a_program(words):
    configs = grid("3", **{"opt": "sgd"} | words)
    assert len(configs) > 3
    assert len({block_key(config) for config in configs}) == 1
