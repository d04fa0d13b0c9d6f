"""A server or a site in one file, and back on another machine: what cannot be made anew, each with its hash.

Left out are Flower's database, logs, caches and locks. Keys are in it: the file is for its owner alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from proxyfl.core.errors import ConfigError, RunError
from proxyfl.core.files import SHORT, has_hash, sync_folder
from proxyfl.deploy import scaffold
from proxyfl.deploy.audit import FOLDER, AuditLog
from proxyfl.deploy.names import REMOVED
from proxyfl.deploy.post import Post
from proxyfl.deploy.settings import FEDERATION_FILE, SITE_FILE, Deployment, Site
from proxyfl.runs.directory import RunDirectory

FORMAT = 1
CONTENTS = "proxyfl-backup.json"
"""The first entry: what the file is of, and the SHA-256 of each other entry."""
PIECE = 1 << 20

Step = Callable[[int], None]
"""Called with the number of bytes just done."""


def size_of(folder: str | Path) -> int:
    """Bytes that a back-up of a folder holds."""
    place = _opened(folder)
    return sum(file.stat().st_size for file in _files(place))


def back_up(folder: str | Path, target: Path, step: Step = lambda more: None) -> int:
    """Write a server or a site that does not run into a file; how many files are in it."""
    place = _opened(folder)
    kind, name, states = _what(place)
    if target.exists():
        raise RunError(f"{target} exists and is not overwritten; choose another name")
    for state, who in states.items():
        if Post(state, who).is_taken() or RunDirectory(state).is_locked():
            raise RunError(
                f"{who} is running in {state.parent}, and what it keeps changes meanwhile; stop it, then "
                "repeat this"
            )
    log = AuditLog(place)
    with _written(target) as raw:
        log.add("backed up", file=target.name)
        try:
            return _archive(raw, place, {"kind": kind, "name": name}, step)
        except BaseException as error:
            with contextlib.suppress(RunError):  # what went wrong itself, where the disk is full
                log.add("backup failed", file=target.name, reason=str(error) or type(error).__name__)
            raise


@contextlib.contextmanager
def _written(target: Path) -> Iterator[IO[bytes]]:
    """A new file that gets its name when it is whole."""
    folder = target.absolute().parent
    if not folder.is_dir():
        raise RunError(f"folder not found: {folder}; create it, or choose another")
    aside = target.with_name(f".{target.name}.{os.getpid()}.aside")
    try:
        with open(aside, "xb", opener=_private) as raw:
            yield raw
            raw.flush()
            os.fsync(raw.fileno())
        aside.replace(target)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    sync_folder(folder)


def _archive(raw: IO[bytes], place: Path, what: dict[str, Any], step: Step) -> int:
    files = sorted(_files(place))
    hashes = {str(file.relative_to(place)): "0" * 64 for file in files}
    now = datetime.now(UTC).isoformat(timespec="seconds")
    about = {"format": FORMAT, **what, "time": now, "files": hashes}
    if len(json.dumps(about, indent=1)) > SHORT:
        raise RunError(f"{place} has {len(files)} files, too many for one back-up; move old runs away first")
    try:
        with tarfile.open(fileobj=raw, mode="w", dereference=True) as archive:
            start = _add_bytes(archive, CONTENTS, json.dumps(about, indent=1).encode())
            for file, entry in zip(files, hashes, strict=True):
                hashes[entry] = _add_file(archive, file, entry, step)
    except FileNotFoundError as error:
        raise RunError(f"{error.filename} disappeared while it was backed up; repeat this") from None
    raw.seek(start)  # the contents come first, and the hashes are known last: of the same length
    raw.write(json.dumps(about, indent=1).encode())
    return len(files)


def restore(source: Path, folder: str | Path, step: Step = lambda more: None) -> tuple[str, list[str]]:
    """A back-up as a new folder, whole or not at all; (``server`` or ``site``, notes in sentences)."""
    path = Path(folder).expanduser().resolve()
    if path.exists():
        raise RunError(f"{path} exists and is not overwritten; choose a new folder")
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        about = _unpack(source, aside, step)
        AuditLog(aside).add("restored", file=source.name, made=str(about.get("time"))[:40])
        aside.rename(path)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    sync_folder(path.parent)
    notes = []
    if about["kind"] == "server":
        deployment = Deployment.read(path)
        scaffold.write_texts(deployment)
        for what, place in (("test", deployment.test_path), ("server_data", deployment.server_data_path)):
            if place is not None and not place.exists():
                notes.append(f"{what} of {deployment.file} names {place}, which is not on this machine")
    return str(about["kind"]), notes


def _unpack(source: Path, target: Path, step: Step) -> dict[str, Any]:
    """Every entry that the contents name and no other, with the bytes that they name."""
    try:
        with tarfile.open(source, mode="r:") as archive:
            first = archive.next()
            if first is None or first.name != CONTENTS or first.size > SHORT or not first.isreg():
                raise RunError(f"{source} is not a back-up made by proxyfl")
            about = json.loads(_opened_entry(archive, first).read())
            if about["format"] != FORMAT or about["kind"] not in ("server", "site"):
                raise RunError(f"{source} is a back-up of another version of proxyfl; use that version")
            wanted = dict(about["files"])
            while entry := archive.next():
                if not entry.isreg() or wanted.get(entry.name) is None:
                    raise RunError(
                        f"{source} is damaged: it holds '{entry.name[:80]}', which it does not name"
                    )
                place = _inside(target, entry.name)
                _write(_opened_entry(archive, entry), place, entry.mode, entry.mtime, step)
                if not has_hash(target / entry.name, wanted.pop(entry.name)):
                    raise RunError(f"{source} is damaged: '{entry.name[:80]}' is not what was backed up")
    except FileNotFoundError:
        raise RunError(f"{source} does not exist") from None
    except (tarfile.TarError, ValueError, KeyError, TypeError, EOFError) as error:
        raise RunError(f"{source} is damaged or not a back-up ({type(error).__name__})") from None
    if wanted:
        raise RunError(
            f"{source} is damaged: {len(wanted)} file(s) are missing, {next(iter(wanted))[:80]} first"
        )
    return dict(about)


def _inside(folder: Path, name: str) -> Path:
    place = (folder / name).resolve()
    if not place.is_relative_to(folder.resolve()) or name != str(Path(name)):
        raise RunError(f"the back-up names '{name[:80]}', which leads out of the folder")
    return place


def _write(source: IO[bytes], place: Path, mode: int, modified: float, step: Step) -> None:
    """A file with its time, by which ``deploy prune`` finds the latest run, unless that is in the future."""
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(place, "xb", opener=_private) as file:
        while piece := source.read(PIECE):
            file.write(piece)
            step(len(piece))
        file.flush()
        os.fsync(file.fileno())
    place.chmod(0o700 if mode & 0o100 else 0o600)
    if 0 <= modified <= time.time():
        os.utime(place, (modified, modified))


def _opened_entry(archive: tarfile.TarFile, entry: tarfile.TarInfo) -> IO[bytes]:
    found = archive.extractfile(entry)
    if found is None:
        raise ValueError(entry.name)
    return found


class _Hashed:
    """A file whose bytes are hashed as they are read."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.digest = file, hashlib.sha256()

    def read(self, count: int = -1) -> bytes:
        piece = self.file.read(count)
        self.digest.update(piece)
        return piece


def _add_file(archive: tarfile.TarFile, file: Path, name: str, step: Step) -> str:
    """Archive a file; the SHA-256 of the bytes that are in the archive, whatever it holds a moment later."""
    with file.open("rb") as opened:
        entry, source = _anonymous(archive.gettarinfo(arcname=name, fileobj=opened)), _Hashed(opened)
        try:
            archive.addfile(entry, source)
        except OSError as error:
            if "unexpected end of data" not in str(error):
                raise
            raise RunError(f"{file} was shortened while it was backed up; repeat this") from None
    step(entry.size)
    return source.digest.hexdigest()


def _add_bytes(archive: tarfile.TarFile, name: str, content: bytes) -> int:
    """Archive bytes; where in the file they begin."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), 0o600
    archive.addfile(entry, io.BytesIO(content))
    blocks = -(-len(content) // tarfile.BLOCKSIZE)
    return archive.offset - blocks * tarfile.BLOCKSIZE


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _opened(folder: str | Path) -> Path:
    return Path(folder).expanduser().resolve()


def _what(place: Path) -> tuple[str, str, dict[Path, str]]:
    """(kind, how it is called, who runs with which state below the folder).

    Sites may run in the server's folder on one machine, one that was removed in the folder it was moved to.
    """
    if (place / FEDERATION_FILE).is_file():
        deployment = Deployment.read(place)
        name = f"the server of {place}"
        sites = [deployment.site_folder(one) for one in deployment.present]
        sites += [file.parent for file in (place / REMOVED).glob(f"*/{SITE_FILE}")]
        return "server", name, {deployment.state: name, **{one / "state": one.name for one in sites}}
    if (place / SITE_FILE).is_file():
        site = Site.read(place)
        return "site", site.name, {site.state: site.name}
    raise ConfigError(f"{place} is neither a deployment nor a site; give the folder with {FEDERATION_FILE}")


def _files(place: Path) -> Iterator[Path]:
    """What cannot be made anew. Of a site's state that is what it keeps for runs, of a server's nothing."""
    _, _, states = _what(place)
    for folder, folders, files in os.walk(place):
        here = Path(folder)
        if here in states:
            folders[:], files = [one for one in folders if one == states[here]], []
        folders[:] = [one for one in folders if not one.startswith(".")]
        files = [one for one in files if not one.startswith(".")]
        for one in map(here.joinpath, (*folders, *files)):
            if one.is_symlink():
                raise RunError(
                    f"{one} is a link, and what it leads to would not be in the back-up; put the folder or "
                    "file itself there, mount its disk there, or name its place in the settings instead"
                )
        for file in map(here.joinpath, files):
            if file.is_file() and not (here.name == FOLDER and file.suffix == ".lock"):
                yield file
