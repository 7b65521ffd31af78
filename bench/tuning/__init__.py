"""Studies of hyperparameters: `bench tune`, `bench suite`, and their workers."""
