"""Tasks: models, data and metrics. Your own task imports from here: `from tasks import Task, ...`."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tasks.core.spec import TaskSpec
from tasks.registry import TASKS

if TYPE_CHECKING:
    from tasks.core.data import TaskData
    from tasks.core.files import DataError
    from tasks.core.order import derive_seed
    from tasks.core.randomness import BatchRandomness
    from tasks.core.task import Task
    from tasks.core.training_step import Outcome
    from tasks.user_data import image_task, text_task

__all__ = [
    "TASKS", "BatchRandomness", "DataError", "Outcome", "Task", "TaskData", "TaskSpec", "derive_seed", "image_task",
    "text_task",
]  # fmt: skip

_LATER = {
    "BatchRandomness": "core.randomness",
    "DataError": "core.files",
    "Outcome": "core.training_step",
    "Task": "core.task",
    "TaskData": "core.data",
    "derive_seed": "core.order",
    "image_task": "user_data",
    "text_task": "user_data",
}
"""Names imported on first use, so that listing them does not import torch."""


def __getattr__(name: str) -> Any:
    if name in _LATER:
        value = globals()[name] = getattr(import_module(f"tasks.{_LATER[name]}"), name)
        return value
    raise AttributeError(f"module 'tasks' has no attribute {name!r}")
