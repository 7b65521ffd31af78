"""The record of a run, `run.json`."""

import json
from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["running", "completed", "diverged", "timeout", "failed", "killed"]
FINISHED = ("completed", "diverged", "timeout")
RESUMABLE = ("killed", "failed")


@dataclass
class RunResult:
    """What is known of a run. Every number is finite; what does not exist is None.

    Attributes:
        run_id: `task-opt-hash`.
        status: how it ended; `running` while it goes on.
        reason: one sentence on the status, or None.
        config: the resolved configuration.
        versions: of the suite, its libraries, and the specs.
        metric: name of the metric that is compared, and of the split it is reported on (`accuracy`, `test`).
        final, best: that metric at the last step and at the best step on the selection split.
        best_step: that step.
        metrics: all values, by "final" and "best", then name; those on other splits (`TaskData.also`) by split, then name.
        validations: by evaluation: step, seconds of training, values on the selection split.
        steps: optimizer steps made, of which `skipped` changed nothing (a gradient overflowed under a GradScaler).
        steps_to_target, seconds_to_target: when the target was first reached, or None.
        wall_s: seconds from first step to end, evaluation included; train_s: without evaluation.
        cap_share: share of steps whose applied step was below the raw one.
        part: what part of the data was used, and what model if not the one the task is named for; None for the whole task.
        memory: peak bytes on host and device, of the process; lanes share it.
        environment: machine, devices, threads.
        facts: what is known of the instance of the problem (`TaskData.facts`) and of the model (`Task.facts`).
        engine: what trained it: `lightning`, a run for itself, or `lanes`, many runs of a task as one program.
        unscheduled: a schedule was asked for, and left out since the optimizer does without.
        tuned_by: the study that its hyperparameters were taken from (`--tuned`), or None.
        specimen: what the trained model made, for a person to look at (`Task.specimen`), or None; lanes make none.
    """

    run_id: str
    config: dict[str, Any]
    status: Status = "running"
    reason: str | None = None
    versions: dict[str, Any] = field(default_factory=dict)
    metric: str = ""
    split: str = ""
    final: float | None = None
    best: float | None = None
    best_step: int | None = None
    metrics: dict[str, dict[str, Any]] = field(default_factory=dict)
    validations: list[dict[str, Any]] = field(default_factory=list)
    steps: int = 0
    skipped: int = 0
    steps_to_target: int | None = None
    seconds_to_target: float | None = None
    wall_s: float = 0.0
    train_s: float = 0.0
    cap_share: float | None = None
    part: str | None = None
    memory: dict[str, int] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    engine: str = "lightning"
    unscheduled: bool = False
    tuned_by: str | None = None
    specimen: str | None = None

    @property
    def machine(self) -> str:
        """The type of machine and engine that it was trained with, as far as seconds depend on it."""
        env, trainer = self.environment, self.config.get("trainer", {})
        where = env.get("gpu") or f"{env.get('cpu') or 'unknown machine'}, {env.get('threads') or 'unknown'} threads"
        devices = trainer.get("devices", 1) * trainer.get("num_nodes", 1)
        return f"{where}, {self.engine}" + f", {devices} devices" * (devices > 1)

    @property
    def outcome(self) -> tuple[Any, ...]:
        """What two records of one run should agree in."""
        return self.status, self.steps, self.final, self.best, self.best_step, self.metrics

    @property
    def unsolved(self) -> dict[str, str]:
        """The problems of the instance that have no solution to compare with, and why, by name."""
        facts = {name: fact for name, fact in self.facts.items() if isinstance(fact, dict)}
        return {name: str(fact.get("reason")) for name, fact in facts.items() if fact.get("solved") is False}


def decode(text: str | bytes) -> RunResult | None:
    """The record, or None if it is damaged."""
    try:
        return RunResult(**json.loads(text))
    except (ValueError, TypeError):
        return None
