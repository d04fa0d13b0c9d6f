"""Tasks and answers as a small JSON header and named tensors: what crosses from one process to another."""

from __future__ import annotations

from typing import Any

from proxyfl.core.state import TRAIN, Failure, Task, Tensors, Update, detached, namespace, within

Header = dict[str, Any]
AGAIN = "again"


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


def pack_answer(answer: Update | Failure) -> tuple[Header, Tensors]:
    header: Header = {"round": answer.round, "client": answer.client}
    if isinstance(answer, Failure):
        return {**header, "kind": "failure", "reason": answer.reason, "detail": answer.detail}, {}
    header |= {"kind": "update", "samples": answer.samples, "metrics": answer.metrics}
    return {**header, "seconds": answer.seconds}, tensors_of(answer) | within("carry", answer.carry)


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


def unpack_answer(header: Header, tensors: Tensors) -> Update | Failure:
    round, client = header["round"], header["client"]
    if header["kind"] == "failure":
        return Failure(round, client, header["reason"], header["detail"])
    return Update(
        round=round,
        client=client,
        samples=header["samples"],
        weights=namespace(tensors, "weights"),
        extras=namespace(tensors, "extras"),
        metrics=header["metrics"],
        carry=namespace(tensors, "carry"),
        seconds=header["seconds"],
        again=further(tensors),
    )
