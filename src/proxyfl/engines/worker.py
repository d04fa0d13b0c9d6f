"""A worker process of the pool: trains one client at a time until its parent is gone.

Started as ``python -m proxyfl.engines.worker`` with the file descriptors it needs, so it shares no code path
with the program that started it: a script needs no ``if __name__ == "__main__"``.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from safetensors.torch import load, save

from proxyfl.core.config import read_config
from proxyfl.core.errors import ProxyFLError
from proxyfl.core.plugins import load_plugin
from proxyfl.core.state import Tensors, namespace
from proxyfl.data.holdings import Holdings
from proxyfl.data.stream import ViewSettings
from proxyfl.engines import shared
from proxyfl.engines.inline import InlineEngine
from proxyfl.engines.wire import Header, pack_answer, unpack_task
from proxyfl.federation.client import ClientTrainer
from proxyfl.federation.shelf import Shelf
from proxyfl.methods import registry

PREFERRED_VICTIM = "500"
"""When memory runs out, a worker should be ended before its parent: it can be replaced."""


def send(connection: Connection, header: Header, tensors: Tensors) -> None:
    connection.send_bytes(json.dumps(header).encode())
    connection.send_bytes(save(tensors))


def receive(connection: Connection) -> tuple[Header, Tensors]:
    header = json.loads(connection.recv_bytes())
    return header, load(connection.recv_bytes())


def main() -> None:
    channel, lifeline, store, broadcast = map(int, sys.argv[1:])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends workers
    threading.Thread(target=_end_with_parent, args=(lifeline,), daemon=True).start()
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(PREFERRED_VICTIM, encoding="ascii")
    with Connection(channel) as connection, contextlib.suppress(EOFError, BrokenPipeError):
        _serve(connection, store, broadcast)


def _end_with_parent(lifeline: int) -> None:
    os.read(lifeline, 1)  # nothing is ever written: this returns when the parent's end is closed
    os._exit(1)


def _serve(connection: Connection, store: int, broadcast: int) -> None:
    setup, _ = receive(connection)
    try:
        engine = _engine(setup, store)
    except Exception as error:
        send(connection, _trouble(error), {})
        return
    send(connection, {"kind": "ready"}, {})
    while True:
        header, tensors = receive(connection)
        sent = shared.read(broadcast, header["broadcast"])
        task = unpack_task(header, tensors, namespace(sent, "weights"), namespace(sent, "extras"))
        try:
            answer, payload = pack_answer(next(engine.run([task])))
        except Exception as error:  # no client's fault: the parent raises it again
            answer, payload = _trouble(error), {}
        del sent, task, tensors
        send(connection, answer, payload)


def _engine(setup: dict[str, Any], store: int) -> InlineEngine:
    for plugin in setup["plugins"]:
        load_plugin(plugin)
    config = read_config(setup["config"], setup["config"]["fidelity"])
    method = registry.create(config.method.name, config.method.parameters, config.fidelity)
    holdings = Holdings.from_tensors(shared.read(store, setup["store"]))
    views = setup["views"]
    trainer = ClientTrainer(
        config,
        method,
        ViewSettings(views["flip"], tuple(views["mean"]), tuple(views["std"])),
        setup["classes"],
        holdings.images.shape[1],
        Shelf(Path(setup["shelf"]), setup["versions"]),
    )
    return InlineEngine(trainer, lambda k: holdings.client(k, oracle=method.oracle), holdings.truth)


def _trouble(error: Exception) -> Header:
    trouble: Header = {"kind": "trouble", "class": "", "text": str(error), "detail": traceback.format_exc()}
    if isinstance(error, OSError):
        trouble["os"] = [error.errno, error.strerror, error.filename and str(error.filename)]
    if isinstance(error, (ProxyFLError, OSError)):
        trouble["class"] = type(error).__name__
    return trouble


if __name__ == "__main__":
    main()
