"""The keys are real: OpenSSL verifies the chain in a handshake, Flower's own readers read the sites' keys."""

from __future__ import annotations

import os
import re
import signal
import ssl
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509 import verification
from flwr.cli.supernode.register import try_load_public_key

from proxyfl.core.errors import ConfigError, RunError
from proxyfl.deploy import pki


def authority(folder: Path, name: str = "trial") -> tuple[Path, Path]:
    folder.mkdir(parents=True, exist_ok=True)
    pair = folder / "ca.crt", folder / "ca.key"
    pki.create_authority(*pair, name)
    return pair


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority and a server's certificate for fl.example.org and 10.0.0.5. Not to be changed."""
    folder = tmp_path_factory.mktemp("pki")
    pair = authority(folder)
    pki.issue_server(folder / "server.crt", folder / "server.key", pair, ["fl.example.org", "10.0.0.5"])
    return folder


def shake_hands(server: Path, trusted: Path, name: str) -> None:
    """A TLS handshake in memory, as a site would do it; raises where OpenSSL does."""
    offering = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    offering.load_cert_chain(server / "server.crt", server / "server.key")
    trust = ssl.create_default_context(cafile=str(trusted))
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        trust.wrap_bio(back, there, server_hostname=name),
        offering.wrap_bio(there, back, server_side=True),
    ]
    for _ in range(10):
        for end in list(ends):
            try:
                end.do_handshake()
                ends.remove(end)
            except ssl.SSLWantReadError:
                continue
        if not ends:
            return
    raise AssertionError("the handshake does not end")


@pytest.mark.parametrize("name", ["fl.example.org", "10.0.0.5", "localhost", "127.0.0.1", "::1"])
def test_the_chain_verifies_for_every_name(keys: Path, name: str) -> None:
    shake_hands(keys, keys / "ca.crt", name)


def test_another_authority_or_another_name_is_refused(keys: Path, tmp_path: Path) -> None:
    other, _ = authority(tmp_path, "other")
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate verify failed"):
        shake_hands(keys, other, "fl.example.org")
    same_name, _ = authority(tmp_path / "again", "trial")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(keys, same_name, "fl.example.org")
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        shake_hands(keys, keys / "ca.crt", "evil.example.org")


def test_certificates_satisfy_the_strict_profile(keys: Path) -> None:
    root, server = (pki.read_certificate(keys / name) for name in ("ca.crt", "server.crt"))
    store = verification.Store([root])
    verifier = verification.PolicyBuilder().store(store).build_server_verifier(x509.DNSName("fl.example.org"))
    assert verifier.verify(server, []) == [server, root]
    constraints = root.extensions.get_extension_for_class(x509.BasicConstraints)
    assert (constraints.critical, constraints.value.ca, constraints.value.path_length) == (True, True, 0)
    assert root.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    usage = server.extensions.get_extension_for_class(x509.KeyUsage).value
    assert (usage.digital_signature, usage.key_cert_sign) == (True, False)
    assert not server.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert isinstance(server.public_key(), ec.EllipticCurvePublicKey)
    assert server.public_key().curve.name == "secp384r1"
    server_id = server.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value
    root_id = root.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    assert server_id.key_identifier == root_id.digest


def test_a_server_certificate_cannot_sign_another(keys: Path, tmp_path: Path) -> None:
    pair = keys / "server.crt", keys / "server.key"
    pki.issue_server(tmp_path / "server.crt", tmp_path / "server.key", pair, ["fl.example.org"])
    chain = (tmp_path / "server.crt").read_bytes() + (keys / "server.crt").read_bytes()
    (tmp_path / "server.crt").write_bytes(chain)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(tmp_path, keys / "ca.crt", "fl.example.org")


def test_flower_reads_a_sites_keys(tmp_path: Path) -> None:
    private, public = tmp_path / "site.key", tmp_path / "site.pub"
    pki.create_site_keys(private, public, "site-01")
    assert try_load_public_key(public).startswith(b"-----BEGIN PUBLIC KEY-----")
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    key = load_ssh_private_key(private.read_bytes(), None)  # as flower-supernode does
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert key.curve.name == "secp384r1"
    assert public.read_text().split()[0] == "ecdsa-sha2-nistp384"
    assert public.read_text().split()[-1] == "site-01"
    pki.check_site_keys(private, public)


def test_keys_that_are_no_pair_are_found(tmp_path: Path) -> None:
    for name in ("a", "b"):
        pki.create_site_keys(tmp_path / f"{name}.key", tmp_path / f"{name}.pub", name)
    with pytest.raises(ConfigError, match="do not belong together"):
        pki.check_site_keys(tmp_path / "a.key", tmp_path / "b.pub")
    (tmp_path / "c.pub").write_text("nothing\n")
    with pytest.raises(ConfigError, match="is no OpenSSH key"):
        pki.check_site_keys(tmp_path / "a.key", tmp_path / "c.pub")
    with pytest.raises(ConfigError, match="cannot be read"):
        pki.check_site_keys(tmp_path / "d.key", tmp_path / "a.pub")


def test_private_files_are_the_owners_alone_and_never_overwritten(tmp_path: Path) -> None:
    pair = authority(tmp_path)
    pki.issue_server(tmp_path / "server.crt", tmp_path / "server.key", pair, ["a.org"])
    pki.create_site_keys(tmp_path / "site.key", tmp_path / "site.pub", "site-01")
    for name in ("ca.key", "server.key", "site.key"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(RunError, match="not overwritten"):
        authority(tmp_path)
    with pytest.raises(RunError, match="not overwritten"):
        pki.issue_server(tmp_path / "server.crt", tmp_path / "server.key", pair, ["a.org"])
    with pytest.raises(RunError, match="not overwritten"):
        pki.create_site_keys(tmp_path / "site.key", tmp_path / "site.pub", "site-01")
    assert before == {file.name: file.read_bytes() for file in tmp_path.iterdir()}


def test_a_renewed_certificate_is_new_and_still_private(tmp_path: Path) -> None:
    pair = authority(tmp_path)
    files = tmp_path / "server.crt", tmp_path / "server.key"
    pki.issue_server(*files, pair, ["a.org"], days=3)
    old = files[1].read_bytes()
    assert pki.days_left(files[0]) == 2
    pki.issue_server(*files, pair, pki.hosts_of(files[0]), renew=True)
    assert files[1].read_bytes() != old
    assert stat.S_IMODE(files[1].stat().st_mode) == 0o600
    assert pki.days_left(files[0]) == pki.SERVER_DAYS - 1
    shake_hands(tmp_path, pair[0], "a.org")
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "ca.crt",
        "ca.key",
        "server.crt",
        "server.key",
    ]


def test_what_an_interrupted_renewal_left_is_replaced_and_stays_private(tmp_path: Path) -> None:
    """Killed with the new key written and not yet in its place, and once more in the middle of writing."""
    pki.create_site_keys(tmp_path / "site.key", tmp_path / "site.pub", "site-01")
    before = (tmp_path / "site.key").read_bytes()
    code = "import os, sys; from pathlib import Path; from proxyfl.deploy import pki; "
    code += "Path.replace = lambda *where: os.kill(os.getpid(), 9); "
    code += "pki.create_site_keys(Path('site.key'), Path('site.pub'), 'site-01', renew=True)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False)
    assert done.returncode == -signal.SIGKILL
    (left,) = tmp_path.glob(".site.key.*")
    assert stat.S_IMODE(left.stat().st_mode) == 0o600
    assert (tmp_path / "site.key").read_bytes() == before
    half = tmp_path / f".site.key.{os.getpid()}.aside"
    half.write_text("half of a key")
    half.chmod(0o644)
    pki.create_site_keys(tmp_path / "site.key", tmp_path / "site.pub", "site-01", renew=True)
    pki.check_site_keys(tmp_path / "site.key", tmp_path / "site.pub")
    assert stat.S_IMODE((tmp_path / "site.key").stat().st_mode) == 0o600
    assert sorted(file.name for file in tmp_path.iterdir()) == ["site.key", "site.pub"]


def test_an_ended_authority_cannot_be_renewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pki, "CA_DAYS", 0)
    pair = authority(tmp_path)
    pki.issue_server(tmp_path / "server.crt", tmp_path / "server.key", pair, ["a.org"])
    with pytest.raises(ConfigError, match="distribute the sites' folders again") as error:
        pki.check_server(tmp_path / "server.crt", pair[0])
    assert "--renew" not in str(error.value)


def test_an_ended_or_foreign_certificate_is_named_with_the_cure(keys: Path, tmp_path: Path) -> None:
    pair = authority(tmp_path)
    pki.issue_server(tmp_path / "server.crt", tmp_path / "server.key", pair, ["a.org"], days=0)
    renew = f"renew it with: proxyfl deploy init {tmp_path} --renew"
    with pytest.raises(ConfigError, match=re.escape(renew)):
        pki.check_server(tmp_path / "server.crt", pair[0], tmp_path)
    with pytest.raises(ConfigError, match=f"is not signed by .*; {re.escape(renew)}"):
        pki.check_server(keys / "server.crt", pair[0], tmp_path)
    pki.check_server(keys / "server.crt", keys / "ca.crt")
    pki.check_key(keys / "server.key", keys / "server.crt")
    with pytest.raises(ConfigError, match=r"server\.key .*server\.crt"):
        pki.check_key(tmp_path / "server.key", keys / "server.crt")
    with pytest.raises(ConfigError, match="is not the key of"):
        pki.issue_server(tmp_path / "x.crt", tmp_path / "x.key", (keys / "ca.crt", pair[1]), ["a.org"])
    with pytest.raises(ConfigError, match="is not a certificate"):
        pki.read_certificate(pair[1])
    with pytest.raises(ConfigError, match="'a b' is not a host name"):
        pki.issue_server(tmp_path / "y.crt", tmp_path / "y.key", pair, ["a b"])
