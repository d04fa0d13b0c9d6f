"""What the vectors of a federation, or its frozen encoder's features, are like: read from what the operator
has.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from proxyfl.core.errors import ConfigError, DataError
from proxyfl.core.network import FROZEN
from proxyfl.core.rng import SERVER, rng
from proxyfl.core.trees import Tree
from proxyfl.data.numbers import is_vectors, statistics
from proxyfl.data.reader.arrays import Array, read_arrays
from proxyfl.data.reader.columns import read_rows
from proxyfl.data.reader.known import Form, find_form, read_known
from proxyfl.data.reader.listing import in_order
from proxyfl.data.reader.tables import read_table
from proxyfl.deploy.settings import Deployment
from proxyfl.encoders import load_encoder
from proxyfl.encoders.encoding import in_batches

SAMPLES, BATCH = 512, 64
"""How many samples tell mean and standard deviation of features, and how many are encoded at once."""


def described(form: Mapping[str, Any], like: str, test: str, overrides: Tree) -> tuple[dict[str, Any], Tree]:
    """The form with that of the vectors in a file that is there, for those who did not give it, and the
    settings without the names of columns in that file.
    """
    given = {name: value for name, value in form.items() if value is not None}
    if str(overrides.get("model", {}).get("name", "")).startswith(FROZEN):  # see with_statistics
        return given, overrides
    file = like or (test if given.get("image_size") == 0 else "")
    if not file:
        return given, overrides
    if like and given.get("image_size"):
        raise ConfigError("--like is for vectors, which have no --image-size; leave one of them out")
    data = dict(overrides.get("data", {}))
    keys = data.get("keys", "")
    if like:
        data.pop("keys", None)  # the test file, which is read in every run, keeps them
    found = vectors_like(Path(file).expanduser(), keys)
    if given.get("channels", found["channels"]) != found["channels"]:
        raise ConfigError(
            f"--channels {given['channels']}, but the vectors in {file} have {found['channels']:,} features"
        )
    return found | given, {**overrides, "data": data}


def with_statistics(deployment: Deployment, like: str) -> Deployment:
    """With mean and standard deviation of a frozen encoder's features, measured on what is here: a file of
    samples that was named, else the server's labelled ones. Without either, features are taken as they are:
    test samples tell nothing about training.
    """
    place = like or deployment.server_data_path
    if not deployment.encoded or place is None:
        return deployment
    form = Form(deployment.classes, deployment.channels, deployment.image_size, deployment.features)
    found = read_known(Path(place).expanduser(), form)
    tests = found.of("test")
    samples = found.data.images[~tests if bool((~tests).any()) else tests]
    order = torch.randperm(len(samples), generator=rng(0, 0, SERVER, "statistics"))
    model = deployment.config.model
    features = in_batches(load_encoder(model.encoder, model.encoder_hash), samples[order[:SAMPLES]], BATCH)
    mean, std = statistics(features.float().numpy())
    return replace(deployment, mean=mean, std=std)


def vectors_like(place: Path, keys: str = "") -> dict[str, Any]:
    """The form of the vectors in a table or npz file: features, mean and standard deviation of each, and the
    classes that it names.
    """
    vectors, names, classes = _read(place, keys)
    if not is_vectors(vectors):
        raise DataError(f"{place} holds images; give a file of vectors, or leave it out")
    mean, std = statistics(vectors)
    form = {
        "channels": vectors.shape[1],
        "image_size": 0,
        "features": names,
        "mean": mean,
        "std": std,
        "flip": False,
    }
    return form | ({"classes": classes} if classes else {})


def _read(place: Path, keys: str) -> tuple[Array, tuple[str, ...], tuple[str, ...]]:
    """Vectors, names of features, names of classes; names are empty where there are none."""
    found = find_form(place)
    if place.is_dir():
        raise DataError(f"{place} is a folder; give a table or an npz file of vectors")
    if found != "npz":
        rows = read_rows(read_table(place, keys))
        return rows.vectors, rows.features, in_order(row.label for row in rows.entries if row.label)
    try:
        arrays = read_arrays(place, keys)
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        raise DataError(f"{place} cannot be read ({error}); replace it") from None
    return np.concatenate([part[0] for part in arrays.parts.values()]), (), arrays.classes or ()
