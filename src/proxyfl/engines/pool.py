"""The pool engine: clients trained by long-lived worker processes, one client and one thread each.

Images, partition and the round's broadcast lie in memory that all workers see; only what is for one client
alone, and its answer, cross a pipe. Answers come in the order of the tasks, so one worker or many give the
same bits.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path

import torch

from proxyfl.core import plugins
from proxyfl.core.config import Config
from proxyfl.core.errors import RunError
from proxyfl.core.machine import usable_cores
from proxyfl.core.state import Failure, Task, Tensors, Update, within
from proxyfl.data.holdings import Holdings
from proxyfl.engines.handover import packed
from proxyfl.engines.remote_error import raised
from proxyfl.engines.serialization import Header, pack_task, unpack_answer
from proxyfl.engines.shared import Layout, SharedTensors
from proxyfl.engines.worker import receive, send
from proxyfl.federation.client import ClientTrainer

SLACK = 2
"""Answers that may wait for an earlier one, beyond one per worker."""

TRIES = 2
"""How often a client is given to a worker before a death counts as the client's failure."""

LOOK_ROUND = 1.0
"""Seconds between two looks at whether a silent worker is alive."""

TUNABLES = "GLIBC_TUNABLES"
ALLOCATOR = {
    "glibc.malloc.hugetlb": "1",
    "glibc.malloc.mmap_threshold": str(4 << 30),
    "glibc.malloc.trim_threshold": str(16 << 30),
}
"""Large blocks are kept and used again instead of being mapped anew: page faults cost a third of the time."""


def default_workers(config: Config) -> int:
    """One per core on a CPU, two per device on GPUs; never more than clients in a round. Where processes
    cannot be handed open files (Windows), none.
    """
    if os.name != "posix":
        return 0
    count = usable_cores() // config.compute.threads
    if torch.device(config.compute.device).type != "cpu":
        count = min(count, 2 * len(devices(config.compute.device)))
    return max(1, min(count, config.federation.per_round))


def devices(name: str) -> list[str]:
    """The devices that workers take turns on: ``cuda`` means all of them, ``cuda:1`` that one."""
    count = torch.cuda.device_count() if name == "cuda" else 0
    return [f"cuda:{index}" for index in range(count)] or [name]


def tuned_environment() -> dict[str, str]:
    """This process's environment with the allocator's settings, but for those the user has set."""
    given = dict(word.partition("=")[::2] for word in os.environ.get(TUNABLES, "").split(":") if word)
    tunables = ":".join(f"{name}={value}" for name, value in {**ALLOCATOR, **given}.items())
    return {**os.environ, TUNABLES: tunables}


def search_path() -> str:
    """Where this process finds modules, for a child; the empty entry means the current folder."""
    return os.pathsep.join(str(Path(place).absolute()) for place in sys.path)


@dataclasses.dataclass
class _Job:
    """A task on its way; ``answer`` is there when its turn may come."""

    task: Task
    tries: int = 0
    answer: Update | Failure | None = None


class _Worker:
    """A worker process, as its parent sees it."""

    def __init__(self, slot: int, setup: Header, trainer: bytes, threads: int, fds: tuple[int, int]) -> None:
        self.slot, self.ready = slot, False
        self.job: _Job | None = None
        ours, theirs = socket.socketpair()
        life_read, self.lifeline = os.pipe()
        self.connection = Connection(ours.detach())
        given = (theirs.fileno(), life_read, *fds)
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "proxyfl.engines.start", *map(str, given)],
                pass_fds=given,
                stdin=subprocess.DEVNULL,
                env={**tuned_environment(), "PYTHONPATH": search_path(), "OMP_NUM_THREADS": str(threads)},
                start_new_session=True,  # Ctrl-C in a terminal is for the parent, which ends its workers
            )
        except BaseException:
            self.connection.close()
            os.close(self.lifeline)
            raise
        finally:
            theirs.close()
            os.close(life_read)
        with contextlib.suppress(OSError):  # dead already: it will be found so, with the reason it gave
            send(self.connection, setup, {})
            self.connection.send_bytes(trainer)

    def end(self) -> int:
        """Its exit code; negative is a signal."""
        self.process.kill()
        self.connection.close()
        os.close(self.lifeline)
        return self.process.wait()


class PoolEngine:
    """``workers`` processes, started with the first task and ended by :meth:`close`."""

    def __init__(self, trainer: ClientTrainer, holdings: Holdings, workers: int) -> None:
        self.trainer, self.holdings, self.count = trainer, holdings, workers
        self.workers: list[_Worker] = []
        self.store, self.broadcast = SharedTensors(), SharedTensors()
        self._packed = packed(trainer) if workers else b""
        self._setup: Header = {}
        self._sent: tuple[Tensors, Tensors] | None = None
        self._layout: Layout = {}
        self._retry: deque[_Job] = deque()
        self._stillborn = 0
        self._begun = False
        self.cpu_seconds = 0.0

    def run(self, tasks: Iterable[Task]) -> Iterator[Update | Failure]:
        """Answers in the order of the tasks. At most ``workers + SLACK`` are under way or waiting.

        Workers that are left at work when this ends early are let go: what they would answer is stale.
        """
        self._begun = False
        try:
            yield from self._answers(iter(tasks))
        finally:
            for worker in [worker for worker in self.workers if worker.job is not None]:
                self.workers.remove(worker)
                worker.end()
            self._retry.clear()

    def _answers(self, waiting: Iterator[Task]) -> Iterator[Update | Failure]:
        queue, more = deque[_Job](), True
        while True:
            for worker in [worker for worker in self._staff() if worker.ready and worker.job is None]:
                if self._retry:
                    self._give(worker, self._retry.popleft())
                elif more and len(queue) < self.count + SLACK:
                    task = next(waiting, None)
                    more = task is not None
                    if task is not None:
                        queue.append(_Job(task))
                        self._give(worker, queue[-1])
            if not queue and not more:
                return
            if not queue or queue[0].answer is None:
                self._listen()
            while queue and (answer := queue[0].answer) is not None:
                queue.popleft()
                yield answer

    def close(self) -> None:
        """End the workers, whatever they are doing."""
        for worker in self.workers:
            worker.end()
        self.workers.clear()
        self._retry.clear()
        self.store.close()
        self.broadcast.close()
        self._setup, self._sent = {}, None

    def _staff(self) -> list[_Worker]:
        """All workers; those that are missing are started."""
        if not self._setup:
            self._setup = self._describe()
        names, threads = devices(self.trainer.compute.device), self.trainer.compute.threads
        fds = (self.store.fd, self.broadcast.fd)
        for slot in sorted(set(range(self.count)) - {worker.slot for worker in self.workers}):
            setup = {**self._setup, "device": names[slot % len(names)]}
            self.workers.append(_Worker(slot, setup, self._packed, threads, fds))
        return self.workers

    def _describe(self) -> Header:
        self._packed = packed(self.trainer)  # anew: where clients keep their state may have moved
        layout = self.store.write(self.holdings.to_tensors())
        self.broadcast.write({})
        return {"plugins": plugins.loaded, "store": layout}

    def _give(self, worker: _Worker, job: _Job) -> None:
        """Send a task to a free worker. One that turns out to be dead does not count as a try."""
        task = job.task
        if self._sent is None or self._sent[0] is not task.weights or self._sent[1] is not task.extras:
            if self._begun:
                raise RunError("tasks of one round must carry the same weights and extras")
            self._layout = self.broadcast.write(
                within("weights", task.weights) | within("extras", task.extras)
            )
            self._sent = (task.weights, task.extras)
        self._begun, worker.job = True, job
        header, tensors = pack_task(task)
        try:
            send(worker.connection, {**header, "broadcast": self._layout}, tensors)
            job.tries += 1
        except OSError:
            self._hear(worker)

    def _listen(self) -> None:
        """Wait until a worker says something or dies."""
        known = {worker.connection: worker for worker in self.workers}
        for connection in wait([*known], timeout=LOOK_ROUND):
            self._hear(known[connection])  # type: ignore[index]
        for worker in [worker for worker in self.workers if worker.process.poll() is not None]:
            self._hear(worker)  # a process forked inside it may keep its connection open

    def _hear(self, worker: _Worker) -> None:
        """Take what a worker has to say; one that says nothing more is dead."""
        try:
            if not worker.connection.poll(0) and worker.process.poll() is not None:
                raise EOFError
            header, tensors = receive(worker.connection)
        except (EOFError, OSError):
            self._bury(worker)
            return
        if header["kind"] == "ready":
            worker.ready, self._stillborn = True, 0
        elif header["kind"] == "error":
            raise raised(header)
        elif worker.job is not None:
            worker.job.answer = unpack_answer(header, tensors)
            self.cpu_seconds += header["cpu_seconds"]
            worker.job = None

    def _bury(self, worker: _Worker) -> None:
        """A worker died: another takes its place, and its client is tried once more."""
        self.workers.remove(worker)
        code, job = worker.end(), worker.job
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        if not worker.ready:
            self._stillborn += 1
            if code >= 0 or self._stillborn > TRIES * self.count:
                raise RunError(f"a worker process ended before it was ready ({how}); try with --workers 0")
        if job is None:
            return
        if job.tries < TRIES:
            self._retry.append(job)
            return
        cure = f"is there enough memory for --workers {self.count}?"
        reason = f"its worker process died {TRIES} times ({how}); {cure}"
        job.answer = Failure(job.task.round, job.task.client, reason)
