"""What a site lets a federation use: threads, memory, disk, time, bandwidth, and which device."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'proxyfl[flower]'")

import httpx
import torch
from flwr.app import MessageType
from loopback import deployment, experiment
from serving import connect, server, texts
from wireless import Node, handled_by, sides

from proxyfl.core.config import ComputeSettings
from proxyfl.core.errors import ConfigError
from proxyfl.deploy.pace import Pace
from proxyfl.deploy.programs import environment
from proxyfl.deploy.settings import Site
from proxyfl.engines.flower import limits
from proxyfl.engines.flower.limits import LimitReached, Limits
from proxyfl.engines.setup import trainer_of
from proxyfl.federation.client_store import ClientStore
from proxyfl.methods import registry
from proxyfl.models import Network
from proxyfl.runs.run import Run
from proxyfl.runs.simulation import prepare

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def small():
    return experiment("fixmatch-gpl", rounds=2, per_round=4, subset=80, labels__per_class=4)


def trainer_for(config, folder):
    simulation = prepare(config)
    method = registry.create(config.method.name, config.method.parameters, config.fidelity)
    dataset = simulation.dataset
    network = Network.configured(config.model, len(dataset.classes), dataset.channels, dataset.image_size)
    return trainer_of(config, method, network, simulation.train_views, ClientStore(folder))


def test_a_round_that_needs_more_memory_is_refused_with_the_number(tmp_path, small):
    trainer = trainer_for(small, tmp_path)
    needed = Limits().require_memory(trainer)
    assert 0 < needed < 8e9
    with pytest.raises(LimitReached, match=r"[0-9,]+ MB .*max_memory_mb .*1;"):
        Limits(max_memory_mb=1).require_memory(trainer)
    assert Limits(max_memory_mb=int(needed / 1e6) + 200).require_memory(trainer) > 0


def test_the_machine_is_the_limit_where_none_is_set(tmp_path, small, monkeypatch):
    monkeypatch.setattr(limits, "usable_memory", lambda: 5_000_000)
    with pytest.raises(LimitReached, match="the machine has 5 MB"):
        Limits().require_memory(trainer_for(small, tmp_path))


def test_the_estimate_grows_with_the_batch_and_leaves_no_trace(tmp_path, small):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one = limits.estimate(trainer_for(small, tmp_path))
    train = dataclasses.replace(small.train, batch=small.train.batch * 64)
    many = limits.estimate(trainer_for(dataclasses.replace(small, train=train), tmp_path))
    assert many > one + 10_000_000
    trainer = trainer_for(small, tmp_path)
    kept = limits.kept_by_backward(trainer)
    assert kept > 4 * trainer.factory.image_size**2
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "network", "batch"),
    [
        ("fedavg", "resnet8", 64),
        ("fedavg", "wrn-28-2", 96),
        ("fixmatch-gpl", "resnet8", 64),
        ("fixmatch-gpl", "resnet8", 192),
        ("fedloke", "wrn-16-1", 64),
    ],
)
def test_a_measured_peak_is_below_the_estimate_and_not_far(method, network, batch):
    words = [sys.executable, Path(__file__).with_name("peak.py"), method, network, str(batch)]
    found = json.loads(subprocess.run(words, check=True, capture_output=True).stdout)
    peak, estimated = (found[name] - found["before"] for name in ("peak", "estimated"))
    assert 0.5 * estimated < peak <= estimated, found


def test_what_a_site_keeps_is_bounded(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "old").write_bytes(b"x" * 1_500_000)
    Limits(max_disk_mb=2).require_disk(tmp_path, 400_000)
    Limits().require_disk(tmp_path, 10**12)
    with pytest.raises(LimitReached, match=r"2 MB .*0.6 MB; max_disk_mb .*2;"):
        Limits(max_disk_mb=2).require_disk(tmp_path, 600_000)


def test_files_that_go_while_they_are_counted_fail_no_round(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    for name in ("kept", "before", "after"):
        (tmp_path / "a" / name).write_bytes(b"x" * 1_000_000)
    look = os.stat

    def looked(path, **how):
        name = Path(path).name if isinstance(path, str | Path) else ""
        if name == "before":
            Path(path).unlink(missing_ok=True)
        found = look(path, **how)
        if name == "after":
            Path(path).unlink()
        return found

    monkeypatch.setattr(os, "stat", looked)
    Limits(max_disk_mb=2).require_disk(tmp_path)
    assert [file.name for file in (tmp_path / "a").iterdir()] == ["kept"]


def test_training_that_takes_too_long_is_given_up_between_two_steps(tmp_path, small):
    simulation, now = prepare(small), [0.0]
    steps = Limits(max_seconds=10).steps(lambda: now[0])
    trainer = trainer_for(small, tmp_path)
    from proxyfl.core.state import Task

    task = Task(1, 0, trainer.initial_weights())
    with pytest.raises(LimitReached, match=r"10 s .*max_seconds"):
        trainer.train(task, simulation.holdings.client(0), steps=lambda ctx: late(steps(ctx), now))
    assert Limits().steps() is limits.every_step


def late(batches, now):
    for one in batches:
        yield one
        now[0] += 11


def test_threads_and_device_are_the_sites(monkeypatch):
    asked = ComputeSettings(device="cuda:3", threads=8)
    assert Limits().compute(asked, "") == asked
    assert Limits(threads=2).compute(asked, "cpu") == ComputeSettings(device="cpu", threads=2)
    assert Limits().compute(asked, "auto").device == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda number: ([1, 9, 5][number], 10))
    assert Limits().compute(asked, "auto").device == "cuda:1"


def test_the_server_hears_the_number_and_the_round_goes_on_without_the_site(tmp_path, small):
    deployed = deployment(tmp_path / "f", small, insecure=True)
    net = connect(deployed, small)
    tight = dataclasses.replace(
        sides(prepare(small), deployed.path / "elsewhere")[2], limits=Limits(max_memory_mb=1)
    )
    net.nodes[52] = Node(handled_by(tight))
    server(deployed, net).run()
    run = Run(deployed.run)
    assert all(sorted(line["clients"]) == [0, 1, 3] for line in run.metrics)
    assert "training needs about" in run.metrics[0]["failed"]["2"]
    assert any("site-03 left out" in text and "max_memory_mb" in text for text in texts(deployed))


@pytest.mark.parametrize(
    ("allowed", "told"),
    [
        (Limits(max_memory_mb=1), "evaluation needs about"),
        (Limits(max_seconds=1e-9), "evaluation took longer"),
    ],
)
def test_a_site_evaluates_within_its_limits_too(allowed, told, tmp_path, small):
    config = dataclasses.replace(small, compute=dataclasses.replace(small.compute, eval_batch=5))
    deployed = deployment(tmp_path / "f", config, test="", holdout=0.5, insecure=True)
    net = connect(deployed, config, heldout=20)
    tight = dataclasses.replace(sides(prepare(config), deployed.path / "elsewhere", 20)[2], limits=allowed)
    usual, limited = net.nodes[52].handler, handled_by(tight)
    net.nodes[52] = Node(
        lambda kind, records: (limited if kind == MessageType.EVALUATE else usual)(kind, records)
    )
    server(deployed, net).run()
    assert all(line["evaluation"]["missing"] == ["site-03"] for line in Run(deployed.run).metrics)
    assert any(told in text and "site.toml" in text for text in texts(deployed))


def test_the_memory_of_an_evaluation_grows_with_its_batch(tmp_path, small):
    trainer = trainer_for(small, tmp_path)
    few, many = (limits.estimate_evaluation(trainer, batch) for batch in (16, 4096))
    pixels = trainer.factory.image_size**2
    assert many - few > 4000 * pixels * 4
    assert many < limits.estimate(trainer) + 4096 * limits.kept_by_backward(trainer)


def written(tmp_path, **more):
    deployed = deployment(tmp_path / "f", experiment("fedavg", rounds=1, subset=80, labels__per_class=4))
    site = dataclasses.replace(deployed.site("site-01"), **more)
    site.write()
    return Site.read(site.path)


def test_limits_stand_in_site_toml(tmp_path):
    site = written(tmp_path, threads=2, max_memory_mb=900, max_disk_mb=50, max_seconds=60.0, max_kbit=8000)
    assert site.limits == Limits(2, 900, 50, 60.0)
    told = "2 threads, 900 MB of memory, 50 MB of disk, 60 s of training or evaluation, 8,000 kbit/s each way"
    assert site.limits_in_words == [f"limits of site.toml: {told}"]
    with pytest.raises(ConfigError, match=r"too slow .*1,000"):
        dataclasses.replace(site, max_kbit=10).write()
    with pytest.raises(ConfigError, match="needs the connector"):
        dataclasses.replace(site, insecure=True).write()


def test_a_line_is_no_faster_than_allowed_both_ways():
    got = []

    async def app(scope, receive, send):
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        got.append((dict(scope["headers"]), len(body)))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x-told", b"yes")]})
        await send({"type": "http.response.body", "body": b"y" * 200_000})

    async def play():
        pace = Pace(8000)  # a million bytes a second
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://site") as client:
            began = time.perf_counter()
            answer = await pace.ask(client, "push-object", [(b"flwr-a", b"b")], b"x" * 300_000)
            return answer, time.perf_counter() - began

    answer, took = asyncio.run(play())
    assert (answer.status_code, len(answer.content), answer.headers["x-told"]) == (200, 200_000, "yes")
    headers, received = got[0]
    assert (received, headers[b"content-length"], headers[b"flwr-a"]) == (300_000, b"300000", b"b")
    assert b"transfer-encoding" not in headers
    assert 0.4 < took < 30


PIECES = """
import inspect, json
from flwr.app import Array
from flwr.supercore.inflatable import inflatable_utils as flowers
from flwr.supercore.protobuf.client import ProtobufClient

array = Array("uint8", (2_500_000,), "safetensors", bytes(2_500_000))
usual = [inspect.signature(one).parameters[name].default for one, name in (
    (flowers.push_objects, "max_concurrent_pushes"),
    (flowers.push_object_contents_from_iterable, "max_concurrent_pushes"),
    (flowers.pull_objects, "max_concurrent_pulls"),
    (ProtobufClient.__init__, "timeout"),
)]
print(json.dumps([[len(one.data) for _, one in array.slice_array()], *usual]))
"""


def test_a_piece_of_a_model_is_through_the_slowest_line_before_flower_gives_up(tmp_path):
    env = environment(tmp_path / "home", {})
    done = subprocess.run([sys.executable, "-c", PIECES], env=env, capture_output=True, text=True, check=True)
    pieces, *at_once, patience = json.loads(done.stdout)
    assert pieces == [1_000_000, 1_000_000, 500_000]
    assert at_once == [1, 1, 1]
    assert patience == 30
    assert pieces[0] * 8 / (limits.SLOWEST * 1000) < patience / 3
    assert pieces[0] + 10_000 < 1 << 20, "it passes where max_request_mb is at its least"


def test_service_units_have_quotas(tmp_path):
    from calling import invoke

    invoke("deploy", "init", tmp_path / "d", "--sites", "1")
    for unit in ("server/proxyfl-server.service", "site-01/proxyfl-site.service"):
        text = (tmp_path / "d" / unit).read_text()
        assert "MemoryMax=80%" in text
        assert "TasksMax=" in text
