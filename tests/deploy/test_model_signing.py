"""Signed models: what the server's key signed is known by the authority alone, anything else is named."""

from __future__ import annotations

import base64
import datetime
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from calling import invoke
from proxyfl.core.checksum import write_verified
from proxyfl.core.errors import RunError
from proxyfl.core.files import sha256
from proxyfl.deploy import model_signing, pki, rotation
from proxyfl.deploy.audit import AuditLog
from proxyfl.deploy.server_audit import ServerAudit
from proxyfl.deploy.settings import Deployment


@pytest.fixture
def made(own_trial: Path) -> Deployment:
    found = Deployment.read(own_trial)
    (found.run / "models").mkdir(parents=True)
    (found.run / "models" / "last.safetensors").write_bytes(b"weights of round 3")
    return found


@pytest.fixture
def model(made: Deployment) -> Path:
    signed_anew(made, round=3)
    return made.run / "models" / "last.safetensors"


def signed_anew(made: Deployment, **about: Any) -> list[str]:
    """What is signed where models have changed."""
    files = list(model_signing.unsigned(made))
    for file in files:
        model_signing.sign(file, made, **about)
    return [file.stem for file in files]


def broken(model: Path, authority: Path) -> str:
    with pytest.raises(RunError) as caught:
        model_signing.check(model, authority)
    return str(caught.value)


def forge(model: Path, made: Deployment, key: Path, certificate: Path) -> None:
    """A signature as it is made, by somebody else."""
    file = model_signing.signature_file(model)
    record = {**json.loads(file.read_text()), "certificate": certificate.read_text()}
    record["signature"] = model_signing.signers.sign_with_server(key, model_signing._message(record))
    file.write_text(json.dumps(record))


def test_a_signed_model_is_known_by_the_authority_alone(
    made: Deployment, model: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for file in (model, model_signing.signature_file(model), made.ca_certificate):
        shutil.copy(file, elsewhere)
    done = invoke("verify", elsewhere / model.name, "--ca", elsewhere / "ca.crt")
    assert done.exit_code == 0, done.stderr
    assert "signed by the server fl.example.org at" in done.stdout
    assert "federation trial, round 3" in done.stdout


def test_models_are_signed_again_when_they_change_and_only_then(made: Deployment, model: Path) -> None:
    before = model_signing.signature_file(model).read_bytes()
    assert signed_anew(made, round=4) == []
    assert model_signing.signature_file(model).read_bytes() == before
    model.write_bytes(b"weights of round 4")
    assert signed_anew(made, round=4) == ["last"]
    assert model_signing.check(model, made.ca_certificate).about["round"] == 4


def test_another_file_another_claim_and_no_signature_are_named(made: Deployment, model: Path) -> None:
    file, ca = model_signing.signature_file(model), made.ca_certificate
    model.write_bytes(b"weights of nobody")
    done = invoke("verify", model, "--ca", ca)
    assert done.exit_code == 1
    assert "is not what was signed" in done.stderr
    file.write_text(file.read_text().replace('"round": 3', '"round": 9'))
    assert "not what fl.example.org signed" in broken(model, ca)
    for damage in ("", "[]", "{}", '{"format": 1}'):
        file.write_text(damage)
        assert "is not a signature" in broken(model, ca)
    file.unlink()
    assert "is not signed" in broken(model, ca)
    model.unlink()
    assert "does not exist" in broken(model, ca)


def test_another_federations_server_cannot_sign(made: Deployment, model: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    authority = theirs / "ca.crt", theirs / "ca.key"
    pki.create_authority(*authority, "trial")
    pki.issue_server(theirs / "server.crt", theirs / "server.key", authority, ["fl.example.org"])
    forge(model, made, theirs / "server.key", theirs / "server.crt")
    assert "another federation's" in broken(model, made.ca_certificate)
    # The right certificate with a key that is not its own.
    forge(model, made, theirs / "server.key", made.server_certificate)
    assert "it is not what fl.example.org signed" in broken(model, made.ca_certificate)


def test_a_site_cannot_sign_though_its_certificate_is_of_the_same_authority(
    made: Deployment, model: Path
) -> None:
    site, key = made.site("site-01"), made.path / "site.pem"
    key.write_bytes(pki.site_key_pem(site.private_key))
    forge(model, made, key, site.certificate)
    assert "signed by site-01, which is not a server" in broken(model, made.ca_certificate)


def test_a_signature_outlives_its_certificate_but_cannot_be_made_later(
    made: Deployment, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rotation.renew(made.path)
    assert model_signing.check(model, made.ca_certificate).about["round"] == 3  # of the certificate before

    class Later(datetime.datetime):
        @classmethod
        def now(cls, zone=None):  # type: ignore[no-untyped-def, override]
            return super().now(zone) + datetime.timedelta(days=pki.SERVER_DAYS + 1)

    monkeypatch.setattr(model_signing.signers, "datetime", Later)
    assert model_signing.check(model, made.ca_certificate).ended
    monkeypatch.setattr(model_signing, "datetime", Later)
    model_signing.sign(model, made)
    assert "certificate of fl.example.org was not valid" in broken(model, made.ca_certificate)


def test_whoever_has_the_servers_key_can_sign_with_an_earlier_date_until_the_authority_is_replaced(
    made: Deployment, model: Path, tmp_path: Path
) -> None:
    stolen = Path(shutil.copytree(made.path / "server", tmp_path / "stolen"))
    before = pki.read_certificate(made.server_certificate).not_valid_before_utc.replace(microsecond=0)
    file = model_signing.signature_file(model)
    rotation.renew(made.path)
    file.write_text(json.dumps({**json.loads(file.read_text()), "time": before.isoformat()}))
    forge(model, made, stolen / "server.key", stolen / "server.crt")
    assert model_signing.check(model, made.ca_certificate).time == before
    rotation.begin_authority(made.path)
    rotation.finish_authority(made.path, force=True)
    assert "another federation's" in broken(model, made.ca_certificate)


def test_an_older_model_is_verified_with_the_retired_authority_and_a_newer_one_is_not(
    made: Deployment, model: Path
) -> None:
    rotation.begin_authority(made.path)
    rotation.finish_authority(made.path, force=True)
    retired = made.ca_certificate.with_name("retired.crt")
    done = invoke("verify", model, "--ca", retired)
    assert done.exit_code == 0, done.stderr
    assert "federation trial, round 3" in done.stdout
    assert invoke("verify", model, "--ca", made.ca_certificate).exit_code == 1
    model.write_bytes(b"weights of round 4")
    signed_anew(made, round=4)
    assert invoke("verify", model, "--ca", made.ca_certificate).exit_code == 0
    assert "another federation's" in broken(model, retired)


def test_the_run_of_a_federation_knows_whose_it_is(made: Deployment, tmp_path: Path) -> None:
    found = model_signing.deployment_of(made.run)
    assert found is not None
    assert found.path == made.path
    made.server_key.unlink()
    assert model_signing.deployment_of(made.run) is None
    assert model_signing.deployment_of(tmp_path / "run") is None


def test_any_byte_of_a_signatures_certificate_may_be_another(made: Deployment, model: Path) -> None:
    """Nothing but an error of ours comes of it: cryptography has others, for versions and extensions."""
    file = model_signing.signature_file(model)
    record = json.loads(file.read_text())
    der = base64.b64decode("".join(record["certificate"].splitlines()[1:-1]))
    for place in range(0, len(der), 3):
        changed = der[:place] + bytes([der[place] ^ 5]) + der[place + 1 :]
        pem = (
            f"-----BEGIN CERTIFICATE-----\n{base64.encodebytes(changed).decode()}-----END CERTIFICATE-----\n"
        )
        file.write_text(json.dumps({**record, "certificate": pem}))
        with pytest.raises(RunError):
            model_signing.check(model, made.ca_certificate)


def test_a_model_is_signed_once_the_log_has_it_and_with_its_round(made: Deployment) -> None:
    audit = ServerAudit(made, None)  # type: ignore[arg-type]
    model = made.run / "models" / "last.safetensors"
    log = made.path / "audit"
    log.rename(made.path / "aside")
    log.touch()
    with pytest.raises(RunError, match="without being logged"):
        audit.sign(round=3)
    assert not model_signing.signature_file(model).exists()
    log.unlink()
    (made.path / "aside").rename(log)
    audit.begin("run resumed", round=3)  # as after a kill between the checkpoint and the signature
    assert model_signing.check(model, made.ca_certificate).about["round"] == 3
    (line,) = [line for line in AuditLog(made.path).verify().lines if line["event"] == "signed"]
    assert (line["model"], line["round"], line["sha256"]) == ("last", 3, sha256(model))


def test_the_best_model_is_signed_with_its_own_round_not_with_that_of_the_checkpoint(
    made: Deployment,
) -> None:
    audit, models = ServerAudit(made, None), made.run / "models"  # type: ignore[arg-type]
    for name, round in (("best", 3), ("last", 5)):
        card = {"round": round, "accuracy": 0.5}
        write_verified(models / f"{name}.safetensors", {"a": torch.ones(2)}, {"proxyfl": json.dumps(card)})
    audit.sign(round=5)
    signed = {
        file.stem: model_signing.check(file, made.ca_certificate) for file in models.glob("*.safetensors")
    }
    assert {name: one.about["round"] for name, one in signed.items()} == {"best": 3, "last": 5}
    lines = [line for line in AuditLog(made.path).verify().lines if line["event"] == "signed"]
    assert {line["model"]: line["round"] for line in lines} == {"best": 3, "last": 5}
    (models / "best.safetensors").write_bytes(b"another")  # without a card, it is the round that was given
    audit.begin("run resumed", round=6)
    assert model_signing.check(models / "best.safetensors", made.ca_certificate).about["round"] == 6
