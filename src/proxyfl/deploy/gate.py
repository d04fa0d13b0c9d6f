"""The server's gate: what sites reach, and all that they reach.

Flower's SuperLink listens on the loopback device alone: only one of its three interfaces asks who calls. The
gate demands a certificate that the federation's authority issued to a present site, lets a site speak for
itself only, and passes on the requests of a site's node and no others, in bounded size, number and volume.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import os
import socket
import ssl
import time
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx

from proxyfl.core.errors import ConfigError, ProxyFLError
from proxyfl.deploy import fleet, forward, pki, seen, signing
from proxyfl.deploy.forward import Answer, Receive, Scope, Send
from proxyfl.deploy.roster import former_key, node_key, noted, previous_note, site_key, site_keys
from proxyfl.deploy.settings import Deployment, Site
from proxyfl.deploy.tally import Tally

CONNECTIONS = 32
"""Open connections of one site; its own program uses a quarter of them."""

FROM_ADDRESS, ALL = 128, 1024
"""Open connections from one address, and altogether, of those who have not said who they are."""

BACKLOG = 256
OPEN = "open"
RATE, BURST = 200.0, 2000.0
"""Requests of a site: in a second, and at once after a pause."""

WAIT = 10.0
"""Seconds that a request is held back for a site's limits; then it is asked to come again."""

LOOK = 1.0
"""Seconds for which what is known of the sites is not read again."""

REFUSED = b"x-proxyfl-refused"
"""The header that says why the gate refused; the connector reads it."""

NOT_ACTIVATED = 412
"""What the SuperLink answers where it does not take a node in, whatever the reason."""

KEY_HEADER = b"flwr-public-key"


class Door(socket.socket):
    """A listening socket that keeps count: nobody can hold all the connections there are."""

    opened: dict[str, list[tuple[socket.socket, Any]]]
    greeted: set[Any]
    tally: Tally | None = None

    @classmethod
    def at(cls, host: str, port: int) -> Door:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        door = cls(family, socket.SOCK_STREAM)
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            door.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        door.bind((host, port))
        door.listen(BACKLOG)
        door.setblocking(False)
        door.opened, door.greeted = {}, set()
        return door

    def accept(self) -> tuple[socket.socket, Any]:
        connection, address = super().accept()
        if len(self.opened.get(address[0], ())) >= FROM_ADDRESS or sum(map(len, self.opened.values())) >= ALL:
            self.sweep()
        same = len(self.waiting([address[0]])) >= FROM_ADDRESS
        if same or len(waiting := self.waiting(self.opened)) >= ALL:
            oldest, _ = (self.waiting([address[0]]) if same else waiting)[0]
            with contextlib.suppress(OSError):  # whoever waits longest without a certificate makes room
                oldest.shutdown(socket.SHUT_RDWR)
        self.opened.setdefault(address[0], []).append((connection, address))
        return connection, address

    def waiting(self, hosts: Iterable[str]) -> list[tuple[socket.socket, Any]]:
        """The connections of these hosts that have shown no certificate yet, the oldest first."""
        held = (one for host in hosts for one in self.opened.get(host, ()))
        return [one for one in held if one[1] not in self.greeted and one[0].fileno() >= 0]

    def sweep(self) -> None:
        """Forget what is closed, and tell of those that never showed a certificate."""
        for host, held in list(self.opened.items()):
            self.opened[host] = [one for one in held if one[0].fileno() >= 0]
            for _, address in (one for one in held if one[0].fileno() < 0):
                if address in self.greeted:
                    self.greeted.discard(address)
                else:
                    log("stranger", host, "no-certificate", 0)
                    if self.tally is not None:
                        self.tally.turned_away()
            if not self.opened[host]:
                del self.opened[host]


class Sites:
    """Which site a key belongs to, as the deployment's files say now."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.known: dict[bytes, Site] = {}
        self.until = 0.0
        self.reported = ""

    def name(self, key: bytes) -> str | None:
        if time.monotonic() > self.until:
            self._look()
            self.until = time.monotonic() + LOOK
        site = self.known.get(key)
        return site.name if site else None

    def _look(self) -> None:
        """While the files cannot be read, perhaps because they are being edited, known sites with the same
        key stay known.
        """
        try:
            deployment = Deployment.read(self.folder)
            names = {key: deployment.sites[client] for key, client in site_keys(deployment).items()}
            self.known = {key: deployment.site(name) for key, name in names.items()}
            self.reported = ""
        except ProxyFLError as error:
            self.known = {key: site for key, site in self.known.items() if _still(site, key)}
            if self.reported != str(error):
                self.reported = str(error)
                log("gate", "-", "sites-unreadable", 0, note=str(error))
                print(f"proxyfl: the list of sites cannot be read, known ones stay: {error}", flush=True)


def _still(site: Site, key: bytes) -> bool:
    """Whether it is still in its folder, which a removed site no longer has, and a key of it."""
    with contextlib.suppress(ConfigError):
        return key in (site_key(site.public_key), former_key(site))
    return False


class Allowance:
    """So much at once, and so much more with every second."""

    def __init__(self, rate: float, most: float) -> None:
        self.rate, self.most, self.left, self.at = rate, most, most, time.monotonic()

    def wait(self, amount: float) -> float:
        """Take an amount; the seconds until it is there."""
        now = time.monotonic()
        self.left = min(self.most, self.left + (now - self.at) * self.rate) - amount
        self.at = now
        return max(0.0, -self.left / self.rate)

    def give_back(self, amount: float) -> None:
        self.left += amount


class Gate:
    """The app behind the gate's TLS."""

    def __init__(self, deployment: Deployment, port: int, volume: int) -> None:
        self.deployment, self.sites = deployment, Sites(deployment.path)
        self.limit = deployment.max_request_mb << 20
        self.signature = signing.signature_of(deployment)
        self.requests = defaultdict[str, Allowance](lambda: Allowance(RATE, BURST))
        self.volume = defaultdict[str, Allowance](lambda: Allowance(volume / 60, volume))
        self.connections = defaultdict[str, int](int)
        self.tally = Tally(deployment.state)
        trust = ssl.create_default_context(cafile=str(deployment.ca_certificate))
        self.client = forward.new_client(f"https://127.0.0.1:{port}", trust, ALL)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began, key, host = time.monotonic(), scope["proxyfl.key"], scope["client"][0]
        kind, site = forward.kind_of(scope), self.sites.name(key)
        body: bytes | Answer = b""
        if site is None:
            answer = _refuse(403, "key", "this key no longer belongs to a site")
        elif forward.is_long(scope):
            answer = _refuse(431, "head", "the request's head is too large")
        elif not kind:
            answer = _refuse(403, "path", "only a site's requests are passed on")
        elif self._speaks_for(scope) != key:
            answer = _refuse(403, "node", "a site may act only for its own node")
        else:
            body = await forward.read_body(scope, receive, self.limit)
            if isinstance(body, Answer):
                answer = body
            elif why := fleet.fault(kind, body):
                answer = _refuse(403, "message", why)
            else:
                answer = await self._pass_on(site, kind, scope, body)
        received = len(body) if isinstance(body, bytes) else 0
        self.tally.note(site or "stranger", answer.status, received, len(answer.body))
        sizes = f"in={received} out={len(answer.body)}"
        what = kind or ascii(f"{scope['method']} {scope['raw_path'].decode('latin1')}"[:100])
        took = f"{(time.monotonic() - began) * 1000:.0f}ms"
        log(site or "stranger", host, what, answer.status, note=f"{sizes} {took}")
        await forward.respond(send, answer)

    def _speaks_for(self, scope: Scope) -> bytes:
        """The key of the node in whose name the request comes; it must be the certificate's."""
        claims = [value for name, value in scope["headers"] if name == KEY_HEADER]
        try:
            return node_key(base64.b64decode(claims[0], validate=True)) if len(claims) == 1 else b""
        except ValueError:
            return b""

    async def _pass_on(self, site: str, kind: str, scope: Scope, body: bytes) -> Answer:
        wait = max(self.requests[site].wait(1), self.volume[site].wait(len(body)))
        if wait > WAIT:
            self.requests[site].give_back(1)
            self.volume[site].give_back(len(body))
            return _refuse(503, "busy", "more than this site's share; try again later")
        await asyncio.sleep(wait)
        try:
            found = await forward.ask(self.client, kind, forward.headers_of(scope), body)
        except httpx.HTTPError as error:
            return _refuse(
                503, "down", f"the server behind the gate does not answer ({type(error).__name__})"
            )
        if kind == "activate-node" and found.status_code == NOT_ACTIVATED:
            return self._turned_away(site, scope["proxyfl.key"])
        answer = forward.of_response(found)
        if kind == "activate-node" and answer.status == 200:
            self._let_in(site, scope)
        return self._signed(answer) if kind == "get-fab" and answer.status == 200 else answer

    def _let_in(self, site: str, scope: Scope) -> None:
        """A site that came with its new key has no former one any more; and by whose certificate it came."""
        try:
            current = scope["proxyfl.key"] in site_keys(self.deployment, former=False)
            seen.settle_key(self.deployment, site, current, scope.get("proxyfl.issuer", ""))
        except (ProxyFLError, OSError) as error:
            log("gate", "-", "not-noted", 0, note=str(error))

    def _turned_away(self, site: str, key: bytes) -> Answer:
        """Why the SuperLink does not take a site in: it has not its key, or another session of it."""
        notes = (site, previous_note(self.deployment, site).name)
        if key.hex() not in [noted(self.deployment, note).get("key") for note in notes]:
            return _refuse(403, "unregistered", "the server was not restarted since this key was made")
        return _refuse(403, "session", "an earlier session of this site has not ended")

    def _signed(self, answer: Answer) -> Answer:
        """The app with the operator's signature, if it is the app that was signed."""
        from flwr.proto.fab_pb2 import GetFabResponse

        response = GetFabResponse()
        response.ParseFromString(answer.body)
        response.fab.verifications.clear()
        if hashlib.sha256(response.fab.content).hexdigest() == self.signature["app"]:
            response.fab.verifications.update(signing.verifications(self.signature))
        return Answer(answer.status, response.SerializeToString(), answer.headers)


class GateProtocol(forward.PatientProtocol):
    """A connection of a site, known by the key of its certificate."""

    gate: Gate
    door: Door
    site = ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.door.greeted.add(transport.get_extra_info("peername"))
        shown = transport.get_extra_info("ssl_object").getpeercert(True)
        self.key, self.issuer = pki.key_of(shown), seen.issuer_of(shown)
        self.site = self.gate.sites.name(self.key) or "stranger"
        self.gate.connections[self.site] += 1
        if self.gate.connections[self.site] > CONNECTIONS:
            log(self.site, self.client[0] if self.client else "-", "too-many-connections", 0)
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.gate.connections[self.site] -= 1
        super().connection_lost(exc)

    async def called(self, inner: Any, scope: Scope, receive: Receive, send: Send) -> None:
        await inner({**scope, "proxyfl.key": self.key, "proxyfl.issuer": self.issuer}, receive, send)


def log(who: str, host: str, what: str, status: int, note: str = "") -> None:
    """A line for ``state/gate.log``."""
    at = datetime.now(UTC).isoformat(timespec="milliseconds")
    print(f"{at} {who} {host} {what} {status or '-'} {note}".rstrip(), flush=True)


def sign_of_life(deployment: Deployment) -> Path:
    """A file whose time is that of the gate's last second."""
    return deployment.state / "gate.alive"


def is_open(line: str) -> bool:
    """Whether a line of the log says that the gate takes connections."""
    return line.split()[3:4] == [OPEN]


def tls(deployment: Deployment) -> ssl.SSLContext:
    """Both ends show a certificate of the federation's authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(deployment.server_certificate, deployment.server_key)
    context.load_verify_locations(deployment.ca_certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def main(words: list[str]) -> None:
    """``gate DIR PORT VOLUME``: the SuperLink's port, and the bytes that a site may send in a minute."""
    folder, port, volume = words
    deployment = Deployment.read(folder)
    gate, door = Gate(deployment, int(port), int(volume)), Door.at(*deployment.bind)

    class Protocol(GateProtocol):
        pass

    Protocol.gate, Protocol.door = gate, door
    door.tally = gate.tally

    alive = sign_of_life(deployment)
    alive.touch()

    def sweep() -> None:
        door.sweep()
        gate.tally.save()
        with contextlib.suppress(OSError):
            os.utime(alive)

    listener = forward.Listener(gate, door, tls(deployment), Protocol, sweep)
    log("gate", f"port-{deployment.bind[1]}", OPEN, 0)
    listener.run()


def _refuse(status: int, reason: str, text: str) -> Answer:
    return Answer(status, text.encode(), ((REFUSED, reason.encode()), (b"content-type", b"text/plain")))
