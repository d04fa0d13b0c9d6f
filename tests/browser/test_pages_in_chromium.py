"""Both pages in a real browser: they load without a complaint, tell values, fit a phone, follow a run."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from headless import NEEDS_CHROMIUM, Browser

from dashboards import answering
from proxyfl import Experiment, Run
from proxyfl.cli import dashboard
from proxyfl.report.dashboard.server import Dashboard
from proxyfl.report.html.gather import gather
from proxyfl.report.html.page import render, write_report
from proxyfl.report.html.pieces import Labels
from written_runs import write_run

pytestmark = NEEDS_CHROMIUM

TINY = {"rounds": 2, "clients": 4, "per_round": 2, "subset": 150, "train__epochs": 1}
ACCURACY = "document.querySelector('#accuracy .chart svg')"
TIP = "document.getElementById('tip')"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two methods, one of them with two seeds, and one whose settings and records are hostile."""
    place = tmp_path_factory.mktemp("browser") / "runs"
    for method, seed in (("fedavg", 1), ("fedavg", 2), ("proxyfl", 1)):
        Experiment(method, seed=seed, **TINY).run(place / f"{method}-{seed}")
    return place


@pytest.fixture(scope="module")
def report(folder: Path) -> str:
    runs = [Run(path) for path in sorted(folder.iterdir())]
    title = "</script><script>document.hurt = 1</script><img src=x onerror='document.hurt = 2'>"
    return write_report(runs, folder.parent / "report.html", title).as_uri()


@pytest.fixture(scope="module")
def mixed(folder: Path) -> str:
    """A report of three groups of one colour, one on a data set of a hundred classes; its numbers are set."""
    data = gather([Run(folder / name) for name in ("fedavg-1", "fedavg-2", "proxyfl-1")], labels=Labels())
    *few, many = data["runs"]
    rounds, names = [*range(1, 18)], [f"kind-{k:02d}" for k in range(100)]
    for run in few:
        run["curves"] = {"round": rounds, "accuracy": [k / 150 for k in range(17)]}
    many["curves"] = {"round": rounds, "accuracy": [0.01, 0.02, *[None] * 4, 0.125, *[None] * 8, 0.01, 0.02]}
    many["per_class"] = {"rounds": [1], "values": [[0.25] * 100], "last": [0.25] * 100}
    many["confusion"] = {"round": 2, "counts": [[3] + [1] * 97 + [0, 0] for _ in names]}
    many["partition"] |= {"classes": names, "labelled": [[1] * 100] * 4, "unlabelled": [[2] * 100] * 4}
    many |= {"name": "many", "data": "toys", "classes": names, "prior": None}
    look = data["groups"][0]["look"]
    data["groups"] = [{"label": f"group {k}", "look": look, "runs": [k]} for k in range(3)]
    path = folder.parent / "mixed.html"
    path.write_text(render(data), encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def server(folder: Path) -> Iterator[Dashboard]:
    with answering(folder, every=0.1) as made:
        yield made


def open_drawn(browser: Browser, address: str, **look: object) -> None:
    browser.look(**look)
    browser.open(address)
    browser.until("document.querySelectorAll('.chart').length > 8")
    browser.until("[...document.querySelectorAll('.chart')].every((chart) => chart.querySelector('svg'))")


def test_the_report_draws_everything_and_loads_nothing(browser, report):
    open_drawn(browser, report)
    assert browser.errors == []
    assert browser.requests == [report]
    titles = browser.ask("[...document.querySelectorAll('h2')].map((title) => title.textContent)")
    assert titles == [
        "Result", "Settings", "Accuracy", "By class", "Confusion", "Pseudo-labels", "Losses", "Class prior",
        "Proxies", "Partition", "Clients", "Communication", "Time", "Failed clients",
    ]  # fmt: skip
    assert browser.ask("document.hurt === undefined && document.images.length === 0")
    assert browser.ask("document.querySelector('h1').textContent").startswith("</script><script>")
    assert browser.ask(f"{ACCURACY}.querySelectorAll('.line').length") == 2
    assert browser.ask(f"{ACCURACY}.querySelectorAll('.band').length") == 1
    assert browser.ask("document.querySelectorAll('#confusion svg').length") == 3
    assert not browser.ask("/NaN|undefined|Infinity/.test(document.body.innerHTML.replace(/<script.*/s, ''))")


def test_runs_on_several_data_sets_side_by_side(browser, mixed):
    open_drawn(browser, mixed)
    assert browser.errors == []
    assert browser.each("#accuracy .axes text[text-anchor=end]") == ["0", "2.5", "5", "7.5", "10", "12.5"]
    # Round 7 has a value with none beside it, at the top line, and no marker of its turn.
    tops = browser.each("#accuracy .grid", "getBoundingClientRect().top")
    markers = browser.each("#accuracy .chart .marker", "getCTM().f")
    inside = browser.ask(f"{ACCURACY}.getBoundingClientRect().top")
    assert [abs(spot - (min(tops) - inside)) < 1 for spot in markers].count(True) == 1
    # Bars stand over the classes of their own data set, and those of one colour are told apart.
    first, second = "#classes > figure:nth-of-type(1)", "#classes > figure:nth-of-type(2)"
    titles = [f"{name}: test accuracy by class, last round" for name in ("digits", "toys")]
    assert browser.each("#classes > figure > figcaption") == titles
    assert browser.each(f"{first} .axes text[text-anchor=middle]") == [*"0123456789", "class"]
    assert browser.each(f"{second} .axes text[text-anchor=middle]")[0] == "kind-00"
    assert browser.each(f"{second} .legend li") == ["group 2"]
    assert browser.each(f"{first} .legend i", "className") == ["", "tint"]
    assert set(browser.each(f"{first} .bar", "classList.value")) == {"bar", "bar tint"}


def test_the_table_of_seeds_waits_for_runs_that_are_not_finished(browser, tmp_path):
    runs = [
        write_run(tmp_path / "one", "fedavg", 1, [0.5, 0.5]),
        write_run(tmp_path / "two", "fedavg", 2, [0.5, 0.5]),
        write_run(tmp_path / "again", "fedavg", 2, [0.5, 0.5]),
        write_run(tmp_path / "three", "fedavg", 3, [0.1], missing=1),
    ]
    browser.look()
    browser.open(write_report(runs, tmp_path / "report.html").as_uri())
    browser.until("document.querySelectorAll('#overview table').length === 2")
    seeds = "[...document.querySelectorAll('#overview table')[1].querySelectorAll('tbody tr > *')]"
    told = browser.ask(f"{seeds}.map((one) => one.textContent)")
    assert told == ["fedavg", "2", "50.00 ± 0.00 %", "50.00 ± 0.00 %", "50.00 ± 0.00 %"]
    text = browser.ask("document.querySelector('#overview').textContent")
    assert "over seeds. Unfinished runs are left out." in text
    assert "Counted once: again is a copy of two." in text
    assert browser.errors == []


def test_the_cost_of_privacy_of_clients_and_of_single_images_is_told(browser, tmp_path):
    run = write_run(tmp_path / "private", "fedavg", 1, [0.5, 0.6])
    data = gather([run])
    browser.look()
    for costs, expected in (
        ([], []),
        ([("privacy", 1.25), ("record_privacy", 33.333)], ["whole clients", "1.25", "single images", "33.3"]),
    ):
        data["runs"][0]["privacy"] = [
            {"of": of, "epsilon": cost, "delta": 1e-5, "clip": 1, "noise": 2, "rounds": 2}
            for of, cost in costs
        ]
        page = tmp_path / "private.html"
        page.write_text(render(data), encoding="utf-8")
        browser.open(page.as_uri())
        browser.until("document.querySelector('#accuracy .chart svg')")
        assert browser.errors == []
        tables = browser.each("#overview table", "textContent")
        assert len(tables) == 1 + bool(costs)
        assert all(word in tables[-1] for word in expected)


def test_a_hundred_classes_are_drawn_so_that_they_can_be_seen(browser, mixed):
    open_drawn(browser, mixed)
    notes = browser.each("#confusion .note")
    assert notes[0].endswith(" Numbers: test images.")
    assert notes[2] == "Colour: share of the true class, strongest at 3.0 %."
    edges = browser.each("#confusion text", "getBoundingClientRect().right")
    ends = browser.each("#confusion text", "ownerSVGElement.getBoundingClientRect().right")
    assert all(edge <= end for edge, end in zip(edges, ends, strict=True))
    clients = "#partition > .columns:nth-of-type(2) figure:first-child"
    assert browser.each(f"{clients} svg", "clientHeight")[0] < 1300
    assert browser.each(f"{clients} text[text-anchor=middle]") == [*"0123", *"0123", "client"]
    assert browser.each("#proxies figure .note")[0].endswith(" 7 colours serve all 10 classes.")


def test_values_appear_under_the_pointer_and_with_keys(browser, report):
    open_drawn(browser, report)
    assert browser.ask(f"{TIP}.hidden")
    left, top, width, height = browser.ask(
        f"(() => {{ const chart = {ACCURACY}; chart.scrollIntoView({{block: 'center', behavior: 'instant'}});"
        " const box = chart.getBoundingClientRect(); return [box.left, box.top, box.width, box.height]; })()"
    )
    frame = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))"
    browser.ask(frame)  # scrolling is told with the next picture, and hides what the pointer had found
    browser.hover(left + 0.9 * width, top + height / 2)
    browser.until(f"!{TIP}.hidden")
    told = browser.ask(f"{TIP}.innerText")
    assert told.startswith("round 2\n")
    assert "fedavg (2 seeds): " in told
    assert "proxyfl: " in told
    box = browser.ask(
        f"(({{left, right, top, bottom}}) => [left, right, top, bottom])({TIP}.getBoundingClientRect())"
    )
    assert box[0] >= 0
    assert box[1] <= 1200
    browser.hover(2, 2)
    browser.until(f"{TIP}.hidden")
    browser.ask(f"{ACCURACY}.focus()")
    browser.press("ArrowRight")
    browser.until(f"!{TIP}.hidden")
    browser.press("Escape")
    browser.until(f"{TIP}.hidden")


@pytest.mark.parametrize(
    "chart",
    ["classes", "confusion", "pseudo", "prior", "proxies", "partition", "communication", "time"],
)
def test_every_chart_answers_to_keys(browser, report, chart):
    open_drawn(browser, report)
    browser.ask(f"document.querySelector('#{chart} .chart svg').focus()")
    for _ in range(2):
        browser.press("ArrowRight")
    browser.until(f"!{TIP}.hidden && {TIP}.innerText.length > 5")
    assert browser.errors == []


@pytest.mark.parametrize("width", [320, 390, 768])
def test_a_phone_does_not_scroll_sideways(browser, report, width):
    open_drawn(browser, report, width=width, height=800, phone=True)
    assert browser.ask("document.documentElement.scrollWidth") <= width
    result = "document.querySelector('#overview tbody tr').cells[1].getBoundingClientRect().right"
    assert browser.ask(result) <= width
    assert browser.ask("document.querySelector('#overview tbody tr').cells[1].textContent").endswith(" %")
    edges = "[...document.querySelectorAll('main svg')].map((one) => one.getBoundingClientRect().right)"
    assert browser.ask(f"Math.max(...{edges})") <= width


CONTRAST = """((selector) => {
  const shade = (text) => text.match(/[\\d.]+/g).slice(0, 3).map(Number).map((part) => part / 255)
    .map((part) => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  const light = (text) => shade(text).reduce((sum, part, k) => sum + part * [0.2126, 0.7152, 0.0722][k], 0);
  const element = document.querySelector(selector), style = getComputedStyle(element);
  const front = element instanceof SVGElement ? style.fill : style.color;
  const both = [light(front), light(getComputedStyle(document.body).backgroundColor)].sort((a, b) => a - b);
  return (both[1] + 0.05) / (both[0] + 0.05);
})"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_can_be_read_in_both_schemes(browser, report, scheme):
    open_drawn(browser, report, scheme=scheme)
    brightness = browser.ask("getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0] * 1")
    assert brightness > 200 if scheme == "light" else brightness < 60
    for selector in (
        "h1",
        "td",
        "nav a",
        ".note",
        ".muted",
        "summary",
        "#accuracy svg text",
        "svg text.label",
    ):
        assert browser.ask(f"{CONTRAST}('{selector}')") >= 4.5, selector


def test_the_list_leads_to_a_run(browser, server):
    browser.look(width=390, height=800, phone=True)
    browser.open(server.link())
    browser.until("document.querySelectorAll('tbody tr').length === 3")
    assert "2 / 2" in browser.ask("document.querySelector('tbody tr').innerText")
    heads = ["run", "accuracy", "state", "rounds", "time left", "method", "data", "seed", "report"]
    assert browser.each("thead th") == heads
    assert [bool(wide) for wide in browser.each("thead th", "offsetWidth")] == [True] * 5 + [False] * 4
    assert browser.ask("document.querySelector('.scroll').scrollWidth") <= 390 - 28
    assert browser.ask("document.querySelector('#list .note').textContent").startswith(
        "3 runs in the folder runs, "
    )
    browser.look()
    browser.until("document.querySelector('thead th:last-child').offsetWidth")
    browser.click("tbody a")
    browser.until(f"document.documentElement.dataset.page === 'run' && {ACCURACY}")
    assert browser.ask("document.querySelector('h1').textContent") == "fedavg-1"
    assert browser.errors == []
    assert all(request.startswith((server.url, "data:")) for request in browser.requests)


def test_the_first_frame_says_that_the_page_is_loading(browser, folder, monkeypatch):
    asked, told = threading.Event(), Dashboard.listing

    def late(self: Dashboard, names: list[str] | None = None) -> str:
        assert asked.wait(60)
        return told(self, names)

    monkeypatch.setattr(Dashboard, "listing", late)
    with answering(folder, every=0.1) as server:
        try:
            browser.look()
            browser.open(server.link())
            assert browser.ask("document.body.innerText").strip() == "Loading…"
        finally:
            asked.set()
        browser.until("document.querySelectorAll('tbody tr').length === 3")
    assert browser.ask("document.getElementById('loading')") is None


def test_runs_are_filtered_sorted_and_compared(browser, server):
    names = "tbody th"
    browser.look()
    browser.open(server.link())
    browser.until("document.querySelectorAll('tbody tr').length === 3")
    assert browser.each(names) == ["fedavg-1", "fedavg-2", "proxyfl-1"]
    browser.ask("document.querySelectorAll('thead button')[1].click()")  # accuracy, the highest first
    shown = [float(text.split()[0]) for text in browser.each("tbody td:nth-of-type(1)")]
    assert shown == sorted(shown, reverse=True)
    assert browser.each("[aria-sort]", "ariaSort") == ["descending"]
    browser.ask("document.querySelectorAll('thead button')[0].click()")
    browser.ask("document.querySelectorAll('thead button')[0].click()")
    assert browser.each(names) == ["proxyfl-1", "fedavg-2", "fedavg-1"]
    browser.ask("document.querySelector('#filter').focus()")
    browser.call("Input.insertText", text="FedAvg finished")
    assert browser.each(names) == ["fedavg-2", "fedavg-1"]
    assert browser.ask("document.querySelector('#list .note').textContent").startswith("2 of 3 runs in ")
    browser.ask("document.querySelectorAll('tbody input')[0].click()")
    assert browser.each("#choice p") == ["1 run is ticked; tick another to compare them."]
    browser.ask("document.querySelector('#filter').select()")
    browser.call("Input.insertText", text="proxyfl")
    browser.ask("document.querySelector('tbody input').click()")
    assert browser.each("#choice a, #choice button") == ["Compare 2 runs", "Clear"]
    browser.click("#compare")
    browser.until(f"document.documentElement.dataset.page === 'run' && {ACCURACY}")
    assert browser.ask("document.querySelector('h1').textContent") == "2 runs"
    assert browser.each("#overview tbody th") == ["fedavg-2", "proxyfl-1"]
    browser.ask("void setTimeout(() => history.back())")
    browser.until("document.querySelectorAll('tbody input:checked').length === 1")
    assert browser.ask("document.querySelector('#filter').value") == "proxyfl"
    browser.ask("[...document.querySelectorAll('#choice button')].at(-1).click()")
    assert browser.each("#choice p") == ["Tick runs to compare them."]
    assert browser.errors == []


def test_the_list_and_a_run_lead_to_its_report(browser, server):
    browser.look()
    browser.open(server.link())
    browser.until("document.querySelectorAll('tbody tr').length === 3")
    browser.click("a[href='report?name=fedavg-2']")
    browser.until(f"document.documentElement.dataset.page === 'report' && {ACCURACY}")
    assert browser.ask("document.querySelector('h1').textContent") == "fedavg-2"
    assert browser.errors == []
    browser.open(server.link("run", name="proxyfl-1"))
    browser.until(ACCURACY)
    browser.click("header a[href='report?name=proxyfl-1']")
    browser.until(f"document.documentElement.dataset.page === 'report' && {ACCURACY}")
    assert browser.ask("document.querySelector('h1').textContent") == "proxyfl-1"
    assert browser.errors == []


def test_the_browser_comes_by_a_file_and_without_the_token_sees_nothing(browser, server, monkeypatch):
    browser.look()
    browser.call("Network.clearBrowserCookies")
    browser.open(server.url)
    assert "only the user who started this page" in browser.ask("document.body.innerText")
    monkeypatch.setattr("webbrowser.open", browser.open)
    with dashboard._opened(server.link()):
        browser.until("document.querySelectorAll('tbody tr').length === 3")
    browser.click("tbody a")
    browser.until(f"document.documentElement.dataset.page === 'run' && {ACCURACY}")
    assert "token" not in browser.ask("location.href")
    assert browser.ask("document.cookie") == ""


@pytest.mark.slow
def test_an_unfinished_curve_grows_while_its_run_runs(browser, server, folder):
    settings = (
        "--clients 4 --per-round 2 --subset 150 --set train.epochs=1 --rounds 2000 --workers 0 -q".split()
    )
    place = ["--runs", str(folder), "--name", "live"]
    line = [sys.executable, "-m", "proxyfl", "run", "digits", "--method", "proxyfl", *settings, *place]
    points = "(document.querySelector('#accuracy .line')?.getAttribute('d').match(/[ML]/g) || []).length"
    browser.look()
    browser.open(server.link())
    with subprocess.Popen(line, stdout=subprocess.DEVNULL) as process:
        try:
            browser.until("document.querySelector('a[href=\"run?name=live\"]')", patience=90)
            browser.until("document.querySelector('.state.running')", patience=60)
            browser.click('a[href="run?name=live"]')
            browser.until(f"{ACCURACY} && {points} > 1", patience=90)
            first = browser.ask(points)
            browser.ask("document.querySelector('#settings details').open = true")
            browser.until(f"{points} > {first} + 2", patience=90)
            assert browser.ask("document.querySelector('#settings details').open")
            assert browser.ask("document.querySelector('#overview .state').textContent") == "running"
        finally:
            process.kill()
    browser.until("document.querySelector('#overview .state').textContent === 'stopped'")
    assert browser.errors == []


def test_a_page_says_when_the_dashboard_has_stopped(browser, folder):
    with answering(folder, every=0.1) as server:
        browser.look()
        browser.open(server.link())
        browser.until("document.querySelector('table')")
        assert browser.ask("document.querySelector('body > p').hidden")
    browser.until("!document.querySelector('body > p').hidden")
    assert browser.ask("document.querySelector('table') !== null")


def test_marks_that_turn_the_direction_of_text_are_shown_as_words(browser, tmp_path):
    """Otherwise a stranger's run could be called 'exe.(turn)fdp' and be seen as 'exe.pdf'."""
    name, folder = "run\u202egnp\u2066\u200b\u3164", tmp_path / "runs"
    run = write_run(folder / name, "fedavg", 1, [0.5, 0.6])
    shown = r"run\u{202e}gnp\u{2066}\u{200b}\u{3164}"
    browser.look()
    browser.open(write_report([run], tmp_path / "report.html").as_uri())
    browser.until("document.querySelectorAll('.chart').length > 1")
    assert browser.ask("document.querySelector('h1').textContent") == shown
    assert not browser.ask(r"/[\u202a-\u202e\u2066-\u2069\u200b\u3164]/.test(document.body.innerText)")
    assert "\u202e" not in browser.ask("document.title")
    with answering(folder, every=0.1) as server:
        browser.open(server.link())
        browser.until("document.querySelectorAll('tbody th a').length === 1")
        assert browser.ask("document.querySelector('tbody a').textContent") == shown
        browser.ask("document.querySelector('tbody a').click()")
        browser.until("document.querySelectorAll('.chart').length > 1")
        assert browser.ask("document.querySelector('h1').textContent") == shown
    assert browser.errors == []
