"""The program: everything that runs, stores, ranks and shows."""

from importlib.metadata import version

__version__ = version("attention-optimizer-bench")
