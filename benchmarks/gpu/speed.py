"""Speed of steps, runs and lanes on one device, against plain PyTorch on the same device."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from bench.config.run_config import RunConfig, resolve
from bench.config.values import log_grid
from bench.execute.choice import single_step
from bench.lanes.runs import Grid, make_lanes
from bench.train.memory import ran_out
from benchmarks import optimizers, training
from benchmarks.gpu import pairs
from benchmarks.timing import Row, alternate, timed
from optimizers import Muon
from tasks import TASKS

SMALL_VIT: Mapping[str, Any] = {"task.embed_dim": 16, "task.depth": 1, "task.num_heads": 2, "task.mlp_width": 16}
SMALL_LM: Mapping[str, Any] = {"task.width": 16, "task.layers": 1, "task.num_heads": 2, "task.mlp_width": 16}
WIDTHS = {"synthetic": 16_384, "mnist": 256, "cifar10": 256, "lm": 64}
"""Most lanes, by task; the widths are powers of 4 up to it."""
SPEED_UPS = {("synthetic", 16_384): 1000, ("mnist", 64): 30, ("cifar10", 64): 30, ("lm", 64): 15}
"""Required speed-up of a step of one lane over a bare loop, by task and number of lanes."""


def steps(device: str, tiny: bool) -> list[Row]:
    """A step of our optimizers on the parameters of BERT-base, against copying them and against fused AdamW."""
    rows = optimizers.measure(tiny, device)
    params = optimizers.bert_parameters(device)
    if tiny:
        params = [p for p in params if p.numel() <= 768]
    matrices = [p for p in params if p.ndim == 2 and len(p) <= 3072] or [nn.Parameter(torch.ones(4, 4, device=device))]
    for p in matrices:
        p.grad = torch.ones_like(p) if p.grad is None else p.grad
    others = [p for p in params if not any(p is matrix for matrix in matrices)]
    muon: Any = Muon(matrices, lr=1e-6)
    rest = torch.optim.AdamW(others, lr=1e-6, fused=True)
    adamw: Any = torch.optim.AdamW(params, lr=1e-6, fused=True)

    def hybrid() -> None:
        muon.step()
        rest.step()

    measured = alternate(timed(adamw.step), {"muon": timed(hybrid)}, 2 if tiny else 25)["muon"]
    return [*rows, Row("muon, and AdamW for the rest", "AdamW(fused=True)", measured.ratios, 1)]


def runs(device: str, tiny: bool) -> list[Row]:
    """A run of cifar10 against a hand-written loop, eager and compiled."""
    count, rounds = (4, 1) if tiny else (200, 3)
    spec = replace(TASKS["cifar10"], data="benchmarks.images:MemoryImages")
    more = SMALL_VIT if tiny else {}
    rows = []
    with patch.dict(TASKS, cifar10=spec), TemporaryDirectory() as store:
        for opt in ("sngd", "adam"):
            config = training.configure("cifar10", opt, count, Path(store), device, **more)
            for kind, bound, compiled in (("eager", 0.35, False), ("compiled", 1.0, True)):
                if compiled and device == "cpu":
                    continue
                by_hand = training.by_hand(config, compiled=compiled)
                measured = alternate(by_hand, {opt: training.by_bench(config)}, rounds)[opt]
                what = f"bench fit, cifar10, {opt}, {count} steps"
                rows.append(Row(what, f"hand-written loop, {kind}", measured.ratios, bound))
    return rows


def bert(device: str, tiny: bool) -> list[Row]:
    """Tokens per second of BERT-base in bf16 on pairs with the lengths of MNLI, against a plain Lightning loop."""
    count, rounds = (3, 1) if tiny else (60, 5)
    with TemporaryDirectory() as folder:
        config = pairs.configure(Path(folder), count, device, tiny)
        batches = pairs.batches_of(config)
        tokens = sum(int(batch.mask.sum()) for batch in batches)
        ours, plain = training.by_bench(config), pairs.by_lightning(config, batches)
        measured = alternate(plain, {"bench": ours}, rounds)["bench"]
    what = f"bench fit, {'a tiny BERT' if tiny else 'BERT-base'}, adamw, bf16, {count} batches of {len(batches[0].ids)}"
    return [
        Row(what, "plain Lightning", measured.speedups, 1, at_least=True),
        Row(what, "-", [tokens / seconds for seconds in measured.candidate], unit=" tokens/s"),
        Row("plain Lightning", "-", [tokens / seconds for seconds in measured.baseline], unit=" tokens/s"),
    ]


def lanes_of(task: str) -> Callable[[str, bool], list[Row]]:
    """A measurement of the speed-up of a step of one lane, by the number of lanes."""

    def measure(device: str, tiny: bool) -> list[Row]:
        rows, most = [], 4 if tiny else WIDTHS[task]
        widths = [4**k for k in range(8) if 4**k <= most]
        with TemporaryDirectory() as folder, patch("tasks.theory.max_margin.MOST_CONSTRAINTS", 0):
            alone = single_step(_configs(task, 1, device, tiny, Path(folder))[0][0])
            for width in widths:
                try:
                    trial = make_lanes(_configs(task, width, device, tiny, Path(folder)))
                    timed(trial.step, 4)()  # may record the step, which later steps replay
                    calls = 2 if tiny else 20
                    found = alternate(timed(alone, calls), {"lanes": timed(trial.step, calls)}, 1 if tiny else 3)
                except RuntimeError as error:
                    if not ran_out(error):
                        raise
                    break  # wider blocks do not fit either
                values = [width * x for x in found["lanes"].speedups]
                bound = SPEED_UPS.get((task, width))
                rows.append(Row(f"{task}, {width} lanes: a step of one", "bare loop", values, bound, at_least=True))
        return rows

    return measure


def _configs(task: str, width: int, device: str, tiny: bool, store: Path) -> Grid:
    """A block of `width` lanes of adamw (on the synthetic task ngd): up to 16 learning rates, the rest seeds."""
    small = {"lm": SMALL_LM, "synthetic": {}}.get(task, SMALL_VIT) if tiny else {}
    batch = {"trainer.batch_size": 8} if tiny and task != "synthetic" else {}
    own: dict[str, Any] = {
        "task": task,
        "opt": "ngd" if task == "synthetic" else "adamw",
        "device": device,
        "store": store,
        "data": Path(os.environ.get("BENCH_DATA", "data")),
        "precision": "32-true",
        "trainer.max_steps": 1000,
        **small,
        **batch,
    }
    rates = min(width, 16)
    lrs = log_grid(1e-4, 1e-3, rates) if rates > 1 else [3e-4]
    return [[_config({**own, "opt.lr": lr, "seed": seed}) for lr in lrs] for seed in range(width // rates)]


def _config(settings: Mapping[str, Any]) -> RunConfig:
    return resolve({**settings, "trainer.checkpoint_seconds": 1e9})


SPEED: Mapping[str, Callable[[str, bool], list[Row]]] = {
    "steps": steps,
    "runs": runs,
    "bert": bert,
    **{f"lanes-{task}": lanes_of(task) for task in WIDTHS},
}
"""Measurements by the name of their part: (device, tiny) to rows."""
