"""Tuned settings: the files `tuned/TASK/OPT.yaml`, their folders and content."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError

from bench.config.strict_yaml import flatten_yaml, read_yaml
from bench.config.values import configs_folder
from bench.errors import UserError
from bench.text import located, why_wrong
from optimizers.plugins import slug

_Value = int | float | str | bool | None
_Name = Annotated[str, StringConstraints(min_length=1)]


class TunedBy(NamedTuple):
    """The study that found tuned settings, and its selection split, None if unknown."""

    study: _Name
    split: _Name | None


Sources = Mapping[tuple[str, str], TunedBy]
"""The studies that found the settings of runs, by task and optimizer; a pair without one has other settings."""


def tuned_file(task: str, opt: str, *, shipped: bool = False) -> Path:
    """The file with the tuned settings of a task and optimizer.

    Files that `bench tune` wrote to `tuned` in this folder take precedence over shipped ones, unless `shipped`.

    Raises:
        UserError: nothing was tuned for them.
    """
    places = [*[Path("tuned")] * (not shipped), configs_folder() / "tuned"]
    for folder in places:
        if (path := folder / slug(task) / f"{slug(opt)}.yaml").is_file():
            return path
    there = sorted({f"{path.parent.name}/{path.stem}" for folder in places for path in folder.glob("*/*.yaml")})
    todo = "give its values instead" if shipped else f"`bench tune --task {task} --opt {opt}` does it"
    raise UserError(f"nothing is tuned for {task} with {opt}; there is {', '.join(there) or 'nothing yet'}; {todo}")


class Provenance(BaseModel):
    """The provenance of tuned settings, as far as the suite uses it.

    Attributes:
        study: the study that found them.
        settings, versions: of its runs.
        split: on which its trials were compared; None if unknown. Earlier versions wrote `select_split`.
        seeds: of its trials in words (`seeds_in_words`). Earlier versions wrote `tuning_seeds`.
    """

    model_config = ConfigDict(extra="allow", strict=True)

    study: str | None = None
    settings: dict[str, _Value | list[_Value]] = {}
    versions: dict[str, int | str] = {}
    split: Annotated[_Name | None, Field(validation_alias=AliasChoices("split", "select_split"))] = None
    seeds: Annotated[str, Field(validation_alias=AliasChoices("seeds", "tuning_seeds"))] = ""


class Tuned(BaseModel):
    """The part of a file of tuned settings with their provenance."""

    provenance: Provenance | None = None


_SETTINGS = TypeAdapter(
    dict[str, _Value | list[_Value] | dict[str, _Value | list[_Value]]], config=ConfigDict(strict=True)
)
"""The rest of such a file: settings, dotted or nested."""


def read_tuned(path: Path) -> Provenance:
    """The provenance of a file of tuned settings, after validation of the file.

    Raises:
        UserError: it is invalid.
    """
    content = read_yaml(path)
    try:
        _SETTINGS.validate_python({name: value for name, value in content.items() if name != "provenance"})
        return Tuned.model_validate(content).provenance or Provenance()
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, located(first, content)))[:100]
        raise UserError(
            f"{path} is damaged ({where}: {why_wrong(first['msg'])[:200]}); repair it, or move it away and tune again"
        ) from None


def tuned_settings(task: str, opt: str, *, shipped: bool = False) -> dict[str, Any]:
    """The tuned hyperparameters of a task and optimizer; see `tuned_file`.

    Raises:
        UserError: nothing was tuned for them, or the file is damaged.
    """
    path = tuned_file(task, opt, shipped=shipped)
    read_tuned(path)
    return {name: value for name, value in flatten_yaml(path).items() if name.startswith("opt.")}
