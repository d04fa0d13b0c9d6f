"""Every model at every site: what sites send for it, what is noted, and what people see of it."""

from __future__ import annotations

import dataclasses
import json

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'proxyfl[flower]'")

import torch
from loopback import deployment, experiment
from serving import server
from wireless import Node, WirelessGrid, handled_by, sides

from calling import invoke
from proxyfl.core.errors import RunError
from proxyfl.core.state import Update
from proxyfl.deploy import crosssite
from proxyfl.deploy.enrolment import Enrolment
from proxyfl.deploy.explain import explain
from proxyfl.engines.flower import codec
from proxyfl.engines.flower.site import SiteImages
from proxyfl.federation import measures
from proxyfl.federation.score_counts import score_counts
from proxyfl.report.html.gather import gather
from proxyfl.results.sites import matrix, matrix_of
from proxyfl.runs.run import Run
from proxyfl.runs.simulation import prepare

pytestmark = pytest.mark.usefixtures("quick")


def small(**more):
    settings = {"rounds": 2, "per_round": 4, "subset": 80, "labels__per_class": 4, "keep__metrics": "all"}
    return experiment("fedavg", model__name="little", **{**settings, **more})


def places(deployed, config, sharing=(), silent=()):
    """Sites of different sizes, and what they allow."""
    simulation, found = prepare(config), []
    test = simulation.dataset.test

    def images(place, side):
        index = torch.arange(40 * place, 40 * place + 20 + 5 * place)
        kept = test.take(index)
        return lambda: SiteImages(side.images().client, kept)

    for place, side in enumerate(sides(simulation, deployed.path / "elsewhere")):
        side = dataclasses.replace(
            side, images=images(place, side), shares=place in sharing, scores=place not in silent
        )
        found.append(side)
    return WirelessGrid({50 + k: Node(handled_by(side)) for k, side in enumerate(found)})


def played(tmp_path, config=None, **places_):
    config = config or small()
    deployed = deployment(tmp_path / "f", config, test="", holdout=0.5, insecure=True)
    server(deployed, places(deployed, config, **places_)).run()
    return deployed, Run(deployed.run)


def test_each_site_is_told_apart_and_all_of_them_are_the_sum(tmp_path):
    deployed, run = played(tmp_path)
    for line in run.metrics:
        at = line["evaluation"]["at"]
        assert [at[name]["images"] for name in deployed.sites] == [20, 25, 30, 35]
        right = sum(cell["images"] * cell["accuracy"] for cell in at.values())
        assert right / 110 == pytest.approx(line["accuracy"], abs=1e-5)
        assert {"macro_f1", "balanced_accuracy", "auroc", "ece"} <= line["measures"].keys() & at[
            "site-01"
        ].keys()
    found = matrix(run)
    worst, *_, best = sorted(deployed.sites, key=lambda name: at[name]["accuracy"])
    assert at[worst]["accuracy"] < line["accuracy"] < at[best]["accuracy"]
    assert found.worst[0] == worst
    shown = invoke("show", run.path, "--sites").output
    assert shown.index(worst) < shown.index(best)
    assert f"worst: {worst}" in shown
    assert all(word in shown for word in ("AUROC", "calibration"))
    told = json.loads(invoke("show", run.path, "--sites", "--json").output)
    assert told["images"] == {"site-01": 20, "site-02": 25, "site-03": 30, "site-04": 35}


def test_without_held_out_images_the_command_names_the_way_to_have_them(tmp_path):
    config = small()
    deployed = deployment(tmp_path / "f", config, insecure=True)
    server(deployed, places(deployed, config)).run()
    refused = invoke("show", deployed.run, "--sites")
    assert refused.exit_code == 2
    assert "--holdout" in refused.output


def test_models_that_sites_share_are_measured_at_every_site_in_the_last_round(tmp_path):
    _, run = played(tmp_path, sharing=(1, 3))
    assert [list(line["evaluation"].get("models", ())) for line in run.metrics] == [
        [],
        ["site-02", "site-04"],
    ]
    shared = run.metrics[-1]["evaluation"]["models"]
    assert {one["round"] for one in shared.values()} <= {1, 2}
    assert all(len(one["at"]) == 4 for one in shared.values())
    rows = [row for row in matrix(run).rows if row.own]
    assert [row.own for row in rows] == ["site-02", "site-04"]
    assert not (run.path / "shared" / "site-01.safetensors").exists()
    assert "of site-04" in invoke("show", run.path, "--sites").output
    part = gather([run])["runs"][0]["sites"]
    assert [name for name, _ in part["models"]][-1] == "of site-04"
    assert part["images"] == [20, 25, 30, 35]
    assert set(part["measures"]) == {
        "accuracy", "macro-F1", "balanced accuracy", "AUROC", "calibration error"
    }  # fmt: skip


def test_a_site_may_withdraw_its_model_while_the_run_goes_on(tmp_path):
    config = small()
    deployed = deployment(tmp_path / "f", config, test="", holdout=0.5, insecure=True)
    net, later = (places(deployed, config, sharing=sharing) for sharing in ((1, 2, 3), (1, 3)))
    one = server(deployed, net)
    usual = one.live.round_finished

    def change(report):
        usual(report)
        if report.metrics["round"] > 1:
            return
        assert (deployed.run / "shared" / "site-03.safetensors").exists()
        net.nodes[52].handler = later.nodes[52].handler  # share_model = false
        net.nodes[53].online = False  # nobody knows whether it would still share

    one.live.round_finished = change
    one.run()
    assert list(Run(deployed.run).metrics[-1]["evaluation"]["models"]) == ["site-02"]
    assert not list((deployed.run / "shared").glob("site-03*"))
    assert not Enrolment.load(deployed.run, deployed.sites).counts[2].shares
    assert Enrolment.load(deployed.run, deployed.sites).counts[3].shares


@pytest.mark.parametrize("measure", ["auroc", "ece"])
def test_measures_of_all_need_the_scores_of_all(measure, tmp_path):
    _, run = played(tmp_path, silent=(0,))
    line = run.metrics[-1]
    assert measure not in line["measures"]
    assert "macro_f1" in line["measures"]
    assert measure not in line["evaluation"]["at"]["site-01"]
    assert measure in line["evaluation"]["at"]["site-02"]


SITES = {"privacy__clip": 1.0, "privacy__draw": "system", "federation__weighting": "uniform"}
RECORDS = {
    "privacy__record_clip": 1.0,
    "privacy__draw": "system",
    "model__norm": "group",
    "train__pool": "unlabelled",
}


@pytest.mark.parametrize("private", [SITES, pytest.param(RECORDS, marks=pytest.mark.slow)])
def test_scores_are_sent_only_where_they_are_asked_for_and_never_under_differential_privacy(
    private, tmp_path
):
    if private is RECORDS:
        pytest.importorskip("opacus", reason="Opacus is not installed: pip install 'proxyfl[dp]'")
    for settings, sent in (({}, True), ({"keep__metrics": "accuracy"}, False), (private, False)):
        config = small(**settings)
        deployed = deployment(tmp_path / f"f{len(list(tmp_path.iterdir()))}", config, test="", holdout=0.5,
                              insecure=True)  # fmt: skip
        net, seen = places(deployed, config, sharing=(0,)), []
        for node in net.nodes.values():
            inner = node.handler

            def watched(kind, records, inner=inner, seen=seen):
                answer = inner(kind, records)
                seen.extend(codec.unpacked(part).keys() for part in answer.array_records.values())
                return answer

            node.handler = watched
        server(deployed, net).run()
        assert any({"histograms", "calibration"} <= set(keys) for keys in seen) == sent
        assert any("confusion" in keys for keys in seen)
        run = Run(deployed.run)
        assert ("at" in run.metrics[-1]["evaluation"]) == (settings is not private)
        told = explain(deployed).measured
        assert ("counts of scores" in told) == sent
        assert ("share_model" in told) == (settings is not private)
    assert not (run.path / "shared").exists()
    assert not Enrolment.load(run.path, deployed.sites).counts[0].shares
    assert not run.directory.client_log.exists()
    assert "differential privacy forbids" in explain(deployed).noted
    with pytest.raises(RunError, match="differential privacy forbids"):
        matrix(run)


def test_a_server_under_differential_privacy_does_not_use_scores_that_sites_send_nevertheless(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("proxyfl.engines.flower.site.counts_scores", lambda config: True)
    _, run = played(tmp_path, small(rounds=1, **SITES))
    assert "macro_f1" in run.metrics[-1]["measures"]
    assert "auroc" not in run.metrics[-1]["measures"]


def reply(confusion, counts):
    parts = {"confusion": confusion, **counts}
    return codec.content({"kind": "evaluation"}, {codec.OWN: codec.packed(parts)})


def test_counts_of_scores_that_cannot_be_are_refused():
    probabilities = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    confusion = torch.tensor([[1, 0], [1, 1]])
    labels = torch.tensor([0, 1, 1])
    counts = score_counts(probabilities, labels)
    found = crosssite.read_counts(reply(confusion, counts), 2, 3).scores
    assert found == pytest.approx(measures.of_scores(probabilities, labels))
    for name, sent in counts.items():
        more, short = sent * 2, sent[..., 1:].contiguous()
        for wrong, reason in ((sent.half(), "form"), (short, "form"), (more, "fit"), (-sent, "fit")):
            with pytest.raises(codec.Malformed, match=reason):
                crosssite.read_counts(reply(confusion, {**counts, name: wrong}), 2, 3)


def shared_models(run):
    enrolment = Enrolment.load(run.path, ("site-01", "site-02", "site-03", "site-04"))
    return crosssite.SharedModels(run.path, enrolment)


def test_the_model_that_a_site_shares_is_its_best(tmp_path):
    _, run = played(tmp_path, small(rounds=1), sharing=(0,))
    shared = shared_models(run)
    first = shared.best()[0]
    assert first.round == 1
    assert first.accuracy == run.metrics[-1]["evaluation"]["models"]["site-01"]["at"]["site-01"]["accuracy"]

    def sent(round, value, accuracy):
        weights = {name: torch.full_like(tensor, value) for name, tensor in first.weights.items()}
        shared.answered(Update(round, 0, 1, weights))
        assert list(shared.fresh(round)) == [0]
        assert not shared.fresh(round - 1)
        shared.measured(0, round, accuracy)
        return shared.best()[0]

    assert sent(2, 2, first.accuracy).round == 1
    assert sent(3, 3, 0.999).round == 3
    best = sent(4, 4, 0.998)
    assert (best.round, best.accuracy) == (3, 0.999)
    assert all((value == 3).all() for value in best.weights.values())


def test_a_damaged_shared_model_is_none(tmp_path):
    _, run = played(tmp_path, sharing=(0,))
    shared = shared_models(run)
    assert shared.best()[0].weights
    for name in ("site-01", "site-01.last"):
        file = run.path / "shared" / f"{name}.safetensors"
        file.write_bytes(file.read_bytes()[:-1] + b"x")
    assert not shared.best()
    assert not shared.fresh(2)
    shared.measured(0, 2, 0.5)
    assert not shared.best()


@pytest.mark.parametrize(
    "evaluation",
    [
        None, {"at": 3}, {"at": {"a": 1}}, {"at": {"a": {"accuracy": 2, "images": 3}}},
        {"at": {"a": {"accuracy": 0.5, "images": -1}}}, {"at": {"a": {"accuracy": True, "images": 3}}},
    ],
)  # fmt: skip
def test_what_an_untrusted_record_holds_is_passed_over(evaluation):
    assert matrix_of([{"round": 1, "accuracy": 0.5, "evaluation": evaluation}]) is None
