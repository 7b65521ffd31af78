"""Settings in YAML: dotted or nested, each given once."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from yaml.constructor import ConstructorError

from bench.errors import UserError
from optimizers.groups import RESERVED


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        """Refuse duplicate keys; YAML would silently keep the last one."""
        names = [key.value for key, _ in node.value if key.value != "<<"]
        for i, (key, _) in enumerate(node.value):
            if key.value in names[:i]:
                raise ConstructorError(None, None, f"the key {key.value!r} is given twice", key.start_mark)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file; UserError if it is missing, ambiguous, or no mapping."""
    try:
        values = yaml.load(path.read_text("utf-8"), _Loader)
    except FileNotFoundError:
        raise UserError(f"there is no file {path}") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except Exception as error:  # of the values of dates and numbers too, such as the 99th of a month
        mark, text = getattr(error, "problem_mark", None), getattr(error, "problem", None) or str(error)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise UserError(f"{path} is not valid YAML{where}: {text.partition(chr(10))[0]}") from None
    if not isinstance(values, dict):
        raise UserError(f"{path} holds {type(values).__name__}; it must hold settings such as `task: mnist`")
    return values


def flatten_yaml(path: Path) -> dict[str, Any]:
    """Settings of a YAML file in dotted form; `task`, `opt` and `opt.rest` are names or mappings with `name`."""
    return {k: v for k, v in flattened(read_yaml(path), path).items() if k.partition(".")[0] != "provenance"}


def flattened(content: Mapping[Any, Any], path: object) -> dict[str, Any]:
    """Settings in dotted form, from dotted or nested ones of a place that messages name; UserError if ambiguous."""
    settings: dict[str, Any] = {}
    for name, value in _pairs(content):
        if name in settings:
            raise UserError(f"{path}: {name} is given twice, nested and dotted; give it once")
        settings[name] = value
    return settings


def _pairs(values: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Names in dotted form and values; those of an optimizer may be nested by role."""
    for name, value in values.items():
        key = prefix[:-1] if name == "name" and prefix in ("task.", "opt.", "opt.rest.") else f"{prefix}{name}"
        if isinstance(value, dict) and (not prefix or (prefix.startswith("opt.") and name in RESERVED)):
            yield from _pairs(value, f"{key}.")
        else:
            yield key, value
