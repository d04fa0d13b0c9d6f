"""A data set from what people have in memory: tensors, arrays, or a ``torch.utils.data.Dataset``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Sized
from typing import Any

import numpy as np
import torch
from torch import Tensor

from proxyfl.core.errors import DataError
from proxyfl.data.dataset import Split
from proxyfl.data.files import progress
from proxyfl.data.labels import label_array
from proxyfl.data.numbers import is_vectors, numbers
from proxyfl.data.texts import pack

UNKNOWN = -1
"""The label of an image whose class nobody knows."""


def pair(given: Any) -> tuple[Any, Any]:
    """(images, labels), or a torch Dataset that has both."""
    return given if isinstance(given, tuple) and len(given) == 2 else (given, None)


def class_names(classes: Sequence[str] | int | None, found: int) -> tuple[str, ...]:
    names = tuple(map(str, range(classes))) if isinstance(classes, int) else tuple(map(str, classes or ()))
    if classes is not None and len(names) < found:
        raise DataError(f"a label is {found - 1}, but there are only {len(names)} classes")
    return names or tuple(map(str, range(found)))


def split_of(images: Any, labels: Any, what: str) -> Split:
    if labels is None:
        images, labels = _walked(images, what)
    given = torch.from_numpy(label_array(labels, unknown=True))
    found = Split(_samples(images, what), given)
    if not len(found.images):
        raise DataError(f"there are no {what} images")
    if len(found.images) != len(given):
        raise DataError(f"{len(found.images)} {what} {found.called} but {len(given)} labels")
    return found


def _walked(dataset: Any, what: str) -> tuple[Any, Any]:
    """Images and labels of a torch Dataset, item by item; one without a label has that of the unknown."""
    if not isinstance(dataset, Sized) or not hasattr(dataset, "__getitem__"):
        raise DataError(
            f"{what} images are a {type(dataset).__name__}; give images and labels, or a map-style Dataset"
        )
    images, labels = [], []
    with progress(f"reading {what} images", len(dataset)) as advance:
        for place in range(len(dataset)):
            item = dataset[place]
            image, label = item if isinstance(item, tuple | list) and len(item) == 2 else (item, UNKNOWN)
            images.append(np.asarray(image))
            labels.append(UNKNOWN if label is None else int(label))
            advance(1)
    shapes = {image.shape for image in images}
    if len(shapes) > 1:
        raise DataError(f"{what} images have {len(shapes)} sizes; resize them to one size in the Dataset")
    return np.stack(images) if images else np.zeros((0, 1, 8, 8), np.uint8), labels


def _samples(images: Any, what: str) -> Tensor:
    if not isinstance(images, Tensor) and isinstance(next(iter(images), None), str):
        return texts(images, what)
    array = _array(images)
    if is_vectors(array):
        return vectors(array, f"{what} vectors")
    found = pixels(array, what)
    if found.shape[2] != found.shape[3]:
        raise DataError(f"{what} images are {found.shape[2]}×{found.shape[3]}; make them square")
    return found


def texts(samples: Iterable[Any], what: str = "the") -> Tensor:
    """Texts as a data set holds them, none of them empty."""
    found = list(samples)
    for row, text in enumerate(found):
        if not isinstance(text, str) or not text.strip():
            fault = "empty" if isinstance(text, str) else f"a {type(text).__name__}"
            raise DataError(f"{what} text {row} is {fault}; correct it or leave it out")
    return pack(found)


def _array(samples: Any) -> np.ndarray[Any, Any]:
    """A tensor or whatever numpy takes as an array."""
    return samples.detach().cpu().numpy() if isinstance(samples, Tensor) else np.asarray(samples)


def vectors(samples: Any, what: str = "the vectors") -> Tensor:
    """float32 (N, d) from numbers of any kind, all of them finite."""
    found = numbers(_array(samples), what)
    return torch.from_numpy(np.require(found, requirements=["C", "W", "O"]))


def pixels(images: Any, what: str = "the") -> Tensor:
    """uint8 (N, channels, height, width) from whatever order and scale they come in."""
    array = _array(images)
    if array.ndim == 3:
        array = array[:, None]
    elif array.ndim == 4 and array.shape[1] not in (1, 3) and array.shape[3] in (1, 3):
        array = array.transpose(0, 3, 1, 2)
    if array.ndim != 4 or array.shape[1] not in (1, 3):
        raise DataError(
            f"{what} images have shape {array.shape}; give (N, 1 or 3, height, width), or (N, d) for vectors"
        )
    if array.dtype.kind == "f":
        low, high = float(array.min(initial=0)), float(array.max(initial=0))
        if not (low >= 0 and high <= 1):
            raise DataError(
                f"{what} images lie between {low:g} and {high:g}; give 0 to 1, or 0 to 255 as uint8: "
                "normalisation is done here"
            )
        array = np.rint(array * 255).astype(np.uint8)
    if array.dtype != np.uint8:
        raise DataError(f"{what} images are {array.dtype}; give uint8, or numbers from 0 to 1")
    return torch.from_numpy(np.require(array, requirements=["C", "W", "O"]))
