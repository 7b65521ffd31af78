"""Measurements on a machine with a GPU, in parts of a few minutes each."""
