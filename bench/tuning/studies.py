"""The studies of a database: SQLite on one machine, PostgreSQL on several. Only this and `study.py` name optuna."""

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
from bench.results.selection import CONVERGED
from bench.store.load import Damaged, parse
from bench.store.record import is_file_name
from bench.tuning.rows import Rows
from bench.tuning.study import DIRECTIONS, FRESH, Stuck, Study, disk_full
from bench.tuning.trials import Request, StudySpec, check_name
from tasks.core.extras import not_installed

HEARTBEAT_SECONDS = 15
"""Seconds between heartbeats of a trial's worker; after four times as long its trial is repeated. Ours."""
T = TypeVar("T")
_EXAMPLES = "sqlite:///studies.db or postgresql+psycopg://user:password@host/database"

optuna.logging.set_verbosity(optuna.logging.WARNING)


class NoDatabase(UserError):
    """There is no file with studies.

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

    What is in it is read by `rows` and checked; only who writes has the storage of Optuna, `rdb`, which makes tables
    and takes the lock, a file beside SQLite.

    Args:
        url: of SQLite (`sqlite:///path`) or PostgreSQL (`postgresql+psycopg://user:password@host/database`).
        heartbeat: seconds between a worker's signs of life.
        make: make the file of SQLite if it is not there.
        read_only: leave the database, and the folder of SQLite, as they are; it must be there.
        asked: the words that named the database, for messages; by default `--storage URL`.

    Raises:
        NoDatabase: the file is not there, and is not to be made.
        UserError: the URL is none, its driver is missing, or the file cannot be made or is none; a password is not
            shown.
        RunFailed: no server answers.
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
        if self._path is not None and not self._path.exists() and (read_only or not make):
            raise NoDatabase(self.shown)
        if self._path is not None and self._path.exists() and not self._path.is_file():
            raise UserError(f"{self.asked}: {self._path} is not a file")
        if self._path is not None and asked is not None and self._path.is_symlink():
            raise UserError(
                f"{self.asked}: {self._path} is a symbolic link, which is followed only if you name it: --storage"
                f" sqlite:///PATH"
            )
        if read_only:
            with self.errors(opening=True):
                self._engine = self._reading(options)
                weakref.finalize(self, self._engine.dispose)
                self.rows = Rows(self._engine)
                self._empty = not self.rows.are_there()
            return
        self._empty = False
        with self.errors(opening=True):
            if self._path is not None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
            self._engine = sa.create_engine(self.url, **options)
            weakref.finalize(self, self._engine.dispose)  # or connections would end without a goodbye
            self.rows = Rows(self._engine)
            with self.lock():  # two processes that make the tables at once would fail
                try:
                    self.rdb = RDBStorage(self.url.render_as_string(hide_password=False), engine_kwargs=options)
                except RuntimeError as error:  # tables of another version of Optuna
                    raise UserError(f"{self.asked}: {first_line(error)}") from None
                weakref.finalize(self, self.rdb.engine.dispose)
            self._file = self._path and self._path.stat()

    def _reading(self, options: dict[str, Any]) -> sa.Engine:
        """An engine that can only read."""
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
        """The file of SQLite."""
        return Path(self.url.database or "") if self.url.get_backend_name() == "sqlite" else None

    def names(self) -> list[str]:
        """Names of all studies, damaged ones too."""
        return [name for name in self._all() if "bench" in self._attributes(name)]

    def _all(self) -> list[str]:
        """Names of all that Optuna has in this database."""
        with self.errors():
            return [] if self._empty else sorted(self.rows.names())

    def _attributes(self, name: str) -> dict[str, bytes]:
        """What is stored of a study, as JSON; nothing if there is none of this name."""
        with self.errors():
            number = None if self._empty else self.rows.id_of(name)
            return {} if number is None else self.rows.study(number)

    def request_of(self, name: str) -> Request:
        """What is asked of a study.

        Raises:
            DamagedStudy: that cannot be read.
        """
        return self._parsed(name, Request, "request")

    def open(self, name: str) -> "Study":
        """The study of this name.

        Raises:
            UserError: it does not exist.
            DamagedStudy: it cannot be read.
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
        if "bench" not in self._attributes(name):
            return None
        if not is_file_name(name):
            raise self._damaged(name, "its name is invalid")
        spec, request = self._parsed(name, StudySpec, "bench"), self.request_of(name)
        try:
            if request.trials:  # else it was made, and nothing asked of it yet
                spec.design.wanted({}, spec.mode, CONVERGED, request.trials, request.total)
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
        """Optuna's number of a study.

        Raises:
            DamagedStudy: there is none.
        """
        with self.errors():
            number = self.rows.id_of(name)
        if number is None:
            raise self._damaged(name, "it does not exist")
        return number

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Be the only process that changes studies; the lock goes with the process, however that ends."""
        if self._path is not None:
            self._refuse_if_gone()
            # A store that somebody else has made may hold a link of this name.
            handle = os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
            with os.fdopen(handle, "r+") as file:
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
                f"{self.asked}: the database was deleted or replaced while it was in use;"
                " finished runs are in the store, so the original command recreates the study and reuses them"
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
