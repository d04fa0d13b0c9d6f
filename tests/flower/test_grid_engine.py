"""The Flower engine: order, deadlines and every way in which a site can fail, with a name to each."""

from __future__ import annotations

import threading

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'proxyfl[flower]'")

import httpx
import torch
from flwr.app import Error, Message
from test_every_method import flower
from wireless import Clock, Known, Node, WirelessGrid, handled_by

from proxyfl.core.errors import BelowQuorum, RunError
from proxyfl.core.state import Failure, Task, Update
from proxyfl.engines.flower import codec, grid
from proxyfl.engines.flower.grid import Courier, FlowerEngine
from toybox import little_config, make_simulation, play, same_state


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    found = Clock()
    monkeypatch.setattr(grid, "time", found)
    return found


def echo(kind, records):
    """A site that sends back what it got, as an update."""
    task, _ = codec.read_task(records)
    return codec.answer_records(Update(task.round, task.client, 1, task.weights, task.extras))


def engine_of(*handlers, deadline=60.0):
    net = WirelessGrid({100 + client: Node(handler) for client, handler in enumerate(handlers)})
    return FlowerEngine(Courier(net, Known(net)), {}, deadline), net


def tasks(count, weights=None):
    broadcast = {"a": torch.arange(3.0)} if weights is None else weights
    return [Task(2, client, broadcast) for client in range(count)]


def test_answers_come_in_the_order_of_the_tasks():
    engine, _ = engine_of(echo, echo, echo)
    order = [2, 0, 1]
    broadcast = {"a": torch.arange(3.0)}
    found = list(engine.run(Task(2, client, broadcast) for client in order))
    assert [answer.client for answer in found] == order
    assert all(isinstance(answer, Update) for answer in found)
    assert torch.equal(found[0].weights["a"], torch.arange(3.0))


def test_the_broadcast_is_one_object_for_all_and_another_in_the_next_round():
    engine, grid = engine_of(*[lambda kind, records: None] * 3, deadline=0.05)
    list(engine.run(tasks(3)))
    one = {message.content[codec.BROADCAST].object_id for message in grid.waiting.values()}
    list(engine.run(tasks(3, {"a": torch.zeros(3)})))
    both = {message.content[codec.BROADCAST].object_id for message in grid.waiting.values()}
    assert (len(one), len(both)) == (1, 2)


def test_the_silent_are_named_at_the_deadline_and_the_others_count():
    engine, _ = engine_of(lambda kind, records: None, echo, lambda kind, records: None, deadline=0.3)
    found = list(engine.run(tasks(3)))
    assert [type(answer) for answer in found] == [Failure, Update, Failure]
    assert found[0].reason == "site-01 did not answer within 0.3 s"
    assert (found[2].round, found[2].client) == (2, 2)
    assert "site-03" in found[2].reason


def test_whoever_dies_in_the_middle_of_an_answer_holds_nobody_up(monkeypatch):
    monkeypatch.setattr(grid, "TRANSFER", 0.1)
    never = threading.Event()

    def half(kind, records):
        never.wait()

    engine, _ = engine_of(half, deadline=0.1)
    try:
        (found,) = engine.run(tasks(1))
    finally:
        never.set()
    assert found == Failure(2, 0, "site-01 did not send its whole answer within 0.1 s")


class Full:
    """A log on a full disk."""

    def sent(self, client, kind, records):
        raise RunError("no space")

    def received(self, client, kind, reply):
        raise AssertionError("nothing was sent")


def test_what_cannot_be_logged_is_not_sent():
    engine, net = engine_of(echo)
    engine.courier.witness = Full()
    with pytest.raises(RunError, match="no space"):
        list(engine.run(tasks(1)))
    assert not net.waiting


def test_who_is_not_connected_is_named_at_once():
    engine, grid = engine_of(echo, echo)
    grid.nodes[101].online = False
    found = list(engine.run(tasks(2)))
    assert isinstance(found[0], Update)
    assert found[1] == Failure(2, 1, "site-02 is not connected", unsent=True)


def test_flowers_error_reply_belongs_to_the_site_that_was_asked_and_is_told_in_words():
    def error(code):
        return lambda kind, records: Error(code, "Error: Node\n\x1bUnavailable")

    engine, _ = engine_of(echo, error(5), error(8))
    found = list(engine.run(tasks(3)))
    assert isinstance(found[0], Update)
    assert found[1] == Failure(2, 1, "site-02 was stopped or lost its connection")
    assert found[2] == Failure(2, 2, found[2].reason)
    assert "site-03 gave no answer" in found[2].reason


def raising(error):
    def handler(kind, records):
        raise error

    return handler


def test_what_breaks_the_reading_is_that_sites_failure_alone():
    engine, _ = engine_of(raising(ValueError("bad header")), echo)
    found = list(engine.run(tasks(2)))
    assert found[0] == Failure(2, 0, "site-01 sent what is no message (ValueError)")
    assert isinstance(found[1], Update)


def test_a_superlink_that_is_gone_is_no_sites_fault():
    engine, _ = engine_of(raising(httpx.ConnectError("refused")))
    with pytest.raises(httpx.ConnectError):
        list(engine.run(tasks(1)))


def test_an_answer_from_another_node_is_refused():
    engine, grid = engine_of(echo)
    usual = grid.pull_messages

    def swapped(ids):
        replies = usual(ids)
        for reply in replies:
            reply.metadata.__dict__["_src_node_id"] = 555
        return replies

    grid.pull_messages = swapped
    assert list(engine.run(tasks(1))) == [Failure(2, 0, "site-01 was answered for by another node")]


def test_a_message_the_superlink_does_not_take_is_a_failure():
    engine, grid = engine_of(echo)
    grid.push_messages = lambda messages: [None]
    (found,) = engine.run(tasks(1))
    assert "site-01 was not asked" in found.reason


def test_a_message_does_not_outlive_its_round():
    engine, grid = engine_of(lambda kind, records: None, deadline=0.2)
    list(engine.run(tasks(1)))
    (message,) = grid.waiting.values()
    assert isinstance(message, Message)
    assert message.metadata.ttl < 10


def bent(honest, change):
    """A site that trains and then sends something else."""

    def handler(kind, records):
        answer = codec.read_answer(honest(kind, records), codec.read_task(records)[0])
        assert isinstance(answer, Update)
        return codec.answer_records(change(answer))

    return handler


def with_weights(update, change):
    weights = {name: change(name, value) for name, value in update.weights.items()}
    return Update(update.round, update.client, update.samples, weights, update.extras, update.metrics)


BAD = {
    "not finite": lambda u: with_weights(u, lambda n, v: v * float("nan") if v.is_floating_point() else v),
    "has shape": lambda u: with_weights(u, lambda n, v: v[None] if n == "classifier.weight" else v),
    "claims 1000000000 images": lambda u: Update(u.round, u.client, 10**9, u.weights, u.extras, u.metrics),
    "belongs to round 77": lambda u: Update(77, u.client, u.samples, u.weights, u.extras, u.metrics),
}


def played(folder, spoil):
    """The final state and the failures of a run in which one of four sites is spoilt."""
    config, simulation = little_config("proxyfl", per_round=4), make_simulation()
    engine, places = flower(config, simulation, folder)
    spoil(engine.courier.grid.nodes[102], handled_by(places[2]))
    told = []
    listening = [Listener(told)]
    state = play(config, simulation, folder / "server", engine=lambda _: engine, observers=listening)
    return state, told


@pytest.fixture(scope="module")
def without(tmp_path_factory):
    def away(node, honest):
        node.online = False

    return played(tmp_path_factory.mktemp("away"), away)[0]


@pytest.mark.parametrize(
    "reason",
    [pytest.param(reason, marks=[] if reason == "not finite" else pytest.mark.slow) for reason in BAD],
)
def test_a_hostile_site_is_left_out_by_name_and_the_run_ends_as_without_it(reason, tmp_path, without):
    def hostile(node, honest):
        node.handler = bent(honest, BAD[reason])

    found, failed = played(tmp_path, hostile)
    assert same_state(found, without)
    assert [failure.client for failure in failed] == [2, 2]
    assert all(reason in failure.reason for failure in failed)


class Listener:
    def __init__(self, failed):
        self.failed = failed

    def round_started(self, round, clients):
        pass

    def answered(self, answer):
        if isinstance(answer, Failure):
            self.failed.append(answer)

    def round_finished(self, report):
        pass


def test_below_quorum_is_an_error_of_its_own(tmp_path):
    config, simulation = little_config("fedavg", federation__quorum=2), make_simulation()
    engine, _ = flower(config, simulation, tmp_path)
    for node in (100, 101, 102):
        engine.courier.grid.nodes[node].online = False
    with pytest.raises(BelowQuorum, match="2 are needed"):
        play(config, simulation, tmp_path / "server", engine=lambda _: engine)
