"""A change of this program's arithmetic raises ``NUMERICS``: ``resume --exact`` depends on it."""

from __future__ import annotations

from pathlib import Path

import pytest

import numerics
from proxyfl.core.provenance import NUMERICS


def test_the_present_arithmetic_is_on_record() -> None:
    others = [key for key in numerics.recorded() if not key.startswith(f"numerics {NUMERICS}, ")]
    assert numerics.recorded(), "run tools/numerics.py"
    assert not others, "NUMERICS was raised: run tools/numerics.py"


@pytest.mark.slow
def test_bits_change_with_the_number_only() -> None:
    here = numerics.key()
    known = numerics.recorded().get(here)
    if known is None:
        pytest.skip(f"no hashes for {here}; record them with tools/numerics.py")
    found = numerics.computed()
    assert found == known, "bits changed: raise NUMERICS in core/provenance.py, then run tools/numerics.py"


def test_a_change_is_reported_and_not_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(numerics, "TABLE", tmp_path / "numerics.json")
    monkeypatch.setattr(numerics, "key", lambda: f"numerics {NUMERICS}, here")
    monkeypatch.setattr(numerics, "computed", lambda: {"fedavg": "a", "proxyfl": "b"})
    assert numerics.main() == 0
    monkeypatch.setattr(numerics, "computed", lambda: {"fedavg": "a", "proxyfl": "c"})
    assert numerics.main() == 1
    assert "other bits: proxyfl;" in capsys.readouterr().out
    monkeypatch.setattr(numerics, "NUMERICS", NUMERICS + 1)
    monkeypatch.setattr(numerics, "key", lambda: f"numerics {NUMERICS + 1}, here")
    assert numerics.main() == 0
    assert list(numerics.recorded()) == [f"numerics {NUMERICS + 1}, here"]
