"""The server of a real federation, without a network: enrolment, quorum, resume, accuracy."""

from __future__ import annotations

import dataclasses
import json

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'proxyfl[flower]'")

import torch
from cryptography.hazmat.primitives import serialization
from flwr.app import MessageType
from loopback import deployment, experiment
from wireless import Node, WirelessGrid, handled_by, sides

from proxyfl.core.errors import BelowQuorum, DataError, RunError
from proxyfl.deploy import measure, server_run
from proxyfl.deploy.enrolment import Enrolled, Enrolment, forget_counts, gather
from proxyfl.deploy.live import LiveReader
from proxyfl.deploy.server_run import Server
from proxyfl.deploy.site_data import open_test
from proxyfl.engines.flower import codec, grid
from proxyfl.runs import checkpoint
from proxyfl.runs.directory import RunDirectory
from proxyfl.runs.experiment import resume
from proxyfl.runs.run import Run
from proxyfl.runs.simulation import prepare
from toybox import Told, play, same_state


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """No waiting between attempts, and none for what must not come."""
    monkeypatch.setattr(server_run, "RETRY", 0.01)
    monkeypatch.setattr(grid, "POLL_FIRST", 0.01)
    monkeypatch.setattr(server_run, "LOOK", 0.01)
    monkeypatch.setattr("proxyfl.deploy.enrolment.LOOK", 0.01)
    monkeypatch.setattr("proxyfl.deploy.measure.PAUSE", 0.01)


@pytest.fixture
def small():
    return experiment("proxyfl", rounds=3, per_round=2, subset=80, labels__per_class=4, keep__checkpoints=9)


def pem(deployed, name):
    key = serialization.load_ssh_public_key(deployed.site(name).public_key.read_bytes())
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_bytes(serialization.Encoding.PEM, form)


def connect(deployed, config, heldout=0):
    """A grid with a node per site, each with its registered key."""
    places = sides(prepare(config), deployed.path / "elsewhere", heldout)
    keys = [b"" if deployed.insecure else pem(deployed, side.name) for side in places]
    pairs = zip(places, keys, strict=True)
    return WirelessGrid({50 + k: Node(handled_by(side), key) for k, (side, key) in enumerate(pairs)})


def server(deployed, net):
    form = (deployed.classes, deployed.channels, deployed.image_size)
    path = deployed.test_path
    return Server(deployed, net, None if path is None else lambda: open_test(path, *form))


def newest(run):
    return checkpoint.load_newest(RunDirectory(run))[0].state


def texts(deployed):
    lines = LiveReader(deployed.state / "live.jsonl").new()
    return [line["text"] for line in lines if "text" in line]


def test_a_run_is_an_ordinary_run_and_bit_equal_to_the_simulation(tmp_path, small):
    deployed = deployment(tmp_path / "f", small)
    server(deployed, connect(deployed, small)).run()
    told = Told()
    play(small, prepare(small), tmp_path / "inline", observers=[told])
    for report in told.reports:
        saved = checkpoint.read(deployed.run / "checkpoints" / f"round-{report.state.round:08d}")
        assert same_state(saved.state, report.state)
    run = Run(deployed.run)
    assert (run.finished, run.summary.rounds) == (True, 3)
    assert run.partition.sizes.tolist() == prepare(small).partition.sizes.tolist()
    assert all(line["evaluation"] == {"where": "server", "images": 100} for line in run.metrics)
    assert run.model().card.classes == deployed.classes
    assert texts(deployed)[-1] == f"finished after 3 rounds: {deployed.run}"

    before = (deployed.run / "metrics.jsonl").read_bytes()
    server(deployed, connect(deployed, small)).run()
    assert (deployed.run / "metrics.jsonl").read_bytes() == before


def test_a_stopped_run_goes_on_and_ends_with_the_same_bits(tmp_path):
    config = experiment("fedloke", rounds=3, per_round=2, subset=80, labels__per_class=4)
    straight, stopped = (deployment(tmp_path / name, config) for name in ("straight", "stopped"))
    server(straight, connect(straight, config)).run()

    net = connect(stopped, config)
    trained = []

    def breaking(honest):
        def handler(kind, records):
            if kind == MessageType.TRAIN:
                trained.append(1)
                if (
                    len(trained) == 4
                ):  # the second answer of round 2: a site's state is written, no checkpoint
                    honest(kind, records)
                    raise KeyboardInterrupt
            return honest(kind, records)

        return handler

    for node in net.nodes.values():
        node.handler = breaking(node.handler)
    with pytest.raises(KeyboardInterrupt):
        server(stopped, net).run()
    assert newest(stopped.run).round == 1
    server(stopped, net).run()
    assert same_state(newest(straight.run), newest(stopped.run))
    assert [line["round"] for line in Run(stopped.run).metrics] == [1, 2, 3]


def test_below_quorum_it_waits_plays_the_round_again_and_says_so(tmp_path, small):
    deployed = deployment(tmp_path / "f", small)
    net = connect(deployed, small)
    calm = deployment(tmp_path / "calm", small)
    server(calm, connect(calm, small)).run()
    asked = []

    def shy(honest):
        def handler(kind, records):
            if kind == MessageType.TRAIN:
                asked.append(1)
                if len(asked) < 4:
                    return codec.content({"kind": "failure", "reason": "busy", "detail": ""})
            return honest(kind, records)

        return handler

    for node in net.nodes.values():
        node.handler = shy(node.handler)
    server(deployed, net).run()
    said = [text for text in texts(deployed) if "trying again" in text]
    assert "0 of 2 clients gave a usable update, 2 are needed" in said[0]
    calm, shaky = (
        checkpoint.load_newest(server_run.RunDirectory(tmp_path / n / "run"))[0] for n in ("calm", "f")
    )
    assert same_state(calm.state, shaky.state)


def test_without_quorum_it_stops_with_the_checkpoint_kept(tmp_path, small):
    deployed = deployment(tmp_path / "f", small, patience=0.2)
    net = connect(deployed, small)
    one = server(deployed, net)
    usual = one.live.round_finished

    def leave(report):
        usual(report)
        for node in net.nodes.values():
            node.online = False

    one.live.round_finished = leave
    with pytest.raises(RunError, match="0 sites are connected, 2 are needed"):
        one.run()
    assert newest(deployed.run).round == 1
    *_, waiting, stopped = texts(deployed)
    assert waiting == "round 2: 0 sites are connected, 2 are needed; waiting"
    assert stopped.startswith(
        "stopped: round 2: 0 sites are connected, 2 are needed; the last checkpoint is kept"
    )
    assert not one.directory.is_locked()


def test_too_few_answers_for_too_long_stop_it_with_the_checkpoint_kept(tmp_path, small):
    deployed = deployment(tmp_path / "f", small, patience=0.2)
    net = connect(deployed, small)
    silent = codec.content({"kind": "failure", "reason": "busy", "detail": ""})
    for node in net.nodes.values():
        usual = node.handler
        node.handler = lambda kind, records, usual=usual: (
            silent if kind == MessageType.TRAIN else usual(kind, records)
        )
    with pytest.raises(BelowQuorum, match="0 of 2 clients gave a usable update"):
        server(deployed, net).run()
    assert newest(deployed.run).round == 0


def test_accuracy_from_the_sites_is_weighted_by_what_they_keep_back(tmp_path, small):
    deployed = deployment(tmp_path / "f", small, test="", holdout=0.5)
    net = connect(deployed, small, heldout=30)
    right = torch.diag(torch.tensor([3] * 10))
    honest = net.nodes[50].handler

    def perfect(kind, records):
        if kind == MessageType.EVALUATE:
            return counted(right)
        return honest(kind, records)

    def liar(kind, records):
        if kind == MessageType.EVALUATE:
            return counted(right * 10**6)
        return honest_too(kind, records)

    honest_too = net.nodes[51].handler
    net.nodes[50].handler, net.nodes[51].handler = perfect, liar
    server(deployed, net).run()
    run = Run(deployed.run)
    assert run.metrics[-1]["evaluation"] == {
        "where": "sites",
        "images": 90,
        "sites": ["site-01", "site-03", "site-04"],
    }
    test = prepare(small).dataset.test
    predicted = run.model()(test.images[:30]).argmax(1)
    hits = int((predicted == test.labels[:30]).sum())
    assert run.metrics[-1]["accuracy"] == (30 + 2 * hits) / 90
    assert any("site-02 measured nothing: its counts do not add up" in text for text in texts(deployed))


def counted(counts):
    return codec.content({"kind": "evaluation"}, {codec.OWN: codec.packed({"confusion": counts})})


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (counted(torch.tensor([[2, 1], [0, 3]])), ""),
        (counted(torch.tensor([[2, 2], [0, 3]])), "do not add up to the 6 images"),
        (counted(torch.tensor([[7, -4], [0, 3]])), "do not add up"),
        (counted(torch.tensor([[2**62, 2**62], [2**62, 2**62 + 3]])), "do not add up"),
        (counted(torch.zeros(2, 2, dtype=torch.int64)), "do not add up"),
        (counted(torch.zeros(3, 3, dtype=torch.int64)), "wrong form"),
        (counted(torch.full((2, 2), 1.0)), "wrong form"),
        (codec.content({"kind": "evaluation"}), "'own' is missing"),
        (codec.content({"kind": "failure", "reason": "busy"}), "busy"),
        ("did not answer within 3 s", "it did not answer within 3 s"),
    ],
)
def test_counts_that_cannot_be_are_refused(reply, reason):
    if not reason:
        assert measure._confusion(reply, 2, 6).tolist() == [[2, 1], [0, 3]]
        return
    with pytest.raises(codec.Malformed, match=reason):
        measure._confusion(reply, 2, 6)


def test_no_site_that_measures_ends_the_run_with_a_reason(tmp_path, small):
    deployed = deployment(tmp_path / "f", small, test="", holdout=0.5, patience=0.1)
    with pytest.raises(RunError, match="no site measured accuracy"):
        server(deployed, connect(deployed, small, heldout=0)).run()


def test_settings_that_were_changed_are_refused(tmp_path, small):
    deployed = deployment(tmp_path / "f", small)
    server(deployed, connect(deployed, small)).run()
    tree = {**deployed.experiment, "seed": 5}
    other = dataclasses.replace(deployed, experiment=tree)
    with pytest.raises(RunError, match=r"\[experiment\] of .* was changed since the run began"):
        server(other, connect(deployed, small)).run()
    with pytest.raises(RunError, match="proxyfl deploy run"):
        resume(deployed.run)


def registrar(deployed, net):
    one = server(deployed, net)
    return one.registrar, Enrolment("0" * 16, deployed.sites)


def test_who_a_node_is_comes_from_its_key_not_from_its_words(tmp_path, small):
    deployed = deployment(tmp_path / "f", small)
    net = connect(deployed, small)
    net.nodes[50].key, net.nodes[51].key = net.nodes[51].key, net.nodes[50].key
    net.nodes[60] = Node(net.nodes[52].handler, b"a stranger's key")
    found, enrolment = registrar(deployed, net)
    assert found.enrol(enrolment) == [2, 3]
    said = texts(deployed)
    assert "site-02 cannot take part: its key is that of site-02, but it was started as 'site-01'" in said
    assert "site-01 cannot take part: its key is that of site-01, but it was started as 'site-02'" in said


def test_without_authentication_the_first_to_claim_a_name_has_it(tmp_path, small):
    deployed = deployment(tmp_path / "f", small, insecure=True)
    net = connect(deployed, small)
    net.nodes[60] = Node(net.nodes[52].handler)
    net.nodes[61] = Node(lambda kind, records: codec.content({"kind": "enrolled", "name": "no\x1bbody"}))
    found, enrolment = registrar(deployed, net)
    assert sorted(found.enrol(enrolment)) == [0, 1, 2, 3]
    assert found.roster.online() == {0: 50, 1: 51, 2: 52, 3: 53}
    said = texts(deployed)
    assert any("a second node calls itself site-03" in text for text in said)
    assert any("calls itself 'no body' is not one of the sites" in text for text in said)
    net.nodes[52].online = False
    assert found.enrol(enrolment) == []
    assert found.roster.online()[2] == 60


def bad_counts(**changes):
    said = {"kind": "enrolled", "name": "site-01", "labelled": 3, "unlabelled": 4, "heldout": 0, **changes}
    return lambda kind, records: codec.content(said)


@pytest.mark.parametrize(
    ("handler", "reason"),
    [
        (bad_counts(labelled=-1), "no images to train on"),
        (bad_counts(labelled=0, unlabelled=0), "no images to train on"),
        (bad_counts(labelled=1e300), "not a whole number"),
        (bad_counts(kind="hello"), "answered something else"),
        (lambda kind, records: codec.content({"kind": "failure", "reason": "full\x07disk"}), "full disk"),
    ],
)
def test_a_site_that_cannot_take_part_is_named_with_the_reason(tmp_path, small, handler, reason):
    deployed = deployment(tmp_path / "f", small)
    net = connect(deployed, small)
    net.nodes[50].handler = handler
    found, enrolment = registrar(deployed, net)
    assert found.enrol(enrolment) == [1, 2, 3]
    assert any(text.startswith("site-01 cannot take part: ") and reason in text for text in texts(deployed))


def test_a_sites_words_about_its_files_stay_at_the_site(tmp_path, small, capsys):
    deployed = deployment(tmp_path / "f", small)
    net = connect(deployed, small)

    def unreadable():
        raise DataError("patient-007.png: unknown class 'ill'")

    places = sides(prepare(small), tmp_path / "elsewhere")
    net.nodes[50].handler = handled_by(dataclasses.replace(places[0], images=unreadable))
    found, enrolment = registrar(deployed, net)
    found.enrol(enrolment)
    told = next(text for text in texts(deployed) if text.startswith("site-01"))
    assert told.endswith("its images cannot be used (DataError); the site's own output says why")
    assert "patient-007.png" not in (deployed.state / "live.jsonl").read_text()
    assert "patient-007.png" in capsys.readouterr().err


def test_server_and_site_must_agree_on_classes(tmp_path, small):
    deployed = deployment(tmp_path / "f", small)
    net = connect(deployed, small)
    places = sides(prepare(small), tmp_path / "elsewhere")
    form = {**places[1].form, "classes": [*reversed(places[1].form["classes"])]}
    net.nodes[51].handler = handled_by(dataclasses.replace(places[1], form=form))
    found, enrolment = registrar(deployed, net)
    assert found.enrol(enrolment) == [0, 2, 3]
    assert any(
        "site-02 cannot take part: server and site disagree on 'classes'" in t for t in texts(deployed)
    )


def test_gather_waits_for_quorum_and_gives_up_after_its_patience(tmp_path, small):
    deployed = deployment(tmp_path / "f", small)
    net = connect(deployed, small)
    for node in (51, 52, 53):
        net.nodes[node].online = False
    found, enrolment = registrar(deployed, net)
    with pytest.raises(RunError, match="1 of 4 sites have enrolled, 2 are needed"):
        gather(found, enrolment, quorum=2, deadline=0.1, patience=0.2)
    assert "waiting for site-02, site-03, site-04" in texts(deployed)
    net.nodes[51].online = True
    gather(found, enrolment, quorum=2, deadline=0.1, patience=0.2)
    assert sorted(enrolment.counts) == [0, 1]
    assert enrolment.population().sizes.tolist()[2:] == [0, 0]


def test_a_site_that_comes_late_takes_part_from_then_on(tmp_path):
    everyone = experiment("fedavg", rounds=2, per_round=4, subset=80, labels__per_class=4)
    deployed = deployment(tmp_path / "f", everyone, deadline=1.0)
    net = connect(deployed, everyone)
    late = net.nodes.pop(53)
    one = server(deployed, net)
    usual = one.live.round_finished

    def arrive(report):
        usual(report)
        net.nodes[53] = late

    one.live.round_finished = arrive
    one.run()
    assert "site-04 takes part from now on" in texts(deployed)
    assert [sorted(line["clients"]) for line in Run(deployed.run).metrics] == [[0, 1, 2], [0, 1, 2, 3]]
    assert json.loads((deployed.run / "sites.json").read_text())["sites"]["site-04"]["labelled"] > 0
    forget_counts(deployed.run)
    assert Enrolment.load(deployed.run, deployed.sites).counts == {}


def test_enrolments_survive_the_disk_and_damage_is_named(tmp_path):
    kept = Enrolment("ab" * 8, ("a", "b"), {1: Enrolled(3, 4, 2)})
    kept.save(tmp_path)
    assert Enrolment.load(tmp_path, ("a", "b")) == kept
    with pytest.raises(RunError, match=r"b took part in this run but is not in federation.toml"):
        Enrolment.load(tmp_path, ("a",))
    (tmp_path / "sites.json").write_text('{"run": 1, "sites": {"a": {"labelled": 1}}}')
    with pytest.raises(RunError, match=r"sites.json is damaged"):
        Enrolment.load(tmp_path, ("a", "b"))
