"""A site's line no faster than its people allow: both ways are cut into pieces with pauses between them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable

import httpx

from proxyfl.deploy.forward import PREFIX

PIECE = 32 << 10
LEFT_OUT = ("content-encoding", "content-length", "transfer-encoding")


class Pace:
    """So many kilobits a second each way."""

    def __init__(self, kilobits: int) -> None:
        self.rate = kilobits * 125.0
        self.free = {"up": 0.0, "down": 0.0}
        """When each way is free again."""

    async def take(self, way: str, amount: int) -> None:
        """Wait for one's turn, and take so many bytes."""
        now = time.monotonic()
        turn = max(now, self.free[way])
        self.free[way] = turn + amount / self.rate
        if turn > now:
            await asyncio.sleep(turn - now)

    async def ask(
        self, client: httpx.AsyncClient, kind: str, headers: Iterable[tuple[bytes, bytes]], body: bytes
    ) -> httpx.Response:
        """Pass a request on, as :func:`proxyfl.deploy.forward.ask` does, at this pace."""
        complete = [*headers, (b"content-length", str(len(body)).encode())]
        request = client.build_request("POST", PREFIX + kind, content=self._pieces(body), headers=complete)
        found = await client.send(request, stream=True)
        try:
            parts = []
            async for part in found.aiter_bytes(PIECE):
                await self.take("down", len(part))
                parts.append(part)
        finally:
            await found.aclose()
        kept = [(name, value) for name, value in found.headers.items() if name.lower() not in LEFT_OUT]
        return httpx.Response(found.status_code, headers=kept, content=b"".join(parts))

    async def _pieces(self, body: bytes) -> AsyncIterator[bytes]:
        for start in range(0, len(body), PIECE):
            piece = body[start : start + PIECE]
            await self.take("up", len(piece))
            yield piece
