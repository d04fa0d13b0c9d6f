"""Several runs side by side, each in a process of its own.

A run computes with one thread here, so this uses all cores, also where the clients of one round could not,
and gives the same bits as one run after the other.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from proxyfl.core.config import Config
from proxyfl.core.errors import ProxyFLError, RunError
from proxyfl.core.state import Failure, Update
from proxyfl.engines.pool import TUNABLES, tuned_environment
from proxyfl.federation.loop import RoundReport
from proxyfl.runs.experiment import Experiment, resume

PAUSE = 0.25
"""Seconds between two looks at the runs."""


@dataclass(frozen=True)
class Job:
    """One run to make."""

    method: str
    config: Config
    path: Path

    @property
    def rounds(self) -> int:
        return self.config.federation.rounds


def train_all(jobs: Sequence[Job], workers: int, look: Callable[[], None]) -> None:
    """``workers`` runs at a time; ``look`` is called now and then. No child outlives this function."""
    waiting = deque(jobs)
    running: list[Child] = []
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                running.append(Child(waiting.popleft()))
            wait([child.process.sentinel for child in running], timeout=PAUSE)
            for child in [child for child in running if not child.process.is_alive()]:
                running.remove(child)
                child.check()
            look()
    finally:
        for child in running:
            child.end()


class Child:
    """A process that makes one run."""

    def __init__(self, job: Job) -> None:
        context = multiprocessing.get_context("spawn")
        self.job = job
        self.answer, theirs = context.Pipe(duplex=False)
        self.process: BaseProcess = context.Process(target=make_run, args=(job, theirs), daemon=True)
        before = os.environ.get(TUNABLES)
        os.environ[TUNABLES] = tuned_environment()[TUNABLES]  # read by the allocator when a program starts
        try:
            self.process.start()
        finally:
            os.environ.pop(TUNABLES)
            if before is not None:
                os.environ[TUNABLES] = before
        theirs.close()

    def check(self) -> None:
        """Raise what the child could not do."""
        try:
            mendable, text = self.answer.recv()
        except EOFError:
            if self.process.exitcode:
                reason = f"the process ended with code {self.process.exitcode}"
                raise RunError(f"{self.job.path}: {reason}; the same command goes on from there") from None
            return
        raise (RunError if mendable else RuntimeError)(f"{self.job.path}: {text}")

    def end(self) -> None:
        self.process.terminate()
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def make_run(job: Job, answer: Connection) -> None:
    """What a child does: the run from its start, or from where it was stopped."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches children too, but the parent ends them
    try:
        if job.path.exists():
            resume(job.path, [WithParent()], workers=0)
        else:
            Experiment(config=job.config).run(job.path, [WithParent()], workers=0)
    except ProxyFLError as error:
        answer.send((True, str(error)))
    except Exception:
        answer.send((False, traceback.format_exc()))


class WithParent:
    """An observer that ends a child whose parent is gone, however it went."""

    def round_started(self, round: int, clients: list[int]) -> None:
        self._check()

    def answered(self, answer: Update | Failure) -> None:
        self._check()

    def round_finished(self, report: RoundReport) -> None:
        pass

    def _check(self) -> None:
        parent = multiprocessing.parent_process()
        if parent is not None and not parent.is_alive():
            raise SystemExit(1)
