"""A frozen encoder at the sites: each reads its own images on its own machine, and only the head travels."""

from __future__ import annotations

import dataclasses

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'proxyfl[flower]'")

import torch
from serving import newest, server, texts
from torch import Tensor, nn
from wireless import Node, WirelessGrid, handled_by

import proxyfl
from proxyfl.core.errors import ConfigError
from proxyfl.data.dataset import Encoded, Split
from proxyfl.deploy import scaffold
from proxyfl.deploy.explain import explain
from proxyfl.deploy.server_data import open_server_data, own_images
from proxyfl.deploy.settings import Deployment, Site
from proxyfl.deploy.site_data import open_data, write_npz
from proxyfl.encoders import named
from proxyfl.engines.flower.site import FORM, SiteImages, SiteSide, encoded_images
from proxyfl.runs.run import Run
from proxyfl.runs.simulation import simulate
from proxyfl.runs.views import views_of
from proxyfl.testing.toy import toy_partition
from toybox import play, same_state

pytestmark = pytest.mark.usefixtures("quick")
ASKED = {
    "data": {"subset": 80}, "labels": {"per_class": 4}, "partition": {"scheme": "iid"},
    "model": {"name": "frozen:toy:here"}, "train": {"epochs": 1, "batch": 8}, "federation": {"rounds": 2},
}  # fmt: skip


class Pooled(nn.Module):
    """Means over the sixteenths of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(3.0))

    def forward(self, images: Tensor) -> Tensor:
        return self.scale * nn.functional.adaptive_avg_pool2d(images, 4).flatten(1)


@pytest.fixture
def toy(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PROXYFL_DATA", str(tmp_path / "data"))
    monkeypatch.setitem(named.KINDS, "toy", lambda place: proxyfl.Encoder(Pooled()))
    named._read.cache_clear()


@pytest.fixture
def deployed(tmp_path, toy) -> Deployment:
    """Three sites with digits of their own, test images at the server."""
    plan = scaffold.Plan(("a", "b", "c"), method="fixmatch-gpl", overrides=ASKED, insecure=True, sample=True)
    return scaffold.create(tmp_path / "fed", plan)


def side_of(site: Site, data, encoder: str = "") -> SiteSide:
    values = {name: getattr(site, name) for name in FORM}
    form = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    found = open_data(site, data)
    return SiteSide(site.name, form, lambda: SiteImages(found.data, found.held_out), site.state, "", encoder)


def sides(deployed: Deployment) -> list[SiteSide]:
    places = [(deployed.site(name), deployed.path / "sample" / f"{name}.npz") for name in deployed.sites]
    return [side_of(site, data) for site, data in places]


def test_sites_encode_what_they_have_and_the_run_is_bit_equal_to_the_inline_engine(deployed, tmp_path):
    assert (deployed.channels, deployed.image_size, deployed.encoded) == (1, 8, 16)
    places, config = sides(deployed), deployed.config
    net = WirelessGrid({50 + place: Node(handled_by(side)) for place, side in enumerate(places)})
    server(deployed, net).run()
    seen = [encoded_images(side.images(), config, "", side.form, tmp_path / "x").client for side in places]
    assert [data.images.shape[1:] for data in seen] == [(5, 16)] * 3
    partition = toy_partition(
        *([len(part) for part in parts] for parts in zip(*map(_parts, seen), strict=True))
    )
    images, labels = torch.zeros((sum(map(len, seen)), 5, 16)).half(), torch.zeros(sum(map(len, seen))).long()
    for client, data in enumerate(seen):
        told, untold = partition.labelled[client], partition.unlabelled[client]
        images[told], labels[told] = data.images[data.labelled], data.labels
        images[untold] = data.images[data.unlabelled]
    tests = open_test_features(deployed)
    whole = proxyfl.Dataset(
        "sites", Split(images, labels), tests, deployed.classes, deployed.mean, deployed.std, False,
        len(images), encoded=Encoded("toy:here", config.model.encoder_hash, 1, 8, 2),
    )  # fmt: skip
    inline = play(config, simulate(whole, partition, views_of(whole, config.vectors)), tmp_path / "inline")
    assert same_state(newest(deployed.run), inline)
    assert set(inline.weights) == {"classifier.weight", "classifier.bias"}
    run = Run(deployed.run)
    sent = run.metrics[-1]["traffic"]
    assert sent["bytes_up"] == 3 * 4 * (16 * 10 + 10)
    model = run.model()
    assert (model.card.called, model.card.given, model.card.shape) == ("images", (1, 8), (16,))
    assert model(proxyfl.load_dataset("digits").test.images[:3]).shape == (3, 10)
    kept = [list((deployed.site(name).state / "features").glob("*/features.npy")) for name in deployed.sites]
    assert [len(files) for files in kept] == [1, 1, 1]
    assert "its own copy, with the hash" in str(explain(deployed))


def _parts(data) -> tuple[Tensor, Tensor]:
    return data.labelled, data.unlabelled


def open_test_features(deployed: Deployment) -> Split:
    from proxyfl.deploy.site_data import open_test

    form = (deployed.classes, deployed.channels, deployed.image_size)
    raw = open_test(deployed.test_path, *form)
    return Split(proxyfl.Encoder(Pooled())(raw.images), raw.labels)


def test_labels_at_the_server_are_encoded_there(tmp_path, toy):
    asked = {**ASKED, "labels": {"where": "server", "per_class": 4}, "federation": {"rounds": 1}}
    plan = scaffold.Plan(("a", "b"), method="fixmatch-gpl", overrides=asked, insecure=True, sample=True)
    made = scaffold.create(tmp_path / "fed", plan)
    net = WirelessGrid({50 + place: Node(handled_by(side)) for place, side in enumerate(sides(made))})
    server(made, net).run()
    (line,) = Run(made.run).metrics
    assert line["server"]["loss"] > 0
    own = open_server_data(made)
    data = own_images(own, made, made.config)
    assert data.images.shape == (40, 5, 16)
    seen = proxyfl.Encoder(Pooled())(own.images[own.labelled])
    assert torch.equal(data.images[data.labelled][:, 0], seen)
    assert torch.equal(data.labels, own.labels[own.labelled])
    assert len(list((made.state / "features").glob("*/features.npy"))) == 1
    assert "the server has 40 labelled images of its own" in texts(made)


def test_samples_of_the_operator_tell_mean_and_standard_deviation_of_features(tmp_path, toy):
    digits = proxyfl.load_dataset("digits")
    write_npz(tmp_path / "t.npz", digits.test.images[:90], digits.test.labels[:90], digits.classes)
    asked = {name: value for name, value in ASKED.items() if name != "data"}
    plan = scaffold.Plan(("a", "b"), like=str(tmp_path / "t.npz"), overrides=asked, insecure=True)
    features = proxyfl.Encoder(Pooled())(digits.test.images[:90]).double()
    made = scaffold.create(tmp_path / "like", plan)
    torch.testing.assert_close(torch.tensor(made.mean).double(), features.mean(0), rtol=1e-4, atol=1e-4)
    deviation = features.std(0, correction=0)
    expected = torch.where(deviation > 0, deviation, 1.0)
    torch.testing.assert_close(torch.tensor(made.site("a").std).double(), expected, rtol=1e-4, atol=1e-4)
    for name, test in (("bare", ""), ("tests tell nothing", str(tmp_path / "t.npz"))):
        bare = scaffold.create(tmp_path / name, dataclasses.replace(plan, like="", test=test))
        assert (set(bare.mean), set(bare.std)) == ({0.0}, {1.0})


def test_a_site_with_another_encoder_cannot_take_part_and_does_not_say_where_it_lies(deployed, capsys):
    class Other(Pooled):
        def forward(self, images: Tensor) -> Tensor:
            return 2 * super().forward(images)

    named.KINDS["mine"] = lambda place: proxyfl.Encoder(Other())
    try:
        side = side_of(deployed.site("a"), deployed.path / "sample" / "a.npz", "mine:/models/secret")
        net = WirelessGrid({50: Node(handled_by(side))})
        with pytest.raises(Exception, match="need"):
            server(dataclasses.replace(deployed, patience=0.0), net).run()
    finally:
        del named.KINDS["mine"]
    assert "mine:/models/secret is not the one" in capsys.readouterr().err
    told = " ".join(texts(deployed))
    assert "its images cannot be used (DataError)" in told
    assert "secret" not in told


def test_settings_about_an_encoder_must_agree(deployed):
    with pytest.raises(ConfigError, match="mean must be 1 number"):
        dataclasses.replace(deployed, encoded=0).check()
    bare = dataclasses.replace(deployed, encoded=0, mean=(0.5,), std=(0.25,))
    with pytest.raises(ConfigError, match=r"encoded = 0, .*frozen:toy:here"):
        _ = bare.config
    with pytest.raises(ConfigError, match=r"texts, .*frozen encoder"):
        dataclasses.replace(bare, channels=0, image_size=0).check()
