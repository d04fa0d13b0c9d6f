"""What several tests of real federations share."""

from __future__ import annotations

import pytest


@pytest.fixture
def quick(monkeypatch):
    """Waiting takes no time."""
    from serving import hurry

    hurry(monkeypatch)


@pytest.fixture
def small():
    """A federation of three rounds that takes seconds."""
    from loopback import experiment

    sizes = {"rounds": 3, "per_round": 2, "subset": 80, "labels__per_class": 4, "keep__checkpoints": 9}
    return experiment("proxyfl", model__name="little", **sizes)
