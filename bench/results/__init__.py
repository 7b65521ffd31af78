"""Results: groups of runs, statistics over seeds, and the one Table and Chart that every command shows."""
