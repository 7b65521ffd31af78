"""Studies of hyperparameters: `bench tune`, `bench suite`, and the workers that carry them out."""
