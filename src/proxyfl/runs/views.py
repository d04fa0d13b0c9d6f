"""How images are normalised and mirrored: by the settings ``data.norm`` and ``data.flip``, or as objects."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools

from proxyfl.core.config import DataSettings
from proxyfl.core.errors import ConfigError
from proxyfl.core.settings import OBJECT, read_section
from proxyfl.core.trees import Tree
from proxyfl.core.views import VectorSettings
from proxyfl.data.dataset import Dataset
from proxyfl.data.release import release_views
from proxyfl.data.stream import ViewSettings

Pair = tuple[ViewSettings, ViewSettings]
"""The views of training and of test images."""
NORMS, FLIPS = ("own", "release"), ("own", "always", "never")


def flips(dataset: Dataset, flip: str) -> bool:
    """Whether a mirrored image counts as one of the same class."""
    return dataset.flip if flip == "own" else flip == "always"


def views_of(dataset: Dataset, vectors: VectorSettings, norm: str = "own", flip: str = "own") -> Pair:
    """What the settings ``data.norm`` and ``data.flip`` name."""
    mirrored = flips(dataset, flip)
    if norm == "release" and dataset.channels == 3 and not dataset.is_vectors:
        return release_views(dataset, mirrored)
    own = ViewSettings(mirrored, dataset.mean, dataset.std, vectors, _encoded(dataset))
    return own, own


def chosen_views(
    dataset: Dataset,
    vectors: VectorSettings | None,
    views: ViewSettings | None,
    test_views: ViewSettings | None,
    fidelity: str,
) -> Pair:
    """``views`` and ``test_views``, where somebody brings them; else as the fidelity has them. Test images
    are by default normalised like the others.
    """
    usual = read_section(DataSettings, {}, fidelity, "data.")
    train, test = views_of(dataset, vectors or VectorSettings(), usual.norm, usual.flip)
    if views is not None:
        drawn = views.vectors if vectors is None else vectors
        train = test = dataclasses.replace(views, vectors=drawn, encoded=_encoded(dataset))
    test = test_views or test
    for name, each in (("views", train), ("test_views", test)):
        if {len(each.mean), len(each.std)} != {dataset.channels}:
            raise ConfigError(
                f"{name}: mean and std have {len(each.mean)} and {len(each.std)} numbers; '{dataset.name}' "
                f"needs {dataset.channels} of each"
            )
        if not min(each.std) > 0:
            raise ConfigError(f"{name}: std must be above 0, not {min(each.std):g}")
    return train, test


def named_views(dataset: Dataset, pair: Pair, fidelity: str) -> Tree:
    """The settings that give these views; ``data.norm`` begins with ``object:`` where none do."""
    usual, vectors = read_section(DataSettings, {}, fidelity, "data."), pair[0].vectors
    for norm, flip in ((usual.norm, usual.flip), *itertools.product(NORMS, FLIPS)):
        if views_of(dataset, vectors, norm, flip) == pair:
            return {"norm": norm, "flip": flip}
    digest = hashlib.sha256(repr(pair).encode()).hexdigest()[:12]
    return {"norm": f"{OBJECT}{digest}", "flip": "always" if pair[0].flip else "never"}


def _encoded(dataset: Dataset) -> int:
    """How many weak views a frozen encoder has seen of each training sample."""
    return dataset.encoded.weak if dataset.encoded else 0
