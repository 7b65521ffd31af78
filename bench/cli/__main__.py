"""`python -m bench.cli`."""

from bench.cli import program

program()
