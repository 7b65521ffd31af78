"""Experiments of papers as YAML holds them: `configs/papers/<paper>/<experiment>.yaml`."""

from collections.abc import Mapping, Sequence
from inspect import signature
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from bench.claims import CLAIMS
from bench.config import configs_folder, read_yaml
from bench.errors import UserError, unknown
from bench.figures import FigureSpec
from bench.store import CURVE_FIELDS
from tasks import TASKS

Settings = dict[str, Any]
ARM_ARGUMENTS = ("arm", "arms", "fast", "slow", "better", "worse")
"""Arguments of claims that name arms."""
COLUMN_ARGUMENTS = ("measure", "x", "y")
"""Arguments of claims that name columns."""


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

    def changed(self, settings: Mapping[str, Any], seeds: int | Sequence[int] | None = None) -> "Experiment":
        """The version with these settings in all arms, and these seeds; see `Search.grid` for `times.`.

        A number of seeds are the experiment's own first, and then the numbers after the greatest.

        Raises:
            UserError: `times.` has nothing to multiply.
        """
        factors = {name.removeprefix("times."): x for name, x in settings.items() if name.startswith("times.")}
        plain = {name: x for name, x in settings.items() if not name.startswith("times.")}
        arms = {label: own | plain for label, own in self.arms.items()}
        for label, own in arms.items():
            for name, factor in factors.items():
                if name not in own:
                    raise UserError(f"times.{name}: the arm {label} does not set {name}")
                own[name] *= factor
        if isinstance(seeds, int):
            after = range(max(self.seeds) + 1, max(self.seeds) + 1 + seeds)
            seeds = [*self.seeds, *after][:seeds]
        return self.model_copy(update={"arms": arms, "seeds": list(seeds or self.seeds)})

    def check(self) -> None:
        """Refuse, before hours of training, what could not be judged or drawn after it.

        Raises:
            UserError: a name of a claim, test, argument, arm or column is unknown or used twice.
        """
        for claim in self.claims:
            if claim.test not in CLAIMS:
                raise unknown("claim test", claim.test, CLAIMS)
            try:
                signature(CLAIMS[claim.test]).bind({}, **claim.arguments)
            except TypeError as error:
                raise UserError(f"claim {claim.name}: {claim.test}: {error}") from None
        names = [claim.name for claim in self.claims]
        if len(set(names)) < len(names):
            raise UserError(f"two claims are called {max(names, key=names.count)!r}; names must differ")
        arms = [claim.arguments.get(key, []) for claim in self.claims for key in ARM_ARGUMENTS]
        arms += [panel.arms or [] for panel in self.figure.panels]
        arms += [list(self.quick.arms), (self.search and self.search.arms) or []]
        columns = [claim.arguments.get(key, "step") for claim in self.claims for key in COLUMN_ARGUMENTS]
        columns += [name for panel in self.figure.panels for name in (panel.x, panel.y)]
        tasks = {str(settings.get("task", self.common.get("task"))) for settings in self.arms.values()} & TASKS.keys()
        measured = {name for task in tasks for name in TASKS[task].measures.split(", ")}
        for kind, used, known in (
            (
                "arm",
                [label for labels in arms for label in ([labels] if isinstance(labels, str) else labels)],
                self.arms,
            ),
            ("claim", (self.search and self.search.claims) or [], names),
            ("column", columns, {*CURVE_FIELDS, *measured}),
        ):
            for name in used:
                if name not in known:
                    raise unknown(kind, name, known)


def experiments() -> dict[str, Path]:
    """The YAML files of the experiments by name, `<paper>/<experiment>`."""
    folder = configs_folder() / "papers"
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(folder.glob("*/*.yaml"))}


def title(name: str) -> str:
    """The experiment's title, or what is wrong with its YAML."""
    try:
        return load(name).title
    except UserError as error:
        return f"(broken: {error})"


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
    experiment.check()
    return experiment
