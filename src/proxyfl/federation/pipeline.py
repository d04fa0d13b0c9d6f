"""From a round's updates to new weights: the mean, a rule that resists hostile clients, or a private sum.

A pipeline stands between the guard and the method's server hooks and knows no method. What the hooks read of
single updates (their ``receive``) is each update as the pipeline lets it through: shortened by clipping, only
the chosen ones with krum, and with the rules of coordinates drawn into the range that the rule trusts: what
trimmed leaves over, the middle half with median. Extras are chosen and drawn in like weights, not shortened;
to be drawn in they must have a form.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from proxyfl.core.config import Config
from proxyfl.core.errors import ConfigError, UpdateRefused
from proxyfl.core.state import ServerState, Tensors, Update, namespace
from proxyfl.federation import privacy, robust
from proxyfl.federation.aggregate import SpooledMean, WeightedMean
from proxyfl.federation.sampling import Population
from proxyfl.methods.base import Method, overrides
from proxyfl.methods.context import ServerContext


@dataclass
class Settled:
    """What a round comes to: weights, whose updates are behind them, and what is kept of each of those."""

    weights: Tensors
    chosen: list[int]
    kept: list[Tensors]


class Pipeline:
    """The weighted mean. ``add`` takes updates in folding order, ``settle`` ends the round."""

    rests_on_updates = True
    """Whether a round without any update leaves the weights as they are."""

    def __init__(self, method: Method, folder: Path | None = None) -> None:
        self.method = method
        self.spooled = SpooledMean(folder) if method.needs_all_updates else None
        self.running = WeightedMean()

    def admit(self, update: Update) -> Update:
        """An update as anything behind the guard may see it."""
        return update

    def add(self, update: Update, weight: float) -> None:
        (self.spooled or self.running).add(update.weights, weight)

    def settle(self, ctx: ServerContext, kept: list[Tensors]) -> Settled:
        everyone = list(range(len(kept)))
        if self.spooled is None:
            return Settled(self.running.mean(), everyone, kept)
        return Settled(self.spooled.mean(self._weights(ctx, kept)), everyone, kept)

    def _weights(self, ctx: ServerContext, kept: list[Tensors]) -> Sequence[float]:
        return self.method.weights(ctx, [namespace(tensors, self.method.name) for tensors in kept])


class ClippedMean(Pipeline):
    """The weighted mean of changes that are shortened to a length as they arrive."""

    def __init__(self, method: Method, old: Tensors, length: float, folder: Path | None = None) -> None:
        super().__init__(method, folder)
        self.old, self.length = old, length

    def admit(self, update: Update) -> Update:
        return clipped(update, self.old, self.length)


class RobustPipeline(Pipeline):
    """A rule that looks at all updates, which wait on disk for it."""

    def __init__(
        self,
        config: Config,
        method: Method,
        old: Tensors,
        folder: Path | None = None,
        extras: Collection[str] = (),
    ) -> None:
        self.method, self.settings = method, config.aggregation
        self.asked = robust.hostile_of(config.federation.per_round, self.settings.hostile)
        self.by_coordinate = self.settings.rule in ("median", "trimmed")
        self.form = frozenset(extras)
        self.updates = robust.Updates(old, folder)
        self.lengths: list[float] = []
        self.weights: list[float] = []
        self.headers: list[Update] = []

    def admit(self, update: Update) -> Update:
        strange = sorted(update.extras.keys() - self.form)
        if strange and self.by_coordinate and reads_updates(self.method):
            raise UpdateRefused(
                f"sends {strange[0][:80]!r}, but aggregation.rule = '{self.settings.rule}' takes only what "
                "the method's extras_form names"
            )
        if self.settings.clip and self.settings.clip_by == "length":
            return clipped(update, self.updates.old, self.settings.clip)
        return update

    def add(self, update: Update, weight: float) -> None:
        self.updates.add(update.weights)
        self.weights.append(weight)
        self.headers.append(dataclasses.replace(update, weights={}, carry={}))
        if self.settings.clip_by == "median":
            self.lengths.append(robust.change_length(update.weights, self.updates.old))

    def settle(self, ctx: ServerContext, kept: list[Tensors]) -> Settled:
        try:
            self._shorten()
            if self.by_coordinate:
                return self._by_coordinate(ctx, kept)
            return self._by_update(ctx, kept)
        finally:
            self.updates.close()

    def _shorten(self) -> None:
        """By the median length, which is known only now."""
        if self.settings.clip and self.lengths:
            limit = self.settings.clip * statistics.median(self.lengths)
            self.updates.factors = [limit / length if length > limit else 1.0 for length in self.lengths]

    def _by_update(self, ctx: ServerContext, kept: list[Tensors]) -> Settled:
        chosen = list(range(len(kept)))
        if self.settings.rule == "krum":
            hostile = self._withstood(ctx, len(kept), spare=3)
            chosen = robust.krum_choice(self.updates.squares(), hostile, self.settings.keep)
        if reads_updates(self.method) and any(self.updates.factors[place] < 1 for place in chosen):
            read = [self._received(place, self.updates.whole(place)) for place in chosen]
        else:
            read = [kept[place] for place in chosen]
        if self.settings.rule == "krum":
            weights: Sequence[float] = [1.0] * len(kept)
        else:
            weights = self._weights(ctx, read) if self.method.needs_all_updates else self.weights
        return Settled(self.updates.mean(weights, chosen), chosen, read)

    def _withstood(self, ctx: ServerContext, count: int, spare: int) -> int:
        """How many hostile updates the rule withstands; the metrics tell where it is fewer than planned."""
        found = robust.withstood(count, self.settings.hostile, spare)
        if found < self.asked:
            ctx.metrics["withstood"] = found
        return found

    def _by_coordinate(self, ctx: ServerContext, kept: list[Tensors]) -> Settled:
        """Median or trimmed mean, and what the method reads drawn into the range that is trusted."""
        count, updates, trimmed = len(kept), self.updates, self.settings.rule == "trimmed"
        cut = self._withstood(ctx, count, spare=1) if trimmed else 0
        trusted = cut if trimmed else count // 4
        result, low, high = updates.empty(), updates.empty(), updates.empty()
        reads = reads_updates(self.method)
        for rows, values in updates.blocks():
            found = robust.trimmed_mean(values, cut) if trimmed else robust.median(values)
            updates.put(result, rows, found)
            if reads:
                for bound, part in zip((low, high), robust.inner_range(values, trusted), strict=True):
                    updates.put(bound, rows, part)
        if reads:
            kept = self._drawn_in(low, high, trusted)
        return Settled(updates.typed(result), list(range(count)), kept)

    def _drawn_in(self, low: Tensors, high: Tensors, trusted: int) -> list[Tensors]:
        low, high = self.updates.typed(low), self.updates.typed(high)
        names = set.intersection(*(set(header.extras) for header in self.headers))
        ranges = {
            name: robust.inner_range(torch.stack([header.extras[name] for header in self.headers]), trusted)
            for name in sorted(names)
        }
        found = []
        for place, header in enumerate(self.headers):
            weights = {
                name: value.clamp(low[name], high[name]) for name, value in self.updates.whole(place).items()
            }
            extras = {name: header.extras[name].clamp(*ranges[name]) for name in ranges}
            self.headers[place] = dataclasses.replace(header, extras={**header.extras, **extras})
            found.append(self._received(place, weights))
        return found

    def _received(self, place: int, weights: Tensors) -> Tensors:
        return self.method.receive_all(dataclasses.replace(self.headers[place], weights=weights))


class PrivatePipeline(Pipeline):
    """The sum of shortened changes with Gaussian noise, over the participants that were expected."""

    rests_on_updates = False

    def __init__(self, config: Config, method: Method, state: ServerState, population: Population) -> None:
        self.method = method
        self.sum = privacy.PrivateSum(config, state, privacy.expected(config, population))

    def admit(self, update: Update) -> Update:
        if update.extras or update.carry:
            raise UpdateRefused("sends more than weights, which differential privacy does not cover here")
        return update

    def add(self, update: Update, weight: float) -> None:
        self.sum.add(update.weights)

    def settle(self, ctx: ServerContext, kept: list[Tensors]) -> Settled:
        return Settled(self.sum.mean(), list(range(len(kept))), kept)


def pipeline_for(
    config: Config,
    method: Method,
    state: ServerState,
    population: Population,
    folder: Path | None = None,
    extras: Collection[str] = (),
) -> Pipeline:
    """As the settings say; combinations that cannot be right are refused. ``extras``: those with a form."""
    require_sound(config, method)
    settings = config.aggregation
    if config.privacy.clip:
        return PrivatePipeline(config, method, state, population)
    if settings.rule != "mean" or (settings.clip and settings.clip_by == "median"):
        return RobustPipeline(config, method, state.weights, folder, extras)
    if settings.clip:
        return ClippedMean(method, state.weights, settings.clip, folder)
    return Pipeline(method, folder)


def clipped(update: Update, old: Tensors, length: float) -> Update:
    """The update with its change of weights shortened to ``length`` where it is longer."""
    found = robust.change_length(update.weights, old)
    if found <= length:
        return update
    return dataclasses.replace(update, weights=robust.shortened(update.weights, old, length / found))


def require_sound(config: Config, method: Method) -> None:
    """Refuse what cannot be right, with the reason."""
    reason = rule_refusal(config, method) if config.aggregation.rule != "mean" else ""
    if config.privacy.clip:
        reason = reason or privacy_refusal(config, method)
    elif config.privacy.where == "site":
        reason = "privacy.where = 'site' needs privacy.clip above 0"
    if reason:
        raise ConfigError(reason)


def rule_refusal(config: Config, method: Method) -> str:
    """Why the rule cannot be used with this method and these settings; empty when it can."""
    rule, share, count = config.aggregation.rule, config.aggregation.hostile, config.federation.per_round
    setting = f"aggregation.rule = '{rule}'"
    if own := own_weights(method):
        return f"{setting} gives all updates the same say, but {own}; use the mean"
    if config.train.leak_momentum:
        return f"{setting} cannot see the momentum that clients hand on; set train.leak_momentum = false"
    if rule == "krum" and 2 * robust.hostile_of(count, share) + 3 > count:
        return (
            f"krum needs 2 f + 3 updates in a round to withstand f; aggregation.hostile = {share:g} is "
            f"too much for federation.per_round = {count}"
        )
    return ""


def privacy_refusal(config: Config, method: Method) -> str:
    """Why the noise would not cover what this run shows of a client; empty when it does."""
    if not config.privacy.noise or not 0 < config.privacy.delta < 1:
        return "privacy.clip needs privacy.noise above 0 and privacy.delta between 0 and 1"
    if not privacy.LEAST_NOISE <= config.privacy.noise <= privacy.MOST_NOISE:
        return (
            f"privacy.noise = {config.privacy.noise:g} has no account; "
            f"choose it between {privacy.LEAST_NOISE:g} and {privacy.MOST_NOISE:g}"
        )
    if config.aggregation.rule != "mean" or config.aggregation.clip:
        return "privacy.clip has its own clipping and noise for the mean; leave [aggregation] as it is"
    if config.federation.weighting != "uniform":
        return "privacy.clip needs federation.weighting = 'uniform': what one client adds must be bounded"
    if config.federation.sampling == "legacy":
        return "privacy.clip needs a sample nobody knows beforehand; set federation.sampling = 'poisson'"
    if config.train.leak_momentum:
        return (
            "privacy.clip does not cover the momentum that clients hand on; set train.leak_momentum = false"
        )
    if reason := uncovered(method):
        return f"differential privacy does not cover {config.method.name}: {reason}"
    return ""


def uncovered(method: Method) -> str:
    """What of a method escapes clipping and noise, told from its hooks; empty when nothing does."""
    reasons = []
    for part in method.parts:
        if overrides(part, "extras_form"):
            reasons.append(f"{part.name} sends more than weights ({part.sends})")
        elif overrides(part, "receive"):
            reasons.append(f"{part.name} reads single updates ({part.sends})")
    if own := own_weights(method):
        reasons.append(own)
    return "; ".join(reasons)


def reads_updates(method: Method) -> bool:
    """Whether any part looks at single updates."""
    return any(overrides(part, "receive") for part in method.parts)


def own_weights(method: Method) -> str:
    """That a method has its own weights for the mean; empty when it takes those of the settings."""
    has = overrides(method, "weights") or overrides(method, "weight_of")
    return f"{method.name} chooses weights of its own" if has else ""
