"""Real servers of a test session: each a child process with a log, which ends when the test process ends."""

import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
PATIENCE = 60.0  # seconds; start-up takes two, but the machines of a CI may be slow and shared


def free_ports(n: int) -> list[int]:
    """Free ports of 127.0.0.1."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(n)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def until(done: Callable[[], T], what: str, seconds: float = PATIENCE) -> T:
    """Wait until `done()` is true and return its value; raises if that takes too long."""
    give_up = time.monotonic() + seconds
    while not (found := done()):
        if time.monotonic() > give_up:
            raise TimeoutError(f"{what}: not after {seconds:g} s")
        time.sleep(0.05)
    return found


@contextmanager
def daemon(
    words: Sequence[str | Path],
    log: Path,
    ready: Callable[[], bool],
    *,
    env: Mapping[str, str] | None = None,
    user: str | None = None,
    stop: signal.Signals = signal.SIGTERM,
) -> Iterator[None]:
    """Run a server in the foreground of its own session: yield when it is `ready`, stop it at the end of the block.

    The kernel sends it `stop` if this process dies before.
    """
    become = [f"--reuid={user}", f"--regid={user}", "--init-groups"] if user else []
    command = ["setpriv", f"--pdeathsig={stop.name.removeprefix('SIG')}", *become, "--", *map(str, words)]
    with log.open("ab") as file:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, cwd=log.parent, env=env, start_new_session=True
        )
    try:
        with suppress(TimeoutError):
            until(lambda: ready() or process.poll() is not None, "ready")
        if process.poll() is not None or not ready():
            tail = "\n".join(log.read_text("utf-8", "replace").splitlines()[-30:])
            raise RuntimeError(f"{words[0]}: does not start (ended with {process.poll()}); its log ends:\n{tail}")
        yield
    finally:
        process.send_signal(stop)
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
