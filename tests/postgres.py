"""A private PostgreSQL server from Debian's package `postgresql`, for tests."""

import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import psycopg

from tests.daemons import daemon, free_ports


class Server(NamedTuple):
    """A running server on 127.0.0.1 whose superuser is `bench`."""

    port: int
    password: str

    def connect(self) -> psycopg.Connection:
        """Connect to the database of the server itself; there are no transactions."""
        return psycopg.connect(
            f"postgresql://bench:{self.password}@127.0.0.1:{self.port}/postgres", autocommit=True, connect_timeout=5
        )

    def fresh(self) -> str:
        """The URL of the database `bench`, created anew: connections to the old one are terminated."""
        with self.connect() as connection:
            connection.execute("DROP DATABASE IF EXISTS bench WITH (FORCE)")
            connection.execute("CREATE DATABASE bench")
        return f"postgresql+psycopg://bench:{self.password}@127.0.0.1:{self.port}/bench"

    def answers(self) -> bool:
        """Whether it accepts connections yet."""
        try:
            self.connect().close()
        except psycopg.OperationalError:
            return False
        return True


def binaries() -> Path | None:
    """The folder with the newest installed server, if there is one."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    return found[-1].parent if found else None


@contextmanager
def server(programs: Path) -> Iterator[Server]:
    """Make and start a server in a temporary folder; PostgreSQL refuses root, whose servers run as user postgres."""
    user = "postgres" if os.geteuid() == 0 else None
    with TemporaryDirectory(prefix="bench-postgres-", dir="/tmp", ignore_cleanup_errors=True) as name:
        folder, secret = Path(name), secrets.token_urlsafe(16)
        data, password = folder / "data", folder / "password"
        password.write_text(secret, "utf-8")
        if user:
            shutil.chown(folder, user)
            shutil.chown(password, user)
        options = ["--no-sync", "--username=bench", "--auth=scram-sha-256", f"--pwfile={password}"]
        become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "--"] if user else []
        done = subprocess.run(
            [*become, programs / "initdb", "--encoding=UTF8", "--locale=C", *options, data],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"initdb: ended with {done.returncode}:\n{done.stdout}")
        with ExitStack() as stack:
            for again in (True, True, False):  # another process may take the port meanwhile
                made = Server(free_ports(1)[0], secret)
                settings = ["listen_addresses=127.0.0.1", f"port={made.port}", "unix_socket_directories=", "fsync=off"]
                words = [programs / "postgres", "-D", data, *(word for each in settings for word in ("-c", each))]
                try:  # SIGINT: waits for no client
                    stack.enter_context(daemon(words, folder / "log", made.answers, user=user, stop=signal.SIGINT))
                    break
                except RuntimeError:
                    if not again:
                        raise
            yield made
