"""A database that several processes share: SQLite on one machine, PostgreSQL on several."""

import errno
import fcntl
import os
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.parse import quote

import sqlalchemy as sa
import sqlalchemy.exc
from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict

from bench.errors import MAKE_ROOM, RunFailed, UserError
from bench.machine import lives
from bench.output import note
from tasks.core.extras import not_installed

HEARTBEAT_SECONDS = 15
"""Seconds between heartbeats of a worker; after four missed ones its work is repeated. Ours."""
PAUSES = (1, 2, 5, 10, 30, 60)
"""Seconds between attempts to reach a database that does not respond. Ours."""
T = TypeVar("T")
_EXAMPLES = "sqlite:///studies.db or postgresql+psycopg://user:password@host/database"
_FULL = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT), "database or disk is full")


class NoDatabase(UserError):
    """The database file does not exist."""

    def __init__(self, shown: str) -> None:
        super().__init__(f"unknown study in {shown}: there is no such file; `bench tune` starts a study")
        self.shown = shown


class Stuck(RunFailed):
    """Errors that the user must fix, such as a full disk: retrying would not help."""


def disk_full(error: BaseException) -> bool:
    """Whether an error reports a full disk, judged by its text: Arrow, SQLite and other processes give no errno."""
    return any(words in str(error) for words in _FULL)


@with_config(ConfigDict(extra="allow"))
class StoredProcess(TypedDict):
    """`bench.machine.this_process`, with the fields that `bench.machine.lives` reads."""

    pid: Annotated[int, Field(gt=0, lt=2**31)]
    started: str | None


class Heartbeats:
    """Judges whether workers are alive, of which only heartbeats, every `seconds`, are visible in the database."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._watched: dict[Hashable, tuple[Any, float, float]] = {}

    def why_dead(self, work: Hashable, worker: Mapping[str, Any], beat: int | None) -> str | None:
        """Why the worker of some work is presumed dead, or None.

        For a worker on another machine only its heartbeat is visible. It must have stopped while this process watched
        it without a pause: after an outage of the database, or of this machine, all heartbeats are old.
        """
        alive = lives(worker)
        if alive is not None:
            return None if alive else "its worker died"
        now, sign = time.monotonic(), (worker, beat)
        before, since, last = self._watched.get(work, (None, now, now))
        if sign != before or now - last > 2 * self._seconds:
            since = now
        self._watched[work] = sign, since, now
        return "its worker stopped responding" if now - since > 4 * self._seconds else None


@contextmanager
def beating(seconds: float, beat: Callable[[int], object]) -> Iterator[None]:
    """Call `beat` with 1, 2, ... every `seconds` while the context lasts; its errors are ignored."""
    done = threading.Event()

    def repeat() -> None:
        count = 0
        while not done.wait(seconds):
            count += 1
            with suppress(Exception):  # the database may be unavailable; the end of the work retries
                beat(count)

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


class Database:
    """A database of SQLite or PostgreSQL.

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
        self._options: dict[str, Any] = {"connect_args": arguments, "pool_pre_ping": True}
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
            self._engine = self._reading() if read_only else sa.create_engine(self.url, **self._options)
            weakref.finalize(self, self._engine.dispose)  # else connections would not be closed properly
            self._prepare()

    def _prepare(self) -> None:
        """Make or check the tables."""

    def _reading(self) -> sa.Engine:
        """A read-only engine."""
        if self._path is None:
            arguments = self._options["connect_args"] | {"options": "-c default_transaction_read_only=on"}
            return sa.create_engine(self.url, **self._options | {"connect_args": arguments})
        with self._path.open("rb") as file:
            if b"\2" in file.read(20)[18:]:
                raise RunFailed(
                    f"{self.asked}: {self._path} is in SQLite's mode WAL,"
                    " and reading it needs write access; when no process uses it,"
                    f" `sqlite3 {self._path} 'PRAGMA journal_mode=delete'` ends that"
                )
        place = {"mode": "ro", "uri": "true"}
        url = sa.URL.create("sqlite", database=f"file:{quote(str(self._path.absolute()))}", query=place)
        return sa.create_engine(url, **self._options)

    @property
    def shown(self) -> str:
        """The URL without its password."""
        return self.url.set(query={}).render_as_string(hide_password=True)

    @property
    def environment(self) -> dict[str, str]:
        """The environment variable by which workers find it; arguments are visible to other users of the machine."""
        return {"BENCH_STORAGE": self.url.render_as_string(hide_password=False)}

    @property
    def _path(self) -> Path | None:
        """The SQLite file; None for PostgreSQL."""
        return Path(self.url.database or "") if self.url.get_backend_name() == "sqlite" else None

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Be the only process that changes studies or the tables of plans; the lock ends with the process."""
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

    def insist(self, change: Callable[[], T], *, locked: bool = True) -> T:
        """Make a change; retry for a while if the database is unavailable, so that nothing is lost."""
        for pause in (*PAUSES, None):
            try:
                with self.errors(), self.lock() if locked else nullcontext():
                    return change()
            except RunFailed as error:
                if pause is None or isinstance(error, Stuck):
                    raise
                if pause == PAUSES[0]:
                    note(f"{error}; trying again for {sum(PAUSES)} s")
                time.sleep(pause)
        raise AssertionError("the last attempt returns or raises")

    @contextmanager
    def errors(self, *, opening: bool = False) -> Iterator[None]:
        """Convert database errors into one line.

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
        except (sqlalchemy.exc.SQLAlchemyError, OSError) as error:
            raise self._refused(error, opening=opening) from None

    def _refused(self, error: BaseException, *, opening: bool) -> UserError:
        text = " ".join(str(getattr(error, "orig", None) or getattr(error, "strerror", None) or error).split())[:300]
        if self.url.password:
            text = text.replace(str(self.url.password), "***")
        if disk_full(error):
            return Stuck(f"the disk is full: {self.asked}: {text}{MAKE_ROOM}")
        if self._path is None and isinstance(error, sqlalchemy.exc.ProgrammingError):  # no permission, other tables
            return Stuck(f"{self.asked}: {text}; change that, or name another database")
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
