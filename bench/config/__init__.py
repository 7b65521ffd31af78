"""Configurations: options from signatures, YAML, tuned files, validated settings, checks before training."""
