"""Tasks and answers as the records of a Flower message, to the bit.

All tensors of a part lie in one array of safetensors bytes: any dtype, names and shapes included, and one
object on the wire instead of one per tensor. What is broadcast is one part, made once a round; Flower stores
what is equal once. Small things are JSON in one config record; metrics are a metric record.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from safetensors import SafetensorError
from safetensors.torch import load, save

from proxyfl.core.errors import ProxyFLError
from proxyfl.core.state import (
    STATISTICS,
    TRAIN,
    Failure,
    Metrics,
    Task,
    Tensors,
    Update,
    detached,
    namespace,
    within,
)
from proxyfl.core.text import printable, reported
from proxyfl.engines.serialization import Header, further, pack_answer, pack_task, unpack_task

STYPE = "safetensors"
HEADER, METRICS, BROADCAST, OWN = "header", "metrics", "broadcast", "own"
LEFT_OUT = "left_out"
"""In a task's header: why this client's last answer was not used."""

COUNT_LIMIT = 1 << 53
"""Whole numbers beyond this are no counts of images."""


METRICS_LIMIT = 1000
MOST_TIMES = 1000
"""No site trains more often in a round."""

Parts = Mapping[str, ArrayRecord | MetricRecord]


class Malformed(ProxyFLError):
    """A message that is not what this program sends."""


def packed(tensors: Tensors) -> ArrayRecord:
    """Named tensors as one array. They must be contiguous and not share memory."""
    data = save(tensors)
    return ArrayRecord({"tensors": Array("uint8", (len(data),), STYPE, data)})


def unpacked(record: ArrayRecord) -> Tensors:
    try:
        array = record["tensors"]
        if array.stype != STYPE:
            raise Malformed(f"its tensors are of the kind '{str(array.stype)[:40]}', not {STYPE}")
        return dict(load(array.data))
    except KeyError:
        raise Malformed("its tensors are missing") from None
    except (SafetensorError, ValueError, TypeError, OverflowError, RuntimeError) as error:
        raise Malformed(f"its tensors cannot be read ({str(error)[:80]})") from None


def forms_of(record: ArrayRecord) -> dict[str, list[Any]]:
    """Type and shape of each tensor of a packed part, as its own bytes say."""
    raw = record["tensors"].data
    entries = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    return {name: [entry["dtype"], entry["shape"]] for name, entry in entries.items()}


def digest_of(records: RecordDict) -> tuple[int, str]:
    """(bytes, SHA-256) of all that a message carries, the same at both ends."""
    size, digest = 0, hashlib.sha256()

    def take(name: str, raw: bytes) -> None:
        nonlocal size
        size += len(raw)
        digest.update(f"{name} {len(raw)}\n".encode() + raw)

    for name, part in sorted(records.array_records.items()):
        for key, array in sorted(part.items()):
            take(f"{name}/{key}", array.data)
    tables = {name: dict(table) for name, table in records.config_records.items()}
    tables |= {name: dict(table) for name, table in records.metric_records.items()}
    for name, table in sorted(tables.items()):
        take(name, json.dumps(table, sort_keys=True, default=str).encode())
    return size, digest.hexdigest()


def content(header: Header, parts: Parts | None = None) -> RecordDict:
    """A message's records: the header and named parts."""
    return RecordDict({HEADER: ConfigRecord({"json": json.dumps(header)}), **(parts or {})})


def header_of(records: RecordDict) -> Header:
    try:
        header = json.loads(str(records.config_records[HEADER]["json"]))
    except (KeyError, ValueError, RecursionError):
        raise Malformed("it has no readable header") from None
    if not isinstance(header, dict):
        raise Malformed("its header is not a table")
    return header


def tensors_of(records: RecordDict, part: str) -> Tensors:
    if part not in records.array_records:
        raise Malformed(f"its part '{part}' is missing")
    return unpacked(records.array_records[part])


def pack_broadcast(task: Task) -> ArrayRecord:
    """What every task of a round carries."""
    return packed(detached(within("weights", task.weights) | within("extras", task.extras)))


def task_records(task: Task, broadcast: ArrayRecord, setup: Header, more: Parts | None = None) -> RecordDict:
    """``setup`` is what a client needs to know beside the task: the settings above all; ``more`` are parts
    for it alone.
    """
    header, own = pack_task(task)
    parts: Parts = {BROADCAST: broadcast, OWN: packed(own), **(more or {})}
    return content({**setup, **header}, parts)


def read_task(records: RecordDict) -> tuple[Task, Header]:
    header = header_of(records)
    sent = tensors_of(records, BROADCAST)
    for name in ("round", "client", "version"):
        whole(header, name)
    if header.get("purpose", TRAIN) not in (TRAIN, STATISTICS):
        raise Malformed("it requests something that no site does")
    if not 0 < whole({"times": 1, **header}, "times") <= MOST_TIMES:
        raise Malformed(f"it requests {header['times']} trainings")
    own = tensors_of(records, OWN)
    return unpack_task(header, own, namespace(sent, "weights"), namespace(sent, "extras")), header


def answer_records(answer: Update | Failure) -> RecordDict:
    header, tensors = pack_answer(answer)
    metrics = header.pop("metrics", {})
    if isinstance(answer, Failure):
        return content(header)
    return content(header, {OWN: packed(tensors), METRICS: MetricRecord(dict(metrics))})


def read_answer(records: RecordDict, task: Task) -> Update | Failure:
    """An answer to a task. Whatever else was sent comes back as a failure that says what is wrong."""
    try:
        header = header_of(records)
        if header.get("kind") == "failure":
            reason, detail = text(header, "reason", 400), printable(_string(header, "detail")[-20_000:])
            return Failure(task.round, task.client, reason or "it gave no reason", detail)
        if header.get("kind") != "update":
            raise Malformed("it is neither an update nor a failure")
        tensors = tensors_of(records, OWN)
        return Update(
            round=whole(header, "round"),
            client=_own_number(header, task),
            samples=whole(header, "samples"),
            weights=namespace(tensors, "weights"),
            extras=namespace(tensors, "extras"),
            metrics=_metrics(records),
            carry=namespace(tensors, "carry"),
            seconds=_seconds(header),
            again=further(tensors),
        )
    except Malformed as error:
        return Failure(task.round, task.client, f"its answer cannot be used: {error}")
    except (ArithmeticError, LookupError, TypeError, ValueError, RuntimeError) as error:
        return Failure(task.round, task.client, f"its answer cannot be used ({type(error).__name__})")


def whole(header: Mapping[str, Any], name: str) -> int:
    value = header.get(name)
    if type(value) is not int or abs(value) > COUNT_LIMIT:
        raise Malformed(f"'{name}' is not a plausible whole number")
    return value


def text(header: Mapping[str, Any], name: str, limit: int) -> str:
    """Text from elsewhere: one line, cut to a length, and without what a terminal would obey."""
    return reported(_string(header, name), limit)


def _string(header: Mapping[str, Any], name: str) -> str:
    value = header.get(name, "")
    if not isinstance(value, str):
        raise Malformed(f"'{name}' is not text")
    return value


def _own_number(header: Mapping[str, Any], task: Task) -> int:
    if whole(header, "client") != task.client:
        raise Malformed(f"it answers for client {header['client']}")
    return task.client


def _metrics(records: RecordDict) -> Metrics:
    found: Metrics = {}
    sent: Mapping[str, Any] = records.metric_records.get(METRICS) or {}
    if len(sent) > METRICS_LIMIT:
        raise Malformed(f"it has {len(sent)} metrics")
    for name, value in sent.items():
        if len(name) > 100 or not name.isprintable():
            raise Malformed("a metric's name cannot be used")
        if type(value) not in (int, float):
            raise Malformed(f"metric '{str(name)[:40]}' is not a number")
        try:
            found[name] = float(value)
        except OverflowError:
            raise Malformed(f"metric '{name[:40]}' is out of range") from None
    return found


def _seconds(header: Mapping[str, Any]) -> float:
    value = header.get("seconds", 0.0)
    return float(value) if type(value) in (int, float) and abs(value) < COUNT_LIMIT else 0.0
