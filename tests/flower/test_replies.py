"""A SuperNode answers the message that it received last, even if a reply was left over from before."""

from __future__ import annotations

import threading
from contextlib import suppress
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'proxyfl[flower]'")

from flwr.supernode import start_client_internal as flower

from proxyfl.deploy import replies


class Over(Exception):
    """The connection has no more messages."""


class State:
    """What the SuperNode's loop asks of its state: replies, each of them once."""

    def __init__(self, *ready: str) -> None:
        self.ready = list(ready)

    def get_messages_legacy(self, *, is_reply: bool) -> list[SimpleNamespace]:
        found, self.ready = [message(f"reply to {name}", to=name) for name in self.ready], []
        return found

    def get_message_processing_duration(self, message_id: str) -> float:
        return 0.0

    def delete_messages(self, message_ids: list[str]) -> None: ...


def message(name: str, to: str = "") -> SimpleNamespace:
    metadata = SimpleNamespace(
        message_id=name, reply_to_message_id=to, run_id=1, group_id="", message_type="train"
    )
    return SimpleNamespace(metadata=metadata)


@pytest.fixture
def turns(monkeypatch):
    """The SuperNode's loop over these messages, and what it sent; its state holds a reply to 'old'."""
    store = SimpleNamespace(get_object_tree=lambda name: None, delete=lambda name: None)
    monkeypatch.setattr(flower, "push_object_contents_from_iterable", lambda *_, **__: None)

    def pull(*, state, receive, **_):
        found = receive()
        name = found[0].metadata.message_id
        threading.Timer(0.1, lambda: state.ready.append(name)).start()  # the app has trained
        return 1

    monkeypatch.setattr(flower, "_pull_and_store_message", pull)
    monkeypatch.setattr(flower, "_push_messages", flower._push_messages)

    def play(*names: str) -> list[str]:
        state, sent = State("old"), []
        coming = iter(names)

        def receive():
            for name in coming:
                return message(name), None
            raise Over

        def send(reply, tree, seconds):
            sent.append(reply.metadata.reply_to_message_id)
            return set(), ""

        with suppress(Over):
            while True:
                flower._pull_and_store_message(state=state, object_store=store, receive=receive)
                flower._push_messages(state=state, object_store=store, send=send, push_object=print)
        return sent

    return play


def test_a_reply_that_was_left_over_takes_nobodys_turn(turns):
    replies.in_order()
    assert turns("first", "second") == ["old", "first", "second"]


def test_without_it_a_reply_waits_for_another_message(turns):
    assert turns("first") == ["old"]
