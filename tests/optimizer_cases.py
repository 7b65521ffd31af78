"""One entry or more for each registered optimizer: constructor arguments and its formula, transcribed to float64 numpy.

A transcription gets all weights and all gradients as one flat vector each, so it does not see shapes or groups. It is
written from the papers and torch's documentation, not from `optimizers/`. Its keywords are those of the constructor.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf, nan
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from optimizers import OPTIMIZERS

Vector = NDArray[np.float64]


# ---- The problem: binary classification with a small network whose four parameters differ in shape ------------------


SHAPES = ((4, 3), (3,), (3, 1), ())
_RANDOM = np.random.default_rng(0)
INPUTS_ND = _RANDOM.normal(size=(16, 4))
LABELS_N1 = np.where(_RANDOM.random(size=(16, 1)) < 0.5, -1.0, 1.0)
START = [_RANDOM.normal(size=shape) * 0.7 + 0.3 for shape in SHAPES]


def flat(arrays: list[Any]) -> Vector:
    """All elements in one vector."""
    return np.concatenate([np.asarray(a, dtype=np.float64).reshape(-1) for a in arrays])


MATRICES = 0, 2
"""The parameters that a method for matrices updates; the others keep their initial values."""


def loss_and_gradient(weights: Vector) -> tuple[float, Vector]:
    """Mean logistic loss of s * tanh(X A + b) v and its gradient, by hand; for A and v alone if b and s are fixed."""
    if len(weights) == 15:
        whole = flat([weights[:12], START[1], weights[12:], START[3]])
        loss, gradient = loss_and_gradient(whole)
        return loss, flat([gradient[:12], gradient[15:18]])
    a, b, v, s = (part.reshape(shape) for part, shape in zip(np.split(weights, [12, 15, 18]), SHAPES, strict=True))
    hidden = np.tanh(INPUTS_ND @ a + b)
    margin = LABELS_N1 * (s * (hidden @ v))
    by_output = -LABELS_N1 / (1 + np.exp(margin)) / len(LABELS_N1)
    by_hidden = by_output @ (s * v).T * (1 - hidden**2)
    by_weights = [
        INPUTS_ND.T @ by_hidden,
        by_hidden.sum(axis=0),
        s * hidden.T @ by_output,
        np.sum(by_output * (hidden @ v)),
    ]
    return float(np.log1p(np.exp(-margin)).mean()), flat(by_weights)


def begin(name: str) -> list[Any]:
    """The starting point of an optimizer: all parameters, or the matrices only."""
    return [START[i] for i in MATRICES] if OPTIMIZERS[name].traits.by_piece else START


def start(dtype: torch.dtype = torch.float64, name: str = "sgd") -> list[nn.Parameter]:
    """Fresh torch parameters at the starting point of an optimizer."""
    return [nn.Parameter(torch.tensor(a, dtype=dtype)) for a in begin(name)]


def _fixed(v: Any) -> tuple[Any, Any, Any]:
    return torch.tensor(START[1], dtype=v.dtype), v, torch.tensor(START[3], dtype=v.dtype)


def torch_loss(params: list[nn.Parameter]) -> Tensor:
    """The same loss, for autograd."""
    a, b, v, s = params if len(params) == 4 else (params[0], *_fixed(params[1]))
    inputs, labels = (torch.tensor(x, dtype=a.dtype) for x in (INPUTS_ND, LABELS_N1))
    return nn.functional.softplus(-labels * (s * (torch.tanh(inputs @ a + b) @ v))).mean()


# ---- Formulas: new weights from weights w, gradient g (vectors), loss, step k = 0, 1, ..., and memory (a dict) -------


def sgd(w, g, loss, k, memory, *, lr, momentum=0.0, weight_decay=0.0, nesterov=False):
    d = g + weight_decay * w
    memory["b"] = momentum * memory["b"] + d if k else d
    return w - lr * (d + momentum * memory["b"] if nesterov else memory["b"])


def sngd(w, g, loss, k, memory, *, lr, max_step=inf, momentum=0.0, weight_decay=0.0):
    norm = np.sqrt(np.sum(g * g))
    step_per_lr = min(1 / norm, max_step / lr)
    memory["b"] = momentum * memory.get("b", 0.0) + step_per_lr * g
    return (1 - lr * weight_decay) * w - lr * memory["b"]


def sps(w, g, loss, k, memory, *, lr=1.0, c=0.5, max_step=inf, f_star=0.0, gamma=0.0, batches_per_epoch=1):
    cap = gamma ** (1 / batches_per_epoch) * memory["step"] if gamma and k else max_step
    memory["step"] = min(max(loss - f_star, 0.0) / (c * np.sum(g * g)), cap)
    return w - lr * memory["step"] * g


def ps(w, g, loss, k, memory, *, lr=1.0, c=1.0, f_star=0.0):
    return w - lr * max(loss - f_star, 0.0) / (c * np.sum(g * g)) * g


def momo(w, g, loss, k, memory, *, lr, beta=0.9, f_star=0.0, weight_decay=0.0):
    new = {"f": loss, "d": g, "gamma": np.sum(g * w)}
    for name, value in new.items():
        memory[name] = beta * memory[name] + (1 - beta) * value if k else value
    d, grown = memory["d"], 1 + lr * weight_decay
    ahead = grown * (memory["f"] - f_star - memory["gamma"]) + np.sum(d * w)
    return (w - min(lr, max(ahead, 0.0) / np.sum(d * d)) * d) / grown


def adam(w, g, loss, k, memory, *, lr, betas=(0.9, 0.999), eps=1e-08, weight_decay=0.0):
    d = g + weight_decay * w
    memory["m"] = betas[0] * memory.get("m", 0.0) + (1 - betas[0]) * d
    memory["v"] = betas[1] * memory.get("v", 0.0) + (1 - betas[1]) * d * d
    m_hat, v_hat = memory["m"] / (1 - betas[0] ** (k + 1)), memory["v"] / (1 - betas[1] ** (k + 1))
    return w - lr * m_hat / (np.sqrt(v_hat) + eps)


def adamw(w, g, loss, k, memory, *, lr, weight_decay=0.01, **more):
    return adam(w, g, loss, k, memory, lr=lr, **more) - lr * weight_decay * w


def sfadamw(w, g, loss, k, memory, *, lr, betas=(0.9, 0.999), eps=1e-08, weight_decay=0.0, warmup_steps=0):
    rate = lr * min(1.0, (k + 1) / max(1, warmup_steps))
    memory["rates"] = [*memory.get("rates", []), rate]
    memory["v"] = betas[1] * memory.get("v", 0.0) + (1 - betas[1]) * g * g
    move = g / (np.sqrt(memory["v"] / (1 - betas[1] ** (k + 1))) + eps) + weight_decay * w
    memory["z"] = memory.get("z", w) - rate * move
    weights = np.square(memory["rates"])
    share = weights[-1] / weights.sum()
    memory["x"] = (1 - share) * memory.get("x", w) + share * memory["z"]
    return (1 - betas[0]) * memory["z"] + betas[0] * memory["x"]


def muon(w, g, loss, k, memory, *, lr, momentum=0.95, nesterov=True, weight_decay=0.0, ns_steps=5, adjust="original"):
    memory["b"] = momentum * memory.get("b", 0.0) + (1 - momentum) * g
    ahead = (1 - momentum) * g + momentum * memory["b"] if nesterov else memory["b"]
    moves = []
    for part, shape in zip(np.split(ahead, [12]), (SHAPES[i] for i in MATRICES), strict=True):
        u, singular, vt = np.linalg.svd(part.reshape(shape), full_matrices=False)
        singular /= np.sqrt(np.sum(singular**2))
        for _ in range(ns_steps):
            singular = 3.4445 * singular - 4.7750 * singular**3 + 2.0315 * singular**5
        rows, columns = shape
        scale = np.sqrt(max(1, rows / columns)) if adjust == "original" else 0.2 * np.sqrt(max(shape))
        moves.append(scale * (u * singular) @ vt)
    return (1 - lr * weight_decay) * w - lr * flat(moves)


def separate_ngd(w, g, loss, k, memory, *, lr, power=0.0):
    parts = np.split(g, [12, 15, 18])
    return w - lr * (k + 1) ** -power * np.concatenate([part / np.linalg.norm(part) for part in parts])


def length_sps(w, g, loss, k, memory, *, lr, c=0.5, max_length=inf, f_star=0.0):
    norm = np.linalg.norm(g)
    return w - lr * min(max(loss - f_star, 0.0) / (c * norm**2), max_length / norm) * g


# ---- Cases -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A registered optimizer with one choice of arguments.

    Attributes:
        name: the key in OPTIMIZERS.
        formula: the transcription.
        arguments: for the constructor and the transcription; `lr` is always among them.
        cap_binds: whether, within 20 steps, the step cap is active on some steps and inactive on others.
    """

    name: str
    formula: Callable[..., Vector]
    arguments: dict[str, Any] = field(default_factory=dict)
    cap_binds: bool = False

    def __str__(self) -> str:
        return "-".join([self.name, *(f"{k}={v}" for k, v in self.arguments.items())])


CASES = [
    Case("gd", sgd, {"lr": 0.5}),
    Case("gd", sgd, {"lr": 0.1, "momentum": 0.9}),
    Case("sgd", sgd, {"lr": 0.5}),
    Case("sgd", sgd, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.05}),
    Case("sgd", sgd, {"lr": 0.1, "momentum": 0.8, "nesterov": True}),
    Case("ngd", sngd, {"lr": 0.05}),
    Case("ngd", sngd, {"lr": 0.05, "momentum": 0.5, "weight_decay": 0.2}),
    Case("sngd", sngd, {"lr": 0.05}),
    Case("sngd", sngd, {"lr": 0.2, "max_step": 0.8}, cap_binds=True),
    Case("sngd", sngd, {"lr": 0.05, "momentum": 0.9}),
    Case("sngd", sngd, {"lr": 0.1, "max_step": 0.5, "momentum": 0.5, "weight_decay": 0.3}, cap_binds=True),
    Case("ps", ps, {"lr": 0.1}),
    Case("ps", ps, {"lr": 0.5, "c": 4.0, "f_star": 0.2}),
    Case("sps", sps, {"lr": 0.2, "c": 2.0}),
    Case("sps", sps, {"lr": 0.2, "max_step": 15.0}, cap_binds=True),
    Case("sps", sps, {"lr": 0.2, "f_star": 0.2, "max_step": 12.0}, cap_binds=True),
    Case("sps", sps, {"lr": 1.0, "gamma": 2.0, "batches_per_epoch": 4, "max_step": 0.5}, cap_binds=True),
    Case("sps", sps, {"lr": 0.5, "gamma": 1.5, "c": 8.0}, cap_binds=True),
    Case("momo", momo, {"lr": 5.0}, cap_binds=True),
    Case("momo", momo, {"lr": 1.0, "beta": 0.5, "f_star": 0.2, "weight_decay": 0.1}),
    Case("momo", momo, {"lr": 0.5, "beta": 0.0}),
    Case("adam", adam, {"lr": 0.02}),
    Case("adam", adam, {"lr": 0.02, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.1}),
    Case("adamw", adamw, {"lr": 0.02}),
    Case("adamw", adamw, {"lr": 0.02, "weight_decay": 0.3}),
    Case("sgdm", sgd, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    Case("sfadamw", sfadamw, {"lr": 0.02}),
    Case("sfadamw", sfadamw, {"lr": 0.02, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.1, "warmup_steps": 5}),
    Case("muon", muon, {"lr": 0.02}),
    Case("muon", muon, {"lr": 0.01, "momentum": 0.5, "nesterov": False, "weight_decay": 0.3}),
    Case("muon", muon, {"lr": 0.02, "momentum": 0.9, "ns_steps": 3, "adjust": "rms"}),
]

SEPARATE, LENGTH = "optimizers.readings:SEPARATE_NGD", "optimizers.readings:LENGTH_SPS"
CASES += [
    Case(SEPARATE, separate_ngd, {"lr": 0.05}),
    Case(SEPARATE, separate_ngd, {"lr": 0.1, "power": 2 / 3}),
    Case(LENGTH, length_sps, {"lr": 0.5, "c": 2.0, "max_length": 0.3, "f_star": 0.1}, cap_binds=True),
    Case(LENGTH, length_sps, {"lr": 0.2, "c": 2.0}),
]

BELOW_0 = (-1e-9, -1.0, -inf, nan)
ILLEGAL: list[tuple[str, str, tuple[float, ...], str]] = [
    # optimizer, hyperparameter, illegal values, legal range as the error states it
    ("sngd", "lr", (*BELOW_0, inf), "[0, inf)"),
    ("sngd", "max_step", (*BELOW_0, 0.0), "(0, inf]"),
    ("sngd", "momentum", (*BELOW_0, 1.001, inf), "[0, 1]"),
    ("sngd", "weight_decay", (*BELOW_0, inf), "[0, inf)"),
    ("sps", "lr", (*BELOW_0, inf), "[0, inf)"),
    ("sps", "c", (*BELOW_0, 0.0, inf), "(0, inf)"),
    ("sps", "max_step", (*BELOW_0, 0.0), "(0, inf]"),
    ("sps", "f_star", (nan, inf, -inf), "(-inf, inf)"),
    ("sps", "gamma", (*BELOW_0, 0.5, 1.0, inf), "(1, inf)"),
    ("sps", "batches_per_epoch", (*BELOW_0, 0, 0.5, inf), "[1, inf)"),
    ("momo", "lr", (*BELOW_0, inf), "[0, inf)"),
    ("momo", "beta", (*BELOW_0, 1.0, inf), "[0, 1)"),
    ("momo", "f_star", (nan, inf, -inf), "(-inf, inf)"),
    ("momo", "weight_decay", (*BELOW_0, inf), "[0, inf)"),
]


MORE_ARGUMENTS: list[tuple[str, dict[str, Any]]] = [
    # Arguments that only affect torch's own classes; the pure updates are compared with those classes.
    ("gd", {"lr": 0.3, "maximize": True, "weight_decay": 0.1}),
    ("sgd", {"lr": 0.2, "momentum": 0.7, "dampening": 0.3}),
    ("sgd", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1, "maximize": True}),
    ("adam", {"lr": 0.02, "amsgrad": True, "betas": (0.5, 0.5)}),
    ("adam", {"lr": 0.02, "maximize": True, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("adam", {"lr": 0.02, "betas": (0.0, 0.9)}),
    ("adamw", {"lr": 0.02, "amsgrad": True, "maximize": True, "betas": (0.9, 0.0), "eps": 1e-3}),
]

_DECAY = {"weight_decay": (0.0, 0.2)}
_SGD_VALUES = {"lr": (0.05, 0.4), "momentum": (0.0, 0.3, 0.9), "dampening": (0.0, 0.4), **_DECAY}
_ADAM_VALUES = {"lr": (0.003, 0.05), "betas": ((0.9, 0.999), (0.0, 0.95), (0.6, 0.0)), "eps": (1e-8, 1e-2), **_DECAY}
_NGD_VALUES = {"lr": (0.02, 0.2), "momentum": (0.0, 0.3, 1.0), **_DECAY}
_PS_VALUES = {"lr": (0.05, 0.4), "c": (0.5, 3.0), "f_star": (-0.2, 0.0, 0.2)}
VALUES: dict[str, dict[str, tuple[Any, ...]]] = {
    # optimizer -> its float hyperparameters -> legal values, including 0 if it is legal and turns something off
    "gd": _SGD_VALUES,
    "sgd": _SGD_VALUES,
    "ngd": _NGD_VALUES,
    "sngd": {**_NGD_VALUES, "max_step": (inf, 0.3, 1.0)},
    "ps": _PS_VALUES,
    "sps": {**_PS_VALUES, "max_step": (inf, 3.0, 15.0), "gamma": (0.0, 1.3, 2.0)},
    "adam": _ADAM_VALUES,
    "adamw": _ADAM_VALUES,
    "sfadamw": _ADAM_VALUES,
    "sgdm": {**_SGD_VALUES, "momentum": (0.3, 0.9), "dampening": (0.0,)},  # Nesterov allows no other
    "momo": {"lr": (0.3, 2.0), "beta": (0.0, 0.5, 0.9), "f_star": (-0.2, 0.0, 0.2), **_DECAY},
    "muon": {"lr": (0.005, 0.05), "momentum": (0.0, 0.5, 0.95), **_DECAY},
    SEPARATE: {"lr": (0.02, 0.2), "power": (0.0, 0.5, 1.0)},
    LENGTH: {**_PS_VALUES, "max_length": (inf, 0.1, 0.5)},
}
