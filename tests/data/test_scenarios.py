"""Who has labels in each scenario: nobody holds one that they should not, and every image is dealt once."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from safetensors.torch import load, save

import proxyfl
from proxyfl.core.errors import ConfigError, RunError
from proxyfl.data.holdings import Holdings
from proxyfl.data.partition import SCHEMES, Partition
from proxyfl.data.validation import hold_out
from proxyfl.runs.simulation import simulate
from proxyfl.testing.toy import toy_dataset

DATA = toy_dataset(400, classes=4)
LABELS = DATA.train.labels.numpy()


def split(where: str, scheme: str = "iid", **more: object) -> Partition:
    return proxyfl.partition(DATA, clients=8, per_class=10, scheme=scheme, alpha=0.5, where=where, **more)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("where", ["server", "partial"])
def test_every_image_is_dealt_once(where: str, scheme: str) -> None:
    dealt = split(where, scheme, labelled_clients=3)
    everything = np.concatenate([dealt.all_labelled, dealt.unlabelled.values])
    assert sorted(everything.tolist()) == list(range(400))
    assert dealt.where == where


def test_the_server_has_all_labels_and_no_client_any() -> None:
    dealt = split("server", "dirichlet")
    assert np.bincount(LABELS[dealt.server]).tolist() == [10, 10, 10, 10]
    assert dealt.labelled.sizes.tolist() == [0] * 8
    usual = split("clients", "dirichlet")
    assert sorted(dealt.server.tolist()) == sorted(usual.labelled.values.tolist())
    holdings = Holdings(DATA.train.images, DATA.train.labels, dealt)
    for client in range(8):
        mine = holdings.client(client)
        assert (len(mine.labels), mine.truth) == (0, None)
        assert not set(mine.unlabelled.tolist()) & set(dealt.server.tolist())
    own = holdings.server()
    assert own is not None
    assert own.labels.tolist() == LABELS[dealt.server].tolist()
    assert (len(own.unlabelled), own.truth) == (0, None)
    assert Holdings(DATA.train.images, DATA.train.labels, usual).server() is None


def test_some_clients_know_all_their_labels_and_the_others_none() -> None:
    dealt = split("partial", "dirichlet", labelled_clients=3)
    labelled, unlabelled = dealt.labelled.sizes, dealt.unlabelled.sizes
    assert int((labelled > 0).sum()) == 3
    assert not ((labelled > 0) & (unlabelled > 0)).any()
    again = split("partial", "dirichlet", labelled_clients=3, split_seed=8)
    assert (again.labelled.sizes > 0).tolist() != (labelled > 0).tolist()
    assert (again.sizes == dealt.sizes).all()  # the seed of labels does not deal images
    assert len(dealt.server) == 0


def test_images_that_nobody_knows_stay_unlabelled() -> None:
    labels = np.where(np.arange(400) % 5 == 0, -1, LABELS)
    for where in ("server", "partial"):
        dealt = proxyfl.partition(labels, clients=8, per_class=10, scheme="iid", where=where)
        assert (labels[dealt.all_labelled] >= 0).all()
        assert sorted([*dealt.all_labelled, *dealt.unlabelled.values]) == list(range(400))


@pytest.mark.parametrize("where", ["clients", "server", "partial"])
def test_it_comes_back_from_a_file(where: str) -> None:
    dealt = split(where)
    again = Partition.from_tensors(load(save(dealt.to_tensors())))
    assert again.where == where
    assert again.server.tolist() == dealt.server.tolist()
    assert again.labelled.values.tolist() == dealt.labelled.values.tolist()
    assert ("where" in dealt.to_tensors()) == (where != "clients")


def test_the_server_keeps_a_share_of_every_class_back() -> None:
    before, after = split("server"), hold_out(split("server"), DATA, 0.2)
    assert np.bincount(LABELS[after.server_validation]).tolist() == [2, 2, 2, 2]
    assert sorted([*after.server, *after.server_validation]) == sorted(before.server.tolist())
    stay = [image for image in before.server.tolist() if image in set(after.server.tolist())]
    assert after.server.tolist() == stay, "the order of the others is as it was"
    again = Partition.from_tensors(load(save(after.to_tensors())))
    assert again.server_validation.tolist() == after.server_validation.tolist()
    assert "server_validation" not in before.to_tensors()
    kept = simulate(DATA, after).validation
    assert kept is not None
    assert kept.labels.tolist() == LABELS[after.server_validation].tolist()
    with pytest.raises(ConfigError, match="two labelled images"):
        hold_out(proxyfl.partition(DATA, clients=8, per_class=1, scheme="iid", where="server"), DATA, 0.1)
    with pytest.raises(ConfigError, match="labels are at the server"):
        dataclasses.replace(split("partial"), server_validation=np.arange(2))


def test_what_cannot_be_meant_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'sever'; .*'server'"):
        split("sever")
    for count in (0, 8):
        with pytest.raises(ConfigError, match=rf"labels.clients = {count} .*1 to 7"):
            split("partial", labelled_clients=count)
    with pytest.raises(ConfigError, match="for the server"):
        proxyfl.partition(DATA, clients=8, per_class=0, scheme="iid", where="server")
    damaged = split("server").to_tensors()
    with pytest.raises(RunError, match="all labelled images"):
        Partition.from_tensors(damaged | {"where": damaged["where"] * 0})
    with pytest.raises(RunError, match="who has labels"):
        Partition.from_tensors(damaged | {"where": damaged["where"] + 7})
