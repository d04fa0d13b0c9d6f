"""The report: what a page's data says, and a file that is whole, safe and small."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from proxyfl import Run
from proxyfl.core.errors import RunError
from proxyfl.core.text import printable
from proxyfl.report.html import pieces
from proxyfl.report.html import records as recorded
from proxyfl.report.html.gather import gather, groups
from proxyfl.report.html.page import as_json, render, write_report
from proxyfl.report.html.pieces import Labels, principal_plane
from proxyfl.report.html.records import Records
from proxyfl.results.compare import compare
from proxyfl.runs.settings import resolve
from written_runs import without_seals, write_run

HOSTILE = "</script><script>alert(1)</script><!--<img src=x onerror=alert(1)>&quot;'\u2028"
NAME = HOSTILE.removesuffix("\u2028")
"""Settings may not hold such signs at all."""


class Reader(HTMLParser):
    """Collects elements, their attributes and the text of scripts, styles and the title."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        if self.tags and data.strip():
            self.texts.append((self.tags[-1][0], data))

    def text(self, tag: str) -> list[str]:
        return [text for name, text in self.texts if name == tag]

    def attributes(self, tag: str) -> list[dict[str, str | None]]:
        return [found for name, found in self.tags if name == tag]


def own_copy(run: Run, folder: Path, name: str = "copy") -> Path:
    return Path(shutil.copytree(run.path, folder / name))


def write_lines(path: Path, lines: list[dict[str, object]]) -> None:
    without_seals(path.parent)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def everyone(runs: dict[str, list[Run]]) -> list[Run]:
    return [run for each in runs.values() for run in each]


@pytest.fixture(scope="module")
def page(runs, tmp_path_factory) -> Reader:
    path = write_report(everyone(runs), tmp_path_factory.mktemp("page") / "report.html", "Three <runs>")
    return Reader(path.read_text(encoding="utf-8"))


def test_the_file_carries_its_data(page, runs):
    assert page.text("title") == ["Three <runs>"]
    blocks = page.attributes("script")
    assert [block.get("type") for block in blocks] == ["application/json", None]
    data = json.loads(page.text("script")[0])
    assert [run["name"] for run in data["runs"]] == ["fedavg-1", "fedavg-2", "proxyfl-1"]
    assert [(group["label"], group["runs"]) for group in data["groups"]] == [
        ("fedavg", [0, 1]),
        ("proxyfl", [2]),
    ]
    looks = [group["look"] for group in data["groups"]]
    assert [look["colour"] for look in looks] == ["black", "vermillion"]


def test_nothing_is_loaded_from_anywhere(page):
    for tag, attributes in page.tags:
        loads = {name: value for name, value in attributes.items() if name in ("src", "href", "action")}
        assert loads in ({}, {"href": "data:,"}), (tag, loads)
        assert not [name for name in attributes if name.startswith("on") or name == "style"]
    program, look = page.text("script")[1], page.text("style")[0]
    assert not re.search(r"https?:|//[a-z]|@import|url\(", program + look)
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|Function\(", program
    )


def test_the_policy_admits_this_style_and_this_script_only(page):
    policies = [meta for meta in page.attributes("meta") if meta.get("http-equiv")]
    assert [policy["http-equiv"] for policy in policies] == ["Content-Security-Policy"]
    rules = dict(rule.split(" ", 1) for rule in str(policies[0]["content"]).split("; "))

    def hashed(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    assert rules == {
        "default-src": "'none'",
        "style-src": hashed(page.text("style")[0]),
        "script-src": hashed(page.text("script")[1]),
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }


def test_the_policy_stands_before_what_it_rules(page):
    names = [tag for tag, _ in page.tags]
    policy = next(k for k, (_, found) in enumerate(page.tags) if found.get("http-equiv"))
    assert policy < names.index("style") < names.index("script")
    assert "viewport" in [meta.get("name") for meta in page.attributes("meta")]


def test_hostile_texts_stay_texts(runs, tmp_path):
    path = own_copy(runs["fedavg"][0], tmp_path, "<script>alert(1)<!--")
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    lines[0]["failed"] = {"3": HOSTILE}
    lines[0]["losses"] = {HOSTILE: 1.0}
    write_lines(path / "metrics.jsonl", lines)
    config = (path / "config.toml").read_text()
    (path / "config.toml").write_text(config.replace('"digits"\nimage', f"'''folder:/{NAME}'''\nimage"))
    text = render(gather([Run(path)], HOSTILE, Labels()))
    found = Reader(text)
    assert found.text("title") == [printable(HOSTILE)]
    assert [tag for tag, _ in found.tags].count("script") == 2
    assert "img" not in [tag for tag, _ in found.tags]
    data = json.loads(found.text("script")[0])
    assert data["runs"][0]["failures"] == [[1, "3", HOSTILE.strip()]]
    assert data["runs"][0]["settings"]["data.name"] == f"folder:/{NAME}"
    assert data["runs"][0]["name"] == "<script>alert(1)<!--"
    assert data["runs"][0]["notes"]["partition"]


def test_json_in_a_script_cannot_end_it():
    text = as_json({"a": HOSTILE})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"a": HOSTILE}
    with pytest.raises(ValueError):
        as_json(float("nan"))


@pytest.mark.slow
def test_three_long_runs_of_many_classes_stay_small(runs, tmp_path):
    classes, base, found = 100, runs["proxyfl"][0], []
    generator = torch.Generator().manual_seed(0)
    for k in range(3):
        path = own_copy(base, tmp_path, f"long-{k}")
        lines = []
        for number in range(1, 301):
            values = torch.rand(2, classes, generator=generator).tolist()
            line = base.metrics[0] | {"round": number, "per_class": values[0], "prior": values[1]}
            lines.append(line | {"class_counts": {str(c): values[0] for c in range(8)}})
        write_lines(path / "metrics.jsonl", lines)
        write_lines(path / "timing.jsonl", [base.timing[0] | {"round": n} for n in range(1, 301)])
        found.append(Run(path))
    size = write_report(found, tmp_path / "report.html").stat().st_size
    assert size < 1_500_000
    data = gather(found)
    assert len(data["runs"][0]["curves"]["accuracy"]) == 300
    assert len(data["runs"][0]["per_class"]["values"]) == recorded.MOST_COLUMNS


def test_no_run_is_an_error(tmp_path):
    with pytest.raises(RunError, match="no run to report on"):
        write_report([], tmp_path / "report.html")


def test_a_run_with_everything(runs):
    run = runs["proxyfl"][0]
    data = gather([run], labels=Labels())["runs"][0]
    assert data["notes"] == {}
    assert data["state"] == "finished"
    assert (data["done"], data["total"], data["left"]) == (2, 2, None)
    assert data["summary"]["mean_last"] == pytest.approx(run.summary.mean_last, rel=1e-4)
    assert data["summary"]["best_round"] == run.summary.best_round
    assert data["summary"]["bytes"] == pytest.approx(run.summary.megabytes * 1e6)
    assert data["summary"]["seconds"] == pytest.approx(run.summary.seconds, rel=1e-3)
    assert data["classes"] == list("0123456789")
    assert data["settings"]["partition.clients"] == "4"
    assert data["curves"]["round"] == [1, 2]
    shares = [line["pseudo"]["selected_share"] for line in run.metrics]
    assert data["curves"]["pseudo.selected_share"] == pytest.approx(shares, rel=1e-3)
    confusion = run.snapshot(2)["confusion"]
    assert data["confusion"] == {"round": 2, "counts": confusion.tolist()}
    assert len(data["prior"]["last"]) == 10
    held = data["partition"]
    assert (len(held["labelled"]), len(held["labelled"][0]), held["clients"]) == (4, 10, 4)
    assert sum(map(sum, held["unlabelled"])) == held["totals"][1] == int(run.partition.unlabelled.sizes.sum())
    assert sum(held["shares"]) == pytest.approx(1, abs=1e-3)
    proxies = data["proxies"]
    assert (len(proxies["local"]), len(proxies["local"][0]), len(proxies["tuned"])) == (2, 10, 10)
    assert sorted(data["traffic"]) == ["down", "down_once", "up"]
    assert list(data["seconds"]) == ["train", "serve", "evaluate", "record"]


def test_what_a_method_does_not_have_is_noted(runs):
    data = gather([runs["fedavg"][0]], labels=Labels())["runs"][0]
    assert data["notes"] == {
        "prior": "the method keeps no class prior",
        "pseudo": "the method makes no pseudo-labels",
    }
    assert data["proxies"]["tuned"] is None


def test_without_the_data_set_clients_have_sizes(runs):
    run = runs["fedavg"][0]
    held = gather([run])["runs"][0]["partition"]
    assert held["classes"] == ["all classes"]
    assert held["labelled"] == [[int(size)] for size in run.partition.labelled.sizes]
    assert held["shares"] is None


@pytest.mark.parametrize(
    "gone", ["snapshots", "models", "partition.safetensors", "timing.jsonl", "events.jsonl"]
)
def test_lost_files_leave_a_part_out(runs, tmp_path, gone):
    path = own_copy(runs["proxyfl"][0], tmp_path)
    place = path / gone
    shutil.rmtree(place) if place.is_dir() else place.unlink()
    data = gather([Run(path)], labels=Labels())["runs"][0]
    assert len(data["curves"]["accuracy"]) == 2
    lost = {"snapshots": {"confusion", "proxies"}, "partition.safetensors": {"partition"}}
    assert set(data["notes"]) == lost.get(gone, set())


def test_damaged_files_leave_a_part_out(runs, tmp_path):
    path = own_copy(runs["proxyfl"][0], tmp_path)
    for file in [*(path / "snapshots").iterdir(), path / "models/last.safetensors"]:
        file.write_bytes(b"\xff" * 40)
    (path / "environment.json").write_text("{")
    data = gather([Run(path)], labels=Labels())["runs"][0]
    assert (data["confusion"], data["proxies"], data["classes"]) == (None, None, [])
    assert {"confusion", "proxies", "partition", "classes"} <= set(data["notes"])
    assert data["partition"]["classes"] == ["all classes"]


def test_values_that_are_no_numbers_are_left_out(runs, tmp_path):
    path = own_copy(runs["fedavg"][0], tmp_path)
    lines = [
        {"round": 1, "accuracy": "high", "losses": {"a": float("nan")}, "pseudo": 3, "traffic": {"up": []}},
        {"round": "two", "accuracy": 0.5},
        {"round": 3, "accuracy": 0.25, "per_class": [0.5, None, float("inf")], "failed": "all"},
    ]
    write_lines(path / "metrics.jsonl", lines)
    (path / "timing.jsonl").write_text('{"round": 1, "train": "long"}\n')
    data = gather([Run(path)])["runs"][0]
    assert data["curves"]["round"] == [1, 3]
    assert data["curves"]["accuracy"] == [None, 0.25]
    assert data["curves"]["losses.a"] == [None, None]
    assert data["per_class"]["last"] == [0.5, None, None]
    assert data["traffic"] is None
    json.loads(as_json(data))


def test_a_run_before_its_first_round(runs, tmp_path):
    path = own_copy(runs["fedavg"][0], tmp_path)
    without_seals(path)
    for name in ("metrics.jsonl", "timing.jsonl"):
        (path / name).write_text("")
    data = gather([Run(path)])["runs"][0]
    assert (data["done"], data["summary"], data["curves"], data["accuracy"]) == (0, {}, {}, None)


def config(preset="digits", method="fedavg", parameters=None, **settings):
    return resolve(preset, {**settings, "method": {"name": method, **(parameters or {})}})


def test_groups_are_told_apart_by_what_differs():
    found = groups(
        [config(), config(partition={"alpha": 1.0}), config(seed=9), config(keep={"checkpoints": 3})]
    )
    assert [group["label"] for group in found] == ["fedavg, alpha = 0.1", "fedavg, alpha = 1"]
    assert [group["runs"] for group in found] == [[0, 2, 3], [1]]
    assert found[0]["look"] != found[1]["look"]


def test_only_seeds_count_as_seeds(tmp_path):
    """As in a table: another number type is another group, a copy counts once, the device does not matter."""
    runs = [
        write_run(tmp_path / "unfinished", "proxyfl", 2, [0.3], missing=1, dtype="bf16"),
        write_run(tmp_path / "one", "proxyfl", 1, [0.3, 0.4], dtype="bf16"),
        write_run(tmp_path / "two", "proxyfl", 2, [0.3, 0.5], dtype="bf16"),
        write_run(tmp_path / "copy", "proxyfl", 2, [0.3, 0.5], dtype="bf16", keep__checkpoints=5),
        write_run(tmp_path / "other", "proxyfl", 1, [0.3, 0.4], dtype="fp32"),
        write_run(tmp_path / "device", "proxyfl", 3, [0.3, 0.4], dtype="bf16", device="cuda"),
    ]
    data = gather(runs)
    assert [(group["label"], group["runs"]) for group in data["groups"]] == [
        ("proxyfl, dtype = bf16", [1, 2, 5]),
        ("proxyfl, dtype = fp32", [4]),
    ]
    assert data["notes"] == [f"Counted once: {name} is a copy of two." for name in ("copy", "unfinished")]
    table = compare(runs, partial=False)
    assert sorted(cell.seeds for cell in table.cells.values()) == [[1], [1, 2, 3]]


def test_copies_that_came_out_otherwise_are_refused(tmp_path):
    runs = [write_run(tmp_path / name, "fedavg", 1, [0.3, last]) for name, last in (("a", 0.4), ("b", 0.5))]
    with pytest.raises(RunError, match="a and b have the same settings"):
        gather(runs)


def test_labels_name_the_data_set_and_not_what_follows_from_it():
    found = groups(
        [
            config(method=method, partition={"alpha": alpha})
            for method in ("proxyfl", "sage")
            for alpha in (1, 0.1)
        ]
        + [config("cifar100", "proxyfl")]
    )
    assert [group["label"] for group in found] == [
        "proxyfl, data = cifar100, alpha = 0.1", "proxyfl, data = digits, alpha = 0.1",
        "proxyfl, data = digits, alpha = 1", "sage, data = digits, alpha = 0.1",
        "sage, data = digits, alpha = 1",
    ]  # fmt: skip
    assert [group["runs"] for group in found] == [[4], [1], [0], [3], [2]]
    assert [group["look"]["colour"] for group in found] == ["vermillion"] * 3 + ["green"] * 2
    assert len({(group["look"]["dash"], group["look"]["colour"]) for group in found}) == 5


def test_labels_name_a_parameter_that_a_method_varies_itself():
    found = groups([config(), *(config(method="sage", parameters={"tau": tau}) for tau in (0.9, 0.8))])
    assert [group["label"] for group in found] == ["fedavg", "sage, tau = 0.8", "sage, tau = 0.9"]


def test_positions_are_spread_evenly():
    assert recorded.spread(4, 10) == [0, 1, 2, 3]
    assert recorded.spread(101, 3) == [0, 50, 100]
    assert len(recorded.spread(1000, 400)) == 400


def test_failures_of_counted_and_of_lost_rounds():
    records = Records(
        metrics=[{"round": 1, "failed": {"4": "refused:  not\nfinite"}}],
        events=[
            {"event": "client failed", "round": 1, "client": 4, "reason": "refused: not finite"},
            {"event": "client failed", "round": 2, "client": 0, "reason": "x" * 1000},
            {"event": "started", "round": 0},
        ],
    )
    rows, count = recorded.failures(records)
    assert rows[0] == [1, "4", "refused: not finite"]
    assert (rows[1][:2], len(rows[1][2]), count) == ([2, "0"], recorded.LONGEST_REASON, 2)


def test_the_cost_of_privacy_stands_with_the_settings_that_it_depends_on(tmp_path):
    private = {"privacy__record_clip": 0.5, "privacy__record_noise": 1.5, "model__norm": "group"}
    both = write_run(tmp_path / "r", "fedavg", 1, [0.5, 0.6], train__pool="unlabelled", **private)
    lines = both.lines
    for line in lines:
        line["record_privacy"] = {"epsilon": 4.0 * line["round"], "delta": 1e-5, "order": 3.0}
    assert recorded.privacy(Records(recorded.usable(lines)), both.config.privacy) == [
        {"of": "record_privacy", "epsilon": 8.0, "delta": 1e-5, "clip": 0.5, "noise": 1.5, "rounds": 2}
    ]
    lines[-1]["privacy"] = lines[-1].pop("record_privacy") | {"epsilon": float("nan")}
    (cost,) = recorded.privacy(Records(lines), both.config.privacy)
    assert (cost["of"], cost["epsilon"], cost["clip"]) == ("privacy", None, 0.0)
    assert recorded.privacy(Records(), both.config.privacy) == []


def test_totals_by_part_and_phase():
    traffic = {"up": {"trunk": 10, "heads": 1}, "down": {"trunk": 20}, "down_once": {"trunk": 5}}
    records = Records(
        metrics=[{"round": k, "accuracy": k / 10, "traffic": traffic} for k in (1, 2)],
        timing=[{"round": 1, "serve": 1.0, "train": 2.0}, {"round": 2, "serve": 0.5, "train": 3.0}],
    )
    assert recorded.traffic(records)["up"] == {"trunk": 20, "classifier": 0, "heads": 2, "extras": 0}
    assert list(recorded.phases(records).items()) == [("train", 5.0), ("serve", 1.5)]
    assert recorded.summary(records, 2) == {
        "mean_last": 0.15, "tail": 2, "last": 0.2, "best": 0.2, "best_round": 2, "chosen_on": "test",
            "seconds": 6.5, "bytes": 62,
    }  # fmt: skip
    assert records.seconds_left(4) == 2 * 3.25


def test_the_principal_plane_of_points_on_a_line():
    rows = torch.tensor([[0.0, 0.0, 0.0], [-3.0, 0.0, 4.0], [3.0, 0.0, -4.0]])
    plane, explained = principal_plane(rows)
    assert explained.tolist() == pytest.approx([1.0, 0.0], abs=1e-6)
    assert plane[:, 0].tolist() == pytest.approx([0.0, 5.0, -5.0], abs=1e-5)
    assert plane[:, 1].tolist() == pytest.approx([0.0, 0.0, 0.0], abs=1e-5)


def test_clients_are_ranked_and_those_between_are_left_out(
    runs: dict[str, list[Run]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runs["fedavg"][0]
    found = pieces.clients(run)
    noted = run.client_rows
    assert found["total"] == len(found["rows"]) == len({row["client"] for row in noted})
    assert {"loss", "cosine", "norm", "labels", "images", "seconds"} == set(found["measures"])
    assert sum(rounds for _, rounds, _, _ in found["rows"]) == len(noted)
    shares = [[share for _, share, _ in cells] for _, _, cells, _ in found["rows"]]
    assert [max(column) for column in zip(*shares, strict=True)] == [1] * len(found["measures"])
    names = [name for name, *_ in found["rows"]]
    monkeypatch.setattr(pieces, "WORST", 1)
    monkeypatch.setattr(pieces, "BEST", 0)
    capped = pieces.clients(run)
    assert ([name for name, *_ in capped["rows"]], capped["total"]) == (names[:1], len(names))


def test_a_run_without_notes_on_clients_says_why(runs: dict[str, list[Run]], tmp_path: Path) -> None:
    path = without_seals(Path(shutil.copytree(runs["fedavg"][0].path, tmp_path / "run")))
    (path / "clients.jsonl").unlink()
    (path / "checkpoints" / "clients.copy.jsonl").unlink()
    found = pieces.pieces(Run(path), None)
    assert found["clients"] is None
    assert "no records of individual clients" in found["notes"]["clients"]


def test_the_servers_own_loss_is_a_curve() -> None:
    line = {"accuracy": 0.5, "losses": {"a": 1.0}}
    lines = [{"round": 1, **line, "server": {"loss": 2.5, "steps": 3.0}}, {"round": 2, **line}]
    assert recorded.curves(Records(lines))["losses.server"] == [2.5, None]


def test_a_page_names_own_data_without_the_folders_of_this_machine(tmp_path):
    run = write_run(tmp_path / "run", "fedavg", 1, [0.2, 0.5])
    config = run.path / "config.toml"
    there = config.read_text().replace('name = "digits"', 'name = "folder:/home/somebody/clinic"')
    config.write_text(there)
    assert gather([Run(run.path)])["runs"][0]["data"] == "folder:clinic"
