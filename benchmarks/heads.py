"""Many attention heads: all in one product against one after the other, and the cost of `measure`."""

from collections.abc import Callable
from math import sqrt

import torch
from torch import Tensor, nn

from benchmarks.timing import Row, Timed, alternate, timed
from tasks.theory.multihead import MixtureData, MultiHeadClassifier, PlantedData, Samples
from tasks.theory.saturated import attended_mean

H = 16
MEASURE = 1.0
"""Most time of one `measure`, in steps, so that measuring every ten steps costs at most 10 %."""


def measure(quick: bool) -> list[Row]:
    """Time of loss and gradient against a loop over heads, and of one `measure` against one loss and gradient."""
    rounds, share = (2, 0.1) if quick else (15, 1)
    rows = []
    for data, steps in ((MixtureData(), 50), (PlantedData(), 30)):
        times = int(share * steps)
        task = MultiHeadClassifier(data, H=H, init_std=0.3)
        task.heads.double()
        batch = data.batch("train", slice(None))
        loop = training(task, lambda task=task, batch=batch: loop_over_heads(task, batch), times)
        folded = training(task, lambda task=task, batch=batch: task.loss(batch).loss, times)
        looking = timed(task.measure, times)
        what = f"{type(data).__name__}, {H} heads"
        by_folding = alternate(loop, {"folded": folded}, rounds)["folded"]
        by_looking = alternate(folded, {"measure": looking}, rounds)["measure"]
        rows.append(
            Row(f"{what}: loss and gradient, speed-up", "loop over heads", by_folding.speedups, 1.2, at_least=True)
        )
        rows.append(Row(f"{what}: one measure()", "loss and gradient", by_looking.ratios, MEASURE))
    return rows


def training(task: MultiHeadClassifier, loss: Callable[[], Tensor], times: int) -> Timed:
    """Loss and gradient, `times` times."""

    def step() -> None:
        task.heads.zero_grad()
        loss().backward()

    return timed(step, times)


def loop_over_heads(task: MultiHeadClassifier, batch: Samples) -> Tensor:
    """A direct version of the task's loss: head by head, all sequences at once, with the same stable softmax."""
    tokens_BTd, signs_B, _ = batch
    turned_BdT = tokens_BTd.transpose(1, 2)
    output_B = torch.zeros_like(signs_B)
    for W_dd, U_Td in zip(task.heads.W, task.heads.U, strict=True):
        logits_BTS = torch.bmm(tokens_BTd @ W_dd, turned_BdT)
        output_B = output_B + attended_mean(logits_BTS, U_Td @ turned_BdT).sum(1)
    return nn.functional.softplus(-signs_B * output_B / sqrt(H)).mean()
