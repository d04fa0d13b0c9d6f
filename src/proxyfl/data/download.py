"""Downloads one file over HTTP: with progress, resumed where it stopped, checked before it gets its name.

A download grows as ``NAME.part`` beside ``NAME.part.tag``, which holds the server's mark of the version.
Where no checksum is known, the SHA-256 of what came is recorded beside the file.
"""

from __future__ import annotations

import http.client
import re
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from proxyfl.core.errors import DataError
from proxyfl.core.text import in_words
from proxyfl.data.files import CHUNK, RemoteFile, judge, progress, record

TIMEOUT = 30.0
ATTEMPTS = 4
MAX_BYTES = 8 << 30
RANGE_REFUSED = 416


class _Broken(Exception):
    """A transfer that failed on the way; what arrived is kept."""


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to http and https only, and never from https down to http."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        _check_address(newurl)
        if urlsplit(req.full_url).scheme == "https" and urlsplit(newurl).scheme != "https":
            raise DataError(f"{req.full_url} redirects to the insecure {newurl}, which is not followed")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


@dataclass(frozen=True)
class _Part:
    """The unfinished file and the mark of the version it belongs to."""

    path: Path
    tag_path: Path

    @property
    def size(self) -> int:
        return self.path.stat().st_size if self.path.is_file() else 0

    @property
    def tag(self) -> str:
        return self.tag_path.read_text(encoding="latin-1").strip() if self.tag_path.is_file() else ""

    def drop(self) -> None:
        self.path.unlink(missing_ok=True)
        self.tag_path.unlink(missing_ok=True)


def download(file: RemoteFile, root: Path, *, timeout: float = TIMEOUT, pause: float = 1.0) -> Path:
    """Bring ``file`` to its place under ``root``. A file already there is only checked."""
    _check_address(file.url)
    target = root / file.path
    if target.is_file():
        _accept(target, target, file)
        return target
    part = _Part(target.with_name(target.name + ".part"), target.with_name(target.name + ".part.tag"))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        resumed = _transfer(file, part, timeout, pause)
        try:
            _accept(part.path, target, file)
        except DataError:
            part.drop()
            if not resumed:
                raise
            # the beginning may have been of another version: once more, from the start
            _transfer(file, part, timeout, pause)
            _accept(part.path, target, file)
        part.path.rename(target)
        part.tag_path.unlink(missing_ok=True)
        if file.checksum is None:
            record(target)
    except OSError as error:
        raise DataError(
            f"{target} cannot be written ({error}); make room or choose another --data-root"
        ) from None
    return target


def _accept(path: Path, target: Path, file: RemoteFile) -> None:
    verdict = judge(path, (file.checksum,) if file.checksum else ())
    if verdict.word == "differs":
        fate = "move it away and" if path == target else f"the data received from {file.url} was discarded;"
        raise DataError(f"{target} has the wrong checksum ({verdict.detail}); {fate} fetch again")


def _transfer(file: RemoteFile, part: _Part, timeout: float, pause: float) -> bool:
    """Fill the part, trying again where the line breaks; True if it was begun before this call."""
    resumed = part.size > 0
    reason = ""
    for attempt in range(ATTEMPTS):
        time.sleep(pause * attempt)
        try:
            _request(file, part, timeout)
            return resumed
        except urllib.error.HTTPError as error:
            reason = f"{error.code} {error.reason}"
            whole = error.headers.get("Content-Range") == f"bytes */{part.size}"
            error.close()
            if error.code == RANGE_REFUSED and whole and part.size:
                return resumed  # everything had arrived before
            if error.code == RANGE_REFUSED:
                part.drop()
            elif error.code < 500:
                raise DataError(f"{file.url} answers {reason}; is the address still right?") from None
        except _Broken as error:
            reason = str(error)
    kept = f"{in_words(part.size)} are kept, fetch again to continue" if part.size else "try again later"
    raise DataError(f"{file.url} cannot be fetched ({reason}); {kept}")


def _request(file: RemoteFile, part: _Part, timeout: float) -> None:
    headers = {"User-Agent": "proxyfl", "Accept-Encoding": "identity"}
    start = part.size
    # without the server's mark only a checksum can tell whether old and new bytes belong together
    if start and (part.tag or file.checksum):
        headers["Range"] = f"bytes={start}-"
        if part.tag:
            headers["If-Range"] = part.tag
    with _open(file.url, headers, timeout) as response:
        start = _start_of(response, start)
        length = response.headers.get("Content-Length", "")
        total = start + int(length) if length.isdecimal() else None
        _check_room(file, part.path.parent, total or 0, start)
        part.tag_path.write_text(_tag_of(response.headers), encoding="latin-1")
        received = _receive(response, part.path, start, total)
    if total is not None and received < total:
        raise _Broken(f"the connection broke after {in_words(received)} of {in_words(total)}")


@contextmanager
def _open(url: str, headers: dict[str, str], timeout: float) -> Iterator[http.client.HTTPResponse]:
    """Ask for ``url`` with the handlers for http alone; urllib would add ftp, file and data on its own."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        _Redirects(),
    ):
        opener.add_handler(handler)
    try:
        response = opener.open(urllib.request.Request(url, headers=headers), timeout=timeout)
    except urllib.error.HTTPError:
        raise
    except (OSError, http.client.HTTPException) as error:
        raise _Broken(str(getattr(error, "reason", error))) from None
    with response:
        yield response


def _receive(response: http.client.HTTPResponse, path: Path, start: int, total: int | None) -> int:
    """Append the answer to ``path`` from ``start`` on; the length reached."""
    limit = MAX_BYTES if total is None else total
    with path.open("r+b" if start else "wb") as out, progress(path.stem, total, of_bytes=True) as advance:
        out.seek(start)
        out.truncate()
        advance(start)
        while piece := _read(response):
            start += len(piece)
            if start > limit:
                raise _Broken("the server sends more than it announced")
            out.write(piece)
            advance(len(piece))
    return start


def _read(response: http.client.HTTPResponse) -> bytes:
    try:
        return response.read1(CHUNK)  # what has come so far, so that a silent server costs nothing
    except (OSError, http.client.HTTPException) as error:
        raise _Broken(str(error) or type(error).__name__) from None


def _start_of(response: http.client.HTTPResponse, asked: int) -> int:
    """Where the answer begins: 0 when the server ignores ranges or has another version by now."""
    if response.status != http.client.PARTIAL_CONTENT:
        return 0
    begins = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    if begins is None or int(begins[1]) != asked:
        raise _Broken("the server answers with a different range than requested")
    return asked


def _tag_of(headers: Message) -> str:
    """A strong ETag, else the date of the last change; weak tags do not promise equal bytes."""
    tag = str(headers.get("ETag", ""))
    return tag if tag and not tag.startswith("W/") else str(headers.get("Last-Modified", ""))


def _check_address(url: str) -> None:
    if urlsplit(url).scheme not in ("http", "https"):
        raise DataError(f"{url} is not fetched; addresses begin with http:// or https://")


def _check_room(file: RemoteFile, folder: Path, total: int, start: int) -> None:
    if total > MAX_BYTES:
        raise DataError(f"{file.url} is {in_words(total)} long; at most {in_words(MAX_BYTES)} are fetched")
    free, needed = shutil.disk_usage(folder).free, total - start
    if needed > free:
        raise DataError(f"{file.path} needs {in_words(needed)}, {folder} has {in_words(free)} free")
