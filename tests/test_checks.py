"""Runs that would not do what their settings say are refused before anything is loaded."""

import re
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from bench.config.checks import check
from bench.config.run_config import resolve
from bench.errors import UserError
from optimizers import OPTIMIZERS, OptimizerSpec, Traits
from tests.stored import Store


class Plain(torch.optim.SGD):
    """Takes only a closure."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, lr=lr)


class TakesNorm(Plain):
    """Also takes a norm."""

    def step(self, closure: Any = None, *, grad_norm: Any = None) -> Any:
        return super().step(closure)


LOSS, AGAIN, FULL = Traits(needs_loss=True), Traits(calls_closure_again=True), Traits(full_batch=True)
GRAPH = Traits(create_graph=True)
CLIP, FP16 = {"trainer.gradient_clip_val": 1}, {"precision": "16-mixed"}


@pytest.mark.parametrize(
    ("cls", "traits", "settings", "message"),
    [
        ("Plain", Traits(), FP16 | CLIP, ""),
        ("TakesNorm", LOSS, {}, ""),
        ("Plain", LOSS, CLIP, "--trainer.gradient_clip_val: extra computes its step from loss and gradient"),
        ("Plain", AGAIN, {}, ""),
        ("Plain", AGAIN, FP16, "--precision 16-mixed: extra evaluates the loss several times a step"),
        ("TakesNorm", AGAIN, {}, "a norm computed before the step belongs to another point"),
        ("Plain", AGAIN, {"opt.rest": "adamw"}, "--opt.rest: extra evaluates the loss several times a step"),
        ("Plain", FULL, {}, ""),
        ("Plain", FULL, {"trainer.batch_size": 5}, "--trainer.batch_size 5: extra is a full-batch method"),
        ("Plain", Traits(), FP16 | {"trainer.strategy": "fsdp"}, "use bf16-mixed"),
        ("Plain", GRAPH, CLIP, "--trainer.gradient_clip_val: extra differentiates the gradients, and clipping"),
        ("Plain", Traits(), {"opt.lr": -1}, "--opt.lr=-1.0: Invalid learning rate: -1.0"),
    ],
)
def test_settings_that_a_run_could_not_follow_are_refused(
    monkeypatch: pytest.MonkeyPatch, cls: str, traits: Traits, settings: dict[str, Any], message: str
) -> None:
    spec = OptimizerSpec("extra", f"tests.test_checks:{cls}", "formula", "source", traits=traits)
    monkeypatch.setitem(OPTIMIZERS.built_in, "extra", spec)
    config = resolve({"task": "synthetic", "opt": "extra", "device": "cpu"} | settings)
    with pytest.raises(UserError, match=re.escape(message)) if message else nullcontext():
        check(config)


def test_a_dry_run_refuses_the_same_settings_as_a_run(cli: Any) -> None:
    for words in (["--opt.lr=-1"], ["--trainer.batch_size", "5"]):
        answer = cli("fit", "--task", "synthetic", "--opt", "ngd", "--dry-run", *words)
        assert (answer.code, answer.out) == (2, "")


class ClearsFirst(Plain):
    """Clears the gradients and then calls the closure, as torch documents."""

    def step(self, closure: Any = None) -> Any:
        self.zero_grad()
        with torch.enable_grad():
            loss = closure()
        super().step()
        return loss


class ChangesLoss(Plain):
    def step(self, closure: Any = None) -> Any:
        return super().step(closure).mul_(0)


class ReusesTensors(Plain):
    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, lr)
        self.step_sizes = (torch.zeros(()), torch.zeros(()))

    def step(self, closure: Any = None) -> Any:
        for size in self.step_sizes:
            size += 1
        return super().step(closure)


class NeverMoves(Plain):
    def step(self, closure: Any = None) -> Any:
        return closure()


class StepsInHooks(Plain):
    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, lr)
        for p in self.param_groups[0]["params"]:
            p.register_post_accumulate_grad_hook(self.move)

    def move(self, p: Tensor) -> None:
        with torch.no_grad():
            p.sub_(p.grad, alpha=0.1)


def curve_of(name: str, cli: Any, store: Any) -> Any:
    """The answer of a short run of an optimizer of this module, and its curve."""
    answer = cli(
        "fit", "--task", "synthetic", "--opt", f"tests.test_checks:{name}", "--trainer.max_steps", 5, "--device", "cpu"
    )
    run = next(run for run in Store(store).runs() if f".{name}-" in run.run_id)
    return answer, Store(store).tables(run.run_id)["curve"] if answer.code == 0 else None


@pytest.mark.parametrize(
    ("name", "sizes"),
    [("ClearsFirst", [0.1] * 5), ("ChangesLoss", [0.1] * 5), ("ReusesTensors", [1.0, 2.0, 3.0, 4.0, 5.0])],
)
def test_a_step_may_use_torchs_whole_protocol(name: str, sizes: list[float], cli: Any, store: Any) -> None:
    _, plain = curve_of("Plain", cli, store)
    _, curve = curve_of(name, cli, store)
    assert list(curve["loss"]) == list(plain["loss"])
    assert list(curve["applied_step"]) == sizes


@pytest.mark.parametrize(("name", "reason"), [("NeverMoves", "never changes a weight"), ("StepsInHooks", "in hooks")])
def test_a_method_that_does_not_train_in_its_step_fails(name: str, reason: str, cli: Any, store: Any) -> None:
    answer, _ = curve_of(name, cli, store)
    assert answer.code == 1
    assert reason in answer.err
