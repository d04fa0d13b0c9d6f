"""Runs of a sweep on a Ray cluster: each is made whole by one actor, in a folder that every node sees."""

from __future__ import annotations

import contextlib
import secrets
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from proxyfl.core import plugins
from proxyfl.core.errors import ProxyFLError, RunError
from proxyfl.engines.cluster.actor import require_same, versions
from proxyfl.engines.cluster.connection import LONG, Cluster, Lost, Needs, Watch
from proxyfl.engines.cluster.engine import RayEngine
from proxyfl.engines.cluster.frames import framed, unframed
from proxyfl.engines.crew import TRIES
from proxyfl.engines.serialization import Header
from proxyfl.runs.batch import PAUSE, Job, Look, finish, work_off
from proxyfl.runs.settings import resolve


def train_on_cluster(
    jobs: Sequence[Job], engine: RayEngine, look: Look = lambda failed: None
) -> dict[Path, str]:
    """Make or finish the runs on a cluster, as many at a time as it has room for; what could not be made, and
    why. ``engine`` says which cluster, and what a run takes of its node. A run whose node dies is gone on
    with by another node, once.
    """
    if not jobs:
        return {}
    compute = jobs[0].config.compute
    needs = engine.needs(compute.device, max(job.config.compute.threads for job in jobs))
    with contextlib.closing(Cluster(engine.address)) as cluster, _mark(jobs) as mark:
        room = cluster.require_room(needs, "run")
        together = min(engine.workers or room, room, len(jobs))

        watch = Watch(cluster, needs, "run the same command again to continue")

        def pause(running: Sequence[_Remote]) -> None:
            cluster.first([remote.pending for remote in running], PAUSE)
            watch.look(any(remote.placed for remote in running))

        return work_off(jobs, together, lambda job: _Remote(cluster, job, needs, mark), pause, look)


@contextlib.contextmanager
def _mark(jobs: Sequence[Job]) -> Iterator[Path]:
    """A file beside the runs, by which a node can tell that it sees the same folder."""
    folder = jobs[0].path.absolute().parent
    folder.mkdir(parents=True, exist_ok=True)
    mark = folder / f".cluster-{secrets.token_hex(8)}"
    mark.touch()
    try:
        yield mark
    finally:
        mark.unlink(missing_ok=True)


class _Remote:
    """A run that an actor makes, and another one if that is lost. An actor that was lost before it was there
    does not count: for a while after a node died, Ray still places actors on it.
    """

    def __init__(self, cluster: Cluster, job: Job, needs: Needs, mark: Path) -> None:
        self.cluster, self.job, self.needs = cluster, job, needs
        threads = job.config.compute.threads
        self.order = framed(_order(job, int(needs.cpus // threads), mark), {})
        self.tries, self.said, self.lost = 0, "", 0.0
        self._begin()

    def _begin(self) -> None:
        self.tries += 1
        self.actor = self.cluster.hire(RunActor, self.needs)
        self.there = self.cluster.ask(self.actor, "ping")
        self.pending = self.cluster.ask(self.actor, "make", self.order)
        self._placed = False

    @property
    def placed(self) -> bool:
        """Whether a node has started the actor."""
        self._placed = self._placed or bool(self.cluster.first([self.there], 0))
        return self._placed

    def _stillborn(self) -> bool:
        self.lost = self.lost or time.monotonic()
        try:
            self.cluster.answer(self.there)
        except Lost:
            return time.monotonic() - self.lost < LONG
        return False

    @property
    def alive(self) -> bool:
        if not self.cluster.first([self.pending], 0):
            return True
        try:
            self.said = unframed(self.cluster.answer(self.pending))[0]["error_text"]
        except Lost as lost:
            self.tries -= self._stillborn()
            if self.tries < TRIES:
                self._begin()
                return True
            self.said = f"its actor died {TRIES} times ({lost}); run the same command again to continue"
        self.end()
        return False

    def error_text(self) -> str:
        return self.said

    def end(self) -> None:
        self.cluster.dismiss(self.actor)


def _order(job: Job, workers: int, mark: Path) -> Header:
    root = None if job.data_root is None else str(job.data_root.absolute())
    return {
        "name": job.name,
        "config": job.config.to_tree(),
        "path": str(job.path.absolute()),
        "data_root": root,
        "workers": workers if workers > 1 else 0,
        "plugins": plugins.loaded,
        "versions": versions(),
        "mark": str(mark),
    }


class RunActor:
    """Makes one run in its own process."""

    def ping(self) -> bytes:
        return b""

    def make(self, order: bytes) -> bytes:
        header, _ = unframed(order)
        try:
            require_same(header["versions"])
            _require_seen(Path(header["mark"]))
            for plugin in header["plugins"]:
                plugins.load_plugin(plugin)
            root = Path(header["data_root"]) if header["data_root"] else None
            job = Job(header["name"], resolve("", header["config"]), Path(header["path"]), root)
        except ProxyFLError as error:
            return framed({"error_text": str(error)}, {})
        except Exception as error:  # of this node alone: other runs go on
            why = f"{type(error).__name__}: {error}"
            return framed({"error_text": f"node {socket.gethostname()}: {why}"}, {})
        return framed({"error_text": finish(job, header["workers"], ())}, {})


def _require_seen(mark: Path) -> None:
    if not mark.exists():
        raise RunError(
            f"node {socket.gethostname()} does not see {mark.parent}; name a folder that all nodes of the "
            "cluster share, with --runs"
        )
