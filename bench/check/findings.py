"""What a check finds: a measurement, or an exception that ends it with a verdict."""

from dataclasses import dataclass

from bench.check.report import Word


@dataclass(frozen=True)
class Measured:
    """Result of a check: a number to compare with the tolerance, and a text."""

    measured: float | None
    note: str = ""


class Concluded(Exception):
    """Ends a check with the verdict `word`; the text is its note."""

    word: Word


class Failed(Concluded):
    """The optimizer does not have the property; the text gives the observation."""

    word = "fail"


class NotApplicable(Concluded):
    """The property does not apply to this optimizer; the text gives the reason."""

    word = "not applicable"


class Raised(Concluded):
    """The optimizer raised an exception unexpectedly or in another process; the text gives it."""

    word = "error"
