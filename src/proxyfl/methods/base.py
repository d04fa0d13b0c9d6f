"""The hooks a method may fill. A method is the difference to its parent and reads like its paper.

A *part* is a method or an add-on. Names of tensors that a part sends or keeps are its own: the federation
puts them below the part's name (``prior/classes``), so that parts never collide. On the server a name that
begins with an underscore (``feddb/_velocity``) is kept there and never sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from proxyfl.core.dealing import CLIENTS, PARTIAL, SCENARIOS, SERVER
from proxyfl.core.errors import ConfigError, MethodError
from proxyfl.core.settings import known_fidelity, read_section, setting
from proxyfl.core.spans import LOSSES, PSEUDO, loss_span, serve_span, span
from proxyfl.core.state import Tensors, Update, detached, namespace, within
from proxyfl.data.stream import Batch, ClientData
from proxyfl.methods.context import ClientContext, Outputs, Pseudo, ServerContext

NOT_AT_SERVER = dict.fromkeys((CLIENTS, PARTIAL), "the server holds no labelled images to train on")
"""Where a method that trains on the server's images is undefined, and why."""


@dataclass(frozen=True)
class NoParameters:
    """Nothing to set."""


class Part:
    """What methods and add-ons have in common. Every hook is optional."""

    name: ClassVar[str] = ""
    wants: ClassVar[frozenset[str]] = frozenset()
    """Views of a batch (see :data:`proxyfl.data.stream.VIEWS`), and ``teacher_x`` for the global model on
    labelled images."""
    heads: bool = False
    """Whether the network needs projection heads."""
    private: tuple[str, ...] = ()
    """Weights whose names begin so stay on the client, kept between its rounds, instead of being sent."""
    sends: ClassVar[str] = ""
    """What travels beside the weights, in words: what goes up, what down, what both ways."""
    counts: ClassVar[tuple[str, ...]] = ()
    """Which of the tensors that it sends count, by class, images visited in the last local epoch: an update
    that counts more than the client can have visited is refused."""
    undefined: ClassVar[Mapping[str, str]] = {}
    """The scenarios (:data:`proxyfl.core.dealing.SCENARIOS`) in which it makes no sense, and why."""
    keeps: str = ""
    """What a client keeps between rounds, in words; empty: nothing."""
    Parameters: ClassVar[type[Any]] = NoParameters

    def __init__(self, parameters: Any = None, *, fidelity: str = "clean", **values: Any) -> None:
        """``values`` are parameters by name, held to their ranges: ``GPT(epochs=50)``; the others are as the
        ``fidelity`` has them. Those who have a whole set of them at hand give that instead.
        """
        if parameters is None:
            parameters = read_section(self.Parameters, values, known_fidelity(fidelity), f"{self.name}.")
        elif values:
            raise MethodError(f"{self.name}: give a set of parameters or single ones, not both")
        self.parameters = parameters

    def __repr__(self) -> str:
        usual = type(self.parameters)()
        mine = vars(self.parameters)
        changed = [f"{name}={value!r}" for name, value in mine.items() if value != getattr(usual, name)]
        return f"{type(self).__name__}({', '.join([*changed, *self._shown()])})"

    def _shown(self) -> list[str]:
        """What else belongs in a listing of its arguments."""
        return []

    def refusal(self, where: str) -> str:
        """Why it cannot be used in this scenario; empty when it can."""
        return self.undefined.get(where, "")

    # On the client

    def begin(self, ctx: ClientContext) -> None:
        """Once per round, before the first step."""

    def observe(self, outputs: Outputs, ctx: ClientContext) -> None:
        """After each step, without a graph: count, remember."""

    def finish(self, ctx: ClientContext) -> Tensors:
        """Once per round, after the last step: extras to send."""
        return {}

    # On the server

    def start(self, ctx: ServerContext) -> Tensors:
        """Before the first round: the extras every client receives."""
        return {}

    def extras_form(self, ctx: ServerContext) -> dict[str, tuple[int, ...]]:
        """Shapes of the float32 tensors that :meth:`finish` sends; an update with others is refused."""
        return {}

    def task_extras(self, ctx: ServerContext, client: int) -> Tensors:
        """Extras for one client only."""
        return {}

    def receive(self, update: Update) -> Tensors:
        """As each update arrives: the tensors to keep of it until the end of the round."""
        return {}

    def serve(self, ctx: ServerContext, kept: Sequence[Tensors]) -> Tensors:
        """After averaging: new extras of this part (those not named stay)."""
        return {}


class Addon(Part):
    """Something that can be attached to any method.

    >>> from proxyfl.methods import FixMatch
    >>> from proxyfl.methods.addons import GPT
    >>> FixMatch(teacher="global", addons=[GPT(epochs=5)])
    FixMatch(teacher='global', addons=[GPT(epochs=5)])
    """

    needs: ClassVar[tuple[type[Addon], ...]] = ()
    """Other add-ons it works with; they are attached as well."""
    asked_as: str = ""
    """The name by which it was attached: that of a bundle or of another add-on, or its own."""

    def weigh(self, pseudo: Pseudo, outputs: Outputs, ctx: ClientContext) -> Pseudo:
        """Decide which unlabelled images count and how much, given the method's decision."""
        return pseudo

    def term(self, outputs: Outputs, ctx: ClientContext) -> Tensor | None:
        """A loss to add to each step."""
        return None


@dataclass(frozen=True)
class MethodParameters:
    """Parameters that every method has."""

    tau: float = setting(0.95, "confidence required to accept a prediction", low=0, high=1)
    strict: bool = setting(False, "confidence must exceed tau (true) or reach it (false)")


class Method(Part):
    """Labelled-only federated averaging; other methods override what they do differently.

    >>> import proxyfl
    >>> class Bold(proxyfl.Method):
    ...     name = "bold"
    ...     def learning_rate(self, shared):
    ...         return 2 * shared
    >>> Bold(tau=0.9).learning_rate(0.1)
    0.2
    """

    name: ClassVar[str] = "method"
    wants: ClassVar[frozenset[str]] = frozenset({"x"})
    oracle: ClassVar[bool] = False
    """Whether it receives the true labels of unlabelled images (``ctx.truth``); listings mark it."""
    undefined: ClassVar[Mapping[str, str]] = {
        SERVER: ("it learns from labelled images at clients, which have none (server-only uses the server's)")
    }
    protocol: ClassVar[Mapping[str, object]] = {}
    """Settings of its own paper's federation by dotted name (``--protocol own``); empty: it has none."""
    protocol_on: ClassVar[Mapping[str, Mapping[str, object]]] = {}
    """The settings that differ on individual data sets, by data set."""
    needs_labels: ClassVar[bool] = True
    """Whether a client without labelled images has nothing to do."""
    walks_labelled: ClassVar[bool] = False
    """Whether an epoch visits every labelled image once instead of sampling with replacement."""
    shows_steps: ClassVar[bool] = True
    """Whether :meth:`decide` records the pseudo-labels of each step; else the method records them itself."""
    takes_masks: ClassVar[bool] = False
    """Whether an add-on may decide which unlabelled images count (:meth:`Addon.weigh`)."""
    needs_all_updates: ClassVar[bool] = False
    """Whether :meth:`weights` needs all updates before averaging; they are then stored on disk."""
    most_trainings: int = 1
    """How often :meth:`trainings` may let a client train in a round."""
    recalls_start: ClassVar[bool] = False
    """Whether a client's first round uses the network as it was before round 1 (``ctx.initial``)."""
    watched: ClassVar[Mapping[str, str]] = {"proxies": "classifier.weight"}
    """Tensors of individual updates that snapshots contain, by title, if the network has them. The rows of a
    classifier are proxies of its classes with any method."""
    Parameters: ClassVar[type[Any]] = MethodParameters

    own_optimiser: str = ""
    """The optimiser it trains with, if it ignores that of the training settings."""

    usual_addons: ClassVar[tuple[type[Addon], ...]] = ()
    """Add-ons that it has unless others are given."""

    def __init__(self, parameters: Any = None, addons: Sequence[Addon] | None = None, **values: Any) -> None:
        """``ProxyFL(tau=0.9, addons=[ICPL(weight=0.5)])``; its usual add-ons have the same ``fidelity``."""
        super().__init__(parameters, **values)
        fidelity = values.get("fidelity", "clean")
        addons = [addon(fidelity=fidelity) for addon in self.usual_addons] if addons is None else addons
        self.addons = self._with_needs(addons, fidelity)
        self.parts: tuple[Part, ...] = (self, *self.addons)
        for addon in self.addons:
            if reason := self.refuses(addon):
                raise MethodError(f"{self.name} cannot carry +{addon.asked_as or addon.name}: {reason}")
        self.all_wants = frozenset().union(*(part.wants for part in self.parts))
        self.needs_heads = any(part.heads for part in self.parts)
        self.all_private = tuple(prefix for part in self.parts for prefix in part.private)
        self.all_counts = tuple(f"{part.name}/{name}" for part in self.parts for name in part.counts)
        self.keeps_state = any(part.keeps or part.private for part in self.parts)

    @staticmethod
    def _with_needs(addons: Sequence[Addon], fidelity: str) -> tuple[Addon, ...]:
        """The add-ons, each behind those it works with; what is missing is as the fidelity has it."""
        attached: list[Addon] = []
        for addon in addons:
            for needed in addon.needs:
                given = [other for other in (*attached, *addons) if isinstance(other, needed)]
                if not given:
                    given = [needed(fidelity=fidelity)]
                    given[0].asked_as = addon.asked_as or addon.name
                attached += [other for other in given[:1] if other not in attached]
            attached += [addon] if addon not in attached else []
        names = [addon.name for addon in attached]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise MethodError(f"add-on '{twice[0]}' is attached twice; leave one out")
        return tuple(attached)

    def _shown(self) -> list[str]:
        return [f"addons=[{', '.join(map(repr, self.addons))}]"] if self.addons else []

    def refuses(self, addon: Addon) -> str:
        """Why this method cannot carry the add-on; empty when it can."""
        masks = [other.name for other in self.addons if overrides(other, "weigh")]
        if addon.name not in masks:
            return ""
        if not self.takes_masks:
            return "none of its losses supports weights of unlabelled images"
        return "" if addon.name == masks[0] else f"+{masks[0]} already weights its images"

    def require(self, where: str) -> None:
        """Raise an error if the method or one of its add-ons is not defined in this scenario."""
        for part in self.parts:
            if reason := part.refusal(where):
                homes = [f"'{each}'" for each in SCENARIOS if not part.refusal(each)]
                raise ConfigError(
                    f"{part.name} is not defined with labels.where = '{where}': {reason}; use "
                    f"{' or '.join(homes)}, or a method from 'proxyfl methods --scenario {where}'"
                )

    # On the client

    def rearrange(self, data: ClientData) -> ClientData:
        """Reorganise a client's images before any batch is drawn."""
        return data

    def trainables(self, ctx: ClientContext) -> Iterable[nn.Parameter]:
        """What the optimiser trains."""
        return ctx.model.parameters()

    def learning_rate(self, shared: float) -> float:
        """The learning rate, for methods that cannot use the shared one."""
        return shared

    def steps_per_epoch(self, labelled: int, pool_steps: int, batch: int) -> int:
        """The number of steps of a local epoch, given the number that the shared protocol proposes."""
        return pool_steps

    def step(self, batch: Batch, ctx: ClientContext) -> Outputs:
        """One step. Methods that are not a single loss override it and add ``ctx.terms`` themselves."""
        outputs = ctx.forward(batch)
        with span(PSEUDO):
            self.decide(outputs, ctx)
        with span(loss_span("supervised")):
            losses = {"supervised": self.supervised(outputs)}
        with span(LOSSES):
            losses |= self.losses(outputs, ctx)
        ctx.descend(losses | ctx.terms(outputs))
        return outputs

    def decide(self, outputs: Outputs, ctx: ClientContext) -> None:
        """Pseudo-label the unlabelled images of the batch, if there are any, and record the decision."""
        if len(outputs.batch.u_weak):
            pseudo = self.pseudo_label(outputs, ctx)
            for addon in self.addons:
                pseudo = addon.weigh(pseudo, outputs, ctx)
            outputs.pseudo = pseudo
            if self.shows_steps:
                ctx.show(outputs.batch.u_index, label=pseudo.label, mask=pseudo.mask)

    def supervised(self, outputs: Outputs) -> Tensor:
        """Ls: mean cross entropy over the labelled images; zero without any."""
        return F.cross_entropy(outputs.x, outputs.batch.y, reduction="sum") / max(1, len(outputs.x))

    def pseudo_label(self, outputs: Outputs, ctx: ClientContext) -> Pseudo:
        """Pseudo-label unlabelled images: by default with the global model's confident predictions."""
        scores = outputs.global_weak
        return Pseudo(scores.argmax(1), self.confident(scores), scores=scores)

    def confident(self, probabilities: Tensor) -> Tensor:
        best = probabilities.amax(1)
        tau = self.parameters.tau
        return torch.gt(best, tau) if self.parameters.strict else torch.ge(best, tau)

    def losses(self, outputs: Outputs, ctx: ClientContext) -> dict[str, Tensor]:
        """Losses in addition to the supervised one."""
        return {}

    def record_losses(self, outputs: Outputs, ctx: ClientContext) -> tuple[Tensor, Tensor]:
        """The losses of single labelled and of single unlabelled images, for differential privacy of images:
        of methods whose loss is the mean of the first plus the mean of the second. Each depends on its own
        image alone.
        """
        return F.cross_entropy(outputs.x, outputs.batch.y, reduction="none"), outputs.x.new_zeros(0)

    def upload(self, ctx: ClientContext) -> Tensors:
        """The weights to send: parameters and buffers, except private ones."""
        return self.shared(ctx.model.state_dict())

    def shared(self, weights: Mapping[str, Tensor]) -> Tensors:
        """The weights that are not private."""
        return {name: value for name, value in weights.items() if not name.startswith(self.all_private)}

    # On the server

    def initial(self, weights: Tensors) -> Tensors:
        """The server's first weights from a network's state."""
        return weights

    def prepare(self, ctx: ServerContext) -> None:
        """Before the first round, if the server holds labelled images: ``ctx.train_own`` trains on them."""

    def refine(self, ctx: ServerContext) -> None:
        """After each aggregation, if the server holds labelled images: by default it trains on them
        like a client, for ``train.epochs`` epochs.
        """
        ctx.train_own()

    def learn(self, batch: Batch, ctx: ClientContext) -> None:
        """One step of the server's training on its own images."""
        ctx.descend({"supervised": F.cross_entropy(ctx.forward(batch).x, batch.y)})

    def learned(self, ctx: ClientContext) -> Tensors:
        """The server's weights after such training."""
        return self.initial(detached(self.shared(ctx.model.state_dict())))

    def trainings(self, ctx: ServerContext, clients: Sequence[int]) -> Sequence[int]:
        """How often each of these clients trains in the round, each time from the weights that are sent, with
        an update for each training. With 0, a client does not take part.
        """
        return [1] * len(clients)

    def weight_of(self, update: Update, rule: float) -> float:
        """An update's weight in the running mean; ``rule`` is what ``federation.weighting`` gives it. One of
        weight 0 sits the round out.
        """
        return rule

    def weights(self, ctx: ServerContext, kept: Sequence[Tensors]) -> Sequence[float]:
        """Weights of the mean, in folding order, for methods that look at all updates (``ctx.updates``)."""
        return ctx.rule_weights

    def model(self, weights: Mapping[str, Tensor]) -> Tensors:
        """The state of the network to evaluate or export."""
        return dict(weights)

    # All parts together

    def start_all(self, ctx: ServerContext) -> Tensors:
        return _gather(self.parts, lambda part: part.start(ctx))

    def begin_all(self, ctx: ClientContext) -> None:
        for part in self.parts:
            part.begin(ctx)

    @torch.no_grad()
    def observe_all(self, outputs: Outputs, ctx: ClientContext) -> None:
        for part in self.parts:
            part.observe(outputs, ctx)

    def extras_form_all(self, ctx: ServerContext) -> dict[str, tuple[int, ...]]:
        forms = ((part.name, part.extras_form(ctx)) for part in self.parts)
        return {f"{part}/{name}": shape for part, form in forms for name, shape in form.items()}

    def finish_all(self, ctx: ClientContext) -> Tensors:
        return _gather(self.parts, lambda part: part.finish(ctx))

    def task_extras_all(self, ctx: ServerContext, client: int) -> Tensors:
        return _gather(self.parts, lambda part: part.task_extras(ctx, client))

    def receive_all(self, update: Update) -> Tensors:
        return _gather(self.parts, lambda part: part.receive(update))

    def serve_all(self, ctx: ServerContext, kept: Sequence[Tensors]) -> Tensors:
        for part in self.parts:
            mine = [namespace(tensors, part.name) for tensors in kept]
            with span(serve_span(part.name)):
                ctx.extras |= within(part.name, part.serve(ctx, mine))
        return ctx.extras


def _gather(parts: Iterable[Part], hook: Any) -> Tensors:
    gathered: Tensors = {}
    for part in parts:
        gathered |= within(part.name, hook(part))
    return gathered


def overrides(part: Part, hook: str) -> bool:
    """Whether a part fills a hook itself, rather than leaving it as every method or add-on has it."""
    base = next(kind for kind in (Method, Addon, Part) if isinstance(part, kind))
    return getattr(type(part), hook) is not getattr(base, hook)
