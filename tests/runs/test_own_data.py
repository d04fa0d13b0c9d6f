"""People's own data as a run: who has labels, who holds what, what is chosen, and what is said beforehand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from proxyfl.core.errors import ConfigError
from proxyfl.data.dataset import Dataset
from proxyfl.data.labels import stratified
from proxyfl.data.look import Look, look
from proxyfl.data.partition import make_partition
from proxyfl.runs.experiment import Experiment, load_config
from proxyfl.runs.own import choose
from proxyfl.runs.settings import identity, resolve
from proxyfl.runs.simulation import doubts, prepare, remarks


@pytest.fixture
def scans(tmp_path):
    """Fifty images of one class, ten of the other, forty without a label; three clients of unlike size."""
    labels = np.repeat([0, 1, -1], (50, 10, 40))
    images = np.random.default_rng(0).integers(0, 256, (100, 12, 12), dtype=np.uint8)
    clients = np.array(["north", "south", "west"])[np.minimum(np.arange(100) % 5, 2)]
    np.savez(tmp_path / "scans.npz", images=images, labels=labels, clients=clients)
    return f"npz:{tmp_path / 'scans.npz'}"


@pytest.mark.parametrize(
    ("ratio", "counts"), [(0.1, [5, 1, 1, 0]), (0.5, [25, 5, 1, 0]), (1.0, [50, 10, 1, 0])]
)
def test_every_class_keeps_its_share_of_labels_and_at_least_one(ratio, counts):
    assert stratified([0] * 50 + [1] * 10 + [2] + [-1] * 30, ratio, 4) == counts


def test_own_data_is_stratified_unless_another_rule_is_asked_for(scans):
    assert resolve("digits", {"data": {"name": scans}}).labels.rule == "stratified"
    assert resolve("digits", {"data": {"name": scans}, "labels": {"rule": "share"}}).labels.rule == "share"
    assert resolve("digits").labels.rule == "release"
    simulation = prepare(resolve("digits", {"data": {"name": scans}, "labels": {"ratio": 0.5}}))
    labels = simulation.dataset.train.labels[torch.from_numpy(simulation.partition.labelled.values)]
    assert torch.bincount(labels).tolist() == [20, 4]
    assert len(simulation.partition.unlabelled.values) == 24 + 40
    assert simulation.holdings.truth is None


def test_the_protocol_is_chosen_from_the_data_and_can_be_overridden(scans):
    config = load_config(scans, {})
    assert (config.preset, config.data.name, config.data.image_size) == ("own", scans, 12)
    assert (config.partition.scheme, config.partition.clients, config.federation.per_round) == (
        "natural",
        3,
        3,
    )
    assert (config.labels.ratio, config.labels.rule) == (1.0, "stratified")
    other = load_config(scans, {"partition": {"clients": 4}, "train": {"batch": 5}}, "fedavg")
    assert (other.partition.scheme, other.partition.clients, other.federation.per_round) == ("paired", 4, 4)
    assert (other.train.batch, other.method.name) == (5, "fedavg")


def test_the_rule():
    small = Look({"a": 300, "b": 60}, 0, 90, 0, (), (500, 30, 40))
    assert choose("folder:x", small) == {
        "data": {"name": "folder:x", "image_size": 32},
        "labels": {"ratio": 0.1, "rule": "stratified"},
        "partition": {"clients": 3},
        "model": {"width": 1},
        "train": {"batch": 16, "epochs": 5},
        "federation": {"per_round": 3, "rounds": 30},
        "keep": {"metrics": "all"},
    }
    large = choose("folder:x", Look({"a": 30_000}, 10_000, 90, 0, (), (500,)))
    assert (large["partition"], large["model"], large["train"]) == (
        {"clients": 20},
        {"width": 4},
        {"batch": 64, "epochs": 2},
    )
    assert (large["labels"]["ratio"], large["data"]["image_size"]) == (1.0, 64)


def test_a_look_counts_without_reading_images(scans):
    found = look(scans)
    assert found.counts == {"0": 40, "1": 8}
    assert (found.unlabelled, found.test, found.clients) == (40, 12, ("north", "south", "west"))
    with pytest.raises(ConfigError, match="is not your own data"):
        look("digits")


def test_a_natural_federation_deals_images_as_they_are(scans):
    simulation = prepare(load_config(scans, {}))
    holders = simulation.dataset.holders
    assert holders is not None
    for client in range(3):
        for part in (simulation.partition.labelled, simulation.partition.unlabelled):
            assert (holders[torch.from_numpy(part[client])] == client).all()
    assert int(simulation.partition.sizes.sum()) == len(simulation.dataset.train)
    with pytest.raises(ConfigError, match=r"3 clients, .*partition\.clients = 2"):
        make_partition(simulation.dataset, clients=2, per_class=1, scheme="natural")
    with pytest.raises(ConfigError, match="names its clients"):
        make_partition([0, 1], clients=2, per_class=1, scheme="natural")


def test_a_run_notes_the_names_of_its_clients_and_says_who_has_labels(scans, tmp_path, capsys):
    quick = {"rounds": 1, "train__epochs": 1, "federation__per_round": 1}
    run = Experiment("fedavg", scans, **quick).run(tmp_path / "run", workers=0)
    assert run.environment["clients"] == ["north", "south", "west"]
    assert "note: labelled images: 0 40, 1 8; 40 images are unlabelled" in capsys.readouterr().err


def test_quantity_skews_sizes_and_not_classes():
    labels = [0, 1] * 1000
    split = make_partition(labels, clients=5, per_class=100, scheme="quantity", alpha=0.5)
    sizes = split.sizes
    assert sizes.max() > 2 * sizes.min()
    assert sorted(np.concatenate([split.labelled.values, split.unlabelled.values]).tolist()) == list(
        range(2000)
    )
    counts = split.class_counts(labels, 2)[1]
    assert (abs(counts[:, 0] - counts[:, 1]) <= 0.2 * counts.sum(1) + 5).all()
    even = make_partition(labels, clients=5, per_class=100, scheme="quantity", alpha=0)
    assert even.sizes.tolist() == [400] * 5
    unknown = make_partition([*labels, *[-1] * 2000], clients=5, per_class=1000, scheme="quantity", alpha=0.5)
    assert np.allclose(unknown.unlabelled.sizes, unknown.labelled.sizes, atol=2), "as the other images"


@pytest.mark.parametrize("scheme", ["paired", "dirichlet"])
def test_labelled_and_unlabelled_images_may_differ_in_concentration(scheme):
    labels = [0, 1, 2, 3] * 500
    shared = {"clients": 4, "per_class": 100, "scheme": scheme}
    mixed = make_partition(labels, alpha=0.1, alpha_unlabelled=1e6, **shared)
    same = make_partition(labels, alpha=0.1, **shared)
    assert np.array_equal(mixed.labelled.values, same.labelled.values)
    labelled, unlabelled = mixed.class_counts(labels, 4)
    assert np.ptp(unlabelled) < np.ptp(same.class_counts(labels, 4)[1])
    assert np.ptp(labelled) > 0


def test_new_settings_change_no_identity():
    config = resolve("digits", {"compute": {"dtype": "bf16"}})  # auto depends on the machine
    assert identity(config)[:6] == "eaf0ec"


def test_runs_that_cannot_mean_anything_are_warned_about():
    images = torch.zeros(3, 1, 8, 8, dtype=torch.uint8)
    one = Dataset.of(images, [0, 0, 0], test=(images, [0, 0, 0]))
    told = doubts(one, make_partition(one, clients=5, per_class=1, scheme="iid"))
    assert told[0] == "there is only one class, '0': every accuracy is 100 %"
    assert told[1] == "3 training images are fewer than 5 clients"
    assert told[2] == "3 clients have no images: 0, 1, 3"
    two = Dataset.of(images, [0, 1, 0], test=(images, [0, 1, 0]))
    assert (
        "too few to learn from" in doubts(two, make_partition(two, clients=1, per_class=1, scheme="iid"))[0]
    )


def test_a_class_that_nobody_labelled_is_named():
    images = torch.zeros(12, 1, 8, 8, dtype=torch.uint8)
    labels = torch.arange(12) % 2 + 1
    gap = Dataset.of(images, labels, test=(images, labels))
    told = doubts(gap, make_partition(gap, clients=1, per_class=1, scheme="iid"))
    (doubt,) = told
    assert "class '0'" in doubt


def test_presets_say_nothing_new():
    config = resolve("digits")
    assert remarks(config, prepare(config)) == []
