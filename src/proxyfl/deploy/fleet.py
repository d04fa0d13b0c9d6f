"""What a site's request says inside: whose message it is, and that what should be an identifier is one.

Flower compares the sender of a message with what the message itself says, and writes identifiers to its log
as they come.
"""

from __future__ import annotations

import re
from typing import Any

from google.protobuf.message import DecodeError, Message

ID = re.compile(r"[0-9a-fA-F-]{1,64}")
LONGEST = 256
NOT_LOOKED_AT = ("content", "error")
"""Parts of a message that are checked where they are used."""


def fault(kind: str, body: bytes) -> str:
    """Why a request is refused; empty where nothing is wrong with it."""
    request = _new(kind)
    try:
        request.ParseFromString(body)
    except DecodeError:
        return "the request cannot be read"
    if not _plain(request):
        return "the request contains a text that is not an identifier"
    for message in request.messages_list if kind == "push-messages" else ():
        about = message.metadata
        if about.src_node_id != request.node.node_id:
            return "a site sends messages in its own name only"
        if not ID.fullmatch(about.reply_to_message_id):
            return "a site may answer messages but not start them"
    return ""


def _new(kind: str) -> Any:
    from flwr.proto import fab_pb2, fleet_pb2, heartbeat_pb2, message_pb2, run_pb2

    return {
        "activate-node": fleet_pb2.ActivateNodeRequest,
        "deactivate-node": fleet_pb2.DeactivateNodeRequest,
        "send-node-heartbeat": heartbeat_pb2.SendNodeHeartbeatRequest,
        "get-run": run_pb2.GetRunRequest,
        "get-fab": fab_pb2.GetFabRequest,
        "pull-messages": fleet_pb2.PullMessagesRequest,
        "push-messages": fleet_pb2.PushMessagesRequest,
        "pull-object": message_pb2.PullObjectRequest,
        "push-object": message_pb2.PushObjectRequest,
        "confirm-message-received": message_pb2.ConfirmMessageReceivedRequest,
    }[kind]()


def _plain(message: Message) -> bool:
    """Whether every text is short and on one line."""
    for field, value in message.ListFields():
        if field.name in NOT_LOOKED_AT:
            continue
        values = [value] if isinstance(value, str | Message) else value if hasattr(value, "append") else []
        for each in values:
            if isinstance(each, str) and not (each.isascii() and each.isprintable() and len(each) <= LONGEST):
                return False
            if isinstance(each, Message) and not _plain(each):
                return False
    return True
