"""A benchmark suite that compares optimizers on attention models: a program (`bench`) and a Python API.

The names of the API are loaded on first use, so `import bench` imports neither torch nor anything else.
"""

TYPE_CHECKING = False  # true for type checkers; saves importing `typing`
if TYPE_CHECKING:
    from bench.api import *  # noqa: F403
    from bench.api.results import Answer, Comparison, Run, RunFailed, Runs, Study, Sweep, UserError

    __version__: str

__all__ = [  # noqa: F405, RUF022 - in the order of `bench --help`
    "quickstart", "fit", "sweep", "tune", "suite", "compare", "leaderboard", "report", "plot", "check", "reproduce",
    "list_", "show", "sql", "data", "doctor", "new", "merge", "verify", "load",
    "Run", "Runs", "Sweep", "Study", "Comparison", "Answer", "UserError", "RunFailed", "__version__",
]  # fmt: skip

if not TYPE_CHECKING:

    def __getattr__(name):  # no imports before: `__main__` does not handle Ctrl-C yet
        # On first use, since the lookup takes half of the time of a usage error.
        if name == "__version__":
            from importlib.metadata import version

            return version("attention-optimizer-bench")
        if name not in __all__:
            raise AttributeError(f"module 'bench' has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module("bench.api.results" if name[0].isupper() else "bench.api"), name)

    def __dir__():
        return sorted({*globals(), *__all__})
