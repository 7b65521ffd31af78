"""Common parts of all tasks: `Task` and `TaskData`, the training step, randomness, data files, attention."""
