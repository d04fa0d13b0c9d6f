"""Tasks and answers as a small JSON header and named tensors: what crosses from one process to another."""

from __future__ import annotations

from typing import Any

from proxyfl.core.state import TRAIN, Failure, Task, Tensors, Update, detached, namespace, within

Header = dict[str, Any]


def pack_task(task: Task) -> tuple[Header, Tensors]:
    """What is for this client alone; the broadcast (weights and extras) goes its own way."""
    header: Header = {"kind": "task", "round": task.round, "client": task.client, "version": task.version}
    if task.purpose != TRAIN:
        header["purpose"] = task.purpose
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
    )


def pack_answer(answer: Update | Failure) -> tuple[Header, Tensors]:
    header: Header = {"round": answer.round, "client": answer.client}
    if isinstance(answer, Failure):
        return {**header, "kind": "failure", "reason": answer.reason, "detail": answer.detail}, {}
    header |= {"kind": "update", "samples": answer.samples, "metrics": answer.metrics}
    tensors = within("weights", answer.weights) | within("extras", answer.extras)
    return {**header, "seconds": answer.seconds}, tensors | within("carry", answer.carry)


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
    )
