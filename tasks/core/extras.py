"""What is said of a package that only some commands need, and that is not installed."""

SUITE = "attention-optimizer-bench"


def not_installed(package: str, extra: str) -> str:
    """The sentence, with the extra that brings the package.

    Args:
        package: as the index calls it.
        extra: of the suite, as `pyproject.toml` lists it.
    """
    return f"the package {package} is not installed: pip install '{SUITE}[{extra}]'"
