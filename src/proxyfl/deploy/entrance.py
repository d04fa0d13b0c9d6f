"""Where server and sites meet: the gate and the port behind it, and a site's line to it."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from proxyfl.core.errors import ConfigError, RunError
from proxyfl.core.files import write_bytes
from proxyfl.core.state import size_in_bytes
from proxyfl.deploy import pki, signing
from proxyfl.deploy.connector import Connector, Problem, connected
from proxyfl.deploy.gate import is_open
from proxyfl.deploy.programs import Program, wait_until
from proxyfl.deploy.roster import site_keys
from proxyfl.deploy.settings import Deployment, Site
from proxyfl.methods import registry
from proxyfl.models import Network

PORT_FILE = "superlink.port"
"""Below the deployment's state: the port of the loopback device at which the SuperLink was started."""

START = 180.0
"""Seconds that the gate has for opening."""

MODELS, MORE = 8, 64 << 20
"""A site may send so many models in a minute, and so many bytes more."""

RENEW = "make what is missing with: proxyfl deploy init {} --renew"


def inner_port(deployment: Deployment) -> int | None:
    """The SuperLink's port, as its last start wrote it down; without a gate it is the federation's own."""
    if deployment.insecure:
        return deployment.bind[1]
    with contextlib.suppress(OSError, ValueError):
        return int((deployment.state / PORT_FILE).read_text(encoding="ascii"))
    return None


def choose_port(deployment: Deployment) -> int:
    """A port of the loopback device for the SuperLink, written down for the operator's other commands."""
    if deployment.insecure:
        return deployment.bind[1]
    port = free_port()
    deployment.state.mkdir(mode=0o700, exist_ok=True)
    write_bytes(deployment.state / PORT_FILE, f"{port}\n".encode())
    return port


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def require_free(deployment: Deployment) -> None:
    """Raise where another program has the federation's port."""
    host, port = deployment.bind
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise RunError(
                f"port {port} cannot be used ({error.strerror}): another program has it, perhaps the server "
                "of another federation; stop that, or set this one up with 'proxyfl deploy init … --port N'"
            ) from None


def check_server_files(deployment: Deployment) -> None:
    """Raise where something that the gate needs is missing or does not fit, with the cure."""
    if not (authority := deployment.ca_certificate).is_file():
        copies = [deployment.site(name).ca_certificate for name in deployment.present]
        copy = next((file for file in copies if file.is_file()), "a site's folder")
        raise ConfigError(
            f"{authority} is missing, and the server needs it (but not ca.key and operator.key); every "
            f"site's folder has a copy, as {copy}: copy it to {authority}"
        )
    for file in (deployment.server_certificate, deployment.server_key):
        if not file.is_file():
            raise ConfigError(f"{file} is missing; restore it from a copy of {file.parent}")
    pki.check_server(deployment.server_certificate, deployment.ca_certificate, deployment.path)
    pki.check_key(deployment.server_key, deployment.server_certificate)
    site_keys(deployment)
    for file in (deployment.trusted, deployment.app_signature):
        if not file.is_file():
            raise ConfigError(
                f"{file} is missing: this deployment was made by an earlier version; "
                f"{RENEW.format(deployment.path)}, then send each site its new site.crt and trusted.yaml"
            )
    signing.signature_of(deployment)


@contextmanager
def open_gate(
    deployment: Deployment, port: int, env: Mapping[str, str], say: Callable[[str], None]
) -> Iterator[Program]:
    """The gate before the SuperLink at ``port``, for as long as the context lasts."""
    log = deployment.state / "gate.log"
    words = ["gate", str(deployment.path), str(port), str(volume(deployment))]
    with Program(words, env, log, say) as program:
        ready = wait_until(lambda: program.ended is not None or any(map(is_open, list(program.said))), START)
        if not ready or program.ended is not None:
            raise RunError(f"the gate did not open: {program.failure()}; see {log}")
        yield program


def listens(port: int) -> bool:
    """Whether something takes connections at a port of the loopback device."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def volume(deployment: Deployment) -> int:
    """Bytes that a site may send in a minute."""
    if deployment.max_site_mb:
        return deployment.max_site_mb << 20
    config = deployment.config
    heads = registry.method_of(config).needs_heads
    network = Network.configured(config.model, len(deployment.classes), *deployment.taken)(heads)
    return MODELS * size_in_bytes(network.state_dict()) + MORE


def check_site_files(site: Site) -> None:
    """Raise where something that a site needs to be let in is missing or does not fit."""
    for file in (site.ca_certificate, site.private_key, site.certificate, site.trusted):
        if not file.is_file():
            raise ConfigError(f"{file} is missing; ask the federation's operator for the folder again")
    pki.check_site_keys(site.private_key, site.public_key)
    pki.check_site(site.certificate, site.public_key, site.ca_certificate)
    signing.read_trusted(site.trusted)


@contextmanager
def line(
    site: Site, address: str, changed: Callable[[Problem | None], None], approved: Callable[[str], bool]
) -> Iterator[tuple[Connector | None, list[str]]]:
    """A site's line to the server: the connector, and how its SuperNode is made to use it.

    Everything that the site's programs say to each other is encrypted, too, by a certificate of this start.
    """
    if site.insecure:
        yield None, ["--superlink", address, "--insecure"]
        return
    check_site_files(site)
    local = pki.create_local(site.state)
    connector = Connector(site, address, changed, approved)
    with connected(connector, local) as port:
        words = ["--superlink", f"127.0.0.1:{port}", "--root-certificates", str(local[0])]
        words += ["--auth-supernode-private-key", str(site.private_key)]
        words += ["--trusted-entities", str(site.trusted)]
        words += ["--ssl-ca-certfile", str(local[0]), "--ssl-certfile", str(local[1])]
        yield connector, [*words, "--ssl-keyfile", str(local[2])]
