"""Another account of this machine, at a port of Flower's: what it gets is printed, one line for each attempt,
after what the port's owner gets.

Run as ``python stranger.py UID PORT [CA]``: what is needed is imported first, then the user changes for good.
"""

from __future__ import annotations

import os
import socket
import ssl
import sys
from collections.abc import Callable

import httpx
from flwr.proto.runtime_pb2 import AcquireTaskRequest, PullTaskInputRequest, PushTaskOutputRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.interceptors.http import RuntimeTokenHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient


def attempts(port: int, authority: str) -> dict[str, Callable[[], object]]:
    """Poll for a task, pull it, answer it, and knock with nothing but a line of text."""
    trust = open(authority, "rb").read() if authority else None  # noqa: PTH123, SIM115
    token = os.environ.get("STOLEN_TOKEN", "0" * 32)
    marks = [RuntimeVersionHttpInterceptor(component_name="SuperExec"), RuntimeTokenHttpInterceptor(token)]
    client = RuntimeHttpClient.from_server_address(f"127.0.0.1:{port}", trust is None, trust, marks)
    kinds = [TaskType.CLIENT_APP, TaskType.SERVER_APP]

    def knock() -> object:
        with socket.create_connection(("127.0.0.1", port), 10) as plain:
            if trust is not None:
                context = ssl.create_default_context(cadata=trust.decode())
                plain = context.wrap_socket(plain, server_hostname="127.0.0.1")
            plain.sendall(b"GET /docs HTTP/1.1\r\nhost: a\r\n\r\n")
            return plain.recv(100)

    return {
        "poll": lambda: client.AcquireTask(AcquireTaskRequest(supported_task_types=kinds)),
        "pull": lambda: client.PullTaskInput(PullTaskInputRequest()),
        "push": lambda: client.PushTaskOutput(PushTaskOutputRequest()),
        "knock": knock,
    }


def main(uid: str, port: str, authority: str = "") -> None:
    first, second = attempts(int(port), authority), attempts(int(port), authority)
    attempt_all("owner", {"knock": first["knock"]})  # the owner takes no tasks away from who waits for them
    os.setgroups([])
    os.setuid(int(uid))
    attempt_all("other", second)


def attempt_all(who: str, asked: dict[str, Callable[[], object]]) -> None:
    for name, attempt in asked.items():
        try:
            print(who, name, "answered", repr(attempt())[:80], flush=True)
        except (httpx.TransportError, ConnectionError, ssl.SSLError) as error:
            print(who, name, "refused", repr(error)[:120], flush=True)
        except httpx.HTTPStatusError as error:
            print(who, name, "answered", repr(error)[:120], flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
