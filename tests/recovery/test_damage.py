"""Damaged files: noticed, told in words, and mended from the last good copy; or provably without effect."""

from __future__ import annotations

import random

import pytest
from damage import AS_NEW, REFUSED, STEP_BACK, Patient, ask_as_a_user, flip, fuzz, opened_only

import proxyfl

KINDS = 16


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Patient:
    return Patient.admit(tmp_path_factory.mktemp("damage"))


def test_every_kind_of_file_is_spoiled(patient: Patient) -> None:
    kinds = patient.kinds()
    assert len(kinds) == KINDS
    assert {"clients", "models", "config.toml", "metrics.jsonl", "checkpoint: manifest.json"} <= set(kinds)


def test_one_file_at_a_time(patient: Patient) -> None:
    with opened_only(patient):
        assert patient.examine() == (AS_NEW, "")
        patient.heal()
        found = fuzz(patient, cases=6 * KINDS, seed=14)  # chosen: it spoils the newest of each kind
    refused = {kind for kind, verdicts in found.verdicts.items() if verdicts[REFUSED]}
    assert refused == {"config.toml"}
    assert all("restore it with 'cp " in words for words in found.words["config.toml"])
    for kind in ("checkpoint: state.safetensors", "checkpoint: manifest.json", "clients"):
        assert found.verdicts[kind][STEP_BACK] > 0, kind


def test_several_files_at_once(patient: Patient) -> None:
    with opened_only(patient):
        found = fuzz(patient, cases=3 * KINDS, seed=2, at_once=4)
    assert found.cases == 3 * KINDS


def test_the_examination_notices_what_is_wrong(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
    """With checks taken out of the program, cases fail: the fuzzing is not blind."""
    from proxyfl.core import checksum
    from proxyfl.runs import metrics_log

    with opened_only(patient), monkeypatch.context() as patch:
        patch.setattr(checksum, "_digest", lambda content: content[checksum._START : checksum._STOP])
        patch.setattr(metrics_log.Mark, "fits", lambda mark, content: len(content) >= mark.size)
        with pytest.raises(AssertionError):
            fuzz(patient, cases=20 * KINDS, seed=3)


@pytest.mark.parametrize("kind", ["checkpoint: state.safetensors", "clients", "config.toml", "metrics.jsonl"])
def test_the_command_line_answers_in_words(
    patient: Patient, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    ask_as_a_user(patient, kind, random.Random(kind))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_the_command_line_answers_in_words_whatever_is_damaged(
    patient: Patient, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    for kind in patient.kinds():
        ask_as_a_user(patient, kind, random.Random(f"{kind} {seed}"))


def test_timing_that_is_no_timing_does_not_stop_anything(patient: Patient) -> None:
    (patient.path / "timing.jsonl").write_text(
        '{"round": "one", "train": 1}\n{"round": 2, "train": "long"}\n'
    )
    try:
        assert proxyfl.Run(patient.path).summary.seconds == 1
        with opened_only(patient):
            assert patient.examine()[0] == AS_NEW
    finally:
        patient.heal()


def test_a_flip_changes_one_byte() -> None:
    draw = random.Random(0)
    for _ in range(50):
        changed = flip(b"abcdef", draw)
        assert sum(one != other for one, other in zip(b"abcdef", changed, strict=True)) == 1
