"""Steps of our optimizers on parameters with the shapes of BERT-base, against copying them once and against AdamW.

"Copying once" is ambiguous, so there are two baselines: a copy into existing tensors, which moves the fewest bytes, and
`p.clone()`, which also allocates memory.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.profiler import ProfilerActivity, profile
from transformers import BertConfig, BertModel

from benchmarks.timing import Row, alternate, timed
from optimizers import SNGD, SPS, Muon, global_norm
from optimizers.hybrid import Hybrid


def measure(quick: bool, device: str = "cpu") -> list[Row]:
    """Time of a step, and bytes that it needs beyond parameters and gradients."""
    rounds = 3 if quick else 25
    params = bert_parameters(device)
    values = [p.detach() for p in params]
    copies = [torch.empty_like(value) for value in values]
    lr, loss = 1e-6, torch.tensor(1.0, device=device)  # small, so that the values stay finite
    grads = [p.grad for p in params if p.grad is not None]
    norm = global_norm(grads)
    sngd: Any = SNGD(params, lr)  # the decorated step has lost its signature
    sps = SPS(params, lr)
    sgd, adamw = torch.optim.SGD(params, lr, foreach=True), torch.optim.AdamW(params, lr, fused=True)
    ours: dict[str, Callable[[], Any]] = {"sngd": sngd.step, "sps": lambda: sps.step(loss=loss)}
    # In training, the suite has already computed the norm for the curve.
    known = {"sngd, norm given": lambda: sngd.step(loss_grad_norm=norm)}

    def two_passes() -> None:
        """The least work if the step depends on all gradients: read them all, then update."""
        for grad in grads:
            grad.sum()
        sgd.step()

    def recipe() -> None:
        """The two kernels, called by hand for a float32 model on one device."""
        whole = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
        torch._fused_sgd_(
            values,
            grads,
            [],
            weight_decay=0.0,
            momentum=0.0,
            lr=lr / whole,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=False,
        )

    others: dict[str, Callable[[], Any]] = {"SGD(foreach=True)": sgd.step, "AdamW(fused=True)": adamw.step}

    total = sum(value.nbytes for value in values)
    counted = {**ours, **others} if device == "cpu" else {}
    shares = {name: 100 * extra_bytes(step) / total for name, step in counted.items()}
    copy = timed(lambda: torch._foreach_copy_(copies, values))
    clone = timed(lambda: [value.clone() for value in values])
    by_hand = {"floor: sum the gradients, then SGD": two_passes, "_foreach_norm, then _fused_sgd_": recipe}
    to_copy = alternate(
        copy, {name: timed(step) for name, step in {**ours, **known, **by_hand, **others}.items()}, rounds
    )
    to_clone = alternate(clone, {name: timed(step) for name, step in ours.items()}, rounds)
    to_adamw = alternate(timed(adamw.step), {name: timed(step) for name, step in ours.items()}, rounds)
    to_floor = alternate(timed(two_passes), {name: timed(step) for name, step in ours.items()}, rounds)
    return [
        *(Row(n, "clones of the parameters", m.ratios, 1.5) for n, m in to_clone.items()),
        *(Row(n, "copy into ready tensors", m.ratios, 1.5 if n in ours else None) for n, m in to_copy.items()),
        *(Row(n, "AdamW(fused=True)", m.ratios, 1) for n, m in to_adamw.items()),
        *(Row(n, "floor", m.ratios) for n, m in to_floor.items()),
        *(
            Row(f"{n}, state and temporaries", "bytes of the parameters", [x], 2 if n in ours else None, unit="%")
            for n, x in shares.items()
        ),
        *_hybrids(rounds, device),
    ]


def _hybrids(rounds: int, device: str) -> list[Row]:
    """A step of two methods as one optimizer against the steps of both, on a small model: overhead counts most."""
    pairs: dict[str, Callable[[list[nn.Parameter]], Optimizer]] = {
        "muon": lambda params: Muon(params, 1e-6),
        "sngd": lambda params: SNGD(params, 1e-6),
        "sgd": lambda params: torch.optim.SGD(params, 1e-6, momentum=0.9),
    }
    rows = []
    for name, make in pairs.items():
        params = decoder_parameters(device)
        matrices, rest = [p for p in params if p.ndim == 2], [p for p in params if p.ndim < 2]
        apart = [make(matrices), torch.optim.AdamW(rest, 1e-6)]
        together = Hybrid([make(matrices), torch.optim.AdamW(rest, 1e-6)])

        def steps(parts: list[Optimizer] = apart) -> None:
            for part in parts:
                part.step()

        # A step takes 1 to 20 ms.
        found = alternate(timed(steps, 20), {name: timed(together.step, 20)}, 4 * rounds)[name]
        rows.append(Row(f"{name} with adamw for the rest", "steps of the two", found.ratios, 1.1))
    return rows


def decoder_parameters(device: str = "cpu") -> list[nn.Parameter]:
    """Random parameters and gradients with the shapes of the hidden layers of the task `lm`."""
    width, layers = 128, 4
    layer = [(3 * width, width), (width, width), (4 * width, width), (width, 4 * width)]
    layer += [(3 * width,), (width,), (4 * width,), (width,), *[(width,)] * 4]
    return _random(layers * layer, device)


def bert_parameters(device: str = "cpu") -> list[nn.Parameter]:
    """Random parameters and gradients with the shapes of BERT-base."""
    with torch.device("meta"):
        shapes = [p.shape for p in BertModel(BertConfig()).parameters()]
    return _random(shapes, device)


def _random(shapes: Sequence[tuple[int, ...]], device: str) -> list[nn.Parameter]:
    """Parameters with these shapes, and their gradients."""
    params = [nn.Parameter(torch.randn(shape, device=device) * 0.02) for shape in shapes]
    for p in params:
        p.grad = torch.randn_like(p)
    return params


def extra_bytes(step: Callable[[], Any]) -> int:
    """Peak of live allocations during two steps, including state that the first one creates."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
        step()
    assert profiler.profiler is not None
    events: Any = profiler.profiler.kineto_results.events()  # pyright: ignore
    live = peak = 0
    for event in sorted((e for e in events if e.name() == "[memory]"), key=lambda e: e.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak
