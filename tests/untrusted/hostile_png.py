"""PNG files by hand, whose headers may promise anything."""

from __future__ import annotations

import struct
import zlib


def png(width: int, height: int, rows: bytes = b"") -> bytes:
    """A PNG of grey pixels whose header may promise anything."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )
