"""Models measured at every site: what each site says of the images it holds out, and whose model it was.

The global model is measured in every measured round. So is the model that a site has just trained, by that
site alone, where it allows its model to be measured elsewhere (``share_model`` of its ``site.toml``): the
best of them is kept, and all sites measure it in the last round.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from flwr.app import RecordDict
from torch import Tensor

from proxyfl.core.checksum import read_verified, write_verified
from proxyfl.core.errors import RunError
from proxyfl.core.state import Failure, Tensors, Update
from proxyfl.deploy.enrolment import Enrolment
from proxyfl.engines.flower.codec import OWN, Malformed, header_of, tensors_of, text
from proxyfl.federation import measures, score_counts
from proxyfl.federation.loop import RoundReport

FOLDER = "shared"
"""Below the run: the best model of each sharing site, and the one that it sent last."""

DIGITS = 6


@dataclass(frozen=True)
class SiteCounts:
    """What a site measured: counts of (true class, predicted class) and, where it sends them, of scores."""

    confusion: Tensor
    of_scores: Tensors = field(default_factory=dict)

    @property
    def accuracy(self) -> float:
        return int(self.confusion.diagonal().sum()) / max(1, int(self.confusion.sum()))

    def record(self) -> dict[str, float]:
        """For the line of a round."""
        images, found = int(self.confusion.sum()), {"accuracy": self.accuracy}
        found |= measures.of_confusion(self.confusion) | self.scores
        return {"images": images, **{name: float(f"{value:.{DIGITS}g}") for name, value in found.items()}}

    @property
    def scores(self) -> dict[str, float]:
        return score_counts.measured(self.of_scores, int(self.confusion.sum()))


def together(counts: Mapping[int, SiteCounts]) -> SiteCounts:
    """The sum over sites; of scores only where all sites sent them, since a part would pass for the whole."""
    tables, scores = zip(*((one.confusion, one.of_scores) for one in counts.values()), strict=True)
    known = set.intersection(*map(set, scores))
    whole = {name: torch.stack([one[name] for one in scores]).sum(0) for name in sorted(known)}
    return SiteCounts(torch.stack(tables).sum(0), whole)


def read_counts(reply: RecordDict | str, classes: int, registered: int) -> SiteCounts:
    """What a site answered, where that can be; raises :class:`Malformed`."""
    if isinstance(reply, str):
        raise Malformed(f"it {reply}")
    header = header_of(reply)
    if header.get("kind") == "failure":
        raise Malformed(text(header, "reason", 300))
    sent = tensors_of(reply, OWN)
    counts, expected = sent.get("confusion"), score_counts.blank(classes)
    scores = {name: sent[name] for name in expected if name in sent}
    if counts is None or counts.dtype != torch.int64 or tuple(counts.shape) != (classes, classes):
        raise Malformed("its counts have the wrong form")
    if int(counts.min()) < 0 or int(counts.max()) > registered or not 0 < int(counts.sum()) <= registered:
        raise Malformed(f"its counts do not add up to the {registered} images that it holds out")
    for name, found in scores.items():
        if (found.dtype, found.shape) != (expected[name].dtype, expected[name].shape):
            raise Malformed(f"its counts of scores ({name}) have the wrong form")
    if not score_counts.fit(scores, counts):
        raise Malformed("its counts of scores do not fit its table of classes")
    return SiteCounts(counts, scores)


class SharedModels:
    """An observer that keeps the models of sites that allow them to be measured elsewhere: the last one, and
    the best by what the site itself measured. Of equal ones the earlier stays, so that a round that is
    repeated changes nothing.
    """

    def __init__(self, run: Path, enrolment: Enrolment) -> None:
        self.folder, self.enrolment = run / FOLDER, enrolment

    def round_started(self, round: int, clients: list[int]) -> None:
        pass

    def answered(self, answer: Update | Failure) -> None:
        row = self.enrolment.counts.get(answer.client)
        if isinstance(answer, Update) and row is not None and row.shares:
            self.folder.mkdir(exist_ok=True)
            write_verified(self._last(answer.client), answer.weights, {"round": str(answer.round)})

    def round_finished(self, report: RoundReport) -> None:
        pass

    def fresh(self, round: int) -> dict[int, Tensors]:
        """The models that sites sent in this round."""
        found = {client: _read(self._last(client)) for client in self._sharing()}
        return {client: model.weights for client, model in found.items() if model and model.round == round}

    def measured(self, client: int, round: int, accuracy: float) -> None:
        """Keep the model that a site sent in this round if none of its earlier ones is as good."""
        best, last = _read(self._best(client)), _read(self._last(client))
        if last and (best is None or accuracy > best.accuracy):
            notes = {"round": str(round), "accuracy": repr(accuracy)}
            write_verified(self._best(client), last.weights, notes)

    def withdraw(self, client: int) -> None:
        """A site shares its models no longer: those that it sent are forgotten."""
        row = self.enrolment.counts[client]
        if row.shares:
            self.enrolment.counts[client] = dataclasses.replace(row, shares=False)
            self.enrolment.save(self.folder.parent)
        for file in (self._best(client), self._last(client)):
            file.unlink(missing_ok=True)

    def best(self) -> dict[int, SharedModel]:
        """Of each site that still shares its models; a damaged one is none."""
        found = {client: _read(self._best(client)) for client in self._sharing()}
        return {client: model for client, model in found.items() if model}

    def _sharing(self) -> list[int]:
        return [client for client, row in sorted(self.enrolment.counts.items()) if row.shares]

    def _best(self, client: int) -> Path:
        return self.folder / f"{self.enrolment.sites[client]}.safetensors"

    def _last(self, client: int) -> Path:
        return self.folder / f"{self.enrolment.sites[client]}.last.safetensors"


@dataclass(frozen=True)
class SharedModel:
    """Of a site: the weights that it sent in a round; the last one is not measured yet."""

    weights: Tensors
    round: int
    accuracy: float


def _read(file: Path) -> SharedModel | None:
    try:
        weights, notes = read_verified(file)
        return SharedModel(weights, int(notes["round"]), float(notes.get("accuracy", 0.0)))
    except (OSError, RunError, ValueError, KeyError):
        return None


def at_sites(counts: Mapping[int, SiteCounts], sites: tuple[str, ...]) -> dict[str, Any]:
    """By the names of sites, in their order."""
    return {sites[client]: counts[client].record() for client in sorted(counts)}
