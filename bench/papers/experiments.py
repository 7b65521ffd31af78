"""Experiments of papers in YAML: `configs/papers/<paper>/<experiment>.yaml`."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Annotated, Any

import numpy as np
from pydantic import ConfigDict, Field, ValidationError, field_validator

from bench.config.options import NO_BOOLEAN
from bench.config.run_config import Seed, resolve, tuned_for
from bench.config.settings import as_stored
from bench.config.strict_yaml import read_yaml
from bench.config.values import experiments, refuse_too_many
from bench.errors import UserError, check_known
from bench.papers.arms import Arm
from bench.papers.claims import judge
from bench.papers.figures import Described, FigureSpec, lines
from bench.papers.verdicts import Finding, over_readings
from bench.store.record import RunResult
from bench.store.tables import CURVE_FIELDS
from bench.text import located, why_wrong
from optimizers import OPTIMIZERS

Settings = dict[str, Any]
ARM_ARGUMENTS = ("arms", "fast", "slow", "better", "worse")
"""Arguments of claims that name arms."""
DERIVED = {"relative_norm_W": "norm_W"}
"""Columns computed from a measured one: `relative_norm_W` is ||W|| / ||W_mm||."""


def statement(text: str, *, ours: bool) -> str:
    """A claim's statement, for a table of the paper's."""
    return f"ours: {text}" if ours else text


def combinations(grid: Mapping[str, Sequence[Any]]) -> list[Settings]:
    """All combinations of values by name; a single empty one without names."""
    return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]


class Claim(Described):
    """A statement of a paper, and its test.

    Attributes:
        name: short name, unique in the experiment.
        paper: the paper's statement, in short.
        test: a name in `bench.papers.claims.CLAIMS`; its arguments are the other keys. A step may be a fraction of its
            arms' budget (`at: 0.1 budget`), so that it is valid in the small version too.
        readings: values by argument where the text, or a threshold of ours, allows several; each combination is a
            reading of the statement.
        ours: whether the statement is ours; it is not counted among the paper's.
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
        return statement(self.paper, ours=self.ours)

    @property
    def arms(self) -> list[str]:
        """The arms that it names, in any reading."""
        given = self.model_extra or {}
        named = [x for key in ARM_ARGUMENTS for x in (given.get(key, []), *self.readings.get(key, []))]
        return [str(label) for labels in named for label in (labels if isinstance(labels, list) else [labels])]

    def about(self, arms: Collection[str]) -> "Claim":
        """The claim without readings that name other arms, unless all do."""
        kept = {
            key: [x for x in values if {*(x if isinstance(x, list) else [x])} <= {*arms}] or values
            for key, values in self.readings.items()
            if key in ARM_ARGUMENTS
        }
        return self.model_copy(update={"readings": self.readings | kept})


class Quick(Described):
    """The small version, by its differences from the whole experiment.

    Attributes:
        seeds: its seeds.
        settings: settings that override those of every arm.
        arms: settings that override those of one arm, by label.
    """

    seeds: list[Seed] = Field(min_length=1)
    settings: Settings = Field(default_factory=dict)
    arms: dict[str, Settings] = Field(default_factory=dict)


class Search(Described):
    """A search for open constants at which claims hold: a full grid, chosen in advance.

    Fractions of the budget keep their steps of the full version, whatever the budget is here.

    Attributes:
        why: which constants are open, and how the grid was chosen.
        grid: values by setting; every combination is tried. `times.<setting>` multiplies the arm's own value.
        seeds: of each point.
        settings: settings that override those of every arm (fewer steps, say).
        arms: labels of the arms to run; all by default. Readings of claims that name others are left out.
        claims: names of the claims to judge; all by default.
    """

    why: str
    grid: dict[str, list[Any]] = Field(min_length=1)
    seeds: list[Seed] = Field(min_length=1)
    settings: Settings = Field(default_factory=dict)
    arms: list[str] | None = None
    claims: list[str] | None = None

    @property
    def size(self) -> int:
        """Number of combinations of the grid."""
        return math.prod(map(len, self.grid.values()))

    @property
    def points(self) -> list[Settings]:
        """All combinations of the grid."""
        return combinations(self.grid)


class Experiment(Described):
    """An experiment of a paper, as in its YAML.

    Attributes:
        title: one line for people.
        paper: the paper, and which of its figures or statements.
        notes: our choices and remarks for readers, in plain sentences.
        undersized: how its runs are smaller than the paper's, so that no claim is settled; None if they are not.
        common: settings of all arms.
        seeds: of every arm, one run each.
        arms: settings by label. `tuned: true` stands for the shipped tuned settings of the task and optimizer, except
            those that are given.
        figure: description of the figure.
        claims: the tested claims.
        quick: the small version of `--quick`.
        search: over constants that the paper leaves open, for `--search`; None without any.
    """

    title: str
    paper: str
    notes: list[str] = Field(default_factory=list)
    undersized: str | None = None
    common: Settings
    seeds: list[Seed] = Field(min_length=1)
    arms: dict[str, Settings] = Field(min_length=1)
    figure: FigureSpec
    claims: list[Claim] = Field(min_length=1)
    quick: Quick
    search: Search | None = None

    @field_validator("seeds", mode="before")
    @classmethod
    def _count(cls, seeds: Any) -> Any:
        """A number of seeds stands for 0, 1, ..."""
        if not isinstance(seeds, int) or isinstance(seeds, bool):
            return seeds
        refuse_too_many(f"seeds {seeds}", seeds)
        return list(range(seeds))

    def small(self) -> "Experiment":
        """The version of `--quick`."""
        return self.changed(self.quick.settings, self.quick.seeds, self.quick.arms)

    def at(self, point: Settings) -> "Experiment":
        """The version at a point of the search."""
        assert self.search is not None
        version = self.changed(self.search.settings | point, self.search.seeds)
        wanted = self.search.claims
        claims = [self._in_steps(claim) for claim in self.claims if wanted is None or claim.name in wanted]
        arms = {label: version.arms[label] for label in self.search.arms or self.arms}
        return version.model_copy(update={"claims": [claim.about(arms) for claim in claims], "arms": arms})

    def changed(
        self,
        settings: Mapping[str, Any],
        seeds: int | Sequence[int] | None = None,
        arms: Mapping[str, Settings] | None = None,
    ) -> "Experiment":
        """The version with these settings in all arms, and these seeds; see `Search.grid` for `times.`.

        A number of seeds takes the experiment's own first, then the numbers after the largest. Settings of single arms
        override those of all.

        Raises:
            UserError: `times.` has no number to multiply.
        """
        factors = {name.removeprefix("times."): x for name, x in settings.items() if name.startswith("times.")}
        plain = {name: x for name, x in settings.items() if not name.startswith("times.")}
        changed = {label: of_arm | plain | (arms or {}).get(label, {}) for label, of_arm in self.arms.items()}
        for label, of_arm in changed.items():
            for name, factor in factors.items():
                if name not in of_arm:
                    raise UserError(f"times.{name}: the arm {label} does not set {name}")
                if isinstance(factor, bool):
                    raise UserError(f"times.{name} {factor}: it takes a number, and {NO_BOOLEAN}")
                try:
                    of_arm[name] = _number(of_arm[name]) * _number(factor)
                except (TypeError, ValueError):
                    raise UserError(
                        f"times.{name} {factor}: it and {of_arm[name]!r}, the setting of {label}, must be numbers"
                    ) from None
        if isinstance(seeds, int):
            after = range(max(self.seeds) + 1, max(self.seeds) + 1 + seeds)
            seeds = [*self.seeds, *after][:seeds]
        return self.model_copy(update={"arms": changed, "seeds": list(seeds or self.seeds)})

    def arguments(self, claim: Claim) -> Settings:
        """The arguments of a claim's test that all readings share, with fractions of the budget as steps."""
        return self._in_steps(claim).model_extra or {}

    def readings(self, claim: Claim) -> dict[str, Settings]:
        """The arguments of a claim's test by reading; at least one."""
        claim = self._in_steps(claim)
        return {_in_words(reading): (claim.model_extra or {}) | reading for reading in combinations(claim.readings)}

    def judge(self, claim: Claim, results: Mapping[str, Arm]) -> Finding:
        """The verdict on a claim over all its readings.

        Raises:
            UserError: an argument is unknown or illegal.
        """
        return over_readings(
            {words: judge(claim.test, results, **arguments) for words, arguments in self.readings(claim).items()}
        )

    def _in_steps(self, claim: Claim) -> Claim:
        """The claim with fractions of the budget, the smallest number of steps of its arms, as steps.

        Raises:
            UserError: a fraction is out of range, or an arm has no number of steps.
        """

        def steps(value: Any) -> Any:
            if isinstance(value, dict):
                return {name: steps(item) for name, item in value.items()}
            if isinstance(value, list):
                return [steps(item) for item in value]
            if not isinstance(value, str) or not value.endswith(" budget"):
                return value
            try:
                share = float(value.removesuffix(" budget"))
            except ValueError:
                share = 0.0
            if not 0 < share <= 1:
                raise UserError(
                    f"{value!r} is not a fraction of the budget; write `0.1 budget` for a tenth of the steps"
                )
            budgets = [(self.common | self.arms[label]).get("trainer.max_steps") or 0 for label in claim.arms]
            if not budgets or 0 in budgets:
                raise UserError(f"{value!r}: its arms have no trainer.max_steps; give a step number")
            return max(1, round(share * min(map(float, budgets))))

        return claim.model_copy(update=steps((claim.model_extra or {}) | {"readings": claim.readings}))

    def rehearse(self) -> dict[str, Arm]:
        """Judge the claims on synthetic results.

        This refuses experiments that cannot be trained or judged before hours of training.

        Returns:
            The synthetic results.

        Raises:
            UserError: with the arm or claim at fault.
        """
        results = {}
        for label, settings in self.arms.items():
            with _blaming(f"arm {label}"):
                results[label] = _made_up(label, self.common | settings)
        for claim in self.claims:
            with _blaming(f"claim {claim.name}"):
                check_known("arm", claim.arms, self.arms)
                self.judge(claim, results)
        return results

    def refuse_too_many(self, seeds: int | None = None, *, search: bool = True) -> None:
        """Refuse more runs than one command may make.

        Args:
            seeds: number of seeds; None for the experiment's own.
            search: include the points of the search.

        Raises:
            UserError: there are too many.
        """
        said = "this experiment" if seeds is None else f"--seeds {seeds}"
        refuse_too_many(said, len(self.arms) * (seeds or len(self.seeds)))
        if search and self.search:
            arms = self.arms if self.search.arms is None else self.search.arms
            with _blaming("search"):
                refuse_too_many(said, self.search.size * len(arms) * (seeds or len(self.search.seeds)))

    def check(self) -> None:
        """Refuse what could not be trained, judged or drawn, in any version.

        Raises:
            UserError: with the part at fault.
        """
        self.refuse_too_many()
        names = [claim.name for claim in self.claims]
        if len(set(names)) < len(names):
            raise UserError(f"two claims have the name {max(names, key=names.count)!r}; names must differ")
        results = self.rehearse()
        for panel in self.figure.panels:
            with _blaming(f"panel {panel.title or panel.y}"):
                check_known("arm", panel.arms or [], self.arms)
                for label in panel.arms or self.arms:
                    columns = {name for table in results[label].every_table for name in table}
                    check_known("column", [panel.x, panel.y], columns)
                    lines(panel, results[label])
        with _blaming("quick"):
            check_known("arm", self.quick.arms, self.arms)
            self.small().rehearse()
        if self.search:
            with _blaming("search"):
                check_known("arm", self.search.arms or [], self.arms)
                check_known("claim", self.search.claims or [], names)
                for point in self.search.points:
                    self.at(point).rehearse()


def _made_up(label: str, settings: Settings) -> Arm:
    """Two completed runs with all columns that the arm's runs will have."""
    config, steps = resolve(settings), np.arange(1, 10.0)
    spec, stored = config.task_spec, as_stored(config)
    measured = list(filter(None, spec.measures.split(", ")))
    measured += [name for name, of in DERIVED.items() if of in measured]
    columns = {
        "measurements": measured,
        "curve": CURVE_FIELDS,
        "validations": ("train_s", "val_loss", f"val_{spec.metric}"),
    }
    tables = {kind: {**dict.fromkeys(names, 1 / steps), "step": steps} for kind, names in columns.items()}
    seeds = [{"seed": seed, "data_seed": settings.get("data_seed", seed)} for seed in (0, 1)]
    return Arm.of_each(label, ((RunResult(label, stored | seed, "completed", "converged"), tables) for seed in seeds))


def _number(value: Any) -> Any:
    """YAML reads 1e-3 as text."""
    return float(value) if isinstance(value, str) else value


def _in_words(reading: Settings) -> str:
    """A reading in the words of a page."""
    words = {name: ", ".join(map(str, x)) if isinstance(x, list) else x for name, x in reading.items()}
    return ", ".join(f"{name}{':' * (name in ARM_ARGUMENTS)} {text}" for name, text in words.items())


@contextmanager
def _blaming(part: str) -> Iterator[None]:
    """Name the part of the YAML at fault in errors."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{part}: {error}") from None


def title(name: str) -> str:
    """The experiment's title, or the error in its YAML; its settings are not checked."""
    try:
        return _read(name).title
    except UserError as error:
        return f"(broken: {error})"


def load(name: str) -> Experiment:
    """The experiment of this name.

    Raises:
        UserError: there is none, or its YAML is invalid.
    """
    experiment = _read(name)
    with _blaming(str(experiments()[name])):
        experiment.check()
    return experiment


def _read(name: str) -> Experiment:
    known = experiments()
    check_known("experiment", [name], known)
    content = read_yaml(known[name])
    with _blaming(str(known[name])):
        try:
            experiment = Experiment.model_validate(content)
        except ValidationError as error:
            first = error.errors()[0]
            raise UserError(f"{_place(located(first, content), content)}: {why_wrong(first['msg'])}") from None
        return experiment.model_copy(update={"arms": dict(_with_tuned(experiment))})


def _with_tuned(experiment: Experiment) -> Iterator[tuple[str, Settings]]:
    """The arms; in one with `tuned: true`, the shipped tuned settings of its task and optimizer in its place."""
    for label, settings in experiment.arms.items():
        if "tuned" in settings:
            mine = {name: value for name, value in settings.items() if name != "tuned"}
            named = experiment.common | mine
            with _blaming(f"arm {label}"):
                if settings["tuned"] is not True:
                    raise UserError(f"tuned {settings['tuned']}: it is true, or left out")
                task, opt = str(named.get("task")), str(named.get("opt"))
                check_known("optimizer", [opt], OPTIMIZERS)
                of_opt = tuned_for(task, opt, named, shipped=True)
            settings = {name: value for name, value in of_opt.items() if name not in named} | mine
        yield label, settings


def _place(loc: Sequence[int | str], content: Any) -> str:
    """The place of an error of pydantic, with claims and panels by name."""
    parts: list[str] = []
    for key in loc:
        try:
            content = content[key]
        except (KeyError, IndexError, TypeError):
            content = None  # it is missing
        if isinstance(key, str):
            parts.append(key)
        else:
            names = [content.get(name) for name in ("name", "title", "y")] if isinstance(content, dict) else []
            parts[-1] = f"{parts[-1].removesuffix('s')} {next(filter(None, names), key + 1)}"
    return ": ".join(parts)
