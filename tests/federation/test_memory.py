"""Memory follows neither the participants of a round, nor the rounds, nor the registered clients."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from proxyfl.core.state import Failure, Task, Tensors, Update
from proxyfl.federation.client_store import ClientStore
from proxyfl.federation.loop import Engine, RoundReport
from toybox import Told, assemble, little_config, make_simulation, play, run_rounds

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import memory


class Echo:
    """Answers every task with weights of its own at once, and counts how many answers are alive."""

    def __init__(self, inner: Engine, extras: Tensors) -> None:
        self.extras, self.alive, self.most = extras, 0, 0

    def run(self, tasks: Iterable[Task]) -> Iterator[Update | Failure]:
        for task in tasks:
            weights = {name: value.clone() for name, value in task.weights.items()}
            largest = max(weights.values(), key=Tensor.numel)
            weakref.finalize(largest, self._gone)
            self.alive += 1
            self.most = max(self.most, self.alive)
            extras = {name: value.clone() for name, value in self.extras.items()}
            answer = Update(task.round, task.client, 32, weights, extras, {"steps": 1.0})
            del weights, largest, extras
            yield answer
            del answer

    def close(self) -> None:
        """Nothing to end."""

    def _gone(self) -> None:
        self.alive -= 1


@pytest.mark.parametrize("method", ["fedavg", "proxyfl", "feddb"])
def test_no_more_updates_are_held_for_sixty_clients_than_for_five(tmp_path: Path, method: str) -> None:
    """FedDB needs all updates before their mean: they wait on disk."""
    most = {}
    for clients in (5, 60):
        simulation = make_simulation((6,) * clients, (26,) * clients)
        config = little_config(method, rounds=1, clients=clients, per_round=clients)
        federation, trainer = assemble(tmp_path / str(clients), config, simulation, workers=0)
        state = federation.start(trainer.initial_weights())
        form = federation.method.extras_form_all(federation.context(state))
        extras = {name: torch.full(shape, 1 / shape[0]) for name, shape in form.items()}
        federation.engine = Echo(federation.engine, extras)
        run_rounds(federation, state)
        most[clients] = federation.engine.most
    assert most[60] == most[5] <= 2


class Census:
    """Counts the tensors that are alive after each round, and the bytes they lie in."""

    def __init__(self) -> None:
        self.found: list[tuple[int, int]] = []

    def round_started(self, round: int, clients: list[int]) -> None:
        pass

    def answered(self, answer: Update | Failure) -> None:
        assert isinstance(answer, Update)

    def round_finished(self, report: RoundReport) -> None:
        # Of these two kinds: an export may have left tensors without memory of its own behind.
        tensors = [thing for thing in gc.get_objects() if type(thing) in (Tensor, Parameter)]
        storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in tensors}
        self.found.append((len(tensors), sum(storage.nbytes() for storage in storages.values())))


@pytest.fixture
def no_collector() -> Iterator[None]:
    """What is let go must go at once: cycles are not looked for."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("method", ["proxyfl", pytest.param("fedloke", marks=pytest.mark.slow)])
def test_a_round_leaves_no_tensor_behind(tmp_path: Path, method: str) -> None:
    census = Census()
    # Every client in every round: 16 bytes are kept for each that took part, and none is new after the first.
    config = little_config(method, rounds=5, per_round=4, keep__snapshot_every=0)
    play(config, make_simulation(), tmp_path, observers=[census])
    assert census.found[2:] == [census.found[2]] * 3


class CountedStore(ClientStore):
    """A store that notes who is loaded and saved."""

    def __init__(self, folder: Path, versions: int) -> None:
        super().__init__(folder, versions)
        self.loaded: list[tuple[int, int]] = []
        self.saved: list[tuple[int, int]] = []

    def load(self, client: int, round: int) -> Tensors:
        self.loaded.append((client, round))
        return super().load(client, round)

    def save(self, client: int, round: int, tensors: Mapping[str, Tensor], base: int = 0) -> None:
        self.saved.append((client, round))
        super().save(client, round, tensors, base)


@pytest.mark.parametrize("registered", [6, 3000])
@pytest.mark.parametrize("method", ["fedloke", "fedmatch"])
def test_state_is_loaded_and_saved_only_for_those_who_take_part(
    tmp_path: Path, method: str, registered: int
) -> None:
    simulation = make_simulation((1,) * registered, (1,) * registered)
    config = little_config(method, rounds=3, clients=registered, per_round=4)
    federation, trainer = assemble(tmp_path, config, simulation, workers=0)
    trainer.store = kept = CountedStore(tmp_path / "clients", 3)
    federation.store = store = CountedStore(tmp_path / "server", 3)
    told = Told()
    run_rounds(federation, federation.start(trainer.initial_weights()), [told])
    wanted: list[tuple[int, int]] = []
    saved: list[tuple[int, int]] = []
    before: dict[int, int] = {}
    for round, clients in (given for kind, given in told.calls if kind == "started"):
        wanted += [(client, before.get(client, 0)) for client in clients]
        saved += [(client, round) for client in clients]
        before |= dict.fromkeys(clients, round)
    assert len(saved) == 12
    assert kept.saved == saved
    assert kept.loaded == wanted
    assert store.saved == (saved if method == "fedmatch" else [])
    assert sorted(int(place.name) for place in (tmp_path / "clients").glob("*/*")) == sorted(before)
    if registered == 6:
        assert any(version for _, version in wanted)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's /proc")
def test_the_resident_size_stays_what_it_was_in_round_three(workers: int) -> None:
    sizes = memory.measure("proxyfl", 20, workers, 8)
    assert len(sizes[0]) == 1 + workers
    assert max(memory.growth(sizes)) < memory.TOLERANCE
