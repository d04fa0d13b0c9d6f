"""Keys and authorities that are replaced with an overlap, back-ups, pruning, more rounds, versions."""

from __future__ import annotations

import io
import json
import os
import shlex
import shutil
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from calling import invoke
from proxyfl.core.errors import ConfigError, RunError
from proxyfl.core.files import append_bytes
from proxyfl.deploy import (
    approval,
    backup,
    connector,
    expiry,
    gate,
    longer,
    operate,
    pki,
    pruning,
    roster,
    rotation,
    seen,
    signing,
    stopping,
)
from proxyfl.deploy.audit import AuditLog
from proxyfl.deploy.post import Post
from proxyfl.deploy.programs import FlowerError
from proxyfl.deploy.settings import Deployment, Site
from proxyfl.engines.flower import protocol


def lines(place: Path) -> list[str]:
    return [line["event"] for line in AuditLog(place).verify().lines]


def test_a_rotated_site_key_is_admitted_beside_the_former_one_until_it_is_used(own_trial: Path) -> None:
    made = Deployment.read(own_trial)
    before = roster.site_keys(made)
    done = invoke("deploy", "rotate", own_trial, "--site", "site-02")
    assert done.exit_code == 0, done.stderr
    assert "at most for 14 days" in done.stdout
    both = roster.site_keys(made)
    assert set(before) < set(both)
    (new,) = set(both) - set(before)
    assert both[new] == 1
    assert list(both).index(new) > 0  # the former one comes first, so that the new one counts
    pki.check_site(made.site("site-02").certificate, made.site("site-02").public_key, made.ca_certificate)
    former = next(key for key, client in before.items() if client == 1)
    seen.settle_key(made, "site-02", current=False, authority="a")
    assert former in roster.site_keys(made)
    seen.settle_key(made, "site-02", current=True, authority="a")
    assert former not in roster.site_keys(made)
    assert new in roster.site_keys(made)
    assert lines(own_trial)[-3:] == ["new key", "key rotated", "former key locked out"]


def test_a_key_rotated_twice_before_its_delivery_leaves_the_site_its_own(own_trial: Path) -> None:
    made = Deployment.read(own_trial)

    def keys() -> set[bytes]:
        return {key for key, client in roster.site_keys(made).items() if client == 1}

    first = keys()
    note = own_trial / "state" / roster.NOTES / "site-02.previous"
    note.parent.mkdir(parents=True)
    rotation.rotate_site(own_trial, "site-02")
    note.write_text(json.dumps({"key": "that of the first", "node": "5"}))
    (second,) = keys() - first
    rotation.rotate_site(own_trial, "site-02")
    assert first < keys()  # the key that the site has
    assert second not in keys()  # which no site has
    assert roster.noted(made, "site-02.previous")["node"] == "5"
    (third,) = keys() - first
    seen.settle_key(made, "site-02", current=True, authority="a")
    rotation.rotate_site(own_trial, "site-02")  # once it was used, it is the one to keep
    assert third in keys()
    assert not first & keys()
    former = roster.previous_key(made.site("site-02"))
    former.write_text(" ".join([*former.read_text().split()[:2], "until=2026-01-01T00:00:00+00:00"]))
    (fourth,) = keys()
    rotation.rotate_site(own_trial, "site-02")  # a key whose days are over stays locked out
    assert fourth in keys()
    assert third not in keys()


def test_a_former_key_ends_with_its_days_and_a_stolen_one_at_once(own_trial: Path) -> None:
    made = Deployment.read(own_trial)
    before = set(roster.site_keys(made))
    rotation.rotate_site(own_trial, "site-02", days=1)
    assert len(before & set(roster.site_keys(made))) == 3
    former = roster.previous_key(made.site("site-02"))
    former.write_text(" ".join([*former.read_text().split()[:2], "until=2026-01-01T00:00:00+00:00"]))
    assert len(before & set(roster.site_keys(made))) == 2
    rotation.rotate_site(own_trial, "site-03")
    assert len(roster.site_keys(made)) == 4
    rotation.new_key(own_trial, "site-03")
    assert len(roster.site_keys(made)) == 3
    roster.previous_key(made.site("site-01")).write_text("ssh-ed25519 nonsense until=tomorrow")
    assert len(roster.site_keys(made)) == 3


@pytest.mark.parametrize(
    ("until", "said"),
    [
        ("until=2999-01-01T00:00:00", "no time zone"),
        ("until=2999-01-01", "no time zone"),
        ("until=tomorrow", "until when"),
        ("", "until when"),
    ],
)
def test_a_former_key_without_a_valid_time_is_not_accepted_and_the_reason_is_shown(
    until: str, said: str, own_trial: Path
) -> None:
    made = Deployment.read(own_trial)
    site, before = made.site("site-02"), set(roster.site_keys(made))
    rotation.rotate_site(own_trial, "site-02")
    assert not any("previous.pub" in note for note in expiry.of_server(made))
    former = roster.previous_key(site)
    key = " ".join(former.read_text().split()[:2])
    former.write_text(f"{key} {until}\n")
    assert roster.former_key(site) == b""
    assert len(before & set(roster.site_keys(made))) == 2
    (note,) = (note for note in expiry.of_server(made) if str(former) in note)
    assert said in note
    former.write_text(f"{key} until=2999-01-01T00:00:00+00:00\n")
    assert before < set(roster.site_keys(made))
    assert not any("previous.pub" in note for note in expiry.of_server(made))


def test_both_keys_are_registered_and_what_is_over_is_not(
    own_trial: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, ...]] = []

    def flwr(words: list[str], env: Any) -> dict[str, str]:
        asked.append(tuple(map(str, words)))
        return {"node-id": str(len(asked))}

    monkeypatch.setattr(operate, "ask_flwr", flwr)
    monkeypatch.setattr(stopping, "ask_flwr", flwr)
    made = Deployment.read(own_trial)
    operate.register(made, {})
    assert len(asked) == 3
    asked.clear()
    rotation.rotate_site(own_trial, "site-02")
    operate.register(made, {})
    assert [words[:3] for words in asked] == [("supernode", "register", str(made.site("site-02").public_key))]
    roster.previous_key(made.site("site-02")).unlink()
    asked.clear()
    operate.register(made, {})
    assert [words[1] for words in asked] == ["unregister"]


def test_a_run_that_finishes_while_it_is_stopped_is_no_error(
    own_trial: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = iter(["running", "finished:completed"])

    def flwr(words: list[str], env: Any) -> dict[str, Any]:
        if words[0] == "stop":
            raise FlowerError("Run is already finished.")
        return {"runs": [{"run-id": "7", "status": next(states)}]}

    monkeypatch.setattr(operate, "ask_flwr", flwr)
    monkeypatch.setattr(stopping, "ask_flwr", flwr)
    monkeypatch.setattr(operate, "require_server", lambda deployment: None)
    made = Deployment.read(own_trial)
    assert stopping.stop_now(made) is False
    states = iter(["running", "running"])
    with pytest.raises(FlowerError, match="already finished"):
        stopping.stop_now(made)
    states = iter(["finished:completed"])
    with pytest.raises(RunError, match="no run is in progress"):
        stopping.stop_now(made)


def trusts(authority: Path, certificate: Path) -> bool:
    return pki.is_issued_by(pki.read_certificate(certificate), authority)


def test_an_authority_is_replaced_without_locking_anybody_out(own_trial: Path, tmp_path: Path) -> None:
    made = Deployment.read(own_trial)
    handed = Path(shutil.copytree(own_trial / "site-01", tmp_path / "handed"))  # a site that got nothing yet
    done = invoke("deploy", "rotate", own_trial, "--ca")
    assert done.exit_code == 0, done.stderr
    assert "its new ca.crt and site.crt" in done.stdout
    assert rotation.is_under_way(made)
    # Both sites come in, and both know the server.
    assert trusts(made.ca_certificate, handed / "site.crt")
    assert trusts(made.ca_certificate, made.site("site-01").certificate)
    assert trusts(handed / "ca.crt", made.server_certificate)
    assert trusts(made.site("site-01").ca_certificate, made.server_certificate)
    assert not trusts(handed / "ca.crt", made.site("site-01").certificate)
    gate.tls(made)
    connector.client_tls(Site.read(made.site("site-01").path))
    assert any("a new authority is being introduced" in note for note in expiry.of_server(made))
    with pytest.raises(ConfigError, match="finish that first"):
        rotation.renew(own_trial)
    # Not before all have shown the new one.
    early = invoke("deploy", "rotate", own_trial, "--ca", "--finish")
    assert early.exit_code == 2
    assert "site-01, site-02, site-03 did not yet" in early.stderr
    newest = rotation.authority_of(made.ca_certificate)
    der = pki.read_certificate(made.site("site-01").certificate).public_bytes(rotation.Encoding.DER)
    assert seen.issuer_of(der) == newest
    for name in made.sites:
        seen.settle_key(made, name, current=True, authority=newest)
    done = invoke("deploy", "rotate", own_trial, "--ca", "--finish")
    assert done.exit_code == 0, done.stderr
    assert not rotation.is_under_way(made)
    assert trusts(made.ca_certificate, made.server_certificate)
    assert not trusts(made.ca_certificate, handed / "site.crt")
    assert not trusts(handed / "ca.crt", made.server_certificate)
    assert trusts(own_trial / "ca" / rotation.RETIRED, handed / "site.crt")
    pki.check_server(made.server_certificate, made.ca_certificate)
    assert lines(own_trial)[-2:] == ["authority begun", "authority finished"]


def test_a_stolen_authority_key_is_harmless_once_every_site_has_the_last_ca_crt(
    own_trial: Path, tmp_path: Path
) -> None:
    made = Deployment.read(own_trial)
    thief = Path(shutil.copytree(own_trial / "ca", tmp_path / "thief"))
    false = thief / "server.crt"
    authority = thief / "ca.crt", thief / "ca.key"
    pki.issue_server(false, thief / "server.key", authority, ["fl.example.org"], renew=True)
    remote = Path(shutil.copytree(own_trial / "site-01", tmp_path / "far" / "site-01"))

    def install(said: str) -> None:
        """What the console says for site-01, done."""
        commands = [shlex.split(line) for line in said.splitlines() if line.split()[:1] == ["scp"]]
        assert [words[-1] for words in commands] == [f"SITE-MACHINE:{name}/" for name in made.sites]
        for file in commands[0][1:-1]:
            shutil.copy(file, remote)

    install(invoke("deploy", "rotate", own_trial, "--ca").stdout)
    assert trusts(remote / "ca.crt", false)
    assert any("former authority" in note for note in expiry.of_site(Site.read(remote)))
    done = invoke("deploy", "rotate", own_trial, "--ca", "--finish", "--force")
    assert "until then it still trusts the former authority" in done.stdout
    install(done.stdout)
    assert not trusts(remote / "ca.crt", false)
    assert trusts(remote / "ca.crt", made.server_certificate)
    assert not expiry.of_site(Site.read(remote))


def test_an_authority_that_has_ended_is_replaced_at_once(
    own_trial: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Deployment.read(own_trial)
    monkeypatch.setattr(pki, "CA_DAYS", -1)
    pki.EARLIER, earlier = pki.datetime.timedelta(days=9), pki.EARLIER
    try:
        made.ca_certificate.unlink()
        made.ca_key.unlink()
        pki.create_authority(made.ca_certificate, made.ca_key, "trial")
    finally:
        pki.EARLIER = earlier
    pair, authority = (made.server_certificate, made.server_key), (made.ca_certificate, made.ca_key)
    pki.issue_server(*pair, authority, ["a"], renew=True)
    with pytest.raises(ConfigError, match="proxyfl deploy rotate DIR --ca"):
        pki.check_server(made.server_certificate, made.ca_certificate)
    monkeypatch.undo()
    said = rotation.begin_authority(own_trial)
    assert any("the former authority had expired: send each site" in line for line in said)
    assert not rotation.is_under_way(made)
    pki.check_server(made.server_certificate, made.ca_certificate)


@pytest.mark.parametrize(
    "step", ["create_site_keys", "write_private", "write_bytes", "issue_site", "nothing"]
)
def test_a_crash_while_a_site_key_is_rotated_locks_nobody_out(
    step: str, own_trial: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Deployment.read(own_trial)
    site, before = made.site("site-02"), roster.site_keys(made)
    (old,) = (key for key, client in before.items() if client == 1)
    note = own_trial / "state" / roster.NOTES / "site-02"
    note.parent.mkdir(parents=True)
    note.write_text(json.dumps({"key": old.hex(), "node": "5"}))
    if step != "nothing":
        cut = OSError("power cut")
        monkeypatch.setattr(pki, step, lambda *words, **more: (_ for _ in ()).throw(cut))
        with pytest.raises(OSError, match="power cut"):
            rotation.rotate_site(own_trial, "site-02")
        monkeypatch.undo()
        assert set(roster.site_keys(made)) >= set(before)
        current = old in roster.site_keys(made, former=False)
        seen.settle_key(made, "site-02", current=current, authority="a")  # it comes in with the key it has
        assert roster.previous_key(site).is_file()
    rotation.rotate_site(own_trial, "site-02")
    keys = roster.site_keys(made)
    assert len(keys) == 4
    assert set(keys) > set(before)
    pki.check_site(site.certificate, site.public_key, made.ca_certificate)
    pki.check_site_keys(site.private_key, site.public_key)
    # The SuperLink still knows the former key by its own node.
    assert roster.noted(made, "site-02.previous") == {"key": old.hex(), "node": "5"}
    assert roster.noted(made, "site-02") == {}


@pytest.mark.parametrize("days", ["nan", "inf", "1e12", "366", "0", "-1"])
def test_days_that_no_key_can_be_accepted_for_are_refused(days: str, own_trial: Path) -> None:
    before = roster.site_keys(Deployment.read(own_trial))
    done = invoke("deploy", "rotate", own_trial, "--site", "site-02", f"--days={days}")
    assert done.exit_code == 2
    assert "at most 365 days" in " ".join(done.stderr.split())
    assert roster.site_keys(Deployment.read(own_trial)) == before


def test_options_that_would_have_no_effect_are_refused(
    own_trial: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = invoke("deploy", "rotate", own_trial, "--ca", "--days", "3")
    assert done.exit_code == 2
    assert "--days goes with --site" in done.stderr
    assert not rotation.is_under_way(Deployment.read(own_trial))
    words = ("deploy", "init", "fresh", "--classes", "a,b")
    done = invoke(*words, "--data-root", "data")
    assert done.exit_code == 2
    assert "add --sample" in done.stderr
    assert not Path("fresh").exists()
    monkeypatch.setenv("PROXYFL_DATA", "data")
    assert invoke(*words).exit_code == 0


@pytest.mark.parametrize("lost", [False, True])
def test_the_signature_of_a_replaced_operator_key_is_refused(lost: bool, own_trial: Path) -> None:
    made = Deployment.read(own_trial)
    site = made.site("site-01")
    before, stolen = signing.fingerprint(site.trusted), made.operator_key.read_bytes()
    former = made.app_signature.read_bytes()
    if lost:
        made.operator_key.unlink()
        refused = invoke("deploy", "init", own_trial, "--renew")
        assert refused.exit_code == 2
        assert str(made.trusted) in refused.stderr.replace("\n", "")
    made.trusted.unlink()
    assert invoke("deploy", "init", own_trial, "--renew").exit_code == 0
    signing.signature_of(made)
    assert signing.fingerprint(made.trusted) == signing.fingerprint(site.trusted) != before
    new, current = made.app_signature.read_bytes(), made.operator_key.read_bytes()
    assert current != stolen
    made.app_signature.write_bytes(former)
    with pytest.raises(ConfigError, match="no signature by the operator's key"):
        signing.signature_of(made)
    made.operator_key.write_bytes(stolen)  # who has it signs in the name of the new one
    signing.sign_app(made)
    assert json.loads(made.app_signature.read_bytes())["key"] == json.loads(new)["key"]
    with pytest.raises(ConfigError, match="no signature by the operator's key"):
        signing.signature_of(made)


def test_a_site_runs_only_what_it_approved_until_it_approves_under_the_new_operator_key(
    own_trial: Path,
) -> None:
    made = Deployment.read(own_trial)
    site = made.site("site-01")
    approval.approve(site, approval.newest_offer(site)[0])
    former, before = site.trusted.read_bytes(), signing.fingerprint(site.trusted)
    made.trusted.unlink()
    assert invoke("deploy", "init", own_trial, "--renew").exit_code == 0
    new = site.trusted.read_bytes()
    site.trusted.write_bytes(former)  # it has not got the new one yet
    found = approval.require(site)
    assert found.signer == before
    approval.require_app(found, approval.Offer.of(made).app)
    with pytest.raises(approval.Refused, match="not 00000000"):
        approval.require_app(found, "0" * 64)  # whatever the stolen key signed
    site.trusted.write_bytes(new)
    with pytest.raises(approval.Refused, match=r"trusted\.yaml"):
        approval.require(site)
    done = invoke("deploy", "approve", site.path, "--yes")
    assert done.exit_code == 0, done.stderr
    assert approval.require(site).signer == signing.fingerprint(made.trusted) != before


def test_what_to_replace_must_be_said(own_trial: Path) -> None:
    for words in ((), ("--site", "site-01", "--ca"), ("--finish",), ("--ca", "--force")):
        assert "specify what to replace" in invoke("deploy", "rotate", own_trial, *words).stderr
    with pytest.raises(RunError, match="no new authority"):
        rotation.finish_authority(own_trial)


@pytest.fixture
def filled(own_trial: Path) -> Path:
    """A deployment and a site with something in every corner."""
    for name in ("run/models/last.safetensors", "state/superlink.db", "site-01/state/cache/a", "state/x.log"):
        (own_trial / name).parent.mkdir(parents=True, exist_ok=True)
        (own_trial / name).write_bytes(name.encode())
    kept = own_trial / "site-01" / "state" / "site-01" / ("0" * 16) / "client.safetensors"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"kept between rounds")
    return own_trial


def test_a_server_comes_back_on_another_machine(filled: Path, tmp_path: Path) -> None:
    file, place = tmp_path / "server.tar", tmp_path / "elsewhere" / "trial"
    done = invoke("deploy", "backup", filled, file)
    assert done.exit_code == 0, done.stderr
    assert file.stat().st_mode & 0o777 == 0o600
    done = invoke("deploy", "restore", file, place)
    assert done.exit_code == 0, done.stderr
    assert f"deploy server {place}" in " ".join(done.stdout.split())
    made = Deployment.read(place)
    assert (made.run / "models" / "last.safetensors").read_bytes() == b"run/models/last.safetensors"
    assert not made.state.exists()
    here = place / "site-01" / "state"  # of a site that ran on the same machine: as in its own back-up
    assert [str(one.relative_to(here)) for one in here.rglob("*") if one.is_file()] == [
        f"site-01/{'0' * 16}/client.safetensors"
    ]
    assert str(filled) not in (place / "README.md").read_text()
    assert str(place) in (place / "server" / "proxyfl-server.service").read_text()
    for key in (made.ca_key, made.server_key, made.site("site-01").private_key):
        assert key.stat().st_mode & 0o777 == 0o600
    pki.check_key(made.server_key, made.server_certificate)
    assert lines(place)[-2:] == ["backed up", "restored"]


def test_a_site_comes_back_with_what_it_keeps_and_without_caches(filled: Path, tmp_path: Path) -> None:
    place = tmp_path / "site"
    backup.back_up(filled / "site-01", tmp_path / "site.tar")
    assert backup.restore(tmp_path / "site.tar", place) == ("site", [])
    site = Site.read(place)
    pki.check_site_keys(site.private_key, site.public_key)
    kept = site.state / "site-01" / ("0" * 16) / "client.safetensors"
    assert kept.read_bytes() == b"kept between rounds"
    assert not (site.state / "cache").exists()


def test_a_backup_of_what_runs_and_over_what_exists_is_refused(filled: Path, tmp_path: Path) -> None:
    file = tmp_path / "server.tar"
    with Post(filled / "state", "x").taken(), pytest.raises(RunError, match="is running"):
        backup.back_up(filled, file)
    assert not file.exists()
    for state in ("site-02/state", "removed/lyon/state"):
        folder = filled / state
        folder.mkdir(parents=True)
        (folder.parent / "site.toml").touch()
        name = folder.parent.name
        with Post(folder, name).taken(), pytest.raises(RunError, match=f"{name} is running in .*; stop it"):
            backup.back_up(filled, file)
        assert not file.exists()
    assert lines(filled)[-1] != "backed up"
    backup.back_up(filled, file)
    with pytest.raises(RunError, match="is not overwritten"):
        backup.back_up(filled, file)
    with pytest.raises(RunError, match="is not overwritten"):
        backup.restore(file, filled)
    with pytest.raises(ConfigError, match="neither a deployment nor a site"):
        backup.back_up(tmp_path, tmp_path / "x.tar")


@pytest.mark.parametrize("linked", ["run", "run/models/last.safetensors", "site-01/state/site-01"])
def test_what_a_link_leads_to_is_not_left_out_silently(linked: str, filled: Path, tmp_path: Path) -> None:
    place, file = filled / linked, tmp_path / "x.tar"
    place.rename(tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere")
    done = invoke("deploy", "backup", filled / "site-01" if "site" in linked else filled, file)
    assert done.exit_code == 2
    assert f"{place} is a link" in " ".join(done.stderr.split())
    assert not file.exists()


def test_more_files_than_a_backup_can_name_are_refused_before_it_is_written(
    filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup, "SHORT", 1000)
    with pytest.raises(RunError, match="too many"):
        backup.back_up(filled, tmp_path / "x.tar")
    assert not (tmp_path / "x.tar").exists()


def test_a_backup_into_a_missing_folder_says_so_and_one_that_fails_is_logged_as_failed(
    filled: Path, tmp_path: Path
) -> None:
    before = lines(filled)
    done = invoke("deploy", "backup", filled, tmp_path / "usb" / "server.tar")
    assert done.exit_code == 2
    assert f"folder not found: {tmp_path / 'usb'}" in " ".join(done.stderr.split())
    assert lines(filled) == before

    def full(more: int) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        backup.back_up(filled, tmp_path / "server.tar", full)
    assert lines(filled) == [*before, "backed up", "backup failed"]
    assert not list(tmp_path.glob("*server.tar*"))


def test_a_file_that_changes_while_it_is_backed_up_is_restored_as_it_was_archived(
    filled: Path, tmp_path: Path
) -> None:
    own, same = filled / "run" / "notes", filled / "run" / "same"
    own.write_bytes(b"before")
    os.link(own, same)  # each of two names of one file is a file of its own in the archive
    backup.back_up(filled, tmp_path / "server.tar", lambda more: append_bytes(own, b"."))
    backup.restore(tmp_path / "server.tar", tmp_path / "elsewhere")
    for name in ("notes", "same"):
        assert (tmp_path / "elsewhere" / "run" / name).read_bytes().startswith(b"before...")


def test_a_file_that_is_lost_while_it_is_backed_up_is_named_and_nothing_is_left(
    filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = filled / "run" / "models" / "last.safetensors"
    monkeypatch.setattr(backup._Hashed, "read", lambda file, count=-1: b"")
    with pytest.raises(RunError, match="was shortened while"):
        backup.back_up(filled, tmp_path / "server.tar")
    monkeypatch.undo()
    with pytest.raises(RunError, match=f"{own} disappeared"):
        backup.back_up(filled, tmp_path / "server.tar", lambda more: own.unlink(missing_ok=True))
    assert not list(tmp_path.glob("*server.tar*"))


def test_a_damaged_or_hostile_backup_leaves_nothing(filled: Path, tmp_path: Path) -> None:
    whole, place = tmp_path / "site.tar", tmp_path / "out" / "site"
    backup.back_up(filled / "site-01", whole)
    raw = whole.read_bytes()
    bad = tmp_path / "bad.tar"
    at = raw.index(b"kept between rounds")
    cases = [b"", b"nonsense", raw[: len(raw) // 2], raw[:at] + b"K" + raw[at + 1 :]]
    for content in cases:
        bad.write_bytes(content)
        with pytest.raises(RunError):
            backup.restore(bad, place)
        assert not any(place.parent.iterdir())
    for name, kind in (
        ("../escape", tarfile.REGTYPE),
        ("/tmp/escape", tarfile.REGTYPE),
        ("l", tarfile.SYMTYPE),
    ):
        about = {"format": 1, "kind": "site", "files": {name: "0" * 64}}
        with tarfile.open(bad, "w") as archive:
            backup._add_bytes(archive, backup.CONTENTS, json.dumps(about).encode())
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname, entry.size = kind, "/etc/passwd", 0
            archive.addfile(entry, io.BytesIO())
        with pytest.raises(RunError):
            backup.restore(bad, place)
        assert not any(place.parent.iterdir())
        assert not (place.parent.parent / "escape").exists()


def test_prune_keeps_the_latest_run_and_says_what_it_removes(filled: Path) -> None:
    place = filled / "site-01" / "state" / "site-01"
    for number, name in enumerate(("1" * 16, "2" * 16)):
        (place / name).mkdir()
        (place / name / "client.safetensors").write_bytes(b"x" * 1000)
        os.utime(place / name / "client.safetensors", (1e9 + number, 1e9 + number))
        os.utime(place / name, (1e9 + number, 1e9 + number))
    asked = invoke("deploy", "prune", filled / "site-01")
    assert asked.exit_code == 2
    assert "run 2222222222222222: 1.0 kB, last used 2001-09-09" in asked.stdout
    done = invoke("deploy", "prune", filled / "site-01", "--yes")
    assert done.exit_code == 0
    assert [one.name for one in place.iterdir()] == ["0" * 16]
    assert lines(filled / "site-01") == ["pruned", "pruned"]
    again = invoke("deploy", "prune", filled / "site-01")
    assert "keeps nothing for earlier runs" in again.stdout


def test_prune_after_a_restore_keeps_the_run_that_was_the_latest(filled: Path, tmp_path: Path) -> None:
    site, target = filled / "site-01", tmp_path / "restored"
    for name, at in (("a" * 16, 1.5e9 + 0.5), ("f" * 16, 1.5e9), ("0" * 16, 1e9)):
        file = site / "state" / "site-01" / name / "drawn" / "client.safetensors"
        file.parent.mkdir(parents=True, exist_ok=True)
        for one in (file, file.parent.parent / "client.safetensors"):
            one.write_bytes(name.encode())
            os.utime(one, (at, at))
    backup.back_up(site, tmp_path / "site.tar")
    backup.restore(tmp_path / "site.tar", target)
    assert [one.folder.name[0] for one in pruning.kept_runs(Site.read(target))] == ["a", "f", "0"]
    assert invoke("deploy", "prune", target, "--yes").exit_code == 0
    assert [one.name for one in (target / "state" / "site-01").iterdir()] == ["a" * 16]


@pytest.mark.parametrize("wrong", [-1.0, 1e15, float("nan"), float("inf")])
def test_a_file_is_not_restored_with_a_time_that_cannot_be(wrong: float, tmp_path: Path) -> None:
    file, now = tmp_path / "x", time.time()
    backup._write(io.BytesIO(b"x"), file, 0o600, wrong, lambda more: None)
    assert now - 1 < file.stat().st_mtime <= time.time() + 1


def test_more_rounds_are_written_down_and_offered_to_the_sites(own_trial: Path) -> None:
    made = Deployment.read(own_trial)
    longer.lengthen(made, 77)
    assert Deployment.read(own_trial).config.federation.rounds == 77
    offer = json.loads((own_trial / "site-02" / "offer.json").read_text())
    assert offer["config"]["federation"]["rounds"] == 77


def test_more_rounds_are_offered_also_if_the_command_was_killed_before(
    own_trial: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Deployment.read(own_trial)
    with monkeypatch.context() as patch:
        patch.setattr(longer.approval, "write_offers", lambda made: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            longer.lengthen(made, 77)
    longer.lengthen(Deployment.read(own_trial), 77)
    offer = json.loads((own_trial / "site-02" / "offer.json").read_text())
    assert offer["config"]["federation"]["rounds"] == 77


def test_versions_without_a_common_one_are_named_with_who_has_to_upgrade() -> None:
    assert protocol.negotiated(protocol.spoken(), "the server", "lyon") == protocol.NEWEST
    assert protocol.negotiated({"protocol": [1, 9]}, "the server", "lyon") == protocol.NEWEST
    newer = {"protocol": [7, 9], "proxyfl": "3.0"}
    with pytest.raises(
        ConfigError,
        match=r"proxyfl 3.0\) .*7 to 9 .*upgrade lyon",
    ):
        protocol.negotiated(newer, "the server", "lyon")
    for older in ({}, {"protocol": [0, 0]}, {"protocol": "1"}, {"protocol": [True, 1.5]}):
        with pytest.raises(ConfigError, match="upgrade the server"):
            protocol.negotiated(older, "the server", "lyon")


def test_a_federation_starts_from_the_model_of_another(own_trial: Path, tmp_path: Path) -> None:
    lost = invoke("deploy", "init", "new", "--sample", "--weights", own_trial / "run")
    assert lost.exit_code == 2
    assert "name a model file, or a run with a finished round" in lost.stderr
