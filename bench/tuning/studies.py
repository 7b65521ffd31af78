"""The studies of a database: SQLite on one machine, PostgreSQL on several. Only this and `study.py` use optuna."""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import optuna
from optuna.storages import RDBStorage

from bench.errors import RunFailed, UserError, first_line, unknown
from bench.execute.database import Database
from bench.store.load import Damaged, parse
from bench.store.record import is_file_name
from bench.tuning.rows import Rows
from bench.tuning.study import DIRECTIONS, FRESH, Study
from bench.tuning.trials import Request, StudySpec, check_name

T = TypeVar("T")

optuna.logging.set_verbosity(optuna.logging.WARNING)


class DamagedStudy(UserError):
    """A study that cannot be read."""

    exit_code = RunFailed.exit_code


class Studies(Database):
    """The studies of a database.

    All reads go through `rows` and are checked. Only writers have Optuna's storage, `rdb`, which creates the tables,
    and the lock (for SQLite, a file beside the database).

    Raises:
        UserError: as `Database`, or its tables are of another version of Optuna.
        RunFailed: the server does not respond.
    """

    def _prepare(self) -> None:
        self.rows = Rows(self._engine)
        if self.read_only:
            self.rows.are_there()  # raises if it is not a database
            return
        with self.lock():  # else two processes could create the tables at once and fail
            try:
                self.rdb = RDBStorage(self.url.render_as_string(hide_password=False), engine_kwargs=self._options)
            except RuntimeError as error:  # tables of another version of Optuna
                raise UserError(f"{self.asked}: {first_line(error)}") from None
            weakref.finalize(self, self.rdb.engine.dispose)
        self._file = self._path and self._path.stat()

    def names(self) -> list[str]:
        """Names of all studies, including damaged ones."""
        return [name for name in self._all() if "bench" in self._attributes(name)]

    def _all(self) -> list[str]:
        """Names of all Optuna studies in this database."""
        with self.errors():
            return sorted(self.rows.names())

    def _attributes(self, name: str) -> dict[str, bytes]:
        """The attributes of a study, as JSON; empty if it does not exist."""
        with self.errors():
            number = self.rows.id_of(name)
            return {} if number is None else self.rows.study(number)

    def request_of(self, name: str) -> Request:
        """The current request to a study.

        Raises:
            DamagedStudy: it cannot be read.
        """
        return self._parsed(name, Request, "request")

    def open(self, name: str) -> "Study":
        """The study with this name.

        Raises:
            UserError: it does not exist.
            DamagedStudy: it cannot be read.
        """
        study = self._find(name)
        if study is None:
            raise unknown("study", name, self.names(), f" in {self.shown}")
        return study

    def create(self, spec: StudySpec, name: str | None = None) -> "Study":
        """The study with this name, created if it does not exist.

        Raises:
            UserError: a study with this name has other settings; the message says what differs.
        """
        name = spec.name if name is None else check_name(name)
        with self.errors(), self.lock():
            study = self._find(name)
            if study is None:
                there = self._all()
                if name in there and name + FRESH not in there:
                    raise UserError(f"--name {name}: {self.shown} has something else with this name; choose another")
                for part in (name + FRESH, name):
                    optuna.create_study(
                        storage=self.rdb, study_name=part, direction=DIRECTIONS[spec.mode], load_if_exists=True
                    )
                number = self.id_of(name)
                self.rdb.set_study_user_attr(number, "request", Request().model_dump())
                # Last: only this attribute makes it one of our studies.
                self.rdb.set_study_user_attr(number, "bench", spec.model_dump(mode="json"))
                return self.open(name)
        differences = spec.differences(study.spec)
        if differences:
            raise UserError(
                f"--name {name}: {self.shown} has a study of this name with other settings ({'; '.join(differences)});"
                " choose another --name, or the same settings"
            )
        return study

    def _find(self, name: str) -> "Study | None":
        if "bench" not in self._attributes(name):
            return None
        if not is_file_name(name):
            raise self._damaged(name, "its name is invalid")
        spec, request = self._parsed(name, StudySpec, "bench"), self.request_of(name)
        try:
            if request.trials:  # else it was created, and nothing requested yet
                spec.design.wanted(request.trials, request.total)
        except UserError as error:
            raise self._damaged(name, f"request: {error}") from None
        return Study(self, name, spec)

    def _parsed(self, name: str, kind: type[T], attribute: str) -> T:
        try:
            return parse(self._attributes(name).get(attribute, b""), kind, Path(name))
        except Damaged as error:
            raise self._damaged(name, f"{attribute}: {error.why}") from None

    def _damaged(self, name: str, why: str) -> DamagedStudy:
        return DamagedStudy(
            f"study {name} in {self.shown} is damaged, or was made by another version of this suite ({why});"
            " use that version, or start another study with --name"
        )

    def id_of(self, name: str) -> int:
        """Optuna's id of a study.

        Raises:
            DamagedStudy: it does not exist.
        """
        with self.errors():
            number = self.rows.id_of(name)
        if number is None:
            raise self._damaged(name, "it does not exist")
        return number

    @contextmanager
    def errors(self, *, opening: bool = False) -> Iterator[None]:
        """As `Database.errors`, and for Optuna's."""
        with super().errors(opening=opening):
            try:
                yield
            except optuna.exceptions.StorageInternalError as error:
                raise self._refused(error.__cause__ or error, opening=opening) from None
