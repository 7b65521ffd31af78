"""The content of a database of studies, read as untrusted data with plain selects on Optuna's tables.

Optuna itself would parse all columns, and create missing tables. Here all values are bytes until `bench.store.load`
has parsed a study or a trial.
"""

from collections.abc import Iterator
from typing import NamedTuple

import sqlalchemy as sa

from bench.store.load import MOST_BYTES

TABLES = {"studies", "study_user_attributes", "trials", "trial_user_attributes"}


class TrialRow(NamedTuple):
    """A trial as stored.

    Attributes:
        number, state: as Optuna writes them.
        attributes: its user attributes, as JSON.
    """

    number: str
    state: str
    attributes: dict[str, bytes]


class Rows:
    """The rows of a database; none while it lacks Optuna's tables."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine, self._seen = engine, False

    def are_there(self) -> bool:
        """Whether Optuna's tables exist; views do not count, since they may compute for ever."""
        if not self._seen:
            with self._engine.connect() as connection:
                self._seen = set(sa.inspect(connection).get_table_names()) >= TABLES
        return self._seen

    def names(self) -> list[str]:
        """Names of all Optuna studies, including those of other programs."""
        return [_text(name) for (name,) in self._select(["study_name"], "FROM studies ORDER BY study_id")]

    def id_of(self, name: str) -> int | None:
        """Optuna's id of a study, or None."""
        rows = list(self._select(["study_id"], "FROM studies WHERE study_name = :name", name=name))
        return int(rows[0][0]) if rows and rows[0][0].isdigit() and len(rows[0][0]) < 19 else None

    def study(self, number: int) -> dict[str, bytes]:
        """The attributes of a study, as JSON."""
        rest = "FROM study_user_attributes WHERE study_id = :number"
        return {_text(key): value for key, value in self._select(["key", "value_json"], rest, number=number)}

    def trials(self, number: int, trial: int | None = None) -> list[TrialRow]:
        """The trials of a study in their order, or only the one with this number."""
        of = "study_id = :number" + " AND trials.number = :trial" * (trial is not None)
        words = {"number": number} | ({} if trial is None else {"trial": trial})
        found = list(
            self._select(["trial_id", "number", "state"], f"FROM trials WHERE {of} ORDER BY trial_id", **words)
        )
        attributes: dict[bytes, dict[str, bytes]] = {row[0]: {} for row in found}
        of = f"trial_id IN (SELECT trial_id FROM trials WHERE {of})"
        for owner, key, value in self._select(
            ["trial_id", "key", "value_json"], f"FROM trial_user_attributes WHERE {of}", **words
        ):
            if owner in attributes:  # else it was added between the two selects
                attributes[owner][_text(key)] = value
        return [TrialRow(_text(number), _text(state), attributes[owner]) for owner, number, state in found]

    def _select(self, columns: list[str], rest: str, **words: object) -> Iterator[tuple[bytes, ...]]:
        """These columns as bytes, regardless of their type in the database; empty for NULL."""
        if not self.are_there():
            return iter(())
        raw = ", ".join(f"substr(CAST(CAST({column} AS TEXT) AS BLOB), 1, {MOST_BYTES + 1})" for column in columns)
        with self._engine.connect() as connection:
            rows = connection.execute(sa.text(f"SELECT {raw} {rest}"), words).all()
        return (tuple(bytes(value or b"") for value in row) for row in rows)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")
