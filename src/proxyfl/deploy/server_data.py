"""Labelled images at the server, for federations whose sites have no labels: read as a site's are."""

from __future__ import annotations

from dataclasses import replace

import torch

from proxyfl.core.config import Config
from proxyfl.core.errors import ConfigError, DataError, RunError
from proxyfl.core.state import content_hash
from proxyfl.data.dataset import Split
from proxyfl.data.stream import ClientData
from proxyfl.deploy.settings import Deployment
from proxyfl.deploy.site_data import SiteData, open_site
from proxyfl.encoders.encoding import FOLDER as FEATURES
from proxyfl.engines.flower.site import SiteImages, encoded_images
from proxyfl.runs.checkpoint import Checkpoint

CHECKSUM = "server data"
"""Under this name a checkpoint has the hash of the images."""


def open_server_data(deployment: Deployment, path: str | None = None) -> SiteData:
    """The server's images; ``path`` stands for the place that the deployment names. Those without a label
    are left out.
    """
    place = path or deployment.server_data_path
    if place is None:
        raise ConfigError(f"{deployment.file} names no server_data; only labels.where = 'server' has some")
    form = (deployment.classes, deployment.channels, deployment.image_size, deployment.holdout)
    found = open_site(place, *form, deployment.config.seed, features=deployment.features)
    if not len(found.labelled):
        raise DataError(
            f"{place}: none of the {deployment.called} has a label; the server trains on labelled ones alone"
        )
    return found


def own_images(found: SiteData, deployment: Deployment, config: Config) -> ClientData:
    """What the server trains on: its labelled images, or what the frozen encoder makes of them here."""
    data = replace(found.data, unlabelled=found.unlabelled[:0])
    if not deployment.encoded:
        return data
    labelled = replace(data, images=data.images[data.labelled], labelled=torch.arange(len(data.labelled)))
    form = {"encoded": deployment.encoded, "flip": deployment.flip}
    nothing = Split(found.images[:0], found.labels[:0])
    return encoded_images(SiteImages(labelled, nothing), config, "", form, deployment.state / FEATURES).client


def notes(found: SiteData) -> list[str]:
    """What the operator should know about the server's images."""
    what = Split(found.images, found.labels).called
    notes = [note for note in found.notes if note != f"no unlabelled {what}"]
    if len(found.unlabelled):
        notes.append(f"{len(found.unlabelled):,} {what} without a label are not used")
    return notes


def checksum(found: SiteData) -> dict[str, str]:
    """By which it is noticed that the images changed while a run was under way."""
    index = torch.cat([found.labelled, found.held])
    return {CHECKSUM: content_hash({"images": found.images[index], "labels": found.labels[index]})}


def require_same(saved: Checkpoint, found: SiteData, deployment: Deployment) -> None:
    if saved.run_files.get(CHECKSUM) != checksum(found)[CHECKSUM]:
        raise RunError(
            f"{deployment.server_data} is not what the run began with; restore it, or move "
            f"{deployment.run} away to start again"
        )
