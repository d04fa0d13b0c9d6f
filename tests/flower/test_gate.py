"""The gate as it runs before a server, with a stand-in behind it that answers whatever reaches it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import http.client
import json
import socket
import ssl
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'proxyfl[flower]'")

from flwr.proto.fab_pb2 import GetFabResponse
from flwr.supernode.start_client_internal import _verify_fab
from loopback import deployment, experiment, free_port, wait_for
from serving import pem

from proxyfl.core.errors import ConfigError
from proxyfl.deploy import entrance, forward, pki, rotation, signing
from proxyfl.deploy import gate as gates
from proxyfl.deploy.connector import Connector, Problem, client_tls, why
from proxyfl.deploy.programs import environment
from proxyfl.deploy.roster import NOTES, site_keys

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="servers and sites need Linux")


class StandIn:
    """What is behind the gate: it writes down what reaches it and answers with 200."""

    def __init__(self, made):
        self.paths, self.answers, self.status = [], {}, 200
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                outer.paths.append(self.path)
                answer = outer.answers.get(self.path, body)
                self.send_response(outer.status)
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *words):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(made.server_certificate, made.server_key)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    config = experiment("fedavg", rounds=1, clients=3, per_round=2, subset=80, labels__per_class=4)
    return deployment(tmp_path_factory.mktemp("gate") / "f", config, max_request_mb=1, max_site_mb=2)


@pytest.fixture(scope="module")
def behind(made):
    standin = StandIn(made)
    yield standin
    standin.server.shutdown()


@pytest.fixture(scope="module")
def gate(made, behind):
    env = environment(made.state / "flower", {})
    with entrance.open_gate(made, behind.port, env, print) as program:
        yield program


@pytest.fixture(autouse=True)
def fresh(behind):
    behind.paths.clear()
    behind.answers.clear()
    behind.status = 200


def node_header(made, name):
    return {"flwr-public-key": base64.b64encode(pem(made, name)).decode()}


def connection(made, context, server=None):
    host, port = server or made.bind
    return http.client.HTTPSConnection(host, port, context=context, timeout=20)


def post(made, path, body=b"xx", *, site="site-01", node=None, method="POST", headers=None, **how):
    """A request with a site's certificate, its path as it stands; status and why it was refused."""
    line = connection(made, how.get("context") or client_tls(made.site(site)), how.get("server"))
    with contextlib.closing(line):
        line.putrequest(method, path, skip_host=False, skip_accept_encoding=True)
        given = {"content-length": str(len(body)), **node_header(made, node or site), **(headers or {})}
        for name, value in given.items():
            line.putheader(name, value)
        with contextlib.suppress(ssl.SSLEOFError, ConnectionError):  # refused before all was sent
            line.endheaders(body)
        answer = line.getresponse()
        with contextlib.suppress(OSError, http.client.IncompleteRead):  # refused before all was sent
            answer.read()
        return answer.status, answer.getheader("x-proxyfl-refused", "")


@contextlib.contextmanager
def spoken(made, site):
    """A bare line through the gate's TLS."""
    with (
        socket.create_connection(made.bind, 20) as plain,
        client_tls(made.site(site)).wrap_socket(plain, server_hostname=made.bind[0]) as line,
    ):
        yield line


def log_text(made):
    return (made.state / "gate.log").read_text()


def test_a_site_is_passed_on_and_written_down(made, gate, behind):
    assert post(made, "/v1/fleet/pull-messages") == (200, "")
    assert behind.paths == ["/v1/fleet/pull-messages"]
    wait_for(lambda: "site-01 127.0.0.1 pull-messages 200 in=2 out=2" in log_text(made), "a line", 10)


@pytest.mark.parametrize("kind", ["none", "authority's", "server's", "another federation's"])
def test_without_a_sites_certificate_nothing_is_heard(made, gate, behind, tmp_path, kind):
    context = ssl.create_default_context(cafile=str(made.ca_certificate))
    if kind == "authority's":
        context.load_cert_chain(made.ca_certificate, made.ca_key)
    elif kind == "server's":
        context.load_cert_chain(made.server_certificate, made.server_key)
    elif kind == "another federation's":
        site = dataclasses.replace(made.site("site-01"), path=tmp_path)
        authority = tmp_path / "ca.crt", tmp_path / "ca.key"
        pki.create_authority(*authority, "test")
        pki.create_site_keys(site.private_key, site.public_key, "site-01")
        pki.issue_site(site.certificate, site.public_key, authority, "site-01")
        context = client_tls(site)
        context.load_verify_locations(made.ca_certificate)
    for path in ("/v1/fleet/pull-messages", "/v1/control/start-run", "/docs"):
        with pytest.raises((ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)):
            post(made, path, context=context)
    assert behind.paths == []
    wait_for(lambda: "stranger 127.0.0.1 no-certificate" in log_text(made), "a line", 10)


def test_a_key_of_no_site_is_refused_whoever_certified_it(made, gate, behind, tmp_path):
    """As with a stolen ``ca.key``."""
    site = dataclasses.replace(made.site("site-01"), path=tmp_path)
    pki.create_site_keys(site.private_key, site.public_key, "site-01")
    pki.issue_site(site.certificate, site.public_key, (made.ca_certificate, made.ca_key), "site-01")
    site.ca_certificate.write_bytes(made.ca_certificate.read_bytes())
    assert post(made, "/v1/fleet/pull-messages", context=client_tls(site)) == (403, "key")
    assert behind.paths == []


PULL = "/v1/fleet/pull-messages"
FLOOD = 4.0
"""Seconds of a flood."""

TRICKS = [
    "/v1/control/start-run",
    "/v1/control/list-runs",
    "/v1/runtime/acquire-task",
    "/v1/runtime/push-object",
    "/v1/fleet/register-node",
    "/v1/fleet/unregister-node",
    "/v1/fleet/../control/start-run",
    "/v1/fleet/%2e%2e/control/start-run",
    "/v1/fleet/..%2fcontrol%2fstart-run",
    "/v1/fleet/pull-messages/../../control/start-run",
    "/v1/fleet//pull-messages",
    "//v1/fleet/pull-messages",
    "/v1/fleet/pull-messages/",
    "/v1/fleet/pull%2dmessages",
    "/v1/fleet/pull-messages?x=/v1/control/",
    "/V1/FLEET/pull-messages",
    "/v1/fleet/",
    "/docs",
    "/openapi.json",
    "/",
    "https://127.0.0.1/v1/control/start-run",
    "https://127.0.0.1/v1/fleet/pull-messages",
    "*",
]


@pytest.mark.parametrize("path", TRICKS)
def test_a_site_reaches_the_fleets_requests_and_nothing_else(made, gate, behind, path):
    assert post(made, path) == (403, "path")
    assert behind.paths == []


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "HEAD", "OPTIONS", "CONNECT", "TRACE"])
def test_other_methods_are_refused(made, gate, behind, method):
    assert post(made, "/v1/fleet/pull-messages", method=method) == (403, "path")
    assert behind.paths == []


def test_a_site_cannot_speak_for_another(made, gate, behind):
    assert post(made, "/v1/fleet/pull-messages", node="site-02") == (403, "node")
    assert post(made, "/v1/fleet/pull-messages", headers={"flwr-public-key": "!"}) == (403, "node")
    assert post(made, "/v1/fleet/pull-messages", headers={"flwr-public-key": ""}) == (403, "node")
    assert behind.paths == []


def test_two_lengths_or_two_keys_are_no_way_in(made, gate, behind):
    """What one reader takes for the end of a request and the next one does not."""
    header = f"flwr-public-key: {node_header(made, 'site-01')['flwr-public-key']}\r\n"
    inner = "POST /v1/control/start-run HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n"
    start = f"POST /v1/fleet/pull-messages HTTP/1.1\r\nhost: a\r\n{header}"
    for more in (
        f"content-length: 0\r\ncontent-length: {len(inner)}\r\n\r\n{inner}",
        f"transfer-encoding: chunked\r\ncontent-length: {len(inner)}\r\n\r\n0\r\n\r\n{inner}",
        f"transfer-encoding: chunked\r\n\r\n0\r\n\r\n{inner}",
        f"{header}content-length: 0\r\n\r\n",
        f"content-length: 0\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n{inner}",
    ):
        with spoken(made, "site-01") as line, contextlib.suppress(OSError):
            line.sendall((start + more).encode())
            while line.recv(4096):
                pass
    assert set(behind.paths) <= {"/v1/fleet/pull-messages"}


def test_size_head_and_pace_are_bounded(made, gate, behind):
    too_long = {"content-length": str((1 << 20) + 1)}  # refused by what it announces, before it is sent
    assert post(made, "/v1/fleet/push-object", b"", headers=too_long)[0] == 413
    assert post(made, "/v1/fleet/push-object", headers={"flwr-long": "x" * 40_000})[0] in (
        431,
        400,
    )  # whole, in parts
    assert behind.paths == []
    sent = [post(made, "/v1/fleet/push-object", b"xx" * (1 << 19), site="site-03") for _ in range(4)]
    assert sent[0] == (200, "")
    assert (503, "busy") in sent
    assert post(made, "/v1/fleet/push-object", site="site-01") == (200, "")


def test_a_site_sends_messages_in_its_own_name_only(made, gate, behind):
    from flwr.proto.fleet_pb2 import PushMessagesRequest
    from flwr.proto.message_pb2 import Message, Metadata
    from flwr.proto.node_pb2 import Node

    def pushed(sender, answers):
        about = Metadata(src_node_id=sender, dst_node_id=1, reply_to_message_id=answers)
        request = PushMessagesRequest(node=Node(node_id=7), messages_list=[Message(metadata=about)])
        return post(made, "/v1/fleet/push-messages", request.SerializeToString())

    assert pushed(7, "ab" * 32) == (200, "")
    assert pushed(8, "ab" * 32) == pushed(1, "") == pushed(7, "OperationalError") == (403, "message")
    assert behind.paths == ["/v1/fleet/push-messages"]


def test_a_site_holds_no_more_than_its_connections(made, gate):
    with contextlib.ExitStack() as stack:
        for _ in range(60):
            stack.enter_context(spoken(made, "site-02"))
        wait_for(lambda: "site-02 127.0.0.1 too-many-connections" in log_text(made), "a line", 20)
        assert post(made, "/v1/fleet/pull-messages") == (200, "")
    wait_for(lambda: post(made, "/v1/fleet/pull-messages", site="site-02") == (200, ""), "its turn again", 20)


@pytest.mark.slow
def test_strangers_cannot_hold_the_door(made, gate, behind):
    """Half-open connections from one address are limited, and the rest end with the handshake's time."""
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(socket.create_connection(made.bind, 20))
        began = time.monotonic()

        def served():
            with contextlib.suppress(OSError, http.client.HTTPException):
                return post(made, "/v1/fleet/pull-messages") == (200, "")

        wait_for(served, "the door stays shut", 3 * forward.HANDSHAKE_SECONDS)
        assert time.monotonic() - began < 3 * forward.HANDSHAKE_SECONDS


@pytest.mark.slow
def test_a_site_that_floods_is_held_back_and_others_are_served(made, gate, behind):
    """On all connections that it may have, without a pause."""
    served, began = Counter(), time.monotonic()

    def flood():
        how = {"verify": client_tls(made.site("site-03")), "timeout": 60.0}
        with httpx.Client(base_url=f"https://127.0.0.1:{made.bind[1]}", **how) as client:
            while time.monotonic() < began + FLOOD:
                found = client.post(PULL, headers=node_header(made, "site-03"), content=b"xx")
                served[found.status_code] += 1

    with ThreadPoolExecutor(gates.CONNECTIONS) as crowd:
        floods = [crowd.submit(flood) for _ in range(gates.CONNECTIONS)]
        others = [post(made, PULL)]
        while not all(one.done() for one in floods):
            others.append(post(made, PULL))
        for one in floods:
            one.result()
    assert set(others) == {(200, "")}
    assert served.keys() == {200}
    assert served[200] <= gates.BURST + gates.RATE * (time.monotonic() - began) + gates.CONNECTIONS


def test_what_a_site_may_send_comes_back_with_time(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(gates.time, "monotonic", lambda: now[0])
    allowance = gates.Allowance(gates.RATE, gates.BURST)
    assert {allowance.wait(1) for _ in range(int(gates.BURST))} == {0.0}
    waits = [allowance.wait(1) for _ in range(int(gates.RATE * gates.WAIT) + 1)]
    assert waits[0] == 1 / gates.RATE
    assert max(waits) > gates.WAIT, "and such a request is refused"
    now[0] += gates.WAIT + 1
    assert allowance.wait(1) == 0


@pytest.mark.slow
def test_a_head_that_drips_is_cut_off(made, gate):
    began = time.monotonic()
    with spoken(made, "site-01") as line, contextlib.suppress(OSError):
        line.sendall(b"POST /v1/fleet/pull-messages HTTP/1.1\r\n")
        while time.monotonic() - began < 3 * forward.HEAD_SECONDS:
            line.sendall(b"a")
            time.sleep(0.5)
    assert time.monotonic() - began < 2 * forward.HEAD_SECONDS


def test_the_app_gets_the_operators_signature_and_a_foreign_one_does_not(made, gate, behind):
    content = signing.app_bytes(made)
    trusted = {name: made.trusted.read_text().split('"')[3] for name in signing.read_trusted(made.trusted)}

    def fetched(content):
        told = GetFabResponse()
        told.fab.content = content
        told.fab.verifications["valid_license"] = "as the server likes"
        behind.answers["/v1/fleet/get-fab"] = told.SerializeToString()
        address = f"https://{made.bind[0]}:{made.bind[1]}/v1/fleet/get-fab"
        with httpx.Client(verify=client_tls(made.site("site-01"))) as client:
            found = client.post(address, headers=node_header(made, "site-01"), content=b"xx")
        told.ParseFromString(found.content)
        return told.fab

    ours, foreign = fetched(content), fetched(content + b"more")
    assert ours.verifications["valid_license"]
    assert _verify_fab(ours, trusted)
    assert dict(foreign.verifications) == {}
    foreign.verifications.update(ours.verifications)
    assert not _verify_fab(foreign, trusted)


def test_a_replaced_key_is_locked_out_without_a_restart(made, gate, behind):
    """As every change of the deployment's files: the gate reads them again."""
    old = client_tls(made.site("site-02"))
    header = node_header(made, "site-02")
    assert post(made, "/v1/fleet/pull-messages", site="site-02") == (200, "")
    rotation.new_key(made.path, "site-02")
    locked = lambda: post(made, "/v1/fleet/pull-messages", context=old, headers=header) == (403, "key")  # noqa: E731
    wait_for(locked, "the old key is let in", 5)
    assert post(made, "/v1/fleet/pull-messages", site="site-02") == (200, "")


def test_a_connector_says_what_is_wrong(made, gate, behind):
    told: list[Problem | None] = []
    site = made.site("site-01")

    def asked(kind, address="", connector=None):
        connector = connector or Connector(site, address or f"127.0.0.1:{made.bind[1]}", told.append)
        scope = {"method": "POST", "raw_path": f"/v1/fleet/{kind}".encode(), "query_string": b""}
        scope["headers"] = [(b"content-length", b"2")]
        scope["headers"] += [(k.encode(), v.encode()) for k, v in node_header(made, "site-01").items()]
        sent = []

        async def receive():
            return {"type": "http.request", "body": b"xx"}

        async def send(message):
            sent.append(message)

        asyncio.run(connector(scope, receive, send))
        return sent[0]["status"], connector

    status, connector = asked("pull-messages")
    assert (status, told, connector.reached) == (200, [None], True)
    assert abs(connector.clock) < 3
    behind.status = 401
    assert asked("activate-node")[0] == 503
    assert told[-1].kind == "signature"
    behind.status = 412
    assert asked("activate-node")[0] == 503
    assert "has not registered the key of site-01" in told[-1].text
    notes = made.state / NOTES
    notes.mkdir()
    (key,) = [key for key, client in site_keys(made).items() if client == 0]
    (notes / "site-01").write_text(json.dumps({"key": key.hex(), "node": "7"}))
    assert asked("activate-node")[0] == 503
    assert "still has an earlier session of site-01" in told[-1].text
    behind.status = 401
    assert asked("pull-messages")[0] == 401  # Flower's program starts again and is activated anew
    assert asked("pull-messages", f"127.0.0.1:{free_port()}")[0] == 503
    assert (told[-1].kind, "nothing listens at" in told[-1].text) == ("network", True)
    assert asked("pull-messages", "nowhere.invalid:1")[0] == 503
    assert "cannot be resolved" in told[-1].text


@pytest.mark.parametrize(
    ("code", "kind"), [(10, "expired"), (9, "clock"), (62, "name"), (64, "name"), (19, "authority")]
)
def test_every_fault_of_a_certificate_has_its_words(made, code, kind):
    fault = ssl.SSLCertVerificationError(1, "no")
    fault.verify_code = code
    error = httpx.ConnectError("no")
    error.__cause__ = fault
    found = why(error, "fl.example.org:8000", made.site("site-01"))
    assert found.kind == kind
    alert = httpx.ReadError("no")
    alert.__cause__ = ssl.SSLError(
        1, "[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED] tlsv13 alert certificate required"
    )
    assert why(alert, "fl.example.org:8000", made.site("site-01")).kind == "certificate"


def test_an_ended_certificate_is_named_though_the_server_just_hung_up(made, monkeypatch):
    site, error = made.site("site-01"), httpx.ReadError("no")
    assert why(error, "fl.example.org:8000", site).kind == "network"
    monkeypatch.setattr(pki, "days_left", lambda file: -1)
    found = why(error, "fl.example.org:8000", site)
    assert found.kind == "certificate"
    assert f"{site.certificate} expired 1 day(s) ago; ask the federation's operator" in found.text


def test_a_site_with_a_certificate_of_another_key_is_told_before_it_starts(made, tmp_path):
    site = dataclasses.replace(made.site("site-01"), path=tmp_path)
    for name in ("site.key", "site.pub", "ca.crt", "trusted.yaml"):
        (tmp_path / name).write_bytes((made.site("site-01").path / name).read_bytes())
    site.certificate.write_bytes(made.site("site-03").certificate.read_bytes())
    with pytest.raises(ConfigError, match=r"site\.crt is not for the key"):
        entrance.check_site_files(site)
