"""The server's own training on the labelled images that it holds, with a client's streams and optimiser.

Before the first round it is round 0 of its random streams, at the learning rate of round 1.
"""

from __future__ import annotations

from dataclasses import replace

from proxyfl.core.rng import SERVER, isolated, rng
from proxyfl.core.state import STATISTICS, Task, Tensors
from proxyfl.data.stream import ClientData, Stream
from proxyfl.federation.client import ClientTrainer, every_step, momentum_of, numerics, restore_momentum

WANTS = frozenset({"x"})


class OwnImages:
    """The labelled images of the server, and what trains on them. What lasts between rounds is handed in and
    out.
    """

    def __init__(self, trainer: ClientTrainer, data: ClientData) -> None:
        self.trainer, self.data = trainer, data

    def __len__(self) -> int:
        return len(self.data)

    def train(
        self, round: int, weights: Tensors, momentum: Tensors, epochs: int = 0, batch: int = 0
    ) -> tuple[Tensors, Tensors, dict[str, float]]:
        """The weights after so many epochs over weak views of the images, the momentum to begin the next
        time with (``train.keep_momentum``), and the mean loss of a step.
        """
        trainer, usual = self.trainer, self.trainer.settings
        settings = replace(usual, epochs=epochs or usual.epochs, batch=batch or usual.batch)
        generator = rng(trainer.seed, round, SERVER, "batches")
        stream = Stream(
            self.data, settings, trainer.views, WANTS, generator, trainer.device, walk_labelled=True
        )
        task = Task(max(1, round), SERVER, weights)
        ctx = trainer.context(task, stream, settings)
        with numerics(trainer.compute), isolated(trainer.seed, round, SERVER, "layers"):
            trainer.load(weights)
            trainer.network.train().requires_grad_(True)
            restore_momentum(ctx, momentum)
            for batches in every_step(ctx):
                trainer.method.learn(next(batches), ctx)
        metrics = {"loss": float(ctx.losses["supervised"]) / ctx.steps, "steps": float(ctx.steps)}
        trained = trainer.method.learned(ctx)
        kept = momentum_of(ctx) if usual.keeps_momentum("server") else {}
        vars(ctx).clear()
        return trained, kept, metrics

    def measure(self, round: int, weights: Tensors) -> Tensors:
        """What static batch norm sees of the images, as sums."""
        with numerics(self.trainer.compute):
            return self.trainer.measure(Task(round, SERVER, weights, purpose=STATISTICS), self.data).extras
