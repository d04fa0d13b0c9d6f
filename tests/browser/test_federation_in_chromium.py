"""What the pages show of the sites of a federation, in a real browser: as text, to read on a phone, too."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from headless import NEEDS_CHROMIUM, Browser

from dashboards import answering
from proxyfl import Run
from proxyfl.report.html.page import write_report
from written_runs import write_run

pytestmark = NEEDS_CHROMIUM

MARKUP = "<img src=x onerror='document.hurt = 1'>"
NOW, LONG_AGO = int(time.time()), 1_768_478_400
"""When sites were heard; the second is noon of 15 January 2026, UTC."""


def cell(images: int, accuracy: float, **measures: float) -> dict[str, float]:
    return {"images": images, "accuracy": accuracy, **measures}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Two sites; the last model fails at one of them, the best does not, and lyon shares its own model."""
    made = write_run(tmp_path / "runs" / "real", "fedavg", 1, [0.75, 0.5])
    lines = made.metrics
    lines[0]["evaluation"] = {"at": {"lyon": cell(1200, 0.8), MARKUP: cell(40, 0.7)}}
    own = {"lyon": cell(1200, 0.825, macro_f1=0.8), MARKUP: cell(40, 0.1)}
    lines[1]["evaluation"] = {
        "at": {"lyon": cell(1200, 0.9, macro_f1=0.875, auroc=0.95), MARKUP: cell(40, 0.0, macro_f1=0.0)},
        "models": {"lyon": {"round": 2, "at": own}},
    }
    file = made.directory.metrics
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return Run(made.path)


def federation() -> dict[str, Any]:
    """As ``Overview.page`` has it: one site has answered, one is offline, one has never been seen."""
    there = {
        "name": MARKUP, "state": "connected", "seen": NOW, "images": None, "doing": "answered round 3",
        "approval": "given",
        "rounds": {"answered": 2, "late": 1, "offline": 0, "refused": 4}, "accuracy": 0.625,
        "last_answer": {"round": 3, "bytes": 1_250_000, "seconds": 12.5, "time": NOW},
        "gate": {"received": 4_500_000, "sent": 10, "refused": 0},
    }  # fmt: skip
    gone = {
        "name": "lyon", "state": "offline", "seen": LONG_AGO, "images": None, "doing": "",
        "approval": "missing",
        "rounds": {"answered": 1, "late": 0, "offline": 2, "refused": 0}, "accuracy": None,
        "last_answer": {"round": 1, "bytes": 800, "seconds": 0.25, "time": LONG_AGO},
        "gate": {"received": 90_000, "sent": 10, "refused": 0},
    }  # fmt: skip
    unseen = {
        "name": "oslo", "state": "not seen", "seen": None, "images": None, "doing": "",
        "approval": None,
        "rounds": {"answered": 0, "late": 0, "offline": 3, "refused": 0}, "accuracy": None,
        "last_answer": None,
    }  # fmt: skip
    return {
        "name": "trial", "address": "fl.example.org:9092", "sites": [there, gone, unseen],
        "run": {"round": 2, "begun": 3, "rounds": 5, "said": f"round 3: {MARKUP} was late"},
        "certificates": {"server": 800, "lyon": 12, MARKUP: -1},
    }  # fmt: skip


@contextmanager
def live(browser: Browser, run: Run, **look: Any) -> Iterator[None]:
    """The dashboard of the federation is open."""
    browser.look(**look)
    with answering(run.path.parent, every=0.1, only=run.path.name, federation=federation) as server:
        browser.open(server.link("run", name=run.path.name))
        browser.until("document.querySelectorAll('#federation tbody tr').length === 3")
        yield


def rows(browser: Browser, section: str) -> list[list[str]]:
    texts = "[...row.cells].map((one) => one.textContent)"
    return list(browser.ask(f"[...document.querySelectorAll('#{section} tbody tr')].map((row) => {texts})"))


def open_report(browser: Browser, run: Run, **look: Any) -> None:
    browser.look(**look)
    browser.open(write_report([run], run.path.parent.parent / "report.html").as_uri())
    browser.until("document.querySelectorAll('#sites svg').length === 3")


def require_harmless(browser: Browser) -> None:
    assert browser.errors == []
    assert browser.ask("document.hurt === undefined && document.images.length === 0")
    assert not browser.ask("/NaN|undefined|Infinity/.test(document.querySelector('main').innerText)")


def test_a_report_has_every_model_at_every_site(browser, run):
    open_report(browser, run)
    require_harmless(browser)
    assert browser.each("#sites thead th") == ["model", "round", "lyon (1,200)", f"{MARKUP} (40)"]
    assert rows(browser, "sites") == [
        ["global", "2", "90.0 %", "0.0 %"],
        ["global best", "1", "80.0 %", "70.0 %"],
        ["of lyon", "2", "82.5 %", "10.0 %"],
    ]
    titles = [f"{name}, model by site" for name in ("accuracy", "macro-F1", "AUROC")]
    assert browser.each("#sites figcaption") == titles
    shares = [browser.each(f"#sites figure:nth-of-type({k}) text.cell") for k in (1, 2, 3)]
    # A site where the model is always wrong has its number, one that measured nothing has none.
    assert shares == [["90 %", "0 %", "80 %", "70 %", "83 %", "10 %"], ["88 %", "0 %", "80 %"], ["95 %"]]
    browser.ask("document.querySelector('#sites svg').focus()")
    for _ in range(2):
        browser.press("ArrowRight")
    told = browser.ask("document.getElementById('tip').innerText")
    assert told == f"global, round 2\nat {MARKUP}: 0.00 % on 40 images"


def test_the_dashboard_shows_what_sites_do_and_sent(browser, run):
    with live(browser, run):
        require_harmless(browser)
        heads = ["answered", "late", "offline", "refused", "last update", "seconds", "sent", "accuracy"]
        first = ["site", "state", "last heard", "approval", "now"]
        assert browser.each("#federation thead th") == [*first, *heads]
        heard = browser.ask(f"new Date(1000 * {NOW}).toLocaleTimeString('en-GB')")
        before = browser.ask(f"new Date(1000 * {LONG_AGO}).toLocaleTimeString('en-GB')")
        answered = ["answered round 3", *"2104", "round 3: 1.25 MB", "12.5", "4.50 MB", "62.5 %"]
        left = ["–", *"1020", "round 1: 800 B", "0.25", "90.0 kB", "–"]
        assert rows(browser, "federation") == [
            [MARKUP, "connected", heard, "given", *answered],
            ["lyon", "offline", f"2026-01-15 {before}", "missing", *left],
            ["oslo", "not seen", "–", "–", "–", *"0030", "–", "–", "–", "–"],
        ]
        notes = browser.each("#federation .note")
        assert all(fact in notes[0] for fact in ("Round 3 of 5", "2 of 5 rounds", "fl.example.org:9092"))
        said, soon, expired = notes[1:]
        assert said.endswith(f"round 3: {MARKUP} was late")
        assert all(fact in soon for fact in ("lyon", "12 days"))
        assert all(fact in expired for fact in (MARKUP, "has expired"))


def test_a_federation_without_a_run_shows_its_sites(browser, tmp_path):
    pytest.importorskip("flwr", reason="needs proxyfl[flower]")
    from proxyfl.deploy import scaffold
    from proxyfl.deploy.overview import Overview
    from proxyfl.deploy.tally import Tally

    place = tmp_path / "trial"
    made = scaffold.create(place, scaffold.Plan(("lyon", "oslo"), form={"classes": ("a", "b")}))
    made.state.mkdir()
    tally = Tally(made.state)
    tally.note("lyon", 200, 1000, 20)
    tally.save()
    browser.look()
    with answering(place, every=0.1, only="run", federation=Overview(place).page) as server:
        browser.open(server.link())
        browser.until("document.querySelectorAll('#federation tbody tr').length === 2")
        require_harmless(browser)
        lyon, oslo = rows(browser, "federation")
        assert lyon[:2] == ["lyon", "connected"]
        assert lyon[2] != "–"
        assert oslo[:4] == ["oslo", "not seen", "–", "–"]
        assert "No round yet" in browser.ask("document.querySelector('main').innerText")
        assert browser.ask("document.title").endswith("trial")
        write_run(place / "run", "fedavg", 1, [0.75])
        browser.until("document.querySelector('main a')?.getAttribute('href') === 'run?name=run'")


@pytest.mark.parametrize("width", [320, 390])
def test_sites_fit_a_phone(browser, run, width):
    open_report(browser, run, width=width, height=800, phone=True)
    assert browser.ask("document.documentElement.scrollWidth") <= width
    assert max(browser.each("#sites svg", "getBoundingClientRect().right")) <= width
    with live(browser, run, width=width, height=800, phone=True):
        assert browser.ask("document.documentElement.scrollWidth") <= width
        # Who is there is seen without scrolling the table.
        assert (
            max(browser.each("#federation tbody td:nth-of-type(1)", "getBoundingClientRect().right")) <= width
        )
