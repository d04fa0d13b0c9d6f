"""The local schedule: how many steps, which images in which batch, and what small clients get."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from proxyfl.core.config import TrainSettings
from proxyfl.data import stream as streams
from proxyfl.data.stream import VIEWS, Batch, ClientData, Stream, ViewSettings

CPU = torch.device("cpu")
PLAIN = ViewSettings(False, (0.0,), (1.0,))
ALL = frozenset(VIEWS)


def coded(labelled: int, unlabelled: int) -> ClientData:
    """Image i is flat grey i, so that any view but a strong one tells which image it is."""
    count = labelled + unlabelled
    index = torch.arange(count)
    images = (index % 251).to(torch.uint8)[:, None, None, None].expand(count, 1, 8, 8)
    return ClientData(images, index[:labelled], index[:labelled] % 10, index[labelled:])


def stream(data: ClientData, wants: frozenset[str] = ALL, seed: int = 0, **options: Any) -> Stream:
    walk = options.pop("walk_labelled", False)
    train = TrainSettings(**options)
    return Stream(data, train, PLAIN, wants, torch.Generator().manual_seed(seed), CPU, walk_labelled=walk)


def joined(parts: Iterable[list[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(parts))


def shown(view: Tensor) -> list[int]:
    """The grey levels of flat images."""
    return (view[:, 0, 4, 4] * 255).round().int().tolist()


@pytest.mark.parametrize(
    ("labelled", "unlabelled", "options", "steps"),
    [
        (250, 2250, {}, 19),
        (230, 3432, {}, 28),
        (450, 4050, {}, 35),
        (250, 2250, {"epoch": "pass"}, 9),
        (250, 2250, {"pool": "unlabelled"}, 17),
        (250, 2250, {"pool": "unlabelled", "epoch": "pass"}, 8),
        (250, 2250, {"mu": 7}, 19),
        (250, 2250, {"mu": 7, "epoch": "pass"}, 2),
        (64, 64, {}, 1),
        (3, 60, {}, 1),
        (0, 300, {}, 2),
        (300, 0, {}, 2),
        (300, 0, {"pool": "unlabelled"}, 2),
        (300, 0, {"pool": "unlabelled", "epoch": "pass"}, 1),
        (2500, 0, {"walk_labelled": True}, 19),
        (2500, 0, {"walk_labelled": True, "epoch": "pass"}, 19),
        (100, 0, {"walk_labelled": True}, 1),
    ],
)
def test_steps_of_an_epoch(labelled: int, unlabelled: int, options: dict[str, Any], steps: int) -> None:
    made = stream(coded(labelled, unlabelled), frozenset(), **options)
    assert made.steps == steps
    assert len(list(made.epoch())) == steps


def test_labelled_batches_are_full_and_drawn_with_replacement() -> None:
    data = coded(5, 400)
    drawn: list[int] = []
    for batch in stream(data, frozenset({"x"}), batch=32).epoch():
        assert batch.x.shape == (32, 1, 8, 8)
        assert batch.y.tolist() == [i % 10 for i in shown(batch.x)]
        drawn += shown(batch.x)
    assert set(drawn) == {0, 1, 2, 3, 4}
    assert len(drawn) == 12 * 32
    assert max(drawn.count(i) for i in range(5)) < 120  # expected 77 of 384 each


def test_the_pool_is_walked_without_repeats_and_without_its_last_incomplete_batch() -> None:
    made = stream(coded(10, 215), batch=25, mu=2)
    positions = [batch.u_index.tolist() for batch in made.epoch()]
    assert [len(p) for p in positions] == [50] * 9
    passes = [joined(positions[0:4]), joined(positions[4:8]), positions[8]]
    assert len(set(passes[0])) == len(set(passes[1])) == 200  # 25 of 225 left out in each pass
    assert len(set(passes[2])) == 50
    assert passes[0] != passes[1]
    assert set(passes[0]) <= set(range(225))


def test_the_walk_restarts_with_every_epoch() -> None:
    made = stream(coded(0, 100), batch=40, mu=1)
    first, second = ([batch.u_index.tolist() for batch in made.epoch()] for _ in range(2))
    for epoch in (first, second):
        assert [len(p) for p in epoch] == [40, 40]
        assert len(set(joined(epoch))) == 80  # the 20 left over are not carried into the next epoch
    assert first != second


def test_positions_are_counted_inside_the_pool_unlabelled_first() -> None:
    data = coded(4, 6)
    made = stream(data, frozenset({"u_weak"}), batch=5, mu=2)
    assert made.pool.tolist() == [4, 5, 6, 7, 8, 9, 0, 1, 2, 3]
    for batch in made.epoch():
        assert shown(batch.u_weak) == made.pool[batch.u_index].tolist()
    assert stream(data, pool="unlabelled").pool.tolist() == [4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize(
    ("labelled", "unlabelled", "pool", "x", "u"),
    [
        (3, 7, "all", 16, 10),
        (3, 7, "unlabelled", 16, 7),
        (0, 7, "all", 0, 7),
        (3, 0, "all", 16, 3),
        (3, 0, "unlabelled", 16, 0),
        (1, 0, "all", 16, 1),
        (0, 1, "unlabelled", 0, 1),
    ],
)
def test_batches_shrink_to_what_a_small_client_has(
    labelled: int, unlabelled: int, pool: str, x: int, u: int
) -> None:
    batches = list(stream(coded(labelled, unlabelled), pool=pool, batch=16, mu=2).epoch())
    assert len(batches) == 1
    batch = batches[0]
    assert (len(batch.x), len(batch.y), len(batch.x_strong)) == (x, x, x)
    assert (len(batch.u_weak), len(batch.u_strong), len(batch.u_index)) == (u, u, u)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 40), st.integers(0, 40), st.integers(1, 20), st.integers(1, 4),
    st.sampled_from(["all", "unlabelled"]), st.sampled_from(["release", "pass"]),
)  # fmt: skip
def test_any_client_that_holds_images_gets_sensible_batches(
    labelled: int, unlabelled: int, batch: int, mu: int, pool: str, epoch: str
) -> None:
    made = stream(
        coded(labelled, unlabelled), frozenset({"x", "u_weak"}), batch=batch, mu=mu, pool=pool, epoch=epoch
    )
    size = unlabelled + (labelled if pool == "all" else 0)
    batches = list(made.epoch())
    assert len(batches) == max(1, (size or labelled) // (batch * mu if epoch == "pass" else batch))
    for one in batches:
        assert len(one.x) == (batch if labelled else 0)
        assert len(one.u_weak) == min(batch * mu, size)
        assert len(set(one.u_index.tolist())) == len(one.u_index)


@pytest.mark.parametrize(
    "wants", [set(), {"x"}, {"u_weak"}, {"u_strong"}, {"x_strong", "u_weak"}, set(VIEWS)]
)
def test_views_that_nobody_wants_are_empty(wants: set[str]) -> None:
    batch = next(iter(stream(coded(6, 30), frozenset(wants), batch=4, mu=3).epoch()))
    rows = {"x": 4, "x_strong": 4, "u_weak": 12, "u_strong": 12}
    assert {name: len(getattr(batch, name)) for name in VIEWS} == {
        name: rows[name] if name in wants else 0 for name in VIEWS
    }
    assert (len(batch.y), len(batch.u_index)) == (4, 12)


def test_views_are_normalised_on_their_way() -> None:
    data = coded(6, 30)
    views = ViewSettings(False, (0.5,), (0.25,))
    made = Stream(data, TrainSettings(batch=4), views, frozenset({"u_weak"}), torch.Generator(), CPU)
    batch = next(iter(made.epoch()))
    expected = (made.pool[batch.u_index].float() / 255 - 0.5) / 0.25
    assert torch.allclose(batch.u_weak[:, 0, 0, 0], expected, atol=1e-6)
    assert batch.u_weak.dtype == torch.float32


def test_weak_and_strong_views_show_the_same_images() -> None:
    images = torch.zeros(40, 1, 8, 8, dtype=torch.uint8)
    images[:, :, 2:6, 2:6] = torch.arange(10, 250, 6, dtype=torch.uint8)[:, None, None, None]
    data = ClientData(images, torch.arange(0), torch.arange(0), torch.arange(40))
    batch = next(iter(stream(data, batch=20, mu=2).epoch()))
    assert not torch.equal(batch.u_weak, batch.u_strong)
    source = images[batch.u_index].float() / 255
    assert torch.allclose(batch.u_weak.amax((1, 2, 3)), source.amax((1, 2, 3)), atol=1e-6)


def test_restrict_keeps_the_steps_and_draws_from_the_chosen_only() -> None:
    made = stream(coded(10, 190), batch=20, mu=2)
    made.restrict(torch.tensor([3, 50, 51, 120]))
    batches = list(made.epoch())
    assert len(batches) == 10
    assert all(sorted(batch.u_index.tolist()) == [3, 50, 51, 120] for batch in batches)
    made.restrict(torch.arange(100))
    assert all(len(batch.u_index) == 40 and int(batch.u_index.max()) < 100 for batch in made.epoch())
    made.restrict(torch.arange(0))
    empty = list(made.epoch())
    assert len(empty) == 10
    assert all(len(batch.u_weak) == 0 and len(batch.x) == 20 for batch in empty)


def test_walk_pool_shows_every_image_once_in_order() -> None:
    made = stream(coded(5, 45), batch=8)
    seen = list(made.walk_pool(16))
    assert [len(positions) for positions, _ in seen] == [16, 16, 16, 2]
    assert torch.cat([positions for positions, _ in seen]).tolist() == list(range(50))
    assert shown(torch.cat([views for _, views in seen])) == made.pool.tolist()
    made.restrict(torch.tensor([1]))
    assert sum(len(positions) for positions, _ in made.walk_pool(16)) == 50


def test_walked_labelled_images_come_once_an_epoch() -> None:
    made = stream(coded(50, 0), frozenset({"x"}), batch=8, walk_labelled=True)
    batches = list(made.epoch())
    assert [len(batch.x) for batch in batches] == [8] * 6
    drawn = joined(shown(batch.x) for batch in batches)
    assert len(set(drawn)) == 48
    assert joined(batch.y.tolist() for batch in batches) == [i % 10 for i in drawn]
    assert [len(batch.x) for batch in stream(coded(5, 0), batch=8, walk_labelled=True).epoch()] == [5]


def flat(batch: Batch) -> list[Tensor]:
    return [getattr(batch, field.name) for field in dataclasses.fields(batch)]


def test_the_same_generator_gives_the_same_batches() -> None:
    runs = [
        [flat(b) for _ in range(2) for b in stream(coded(9, 60), batch=8, seed=s).epoch()] for s in (1, 1, 2)
    ]
    same = [
        torch.equal(a, b) for x, y in zip(runs[0], runs[1], strict=True) for a, b in zip(x, y, strict=True)
    ]
    assert all(same)
    assert any(not torch.equal(x[5], y[5]) for x, y in zip(runs[0], runs[2], strict=True))


def test_nothing_global_is_drawn_from() -> None:
    before = torch.random.get_rng_state()
    for _ in stream(coded(9, 60), batch=8).epoch():
        pass
    assert torch.equal(torch.random.get_rng_state(), before)


def test_true_labels_of_unlabelled_images_cannot_be_reached() -> None:
    """Every tensor that can be reached from a client's data and stream; none has a label of those."""
    truth = torch.arange(1000, 1040)
    data = dataclasses.replace(coded(10, 30), labels=truth[:10])
    found: list[Tensor] = []
    seen: set[int] = set()

    def visit(thing: object) -> None:
        if id(thing) in seen:
            return
        seen.add(id(thing))
        if isinstance(thing, Tensor):
            found.append(thing)
        elif isinstance(thing, list | tuple | set | frozenset):
            for part in thing:
                visit(part)
        elif isinstance(thing, dict):
            for part in thing.values():
                visit(part)
        elif hasattr(thing, "__dict__"):
            visit(vars(thing))

    made = stream(data, batch=8)
    visit(made)
    for batch in made.epoch():
        visit(batch)
    values = torch.cat([tensor.flatten().double() for tensor in found])
    assert bool(torch.isin(truth[:10].double(), values).all())
    assert not bool(torch.isin(values, truth[10:].double()).any())


def test_the_size_of_a_client() -> None:
    assert len(coded(4, 6)) == 10


@pytest.mark.parametrize(("at_once", "calls"), [(0, 7), (3 * (16 + 32) * 64, 3), (1 << 30, 1)])
def test_views_of_several_steps_are_computed_together(
    monkeypatch: pytest.MonkeyPatch, at_once: int, calls: int
) -> None:
    monkeypatch.setattr(streams, "AT_ONCE", at_once)
    found = stream(coded(32, 80), batch=16, mu=2)
    seen, view = list[Any](), found._view

    def counted(kind: Any, index: Tensor) -> Tensor:
        seen.append(kind)
        return view(kind, index)

    monkeypatch.setattr(found, "_view", counted)
    batches = list(found.epoch())
    assert len(batches) == 7
    assert [seen.count(kind) for kind in (streams.weak, streams.strong)] == [2 * calls, 2 * calls]
    for batch in batches:
        assert [len(each) for each in (batch.x, batch.x_strong, batch.u_weak, batch.u_strong)] == [
            16,
            16,
            32,
            32,
        ]
        assert [level % 10 for level in shown(batch.x)] == batch.y.tolist()
        assert shown(batch.u_weak) == found.pool[batch.u_index].tolist()


def test_steps_are_drawn_one_by_one_where_they_are_large_or_private() -> None:
    for size, batch, ahead in ((32, 128, 1), (32, 32, 1), (16, 32, 7), (8, 16, 56)):
        images = dataclasses.replace(coded(4, 9), images=torch.zeros(13, 3, size, size, dtype=torch.uint8))
        assert stream(images, batch=batch, mu=2).ahead == ahead
    private = stream(coded(4, 9), batch=2)
    private.sampler = lambda count, batch: torch.arange(count)[:batch]
    assert private.ahead == 1
