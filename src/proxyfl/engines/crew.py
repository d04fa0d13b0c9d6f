"""What engines with several workers have in common: tasks handed out as workers become free, answers in the
order of the tasks, and a second try for the client of a worker that died.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Generic, Protocol, TypeVar

from proxyfl.core.errors import RunError
from proxyfl.core.flat import Layout
from proxyfl.core.state import Failure, Task, Tensors, Update, within

SLACK = 2
"""Answers that may wait for an earlier one, beyond one per worker."""

TRIES = 2
"""How often a client is given to a worker before a death counts as the client's failure."""

LOOK_ROUND = 1.0
"""Seconds between two looks at whether a silent worker is alive."""


@dataclasses.dataclass(eq=False)
class Job:
    """A task on its way; ``answer`` is there when its turn may come."""

    task: Task
    tries: int = 0
    answer: Update | Failure | None = None
    avoid: str = ""
    """The node on which its first try ended."""
    lost: float = 0.0
    """When that was."""


class Worker(Protocol):
    """Someone who trains one client at a time, as its engine sees it."""

    ready: bool
    job: Job | None

    def end(self) -> object: ...


W = TypeVar("W", bound=Worker)


class Crew(Generic[W]):
    """At most ``count`` workers. Subclasses start them, give them jobs and listen to them."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.workers: list[W] = []
        self.cpu_seconds = 0.0
        self._waiting: deque[Job] = deque()
        self._sent: tuple[Tensors, Tensors] | None = None
        self._form = Layout({})
        self._begun = False

    def run(self, tasks: Iterable[Task]) -> Iterator[Update | Failure]:
        """Answers in the order of the tasks. At most :meth:`_most` are under way or waiting.

        Workers that are left at work when this ends early are let go: what they would answer is stale.
        """
        self._begun = False
        try:
            yield from self._answers(iter(tasks))
        finally:
            for worker in [worker for worker in self.workers if worker.job is not None]:
                self.workers.remove(worker)
                worker.end()
            self._waiting.clear()

    def _answers(self, tasks: Iterator[Task]) -> Iterator[Update | Failure]:
        queue, more = deque[Job](), True
        while True:
            while more and len(queue) < self._most():
                task = next(tasks, None)
                more = task is not None
                if task is not None:
                    queue.append(Job(task))
                    self._waiting.append(queue[-1])
            if not queue and not more:
                return
            for worker in [worker for worker in self._staff() if worker.ready and worker.job is None]:
                if job := next((job for job in self._waiting if self._suits(worker, job)), None):
                    self._waiting.remove(job)
                    self._hand(worker, job)
            if more:
                self._hand_ahead()
            if queue[0].answer is None:
                self._listen()
            while queue and (answer := queue[0].answer) is not None:
                queue.popleft()
                yield answer

    def _hand(self, worker: W, job: Job) -> None:
        """Give a job to a free worker."""
        self._share(job.task)
        worker.job = job
        self._give(worker, job)

    def _share(self, task: Task) -> None:
        """What all tasks of a round share goes to all workers, before the first task."""
        weights, extras = task.weights, task.extras
        if self._sent is None or self._sent[0] is not weights or self._sent[1] is not extras:
            if self._begun:
                raise RunError("tasks of one round must carry the same weights and extras")
            self._publish(within("weights", weights) | within("extras", extras))
            self._sent, self._form = (weights, extras), Layout(weights)
        self._begun = True

    def _again(self, job: Job, reason: str) -> None:
        """The worker that had this job died: it is tried once more, and then has failed for that reason."""
        if job.tries < TRIES:
            self._waiting.appendleft(job)
        else:
            job.answer = Failure(job.task.round, job.task.client, f"its {reason}")

    def close(self) -> None:
        """End the workers, whatever they are doing."""
        for worker in self.workers:
            worker.end()
        self.workers.clear()
        self._waiting.clear()
        self._sent = None

    def _most(self) -> int:
        """Tasks that are under way or waiting at the same time."""
        return self.count + SLACK

    def _hand_ahead(self) -> None:
        """While there are more tasks than those waiting: give busy workers their next ones, if that pays."""

    def _staff(self) -> list[W]:
        """All workers; those that are missing are started."""
        raise NotImplementedError

    def _suits(self, worker: W, job: Job) -> bool:
        """Whether this worker may have that job."""
        return True

    def _publish(self, broadcast: Tensors) -> None:
        """Put what all tasks of a round share where every worker finds it."""
        raise NotImplementedError

    def _give(self, worker: W, job: Job) -> None:
        raise NotImplementedError

    def _listen(self) -> None:
        """Wait until a worker says something or dies."""
        raise NotImplementedError
