"""OpenMetrics of a federation, for Prometheus and the like: ``metrics = "HOST:PORT"`` in federation.toml.

On the loopback device in the clear, elsewhere with TLS by the server's certificate. Whoever asks brings the
token of ``DIR/state/metrics.token``: a port alone opens nothing, also not to other accounts of the machine.
"""

from __future__ import annotations

import contextlib
import secrets
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from socket import AF_INET, AF_INET6, socket
from typing import Any

from proxyfl import __version__
from proxyfl.core.errors import ConfigError, ProxyFLError
from proxyfl.core.files import write_bytes
from proxyfl.deploy.addresses import is_loopback, split_address
from proxyfl.deploy.overview import OUTCOMES, Overview
from proxyfl.deploy.settings import Deployment

TOKEN_FILE, DASHBOARD = "metrics.token", "grafana.json"
KIND = "application/openmetrics-text; version=1.0.0; charset=utf-8"
PATIENCE, MOST = 10.0, 8
"""Seconds that a reader has, and how many are served at once."""

FAMILIES = {
    "proxyfl_build": ("info", "version and name of the federation"),
    "proxyfl_run_running": ("gauge", "1 while a run is in progress"),
    "proxyfl_run_finished": ("gauge", "1 when all rounds are finished"),
    "proxyfl_round": ("gauge", "rounds that are finished"),
    "proxyfl_rounds": ("gauge", "rounds of the whole run"),
    "proxyfl_round_begun": ("gauge", "the round in progress; 0: none"),
    "proxyfl_accuracy": ("gauge", "of the global model in the last measured round"),
    "proxyfl_measure": ("gauge", "other measures of the global model, as macro_f1 and auroc"),
    "proxyfl_site_accuracy": ("gauge", "of the global model on the images that a site holds out"),
    "proxyfl_site_connected": ("gauge", "1 where a site was heard within the last minute"),
    "proxyfl_site_seen_timestamp_seconds": ("gauge", "when a site was last heard"),
    "proxyfl_site_images": ("gauge", "images a site enrolled with, by kind"),
    "proxyfl_site_rounds": ("counter", "rounds in which a site answered, was late, offline or refused"),
    "proxyfl_last_round_sites": ("gauge", "sites of the last round, by outcome"),
    "proxyfl_site_received_bytes": ("counter", "what a site sent to the gate since it opened"),
    "proxyfl_site_sent_bytes": ("counter", "what the gate sent to a site since it opened"),
    "proxyfl_gate_refusals": ("counter", "requests that the gate refused since it opened"),
    "proxyfl_bytes": ("counter", "models and extras sent in all rounds, by direction"),
    "proxyfl_round_seconds": ("gauge", "duration of the last round, by phase"),
    "proxyfl_seconds": ("counter", "duration of all rounds"),
    "proxyfl_disk_free_bytes": ("gauge", "room on the server's disk"),
    "proxyfl_disk_size_bytes": ("gauge", "size of the server's disk"),
    "proxyfl_certificate_days": ("gauge", "days until a certificate expires, below 0 if it has expired"),
}
"""Every metric: its type and its help."""

Sample = tuple[str, Mapping[str, str], float]


def samples(found: Mapping[str, Any]) -> Iterator[Sample]:
    """What an overview says, by metric."""
    run, last = found["run"], found["run"]["last_round"]
    yield "proxyfl_build", {"version": __version__, "federation": found["name"]}, 1
    yield "proxyfl_run_running", {}, run["state"] == "running"
    yield "proxyfl_run_finished", {}, run["state"] == "finished"
    yield "proxyfl_round", {}, run["round"]
    yield "proxyfl_rounds", {}, run["rounds"]
    yield "proxyfl_round_begun", {}, run["begun"]
    if run["accuracy"] is not None:
        yield "proxyfl_accuracy", {}, run["accuracy"]
    for name, value in run["measures"].items():
        yield "proxyfl_measure", {"measure": name}, value
    for site in found["sites"]:
        yield from _of_site(site)
    yield "proxyfl_gate_refusals", {"site": "strangers"}, found["strangers_refused"]
    for outcome, count in last["sites"].items():
        yield "proxyfl_last_round_sites", {"outcome": outcome}, count
    for way in ("up", "down"):
        yield "proxyfl_bytes", {"direction": way}, run[f"bytes_{way}"]
    for phase, seconds in last["seconds"].items():
        yield "proxyfl_round_seconds", {"phase": phase}, seconds
    yield "proxyfl_seconds", {}, run["seconds"]
    yield "proxyfl_disk_free_bytes", {}, found["disk"]["free"]
    yield "proxyfl_disk_size_bytes", {}, found["disk"]["size"]
    for name, days in found["certificates"].items():
        yield "proxyfl_certificate_days", {"certificate": name}, days


def _of_site(site: Mapping[str, Any]) -> Iterator[Sample]:
    name = {"site": site["name"]}
    yield "proxyfl_site_connected", name, site["state"] == "connected"
    if site["seen"]:
        yield "proxyfl_site_seen_timestamp_seconds", name, site["seen"]
    if site["accuracy"] is not None:
        yield "proxyfl_site_accuracy", name, site["accuracy"]
    for kind, count in (site["images"] or {}).items():
        yield "proxyfl_site_images", {**name, "kind": kind}, count
    for outcome in OUTCOMES:
        yield "proxyfl_site_rounds", {**name, "outcome": outcome}, site["rounds"][outcome]
    if gate := site.get("gate"):
        yield "proxyfl_site_received_bytes", name, gate["received"]
        yield "proxyfl_site_sent_bytes", name, gate["sent"]
        yield "proxyfl_gate_refusals", name, gate["refused"]


def render(found: Mapping[str, Any]) -> str:
    """The text that is served."""
    endings = {"counter": "_total", "info": "_info"}
    by_name: dict[str, list[str]] = {name: [] for name in FAMILIES}
    for name, labels, value in samples(found):
        shown = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        ending = endings.get(FAMILIES[name][0], "")
        by_name[name].append(f"{name}{ending}{{{shown}}} {float(value):.15g}" if shown else
                             f"{name}{ending} {float(value):.15g}")  # fmt: skip
    lines = []
    for name, (kind, meaning) in FAMILIES.items():
        if by_name[name]:
            lines += [f"# TYPE {name} {kind}", f"# HELP {name} {meaning}", *by_name[name]]
    return "\n".join([*lines, "# EOF\n"])


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def grafana() -> bytes:
    """The dashboard for Grafana."""
    return resources.files("proxyfl.deploy").joinpath("templates", DASHBOARD).read_bytes()


class MetricsServer(ThreadingHTTPServer):
    """Answers ``/metrics`` and ``/grafana.json`` to whoever has the token."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, deployment: Deployment) -> None:
        host, port = split_address(deployment.metrics)
        self.address_family = AF_INET6 if ":" in host else AF_INET
        self.overview, self.token = Overview(deployment.path), token_of(deployment)
        self.looking, self.places = threading.Lock(), threading.BoundedSemaphore(MOST)
        self.context = None if is_loopback(host) else _tls(deployment)
        super().__init__((host, port), Handler)

    def get_request(self) -> tuple[Any, Any]:
        connection, address = super().get_request()
        connection.settimeout(PATIENCE)
        if self.context is not None:  # the handshake is left to the thread that reads
            connection = self.context.wrap_socket(connection, True, do_handshake_on_connect=False)
        return connection, address

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self.places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader that goes away or speaks no TLS is no error of ours."""

    def text(self) -> str:
        with self.looking:
            return render(self.overview.look())


class Handler(BaseHTTPRequestHandler):
    server: MetricsServer
    connection: socket
    timeout = PATIENCE
    server_version, sys_version = "proxyfl", ""

    def do_GET(self) -> None:
        given = self.headers.get("Authorization", "")
        if not secrets.compare_digest(given.encode(), f"Bearer {self.server.token}".encode()):
            self._send(HTTPStatus.UNAUTHORIZED, "text/plain", b"bring the token of state/metrics.token\n")
        elif self.path == "/metrics":
            try:
                self._send(HTTPStatus.OK, KIND, self.server.text().encode())
            except (ProxyFLError, OSError, ValueError, KeyError, TypeError) as error:
                words = f"the federation cannot be read ({type(error).__name__})\n"
                self._send(HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain", words.encode())
        elif self.path == f"/{DASHBOARD}":
            self._send(HTTPStatus.OK, "application/json", grafana())
        else:
            self._send(HTTPStatus.NOT_FOUND, "text/plain", b"there are /metrics and /grafana.json\n")

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if status is HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", "Bearer")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """The terminal is for the federation."""


def token_of(deployment: Deployment) -> str:
    """What opens the metrics: made once, readable by its owner alone."""
    file = deployment.state / TOKEN_FILE
    with contextlib.suppress(OSError):
        if len(found := file.read_text(encoding="ascii").strip()) >= 32:
            return found
    token = secrets.token_urlsafe(32)
    file.parent.mkdir(mode=0o700, exist_ok=True)
    write_bytes(file, f"{token}\n".encode())
    file.chmod(0o600)
    return token


def _tls(deployment: Deployment) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(deployment.server_certificate, deployment.server_key)
    return context


@contextlib.contextmanager
def served(deployment: Deployment, say: Callable[[str], None]) -> Iterator[MetricsServer | None]:
    """The metrics, where federation.toml asks for them, for as long as the context lasts."""
    if not deployment.metrics:
        yield None
        return
    host, _ = split_address(deployment.metrics)
    if deployment.insecure and not is_loopback(host):
        raise ConfigError(f"metrics = '{deployment.metrics}': without certificates only localhost is served")
    try:
        server = MetricsServer(deployment)
    except OSError as error:
        raise ConfigError(
            f"metrics = '{deployment.metrics}' cannot be served: {error.strerror or error}; choose another "
            "port in federation.toml"
        ) from None
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.2}, daemon=True)
    thread.start()
    scheme = "http" if server.context is None else "https"
    say(f"metrics at {scheme}://{deployment.metrics}/metrics; the token is in {_place(deployment)}")
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def _place(deployment: Deployment) -> Path:
    return deployment.state / TOKEN_FILE
