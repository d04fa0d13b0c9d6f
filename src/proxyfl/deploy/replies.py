"""A SuperNode that sends the reply to each message it received, also after a broken connection.

Flower's SuperNode takes turns: it receives a message, then sends the first reply that there is. If a
connection breaks while a message is being confirmed and its run has ended by the time it is back, the reply
to that message is left over. It then takes the turn of the next reply, and from there on every reply waits
for another message: the server's deadline passes although the site has trained.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def in_order() -> None:
    """Let the SuperNode of this process send until the message that it received last has been answered."""
    from flwr.supernode import start_client_internal as flower

    pull, push = flower._pull_and_store_message, flower._push_messages
    awaited = ""

    def noting(receive: Callable[[], Any]) -> Callable[[], Any]:
        def received() -> Any:
            nonlocal awaited
            found = receive()
            if found is not None:
                awaited = found[0].metadata.message_id
            return found

        return received

    def pull_and_note(*, receive: Callable[[], Any], **rest: Any) -> int | None:
        return pull(receive=noting(receive), **rest)

    def push_until_answered(*, send: Callable[..., Any], **rest: Any) -> None:
        answered: set[str] = set()

        def sent(message: Any, *more: Any) -> Any:
            answered.add(message.metadata.reply_to_message_id)
            return send(message, *more)

        while awaited not in answered:
            push(send=sent, **rest)

    vars(flower).update(_pull_and_store_message=pull_and_note, _push_messages=push_until_answered)
