"""The live page's server, asked over real sockets: what it answers, what it refuses, how it follows a run."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dashboards import answering
from proxyfl import Run
from proxyfl.report.dashboard import server as dashboard
from proxyfl.report.dashboard.server import Dashboard
from proxyfl.report.dashboard.watch import GrowingLines, Library, is_name
from proxyfl.report.html.page import policy


@pytest.fixture
def folder(runs: dict[str, list[Run]], tmp_path: Path) -> Path:
    """A runs folder with two runs, a file and a secret beside it."""
    place = tmp_path / "runs"
    for name, run in (("first", runs["proxyfl"][0]), ("second", runs["fedavg"][0])):
        shutil.copytree(run.path, place / name)
    (place / "notes.txt").write_text("no run")
    shutil.copytree(runs["fedavg"][1].path, tmp_path / "secret")
    return place


@pytest.fixture
def server(folder: Path) -> Iterator[Dashboard]:
    with answering(folder, every=0.05) as made:
        yield made


def ask(server: Dashboard, path: str, method: str = "GET", **headers: str) -> tuple[int, str, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.putrequest(method, path, skip_host="Host" in headers)
    for name, value in {"Cookie": server.cookie, **headers}.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text, {name.lower(): value for name, value in answer.getheaders()}


def test_it_listens_on_this_machine_only(server):
    assert server.socket.getsockname()[0] == "127.0.0.1"
    assert server.url == f"http://127.0.0.1:{server.port}/"


def test_who_does_not_know_the_token_learns_nothing(server):
    """As another account of this machine would ask."""
    old = f"proxyfl-{server.port}={'x' * len(server.token)}"
    for path in (
        "/",
        "/run?name=first",
        "/report?name=first",
        "/api/runs",
        "/api/run?name=first",
        "/api/follow",
        "/nowhere",
    ):
        for cookie in ("", old, server.cookie[:-1], server.token, f"proxyfl-1={server.token}", "é; ;="):
            found = ask(server, f"{path}{'&' if '?' in path else '?'}token=none", Cookie=cookie)
            assert found[:2] == (403, f"{dashboard.NOT_YOURS}\n"), (path, cookie)
            assert "set-cookie" not in found[2]
    assert ask(server, "/", "POST", Cookie="")[0] == 403
    assert Dashboard(server.library.folder).token != server.token


def test_the_address_with_its_token_gives_a_cookie_that_scripts_and_other_sites_cannot_use(server):
    page = server.link("run", name="first").removeprefix(server.url)
    assert page == f"run?name=first&token={server.token}"
    status, text, headers = ask(server, f"/{page}", Cookie="")
    assert (status, server.token in text) == (200, False)
    kept = f"proxyfl-{server.port}={server.token}"
    assert headers["set-cookie"] == f"{kept}; HttpOnly; SameSite=Strict; Path=/"
    assert ask(server, "/api/runs", Cookie=f"other=1; {kept}")[0] == 200
    foreign = ask(server, f"/?token={server.token}", Host=f"evil.test:{server.port}")
    assert (foreign[0], "set-cookie" in foreign[2]) == (403, False)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "text/html; charset=utf-8"),
        ("/run?name=first", "text/html; charset=utf-8"),
        ("/style.css", "text/css; charset=utf-8"),
        ("/script.js", "text/javascript; charset=utf-8"),
        ("/api/runs", "application/json"),
        ("/api/run?name=first&name=second", "application/json"),
    ],
)
def test_pages_and_their_headers(server, path, kind):
    status, text, headers = ask(server, path)
    assert (status, headers["content-type"]) == (200, kind)
    assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'; ")
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
    assert "access-control-allow-origin" not in headers
    assert int(headers["content-length"]) == len(text.encode())
    status, text, head = ask(server, path, "HEAD")
    assert (status, text, head["content-type"]) == (200, "", kind)


def test_a_report_is_one_file_that_loads_nothing(server):
    status, text, headers = ask(server, "/report?name=first")
    assert (status, headers["content-type"]) == (200, dashboard.HTML)
    assert headers["content-security-policy"] == f"{policy()}; frame-ancestors 'none'"
    assert f'content="{policy()}"' in text
    assert "'self'" not in policy()
    assert '"title":"first"' in text
    assert server.token not in text
    assert ask(server, "/report?name=none")[0] == 404
    assert ask(server, "/report?name=../secret")[0] == 404


def test_the_list_and_a_run(server, folder):
    told = json.loads(ask(server, "/api/runs")[1])
    assert told["folder"] == "runs"
    assert [
        (run["name"], run["method"], run["done"], run["total"], run["state"]) for run in told["runs"]
    ] == [
        ("first", "proxyfl", 2, 2, "finished"),
        ("second", "fedavg", 2, 2, "finished"),
    ]
    data = json.loads(ask(server, "/api/run?name=first")[1])
    assert data["runs"][0]["curves"]["round"] == [1, 2]
    assert data["runs"][0]["confusion"]["round"] == 2
    assert data["runs"][0]["partition"]["classes"] == ["all classes"]


@pytest.mark.parametrize("path", ["/", "/api/runs", "/api/follow", "/script.js", "/nowhere"])
@pytest.mark.parametrize(
    "host", ["evil.test", "evil.test:{port}", "127.0.0.1", "127.0.0.1:1", "localhost.evil.test:{port}", ""]
)
def test_foreign_hosts_are_refused(server, path, host):
    status, text, _ = ask(server, path, Host=host.format(port=server.port))
    assert status == 403
    assert "its own machine" in text


def test_own_hosts_are_answered(server):
    for host in ("127.0.0.1", "localhost", "LOCALHOST"):
        assert ask(server, "/", Host=f"{host}:{server.port}")[0] == 200


def test_on_the_port_of_the_web_browsers_name_none(server, monkeypatch):
    port = server.port
    monkeypatch.setattr(Dashboard, "port", 80)
    for host, status in (("127.0.0.1", 200), ("localhost", 200), ("127.0.0.1:80", 200), ("evil.test", 403)):
        with socket.create_connection(("127.0.0.1", port), timeout=20) as raw:
            ask = f"GET /?token={server.token} HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}\r\n\r\n"
            raw.sendall(ask.encode())
            assert raw.recv(100).startswith(f"HTTP/1.0 {status} ".encode())


@pytest.mark.parametrize("path", ["http://[", "/run?" + "&".join(["name=first"] * 51)])
def test_addresses_that_cannot_be_read_are_refused(server, path, capsys):
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as raw:
        raw.sendall(f"GET {path} HTTP/1.0\r\nHost: 127.0.0.1:{server.port}\r\n\r\n".encode())
        told = b"".join(iter(lambda: raw.recv(4096), b""))
    assert told.startswith(b"HTTP/1.0 400 ")
    assert told.endswith(b"\r\n\r\nthis address cannot be read\n")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("path", ["/run", "/api/run", "/api/follow"])
def test_more_runs_than_a_page_shows_are_refused(server, path):
    most = dashboard.MOST_RUNS_A_PAGE
    assert ask(server, f"{path}?{'&'.join(['name=first'] * most)}", "HEAD")[0] == 200
    status, text, _ = ask(server, f"{path}?{'&'.join(['name=first'] * (most + 1))}")
    assert status == 400
    assert "at most 12 runs, 13 are named" in text


def test_a_request_with_no_host_or_two_is_refused(server):
    for hosts in (b"", b"Host: 127.0.0.1:%d\r\nHost: evil.test\r\n" % server.port):
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as raw:
            raw.sendall(b"GET / HTTP/1.1\r\n" + hosts + b"\r\n")
            assert raw.recv(100).startswith(b"HTTP/1.0 403 ")


def test_foreign_origins_and_sites_are_refused(server):
    for origin in ("http://evil.test", "null", f"https://127.0.0.1:{server.port}", "http://127.0.0.1:1"):
        assert ask(server, "/api/runs", Origin=origin)[0] == 403
    assert ask(server, "/api/runs", Origin=f"http://127.0.0.1:{server.port}")[0] == 200
    assert ask(server, "/api/runs", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="no-cors")[0] == 403
    assert ask(server, "/api/runs", Sec_Fetch_Site="same-origin", Sec_Fetch_Mode="cors")[0] == 200
    assert ask(server, "/", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate")[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "FROB"])
def test_only_reading_is_allowed(server, method):
    for path in ("/", "/api/run?name=first", "/nowhere"):
        status, text, headers = ask(server, path, method)
        assert (status, text, headers["allow"]) == (405, "this page is read-only\n", "GET, HEAD")


@pytest.mark.parametrize(
    "name",
    [
        "..", "../secret", "..%2Fsecret", "%2e%2e%2fsecret", "..%5Csecret", "first/../../secret",
        "first%2F..", ".", "", "first%00", ".hidden", "notes.txt", "missing", "%2Fetc", "x" * 300, "link",
        "inner", "<script>",
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/run", "/api/run", "/api/follow"])
def test_nothing_outside_the_folder_is_found(server, folder, path, name):
    (folder / "link").symlink_to(folder.parent / "secret")
    shutil.copytree(folder / "second", folder / "inner")
    (folder / "inner" / "metrics.jsonl").unlink()
    (folder / "inner" / "metrics.jsonl").symlink_to(folder.parent / "secret" / "metrics.jsonl")
    if path == "/api/follow" and not name:
        return  # asks for the list
    status, text, _ = ask(server, f"{path}?name={name}")
    assert (status, text) == (404, "there is no such run\n")


@pytest.mark.parametrize(
    "path",
    [
        "/../secret/config.toml", "/first/", "/runs", "/assets", "/first/config.toml", "//etc/passwd",
        "/%2e%2e/secret", "/api", "/api/",
    ],
)  # fmt: skip
def test_there_are_no_other_addresses(server, path):
    assert ask(server, path)[:2] == (404, "there is no such page\n")


@pytest.mark.parametrize("part", ["snapshots", "checkpoints", "models", "config.toml", ".lock"])
def test_links_that_leave_the_folder_are_refused(folder, part):
    library = Library(folder)
    assert library.find("second") is not None
    place, secret = folder / "second" / part, folder.parent / "secret" / part
    shutil.rmtree(place) if place.is_dir() else place.unlink()
    place.symlink_to(secret)
    assert library.find("second") is None
    assert [run["name"] for run in library.statuses()] == ["first"]


def test_a_link_inside_a_snapshot_folder_is_refused(folder):
    (folder / "first/snapshots/round-00000009.safetensors").symlink_to(folder.parent / "secret/config.toml")
    assert Library(folder).find("first") is None


def test_links_that_stay_are_followed(folder):
    (folder / "alias").symlink_to(folder / "first")
    assert Library(folder).find("alias") is not None


def test_runs_in_folders_of_the_folder_are_found(folder):
    shutil.move(folder / "first", folder / "box" / "first")
    shutil.copytree(folder / "second", folder / "box" / "deeper" / "third")
    library = Library(folder)
    assert [run["name"] for run in library.statuses()] == ["box/first", "second"]
    data = library.data(["box/first"])
    assert (data["title"], data["runs"][0]["name"], data["runs"][0]["done"]) == ("box/first", "box/first", 2)
    for name in (
        "box",
        "box/",
        "/box/first",
        "box//first",
        "box/../second",
        "box/deeper/third",
        "second/models",
    ):
        assert library.find(name) is None, name


def test_a_folder_that_leads_elsewhere_is_not_looked_into(folder):
    (folder / "away").symlink_to(folder.parent)
    (folder / "box").mkdir()
    (folder / "box" / "secret").symlink_to(folder.parent / "secret")
    shutil.copytree(folder.parent / "secret", folder / "first" / "within")
    library = Library(folder)
    assert [run["name"] for run in library.statuses()] == ["first", "second"]
    assert not [name for name in library.names() if name.startswith("away")]
    for name in ("away/secret", "box/secret", "first/within"):
        assert library.find(name) is None, name


def test_names():
    assert is_name("digits-proxyfl-seed1")
    assert not any(map(is_name, ("", ".", "..", ".lock", "a/b", "a\\b", "a\0", "x" * 256)))


def test_an_unreadable_run_is_listed_with_its_reason(server, folder):
    (folder / "second" / "config.toml").write_text("seed = [")
    told = {run["name"]: run for run in json.loads(ask(server, "/api/runs")[1])["runs"]}
    assert "is not TOML" in told["second"]["problem"]
    assert told["first"]["done"] == 2
    status, text, _ = ask(server, "/api/run?name=second")
    assert (status, text.startswith("the run cannot be read: ")) == (409, True)


class Stream:
    """A reader of server-sent events."""

    def __init__(self, server: Dashboard, path: str) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        self.connection.request("GET", path, headers={"Cookie": server.cookie})
        self.answer = self.connection.getresponse()

    def next(self) -> dict[str, object]:
        while line := self.answer.readline():
            if line.startswith(b"data: "):
                return dict(json.loads(line[6:]))
        raise AssertionError("the stream has ended")

    def close(self) -> None:
        self.answer.close()
        self.connection.close()


def test_a_stream_tells_a_new_round_while_the_file_grows(server, folder):
    metrics = folder / "first" / "metrics.jsonl"
    first, second = metrics.read_bytes().splitlines(keepends=True)
    metrics.write_bytes(first)
    streams = [Stream(server, path) for path in ("/api/follow?name=first", "/api/follow")]
    assert streams[0].answer.getheader("Content-Type") == "text/event-stream"
    assert [stream.next()["runs"][0]["done"] for stream in streams] == [1, 1]
    with metrics.open("ab") as file:
        file.write(second[:40])  # half a line is none
        file.flush()
        file.write(second[40:])
    assert [stream.next()["runs"][0]["done"] for stream in streams] == [2, 2]
    data = json.loads(ask(server, "/api/run?name=first")[1])
    assert data["runs"][0]["curves"]["round"] == [1, 2]
    for stream in streams:
        stream.close()


def test_running_is_told_with_the_time_left(server, folder):
    run = Run(folder / "first")
    shutil.rmtree(run.directory.checkpoints / "round-00000002")
    run.directory.metrics.write_bytes(run.directory.metrics.read_bytes().splitlines(keepends=True)[0])
    run.directory.timing.write_text('{"round": 1, "train": 1.5, "serve": 0.5}\n')
    stream = Stream(server, "/api/follow?name=first")
    told = stream.next()["runs"][0]
    assert (told["state"], told["left"]) == ("stopped", None)
    with run.directory.locked():
        told = stream.next()["runs"][0]
        assert (told["state"], told["left"]) == ("running", 2.0)
    assert stream.next()["runs"][0]["state"] == "stopped"
    stream.close()


def test_followers_are_limited_and_make_room(server, monkeypatch):
    server._followers = threading.BoundedSemaphore(2)
    streams = [Stream(server, "/api/follow") for _ in range(2)]
    for stream in streams:
        stream.next()
    assert ask(server, "/api/follow")[0] == 503
    assert ask(server, "/api/runs")[0] == 200
    monkeypatch.setattr(dashboard, "BREATH", 0.0)
    streams[0].close()
    for _ in range(100):
        again = Stream(server, "/api/follow")
        if again.answer.status == 200:
            break
        again.close()
        threading.Event().wait(0.05)
    assert again.answer.status == 200
    again.close()
    streams[1].close()


def test_connections_are_limited(server):
    server._connections = threading.BoundedSemaphore(1)
    stream = Stream(server, "/api/follow")
    stream.next()
    with pytest.raises((ConnectionError, http.client.BadStatusLine)):
        ask(server, "/api/runs")
    stream.close()


def test_stopping_ends_the_streams(folder):
    server = Dashboard(folder, every=0.05)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    stream = Stream(server, "/api/follow")
    stream.next()
    server.shutdown()
    server.stop()
    thread.join(10)
    assert stream.answer.read().strip() == b""
    with pytest.raises(ConnectionError):
        ask(server, "/")


def test_growing_lines_are_read_once_and_anew_when_cut(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = GrowingLines(path)
    lines.refresh()
    assert lines.lines == []
    path.write_text('{"round": 1}\n{"rou')
    lines.refresh()
    assert lines.lines == [{"round": 1}]
    path.write_text('{"round": 1}\n{"round": 2}\nnonsense\n[1]\n')
    lines.refresh()
    kept = lines.lines[0]
    lines.refresh()
    assert lines.lines == [{"round": 1}, {"round": 2}]
    assert lines.lines[0] is kept
    path.write_text('{"round": 1}\n{"round": 7}\n{"round": 8}\n{"round": 9}\n')
    lines.refresh()
    assert lines.lines == [{"round": 1}, {"round": 7}, {"round": 8}, {"round": 9}]
    path.write_text("")
    lines.refresh()
    assert lines.lines == []


def test_a_run_that_is_replaced_is_read_anew(folder):
    library = Library(folder)
    assert library.find("first").status()["method"] == "proxyfl"
    shutil.rmtree(folder / "first")
    assert library.find("first") is None
    shutil.copytree(folder / "second", folder / "first")
    (folder / "first" / "config.toml").touch()
    assert library.find("first").status()["method"] == "fedavg"


class Drips:
    """Connections whose requests never arrive whole: a byte of them, now and then."""

    def __init__(self, port: int, count: int) -> None:
        self.lines = [socket.create_connection(("127.0.0.1", port), timeout=20) for _ in range(count)]
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._drip)
        self.thread.start()

    def _drip(self) -> None:
        while not self.stop.wait(0.1):
            for line in self.lines:
                with contextlib.suppress(OSError):
                    line.send(b"G")

    def ended(self) -> int:
        """How many the server has ended."""
        count = 0
        for line in self.lines:
            line.settimeout(0.01)
            try:
                count += line.recv(1) == b""
            except TimeoutError:
                pass
            except OSError:
                count += 1
        return count

    def close(self) -> None:
        self.stop.set()
        self.thread.join()
        for line in self.lines:
            line.close()


def test_dripping_connections_keep_nobody_out(folder, monkeypatch):
    """Few are let in, so that few are needed: to open one where the queue is full takes a second."""
    monkeypatch.setattr(dashboard, "MOST_CONNECTIONS", 4)
    with answering(folder, every=0.05) as server:
        drips = Drips(server.port, 2 * dashboard.MOST_CONNECTIONS)
        try:
            started = time.monotonic()
            for _ in range(5):
                assert ask(server, "/api/runs")[0] == 200
            assert time.monotonic() - started < 5
        finally:
            drips.close()


def test_a_request_has_so_long_to_arrive_in_all(server, monkeypatch):
    monkeypatch.setattr(dashboard, "ARRIVAL", 0.5)
    stream = Stream(server, "/api/follow")
    stream.next()
    drips = Drips(server.port, 5)
    try:
        time.sleep(1.5)
        assert drips.ended() == 5
        assert server._connections._value == dashboard.MOST_CONNECTIONS - 1
        assert server._open == {}
    finally:
        drips.close()
        stream.close()


def test_runs_of_methods_and_networks_that_nobody_here_knows_are_shown(folder, server):
    """Their class is in a plug-in of whoever trained them."""
    config = folder / "second" / "config.toml"
    text = config.read_text(encoding="utf-8")
    text = text.replace('name = "fedavg"', 'name = "theirs"\nsharpness = 3').replace(
        '"little"', '"their-net"'
    )
    config.write_text(text, encoding="utf-8")
    assert '"their-net"' in text
    runs = {run["name"]: run for run in json.loads(ask(server, "/api/runs")[1])["runs"]}
    assert (runs["second"]["method"], runs["second"]["state"]) == ("theirs", runs["first"]["state"])
    status, answer, _ = ask(server, "/api/run?name=second")
    shown = json.loads(answer)
    assert status == 200
    assert "theirs" in json.dumps(shown)
    assert ask(server, "/run?name=second")[0] == 200


def test_the_sites_of_a_federation_are_told_with_its_run_and_a_fault_is_words(folder):
    sites = {"sites": [{"name": "lyon", "state": "connected"}]}
    made = Dashboard(folder, only="first", federation=lambda: sites)
    try:
        assert json.loads(made.listing(["first"]))["federation"] == sites
        assert made.library.data(["first"])["federation"] == sites
    finally:
        made.stop()

    def damaged():
        raise OSError("the disk is gone")

    library = Library(folder, "first", damaged)
    assert library.data(["first"])["federation"] == {"problem": "the disk is gone"}
    assert "federation" not in Library(folder, "first").data(["first"])
