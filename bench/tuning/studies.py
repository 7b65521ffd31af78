"""The studies of a store, in its file studies.db: SQLite. Only this and `study.py` use optuna."""

import errno
import fcntl
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import optuna
import sqlalchemy as sa
import sqlalchemy.exc
from optuna.storages import RDBStorage

from bench.errors import MAKE_ROOM, RunFailed, UserError, first_line, unknown
from bench.store.load import Damaged, parse
from bench.store.record import is_file_name
from bench.tuning.rows import Rows
from bench.tuning.study import DIRECTIONS, FRESH, Study
from bench.tuning.trials import Request, StudySpec, check_name

T = TypeVar("T")
DATABASE = "studies.db"
_WAIT_SECONDS = 60
"""Seconds to wait for another process that writes. Ours."""
_FULL = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT), "database or disk is full")

optuna.logging.set_verbosity(optuna.logging.WARNING)


def disk_full(error: BaseException) -> bool:
    """Whether an error reports a full disk, judged by its text: Arrow, SQLite and other processes give no errno."""
    return any(words in str(error) for words in _FULL)


class NoDatabase(UserError):
    """The database does not exist."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"unknown study in {path}: there is no such file; `bench tune` starts a study")
        self.path = path


class DamagedStudy(UserError):
    """A study that cannot be read."""

    exit_code = RunFailed.exit_code


class Studies:
    """The studies of a store.

    All reads go through `rows` and are checked. Only writers have Optuna's storage, `rdb`, which creates the tables,
    and the lock, a file beside the database.

    Args:
        store: its folder.
        make: create the database if it does not exist.
        read_only: do not change the database or its folder; it must exist.

    Raises:
        NoDatabase: the database does not exist and must not be created.
        UserError: it cannot be created, is not a regular file, or its tables are of another version of Optuna.
    """

    def __init__(self, store: Path, *, make: bool = True, read_only: bool = False) -> None:
        self.store, self.path, self.read_only = store, store / DATABASE, read_only
        self._file: os.stat_result | None = None
        if not self.path.exists() and (read_only or not make):
            raise NoDatabase(self.path)
        if self.path.exists() and not self.path.is_file():
            raise UserError(f"--store {store}: {self.path} is not a file")
        if self.path.is_symlink():
            raise UserError(
                f"--store {store}: {self.path} is a symbolic link, and links are not followed; copy the file"
            )
        with self.errors(opening=True):
            if not read_only:
                store.mkdir(parents=True, exist_ok=True)
            engine = sa.create_engine(self._url(), connect_args={"timeout": _WAIT_SECONDS})
            weakref.finalize(self, engine.dispose)  # else connections would not be closed properly
            self.rows = Rows(engine)
            if read_only:
                self.rows.are_there()  # raises if it is not a database
                return
            with self.lock():  # else two processes could create the tables at once and fail
                try:
                    url = self._url().render_as_string(hide_password=False)
                    self.rdb = RDBStorage(url, engine_kwargs={"connect_args": {"timeout": _WAIT_SECONDS}})
                except RuntimeError as error:  # tables of another version of Optuna
                    raise UserError(f"--store {store}: {first_line(error)}") from None
                weakref.finalize(self, self.rdb.engine.dispose)
            self._file = self.path.stat()

    def _url(self) -> sa.URL:
        """The URL of the database; in a string, a ? would end the path."""
        if not self.read_only:
            return sa.URL.create("sqlite", database=str(self.path))
        with self.path.open("rb") as file:
            if b"\2" in file.read(20)[18:]:
                raise RunFailed(
                    f"--store {self.store}: {self.path} is in SQLite's mode WAL, and reading it needs write access;"
                    f" when no process uses it, `sqlite3 {self.path} 'PRAGMA journal_mode=delete'` ends that"
                )
        place = {"mode": "ro", "uri": "true"}
        return sa.URL.create("sqlite", database=f"file:{quote(str(self.path.absolute()))}", query=place)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Be the only process that changes studies; the lock ends with the process."""
        self._refuse_if_gone()
        # A store from someone else may contain a symbolic link with this name.
        handle = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        with os.fdopen(handle, "r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    @contextmanager
    def changing(self) -> Iterator[None]:
        """`errors` and `lock`."""
        with self.errors(), self.lock():
            yield

    def _refuse_if_gone(self) -> None:
        """Raise if the file was deleted or replaced: nobody could read further writes."""
        if self._file is not None and not (self.path.exists() and os.path.samestat(self._file, self.path.stat())):
            raise RunFailed(
                f"--store {self.store}: {self.path} was deleted or replaced while it was in use;"
                " finished runs are in the store, so the original command recreates the study and reuses them"
            )

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
            raise unknown("study", name, self.names(), f" in {self.path}")
        return study

    def create(self, spec: StudySpec, name: str | None = None) -> "Study":
        """The study with this name, created if it does not exist.

        Raises:
            UserError: a study with this name has other settings; the message says what differs.
        """
        name = spec.name if name is None else check_name(name)
        with self.changing():
            study = self._find(name)
            if study is None:
                there = self._all()
                if name in there and name + FRESH not in there:
                    raise UserError(f"--name {name}: {self.path} has something else with this name; choose another")
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
                f"--name {name}: {self.path} has a study of this name with other settings ({'; '.join(differences)});"
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
            f"study {name} in {self.path} is damaged, or was made by another version of this suite ({why});"
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
        """Convert errors of the database into one line.

        Raises:
            UserError: it cannot be opened.
            RunFailed: it cannot be read or written.
        """
        try:
            yield
        except optuna.exceptions.StorageInternalError as error:
            raise self._refused(error.__cause__ or error, opening=opening) from None
        except (sqlalchemy.exc.SQLAlchemyError, OSError) as error:
            raise self._refused(error, opening=opening) from None

    def _refused(self, error: BaseException, *, opening: bool) -> UserError:
        what = " ".join(str(getattr(error, "orig", None) or getattr(error, "strerror", None) or error).split())[:300]
        text = f"--store {self.store}: {what}"
        if disk_full(error):
            return RunFailed(f"the disk is full: {text}{MAKE_ROOM}")
        if self.read_only:
            return RunFailed(
                f"{text}: {self.path} is damaged or not a database, or a process died while writing to it;"
                " the command of a study repairs the latter"
            )
        self._refuse_if_gone()
        kind = UserError if opening else RunFailed
        if "not a database" in what or "malformed" in what:
            return kind(
                f"{text}: {self.path} is damaged or not a database; move it away, and the same command creates another"
                " with the finished runs of the store"
            )
        return kind(f"{text}; do we have write access to {self.store}? If not, choose another --store")
