"""Host names, IP addresses and ports as operators write them."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence

from proxyfl.core.errors import ConfigError

_HOST_LABEL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9])?")


def split_address(address: str) -> tuple[str, int]:
    """(host, port) of ``HOST:PORT``; an IPv6 host stands in brackets."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdecimal()):
        raise ConfigError(f"address '{address}' must be HOST:PORT, as in fl.example.org:8000")
    if not 1 <= int(port[:6]) <= 65535:
        raise ConfigError(f"address '{address}': a port is a number from 1 to 65535")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        if not is_ip(host, version=6):
            raise ConfigError(f"address '{address}': what stands in brackets must be an IPv6 address")
    elif not is_host(host):
        raise ConfigError(f"address '{address}': '{host}' is not a host name or IP address")
    return host, int(port)


def is_ip(text: str, version: int | None = None) -> bool:
    try:
        return ipaddress.ip_address(text).version == (version or ipaddress.ip_address(text).version)
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """Whether it is an address that other machines cannot reach."""
    return host == "localhost" or (is_ip(host) and ipaddress.ip_address(host).is_loopback)


def is_host(text: str) -> bool:
    """Whether it is an IPv4 address or a host name."""
    if is_ip(text, version=4):
        return True
    numeric = all(part.isdecimal() for part in text.split("."))
    return len(text) < 254 and not numeric and all(map(_HOST_LABEL.fullmatch, text.split(".")))


def with_listen(hosts: Sequence[str], listen: str) -> tuple[str, ...]:
    """With the host that the server binds: programs on its machine reach it by that name."""
    host = split_address(listen)[0] if listen else ""
    return (*hosts, host) if host not in ("", "0.0.0.0", "::") else tuple(hosts)
