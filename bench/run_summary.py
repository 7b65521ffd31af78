"""A run's result as text or JSON."""

import shlex
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bench.results.selection import GAP, above_infimum, score_text
from bench.store.record import CAP_BINDS, RESUMABLE, RunResult
from bench.store.stores import Contents
from bench.text import counted, word_of
from optimizers.groups import REST
from optimizers.plugins import bare


def result_json(result: RunResult, store: Path) -> dict[str, Any]:
    """The result in ten fields; numbers are finite or null."""
    about = {"run_id": result.run_id, "task": result.config["task"], "opt": result.config["opt"]}
    values = {"final": result.final, "best": result.best, "steps": result.steps, "wall_s": round(result.wall_s, 3)}
    metric = {"status": result.status, "metric": f"{result.split}/{result.metric}"}
    return about | metric | values | {"store": str(store)}


def result_lines(result: RunResult, store: Path) -> list[str]:
    """The result in one line, followed by a line for each note."""
    parts = [f"{result.task} {bare(result.config['opt'])}: {result.status}"]
    above = result.status != "diverged" and above_infimum([result])
    final, best = (result.excess("final"), result.excess("best")) if above else (result.final, result.best)

    def text(value: float) -> str:
        return score_text(value, result.metric) if above else f"{value:.4g}"

    if final is not None:
        parts.append(f"{result.split} {result.metric}{GAP * above} {text(final)}")
        splits = result.metrics.get("final", {}).items()
        parts += [f"{s} {v[result.metric]:.4g}" for s, v in splits if isinstance(v, dict) and result.metric in v]
    if best is not None and result.best_step != result.steps:
        parts.append(f"{text(best)} at the best step {result.best_step}")
    rates = {name: value for name, value in result.config["opt_options"].items() if name in ("lr", f"{REST}.lr")}
    words = [f"{n} {word_of(v)}{' (default)' * (f'opt.{n}' not in result.chosen)}" for n, v in rates.items()]
    with_rates = f" with {' and '.join(words)}" * bool(words)
    parts.append(f"{counted(result.steps, 'step')} in {result.wall_s:.1f} s{with_rates}")
    block = Contents([store], [result.run_id]).blocks.get(result.run_id)
    parts.append(f"stored in {block.folder if block else store / result.run_id}")
    lines = [", ".join(parts)]
    lines += [f"note: {result.reason}"] * bool(result.reason)
    lines += ["the same command continues it"] * (result.status in RESUMABLE)
    return [*lines, *(f"note: {remark}" for remark in remarks_on(result))]


def remarks_on(result: RunResult) -> list[str]:
    """Notes for the reader of a result, a sentence each."""
    config, lines = result.config, list[str]()
    if result.skipped:
        why = "overflowed in half precision" if config.get("precision") == "16-mixed" else "was not finite"
        lines.append(f"{counted(result.skipped, 'step')} not taken because a gradient {why}")
    if result.unscheduled:
        lines.append("no schedule: this optimizer sets its own step size")
    if "averages" in result.traits:
        average = config.get("trainer", {}).get("average", "none")
        which = "one of the two methods" if REST in config.get("opt_options", {}) else "this optimizer"
        unchanged = "" if average == "none" else f"; --trainer.average {average} does not change them"
        lines.append(f"{which} evaluates its own weight averages{unchanged}")
    method, _, roles = result.step_of.partition(": ")
    if method:
        lines.append(f"the step sizes in the curve are those of {method} for the parameters of the role {roles}")
    if result.part:
        lines.append(f"not the whole task: {result.part}")
    if result.tuned_on == "train" != result.split:
        lines.append(f"its settings were chosen on training samples, but the ranking uses {result.split} samples")
    lines += [f"no comparison with {name}, which is {reason}" for name, reason in result.unsolved.items()]
    if result.cap_share is not None and result.cap_share > CAP_BINDS:
        options = config["opt_options"]
        prefix = f"{REST}." * (REST in options and roles not in ("", "matrix"))  # the first method has the matrices
        cap = f"{prefix}max_step" if f"{prefix}max_step" in options else f"{prefix}lr"  # as of momo
        lines.append(
            f"the step cap was active on {result.cap_share:.0%} of the steps, so it set the step size, not the"
            f" method (with a fixed cap this is SGD); raise --opt.{cap} to let the method choose"
        )
    if result.saturated_at is not None:
        lines.append(
            f"step {result.saturated_at} alone saturated the model: the gradient became 0 at once, so the result"
            " comes from the size of that step, not from the method; use smaller steps"
        )
    return lines


def fit_words(run: RunResult, chosen: Mapping[str, Any] | None = None) -> str:
    """The command of a run without its seeds: the device, and its settings beyond the defaults, or these instead."""
    settings = run.chosen if chosen is None else chosen
    settings = {k: v for k, v in settings.items() if v is not None or not k.startswith("trainer.")}
    options = {"task": run.config["task"], "opt": run.config["opt"], "device": run.config["device"]} | settings
    return " ".join(["bench fit", *(shlex.join([f"--{name}", _word(value)]) for name, value in options.items())])


def commands(runs: Iterable[RunResult]) -> list[str]:
    """Shell commands that train these runs, one for all seeds of a setting."""
    seeds = defaultdict[tuple[str, str], list[int]](list)
    for run in runs:
        seed, order = run.config["seed"], run.config["data_seed"]
        seeds[fit_words(run), f" --data_seed {order}" * (order != seed)].append(seed)
    return [
        f"{words} --seed{'s' * (len(of) > 1)} {','.join(map(str, sorted(of)))}{more}"
        for (words, more), of in seeds.items()
    ]


def _word(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(_word, value))
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
