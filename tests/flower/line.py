"""A line between a site and its server on which things go wrong: a small TCP proxy in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

CHUNK = 1 << 14
UP, DOWN = "up", "down"
"""From the site to the server, and back."""


@dataclass(eq=False)
class Link:
    """One connection: its two ends, and whether what comes in is still passed on."""

    ends: tuple[asyncio.StreamWriter, asyncio.StreamWriter]
    deaf: bool = False
    left: float = float("inf")

    def cut(self) -> None:
        """As a program that ends: what was passed on arrives, then the connection is closed."""
        for end in self.ends:
            end.close()

    def reset(self) -> None:
        """As a firewall that forgets: the connection is gone, and what was under way with it."""
        for end in self.ends:
            end.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
            end.transport.abort()

    def lose(self) -> None:
        """As a network that is gone: nothing arrives any more, and nobody says so."""
        self.deaf = True


@dataclass
class Trip:
    """Something that happens once, when so many more bytes went one way."""

    how: str
    way: str
    left: int
    happened: threading.Event = field(default_factory=threading.Event)


class Line:
    """Passes connections on to ``target``, with ``tls`` encrypted from here on. ``delay`` holds up every
    chunk; while ``shut`` nobody answers; with ``brittle`` every connection is reset after a number of bytes
    that is drawn.
    """

    def __init__(self, target: str, tls: ssl.SSLContext | None = None) -> None:
        self.host, self.target_port = target.rpartition(":")[0], int(target.rpartition(":")[2])
        self.tls = tls
        self.delay, self.shut, self.brittle = 0.0, False, 0
        self.resets = 0
        self._draw = random.Random(20)
        self._links, self._trip = set[Link](), None
        self._loop, self._ready = asyncio.new_event_loop(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def trip(self, how: str, way: str, after: int) -> threading.Event:
        """Cut, reset or lose the connection on which the byte comes; the event says that it happened."""
        self._trip = Trip(how, way, after)
        return self._trip.happened

    def all(self, how: str) -> None:
        """Cut, reset or lose every connection that there is."""
        self._loop.call_soon_threadsafe(lambda: [getattr(link, how)() for link in tuple(self._links)])

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.shut:
            writer.transport.abort()
            return
        try:
            far, end = await asyncio.open_connection(self.host, self.target_port, ssl=self.tls)
        except OSError:
            writer.transport.abort()
            return
        link = Link((writer, end))
        if self.brittle:
            link.left = self._draw.randint(1, self.brittle)
        self._links.add(link)
        await asyncio.gather(self._pump(link, UP, reader, end), self._pump(link, DOWN, far, writer))
        self._links.discard(link)
        link.cut()

    async def _pump(
        self, link: Link, way: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(OSError):
            while chunk := await reader.read(CHUNK):
                if self.delay:
                    await asyncio.sleep(self.delay)
                if link.deaf:
                    continue
                how = self._due(link, way, len(chunk))
                writer.write(chunk[: len(chunk) // 2] if how else chunk)
                await writer.drain()
                if how:
                    getattr(link, how)()
            if not link.deaf:
                writer.close()

    def _due(self, link: Link, way: str, size: int) -> str:
        """What happens to the connection at this chunk."""
        link.left -= size
        if link.left <= 0:
            self.resets += 1
            return "reset"
        trip = self._trip
        if trip is None or trip.way != way:
            return ""
        trip.left -= size
        if trip.left > 0:
            return ""
        self._trip = None
        trip.happened.set()
        return trip.how


@contextlib.contextmanager
def line_to(target: str, tls: ssl.SSLContext | None = None) -> Iterator[Line]:
    line = Line(target, tls)
    line._thread.start()
    assert line._ready.wait(30)
    try:
        yield line
    finally:
        line._loop.call_soon_threadsafe(line._loop.stop)
        line._thread.join(5)
