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
FILES = ("numerics", "state", "parameters", "rates", "closures", "cost", "integration", "task")
Function = TypeVar("Function", bound=Callable[..., Any])


def group(name: Group) -> Callable[[Function], Function]:
    """Mark a function `check_X(optimizer)` as a check; what a failure of it means is read from here."""
    return lambda function: function


@dataclass(frozen=True)
class Check:
    """The function `check_NAME` of a file of this package, with its docstring, and what a failure of it means."""

    name: str
    file: str
    group: Group
    doc: str

    @property
    def meaning(self) -> str:
        """The property, in one line."""
        return self.doc.partition("\n")[0].rstrip(".")

    @property
    def advice(self) -> str:
        """Why it matters, the tolerance, and how to mend a failure."""
        return " ".join(self.doc.partition("\n")[2].split())

    @property
    def quick(self) -> bool:
        """Whether `--quick` runs it: the integration checks start processes and trainings."""
        return self.file != "integration"

    @property
    def function(self) -> Callable[[Any], Any]:
        """The function; this imports torch."""
        return getattr(import_module(f"bench.check.{self.file}"), f"check_{self.name}")


@cache
def catalogue(kind: Kind = "optimizer") -> dict[str, Check]:
    """All checks by name, in the order they run: as they stand in their files."""
    checks = {}
    for file in FILES:
        if (file == "task") is (kind == "task"):
            for node in ast.parse(Path(__file__).with_name(f"{file}.py").read_text("utf-8")).body:
                if isinstance(node, ast.FunctionDef) and node.name.startswith("check_"):
                    (decorator,) = node.decorator_list
                    assert isinstance(decorator, ast.Call)
                    name, doc = node.name.removeprefix("check_"), cleandoc(ast.get_docstring(node) or "")
                    checks[name] = Check(name, file, ast.literal_eval(decorator.args[0]), doc)
    return checks
