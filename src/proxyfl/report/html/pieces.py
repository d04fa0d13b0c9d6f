"""The parts of a page that are no curve: who holds what, the confusion matrix, proxies in the plane, and
what is unusual about which client.

A part that a run does not have is left out, and a note says why.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from proxyfl.core.errors import ProxyFLError
from proxyfl.core.state import Tensors
from proxyfl.data.scenarios import who_has_labels
from proxyfl.report.html.records import numbers
from proxyfl.results.clients import MEASURES, ranked
from proxyfl.results.sites import NAMES, matrix_of
from proxyfl.runs.run import Run

T = TypeVar("T")

MOST_CLIENTS, MOST_CLASSES, LONGEST_NAME = 40, 150, 60
"""Of more than these the first ones are drawn in the partition; characters of a client's name."""

WORST, BEST = 20, 5
"""Clients in the table of clients: the most unusual ones and the least, whatever lies between is left out."""

MOST_SITES = 60
"""Sites beside each other in the matrix of models and sites."""

MOST_PROXIES = 3000
"""Client proxies drawn; of more, those of the first clients."""

UNREADABLE = (
    ProxyFLError, OSError, ValueError, KeyError, TypeError, IndexError, RuntimeError, SafetensorError,
)  # fmt: skip
"""What reading a damaged or foreign file may raise."""


class Labels:
    """The true classes of the training images, read once per data set."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Any, tuple[str, ...]]] = {}

    def of(self, run: Run) -> tuple[Any, tuple[str, ...]]:
        key = f"{run.environment.get('data_root')} {run.config.data} {run.config.labels.seed}"
        if key not in self._known:
            dataset = run.dataset()
            self._known[key] = (dataset.train.labels, dataset.classes)
        return self._known[key]


def pieces(run: Run, labels: Labels | None) -> dict[str, Any]:
    """Every part that the run has. Without ``labels`` no data set is opened and clients have sizes only."""
    notes: dict[str, str] = {}
    card = _try(notes, "classes", lambda: card_of(run)) or {}
    called = str(card.get("called", "images"))
    snapshot = _try(notes, "snapshot", lambda: newest_snapshot(run))
    round, tensors = snapshot or (0, {})
    if snapshot is None:
        notes.setdefault("snapshot", "no snapshot yet (keep.snapshot_every)")
        reason = notes.pop("snapshot")
        notes |= {"confusion": reason, "proxies": reason}
    found: dict[str, Any] = {
        "classes": [str(name) for name in card.get("classes", ())],
        "called": called,
        "partition": _try(notes, "partition", lambda: partition(run, labels, notes, called)),
        "clients": _try(notes, "clients", lambda: clients(run)),
        "confusion": None,
        "proxies": None,
    }
    if snapshot is not None:
        found["confusion"] = _try(notes, "confusion", lambda: confusion(round, tensors))
        found["proxies"] = _try(notes, "proxies", lambda: proxies(round, tensors))
        if found["proxies"] is None:
            notes.setdefault("proxies", "the network has no classifier rows to show")
    return {**found, "notes": notes}


def _try(notes: dict[str, str], name: str, build: Callable[[], T]) -> T | None:
    try:
        return build()
    except UNREADABLE as error:
        notes[name] = " ".join(str(error).split())[:300] or type(error).__name__
        return None


def card_of(run: Run) -> dict[str, Any]:
    """What the model's card says: classes, images or vectors; nothing before the first round."""
    path = run.directory.models / "last.safetensors"
    if not path.exists():
        return {}
    with safe_open(path, framework="pt") as file:
        card = json.loads(file.metadata()["proxyfl"])
    vectors = card.get("image_size") == 0 and not card.get("encodes")
    return {"classes": list(card["classes"]), "called": "vectors" if vectors else "images"}


def newest_snapshot(run: Run) -> tuple[int, Tensors] | None:
    rounds = [int(file.stem[6:]) for file in run.directory.snapshots.glob("round-*.safetensors")]
    return (max(rounds), run.snapshot(max(rounds))) if rounds else None


def confusion(round: int, tensors: Tensors) -> dict[str, Any]:
    """Counts of (true class, predicted class)."""
    if "confusion" not in tensors:
        raise ValueError(f"accuracy was not evaluated in round {round}, that of the newest snapshot")
    counts = tensors["confusion"]
    if counts.ndim != 2 or counts.shape[0] != counts.shape[1]:
        raise ValueError(f"the confusion matrix has the shape {tuple(counts.shape)}")
    if not bool(torch.isfinite(counts).all()):
        raise ValueError("the confusion matrix holds values that are not finite")
    return {"round": round, "counts": counts.tolist()}


def _names(run: Run, clients: int) -> list[str] | None:
    """The clients' names, where the data has them."""
    names = run.directory.hints().get("clients")
    if not isinstance(names, list) or len(names) != clients:
        return None
    return [str(name)[:LONGEST_NAME] for name in names[:MOST_CLIENTS]]


def partition(run: Run, labels: Labels | None, notes: dict[str, str], called: str) -> dict[str, Any]:
    """Images or vectors per client and class; where the data set is not at hand, per client."""
    held = run.partition
    known = _try(notes, "partition", lambda: labels.of(run)) if labels is not None else None
    if known is None:
        notes.setdefault("partition", "classes are not shown here: the data set is not opened")
        counts = [lists.sizes[:, None] for lists in (held.labelled, held.unlabelled)]
        classes, shares = ["all classes"], None
    else:
        counts = list(held.class_counts(known[0], len(known[1])))
        true = np.asarray(known[0])
        classes, total = (
            [str(name) for name in known[1]],
            np.bincount(true[true >= 0], minlength=len(known[1])),
        )
        shares = numbers((total / total.sum()).tolist()) if bool((true >= 0).all()) else None
        if shares is None:
            unknown = f"{int((true < 0).sum()):,} unlabelled {called}"
            notes["partition"] = f"the classes of {unknown} are unknown; those are not drawn"
    if who := who_has_labels(held.where, held.server, held.labelled):
        notes["partition"] = "; ".join(filter(None, [notes.get("partition", ""), who]))
    first = [part[:MOST_CLIENTS, :MOST_CLASSES] for part in counts]
    return {
        "classes": classes[:MOST_CLASSES],
        "clients": int(held.clients),
        "names": _names(run, int(held.clients)),
        "labelled": first[0].tolist(),
        "unlabelled": first[1].tolist(),
        "totals": [int(lists.sizes.sum()) for lists in (held.labelled, held.unlabelled)],
        "server": len(held.server),
        "shares": shares,
    }


def clients(run: Run) -> dict[str, Any]:
    """The clients, most unusual first: of each measure its value as text, the share of the largest value,
    and whether it is unusual; and what is unusual in words.
    """
    everyone = ranked(run)
    shown = (
        everyone if len(everyone) <= WORST + BEST else [*everyone[:WORST], *everyone[len(everyone) - BEST :]]
    )
    measures = [measure for measure in MEASURES if any(measure.name in each.values for each in shown)]
    most = {
        measure.name: max(each.values.get(measure.name, 0) for each in shown) or 1 for measure in measures
    }
    rows = []
    for each in shown:
        odd = {remark.measure for remark in each.remarks}
        cells = [
            [measure.form(value), *numbers([max(0.0, value / most[measure.name])], 3), measure.name in odd]
            if (value := each.values.get(measure.name)) is not None
            else None
            for measure in measures
        ]
        rows.append([each.name[:LONGEST_NAME], each.rounds, cells, each.words])
    return {"measures": [measure.name for measure in measures], "rows": rows, "total": len(everyone)}


def site_matrix(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Models against sites, a table of values for each measure; None where sites measure nothing."""
    try:
        found = matrix_of(lines)
    except UNREADABLE:  # untrusted records
        return None
    if found is None:
        return None
    sites, rows = list(found.sizes)[:MOST_SITES], found.rows[: MOST_SITES + 2]
    return {
        "sites": [site[:LONGEST_NAME] for site in sites],
        "images": [found.sizes[site] for site in sites],
        "total": len(found.sizes),
        "models": [[row.model[:LONGEST_NAME], row.round] for row in rows],
        "measures": {
            NAMES[name]: [numbers([row.at.get(site, {}).get(name) for site in sites]) for row in rows]
            for name in found.measures
        },
    }


def proxies(round: int, tensors: Tensors) -> dict[str, Any] | None:
    """Client proxies, their average and the tuned ones in one plane."""
    if "proxies/clients" not in tensors:
        return None
    local, average = tensors["proxies/clients"].float(), tensors["proxies/average"].float()
    if local.ndim != 3 or not local.numel() or not all(bool(t.isfinite().all()) for t in tensors.values()):
        raise ValueError("the proxies are not rows of finite numbers for each client")
    tuned = tensors.get("proxies/tuned")
    local = local[: max(1, MOST_PROXIES // local.shape[1])]
    parts = [local.reshape(-1, local.shape[2]), average, *([] if tuned is None else [tuned.float()])]
    plane, explained = principal_plane(torch.cat(parts))
    points = [part.round(decimals=4).tolist() for part in torch.split(plane, [len(part) for part in parts])]
    size = local.shape[1]
    return {
        "round": round,
        "clients": tensors["proxies/client_ids"].tolist()[: len(local)],
        "local": [points[0][start : start + size] for start in range(0, len(points[0]), size)],
        "average": points[1],
        "tuned": points[2] if tuned is not None else None,
        "explained": [float(f"{share:.3g}") for share in explained.tolist()],
    }


def principal_plane(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows in the plane of their first two principal components, and the share of variance each explains.

    A component's sign is chosen so that its largest entry is positive: the same rows give the same plane.
    """
    centred = rows - rows.mean(0)
    _, strength, axes = torch.linalg.svd(centred, full_matrices=False)
    axes = axes[:2]
    sign = axes.gather(1, axes.abs().argmax(1, keepdim=True)).sign()
    plane, variance = centred @ (axes * sign).T, strength**2
    if plane.shape[1] < 2:
        plane = torch.cat([plane, torch.zeros(len(plane), 2 - plane.shape[1])], 1)
    return plane, variance[:2] / variance.sum().clamp(min=1e-12)
