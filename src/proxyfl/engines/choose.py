"""Which engine trains: worker processes where they are wanted and can be, else this process."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from proxyfl.core.config import Config
from proxyfl.core.errors import ConfigError
from proxyfl.data.holdings import Holdings
from proxyfl.engines.forkserver import WORKERS, dismiss
from proxyfl.engines.handover import CannotHandOver
from proxyfl.engines.inline import InlineEngine
from proxyfl.engines.pool import PoolEngine, default_workers
from proxyfl.federation.client import ClientTrainer
from proxyfl.federation.loop import Engine

EngineFactory = Callable[[ClientTrainer, Holdings], Engine]
"""Gives the engine that trains these clients."""


def choose_engine(trainer: ClientTrainer, holdings: Holdings, workers: int | None, config: Config) -> Engine:
    """Worker processes where they are wanted and can be; otherwise this process."""
    count = _asked(config) if workers is None else workers
    if type(count) is not int or count < 0:
        raise ConfigError(f"workers = {count!r} must be a number of processes; 0 trains in this one")
    # Where one client hands its momentum to the next, they can only be trained one after the other.
    if count and not trainer.settings.leak_momentum:
        try:
            return PoolEngine(trainer, holdings, count)
        except CannotHandOver as error:
            note = f"clients train in this process, because other processes cannot receive {error}"
            print(f"note: {note}", file=sys.stderr)
    dismiss()
    return InlineEngine.over(trainer, holdings)


def _asked(config: Config) -> int:
    text = os.environ.get(WORKERS, "")
    if not text:
        return default_workers(config)
    if not text.isdecimal():
        raise ConfigError(f"{WORKERS} = '{text}' must be a number of processes; 0 trains in this one")
    return int(text)
