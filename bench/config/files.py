"""Files of settings in YAML, dotted or nested, each given once; those that tuning wrote are `tuned/TASK/OPT.yaml`."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import yaml
from yaml.constructor import ConstructorError

from bench.config.values import configs_folder
from bench.errors import UserError
from bench.text import seeds_from_words
from optimizers import OPTIMIZERS
from optimizers.groups import RESERVED, REST
from optimizers.plugins import slug


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


class TunedBy(NamedTuple):
    """The study that found tuned settings, and its selection split, None if unknown."""

    study: str
    split: str | None


Sources = Mapping[tuple[str, str], TunedBy]
"""The studies that found the settings of runs, by task and optimizer; a pair without one has other settings."""


def tuned_file(task: str, opt: str, *, shipped: bool = False) -> Path:
    """The file with tuned settings: in `tuned` of this folder (unless `shipped`), else a shipped one."""
    places = [*[Path("tuned")] * (not shipped), configs_folder() / "tuned"]
    for folder in places:
        if (path := folder / slug(task) / f"{slug(opt)}.yaml").is_file():
            return path
    known = sorted({path.stem for folder in places for path in (folder / slug(task)).glob("*.yaml")})
    todo = "give its values instead" if shipped else f"`bench tune --task {task} --opt {opt}` does it"
    raise UserError(f"{opt} is not tuned on {task}; {', '.join(known) or 'no optimizer'} is; {todo}")


def origin_of(path: Path) -> tuple[TunedBy, list[int]]:
    """The study that found the settings in a file, and the seeds that decided (UserError)."""
    origin, names = read_yaml(path).get("provenance", {}), ("study", "split", "seeds")
    if not isinstance(origin, dict) or not all(isinstance(origin.get(name), str | None) for name in names):
        why = f"provenance must have texts as {', '.join(names)}"
        raise UserError(f"{path} is damaged ({why}); repair it, or move it away and tune again")
    study, split, seeds = map(origin.get, names)
    return TunedBy(study or path.name, split or None), seeds_from_words(seeds or "")


def tuned_settings(
    task: str, opt: str, given: Mapping[str, Any] = MappingProxyType({}), *, shipped: bool = False
) -> dict[str, Any]:
    """The tuned hyperparameters of a task and optimizer, from their `tuned_file`, in dotted form.

    If the settings `given` name another method for the rest, those for the rest, and for its roles, are left out.
    """
    settings, rest = flatten_yaml(tuned_file(task, opt, shipped=shipped)), f"opt.{REST}"
    usual = settings.get(rest, OPTIMIZERS[opt].rest)
    lost = () if given.get(rest, usual) == usual else tuple(f"opt.{name}." for name in RESERVED - {"matrix"})
    return {k: value for k, value in settings.items() if k.startswith("opt.") and not k.startswith(lost)}
