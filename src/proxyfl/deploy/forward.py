"""What gate and connector have in common: a small HTTP server that passes on a site's requests, no others."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass
from typing import Any

import httpx
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

PREFIX = "/v1/fleet/"
KINDS = frozenset(
    {
        *("activate-node", "deactivate-node", "send-node-heartbeat", "get-run", "get-fab"),
        *("pull-messages", "push-messages", "pull-object", "push-object", "confirm-message-received"),
    }
)
"""Flower's requests of a registered node. Registering is not among them: the operator does that."""

HEAD_BYTES, HEAD_SECONDS = 16 << 10, 15.0
"""How large a request's head may be, and how long it may take to come."""

BODY_SECONDS = 120.0
HANDSHAKE_SECONDS = 10.0
IDLE_SECONDS = 75
PASSED_ON = (b"content-type", b"accept")
FLOWERS = b"flwr-"

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes = b""
    headers: tuple[tuple[bytes, bytes], ...] = ()


def kind_of(scope: Scope) -> str:
    """Which of the fleet's requests this is; empty when none: paths are compared as they are written."""
    path = scope["raw_path"].decode("latin1")
    kind = str(path.removeprefix(PREFIX))
    good = path.startswith(PREFIX) and kind in KINDS and not scope["query_string"]
    return kind if good and scope["method"] == "POST" else ""


def is_long(scope: Scope) -> bool:
    """Whether a request's head is too large, if it came all at once."""
    return (
        len(scope["raw_path"]) + sum(len(name) + len(value) for name, value in scope["headers"]) > HEAD_BYTES
    )


def headers_of(scope: Scope) -> list[tuple[bytes, bytes]]:
    """The headers that are passed on: Flower's own, and what the body is."""
    return [
        (name, value) for name, value in scope["headers"] if name in PASSED_ON or name.startswith(FLOWERS)
    ]


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes | Answer:
    """The body, or why there is none: too large, too slow, of unknown length."""
    headers = dict(scope["headers"])
    if b"transfer-encoding" in headers:  # it would win over the length that is checked here
        return Answer(400)
    length = headers.get(b"content-length", b"")
    if not length.isdigit():
        return Answer(411)
    if int(length) > limit:
        return Answer(413, b"the request is larger than max_request_mb of federation.toml allows")
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    return Answer(400)
                body += message.get("body", b"")
                if len(body) > limit:
                    return Answer(413)
                if not message.get("more_body"):
                    return bytes(body)
    except TimeoutError:
        return Answer(408)


async def respond(send: Send, answer: Answer) -> None:
    length = (b"content-length", str(len(answer.body)).encode())
    # What was refused unread would otherwise be read as the next request.
    close = [] if answer.status < 400 else [(b"connection", b"close")]
    headers = [*answer.headers, length, *close]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})


async def ask(
    client: httpx.AsyncClient, kind: str, headers: Iterable[tuple[bytes, bytes]], body: bytes
) -> httpx.Response:
    """Pass a request on; nothing is followed, and nothing of the environment is obeyed."""
    return await client.post(PREFIX + kind, content=body, headers=list(headers))


def new_client(base: str, context: ssl.SSLContext, connections: int) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
    transport = httpx.AsyncHTTPTransport(context, limits=limits, trust_env=False)
    return httpx.AsyncClient(base_url=base, transport=transport, timeout=60.0, trust_env=False)


def of_response(found: httpx.Response) -> Answer:
    kind = found.headers.get("content-type", "application/octet-stream").encode("latin1")
    return Answer(found.status_code, found.content, ((b"content-type", kind),))


class PatientProtocol(H11Protocol):
    """HTTP whose requests must begin in time: a head that drips in is cut off."""

    late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        inner = self.app

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            self._in_time()
            await self.called(inner, scope, receive, send)

        self.app = app
        self._hurry()

    async def called(self, inner: Any, scope: Scope, receive: Receive, send: Send) -> None:
        await inner(scope, receive, send)

    def data_received(self, data: bytes) -> None:
        if self.late is None and (self.cycle is None or self.cycle.response_complete):
            self._hurry()
        super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._in_time()
        super().connection_lost(exc)

    def _hurry(self) -> None:
        self.late = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def _in_time(self) -> None:
        if self.late is not None:
            self.late.cancel()
            self.late = None


class Listener(uvicorn.Server):
    """Serves an app on a socket that is open already, with TLS."""

    def __init__(
        self,
        app: App,
        listening: socket.socket,
        context: ssl.SSLContext,
        protocol: type[PatientProtocol] = PatientProtocol,
        every_second: Callable[[], None] = lambda: None,
    ) -> None:
        self.listening, self.context, self.every_second = listening, context, every_second
        config = uvicorn.Config(
            app,
            http=protocol,
            ws="none",
            loop="asyncio",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=IDLE_SECONDS,
            timeout_graceful_shutdown=1,
            h11_max_incomplete_event_size=HEAD_BYTES,
        )
        super().__init__(config)

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second. (uvicorn's own callback looks at the clock, which may be set back.)"""
        if counter % 10 == 0:
            self.every_second()
        return await super().on_tick(counter)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        def protocol() -> asyncio.Protocol:
            made: Any = self.config.http_protocol_class
            new: asyncio.Protocol = made(config=self.config, server_state=self.server_state, app_state={})
            return new

        await self.lifespan.startup()
        server = await asyncio.get_running_loop().create_server(
            protocol,
            sock=self.listening,
            ssl=self.context,
            ssl_handshake_timeout=HANDSHAKE_SECONDS,
            backlog=self.config.backlog,
        )
        self.servers = [server]
        self.started = True
