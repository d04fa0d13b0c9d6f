"""A worker process of the pool: trains one client at a time until its parent closes the connection."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from collections.abc import Iterator, Sequence
from itertools import cycle
from multiprocessing.connection import Connection
from typing import Any

from safetensors.torch import load, save

from proxyfl.core.flat import Layout
from proxyfl.core.plugins import load_plugin
from proxyfl.core.state import Task, Tensors, namespace
from proxyfl.data.holdings import Holdings
from proxyfl.engines import shared
from proxyfl.engines.handover import unpacked
from proxyfl.engines.inline import InlineEngine
from proxyfl.engines.remote_error import describe
from proxyfl.engines.serialization import Header, pack_answer, unpack_task
from proxyfl.engines.shared import SharedTensors
from proxyfl.federation.client import ClientTrainer


def encoded(header: Header, tensors: Tensors) -> tuple[bytes, bytes]:
    return json.dumps(header).encode(), save(tensors)


def send(connection: Connection, header: Header, tensors: Tensors) -> None:
    for frame in encoded(header, tensors):
        connection.send_bytes(frame)


def receive(connection: Connection) -> tuple[Header, Tensors]:
    header = json.loads(connection.recv_bytes())
    return header, load(connection.recv_bytes())


def serve(channel: int, store: int, broadcast: int, answers: Sequence[int]) -> None:
    """``answers`` are used in turn: an answer may be read while the next one is written."""
    gone = (EOFError, BrokenPipeError, ConnectionResetError)
    with Connection(channel) as connection, contextlib.suppress(*gone):
        _serve(connection, store, broadcast, cycle(enumerate(map(SharedTensors, answers))))


def _serve(
    connection: Connection, store: int, broadcast: int, places: Iterator[tuple[int, SharedTensors]]
) -> None:
    setup, _ = receive(connection)
    trainer = connection.recv_bytes()
    try:
        engine = _engine(setup, trainer, store)
    except Exception as error:
        send(connection, {"kind": "error", **describe(error)}, {})
        return
    send(connection, {"kind": "ready"}, {})
    sent = Sent({}, {})
    while True:
        header, tensors = receive(connection)
        if "broadcast" in header:
            sent = Sent.of(shared.read(broadcast, header["broadcast"]))
        try:
            answer = _answer(
                engine, unpack_task(header, tensors, sent.weights, sent.extras), sent.form, places
            )
        except Exception as error:  # no client's fault: the parent raises it again
            answer = {"kind": "error", **describe(error)}
        send(connection, answer, {})


def _answer(
    engine: InlineEngine, task: Task, form: Layout, places: Iterator[tuple[int, SharedTensors]]
) -> Header:
    """Train a client, put its tensors into the next place, and say where they are."""
    began = time.process_time()
    # Extras are copied: what a method changes in place must not reach this worker's next client.
    task = dataclasses.replace(task, extras={name: value.clone() for name, value in task.extras.items()})
    answer, content = pack_answer(next(engine.run([task])), form)
    answer["place"], memory = next(places)
    answer["tensors"] = memory.write(content)
    answer["cpu_seconds"] = time.process_time() - began
    return answer


class Sent:
    """What all tasks of a round share, as a worker keeps it from one task to the next."""

    def __init__(self, weights: Tensors, extras: Tensors) -> None:
        self.weights, self.extras, self.form = weights, extras, Layout(weights)

    @classmethod
    def of(cls, broadcast: Tensors) -> Sent:
        return cls(namespace(broadcast, "weights"), namespace(broadcast, "extras"))


def _engine(setup: dict[str, Any], content: bytes, store: int) -> InlineEngine:
    for plugin in setup["plugins"]:
        load_plugin(plugin)
    trainer: ClientTrainer = unpacked(content)
    trainer.compute = dataclasses.replace(trainer.compute, device=setup["device"])
    holdings = Holdings.from_tensors(shared.read(store, setup["store"]))
    return InlineEngine.over(trainer, holdings)
