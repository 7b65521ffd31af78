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
CURVED = 4  # the Hessian uses 1 / CURVED of a batch, so that it costs only a few steps
CHUNKS = 4  # parts of the probe batch whose gradients estimate the gradient noise
LANCZOS = 12  # products with the Hessian for its largest eigenvalue
BLOCK = 1 << 16  # elements that are summed in the tensors' own precision; sums of blocks are added in float64
RANKED = 4  # rows whose attention rank is computed; few, since it is slow
SATURATED = 0.99  # largest attention weight from which a query counts as saturated
ENERGY = 0.99  # share of the sum of squared singular values that defines the attention rank
MOST_KEPT = 256 << 20  # bytes of W_Q and W_K kept to compare directions; a larger model keeps fewer layers


class Observer:
    """Measures attention during one run of a task with its data on the device, after these steps (`observed_steps`).

    The Hessian is measured at every second of them, counted from the last, since it takes most of the time.
    """

    def __init__(self, task: Any, steps: Sequence[int]) -> None:
        self.task, self.steps = task, list(steps)
        self.rows = min(PROBE, task.data.sizes["train"]) // CHUNKS * CHUNKS
        self.curved_rows = min(self.rows, max(1, task.plan.batch_size // CURVED))
        self.parameters = task.parameter_roles()
        self.names = [parameter.name for parameter in self.parameters]
        self.curved = set(self.steps[::-2])
        self.wanted = {step - back for step in steps for back in range(3)}
        self.recent: dict[int, dict[str, Tensor]] = {}
        self.kept: dict[int, list[tuple[Tensor, Tensor]]] = {}

    def state_dict(self) -> dict[str, Any]:
        """The state that later measurements need."""
        return {"recent": self.recent, "kept": self.kept}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore that state."""
        self.recent, self.kept = dict(state["recent"]), dict(state["kept"])

    def note(self, done: int, weights: Callable[[], Mapping[str, Tensor]]) -> dict[str, Tensor] | None:
        """Store the weights after a number of steps if needed, and measure if due; called once for each, in order.

        `weights` returns the trained weights by name, without gradients, unsharded; they are copied. The result has
        values by name, 0-dim float64, always under the same names; it is None if nothing is measured.
        """
        if done not in self.wanted:
            return None
        now = {name: w.detach().clone() for name, w in weights().items()}
        self.recent = {step: w for step, w in self.recent.items() if step >= done - 2} | {done: now}
        if done not in self.steps:
            return None
        finite = all(bool(w.isfinite().all()) for w in now.values())
        mode = self.task.training
        self.task.eval()
        values = self._measured(done, now if finite else {name: torch.zeros_like(w) for name, w in now.items()})
        self.task.train(mode)
        return values if finite else {name: torch.full_like(value, nan) for name, value in values.items()}

    # -- inside -----------------------------------------------------------------------------------------------------

    def _measured(self, done: int, now: dict[str, Tensor]) -> dict[str, Tensor]:
        batch = self.task.data.batch("train", slice(0, self.rows))
        values: dict[str, Tensor] = {}
        with torch.no_grad(), watched_attention() as layers:
            functional_call(self.task, now, (batch,))
            maps_of_layers = self.task.maps(now)
            for i, (watched, maps) in enumerate(zip(layers, maps_of_layers, strict=True)):
                for name, by_head in {**attention_of(watched), **norms_of(maps)}.items():
                    values |= {f"{name}_l{i}_h{h}": value for h, value in enumerate(by_head)}
            values |= self._directions(done, maps_of_layers)
            values |= self._updates(done)
        values |= self._gradients(now) | self._curvature(done, now)
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

    def _updates(self, done: int) -> dict[str, Tensor]:
        """Cosine of the last two updates, and the last one relative to the weights; NaN before there are any."""
        now, roles = self.recent[done], {parameter.role for parameter in self.parameters}
        values = dict.fromkeys(("update_cosine", *(f"update_ratio_{role}" for role in sorted(roles))), _absent(now))
        last, before = self._update(done), self._update(done - 1)
        if last is None:
            return values
        for role in roles:
            places = [i for i, parameter in enumerate(self.parameters) if parameter.role == role]
            weights = _flat([now[self.names[i]] for i in places])
            values[f"update_ratio_{role}"] = _norm(_flat([last[i] for i in places])) / _norm(weights)
        if before is not None:
            u, v = _flat(last), _flat(before)
            values["update_cosine"] = _inner(u[None], v)[0] / (_norm(u) * _norm(v))
        return values

    def _update(self, done: int) -> list[Tensor] | None:
        """The last update of each trained parameter; None if unknown."""
        if not {done, done - 1} <= self.recent.keys():
            return None
        return [self.recent[done][name] - self.recent[done - 1][name] for name in self.names]

    def _gradients(self, now: dict[str, Tensor]) -> dict[str, Tensor]:
        """|G|^2 and tr(Sigma) from the gradients of the parts of the probe batch and of all of it."""
        size = self.rows // CHUNKS
        parts = [self.task.data.batch("train", slice(i * size, (i + 1) * size)) for i in range(CHUNKS)]
        flat = torch.stack([_flat(self._gradient(now, part)[1]) for part in parts])
        small, big = flat.square().sum(1).mean(), flat.mean(0).square().sum()
        square = (self.rows * big - size * small) / (self.rows - size)
        noise = (small - big) / (1 / size - 1 / self.rows)
        scale = torch.where(square > 0, noise / square, nan)
        return {"gradient_square": square, "gradient_noise": noise, "noise_scale": scale}

    def _gradient(
        self, now: Mapping[str, Tensor], batch: Any, *, create_graph: bool = False
    ) -> tuple[list[Tensor], tuple[Tensor, ...]]:
        """The trained parameters as leaves, and the gradient of the loss with respect to them."""
        leaves = {name: now[name].detach().requires_grad_() for name in self.names}
        with torch.enable_grad(), watched_attention():  # its operations can be differentiated twice
            loss = functional_call(self.task, {**now, **leaves}, (batch,)).loss
            grads = torch.autograd.grad(loss, list(leaves.values()), create_graph=create_graph)
        return list(leaves.values()), grads

    def _curvature(self, done: int, now: dict[str, Tensor]) -> dict[str, Tensor]:
        values = {name: _absent(now) for name in ("sharpness", "curvature", "edge")}
        if done not in self.curved:
            return values
        batch = self.task.data.batch("train", slice(0, self.curved_rows))
        leaves, grads = self._gradient(now, batch, create_graph=True)

        def times(v: Tensor) -> Tensor:
            """The Hessian times v."""
            pieces = v.split([leaf.numel() for leaf in leaves])
            shaped = [piece.view_as(leaf) for piece, leaf in zip(pieces, leaves, strict=True)]
            return _flat(torch.autograd.grad(grads, leaves, shaped, retain_graph=True))

        values["sharpness"] = greatest_eigenvalue(times, _flat(grads).detach(), LANCZOS)
        before = self.recent.get(done - 1)
        if before is not None:
            u = torch.cat([(now[name] - before[name]).flatten() for name in self.names])
            (bend,), (slope,), (square,) = (_inner(u[None], v) for v in (times(u), _flat(grads).detach(), u))
            values |= {"curvature": bend / square, "edge": bend / (bend - slope)}
        return values


# -- heads ------------------------------------------------------------------------------------------------------------


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


# -- curvature --------------------------------------------------------------------------------------------------------


def greatest_eigenvalue(times: Callable[[Tensor], Tensor], start: Tensor, steps: int) -> Tensor:
    """The largest eigenvalue of a symmetric matrix, from below, by this many steps of Lanczos' method: shape ().

    `times` multiplies the matrix with a vector; the first vector has shape (n,), and is all ones where `start` is zero.
    """
    steps = min(steps, len(start))
    basis, T = start.new_zeros(steps, len(start)), start.new_zeros(steps, steps)  # T's upper triangle is filled
    v, eps = torch.where(_norm(start) > 0, start, 1), torch.finfo(start.dtype).eps
    v = v / _norm(v)
    for k in range(steps):
        basis[k] = v
        known, Hv = basis[: k + 1], times(v)
        T[: k + 1, k] = inner = _inner(known, Hv)
        T[k, k] = torch.where(v.any(), inner[-1], T[0, 0])  # once nothing is left, 0 is no eigenvalue
        rest = torch.addmv(Hv, known.T, inner, alpha=-1)
        rest.addmv_(known.T, _inner(known, rest), alpha=-1)  # again, to remove rounding errors
        norm = _norm(rest)
        v = rest * torch.where(norm <= 100 * eps * _norm(Hv), 0, 1 / norm)  # zero once nothing but rounding is left
    T, bad = _finite(T)
    return torch.linalg.eigvalsh(T, UPLO="U")[-1] + bad


def _inner(rows: Tensor, v: Tensor) -> Tensor:
    """Inner products of rows with a vector, shape (k,), by blocks: one float32 sum over a large model loses digits."""
    blocks = zip(rows.split(BLOCK, 1), v.split(BLOCK), strict=True)
    return torch.stack([a @ b for a, b in blocks]).double().sum(0).to(v.dtype)


def _norm(v: Tensor) -> Tensor:
    return _inner(v[None], v).sqrt()[0]


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([t.flatten() for t in tensors])


def _absent(weights: Mapping[str, Tensor]) -> Tensor:
    return next(iter(weights.values())).new_tensor(nan)


def _finite(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Finite matrices to decompose, and a term to add to the result: NaN where a matrix was not finite, else 0."""
    bad = ~matrices.isfinite().flatten(-2).all(-1)
    return torch.where(bad[..., None, None], 0, matrices), torch.where(bad, nan, matrices.new_zeros(()))
