"""Fetching, against a real HTTP server on this machine."""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
import threading
import urllib.request
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from source_formats import pixels, write_cifar10_binary, write_idx

from proxyfl.core.errors import DataError
from proxyfl.data import download as download_module
from proxyfl.data.download import download
from proxyfl.data.fetch import fetch
from proxyfl.data.files import Checksum, RemoteFile
from proxyfl.data.sources import SOURCES, load

CONTENT = pixels(1, 300_000).tobytes()


@dataclass
class Site:
    """What the server serves and how it misbehaves; ``log`` holds (path, Range) of each request."""

    files: dict[str, bytes] = field(default_factory=dict)
    tag: str = '"one"'
    ranges: bool = True
    cut: list[int] = field(default_factory=list)
    status: list[int] = field(default_factory=list)
    redirect: str = ""
    stall: threading.Event | None = None
    lengthless: bool = False
    log: list[tuple[str, str | None]] = field(default_factory=list)
    base: str = ""


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *arguments):
        pass

    def do_GET(self):
        site = self.server.site
        site.log.append((self.path, self.headers.get("Range")))
        if site.status:
            self.send_error(site.status.pop(0))
            return
        if site.redirect:
            self.send_response(302)
            self.send_header("Location", site.redirect)
            self.end_headers()
            return
        content = site.files.get(self.path.lstrip("/"))
        if content is None:
            self.send_error(404)
            return
        self.answer(site, content)

    def answer(self, site, content):
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
        same = self.headers.get("If-Range") in (None, site.tag)
        start = int(asked[1]) if asked and site.ranges and same else 0
        if asked and start >= len(content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(content)}")
            self.end_headers()
            return
        body = content[start:]
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        if site.tag:
            self.send_header("ETag", site.tag)
        if not site.lengthless:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: site.cut.pop(0)] if site.cut else body)
        if site.stall:
            self.wfile.flush()
            site.stall.wait(20)


@pytest.fixture
def site(monkeypatch):
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(download_module.time, "sleep", lambda seconds: None)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.site = Site(files={"data.bin": CONTENT})
    server.site.base = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server.site
    server.shutdown()
    server.server_close()
    thread.join()


def remote(site, content=CONTENT, **changes):
    checksum = Checksum("md5", hashlib.md5(content).hexdigest(), official=True)
    return replace(RemoteFile("sub/data.bin", f"{site.base}/data.bin", checksum), **changes)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_plain_download(site, tmp_path):
    target = download(remote(site), tmp_path)
    assert target == tmp_path / "sub" / "data.bin"
    assert target.read_bytes() == CONTENT
    assert names(tmp_path / "sub") == ["data.bin"]


def test_a_file_already_there_is_checked_not_fetched(site, tmp_path):
    download(remote(site), tmp_path)
    download(remote(site), tmp_path)
    assert len(site.log) == 1
    (tmp_path / "sub" / "data.bin").write_bytes(b"other")
    with pytest.raises(DataError, match=r"data\.bin .*checksum .*fetch again"):
        download(remote(site), tmp_path)
    assert (tmp_path / "sub" / "data.bin").read_bytes() == b"other"


def test_a_broken_line_is_resumed_where_it_broke(site, tmp_path):
    site.cut = [100_000, 50_000]
    assert download(remote(site), tmp_path).read_bytes() == CONTENT
    assert [asked for _, asked in site.log] == [None, "bytes=100000-", "bytes=150000-"]


def test_a_later_call_goes_on_from_what_was_kept(site, tmp_path):
    site.cut = [1000, 1000, 1000, 1000]
    with pytest.raises(DataError, match=r"4\.0 kB of 300\.0 kB.*4\.0 kB are kept"):
        download(remote(site), tmp_path)
    assert names(tmp_path / "sub") == ["data.bin.part", "data.bin.part.tag"]
    site.log.clear()
    assert download(remote(site), tmp_path).read_bytes() == CONTENT
    assert [asked for _, asked in site.log] == ["bytes=4000-"]
    assert names(tmp_path / "sub") == ["data.bin"]


def test_a_server_that_ignores_ranges_starts_again(site, tmp_path):
    site.cut = [100_000]
    site.ranges = False
    assert download(remote(site), tmp_path).read_bytes() == CONTENT
    assert [asked for _, asked in site.log] == [None, "bytes=100000-"]


def test_another_version_on_the_server_starts_again(site, tmp_path):
    site.cut = [1000] * 4
    with pytest.raises(DataError):
        download(remote(site), tmp_path)
    newer = CONTENT[::-1]
    site.files["data.bin"], site.tag = newer, '"two"'
    assert download(remote(site, newer), tmp_path).read_bytes() == newer


def test_without_a_checksum_the_servers_mark_keeps_versions_apart(site, tmp_path):
    site.cut = [1000] * 4
    with pytest.raises(DataError):
        download(remote(site, checksum=None), tmp_path)
    newer = CONTENT[::-1]
    site.files["data.bin"], site.tag = newer, '"two"'
    assert download(remote(site, checksum=None), tmp_path).read_bytes() == newer


def test_without_a_mark_a_checksum_catches_mixed_versions_and_all_is_fetched_again(site, tmp_path):
    site.tag = ""
    site.cut = [1000] * 4
    with pytest.raises(DataError):
        download(remote(site), tmp_path)
    newer = CONTENT[::-1]
    site.files["data.bin"] = newer
    site.log.clear()
    assert download(remote(site, newer), tmp_path).read_bytes() == newer
    assert [asked for _, asked in site.log] == ["bytes=4000-", None]


def test_without_a_mark_and_a_checksum_nothing_is_resumed(site, tmp_path):
    site.tag = ""
    site.cut = [1000]
    download(remote(site, checksum=None), tmp_path)
    assert [asked for _, asked in site.log] == [None, None]


def test_a_weak_mark_is_no_mark(site, tmp_path):
    site.tag = 'W/"one"'
    site.cut = [1000]
    download(remote(site, checksum=None), tmp_path)
    assert [asked for _, asked in site.log] == [None, None]


def test_a_part_that_was_complete_needs_no_more(site, tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "data.bin.part").write_bytes(CONTENT)
    assert download(remote(site), tmp_path).read_bytes() == CONTENT
    assert [asked for _, asked in site.log] == ["bytes=300000-"]


def test_a_part_that_is_too_long_is_dropped(site, tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "data.bin.part").write_bytes(CONTENT + b"more")
    assert download(remote(site), tmp_path).read_bytes() == CONTENT
    assert [asked for _, asked in site.log] == ["bytes=300004-", None]


def test_a_wrong_checksum_leaves_nothing(site, tmp_path):
    with pytest.raises(DataError) as caught:
        download(remote(site, b"what was expected"), tmp_path)
    assert "wrong checksum" in str(caught.value)
    assert hashlib.md5(CONTENT).hexdigest() in str(caught.value)
    assert site.base in str(caught.value)
    assert names(tmp_path / "sub") == []


def test_without_a_known_checksum_its_own_is_recorded(site, tmp_path):
    download(remote(site, checksum=None), tmp_path)
    recorded = (tmp_path / "sub" / "data.bin.sha256").read_text()
    assert recorded == f"{hashlib.sha256(CONTENT).hexdigest()}  data.bin\n"
    (tmp_path / "sub" / "data.bin").write_bytes(b"changed")
    with pytest.raises(DataError, match="wrong checksum"):
        download(remote(site, checksum=None), tmp_path)


def test_not_found(site, tmp_path):
    with pytest.raises(DataError, match=r"http://.*/gone .*404 Not Found"):
        download(remote(site, url=f"{site.base}/gone"), tmp_path)
    assert len(site.log) == 1


def test_a_server_in_trouble_is_asked_again(site, tmp_path):
    site.status = [503, 500]
    assert download(remote(site), tmp_path).read_bytes() == CONTENT
    site.status = [503] * 10
    with pytest.raises(DataError, match="503 Service Unavailable"):
        download(remote(site, path="other"), tmp_path)
    assert site.status == [503] * 6


def test_no_server_at_all(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    gone = RemoteFile("data.bin", "http://127.0.0.1:1/data.bin")
    with pytest.raises(DataError, match=r"cannot be fetched \(.*refused.*try again later"):
        download(gone, tmp_path, pause=0)


def test_a_silent_server_is_not_waited_for(site, tmp_path):
    site.stall = threading.Event()
    site.cut = [1000] * 4
    with pytest.raises(DataError, match=r"cannot be fetched \(timed out\); .* are kept"):
        download(remote(site), tmp_path, timeout=0.1)
    site.stall.set()


def test_a_server_that_does_not_say_how_long_the_file_is(site, tmp_path, monkeypatch):
    site.lengthless = True
    assert download(remote(site), tmp_path).read_bytes() == CONTENT
    monkeypatch.setattr(download_module, "MAX_BYTES", 1000)
    with pytest.raises(DataError, match="sends more than it announced"):
        download(remote(site, path="other"), tmp_path)


def test_too_long_and_no_room(site, tmp_path, monkeypatch):
    monkeypatch.setattr(download_module, "MAX_BYTES", 1000)
    with pytest.raises(DataError, match=r"is 300\.0 kB long"):
        download(remote(site), tmp_path)
    monkeypatch.setattr(download_module, "MAX_BYTES", 10**9)
    usage = type("Usage", (), {"free": 5})
    monkeypatch.setattr(download_module.shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(DataError, match=r"300\.0 kB, .*5 bytes free"):
        download(remote(site), tmp_path)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://host/x", "data:text/plain,x", "/etc/passwd"])
def test_only_http(site, tmp_path, url):
    with pytest.raises(DataError, match="begin with http"):
        download(RemoteFile("x", url), tmp_path)
    site.redirect = url
    if ":" in url:
        with pytest.raises(DataError, match=r"begin with http|is not allowed"):
            download(remote(site), tmp_path)
    assert not (tmp_path / "x").exists()


def test_redirects_do_not_lead_from_https_to_http():
    request = urllib.request.Request("https://host/a")
    follow = download_module._Redirects().redirect_request
    with pytest.raises(DataError, match="insecure"):
        follow(request, None, 302, "Found", {}, "http://host/a")
    assert follow(request, None, 302, "Found", {}, "https://host/b").full_url == "https://host/b"


def test_redirects_are_followed_but_not_for_ever(site, tmp_path):
    site.redirect = "/data.bin"
    with pytest.raises(DataError):
        download(remote(site), tmp_path)
    assert len(site.log) < 50


def test_a_place_that_cannot_be_written(site, tmp_path):
    (tmp_path / "sub").write_text("a file where a folder should be")
    with pytest.raises(DataError, match=r"cannot be written .*--data-root"):
        download(remote(site), tmp_path)


def cifar_archive(tmp_path):
    """The binary archive of a small CIFAR-10, and its source with the matching checksum."""
    write_cifar10_binary(tmp_path / "made")
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        tar.add(tmp_path / "made" / "cifar-10-batches-bin", "cifar-10-batches-bin")
    content = stream.getvalue()
    checksum = Checksum("md5", hashlib.md5(content).hexdigest(), official=True)
    source = SOURCES["cifar10"]
    files = (replace(source.files[0], checksum=checksum),)
    return content, replace(source, files=files, full_size=15, full_test=3)


def test_a_data_set_is_fetched_unpacked_and_read(site, tmp_path):
    content, source = cifar_archive(tmp_path)
    site.files["mirror/cifar-10-binary.tar.gz"] = content
    told = []
    root = tmp_path / "root"
    place = fetch(source, root, mirror=f"{site.base}/mirror/", tell=told.append)
    assert place == root / "cifar-10-batches-bin"
    assert len(load("cifar10", root).train) == 15
    assert any("official checksum" in line for line in told)
    assert fetch(source, root, mirror=site.base, tell=told.append) == place
    assert told[-1] == f"cifar10 is already in {place}"
    assert len(site.log) == 1


def test_an_archive_already_there_is_unpacked_without_a_download(site, tmp_path):
    content, source = cifar_archive(tmp_path)
    root = tmp_path / "root"
    root.mkdir()
    (root / "cifar-10-binary.tar.gz").write_bytes(content)
    fetch(source, root, mirror=site.base)
    assert site.log == []
    assert len(load("cifar10", root).train) == 15


def test_an_alternative_archive_will_do(site, tmp_path):
    content, source = cifar_archive(tmp_path)
    alternative = replace(source.files[0], path="cifar-10-python.tar.gz")
    source = replace(source, alternatives=(alternative,))
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(content)
    fetch(source, tmp_path, mirror=site.base)
    assert site.log == []


def test_a_partial_copy_is_left_alone_unless_forced(site, tmp_path):
    content, source = cifar_archive(tmp_path)
    site.files["cifar-10-binary.tar.gz"] = content
    root = tmp_path / "root"
    write_cifar10_binary(root, per_file=1)
    with pytest.raises(DataError, match=r"5 of 15 training images .*--force"):
        fetch(source, root, mirror=site.base)
    assert site.log == []
    fetch(source, root, mirror=site.base, force=True)
    assert len(load("cifar10", root).train) == 15
    assert (root / "cifar-10-batches-bin.old1" / "data_batch_1.bin").is_file()


def test_single_files_are_put_aside_when_forced(site, tmp_path):
    write_idx(tmp_path / "made", train=20)
    write_idx(tmp_path / "root" / "mnist", train=10)
    contents = {file.name: file.read_bytes() for file in (tmp_path / "made").iterdir()}
    site.files.update(contents)
    source = SOURCES["mnist"]
    sums = {name: Checksum("md5", hashlib.md5(content).hexdigest()) for name, content in contents.items()}
    files = tuple(replace(file, checksum=sums[file.path.partition("/")[2]]) for file in source.files)
    source = replace(source, files=files, full_size=20, full_test=6)
    with pytest.raises(DataError, match=r"wrong checksum .* move it away"):
        fetch(source, tmp_path / "root", mirror=site.base)
    fetch(source, tmp_path / "root", mirror=site.base, force=True)
    assert len(load("mnist", tmp_path / "root").train) == 20
    assert (tmp_path / "root" / "mnist" / "train-images-idx3-ubyte.gz.old1").is_file()


@pytest.mark.parametrize(("name", "reason"), [("digits", "scikit-learn"), ("folder", "your own data")])
def test_what_cannot_be_fetched(tmp_path, name, reason):
    with pytest.raises(DataError, match=f"nothing to fetch for {name}: .*{reason}"):
        fetch(SOURCES[name], tmp_path)
