"""Who is at the other end of a connection on this machine: only the user of this very process is let in.

Flower's programs listen on the loopback device, which every account of a machine reaches. Linux tells to whom
a local connection belongs; one of somebody else is reset before a byte of it is read.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from proxyfl.core.errors import RunError

TABLES = {socket.AF_INET: Path("/proc/net/tcp"), socket.AF_INET6: Path("/proc/net/tcp6")}
OVERFLOW = Path("/proc/sys/kernel/overflowuid")
"""The number that stands for users whom this process cannot tell apart."""

ESTABLISHED = 1
RESET = struct.pack("ii", 1, 0)
ROW, UID = 300, 6
"""More than a row's length, and the column, counted from the first address, that holds the owner's number."""

_accept = socket.socket.accept


def require() -> None:
    """Raise where this machine cannot tell whose a connection is."""
    if not TABLES[socket.AF_INET].is_file():
        raise RunError(
            "servers and sites need Linux: this machine has no /proc/net/tcp, which shows who owns a "
            "local connection; without it any account could use Flower's local ports"
        )
    if os.geteuid() == int(OVERFLOW.read_text()):
        raise RunError(
            f"user {os.geteuid()} is shared by many accounts; give this program an account of its own"
        )


def is_own(connection: socket.socket) -> bool:
    """Whether an accepted connection comes from this machine and from this process's user."""
    if connection.family not in TABLES:
        return True  # a socket of the file system, which has the permissions of a file
    here, there = connection.getsockname(), connection.getpeername()
    if not (ipaddress.ip_address(here[0]).is_loopback and ipaddress.ip_address(there[0]).is_loopback):
        return False
    # Seen from the other end, and open: what is closed has lost its owner and shows root instead.
    row = f" {_hexadecimal(there)} {_hexadecimal(here)} {ESTABLISHED:02X} ".encode()
    table = TABLES[connection.family].read_bytes()
    start = table.find(row)
    if start < 0 or int(table[start : start + ROW].split()[UID]) != os.geteuid():
        return False
    # Still open at this end, too: the row cannot be that of a later connection between the same ports.
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == ESTABLISHED


def accept_own(listening: socket.socket) -> tuple[socket.socket, Any]:
    """``accept`` for this user's connections alone; others are reset."""
    connection, address = _accept(listening)
    try:
        if is_own(connection):
            return connection, address
    except (OSError, ValueError, IndexError):
        pass  # whose owner cannot be found is refused
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    connection.close()
    raise ConnectionAbortedError("not a connection of this user")


class OwnSocket(socket.socket):
    """A listening socket for this user's connections alone."""

    def accept(self) -> tuple[socket.socket, Any]:
        return accept_own(self)


def guard_all(seen: Callable[[int], None]) -> None:
    """Guard everything that this process listens at; ``seen`` gets the ports of those let in."""

    def accept(listening: socket.socket) -> tuple[socket.socket, Any]:
        connection, address = accept_own(listening)
        if connection.family in TABLES:
            seen(address[1])
        return connection, address

    socket.socket.accept = accept  # type: ignore[method-assign, assignment]


def _hexadecimal(address: tuple[Any, ...]) -> str:
    """An address as Linux's tables write it: the bytes of each word in the machine's own order."""
    packed = ipaddress.ip_address(address[0]).packed
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return "".join(f"{word:08X}" for word in words) + f":{address[1]:04X}"
