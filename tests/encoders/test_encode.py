"""Frozen encoders: what is encoded, its cache through kills and damage, and federations on features."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import proxyfl
from proxyfl.core.config import TrainSettings
from proxyfl.core.errors import ConfigError, DataError
from proxyfl.data.stream import VIEWS, ClientData, Stream, ViewSettings
from proxyfl.data.vectors import prepared
from proxyfl.encoders import cache
from proxyfl.methods import registry
from toybox import Stopped, Told, same_bits


class Pooled(nn.Module):
    """Means over the quarters of an image, and how often it was called; ``fail_at`` ends the program then."""

    def __init__(self, fail_at: int = 0) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(3.0))
        self.calls, self.fail_at = 0, fail_at

    def forward(self, images: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == self.fail_at:
            raise KeyboardInterrupt
        return self.scale * nn.functional.adaptive_avg_pool2d(images, 2).flatten(1)


@pytest.fixture
def images() -> proxyfl.Dataset:
    """Three classes, one with a bright quarter each."""
    generator, labels = torch.Generator().manual_seed(0), torch.arange(96) % 3
    pixels = torch.rand((96, 1, 8, 8), generator=generator) / 3
    for row, label in enumerate(labels.tolist()):
        pixels[row, 0, 4 * (label // 2) :, 4 * (label % 2) :][:4, :4] += 0.6
    return proxyfl.Dataset.of(pixels[:66], labels[:66], test=(pixels[66:], labels[66:]))


def test_a_stream_draws_among_the_views_of_its_kind():
    features = torch.arange(6.0).reshape(1, 6, 1).expand(40, 6, 3).half()  # a view's number as its features
    data = ClientData(features, torch.arange(20), torch.zeros(20, dtype=torch.int64), torch.arange(20, 40))
    views = ViewSettings(False, (1.0,) * 3, (2.0,) * 3, encoded=2)
    settings = TrainSettings(batch=16, mu=1)
    stream = Stream(data, settings, views, VIEWS, torch.Generator().manual_seed(0), torch.device("cpu"))
    batch = next(stream.epoch())
    weak, strong = {0.0, 0.5}, {1.0, 1.5, 2.0}  # (1, 2 and 3, 4, 5 - mean) / std
    for view, wanted in (
        (batch.x, weak),
        (batch.u_weak, weak),
        (batch.x_strong, strong),
        (batch.u_strong, strong),
    ):
        assert view.dtype == torch.float32
        assert set(view.flatten().tolist()) == wanted
    assert prepared(features, views.mean, views.std).unique().tolist() == [-0.5]


def test_features_are_those_of_the_images_and_computed_once(images, tmp_path):
    network = Pooled()
    found = proxyfl.encode(images, network, weak=1, strong=3, cache=tmp_path)
    assert found.train.images.shape == (66, 5, 4)
    assert found.test.images.shape == (30, 4)
    assert (found.channels, found.image_size, found.train.called) == (4, 0, "vectors")
    whole = 3 * nn.functional.adaptive_avg_pool2d(images.train.images / 255, 2).flatten(1)
    torch.testing.assert_close(found.train.images[:, 0].float(), whole, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(torch.tensor(found.mean), whole.mean(0), rtol=1e-3, atol=1e-3)
    assert all(not torch.equal(found.train.images[:, 0], found.train.images[:, view]) for view in range(1, 5))
    again = Pooled()
    assert torch.equal(
        proxyfl.encode(images, again, weak=1, strong=3, cache=tmp_path).train.images, found.train.images
    )
    assert again.calls == 1  # which finds out how many features there are
    other = Pooled()
    nn.init.constant_(other.scale, 2.0)
    changed = proxyfl.encode(images, other, weak=1, strong=3, cache=tmp_path)
    assert not torch.equal(changed.train.images, found.train.images)


def test_encoding_goes_on_after_a_kill_and_repairs_damage(images, tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "BLOCK", 16)
    whole = proxyfl.encode(images, Pooled(), cache=tmp_path / "whole").train.images.clone()
    with pytest.raises(KeyboardInterrupt):
        proxyfl.encode(images, Pooled(fail_at=14), cache=tmp_path / "cut")  # in the third of five blocks
    (folder,) = (tmp_path / "cut").iterdir()
    log, data = folder / "blocks.jsonl", folder / "features.npy"
    assert log.read_bytes().count(b"sha256") == 2
    log.write_bytes(log.read_bytes() + b'\n{"block": 2, "sha')  # a line that was being written
    resumed = Pooled()
    assert torch.equal(proxyfl.encode(images, resumed, cache=tmp_path / "cut").train.images, whole)
    assert resumed.calls == 1 + 3 * 5 + 2  # three blocks of five views, two of the test images
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    repaired = Pooled()
    assert torch.equal(proxyfl.encode(images, repaired, cache=tmp_path / "cut").train.images, whole)
    assert repaired.calls == 1 + 5


def test_too_many_features_and_unfit_encoders_are_refused(images, tmp_path, monkeypatch):
    monkeypatch.setenv(cache.VARIABLE, "0.000001")
    with pytest.raises(ConfigError, match=r"3.1 kB, .*1.0 kB .*FEATURES_GB"):
        proxyfl.encode(images, Pooled(), cache=tmp_path)
    assert not list(tmp_path.iterdir())
    monkeypatch.delenv(cache.VARIABLE)
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 100}))
    with pytest.raises(ConfigError, match="100 bytes"):
        proxyfl.encode(images, Pooled(), cache=tmp_path)
    with pytest.raises(DataError, match=r"\(1, 1, 8, 8\) for 1 images"):
        proxyfl.encode(images, nn.Identity(), cache=tmp_path)
    with pytest.raises(DataError, match=r"Conv2d cannot take images of shape \(1, 8, 8\)"):
        proxyfl.encode(images, nn.Conv2d(3, 4, 3), cache=tmp_path)
    with pytest.raises(ConfigError, match=r"encoder\.weak = 0"):
        proxyfl.encode(images, Pooled(), weak=0, cache=tmp_path)


def federation(
    data: proxyfl.Dataset, method: str = "proxyfl", workers: int = 0, rounds: int = 3
) -> proxyfl.Federation:
    split = proxyfl.partition(data, clients=3, per_class=6, scheme="iid")
    _, parameters = registry.resolve(method, {})
    changed = {"gpt": {"epochs": 2}} if "gpt" in parameters else {}
    return proxyfl.Federation(
        data, split, method=registry.create(method, changed), rounds=rounds, dtype="fp32", workers=workers,
        train=proxyfl.Train(epochs=1, batch=8, lr=0.1),
    )  # fmt: skip


@pytest.mark.slow
def test_resumed_and_with_workers_a_run_ends_in_the_same_bits(images, tmp_path):
    data = proxyfl.encode(images, Pooled(), cache=tmp_path / "cache")
    whole = federation(data).record(tmp_path / "whole").run()
    assert whole.config.model.name == "linear"
    assert whole.history[-1].accuracy > 0.8
    with pytest.raises(Stopped):
        federation(data, workers=2).record(tmp_path / "cut").run([Told(stop_after=2)])
    resumed = federation(data).resume(tmp_path / "cut").run()
    assert same_bits(whole.state.weights, resumed.state.weights)
    with pytest.raises(proxyfl.ProxyFLError, match=r"load_model\(PATH, encoder="):
        proxyfl.load_model(tmp_path / "whole/models/last.safetensors")(images.test.images)
    model = proxyfl.load_model(tmp_path / "whole/models/last.safetensors", encoder=Pooled())
    right = model(images.test.images).argmax(1) == images.test.labels
    assert right.float().mean().item() == pytest.approx(whole.history[-1].accuracy)
