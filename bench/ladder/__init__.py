"""Ladders: the same comparison at growing sizes, and how far its small sizes predict the large ones."""
