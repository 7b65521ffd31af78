"""What all tasks share: `Task` and `TaskData`, the training step, randomness, data files, attention."""
