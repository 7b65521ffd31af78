"""What is trained: models, data and metrics."""

from tasks.registry import TASKS, TaskSpec

__all__ = ["TASKS", "TaskSpec"]
