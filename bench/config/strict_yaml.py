"""Strict YAML for settings: no duplicate keys."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from yaml.constructor import ConstructorError

from bench.errors import UserError
from optimizers.groups import RESERVED


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, restricted to unambiguous input."""

    def compose_mapping_node(self, anchor: Any) -> Any:
        """Refuse duplicate keys; YAML would silently keep the last one."""
        node: Any = super().compose_mapping_node(anchor)
        lines: dict[Any, int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                name, line = self.construct_object(key), key.start_mark.line + 1
                if name in lines:
                    problem = f"the key {name!r} is given twice, first in line {lines[name]}"
                    raise ConstructorError(None, None, problem, key.start_mark)
                lines[name] = line
        return node

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        """Report the place of a value that is invalid for its type, such as the 99th of a month."""
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError, ArithmeticError):
            problem = f"{str(node.value)[:40]!r} is not a valid {node.tag.rpartition(':')[2]}"
            raise ConstructorError(None, None, problem, node.start_mark) from None


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file; UserError if it is missing, ambiguous, or no mapping."""
    try:
        values = yaml.load(path.read_text("utf-8"), _Loader)
    except FileNotFoundError:
        raise UserError(f"there is no file {path}") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not text in UTF-8; settings are YAML") from None
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise UserError(f"{path} is not valid YAML{where}: {problem}") from None
    if not isinstance(values, dict):
        state = "is empty; it" if values is None else f"holds {type(values).__name__}; it"
        raise UserError(f"{path} {state} must hold settings such as `task: mnist`")
    return values


def _flat(prefix: str, values: Mapping[Any, Any]) -> dict[str, Any]:
    """Values in dotted form; those of an optimizer may be nested by role."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        key = prefix if name == "name" and prefix in ("task", "opt", "opt.rest") else f"{prefix}.{name}"
        nested = isinstance(value, dict) and prefix.startswith("opt") and name in RESERVED
        flat |= _flat(key, value) if nested else {key: value}
    return flat


def flatten_yaml(path: Path) -> dict[str, Any]:
    """Settings of a YAML file in dotted form; `task`, `opt` and `opt.rest` are names or mappings with `name`."""
    return {k: v for k, v in flattened(read_yaml(path), path).items() if k.partition(".")[0] != "provenance"}


def flattened(content: Mapping[Any, Any], path: object) -> dict[str, Any]:
    """Settings in dotted form, from dotted or nested ones of a place that messages name; UserError if ambiguous."""
    flat: dict[str, Any] = {}
    for key, value in content.items():
        if key == "trainer" and value is not None and not isinstance(value, dict):
            example = "`trainer: {max_steps: 100}`"
            raise UserError(f"{path}: trainer is a section and must be a mapping, such as {example}")
        settings = _flat(str(key), value) if isinstance(value, dict) else {str(key): value}
        if twice := sorted(settings.keys() & flat.keys()):
            raise UserError(f"{path}: {twice[0]} is given twice, nested and dotted; give it once")
        flat |= settings
    return flat
