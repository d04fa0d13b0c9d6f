"""The validation split: stratified, out of training, a pure function."""

from __future__ import annotations

import numpy as np
import pytest

from proxyfl.core.errors import ConfigError, RunError
from proxyfl.data.partition import Partition, make_partition
from proxyfl.data.validation import hold_out

LABELS = np.repeat([0, 1, 2], (100, 60, 7))


def dealt(per_class=(20, 30, 2)) -> Partition:
    return make_partition(LABELS, clients=4, per_class=per_class, scheme="dirichlet", alpha=1.0)


def images(part) -> list[int]:
    return sorted(part.flat()[1].tolist())


def test_a_share_of_every_class_leaves_training():
    before = dealt()
    after = hold_out(before, LABELS, 0.1)
    assert after.validation is not None
    held = images(after.validation)
    assert np.bincount(LABELS[held]).tolist() == [2, 3, 1], "one at least of each class"
    assert not {*held} & {*images(after.labelled), *images(after.unlabelled)}
    assert sorted([*held, *images(after.labelled)]) == images(before.labelled), "only labelled ones"
    assert images(after.unlabelled) == images(before.unlabelled)
    for client in range(4):
        assert {*after.validation[client].tolist()} <= {*before.labelled[client].tolist()}


def test_the_same_every_time_and_through_a_file():
    one, two = hold_out(dealt(), LABELS, 0.1), hold_out(dealt(), LABELS, 0.1)
    tensors = one.to_tensors()
    assert all(np.array_equal(tensors[name], value) for name, value in two.to_tensors().items())
    again = Partition.from_tensors(tensors)
    assert again.validation is not None
    assert images(again.validation) == images(one.validation)
    other = hold_out(dealt(), LABELS, 0.1, seed=8)
    assert images(other.validation) != images(one.validation)
    assert not any(name.startswith("validation") for name in dealt().to_tensors()), "files without stay as is"


def test_the_last_labelled_image_of_a_class_is_left():
    after = hold_out(dealt((20, 1, 1)), LABELS, 0.9)
    assert np.bincount(LABELS[images(after.labelled)]).tolist() == [2, 1, 1]
    with pytest.raises(ConfigError, match="two labelled images"):
        hold_out(dealt((1, 1, 1)), LABELS, 0.5)


def test_lists_that_do_not_match_are_refused():
    tensors = hold_out(dealt(), LABELS, 0.1).to_tensors()
    tensors["validation.starts"] = tensors["validation.starts"][:-1]
    with pytest.raises(RunError, match="damaged"):
        Partition.from_tensors(tensors)
