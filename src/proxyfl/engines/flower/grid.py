"""The server's side: tasks go out as Flower messages, answers come back in the order of the tasks.

Replies wait at the SuperLink until it is their turn, so that one answer at a time is in memory. Whoever has
not answered by the deadline is a failure with a name; nothing a site sends can end the run.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Protocol

import httpx
from flwr.app import Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from proxyfl.core.state import OVERDUE, TRAIN, Failure, Task, Tensors, Update
from proxyfl.engines.flower.codec import LEFT_OUT, pack_broadcast, read_answer, task_records
from proxyfl.engines.flower.deadline import Deadline
from proxyfl.engines.flower.frozen import FrozenPart
from proxyfl.engines.flower.held import HeldUpdates
from proxyfl.engines.flower.late import LateUpdates
from proxyfl.engines.serialization import Header

POLL_FIRST, POLL_LAST = 0.2, 2.0
"""Seconds between two looks for an answer: short at first, then longer."""

GRACE = 5.0
"""Seconds a message outlives its deadline, so that the answer that comes just then is no error."""

TRANSFER = 30.0
"""Seconds that fetching a reply may go on after the deadline: it may be large, or have waited its turn."""


HELD = "held"
"""As the purpose of a task: its answer is here already."""

OVERTIME = 2.0
"""How many deadlines longer a message lives where a late answer counts in the next round."""

GONE = "was stopped or lost its connection"
LATE = ("did not answer within", "did not send its whole answer")
"""How the words begin that a site gets for being late."""

FAULTS = {
    ErrorCode.MESSAGE_UNAVAILABLE: GONE,
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE: GONE,
    ErrorCode.NODE_UNAVAILABLE: GONE,
    ErrorCode.INVALID_FAB: "did not run the server's app: the operator's key did not sign it, or the site's "
    "owner did not approve it",
}
"""Flower's errors in words; any other is a program of the site's that failed."""


class NotSent(str):
    """Why a client was not asked."""


class Roster(Protocol):
    """Who the nodes are."""

    def name(self, client: int) -> str: ...

    def online(self) -> Mapping[int, int]:
        """The node of each client that is connected now."""
        ...


class Witness(Protocol):
    """Notes what goes out and what comes in, or in words why nothing does."""

    def sent(self, client: int, kind: str, records: RecordDict) -> None: ...

    def received(self, client: int, kind: str, reply: RecordDict | str) -> None: ...


class Courier:
    """Carries one request to each of several clients and brings the replies back in order. What a client was
    last asked in vain and may still answer, with ``overtime``, is ``outstanding``.
    """

    def __init__(self, grid: Grid, roster: Roster, witness: Witness | None = None) -> None:
        self.grid, self.roster, self.witness = grid, roster, witness
        self.outstanding: dict[int, tuple[str, int]] = {}

    def ask(
        self,
        requests: Iterable[tuple[int, RecordDict]],
        kind: str,
        deadline: float,
        online: Mapping[int, int] | None = None,
        overtime: float = 0.0,
    ) -> Iterator[RecordDict | str]:
        """For each request the records of its reply, or in words why there is none.

        All are sent before the first reply is awaited.
        """
        until = time.monotonic() + deadline
        nodes = self.roster.online() if online is None else online
        asked, sent = [], []
        for client, records in requests:
            asked.append(client)
            sent.append(self._send(client, nodes.get(client), records, kind, until, overtime))
        for client, one in zip(asked, sent, strict=True):
            reply = one if isinstance(one, str) else self._reply(*one, until, deadline)
            if overtime:
                self._remember(client, one, reply)
            if self.witness:
                self.witness.received(client, kind, reply)
            yield reply

    def overdue(self, client: int, kind: str, until: float) -> RecordDict | str:
        """The reply to what a client was asked in vain, or in words why there is none."""
        if client not in self.outstanding:
            return "it was lost when the server was restarted"
        one = self.outstanding[client]
        reply = self._reply(*one, until, max(0.0, until - time.monotonic()))
        self._remember(client, one, reply)
        if self.witness:
            self.witness.received(client, kind, reply)
        return "it has not arrived" if is_late(reply) else reply

    def _remember(self, client: int, one: tuple[str, int] | str, reply: RecordDict | str) -> None:
        if is_late(reply) and not isinstance(one, str):
            self.outstanding[client] = one
        else:
            self.outstanding.pop(client, None)

    def _send(
        self, client: int, node: int | None, records: RecordDict, kind: str, until: float, overtime: float
    ) -> tuple[str, int] | str:
        """The message's id and its node, or why it was not sent."""
        if node is None:
            return NotSent("is not connected")
        left = until - time.monotonic()
        if left <= 0:
            return NotSent("was not asked: the round's deadline had passed")
        message = Message(records, node, kind, ttl=left + GRACE + overtime)
        if self.witness:
            self.witness.sent(client, kind, records)  # first: what cannot be logged is not sent
        ids = list(self.grid.push_messages([message]))
        if not ids or not ids[0]:
            return NotSent("was not asked: the SuperLink did not take the message")
        return ids[0], node

    def _reply(self, sent: str, node: int, until: float, deadline: float) -> RecordDict | str:
        pause = POLL_FIRST
        while True:
            try:
                replies = self._pull(sent, max(0.0, until - time.monotonic()) + TRANSFER)
            except httpx.HTTPError:
                raise  # the SuperLink itself: no site's fault
            except Exception as error:  # what a site sent may break the reading of it in any way
                return f"sent what is no message ({type(error).__name__})"
            if replies is None:
                return f"did not send its whole answer within {deadline:g} s"
            if replies:
                return _content(replies[0], node)
            if time.monotonic() >= until:
                return f"did not answer within {deadline:g} s"
            time.sleep(max(0.0, min(pause, until - time.monotonic())))
            pause = min(POLL_LAST, 1.3 * pause)

    def _pull(self, sent: str, seconds: float) -> list[Message] | None:
        """The reply, if there is one; None when it does not come to an end.

        Flower waits long for the rest of a reply whose sender died, so that is left to a thread.
        """
        found: list[list[Message] | BaseException] = []

        def pull() -> None:
            try:
                found.append(list(self.grid.pull_messages([sent])))
            except BaseException as error:
                found.append(error)

        thread = threading.Thread(target=pull, daemon=True)
        thread.start()
        thread.join(seconds)
        if not found:
            return None
        if isinstance(found[0], BaseException):
            raise found[0]
        return found[0]


def is_late(reply: RecordDict | str) -> bool:
    """Whether a reply may still come."""
    return isinstance(reply, str) and reply.startswith(LATE[0])


def _content(reply: Message, node: int) -> RecordDict | str:
    if reply.has_error():
        return FAULTS.get(reply.error.code, "gave no answer: its program failed; its own output says why")
    if reply.metadata.src_node_id != node:
        return "was answered for by another node"
    return reply.content


class FlowerEngine:
    """Clients are sites behind Flower nodes. ``setup`` goes with every task; ``deadline`` is for a round.

    ``left_out`` is what clients whose answers were not used learn with their next task, ``frozen`` what of
    the network they get once, ``late`` keeps updates that come a round late, where they count, and ``held``
    those of a round that is repeated, where they must not be requested again.
    """

    def __init__(
        self,
        courier: Courier,
        setup: Header,
        deadline: float,
        left_out: dict[int, str] | None = None,
        frozen: FrozenPart | None = None,
        adapt: float = 0.0,
        late: LateUpdates | None = None,
        held: HeldUpdates | None = None,
    ) -> None:
        self.courier, self.setup, self.deadline = courier, setup, Deadline(deadline, adapt)
        self.frozen = frozen or FrozenPart({}, known=True)
        self.left_out = {} if left_out is None else left_out
        self.late, self.held = late, held

    def run(self, tasks: Iterable[Task]) -> Iterator[Update | Failure]:
        given, overdue = deque[Task](), list[Task]()
        requests = self._requests(tasks, given, overdue)
        seconds = self.deadline.seconds()
        overtime = OVERTIME * self.deadline.most if self.late else 0.0
        replies = self.courier.ask(requests, MessageType.TRAIN, seconds, overtime=overtime)
        began, took, late = time.monotonic(), 0.0, False
        for reply in replies:
            yield from self._held(given)
            task = given.popleft()
            if isinstance(reply, str):
                late = late or reply.startswith(LATE)
                name = self.courier.roster.name(task.client)
                answer: Update | Failure = Failure(
                    task.round,
                    task.client,
                    f"{name} {reply}",
                    unsent=isinstance(reply, NotSent),
                    pending=self.late is not None and is_late(reply),
                )
            else:
                took = time.monotonic() - began
                answer = self._named(read_answer(reply, task))
                self._hold(answer, task)
            self.frozen.heard(task.client, isinstance(answer, Update))
            yield answer
        yield from self._held(given)
        self.deadline.took(took, late=late)
        for task in overdue:
            yield self._overdue(task, began + seconds)

    def _hold(self, answer: Update | Failure, task: Task) -> None:
        """Keep an update on the disk until its round is finished."""
        if self.held and task.purpose == TRAIN and isinstance(answer, Update) and answer.round == task.round:
            self.held.save(answer)

    def _held(self, given: deque[Task]) -> Iterator[Update | Failure]:
        """The answers that are here already and whose turn it is."""
        while self.held and given and given[0].purpose == HELD:
            task = given.popleft()
            lost = Failure(task.round, task.client, "the update that the server had kept is damaged")
            yield self.held.load(task.round, task.client) or lost

    def _overdue(self, task: Task, until: float) -> Update | Failure:
        """The update of the round before: kept when it arrived, or awaited like one of this round."""
        assert self.late is not None, "who is overdue was called pending"
        if kept := self.late.load(task.round, task.client):
            return kept
        reply = self.courier.overdue(task.client, MessageType.TRAIN, until)
        if isinstance(reply, str):
            name = self.courier.roster.name(task.client)
            reason = f"{name} did not send its update of round {task.round}: {reply}"
            return Failure(task.round + 1, task.client, reason)
        answer = self._named(read_answer(reply, task))
        self.frozen.heard(task.client, isinstance(answer, Update))
        if isinstance(answer, Update):
            self.late.save(answer)
        return answer

    def close(self) -> None:
        """Nothing to end: the grid belongs to Flower."""

    def _requests(
        self, tasks: Iterable[Task], given: deque[Task], overdue: list[Task]
    ) -> Iterator[tuple[int, RecordDict]]:
        sent: tuple[Tensors, Tensors] | None = None
        for task in tasks:
            if task.purpose == OVERDUE:
                overdue.append(task)
                continue
            brief = Task(task.round, task.client, {}, version=task.version, purpose=task.purpose)
            if self.held and task.purpose == TRAIN and self.held.load(task.round, task.client):
                given.append(replace(brief, purpose=HELD))
                continue
            if sent is None or sent[0] is not task.weights or sent[1] is not task.extras:
                broadcast, sent = pack_broadcast(task), (task.weights, task.extras)
            given.append(brief)
            why = self.left_out.pop(task.client, "")
            setup = {**self.setup, LEFT_OUT: why} if why else self.setup
            yield task.client, task_records(task, broadcast, setup, self.frozen.parts(task.client))

    def _named(self, answer: Update | Failure) -> Update | Failure:
        if isinstance(answer, Update):
            return answer
        name = self.courier.roster.name(answer.client)
        return Failure(answer.round, answer.client, f"{name}: {answer.reason}", answer.detail)
