"""Tasks and answers as a small JSON header and named tensors: what crosses from one process to another."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from proxyfl.core.flat import Flat, Layout
from proxyfl.core.state import TRAIN, Failure, Task, Tensors, Update, detached, namespace, within

Header = dict[str, Any]
AGAIN, LONG = "again", "long"


def pack_task(task: Task) -> tuple[Header, Tensors]:
    """What is for this client alone; the broadcast (weights and extras) goes its own way."""
    header: Header = {"kind": "task", "round": task.round, "client": task.client, "version": task.version}
    if task.purpose != TRAIN:
        header["purpose"] = task.purpose
    if task.times != 1:
        header["times"] = task.times
    tensors = within("personal", task.personal) | within("carry", task.carry)
    # Copies: the format refuses tensors that share memory, which a method's state may well do.
    return header, detached(tensors)


def unpack_task(header: Header, tensors: Tensors, weights: Tensors, extras: Tensors) -> Task:
    return Task(
        round=header["round"],
        client=header["client"],
        weights=weights,
        extras=extras,
        personal=namespace(tensors, "personal"),
        version=header["version"],
        carry=namespace(tensors, "carry"),
        purpose=header.get("purpose", TRAIN),
        times=header.get("times", 1),
    )


def pack_answer(answer: Update | Failure, sent: Layout | None = None) -> tuple[Header, Tensors]:
    """Weights that lie as those that were ``sent`` go as few long tensors, all others by name."""
    header: Header = {"round": answer.round, "client": answer.client}
    if isinstance(answer, Failure):
        return {**header, "kind": "failure", "reason": answer.reason, "detail": answer.detail}, {}
    header |= {"kind": "update", "samples": answer.samples, "metrics": answer.metrics}
    header |= {"seconds": answer.seconds}
    long: list[Tensor] = []
    for weights in (answer.weights, *answer.again):
        if not isinstance(weights, Flat) or weights.layout != sent:
            return header, tensors_of(answer) | within("carry", answer.carry)
        long += weights.long
    tensors = {f"{LONG}/{place}": value for place, value in enumerate(long)}
    tensors |= within("extras", answer.extras) | within("carry", answer.carry)
    return {**header, LONG: len(long)}, tensors


def tensors_of(update: Update) -> Tensors:
    """Weights and extras, as they leave a client."""
    tensors = within("weights", update.weights) | within("extras", update.extras)
    for number, weights in enumerate(update.again, 1):
        tensors |= within(f"{AGAIN}/{number}", weights)
    return tensors


def further(tensors: Tensors) -> tuple[Tensors, ...]:
    """The weights of further trainings among the tensors of an answer."""
    found: list[Tensors] = []
    while weights := namespace(tensors, f"{AGAIN}/{len(found) + 1}"):
        found.append(weights)
    return tuple(found)


def unpack_answer(header: Header, tensors: Tensors, sent: Layout | None = None) -> Update | Failure:
    round, client = header["round"], header["client"]
    if header["kind"] == "failure":
        return Failure(round, client, header["reason"], header["detail"])
    if sent is not None and LONG in header:
        long, size = [tensors[f"{LONG}/{place}"] for place in range(header[LONG])], len(sent.rows)
        trained: list[Tensors] = [
            Flat(sent, long[start : start + size]) for start in range(0, len(long), size)
        ]
    else:
        trained = [namespace(tensors, "weights"), *further(tensors)]
    return Update(
        round=round,
        client=client,
        samples=header["samples"],
        weights=trained[0],
        extras=namespace(tensors, "extras"),
        metrics=header["metrics"],
        carry=namespace(tensors, "carry"),
        seconds=header["seconds"],
        again=tuple(trained[1:]),
    )
