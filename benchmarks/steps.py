"""Steps of our optimizers on parameters with the shapes of BERT-base, against copying them once and against AdamW.

"Copying once" is ambiguous, so there are two baselines: a copy into existing tensors, which moves the fewest bytes, and
`p.clone()`, which also allocates memory. The floor is the least work of a step that depends on all gradients: read them
all, then update.
"""

from typing import Any

import torch
from torch import nn
from transformers import BertConfig, BertModel

from benchmarks.timing import Case, Cases, ratios, timed
from optimizers import SNGD, SPS, Muon


def optimizers(quick: bool, device: str) -> Cases:
    """Time of a step."""
    rounds = 3 if quick else 25
    with torch.device("meta"):
        shapes = [p.shape for p in BertModel(BertConfig()).parameters()]
    params = [nn.Parameter(torch.randn(shape, device=device) * 0.02) for shape in shapes]
    for p in params:
        p.grad = torch.randn_like(p)
    values, grads = [p.detach() for p in params], [p.grad for p in params if p.grad is not None]
    copies = [torch.empty_like(value) for value in values]
    lr, loss = 1e-6, torch.tensor(1.0, device=device)  # small, so that the values stay finite
    sngd: Any = SNGD(params, lr)  # the decorated step has lost its signature
    sps, adamw = SPS(params, lr), torch.optim.AdamW(params, lr, fused=True)
    sgd = torch.optim.SGD(params, lr, foreach=True)

    def floor() -> None:
        for grad in grads:
            grad.sum()
        sgd.step()

    steps = {"sngd": timed(sngd.step), "sps": timed(lambda: sps.step(loss=loss)), "the floor": timed(floor)}
    baselines: dict[str, Any] = {
        "p.clone()": (lambda: [value.clone() for value in values], 1.25),
        "a copy into allocated tensors": (lambda: torch._foreach_copy_(copies, values), 1.5),
        "AdamW(fused=True)": (adamw.step, 1),
    }
    for baseline, (function, bound) in baselines.items():
        for name, step in steps.items():
            limit = None if name == "the floor" else bound
            yield Case(f"a step of {name}", baseline, ratios(step, timed(function), rounds), limit)
    if device == "cuda":  # on a CPU, a step takes seconds
        matrices = [p for p in params if p.ndim == 2 and len(p) <= 3072]
        others = [p for p in params if not any(p is matrix for matrix in matrices)]
        muon: Any = Muon(matrices, lr=lr)
        rest = torch.optim.AdamW(others, lr=lr, fused=True)
        both = timed(lambda: (muon.step(), rest.step()))
        yield Case("muon, and AdamW for the rest", "AdamW(fused=True)", ratios(both, timed(adamw.step), rounds), 1)
