"""A site's end of the line: Flower's SuperNode cannot show a certificate, so this does it in its place.

It listens on the loopback device for the SuperNode of the same user, passes its requests on to the server's
gate by mutual TLS, and knows why when the server cannot be reached.
"""

from __future__ import annotations

import hashlib
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path

import httpx

from proxyfl.core.errors import RunError
from proxyfl.deploy import expiry, forward, gate, pki
from proxyfl.deploy.addresses import split_address
from proxyfl.deploy.forward import Answer, Receive, Scope, Send
from proxyfl.deploy.pace import Pace
from proxyfl.deploy.peers import OwnSocket
from proxyfl.deploy.settings import Site

AHEAD, BEHIND = 5.0, 300.0
"""Seconds by which Flower lets a site's clock differ from the server's."""

LIMIT = 1 << 30
"""Bytes of a request from this site's own program; what the server takes is the gate's to say."""

STRANGE = {10: "expired", 9: "clock", 62: "name", 64: "name"}
"""OpenSSL's codes for what is wrong with the server's certificate; others: an authority of somebody else."""

ALERTS = (
    "CERTIFICATE_REQUIRED",
    "CERTIFICATE_UNKNOWN",
    "BAD_CERTIFICATE",
    "UNKNOWN_CA",
    "CERTIFICATE_EXPIRED",
)
"""What OpenSSL says when the server did not like this site's certificate."""


TURNED_AWAY = {
    "key": "the server does not know the key of {0}: the site was removed, or its key was replaced; "
    "ask the federation's operator",
    "unregistered": "the server has not registered the key of {0} yet; the federation's operator restarts "
    "'proxyfl deploy server' for that",
    "session": "the server still has an earlier session of {0}, which ends within about a minute; if this "
    "lasts, {0} is running somewhere else, too",
    "signature": "the server did not accept the signature of {0}; ask the federation's operator whether the "
    "key was replaced",
}
"""Why a server that is there does not let a site in."""


@dataclass(frozen=True)
class Problem:
    """Why the server cannot be reached or does not let this site in.

    ``kind`` is one of ``network`` (no connection), ``name`` (its certificate is for another name),
    ``authority`` (its certificate is of another federation), ``expired`` (its certificate has ended),
    ``clock``, ``certificate`` (the server does not accept this site's), ``key`` (this site's key is no
    site's, or no site's any more), ``unregistered`` (the server was not restarted since it was made),
    ``session`` (an earlier session of this site has not ended), ``signature``, ``busy`` and ``down`` (the
    gate is up, the server behind it is not).
    """

    kind: str
    text: str
    clock: float | None = None
    """Seconds by which this machine's clock is ahead of the server's, where that is known."""


class Connector:
    """Passes requests on. ``changed`` is called when a problem begins or changes, with None once it is over;
    ``approved`` says whether the owner agreed to an app, by its SHA-256.
    """

    def __init__(
        self,
        site: Site,
        address: str,
        changed: Callable[[Problem | None], None] = lambda problem: None,
        approved: Callable[[str], bool] = lambda app: True,
    ) -> None:
        self.site, self.address, self.changed, self.approved = site, address, changed, approved
        self.problem: Problem | None = None
        self.reported = "nothing yet"
        self.clock: float | None = None
        self.reached = False
        self.ask = Pace(site.max_kbit).ask if site.max_kbit else forward.ask
        self.client = forward.new_client(f"https://{address}", client_tls(site), gate.CONNECTIONS // 4)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = forward.kind_of(scope)
        body = await forward.read_body(scope, receive, LIMIT) if kind else Answer(403)
        answer = body if isinstance(body, Answer) else await self._pass_on(kind, scope, body)
        await forward.respond(send, answer)

    async def _pass_on(self, kind: str, scope: Scope, body: bytes) -> Answer:
        """What the server answers. While it does not let this site in, Flower's program is to try again."""
        try:
            found = await self.ask(self.client, kind, forward.headers_of(scope), body)
        except httpx.HTTPError as error:
            self._tell(why(error, self.address, self.site))
            return Answer(503)
        self._measure(found.headers.get("date", ""))
        refused = found.headers.get(gate.REFUSED.decode(), "")
        ill = found.status_code >= 500  # Flower's program would go on without its sign of life
        if refused or ill or (kind == "activate-node" and found.status_code != 200):
            self._tell(self._refused(refused, found))
            return Answer(503)
        self.reached = True
        self._tell(None)
        answer = forward.of_response(found)
        return self._agreed(answer) if kind == "get-fab" and answer.status == 200 else answer

    def _agreed(self, answer: Answer) -> Answer:
        """An app that the owner did not approve loses its signature: Flower's program then does not run it,
        and tells the server so.
        """
        from flwr.proto.fab_pb2 import GetFabResponse

        response = GetFabResponse()
        response.ParseFromString(answer.body)
        if self.approved(hashlib.sha256(response.fab.content).hexdigest()):
            return answer
        response.fab.verifications.clear()
        return Answer(answer.status, response.SerializeToString(), answer.headers)

    def _measure(self, date: str) -> None:
        try:
            self.clock = time.time() - parsedate_to_datetime(date).timestamp()
        except ValueError:
            self.clock = None

    def _refused(self, reason: str, found: httpx.Response) -> Problem:
        clock = self.clock
        if reason in ("busy", "down"):
            return Problem(reason, found.text, clock)
        if found.status_code >= 500:
            return Problem("down", "the server has a problem; its operator's console shows which", clock)
        if not reason and clock is not None and not -BEHIND < clock < AHEAD:
            how = f"{abs(clock):.0f} s {'ahead of' if clock > 0 else 'behind'} the server's"
            return Problem("clock", f"this machine's clock is {how}; set it right, best by NTP", clock)
        kind = reason if reason in TURNED_AWAY else "signature"
        return Problem(kind, TURNED_AWAY[kind].format(self.site.name), clock)

    def _tell(self, problem: Problem | None) -> None:
        kind, self.problem = problem.kind if problem else "", problem
        if kind != self.reported:
            self.reported = kind
            self.changed(problem)


def why(error: BaseException, address: str, site: Site) -> Problem:
    """What a failed request was about."""
    host = split_address(address)[0]
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return _strange(STRANGE.get(cause.verify_code, "authority"), host, site)
        if isinstance(cause, socket.gaierror):
            return Problem("network", f"the name {host} cannot be resolved; is it right, is the network up?")
        if isinstance(cause, ConnectionRefusedError):
            return Problem("network", f"nothing listens at {address}; is 'proxyfl deploy server' running?")
        if isinstance(cause, ssl.SSLError) and any(alert in str(cause).upper() for alert in ALERTS):
            return _unwelcome(site)
    if isinstance(error, httpx.ReadError | httpx.RemoteProtocolError) and expiry.has_ended(site.certificate):
        return _unwelcome(site)  # the server hung up before its reason was read
    return Problem(
        "network", f"{address} does not answer ({type(error).__name__}); is the port open from here?"
    )


def _unwelcome(site: Site) -> Problem:
    left = pki.days_left(site.certificate)
    fault = expiry.end(left) if left < 0 else "is not accepted by the server"
    ask = "ask the federation's operator for a new one"
    return Problem("certificate", f"{site.certificate} {fault}; {ask}")


def _strange(kind: str, host: str, site: Site) -> Problem:
    if kind == "name":
        text = (
            f"the server's certificate is not for {host}; the operator adds a name with --renew --host {host}"
        )
    elif kind == "expired":
        text = (
            "the server's certificate has expired, or this machine's clock is far ahead; the federation's "
            "operator renews it"
        )
    elif kind == "clock":
        behind = pki.read_certificate(site.certificate).not_valid_before_utc.timestamp() - time.time()
        by = f" by {behind / 3600:.1f} hours or more" if behind > 0 else ""
        text = f"this machine's clock is behind{by}: the server's certificate is not valid yet; set it right"
        return Problem(kind, text, -behind if behind > 0 else None)
    else:
        text = f"the server at {host} is not the federation's: another authority signed its certificate"
    return Problem(kind, text)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        if isinstance(error, BaseExceptionGroup):
            yield from (cause for one in error.exceptions for cause in _causes(one))
        error = error.__cause__ or error.__context__


def client_tls(site: Site) -> ssl.SSLContext:
    """Trusts the federation's authority alone and shows the site's certificate."""
    context = ssl.create_default_context(cafile=str(site.ca_certificate))
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    memory = os.memfd_create("site key")  # TLS wants a file, and no copy of the key shall lie on a disk
    try:
        os.write(memory, pki.site_key_pem(site.private_key))
        context.load_cert_chain(site.certificate, f"/proc/self/fd/{memory}")
    finally:
        os.close(memory)
    return context


@contextmanager
def connected(connector: Connector, local: tuple[Path, Path, Path]) -> Iterator[int]:
    """The connector at work, at a port of the loopback device that this user's programs alone reach."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(local[1], local[2])
    listening = OwnSocket(socket.AF_INET, socket.SOCK_STREAM)
    listening.bind(("127.0.0.1", 0))
    listening.setblocking(False)
    listener = forward.Listener(connector, listening, context)
    thread = threading.Thread(target=listener.run, name="connector", daemon=True)
    thread.start()
    until = time.monotonic() + 30
    while not listener.started:
        if not thread.is_alive() or time.monotonic() > until:
            raise RunError("the site's connector did not start; its program's output says why")
        time.sleep(0.02)
    try:
        yield int(listening.getsockname()[1])
    finally:
        listener.should_exit = True
        thread.join(5)
