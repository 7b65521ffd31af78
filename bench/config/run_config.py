"""RunConfig: everything that determines a run, from task defaults, tuned YAML, a YAML file and flags, in this order."""

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from bench.config.files import flatten_yaml, tuned_settings
from bench.config.options import (
    MISSING,
    Option,
    all_optimizer_options,
    optimizer_options,
    optimizer_values,
    parse_options,
    rest_of,
    task_options,
    task_values,
)
from bench.config.trainer import SAME_RESULT, TrainerOptions, refuse_idle
from bench.config.values import MOST_SEED, SEED_RANGE, place
from bench.errors import UserError, check_known, unknown_option
from bench.text import comparable, plain
from optimizers import OPTIMIZERS, STEP_KEYWORDS, OptimizerSpec, Traits
from optimizers.groups import REST
from optimizers.plugins import bare, slug
from tasks import TASKS, TaskSpec

Precision = Literal["32-true", "bf16-mixed", "16-mixed", "64-true"]
Seed = Annotated[int, Field(ge=0, le=MOST_SEED)]
_BUDGET = ("trainer.max_epochs", "trainer.max_steps")
_FOLDERS, _TOP = ("data", "store"), ("data_seed", "device", "logger", "precision", "seed")


@lru_cache
def model_options(model: type[BaseModel] = TrainerOptions) -> dict[str, Option]:
    """The fields of a model as options."""
    return {k: Option(k, f.rebuild_annotation(), f.default, f.description or "") for k, f in model.model_fields.items()}


class RunConfig(BaseModel):
    """One run, fully resolved: every default is filled in.

    `seed` determines problem instance, initialisation, dropout and augmentation, `data_seed` the order of the samples.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")  # else inf becomes None

    task: str
    task_options: dict[str, Any]
    opt: str
    opt_options: dict[str, Any]
    trainer: TrainerOptions
    seed: Seed = Field(0, description=SEED_RANGE)
    data_seed: Seed = Field(0, description=SEED_RANGE)
    precision: Precision
    device: Literal["cpu", "cuda", "mps", "auto"] = "auto"
    data: Path = Path("data")
    store: Path = Path("runs")
    logger: Literal["tensorboard", "csv", "wandb"] | None = None

    @property
    def task_spec(self) -> TaskSpec:
        """The task's entry in the registry."""
        return TASKS[self.task]

    @property
    def opt_spec(self) -> OptimizerSpec:
        """The optimizer's entry in the registry."""
        return OPTIMIZERS[self.opt]

    @property
    def rest_spec(self) -> OptimizerSpec | None:
        """The spec of the optimizer for all parameters except matrices, if any; one of the suite's own (`rest_of`)."""
        name = rest_of(self.opt_spec, self.opt_options)
        return None if name is None else OPTIMIZERS[name]

    @property
    def methods(self) -> list[OptimizerSpec]:
        """The optimizer and, if any, the one for the rest."""
        return [spec for spec in (self.opt_spec, self.rest_spec) if spec is not None]

    @property
    def traits(self) -> Traits:
        """Traits that any of the methods has; `unscheduled` only if all have it."""
        traits = {name: any(getattr(spec.traits, name) for spec in self.methods) for name in vars(Traits())}
        return Traits(**traits | {"unscheduled": all(spec.traits.unscheduled for spec in self.methods)})

    @property
    def step_keywords(self) -> set[str]:
        """Which of `STEP_KEYWORDS` the step takes; several methods need all of them, if any, for their own norms."""
        keywords = set[str]().union(*(spec.step_keywords for spec in self.methods))
        return set(STEP_KEYWORDS) if keywords and self.rest_spec is not None else keywords

    @property
    def spec_versions(self) -> dict[str, Any]:
        """Versions of task, optimizer and rest, packages of plug-ins, digests of files that task options name."""
        contents = [f"{k} {d[:16]}" for k, v in self.task_options.items() if (d := _content(v))]
        versions = {
            "task": self.task_spec.version,
            "opt": self.opt_spec.version,
            "task_package": self.task_spec.package,
            "opt_package": self.opt_spec.package,
            "rest": self.rest_spec and self.rest_spec.version,
            "contents": ", ".join(contents) or None,
        }
        return {name: value for name, value in versions.items() if value is not None}

    @property
    def identity(self) -> dict[str, Any]:
        """All that determines the result, in strict JSON: `run_id` is its hash.

        It excludes folders, what changes only rounding, and options of task and trainer at their defaults, so that a
        new option does not change the ids of earlier runs. A changed default increments the task's version.
        """
        decides = self.model_dump(mode="json", exclude={"data", "store", "logger", "trainer", "task_options"})
        idle = {"micro_batch_size", "compile", "checkpoint_seconds"}
        decides["trainer"] = self.trainer.model_dump(mode="json", exclude=idle, exclude_defaults=True)
        options = task_options(self.task_spec)
        given = self.task_options.items()
        decides["task_options"] = {k: v for k, v in given if k not in options or v != options[k].default}
        decides |= {"task": bare(self.task), "opt": bare(self.opt)}
        versions = self.spec_versions
        return plain(decides | {"task_version": versions.pop("task"), "opt_version": versions.pop("opt"), **versions})

    @property
    def run_id(self) -> str:
        """`task-opt-hash`."""
        return id_of(self.task, self.opt, self.identity)

    @property
    def record_fields(self) -> dict[str, Any]:
        """The fields of a record (`RunResult`) that the configuration determines."""
        spec = self.task_spec
        return {
            "run_id": self.run_id,
            "config": plain(self.model_dump(mode="json", exclude={"data", "store", "logger"})),
            "identity": self.identity,
            "task_name": spec.display_name,
            "problem": self.problem,
            "chosen": self.chosen,
            **{name: getattr(spec, name) for name in ("metric", "mode", "scale", "target")},
            "measures": spec.measure_every is not None,
            "formula": f"; {REST}: ".join(method.formula for method in self.methods if method.formula),
            "traits": self.traits.named(),
        }

    @property
    def problem(self) -> dict[str, Any]:
        """The settings, in dotted form, in which the run's problem differs from the task at its defaults.

        Runs are compared if these are equal. Settings that change only how the same result is computed are left out.
        """
        spec = self.task_spec
        usual = {f"task.{name}": option.default for name, option in task_options(spec).items()}
        usual |= {f"trainer.{name}": option.default for name, option in model_options().items()}
        usual |= {"trainer.batch_size": spec.batch_size, "trainer.measure_every": spec.measure_every}
        usual |= {**dict.fromkeys(_BUDGET), "precision": spec.precision}
        settings = {f"task.{name}": value for name, value in self.task_options.items()}
        settings |= {f"trainer.{name}": value for name, value in self.trainer if name not in SAME_RESULT}
        return _differing(settings | {"precision": self.precision}, usual)

    @property
    def chosen(self) -> dict[str, Any]:
        """The settings, in dotted form, that differ from `bench fit --task TASK --opt OPT`, without seeds and device.

        An optimizer for the rest other than the method's default is one of them; its defaults are then left out.
        Options without a default are among them.
        """
        settings = settings_of(self.model_dump(exclude={"data", "store", "logger"}))
        options = {f"task.{name}": option for name, option in task_options(self.task_spec).items()}
        options |= {f"opt.{name}": option for name, option in optimizer_options(self.opt_spec).items()}
        rest = f"opt.{REST}"
        required = {name: settings[name] for name, option in options.items() if option.default is MISSING}
        given = {name: settings[name] for name in ("task", "opt", rest, *required) if name in settings}
        usual = settings_of(resolve(given).model_dump())
        usual = {name: value for name, value in usual.items() if name not in required} | {rest: self.opt_spec.rest}
        names = settings.keys() - {"task", "opt", "seed", "data_seed", "device"}
        chosen = _differing({name: value for name, value in settings.items() if name in names}, usual)
        if any(name in chosen for name in _BUDGET):  # one alone would replace both
            chosen |= {name: settings[name] for name in _BUDGET}
        return chosen


def _differing(settings: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    return {k: plain(v) for k, v in settings.items() if k not in usual or comparable(v) != comparable(usual[k])}


def id_of(task: str, opt: str, identity: Mapping[str, Any]) -> str:
    """The id of a run: `task-opt-hash`, with the hash of its `RunConfig.identity`."""
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    return f"{slug(task)}-{slug(opt)}-{digest[:10]}"


def _content(value: Any) -> str | None:
    """A digest of the file, or of the weights in the folder, that a value names; None for anything else."""
    if not isinstance(value, str):
        return None
    place = Path(value).expanduser()
    for path in (place, place / "model.safetensors"):
        with suppress(OSError, ValueError):  # a name that is too long, or has a null character
            if path.is_file():
                stat = path.stat()
                return _digest(path, stat.st_mtime_ns, stat.st_size)
    return None


@lru_cache
def _digest(path: Path, *changed: int) -> str:
    """A digest of a file, cached until its time or size changes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def resolve(
    words: Mapping[str, Any],
    *,
    config: Path | None = None,
    tuned: bool = False,
    fallback: Mapping[str, Any] | None = None,
    recorded: bool = False,
) -> RunConfig:
    """Build a RunConfig.

    Args:
        words: settings in dotted form (`{"task": "mnist", "opt.lr": "0.1"}`); they override all others.
        config: a YAML file with settings, dotted or nested.
        tuned: use the tuned hyperparameters of this task and optimizer unless others are given.
        fallback: settings in dotted form that all others override.
        recorded: `words` has all settings of a record; what it lacks was added later, and is none (`task_values`).

    Raises:
        UserError: a name is unknown or a value illegal.
    """
    settings = {**(fallback or {}), **(flatten_yaml(config) if config else {}), **words}
    task, opt = take_name("task", settings), take_name("opt", settings)
    check_known("task", [task], TASKS)
    check_known("optimizer", [opt], OPTIMIZERS)
    if tuned:
        settings = tuned_settings(task, opt, settings) | settings
    spec, method, of_run = TASKS[task], OPTIMIZERS[opt], model_options(RunConfig)
    options = {"task": task_options(spec), "trainer": model_options(), "": {name: of_run[name] for name in _TOP}}
    known = {name: [*names] for name, names in options.items()} | {"": [*_TOP, *_FOLDERS]}
    groups: dict[str, dict[str, Any]] = {"": {}, "task": {}, "opt": {}, "trainer": {}}
    for key, value in sorted(settings.items()):
        group, name = key.split(".", 1) if "." in key else ("", key)
        if recorded and group == "task" and name not in known["task"]:
            continue  # an option that the task no longer has
        elsewhere = group == "opt" and name in (*known["task"], *known["trainer"])
        elsewhere = elsewhere and name not in all_optimizer_options(method, {name: value})
        if elsewhere or group not in groups or name not in known.get(group, [name]):
            known |= {"opt": [*all_optimizer_options(method, {})]}
            names = [f"--{group}.{name}".replace("--.", "--") for group, names in known.items() for name in names]
            raise unknown_option(f"--{key}", ["--task", "--opt", *names], f"fit --task {task} --opt {opt}")
        groups[group][name] = value
    folders = {name: place(name, str(groups[""].pop(name))) for name in _FOLDERS if name in groups[""]}
    top: dict[str, Any] = parse_options("", options[""], {"precision": spec.precision} | groups[""]) | folders
    top |= {} if "data_seed" in groups[""] else {"data_seed": top["seed"]}
    trainer = parse_options("trainer", options["trainer"], groups["trainer"])
    usual = {"batch_size": "full" if method.traits.full_batch else spec.batch_size, "measure_every": spec.measure_every}
    if trainer["max_epochs"] is None and trainer["max_steps"] is None:
        usual |= spec.budget
    trainer |= {name: value for name, value in usual.items() if trainer[name] is None}
    of_task = task_values(spec, groups["task"], recorded=recorded)
    if spec.datasets and of_task["dataset"] is None:  # part of the run's identity, so it must be explicit
        of_task["dataset"] = spec.dataset_in(top.get("data", Path("data")))
    return RunConfig(
        task=task,
        task_options=of_task,
        opt=opt,
        opt_options=optimizer_values(method.on(spec.family), groups["opt"]),
        trainer=refuse_idle(TrainerOptions(**trainer)),
        **top,
    )


def take_name(key: str, settings: dict[str, Any]) -> str:
    """Take the name of the task or the optimizer from the settings; UserError if there is not exactly one."""
    name = settings.pop(key, None)
    if isinstance(name, bool | list):  # `opt: no` of a YAML file, which is a boolean
        raise UserError(f"--{key} {name}: a run takes one name; `bench sweep` takes several optimizers")
    if not name:
        raise UserError(f"--{key} is missing; see `bench list {'tasks' if key == 'task' else 'optimizers'}`")
    return str(name)


def settings_of(stored: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, in dotted form, of the configuration in a run's record."""
    settings = {name: value for name, value in stored.items() if not isinstance(value, dict)}
    for group, options in (("task", "task_options"), ("opt", "opt_options"), ("trainer", "trainer")):
        settings |= {f"{group}.{name}": value for name, value in stored[options].items()}
    return settings


def with_device(config: RunConfig) -> RunConfig:
    """The configuration with `device: auto` resolved on this machine; other devices are not checked."""
    if config.device != "auto":
        return config
    has_gpu = sys.platform != "linux" or any(map(os.path.exists, ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")))
    if has_gpu:  # else torch, which takes seconds to import, is not needed
        import torch

        has_gpu = torch.cuda.is_available()
    return config.model_copy(update={"device": "cuda" if has_gpu else "cpu"})


def on_device(config: RunConfig) -> RunConfig:
    """The configuration with `device: auto` resolved; UserError if the machine has too few such devices."""
    config = with_device(config)
    if config.device != "cpu":
        import torch

        count = torch.cuda.device_count() if config.device == "cuda" else int(torch.backends.mps.is_available())
        if not count:
            raise UserError(f"--device {config.device}: torch finds no such device on this machine; see `bench doctor`")
        if config.trainer.devices > count:
            why = f"this machine has {count} {config.device} devices"
            raise UserError(f"--trainer.devices {config.trainer.devices}: {why}")
    return config
