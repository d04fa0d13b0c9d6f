"""What the gate reads of a request before it passes it on, and who may hold its door."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.proto.fleet_pb2 import PullMessagesRequest, PushMessagesRequest
from flwr.proto.message_pb2 import Message, Metadata, ObjectTree, PushObjectRequest
from flwr.proto.node_pb2 import Node

from proxyfl.deploy import fleet, forward, gate
from proxyfl.deploy.forward import Answer
from proxyfl.deploy.settings import Deployment

ASKED = "ab" * 32


def pushed(**about: Any) -> bytes:
    known = {"src_node_id": 7, "dst_node_id": 1, "reply_to_message_id": ASKED, "message_type": "train"}
    message = Message(metadata=Metadata(**{**known, **about}))
    tree = ObjectTree(object_id=ASKED, children=[ObjectTree(object_id="cd" * 32)])
    return bytes(
        PushMessagesRequest(
            node=Node(node_id=7), messages_list=[message], message_object_trees=[tree]
        ).SerializeToString()
    )


def test_an_answer_of_the_site_itself_passes() -> None:
    assert fleet.fault("push-messages", pushed()) == ""
    assert fleet.fault("pull-messages", PullMessagesRequest(node=Node(node_id=7)).SerializeToString()) == ""
    whole = PushObjectRequest(node=Node(node_id=7), object_id=ASKED, object_content=b"\n\xff" * 1000)
    assert fleet.fault("push-object", whole.SerializeToString()) == ""


@pytest.mark.parametrize(
    ("about", "why"),
    [
        ({"src_node_id": 8}, "in its own name"),
        ({"src_node_id": 1}, "in its own name"),
        ({"reply_to_message_id": ""}, "not start"),
        ({"reply_to_message_id": "OperationalError"}, "not start"),
        ({"reply_to_message_id": "ab\nOperationalError: full"}, "not an identifier"),
        ({"group_id": "a\nb"}, "not an identifier"),
        ({"message_type": "x" * 300}, "not an identifier"),
    ],
)
def test_messages_in_another_name_or_of_ones_own_accord_are_refused(about: dict[str, Any], why: str) -> None:
    assert why in fleet.fault("push-messages", pushed(**about))


def test_identifiers_are_one_line_wherever_they_are() -> None:
    deep = ObjectTree(object_id="a", children=[ObjectTree(object_id="a\x1b[2J")])
    body = PushMessagesRequest(node=Node(node_id=7), message_object_trees=[deep]).SerializeToString()
    assert "not an identifier" in fleet.fault("push-messages", body)
    body = PushObjectRequest(node=Node(node_id=7), object_id="a\nb").SerializeToString()
    assert "not an identifier" in fleet.fault("push-object", body)
    assert "cannot be read" in fleet.fault("push-messages", b"\xff\xff\xff")


def test_every_request_that_is_passed_on_is_read() -> None:
    assert all(fleet.fault(kind, b"") == "" for kind in forward.KINDS)


def read(headers: list[tuple[bytes, bytes]], parts: list[bytes], limit: int = 1000) -> bytes | Answer:
    left = list(parts)

    async def receive() -> dict[str, Any]:
        body = left.pop(0)
        return {"type": "http.request", "body": body, "more_body": bool(left)}

    return asyncio.run(forward.read_body({"headers": headers}, receive, limit))


def test_a_body_is_never_longer_than_allowed_whatever_its_head_says() -> None:
    assert read([(b"content-length", b"4")], [b"ab", b"cd"]) == b"abcd"
    both = [(b"content-length", b"1"), (b"transfer-encoding", b"chunked")]
    refused = read(both, [b"x" * 600] * 4)
    assert isinstance(refused, Answer)
    assert refused.status == 400
    longer = read([(b"content-length", b"1")], [b"x" * 600] * 4)
    assert isinstance(longer, Answer)
    assert longer.status == 413
    missing = read([], [b"x"])
    assert isinstance(missing, Answer)
    assert missing.status == 411


def test_those_without_a_certificate_make_room_and_sites_are_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gate, "FROM_ADDRESS", 3)
    door = gate.Door.at("127.0.0.1", 0)
    with contextlib.ExitStack() as stack:
        stack.callback(door.close)

        def come() -> tuple[socket.socket, Any]:
            client = stack.enter_context(socket.create_connection(door.getsockname()))
            client.settimeout(5)
            door.setblocking(True)
            ours, address = door.accept()
            stack.callback(ours.close)
            return client, address

        sites = [come() for _ in range(3)]
        door.greeted.update(address for _, address in sites)
        strangers = [come()[0] for _ in range(4)]
        assert strangers[0].recv(1) == b"", "the one that waited longest is cut off"
        for client in [*strangers[1:], *(each for each, _ in sites)]:
            client.settimeout(0.05)
            with pytest.raises(TimeoutError):
                client.recv(1)


def test_the_gate_gives_its_sign_of_life_also_after_the_clock_was_set_back(
    own_trial: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import uvicorn.server

    made, wall, touched = Deployment.read(own_trial), SimpleNamespace(now=1e9), []
    alive = gate.sign_of_life(made)
    alive.parent.mkdir(exist_ok=True)
    monkeypatch.setattr(uvicorn.server, "time", SimpleNamespace(time=lambda: wall.now))
    opened, door = gate.Door.at, []
    monkeypatch.setattr(gate.Door, "at", lambda *where: door.append(opened("127.0.0.1", 0)) or door[0])

    async def seconds(listener: forward.Listener) -> None:
        for tick in range(80):
            os.utime(alive, (0, 0))
            wall.now += 0.1 if tick != 40 else -3 * 3600
            await listener.on_tick(tick)
            touched.append(alive.stat().st_mtime > 0)

    monkeypatch.setattr(forward.Listener, "run", lambda listener: asyncio.run(seconds(listener)))
    gate.main([str(own_trial), "1", "1000"])
    door[0].close()
    assert [sum(touched[start : start + 20]) for start in (0, 20, 40, 60)] == [2, 2, 2, 2]
