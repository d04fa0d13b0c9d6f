"""What a site keeps for runs that are over: found, and removed where its owner says so."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from proxyfl.core.text import in_words
from proxyfl.deploy.audit import AuditLog
from proxyfl.deploy.settings import Site
from proxyfl.engines.flower.site import RUN_NAME


@dataclass(frozen=True)
class Kept:
    """A folder for one run: its bytes, and when the site last took part in it."""

    folder: Path
    bytes: int
    last: float

    @property
    def size(self) -> str:
        return in_words(self.bytes)


def kept_runs(site: Site) -> list[Kept]:
    """What is kept for runs, the latest first, by the times of files: those of folders are not backed up."""
    place = site.state / site.name
    folders = [one for one in place.glob("*") if RUN_NAME.fullmatch(one.name) and one.is_dir()]
    found = []
    for folder in folders:
        stats = [file.lstat() for file in folder.rglob("*") if not file.is_dir()]
        last = max((one.st_mtime for one in stats), default=folder.stat().st_mtime)
        found.append(Kept(folder, sum(one.st_size for one in stats), last))
    return sorted(found, key=lambda one: one.last, reverse=True)


def prune(site: Site, runs: list[Kept]) -> int:
    """Remove what is kept for these runs; the bytes that were freed. They cannot go on at this site then."""
    for one in runs:
        AuditLog(site.path).add("pruned", run=one.folder.name, bytes=one.bytes)
        shutil.rmtree(one.folder)
    return sum(one.bytes for one in runs)
