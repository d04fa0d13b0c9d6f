"""The inline engine: one client after the other, in this process."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator

from torch import Tensor

from proxyfl.core.errors import ConfigError, MethodError, ProxyFLError, RunError
from proxyfl.core.state import Failure, Task, Update
from proxyfl.data.holdings import Holdings
from proxyfl.data.stream import ClientData
from proxyfl.federation.client import ClientTrainer, numerics


class InlineEngine:
    """Trains each task's client before it asks for the next task, so one may depend on the other's answer."""

    def __init__(
        self,
        trainer: ClientTrainer,
        data: Callable[[int], ClientData],
        truth: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.trainer, self.data, self.truth = trainer, data, truth

    @classmethod
    def over(cls, trainer: ClientTrainer, holdings: Holdings) -> InlineEngine:
        """For the clients of a simulation."""
        oracle = trainer.method.oracle
        return cls(trainer, lambda client: holdings.client(client, oracle=oracle), holdings.truth)

    def run(self, tasks: Iterable[Task]) -> Iterator[Update | Failure]:
        with numerics(self.trainer.compute):
            for task in tasks:
                yield self._train(task)

    def close(self) -> None:
        """Nothing to end."""

    def _train(self, task: Task) -> Update | Failure:
        try:
            return self.trainer.train(task, self.data(task.client), self.truth)
        except (OSError, RunError, MethodError, ConfigError):
            raise  # the disk, the run or the method itself: no client's fault, and leaving it out hides it
        except ProxyFLError as error:
            return Failure(task.round, task.client, str(error))
        except Exception as error:  # a client may fail in any way; the round goes on without it
            reason = f"{type(error).__name__}: {error}"
            return Failure(task.round, task.client, reason, traceback.format_exc())
