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

from proxyfl.core import plugins
from proxyfl.core.config import Config
from proxyfl.core.errors import ProxyFLError
from proxyfl.core.state import Failure, Update
from proxyfl.engines.pool import TUNABLES, tuned_environment, usable_cores
from proxyfl.federation.loop import RoundReport
from proxyfl.runs.experiment import Experiment, resume
from proxyfl.runs.run import Run

PAUSE = 0.25
"""Seconds between two looks at the runs."""


@dataclass(frozen=True)
class Job:
    """One run to make, and what to call it."""

    name: str
    config: Config
    path: Path
    data_root: Path | None = None

    @property
    def rounds(self) -> int:
        return self.config.federation.rounds

    @property
    def finished(self) -> bool:
        return self.path.exists() and Run(self.path).finished


def train_all(
    jobs: Sequence[Job], side_by_side: int = 0, look: Callable[[dict[Path, str]], None] = lambda failed: None
) -> dict[Path, str]:
    """Make or finish the runs, so many at a time (0: one per core). What could not be made, and why.

    A failed run does not stop the others. ``look`` is told now and then who has failed so far. Where there
    are fewer runs than cores, each run gets worker processes. No child outlives this function.
    """
    waiting = deque(jobs)
    together = min(side_by_side or usable_cores(), len(jobs))
    workers = usable_cores() // together if together and not side_by_side else 1
    running: list[_Child] = []
    failed: dict[Path, str] = {}
    try:
        while waiting or running:
            while waiting and len(running) < together:
                running.append(_Child(waiting.popleft(), workers if workers > 1 else 0))
            wait([child.process.sentinel for child in running], timeout=PAUSE)
            for child in [child for child in running if not child.process.is_alive()]:
                running.remove(child)
                if trouble := child.trouble():
                    failed[child.job.path] = trouble
            look(failed)
    finally:
        for child in running:
            child.end()
    return failed


class _Child:
    """A process that makes one run."""

    def __init__(self, job: Job, workers: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.job = job
        self.answer, theirs = context.Pipe(duplex=False)
        arguments = (job, workers, list(plugins.loaded), theirs)
        self.process: BaseProcess = context.Process(target=make_run, args=arguments, daemon=True)
        before = os.environ.get(TUNABLES)
        os.environ[TUNABLES] = tuned_environment()[TUNABLES]  # read by the allocator when a program starts
        try:
            self.process.start()
        finally:
            os.environ.pop(TUNABLES)
            if before is not None:
                os.environ[TUNABLES] = before
        theirs.close()

    def trouble(self) -> str:
        """What the child could not do; empty when all is well."""
        try:
            return str(self.answer.recv())
        except EOFError:
            code = self.process.exitcode
            return f"the process ended with code {code}; the same command goes on from there" if code else ""

    def end(self) -> None:
        self.process.terminate()
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def make_run(job: Job, workers: int, modules: list[str], answer: Connection) -> None:
    """What a child does: the run from its start, or from where it was stopped."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches children too, but the parent ends them
    try:
        for module in modules:
            plugins.load_plugin(module)
        if job.path.exists():
            resume(job.path, [_WithParent()], job.data_root, workers)
        else:
            Experiment(config=job.config, data_root=job.data_root).run(job.path, [_WithParent()], workers)
    except ProxyFLError as error:
        answer.send(str(error))
    except Exception:
        answer.send(traceback.format_exc())


class _WithParent:
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
