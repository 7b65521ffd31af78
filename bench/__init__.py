"""The program: everything that runs, stores, ranks and shows."""


def __getattr__(name: str) -> str:  # nothing is imported here: `__main__` is not yet there to hear Ctrl-C
    # On first use, since looking it up takes half of the time that a usage error takes.
    if name == "__version__":
        from importlib.metadata import version

        return version("attention-optimizer-bench")
    raise AttributeError(f"module 'bench' has no attribute {name!r}")
