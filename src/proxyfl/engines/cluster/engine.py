"""The Ray engine: clients trained by actors on the nodes of a Ray cluster.

Trainer and data are put into the cluster's memory once, the broadcast once a round; what is for one client
alone, and its answer, cross the network as header and tensors. What a client keeps between rounds is with the
run, never on a node. Answers come in the order of the tasks, so a cluster gives the same bits as one process.
"""

from __future__ import annotations

import math
import sys
import time
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from proxyfl.core import plugins
from proxyfl.core.errors import ConfigError, RunError
from proxyfl.core.provenance import instructions
from proxyfl.core.state import TRAIN, Failure, Task, Tensors, Update, namespace, within
from proxyfl.data.holdings import Holdings
from proxyfl.engines.cluster.actor import STATE, ClientActor, header_of
from proxyfl.engines.cluster.connection import (
    AUTO,
    LONG,
    Actor,
    Cluster,
    Lost,
    Needs,
    Ref,
    Unfit,
    require_address,
)
from proxyfl.engines.cluster.frames import block_of, framed, unframed
from proxyfl.engines.cluster.watch import Watch
from proxyfl.engines.crew import LOOK_ROUND, TRIES, Crew, Job
from proxyfl.engines.handover import CannotHandOver, packed
from proxyfl.engines.inline import InlineEngine
from proxyfl.engines.remote_error import raised
from proxyfl.engines.serialization import pack_task, unpack_answer
from proxyfl.engines.shared import Layout
from proxyfl.federation.client import ClientTrainer
from proxyfl.federation.loop import Engine

SHARE_OF_GPU = 0.5
"""What a client takes of a GPU where nobody says it: two train on one, as with worker processes."""


@dataclass(frozen=True)
class RayEngine:
    """Trains clients on a Ray cluster; results are bit-identical to those of one process.

    ``address`` is HOST:PORT of the cluster, ``auto`` for the one that this machine is part of, or ``local``
    for one that is started here and ends with the rounds. ``workers`` clients train in parallel, by default
    as many as the cluster has room for; each reserves ``cpus`` (by default one per thread), ``gpus``
    (a share such as 0.5, or whole ones) and ``memory`` (in gigabytes) of its node.

    >>> import proxyfl
    >>> engine = proxyfl.RayEngine("auto", gpus=0.5)
    >>> federation = proxyfl.Federation(data, split, engine=engine)  # doctest: +SKIP
    """

    address: str = AUTO
    workers: int | None = None
    cpus: float | None = None
    gpus: float | None = None
    memory: float = 0.0
    exact: bool = False
    """Whether a node that may round differently is an error and not a note."""

    def __post_init__(self) -> None:
        require_address(self.address)
        _require_amount("cpus", self.cpus, above=0)
        _require_amount("gpus", self.gpus)
        _require_amount("memory", self.memory)
        if self.gpus and self.gpus > 1 and self.gpus != int(self.gpus):
            raise ConfigError(f"gpus = {self.gpus:g} must be a share below 1 or a whole number")
        if self.workers is not None and (type(self.workers) is not int or self.workers < 1):
            raise ConfigError(f"workers = {self.workers!r} must be a number of clients, at least 1")

    def __call__(self, trainer: ClientTrainer, holdings: Holdings) -> Engine:
        """The engine for these clients; the cluster must be there."""
        if trainer.settings.leak_momentum:
            return _here(trainer, holdings, "each passes its momentum to the next")
        try:
            packed(trainer)
        except CannotHandOver as error:
            return _here(trainer, holdings, f"nodes cannot receive {error}")
        return ClusterEngine(trainer, holdings, self)

    def needs(self, device: str, threads: int) -> Needs:
        """The resources that one client reserves on its node."""
        gpus = self.gpus if self.gpus is not None else SHARE_OF_GPU * device.startswith("cuda")
        return Needs(self.cpus or threads, gpus, self.memory)


def _here(trainer: ClientTrainer, holdings: Holdings, why: str) -> InlineEngine:
    print(f"note: clients train in this process, not on the cluster: {why}", file=sys.stderr)
    return InlineEngine.over(trainer, holdings)


def _require_amount(name: str, value: float | None, above: float = -1) -> None:
    fine = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if value is not None and not (fine and value >= 0 and value > above):
        raise ConfigError(f"{name} = {value!r} must be a number {'above' if above == 0 else 'from'} 0")


class _Hired:
    """An actor, as the engine sees it; ``pending`` is the answer that it owes."""

    def __init__(self, cluster: Cluster, actor: Actor, pending: Ref) -> None:
        self.cluster, self.actor, self.pending = cluster, actor, pending
        self.ready, self.node = False, ""
        self.began, self.elsewhere = time.monotonic(), False
        self.job: Job | None = None

    def end(self) -> None:
        self.cluster.dismiss(self.actor)


class ClusterEngine(Crew[_Hired]):
    """Actors are hired as tasks need them, and dismissed by :meth:`close`."""

    def __init__(self, trainer: ClientTrainer, holdings: Holdings, options: RayEngine) -> None:
        super().__init__(0)
        self.trainer, self.holdings, self.options = trainer, holdings, options
        self.needs = options.needs(trainer.compute.device, trainer.compute.threads)
        self._layout: Layout = {}
        self._broadcast: Ref = None
        self._given: tuple[bytes, Ref, Ref] | None = None
        self._stillborn, self.differs = 0, ""
        self._cluster: Cluster | None = None
        try:
            self._size()
        except BaseException:
            self.close()
            raise

    @property
    def cluster(self) -> Cluster:
        """Connected anew where :meth:`close` was called between two rounds."""
        if self._cluster is None:
            self._cluster = cluster = Cluster(self.options.address)
            weakref.finalize(self, cluster.close).atexit = False  # for engines that are dropped, not closed
            self._watch = Watch(
                cluster, self.needs, "the last checkpoint is kept, resume when nodes are back"
            )
        return self._cluster

    def close(self) -> None:
        super().close()
        self._given = self._broadcast = None
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def _size(self) -> None:
        """How many actors there may be; nodes come and go."""
        room = self.cluster.require_room(self.needs, "client")
        if self._watch.rejected:
            room = self._watch.room()
        if not room:
            raise self._watch.hopeless()
        self.count = min(room, self.options.workers or room)
        self._stillborn, self._patience = 0, TRIES * self.count

    def run(self, tasks: Iterable[Task]) -> Iterator[Update | Failure]:
        self._size()
        starting = [hired for hired in self.workers if not hired.ready]
        for surplus in starting[max(0, self.count - len(self.workers) + len(starting)) :]:
            self._dismiss(surplus)
        self._doubt()
        yield from super().run(tasks)

    def _doubt(self) -> None:
        """Ask those who have nothing to do whether they live: who died idle costs no client a try."""
        for hired in self.workers:
            if hired.ready and hired.job is None:
                hired.ready, hired.pending = False, self.cluster.ask(hired.actor, "ping")

    def _suits(self, worker: _Hired, job: Job) -> bool:
        """A client whose actor died is not tried on that node again for a while, unless there is none
        elsewhere, and none is coming up.
        """
        young = time.monotonic() - LONG
        if worker.node != job.avoid or job.lost < young:
            return True
        return not any(
            hired.node != job.avoid and (hired.node or hired.began > young) for hired in self.workers
        )

    def _staff(self) -> list[_Hired]:
        young = time.monotonic() - LONG
        for hired in [each for each in self.workers if each.elsewhere and not each.node]:
            if hired.began < young:
                self._dismiss(hired)  # no room on another node: it would wait for ever
        busy = sum(hired.job is not None for hired in self.workers)
        while len(self.workers) < min(self.count, busy + len(self._waiting)):
            if self._stillborn > self._patience and self._usable():
                break
            self._hire()
        return self.workers

    def _usable(self) -> bool:
        return any(hired.node for hired in self.workers)

    def _hire(self, avoid: str = "") -> None:
        """One more, not on nodes that cannot be used, nor on the one to avoid."""
        without = {*self._watch.rejected, avoid} - {""}
        actor = self.cluster.hire(ClientActor, self.needs, without)
        opened = self.cluster.ask(actor, "open", *self._opening())
        self.workers.append(_Hired(self.cluster, actor, opened))
        self.workers[-1].elsewhere = bool(avoid)

    def _opening(self) -> tuple[bytes, Ref, Ref]:
        if self._given is None:
            layout, block = block_of(self.holdings.to_tensors())
            put = self.cluster.put
            self._given = header_of(layout, plugins.loaded), put(packed(self.trainer)), put(block)
        return self._given

    def _publish(self, broadcast: Tensors) -> None:
        self._layout, block = block_of(broadcast)
        self._broadcast = self.cluster.put(block)

    def _give(self, worker: _Hired, job: Job) -> None:
        task = job.task
        header, tensors = pack_task(task)
        if self.trainer.keeps_state and task.purpose == TRAIN:
            tensors |= within(STATE, self.trainer.store.load(task.client, task.version))
        frame = framed({**header, "broadcast": self._layout}, tensors)
        worker.pending = self.cluster.ask(worker.actor, "train", frame, self._broadcast)
        job.tries += 1

    def _listen(self) -> None:
        owing = {hired.pending: hired for hired in self.workers if hired.pending is not None}
        for ref in self.cluster.first([*owing], LOOK_ROUND):
            self._hear(owing[ref])
        self._watch.look(any(hired.ready for hired in self.workers))

    def _hear(self, worker: _Hired) -> None:
        try:
            header, tensors = unframed(self.cluster.answer(worker.pending))
        except Unfit as unfit:
            self._reject(worker, unfit.node, str(unfit), RunError(str(unfit)))
            return
        except Lost as lost:
            self._bury(worker, str(lost))
            return
        worker.pending = None
        if header["kind"] == "error":
            if worker.job is not None:
                raise raised(header)
            why = header["text"]
            why = why if why.startswith("node ") else f"node {header['host']}: {why}"
            self._reject(worker, header["node"], why, raised(header))
        elif header["kind"] == "ready":
            worker.ready = True
            worker.node = header["node"]
            self._watch.rejected.pop(worker.node, None)  # another actor there failed, and this one did not
            self._compare(header["host"], header["arithmetic"])
        elif (job := worker.job) is not None:
            if header["saved"]:
                kept, task = namespace(tensors, STATE), job.task
                self.trainer.store.save(task.client, task.round, kept, base=task.version)
            job.answer = unpack_answer(header, tensors, self._form)
            self.cpu_seconds += header["cpu_seconds"]
            worker.job = None

    def _reject(self, worker: _Hired, node: str, why: str, error: Exception) -> None:
        """A node cannot be used: it is left out as long as there is another."""
        self._dismiss(worker)
        rejected = self._watch.rejected
        if node and node not in rejected and not any(hired.node == node for hired in self.workers):
            rejected[node] = why
        else:
            self._stillborn += 1
        room = self._watch.room()
        if not self._usable() and (self._stillborn > self._patience or not (room or self.workers)):
            raise error
        self._watch.warn(why)
        self.count = max(1, min(self.count, room))

    def _bury(self, worker: _Hired, how: str) -> None:
        """An actor is gone: its client is tried once more, by another."""
        self._dismiss(worker)
        if not worker.node:
            self._stillborn += 1
            why = f"actors on the Ray cluster end before they are ready ({how})"
            if self._stillborn > self._patience and not self._usable():
                raise RunError(why)
            if self._stillborn > self._patience:
                self._watch.warn(why)
        self._doubt()
        if worker.job is not None:
            worker.job.avoid, worker.job.lost = worker.node, time.monotonic()
            cure = "is there enough memory for a client on each node?"
            self._again(worker.job, f"actor on the Ray cluster died {TRIES} times ({how}); {cure}")
            elsewhere = any(hired.node != worker.node for hired in self.workers)
            without = {*self._watch.rejected, worker.node}
            missing = worker.job.answer is None and not elsewhere and len(self.workers) < self.count
            if missing and self.cluster.room(self.needs, without):
                self._hire(avoid=worker.node)  # even if others here have nothing to do

    def _dismiss(self, worker: _Hired) -> None:
        self.workers.remove(worker)
        worker.end()

    def _compare(self, host: str, theirs: str) -> None:
        """Say once where nodes compute differently: results are then the same but for rounding."""
        ours = instructions(self.trainer.compute)
        if theirs != ours and not self.differs:
            note = f"node {host} has another kind of processor ({theirs} instead of {ours})"
            if self.options.exact:
                raise RunError(f"{note}, so the last bits may differ; resume without --exact, or elsewhere")
            self.differs = note
            print(f"note: {note}, so results may differ in the last bits", file=sys.stderr)
