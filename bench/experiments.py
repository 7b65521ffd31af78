"""Experiments of papers as YAML holds them: `configs/papers/<paper>/<experiment>.yaml`."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from bench.claims import CLAIMS
from bench.config import configs_folder, read_yaml
from bench.errors import UserError, unknown
from bench.figures import FigureSpec

Settings = dict[str, Any]
ARM_ARGUMENTS = ("arm", "arms", "fast", "slow", "better", "worse")
"""Arguments of claims that name arms."""


class Claim(BaseModel):
    """What a paper says, and how it is tested.

    Attributes:
        name: short name, unique in the experiment.
        paper: what the paper says, in short.
        test: a name in `bench.claims.CLAIMS`; its arguments are the other keys.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str
    paper: str
    test: str

    @property
    def arguments(self) -> Settings:
        """Arguments of the test."""
        return dict(self.model_extra or {})


class Quick(BaseModel):
    """What a small version does otherwise.

    Attributes:
        seeds: these instead.
        settings: settings that win over those of every arm.
        arms: settings that win over those of one arm.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    seeds: list[int] = Field(min_length=1)
    settings: Settings = {}
    arms: dict[str, Settings] = {}


class Search(BaseModel):
    """Where in the range of open constants claims hold: a full grid, decided on before looking.

    Attributes:
        why: which constants are open, and how the grid was chosen.
        grid: values by setting; every combination is tried. `times.<setting>` multiplies the arm's own value.
        seeds: of each point.
        settings: settings that win over those of every arm (fewer steps, say).
        arms: labels of the arms that are run; all by default.
        claims: names of the claims that are judged; all by default.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    why: str
    grid: dict[str, list[Any]] = Field(min_length=1)
    seeds: list[int] = Field(min_length=1)
    settings: Settings = {}
    arms: list[str] | None = None
    claims: list[str] | None = None

    @property
    def points(self) -> list[Settings]:
        """All combinations of the grid."""
        return [dict(zip(self.grid, values, strict=True)) for values in product(*self.grid.values())]


class Experiment(BaseModel):
    """An experiment of a paper as its YAML holds it.

    Attributes:
        title: one line for people.
        paper: the paper, and which of its figures or statements.
        notes: what is ours, and what a reader must know; plain sentences.
        common: settings of all arms.
        seeds: one run for each arm and seed.
        arms: settings by label.
        figure: what is drawn.
        claims: what is tested.
        quick: the small version of `--quick`.
        search: over constants that the paper leaves open, for `--search`; None if there is nothing to search.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str
    paper: str
    notes: list[str] = []
    common: Settings
    seeds: list[int] = Field(min_length=1)
    arms: dict[str, Settings] = Field(min_length=1)
    figure: FigureSpec
    claims: list[Claim] = Field(min_length=1)
    quick: Quick
    search: Search | None = None

    @field_validator("seeds", mode="before")
    @classmethod
    def _count(cls, seeds: Any) -> Any:
        """A number of seeds stands for 0, 1, ..."""
        return list(range(seeds)) if isinstance(seeds, int) else seeds

    @property
    def named_arms(self) -> list[str]:
        """The arms that claims and panels name."""
        named = [claim.arguments.get(key, []) for claim in self.claims for key in ARM_ARGUMENTS]
        named += [panel.arms or [] for panel in self.figure.panels]
        named += [(self.search and self.search.arms) or []]
        return [label for labels in named for label in ([labels] if isinstance(labels, str) else labels)]

    def small(self) -> "Experiment":
        """The version of `--quick`."""
        small = self.changed(self.quick.settings, self.quick.seeds)
        arms = {label: own | self.quick.arms.get(label, {}) for label, own in small.arms.items()}
        return small.model_copy(update={"arms": arms})

    def at(self, point: Settings) -> "Experiment":
        """The version at a point of the search."""
        assert self.search is not None
        there = self.changed(self.search.settings | point, self.search.seeds)
        wanted = self.search.claims
        claims = [claim for claim in self.claims if wanted is None or claim.name in wanted]
        arms = {label: there.arms[label] for label in self.search.arms or self.arms}
        return there.model_copy(update={"claims": claims, "arms": arms})

    def changed(self, settings: Settings, seeds: Sequence[int]) -> "Experiment":
        """The version with these settings in all arms, and these seeds; see `Search.grid` for `times.`."""
        factors = {name.removeprefix("times."): x for name, x in settings.items() if name.startswith("times.")}
        plain = {name: x for name, x in settings.items() if not name.startswith("times.")}
        arms = {label: own | plain for label, own in self.arms.items()}
        for own in arms.values():
            own |= {name: own[name] * factor for name, factor in factors.items()}
        return self.model_copy(update={"arms": arms, "seeds": list(seeds)})


def experiments() -> dict[str, Path]:
    """The YAML files of the experiments by name, `<paper>/<experiment>`."""
    folder = configs_folder() / "papers"
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(folder.glob("*/*.yaml"))}


def load(name: str) -> Experiment:
    """The experiment of this name.

    Raises:
        UserError: there is none, or its YAML is not right.
    """
    known = experiments()
    if name not in known:
        raise unknown("experiment", name, known)
    try:
        experiment = Experiment.model_validate(read_yaml(known[name]))
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"{known[name]}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    for claim in experiment.claims:  # before hours of training
        if claim.test not in CLAIMS:
            raise unknown("claim test", claim.test, CLAIMS)
    for label in experiment.named_arms:
        if label not in experiment.arms:
            raise unknown("arm", label, experiment.arms)
    return experiment
