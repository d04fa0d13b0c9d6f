"""Who takes part in a real federation, and with how many images, without a network."""

from __future__ import annotations

import dataclasses
import json

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'proxyfl[flower]'")

from flwr.app import Error
from loopback import deployment, experiment
from serving import connect, newest, server, texts
from wireless import Node, handled_by, sides

from calling import invoke
from proxyfl.core.errors import DataError, RunError
from proxyfl.deploy.enrolment import Enrolled, Enrolment, forget_counts, gather
from proxyfl.engines.flower import codec
from proxyfl.engines.flower.protocol import spoken
from proxyfl.runs.run import Run
from proxyfl.runs.simulation import prepare

pytestmark = pytest.mark.usefixtures("quick")


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
    assert any("site-02, but it was started as 'site-01'" in text for text in said)
    assert any("site-01, but it was started as 'site-02'" in text for text in said)


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
    assert any("calls itself 'no\\x1bbody'" in text for text in said)
    asked = len(net.pulls)
    assert found.enrol(enrolment) == []
    assert len(net.pulls) == asked
    net.nodes[52].online = False
    assert found.enrol(enrolment) == []
    assert found.roster.online()[2] == 60


def bad_counts(**changes):
    counts = {"labelled": 3, "unlabelled": 4, "heldout": 0}
    said = {"kind": "enrolled", "name": "site-01", **spoken(), **counts, **changes}
    return lambda kind, records: codec.content(said)


@pytest.mark.parametrize(
    ("handler", "reason"),
    [
        (bad_counts(labelled=-1), "no images to train on"),
        (bad_counts(labelled=0, unlabelled=0), "no images to train on"),
        (bad_counts(labelled=1e300), "whole number"),
        (bad_counts(labelled=2**53), f"it claims {2**53 + 4} images; federation.toml allows max_images"),
        (bad_counts(heldout=1_000_001), "it claims 1000001 images"),
        (bad_counts(kind="hello"), "answered something else"),
        (bad_counts(protocol=None), "upgrade site-01 to the proxyfl of the server"),
        (bad_counts(protocol=[8, 9]), "upgrade the server to the proxyfl of site-01"),
        (
            lambda kind, records: codec.content({"kind": "failure", "reason": "full\x07\ndisk"}),
            "full\\x07 disk",
        ),
    ],
)
def test_a_site_that_cannot_take_part_is_named_with_the_reason(tmp_path, small, handler, reason):
    deployed = deployment(tmp_path / "f", small)
    net = connect(deployed, small)
    net.nodes[50].handler = handler
    found, enrolment = registrar(deployed, net)
    assert found.enrol(enrolment) == [1, 2, 3]
    assert any(text.startswith("site-01 cannot take part: ") and reason in text for text in texts(deployed))


def test_a_site_that_has_not_answered_may_still_take_part(tmp_path, small):
    deployed = deployment(tmp_path / "f", small)
    net = connect(deployed, small)
    net.nodes[50].handler = lambda kind, records: Error(5, "Error: Node Unavailable")
    found, enrolment = registrar(deployed, net)
    assert found.enrol(enrolment) == [1, 2, 3]
    told = "site-01 did not answer yet: it was stopped or lost its connection; it is asked again in 60 s"
    assert told in texts(deployed)
    assert not any("Flower" in text or "cannot take part" in text for text in texts(deployed))


def test_a_run_goes_on_without_a_site_that_claims_all_the_images_of_the_world(tmp_path):
    config = experiment("fedavg", model__name="little", rounds=1, per_round=4, subset=80, labels__per_class=4)
    deployed = deployment(tmp_path / "f", config)
    net = connect(deployed, config)
    net.nodes[50].handler = bad_counts(unlabelled=2**53)
    server(deployed, net).run()
    assert sorted(Run(deployed.run).metrics[-1]["clients"]) == [1, 2, 3]
    assert any(text.startswith("site-01 cannot take part: it claims ") for text in texts(deployed))


def test_a_sites_version_is_told_on_one_line(tmp_path, small):
    deployed = deployment(tmp_path / "f", small)
    net = connect(deployed, small)
    net.nodes[50].handler = bad_counts(versions={"proxyfl": "9\n\x1b[2J", "torch": [1]})
    found, enrolment = registrar(deployed, net)
    assert 0 in found.enrol(enrolment)
    first, second = (text for text in texts(deployed) if text.startswith("site-01 has "))
    assert first.startswith("site-01 has proxyfl 9 \\x1b[2J, the server ")
    assert second.startswith("site-01 has torch of an unknown version")


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
    assert "its images cannot be used (DataError)" in told
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
    assert any("server and site disagree on 'classes'" in t for t in texts(deployed))


def test_gather_waits_for_quorum_and_gives_up_after_its_patience(tmp_path, small):
    deployed = deployment(tmp_path / "f", small)
    net = connect(deployed, small)
    for node in (51, 52, 53):
        net.nodes[node].online = False
    found, enrolment = registrar(deployed, net)
    with pytest.raises(RunError, match=r"1 of 4 sites .*2"):
        gather(found, enrolment, quorum=2, deadline=0.1, patience=0.2)
    assert "waiting for site-02, site-03, site-04" in texts(deployed)
    net.nodes[51].online = True
    gather(found, enrolment, quorum=2, deadline=0.1, patience=0.2)
    assert sorted(enrolment.counts) == [0, 1]
    assert enrolment.population(1).sizes.tolist()[2:] == [0, 0]


def test_a_site_that_comes_late_takes_part_from_then_on(tmp_path):
    everyone = experiment(
        "fedavg", model__name="little", rounds=2, per_round=4, subset=80, labels__per_class=4
    )
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


def test_after_counts_were_forgotten_the_quorum_still_holds(tmp_path, small):
    deployed = deployment(tmp_path / "f", small)
    net = connect(deployed, small)
    one = server(deployed, net)
    one.live.round_finished = interrupting(one.live.round_finished)
    with pytest.raises(KeyboardInterrupt):
        one.run()
    forget_counts(deployed.run)
    for node in (51, 52, 53):
        net.nodes[node].online = False
    with pytest.raises(RunError, match=r"1 of 4 sites .*2"):
        server(deployed, net).run()
    assert newest(deployed.run).round == 1
    for node in (51, 52, 53):
        net.nodes[node].online = True
    server(deployed, net).run()
    assert newest(deployed.run).round == 3
    assert sorted(Enrolment.load(deployed.run, deployed.sites).counts) == [0, 1, 2, 3]


def interrupting(usual):
    def finished(report):
        usual(report)
        raise KeyboardInterrupt

    return finished


def test_only_sites_that_take_part_make_a_quorum(tmp_path, small):
    deployed = deployment(tmp_path / "f", small, deadline=1.0, patience=20.0)
    net = connect(deployed, small)
    for node in (52, 53):
        net.nodes[node].handler = bad_counts(labelled=-1)
    one = server(deployed, net)
    usual = one.live.round_finished

    def leave(report):
        usual(report)
        net.nodes[50].online = False

    one.live.round_finished = leave
    with pytest.raises(RunError, match=r"round 2: 1 sites .*2"):
        one.run()


def test_counts_are_kept_where_no_server_answers(tmp_path, small):
    deployed = deployment(tmp_path / "f", small)
    kept = Enrolment("ab" * 8, deployed.sites, {1: Enrolled(3, 4, 2)})
    deployed.run.mkdir()
    kept.save(deployed.run)
    done = invoke("deploy", "run", deployed.path, "--enrol-again")
    assert (done.exit_code, "the server is not running" in done.stderr) == (2, True)
    assert Enrolment.load(deployed.run, deployed.sites) == kept


def test_enrolments_survive_the_disk_and_damage_is_named(tmp_path):
    kept = Enrolment("ab" * 8, ("a", "b"), {1: Enrolled(3, 4, 2)})
    kept.save(tmp_path)
    assert Enrolment.load(tmp_path, ("a", "b")) == kept
    with pytest.raises(RunError, match=r"b took part .*federation.toml"):
        Enrolment.load(tmp_path, ("a",))
    with pytest.raises(RunError, match=r"restore them, .*: a, b"):
        Enrolment.load(tmp_path, ("b", "a"))
    (tmp_path / "sites.json").write_text('{"run": 1, "sites": {"a": {"labelled": 1}}}')
    with pytest.raises(RunError, match=r"sites.json is damaged"):
        Enrolment.load(tmp_path, ("a", "b"))
    for damage in ("{", "[1]"):
        (tmp_path / "sites.json").write_text(damage)
        with pytest.raises(RunError, match=r"sites.json is damaged"):
            forget_counts(tmp_path)
