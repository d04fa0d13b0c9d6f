"""Flower without a network: a grid whose messages go through Flower's own serialisation, in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Error, Message, MessageType, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

from proxyfl.data.dataset import Split
from proxyfl.engines.flower.site import SiteImages, SiteSide
from proxyfl.runs.simulation import Simulation

TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1

Handler = Callable[[str, RecordDict], RecordDict | Error | None]
"""What a node does with a message's kind and records; None: it never answers."""


def carried(message: Message) -> Message:
    """The message as it is at the other end: every object of it as bytes and back."""
    contents = {name: one.deflate() for name, one in get_all_nested_objects(message).items()}
    arrived = inflate_object_from_contents(message.object_id, contents)
    arrived.metadata.__dict__["_message_id"] = message.object_id
    return arrived


def handled_by(side: SiteSide) -> Handler:
    acts = {
        MessageType.TRAIN: side.train,
        MessageType.EVALUATE: side.evaluate,
        MessageType.QUERY: side.enrol,
    }
    return lambda kind, records: acts[kind](records)


def sides(simulation: Simulation, folder: Any, heldout: int = 0) -> list[SiteSide]:
    """One site per simulated client; its first test images may be held out there."""
    dataset, views = simulation.dataset, simulation.train_views
    form = {
        "classes": list(dataset.classes),
        "channels": dataset.channels,
        "image_size": dataset.image_size,
        "mean": list(views.mean),
        "std": list(views.std),
        "flip": views.flip,
        "scenario": simulation.partition.where,
    }
    kept = Split(dataset.test.images[:heldout], dataset.test.labels[:heldout])

    def images(client: int) -> Callable[[], SiteImages]:
        return lambda: SiteImages(simulation.holdings.client(client), kept)

    return [
        SiteSide(f"site-{client + 1:02d}", form, images(client), folder / f"site-{client + 1:02d}")
        for client in range(simulation.partition.clients)
    ]


@dataclass
class Node:
    """A connected node: what it does, and the key it has proved to hold."""

    handler: Handler
    key: bytes = b""
    online: bool = True


@dataclass
class WirelessGrid(Grid):
    """Nodes by number. Messages are answered when the reply is asked for."""

    nodes: dict[int, Node]
    waiting: dict[str, Message] = field(default_factory=dict)
    pulls: list[str] = field(default_factory=list)

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        raise NotImplementedError

    def get_node_ids(self) -> list[int]:
        return [number for number, node in self.nodes.items() if node.online]

    def get_nodes(self) -> list[NodeInfo]:
        return [NodeInfo(node_id=number, public_key=self.nodes[number].key) for number in self.get_node_ids()]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        pushed = []
        for message in messages:
            pushed.append(message.object_id)
            self.waiting[message.object_id] = carried(message)
        return pushed

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        replies = []
        for name in message_ids:
            self.pulls.append(name)
            message = self.waiting[name]
            answer = self.nodes[message.metadata.dst_node_id].handler(
                message.metadata.message_type, message.content
            )
            if answer is not None:
                del self.waiting[name]
                replies.append(carried(Message(answer, reply_to=message)))
        return replies


class Clock:
    """Stands in for the ``time`` module: only sleeping moves it, so that no test depends on speed."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Known:
    """A roster that knows from the start who is where."""

    def __init__(self, grid: WirelessGrid) -> None:
        self.grid = grid

    def name(self, client: int) -> str:
        return f"site-{client + 1:02d}"

    def online(self) -> dict[int, int]:
        return {number - 100: number for number in self.grid.get_node_ids()}
