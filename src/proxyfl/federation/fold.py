"""One round's answers, taken in the order of their tasks: guarded, looked at, folded into the mean."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from proxyfl.aggregation.base import Aggregator, Round
from proxyfl.aggregation.effort import most_effort
from proxyfl.aggregation.guard import MOST_METRICS, Guard
from proxyfl.core.config import FederationSettings, KeepSettings, TrainSettings
from proxyfl.core.errors import UpdateRefused
from proxyfl.core.flat import compact
from proxyfl.core.state import Failure, Metrics, ServerState, Tensors, Update
from proxyfl.federation.sampling import Population
from proxyfl.federation.witness import Row, Witness
from proxyfl.methods.base import Method
from proxyfl.methods.context import ServerContext

LATE_WEIGHT = 2**-0.5
"""Of an update that is a round late: (1 + delay) ** -0.5, as in asynchronous federated optimisation (Xie,
Koyejo and Gupta, 2019)."""


class Fold:
    """Takes updates and failures; afterwards holds the mean, what the method kept, and who did what.

    ``answered`` are the clients with a usable answer; of those, whom the method gives no weight are
    ``resting``. ``clients`` has one entry for each update in the mean: ``times`` says who trains more than
    once. ``pending`` are those whose answers may still come.

    ``keep`` says whether single clients are noted, and of which rounds what the method watches in single
    updates is kept; without it, and of private ones, nothing is.
    """

    def __init__(
        self,
        aggregator: Aggregator,
        method: Method,
        ctx: ServerContext,
        state: ServerState,
        clients: list[int],
        population: Population,
        *,
        train: TrainSettings,
        federation: FederationSettings,
        times: Mapping[int, int] | None = None,
        keep: KeepSettings | None = None,
        spool: Path | None = None,
    ) -> None:
        keep = keep or KeepSettings(clients="none", snapshot_every=0)
        self.aggregator, self.method, self.population = aggregator, method, population
        self.weighting = federation.weighting
        self.snapshot = keep.snapshot(state.round + 1, federation.rounds)
        often, sizes = times or {}, population.sizes
        self.guard = Guard(
            state.round + 1,
            state.weights,
            {k: most_effort(train, method, int(sizes[k]), often.get(k, 1)) for k in clients},
            federation.max_norm,
            method.extras_form_all(ctx),
            method.all_counts,
            ctx.classes,
            parts={part.name for part in method.parts},
            carries=train.leak_momentum,
            noised=aggregator.noised,
            owed=state.owed,
        )
        self.accumulator = aggregator.begin(
            Round(
                state,
                method,
                federation.per_round,
                holders=len(population.holders),
                seed=ctx.seed,
                extras=self.guard.extras,
                spool=spool,
            )
        )
        watched = keep.watches(len(clients)) and not aggregator.private
        self.witness = Witness(state.weights, len(clients)) if watched else None
        self.kept: list[Tensors] = []
        self.watched: defaultdict[str, list[Tensor]] = defaultdict(list)
        self.clients: list[int] = []
        self.answered: list[int] = []
        self.resting: list[int] = []
        self.samples: list[int] = []
        self.rule_weights: list[float] = []
        self.failed: dict[int, str] = {}
        self.pending: list[int] = []
        self.sums: defaultdict[str, float] = defaultdict(float)
        self.senders: Counter[str] = Counter()
        self.carry: Tensors = state.carry

    def take(self, answer: Update | Failure, asked: int | None = None) -> Update | Failure:
        """Fold one answer; a refused update comes back as a failure. ``asked`` is the client it came from,
        whatever it says itself.
        """
        if isinstance(answer, Update):
            client = answer.client if asked is None else asked
            try:
                self.guard.check(answer, asked)
                updates = [self.accumulator.admit(update) for update in answer.each()]
                kept = [compact(self.method.receive_all(update)) for update in updates]
                answer = updates[0]
                if further := updates[1:]:
                    answer = replace(answer, again=tuple(update.weights for update in further))
            except KeyError as missing:
                answer = Failure(self.guard.round, client, f"refused: {str(missing) or 'a key'} is missing")
            except UpdateRefused as refused:
                answer = Failure(self.guard.round, client, f"refused: {refused}")
            except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
                reason = f"refused: the method cannot take it ({type(error).__name__}: {error})"
                answer = Failure(self.guard.round, client, reason)
        if isinstance(answer, Failure):
            self.failed[answer.client] = answer.reason
            if answer.pending:
                self.pending.append(answer.client)
            return answer
        rule = self._weight(answer)
        weight = self.method.weight_of(answer, rule)
        self.answered.append(answer.client)
        if not weight:
            self.resting.append(answer.client)
            self._add_metrics(answer)
            return answer
        for update, tensors in zip(updates, kept, strict=True):
            self.accumulator.add(update, weight)
            self.kept.append(tensors)
            self.clients.append(answer.client)
            self.samples.append(answer.samples)
            self.rule_weights.append(rule)
        self.carry = answer.carry
        if self.aggregator.private:
            return answer  # whose losses and weights nothing has noised: they are not written down
        if self.witness is not None:
            held = self.population.labelled[answer.client] / max(1, self.population.sizes[answer.client])
            self.witness.saw(answer, self.guard.round, weight, self.guard.length, float(held))
        for title, name in self.method.watched.items():
            if self.snapshot and name in answer.weights:
                self.watched[title].append(answer.weights[name].clone())
        self._add_metrics(answer)
        return answer

    def _add_metrics(self, answer: Update) -> None:
        for name, value in answer.metrics.items():
            self.sums[name] += value
            self.senders[name] += 1

    @property
    def used(self) -> list[int]:
        """Who is in the mean, each once."""
        return list(dict.fromkeys(self.clients))

    @property
    def settles(self) -> bool:
        """Whether the weights move: with no update only where noise hides that there was none."""
        return bool(self.clients) or self.aggregator.private

    def mean(self, ctx: ServerContext) -> Tensors:
        """The round's weights. Whom the rule leaves out is left out of what server hooks see, too."""
        ctx.rule_weights = self.rule_weights
        settled = self.accumulator.settle(ctx, self.kept)
        if len(settled.chosen) < len(self.clients):
            stay = set(settled.chosen)
            left = [client for k, client in enumerate(self.clients) if k not in stay]
            ctx.metrics["rejected"] = list(dict.fromkeys(left))
            ctx.clients = [self.clients[k] for k in settled.chosen]
            ctx.samples = [self.samples[k] for k in settled.chosen]
            ctx.rule_weights = [self.rule_weights[k] for k in settled.chosen]
        self.kept = settled.kept
        return settled.weights

    def snapshots(self, weights: Tensors) -> Tensors:
        """In rounds that are kept: what the method watches, of every client and after averaging."""
        found: Tensors = {}
        for title, values in self.watched.items():
            found[f"{title}/clients"] = torch.stack(values)
            found[f"{title}/client_ids"] = torch.tensor(self.used)
            found[f"{title}/average"] = weights[self.method.watched[title]]
        return found

    def rows(self) -> list[Row]:
        """What is noted of each client; empty where nothing is."""
        if self.witness is None:
            return []
        return self.witness.rows([name.removeprefix("loss/") for name in self._named("loss/")])

    def losses(self) -> Metrics:
        """Mean losses per step over all clients."""
        steps = max(1.0, self.sums["steps"])
        return {name.removeprefix("loss/"): self.sums[name] / steps for name in self._named("loss/")}

    def counts(self) -> Metrics:
        """Sums over all clients of what the method counted: metrics that begin with ``count/``."""
        return {name.removeprefix("count/"): self.sums[name] for name in self._named("count/")}

    def _named(self, beginning: str) -> list[str]:
        """Metrics of a kind; of more than one client may send, those that most clients did: names that a
        few make up do not fill the log.
        """
        names = [name for name in self.sums if name.startswith(beginning)]
        most = set(sorted(names, key=lambda name: -self.senders[name])[:MOST_METRICS])
        return [name for name in names if name in most]

    @property
    def late(self) -> list[int]:
        """Those of ``clients`` whose updates are of the round before."""
        return [client for client in self.clients if client in self.guard.owed]

    def _weight(self, update: Update) -> float:
        weight = self._usual_weight(update)
        return weight * LATE_WEIGHT if update.client in self.guard.owed else weight

    def _usual_weight(self, update: Update) -> float:
        if self.weighting == "uniform":
            return 1.0
        if self.weighting == "release":
            return 2000.0 * float(self.population.labelled[update.client]) + update.samples
        return float(update.samples)
