"""A headless Chromium, driven through its DevTools protocol over a pair of pipes: no driver, no library."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-dev-shm-usage",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
    "--no-default-browser-check", "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip


def find_chromium() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


NEEDS_CHROMIUM = [
    pytest.mark.skipif(
        find_chromium() is None, reason="no chromium is installed (Debian: apt-get install chromium)"
    ),
    pytest.mark.skipif(os.name != "posix", reason="the browser is driven over inherited pipes"),
    pytest.mark.xdist_group("chromium"),
]
"""Marks of a test module: its tests share the browser of the session, in one process."""


class Gone(AssertionError):
    """The page that was asked is being replaced by another."""


class Browser:
    """One browser with one page at a time. Console errors, exceptions and requests are remembered."""

    def __init__(self, program: str) -> None:
        self._profile = tempfile.mkdtemp(prefix="chromium-")
        (read_commands, self._write), (self._read, write_answers) = os.pipe(), os.pipe()
        # The browser reads commands from descriptor 3 and answers on descriptor 4.
        shell = f'exec "$@" 3<&{read_commands} 4>&{write_answers}'
        self._process = subprocess.Popen(
            ["bash", "-c", shell, "sh", program, *FLAGS, f"--user-data-dir={self._profile}", "about:blank"],
            pass_fds=(read_commands, write_answers),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_commands)
        os.close(write_answers)
        self._ids, self._buffer, self._session = itertools.count(1), b"", ""
        self.errors: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One command and its answer; what happens meanwhile is noted."""
        number = next(self._ids)
        message = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            told = self._next(60)
            if told.get("id") == number:
                if "navigated" in told.get("error", {}).get("message", ""):
                    raise Gone(method)
                assert "error" not in told, f"{method}: {told['error']}"
                return dict(told["result"])

    def _next(self, patience: float) -> dict[str, Any]:
        until = time.monotonic() + patience
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0, until - time.monotonic()))
            assert ready, "the browser does not answer"
            part = os.read(self._read, 1 << 16)
            assert part, "the browser has gone"
            self._buffer += part
        raw, _, self._buffer = self._buffer.partition(b"\0")
        told: dict[str, Any] = json.loads(raw)
        self._note(told.get("method", ""), told.get("params", {}))
        return told

    def _note(self, method: str, params: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.errors.append(str([each.get("value") for each in params["args"]]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def open(self, address: str) -> None:
        """Load a page, and forget what the one before it did."""
        self.call("Page.navigate", url="about:blank")  # it may still ask a server that has gone
        self.errors.clear()
        self.requests.clear()
        failed = self.call("Page.navigate", url=address).get("errorText")
        assert not failed, f"{address}: {failed}"
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def ask(self, expression: str) -> Any:
        """The value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def each(self, selector: str, value: str = "textContent") -> list[Any]:
        """A value of every element that a selector finds."""
        return list(self.ask(f"[...document.querySelectorAll('{selector}')].map((one) => one.{value})"))

    def click(self, selector: str) -> None:
        """Afterwards, so that the answer does not race with the page that the click leads to."""
        self.ask(f"void setTimeout(() => document.querySelector({json.dumps(selector)}).click())")

    def until(self, expression: str, patience: float = 30) -> None:
        """Wait for an expression to become true."""
        end = time.monotonic() + patience
        # While a page is on its way there may be no document to ask about.
        careful = f"(() => {{ try {{ return Boolean({expression}); }} catch {{ return false; }} }})()"
        while True:
            with contextlib.suppress(Gone):
                if self.ask(careful):
                    return
            assert time.monotonic() < end, f"still not so after {patience:g} s: {expression}"
            time.sleep(0.05)

    def look(
        self, width: int = 1200, height: int = 900, scheme: str = "light", *, phone: bool = False
    ) -> None:
        """How large the window is, and what colours its user prefers."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=phone,
        )
        feature = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=feature)

    def hover(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def picture(self, path: Path, *, whole: bool = False) -> None:
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def close(self) -> None:
        os.close(self._write)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
        os.close(self._read)
        shutil.rmtree(self._profile, ignore_errors=True)
