"""Synthetic tasks of the theory: small attention models in float64 whose solutions are known."""
