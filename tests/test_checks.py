"""Runs that would not do what their settings say are refused before anything is loaded."""

from typing import Any

import pytest
import torch

from bench.config.checks import check
from bench.config.run_config import resolve
from bench.errors import UserError
from optimizers import OPTIMIZERS, OptimizerSpec, Traits


class Plain(torch.optim.SGD):
    """Takes only a closure."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, lr=lr)


class Told(Plain):
    """Also takes a norm."""

    def step(self, closure: Any = None, *, grad_norm: Any = None) -> Any:
        return super().step(closure)


LOSS, AGAIN, FULL = Traits(needs_loss=True), Traits(calls_closure_again=True), Traits(full_batch=True)
GRAPH = Traits(create_graph=True)
CLIP, FP16 = {"trainer.gradient_clip_val": 1}, {"precision": "16-mixed"}


@pytest.mark.parametrize(
    ("cls", "traits", "words", "message"),
    [
        ("Plain", Traits(), FP16 | CLIP, ""),
        ("Told", LOSS, {}, ""),
        ("Plain", LOSS, CLIP, "--trainer.gradient_clip_val: extra computes its step from loss and gradient"),
        ("Plain", AGAIN, {}, ""),
        ("Plain", AGAIN, FP16, "--precision 16-mixed: extra evaluates the loss several times a step"),
        ("Told", AGAIN, {}, "a norm computed before the step belongs to another point"),
        ("Plain", AGAIN, {"opt.rest": "adamw"}, "--opt.rest: extra evaluates the loss several times a step"),
        ("Plain", FULL, {}, ""),
        ("Plain", FULL, {"trainer.batch_size": 5}, "--trainer.batch_size 5: extra is a full-batch method"),
        ("Plain", Traits(), FP16 | {"trainer.strategy": "fsdp"}, "use bf16-mixed"),
        ("Plain", GRAPH, CLIP, "--trainer.gradient_clip_val: extra differentiates the gradients, and clipping"),
        ("Plain", Traits(), {"opt.lr": -1}, "--opt.lr=-1.0: Invalid learning rate: -1.0"),
    ],
)
def test_what_would_not_do_as_told_is_refused(
    monkeypatch: pytest.MonkeyPatch, cls: str, traits: Traits, words: dict[str, Any], message: str
) -> None:
    spec = OptimizerSpec("extra", f"tests.test_checks:{cls}", "formula", "source", traits=traits)
    monkeypatch.setitem(OPTIMIZERS, "extra", spec)
    config = resolve({"task": "synthetic", "opt": "extra", "device": "cpu"} | words)
    if message:
        with pytest.raises(UserError) as error:
            check(config)
        assert message in str(error.value)
    else:
        check(config)


def test_a_dry_run_refuses_the_same_settings_as_a_run(cli: Any) -> None:
    for words in (["--opt.lr=-1"], ["--trainer.batch_size", "5"]):
        answer = cli("fit", "--task", "synthetic", "--opt", "ngd", "--dry-run", *words)
        assert (answer.code, answer.out) == (2, "")
