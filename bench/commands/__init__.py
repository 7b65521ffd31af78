"""Commands that have no folder of their own, a file each; `bench/grammar/commands.py` declares all commands."""
