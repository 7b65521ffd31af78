"""Training one run under a Lightning Trainer: recording, stopping, checkpoints, memory."""
