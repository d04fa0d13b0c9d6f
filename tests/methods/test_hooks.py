"""Every hook of a method, used by one made for that, takes effect in a real run of two rounds."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from proxyfl.core.errors import MethodError
from proxyfl.core.settings import setting
from proxyfl.core.state import ServerState, Tensors, Update
from proxyfl.data.stream import Batch
from proxyfl.federation.client_store import ClientStore
from proxyfl.methods import create, registry
from proxyfl.methods.base import Addon, Method, MethodParameters
from proxyfl.methods.context import ClientContext, Outputs, Pseudo, ServerContext
from proxyfl.methods.registry import Recipe
from toybox import Told, make_simulation, play, same_state, tiny_config

SEEN: dict[str, list[Any]] = {}


def see(what: str, value: Any) -> None:
    SEEN.setdefault(what, []).append(value)


@dataclasses.dataclass(frozen=True)
class AllParameters(MethodParameters):
    strength: float = setting(0.5, "how strongly the extra loss counts", low=0)


class AllHooks(Method):
    """Sends its weights as ``shared.NAME``, trains a gate of its own, keeps a counter for every client."""

    name = "allhooks"
    wants = frozenset({"x", "x_strong", "u_weak"})
    keeps = "how often it took part"
    needs_labels = False
    needs_all_updates = True
    Parameters = AllParameters

    def initial(self, weights: Tensors) -> Tensors:
        return {f"shared.{name}": value for name, value in weights.items()} | {"note": torch.zeros(2)}

    def model(self, weights: Mapping[str, Tensor]) -> Tensors:
        return {name[7:]: value for name, value in weights.items() if name.startswith("shared.")}

    def upload(self, ctx: ClientContext) -> Tensors:
        mine = {f"shared.{name}": value for name, value in ctx.model.state_dict().items()}
        return mine | {"note": torch.full((2,), float(ctx.task.client))}

    def start(self, ctx: ServerContext) -> Tensors:
        return {"total": torch.zeros(()), "untouched": torch.tensor(7.0)}

    def task_extras(self, ctx: ServerContext, client: int) -> Tensors:
        stored = ctx.store.newest(client, ctx.round - 1) if ctx.store else {}
        return {"hello": torch.tensor(100 * ctx.round + client), **stored}

    def trainables(self, ctx: ClientContext) -> Iterable[nn.Parameter]:
        gate = nn.Linear(64, 1, bias=False)
        nn.init.zeros_(gate.weight)
        ctx.memory["gate"] = gate
        return [*ctx.model.parameters(), *gate.parameters()]

    def learning_rate(self, shared: float) -> float:
        return shared / 2

    def steps_per_epoch(self, labelled: int, pool_steps: int, batch: int) -> int:
        return pool_steps + 1

    def begin(self, ctx: ClientContext) -> None:
        see(
            "begin",
            (ctx.task.round, ctx.task.client, {name: value.clone() for name, value in ctx.state.items()}),
        )
        see("personal", (ctx.task.round, ctx.task.client, dict(ctx.task.personal)))
        see("total", float(ctx.extras["allhooks/total"]))
        confident = [ctx.teacher(images).amax(1) for _, images in ctx.stream.walk_pool(16)]
        chosen = torch.cat(confident).topk(5).indices
        ctx.stream.restrict(chosen)
        ctx.memory["chosen"] = sorted(chosen.tolist())
        times = ctx.state.get("times", torch.zeros((), dtype=torch.int64))
        ctx.state = {"times": times + 1}

    def pseudo_label(self, outputs: Outputs, ctx: ClientContext) -> Pseudo:
        see("pseudo", len(outputs.batch.u_weak))
        return Pseudo(torch.zeros(len(outputs.weak), dtype=torch.int64), torch.ones(len(outputs.weak)).bool())

    def step(self, batch: Batch, ctx: ClientContext) -> Outputs:
        outputs = ctx.forward(batch)
        outputs.pseudo = self.pseudo_label(outputs, ctx)
        optimiser = ctx.optimiser  # made by now, and with it the gate
        assert outputs.features is not None
        gated = (
            ctx.memory["gate"](outputs.features).square().mean() - ctx.memory["gate"](outputs.features).mean()
        )
        see("rates", optimiser.param_groups[0]["lr"])
        ctx.descend(
            {"supervised": self.supervised(outputs), "gate": self.parameters.strength * gated}
            | ctx.terms(outputs)
        )
        return outputs

    def observe(self, outputs: Outputs, ctx: ClientContext) -> None:
        see("grad", torch.is_grad_enabled())
        see(
            "observed",
            (sorted(outputs.batch.u_index.tolist()), ctx.memory["chosen"], len(outputs.batch.x_strong)),
        )

    def finish(self, ctx: ClientContext) -> Tensors:
        see("gate", float(ctx.memory["gate"].weight.detach().abs().sum()))
        see("steps", ctx.steps)
        return {"times": ctx.state["times"].float()}

    def receive(self, update: Update) -> Tensors:
        return {"times": update.extras["allhooks/times"], "client": torch.tensor(update.client)}

    def weights(self, ctx: ServerContext, kept: Sequence[Tensors]) -> Sequence[float]:
        assert [int(tensors["client"]) for tensors in kept] == ctx.clients
        return [float(k == 2) for k in ctx.clients]

    def serve(self, ctx: ServerContext, kept: Sequence[Tensors]) -> Tensors:
        assert ctx.store is not None
        for client in ctx.clients:
            ctx.store.save(client, ctx.round, {"remembered": torch.tensor(float(10 * ctx.round + client))})
        ctx.metrics["kept"] = [float(tensors["times"]) for tensors in kept]
        ctx.snapshots["draw"] = torch.rand(3, generator=ctx.rng("draw"))
        ctx.weights["note"] = ctx.weights["note"] + 100
        return {"total": ctx.extras["allhooks/total"] + sum(tensors["times"] for tensors in kept)}


class Watching(Addon):
    """An add-on with each of its own hooks."""

    name = "watching"
    wants = frozenset({"u_strong", "teacher_x"})
    sends = "a number"

    def start(self, ctx: ServerContext) -> Tensors:
        return {"seen": torch.zeros(())}

    def begin(self, ctx: ClientContext) -> None:
        ctx.memory["watching"] = 0

    def term(self, outputs: Outputs, ctx: ClientContext) -> Tensor | None:
        see("teacher_x", outputs.global_x.shape[0])
        return 0.1 * outputs.strong.square().mean()

    def observe(self, outputs: Outputs, ctx: ClientContext) -> None:
        ctx.memory["watching"] += len(outputs.batch.u_strong)

    def finish(self, ctx: ClientContext) -> Tensors:
        return {"seen": torch.tensor(float(ctx.memory["watching"]))}

    def receive(self, update: Update) -> Tensors:
        return {"seen": update.extras["watching/seen"]}

    def serve(self, ctx: ServerContext, kept: Sequence[Tensors]) -> Tensors:
        assert all(list(tensors) == ["seen"] for tensors in kept)  # other parts' tensors are not here
        return {"seen": ctx.extras["watching/seen"] + sum(tensors["seen"] for tensors in kept)}


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_recipes", "_aliases", "_addons"):
        monkeypatch.setattr(registry, name, dict(getattr(registry, name)))
    registry.register(Recipe("allhooks", "every hook", AllHooks))
    registry.register_addon(Watching)
    SEEN.clear()


SIMULATION = make_simulation((6, 6, 0, 6), (20, 20, 26, 20))


def run(folder: Path, name: str = "allhooks", **options: Any) -> tuple[ServerState, Told]:
    told = Told()
    config = tiny_config(name, per_round=4, **options)
    return play(config, SIMULATION, folder, observers=[told]), told


@pytest.mark.usefixtures("registered")
def test_every_hook_takes_effect(tmp_path: Path) -> None:
    end, told = run(tmp_path)
    answers = [answer for kind, answer in told.calls if kind == "answered"]
    assert [(a.round, a.client) for a in answers] == [(r, k) for r in (1, 2) for k in (0, 1, 2, 3)]

    # client state: nothing in round 1, in round 2 what round 1 wrote, versions in the server's state
    begun = {(round, client): state for round, client, state in SEEN["begin"]}
    assert all(begun[1, k] == {} for k in range(4))
    assert all(begun[2, k]["times"].item() == 1 for k in range(4))
    assert end.versions == {0: 2, 1: 2, 2: 2, 3: 2}
    assert ClientStore(tmp_path / "clients").load(3, 2)["times"].item() == 2

    # task_extras and what the server keeps per client
    personal = {(round, client): tensors for round, client, tensors in SEEN["personal"]}
    assert personal[1, 3]["allhooks/hello"].item() == 103
    assert "allhooks/remembered" not in personal[1, 3]
    assert personal[2, 1]["allhooks/hello"].item() == 201
    assert personal[2, 1]["allhooks/remembered"].item() == 11

    # begin: the pool was walked and the stream restricted; u_index and x_strong reach the method
    assert all(index == chosen for index, chosen, _ in SEEN["observed"])
    assert {rows for _, _, rows in SEEN["observed"]} == {0, 8}  # client 2 has no labelled images
    assert set(SEEN["pseudo"]) == {5}
    assert set(SEEN["grad"]) == {False}

    # trainables, learning_rate, steps_per_epoch
    assert all(moved > 0 for moved in SEEN["gate"])
    assert set(SEEN["rates"]) == {0.025}
    assert SEEN["steps"] == [4] * 8  # 26 // 8 + 1

    # finish, receive, weights, serve
    assert [report.metrics["kept"] for report in told.reports] == [[1.0] * 4, [2.0] * 4]
    assert SEEN["total"] == [0.0] * 4 + [4.0] * 4
    assert end.extras["allhooks/total"].item() == 12.0
    assert end.extras["allhooks/untouched"].item() == 7.0
    chosen = next(a for a in answers if (a.round, a.client) == (2, 2))
    for name, value in chosen.weights.items():
        if name != "note":
            assert torch.equal(end.weights[name], value), name
    assert end.weights["note"].tolist() == [102.0, 102.0]
    assert told.reports[1].snapshots["draw"].shape == (3,)
    assert not torch.equal(told.reports[0].snapshots["draw"], told.reports[1].snapshots["draw"])

    # losses are named, model() gives what is evaluated, nothing waits on disk
    assert set(told.reports[0].metrics["losses"]) == {"supervised", "gate"}
    assert not list(tmp_path.glob("spool-*"))
    assert sum(map(sum, told.reports[1].snapshots["confusion"].tolist())) == 40


@pytest.mark.usefixtures("registered")
def test_an_addons_hooks_take_effect_beside_the_methods(tmp_path: Path) -> None:
    end, told = run(tmp_path / "with", "allhooks+watching")
    plain, _ = run(tmp_path / "without")
    assert not torch.equal(end.weights["shared.classifier.weight"], plain.weights["shared.classifier.weight"])
    assert end.extras["watching/seen"].item() == 2 * 4 * 4 * 5  # rounds, clients, steps, chosen images
    assert told.reports[0].metrics["losses"]["watching"] > 0
    assert set(SEEN["teacher_x"]) == {0, 8}
    assert set(told.reports[0].state.extras) == {"allhooks/total", "allhooks/untouched", "watching/seen"}


@pytest.mark.usefixtures("registered")
def test_a_round_that_runs_again_starts_from_the_same_client_state(tmp_path: Path) -> None:
    end, told = run(tmp_path)
    middle = ServerState.from_tensors(told.reports[0].state.to_tensors())
    config = tiny_config("allhooks", per_round=4)
    again = play(config, SIMULATION, tmp_path, state=middle)  # version 2 of every client is there already
    assert same_state(again, end)
    assert ClientStore(tmp_path / "clients").load(3, 2)["times"].item() == 2


@pytest.mark.usefixtures("registered")
def test_parameters_of_its_own(tmp_path: Path) -> None:
    strong, _ = run(tmp_path / "a", method__strength=2.0)
    weak, _ = run(tmp_path / "b")
    assert not same_state(strong, weak)
    assert create("allhooks", {"strength": 2.0}).parameters.strength == 2.0


def test_weights_that_stay_on_the_client(tmp_path: Path) -> None:
    """Private heads: not sent, not averaged, kept for each client and found again in its next round."""
    end, told = run(tmp_path / "private", "icpl-only", method__tau=0.05, method__icpl__keep_heads=True)
    answers = [answer for kind, answer in told.calls if kind == "answered"]
    for tensors in (end.weights, *(answer.weights for answer in answers)):
        assert not any(name.startswith("heads.") for name in tensors)
        assert "classifier.weight" in tensors
    assert all(report.metrics["traffic"]["up"]["heads"] == 0 for report in told.reports)
    store = ClientStore(tmp_path / "private" / "clients")
    kept = {k: [store.load(k, round)["private/heads.proxy.weight"] for round in (1, 2)] for k in (0, 1)}
    assert not torch.equal(kept[0][0], kept[1][0])  # trained apart from the same start
    assert not torch.equal(kept[0][0], kept[0][1])
    assert (kept[0][1] - kept[0][0]).norm() < (kept[0][1] - kept[1][0]).norm()  # went on from its own
    sent, _ = run(tmp_path / "sent", "icpl-only", method__tau=0.05)
    assert any(name.startswith("heads.") for name in sent.weights)
    assert sent.versions == {}
    again = play(
        tiny_config("icpl-only", per_round=4, method__tau=0.05, method__icpl__keep_heads=True),
        SIMULATION,
        tmp_path / "private",
        state=ServerState.from_tensors(told.reports[0].state.to_tensors()),
    )
    assert same_state(again, end)


def test_a_method_that_refuses_an_addon_says_why() -> None:
    class Proud(Method):
        name = "proud"

        def refuses(self, addon: Addon) -> str:
            return "it needs nobody" if addon.name == "watching" else ""

    with pytest.raises(MethodError, match=r"proud .*\+watching: it needs nobody"):
        Proud(Proud.Parameters(), [Watching(None)])


def test_the_defaults_of_all_hooks_are_labelled_only_training() -> None:
    method = Method(MethodParameters())
    assert (method.all_wants, method.needs_heads, method.keeps_state) == (frozenset({"x"}), False, False)
    assert method.steps_per_epoch(5, 19, 8) == 19
    assert method.learning_rate(0.3) == 0.3
    assert method.model({"a": torch.ones(1)}) == {"a": torch.ones(1)}
