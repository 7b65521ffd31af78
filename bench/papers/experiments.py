"""Experiments of papers in YAML: `configs/papers/<paper>/<experiment>.yaml`."""

from collections.abc import Mapping, Sequence
from itertools import product
from math import nan
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field, ValidationError

from bench.config.files import read_yaml, tuned_settings
from bench.config.values import experiments, read_seeds
from bench.errors import UserError, check_known
from bench.papers.arms import Arms
from bench.papers.claims import judge
from bench.papers.figures import Described, FigureSpec
from bench.papers.verdicts import Finding, over_readings
from bench.text import why_wrong

Settings = dict[str, Any]
Seeds = Annotated[list[int], BeforeValidator(lambda seeds: read_seeds(seeds, "seeds"))]
ARM_ARGUMENTS = ("arms", "fast", "slow", "better", "worse")  # of claims


def combinations(grid: Mapping[str, Sequence[Any]]) -> list[Settings]:
    """All combinations of values by name; a single empty one without names."""
    return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]


class Claim(Described):
    """A statement of a paper, and its test, whose arguments are the other keys.

    Attributes:
        name: unique in the experiment.
        paper: the paper's statement, in short; with `ours`, a statement of ours, which is not counted.
        test: a name in `bench.papers.claims.CLAIMS`. The step `at` may be a fraction of the budget (`at: 0.1 budget`).
        readings: values by argument where the text, or a threshold of ours, allows several; all are combined.
    """

    model_config = ConfigDict(extra="allow")

    name: str
    paper: str
    test: str
    readings: dict[str, Annotated[list[Any], Field(min_length=1)]] = Field(default_factory=dict)
    ours: bool = False

    @property
    def statement(self) -> str:
        """The statement, for a table."""
        return f"ours: {self.paper}" if self.ours else self.paper

    @property
    def given(self) -> Settings:
        """The arguments that all readings share."""
        return self.model_extra or {}

    @property
    def arms(self) -> list[str]:
        """The arms that it names, in any reading."""
        return [label for reading in combinations(self.readings) for label in _arms_in(self.given | reading)]


class Quick(Described):
    """The small version, by its differences from the whole experiment: of all arms, and of single ones by label."""

    seeds: Seeds
    settings: Settings = Field(default_factory=dict)
    arms: dict[str, Settings] = Field(default_factory=dict)


class Search(Described):
    """A search for open constants at which claims hold: a full grid, chosen in advance.

    Attributes:
        why: which constants are open, and how the grid was chosen.
        grid: values by setting; every combination is tried. `times.<setting>` multiplies the arm's own value.
        seeds, settings: of each point; settings override those of every arm. Fractions of the budget keep their steps.
        arms, claims: those to run and to judge; all by default. Readings on other arms are left out.
    """

    why: str
    grid: dict[str, list[Any]] = Field(min_length=1)
    seeds: Seeds
    settings: Settings = Field(default_factory=dict)
    arms: list[str] | None = None
    claims: list[str] | None = None


class Experiment(Described):
    """An experiment of a paper, as in its YAML.

    Attributes:
        title, paper, notes: one line; the paper, and which of its figures or statements; our choices, in sentences.
        undersized: how its runs are smaller than the paper's, so that no claim is settled; None if they are not.
        common, arms: settings of all arms, and by label. `tuned: true` stands for the shipped tuned settings of the
            task and optimizer, except those that are given.
        seeds: of every arm, one run each; a number stands for 0, 1, ...
        figure, claims: see `FigureSpec` and `Claim`.
        quick, search: for `--quick`; for `--search`, over constants that the paper leaves open.
    """

    title: str
    paper: str
    notes: list[str] = Field(default_factory=list)
    undersized: str | None = None
    common: Settings
    seeds: Seeds
    arms: dict[str, Settings] = Field(min_length=1)
    figure: FigureSpec
    claims: list[Claim] = Field(min_length=1)
    quick: Quick
    search: Search | None = None

    def small(self) -> "Experiment":
        """The version of `--quick`."""
        return self.changed(self.quick.settings, self.quick.seeds, self.quick.arms)

    def at_points(self) -> list[tuple[Settings, "Experiment"]]:
        """The points of the search, and the version at each; none without a search."""
        if (search := self.search) is None:
            return []
        chosen = [claim for claim in self.claims if claim.name in (search.claims or [claim.name])]
        claims = [claim.model_copy(update=self.arguments(claim)) for claim in chosen]
        versions = []
        for point in combinations(search.grid):
            version = self.changed(search.settings | point, search.seeds)
            arms = {label: version.arms[label] for label in search.arms or self.arms}
            versions.append((point, version.model_copy(update={"claims": claims, "arms": arms})))
        return versions

    def changed(
        self, settings: Settings, seeds: int | Sequence[int] | None = None, arms: Mapping[str, Settings] | None = None
    ) -> "Experiment":
        """The version with these settings in all arms (`times.`: see `Search`) and in single ones, and these seeds."""
        changed = {}
        for label, arm in self.arms.items():
            changed[label] = dict(arm)
            for name, value in settings.items():
                times = name.removeprefix("times.")  # YAML reads 1e-3 as text
                changed[label][times] = value if times == name else float(arm.get(times, nan)) * float(value)
            changed[label] |= (arms or {}).get(label, {})
        if isinstance(seeds, int):  # those of the experiment first
            after = max(self.seeds) + 1
            seeds = [*self.seeds, *range(after, after + seeds)][:seeds]
        return self.model_copy(update={"arms": changed, "seeds": list(seeds or self.seeds)})

    def arguments(self, claim: Claim) -> Settings:
        """The arguments of a claim's test that all readings share; a fraction of the budget becomes a step.

        The budget is the smallest number of steps of its arms.
        """
        at = claim.given.get("at")
        if not isinstance(at, str):
            return claim.given
        budget = min(float((self.common | self.arms[label])["trainer.max_steps"]) for label in claim.arms)
        return claim.given | {"at": max(1, round(float(at.removesuffix(" budget")) * budget))}

    def judge(self, claim: Claim, results: Arms) -> Finding:
        """The verdict on a claim over all its readings; those on other arms are left out, if not all are."""
        shared, readings = self.arguments(claim), dict[str, Settings]()
        for reading in combinations(claim.readings):
            values = {name: ", ".join(map(str, x)) if isinstance(x, list) else x for name, x in reading.items()}
            words = ", ".join(f"{name}{':' * (name in ARM_ARGUMENTS)} {value}" for name, value in values.items())
            readings[words] = shared | reading
        known = {words: given for words, given in readings.items() if {*_arms_in(given)} <= {*self.arms}} or readings
        return over_readings({words: judge(claim.test, results, **given) for words, given in known.items()})


def _arms_in(arguments: Settings) -> list[str]:
    values = [arguments.get(key, []) for key in ARM_ARGUMENTS]
    return [str(label) for labels in values for label in (labels if isinstance(labels, list) else [labels])]


def load(name: str) -> Experiment:
    """The experiment of this name; a `UserError` if there is none, it is invalid, or a claim names an unknown arm."""
    check_known("experiment", [name], experiments())
    try:
        experiment = Experiment.model_validate(read_yaml(experiments()[name]))
    except ValidationError as error:
        first = error.errors()[0]
        place = ": ".join(str(part) for part in first["loc"] if part != "[key]")
        raise UserError(f"{experiments()[name]}: {place}: {why_wrong(first['msg'])}") from None
    arms = dict(experiment.arms)
    for label, arm in experiment.arms.items():
        if arm.get("tuned") is True:
            settings = {name: value for name, value in arm.items() if name != "tuned"}
            given = experiment.common | settings
            tuned = tuned_settings(str(given.get("task")), str(given["opt"]), given, shipped=True)
            arms[label] = {name: value for name, value in tuned.items() if name not in given} | settings
    check_known("arm", (label for claim in experiment.claims for label in claim.arms), arms)
    return experiment.model_copy(update={"arms": arms})
