"""Runs of a sweep on a Ray cluster: each is made whole by one actor, in a folder that every node sees."""

from __future__ import annotations

import contextlib
import secrets
import socket
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from proxyfl.core import plugins
from proxyfl.core.errors import ProxyFLError, RunError
from proxyfl.engines.cluster.actor import require_same, versions
from proxyfl.engines.cluster.connection import LONG, Cluster, Lost, Needs, Unfit, this_node
from proxyfl.engines.cluster.engine import RayEngine
from proxyfl.engines.cluster.frames import framed, unframed
from proxyfl.engines.cluster.watch import Watch
from proxyfl.engines.crew import TRIES
from proxyfl.engines.serialization import Header
from proxyfl.runs.batch import PAUSE, Job, Look, finish, work_off
from proxyfl.runs.settings import resolve

MARK = ".cluster-"
"""What the name of a file begins with by which a node can tell that it sees the folder of the runs."""


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
        nodes = _Nodes(watch, together)

        def pause(running: Sequence[_Remote]) -> None:
            cluster.first([remote.pending for remote in running], PAUSE)
            watch.look(any(remote.placed for remote in running))

        return work_off(jobs, together, lambda job: _Remote(cluster, job, needs, mark, nodes), pause, look)


@contextlib.contextmanager
def _mark(jobs: Sequence[Job]) -> Iterator[Path]:
    """A file beside the runs, by which a node can tell that it sees the same folder."""
    folder = jobs[0].path.absolute().parent
    folder.mkdir(parents=True, exist_ok=True)
    mark = folder / f"{MARK}{secrets.token_hex(8)}"
    mark.touch()
    try:
        yield mark
    finally:
        mark.unlink(missing_ok=True)


class _Nodes:
    """Which nodes cannot begin a run, as far as runs have found out. A run that no node can begin is at fault
    itself, and then says nothing about the nodes.
    """

    def __init__(self, watch: Watch, together: int) -> None:
        self.watch, self.together = watch, together
        self.against: dict[str, dict[Path, str]] = {}
        self.proven: set[str] = set()
        self.at_fault = 0

    def without(self, job: Job) -> Collection[str]:
        """The nodes that this run is not to be given to."""
        its = self._its(job)
        others = its | {node for node in self.against if node not in self.proven}
        return others if others == its or self.room(others) else its

    def refuse(self, job: Job, node: str, why: str) -> bool:
        """A node could not begin a run. Whether there is another for it."""
        self.against.setdefault(node, {})[job.path] = why
        if self.room(self._its(job)):
            self.watch.warn(why)
            return True
        self.forget(job)
        self.at_fault += 1
        if self.at_fault > self.together and not self.proven:
            raise RunError(f"no node of the Ray cluster can begin a run: {why}")
        return False

    def forget(self, job: Job) -> None:
        """Whichever nodes could not begin this run, it may be given to any."""
        for runs in self.against.values():
            runs.pop(job.path, None)
        self.against = {node: runs for node, runs in self.against.items() if runs}

    def _its(self, job: Job) -> set[str]:
        return {node for node, runs in self.against.items() if job.path in runs}

    def room(self, without: Collection[str]) -> int:
        return self.watch.cluster.room(self.watch.needs, without)


class _Remote:
    """A run that an actor makes, and another one if that is lost. An actor that was lost before it was there
    does not count: for a while after a node died, Ray still places actors on it.
    """

    def __init__(self, cluster: Cluster, job: Job, needs: Needs, mark: Path, nodes: _Nodes) -> None:
        self.cluster, self.job, self.needs, self.nodes = cluster, job, needs, nodes
        threads = job.config.compute.threads
        self.order = framed(_order(job, int(needs.cpus // threads), mark), {})
        self.tries, self.said, self.lost, self.alone = 0, "", 0.0, 0.0
        self._begin()

    def _begin(self) -> None:
        self.tries += 1
        self.without = self.nodes.without(self.job)
        self.actor = self.cluster.hire(RunActor, self.needs, self.without)
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
        self.lost = 0.0
        return False

    @property
    def alive(self) -> bool:
        if not self.cluster.first([self.pending], 0):
            if self.without and not self.placed and self._waits_for_too_few():
                self._once_more()
            return True
        try:
            answer = unframed(self.cluster.answer(self.pending))[0]
            self.said, node = answer["error_text"], answer["node"]
            if answer["setup"]:
                return self._refused(node)
            self.nodes.proven.add(node)
        except Lost as lost:
            if isinstance(lost, Unfit) and lost.node:
                self.said = str(lost)
                return self._refused(lost.node)
            self.tries -= self._stillborn()
            if self.tries < TRIES:
                self._begin()
                return True
            self.said = f"its actor died {TRIES} times ({lost}); run the same command again to continue"
        self.end()
        return False

    def _waits_for_too_few(self) -> bool:
        """Whether more nodes can be used than it waits for, or those have been gone for long. It may then
        have the others again: what kept it from them may be repaired, and if not, it fails with the cause.
        """
        if {*self.without} - {*self.nodes.without(self.job)}:
            return True
        if self.nodes.room(self.without):
            self.alone = 0.0
            return False
        self.alone = self.alone or time.monotonic()
        if time.monotonic() - self.alone <= LONG:
            return False
        self.alone = 0.0
        self.nodes.forget(self.job)
        return True

    def _refused(self, node: str) -> bool:
        """The node could not begin the run, which is no try of the run: another node gets it."""
        elsewhere = self.nodes.refuse(self.job, node, self.said)
        if elsewhere:
            self._once_more()
        else:
            self.end()
        return elsewhere

    def _once_more(self) -> None:
        self.end()
        self.tries -= 1
        self._begin()

    def error_text(self) -> str:
        return self.said

    def end(self) -> None:
        self.cluster.dismiss(self.actor)


def _order(job: Job, workers: int, mark: Path) -> Header:
    root = None if job.data_root is None else str(job.data_root.absolute())
    seen = [str(mark), *([root] if root and Path(root).exists() else [])]
    return {
        "name": job.name,
        "config": job.config.to_tree(),
        "path": str(job.path.absolute()),
        "data_root": root,
        "workers": workers if workers > 1 else 0,
        "plugins": plugins.loaded,
        "versions": versions(),
        "seen": seen,
    }


class RunActor:
    """Makes one run in its own process."""

    def ping(self) -> bytes:
        return b""

    def make(self, order: bytes) -> bytes:
        header, _ = unframed(order)
        try:
            require_same(header["versions"])
            for place in header["seen"]:
                _require_seen(Path(place))
            for plugin in header["plugins"]:
                plugins.load_plugin(plugin)
            root = Path(header["data_root"]) if header["data_root"] else None
            job = Job(header["name"], resolve("", header["config"]), Path(header["path"]), root)
        except Exception as error:  # of this node alone: another may be able to begin
            why = str(error) if isinstance(error, ProxyFLError) else f"{type(error).__name__}: {error}"
            why = why if why.startswith("node ") else f"node {socket.gethostname()}: {why}"
            return framed({"error_text": why, "setup": True, "node": this_node()}, {})
        why = finish(job, header["workers"], ())
        return framed({"error_text": why, "setup": False, "node": this_node()}, {})


def _require_seen(place: Path) -> None:
    if not place.exists():
        folder, option = (place.parent, "--runs") if place.name.startswith(MARK) else (place, "--data-root")
        raise RunError(
            f"node {socket.gethostname()} does not see {folder}; name a folder that all nodes of the "
            f"cluster share, with {option}"
        )
