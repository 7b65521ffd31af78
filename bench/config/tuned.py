"""Tuned settings: the files `tuned/TASK/OPT.yaml`, their folders and content."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from bench.config.strict_yaml import flatten_yaml, read_yaml
from bench.config.values import configs_folder
from bench.errors import UserError
from bench.text import why_wrong
from optimizers.plugins import slug

_Name = Annotated[str, StringConstraints(min_length=1)]


class TunedBy(NamedTuple):
    """The study that found tuned settings, and its selection split, None if unknown."""

    study: _Name
    split: _Name | None


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


class Provenance(BaseModel):
    """The study that found tuned settings, the split and the seeds that decided; a file has more for people."""

    model_config = ConfigDict(strict=True)

    study: str | None = None
    split: _Name | None = None
    seeds: str = ""


def provenance_of(path: Path) -> Provenance:
    """The study that found the settings in a file (UserError)."""
    try:
        return Provenance.model_validate(read_yaml(path).get("provenance", {}))
    except ValidationError as error:
        first = error.errors()[0]
        why = f"{'.'.join(['provenance', *map(str, first['loc'])])}: {why_wrong(first['msg'])}"
        raise UserError(f"{path} is damaged ({why}); repair it, or move it away and tune again") from None


def tuned_settings(task: str, opt: str, *, shipped: bool = False) -> dict[str, Any]:
    """The tuned hyperparameters of a task and optimizer, from their `tuned_file`."""
    settings = flatten_yaml(tuned_file(task, opt, shipped=shipped))
    return {name: value for name, value in settings.items() if name.startswith("opt.")}
