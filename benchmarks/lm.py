"""`bench fit` on lm against a hand-written loop, and the time of a batch relative to a step."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import numpy as np
import torch
from torch import nn

from bench.config.run_config import RunConfig
from bench.train.runner import build
from benchmarks.timing import Row, Timed, alternate, timed
from benchmarks.training import by_bench, configure
from tasks import BatchRandomness
from tasks.core.order import BatchOrder
from tasks.language.lm import LanguageModel

_CPU = torch.device("cpu")


def measure(quick: bool) -> list[Row]:
    """Tokens per second against a hand-written loop, for a normalised method and AdamW; time of a batch over a step."""
    steps, rounds = (4, 2) if quick else (20, 5)
    rows = []
    with (
        TemporaryDirectory() as folder,
        text(Path(folder), quick) as (root, source),
        patch.dict(os.environ, BENCH_CACHE=f"{folder}/cache"),
    ):
        for opt in ("sngd", "adamw"):
            config = configure("lm", opt, steps, Path(folder)).model_copy(update={"data": root})
            measured = alternate(by_hand(config), {opt: by_bench(config)}, rounds)[opt]
            what = f"bench fit, lm, {opt}, {steps} steps on {source}"
            rows.append(Row(what, "hand-written loop", measured.speedups, 0.95, at_least=True))
            task, plan = build(config)
            assert isinstance(task, LanguageModel)
            tokens = steps * plan.batch_size * task.corpus.length
            rows.append(Row(what, "-", [tokens / seconds for seconds in measured.candidate], unit=" tokens/s"))
        seconds = [batches(config, 20 if quick else 2000)() for _ in range(rounds)]
        step = min(measured.candidate) / steps
        rows.append(Row("order and CorpusData.batch", "a step", [100 * s / step for s in seconds], 1, unit=" %"))
    return rows


def by_hand(config: RunConfig) -> Timed:
    """The same model, tokens and optimizer class in plain PyTorch, with no record."""

    def train() -> float:
        torch.manual_seed(config.seed)
        task, plan = build(config)
        assert isinstance(task, LanguageModel)
        model, T = task.model.train(), task.corpus.length
        ids = task.corpus._ids["train"].numpy().view(np.uint16)
        optimizer = plan.make_optimizer(model.parameters())
        begun = time.perf_counter()
        order = np.random.default_rng(0).permutation((len(ids) - 1) // T)
        for step in range(plan.total_steps):
            rows = order[step * plan.batch_size : (step + 1) * plan.batch_size]
            windows = torch.from_numpy(np.stack([ids[i * T : i * T + T + 1] for i in rows]).astype(np.int64))
            logits = model(windows[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return time.perf_counter() - begun

    return train


def batches(config: RunConfig, times: int) -> Timed:
    """Seconds of one batch, including its order."""
    task, plan = build(config)
    task.data.to(_CPU, torch.float32)
    order, where = BatchOrder(task.data.sizes["train"], plan.batch_size, 0, _CPU), BatchRandomness()
    steps = iter(range(times))
    run = timed(lambda: task.data.batch("train", order.rows(next(steps)), where), times)
    return lambda: run() / times


@contextmanager
def text(folder: Path, quick: bool) -> Iterator[tuple[Path, str]]:
    """A data folder with tiny_shakespeare, and its source: if it is missing, a random text of the same size."""
    data = Path(os.environ.get("BENCH_DATA", "data"))
    if (data / "tiny_shakespeare" / "input.txt").is_file() and not quick:
        yield data, "tiny_shakespeare"
        return
    (folder / "tiny_shakespeare").mkdir()
    letters = np.random.default_rng(0).choice(list("etaoin shrdlu\n"), 20_000 if quick else 1_115_394)
    (folder / "tiny_shakespeare" / "input.txt").write_text("".join(letters))
    yield folder, "made-up text"
