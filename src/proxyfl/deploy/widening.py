"""Which changes of an experiment a site's owner has to agree to: all, but for those that take back.

What is not named here must stay as it was approved, so that a setting that is new in a later version is asked
about and not let pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from proxyfl.core.config import Config
from proxyfl.core.trees import dotted

SERVERS_OWN = frozenset(
    {
        "federation.quorum",
        "federation.per_round",
        "federation.late",
        "partition.clients",
        "model.weights",
        "model.weights_hash",
    }
)
"""Who else takes part, whether the server waits for an update, and the weights that the first round starts
from. Under differential privacy of sites the rules below go first.
"""

Narrower = Callable[[Any, Any], bool]

FEWER: Mapping[str, Narrower] = {
    "federation.rounds": lambda approved, asked: asked <= approved,
    "federation.evaluate_every": lambda approved, asked: asked >= approved,
    "keep.clients": lambda approved, asked: asked == "none",
    "keep.metrics": lambda approved, asked: asked == "accuracy",
}
"""When a change means less than was approved."""

PRIVATE: Mapping[str, Narrower] = {
    "privacy.clip": lambda approved, asked: 0 < asked <= approved,
    "privacy.noise": lambda approved, asked: asked >= approved,
    "privacy.where": lambda approved, asked: asked == "site",
    "privacy.draw": lambda approved, asked: asked == "system",
    "privacy.delta": lambda approved, asked: asked <= approved,
    "federation.per_round": lambda approved, asked: asked <= approved,
    "partition.clients": lambda approved, asked: asked >= approved,
}
"""The same under differential privacy: with more sites per round each adds less noise, and of fewer sites
each is sampled more often, which spends more ε."""

RECORDS: Mapping[str, Narrower] = {
    "privacy.record_clip": lambda approved, asked: 0 < asked <= approved,
    "privacy.record_noise": lambda approved, asked: asked >= approved,
    "privacy.draw": lambda approved, asked: asked == "system",
    "privacy.delta": lambda approved, asked: asked <= approved,
}
"""The same under differential privacy of single images."""


def widened(approved: Config, asked: Config) -> list[str]:
    """Settings that go beyond the approved ones, each with both values."""
    return _changes(approved, asked)[0]


def allowed(approved: Config, asked: Config) -> list[str]:
    """Settings that differ and need no approval, each with both values: whoever approves should know them."""
    return _changes(approved, asked)[1]


def _changes(approved: Config, asked: Config) -> tuple[list[str], list[str]]:
    before, now = dotted(approved.to_tree()), dotted(asked.to_tree())
    rules = {
        **FEWER,
        **(PRIVATE if approved.privacy.clip else {}),
        **(RECORDS if approved.privacy.record_clip else {}),
    }
    beyond: list[str] = []
    within: list[str] = []
    for name in sorted({*before, *now}, key=lambda name: (name != "method.name", name)):
        old, new = before.get(name), now.get(name)
        if old == new:
            continue
        is_allowed = (
            (name in rules and rules[name](old, new))
            or (name in SERVERS_OWN and name not in rules)
            or (name.startswith("privacy.") and not approved.privacy.is_on)  # more than none
        )
        (within if is_allowed else beyond).append(f"{name} = {new!r}, approved: {old!r}")
    return beyond, within
