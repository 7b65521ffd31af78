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

import ast
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from inspect import cleandoc
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeVar

__all__ = ["checks", "parametrize_with_checks"]

Severity = Literal["results", "set-up", "speed"]
Kind = Literal["optimizer", "task"]

GROUPS: dict[Severity, str] = {"results": "changes results", "set-up": "blocks a set-up", "speed": "costs speed"}
"""Consequences of a failure, the worst first, as records and as people say them."""
_FILES = {"optimizer": ("numerics", "parameters", "groups", "closures", "integration"), "task": ("task",)}
_Function = TypeVar("_Function", bound=Callable[..., Any])


def failing(severity: Severity) -> Callable[[_Function], _Function]:
    """Mark a function `check_X(optimizer)` as a check; `catalogue` reads from here what a failure of it means."""
    return lambda function: function


@dataclass(frozen=True)
class Check:
    """The function `check_NAME` of a file here, what a failure means, the first line of its docstring and the rest."""

    name: str
    file: str
    severity: Severity
    meaning: str
    advice: str

    @property
    def quick(self) -> bool:
        """Whether it starts neither processes nor trainings, so that `--quick` runs it."""
        return self.file != "integration"

    @property
    def function(self) -> Callable[[Any], Any]:
        """The function; this imports torch."""
        return getattr(import_module(f"bench.check.{self.file}"), f"check_{self.name}")


@cache
def catalogue(kind: Kind = "optimizer") -> dict[str, Check]:
    """All checks by name, in the order they run: as they stand in their files."""
    checks = {}
    for file in _FILES[kind]:
        for node in ast.parse(Path(__file__).with_name(f"{file}.py").read_text("utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("check_"):
                (decorator,) = node.decorator_list
                assert isinstance(decorator, ast.Call)
                name, (meaning, _, advice) = node.name[6:], cleandoc(ast.get_docstring(node) or "").partition("\n")
                severity = ast.literal_eval(decorator.args[0])
                checks[name] = Check(name, file, severity, meaning.rstrip("."), " ".join(advice.split()))
    return checks


def checks(*, quick: bool = False) -> list[Callable[[Any], Any]]:
    """All checks of optimizers, in the order they run; `quick` leaves out those that start processes and trainings."""
    return [check.function for check in catalogue().values() if check.quick or not quick]


def parametrize_with_checks(optimizers: Sequence[Any], *, reference: Any = None, quick: bool = False) -> Any:
    """A decorator for a test with the arguments `optimizer` and `check`: it runs once for each pair.

    Args:
        optimizers: classes, `functools.partial` with settings, `OptimizerSpec`s, names of the registry,
            `"module:Class"` or `"file.py:Class"`.
        reference: an optimizer, in any of these forms, whose steps theirs must equal. By default that of the spec.
        quick: as for `checks`.
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
