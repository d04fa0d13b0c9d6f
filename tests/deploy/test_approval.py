"""Site approval: whatever the server sends, a site does and sends what its owner signed for, and no more."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, RecordDict
from flwr.proto.fab_pb2 import GetFabResponse
from typer.testing import CliRunner

from calling import invoke
from proxyfl.cli import app
from proxyfl.core.errors import ConfigError, RunError
from proxyfl.core.files import sha256
from proxyfl.core.state import Failure, Update, namespace
from proxyfl.core.trees import merge, nested
from proxyfl.deploy import approval, desk, operate, pki, pruning, repeats, signing, supervise
from proxyfl.deploy.approval import Refused
from proxyfl.deploy.audit import AuditLog
from proxyfl.deploy.connector import Connector
from proxyfl.deploy.desk import Desk
from proxyfl.deploy.forward import Answer
from proxyfl.deploy.settings import Deployment, Site
from proxyfl.engines.flower.codec import answer_records, content, digest_of, header_of
from proxyfl.engines.flower.protocol import spoken

TYPES = {"F32": torch.float32, "I64": torch.int64}


@pytest.fixture(scope="module")
def agreed(trial: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site's folder on its own machine, approved. Not to be changed: see ``site``."""
    place = tmp_path_factory.mktemp("hospital") / "site-01"
    shutil.copytree(trial / "site-01", place)
    one = Site.read(place)
    approval.approve(one, approval.newest_offer(one)[0])
    return place


@pytest.fixture
def site(agreed: Path, tmp_path: Path) -> Site:
    return Site.read(shutil.copytree(agreed, tmp_path / "site-01"))


def app_of(site: Site) -> str:
    return approval.read(site).offer.app[: signing.MARK]


def message(site: Site, changes: dict[str, Any] | None = None, **header: Any) -> RecordDict:
    """What an honest server sends, with changes of its settings."""
    config = merge(approval.read(site).offer.tree["config"], nested(changes or {}))
    return content({**spoken(), "config": config, "round": 1, "client": 0, "run": "0" * 16, **header})


def update(site: Site, **more: Any) -> Update:
    """What an honest site answers."""
    found = approval.read(site)
    tensors = {
        name: torch.zeros(shape, dtype=TYPES[kind]) for name, (kind, shape) in found.leaves["train"].items()
    }
    metrics = dict.fromkeys(found.metrics, 1.0)
    made = Update(1, 0, 10, namespace(tensors, "weights"), namespace(tensors, "extras"), metrics)
    return dataclasses.replace(made, **more)


def ask(
    site: Site, records: RecordDict, kind: str = "train", app: str = "", answer: Any = None
) -> dict[str, Any]:
    """The header of the reply; nothing may be done where it is a refusal."""
    done = []

    def act() -> RecordDict:
        done.append(1)
        return answer if isinstance(answer, RecordDict) else answer_records(answer or update(site))

    reply = Desk(site, app or app_of(site)).answer(kind, records, act)
    header = header_of(reply)
    return {**header, "done": bool(done), "reply": reply}


def refused(site: Site, *words: Any, **more: Any) -> str:
    found = ask(site, *words, **more)
    assert found["kind"] == "failure"
    assert str(site.path) not in found["reason"]
    last = AuditLog(site.path).verify().lines[-1]
    assert (last["event"], last["reason"]) == ("refused", found["reason"])
    assert (last["bytes"], last["sha256"]) == digest_of(found["reply"])  # what the server logs as received
    return str(found["reason"])


def test_what_was_approved_is_done_and_both_ends_are_noted(site: Site) -> None:
    found = ask(site, message(site))
    assert found["kind"] == "update"
    received, sent = list(AuditLog(site.path).verify().lines)[-2:]
    assert (received["event"], received["kind"], received["round"]) == ("received", "train", 1)
    assert sent["event"] == "sent"
    assert sent["bytes"] > 300_000
    assert len(sent["sha256"]) == 64


def test_whatever_goes_wrong_at_a_site_is_logged_before_its_failure_leaves(site: Site, capsys: Any) -> None:
    def act() -> RecordDict:
        raise RunError(f"{site.path}/answers.json is damaged")

    reply = Desk(site, app_of(site)).answer("train", message(site), act)
    found, last = header_of(reply), AuditLog(site.path).verify().lines[-1]
    assert (found["kind"], found["round"]) == ("failure", 1)
    assert "RunError" in found["reason"]
    assert str(site.path) not in found["reason"]
    assert f"{site.path}/answers.json is damaged" in capsys.readouterr().err
    assert (last["event"], last["reason"], last["sha256"]) == ("failed", found["reason"], digest_of(reply)[1])


WIDER = {
    "method.name": "fedavg",
    "method.icpl.tau": 0.1,
    "federation.rounds": 9999,
    "train.lr": 0.5,
    "model.norm": "static",
    "seed": 99,
    "keep.clients": "all",
    "labels.where": "partial",
}


@pytest.mark.parametrize("name", WIDER)
def test_another_setting_is_refused_before_anything_is_done(site: Site, name: str) -> None:
    records = message(site, {name: WIDER[name]})
    assert f"the site's owner did not approve {name} = {WIDER[name]!r}, approved: " in refused(site, records)
    assert not ask(site, records)["done"]


LONG = "x\U0001f600" * 40_000


@pytest.mark.parametrize(
    ("changes", "header"),
    [
        ({"model.name": LONG}, {}),
        ({}, {"purpose": LONG}),
        ({"seed": 99}, {"run": LONG}),
        ({"model.name": LONG}, {"run": LONG, "purpose": LONG}),
    ],
)
def test_no_length_of_what_the_server_sends_keeps_a_refusal_out_of_the_log(
    site: Site, changes: dict[str, Any], header: dict[str, Any]
) -> None:
    assert ask(site, message(site, changes, **header))["kind"] == "failure"
    received, last = list(AuditLog(site.path).verify().lines)[-2:]
    assert (received["event"], last["event"]) == ("received", "refused")
    assert "…" in str(last)


def test_a_refusal_that_cannot_be_logged_is_not_kept_for_the_owner_either(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = AuditLog.add

    def full(log: AuditLog, event: str, **details: Any) -> Any:
        if event == "refused":
            raise RunError("no space")
        return add(log, event, **details)

    monkeypatch.setattr(AuditLog, "add", full)
    with pytest.raises(RunError, match="no space"):
        ask(site, message(site, {"seed": 99}))
    assert not (site.state / approval.ASKED_FILE).exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"federation.rounds": 2},
        {"federation.evaluate_every": 5},
        {"keep.clients": "none"},
        {"privacy.clip": 1.0, "privacy.where": "site", "privacy.draw": "system"},
        {"federation.per_round": 2, "federation.quorum": 1, "partition.clients": 2},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_less_than_was_approved_passes(site: Site, changes: dict[str, Any]) -> None:
    assert ask(site, message(site, changes))["kind"] == "update"


def test_under_differential_privacy_what_weakens_it_is_refused(site: Site) -> None:
    private = {"privacy.clip": 1.0, "privacy.noise": 1.0, "privacy.where": "site", "privacy.draw": "system"}
    before = approval.read(site).offer.config
    tree = merge(before.to_tree(), nested(private))
    approved = approval.Offer.from_tree({"config": tree}).config
    for change, wider in (
        ({"privacy.clip": 2.0}, True),
        ({"privacy.clip": 0.0}, True),
        ({"privacy.noise": 0.1}, True),
        ({"privacy.where": "server"}, True),
        ({"privacy.draw": "seed"}, True),
        ({"federation.per_round": before.federation.per_round + 5}, True),
        ({"partition.clients": before.partition.clients - 1}, True),
        ({"partition.clients": before.partition.clients + 1}, False),
        ({"privacy.clip": 0.5, "privacy.noise": 2.0}, False),
    ):
        asked = approval.Offer.from_tree({"config": merge(tree, nested(change))}).config
        assert bool(approval.widened(approved, asked)) is wider, change


def test_settings_that_are_left_out_are_no_way_around(site: Site) -> None:
    config = approval.read(site).offer.tree["config"]
    for section in ("method", "train", "federation"):
        less = {name: value for name, value in config.items() if name != section}
        assert "did not approve" in refused(site, _with(site, less))
    assert "it carries no settings" in refused(site, content({**spoken(), "round": 1, "client": 0}))


def _with(site: Site, config: dict[str, Any]) -> RecordDict:
    return content({**spoken(), "config": config, "round": 1, "client": 0})


def test_rounds_beyond_the_approved_ones_are_refused_whatever_the_settings_say(site: Site) -> None:
    rounds = approval.read(site).offer.config.federation.rounds
    assert ask(site, message(site, round=rounds))["kind"] == "update"
    assert f"approved {rounds} rounds, not round {rounds + 1}" in refused(
        site, message(site, round=rounds + 1)
    )


def test_what_is_asked_beside_training_needs_approval_too(site: Site) -> None:
    assert "did not approve 'statistics'" in refused(site, message(site, purpose="statistics"))
    assert "did not approve 'evaluate'" in refused(site, message(site), kind="evaluate")


def test_another_app_is_refused(site: Site) -> None:
    assert "not deadbeef" in refused(site, message(site), app="deadbeef")
    assert "approved the app" in refused(site, message(site), app="unknown")


@pytest.mark.parametrize("what", ["extra", "weight", "shape", "dtype", "header", "part"])
def test_what_the_owner_did_not_approve_does_not_leave(site: Site, what: str) -> None:
    honest = update(site)
    first = next(iter(honest.weights))
    answer: Any = {
        "extra": update(site, extras={**honest.extras, "spy/images": torch.zeros(4, 1, 8, 8)}),
        "weight": update(site, weights={**honest.weights, "spy": torch.zeros(3)}),
        "shape": update(site, weights={**honest.weights, first: torch.zeros(9, 9)}),
        "dtype": update(site, weights={**honest.weights, first: honest.weights[first].double()}),
    }.get(what, answer_records(honest))
    if what == "header":
        answer["header"] = ConfigRecord({"json": json.dumps({**header_of(answer), "labels": [1, 2]})})
    if what == "part":
        answer["more"] = ConfigRecord({"names": "a.png"})
    told = refused(site, message(site), answer=answer)
    assert "did not approve that '" in told
    assert "leaves" in told


def test_numbers_that_were_not_approved_stay_at_the_site(site: Site) -> None:
    honest = update(site)
    found = ask(site, message(site), answer=update(site, metrics={**honest.metrics, "patients": 7.0}))
    assert set(found["reply"].metric_records["metrics"]) == set(honest.metrics)


def test_a_failure_is_told_and_noted_as_one(site: Site) -> None:
    found = ask(site, message(site), answer=answer_records(Failure(1, 0, "training failed there")))
    assert found["reason"] == "training failed there"
    assert AuditLog(site.path).verify().lines[-1]["event"] == "failed"


def test_an_approval_that_was_edited_or_is_of_another_key_counts_for_nothing(site: Site) -> None:
    file = site.path / approval.APPROVAL_FILE
    records, app, whole = message(site), app_of(site), file.read_text()
    edited = json.loads(whole)
    edited["config"]["federation"]["rounds"] = 10**6
    file.write_text(json.dumps(edited))
    assert "damaged, or was signed with another key" in refused(site, records, app=app)
    for damage in ("", "[]", "{}", whole[:100], whole.replace('"signature": "', '"signature": "00')):
        file.write_text(damage)
        assert "the approval of site-01 is damaged" in refused(site, records, app=app)
    file.write_text(whole)
    pki.create_site_keys(site.private_key, site.public_key, "site-01", renew=True)
    assert "signed with another key" in refused(site, records, app=app)
    file.unlink()
    assert "has not approved anything yet" in refused(site, records, app=app)


def test_a_site_that_changed_since_must_approve_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    records, app = message(site), app_of(site)
    other = dataclasses.replace(site, holdout=0.5)
    told = refused(other, records, app=app)
    assert "site.toml of site-01 was changed" in told
    assert told.endswith(": holdout")
    monkeypatch.setattr(approval.metadata, "version", lambda name: "9.9")
    assert "approved with proxyfl 0.1.0, and it is 9.9 now" in refused(site, records, app=app)
    monkeypatch.undo()
    site.trusted.write_text("{}")
    assert "does not name the operator's key" in refused(site, records, app=app)


def test_a_signature_is_taken_from_an_app_that_was_not_approved(site: Site) -> None:
    """Flower's program then refuses it before it is unpacked, and tells the server."""
    asked: list[str] = []
    connector = Connector(
        site, "localhost:1", approved=lambda app: not asked.append(app) and app.startswith("e3")
    )
    for body, kept in ((b"", True), (b"another app", False)):
        told = GetFabResponse()
        told.fab.content = body
        told.fab.verifications["valid_license"] = "true"
        passed = GetFabResponse()
        passed.ParseFromString(connector._agreed(Answer(200, told.SerializeToString())).body)
        assert bool(passed.fab.verifications) is kept
    assert len(asked[1]) == 64


def test_what_was_refused_can_be_looked_at_and_approved_with_one_command(site: Site) -> None:
    records = message(site, {"federation.rounds": 7000})
    assert "federation.rounds = 7000" in refused(site, records)
    shown = invoke("deploy", "approve", site.path)
    assert shown.exit_code == 2
    assert "use --yes" in shown.stderr
    assert "requested by the server, and refused" in shown.stdout
    assert "federation.rounds = 7000, approved: " in shown.stdout
    done = invoke("deploy", "approve", site.path, "--yes")
    assert done.exit_code == 0, done.stderr
    assert ask(site, records)["kind"] == "update"
    assert not (site.state / approval.ASKED_FILE).exists()


def test_an_offer_is_shown_by_check_and_a_site_does_not_start_without_approval(
    trial: Path, tmp_path: Path
) -> None:
    place = Path(shutil.copytree(trial / "site-02", tmp_path / "site-02"))
    data = trial / "sample" / "site-02.npz"
    shown = invoke("deploy", "check", data, "--site", place)
    made = Deployment.read(trial)
    for words in (signing.signature_of(made)["app"], signing.fingerprint(made.trusted), "prior/counts"):
        assert str(words) in shown.stdout
    assert "the owner of site-02 has not approved" in shown.stdout
    done = invoke("deploy", "site", place, "--data", data)
    assert done.exit_code == 2
    assert f"proxyfl deploy approve {place}" in done.stderr
    first = invoke("deploy", "approve", place, "--yes")
    assert first.exit_code == 0, first.stderr
    assert "site-02 approved what its folder offers" in first.stdout
    assert "not approved" not in first.stdout
    (place / approval.OFFER_FILE).unlink()
    told = invoke("deploy", "approve", place, "--yes")
    assert told.exit_code == 2
    assert "proxyfl deploy init DIR --renew" in told.stderr


def test_nothing_that_came_after_the_review_is_approved_with_its_hash(site: Site, trial: Path) -> None:
    def reviewed() -> str:
        shown = invoke("deploy", "check", trial / "sample" / "site-01.npz", "--site", site.path)
        found = re.search(rf"deploy approve {site.path} --hash ([0-9a-f]+)", shown.stdout)
        return found[1] if found else ""

    def approved_with(given: str) -> str:
        done = invoke("deploy", "approve", site.path, "--yes", "--hash", given)
        return "" if done.exit_code == 0 else " ".join(done.stderr.split())

    assert reviewed() == ""  # approved already
    refused(site, message(site, {"federation.rounds": 7000}))
    first, before = reviewed(), approval.read(site).sha256
    assert len(first) == 64
    refused(site, message(site, {"federation.rounds": 8000}))
    second = reviewed()
    told = approved_with(first)
    assert first in told
    assert second in told
    for given in ("", "nonsense", second[::-1], second + "0"):
        assert approved_with(given)
    for length in (8, 16, 63):  # the server could search two requests that begin alike
        told = approved_with(second[:length])
        assert f"{length} of 64 characters" in told
        assert "deploy check" in told
    settings = site.path / "site.toml"
    as_it_was = settings.read_text()
    settings.write_text(as_it_was.replace("share_model = false", "share_model = true"))
    assert settings.read_text() != as_it_was
    assert approved_with(second)
    settings.write_text(as_it_was)
    assert approval.read(site).sha256 == before
    assert approved_with(second.upper()) == ""
    assert approval.read(site).offer.config.federation.rounds == 8000


def test_changes_that_need_no_approval_are_shown_before_anything_is_approved(site: Site, trial: Path) -> None:
    def shown() -> tuple[str, str]:
        checked = invoke("deploy", "check", trial / "sample" / "site-01.npz", "--site", site.path)
        return checked.stdout, invoke("deploy", "approve", site.path).stdout

    aside = "Also different, but this needs no approval"
    assert not any(aside in text for text in shown())
    weights = "start-0042.safetensors"
    refused(site, message(site, {"federation.rounds": 7000, "model.weights": weights}))
    for text in shown():
        wider, narrower = text.split(aside)
        assert "federation.rounds = 7000" in wider
        assert f"model.weights = '{weights}', approved: ''" in narrower
        assert weights not in wider
    assert invoke("deploy", "approve", site.path, "--yes").exit_code == 0
    tree = merge(approval.read(site).offer.tree, {"config": {"model": {"weights": "start-0043.safetensors"}}})
    approval.Offer.from_tree(tree).write(site.path / approval.OFFER_FILE)
    for text in shown():
        assert "Different from what is approved now" not in text
        assert f"model.weights = 'start-0043.safetensors', approved: '{weights}'" in text
    assert "deploy approve" not in shown()[0]  # nothing is to be approved


@pytest.mark.parametrize(("typed", "code"), [(None, 2), ("n\n", 1), ("\n", 1), ("", 1), ("y\n", 0)])
def test_only_a_yes_at_a_terminal_approves(
    typed: str | None, code: int, trial: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Path(shutil.copytree(trial / "site-02", tmp_path / "site-02"))
    if typed is not None:
        terminal = type("Terminal", (), {"isatty": lambda self: True})
        monkeypatch.setattr("proxyfl.cli.deploy_trust.sys", type("", (), {"stdin": terminal()}))
    done = CliRunner().invoke(app, ["deploy", "approve", str(place)], input=typed)
    assert done.exit_code == code
    assert (place / approval.APPROVAL_FILE).exists() == (code == 0)


def test_an_insecure_site_has_no_key_to_approve_with(site: Site) -> None:
    with pytest.raises(approval.ConfigError, match="has no key to sign"):
        approval.approve(dataclasses.replace(site, insecure=True), approval.read(site).offer)
    assert issubclass(Refused, approval.ConfigError)
    assert desk.SAYS["failure"] >= {"reason"}


def test_scores_leave_where_they_are_asked_for_and_the_site_allows_them(site: Site) -> None:
    measuring = dataclasses.replace(site, holdout=0.2)
    config = approval.read(site).offer.config
    more = dataclasses.replace(config, keep=dataclasses.replace(config.keep, metrics="all"))
    assert set(approval.leaving(measuring, config)[0]["evaluate"]) == {"confusion"}
    assert set(approval.leaving(measuring, more)[0]["evaluate"]) == {
        "confusion", "histograms", "calibration"
    }  # fmt: skip
    silent = dataclasses.replace(measuring, send_scores=False)
    assert set(approval.leaving(silent, more)[0]["evaluate"]) == {"confusion"}
    assert approval.widened(config, more) == ["keep.metrics = 'all', approved: 'accuracy'"]
    assert approval.form_of(dataclasses.replace(site, share_model=True)) != approval.form_of(site)


def test_sharing_a_model_needs_approval_and_limits_do_not(site: Site) -> None:
    dataclasses.replace(site, max_memory_mb=900, threads=2).write()
    approval.require(Site.read(site.path))  # limits take back
    dataclasses.replace(site, share_model=True).write()
    with pytest.raises(Refused, match=r"site.toml of site-01 was changed"):
        approval.require(Site.read(site.path))


@pytest.mark.parametrize("before", [True, False], ids=["approved before", "first approval"])
def test_an_approval_that_cannot_be_logged_is_not_given(site: Site, before: bool) -> None:
    file, log = site.path / approval.APPROVAL_FILE, site.path / "audit"
    whole = file.read_bytes() if before else b""
    if not before:
        file.unlink()
    shutil.rmtree(log)
    log.write_text("no folder")
    told = invoke("deploy", "approve", site.path, "--yes")
    assert told.exit_code != 0
    assert str(log) in told.stderr
    assert (file.read_bytes() if file.exists() else b"") == whole


def test_the_log_says_with_which_key_a_site_approved_and_started(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.state.mkdir(exist_ok=True)

    def stop(*words: Any) -> None:
        raise ConfigError("enough")

    monkeypatch.setattr(operate, "look", lambda *words: None)
    monkeypatch.setattr(operate, "site", stop)
    with pytest.raises(ConfigError, match="enough"):
        supervise.take_part(site, Path("data"), print)
    approved, started = list(AuditLog(site.path).verify().lines)[-2:]
    assert (approved["event"], started["event"]) == ("approved", "site started")
    blob = base64.b64decode(site.public_key.read_text().split()[1])
    key = "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")
    pem = site.ca_certificate.read_text().split("-----")[2]
    authority = hashlib.sha256(base64.b64decode(pem)).hexdigest()
    for line in (approved, started):
        assert (line["key"], line["ca"]) == (key, authority)
    assert approved["rounds"] == approval.read(site).offer.config.federation.rounds
    assert approved["sha256"] == sha256(site.path / approval.APPROVAL_FILE)


def test_what_was_changed_in_site_toml_is_named_with_both_values(
    site: Site, trial: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records, app = message(site), app_of(site)
    dataclasses.replace(site, share_model=True, send_scores=False).write()
    changes = ("send_scores = False, approved: True", "share_model = True, approved: False")
    own = Site.read(site.path)
    told = refused(own, records, app=app)
    assert "send_scores, share_model" in told
    assert "True" not in told  # the values are for the site alone
    assert AuditLog(site.path).verify().lines[-1]["changed"] == ", ".join(changes)
    assert ", ".join(changes) in capsys.readouterr().err
    with pytest.raises(ConfigError, match=r"share_model = True, approved: False"):
        operate.require_approval(own)
    data = trial / "sample" / "site-01.npz"
    for words in (("check", data, "--site", site.path), ("approve", site.path, "--yes")):
        shown = invoke("deploy", *words)
        assert shown.exit_code == 0, shown.stderr
        for change in changes:
            assert f"- site.toml: {change}" in shown.stdout
    assert approval.differences(own, approval.read(own).offer) == []


def test_the_owner_is_shown_what_this_site_shares(site: Site, trial: Path) -> None:
    """In deploy approve and check, not only what any site may do."""
    data = trial / "sample" / "site-01.npz"

    def shown(**settings: Any) -> list[str]:
        dataclasses.replace(site, **settings).write()
        asked = invoke("deploy", "approve", site.path).stdout
        looked = invoke("deploy", "check", data, "--site", site.path).stdout
        found = [
            [line for line in text.splitlines() if "(share_model)" in line or "(send_scores)" in line]
            for text in (asked, looked)
        ]
        assert found[0] == found[1]
        return [line.partition("): ")[2] for line in found[0]]

    assert shown(holdout=0.2, share_model=True, send_scores=False) == ["yes", "no"]
    assert shown(holdout=0.2, share_model=False, send_scores=False) == ["no", "no"]
    without = "yes, but without effect: this site holds out no images"
    assert shown(holdout=0.0, share_model=True) == [without, without]


def test_settings_under_which_a_site_shares_nothing_are_named(site: Site) -> None:
    config = approval.read(site).offer.config
    own = dataclasses.replace(site, holdout=0.2, share_model=True)

    def terms(**keep: Any) -> list[str]:
        asked = dataclasses.replace(config, keep=dataclasses.replace(config.keep, **keep))
        return [line.partition("): ")[2] for line in approval.own_terms(own, asked)]

    assert terms(metrics="all", clients="all") == ["yes", "yes"]
    shares, scores = terms(metrics="accuracy", clients="none")
    assert "without effect" in shares
    assert "do not request" in scores


def test_a_round_is_answered_so_often_and_no_more(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every request has a desk of its own, as in Flower, where each has a process of its own."""
    monkeypatch.setattr(repeats, "ANSWERS", 3)
    fails = answer_records(Failure(1, 0, "training failed there"))
    assert [ask(site, message(site))["kind"] for _ in range(3)] == ["update"] * 3
    told = refused(site, message(site))
    assert "answered round 1 of this run 3 times" in told
    assert "approving again" in told
    assert not ask(site, message(site))["done"]
    assert approval.is_missing(told)  # the server reports what the owner can do
    other = {"round": 2}, {"run": "1" * 16}
    for header in other:
        assert ask(site, message(site, **header))["kind"] == "update"
    for _ in range(5):  # nothing left, so nothing is counted
        assert ask(site, message(site, round=2), answer=fails)["reason"] == "training failed there"
    assert [ask(site, message(site, round=2))["kind"] for _ in range(3)] == ["update", "update", "failure"]
    approval.approve(site, approval.read(site).offer)
    assert ask(site, message(site))["kind"] == "update"
    assert json.loads(next(site.state.rglob("0" * 16 + "/answers.json")).read_text()) == {
        "approval": sha256(site.path / approval.APPROVAL_FILE),
        "answers": {"train 1": 1},
    }


def test_the_bound_on_repeats_holds_as_it_is_and_is_lower_under_differential_privacy(site: Site) -> None:
    found, header = approval.read(site), {"run": "0" * 16, "round": 1}
    for clip, most in ((0.0, 100), (1.0, 20)):
        config = dataclasses.replace(
            found.offer.config, privacy=dataclasses.replace(found.offer.config.privacy, record_clip=clip)
        )
        terms = dataclasses.replace(
            found, offer=dataclasses.replace(found.offer, config=config), sha256=f"{most}"
        )
        for _ in range(most):
            repeats.Repeats(site, terms, "train", header).add()
        for act in (repeats.Repeats.require, repeats.Repeats.add):
            with pytest.raises(Refused, match=f"{most} times"):
                act(repeats.Repeats(site, terms, "train", header))


def test_counts_of_answers_are_pruned_with_their_run_and_never_guessed(site: Site, capsys: Any) -> None:
    assert ask(site, message(site))["kind"] == "update"
    (kept,) = pruning.kept_runs(site)
    file = kept.folder / repeats.FILE
    for damage in ("", "[]", "{}", '{"approval": 1, "answers": {"train 1": "x"}}'):
        file.write_text(damage)
        found = ask(site, message(site))
        assert (found["kind"], found["done"]) == ("failure", False)
        assert "answers.json is damaged" in capsys.readouterr().err
    file.unlink()
    half = file.with_name(f".{file.name}.{2**30}.aside")
    half.write_text("{")  # by a process that is gone
    assert ask(site, message(site))["kind"] == "update"
    assert not half.exists()
    pruning.prune(site, [kept])
    assert not kept.folder.exists()
    assert ask(site, message(site))["kind"] == "update"


@pytest.mark.parametrize("header", [{"round": -1}, {"run": "../x"}, {"run": None}], ids=str)
def test_no_name_of_a_round_or_run_is_a_way_around_the_count(site: Site, header: dict[str, Any]) -> None:
    assert re.search("not round -1|names no run", refused(site, message(site, **header)))


def test_at_its_start_a_site_approves_what_its_folder_offers_and_not_what_the_server_requested(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An owner withdraws by deleting the approval; the start line of the service has --approve."""
    monkeypatch.setattr(supervise, "take_part", lambda *words: None)
    offered = approval.read(site).offer.config.federation.rounds
    wider = merge(approval.read(site).offer.tree["config"], nested({"federation.rounds": 999}))
    approval.note_asked(site, "", {"config": wider})
    assert approval.newest_offer(site)[1]
    (site.path / approval.APPROVAL_FILE).unlink()
    done = invoke("deploy", "site", site.path, "--data", tmp_path, "--approve")
    assert done.exit_code == 0, done.output
    assert "offered in its folder" in done.stdout
    assert approval.read(site).offer.config.federation.rounds == offered
