"""Tuned settings: the files `tuned/TASK/OPT.yaml`, their folders and content."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from bench.config.strict_yaml import flatten_yaml, read_yaml
from bench.config.values import configs_folder
from bench.errors import UserError
from bench.text import seeds_from_words
from optimizers import OPTIMIZERS
from optimizers.groups import RESERVED, REST
from optimizers.plugins import slug


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
    known = sorted({f"{path.parent.name}/{path.stem}" for folder in places for path in folder.glob("*/*.yaml")})
    todo = "give its values instead" if shipped else f"`bench tune --task {task} --opt {opt}` does it"
    raise UserError(f"nothing is tuned for {task} with {opt}; there is {', '.join(known) or 'nothing yet'}; {todo}")


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
