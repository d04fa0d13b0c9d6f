"""Several runs side by side, each in a process of its own.

A run computes with one thread here, so this uses all cores, also where the clients of one round could not,
and gives the same bits as one run after the other.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Protocol, TypeVar

import torch

from proxyfl.core import plugins
from proxyfl.core.config import Config, DataSettings
from proxyfl.core.errors import ProxyFLError, RunError
from proxyfl.core.machine import usable_cores
from proxyfl.data import sources
from proxyfl.engines.forkserver import TUNABLES, tuned_environment
from proxyfl.engines.pool import default_workers
from proxyfl.runs.directory import RunDirectory
from proxyfl.runs.experiment import Experiment, resume
from proxyfl.runs.run import Run

LONGEST = 8000
"""Bytes of an error that fit a pipe which nobody reads yet."""

BY_WORKERS = "made by workers"
"""The event that tells how many cores a run had, if several: its seconds are then not those of one core."""

PAUSE = 0.25
"""Seconds between two looks at the runs."""


@dataclass(frozen=True)
class Job:
    """One run to make, and what to call it."""

    name: str
    config: Config
    path: Path
    data_root: Path | None = None
    recorded: bool = False
    """Whether its results are known though its folder may be on another machine."""

    @property
    def rounds(self) -> int:
        return self.config.federation.rounds

    @property
    def finished(self) -> bool:
        """A folder that cannot be read is not finished: who makes the run tells what is wrong with it."""
        try:
            return self.recorded or (self.path.exists() and self._is_its(Run(self.path)))
        except ProxyFLError:
            return False

    def _is_its(self, run: Run) -> bool:
        return run.finished and run.config.federation.rounds == self.rounds


Look = Callable[[dict[Path, str]], None]
"""Called now and then with which runs have failed so far."""


class Child(Protocol):
    """A run that is being made somewhere."""

    job: Job

    @property
    def alive(self) -> bool: ...

    def error_text(self) -> str:
        """What it could not do; empty when all is well."""
        ...

    def end(self) -> None: ...


C = TypeVar("C", bound=Child)


def train_all(
    jobs: Sequence[Job], side_by_side: int = 0, look: Look = lambda failed: None
) -> dict[Path, str]:
    """Make or finish the runs, so many at a time (0: one per core). What could not be made, and why.

    Where there are fewer runs than cores, each run gets worker processes. No child outlives this function.
    """
    together = min(side_by_side or _room(jobs), len(jobs))

    def pause(running: Sequence[_Child]) -> None:
        wait([child.process.sentinel for child in running], timeout=PAUSE)

    noted: set[DataSettings] = set()  # how data was read is noted by the first run on it

    def begin(job: Job) -> _Child:
        known = job.config.data in noted
        noted.add(job.config.data)
        return _Child(job, together, announced=known)

    return work_off(jobs, together, begin, pause, look)


def work_off(
    jobs: Sequence[Job],
    together: int,
    begin: Callable[[Job], C],
    pause: Callable[[Sequence[C]], None],
    look: Look,
) -> dict[Path, str]:
    """Begin the jobs, so many at a time, and see them to their end. A failed run does not stop the others."""
    waiting = deque(jobs)
    running: list[C] = []
    failed: dict[Path, str] = {}
    try:
        while waiting or running:
            while waiting and len(running) < together:
                running.append(begin(waiting.popleft()))
            pause(running)
            for child in [child for child in running if not child.alive]:
                running.remove(child)
                if error_text := child.error_text():
                    failed[child.job.path] = error_text
            look(failed)
    finally:
        for child in running:
            child.end()
    return failed


def _room(jobs: Sequence[Job]) -> int:
    """Runs at a time: one per core; on GPUs one after the other, each with workers on all of them."""
    if any(torch.device(job.config.compute.device).type != "cpu" for job in jobs):
        return 1
    return max(1, usable_cores() // max((job.config.compute.threads for job in jobs), default=1))


class _Child:
    """A process that makes one run, one of ``together``. With a core to spare, it has workers."""

    def __init__(self, job: Job, together: int, announced: bool) -> None:
        share = default_workers(job.config) // together
        workers = share if share > 1 or torch.device(job.config.compute.device).type != "cpu" else 0
        context = multiprocessing.get_context("spawn")
        self.job = job
        self.answer, theirs = context.Pipe(duplex=False)
        arguments = (job, workers, list(plugins.loaded), theirs, announced)
        self.process: BaseProcess = context.Process(target=make_run, args=arguments, daemon=True)
        before = os.environ.get(TUNABLES)
        os.environ[TUNABLES] = tuned_environment()[TUNABLES]  # read by the allocator when a program starts
        try:
            with _ctrl_c_later():
                self.process.start()
        except BaseException:
            if self.process.pid is not None:  # Ctrl-C came while it was started: nobody else knows of it
                self.end()
            raise
        finally:
            os.environ.pop(TUNABLES)
            if before is not None:
                os.environ[TUNABLES] = before
        theirs.close()

    @property
    def alive(self) -> bool:
        return self.process.is_alive()

    def error_text(self) -> str:
        try:
            return self.answer.recv_bytes().decode("utf-8", "replace")
        except EOFError:
            code = self.process.exitcode
            return (
                f"the process ended with code {code}; run the same command again to continue" if code else ""
            )

    def end(self) -> None:
        self.process.terminate()
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


@contextlib.contextmanager
def _ctrl_c_later() -> Iterator[None]:
    """What is started meanwhile does not hear Ctrl-C while it imports what it needs; this process hears it at
    the end.
    """
    if os.name != "posix":
        yield
        return
    resource_tracker.ensure_running()  # which would otherwise start now, and hear Ctrl-C again afterwards
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def make_run(job: Job, workers: int, modules: list[str], answer: Connection, announced: bool = False) -> None:
    """What a child does: the run from its start, or from where it was stopped. Where another has
    ``announced`` how the data was read, it does not.
    """
    if announced:
        logging.getLogger(sources.__name__).setLevel(logging.ERROR)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches children too, but the parent ends them
    if os.name == "posix":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if error_text := finish(job, workers, modules):
        answer.send_bytes(error_text.encode("utf-8", "replace")[-LONGEST:])


def finish(job: Job, workers: int, modules: Sequence[str]) -> str:
    """Make a run in this process, or go on with it; what could not be done, empty when all is well."""
    try:
        for module in modules:
            plugins.load_plugin(module)
        if job.path.exists():
            RunDirectory(job.path).require("move it away or delete it: a run is to be created there")
            if (rounds := Run(job.path).config.federation.rounds) != job.rounds:
                raise RunError(
                    f"{job.path} was extended to {rounds} rounds; move it away to train one of {job.rounds}"
                )
            resume(job.path, (), job.data_root, workers)
        else:
            Experiment(config=job.config, data_root=job.data_root).run(job.path, (), workers)
        if workers > 1:
            RunDirectory(job.path).event(BY_WORKERS, workers=workers)
    except ProxyFLError as error:
        return str(error)
    except Exception:
        return traceback.format_exc()
    return ""


def _end_with_parent() -> None:
    """However the parent went. Files are written aside and renamed, so any moment will do."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
