"""The server of a real federation, without a network: quorum, resume, accuracy."""

from __future__ import annotations

import dataclasses
import shutil

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'proxyfl[flower]'")

import torch
from flwr.app import MessageType
from loopback import deployment, experiment
from serving import connect, newest, server, texts

from calling import invoke
from proxyfl.core.checksum import read_verified
from proxyfl.core.errors import ConfigError, RunError
from proxyfl.core.state import content_hash
from proxyfl.deploy import crosssite, longer, model_signing, operate, scaffold, server_run
from proxyfl.deploy.audit import AuditLog
from proxyfl.deploy.live import LIVE_FILE
from proxyfl.deploy.settings import Deployment
from proxyfl.deploy.status import run_line
from proxyfl.engines.flower import codec
from proxyfl.engines.flower.held import HeldUpdates
from proxyfl.report.html.gather import gather
from proxyfl.runs import checkpoint, extend
from proxyfl.runs.experiment import Experiment, resume
from proxyfl.runs.recorder import client_lines
from proxyfl.runs.run import Run
from proxyfl.runs.simulation import prepare
from toybox import Told, play, same_bits, same_state

pytestmark = pytest.mark.usefixtures("quick")


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
    noted = b"".join(client_lines(report.rows) for report in told.reports)
    assert (deployed.run / "clients.jsonl").read_bytes() == noted, "the server needs nothing more for it"
    assert set(run.clients()["name"]) <= set(deployed.sites)
    assert run.model().card.classes == deployed.classes
    assert texts(deployed)[-1] == f"finished after 3 rounds: {deployed.run}"

    files = [deployed.run / "metrics.jsonl", *sorted(deployed.run.glob("models/*.safetensors"))]
    before = [file.read_bytes() for file in files]
    assert len(files) == 3
    for model in files[1:]:
        model.write_bytes(b"nothing")
    server(deployed, connect(deployed, small)).run()
    assert [file.read_bytes() for file in files] == before, "models are put right"


def test_a_stopped_run_goes_on_and_ends_with_the_same_bits(tmp_path):
    config = experiment(
        "fedloke", model__name="little", rounds=3, per_round=2, subset=80, labels__per_class=4
    )
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
    assert texts(stopped)[-1] == "interrupted; the checkpoint is kept"
    assert newest(stopped.run).round == 1
    server(stopped, net).run()
    assert same_state(newest(straight.run), newest(stopped.run))
    assert [line["round"] for line in Run(stopped.run).metrics] == [1, 2, 3]


@pytest.mark.parametrize("behind", ["the checkpoint", "the signatures"])
def test_a_kill_at_the_end_of_a_run_leaves_nothing_undone(behind, tmp_path, monkeypatch):
    """Models unsigned, updates without noise on the disk, an end that no log has."""
    sizes = {"clients": 2, "per_round": 2, "subset": 80, "labels__per_class": 4}
    private = {"privacy__clip": 1.0, "privacy__draw": "system", "federation__weighting": "uniform"}
    config = experiment("fedavg", model__name="little", rounds=1, **sizes, **private)
    deployed = deployment(tmp_path / "f", config)
    net = connect(deployed, config)

    def killing(*about, **more):
        if about or more:  # a round
            raise KeyboardInterrupt

    killed = server(deployed, net)
    cut = (killed.audit, "sign") if behind == "the checkpoint" else (HeldUpdates, "round_finished")
    with monkeypatch.context() as patch:
        patch.setattr(*cut, killing)
        with pytest.raises(KeyboardInterrupt):
            killed.run()
    assert newest(deployed.run).round == 1
    assert model_signing.all_signed(deployed) == (behind == "the signatures")
    assert any((deployed.run / "held").iterdir())
    asked = []
    monkeypatch.setattr(operate, "require_server", lambda *words: None)
    monkeypatch.setattr(operate, "submit", lambda again: asked.append(again.path) or "7")
    assert invoke("deploy", "run", deployed.path, "--detach").exit_code == 0
    assert asked == [deployed.path], "the run is not over"
    server(deployed, net).run()
    assert not (deployed.run / "held").exists()
    events = AuditLog(deployed.path).verify().events
    assert (events["round finished"], events["run finished"], events["signed"]) == (1, 1, 2)
    assert [line["event"] for line in Run(deployed.run).events].count("finished") == 1
    for model in (deployed.run / "models").glob("*.safetensors"):
        assert model_signing.check(model, deployed.ca_certificate).about["round"] == 1
    assert "is finished" in invoke("deploy", "run", deployed.path, "--detach").stderr


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
    said = [text for text in texts(deployed) if "asking again" in text]
    lack = "0 of 2 sites gave a usable update, 2 are needed (site-02, site-03: busy); asking again for "
    assert lack in said[0]
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
    with pytest.raises(RunError, match=r"0 sites .*2"):
        one.run()
    assert newest(deployed.run).round == 1
    *_, waiting, stopped = texts(deployed)
    assert waiting == "round 2: 0 sites are connected, 2 are needed; waiting"
    assert stopped.startswith("stopped: round 2: 0 sites are connected, 2 are needed")
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
    with pytest.raises(RunError, match="0 of 2 sites") as stopped:
        server(deployed, net).run()
    again = f"the checkpoint is kept; continue with: proxyfl deploy run {deployed.path}"
    assert str(stopped.value).endswith(f"(site-01, site-04: busy); {again}")
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
    source = run.metrics[-1]["evaluation"]
    assert source.pop("at").keys() == {"site-01", "site-03", "site-04"}
    assert source == {
        "where": "sites",
        "images": 90,
        "sites": ["site-01", "site-03", "site-04"],
        "missing": ["site-02"],
    }
    told = [text for text in texts(deployed) if text.startswith("round 1: accuracy ")]
    shown = invoke("show", deployed.run).stdout
    assert "at the sites, rounds 1 to 3" in shown
    assert "test accuracy" not in shown
    assert gather([run])["runs"][0]["accuracy_called"] == "accuracy on data held out at the sites"
    drawn = run.plot(tmp_path / "figure.svg").read_text(encoding="utf-8")
    assert "accuracy on data held out at the sites" in drawn.lower()
    assert "test accuracy" not in drawn.lower()
    assert "% (on 90 images of site-01, site-03, site-04 alone), answered: " in told[0]
    test = prepare(small).dataset.test
    predicted = run.model()(test.images[:30]).argmax(1)
    hits = int((predicted == test.labels[:30]).sum())
    assert run.metrics[-1]["accuracy"] == (30 + 2 * hits) / 90
    for row in run.client_rows:
        assert ("accuracy" in row) == (row["client"] != 1), "the liar has none"
        if row["client"] == 0:
            assert (row["held"], row["accuracy"]) == (30, 1.0)
        elif row["round"] == 3 and row["client"] != 1:
            assert row["accuracy"] == pytest.approx(hits / 30, abs=1e-5)
    assert any("site-02 measured nothing" in text for text in texts(deployed))


def test_sites_are_asked_for_accuracy_in_measured_rounds_only(tmp_path):
    config = experiment(
        "fedavg",
        model__name="little",
        rounds=5,
        per_round=2,
        subset=80,
        labels__per_class=4,
        federation__evaluate_every=2,
    )
    deployed = deployment(tmp_path / "f", config, test="", holdout=0.5)
    net = connect(deployed, config, heldout=30)
    asked, honest = [], net.nodes[50].handler

    def counting(kind, records):
        if kind == MessageType.EVALUATE:
            asked.append(codec.header_of(records)["round"])
        return honest(kind, records)

    net.nodes[50].handler = counting
    server(deployed, net).run()
    run = Run(deployed.run)
    assert asked == [2, 4, 5]
    for name in ("accuracy", "per_class", "evaluation"):
        assert [line["round"] for line in run.metrics if name in line] == [2, 4, 5], name
    rounds = [text for text in texts(deployed) if text.startswith("round ")]
    assert ["accuracy" in text for text in rounds] == [False, True, False, True, True]
    assert "null" not in (deployed.state / LIVE_FILE).read_text()
    assert f"run finished: round 5 of 5, accuracy {run.summary.last:.1%}" in run_line(deployed)


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
        assert crosssite.read_counts(reply, 2, 6).confusion.tolist() == [[2, 1], [0, 3]]
        return
    with pytest.raises(codec.Malformed, match=reason):
        crosssite.read_counts(reply, 2, 6)


def test_no_site_that_measures_ends_the_run_with_a_reason(tmp_path, small):
    deployed = deployment(tmp_path / "f", small, test="", holdout=0.5, patience=0.1)
    with pytest.raises(RunError, match="no site measured accuracy"):
        server(deployed, connect(deployed, small, heldout=0)).run()


def test_settings_that_were_changed_are_refused(tmp_path, small):
    deployed = deployment(tmp_path / "f", small)
    server(deployed, connect(deployed, small)).run()
    tree = {**deployed.experiment, "seed": 5}
    other = dataclasses.replace(deployed, experiment=tree)
    with pytest.raises(RunError, match=r"\[experiment\] of .* was changed"):
        server(other, connect(deployed, small)).run()
    other = dataclasses.replace(deployed, quorum=1)
    with pytest.raises(RunError, match=r"quorum = 1, .*2; restore it"):
        server(other, connect(deployed, small)).run()
    with pytest.raises(RunError, match="proxyfl deploy run"):
        resume(deployed.run)


@pytest.mark.parametrize("place", ["between both files", "among the checkpoints"])
def test_more_rounds_that_were_interrupted_are_asked_for_again(tmp_path, small, monkeypatch, place):
    deployed = deployment(tmp_path / "f", small)
    server(deployed, connect(deployed, small)).run()

    class Killed(BaseException):
        pass

    def killed(*words):
        raise Killed

    module, name = {
        "between both files": (scaffold, "write_again"),
        "among the checkpoints": (extend, "write_bytes"),
    }[place]
    with monkeypatch.context() as patch:
        patch.setattr(module, name, killed)
        with pytest.raises(Killed):
            longer.lengthen(deployed, 4)
    deployed = Deployment.read(deployed.path)
    with pytest.raises(RunError, match=rf"'proxyfl deploy run {deployed.path} --rounds 4'") as caught:
        server(deployed, connect(deployed, small)).run()
    assert "away" not in str(caught.value)
    again = longer.lengthen(deployed, 4)
    server(again, connect(deployed, small)).run()
    assert Run(deployed.run).summary.rounds == 4


def test_a_superlink_that_fails_interrupts_a_run_and_is_not_its_end(tmp_path, small):
    import httpx

    from proxyfl.deploy.live import ENDS, LiveReader

    deployed = deployment(tmp_path / "f", small)
    one = server(deployed, connect(deployed, small))

    def ill(report):
        raise httpx.ConnectError("500")

    one.live.round_finished = ill
    with pytest.raises(httpx.ConnectError):
        one.run()
    last = LiveReader(deployed.state / "live.jsonl").new()[-1]
    assert last["event"] not in ENDS
    assert "the SuperLink does not work" in last["text"]


def test_a_real_federation_starts_from_weights_and_keeps_a_copy(tmp_path, small):
    first = Experiment(config=small).run(tmp_path / "first", workers=0)
    shutil.copy(first.path / "models" / "last.safetensors", tmp_path / "start.safetensors")
    model = dataclasses.replace(small.model, weights=str(tmp_path / "start.safetensors"))
    config = dataclasses.replace(small, model=model)
    deployed = deployment(tmp_path / "f", config)
    server(deployed, connect(deployed, small)).run()
    began = checkpoint.read(deployed.run / "checkpoints" / "round-00000002").config.decode()
    start = read_verified(deployed.run / "start.safetensors")[0]
    assert f'weights_hash = "{content_hash(start)}"' in began
    assert same_bits(start, read_verified(tmp_path / "start.safetensors")[0])
    (tmp_path / "start.safetensors").unlink()
    server(deployed, connect(deployed, small)).run()  # finished, and nothing is missed

    lonely = dataclasses.replace(config, method=experiment("fedloke").method)
    with pytest.raises(ConfigError, match="no site has the weights"):
        _ = deployment(tmp_path / "g", lonely).config
