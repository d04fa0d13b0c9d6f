"""Accuracy: the confusion matrix counted by hand, whatever the batch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from proxyfl.core.errors import DataError
from proxyfl.data.dataset import Split
from proxyfl.federation.evaluate import Evaluation, eval_batch, evaluate


class Bright(nn.Module):
    """Predicts the class whose number is the brightness of the image over 50."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.norm = nn.BatchNorm2d(1)
        self.modes: list[bool] = []

    def forward(self, images: Tensor) -> Tensor:
        self.modes.append(self.training)
        level = (images.mean((1, 2, 3)) * 255 / 50).round()
        return -(level[:, None] - torch.arange(4.0)).abs() * self.scale


# true 0 0 1 1 1 3; predicted 0 1 1 1 3 3
LABELS = torch.tensor([0, 0, 1, 1, 1, 3])
SEEN = torch.tensor([0, 1, 1, 1, 3, 3])
SPLIT = Split((SEEN * 50).to(torch.uint8)[:, None, None, None].expand(6, 1, 8, 8), LABELS)


@pytest.mark.parametrize("batch", [1, 4, 6, 100])
def test_confusion(batch: int) -> None:
    network = Bright().train()
    found = evaluate(network, SPLIT, (0.0,), (1.0,), batch=batch)
    assert found.confusion.tolist() == [[1, 1, 0, 0], [0, 2, 0, 1], [0, 0, 0, 0], [0, 0, 0, 1]]
    assert found.accuracy == 4 / 6
    assert found.per_class == [0.5, 2 / 3, None, 1.0]
    assert not any(network.modes)
    assert len(network.modes) == -(-6 // batch)


def test_nothing_is_learned_from_test_images() -> None:
    network = Bright()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    evaluate(network, SPLIT, (0.0,), (1.0,), batch=3)
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())


def test_no_images() -> None:
    with pytest.raises(DataError, match="no test images"):
        evaluate(Bright(), Split(SPLIT.images[:0], LABELS[:0]), (0.0,), (1.0,), batch=3)


def test_an_empty_matrix_has_accuracy_zero() -> None:
    assert Evaluation(torch.zeros(2, 2, dtype=torch.int64)).accuracy == 0.0


def test_batches_for_the_machine() -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert eval_batch(37, 32, cpu) == 37
    assert eval_batch(0, 32, cpu) == 128
    assert eval_batch(0, 8, cpu) == 2048
    assert eval_batch(0, 1024, cpu) == 16
    assert eval_batch(0, 32, cuda) == 4096
