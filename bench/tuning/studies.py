"""The studies of a database: SQLite on one machine, PostgreSQL on several. With `study.py` the only place that names optuna."""

import fcntl
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy as sa
import sqlalchemy.exc
from optuna.storages import RDBStorage
from pydantic import ValidationError

from bench.doctor import first_line
from bench.errors import MAKE_ROOM, RunFailed, UserError, unknown
from bench.tuning.study import DIRECTIONS, FRESH, Stuck, Study, disk_full
from bench.tuning.trials import Request, StudySpec, check_name

HEARTBEAT_SECONDS = 15
"""Seconds between the signs of life of a trial's worker; after four times as much silence the trial is tried again. Ours."""
_EXAMPLES = "sqlite:///studies.db or postgresql+psycopg://user:password@host/database"

optuna.logging.set_verbosity(optuna.logging.WARNING)


class NoDatabase(UserError):
    """There is no file with studies.

    Args:
        shown: its URL.
    """

    def __init__(self, shown: str) -> None:
        super().__init__(f"unknown study in {shown}: there is no such file; `bench tune` begins a study")
        self.shown = shown


class Studies:
    """The studies of a database.

    Args:
        url: of SQLite (`sqlite:///path`) or PostgreSQL (`postgresql+psycopg://user:password@host/database`).
        heartbeat: seconds between a worker's signs of life.
        make: make the file of SQLite if it is not there.
        asked: the words that named the database, for messages; by default `--storage URL`.

    Raises:
        NoDatabase: the file is not there, and is not to be made.
        UserError: the URL is none, its driver is missing, or the file cannot be made or is none; a password is not shown.
        RunFailed: no server answers.
    """

    def __init__(
        self, url: str, heartbeat: int = HEARTBEAT_SECONDS, *, make: bool = True, asked: str | None = None
    ) -> None:
        try:
            self.url = sa.make_url(url)
        except (sqlalchemy.exc.ArgumentError, ValueError):  # a port that is no number
            raise UserError(f"--storage: this is no URL of a database, such as {_EXAMPLES}") from None
        self.asked = asked or f"--storage {self.shown}"
        kind = self.url.get_backend_name()
        if kind not in ("sqlite", "postgresql"):
            raise UserError(f"--storage {self.shown}: studies live in SQLite or PostgreSQL, such as {_EXAMPLES}")
        if kind == "sqlite":
            if not self.url.database or self.url.database == ":memory:":
                raise UserError(f"--storage {self.shown}: name a file, such as sqlite:///studies.db")
            arguments: dict[str, Any] = {"timeout": 60}  # seconds to wait for another writer
        else:
            arguments = {"connect_timeout": 10, "keepalives_idle": 20, "keepalives_interval": 10, "keepalives_count": 3}
        options = {"connect_args": arguments, "pool_pre_ping": True}
        self._file: os.stat_result | None = None
        if self._path is not None and not self._path.is_file() and not make:
            raise NoDatabase(self.shown)
        with self.errors(opening=True):
            if self._path is not None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
            self._engine = sa.create_engine(self.url, **options)
            weakref.finalize(self, self._engine.dispose)  # or connections would end without a goodbye
            with self.lock():  # two processes that make the tables at once would fail
                try:
                    self.rdb = RDBStorage(self.url.render_as_string(hide_password=False), engine_kwargs=options)
                except RuntimeError as error:  # tables of another version of Optuna
                    raise UserError(f"{self.asked}: {first_line(error)}") from None
                weakref.finalize(self, self.rdb.engine.dispose)
            self._file = self._path and self._path.stat()
        self.heartbeat = heartbeat

    @property
    def shown(self) -> str:
        """The URL without its password."""
        return self.url.set(query={}).render_as_string(hide_password=True)

    @property
    def _path(self) -> Path | None:
        """The file of SQLite."""
        return Path(self.url.database or "") if self.url.get_backend_name() == "sqlite" else None

    def names(self) -> list[str]:
        """Names of all studies."""
        with self.errors():
            return sorted(study.study_name for study in self.rdb.get_all_studies() if "bench" in study.user_attrs)

    def open(self, name: str) -> "Study":
        """The study of this name.

        Raises:
            UserError: there is none.
        """
        study = self._find(name)
        if study is None:
            raise unknown(f"study in {self.shown}:", name, self.names())
        return study

    def create(self, spec: StudySpec, name: str | None = None) -> "Study":
        """The study of this name, made if it is not there.

        Raises:
            UserError: under this name there is a study of something else; the message says what differs.
        """
        name = spec.name if name is None else check_name(name)
        with self.errors(), self.lock():
            study = self._find(name)
            if study is None:
                if self._there(name) and not self._there(name + FRESH):
                    raise UserError(f"--name {name}: {self.shown} has something else of this name; choose another")
                for part in (name + FRESH, name):
                    optuna.create_study(
                        storage=self.rdb, study_name=part, direction=DIRECTIONS[spec.mode], load_if_exists=True
                    )
                self.rdb.set_study_user_attr(self.id_of(name), "request", Request().model_dump())
                self.rdb.set_study_user_attr(
                    self.id_of(name), "bench", spec.model_dump(mode="json")
                )  # last: now it is one
                return self.open(name)
        differences = spec.differences(study.spec)
        if differences:
            raise UserError(
                f"--name {name}: {self.shown} has a study of this name with other settings ({'; '.join(differences)});"
                " choose another --name, or the same settings"
            )
        return study

    def _find(self, name: str) -> "Study | None":
        with self.errors():
            try:
                attrs = self.rdb.get_study_user_attrs(self.id_of(name))
            except KeyError:
                return None
        if "bench" not in attrs:
            return None
        try:
            return Study(self, name, StudySpec.model_validate(attrs["bench"]))
        except ValidationError as error:
            raise UserError(
                f"study {name} in {self.shown} was made by another version of this suite ({error.errors()[0]['msg']});"
                " go on with that version, or begin another study with --name"
            ) from None

    def _there(self, name: str) -> bool:
        return name in {study.study_name for study in self.rdb.get_all_studies()}

    def id_of(self, name: str) -> int:
        """Optuna's number of a study."""
        return self.rdb.get_study_id_from_name(name)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Be the only process that changes studies; the lock goes with the process, however that ends."""
        if self._path is not None:
            self._refuse_if_gone()
            with Path(f"{self._path}.lock").open("w") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                yield
        else:
            with self._engine.begin() as connection:
                # A machine that loses its power says no goodbye.
                connection.execute(sa.text("SET LOCAL idle_in_transaction_session_timeout = '60s'"))
                connection.execute(sa.text("SELECT pg_advisory_xact_lock(726173)"))
                yield

    def _refuse_if_gone(self) -> None:
        """Refuse to go on with a file that has no name any more: nobody could read what is written there."""
        assert self._path is not None
        if self._file is not None and not (self._path.exists() and os.path.samestat(self._file, self._path.stat())):
            raise Stuck(
                f"{self.asked}: the database was deleted or replaced while it was in use; finished runs are in the store,"
                " so the same command as in the beginning makes the study anew and takes them from there"
            )

    @contextmanager
    def errors(self, *, opening: bool = False) -> Iterator[None]:
        """Say what is wrong with the database in one line.

        Args:
            opening: nothing has been done with it yet.

        Raises:
            UserError: it cannot be used.
            RunFailed: it does not answer.
        """
        try:
            yield
        except ModuleNotFoundError as error:
            mend = "write postgresql+psycopg://..."
            if error.name == "psycopg":
                mend = 'pip install "attention-optimizer-bench[postgresql]"'
            raise UserError(f"{self.asked}: the package {error.name} is not installed; {mend}") from None
        except sqlalchemy.exc.NoSuchModuleError:
            raise UserError(f"{self.asked}: unknown driver; write {_EXAMPLES}") from None
        except optuna.exceptions.StorageInternalError as error:
            raise self._refused(error.__cause__ or error, opening=opening) from None
        except (sqlalchemy.exc.SQLAlchemyError, OSError) as error:
            raise self._refused(error, opening=opening) from None

    def _refused(self, error: BaseException, *, opening: bool) -> UserError:
        text = " ".join(str(getattr(error, "orig", None) or getattr(error, "strerror", None) or error).split())[:300]
        if self.url.password:
            text = text.replace(str(self.url.password), "***")
        if disk_full(error):
            return Stuck(f"the disk is full: {self.asked}: {text}{MAKE_ROOM}")
        if self._path is None:
            return RunFailed(f"{self.asked}: {text}; is the server there, and may we write to it?")
        self._refuse_if_gone()
        kind = UserError if opening else RunFailed
        if "not a database" in text or "malformed" in text:
            return kind(
                f"{self.asked}: {text}: {self._path} is damaged or something else; move it away, and the same command makes"
                " another, with the finished runs of the store"
            )
        return kind(
            f"{self.asked}: {text}; may we write to {self._path.parent}? Else choose another --store or --storage"
        )
