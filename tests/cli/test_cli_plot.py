"""``proxyfl plot``: figures for papers, of any number of the rounds."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from proxyfl import Run
from proxyfl.report.plot import grouped
from written_runs import write_run


@pytest.fixture
def few() -> Path:
    for method, seed, last in (("fedavg", 1, 0.5), ("fedavg", 2, 0.6), ("sage", 1, 0.7)):
        write_run(Path("runs", f"{method}-{seed}"), method, seed, [0.2, last])
    return Path("runs")


@pytest.mark.parametrize(
    ("file", "begins"), [("a.pdf", b"%PDF"), ("a.png", b"\x89PNG"), ("b/a.svg", b"<?xml")]
)
def test_runs_are_drawn_in_the_format_of_the_name(call, few, file, begins):
    result = call("plot", few, "-o", file)
    assert (result.exit_code, result.stdout) == (0, f"figure     {file}\n"), result.stderr
    assert Path(file).read_bytes().startswith(begins)


def test_the_same_picture_has_the_same_bits(few):
    run = Run(few / "sage-1")
    for kind in ("pdf", "svg"):
        first = run.plot(f"one.{kind}", "seconds").read_bytes()
        assert run.plot(f"two.{kind}", "seconds").read_bytes() == first


def test_lines_are_of_runs_that_differ_in_the_seed_alone(call, few):
    write_run(few / "wide", "fedavg", 1, [0.2, 0.4], alpha=1.0)
    told = call("plot", few, "-o", "a.svg").stderr
    assert "draw --by method,partition.alpha" in told
    assert call("plot", few, "--by", "method,alpha", "-o", "a.svg").exit_code == 0
    names = grouped([Run(path) for path in sorted(few.iterdir())], ["method", "alpha"])
    assert {name: len(runs) for name, runs in names.items()} == {
        "fedavg, alpha 0.1": 2, "sage, alpha 0.1": 1, "fedavg, alpha 1": 1,
    }  # fmt: skip


def test_what_cannot_be_drawn_is_told(call, few):
    assert "must end in .pdf, .png or .svg" in call("plot", few, "-o", "a.gif").stderr
    assert "no metric 'acuracy'; did you mean 'accuracy'?" in call("plot", few, "--metric", "acuracy").stderr
    assert "'alfa'; did you mean 'alpha'?" in call("plot", few, "--by", "alfa").stderr


def test_measures_are_called_as_in_tables_and_drawn_in_per_cent(call, few):
    metrics = few / "sage-1" / "metrics.jsonl"
    rounds = [json.loads(line) for line in metrics.read_text().splitlines()]
    measured = [
        each | {"measures": {"macro_f1": value}} for each, value in zip(rounds, (0.25, 0.75), strict=True)
    ]
    metrics.write_text("".join(f"{json.dumps(each)}\n" for each in measured))
    result = call("plot", few / "sage-1", "--metric", "macro-f1", "-o", "a.svg")
    assert result.exit_code == 0, result.stderr
    written = re.findall("<!-- (.*?) -->", Path("a.svg").read_text())  # the words that are drawn as outlines
    assert {"Macro-F1 on digits", "macro-F1 (%)"} <= set(written)
    assert max(float(words) for words in written if re.fullmatch(r"[\d.]+", words)) >= 70
