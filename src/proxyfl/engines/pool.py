"""The pool engine: clients trained by long-lived worker processes, one client and one thread each.

Images, partition and the round's broadcast lie in memory that all workers see; only what is for one client
alone, and its answer, cross a pipe. Answers come in the order of the tasks, so one worker or many give the
same bits.
"""

from __future__ import annotations

import contextlib
import os
import socket
from multiprocessing.connection import Connection, wait

import torch

from proxyfl.core import plugins
from proxyfl.core.config import Config
from proxyfl.core.errors import RunError
from proxyfl.core.machine import usable_cores
from proxyfl.core.state import Task, Tensors
from proxyfl.data.holdings import Holdings
from proxyfl.engines.crew import LOOK_ROUND, TRIES, Crew, Job
from proxyfl.engines.forkserver import ANSWERS, ForkServer, Lost, ending, started
from proxyfl.engines.handover import packed
from proxyfl.engines.remote_error import raised
from proxyfl.engines.serialization import Header, pack_task, unpack_answer
from proxyfl.engines.shared import Layout, SharedTensors
from proxyfl.engines.worker import receive, send
from proxyfl.federation.client import ClientTrainer


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


BRIEF = 0.1
"""Seconds. Workers whose clients take less have their next task already when they send an answer; where tasks
are longer, the wait is not worth it that one may stand behind another while a worker is free."""


class _Worker:
    """A worker process, as its parent sees it."""

    def __init__(
        self, slot: int, setup: Header, trainer: bytes, server: ForkServer, fds: tuple[int, int]
    ) -> None:
        self.slot, self.ready, self.answers = slot, False, [SharedTensors() for _ in range(ANSWERS)]
        self.job: Job | None = None
        self.next: Job | None = None
        self.reads: Layout | None = None
        ours, theirs = socket.socketpair()
        life_read, self.lifeline = os.pipe()
        self.connection = Connection(ours.detach())
        try:
            for memory in self.answers:
                memory.write({})
            places = (memory.fd for memory in self.answers)
            self.process = server.fork((theirs.fileno(), life_read, *fds, *places))
        except BaseException:
            self._close()
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
        self._close()
        return self.process.wait()

    def _close(self) -> None:
        self.connection.close()
        for memory in self.answers:
            memory.close()
        os.close(self.lifeline)


class PoolEngine(Crew[_Worker]):
    """``workers`` processes, started with the first task and ended by :meth:`close`."""

    def __init__(self, trainer: ClientTrainer, holdings: Holdings, workers: int) -> None:
        super().__init__(workers)
        self.trainer, self.holdings = trainer, holdings
        self.store, self.broadcast = SharedTensors(), SharedTensors()
        self._packed = packed(trainer) if workers else b""
        self._server: ForkServer | None = None
        self._setup: Header = {}
        self._layout: Layout = {}
        self._stillborn, self._brief = 0, False

    def close(self) -> None:
        super().close()
        if self._server is not None:
            self._server.close()
            self._server = None
        self.store.close()
        self.broadcast.close()
        self._setup = {}

    def _staff(self) -> list[_Worker]:
        if not self._setup:
            self._setup = self._describe()
        names, fds = devices(self.trainer.compute.device), (self.store.fd, self.broadcast.fd)
        for slot in sorted(set(range(self.count)) - {worker.slot for worker in self.workers}):
            if self._server is None or self._server.process.poll() is not None:
                self._server = started()
            setup = {**self._setup, "device": names[slot % len(names)]}
            try:
                self.workers.append(_Worker(slot, setup, self._packed, self._server, fds))
            except Lost as lost:
                self._start_again(lost.code)
                break
        return self.workers

    def _describe(self) -> Header:
        self._packed = packed(self.trainer)  # anew: where clients keep their state may have moved
        layout = self.store.write(self.holdings.to_tensors())
        self.broadcast.write({})
        return {"plugins": plugins.loaded, "store": layout}

    def _publish(self, broadcast: Tensors) -> None:
        self._layout = self.broadcast.write(broadcast)

    def _most(self) -> int:
        return super()._most() + self.count * self._brief

    def _hand_ahead(self) -> None:
        for worker in [worker for worker in self.workers if worker.job and not worker.next]:
            if self._brief and self._waiting and _is_small(self._waiting[0].task):
                worker.next = self._waiting.popleft()
                self._share(worker.next.task)
                self._give(worker, worker.next)

    def _give(self, worker: _Worker, job: Job) -> None:
        """Send a task to a worker. Only one that begins at once, and does not find it dead, is a try."""
        header, tensors = pack_task(job.task)
        if worker.reads is not self._layout:
            header["broadcast"] = worker.reads = self._layout
        try:
            send(worker.connection, header, tensors)
            job.tries += job is worker.job
        except OSError:
            self._hear(worker)

    def _listen(self) -> None:
        known = {worker.connection: worker for worker in self.workers}
        heard = wait([*known], timeout=LOOK_ROUND)
        for connection in heard:
            self._hear(known[connection])  # type: ignore[index]
        silent = [] if heard else [worker for worker in self.workers if worker.process.poll() is not None]
        for worker in silent:
            self._hear(worker)  # a process forked inside it may keep its connection open

    def _hear(self, worker: _Worker) -> None:
        """Take what a worker has to say; one that says nothing more is dead."""
        try:
            if not worker.connection.poll(0) and worker.process.poll() is not None:
                raise EOFError
            header, _ = receive(worker.connection)
        except (EOFError, OSError):
            self._bury(worker)
            return
        if header["kind"] == "ready":
            worker.ready, self._stillborn = True, 0
        elif header["kind"] == "error":
            raise raised(header)
        elif worker.job is not None:
            tensors = worker.answers[header["place"]].copied(header["tensors"])
            worker.job.answer = unpack_answer(header, tensors, self._form)
            self.cpu_seconds += header["cpu_seconds"]
            self._brief = header.get("seconds", BRIEF) < BRIEF
            worker.job, worker.next = worker.next, None
            if worker.job is not None:
                worker.job.tries += 1

    def _bury(self, worker: _Worker) -> None:
        """A worker died: another takes its place, and its client is tried once more."""
        self.workers.remove(worker)
        code, job = worker.end(), worker.job
        if not worker.ready:
            self._start_again(code)
        if worker.next is not None:
            self._waiting.appendleft(worker.next)
        if job is not None:
            cure = f"is there enough memory for --workers {self.count}?"
            self._again(job, f"worker process died {TRIES} times ({ending(code)}); {cure}")

    def _start_again(self, code: int) -> None:
        """A process ended before it was of use: it may have been killed, but not again and again."""
        self._stillborn += 1
        if code >= 0 or self._stillborn > TRIES * self.count:
            raise RunError(
                f"a worker process ended before it was ready ({ending(code)}); try with --workers 0"
            )


def _is_small(task: Task) -> bool:
    """Whether a task fits into the connection while its worker is not reading."""
    return not task.personal and not task.carry
