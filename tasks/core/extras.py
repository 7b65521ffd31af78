"""The message about an optional package that is not installed."""

from pathlib import Path

SUITE = "attention-optimizer-bench"
ROOT = Path(__file__).parents[2]
"""The clone of the suite, or where an installed package is."""


def not_installed(package: str, extra: str) -> str:
    """The message about a package, with the extra of the suite that installs it."""
    clone = (ROOT / "pyproject.toml").is_file()
    how = f"uv sync --extra {extra}" if clone else f"pip install '{SUITE}[{extra}]'"
    return f"the package {package} is not installed: {how}"
