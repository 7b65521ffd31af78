"""The message about an optional package that is not installed."""

SUITE = "attention-optimizer-bench"


def not_installed(package: str, extra: str) -> str:
    """The message, with the extra that installs the package.

    Args:
        package: its name on the package index.
        extra: of the suite, as `pyproject.toml` lists it.
    """
    return f"the package {package} is not installed: pip install '{SUITE}[{extra}]'"
