"""Models measured at every site: what each site says of the images it holds out, and whose model it was.

The global model is measured in every measured round. The models that sites allow to be measured elsewhere
(``share_model`` of their ``site.toml``) are those that they sent last; all sites measure them in the last
round.
"""

from __future__ import annotations

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
"""Below the run: the model that each sharing site sent last."""

DIGITS = 6


@dataclass(frozen=True)
class SiteCounts:
    """What a site measured: counts of (true class, predicted class) and, where it sends them, of scores."""

    confusion: Tensor
    of_scores: Tensors = field(default_factory=dict)

    def record(self) -> dict[str, float]:
        """For the line of a round."""
        images = int(self.confusion.sum())
        found = {"accuracy": int(self.confusion.diagonal().sum()) / max(1, images)}
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
    """An observer that keeps the last model of each site that allows it to be measured elsewhere."""

    def __init__(self, run: Path, enrolment: Enrolment) -> None:
        self.folder, self.enrolment = run / FOLDER, enrolment

    def round_started(self, round: int, clients: list[int]) -> None:
        pass

    def answered(self, answer: Update | Failure) -> None:
        row = self.enrolment.counts.get(answer.client)
        if isinstance(answer, Update) and row is not None and row.shares:
            self.folder.mkdir(exist_ok=True)
            write_verified(self._file(answer.client), answer.weights, {"round": str(answer.round)})

    def round_finished(self, report: RoundReport) -> None:
        pass

    def sharing(self) -> list[int]:
        """The sites whose model is here and that still share it."""
        rows = sorted(self.enrolment.counts.items())
        return [client for client, row in rows if row.shares and self._file(client).is_file()]

    def read(self, client: int) -> tuple[Tensors, int] | None:
        """A site's model and its round; a damaged one is none."""
        try:
            weights, notes = read_verified(self._file(client))
            return weights, int(notes["round"])
        except (OSError, RunError, ValueError, KeyError):
            return None

    def _file(self, client: int) -> Path:
        return self.folder / f"{self.enrolment.sites[client]}.safetensors"


def at_sites(counts: Mapping[int, SiteCounts], sites: tuple[str, ...]) -> dict[str, Any]:
    """By the names of sites, in their order."""
    return {sites[client]: counts[client].record() for client in sorted(counts)}
