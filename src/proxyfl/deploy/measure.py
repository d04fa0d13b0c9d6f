"""Where accuracy comes from: test images at the server, or what each site holds out, weighted by size."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from flwr.app import ArrayRecord, MessageType

from proxyfl.core.errors import DataError, RunError
from proxyfl.core.state import Failure, ServerState, Task, Tensors, Update
from proxyfl.data.dataset import Split
from proxyfl.deploy.crosssite import SharedModels, SiteCounts, at_sites, read_counts, together
from proxyfl.deploy.enrolment import Enrolment
from proxyfl.engines.flower.codec import Malformed, header_of, pack_broadcast, task_records
from proxyfl.engines.flower.frozen import FrozenPart
from proxyfl.engines.flower.grid import Courier
from proxyfl.engines.serialization import Header
from proxyfl.federation.client import ClientTrainer, autocast
from proxyfl.federation.evaluate import Evaluation, eval_batch, evaluate
from proxyfl.federation.loop import RoundReport

PAUSE = 5.0


class ServerTest:
    """Accuracy on the server's own test images."""

    def __init__(self, trainer: ClientTrainer, split: Split, image_size: int, *, scores: bool) -> None:
        if not len(split):
            raise DataError("the server's test images have no labels; give labelled ones or test = ''")
        self.trainer, self.split, self.scores = trainer, split, scores
        self.network = trainer.placed(trainer.new_network())
        self.batch = eval_batch(trainer.compute.eval_batch, image_size, trainer.device)
        self.source: dict[str, Any] = {"where": "server", "images": len(split)}

    def __call__(self, state: ServerState) -> Evaluation:
        method, views = self.trainer.method, self.trainer.views
        self.network.load_state_dict(method.model(state.weights), strict=not method.all_private)
        return evaluate(
            self.network,
            self.split,
            views.mean,
            views.std,
            batch=self.batch,
            autocast=lambda: autocast(self.trainer.compute, self.trainer.device),
            scores=self.scores,
        )


class SiteTest:
    """Accuracy on what the sites hold out: counts are added up, so that larger sites weigh more.

    A site that does not answer is left out of this round's accuracy, which says so; with no answer at all it
    is asked again up to ``patience``. With ``by_site`` what each site measured is noted, and in the ``last``
    round that of the best models that sites share. Without ``scores`` counts of them are not used, even if
    sites send some.
    """

    def __init__(
        self,
        courier: Courier,
        enrolment: Enrolment,
        setup: Header,
        deadline: float,
        patience: float,
        say: Callable[[str], None],
        frozen: FrozenPart | None = None,
        *,
        by_site: bool = False,
        shared: SharedModels | None = None,
        scores: bool = True,
        last: int = 0,
    ) -> None:
        self.by_site, self.shared, self.scores, self.last = by_site, shared, scores, last
        self.courier, self.enrolment, self.setup = courier, enrolment, setup
        self.frozen = frozen or FrozenPart({}, known=True)
        self.deadline, self.patience, self.say = deadline, patience, say
        self.source: dict[str, Any] = {}

    def __call__(self, state: ServerState) -> Evaluation:
        until = time.monotonic() + self.patience
        while True:
            counts = self._everywhere(state.round, state.weights)
            if counts:
                total = together(counts)
                names = [self.enrolment.sites[client] for client in counts]
                self.source = {"where": "sites", "images": int(total.confusion.sum()), "sites": names}
                held = (client for client, row in self.enrolment.counts.items() if row.heldout)
                if missing := [self.enrolment.sites[k] for k in sorted(held) if k not in counts]:
                    self.source["missing"] = missing
                if self.by_site:
                    self.source["at"] = at_sites(counts, self.enrolment.sites)
                if self.by_site and self.shared:
                    self._keep_best(state, self.shared)
                    if state.round == self.last and (models := self._best_models(state, self.shared, counts)):
                        self.source["models"] = models
                return Evaluation(total.confusion, total.scores, own=partial(_own, counts))
            if time.monotonic() >= until:
                raise RunError(
                    f"round {state.round}: no site measured accuracy; is any connected that holds out "
                    "images? The last checkpoint is kept, continue with 'proxyfl deploy run'"
                )
            time.sleep(min(PAUSE, self.patience))

    def _keep_best(self, state: ServerState, shared: SharedModels) -> None:
        """Each site that shares its models measures the one that it has just trained."""
        models = shared.fresh(state.round)
        packed = {client: self._packed(state.round, _whole(models[client], state)) for client in models}
        for client, found in self._ask(state.round, packed).items():
            shared.measured(client, state.round, found.accuracy)

    def _best_models(
        self, state: ServerState, shared: SharedModels, heard: Mapping[int, SiteCounts]
    ) -> dict[str, Any]:
        """What every site measures of the best models that single sites share: of those who were ``heard`` in
        this round, since who was not may have withdrawn its own.
        """
        found: dict[str, Any] = {}
        for client, model in shared.best().items():
            name = self.enrolment.sites[client]
            if client not in heard:
                self.say(
                    f"round {state.round}: {name} did not answer, so its best model is not sent to others"
                )
                continue
            self.say(f"round {state.round}: the best model of {name} is measured at every site")
            counts = self._everywhere(state.round, _whole(model.weights, state))
            found[name] = {"round": model.round, "at": at_sites(counts, self.enrolment.sites)}
        return found

    def _everywhere(self, round: int, weights: Tensors) -> dict[int, SiteCounts]:
        """What all sites measure of one model."""
        return self._ask(round, dict.fromkeys(self.enrolment.counts, self._packed(round, weights)))

    def _packed(self, round: int, weights: Tensors) -> ArrayRecord:
        return pack_broadcast(Task(round, 0, weights))

    def _ask(self, round: int, models: Mapping[int, ArrayRecord]) -> dict[int, SiteCounts]:
        """What sites measure, each of the model that is for it. Those that are offline, or hold out nothing,
        are not asked.
        """
        online = self.courier.roster.online()
        held = {k: row.heldout for k, row in sorted(self.enrolment.counts.items()) if row.heldout}
        clients = [client for client in held if client in online and client in models]
        tasks = (Task(round, client, {}) for client in clients)
        requests = (
            (task.client, task_records(task, models[task.client], self.setup, self.frozen.parts(task.client)))
            for task in tasks
        )
        replies = self.courier.ask(requests, MessageType.EVALUATE, self.deadline, online=online)
        counts: dict[int, SiteCounts] = {}
        for client, reply in zip(clients, replies, strict=True):
            try:
                found = read_counts(reply, len(self.setup["classes"]), held[client])
                counts[client] = found if self.scores else SiteCounts(found.confusion)
                self.frozen.heard(client, True)
                if self.shared and header_of(reply).get("shares") is False:  # type: ignore[arg-type]
                    self.shared.withdraw(client)
            except Malformed as error:
                self.frozen.heard(client, False)
                self.say(f"round {round}: {self.enrolment.sites[client]} measured nothing: {error}")
        return counts


def _whole(weights: Tensors, state: ServerState) -> Tensors:
    """A site's weights; what it keeps to itself is the global model's."""
    return {name: weights.get(name, value) for name, value in state.weights.items()}


def _own(counts: Mapping[int, SiteCounts], client: int) -> tuple[int, int]:
    """What a site's table of counts says: how many of the images that it holds out are recognised."""
    if client not in counts:
        return 0, 0
    table = counts[client].confusion
    return int(table.diagonal().sum()), int(table.sum())


class SourceNote:
    """An observer, before the recorder: a measured round's metrics say where its accuracy is from."""

    def __init__(self, measure: ServerTest | SiteTest) -> None:
        self.measure = measure

    def round_started(self, round: int, clients: list[int]) -> None:
        pass

    def answered(self, answer: Update | Failure) -> None:
        pass

    def round_finished(self, report: RoundReport) -> None:
        if "accuracy" in report.metrics:
            report.metrics["evaluation"] = dict(self.measure.source)
