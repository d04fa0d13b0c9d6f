"""Whom the gate knows while the operator's files are edited or damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxyfl.deploy import members, roster, rotation
from proxyfl.deploy.gate import Sites
from proxyfl.deploy.settings import Deployment


def keys_of(folder: Path) -> dict[str, bytes]:
    made = Deployment.read(folder)
    return {name: roster.site_key(made.site(name).public_key) for name in made.present}


def look(sites: Sites, key: bytes) -> str | None:
    sites.until = 0.0
    return sites.name(key)


def test_sites_stay_known_while_the_list_cannot_be_read_and_the_console_says_why(
    own_trial: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys, sites, file = keys_of(own_trial), Sites(own_trial), own_trial / "federation.toml"
    assert {name: look(sites, key) for name, key in keys.items()} == {name: name for name in keys}
    text = file.read_text()
    file.write_text(text.replace("deadline", "deadlin"))
    assert file.read_text() != text
    assert [look(sites, keys["site-01"]) for _ in range(3)] == ["site-01"] * 3
    (said,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("proxyfl: ")]
    assert "deadlin" in said
    # Who was removed, or got another key, is locked out even so.
    members_moved = own_trial / "removed"
    members_moved.mkdir()
    (own_trial / "site-02").rename(members_moved / "site-02")
    assert look(sites, keys["site-02"]) is None
    (own_trial / "site-03" / "site.pub").write_bytes((members_moved / "site-02" / "site.pub").read_bytes())
    assert look(sites, keys["site-03"]) is None
    assert look(sites, keys["site-01"]) == "site-01"


def test_a_lost_public_key_locks_out_nobody_else(own_trial: Path) -> None:
    keys, sites = keys_of(own_trial), Sites(own_trial)
    assert look(sites, keys["site-01"]) == "site-01"
    (own_trial / "site-02" / "site.pub").unlink()
    assert look(sites, keys["site-01"]) == "site-01"
    assert look(sites, keys["site-02"]) is None


def test_changes_count_at_once_where_they_can_be_read(own_trial: Path) -> None:
    keys, sites = keys_of(own_trial), Sites(own_trial)
    assert look(sites, keys["site-02"]) == "site-02"
    rotation.new_key(own_trial, "site-02")
    assert look(sites, keys["site-02"]) is None
    assert look(sites, keys_of(own_trial)["site-02"]) == "site-02"
    members.remove_site(own_trial, "site-01")
    assert look(sites, keys["site-01"]) is None
