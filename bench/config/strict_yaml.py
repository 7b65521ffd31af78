"""Strict YAML for settings: no duplicate keys, bounded depth and size."""

import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError

from bench.errors import UserError
from optimizers.groups import RESERVED

MOST_BYTES = 2**20
"""Maximum size of a file; the longest of the suite has 16 thousand."""
MOST_VALUES = 20_000
"""Maximum number of values and keys, with expanded aliases: a few nested aliases could expand to billions."""
DEEPEST = 50
"""Maximum depth of lists and mappings; Python's own limit would give a traceback."""

_KINDS = {
    stat.S_ISDIR: "a folder",
    stat.S_ISFIFO: "a pipe",
    stat.S_ISCHR: "a device",
    stat.S_ISBLK: "a device",
    stat.S_ISSOCK: "a socket",
}


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, restricted to unambiguous input."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = self._count = 0
        self._size: dict[int, tuple[int, int]] = {}
        """Number of values and depth of each node by its id, with expanded aliases."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Refuse excessive nesting or repetition during reading."""
        event: Any = self.peek_event()
        self._depth += 1
        self._count += 1
        _refuse_large(self._count, self._depth, event)
        node: Any = super().compose_node(parent, index)
        self._depth -= 1
        if isinstance(node, yaml.ScalarNode) and any(c == "\0" or "\ud800" <= c <= "\udfff" for c in node.value):
            raise ComposerError(None, None, f"{node.value!r} has an invalid character", event.start_mark)
        if id(node) not in self._size:
            if isinstance(event, yaml.AliasEvent):  # not complete yet, so it contains itself
                raise ComposerError(None, None, f"*{event.anchor} refers to itself", event.start_mark)
            below = [] if isinstance(node, yaml.ScalarNode) else [n for each in node.value for n in _nodes(each)]
            sizes = [self._size[id(each)] for each in below]
            values, depth = 1 + sum(n for n, _ in sizes), 1 + max((d for _, d in sizes), default=0)
            _refuse_large(values, depth, event)
            self._size[id(node)] = values, depth
        return node

    def compose_mapping_node(self, anchor: Any) -> Any:
        """Refuse duplicate keys; YAML would silently keep the last one."""
        node: Any = super().compose_mapping_node(anchor)
        lines: dict[Any, int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                name, line = self.construct_object(key), key.start_mark.line + 1
                if name in lines:
                    problem = f"the key {name!r} is given twice, first in line {lines[name]}"
                    raise ComposerError(None, None, problem, key.start_mark)
                lines[name] = line
        return node

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        """Report the place of a value that is invalid for its type, such as the 99th of a month."""
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError, ArithmeticError):
            kind = node.tag.rpartition(":")[2]
            raise ConstructorError(
                None, None, f"{str(node.value)[:40]!r} is not a valid {kind}", node.start_mark
            ) from None


def _nodes(each: Any) -> tuple[Any, ...]:
    """A list's item, or a mapping's key and value."""
    return each if isinstance(each, tuple) else (each,)


def _refuse_large(values: int, depth: int, event: Any) -> None:
    if values > MOST_VALUES:
        raise ComposerError(None, None, f"there are more than {MOST_VALUES:,} values", event.start_mark)
    if depth > DEEPEST:
        raise ComposerError(None, None, f"lists and mappings are nested more than {DEEPEST} deep", event.start_mark)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file.

    Raises:
        UserError: it is missing, not a regular file, too large, not unambiguous YAML, or not a mapping.
    """
    try:
        mode = path.stat().st_mode  # opening a pipe would wait for a writer
        kind = next((kind for is_kind, kind in _KINDS.items() if is_kind(mode)), None)
        if kind is not None:
            raise UserError(f"{path} is {kind}; settings must be in a regular file")
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)  # some files have no size before they are read
        if len(content) > MOST_BYTES:
            raise UserError(f"{path} is longer than {MOST_BYTES:,} bytes, the limit for settings")
        values = yaml.load(content.decode("utf-8"), _Loader)
    except FileNotFoundError:
        raise UserError(f"there is no file {path}") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not text in UTF-8; settings are YAML") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise UserError(f"{path} is not valid YAML{where}: {problem}") from None
    if values is None:
        raise UserError(f"{path} is empty; it must hold settings such as `task: mnist`")
    if not isinstance(values, dict):
        raise UserError(f"{path} must hold settings such as `task: mnist`, but holds {type(values).__name__}")
    return values


def _flat(prefix: str, values: Mapping[Any, Any]) -> dict[str, Any]:
    """Values in dotted form; those of an optimizer may be nested by role."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        key = prefix if name == "name" and prefix in ("task", "opt", "opt.rest") else f"{prefix}.{name}"
        nested = isinstance(value, dict) and prefix.startswith("opt") and name in RESERVED
        found |= _flat(key, value) if nested else {key: value}
    return found


def flatten_yaml(path: Path) -> dict[str, Any]:
    """Settings of a YAML file in dotted form; `task`, `opt` and `opt.rest` are names or mappings with `name`.

    Raises:
        UserError: the file is missing, not YAML, or not a mapping; or `trainer` is not a mapping.
    """
    flat = flattened(read_yaml(path), path)
    flat.pop("provenance", None)
    return {k: v for k, v in flat.items() if not k.startswith("provenance.")}


def flattened(content: Mapping[Any, Any], path: object) -> dict[str, Any]:
    """Settings in dotted form, from dotted or nested ones of a place that messages name.

    Raises:
        UserError: `trainer` is not a mapping, or a setting is given twice.
    """
    flat: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, dict):
            own = _flat(str(key), value)
        elif key == "trainer" and value is not None:
            raise UserError(
                f"{path}: trainer is a section and must be a mapping, such as `trainer: {{max_steps: 100}}`"
            )
        else:
            own = {str(key): value}
        if twice := sorted(own.keys() & flat.keys()):
            raise UserError(f"{path}: {twice[0]} is given twice, nested and dotted; give it once")
        flat |= own
    return flat
