"""What commands print with `--json`: the schema of each as a model, from which the docs page is made.

Nothing imports this file to answer: the tests hold the answers of all commands to these models, and `docs/conf.py`
writes them down. Numbers are finite or null, unless a key says else.
"""

import json
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, RootModel

Number = float | Literal["inf", "-inf"] | None
"""A number, null for one that is not known; the words stand for infinities."""
Score = float | Literal["diverged"] | None


class Answer(BaseModel):
    """An object with these keys and no others."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class Row(Answer):
    """An object with these keys, and more that depend on the board."""

    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True)


# -- boards -----------------------------------------------------------------------------------------------------------


class Column(Answer):
    """A column of a table."""

    key: str
    """The key of the column in each row."""
    title: str
    """Its heading."""
    help: str
    """Its meaning."""
    digits: int
    """Significant digits that a person sees."""
    unit: str = ""
    """The unit, where there is one."""


class Table(Answer):
    """A table of a board."""

    title: str
    """Its heading."""
    columns: list[Column]
    """The columns that a person sees, in order."""
    notes: list[str]
    """What a reader must know, in sentences."""
    rows: list[dict[str, Any]]
    """A row for each entry: a value for each column, and more. Intervals are objects with mean, low, high and n."""


class Board(Answer):
    """Tables under one title."""

    board: str
    """Its name, such as `quality`."""
    title: str
    """Its heading."""
    notes: list[str]
    """What a reader must know, in sentences."""
    tables: list[Table]
    """A table for each problem."""


class Boards(RootModel[list[Board]]):
    """A list of boards."""


class QualityRow(Row):
    """A row of the board `quality`; other boards have other keys, which their columns explain."""

    opt: str
    """The optimizer."""
    settings: str
    """Where its hyperparameters come from: `tuned`, `default` or `set by hand`."""
    options: dict[str, Any]
    """Its hyperparameters."""
    final: dict[str, Any] | None
    """The final metric over the seeds: mean, low, high and n."""
    verdict: str
    """`reference`, `better`, `worse`, `no difference found`, `too few seeds (...)` or `selected on these seeds`."""
    effect: dict[str, Any] | None = None
    """Effect size against the reference, with its interval; missing for the reference."""
    n: int
    """Seeds."""
    flags: list[str]
    """What weakens the row."""


# -- runs -------------------------------------------------------------------------------------------------------------


class Run(Answer):
    """A run and its result."""

    run_id: str
    """The id: task, optimizer, and a digest of all that decides the result."""
    task: str
    """The task."""
    opt: str
    """The optimizer."""
    status: str
    """`completed`, `diverged`, `timeout`, `failed`, `killed` or `running`."""
    metric: str
    """SPLIT/NAME of the metric that is compared."""
    final: Number
    """The metric at the last step; null without a value."""
    best: Number
    """The metric at the best step on the selection split; null without a value."""
    steps: int
    """Optimizer steps made."""
    wall_s: float
    """Seconds from the first step to the end, evaluation included."""
    store: str
    """The folder of the store."""
    specimen: str | None = None
    """Text that the trained model writes; only where the task makes one."""


class ListedRun(Run):
    """A run with what tells it from others."""

    reason: str | None
    """Why it ended early."""
    begun: str | None
    """When it began, in UTC (ISO 8601)."""
    seed: int
    """The seed."""
    data_seed: int
    """The seed of the order of the samples."""
    engine: str
    """`lightning` (a run for itself), `compiled` (so too, with `torch.compile`) or `lanes` (many as one program)."""
    plan: str | None
    """The command that wanted it."""
    study: str | None
    """The study of which it is a trial."""
    settings: dict[str, Any]
    """The settings beyond the defaults, in dotted form."""


class ListedRuns(RootModel[list[ListedRun]]):
    """A list of runs, newest first."""


class SeedRuns(Answer):
    """A run for each seed."""

    runs: list[Run]
    """The runs, in the order of the seeds."""
    mean: float | None
    """The mean of the final metric; null if a run diverged."""
    t_interval_95: tuple[float, float] | None
    """Ends of the 95 % t-interval of the mean; null for one seed."""


class Config(Answer):
    """A resolved configuration."""

    run_id: str
    """The id that the run would have."""
    task: str
    """The task."""
    task_options: dict[str, Any]
    """Its options."""
    opt: str
    """The optimizer."""
    opt_options: dict[str, Any]
    """Its hyperparameters."""
    trainer: dict[str, Any]
    """Budget, batch, schedule and devices."""
    seed: int
    """The seed."""
    data_seed: int
    """The seed of the order of the samples."""
    precision: str
    """The precision."""
    device: str
    """The device."""
    data: str
    """The folder of the data sets."""
    store: str
    """The folder of the store."""
    logger: str | None
    """The logger."""


class ByRun(RootModel[dict[str, dict[str, Any]]]):
    """By the id of each run that would be made, the settings in which they differ."""


# -- sweeps and studies -----------------------------------------------------------------------------------------------


class SweepPoint(Answer):
    """A curve at one value of the varied setting."""

    x: Any
    """The value."""
    seeds: int
    """Runs that ended."""
    diverged: int
    """How many of them diverged or have no value."""
    median: Score
    """Median of the final metric over seeds."""
    quartiles: tuple[Score, Score]
    """Lower and upper quartile."""
    interval: tuple[Score, Score] | None
    """95 % interval of the median; null below 6 seeds."""
    choice: Score
    """Median on the selection split, which chooses the best."""
    capped: bool
    """Whether a step cap set the steps; such a point is never the best."""


class SweepCurve(Answer):
    """An optimizer, at one value of each further varied setting."""

    name: str
    """Its name in the legend."""
    opt: str
    """The optimizer."""
    x: str
    """The setting on the x axis."""
    points: list[SweepPoint]
    """A point for each value, in order."""
    best: int | None
    """Index of the best point."""
    usable: tuple[int, int] | None
    """Indices of the first and the last point around the best that are nearly as good."""
    unscored: dict[str, str]
    """Values without an ended run, with the reason."""
    at_edge: bool
    """Whether the best lies at an end, so a wider range may have a better one."""
    may_be_wider: bool
    """Whether the usable range may reach beyond the tried one."""


class Sweep(Answer):
    """How results depend on the settings."""

    x: str
    """The setting on the x axis."""
    varied: list[str]
    """The settings that vary, in dotted form."""
    metric: str
    """SPLIT/NAME of the metric."""
    mode: Literal["min", "max"]
    """Whether smaller or greater is better."""
    runs: dict[str, int]
    """Number of runs by status."""
    curves: list[SweepCurve]
    """A curve for each optimizer and each value of further settings."""
    store: str
    """The folder of the store."""
    out: str
    """The folder of table and plot."""


class Fresh(Answer):
    """The winner's runs on fresh seeds."""

    seeds: list[int]
    """The seeds."""
    values: list[Number]
    """The final metric of each; null where a run diverged."""
    mean: float | None
    """Their mean (geometric where the task compares ratios)."""
    low: float | None
    """Lower end of the 95 % t-interval."""
    high: float | None
    """Upper end."""


class Trial(Answer):
    """A setting that was tried."""

    point: dict[str, Any]
    """The searched hyperparameters."""
    kind: str
    """`design`, `extension`, `top-up` or `refinement`."""
    state: str
    """`waiting`, `running`, `completed`, `pruned` or `failed`."""
    score: Number = None
    """Median over the tuning seeds on the selection split."""


class Cost(Answer):
    """What tuning has cost."""

    trial_seconds: float
    """Seconds of the trials."""
    trial_gradient_evaluations: int
    """Gradients of a batch in the trials."""
    fresh_seconds: float
    """Seconds of the fresh seeds."""
    fresh_gradient_evaluations: int
    """Gradients of a batch on the fresh seeds."""


class Study(Answer):
    """What a study has found."""

    study: str
    """Its name."""
    task: str
    """The task."""
    opt: str
    """The optimizer."""
    sampler: str
    """`grid` or `qmc`."""
    trials: int
    """Trials with an end, refinements not included."""
    refinements: int
    """Trials that TPE added."""
    missing: int
    """Trials still to come."""
    best: dict[str, Any] | None
    """The searched hyperparameters of the winner."""
    score: Number
    """Its score, which flatters it: report `fresh`."""
    fresh: Fresh
    """The winner on fresh seeds."""
    lr_at_boundary: bool
    """Whether the best lies at the boundary of the tried values."""
    cost: Cost
    """What tuning has cost."""
    pruning: bool
    """Whether bad trials were stopped early."""
    tried: list[Trial]
    """All trials."""


class StudyOut(Study):
    """A study and where its settings are."""

    out: str | None
    """The folder of the settings; null if nothing was written."""


class Points(RootModel[list[dict[str, Any]]]):
    """A list of settings that would be tried."""


class StudyLine(Answer):
    """A study in short."""

    trials: int
    """Trials with an end."""
    missing: int
    """Trials still to come."""
    running: int
    """Trials that workers train."""
    best: str | None
    """The winner's hyperparameters in words."""
    score: Number
    """Its score."""
    fresh: float | None
    """Its mean on fresh seeds."""


class StudyError(Answer):
    """A study that cannot be read."""

    error: str
    """The reason."""


class Studies(RootModel[dict[str, StudyLine | StudyError]]):
    """By name, each study of the database."""


class Suite(Answer):
    """What a suite has found."""

    out: str
    """The folder of settings and plots."""
    studies: list[Study]
    """A study for each task and optimizer."""


class Step(Answer):
    """A study of the plan."""

    spec: dict[str, Any]
    """What is tuned: task, optimizer, settings, space, seeds."""
    trials: tuple[int, int]
    """Trials wanted, and stored ones of them."""
    fresh: tuple[int, int]
    """Fresh seeds wanted, and stored ones of them."""
    seconds: float
    """About how long the rest takes on one worker."""


class Steps(RootModel[list[Step]]):
    """A list of the studies that would be made."""


# -- comparisons ------------------------------------------------------------------------------------------------------


class Quickstart(Answer):
    """A first comparison."""

    boards: list[Board]
    """The ranked table."""
    said: list[str]
    """The verdict in a sentence, and what it does not show."""
    plot: str
    """The file with the training curves."""
    next: list[str]
    """Commands to try next."""


class Rung(Answer):
    """A size of a ladder."""

    rung: int
    """Its number, from 1."""
    at: float
    """What grows, at this rung."""
    parameters: int
    """Parameters of the model."""
    steps: int
    """Optimizer steps of a run."""
    settings: dict[str, Any]
    """Settings of this size."""
    trials: int
    """Settings that each optimizer tries."""
    runs: int
    """Runs of all optimizers."""
    seconds: float
    """About how long these take, one after the other."""
    run_seconds: dict[str, float]
    """About how long one run takes, by optimizer."""


class LadderPlan(Answer):
    """What a ladder would do."""

    ladder: str
    """Its name."""
    rule: list[str]
    """How the sizes follow, in sentences."""
    rungs: list[Rung]
    """From the smallest."""


class Ladder(Answer):
    """The same comparison at growing sizes."""

    ladder: str
    """Its name."""
    out: str
    """The folder of page, tables and pictures."""
    said: list[str]
    """The verdict as sentences."""
    boards: list[Board]
    """Efficiency, predictions, rankings and transfer of settings."""


class Comparison(Answer):
    """Optimizers that were tuned with equal budgets, ranked on fresh seeds."""

    out: str
    """The folder of table, plots and settings."""
    studies: list[Study]
    """A study for each optimizer."""
    boards: list[Board]
    """The board `quality`; empty while no winner has run on fresh seeds."""
    said: list[str]
    """Verdicts as sentences, then how many seeds may decide open ones."""


class Race(Answer):
    """Optimizers with seeds added where verdicts were open."""

    runs: int
    """Runs in all."""
    ended: str
    """Why the race ended."""
    boards: list[Board]
    """The board `quality`, and the seeds of each round."""


class Explained(Answer):
    """What stands behind a row of a board."""

    row: str
    """The row's name."""
    problem: str
    """The task with its budget."""
    facts: dict[str, str]
    """In words: settings, search, cost, cuts, flags, versions, machine."""
    tried: list[Trial]
    """The trials of its study; empty without one."""
    commands: list[str]
    """Commands that make its runs."""


class Explanations(RootModel[list[Explained]]):
    """A list with an explanation for each problem."""


class Report(Answer):
    """A page that was written."""

    out: str
    """The file."""
    runs: int
    """Runs in the stores."""
    damaged: list[str]
    """Files that cannot be read, with the reason."""
    notes: list[str]
    """What was left out, in sentences."""


class DrawnPanel(Answer):
    """A panel of a plot."""

    title: str
    """Its title."""
    drawn: bool
    """Whether it has data."""
    note: str
    """What a reader must know, or why it is empty."""


class Plot(Answer):
    """A plot that was written."""

    out: str
    """The file."""
    panels: list[DrawnPanel]
    """A panel for each problem."""
    damaged: list[str]
    """Files that cannot be read, with the reason."""
    notes: list[str]
    """What was left out, in sentences."""


# -- stores -----------------------------------------------------------------------------------------------------------


class SqlRows(RootModel[list[dict[str, Any]]]):
    """A list of rows, each with the columns of the query."""


class Merged(Answer):
    """What was copied."""

    dest: str
    """The store that took it."""
    copied: int
    """Runs copied."""
    there: int
    """Runs that were there already."""
    skipped: int
    """Runs left out, such as running ones."""
    studies: int
    """Records of studies copied."""
    checks: int
    """Verdicts of `bench check` copied."""
    differing: list[str]
    """Ids of runs of which the destination keeps another result."""
    damaged: list[str]
    """Files that cannot be read, with the reason."""


class Bundle(Answer):
    """A bundle that was written."""

    out: str
    """The folder or file."""
    runs: int
    """Runs in it."""
    studies: int
    """Studies in it."""
    tuned: int
    """Files of tuned settings in it."""
    sources: int
    """Sources of plug-ins in it."""
    damaged: list[str]
    """Files that cannot be read, with the reason."""


class Outcome(Answer):
    """How a run ended."""

    status: str
    """Its status."""
    value: Number
    """Its final metric."""


class Verified(Answer):
    """A run that was trained again."""

    run_id: str
    """The run."""
    task: str
    """The task."""
    opt: str
    """The optimizer."""
    seed: int
    """The seed."""
    verdict: str
    """`confirmed`, `refuted` or `not tried`."""
    why: str
    """The reason in words."""
    claimed: Outcome
    """The stored result."""
    again: Outcome | None
    """The new one; null if it was not trained."""


class Verification(RootModel[list[Verified]]):
    """A list of the drawn runs."""


class CurveDifference(Answer):
    """How two curves of losses agree."""

    steps: tuple[int, int]
    """Steps of each."""
    shared: int
    """Steps that both have."""
    differing: int
    """Steps with different losses."""
    first_difference: int | None
    """The first of them."""
    largest: float | None
    """Largest relative difference."""
    largest_at: int | None
    """Its step."""


class Difference(Answer):
    """What differs between two runs; pairs of values by name."""

    runs: tuple[str, str]
    """The ids."""
    stores: tuple[str, str]
    """The folders of their stores."""
    settings: dict[str, tuple[Any, Any]]
    """Settings that differ."""
    versions: dict[str, tuple[Any, Any]]
    """Versions that differ."""
    environment: dict[str, tuple[Any, Any]]
    """Facts about the machine that differ."""
    results: dict[str, tuple[Any, Any]]
    """Results that differ."""
    curve: CurveDifference
    """The training losses."""
    equal: bool
    """Whether nothing differs."""


class Plan(Answer):
    """Runs that are wanted and may be missing."""

    plan: str
    """Its name, which `bench worker --plan` takes."""
    stored: int
    """Runs that are stored."""
    runs: int
    """Runs in all."""
    store: str
    """The folder of the store."""


class Plans(RootModel[list[Plan]]):
    """A list of plans."""


# -- checks -----------------------------------------------------------------------------------------------------------


class CheckVerdict(Answer):
    """A verdict of the conformance kit."""

    check: str
    """The check."""
    verdict: Literal["pass", "fail", "not applicable", "error"]
    """`error`: the optimizer raised, ended its process, or did not end."""
    measured: Number
    """The number that was compared with the tolerance."""
    note: str
    """What else was seen."""
    seconds: float
    """Duration."""
    tolerance: float | None
    """The greatest number that passes; null for what is only reported."""
    severity: str | None
    """Effect of a failure: `results`, `set-up`, `speed`, ...; null for what is only reported."""
    meaning: str
    """The property."""
    advice: str
    """What to do about a failure."""


class Check(Row):
    """Verdicts on an optimizer or a task; the last five keys are missing if it cannot be loaded."""

    name: str
    """What was checked."""
    ok: bool
    """Whether no failure changes results or blocks a set-up."""
    options: dict[str, Any]
    """Hyperparameters given on the command line."""
    verdicts: list[CheckVerdict]
    """A verdict for each check."""
    target: str = ""
    """Module and class."""
    version: int = 0
    """The version of its spec."""
    package: str | None = None
    """Distribution and version, or a digest of the file."""
    versions: dict[str, str] = {}
    """Versions of Python, torch and the suite."""
    arguments: dict[str, Any] = {}
    """Arguments of the constructor."""


class Diagnosis(Answer):
    """A line of the report on a machine."""

    level: Literal["ok", "note", "FAIL"]
    """FAIL is something that will not work."""
    subject: str
    """What was looked at."""
    text: str
    """What was found, and how to mend it."""


class Doctor(Answer):
    """What works on this machine."""

    ok: bool
    """Whether there is no FAIL."""
    diagnoses: list[Diagnosis]
    """In the order in which things were looked at."""


class JudgedClaim(Row):
    """A claim of a paper, with the arguments of its test and more of what was found."""

    name: str
    """Its name in the experiment."""
    paper: str
    """The paper's words, in short."""
    said: str
    """The verdict; that of a small or altered run is no verdict on the paper."""
    verdict: str
    """What the runs show, whatever their size."""
    effect: Number
    """The mean over seeds, where there is such a number."""
    low: Number
    """The lower end of its 95 % interval."""
    high: Number
    """The upper end."""
    unit: str
    """The unit of the effect."""
    text: str
    """One sentence with the numbers."""
    p: Number
    """The least level at which the intervals decide so."""


class Reproduced(Row):
    """A paper's experiment and its claims; more keys are those of `claims.json`."""

    out: str
    """The folder of page, figure and data."""
    experiment: str
    """PAPER/EXPERIMENT."""
    title: str
    """One line."""
    paper: str
    """The paper, and which figure or statement."""
    quick: bool
    """Whether it is the small version, which is no evidence."""
    small_run: bool
    """Whether the runs are smaller than the experiment's, or altered."""
    claims: list[JudgedClaim]
    """In the order of the experiment."""
    runs: dict[str, list[str]]
    """Run ids by arm."""


class Experiment(Answer):
    """A paper's experiment."""

    name: str
    """PAPER/EXPERIMENT."""
    title: str
    """One line."""


class Experiments(RootModel[list[Experiment]]):
    """A list of experiments."""


class CheckEntry(Answer):
    """A check of the catalogue."""

    name: str
    """Its name, which `--only` takes."""
    target: str
    """The function that measures it."""
    meaning: str
    """The property."""
    tolerance: float | None
    """The greatest number that passes."""
    because: str
    """Why that much."""
    advice: str
    """What to do about a failure."""
    severity: str | None
    """Effect of a failure."""


class Catalogue(Answer):
    """All checks by name."""

    optimizer: dict[str, CheckEntry]
    """Checks of optimizers."""
    task: dict[str, CheckEntry]
    """Checks of tasks."""


# -- what there is ----------------------------------------------------------------------------------------------------


class Names(RootModel[dict[str, str]]):
    """By name, a line of description."""


class OptionHelp(Answer):
    """An option of a task or an optimizer."""

    type: str
    """Its type in words."""
    default: str
    """Its default in words."""
    help: str
    """Its meaning, unit and range."""


class ParameterGroup(Answer):
    """Parameters of one role and shape."""

    names: list[str]
    """Their names, with `*` for the number of a layer."""
    role: str
    """`matrix`, `embedding`, `head` or `vector`."""
    shape: list[int]
    """Shape of each."""
    pieces: int
    """Matrices that each holds, stacked by rows."""


class ShownTask(Answer):
    """A task."""

    kind: Literal["task"]
    """Says that it is one."""
    name: str
    """Its name."""
    title: str
    """One line."""
    version: int
    """Version of model and data."""
    metric: str
    """The metric that is compared."""
    mode: Literal["min", "max"]
    """Whether smaller or greater is better."""
    scale: Literal["linear", "log"]
    """Whether values are compared by differences, or by ratios of suboptimality gaps."""
    ranks_training: bool
    """Whether training samples are ranked, on purpose."""
    target: float | None
    """The value of the metric for time-to-target."""
    budget: dict[str, int]
    """The default budget."""
    batch_size: int | Literal["full"]
    """Samples of an optimizer step."""
    precision: str
    """The default precision."""
    family: str
    """The family of tasks with which optimizers share defaults."""
    source: str
    """Where model and constants come from."""
    measure_every: int | None
    """Steps between measurements; null without any."""
    options: dict[str, OptionHelp]
    """The options `--task.*`."""
    parameters: list[ParameterGroup] = []
    """The model's parameters by role; missing if they are unknown here."""
    unknown: str = ""
    """Why the parameters are unknown here; else missing."""


class ShownOptimizer(Answer):
    """An optimizer."""

    kind: Literal["optimizer"]
    """Says that it is one."""
    name: str
    """Its name."""
    version: int
    """Version of the method."""
    rule: str
    """The update as a formula."""
    source: str
    """The paper or package."""
    class_: Annotated[str, Field(alias="class")]
    """`module:Class`."""
    traits: list[str]
    """Facts that the runner acts on."""
    options: dict[str, OptionHelp]
    """The hyperparameters."""
    search: dict[str, Any]
    """The search space: `low` and `high` of a log-uniform range, or a list."""
    by_family: dict[str, dict[str, Any]]
    """Defaults by family of tasks."""


class ShownExperiment(Row):
    """A paper's experiment, with the keys of its YAML file."""

    kind: Literal["experiment"]
    """Says that it is one."""
    name: str
    """PAPER/EXPERIMENT."""
    title: str
    """One line."""
    paper: str
    """The paper, and which figure or statement."""
    seeds: list[int]
    """A run for each arm and seed."""
    arms: dict[str, dict[str, Any]]
    """Settings by label."""
    claims: list[dict[str, Any]]
    """What the paper says, and the test of it."""


class ShownRun(Run):
    """A stored run with all that a reader needs."""

    kind: Literal["run"]
    """Says that it is one."""
    begun: str | None
    """When it began, in UTC (ISO 8601)."""
    made_for: str | None
    """The command that wanted it."""
    study: str | None
    """The study of which it is a trial."""
    tuned_by: str | None
    """The study that found its settings."""
    best_step: int | None
    """The best step on the selection split."""
    metrics: dict[str, Any]
    """All metrics at the last and the best step, by split."""
    settings: dict[str, Any]
    """All settings in dotted form."""
    chosen: dict[str, Any]
    """Those beyond the defaults."""
    versions: dict[str, Any]
    """Versions of the suite, its parts and the libraries."""
    environment: dict[str, Any]
    """Facts about the machine."""
    notes: list[str]
    """What a reader must know, in sentences."""
    commands: list[str]
    """Commands that repeat, resume and plot it."""
    folder: str
    """Its folder."""
    rows: dict[str, int]
    """Rows of each table."""
    damaged: str | None
    """Why its tables cannot be read; else null."""


class DataFile(Answer):
    """A file of a task's data."""

    path: str
    """The file."""
    state: str
    """`whole`, `part of N rows`, `missing` or `damaged`."""
    sha256: str | None
    """Its digest; null if it cannot be read."""
    size: str
    """Rows of a table, bytes of other files."""
    cached: list[str]
    """Of a text: cached tokens, an entry for each tokenizer and length."""


class Data(Answer):
    """The files of a task's data."""

    task: str
    """The task."""
    folder: str
    """Their folder."""
    stand_in: str | None
    """Why they are not the data that the task is named for; else null."""
    text: bool
    """Whether they are texts."""
    files: list[DataFile]
    """A state for each file."""


class DataSets(RootModel[list[Data]]):
    """A list of data sets."""


class New(Answer):
    """A package that was written."""

    out: str
    """Its folder."""
    files: list[str]
    """Its files."""


def fields(model: type[BaseModel]) -> list[tuple[str, str, str]]:
    """The keys of an object: name, type and meaning."""
    return [
        (own.alias or name, type_text(own.annotation) + ", or missing" * (not own.is_required()), own.description or "")
        for name, own in model.model_fields.items()
    ]


def type_text(kind: Any) -> str:
    """A type as a person reads it, with the names of models.

    Args:
        kind: of a key.
    """
    origin, inner = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and issubclass(kind, RootModel):
        return type_text(kind.model_fields["root"].annotation)
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind.__name__
    if origin is Literal:
        return " or ".join(json.dumps(word) for word in inner)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(map(type_text, inner)))
    if origin is list:
        return f"list of {type_text(inner[0])}"
    if origin is tuple:
        return f"pair of {type_text(inner[0])}"
    if origin is dict:
        return f"object of {type_text(inner[1])}"
    return _WORDS[kind]


_WORDS = {
    str: "text", int: "integer", float: "number", bool: "true or false", type(None): "null", Any: "anything",
}  # fmt: skip


def parts_of(kind: Any) -> list[type[BaseModel]]:
    """A model and the models in it, each once, in order."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        inner = (part for own in kind.model_fields.values() for part in parts_of(own.annotation))
        return list(dict.fromkeys([kind, *inner]))
    return list(dict.fromkeys(part for own in get_args(kind) for part in parts_of(own)))


ANSWERS: dict[str, type[BaseModel]] = {
    "quickstart": Quickstart,
    "fit": Run,
    "fit --seeds": SeedRuns,
    "fit --dry-run": Config,
    "fit --seeds --dry-run": ByRun,
    "sweep": Sweep,
    "sweep --dry-run": ByRun,
    "compare": Comparison,
    "compare --dry-run": Steps,
    "ladder": Ladder,
    "ladder --dry-run": LadderPlan,
    "race": Race,
    "race --dry-run": ByRun,
    "tune": StudyOut,
    "tune --dry-run": Points,
    "suite": Suite,
    "suite --plan": Steps,
    "studies": Studies,
    "studies NAME": StudyOut,
    "leaderboard": Boards,
    "leaderboard --explain": Explanations,
    "reproduce": Reproduced,
    "reproduce --list": Experiments,
    "claims": Boards,
    "report": Report,
    "plot": Plot,
    "sql": SqlRows,
    "merge": Merged,
    "bundle": Bundle,
    "verify": Verification,
    "diff": Difference,
    "new": New,
    "check": Check,
    "check --task": Check,
    "check --matrix": Boards,
    "check --list": Catalogue,
    "list tasks": Names,
    "list optimizers": Names,
    "list runs": ListedRuns,
    "list plans": Plans,
    "show TASK": ShownTask,
    "show OPTIMIZER": ShownOptimizer,
    "show EXPERIMENT": ShownExperiment,
    "show RUN": ShownRun,
    "data": DataSets,
    "doctor": Doctor,
}
"""By command, with the option or the kind of argument that changes the answer: its schema."""
