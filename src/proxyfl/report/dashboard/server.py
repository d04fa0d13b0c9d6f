"""The live page's server: this machine only, reading only, a handful of fixed addresses.

A page of another site must not be able to read runs through the user's browser: requests whose Host is not
this machine (a foreign name that resolves to it) or whose Origin is another site are refused. Other accounts
of the machine must not read them at all: a request brings this start's token, in the address that was printed
to whoever started it, and from then on in a cookie.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import SHUT_RDWR, socket
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from proxyfl.core.text import one_line
from proxyfl.report.dashboard.watch import Federation, Library
from proxyfl.report.html.page import policy, render, script, shell, stylesheet
from proxyfl.report.html.pieces import UNREADABLE

ADDRESS = "127.0.0.1"
MOST_CONNECTIONS, MOST_FOLLOWERS, MOST_RUNS_A_PAGE = 64, 24, 12
WEB_PORT = 80
"""The one port that browsers leave out of Host and Origin."""

ARRIVAL = 5.0
"""Seconds in all that a request may take to arrive, however it drips."""

PATIENCE = 20.0
"""Seconds that a reader may take for an answer."""

BREATH = 10.0
"""Seconds after which a silent stream says that it is alive, and so learns that its reader is gone."""

RULES = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The content security policy of every page but a report, which has its own."""

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
NOT_YOURS = (
    "only the user who started this page can open it; use the address with the token that its command printed"
)
HTML, CSS, JS = "text/html; charset=utf-8", "text/css; charset=utf-8", "text/javascript; charset=utf-8"
TEXT, JSON, EVENTS = "text/plain; charset=utf-8", "application/json", "text/event-stream"


class Dashboard(ThreadingHTTPServer):
    """Serves the runs of a folder, or ``only`` one of them, on 127.0.0.1. ``every`` is how many seconds pass
    between two looks.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(
        self,
        folder: Path,
        port: int = 0,
        every: float = 0.5,
        only: str | None = None,
        federation: Federation | None = None,
    ) -> None:
        self.library, self.every = Library(folder, only, federation), every
        self.token = secrets.token_urlsafe(24)
        self.stopping = threading.Event()
        self._connections = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._followers = threading.BoundedSemaphore(MOST_FOLLOWERS)
        self._open: dict[Any, float] = {}  # that do not follow, the longest silent first: until when
        self._opening = threading.Lock()
        self._looking = threading.Lock()
        self._looked, self._listed = float("-inf"), ""
        self.assets = {"/style.css": (CSS, stylesheet().encode()), "/script.js": (JS, script().encode())}
        super().__init__((ADDRESS, port), Handler)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.port}/"

    def link(self, path: str = "", **query: str) -> str:
        """The address of a page with what opens it."""
        return f"{self.url}{path}?{urlencode({**query, 'token': self.token})}"

    @property
    def cookie(self) -> str:
        """Cookies do not tell ports apart: the name does."""
        return f"proxyfl-{self.port}={self.token}"

    def knows(self, tokens: list[str], cookies: list[str]) -> bool:
        """Whether a request brings this start's token, in its address or as its cookie."""
        parts = [part.strip() for cookie in cookies for part in cookie.split(";")]
        pairs = [*((token, self.token) for token in tokens), *((part, self.cookie) for part in parts)]
        return any(secrets.compare_digest(found.encode(), ours.encode()) for found, ours in pairs)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Where all places are taken, whoever has been silent for longest makes room."""
        free = self._connections.acquire(blocking=False)
        if not free and self._drop(1):
            free = self._connections.acquire(timeout=1)
        if not free:
            self.shutdown_request(request)
            return
        with self._opening:
            self._open[request] = time.monotonic() + ARRIVAL
        super().process_request(request, client_address)

    def arrived(self, request: Any) -> None:
        """The whole request is there: the answer may take its time."""
        with self._opening:
            if self._open.pop(request, None) is not None:
                self._open[request] = float("inf")

    def service_actions(self) -> None:
        """Several times in a second: end the connections whose request did not arrive in time."""
        now = time.monotonic()
        with self._opening:
            late = sum(until < now for until in self._open.values())
        self._drop(late)

    def _drop(self, count: int) -> bool:
        """End the first connections; whether there was one."""
        with self._opening:
            ended = list(self._open)[:count]
            for request in ended:
                del self._open[request]
        for request in ended:
            with contextlib.suppress(OSError):  # it has just ended by itself
                request.shutdown(SHUT_RDWR)
        return bool(ended)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._opening:
                self._open.pop(request, None)
            self._connections.release()

    @contextlib.contextmanager
    def follower(self, request: Any) -> Iterator[bool]:
        """A place among those who follow; whether there is one left."""
        got = self._followers.acquire(blocking=False)
        if got:
            with self._opening:
                self._open.pop(request, None)
        try:
            yield got
        finally:
            if got:
                self._followers.release()

    def listing(self, names: list[str] | None = None) -> str:
        """The named runs, or all of them, as JSON. However many ask, all are looked at once in a while."""
        if names:
            return self._as_json(names)
        with self._looking:
            if time.monotonic() - self._looked >= self.every:
                self._listed = self._as_json(None)
                self._looked = time.monotonic()
            return self._listed

    def _as_json(self, names: list[str] | None) -> str:
        library = self.library
        listed = {"folder": library.folder.name, "runs": library.statuses(names), **library.federation()}
        return json.dumps(listed, allow_nan=False)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader that goes away in the middle is no error; anything else is logged."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    def stop(self) -> None:
        """End every stream and let go of the port."""
        self.stopping.set()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    server: Dashboard
    connection: socket
    timeout = PATIENCE
    admitted = False
    server_version, sys_version = "proxyfl", ""

    def handle_one_request(self) -> None:
        """Any word but GET and HEAD gets the same answer, known or not."""
        self.raw_requestline = self.rfile.readline(65537)
        if len(self.raw_requestline) > 65536:
            self.requestline, self.request_version, self.command = "", "", ""
            self.send_error(HTTPStatus.REQUEST_URI_TOO_LONG)
        elif not self.raw_requestline:
            self.close_connection = True
        elif self.parse_request():
            self.server.arrived(self.connection)
            self._answer()
            self.wfile.flush()

    def _answer(self) -> None:
        self.admitted = False
        if not self._is_ours():
            return self.send_error(HTTPStatus.FORBIDDEN, "this page is only available on its own machine")
        try:
            address = urlsplit(self.path)
            query = parse_qs(address.query, max_num_fields=50)
        except ValueError:
            return self.send_error(HTTPStatus.BAD_REQUEST, "this address cannot be read")
        cookies = self.headers.get_all("Cookie") or []
        self.admitted = self.server.knows(query.get("token", []), cookies)
        if not self.admitted:
            self.send_error(HTTPStatus.FORBIDDEN, NOT_YOURS)
        elif self.command not in ("GET", "HEAD"):
            self.send_error(HTTPStatus.METHOD_NOT_ALLOWED, "this page is read-only")
        else:
            names = query.get("name", [])
            if len(names) > MOST_RUNS_A_PAGE:
                many = f"a page shows at most {MOST_RUNS_A_PAGE} runs, {len(names)} are named; name fewer"
                return self.send_error(HTTPStatus.BAD_REQUEST, many)
            routes: dict[str, Callable[[list[str]], None]] = {
                "/": self._list_page,
                "/run": self._run_page,
                "/report": self._report,
                "/api/runs": self._list,
                "/api/run": self._run,
                "/api/follow": self._follow,
            }
            if address.path in self.server.assets:
                self._send(*self.server.assets[address.path])
            elif address.path in routes:
                routes[address.path](names)
            else:
                self.send_error(HTTPStatus.NOT_FOUND, "there is no such page")

    def _is_ours(self) -> bool:
        port = self.server.port
        hosts = {f"{ADDRESS}:{port}", f"localhost:{port}"}
        if port == WEB_PORT:
            hosts |= {ADDRESS, "localhost"}
        given = self.headers.get_all("Host") or []
        origins = self.headers.get_all("Origin") or []
        sites = self.headers.get_all("Sec-Fetch-Site") or []
        linked = self.headers.get("Sec-Fetch-Mode") == "navigate"
        return (
            len(given) == 1
            and given[0].lower() in hosts
            and all(origin.lower().removeprefix("http://") in hosts for origin in origins)
            and (linked or all(site in ("same-origin", "none") for site in sites))
        )

    def _list_page(self, names: list[str]) -> None:
        self._page("list", "Runs")

    def _run_page(self, names: list[str]) -> None:
        if self._known(names):
            self._page("run", "Run")

    def _page(self, page: str, title: str) -> None:
        head = '<link rel="stylesheet" href="style.css">'
        body = '<script src="script.js"></script>'
        self._send(HTML, shell(title=title, page=page, head=head, body=body).encode())

    def _list(self, names: list[str]) -> None:
        self._send(JSON, self.server.listing().encode())

    def _run(self, names: list[str]) -> None:
        data = self._data(names)
        if data is not None:
            self._send(JSON, json.dumps(data, allow_nan=False, separators=(",", ":")).encode())

    def _report(self, names: list[str]) -> None:
        """The page that ``proxyfl report`` writes, as of now: a browser can save it as one file."""
        data = self._data(names)
        if data is not None:
            self._send(HTML, render(data).encode(), rules=f"{policy()}; frame-ancestors 'none'")

    def _data(self, names: list[str]) -> dict[str, Any] | None:
        """The data of these runs; nothing where an error was sent instead."""
        try:
            data = self.server.library.data(names)
        except UNREADABLE as error:
            self.send_error(HTTPStatus.CONFLICT, f"the run cannot be read: {one_line(str(error))}")
            return None
        if data is None:
            self.send_error(HTTPStatus.NOT_FOUND, "there is no such run")
        return data

    def _follow(self, names: list[str]) -> None:
        """Server-sent events: the list, or how far the named runs are, whenever that changes."""
        if names and not self._known(names):
            return
        with self.server.follower(self.connection) as place:
            if not place:
                self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, "too many pages are open; close some")
                return
            self._head(EVENTS)
            if self.command == "GET":
                self._stream(names)

    def _stream(self, names: list[str]) -> None:
        sent, spoke = "", time.monotonic()
        while not self.server.stopping.is_set():
            now = self.server.listing(names)
            if now != sent:
                sent, spoke = now, time.monotonic()
                self.wfile.write(f"data: {now}\n\n".encode())
            elif time.monotonic() - spoke > BREATH:
                spoke = time.monotonic()
                self.wfile.write(b": still here\n\n")
            self.server.stopping.wait(self.server.every)

    def _known(self, names: list[str]) -> bool:
        try:
            known = bool(names) and all(self.server.library.find(name) for name in names)
        except UNREADABLE:
            known = True  # it is there; why it cannot be read stands with its data
        if not known:
            self.send_error(HTTPStatus.NOT_FOUND, "there is no such run")
        return known

    def _send(
        self, kind: str, content: bytes, status: HTTPStatus = HTTPStatus.OK, rules: str = RULES
    ) -> None:
        self._head(kind, status, len(content), rules)
        if self.command != "HEAD":
            self.wfile.write(content)

    def _head(
        self,
        kind: str,
        status: HTTPStatus = HTTPStatus.OK,
        length: int | None = None,
        rules: str = RULES,
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if length is not None:
            self.send_header("Content-Length", str(length))
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        for name, value in {"Content-Security-Policy": rules, **HEADERS}.items():
            self.send_header(name, value)
        if self.admitted:
            self.send_header("Set-Cookie", f"{self.server.cookie}; HttpOnly; SameSite=Strict; Path=/")
        self.end_headers()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Plain words; nothing of the request is repeated."""
        status = HTTPStatus(code)
        self.close_connection = True
        self._send(TEXT, f"{message if code < 500 and message else status.phrase}\n".encode(), status)

    def log_message(self, format: str, *args: Any) -> None:
        """The terminal is for the address and for errors."""


def serve(dashboard: Dashboard) -> None:
    """Answer until interrupted."""
    try:
        dashboard.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:
        pass
    finally:
        dashboard.stop()
