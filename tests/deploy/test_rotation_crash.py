"""A rotation of the certificate authority that is cut off anywhere: repeated, it ends as if it never was."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from calling import invoke
from proxyfl.core.errors import ConfigError, RunError
from proxyfl.deploy import expiry, overview, pki, rotation, seen
from proxyfl.deploy.settings import Deployment

NEEDED = ("federation.toml", "ca", "server", "audit", "site-01", "site-02", "site-03")


class Killed(BaseException):
    """The process is no more: nothing that would clean up after an error does anything."""


@contextmanager
def killed_at(step: int) -> Iterator[list[str]]:
    """From the given change of a file on nothing is renamed, removed or created; yields the changes."""
    done: list[str] = []
    patch = pytest.MonkeyPatch()

    def cut(name: str, act: Callable[..., Any], counts: Callable[..., bool]) -> Callable[..., Any]:
        def instead(*words: Any, **more: Any) -> Any:
            if counts(*words):
                if len(done) >= step:
                    raise Killed
                done.append(f"{name} {words[0]}")
            return act(*words, **more)

        return instead

    patch.setattr(Path, "replace", cut("rename", Path.replace, lambda *words: True))
    patch.setattr(Path, "unlink", cut("remove", Path.unlink, lambda file: file.exists()))
    patch.setattr(os, "open", cut("create", os.open, lambda file, flags, *more: bool(flags & os.O_CREAT)))
    patch.setattr(os, "fsync", lambda handle: None)
    try:
        yield done
    finally:
        patch.undo()


@pytest.fixture(scope="module")
def small(trial: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What of a deployment a rotation reads and writes. Not to be changed."""
    folder = tmp_path_factory.mktemp("small") / "trial"
    folder.mkdir()
    for name in NEEDED:
        (shutil.copytree if (trial / name).is_dir() else shutil.copy)(trial / name, folder / name)
    return folder


def every_cut(folder: Path, place: Path, act: Callable[[Path], Any]) -> Iterator[Path]:
    """Copies of a folder in which a command was killed before its first, its second, … its last change."""
    for step in itertools.count():
        copied = Path(shutil.copytree(folder, place / f"cut-{step}"))
        with killed_at(step) as done:
            try:
                act(copied)
            except Killed:
                pass
            else:
                assert step > 5, done
                return
        yield copied


def keys_in(file: Path) -> list[str]:
    return [rotation._key_name(one) for one in pki.read_authorities(file)]


def rotated(folder: Path) -> None:
    rotation.begin_authority(folder)
    rotation.finish_authority(folder, force=True)


def assert_finished(folder: Path, former: list[str]) -> str:
    """One authority, another than the former ones, of which everything is; returns its name."""
    made = Deployment.read(folder)
    (key,) = keys_in(made.ca_certificate)
    assert key not in former
    assert keys_in(folder / "ca" / rotation.RETIRED) == former
    pki.check_key(made.ca_key, made.ca_certificate)
    pki.check_key(made.server_key, made.server_certificate)
    pki.check_server(made.server_certificate, made.ca_certificate)
    for site in map(made.site, made.present):
        assert keys_in(site.ca_certificate) == [key]
        pki.check_site(site.certificate, site.public_key, made.ca_certificate)
    names = {file.name for file in (folder / "ca").iterdir() if not file.name.startswith(".")}
    assert not names & {"new.crt", "new.key"}
    return key


def test_a_begun_rotation_that_was_killed_anywhere_can_be_repeated(small: Path, tmp_path: Path) -> None:
    (first,) = keys_in(small / "ca" / "ca.crt")
    for folder in every_cut(small, tmp_path, rotation.begin_authority):
        made = Deployment.read(folder)
        pki.check_server(made.server_certificate, made.ca_certificate)  # sites come in meanwhile
        rotation.begin_authority(folder)
        second, last = keys_in(made.ca_certificate)
        assert last == first
        assert [keys_in(made.site(name).ca_certificate) for name in made.present] == [[second, first]] * 3
        rotation.finish_authority(folder, force=True)
        assert assert_finished(folder, [first]) == second
        rotated(folder)
        assert_finished(folder, [first, second])


def test_a_finished_rotation_that_was_killed_anywhere_can_be_repeated(small: Path, tmp_path: Path) -> None:
    """Else a ca.crt that trusts a stolen key would be sent to sites, and nobody would know."""
    (first,) = keys_in(small / "ca" / "ca.crt")
    begun = Path(shutil.copytree(small, tmp_path / "begun"))
    rotation.begin_authority(begun)
    (second, _) = keys_in(begun / "ca" / "ca.crt")

    def finish(folder: Path) -> list[str]:
        return rotation.finish_authority(folder, force=True)

    for folder in every_cut(begun, tmp_path, finish):
        assert sum("ca.crt" in line and "scp" in line for line in finish(folder)) == 3
        assert assert_finished(folder, [first]) == second


@pytest.fixture
def expired(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A deployment whose authority has ended."""
    made = Deployment.read(shutil.copytree(small, tmp_path / "expired"))
    monkeypatch.setattr(pki, "CA_DAYS", -1)
    monkeypatch.setattr(pki, "EARLIER", pki.datetime.timedelta(days=9))
    made.ca_certificate.unlink()
    made.ca_key.unlink()
    authority = made.ca_certificate, made.ca_key
    pki.create_authority(*authority, "trial")
    monkeypatch.undo()
    pki.issue_server(made.server_certificate, made.server_key, authority, ["a"], renew=True)
    return made.path


def test_an_expired_authority_whose_replacement_was_killed_anywhere_is_replaced(
    expired: Path, tmp_path: Path
) -> None:
    (former,) = keys_in(expired / "ca" / "ca.crt")
    for folder in every_cut(expired, tmp_path, rotation.begin_authority):
        said = rotation.begin_authority(folder)
        assert any("the former authority had expired: send each site" in line for line in said)
        assert_finished(folder, [former])


def test_what_is_to_be_done_is_said_while_an_expired_authority_is_replaced(
    expired: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, rotate = Deployment.read(expired), f"proxyfl deploy rotate {expired} --ca"
    monkeypatch.setattr(rotation, "_finish_authority", lambda *words, **more: None)
    rotation.begin_authority(expired)
    monkeypatch.undo()
    assert rotation.is_under_way(made)
    with pytest.raises(ConfigError, match="has expired") as refused:
        pki.check_server(made.server_certificate, made.ca_certificate, expired)
    assert rotate in str(refused.value)
    (note,) = (note for note in expiry.of_server(made) if "--ca" in note)
    assert "expired 2 day(s) ago" in note
    assert "--finish" not in note
    assert overview.certificate_days(made)["authority"] == -2
    for command in (rotation.finish_authority, rotation.renew):
        with pytest.raises((ConfigError, RunError), match="expired") as unfinished:
            command(expired)
        assert str(unfinished.value).endswith(rotate)


@pytest.mark.parametrize(
    "words",
    [
        ("init", "DIR", "--renew"),
        ("add-site", "DIR", "lyon"),
        ("rotate", "DIR", "--site", "site-01"),
        ("init", "DIR", "--new-key", "site-01"),
    ],
    ids=" ".join,
)
def test_an_expired_authority_certifies_nothing_and_leaves_nothing_half_done(
    words: tuple[str, ...], expired: Path
) -> None:
    def files() -> dict[Path, bytes]:
        return {file: file.read_bytes() for file in sorted(expired.rglob("*")) if file.is_file()}

    before = files()
    done = invoke("deploy", *(str(expired) if word == "DIR" else word for word in words))
    assert done.exit_code == 2
    assert done.stderr.strip().endswith(f"proxyfl deploy rotate {expired} --ca")
    assert files() == before


def test_an_authority_that_expires_while_another_is_introduced_is_announced(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Deployment.read(shutil.copytree(small, tmp_path / "trial"))
    monkeypatch.setattr(pki, "CA_DAYS", 10)
    made.ca_certificate.unlink()
    made.ca_key.unlink()
    pki.create_authority(made.ca_certificate, made.ca_key, "trial")
    monkeypatch.undo()
    assert any("ca.crt expires in 9 days; introduce another" in note for note in expiry.of_server(made))
    rotation.begin_authority(made.path)
    (note,) = (note for note in expiry.of_server(made) if "--ca" in note)
    assert note.endswith("--finish")
    assert "expires in 9 days" in note


def test_what_an_earlier_rotation_left_is_not_taken_for_a_new_authority(small: Path, tmp_path: Path) -> None:
    """Else the one whose key was stolen would stay, and every command would say that it was replaced."""
    made = Deployment.read(shutil.copytree(small, tmp_path / "trial"))
    (first,) = keys_in(made.ca_certificate)
    rotated(made.path)
    (second,) = keys_in(made.ca_certificate)
    shutil.copy(made.ca_certificate, made.ca_certificate.with_name("new.crt"))
    for name in made.sites:
        seen.settle_key(made, name, current=True, authority=second)
    stolen = made.ca_key.read_bytes()
    assert invoke("deploy", "rotate", made.path, "--ca").exit_code == 0
    early = invoke("deploy", "rotate", made.path, "--ca", "--finish")
    assert early.exit_code == 2  # no site has shown a certificate of the new one
    assert "--force" in early.stderr
    rotation.finish_authority(made.path, force=True)
    assert made.ca_key.read_bytes() != stolen
    assert_finished(made.path, [first, second])


def test_a_former_key_that_was_restored_makes_a_new_authority_necessary(small: Path, tmp_path: Path) -> None:
    """Killed between the new key and its certificate, and ca.key taken from a back-up as errors advise."""
    made = Deployment.read(shutil.copytree(small, tmp_path / "trial"))
    (first,) = keys_in(made.ca_certificate)
    fresh, _ = pki.new_authority("trial")
    made.ca_certificate.with_name("new.crt").write_bytes(fresh)
    rotated(made.path)
    assert_finished(made.path, [first])
