"""What cannot be logged is not done: each change is in the audit log before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from calling import TINY, invoke
from proxyfl.core.errors import RunError
from proxyfl.core.files import sha256
from proxyfl.deploy import longer, operate, rotation, seen, stopping
from proxyfl.deploy.audit import AuditLog
from proxyfl.deploy.settings import Deployment

RUN = "0123456789abcdef"


def contents(folder: Path) -> dict[str, tuple[int, str]]:
    """Every file and folder with its mode and hash."""
    return {
        str(one.relative_to(folder)): (one.stat().st_mode, sha256(one) if one.is_file() else "")
        for one in folder.rglob("*")
    }


def nothing(folder: Path) -> None:
    pass


def removed_in_a_run(folder: Path) -> None:
    """A site that the next run takes off the list."""
    (folder / "removed").mkdir()
    (folder / "site-03").rename(folder / "removed" / "site-03")


def kept(folder: Path) -> None:
    for name in (RUN, RUN[::-1]):
        (folder / "site-01" / "state" / "site-01" / name).mkdir(parents=True)


def with_a_run(folder: Path) -> None:
    assert invoke("run", "digits", *TINY, "--name", "run", "--runs", folder).exit_code == 0


def begun(folder: Path) -> None:
    rotation.begin_authority(folder)


def half_begun(folder: Path) -> None:
    """A power cut came when the key of the new authority was in place and its certificate was not."""
    begun(folder)
    authority = folder / "ca" / "ca.crt"
    both = rotation.pki.read_authorities(authority)
    new, former = (one.public_bytes(rotation.Encoding.PEM) for one in both)
    authority.with_name("new.crt").write_bytes(new)
    authority.write_bytes(former)


COMMANDS: dict[str, tuple[Callable[[Path], None], str]] = {
    "new key": (nothing, "init DIR --new-key site-01"),
    "renew": (nothing, "init DIR --renew"),
    "rotate": (nothing, "rotate DIR --site site-02"),
    "authority": (nothing, "rotate DIR --ca"),
    "authority continued": (half_begun, "rotate DIR --ca"),
    "authority repeated": (begun, "rotate DIR --ca"),
    "authority finished": (begun, "rotate DIR --ca --finish --force"),
    "add": (nothing, "add-site DIR lyon"),
    "remove": (nothing, "remove-site DIR site-01"),
    "lengthen": (nothing, "run DIR --rounds 77"),
    "lengthen a run": (with_a_run, "run DIR --rounds 77"),
    "run": (removed_in_a_run, "run DIR"),
    "stop": (nothing, "stop DIR"),
    "stop now": (nothing, "stop DIR --now"),
    "backup": (nothing, "backup DIR server.tar"),
    "prune": (kept, "prune DIR/site-01 --yes"),
}


def block(folder: Path) -> None:
    """A file in the place of the folder: this stops root, too."""
    for place in (folder, folder / "site-01"):
        if (place / "audit").exists():
            (place / "audit").rename(place / "audit-before")
        (place / "audit").touch()


@pytest.mark.parametrize("case", COMMANDS)
def test_without_a_line_in_the_log_nothing_changes(
    case: str, own_trial: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(operate, "require_server", lambda *words: None)
    monkeypatch.setattr(operate, "under_way", lambda deployment: "7")
    monkeypatch.setattr(operate, "submit", asked.append)
    monkeypatch.setattr(stopping, "ask_flwr", lambda *words: asked.append(words))
    prepare, words = COMMANDS[case]
    prepare(own_trial)
    block(own_trial)
    before = contents(own_trial)
    done = invoke("deploy", *words.replace("DIR", str(own_trial)).split())
    assert done.exit_code == 2, done.output
    assert "nothing is done without being logged" in " ".join(done.stderr.split())
    assert contents(own_trial) == before
    assert asked == []
    assert not Path("server.tar").exists()


def test_a_former_key_is_locked_out_with_a_line_in_the_log_or_not_at_all(own_trial: Path) -> None:
    made = Deployment.read(own_trial)
    rotation.rotate_site(own_trial, "site-02")
    seen.settle_key(made, "site-02", current=False, authority="a")
    block(own_trial)
    before = contents(own_trial)
    with pytest.raises(RunError, match="without being logged"):
        seen.settle_key(made, "site-02", current=True, authority="a")
    assert contents(own_trial) == before


def test_a_restored_folder_has_its_line_in_the_log_or_does_not_appear(
    own_trial: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert invoke("deploy", "backup", own_trial / "site-01", "site.tar").exit_code == 0

    def full(*words: Any, **details: Any) -> None:
        raise RunError("no space")

    monkeypatch.setattr(AuditLog, "add", full)
    assert invoke("deploy", "restore", "site.tar", "elsewhere/site").exit_code == 2
    assert list(Path("elsewhere").iterdir()) == []


def test_what_cannot_be_certified_is_neither_logged_nor_begun(own_trial: Path) -> None:
    (own_trial / "ca" / "ca.key").unlink()
    before = contents(own_trial)
    for words in (
        ("init", own_trial, "--new-key", "site-01"),
        ("init", own_trial, "--renew"),
        ("rotate", own_trial, "--site", "site-01"),
        ("rotate", own_trial, "--ca"),
        ("add-site", own_trial, "lyon"),
    ):
        done = invoke("deploy", *words)
        assert done.exit_code == 2, words
        assert "restore the key" in " ".join(done.stderr.split())
        assert contents(own_trial) == before, words


def test_fewer_rounds_than_the_run_has_are_refused_without_a_line(own_trial: Path) -> None:
    with_a_run(own_trial)
    made = Deployment.read(own_trial)
    longer.lengthen(made, 77)
    before = contents(own_trial / "audit")
    with pytest.raises(RunError, match="cannot have 5"):
        longer.lengthen(made, 5)
    assert contents(own_trial / "audit") == before
