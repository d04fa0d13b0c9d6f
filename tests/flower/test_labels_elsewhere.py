"""Labels at the server alone or at some sites, in a real federation: the same bits as the simulation."""

from __future__ import annotations

import dataclasses
import shutil

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'proxyfl[flower]'")

from loopback import deployment, experiment
from serving import connect, newest, server, texts

from proxyfl.core.errors import ConfigError, RunError
from proxyfl.deploy.server_data import open_server_data
from proxyfl.deploy.site_data import write_npz
from proxyfl.engines.flower import codec
from proxyfl.engines.flower.protocol import spoken
from proxyfl.runs import checkpoint
from proxyfl.runs.run import Run
from proxyfl.runs.simulation import prepare
from toybox import Told, play, same_state

pytestmark = pytest.mark.usefixtures("quick")


def tiny(method, where, **more):
    return experiment(
        method, model__name="little", rounds=2, clients=3, per_round=2, keep__checkpoints=3, scenario=where,
        subset=120, labels__per_class=3, method__tau=0.1, **more,
    )  # fmt: skip


@pytest.mark.parametrize(("method", "where"), [("semifl", "server"), ("fixmatch-gpl", "partial")])
def test_a_real_federation_is_bit_equal_to_the_simulation(tmp_path, method, where):
    config = tiny(method, where)
    deployed = deployment(tmp_path / "f", config)
    server(deployed, connect(deployed, config)).run()
    told = Told()
    simulation = prepare(config)
    play(config, simulation, tmp_path / "inline", observers=[told])
    for report in told.reports:
        saved = checkpoint.read(deployed.run / "checkpoints" / f"round-{report.state.round:08d}")
        assert same_state(saved.state, report.state)
    run = Run(deployed.run)
    assert run.partition.where == where
    assert run.partition.labelled.sizes.tolist() == simulation.partition.labelled.sizes.tolist()
    assert len(run.partition.server) == len(simulation.partition.server)
    losses = [line.get("server") for line in run.metrics]
    assert losses == [report.metrics.get("server") for report in told.reports]


def test_the_servers_images_may_be_a_folder_an_array_or_a_table(tmp_path):
    made = deployment(tmp_path / "f", tiny("semifl", "server"), holdout=0.0)
    folder, array, table = made.server_data_path, tmp_path / "own.npz", tmp_path / "table" / "labels.csv"
    found = open_server_data(made)
    write_npz(array, found.images, found.labels, made.classes)
    shutil.copytree(folder, table.parent)
    rows = [f"{file.relative_to(folder)},{file.parent.name}" for file in sorted(folder.rglob("*.png"))]
    table.write_text("\n".join(["file,label", *rows]))

    def held(data):
        return sorted(zip(data.labels.tolist(), map(bytes, data.images.numpy()), strict=True))

    assert len(found.labelled) == 30
    for place in (array, table.parent):
        assert held(open_server_data(made, str(place))) == held(found)


def test_other_images_at_the_server_stop_a_run_that_goes_on(tmp_path):
    config = tiny("semifl", "server")
    deployed = deployment(tmp_path / "f", config)
    server(deployed, connect(deployed, config)).run()
    assert "the server has 30 labelled images of its own" in texts(deployed)
    before = newest(deployed.run)
    shutil.rmtree(deployed.server_data_path / "3")
    with pytest.raises(RunError, match=r"labelled .*restore it, .*run"):
        server(deployed, connect(deployed, config)).run()
    assert same_state(newest(deployed.run), before)


def test_without_test_images_the_server_keeps_some_of_its_own_back(tmp_path):
    config = tiny("semifl", "server")
    deployed = deployment(tmp_path / "f", config, test="", holdout=0.2)
    assert [deployed.site(name).holdout for name in deployed.sites] == [0.0] * 3
    server(deployed, connect(deployed, config)).run()
    run = Run(deployed.run)
    assert [line["evaluation"] for line in run.metrics] == [{"where": "server", "images": 6}] * 2
    assert len(run.partition.server) == 24


@pytest.mark.parametrize(
    ("method", "where", "words"),
    [
        ("semifl", "server", "all labels are at the server"),
        ("fedavg", "partial", "all or none must have one"),
    ],
)
def test_a_site_whose_labels_do_not_fit_the_scenario_is_not_enrolled(tmp_path, method, where, words):
    config = tiny(method, where)
    deployed = deployment(tmp_path / "f", config, quorum=1, deadline=1.0)
    net = connect(deployed, config)
    claim = {"kind": "enrolled", "name": "site-01", **spoken(), "labelled": 5, "unlabelled": 5, "heldout": 0}
    net.nodes[50].handler = lambda kind, records: codec.content(claim)
    server(deployed, net).run()
    assert [
        text for text in texts(deployed) if text.startswith("site-01 cannot take part: it") and words in text
    ]
    assert Run(deployed.run).partition.sizes[0] == 0


def test_a_site_that_was_set_up_for_another_scenario_is_told_so(tmp_path):
    config = tiny("semifl", "server")
    deployed = deployment(tmp_path / "f", config, quorum=1, deadline=1.0)
    net, others = connect(deployed, config), connect(deployed, tiny("fixmatch-gpl", "clients"))
    net.nodes[50].handler = others.nodes[50].handler
    server(deployed, net).run()
    words = "site-01 cannot take part: server and site disagree on 'scenario'"
    assert any(text.startswith(words) for text in texts(deployed))


@pytest.mark.parametrize(
    ("method", "where", "changes", "words"),
    [
        ("semifl", "server", {"server_data": ""}, "needs the server's labelled images"),
        ("fedavg", "partial", {"server_data": "/x"}, "server_data is set, but labels.where = 'partial'"),
        ("server-only", "server", {}, "asks no site for anything"),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path, method, where, changes, words):
    deployed = deployment(tmp_path / "f", tiny("semifl" if where == "server" else "fedavg", where))
    tree = {**deployed.experiment, "method": {"name": method}}
    with pytest.raises(ConfigError, match=words):
        _ = dataclasses.replace(deployed, experiment=tree, **changes).config
