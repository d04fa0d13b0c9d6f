"""What a test of this room registers is gone after it: other rooms list every method."""

from __future__ import annotations

import pytest

from proxyfl.core import plugins
from proxyfl.methods import registry


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_recipes", "_shown", "_aliases", "_addons"):
        monkeypatch.setattr(registry, name, dict(getattr(registry, name)))
    monkeypatch.setattr(plugins, "loaded", list(plugins.loaded))
