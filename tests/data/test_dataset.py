"""A data set's images, labels, size and subsets."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from proxyfl.core.errors import ConfigError
from proxyfl.data.dataset import Dataset, Split


def dataset(count: int = 10, size: int = 8, channels: int = 1) -> Dataset:
    generator = torch.Generator().manual_seed(3)
    shape = (count, channels, size, size)
    images = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    train, test = Split(images, torch.arange(count) % 3), Split(images[:4], torch.arange(4) % 3)
    mean, std = (0.5,) * channels, (0.2,) * channels
    return Dataset("some", train, test, ("a", "b", "c"), mean, std, True, count)


def test_what_it_knows() -> None:
    some = dataset(channels=3, size=16)
    assert (some.channels, some.image_size, len(some.train), len(some.test)) == (3, 16, 10, 4)


def test_take() -> None:
    split = dataset().train.take(torch.tensor([4, 0]))
    assert split.labels.tolist() == [1, 0]
    assert torch.equal(split.images, dataset().train.images[[4, 0]])


def test_subset_is_drawn_without_replacement_and_keeps_order() -> None:
    some = dataset(30)
    small = some.subset(12, torch.Generator().manual_seed(5))
    where = [(some.train.images == image).flatten(1).all(1).nonzero().item() for image in small.train.images]
    assert where == sorted(set(where))
    assert len(where) == 12
    assert torch.equal(small.train.labels, some.train.labels[where])
    assert torch.equal(small.test.images, some.test.images)
    assert small.full_size == 30
    again = some.subset(12, torch.Generator().manual_seed(5))
    assert torch.equal(again.train.images, small.train.images)
    other = some.subset(12, torch.Generator().manual_seed(6))
    assert not torch.equal(other.train.images, small.train.images)


def test_the_whole_is_no_copy() -> None:
    some = dataset(30)
    assert some.subset(30, torch.Generator()) is some


@pytest.mark.parametrize("count", [0, -1, 31])
def test_a_subset_that_cannot_be(count: int) -> None:
    with pytest.raises(ConfigError, match=rf"data\.subset .*{count} of 30"):
        dataset(30).subset(count, torch.Generator())


@pytest.mark.parametrize(("size", "target"), [(16, 8), (8, 16), (12, 9)])
def test_resizing_is_what_pillow_does_up_to_rounding(size: int, target: int) -> None:
    some = dataset(6, size, 3)
    small = some.resized(target)
    assert small.train.images.shape == (6, 3, target, target)
    assert small.test.images.shape == (4, 3, target, target)
    assert small.train.images.dtype == torch.uint8
    assert torch.equal(small.train.labels, some.train.labels)
    for ours, original in zip(small.train.images, some.train.images, strict=True):
        pil = Image.fromarray(original.permute(1, 2, 0).numpy())
        theirs = np.asarray(pil.resize((target, target), Image.Resampling.BILINEAR)).astype(int)
        assert abs(ours.permute(1, 2, 0).numpy().astype(int) - theirs).max() <= 1


def test_the_same_size_is_no_copy_and_tiny_images_are_refused() -> None:
    some = dataset()
    assert some.resized(8) is some
    with pytest.raises(ConfigError, match=r"data\.image_size = 7 .* 8"):
        some.resized(7)


def test_an_oblong_image_becomes_square() -> None:
    images = torch.zeros(2, 1, 8, 12, dtype=torch.uint8)
    split = Split(images, torch.zeros(2, dtype=torch.int64))
    some = Dataset("some", split, split, ("a",), (0.5,), (0.2,), True, 2)
    assert some.resized(12).train.images.shape == (2, 1, 12, 12)
