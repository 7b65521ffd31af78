"""The store: runs in folders; several of them as one, and merged."""
