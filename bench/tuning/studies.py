"""The studies of a database: SQLite on one machine, PostgreSQL on several. With `study.py` the only place that names optuna."""

import fcntl
import re
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy as sa
import sqlalchemy.exc
from optuna.storages import RDBStorage

from bench.doctor import first_line
from bench.errors import RunFailed, UserError, unknown
from bench.tuning.study import DIRECTIONS, FRESH, Study
from bench.tuning.trials import Request, StudySpec

HEARTBEAT_SECONDS = 15
"""Seconds between the signs of life of a trial's worker; after four times as much silence the trial is tried again. Ours."""
_EXAMPLES = "sqlite:///studies.db or postgresql+psycopg://user:password@host/database"

optuna.logging.set_verbosity(optuna.logging.WARNING)


class Studies:
    """The studies of a database.

    Args:
        url: of SQLite (`sqlite:///path`) or PostgreSQL (`postgresql+psycopg://user:password@host/database`).
        heartbeat: seconds between a worker's signs of life.

    Raises:
        UserError: the URL is none, its driver is missing, or nothing answers; a password is not shown.
    """

    def __init__(self, url: str, heartbeat: int = HEARTBEAT_SECONDS) -> None:
        try:
            self.url = sa.make_url(url)
        except (sqlalchemy.exc.ArgumentError, ValueError):  # a port that is no number
            raise UserError(f"--storage: this is no URL of a database, such as {_EXAMPLES}") from None
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
        with self.errors():
            if kind == "sqlite":
                Path(self.url.database or "").parent.mkdir(parents=True, exist_ok=True)
            self._engine = sa.create_engine(self.url, **options)
            weakref.finalize(self, self._engine.dispose)  # or connections would end without a goodbye
            with self.lock():  # two processes that make the tables at once would fail
                try:
                    self.rdb = RDBStorage(self.url.render_as_string(hide_password=False), engine_kwargs=options)
                except RuntimeError as error:  # tables of another version of Optuna
                    raise UserError(f"--storage {self.shown}: {first_line(error)}") from None
                weakref.finalize(self, self.rdb.engine.dispose)
        self.heartbeat = heartbeat

    @property
    def shown(self) -> str:
        """The URL without its password."""
        return self.url.set(query={}).render_as_string(hide_password=True)

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
        name = name or spec.name
        if not re.fullmatch(r"[\w.+-]+", name):
            raise UserError(f"--name {name}: a name has letters, digits, dots, - and _ and nothing else")
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
        return Study(self, name, StudySpec.model_validate(attrs["bench"]))

    def _there(self, name: str) -> bool:
        return name in {study.study_name for study in self.rdb.get_all_studies()}

    def id_of(self, name: str) -> int:
        """Optuna's number of a study."""
        return self.rdb.get_study_id_from_name(name)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Be the only process that changes studies; the lock goes with the process, however that ends."""
        if self.url.get_backend_name() == "sqlite":
            path = Path(f"{self.url.database}.lock")
            with path.open("w") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                yield
        else:
            with self._engine.begin() as connection:
                # A machine that loses its power says no goodbye.
                connection.execute(sa.text("SET LOCAL idle_in_transaction_session_timeout = '60s'"))
                connection.execute(sa.text("SELECT pg_advisory_xact_lock(726173)"))
                yield

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Say what is wrong with the database in one line.

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
            raise UserError(f"--storage {self.shown}: the package {error.name} is not installed; {mend}") from None
        except sqlalchemy.exc.NoSuchModuleError:
            raise UserError(f"--storage {self.shown}: unknown driver; write {_EXAMPLES}") from None
        except optuna.exceptions.StorageInternalError as error:
            raise self._refused(error.__cause__ or error) from None
        except (sqlalchemy.exc.SQLAlchemyError, OSError) as error:
            raise self._refused(error) from None

    def _refused(self, error: BaseException) -> UserError:
        text = " ".join(str(getattr(error, "orig", None) or error).split())
        if self.url.password:
            text = text.replace(str(self.url.password), "***")
        return RunFailed(f"--storage {self.shown}: {text[:300]}; is the server there, and may we write to it?")
