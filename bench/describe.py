"""Tasks, optimizers, experiments and the options of `bench fit`, described. Nothing here imports torch."""

import ast
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bench.config import TrainerOptions, resolve
from bench.errors import unknown
from bench.options import Option, _parse, _source, optimizer_options, task_options
from optimizers import OPTIMIZERS, OptimizerSpec
from tasks import TASKS, TaskSpec

if TYPE_CHECKING:
    from bench.papers.experiments import Experiment

PLACES = """places:
  --data DIR      where datasets lie or are downloaded to (default: $BENCH_DATA, else ./data)
  --store DIR     where runs are kept (default: $BENCH_STORE, else ./runs)"""


def fit_help(task: str | None, opt: str | None) -> str:
    """The help of `bench fit`, with the options of the task and the optimizer that are named.

    Raises:
        UserError: one of them does not exist.
    """
    if task is not None and task not in TASKS:
        raise unknown("task", task, TASKS)
    if opt is not None and opt not in OPTIMIZERS:
        raise unknown("optimizer", opt, OPTIMIZERS)
    lines = [
        "usage: bench fit --task TASK --opt OPTIMIZER [--task.* ...] [--opt.* ...] [--trainer.* ...]", "",
        "Train one task with one optimizer and store the result.", "",
        f"  --task TASK     {', '.join(TASKS)}",
        f"  --opt OPT       {', '.join(OPTIMIZERS)}",
        "  --seed N        problem instance, initialisation, dropout (default 0)",
        "  --data_seed N   order of the samples (default: the seed)",
        "  --config FILE   settings from YAML; flags win",
        "  --tuned         take the hyperparameters in configs/tuned/<task>/<optimizer>.yaml",
        "  --device D      cpu, cuda, mps or auto (default auto)",
        "  --precision P   32-true, bf16-mixed, 16-mixed or 64-true (default: the task's)",
        "  --resume RUN    continue an interrupted run, bit for bit",
        "  --rerun         train again although the result is stored",
        "  --logger L      also log to tensorboard, csv, wandb or mlflow (extras)",
        "  --dry-run       print the resolved configuration and stop",
        "  --json          print one JSON object and nothing else", "", *PLACES.splitlines(),
    ]  # fmt: skip
    if task:
        spec = TASKS[task]
        lines += ["", f"task {task}: {spec.title}", *_rows("task", task_options(spec))]
    else:
        lines += ["", "Name a task for its options: bench fit --task mnist --help"]
    if opt:
        lines += [
            "",
            f"optimizer {opt}: {OPTIMIZERS[opt].formula}",
            *_rows("opt", optimizer_options(OPTIMIZERS[opt])),
        ]
    else:
        lines += ["Name an optimizer for its options: bench fit --opt sngd --help"]
    lines += ["", "trainer:"]
    for name, field in TrainerOptions.model_fields.items():
        if name == "measure_every" and task and TASKS[task].measure_every is None:
            continue
        lines += _row(
            f"--trainer.{name}", field.description or "", "" if field.default is None else f"default {field.default}"
        )
    return "\n".join(lines)


def describe_optimizer(spec: OptimizerSpec) -> str:
    """Formula, source, hyperparameters and search space of an optimizer."""
    search = {name: f"log-uniform in [{space.low:g}, {space.high:g}]" for name, space in spec.search.items()}
    traits = [name.replace("_", " ") for name, on in vars(spec.traits).items() if on]
    return "\n".join(
        [
            f"{spec.name} (version {spec.version})", f"  rule    {spec.formula}", f"  source  {spec.source}",
            f"  class   {spec.target.replace(':', '.')}", *([f"  traits  {', '.join(traits)}"] if traits else []),
            "", "hyperparameters:", *_rows("opt", optimizer_options(spec)),
            "", "search space:", *(f"  --opt.{name}  {space}" for name, space in search.items()),
        ]
    )  # fmt: skip


def describe_task(spec: TaskSpec) -> str:
    """Model, metric, target, budget and options of a task."""
    budget = ", ".join(f"{name} {value}" for name, value in spec.budget.items())
    measured = [f"measured every {spec.measure_every} steps:", *_measurements(spec), ""] if spec.measure_every else []
    target = "none" if spec.target is None else f"{spec.metric} {spec.target:g}"
    return "\n".join(
        [
            f"{spec.name} (version {spec.version}): {spec.title}", f"  metric  {spec.metric} ({spec.mode})",
            f"  target  {target}", f"  budget  {budget}, batch {spec.batch_size}, precision {spec.precision}",
            f"  source  {spec.source}", "", *measured, "options:", *_rows("task", task_options(spec)),
        ]
    )  # fmt: skip


def _measurements(spec: TaskSpec) -> list[str]:
    """A task's measurements with what `measure_at` says of them."""
    keys, names = _keys(*spec.module.split(":")), dict[str, list[str]]()
    for name in spec.measures.split(", "):
        names.setdefault(keys.get(name, ""), []).append(name)
    return [line for text, group in names.items() for line in _row(", ".join(group), text)]


def _keys(module: str, name: str) -> dict[str, str]:
    """The `Keys:` of `measure_at` in a class, and of the classes above it where it says nothing else."""
    for node in _parse(_source(module)).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == module.partition(".")[0]:
            for alias in node.names:
                if name == (alias.asname or alias.name):
                    return _keys(str(node.module), alias.name)
        if isinstance(node, ast.ClassDef) and node.name == name:
            keys: dict[str, str] = {}
            for base in node.bases:
                keys |= _keys(module, base.id) if isinstance(base, ast.Name) else {}
            for item in node.body:
                if isinstance(item, ast.FunctionDef) and item.name == "measure_at":
                    keys |= _key_section(ast.get_docstring(item) or "")
            return keys
    return {}


def _key_section(doc: str) -> dict[str, str]:
    section = re.search(r"^Keys:\n((?:[ ]{4}.*\n?|\n)+)", doc, re.MULTILINE)
    items = re.split(r"^ {4}(?=\w)", section[1], flags=re.MULTILINE)[1:] if section else []
    parts = [item.partition(":") for item in items]
    return {name: " ".join(text.split()).rstrip(".") for names, _, text in parts for name in names.split(", ")}


def describe_experiment(name: str, experiment: "Experiment") -> str:
    """Arms, seeds, budget, figure, claims, small version and search of a paper's experiment, and how to run them."""
    from bench.papers.claims import CLAIMS

    quick, search = experiment.quick, experiment.search
    budgets: dict[str, list[str]] = {}
    for label, own in experiment.arms.items():
        trainer = resolve(experiment.common | own).trainer
        limits = [f"{trainer.max_steps} steps"] if trainer.max_steps else []
        limits += [f"{trainer.max_epochs:g} epochs"] if trainer.max_epochs else []
        budgets.setdefault(" or ".join(limits), []).append(label)
    lines = [
        f"{name}: {experiment.title}",
        *_row("paper", experiment.paper),
        *_row("run it", f"bench reproduce {name}"),
        *_row("seeds", _seeds(experiment.seeds, len(experiment.arms))),
        *_row("budget", "; ".join(budgets if len(budgets) == 1 else [f"{k}: {_list(v)}" for k, v in budgets.items()])),
        "", "arms:", *_settings({"all": experiment.common} | experiment.arms),
        "", "figure:",
    ]  # fmt: skip
    for panel in experiment.figure.panels:
        axes = {"": "", "x": ", x logarithmic", "y": ", y logarithmic", "xy": ", both logarithmic"}[panel.log]
        lines += _row(panel.title or panel.y, f"{panel.y} over {panel.x}{axes}", _list(panel.arms or []))
    lines += ["", "claims: what the paper says, and how it is tested"]
    for claim in experiment.claims:
        said = [f"{k}:{_TIE}{_list(v) if isinstance(v, list) else v}" for k, v in (claim.model_extra or {}).items()]
        lines += [*_row(claim.name, claim.paper), *_row(f"  {claim.test}", "; ".join(said))]
    lines += ["", "tests:"]
    for test in dict.fromkeys(claim.test for claim in experiment.claims):
        lines += _row(test, (CLAIMS[test].__doc__ or "").partition("\n")[0])
    lines += ["", "small version, which is no evidence:", *_row("run it", f"bench reproduce {name} --quick")]
    lines += _row("seeds", _seeds(quick.seeds, len(experiment.arms)))
    lines += _settings({"all": quick.settings} | quick.arms)
    if search:
        arms, claims = search.arms or experiment.arms, search.claims or [claim.name for claim in experiment.claims]
        lines += ["", "search over constants that the paper leaves open:", *_row("why", search.why)]
        lines += _row("run it", f"bench reproduce {name} --search")
        lines += [line for setting, values in search.grid.items() for line in _row(setting, _list(values))]
        lines += _row("points", str(len(search.points)))
        lines += _row("seeds", _seeds(search.seeds, len(arms) * len(search.points)))
        lines += _settings({"all": search.settings})
        lines += [*_row("arms", _list(arms)), *_row("claims", _list(claims))]
    lines += ["", "notes:"]
    for note in experiment.notes:
        lines += textwrap.wrap(note, 108, initial_indent="  * ", subsequent_indent="    ")
    return "\n".join(lines).replace(_TIE, " ")


_TIE = "\N{NO-BREAK SPACE}"


def _list(items: Iterable[Any]) -> str:
    """With commas; no item goes over two lines."""
    return ", ".join(str(item).replace(" ", _TIE) for item in items)


def _settings(arms: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The settings by arm, where there are some, as the command line takes them."""
    return [
        line
        for label, own in arms.items()
        if own
        for line in _row(label, " ".join(f"--{setting}{_TIE}{value}" for setting, value in own.items()))
    ]


def _seeds(seeds: Sequence[int], runs: int) -> str:
    """The seeds, in a row where they are one, and how many runs they make."""
    row = len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[-1] + 1))
    return f"{f'{seeds[0]} to {seeds[-1]}' if row else _list(seeds)}: {runs * len(seeds)} runs"


def _rows(prefix: str, options: Mapping[str, Option]) -> list[str]:
    return [
        line
        for o in options.values()
        for line in _row(f"--{prefix}.{o.name}", o.help.rstrip("."), f"{o.type_name}, default {o.default_text}")
    ]


def _row(flag: str, text: str, extra: str = "") -> list[str]:
    full = f"{text} ({extra})" if text and extra else text or extra
    lines = textwrap.wrap(full, 80) or [""]
    first = f"  {flag:<28} {lines[0]}" if len(flag) < 28 else f"  {flag}\n{'':31}{lines[0]}"
    return [first.rstrip(), *(f"{'':31}{line}" for line in lines[1:])]
