"""Lanes: many runs of one task and one optimizer, trained as one vectorised program."""
