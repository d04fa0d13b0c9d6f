"""From settings to an aggregator, and the rules that are known by name."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import TypeVar

from proxyfl.aggregation.base import Aggregator, Around
from proxyfl.aggregation.clipping import Clip
from proxyfl.aggregation.coordinates import Median, TrimmedMean
from proxyfl.aggregation.coverage import uncovered
from proxyfl.aggregation.krum import Krum
from proxyfl.aggregation.mean import Mean
from proxyfl.aggregation.privacy import DifferentialPrivacy
from proxyfl.aggregation.server import FedAdam, FedAvgM, FedYogi, ServerOptimiser
from proxyfl.core.config import AggregationSettings, FederationSettings, PrivacySettings, TrainSettings
from proxyfl.core.errors import ConfigError, nearest
from proxyfl.core.settings import OBJECT
from proxyfl.core.trees import Tree
from proxyfl.methods.base import Method

Factory = Callable[..., Aggregator]
"""A class of aggregators, or a function of :class:`AggregationSettings`."""

F = TypeVar("F", bound=Factory)

_rules: dict[str, Factory] = {cls.name: cls for cls in (Mean, Median, TrimmedMean, Krum)}


def register_aggregator(name: str) -> Callable[[F], F]:
    """Register an aggregator as ``aggregation.rule = "NAME"``: a decorator for a class or a function.

    A class is called with those settings of ``[aggregation]`` that its constructor names (``hostile``,
    ``keep``, …), a function with all of them. The change of the middle client, as a file of its own::

        from dataclasses import dataclass

        import torch
        from proxyfl import Aggregator, register_aggregator

        @register_aggregator("middle")
        @dataclass(frozen=True)
        class Middle(Aggregator):
            def combine(self, updates, weights, old):
                sizes = [sum((u[name] - old[name]).float().norm() for name in old) for u in updates]
                return updates[int(torch.stack(sizes).argsort()[len(sizes) // 2])]

    ``proxyfl --plugin FILE run --set aggregation.rule=middle`` trains with it.
    """
    if not isinstance(name, str) or not name or not name.isprintable():
        raise ConfigError(f'{name!r} cannot name an aggregator; write @register_aggregator("NAME")')

    def remember(factory: F) -> F:
        if _rules.setdefault(name, factory) is not factory:
            raise ConfigError(f"an aggregator called '{name}' is registered already; choose another name")
        return factory

    return remember


def rules() -> list[str]:
    """Every name that ``aggregation.rule`` can have."""
    return list(_rules)


def build_aggregator(settings: AggregationSettings, privacy: PrivacySettings) -> Aggregator:
    """As the settings say. Combinations that cannot be right are refused."""
    rule = build_rule(settings)
    if privacy.clip:
        if settings.rule != Mean.name or settings.clip:
            raise ConfigError(
                "privacy.clip has its own clipping and noise for the mean; leave aggregation.rule and "
                "aggregation.clip as they are"
            )
        rule = site_aggregator(privacy)
    elif privacy.where == "site":
        raise ConfigError("privacy.where = 'site' needs privacy.clip above 0")
    elif settings.clip:
        rule = Clip(settings.clip, settings.clip_by, inner=rule)
    return build_optimiser(settings, rule)


def build_rule(settings: AggregationSettings) -> Aggregator:
    """The rule by name, with what it takes of the settings."""
    if settings.rule not in _rules:
        hint = nearest(settings.rule, _rules)
        raise ConfigError(f"aggregation.rule = {settings.rule!r} is not one of {', '.join(_rules)}; {hint}")
    factory = _rules[settings.rule]
    if isinstance(factory, type):
        taken = [name for name in inspect.signature(factory).parameters if hasattr(settings, name)]
        made = factory(**{name: getattr(settings, name) for name in taken})
    else:
        made = factory(settings)
    if not isinstance(made, Aggregator):
        raise ConfigError(f"'{settings.rule}' is registered, but returns {made!r} instead of an aggregator")
    return made


def build_optimiser(settings: AggregationSettings, inner: Aggregator) -> Aggregator:
    """The server optimiser around the rule; the rule itself where there is none."""
    step = {"lr": settings.lr} if settings.lr else {}  # 0: the optimiser's own
    if settings.optimiser == FedAvgM.name:
        return FedAvgM(momentum=settings.momentum, inner=inner, **step)
    for cls in (FedAdam, FedYogi):
        if settings.optimiser == cls.name:
            beta1, beta2 = settings.beta1, settings.beta2
            return cls(beta1=beta1, beta2=beta2, tau=settings.tau, inner=inner, **step)
    return inner


def described(aggregator: Aggregator) -> tuple[Tree, Tree]:
    """The tables ``[aggregation]`` and ``[privacy]`` from which :func:`build_aggregator` gives such an
    aggregator again. The rule's name begins with ``object:`` where it cannot.
    """
    aggregation: Tree = {}
    privacy: Tree = {}
    inner = aggregator
    if isinstance(inner, ServerOptimiser):
        aggregation |= {"optimiser": inner.name, **_own(inner)}
        inner = inner.inner
    if isinstance(inner, Clip):
        aggregation |= {"clip": inner.length, "clip_by": inner.by}
        inner = inner.inner
    if isinstance(inner, DifferentialPrivacy):
        privacy = _own(inner)
    else:
        named = next((name for name, known in _rules.items() if known is type(inner)), "")
        aggregation |= {"rule": named or f"{OBJECT}{inner!r}", **(_own(inner) if named else {})}
    return aggregation, privacy


def _own(aggregator: Aggregator) -> Tree:
    """The settings of an aggregator itself."""
    if not dataclasses.is_dataclass(aggregator):
        return {}
    return {
        spec.name: getattr(aggregator, spec.name)
        for spec in dataclasses.fields(aggregator)
        if "meaning" in spec.metadata
    }


def site_aggregator(privacy: PrivacySettings) -> Aggregator:
    """As much of the aggregator as clients need: what an update goes through before it leaves. Which rule
    combines updates is the server's business, and its code need not be known elsewhere.
    """
    if not privacy.clip:
        return Mean()
    return DifferentialPrivacy(privacy.clip, privacy.noise, privacy.delta, privacy.where, privacy.draw)


def require_sound(
    aggregator: Aggregator, method: Method, train: TrainSettings, federation: FederationSettings
) -> None:
    """Refuse what cannot be right, with the reason."""
    if reason := aggregator.refusal(method, train, federation):
        raise ConfigError(reason)
    if federation.late == "next" and (reason := _not_late(aggregator, method)):
        raise ConfigError(f"federation.late = 'next' cannot be used: {reason}; leave it at 'refuse'")


def _not_late(aggregator: Aggregator, method: Method) -> str:
    """Why an update of the round before has no place in a round; empty where it has."""
    while isinstance(aggregator, Around):
        aggregator = aggregator.inner
    if aggregator.private:
        return "the accounting of differential privacy holds for updates of the round's own sample"
    if not isinstance(aggregator, Mean):
        return f"aggregation.rule = '{aggregator.title}' gives a late update the same weight as the others"
    if reason := uncovered(method):
        return f"the server side of {method.name} needs updates of one round: {reason}"
    return ""
