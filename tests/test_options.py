"""Settings: options declared by constructors, precedence of sources, and the identity of a run."""

import inspect
import json
import typing
from dataclasses import replace
from pathlib import Path
from signal import Signals
from typing import Any

import pytest

from bench.config.options import (
    STORED,
    UNSET,
    Option,
    all_optimizer_options,
    documented,
    imported_options,
    optimizer_options,
    parse_options,
    stored,
    task_options,
)
from bench.config.run_config import resolve, settings_of
from bench.errors import UserError
from bench.text import plain
from optimizers import OPTIMIZERS, TASK_VALUE, OptimizerSpec, readings
from optimizers.plugins import load
from tasks import TASKS

SYNTHETIC = {"task": "synthetic", "opt": "sngd"}


def type_in_source(kind: Any) -> str:
    """A type as Python source."""
    is_class = isinstance(kind, type) and not typing.get_args(kind)
    return kind.__name__ if is_class else str(kind).replace("typing.", "")


def options_of(target: Any, skip: int) -> dict[str, list[Any]]:
    """Type, default and help of the options of `module:Class`, imported."""
    options = imported_options(load(target), skip)
    return {name: [type_in_source(option.type), option.default, option.help] for name, option in options.items()}


def measurements_of(cls: Any) -> dict[str, str]:
    """What a task measures, from the docstrings of `measure_at`."""
    methods = [vars(base)["measure_at"] for base in cls.__mro__[::-1] if "measure_at" in vars(base)]
    return {k: v for method in methods for k, v in documented(inspect.getdoc(method), "Keys").items()}


def table() -> str:
    """What `options.json` must hold."""
    more = [spec for spec in vars(readings).values() if isinstance(spec, OptimizerSpec)]
    skipped = {spec.target: 1 for spec in [*OPTIMIZERS.built_in.values(), *more]}
    for spec in TASKS.built_in.values():
        skipped |= {spec.data: 2, spec.module: 1}
    options = {target: options_of(target, skip) for target, skip in skipped.items()}
    measurements = {s.module: measurements_of(s.module_cls) for s in TASKS.built_in.values() if s.measure_every}
    sections = {"glossary": stored("glossary"), "options": options, "measurements": measurements}
    return json.dumps(sections, indent=1) + "\n"


# -- options of constructors -----------------------------------------------------------------------------------------


def test_the_stored_options_are_those_of_the_constructors():
    assert STORED.read_text("utf-8") == table(), "write it again with `python -m tests.test_options`"


@pytest.mark.parametrize("name", [*OPTIMIZERS, *TASKS])
def test_every_option_has_a_help_text(name):
    options = optimizer_options(OPTIMIZERS[name]) if name in OPTIMIZERS else task_options(TASKS[name])
    assert [o.name for o in options.values() if not o.help] == []


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_searched_and_replaced_hyperparameters_exist(name):
    spec = OPTIMIZERS[name]
    by_family = {option for values in spec.by_family.values() for option in values}
    assert {*spec.search, *spec.defaults, *by_family} <= all_optimizer_options(spec, {}).keys()
    assert spec.by_family.keys() <= {task.family for task in TASKS.built_in.values()}
    assert all(len(axis) > 1 if isinstance(axis, tuple) else 0 < axis.low < axis.high for axis in spec.search.values())


def test_words_become_values_of_the_option_type():
    sngd, adam, mnist = (
        optimizer_options(OPTIMIZERS["sngd"]),
        optimizer_options(OPTIMIZERS["adam"]),
        task_options(TASKS["mnist"]),
    )
    assert parse_options("opt", sngd, {"lr": "1e-3", "max_step": "inf", "fused": "none"})["lr"] == 0.001
    assert parse_options("opt", adam, {"betas": "0.8,0.9"})["betas"] == (0.8, 0.9)
    assert parse_options("opt", adam, {"betas": "(0.8, 0.9)"})["betas"] == (0.8, 0.9)
    assert parse_options("opt", adam, {"betas": [0.8, 0.9]})["betas"] == (0.8, 0.9)
    other = {"inner": Option("inner", Any, UNSET, "")}
    fields = {"name": "a", "type": "b", "default": 1, "help": "c"}
    for given, value in (
        ({"inner.alpha": "1e-3", "inner.name": "x"}, {"alpha": 0.001, "name": "x"}),
        ({"inner": Signals.SIGINT}, "SIGINT"),
        ({"inner": Path}, "pathlib:Path"),
        ({"inner": Option("a", "b", 1, "c")}, fields),
    ):
        assert parse_options("opt", other, given) == {"inner": value}
    values = parse_options("task", mnist, {"flip": True, "n_train": "50", "crop": "2"})
    assert (values["flip"], values["n_train"], values["crop"]) == (True, 50, 2)
    assert parse_options("task", mnist, {"flip": "false", "n_train": "none"}) == parse_options("task", mnist, {})


@pytest.mark.parametrize(
    ("task", "name", "value", "takes"),
    [
        (False, "betas", "0.9", "float,float"),
        (False, "betas", [0.9, 0.99, 0.999], "float,float"),
        (True, "n_train", 2.5, "a whole number or none"),
    ],
)
def test_what_is_wrong_with_a_value_is_said_once_and_without_words_of_pydantic(task, name, value, takes):
    options = task_options(TASKS["mnist"]) if task else optimizer_options(OPTIMIZERS["adam"])
    with pytest.raises(UserError) as caught:
        parse_options("x", options, {name: value})
    assert str(caught.value) == f"--x.{name} {value!r}: it takes {takes}"


def test_a_file_named_tasks_py_is_not_taken_for_the_suites_own_package(tmp_path, monkeypatch):
    data = "class Data:\n    def __init__(self, root, seed, n: int = 3): ...\n"
    code = f"{data}class Net:\n    def __init__(self, data, h: int = 2): ...\n"
    (tmp_path / "tasks.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    spec = replace(TASKS["synthetic"], name="mine", data="tasks.py:Data", module="tasks.py:Net")
    assert {name: option.default for name, option in task_options(spec).items()} == {"n": 3, "h": 2}


# -- where settings come from ---------------------------------------------------------------------------------------


@pytest.fixture
def configs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "configs"
    (folder / "tuned" / "synthetic").mkdir(parents=True)
    monkeypatch.setattr("bench.config.files.configs_folder", lambda: folder)
    monkeypatch.chdir(tmp_path)  # without a `tuned` of `bench tune`
    return folder


def yaml_file(folder: Path, text: str) -> Path:
    path = folder / "run.yaml"
    path.write_text(text)
    return path


def test_flags_beat_the_config_file_beats_tuned_beats_defaults(configs):
    (configs / "tuned" / "synthetic" / "sngd.yaml").write_text(
        "opt: {lr: 2e-1, max_step: 2, momentum: 0.2}\nprovenance: {seeds: '1, 2'}\n"
    )
    file = yaml_file(configs, "task: synthetic\nopt: {name: sngd, max_step: 3, momentum: 0.3}\n")
    config = resolve({"opt.momentum": "0.4"}, config=file, tuned=True)
    assert config.opt_options == {"lr": 0.2, "max_step": 3.0, "momentum": 0.4, "weight_decay": 0.0, "fused": None}
    assert resolve({}, config=file).opt_options["lr"] == optimizer_options(OPTIMIZERS["sngd"])["lr"].default


def test_tuned_settings_never_change_task_or_optimizer(configs):
    folder = configs / "tuned" / "synthetic"
    (folder / "sngd.yaml").write_text("task: mnist\nopt: {name: sps, lr: 0.3}\n")
    config = resolve(SYNTHETIC, tuned=True)
    assert (config.task, config.opt, config.opt_options["lr"]) == ("synthetic", "sngd", 0.3)
    (folder / "sngd.yaml").rename(folder / "sps.yaml")
    with pytest.raises(UserError, match=r"sngd is not tuned on synthetic; sps is"):
        resolve(SYNTHETIC, tuned=True)


@pytest.mark.parametrize(
    "text",
    [
        "task: synthetic\nopt: sngd\nopt.lr: 1e-3\ntask.d: 8\ntrainer.max_steps: 7\n",
        "task: {name: synthetic, d: 8}\nopt: {name: sngd, lr: 0.001}\ntrainer: {max_steps: 7}\n",
        "task:\n  name: synthetic\n  d: '8'\nopt:\n  name: sngd\n  lr: 1e-3\ntrainer:\n  max_steps: 7\n",
    ],
)
def test_yaml_may_be_dotted_or_nested(tmp_path, text):
    config = resolve({}, config=yaml_file(tmp_path, text))
    assert (config.opt_options["lr"], config.task_options["d"], config.trainer.max_steps) == (0.001, 8, 7)


def test_task_decides_budget_batch_and_precision():
    mnist = resolve({"task": "mnist", "opt": "sps"})
    assert (mnist.trainer.max_epochs, mnist.trainer.max_steps) == (5, None)
    assert (mnist.trainer.batch_size, mnist.precision) == (100, "32-true")
    assert resolve({"task": "mnist", "opt": "ngd"}).trainer.batch_size == "full"
    assert resolve(SYNTHETIC).precision == "64-true"


def test_a_limit_of_ones_own_replaces_the_budget(tmp_path):
    mnist = {"task": "mnist", "opt": "sps"}
    limits = resolve(mnist | {"trainer.max_steps": "9"}).trainer
    assert (limits.max_epochs, limits.max_steps) == (None, 9)
    # Without any limit the task's budget applies.
    assert resolve(mnist, config=yaml_file(tmp_path, "trainer: {max_steps: null}")).trainer.max_epochs == 5


def test_none_takes_an_option_back_that_a_file_sets(tmp_path):
    file = yaml_file(tmp_path, "trainer: {max_steps: 9, gradient_clip_val: 1, batch_size: 5, average: ema}\n")
    words = {f"trainer.{name}": "none" for name in ("max_steps", "gradient_clip_val", "batch_size", "average")}
    taken_back = resolve(SYNTHETIC | words, config=file)
    assert taken_back == resolve(SYNTHETIC)
    with pytest.raises(UserError, match=r"--trainer\.warmup 'none': it takes a number"):
        resolve(SYNTHETIC | {"trainer.warmup": "none"})


def test_order_follows_the_seed_unless_it_has_its_own():
    assert resolve(SYNTHETIC | {"seed": "3"}).data_seed == 3
    assert resolve(SYNTHETIC | {"seed": "3", "data_seed": "4"}).data_seed == 4


def test_values_from_the_task_stay_words():
    assert resolve({"task": "mnist", "opt": "sps"}).opt_options["f_star"] == TASK_VALUE
    assert resolve({"task": "mnist", "opt": "sps", "opt.f_star": "0.5"}).opt_options["f_star"] == 0.5


# -- identity of a run ----------------------------------------------------------------------------------------------


def run_id(**settings: object) -> str:
    return resolve(SYNTHETIC | {k.replace("__", "."): v for k, v in settings.items()}).run_id


SAME: list[dict[str, object]] = [
    {"opt__lr": "0.01"}, {"opt__lr": "1e-2"}, {"opt__lr": 0.01}, {"opt__max_step": "inf"}, {"opt__momentum": 0},
    {"opt__momentum": "0.0"}, {"opt__fused": "none"}, {"task__n": "20"}, {"seed": "0"}, {"data_seed": 0},
    {"precision": "64-true"}, {"trainer__batch_size": "full"}, {"trainer__max_steps": "2000"},
    {"store": "/elsewhere"}, {"data": "/elsewhere"}, {"logger": "csv"}, {"trainer__micro_batch_size": "4"},
    {"trainer__compile": "step"}, {"trainer__checkpoint_seconds": "5"},
]  # fmt: skip
OTHER: list[dict[str, object]] = [
    {"opt__lr": "0.02"}, {"opt__max_step": "1"}, {"opt__fused": "false"}, {"task__n": "21"}, {"seed": "1"},
    {"data_seed": "1"}, {"precision": "32-true"}, {"device": "cuda"}, {"trainer__batch_size": "10"},
    {"trainer__max_steps": "2001"}, {"trainer__max_seconds": "9"}, {"trainer__gradient_clip_val": "1"},
    {"trainer__val_every": "7"}, {"trainer__strategy": "ddp"},
]  # fmt: skip


@pytest.mark.parametrize("settings", SAME + OTHER, ids=str)
def test_a_run_is_another_if_its_result_may_differ(settings):
    assert run_id().startswith("synthetic-sngd-")
    assert (run_id(**settings) == run_id()) == (settings in SAME)


@pytest.mark.parametrize("opt", OPTIMIZERS)
def test_a_stored_configuration_gives_its_run_again(opt):
    config = resolve({"task": "mnist", "opt": opt, "seed": "3", "trainer.max_epochs": "0.5"})
    stored = json.loads(json.dumps(plain(config.model_dump(mode="json")), allow_nan=False))
    assert resolve(settings_of(stored)) == config


# -- defaults by family of tasks --------------------------------------------------------------------------------------


@pytest.fixture
def by_family(monkeypatch):
    """Optimizers with other defaults on images."""
    values = {"muon": {"lr": 0.7, "rest.lr": 0.07}, "adamw": {"lr": 0.5}, "sgdm": {"momentum": 0.6}}
    for name, own in values.items():
        monkeypatch.setitem(OPTIMIZERS.built_in, name, replace(OPTIMIZERS[name], by_family={"vision": own}))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ({"task": "mnist", "opt": "adamw"}, {"lr": 0.5}),
        ({"task": "cifar10", "opt": "adamw", "opt.lr": 0.2}, {"lr": 0.2}),
        ({"task": "lm", "opt": "adamw"}, {"lr": 1e-3}),
        ({"task": "synthetic", "opt": "adamw"}, {"lr": 1e-3}),
        ({"task": "mnist", "opt": "sgdm"}, {"lr": 0.1, "momentum": 0.6, "nesterov": True}),
        ({"task": "mnist", "opt": "muon"}, {"lr": 0.7, "rest": "adamw", "rest.lr": 0.07}),
        ({"task": "mnist", "opt": "sgdm", "opt.rest": "adamw"}, {"momentum": 0.6, "rest.lr": 0.5}),
        ({"task": "mnist", "opt": "muon", "opt.rest": "sgdm"}, {"lr": 0.7, "rest.lr": 0.1, "rest.momentum": 0.6}),
        ({"task": "lm", "opt": "muon"}, {"lr": 0.02}),
    ],
    ids=str,
)
def test_defaults_are_those_of_the_tasks_family(by_family, words, expected):
    config = resolve(words)
    assert {name: config.opt_options[name] for name in expected} == expected


def test_a_run_at_the_defaults_of_its_family_has_chosen_nothing(by_family):
    assert resolve({"task": "mnist", "opt": "muon"}).chosen == {}
    assert resolve({"task": "mnist", "opt": "muon", "opt.rest.lr": 0.07}).chosen == {}
    assert resolve({"task": "mnist", "opt": "muon", "opt.lr": 0.02}).chosen == {"opt.lr": 0.02}


def test_defaults_by_family_are_shown(cli, by_family):
    assert "  vision                       lr 0.7, rest.lr 0.07" in cli("show", "muon").out
    assert "default 0.6" in cli("fit", "--task", "mnist", "--opt", "sgdm", "--help").out
    assert "default 0.6" not in cli("fit", "--task", "lm", "--opt", "sgdm", "--help").out


if __name__ == "__main__":
    STORED.write_text(table(), "utf-8")
