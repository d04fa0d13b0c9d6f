"""What lives on a node: an actor that holds trainer and data and trains one client at a time."""

from __future__ import annotations

import dataclasses
import platform
import socket
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from torch import Tensor

from proxyfl.core.errors import RunError
from proxyfl.core.flat import Layout
from proxyfl.core.plugins import load_plugin
from proxyfl.core.provenance import instructions, source_hash
from proxyfl.core.state import Task, Tensors, detached, namespace, within
from proxyfl.data.holdings import Holdings
from proxyfl.engines.cluster.connection import this_node
from proxyfl.engines.cluster.frames import Block, framed, tensors_in, unframed
from proxyfl.engines.handover import unpacked
from proxyfl.engines.inline import InlineEngine
from proxyfl.engines.remote_error import describe
from proxyfl.engines.serialization import pack_answer, unpack_task
from proxyfl.federation.client import ClientTrainer
from proxyfl.federation.client_store import ClientStore

STATE = "state"
"""Below which what a client keeps travels with its task and its answer."""


def versions() -> dict[str, str]:
    """What must be the same on all nodes: the trainer's classes, and the arithmetic."""
    found = {name: metadata.version(name) for name in ("proxyfl", "torch", "numpy")}
    found["proxyfl"] += f" ({source_hash()[:7]})"
    return {"python": platform.python_version(), **found}


class Travelling(ClientStore):
    """What one client keeps, come with its task; what it keeps now goes back with its answer. Nodes write no
    file.
    """

    def __init__(self, found: Tensors) -> None:
        super().__init__(Path())
        self.found, self.kept = found, dict[str, Tensor]()
        self.saved = False

    def load(self, client: int, round: int) -> Tensors:
        return self.found

    def save(self, client: int, round: int, tensors: Mapping[str, Tensor], base: int = 0) -> None:
        self.kept, self.saved = detached(tensors), True


class ClientActor:
    """Answers are frames: a header and tensors, or an error in words."""

    engine: InlineEngine

    def open(self, setup: bytes, trainer: bytes, data: Block) -> bytes:
        """Take trainer and data, if this node is as the others are."""
        try:
            header, _ = unframed(setup)
            require_same(header["versions"])
            for plugin in header["plugins"]:
                load_plugin(plugin)
            self.engine = _engine(trainer, Holdings.from_tensors(tensors_in(data, header["layout"])))
        except Exception as error:
            where = {"node": this_node(), "host": socket.gethostname()}
            return framed({"kind": "error", **where, **describe(error)}, {})
        return self.ping()

    def ping(self) -> bytes:
        """That this process lives, and where."""
        arithmetic = instructions(self.engine.trainer.compute)
        where = {"node": this_node(), "host": socket.gethostname(), "arithmetic": arithmetic}
        return framed({"kind": "ready", **where}, {})

    def train(self, task: bytes, broadcast: Block) -> bytes:
        began = time.process_time()
        try:
            header, tensors = unframed(task)
            sent = tensors_in(broadcast, header["broadcast"])
            weights, extras = namespace(sent, "weights"), namespace(sent, "extras")
            return self._trained(unpack_task(header, tensors, weights, extras), tensors, began)
        except Exception as error:  # no client's fault: the engine raises it again
            return framed({"kind": "error", **describe(error)}, {})

    def _trained(self, task: Task, tensors: Tensors, began: float) -> bytes:
        store = Travelling(namespace(tensors, STATE))
        self.engine.trainer.store = store
        answer, content = pack_answer(next(self.engine.run([task])), Layout(task.weights))
        spent = time.process_time() - began
        whole = content | within(STATE, store.kept)
        return framed({**answer, "cpu_seconds": spent, "saved": store.saved}, whole)


def require_same(wanted: dict[str, str]) -> None:
    have = versions()
    other = [
        f"{name} {have[name]} instead of {wanted[name]}" for name in wanted if have[name] != wanted[name]
    ]
    if other:
        raise RunError(
            f"node {socket.gethostname()} has {', '.join(other)}; install the same versions on every node"
        )


def _engine(content: bytes, holdings: Holdings) -> InlineEngine:
    try:
        trainer: ClientTrainer = unpacked(content)
    except ImportError as error:
        raise RunError(
            f"node {socket.gethostname()} cannot import '{error.name}', which this "
            "federation uses; install it on every node, or name its file with --plugin"
        ) from error
    trainer.compute = dataclasses.replace(trainer.compute, device=_device(trainer.compute.device))
    return InlineEngine.over(trainer, holdings)


def _device(name: str) -> str:
    """Ray shows a process the GPUs that it may use, and no others: the first is its own."""
    return "cuda" if name.startswith("cuda") else name


def header_of(layout: dict[str, Any], plugins: list[str]) -> bytes:
    """What an actor is opened with."""
    return framed({"layout": layout, "plugins": plugins, "versions": versions()}, {})
