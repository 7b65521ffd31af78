"""A plan: requested runs, stored while they train, so that other processes can join.

    STORE/plans/NAME/plan.json    the runs and how to execute them; written first, never changed
    STORE/plans/NAME/cuts.json    their division into blocks (`bench.execute.cuts`); the first writer decides

The folder is removed when all runs are stored.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from uuid import uuid4

from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict

from bench.config.plugins import allowed
from bench.config.run_config import RunConfig, on_device, resolve, settings_of
from bench.config.settings import as_stored
from bench.config.tuned import Sources, TunedBy
from bench.errors import UserError
from bench.execute import Engine
from bench.store.block import PLANS
from bench.store.files import link, making, refuse_links, write_json
from bench.store.load import Damaged, read
from bench.store.record import Json, Mode, Name, RunId, is_file_name
from bench.store.store import Store
from bench.text import clean
from optimizers.plugins import slug

if TYPE_CHECKING:
    from bench.execute.exchange import Exchange

PLAN, CUTS = "plan.json", "cuts.json"
Positive = Annotated[int, Field(ge=1, lt=2**31)]


@with_config(ConfigDict(extra="forbid", strict=True))
class Code(TypedDict):
    """A task and an optimizer of a plan, with their versions and the study that found their settings."""

    task: Name
    opt: Name
    versions: dict[str, int | str]
    tuned_by: TunedBy | None


@with_config(ConfigDict(extra="forbid", strict=True))
class Stored(TypedDict):
    """The content of `plan.json`: settings of runs in dotted form, with those that all share in `common`."""

    title: Name
    engine: Engine
    width: Positive | None
    shares: Positive
    code: list[Code]
    common: Json
    runs: dict[RunId, Json]


@dataclass(frozen=True)
class Plan:
    """Requested runs.

    Attributes:
        title: purpose (`RunResult.plan`).
        configs: the runs; all have one store, one data folder and one device.
        engine: `lanes`, `lightning` (one run at a time), or the faster one.
        width: maximum lanes of a block; measured by default.
        shares: number of processes that will share them.
        sources: the studies that found their hyperparameters (`RunResult.tuned_by`).
        exchange: the database through which machines with other stores share them, if any.
    """

    title: str
    configs: Sequence[RunConfig]
    engine: Engine = "auto"
    width: int | None = None
    shares: int = 1
    sources: Sources = field(default_factory=dict)
    exchange: "Exchange | None" = None

    def tuned_by(self, config: RunConfig) -> TunedBy | None:
        """The study that found a run's hyperparameters."""
        return self.sources.get((config.task, config.opt))

    @cached_property
    def by_id(self) -> dict[str, RunConfig]:
        """The runs by id."""
        return {config.run_id: config for config in self.configs}

    @property
    def store(self) -> Store:
        """The store of the runs."""
        return Store(self.configs[0].store)

    @cached_property
    def name(self) -> str:
        """`title-hash`; equal for the same runs with the same way of execution."""
        asked = json.dumps([sorted(self.by_id), self.engine, self.width, self.shares])
        return f"{slug(self.title)}-{hashlib.sha256(asked.encode()).hexdigest()[:8]}"

    @property
    def folder(self) -> Path:
        """Its folder while its runs train."""
        return self.store.folder / PLANS / self.name

    @property
    def mode(self) -> Mode:
        """Whether the metric is better when smaller (`min`) or larger (`max`)."""
        return self.configs[0].task_spec.mode

    def missing(self) -> dict[str, RunConfig]:
        """The missing runs, by id."""
        return missing(self.configs)

    def to_cut(self) -> dict[str, RunConfig]:
        """The runs to divide into blocks: the missing ones, or all if other stores may lack other ones."""
        return self.missing() if self.exchange is None else self.by_id

    def keep(self) -> None:
        """Write it into the store, unless it exists.

        Raises:
            UserError: the store cannot be written, or has a link at this path.
            RunFailed: the disk is full.
        """
        refuse_links(self.folder.parent, self.folder)
        with making(self.store.folder):
            with suppress(FileNotFoundError):
                try:
                    read(self.folder / PLAN, Stored)
                except Damaged:
                    (self.folder / PLAN).unlink()
            write_once(self.folder / PLAN, self.as_stored)

    def forget(self) -> None:
        """Remove it from the store; its runs stay."""
        with suppress(OSError):
            _remove(self.folder, CUTS, PLAN)
            self.folder.parent.rmdir()

    def as_stored(self) -> Stored:
        """The content of its `plan.json`."""
        own = {run_id: settings_of(as_stored(config)) for run_id, config in self.by_id.items()}
        first = next(iter(own.values()))
        common = {
            name: value
            for name, value in first.items()
            if all(name in each and repr(each[name]) == repr(value) for each in own.values())
        }
        code = {(config.task, config.opt): config.spec_versions for config in self.configs}
        return {
            "title": self.title,
            "engine": self.engine,
            "width": self.width,
            "shares": self.shares,
            "code": [
                {"task": pair[0], "opt": pair[1], "versions": versions, "tuned_by": self.sources.get(pair)}
                for pair, versions in code.items()
            ],
            "common": common,
            "runs": {
                run_id: {name: value for name, value in each.items() if name not in common}
                for run_id, each in own.items()
            },
        }


def missing(configs: Sequence[RunConfig]) -> dict[str, RunConfig]:
    """The runs that are not finished in their common store, by id."""
    by_id = {config.run_id: config for config in configs}
    there = Store(configs[0].store).finished_all(by_id)
    return {run_id: config for run_id, config in by_id.items() if run_id not in there}


def write_once(path: Path, make: Callable[[], Any]) -> None:
    """Write strict JSON into a file of the store, unless it exists: of several writers, the first one decides.

    Raises:
        OSError: it cannot be written.
    """
    own = path.with_name(f".{uuid4().hex}")
    for last in [False] * 20 + [True]:
        if path.exists():
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            write_json(own, make())
            with suppress(FileExistsError):
                link(own, path)
            return
        except FileNotFoundError:  # another process has removed the empty folder
            if last:
                raise
        finally:
            own.unlink(missing_ok=True)


def forget_finished(store: Store) -> None:
    """Remove the plans whose runs are all finished, and the folder of plans if it is empty."""
    with suppress(OSError):
        for folder in (store.folder / PLANS).iterdir():
            with suppress(OSError, Damaged):
                _forget(store, folder)
        (store.folder / PLANS).rmdir()


def _forget(store: Store, folder: Path) -> None:
    if folder.is_symlink() or folder.parent.is_symlink():
        return
    try:
        ids = read(folder / PLAN, Stored)["runs"].keys()
    except FileNotFoundError:  # it was partly removed, or is just being written
        _remove(folder)
        return
    if store.finished_all(ids).keys() == ids:
        _remove(folder, CUTS, PLAN)  # cuts first: a plan without cuts is valid, but not cuts without a plan


def _remove(folder: Path, *names: str) -> None:
    """Remove files of a plan and those that killed processes left; a process that is writing now tries again."""
    for path in (*(folder / name for name in names), *folder.glob(".*")):
        path.unlink(missing_ok=True)
    folder.rmdir()


def open_plans(store: Path) -> list[str]:
    """Names of the plans in a store that may have missing runs."""
    folder = store / PLANS
    with suppress(OSError):
        return sorted(path.name for path in folder.iterdir() if (path / PLAN).is_file())
    return []


def progress_of(store: Path, name: str) -> tuple[int, int]:
    """The numbers of finished and of all runs of a plan, without importing plug-ins.

    Raises:
        UserError: there is no such plan, or it cannot be read.
    """
    run_ids = _stored(store, name)["runs"]
    return len(Store(store).finished_all(run_ids)), len(run_ids)


def _stored(store: Path, name: str) -> Stored:
    """The content of a plan in a store."""
    try:
        if is_file_name(name):
            return read(store / PLANS / name / PLAN, Stored)
    except FileNotFoundError:
        pass
    except Damaged as error:
        raise UserError(f"{error}; repeat the original command") from None
    there = ", ".join(open_plans(store)) or "none"
    raise UserError(f"there is no plan {name!r} in {store}: it is finished or misspelt; existing plans: {there}")


def load(
    name: str,
    places: Mapping[str, Any],
    named: Mapping[str, Sequence[str]] | None = None,
    command: Sequence[str] = (),
    exchange: "Exchange | None" = None,
) -> Plan:
    """Load a plan from a store.

    Args:
        name: its name.
        places: paths of data and store.
        named: files and modules that may be imported, by kind (`task`, `opt`); None if the same command wrote the
            plan.
        command: the user's command line, for messages.
        exchange: the database through which it is shared, if any.

    Raises:
        UserError: it does not exist, it cannot be read, or code that it names may not be imported here.
    """
    store = Path(places["store"])
    path, stored = store / PLANS / name / PLAN, _stored(store, name)
    names, sources = {}, {}
    for code in stored["code"]:
        recorded = {"task": code["task"], "opt": code["opt"]}
        as_here = recorded if named is None else allowed(recorded, code["versions"], named, f"plan {name}", command)
        names[code["task"], code["opt"]] = as_here
        if code["tuned_by"] is not None:
            sources[as_here["task"], as_here["opt"]] = code["tuned_by"]
    try:
        settings = {run_id: stored["common"] | own for run_id, own in stored["runs"].items()}
        configs = {
            run_id: on_device(resolve({**each, **names[each["task"], each["opt"]], **places}, recorded=True))
            for run_id, each in settings.items()
        }
    except (KeyError, TypeError) as error:
        raise UserError(f"{path}: {error} is missing or invalid; repeat the original command") from None
    if other := [run_id for run_id, config in configs.items() if config.run_id != run_id]:
        raise UserError(
            f"plan {name}: run {other[0]} was requested with another version of its task or optimizer, or with other"
            " files; repeat the original command"
        )
    if not configs:
        raise UserError(f"{path}: it has no runs; repeat the original command")
    runs, title = list(configs.values()), clean(stored["title"])
    plan = Plan(title, runs, stored["engine"], stored["width"], stored["shares"], sources, exchange)
    if plan.name != name:
        raise UserError(f"{path}: it contains the plan {plan.name}; repeat the original command")
    return plan
