"""The store: runs in folders, and what is asked of them: merge, diff, SQL."""
