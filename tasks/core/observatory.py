"""Measurements of attention in real models during training (`--trainer.observe`).

`tasks.core.quantities` has the definitions. Dimensions: B rows, T queries, S keys, D width, H heads, K head size.
"""

from collections.abc import Callable, Mapping, Sequence
from math import nan
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from tasks.core.attention import Maps, Watched, watched_attention

# All of these are ours.
PROBE = 32  # rows of the probe batch
RANKED = 4  # rows whose attention rank is computed; few, since it is slow
SATURATED = 0.99  # largest attention weight from which a query counts as saturated
ENERGY = 0.99  # share of the sum of squared singular values that defines the attention rank
MOST_KEPT = 256 << 20  # bytes of W_Q and W_K kept to compare directions; a larger model keeps fewer layers


class Observer:
    """Measures attention during one run of a task with its data on the device, after these steps (`observed_steps`)."""

    def __init__(self, task: Any, steps: Sequence[int]) -> None:
        self.task, self.steps = task, list(steps)
        self.kept: dict[int, list[tuple[Tensor, Tensor]]] = {}  # by step; all that later measurements need

    def note(self, done: int, weights: Callable[[], Mapping[str, Tensor]]) -> dict[str, Tensor] | None:
        """Measure after a number of steps, if due.

        `weights` returns the trained weights by name, without gradients, unsharded. The result has values by name,
        0-dim float64, always under the same names; it is None if nothing is measured.
        """
        if done not in self.steps:
            return None
        now = {name: w.detach() for name, w in weights().items()}
        finite = all(bool(w.isfinite().all()) for w in now.values())
        mode = self.task.training
        self.task.eval()
        values = self._measured(done, now if finite else {name: torch.zeros_like(w) for name, w in now.items()})
        self.task.train(mode)
        return values if finite else {name: torch.full_like(value, nan) for name, value in values.items()}

    @torch.no_grad()
    def _measured(self, done: int, now: dict[str, Tensor]) -> dict[str, Tensor]:
        batch = self.task.data.batch("train", slice(0, min(PROBE, self.task.data.sizes["train"])))
        with watched_attention() as layers:
            functional_call(self.task, now, (batch,))
        maps_of_layers = self.task.maps(now)
        values = self._directions(done, maps_of_layers)
        for i, (watched, maps) in enumerate(zip(layers, maps_of_layers, strict=True)):
            for name, by_head in {**attention_of(watched), **norms_of(maps)}.items():
                values |= {f"{name}_l{i}_h{h}": value for h, value in enumerate(by_head)}
        return {name: value.double() for name, value in values.items()}

    def _directions(self, done: int, layers: Sequence[Maps]) -> dict[str, Tensor]:
        """Cosines of W_QK with its value at each measured step; NaN for later steps."""
        size = sum(m.q.numel() + m.k.numel() for m in layers) * layers[0].q.element_size() * len(self.steps)
        every = -(-size // MOST_KEPT)
        self.kept[done] = [(m.q.clone(), m.k.clone()) for m in layers[::every]]
        values = {}
        for step in self.steps:
            then = self.kept.get(step)
            for i, (q, k) in enumerate(self.kept[done]):
                cosines = q.new_full((len(q),), nan) if then is None else cosine_of_products((q, k), then[i])
                values |= {f"direction_at_{step}_l{i * every}_h{h}": value for h, value in enumerate(cosines)}
        return values


def attention_of(watched: Watched) -> dict[str, Tensor]:
    """Measurements of a layer's attention, by name: shape (H,) each; padding is excluded."""
    logits_BHTS, seen_BTS = watched
    a_BHTS = logits_BHTS.softmax(-1)
    token_BT = seen_BTS.diagonal(dim1=-2, dim2=-1)  # a token sees itself, and padding is not seen
    a_BHTS = torch.where((token_BT[..., None] & seen_BTS)[:, None], a_BHTS, 0)
    queries = token_BT.sum()

    def mean(values_BHT: Tensor) -> Tensor:
        return torch.where(token_BT[:, None], values_BHT, 0).sum((0, 2)) / queries

    top_BHT = a_BHTS.amax(-1)
    keys_BT = seen_BTS.sum(-1).clamp(min=1)
    logits_BHTS = torch.where(seen_BTS[:, None], logits_BHTS, 0)
    centred = torch.where(seen_BTS[:, None], logits_BHTS - (logits_BHTS.sum(-1) / keys_BT[:, None])[..., None], 0)
    spread_BHT = centred.square().sum(-1) / keys_BT[:, None]
    on_token_BHS = a_BHTS.sum(2) / token_BT.sum(-1)[:, None, None].clamp(min=1)
    grams_BHTT, bad_BH = _finite(a_BHTS[:RANKED] @ a_BHTS[:RANKED].mT)
    squares_BHT = torch.linalg.eigvalsh(grams_BHTT).flip(-1).clamp(min=0)
    energy_BHT = squares_BHT.cumsum(-1) / squares_BHT.sum(-1, keepdim=True)
    rank_BH = (energy_BHT < ENERGY).sum(-1) + 1 + bad_BH
    return {
        "entropy": mean(-torch.special.xlogy(a_BHTS, a_BHTS).sum(-1)),
        "greatest": mean(top_BHT),
        "top_token": on_token_BHS.amax(-1).mean(0),
        "rank": rank_BH.mean(0),
        "logit_scale": mean(spread_BHT).sqrt(),
        "saturated": mean((top_BHT > SATURATED).to(a_BHTS.dtype)),
    }


def norms_of(maps: Maps) -> dict[str, Tensor]:
    """Norms of a layer's maps, and of W_QK, by name: shape (H,) each."""
    # W_Q^T W_K has the singular values of R_Q R_K^T, where W_Q^T and W_K^T are Q R.
    inner = torch.linalg.qr(maps.q.mT, "r").R @ torch.linalg.qr(maps.k.mT, "r").R.mT
    inner, bad = _finite(inner)
    squares = torch.linalg.svdvals(inner).square() + bad[:, None]
    norms = {f"norm_{name}": m.flatten(1).norm(dim=1) for name, m in zip("QKVO", maps, strict=True)}
    total = squares.sum(-1)
    return norms | {"norm_QK": total.sqrt(), "stable_rank_QK": total / squares.amax(-1)}


def cosine_of_products(now: tuple[Tensor, Tensor], then: tuple[Tensor, Tensor]) -> Tensor:
    """Cosine of W_Q^T W_K with its earlier value, for each head: shape (H,); W_Q and W_K of shape (H, K, D)."""

    def inner(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> Tensor:
        # <A_Q^T A_K, B_Q^T B_K> = <B_Q A_Q^T, B_K A_K^T>, both K x K.
        return ((b[0] @ a[0].mT) * (b[1] @ a[1].mT)).sum((-2, -1))

    return inner(now, then) / (inner(now, now) * inner(then, then)).sqrt()


def _finite(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Finite matrices to decompose, and a term to add to the result: NaN where a matrix was not finite, else 0."""
    bad = ~matrices.isfinite().flatten(-2).all(-1)
    return torch.where(bad[..., None, None], 0, matrices), torch.where(bad, nan, matrices.new_zeros(()))
