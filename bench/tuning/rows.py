"""The content of a database of studies, by plain selects on Optuna's tables: Optuna would create missing ones."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

TABLES = {"studies", "study_user_attributes", "trials", "trial_user_attributes"}


class TrialRow(NamedTuple):
    """A trial as stored.

    Attributes:
        number, state: as Optuna writes them.
        attributes: its user attributes, as JSON.
    """

    number: int
    state: str
    attributes: dict[str, str]


class Rows:
    """The rows of a database; none while it lacks Optuna's tables."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine, self._seen = engine, False

    def are_there(self) -> bool:
        """Whether Optuna's tables exist."""
        if not self._seen:
            with self._engine.connect() as connection:
                self._seen = set(sa.inspect(connection).get_table_names()) >= TABLES
        return self._seen

    def names(self) -> list[str]:
        """Names of all Optuna studies, including those of other programs."""
        return [row.study_name for row in self._select("study_name FROM studies ORDER BY study_id")]

    def id_of(self, name: str) -> int | None:
        """Optuna's id of a study, or None."""
        rows = self._select("study_id FROM studies WHERE study_name = :name", name=name)
        return rows[0].study_id if rows else None

    def study(self, number: int) -> dict[str, str]:
        """The attributes of a study, as JSON."""
        rows = self._select("key, value_json FROM study_user_attributes WHERE study_id = :number", number=number)
        return {row.key: row.value_json for row in rows}

    def trials(self, number: int, trial: int | None = None) -> list[TrialRow]:
        """The trials of a study in their order, or only the one with this number."""
        where = "FROM trials WHERE study_id = :number" + " AND trials.number = :trial" * (trial is not None)
        words = {"number": number} | ({} if trial is None else {"trial": trial})
        rows = self._select(f"trial_id, number, state {where} ORDER BY trial_id", **words)
        attributes: dict[int, dict[str, str]] = {row.trial_id: {} for row in rows}
        of = f"FROM trial_user_attributes WHERE trial_id IN (SELECT trial_id {where})"
        for row in self._select(f"trial_id, key, value_json {of}", **words):
            if row.trial_id in attributes:  # else it was added between the two selects
                attributes[row.trial_id][row.key] = row.value_json
        return [TrialRow(row.number, row.state, attributes[row.trial_id]) for row in rows]

    def _select(self, words: str, **values: object) -> Sequence[Any]:
        if not self.are_there():
            return []
        with self._engine.connect() as connection:
            return connection.execute(sa.text(f"SELECT {words}"), values).all()
