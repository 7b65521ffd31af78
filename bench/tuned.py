"""Tuned settings: the files `tuned/TASK/OPT.yaml`, where they lie and what they hold."""

from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, StringConstraints, TypeAdapter, ValidationError

from bench.errors import UserError
from bench.grammar.values import configs_folder
from bench.strict_yaml import flatten_yaml, read_yaml
from optimizers.plugins import slug

_Value = int | float | str | bool | None
_Name = Annotated[str, StringConstraints(min_length=1, max_length=500)]


class TunedBy(NamedTuple):
    """Where tuned settings come from: the study, and the split on which it chose, None if that is not known."""

    study: _Name
    split: _Name | None


def tuned_file(task: str, opt: str) -> Path:
    """The file with the tuned settings of a task and optimizer.

    What `bench tune` wrote here, in `tuned`, comes before what is shipped.

    Raises:
        UserError: nothing was tuned for them.
    """
    places = (Path("tuned"), configs_folder() / "tuned")
    for folder in places:
        if (path := folder / slug(task) / f"{slug(opt)}.yaml").is_file():
            return path
    there = sorted({f"{path.parent.name}/{path.stem}" for folder in places for path in folder.glob("*/*.yaml")})
    raise UserError(
        f"nothing is tuned for {task} with {opt}; there is {', '.join(there) or 'nothing yet'};"
        f" `bench tune --task {task} --opt {opt}` does it"
    )


class Provenance(BaseModel):
    """Where tuned settings come from, as far as anything depends on it.

    Attributes:
        study: that found them.
        settings, versions: of its runs.
        select_split: on which its trials were compared; None if the file does not say it.
    """

    model_config = ConfigDict(extra="allow", strict=True)

    study: str | None = None
    settings: dict[str, _Value | list[_Value]] = {}
    versions: dict[str, int | str] = {}
    select_split: _Name | None = None


class Tuned(BaseModel):
    """The part of a file of tuned settings that says where they come from."""

    provenance: Provenance | None = None


_SETTINGS = TypeAdapter(
    dict[str, _Value | list[_Value] | dict[str, _Value | list[_Value]]], config=ConfigDict(strict=True)
)
"""The rest of such a file: settings, dotted or nested."""


def read_tuned(path: Path) -> Provenance:
    """Where the settings of such a file come from, once the file is known to be one.

    Raises:
        UserError: it is invalid.
    """
    try:
        content = read_yaml(path)
        _SETTINGS.validate_python({name: value for name, value in content.items() if name != "provenance"})
        return Tuned.model_validate(content).provenance or Provenance()
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))[:100]
        raise UserError(
            f"{path} is damaged ({where}: {first['msg'][:200]}); repair it, or move it away and tune again"
        ) from None


def tuned_settings(task: str, opt: str) -> dict[str, Any]:
    """The tuned hyperparameters of a task and optimizer.

    Raises:
        UserError: nothing was tuned for them, or the file is damaged.
    """
    path = tuned_file(task, opt)
    read_tuned(path)
    return {k: v for k, v in flatten_yaml(path).items() if k not in ("task", "opt")}
