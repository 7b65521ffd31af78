"""A plan: requested runs, and how to execute them."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict

from bench.config.run_config import RunConfig, on_device, resolve, settings_of
from bench.config.settings import as_stored
from bench.config.tuned import Sources, TunedBy
from bench.errors import UserError
from bench.execute import Engine
from bench.store.block import CUTS
from bench.store.load import Damaged, read
from bench.store.record import Mode, RunId
from bench.store.store import Store


@dataclass(frozen=True)
class Plan:
    """Requested runs.

    Attributes:
        title: purpose of all runs, or of each one by id (`RunResult.plan`).
        configs: the runs; all have one store, one data folder and one device.
        engine: `lanes`, `lightning` (one run at a time), or the faster one.
        width: maximum lanes of a block; measured by default.
        shares: number of processes that will share them.
        sources: the studies that found their hyperparameters (`RunResult.tuned_by`).
    """

    title: str | Mapping[str, str]
    configs: Sequence[RunConfig]
    engine: Engine = "auto"
    width: int | None = None
    shares: int = 1
    sources: Sources = field(default_factory=dict)

    def tuned_by(self, config: RunConfig) -> TunedBy | None:
        """The study that found a run's hyperparameters."""
        return self.sources.get((config.task, config.opt))

    @cached_property
    def by_id(self) -> dict[str, RunConfig]:
        """The runs by id."""
        return {config.run_id: config for config in self.configs}

    def title_of(self, config: RunConfig) -> str:
        """The purpose of a run."""
        return self.title if isinstance(self.title, str) else self.title[config.run_id]

    @property
    def store(self) -> Store:
        """The store of the runs."""
        return Store(self.configs[0].store)

    @cached_property
    def name(self) -> str:
        """Of its file of cuts; equal for the same runs with the same way of execution."""
        parts = json.dumps([sorted(self.by_id), self.engine, self.width, self.shares])
        return hashlib.sha256(parts.encode()).hexdigest()[:16]

    @property
    def cuts(self) -> Path:
        """The file with its cuts while its runs train (`bench.execute.cuts`)."""
        return self.store.folder / CUTS / f"{self.name}.json"

    @property
    def mode(self) -> Mode:
        """Whether the metric is better when smaller (`min`) or larger (`max`)."""
        return self.configs[0].task_spec.mode

    def missing(self) -> dict[str, RunConfig]:
        """The missing runs, by id."""
        return missing(self.configs)

    def as_json(self) -> dict[str, Any]:
        """The plan for another process of this command (`from_json`)."""
        first = self.configs[0]
        return {
            "title": self.title,
            "engine": self.engine,
            "runs": {run_id: settings_of(as_stored(config)) for run_id, config in self.by_id.items()},
            "places": {"data": str(first.data), "store": str(first.store), "logger": first.logger},
            "sources": [[*names, *tuned_by] for names, tuned_by in self.sources.items()],
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """The plan in a process of the command that wrote `as_json`.

        Raises:
            UserError: the code of a task or an optimizer has changed meanwhile.
        """
        configs = []
        for run_id, settings in content["runs"].items():
            config = on_device(resolve(settings | content["places"], recorded=True))
            if config.run_id != run_id:
                raise UserError(f"the code of {config.task} or {config.opt} has changed; repeat the command")
            configs.append(config)
        sources = {(task, opt): TunedBy(*tuned_by) for task, opt, *tuned_by in content["sources"]}
        return cls(content["title"], configs, content["engine"], sources=sources)


def missing(configs: Sequence[RunConfig]) -> dict[str, RunConfig]:
    """The runs that are not finished in their common store, by id."""
    by_id = {config.run_id: config for config in configs}
    there = Store(configs[0].store).finished_all(by_id)
    return {run_id: config for run_id, config in by_id.items() if run_id not in there}


@with_config(ConfigDict(extra="forbid", strict=True))
class Decision(TypedDict):
    """A cut as stored while its runs train: ids instead of configurations."""

    lanes: bool
    blocks: list[list[RunId]]


@with_config(ConfigDict(extra="forbid", strict=True))
class Decisions(TypedDict):
    """All cuts of a plan: the content of `STORE/cuts/NAME.json`."""

    cuts: list[Decision]


def forget_finished(store: Store) -> None:
    """Remove the cuts whose runs are all finished, and their folder if it is empty."""
    folder = store.folder / CUTS
    with suppress(OSError):
        for path in folder.iterdir():
            with suppress(OSError, Damaged):
                if path.name.startswith("."):  # a killed process left it; one that is writing now tries again
                    path.unlink()
                    continue
                run_ids = {
                    run_id for cut in read(path, Decisions)["cuts"] for block in cut["blocks"] for run_id in block
                }
                if store.finished_all(run_ids).keys() == run_ids:
                    path.unlink()
        folder.rmdir()
