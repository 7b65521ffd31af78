"""Ladders: the same comparison at growing sizes, and how well small sizes predict large ones."""
