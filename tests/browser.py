"""Fixtures with a browser; a test is skipped, with the reason, if the packages are missing."""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import PATIENCE


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Chromium]":
    """A headless browser for the whole session."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("no chromium: apt-get install chromium")
    with Chromium(program, tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


class Chromium:
    """Chromium, driven by its own protocol over a pipe: JSON messages that end in a zero byte. It resolves no name."""

    def __init__(self, program: str, folder: Path) -> None:
        self.events: list[dict[str, Any]] = []
        self._calls, self._left = 0, b""
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        words = [
            program,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--remote-debugging-pipe",
            "--no-first-run",
            "--disable-background-networking",
            "--host-resolver-rules=MAP * ~NOTFOUND",
            f"--user-data-dir={folder}",
            "about:blank",
        ]
        pipes = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
        with (folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig=TERM", "--", "bash", "-c", pipes, "bash", *words],
                pass_fds=(theirs_in, theirs_out),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        os.close(theirs_in)
        os.close(theirs_out)

    def __enter__(self) -> "Chromium":
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self.call("Browser.close")
            self._process.wait(PATIENCE)
        except (OSError, RuntimeError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        os.close(self._out)
        os.close(self._in)

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Execute a command; events that arrive in between are kept."""
        self._calls += 1
        own = {"id": self._calls, "method": method, "params": parameters}
        message = json.dumps(own if session is None else own | {"sessionId": session}).encode() + b"\0"
        while message:
            message = message[os.write(self._out, message) :]
        while True:
            answer = self._next()
            if answer.get("id") == self._calls:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def wait(self, method: str, session: str) -> None:
        """Wait until something has happened."""
        while not any(e.get("method") == method and e.get("sessionId") == session for e in self.events):
            self.events.append(self._next())

    def _next(self) -> dict[str, Any]:
        give_up = time.monotonic() + PATIENCE
        while b"\0" not in self._left:
            if not select.select([self._in], [], [], max(0.0, give_up - time.monotonic()))[0]:
                raise TimeoutError("chromium says nothing")
            piece = os.read(self._in, 1 << 20)
            if not piece:
                raise RuntimeError("chromium has ended; see its log")
            self._left += piece
        message, _, self._left = self._left.partition(b"\0")
        return json.loads(message)

    @contextmanager
    def page(self, path: Path, *, dark: bool = False, width: int = 1200) -> "Iterator[Page]":
        """Open a file in its own tab."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        page = Page(self, self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        page.call("Emulation.setEmulatedMedia", features=[scheme])
        page.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        page.call("Page.navigate", url=path.resolve().as_uri())
        self.wait("Page.loadEventFired", page.session)
        try:
            yield page
        finally:
            self.call("Target.closeTarget", targetId=target)


class Page:
    """A tab with a page."""

    def __init__(self, browser: Chromium, session: str) -> None:
        self.browser, self.session = browser, session

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Execute a command in this tab."""
        return self.browser.call(method, self.session, **parameters)

    def evaluate(self, script: str) -> Any:
        """The value of an expression of JavaScript, awaited if it is a promise."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(f"{script}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def press(self, key: str, text: str = "") -> None:
        """Press a key, as a keyboard does."""
        codes = {"Enter": 13, " ": 32, "Tab": 9}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, text=text, windowsVirtualKeyCode=codes[key])

    def screenshot(self, path: Path) -> None:
        """A screenshot of the visible part."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    @property
    def complaints(self) -> list[str]:
        """Errors and warnings of the console, and violations of the page's content security policy."""
        kinds = {
            "Runtime.exceptionThrown": lambda e: True,
            "Page.javascriptDialogOpening": lambda e: True,
            "Log.entryAdded": lambda e: e["entry"]["level"] in ("error", "warning"),
            "Runtime.consoleAPICalled": lambda e: e["type"] in ("error", "warning", "assert"),
        }
        return [
            json.dumps(e["params"]) for e in self._events if e["method"] in kinds and kinds[e["method"]](e["params"])
        ]

    @property
    def requests(self) -> list[str]:
        """All requests, including the page itself; not what is embedded in the page."""
        urls = [e["params"]["request"]["url"] for e in self._events if e["method"] == "Network.requestWillBeSent"]
        return [url for url in urls if not url.startswith(("data:", "blob:"))]

    @property
    def _events(self) -> list[dict[str, Any]]:
        self.evaluate("1")  # then all earlier events have been reported
        return [e for e in self.browser.events if e.get("sessionId") == self.session]
