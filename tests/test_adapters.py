"""Optimizers with other interfaces: their steps, copies, traits and options."""

import copy
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pytest
import torch
from torch.optim import Optimizer

from bench.check import catalogue
from bench.check.steps import Fault
from bench.check.subject import Subject
from bench.config.options import MISSING, imported_options, parse_options
from bench.errors import UserError
from optimizers import Traits
from optimizers.adapters import adapted, traits_of


class OnLoss(Optimizer):
    """Takes the loss, has no lr, keeps a buffer."""

    def __init__(self, params: Any, scale: float = 0.1) -> None:
        super().__init__(params, {"scale": scale})

    @torch.no_grad()
    def step(self, loss: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    buffer = self.state[p].setdefault("buffer", torch.zeros_like(p))
                    buffer.mul_(0.9).add_(p.grad, alpha=float(loss))
                    p.sub_(buffer, alpha=group["scale"])


class Bare(OnLoss):
    """Takes nothing."""

    def step(self) -> Any:
        super().step(loss=1.0)


class SecondOrder(Optimizer):
    """Differentiates gradients."""

    def __init__(self, params: Any, lr: float = 0.1, **more: Any) -> None:
        super().__init__(params, {"lr": lr}, **more)

    def step(self, closure: Any = None) -> Any:
        with torch.enable_grad():
            loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    (curved,) = torch.autograd.grad(p.grad.sum(), p, retain_graph=True)
                    with torch.no_grad():
                        p.sub_(group["lr"] * p.grad / (1 + curved.abs()))
        return loss


class Twice(Bare):
    """Evaluates again, as SAM does, and draws random numbers."""

    def step(self, closure: Any = None) -> Any:
        torch.rand(1)
        print("hello")
        for _ in range(2):
            with torch.enable_grad():
                loss = closure()
        super().step()
        return loss


class Abstract(SecondOrder):
    """Passes all arguments on."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)


class Demanding(Optimizer):
    def __init__(self, params: Any, friend: Any) -> None:
        super().__init__(params, {})


def stepped(optimizer: Any, p: torch.Tensor, steps: int = 2) -> torch.Tensor:
    for _ in range(steps):

        def closure() -> torch.Tensor:
            p.grad = None
            loss = p.square().sum()
            loss.backward()
            return loss.detach()

        optimizer.step(closure)
    return p.detach().clone()


@pytest.mark.parametrize("cls", [OnLoss, Bare])
def test_copies_of_adapted_optimizers_continue_as_the_original(cls: Any) -> None:
    p = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    optimizer = adapted(cls)([p], scale=0.05)
    stepped(optimizer, p)
    twin_p, twin = copy.deepcopy((p, optimizer))
    assert type(twin) is type(optimizer)
    assert type(twin) is not cls
    assert torch.equal(stepped(twin, twin_p), stepped(optimizer, p))


def test_a_class_is_adapted_once_where_necessary() -> None:
    assert adapted(Bare) is adapted(Bare)
    assert adapted(SecondOrder) is SecondOrder
    assert adapted(adapted(Bare)) is adapted(Bare)


class Mode(Enum):
    FAST = 1
    SLOW = 2


@dataclass
class Inner:
    alpha: float = 0.1


class Typed(torch.optim.Optimizer):
    """Has arguments that no setting can hold."""

    def __init__(
        self, params: Any, mode: Mode = Mode.FAST, inner: "Inner | None" = None, dtype: torch.dtype | None = None,
        base: Any = torch.optim.SGD, other: type[torch.optim.Optimizer] | None = None, lr: float = 0.1,
    ) -> None:  # fmt: skip
        super().__init__(params, {"lr": lr, "all": (mode, inner, dtype, base, other)})


@pytest.mark.parametrize(
    ("given", "converted"),
    [
        ({}, (Mode.FAST, None, None, torch.optim.SGD, None)),
        ({"mode": Mode.SLOW, "base": torch.optim.Adam}, (Mode.SLOW, None, None, torch.optim.Adam, None)),
        ({"mode": "SLOW", "inner": {"alpha": 0.5}}, (Mode.SLOW, Inner(0.5), None, torch.optim.SGD, None)),
        ({"dtype": "float64", "base": "torch.optim:Adam"}, (Mode.FAST, None, torch.float64, torch.optim.Adam, None)),
        (
            {"dtype": "torch.float16", "other": "torch.optim.sgd:SGD"},
            (Mode.FAST, None, torch.float16, torch.optim.SGD, torch.optim.SGD),
        ),
    ],
)
def test_settings_become_enums_dataclasses_dtypes_and_classes(given: Any, converted: Any) -> None:
    cls = adapted(Typed)
    assert adapted(cls) is cls
    assert cls([torch.nn.Parameter(torch.zeros(1))], **given).defaults["all"] == converted


@pytest.mark.parametrize(
    ("given", "words"), [({"mode": "BAD"}, "mode=BAD is not one of FAST, SLOW"), ({"dtype": "long1"}, "no dtype")]
)
def test_unknown_names_of_members_and_dtypes_are_refused(given: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        adapted(Typed)([torch.nn.Parameter(torch.zeros(1))], **given)


@pytest.mark.parametrize(
    ("cls", "traits"),
    [
        (Bare, Traits()),
        (SecondOrder, Traits(create_graph=True)),
        (Twice, Traits(calls_closure_again=True)),
        (torch.optim.LBFGS, Traits(calls_closure_again=True)),
        (torch.optim.Adam, Traits()),
        (Demanding, Traits()),
    ],
)
def test_traits_are_seen_in_a_step(cls: Any, traits: Traits, capsys: pytest.CaptureFixture[str]) -> None:
    before = torch.get_rng_state()
    assert traits_of(adapted(cls)) == traits
    assert torch.equal(torch.get_rng_state(), before)
    assert capsys.readouterr().out == ""


def test_arguments_that_a_class_passes_on_are_options() -> None:
    assert imported_options(SecondOrder).keys() == {"lr"}  # not `defaults`, which torch's base class requires
    assert imported_options(SecondOrder, given=["rho", "vector.lr"]).keys() == {"lr", "rho"}
    assert imported_options(OnLoss, given=["rho"]).keys() == {"scale"}
    assert imported_options(Abstract)["lr"].default == 0.1
    assert imported_options(Demanding)["friend"].default is MISSING


SENTINEL: Any = object()
TABLE: Any = {"a": 1}
NONE: Any = None


class Published(Optimizer):
    """Arguments as published classes have them."""

    def __init__(
        self, params, lr=None, rate=SENTINEL, weight_decay=0, steps: int = 5, betas=(0.9, 1), mode: Any = "x",
        table=TABLE, shard: bool = NONE, width: torch.Tensor | float = 0.5, **more,
    ) -> None:  # fmt: skip
        super().__init__(params, {"lr": lr})


@pytest.mark.parametrize(
    ("name", "word", "value"),
    [
        ("lr", "1e-3", 0.001),
        ("lr", "none", None),
        ("rate", "0.1", 0.1),
        ("weight_decay", "0.01", 0.01),
        ("weight_decay", "1", 1),
        ("betas", "0.8,0.9", (0.8, 0.9)),
        ("mode", "y", "y"),
        ("table", "{a: 2, b: [1, 2]}", {"a": 2, "b": [1, 2]}),
        ("width", "0.25", 0.25),
        ("rho", "[1, true]", [1, True]),
    ],
)
def test_words_of_the_command_line_reach_constructors_as_they_are(name: str, word: str, value: Any) -> None:
    options = imported_options(Published, given=[name])
    values = parse_options("opt", options, {name: word})
    assert values[name] == value
    assert type(values[name]) is type(value)
    # What is not given keeps the constructor's default; one that can be written is part of the run.
    usual = {"weight_decay": 0, "steps": 5, "betas": (0.9, 1), "mode": "x", "shard": None, "width": 0.5}
    assert parse_options("opt", options, {}) == usual
    with pytest.raises(UserError, match="it takes a whole number"):
        parse_options("opt", options, {"steps": "0.5"})


@pytest.mark.parametrize("check", ["builds", "resume", "frozen", "closure"])
def test_adapted_optimizers_pass_the_checks(check: str) -> None:
    catalogue()[check].function(Subject(OnLoss))


def test_adapted_optimizers_without_lr_have_no_schedule() -> None:
    with pytest.raises(Fault, match=r"param_groups\[0\] has no numeric 'lr'"):
        catalogue()["schedule"].function(Subject(OnLoss))
