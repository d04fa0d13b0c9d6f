"""The pages on deployments: their commands exist; those that need no other machine work as they stand."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from calling import invoke
from proxyfl.deploy.settings import Deployment

DOCS = Path(__file__).parents[2] / "docs"
NAMES = ("deploy.md", "site-data.md", "deploy-security.md", "deploy-reference.md", "operate.md")
*DEPLOY, REFERENCE, OPERATE = ((DOCS / name).read_text(encoding="utf-8") for name in NAMES)
PAGE = "\n".join([*DEPLOY, REFERENCE])


def commands(language: str, page: str = PAGE) -> list[list[str]]:
    fenced = re.findall(r"^ *```(\w*)\n(.*?)^ *```$", page, re.DOTALL | re.MULTILINE)
    lines = [line.strip() for name, block in fenced if name == language for line in block.splitlines()]
    return [shlex.split(line)[1:] for line in lines if line.startswith("proxyfl ")]


def test_the_pages_commands_work_as_they_stand(tmp_path: Path) -> None:
    asked = commands("console")
    assert [words[:2] for words in asked] == [["deploy", "init"], ["deploy", "explain"], ["deploy", "init"]]
    for words in asked:
        done = invoke(*words)
        assert done.exit_code == 0, done.stderr
    assert Deployment.read(tmp_path / "trial").sites == ("site-01", "site-02", "site-03")
    assert Deployment.read(tmp_path / "hospital").bind == ("0.0.0.0", 8443)
    done = invoke("deploy", "check", "trial/sample/site-01.npz", "--site", "trial/site-01")
    assert done.exit_code == 0, done.stderr


def named(page: str) -> list[list[str]]:
    """Commands in the text and its tables, without what stands for more."""
    return [shlex.split(line)[1:] for line in re.findall(r"`(proxyfl [^`…]+?) ?…?`", page)]


@pytest.mark.parametrize(
    "words", [*commands(""), *commands("", OPERATE), *named(PAGE), *named(OPERATE)], ids=" ".join
)
def test_commands_for_several_machines_exist(words: list[str]) -> None:
    told = invoke(*words[: 1 + (words[0] == "deploy")], "--help")
    assert told.exit_code == 0
    for option in (word for word in words if word.startswith("--")):
        assert option in told.stdout


def test_options_named_in_the_text_exist() -> None:
    told = "".join(
        invoke("deploy", verb, "--help").stdout for verb in ("init", "site", "run", "check", "stop")
    )
    told += invoke("show", "--help").stdout + invoke("verify", "--help").stdout
    ours = re.sub(r"`python [^`]*`", "", PAGE)  # benchmarks and tools have options of their own
    options = set(re.findall(r"(?<![\w-])(--[a-z][a-z-]+)", ours))
    assert options >= {"--renew", "--new-key", "--enrol-again", "--listen", "--insecure"}
    assert not {option for option in options if option not in told}


def test_every_promise_names_tests_that_exist() -> None:
    tests = Path(__file__).parents[1]
    rows = re.findall(r"^\|[^|]+\|[^|]+\| (.+) \|$", REFERENCE.partition("## Tests")[2], re.MULTILINE)
    assert len(rows) > 15
    for row in rows[1:]:
        named = re.findall(r"`([^`]+)`", row)
        files = [
            tests / "flower" / name if "/" not in name else tests.parent / name
            for name in named
            if name.endswith(".py")
        ]
        assert files, row
        text = "".join(file.read_text(encoding="utf-8") for file in files)
        begun = [name.rstrip("…") for name in named if not name.endswith(".py")]
        assert all(f"def {name}" in text for name in begun), row


TESTS = Path(__file__).parents[1]
PAGES = [
    *(DOCS / name for name in (*NAMES, "security-guarantees.md", "monitor.md")),
    TESTS.parent / "SECURITY.md",
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_test_that_a_page_names_exists(page: Path) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py|test_\w+\.py)`", page.read_text(encoding="utf-8"))
    places = [TESTS.parent / name if "/" in name else TESTS / "flower" / name for name in named]
    assert not [place for place in places if not place.is_file()]


def last_cells(page: Path, title: str) -> list[str]:
    """What the rows of the first table below a title end with."""
    table = (
        page.read_text(encoding="utf-8").partition(f"## {title}")[2].partition("\n|")[2].partition("\n\n")[0]
    )
    return [row.split(" | ")[-1].strip(" |") for row in table.splitlines()[2:]]


def test_every_party_of_the_threat_model_and_every_guarantee_names_attacks_and_tests() -> None:
    threats = last_cells(DOCS / "deploy-security.md", "Threat model")
    parties = last_cells(TESTS.parent / "SECURITY.md", "Trust model")
    untrusted = [cell for cell in parties if not cell.startswith("trusted")]
    assert (len(threats), len(parties), len(untrusted)) == (10, 11, 7)
    attack = re.compile(r"[^:]{5,}: `[\w/]*test_\w+\.py`(, `[\w/]*test_\w+\.py`)*")
    assert not [cell for cell in (*threats, *untrusted) if not attack.fullmatch(cell)]
    promises = last_cells(DOCS / "deploy.md", "Tests")
    assert len(promises) > 8
    assert not [cell for cell in promises if not re.search(r"`[\w/]*test_\w+\.py`$", cell)]
    guarantees = (DOCS / "security-guarantees.md").read_text(encoding="utf-8")
    promises = [part for part in re.split(r"\n(?=\*\*)", guarantees) if part.startswith("**")]
    assert len(promises) > 15
    assert not [promise for promise in promises if not re.search(r"`[\w/]*test_\w+\.py`", promise)]
