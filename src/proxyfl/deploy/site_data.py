"""A site's own images: labelled and unlabelled parts found, counted and checked before anything is sent."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from proxyfl.core import rng as streams
from proxyfl.core.dealing import CLIENTS, PARTIAL, SERVER
from proxyfl.core.errors import ConfigError, DataError
from proxyfl.data.dataset import Split
from proxyfl.data.numbers import is_vectors
from proxyfl.data.reader.known import Form, Known, fitting_keys, read_known
from proxyfl.data.reader.listing import CLIENT, NO_LABEL
from proxyfl.data.stream import ClientData

if TYPE_CHECKING:
    from proxyfl.deploy.settings import Site

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Counts:
    """Numbers of images; the lists have one entry per class."""

    labelled: tuple[int, ...]
    held_out: tuple[int, ...]
    unlabelled: int

    @property
    def total(self) -> int:
        return sum(self.labelled) + sum(self.held_out) + self.unlabelled


@dataclass(frozen=True)
class SiteData:
    """A site's images as uint8 (N, channels, size, size), or vectors (N, d), their labels (-1: none), and
    who is what.

    ``labelled`` and ``unlabelled`` are what is trained on, ``held`` is held out: indices, in reading order.
    """

    classes: tuple[str, ...]
    images: Tensor
    labels: Tensor
    labelled: Tensor
    unlabelled: Tensor
    held: Tensor
    form: str
    ignored: int = 0
    remarks: tuple[str, ...] = ()
    """Notes on how they were read."""
    scenario: str = CLIENTS
    """Who has labels in the federation."""
    unused: int = 0
    """Labels that are here and not used, since all labels are at the server."""

    @property
    def data(self) -> ClientData:
        """What the site trains on."""
        return ClientData(self.images, self.labelled, self.labels[self.labelled], self.unlabelled)

    @property
    def held_out(self) -> Split:
        """What the site measures accuracy on."""
        return Split(self.images[self.held], self.labels[self.held])

    @property
    def counts(self) -> Counts:
        labelled, held = (
            tuple(torch.bincount(self.labels[index], minlength=len(self.classes)).tolist())
            for index in (self.labelled, self.held)
        )
        return Counts(labelled, held, len(self.unlabelled))

    @property
    def notes(self) -> list[str]:
        """What the site's people should know before they take part."""
        notes, what = list(self.remarks), Split(self.images, self.labels).called
        if self.ignored:
            notes.append(f"files ignored because they are not images: {self.ignored:,}")
        if self.scenario == SERVER:
            ignored = f"; the labels of {self.unused:,} {what} here are not used" if self.unused else ""
            return [*notes, f"labels are at the server alone: this site needs none{ignored}"]
        if self.scenario == PARTIAL:
            return [*notes, f"this site takes part {'with' if len(self.labelled) else 'without'} labels"]
        if not len(self.labelled):
            notes.append(f"no labelled {what} to train on: methods that need labels pass this site over")
        if not len(self.unlabelled):
            notes.append(f"no unlabelled {what}")
        missing = [
            name for name, number in zip(self.classes, self.counts.labelled, strict=True) if not number
        ]
        if missing and len(missing) < len(self.classes):
            notes.append(f"no labelled {what} of: {', '.join(missing)}")
        return notes


def open_site(
    path: str | Path,
    classes: Sequence[str],
    channels: int,
    image_size: int,
    holdout: float = 0.0,
    seed: int = 1,
    cache: Path | None = None,
    features: Sequence[str] = (),
    scenario: str = CLIENTS,
    keys: str = "",
) -> SiteData:
    """Read a site's data: class folders, a CSV of labels beside images, or an npz file. An ``image_size`` of
    0 means vectors of ``channels`` features in an npz file or a table. ``keys`` names arrays or columns that
    are called otherwise.

    ``holdout`` is the share of labelled images held out, drawn by class, the same for the same ``seed``;
    where the data has a test or validation split of its own, that is held out instead.
    ``cache`` is a folder for the decoded images: the next process then reads them in a moment.
    Where the ``scenario`` is ``server``, labels that are here are not used; where it is ``partial``, all
    images have one or none has.
    """
    if not 0 <= holdout < 1:
        raise ConfigError(f"holdout = {holdout} must be a share from 0 to below 1")
    form = Form(tuple(classes), channels, image_size, tuple(features), keys)
    found = read_known(Path(path).expanduser(), form, cache)
    _require_one(found, path)
    set_apart = found.of("val", "test")
    labels = found.data.labels
    if bool((set_apart & (labels == NO_LABEL)).any()):
        found = found.take(~(set_apart & (labels == NO_LABEL)))
        set_apart, labels = found.of("val", "test"), found.data.labels
    if not len(found.data):
        raise DataError(f"there are no images in {path}")
    unused = int(((labels != NO_LABEL) & ~set_apart).sum()) if scenario == SERVER else 0
    if scenario == SERVER:
        labels = torch.where(set_apart, labels, NO_LABEL)
    trained = torch.where(set_apart, NO_LABEL, labels)
    if scenario == PARTIAL:
        _require_all_or_none(path, found.data, int((trained != NO_LABEL).sum()))
    held = set_apart | held_out(trained, len(classes), 0.0 if set_apart.any() else holdout, seed)
    return SiteData(
        tuple(classes),
        found.data.images,
        labels,
        ((labels != NO_LABEL) & ~held).nonzero()[:, 0],
        (labels == NO_LABEL).nonzero()[:, 0],
        held.nonzero()[:, 0],
        found.form,
        found.ignored,
        found.notes,
        scenario,
        unused,
    )


def open_data(site: Site, path: str | Path, cache: Path | None = None) -> SiteData:
    """The same as a site's folder says."""
    form = (site.classes, site.channels, site.image_size, site.holdout, site.seed)
    return open_site(path, *form, cache=cache, features=site.features, scenario=site.scenario, keys=site.keys)


def _require_one(found: Known, path: str | Path) -> None:
    """Refuse the data of several clients."""
    if not found.clients:
        return
    if found.form == "folder":
        cure = f"give the folder of one, as in {Path(path) / (CLIENT + found.clients[0])}"
    else:
        cure = f"give its {found.data.called} alone, without a column or array of clients"
    raise DataError(
        f"{path} holds the {found.data.called} of {len(found.clients)} clients; a site is one client: {cure}"
    )


def _require_all_or_none(path: str | Path, data: Split, labelled: int) -> None:
    without = int((data.labels == NO_LABEL).sum())
    if labelled and without:
        raise DataError(
            f"{path}: {labelled:,} {data.called} have labels and {without:,} have none; in this federation a "
            "site has labels for all of them or for none: label the others, or take one kind out"
        )


def open_test(
    path: str | Path,
    classes: Sequence[str],
    channels: int,
    image_size: int,
    *,
    by_name: bool = False,
    features: Sequence[str] = (),
    keys: str = "",
) -> Split:
    """Test images in any form that a site may use. Every one needs its label. ``by_name``, as for data that
    was not made for this, an npz file may number its classes in an order of its own, and images without a
    label and damaged ones are left out.
    """
    place = Path(path).expanduser()
    form = Form(tuple(classes), channels, image_size, tuple(features), fitting_keys(place, keys))
    return read_test(place, form, by_name=by_name)


def read_test(place: Path, form: Form, *, by_name: bool = False) -> Split:
    """The same for whoever knows the whole form."""
    found = _tests(read_known(place, form, by_name=by_name))
    split = found.data
    without = int((split.labels == NO_LABEL).sum())
    if not len(split):
        raise DataError(f"there are no images in {place}")
    if without and (not by_name or without == len(split)):
        raise DataError(
            f"{place}: {without:,} of {len(split):,} test {split.called} have no label; take them out"
        )
    if without:
        log.warning(
            "%s: %d of %d %s have no label and are left out", place, without, len(split), split.called
        )
        split = split.take((split.labels != NO_LABEL).nonzero()[:, 0])
    for note in found.notes:
        log.warning("%s: %s", place, note)
    return split


def _tests(found: Known) -> Known:
    """The images of the test split, where there is one."""
    tests = found.of("test")
    return found.take(tests) if bool(tests.any()) and not bool(tests.all()) else found


def write_npz(file: Path, images: Tensor, labels: Tensor, classes: Sequence[str]) -> None:
    """Images (N, channels, H, W) or vectors, and labels (-1: none), as :func:`open_site` reads them."""
    arrays = images.numpy()
    if not is_vectors(arrays):
        arrays = arrays[:, 0] if arrays.shape[1] == 1 else arrays.transpose(0, 2, 3, 1)
    np.savez(file, images=arrays, labels=labels.numpy(), classes=np.array(classes, dtype=np.str_))


def client_arrays(data: ClientData) -> tuple[Tensor, Tensor]:
    """A simulated client's images and labels in the order that keeps its batches the same at a real site."""
    index = torch.cat([data.labelled, data.unlabelled])
    without = torch.full_like(data.unlabelled, NO_LABEL)
    return data.images[index], torch.cat([data.labels, without])


def held_out(labels: Tensor, classes: int, share: float, seed: int) -> Tensor:
    """True for the labelled images to hold out: ``share`` of them, spread over the classes in proportion.

    Every class keeps at least one image to train on; which ones go is a pure function of the seed.
    """
    mask = torch.zeros(len(labels), dtype=torch.bool)
    known = labels[labels != NO_LABEL]
    counts = torch.bincount(known, minlength=classes).tolist() if len(known) else [0] * classes
    for label, number in enumerate(_by_largest_remainder(counts, share)):
        members = (labels == label).nonzero()[:, 0]
        order = torch.randperm(
            len(members), generator=streams.rng(seed, 0, streams.SERVER, f"holdout/{label}")
        )
        mask[members[order[:number]]] = True
    return mask


def _by_largest_remainder(counts: Sequence[int], share: float) -> list[int]:
    exact = [share * count for count in counts]
    parts = [min(math.floor(value), max(0, count - 1)) for value, count in zip(exact, counts, strict=True)]
    wanted = max(1, round(sum(exact))) if share else 0
    order = sorted(range(len(counts)), key=lambda place: parts[place] - exact[place])
    for place in order:
        if sum(parts) < wanted and parts[place] + 1 < counts[place]:
            parts[place] += 1
    return parts
