"""Runs that would not do what their settings say are refused before anything is loaded."""

from typing import Any

import pytest
import torch
from torch import Tensor

from bench.config.checks import check
from bench.config.run_config import resolve
from bench.errors import UserError
from bench.store.store import Store
from optimizers import OPTIMIZERS, OptimizerSpec, Traits


class Plain(torch.optim.SGD):
    """Takes only a closure."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, lr=lr)


class Told(Plain):
    """Also takes a norm."""

    def step(self, closure: Any = None, *, grad_norm: Any = None) -> Any:
        return super().step(closure)


@pytest.fixture
def refusal(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The error for a run of an optimizer with this class and these traits."""

    def refuse(cls: str, traits: Traits, **words: Any) -> str:
        spec = OptimizerSpec("extra", f"tests.test_checks:{cls}", "formula", "source", traits=traits)
        monkeypatch.setitem(OPTIMIZERS, "extra", spec)
        settings = {"task": "synthetic", "opt": "extra", "device": "cpu"}
        try:
            check(resolve(settings | {name.replace("__", "."): value for name, value in words.items()}))
        except UserError as error:
            return str(error)
        return ""

    return refuse


def test_a_plain_optimizer_passes(refusal: Any) -> None:
    assert refusal("Plain", Traits(), precision="16-mixed", trainer__gradient_clip_val=1) == ""
    assert refusal("Told", Traits(needs_loss=True)) == ""


def test_a_loss_aware_step_that_is_not_told_the_norm_is_refused_with_clipping(refusal: Any) -> None:
    said = refusal("Plain", Traits(needs_loss=True), trainer__gradient_clip_val=1)
    assert "--trainer.gradient_clip_val: extra computes its step from loss and gradient" in said
    assert "with the gradient clipped the step would be wrong" in said


def test_a_method_that_evaluates_again_is_refused_where_that_cannot_be_followed(refusal: Any) -> None:
    again = Traits(calls_closure_again=True)
    assert refusal("Plain", again) == ""
    assert "--precision 16-mixed: extra evaluates the loss several times a step" in refusal(
        "Plain", again, precision="16-mixed"
    )
    assert "a norm computed before the step belongs to another point" in refusal("Told", again)


def test_a_full_batch_method_is_refused_a_smaller_batch(refusal: Any) -> None:
    assert refusal("Plain", Traits(full_batch=True)) == ""
    assert "--trainer.batch_size 5: extra is a full-batch method" in refusal(
        "Plain", Traits(full_batch=True), trainer__batch_size=5
    )


def test_fsdp_with_a_gradient_scaler_is_refused(refusal: Any) -> None:
    assert "use bf16-mixed" in refusal("Plain", Traits(), precision="16-mixed", trainer__strategy="fsdp")


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
    answer = cli("fit", "--task", "synthetic", "--opt", f"tests.test_checks:{name}", "--trainer.max_steps", 5)
    run = next(run for run in Store(store).runs() if run.opt.endswith(f":{name}"))
    return answer, Store(store).tables(run.run_id)["curve"] if answer.code == 0 else None


@pytest.mark.parametrize("name", ["ClearsFirst", "ChangesLoss", "ReusesTensors"])
def test_a_step_may_use_torchs_whole_protocol(name: str, cli: Any, store: Any) -> None:
    (_, plain), (answer, curve) = (curve_of(method, cli, store) for method in ("Plain", name))
    assert answer.code == 0
    assert list(curve["loss"]) == list(plain["loss"])
    assert list(curve["applied_step"]) == ([1, 2, 3, 4, 5] if name == "ReusesTensors" else [0.1] * 5)


@pytest.mark.parametrize(("name", "reason"), [("NeverMoves", "never changes a weight"), ("StepsInHooks", "in hooks")])
def test_a_method_that_does_not_train_in_its_step_fails(name: str, reason: str, cli: Any, store: Any) -> None:
    answer, _ = curve_of(name, cli, store)
    assert answer.code == 1
    assert reason in answer.err
