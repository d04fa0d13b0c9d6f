"""Label split and partitions: published fingerprints, and what every scheme promises."""

from __future__ import annotations

import hashlib
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save

from proxyfl.core.errors import ConfigError, DataError, RunError
from proxyfl.data.labels import split_labels
from proxyfl.data.partition import SCHEMES, Partition, _balanced_cuts, _cut_classes
from proxyfl.data.partition import make_partition as deal
from proxyfl.data.ragged import Ragged

CIFAR10 = np.repeat(np.arange(10), 5000)
CIFAR100 = np.repeat(np.arange(100), 500)
SVHN_COUNTS = [4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659]
SVHN = np.repeat(np.arange(10), SVHN_COUNTS)

# data, labelled per class, alpha, hash of the labelled and of the unlabelled counts, mean distance of the
# labelled and unlabelled classes of a client from everyone's and from each other, labelled counts of client 0
FINGERPRINTS = """
cifar10  500 0.1  5ee1c2246aa8e39f d403002859fbc0e5 0.410 0.433 0.473 57,38,3,0,9,0,28,7,57,51
cifar10  500 0.5  a78350fb1e9fe458 213860bb9e3977cc 0.369 0.322 0.425 56,1,14,0,41,33,22,47,36,0
cifar10  500 1.0  5cef77942bea9dcd bbb5f66eab6fd654 0.291 0.296 0.387 39,48,10,18,32,13,39,1,50,0
cifar10  500 10.0 bd0ce40a77f93d32 3497c96e2a719caa 0.132 0.118 0.165 33,26,17,14,17,20,21,32,19,51
cifar100 50  0.1  6574c2cb90a4555c e5072597eee524be 0.438 0.439 0.554 8,2,1,0,0,0,5,0,2,0
cifar100 50  0.5  948dc8efde4682fc b4f2a17b1ce455f0 0.382 0.330 0.460 8,2,3,0,3,2,4,4,2,4
cifar100 50  1.0  c4e3580bd92b9be1 64521e37cd034a49 0.348 0.272 0.423 8,1,1,1,3,0,7,0,2,7
cifar100 50  10.0 be39d08fbf6ab4d5 80faea21060ed0c3 0.273 0.116 0.283 6,1,3,1,1,1,4,3,1,4
"""
fingerprints = pytest.mark.parametrize("row", [line.split() for line in FINGERPRINTS.strip().splitlines()])


def fingerprint(counts: np.ndarray) -> str:
    text = "\n".join(",".join(map(str, row)) for row in counts.tolist())
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def distance(p: np.ndarray, q: np.ndarray) -> float:
    """Mean total variation between the rows of p and q."""
    return float(np.abs(p - q).sum(1).mean() / 2)


def distances(labelled: np.ndarray, unlabelled: np.ndarray) -> tuple[float, float, float]:
    p, q = (counts / counts.sum(1, keepdims=True) for counts in (labelled, unlabelled))
    overall = [counts.sum(0, keepdims=True) / counts.sum() for counts in (labelled, unlabelled)]
    return distance(p, overall[0]), distance(q, overall[1]), distance(p, q)


class TestFingerprints:
    @fingerprints
    def test_paired(self, row):
        name, per_class, alpha, labelled_hash, unlabelled_hash, *apart, first = row
        labels = {"cifar10": CIFAR10, "cifar100": CIFAR100}[name]
        partition = deal(labels, clients=20, per_class=int(per_class), alpha=float(alpha))
        labelled, unlabelled = partition.class_counts(labels, int(labels.max()) + 1)
        assert fingerprint(labelled) == labelled_hash
        assert fingerprint(unlabelled) == unlabelled_hash
        assert [f"{x:.3f}" for x in distances(labelled, unlabelled)] == apart
        assert ",".join(map(str, labelled[0, :10])) == first

    def test_they_hold_for_labels_in_any_order(self):
        shuffled = np.random.default_rng(3).permutation(CIFAR10)
        counts, _ = deal(shuffled, clients=20, per_class=500).class_counts(shuffled, 10)
        assert fingerprint(counts) == "5ee1c2246aa8e39f"

    def test_unlabelled_counts_of_the_first_clients(self):
        _, counts = deal(CIFAR10, clients=20, per_class=500).class_counts(CIFAR10, 10)
        assert counts[0].tolist() == [446, 460, 0, 3, 13, 0, 441, 0, 435, 452]
        assert counts[1].tolist() == [0, 7, 466, 418, 423, 470, 1, 465, 0, 0]

    @pytest.mark.parametrize("alpha", [0.1, 0.5, 1.0])
    def test_uneven_classes(self, alpha):
        partition = deal(SVHN, clients=20, per_class=460, alpha=alpha)
        assert set(partition.labelled.sizes) == {230}
        assert set(partition.unlabelled.sizes) == {3432, 3433}
        labelled, unlabelled = partition.class_counts(SVHN, 10)
        assert labelled.sum(0).tolist() == [460] * 10
        assert unlabelled.sum(0).tolist() == [n - 460 for n in SVHN_COUNTS]

    @pytest.mark.parametrize(("alpha", "expected"), [(0.1, 0.70), (0.5, 0.46), (1.0, 0.35)])
    def test_a_plain_dirichlet_is_less_even(self, alpha, expected):
        draws = [
            deal(CIFAR10, clients=20, per_class=500, scheme="dirichlet", alpha=alpha, partition_seed=seed)
            for seed in range(5)
        ]
        apart = [distances(*(np.maximum(c, 1e-9) for c in p.class_counts(CIFAR10, 10)))[1] for p in draws]
        assert np.mean(apart) == pytest.approx(expected, abs=0.04)


class TestSplit:
    def test_each_class_is_permuted_in_turn_by_one_legacy_generator(self):
        labels = [1, 0, 1, 2, 0, 1, 1, 2]
        generator = np.random.RandomState(7)
        zeros, ones, twos = (generator.permutation(x) for x in ([1, 4], [0, 2, 5, 6], [3, 7]))
        labelled, unlabelled = split_labels(labels, [1, 3, 0], 7)
        assert labelled.index.tolist() == [zeros[0], *ones[:3]]
        assert labelled.label.tolist() == [0, 1, 1, 1]
        assert unlabelled.index.tolist() == [zeros[1], ones[3], *twos]
        assert unlabelled.label.tolist() == [0, 1, 2, 2]
        assert labelled.classes == unlabelled.classes == 3

    def test_a_small_class_gives_all_it_has(self):
        labelled, unlabelled = split_labels([0, 0, 1, 0], 2, 0)
        assert labelled.label.tolist() == [0, 0, 1]
        assert unlabelled.label.tolist() == [0]
        labelled, unlabelled = split_labels([0, 1, 1, 1], [3, 1], 0)
        assert labelled.label.tolist() == [0, 1]
        assert unlabelled.label.tolist() == [1, 1]

    @pytest.mark.parametrize("kind", [list, tuple, np.array, torch.tensor, lambda x: torch.tensor(x).byte()])
    def test_labels_of_any_kind(self, kind):
        labels = [2, 0, 1, 2, 0, 1, 2, 2]
        expected = deal(labels, clients=2, per_class=1).to_tensors()
        found = deal(kind(labels), clients=2, per_class=np.int64(1)).to_tensors()
        assert all(torch.equal(found[name], expected[name]) for name in expected)

    @pytest.mark.parametrize(
        ("labels", "message"),
        [([0.5, 1.0], "whole numbers"), ([-2, 0], "count from 0"), ([[0, 1]], "flat list")],
    )
    def test_labels_that_are_none(self, labels, message):
        with pytest.raises(DataError, match=message):
            deal(labels, clients=2, per_class=1)


class TestEven:
    def test_slices_of_every_class(self):
        labels = np.repeat([0, 1], [7, 2])
        labelled, unlabelled = split_labels(labels, 0, 7)
        partition = deal(labels, clients=3, per_class=0, scheme="iid")
        zeros, ones = unlabelled.index[:7], unlabelled.index[7:]
        # ⌊7/3⌋ = 2 and ⌊14/3⌋ = 4; ⌊2/3⌋ = 0 and ⌊4/3⌋ = 1
        assert partition.unlabelled[0].tolist() == zeros[:2].tolist()
        assert partition.unlabelled[1].tolist() == [*zeros[2:4], *ones[:1]]
        assert partition.unlabelled[2].tolist() == [*zeros[4:], *ones[1:]]
        assert len(labelled) == len(partition.labelled.values) == 0

    @pytest.mark.parametrize("scheme", ["paired", "dirichlet"])
    def test_alpha_zero_means_even(self, scheme):
        even = deal(SVHN, clients=20, per_class=460, scheme="iid").to_tensors()
        zero = deal(SVHN, clients=20, per_class=460, scheme=scheme, alpha=0).to_tensors()
        assert all(torch.equal(even[name], zero[name]) for name in even)

    @given(st.lists(st.integers(0, 60), min_size=1, max_size=5), st.integers(1, 40), st.integers(0, 20))
    @settings(max_examples=60, deadline=None)
    def test_clients_differ_by_at_most_one_image_per_class(self, counts, clients, per_class):
        labels = np.repeat(np.arange(len(counts)), counts)
        partition = deal(labels, clients=clients, per_class=per_class, scheme="iid")
        for table in partition.class_counts(labels, len(counts)):
            assert (table.max(0) - table.min(0)).max(initial=0) <= 1


class TestDirichlet:
    def test_classes_are_cut_at_the_cumulative_shares(self):
        labels = np.repeat([0, 1], [9, 30])
        _, pool = split_labels(labels, 0, 7)
        partition = deal(labels, clients=4, per_class=0, scheme="dirichlet", alpha=0.6, partition_seed=3)
        generator = np.random.RandomState(3)
        generator.dirichlet([0.6] * 4, size=2)  # the labelled list, empty, comes first
        expected = [[], [], [], []]
        for images in (pool.index[:9], pool.index[9:]):
            ends = np.cumsum(generator.dirichlet([0.6] * 4))
            for k, piece in enumerate(np.split(images, (ends[:-1] * len(images)).astype(int))):
                expected[k] += piece.tolist()
        assert [partition.unlabelled[k].tolist() for k in range(4)] == expected


class TestShards:
    def test_two_shards_are_at_most_two_classes_for_labelled_and_unlabelled_alike(self):
        partition = deal(CIFAR10, clients=20, per_class=500, scheme="shards")
        labelled, unlabelled = partition.class_counts(CIFAR10, 10)
        assert ((labelled + unlabelled > 0).sum(1) <= 2).all()
        assert ((labelled > 0) == (unlabelled > 0)).all()
        assert set(partition.sizes) == {2500}

    def test_the_seed_draws_them(self):
        tables = [
            deal(CIFAR10, clients=20, per_class=500, scheme="shards", partition_seed=seed).labelled.values
            for seed in (0, 1)
        ]
        assert not np.array_equal(*tables)


cases = {
    "counts": st.lists(st.integers(0, 40), min_size=1, max_size=6),
    "clients": st.integers(1, 60),
    "per_class": st.integers(0, 30),
    "scheme": st.sampled_from(sorted(SCHEMES)),
    "alpha": st.one_of(st.floats(1e-3, 1e4), st.sampled_from([0.0, 1e-3, 1e-2, 1e4])),
    "seed": st.integers(0, 2**32 - 1),
}


@given(**cases)
@settings(max_examples=150, deadline=None)
def test_every_image_goes_to_exactly_one_client(counts, clients, per_class, scheme, alpha, seed):
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))
    options = {"clients": clients, "per_class": per_class, "scheme": scheme, "alpha": alpha}
    partition = deal(labels, **options, partition_seed=seed)
    assert partition.clients == len(partition.labelled) == len(partition.unlabelled) == clients
    dealt = [partition.labelled[k] for k in range(clients)] + [
        partition.unlabelled[k] for k in range(clients)
    ]
    assert sorted(np.concatenate(dealt).tolist()) == list(range(len(labels)))
    assert partition.sizes.sum() == len(labels)

    labelled, unlabelled = partition.class_counts(labels, len(counts))
    assert labelled.sum(0).tolist() == [min(n, per_class) for n in counts]
    assert (labelled.sum(0) + unlabelled.sum(0)).tolist() == counts
    if scheme == "paired" and alpha > 0:
        for part in (partition.labelled, partition.unlabelled):
            assert part.sizes.max() - part.sizes.min() <= 1

    again = deal(labels, **options, partition_seed=seed).to_tensors()
    assert all(torch.equal(again[name], tensor) for name, tensor in partition.to_tensors().items())


class TestExtremes:
    @pytest.mark.parametrize("scheme", ["paired", "dirichlet"])
    @pytest.mark.parametrize("alpha", [1e-3, 1e-2, 1e4])
    @pytest.mark.parametrize("classes", [1, 2, 10])
    def test_extreme_alpha_ends_without_a_warning(self, scheme, alpha, classes):
        labels = np.repeat(np.arange(classes), 3000 // classes)
        with np.errstate(all="raise", under="ignore"):
            partition = deal(
                labels, clients=21, per_class=300 // classes, scheme=scheme, alpha=alpha, partition_seed=5
            )
        assert partition.sizes.sum() == len(labels)

    def test_a_draw_that_never_balances_takes_the_most_balanced(self, monkeypatch):
        monkeypatch.setattr("proxyfl.data.partition.MAX_REDRAWS", 50)
        draws = iter([[0.9, 0.1]] + [[1.0, 0.0]] * 50)

        class Generator:
            def dirichlet(self, alpha, size):
                return np.array([next(draws)] * size)

        assert _balanced_cuts([20], 0.1, Generator()) == [18]
        assert next(draws, None) is None

    def test_an_underflown_draw_goes_to_one_client_by_a_fair_draw(self):
        class Generator(np.random.RandomState):
            def dirichlet(self, alpha, size):
                return np.full((size, 2), np.nan)

        generator = Generator(0)
        cuts = [_cut_classes([10], 1e-3, generator)[0] for _ in range(400)]
        assert set(cuts) == {0, 10}
        assert 150 < cuts.count(10) < 250
        # The second class goes to whoever is not full yet.
        assert all(sum(_cut_classes([10, 10], 1e-3, generator)) == 10 for _ in range(50))

    @pytest.mark.parametrize("clients", [1, 2, 3])
    def test_few_clients_at_a_tiny_alpha_hold_whole_classes(self, clients):
        labels = np.repeat(np.arange(60), 10)
        with np.errstate(all="raise", under="ignore"):
            partition = deal(labels, clients=clients, per_class=0, scheme="dirichlet", alpha=1e-3)
        _, counts = partition.class_counts(labels, 60)
        assert (counts.max(0) == 10).mean() > 0.9
        assert (counts.sum(1) > 0).all()

    def test_labelled_and_unlabelled_are_drawn_apart(self):
        labels = np.repeat(np.arange(10), 200)
        partition = deal(labels, clients=10, per_class=100, scheme="dirichlet", alpha=0.3)
        labelled, unlabelled = partition.class_counts(labels, 10)
        assert not np.array_equal(labelled, unlabelled)

    @pytest.mark.parametrize("scheme", ["iid", "dirichlet", "shards"])
    def test_a_hundred_thousand_clients(self, scheme):
        labels = np.random.default_rng(0).integers(0, 10, 100_000)
        start = time.perf_counter()
        partition = deal(labels, clients=100_000, per_class=1000, scheme=scheme, alpha=0.1)
        assert time.perf_counter() - start < 2
        assert partition.clients == 100_000
        assert partition.sizes.sum() == 100_000


class TestValidation:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"alpha": -0.1}, "alpha = -0.1"),
            ({"alpha": float("nan")}, "alpha = nan"),
            ({"alpha": float("inf")}, "alpha = inf"),
            ({"clients": 0}, "clients = 0"),
            ({"per_class": -1}, "per_class = -1"),
            ({"per_class": [1]}, "1 counts for 2 classes"),
            ({"scheme": "dirichlett"}, "did you mean 'dirichlet'"),
            ({"split_seed": -1}, "split_seed = -1"),
            ({"partition_seed": 2**32}, "partition_seed"),
        ],
    )
    def test_settings_out_of_range(self, options, message):
        with pytest.raises(ConfigError, match=message):
            deal([0, 1, 0, 1], **({"clients": 2, "per_class": 1} | options))


class TestRagged:
    def test_lists_may_overlap(self):
        lists = Ragged(np.arange(10, 16), np.array([0, 2, 6]), np.array([4, 5, 6]))
        assert [lists[k].tolist() for k in range(len(lists))] == [[10, 11, 12, 13], [12, 13, 14], []]
        assert lists.sizes.tolist() == [4, 3, 0]
        owner, value = lists.flat()
        assert owner.tolist() == [0, 0, 0, 0, 1, 1, 1]
        assert value.tolist() == [10, 11, 12, 13, 12, 13, 14]
        assert np.shares_memory(lists[0], lists.values)

    def test_no_such_list(self):
        with pytest.raises(IndexError):
            Ragged.from_sizes(np.arange(3), np.array([1, 2]))[2]

    def test_class_counts_count_shared_images_for_every_holder(self):
        shared = Ragged(np.array([0, 1, 2]), np.array([0, 1]), np.array([2, 3]))
        nothing = Ragged.from_sizes(np.zeros(0, dtype=np.int64), np.zeros(2, dtype=np.int64))
        labelled, unlabelled = Partition(shared, nothing).class_counts([0, 1, 1], 2)
        assert labelled.tolist() == [[1, 1], [0, 2]]
        assert unlabelled.tolist() == [[0, 0], [0, 0]]
        with pytest.raises(ConfigError, match="only 1 classes"):
            Partition(shared, nothing).class_counts([0, 1, 1], 1)


class TestTensors:
    partition = deal(SVHN[::50], clients=7, per_class=5)

    def test_a_safetensors_file_brings_it_back(self):
        back = Partition.from_tensors(load(save(self.partition.to_tensors())))
        for k in range(7):
            assert np.array_equal(back.labelled[k], self.partition.labelled[k])
            assert np.array_equal(back.unlabelled[k], self.partition.unlabelled[k])

    def test_they_are_copies(self):
        tensors = self.partition.to_tensors()
        tensors["labelled.values"].zero_()
        assert self.partition.labelled.values.any()

    @pytest.mark.parametrize(
        ("name", "change", "message"),
        [
            ("labelled.values", lambda t: t - 10_000, "negative"),
            ("labelled.stops", lambda t: t + 1, "outside"),
            ("labelled.starts", lambda t: t - 1, "outside"),
            ("unlabelled.starts", lambda t: t.flip(0), "ends before it starts"),
            ("unlabelled.starts", lambda t: t[1:], "do not match"),
            ("unlabelled.values", lambda t: t.float(), "int64"),
            ("unlabelled.values", lambda t: t[None], "flat"),
        ],
    )
    def test_a_damaged_one_is_refused(self, name, change, message):
        tensors = self.partition.to_tensors()
        tensors[name] = change(tensors[name])
        with pytest.raises(RunError, match=message):
            Partition.from_tensors(tensors)

    def test_a_missing_part_is_named(self):
        tensors = self.partition.to_tensors()
        del tensors["labelled.stops"]
        with pytest.raises(RunError, match=r"labelled\.stops is missing"):
            Partition.from_tensors(tensors)

    def test_the_two_halves_must_be_of_as_many_clients(self):
        tensors = self.partition.to_tensors()
        for field in ("starts", "stops"):
            tensors[f"labelled.{field}"] = tensors[f"labelled.{field}"][:-1]
        with pytest.raises(RunError, match="6 labelled lists do not match 7"):
            Partition.from_tensors(tensors)
