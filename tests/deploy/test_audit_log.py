"""The audit log: every edit, cut and gap is found and named, crashes are mended, rotation keeps the chain."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from pathlib import Path

import pytest

from calling import invoke
from proxyfl.core.errors import RunError
from proxyfl.deploy import audit
from proxyfl.deploy.audit import AuditLog, Mark, listed


@pytest.fixture
def log(tmp_path: Path) -> AuditLog:
    made = AuditLog(tmp_path)
    for round in range(1, 6):
        made.add("sent", round=round, bytes=1000 * round)
    return made


def lines(log: AuditLog) -> list[bytes]:
    return log.file.read_bytes().splitlines(keepends=True)


def broken(log: AuditLog, since: Mark | None = None) -> str:
    with pytest.raises(RunError) as caught:
        log.verify(since)
    return str(caught.value)


def test_a_line_says_when_who_and_what_and_holds_the_hash_of_the_one_before(log: AuditLog) -> None:
    first, second = map(json.loads, lines(log)[:2])
    assert (first["n"], first["event"], first["round"], first["bytes"]) == (1, "sent", 1, 1000)
    assert first["by"] == audit.user()
    assert first["time"].endswith("+00:00")
    assert first["before"] == "0" * 64
    assert second["before"] == audit.hashlib.sha256(lines(log)[0].rstrip()).hexdigest()
    found = log.verify()
    assert found.head.number == 5
    assert found.events == {"sent": 5}
    assert not found.notes
    assert log.file.stat().st_mode & 0o777 == 0o600
    assert log.folder.stat().st_mode & 0o777 == 0o700


def test_who_did_it_is_the_account_whatever_the_environment_says(
    log: AuditLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwd = pytest.importorskip("pwd", reason="accounts have other names here")
    account = pwd.getpwuid(os.getuid()).pw_name
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.setenv(name, "somebody-else")
    log.add("sent")
    assert log.verify().lines[-1]["by"] == account

    def nameless(number: int) -> None:
        raise KeyError(number)

    monkeypatch.setattr(pwd, "getpwuid", nameless)
    assert audit.user() == str(os.getuid())
    monkeypatch.setitem(sys.modules, "pwd", None)
    assert audit.user() == "somebody-else"
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name)
    assert audit.user() == "unknown"


@pytest.mark.parametrize("place", range(5))
def test_an_edited_line_is_named(log: AuditLog, place: int) -> None:
    edited = lines(log)
    edited[place] = edited[place].replace(b'"bytes": ', b'"bytes": 9')
    log.file.write_bytes(b"".join(edited))
    told = broken(log)
    assert f"number {place + 1} before it was changed" in told if place < 4 else "it was changed" in told
    log.add("sent", round=6)  # and going on does not hide it
    assert (
        f"number {place + 1} before it was changed" in broken(log) if place < 4 else "line 6" in broken(log)
    )


@pytest.mark.parametrize("left", [0, 1, 4])
def test_a_cut_end_is_found_also_after_the_log_went_on(log: AuditLog, left: int) -> None:
    log.file.write_bytes(b"".join(lines(log)[:left]))
    assert f"ends with number {left}, the head says 5" in broken(log)
    log.add("sent", round=6)
    assert f"line {left + 1}: lines before it" in broken(log)


def test_a_line_cut_in_the_middle_is_no_crash(log: AuditLog) -> None:
    log.file.write_bytes(log.file.read_bytes()[:-20])
    assert "ends with number 4" in broken(log)


def test_a_missing_line_in_the_middle_and_a_missing_beginning_are_named(log: AuditLog) -> None:
    all_lines = lines(log)
    log.file.write_bytes(b"".join(all_lines[:2] + all_lines[3:]))
    assert "line 3: it has number 4 behind number 2" in broken(log)
    log.file.write_bytes(b"".join(all_lines[1:]))
    assert "line 1: it has number 2 behind number 0" in broken(log)


def test_a_log_without_its_head_or_head_without_its_log_is_found(log: AuditLog) -> None:
    head = log.head.read_bytes()
    log.head.unlink()
    assert "audit.head is missing" in broken(log)
    log.add("sent")
    assert "the head was gone" in broken(log)
    log.head.write_bytes(head)
    log.file.unlink()
    assert "does not exist" in broken(log)
    log.add("sent")
    assert "number 5 should be the last line" in broken(log)


@pytest.mark.parametrize("torn", [b"{", b'{"n": 6, "time": "2026', b'{"n": 6, "event": "sent"}'])
def test_a_crash_in_a_write_leaves_a_line_that_the_next_one_mends(log: AuditLog, torn: bytes) -> None:
    log.file.write_bytes(log.file.read_bytes() + torn)
    (note,) = log.verify().notes
    assert "the last line" in note
    log.add("sent", round=6)
    found = log.verify()
    assert found.notes == ["1 unfinished line(s) were cut off after a crash"]
    assert [line["event"] for line in found.lines][-2:] == [audit.REPAIRED, "sent"]
    assert found.lines[-2]["bytes"] == len(torn)


def test_a_head_that_a_crash_left_half_written_is_swept_away(log: AuditLog) -> None:
    half = log.head.with_name(f".{log.head.name}.{2**30}.aside")
    half.write_text("5:")
    log.add("sent", round=6)
    assert not half.exists()
    assert log.verify().head.number == 6


def test_a_crash_before_the_head_was_written_loses_nothing(log: AuditLog) -> None:
    head = log.head.read_bytes()
    log.add("sent", round=6)
    log.head.write_bytes(head)
    assert log.verify().head.number == 6
    log.add("sent", round=7)
    assert log.verify().head.number == 7


FIRST_CRASHES = {0: {"sent": 1}, 30: {"repaired": 1, "sent": 1}, None: {"sent": 2}}
"""Bytes of the first line that are left; what the log holds after the next."""


@pytest.mark.parametrize("left", FIRST_CRASHES)
def test_a_crash_in_the_first_line_or_before_its_head_leaves_a_log_that_goes_on(
    tmp_path: Path, left: int | None
) -> None:
    log = AuditLog(tmp_path)
    log.add("sent", round=1)
    log.file.write_bytes(log.file.read_bytes()[:left])
    log.head.unlink()
    assert log.verify().head.number == (left is None)
    log.add("sent", round=2)
    assert log.verify().events == FIRST_CRASHES[left]


def test_the_line_that_a_crash_left_without_its_head_can_be_recorded_elsewhere(log: AuditLog) -> None:
    head = log.head.read_bytes()
    log.add("sent", round=6)
    log.head.write_bytes(head)
    noted = log.verify().head
    assert noted.number == 6
    assert log.verify(noted).head == noted
    log.add("sent", round=7)
    assert log.verify(noted).head.number == 7


@pytest.mark.parametrize("state", ["two lines", "torn", "damaged head", "other start", "part", "second line"])
def test_no_other_log_without_its_head_passes_for_a_new_one(tmp_path: Path, state: str) -> None:
    log = AuditLog(tmp_path)
    log.add("sent", round=1)
    log.add("sent", round=2)
    first, second = lines(log)
    left = {"two lines": first + second, "torn": first + second[:20], "second line": second}
    left["other start"] = first.replace(b"0" * 64, b"1" * 64)
    log.file.write_bytes(left.get(state, first))
    log.head.unlink()
    if state == "damaged head":
        log.head.write_text("1:")
    if state == "part":
        log.file.with_name("audit-0000000001.jsonl").write_bytes(first)
    assert "audit.head is missing or damaged" in broken(log)
    log.add("sent", round=3)
    broken(log)


def test_a_log_cut_to_its_first_line_does_not_hold_the_line_noted_elsewhere(log: AuditLog) -> None:
    noted = log.verify().head
    log.file.write_bytes(lines(log)[0])
    log.head.unlink()
    assert "number 5, which was recorded elsewhere, is not in" in broken(log, noted)


def test_a_round_of_thousands_of_sites_is_a_short_line_that_still_says_who() -> None:
    names = [f"site-{number:04d}" for number in range(5000)]
    assert listed(names[:50]) == {"sites": names[:50]}
    many = listed(names)
    assert (many["sites"], many["count"]) == (names[:50], 5000)
    assert many["sites_sha256"] == audit.hashlib.sha256("\n".join(names).encode()).hexdigest()
    assert len(json.dumps(many)) < 1000
    assert list(listed(names, "waiting")) == ["waiting", "count", "waiting_sha256"]
    assert listed([*names[:-1], "other"])["sites_sha256"] != many["sites_sha256"]


def test_rotation_keeps_the_chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "PART_BYTES", 500)
    log = AuditLog(tmp_path)
    for round in range(20):
        log.add("sent", round=round)
    parts = sorted(log.folder.glob("audit-*.jsonl"))
    assert len(parts) > 3
    assert log.verify().head.number == 20
    middle = parts[1].read_bytes()
    parts[1].unlink()
    assert "are missing" in broken(log)
    parts[1].write_bytes(middle.replace(b"sent", b"sunk", 1))
    assert "was changed" in broken(log)
    parts[1].write_bytes(middle)
    # Parts that were moved elsewhere: what is here is verified from a noted line on.
    since = Mark(*_mark_of(parts[0].read_bytes().splitlines()[-1]))
    parts[0].unlink()
    assert "1 to " in broken(log)
    assert log.verify(since).head.number == 20


def test_all_parts_may_be_moved_away_right_after_a_rotation(
    log: AuditLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "PART_BYTES", 300)
    noted = log.add("sent", round=6)
    for part in log.folder.glob("audit-*.jsonl"):
        part.unlink()
    log.add("sent", round=7)
    assert log.verify(noted).head.number == 7


def test_a_rotation_that_a_full_disk_stops_leaves_the_last_line_where_it_was(
    log: AuditLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "PART_BYTES", 300)

    def full(path: Path, content: bytes) -> None:
        path.write_bytes(content[:20])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(audit, "append_bytes", full)
        with pytest.raises(RunError, match="No space"):
            log.add("sent", round=6)
    assert len(lines(log)) == 5
    log.add("sent", round=6)
    assert len(lines(log)) == 1
    assert log.verify().head.number == 6


def _mark_of(raw: bytes) -> tuple[int, str]:
    return json.loads(raw)["n"], audit.hashlib.sha256(raw).hexdigest()


def test_a_log_written_anew_does_not_hold_the_line_noted_elsewhere(log: AuditLog, tmp_path: Path) -> None:
    noted = log.verify().head
    forged = AuditLog(tmp_path / "forged")
    for round in range(1, 9):
        forged.add("sent", round=round, bytes=1)
    assert forged.verify().head.number == 8
    assert "line 5: number 5" in broken(forged, noted)
    short = AuditLog(tmp_path / "short")
    short.add("sent")
    assert "number 5, which was recorded elsewhere, is not in" in broken(short, noted)


def _add_some(place: Path) -> None:
    for _ in range(10):
        AuditLog(place).add("sent")


def test_several_programs_write_one_chain(tmp_path: Path) -> None:
    programs = [
        multiprocessing.get_context("fork").Process(target=_add_some, args=(tmp_path,)) for _ in "123"
    ]
    for program in programs:
        program.start()
    for program in programs:
        program.join()
    assert AuditLog(tmp_path).verify().head.number == 30


@pytest.mark.parametrize("part", [10_000, 300], ids=["added", "put aside"])
@pytest.mark.parametrize("after", ["_noted", "_parts"])
def test_a_program_that_writes_meanwhile_is_no_tampering(
    log: AuditLog, monkeypatch: pytest.MonkeyPatch, part: int, after: str
) -> None:
    monkeypatch.setattr(audit, "PART_BYTES", part)
    look, meanwhile = getattr(AuditLog, after), iter(range(6, 9))

    def looked(self: AuditLog) -> object:
        found = look(self)
        found = found if after == "_noted" else iter(list(found))
        if self is log:
            for round in meanwhile:
                AuditLog(log.folder.parent).add("sent", round=round)
        return found

    monkeypatch.setattr(AuditLog, after, looked)
    assert log.verify().head.number == 8


def test_lines_behind_a_head_that_nobody_writes_are_found(log: AuditLog) -> None:
    head = log.head.read_bytes()
    log.add("sent", round=6)
    log.add("sent", round=7)
    log.head.write_bytes(head)
    assert "ends with number 7, the head says 5" in broken(log)


@pytest.mark.parametrize("raw", [b"\xff\xfe\n", b"[1]\n", b"null\n", b'{"n": "1"}\n', b"x" * 70_000])
def test_no_bytes_break_the_reading(log: AuditLog, raw: bytes) -> None:
    log.file.write_bytes(raw + log.file.read_bytes())
    assert "audit.jsonl" in broken(log)


def test_texts_are_cut_and_a_line_of_the_greatest_length_is_read(log: AuditLog) -> None:
    log.add("sent", text="x" * 100_000)
    assert 100 < len(log.verify().lines[-1]["text"]) <= audit.LONGEST_TEXT
    log.add("sent", sites=[])
    short = len(lines(log)[-1].rstrip())
    log.add("sent", sites=["x" * (audit.LONGEST - short - 2)])
    assert len(lines(log)[-1].rstrip()) == audit.LONGEST
    assert log.verify().head.number == 8
    with pytest.raises(RunError, match="at most"):
        log.add("sent", sites=["x" * audit.LONGEST])


def test_a_log_that_cannot_be_written_is_an_error_in_words(log: AuditLog) -> None:
    log.file.unlink()
    log.file.mkdir()
    with pytest.raises(RunError, match=r"audit\.jsonl cannot be written"):
        log.add("sent")


def test_the_command_verifies_shows_and_names_what_is_broken(log: AuditLog, tmp_path: Path) -> None:
    head = log.verify().head
    done = invoke("deploy", "audit", tmp_path, "--last", "2")
    assert done.exit_code == 0
    assert "5 lines, unbroken: 5 sent" in done.stdout
    assert f"head {head}" in done.stdout
    assert "round=4" in done.stdout
    assert "round=3" not in done.stdout
    third = Mark(*_mark_of(lines(log)[2].rstrip()))
    rows = invoke("deploy", "audit", tmp_path, "--json", "--since", third)
    assert [json.loads(row)["round"] for row in rows.stdout.splitlines()] == [4, 5]
    text = log.file.read_bytes()
    log.file.write_bytes(text.replace(b'"bytes": 4000', b'"bytes": 9000'))
    assert log.file.read_bytes() != text
    broken_one = invoke("deploy", "audit", tmp_path)
    assert broken_one.exit_code == 1
    assert "line 5: number 4 before it was changed" in broken_one.stderr


def test_a_mark_that_is_none_is_an_error_in_words(log: AuditLog) -> None:
    with pytest.raises(audit.ConfigError, match="mark of a log"):
        Mark.read("5")
