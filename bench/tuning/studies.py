"""The studies of a database: SQLite on one machine, PostgreSQL on several. Only this and `study.py` use optuna."""

import fcntl
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import optuna
import sqlalchemy as sa
import sqlalchemy.exc
from optuna.storages import RDBStorage

from bench.errors import MAKE_ROOM, RunFailed, UserError, first_line, unknown
from bench.store.load import Damaged, parse
from bench.store.record import is_file_name
from bench.tuning.rows import Rows
from bench.tuning.study import DIRECTIONS, FRESH, Stuck, Study, disk_full
from bench.tuning.trials import Request, StudySpec, check_name
from tasks.core.extras import not_installed

HEARTBEAT_SECONDS = 15
"""Seconds between heartbeats of a trial's worker; after four missed ones its trial is repeated. Ours."""
T = TypeVar("T")
_EXAMPLES = "sqlite:///studies.db or postgresql+psycopg://user:password@host/database"

optuna.logging.set_verbosity(optuna.logging.WARNING)


class NoDatabase(UserError):
    """The database file does not exist.

    Args:
        shown: its URL.
    """

    def __init__(self, shown: str) -> None:
        super().__init__(f"unknown study in {shown}: there is no such file; `bench tune` starts a study")
        self.shown = shown


class DamagedStudy(UserError):
    """A study that cannot be read."""

    exit_code = RunFailed.exit_code


class Studies:
    """The studies of a database.

    All reads go through `rows` and are checked. Only writers have Optuna's storage, `rdb`, which creates the tables,
    and the lock (for SQLite, a file beside the database).

    Args:
        url: of SQLite (`sqlite:///path`) or PostgreSQL (`postgresql+psycopg://user:password@host/database`).
        heartbeat: seconds between heartbeats of a worker.
        make: create the SQLite file if it does not exist.
        read_only: do not change the database or SQLite's folder; it must exist.
        asked: the option that named the database, for messages; by default `--storage URL`.

    Raises:
        NoDatabase: the file does not exist and must not be created.
        UserError: the URL is invalid, its driver is missing, or the file cannot be created or is not a file. Messages
            hide the password.
        RunFailed: the server does not respond.
    """

    def __init__(
        self,
        url: str | sa.URL,
        heartbeat: int = HEARTBEAT_SECONDS,
        *,
        make: bool = True,
        read_only: bool = False,
        asked: str | None = None,
    ) -> None:
        try:
            self.url = sa.make_url(url)
        except (sqlalchemy.exc.ArgumentError, ValueError):  # a port that is not a number
            raise UserError(f"--storage: this is not a database URL such as {_EXAMPLES}") from None
        self.asked = asked or f"--storage {self.shown}"
        kind = self.url.get_backend_name()
        if kind not in ("sqlite", "postgresql"):
            raise UserError(f"--storage {self.shown}: studies are stored in SQLite or PostgreSQL, such as {_EXAMPLES}")
        if kind == "sqlite":
            if not self.url.database or self.url.database == ":memory:":
                raise UserError(f"--storage {self.shown}: name a file, such as sqlite:///studies.db")
            arguments: dict[str, Any] = {"timeout": 60}  # seconds to wait for another writer
        else:
            arguments = {"connect_timeout": 10, "keepalives_idle": 20, "keepalives_interval": 10, "keepalives_count": 3}
        options = {"connect_args": arguments, "pool_pre_ping": True}
        self._file: os.stat_result | None = None
        self.heartbeat, self.read_only = heartbeat, read_only
        if (path := self._path) is not None:
            if not path.exists() and (read_only or not make):
                raise NoDatabase(self.shown)
            if path.exists() and not path.is_file():
                raise UserError(f"{self.asked}: {path} is not a file")
            if asked is not None and path.is_symlink():
                raise UserError(
                    f"{self.asked}: {path} is a symbolic link, which is followed only if you name it: --storage"
                    f" sqlite:///PATH"
                )
        with self.errors(opening=True):
            if path is not None and not read_only:
                path.parent.mkdir(parents=True, exist_ok=True)
            self._engine = self._reading(options) if read_only else sa.create_engine(self.url, **options)
            weakref.finalize(self, self._engine.dispose)  # else connections would not be closed properly
            self.rows = Rows(self._engine)
            if read_only:
                self.rows.are_there()  # raises if it is not a database
                return
            with self.lock():  # else two processes could create the tables at once and fail
                try:
                    self.rdb = RDBStorage(self.url.render_as_string(hide_password=False), engine_kwargs=options)
                except RuntimeError as error:  # tables of another version of Optuna
                    raise UserError(f"{self.asked}: {first_line(error)}") from None
                weakref.finalize(self, self.rdb.engine.dispose)
            self._file = path and path.stat()

    def _reading(self, options: dict[str, Any]) -> sa.Engine:
        """A read-only engine."""
        if self._path is None:
            arguments = options["connect_args"] | {"options": "-c default_transaction_read_only=on"}
            return sa.create_engine(self.url, **options | {"connect_args": arguments})
        with self._path.open("rb") as file:
            if b"\2" in file.read(20)[18:]:
                raise RunFailed(
                    f"{self.asked}: {self._path} is in SQLite's mode WAL,"
                    " and reading it needs write access; when no process uses it,"
                    f" `sqlite3 {self._path} 'PRAGMA journal_mode=delete'` ends that"
                )
        place = {"mode": "ro", "uri": "true"}
        url = sa.URL.create("sqlite", database=f"file:{quote(str(self._path.absolute()))}", query=place)
        return sa.create_engine(url, **options)

    @property
    def shown(self) -> str:
        """The URL without its password."""
        return self.url.set(query={}).render_as_string(hide_password=True)

    @property
    def _path(self) -> Path | None:
        """The SQLite file; None for PostgreSQL."""
        return Path(self.url.database or "") if self.url.get_backend_name() == "sqlite" else None

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
            raise unknown(f"study in {self.shown}:", name, self.names())
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
                self.rdb.set_study_user_attr(self.id_of(name), "request", Request().model_dump())
                self.rdb.set_study_user_attr(
                    self.id_of(name), "bench", spec.model_dump(mode="json")
                )  # last: only this attribute makes it one of our studies
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
    def lock(self) -> Iterator[None]:
        """Be the only process that changes studies; the lock is released even if the process is killed."""
        if self._path is not None:
            self._refuse_if_gone()
            # A store from someone else may contain a symbolic link with this name.
            handle = os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
            with os.fdopen(handle, "r+") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                yield
        else:
            with self._engine.begin() as connection:
                # A machine that loses power does not close its connection.
                connection.execute(sa.text("SET LOCAL idle_in_transaction_session_timeout = '60s'"))
                connection.execute(sa.text("SELECT pg_advisory_xact_lock(726173)"))
                yield

    def _refuse_if_gone(self) -> None:
        """Raise if the file was deleted or replaced: nobody could read further writes."""
        assert self._path is not None
        if self._file is not None and not (self._path.exists() and os.path.samestat(self._file, self._path.stat())):
            raise Stuck(
                f"{self.asked}: the database was deleted or replaced while it was in use;"
                " finished runs are in the store, so the original command recreates the study and reuses them"
            )

    @contextmanager
    def errors(self, *, opening: bool = False) -> Iterator[None]:
        """Convert database errors into one line.

        Args:
            opening: the database is just being opened.

        Raises:
            UserError: it cannot be used.
            RunFailed: it does not respond.
        """
        try:
            yield
        except ModuleNotFoundError as error:
            if error.name == "psycopg":
                raise UserError(f"{self.asked}: {not_installed('psycopg', 'postgresql')}") from None
            mend = "write postgresql+psycopg://..."
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
            return RunFailed(f"{self.asked}: {text}; is the server running, and do we have write access?")
        if self.read_only:
            return RunFailed(
                f"{self.asked}: {text}: {self._path} is damaged or not a database, or a process died while writing to"
                " it; `bench tune --resume NAME` repairs the latter"
            )
        self._refuse_if_gone()
        kind = UserError if opening else RunFailed
        if "not a database" in text or "malformed" in text:
            return kind(
                f"{self.asked}: {text}: {self._path} is damaged or not a database; move it away, and the same command"
                " creates another with the finished runs of the store"
            )
        return kind(
            f"{self.asked}: {text}; do we have write access to {self._path.parent}? If not, choose another --store or"
            f" --storage"
        )
