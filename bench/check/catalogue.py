"""The checks: names, groups and docstrings, read from their sources. Importing this file imports no torch."""

import ast
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from inspect import cleandoc
from pathlib import Path
from typing import Any, Literal, TypeVar

Group = Literal["changes results", "blocks a set-up", "costs speed"]
Kind = Literal["optimizer", "task"]

GROUPS: dict[Group, str] = {"changes results": "results", "blocks a set-up": "set-up", "costs speed": "speed"}
"""Consequences of a failure, the worst first, by the words that records have for them."""
SERIOUS: tuple[Group, ...] = ("changes results", "blocks a set-up")
"""The groups that headlines and boards count."""
FILES = {"optimizer": ("numerics", "parameters", "groups", "closures", "integration"), "task": ("task",)}
Function = TypeVar("Function", bound=Callable[..., Any])


def group(name: Group) -> Callable[[Function], Function]:
    """Mark a function `check_X(optimizer)` as a check; `catalogue` reads from here what a failure of it means."""
    return lambda function: function


@dataclass(frozen=True)
class Check:
    """The function `check_NAME` of a file of this package, what a failure means, its docstring's first line and rest.

    `quick` is false for the integration checks, which start processes and trainings.
    """

    name: str
    file: str
    group: Group
    meaning: str
    advice: str

    @property
    def quick(self) -> bool:
        """Whether `--quick` runs it."""
        return self.file != "integration"

    @property
    def function(self) -> Callable[[Any], Any]:
        """The function; this imports torch."""
        return getattr(import_module(f"bench.check.{self.file}"), f"check_{self.name}")


@cache
def catalogue(kind: Kind = "optimizer") -> dict[str, Check]:
    """All checks by name, in the order they run: as they stand in their files."""
    checks = {}
    for file in FILES[kind]:
        for node in ast.parse(Path(__file__).with_name(f"{file}.py").read_text("utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("check_"):
                (decorator,) = node.decorator_list
                assert isinstance(decorator, ast.Call)
                name, (meaning, _, advice) = node.name[6:], cleandoc(ast.get_docstring(node) or "").partition("\n")
                severity = ast.literal_eval(decorator.args[0])
                checks[name] = Check(name, file, severity, meaning.rstrip("."), " ".join(advice.split()))
    return checks
