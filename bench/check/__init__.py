"""The conformance kit: checks that an optimizer behaves as training code expects of any `torch.optim.Optimizer`.

In the tests of your optimizer:

    from bench.check import parametrize_with_checks

    @parametrize_with_checks([MyOptimizer, functools.partial(MyOptimizer, nesterov=True)])
    def test_my_optimizer(optimizer, check):
        check(optimizer)

A check is a plain function `check_resume(optimizer)`; its docstring says what it means, why it matters, and how large
an error may be. It fails with an `AssertionError`, and skips what does not apply. `bench check` runs the same functions
in a process of their own. Importing this package imports no torch.
"""

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

from bench.check.catalogue import catalogue

__all__ = ["checks", "parametrize_with_checks"]


def checks(*, quick: bool = False) -> list[Callable[[Any], Any]]:
    """All checks of optimizers, in the order they run; each takes what `parametrize_with_checks` passes as `optimizer`.

    `quick` leaves out those that start processes and trainings (DDP, FSDP2, lanes, ...).
    """
    return [check.function for check in catalogue().values() if check.quick or not quick]


def parametrize_with_checks(optimizers: Sequence[Any], *, reference: Any = None, quick: bool = False) -> Any:
    """A decorator for a test with the arguments `optimizer` and `check`: it runs once for each pair.

    Args:
        optimizers: classes, `functools.partial` with settings, `OptimizerSpec`s, names of the registry,
            `"module:Class"` or `"file.py:Class"`.
        reference: an optimizer, in any of these forms, whose steps theirs must equal. By default that of the spec.
        quick: as for `checks`.

    Raises:
        UserError: there is no such optimizer, or it lacks an argument.
    """
    import pytest

    from bench.check.subject import Subject

    subjects = [Subject(optimizer, reference=reference) for optimizer in optimizers]
    pairs = [(subject, check) for subject in subjects for check in checks(quick=quick)]
    names = [f"{subject.spec.name}-{check.__name__[6:]}" for subject, check in pairs]
    return pytest.mark.parametrize(("optimizer", "check"), pairs, ids=names)


class _Package(ModuleType):
    """Lets `bench.check(...)` call the function of the API also after this package has taken its name in `bench`."""

    def __call__(self, *args: Any, **settings: Any) -> Any:
        return import_module("bench.api").check(*args, **settings)


sys.modules[__name__].__class__ = _Package
