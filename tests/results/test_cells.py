from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from proxyfl.core.errors import RunError
from proxyfl.results.cells import Spread
from proxyfl.results.formats import to_markdown, to_rich
from proxyfl.results.panels import summary_panel


def printed(runs, width=80):
    console = Console(width=width, record=True, quiet=False, file=None, highlight=False)
    with console.capture() as capture:
        console.print(to_rich([summary_panel(runs, short=True)], width))
    return capture.get()


def shown(runs):
    """What stands in each row."""
    return [[field.text for field in row] for row in summary_panel(runs, short=True).rows]


def markdown(runs):
    return to_markdown([summary_panel(runs, short=False)])


def test_mean_and_sample_standard_deviation():
    spread = Spread.of([0.80, 0.90, 1.00])
    assert spread.mean == pytest.approx(0.9)
    assert spread.std == pytest.approx(0.1)
    assert spread.text() == "90.00 ± 10.00"
    assert Spread.of([0.5]).text() == "50.00"


@given(st.lists(st.floats(0, 1), min_size=2, max_size=5), st.randoms())
def test_the_order_of_seeds_does_not_matter(values, random):
    shuffled = random.sample(values, len(values))
    assert Spread.of(values).text() == Spread.of(shuffled).text()


def test_a_row_of_one_run(rewritten):
    runs = {"fedavg": [rewritten("a", [0.5, 0.875, 0.75], seconds=20, mb=2)]}
    assert shown(runs) == [["fedavg", "70.83", "75.00", "87.50", "3", "1:00 min", "6.0"]]


def test_rows_of_real_runs_equal_their_summaries(runs):
    fedavg, proxyfl = shown(runs)
    assert (fedavg[0], proxyfl[0]) == ("fedavg", "proxyfl")
    one, two = (run.summary for run in runs["fedavg"])
    mean, std = (one.last + two.last) / 2, abs(one.last - two.last) / 2**0.5
    assert fedavg[2] == f"{100 * mean:.2f} ± {100 * std:.2f}"
    assert proxyfl[1] == f"{100 * runs['proxyfl'][0].summary.mean_last:.2f}"


def test_markdown(rewritten):
    runs = {
        "fedavg": [rewritten("a", [0.5, 0.75], 20, 2), rewritten("b", [0.5, 0.85], 30, 2)],
        "proxyfl": [rewritten("c", [0.625, 0.875], 60, 2.5)],
    }
    heading, *lines, _, said = markdown(runs).splitlines()
    assert heading.count("(%)") == 3
    assert "mean of last 2 rounds (%)" in heading
    assert heading.endswith("| rounds | time | sent (MB) |")
    assert lines == [
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        "| fedavg | 65.00 ± 3.54 | 80.00 ± 7.07 | 80.00 ± 7.07 | 2 | 50 s | 4.0 |",
        "| proxyfl | 75.00 | 87.50 | 87.50 | 2 | 2:00 min | 5.0 |",
    ]
    assert "over 1 to 2 seeds" in said


def test_the_terminal_table_fits_80_columns_unbroken(rewritten):
    runs = {"fixmatch-gpl": [rewritten("a", [0.5, 0.75], 65), rewritten("b", [0.5, 0.85], 65)]}
    heading, line, *_ = printed(runs).splitlines()
    assert heading.split() == ["method", "mean", "last", "2", "last", "best", "rounds", "time", "MB"]
    assert line.split("  ")[0] == "fixmatch-gpl"
    assert "65.00 ± 3.54  80.00 ± 7.07  80.00 ± 7.07       2  2:10 min  2.0" in line


def test_numbers_stay_whole_in_a_narrow_terminal(rewritten):
    runs = {"fixmatch-gpl": [rewritten("a", [0.5, 0.75], 65), rewritten("b", [0.5, 0.85], 65)]}
    lines = printed(runs, width=76).splitlines()
    assert max(map(len, lines)) <= 76
    assert any("65.00 ± 3.54  80.00 ± 7.07  80.00 ± 7.07" in line for line in lines)
    assert any("2:10 min" in line for line in lines)


def test_runs_of_different_length_show_the_range(rewritten):
    assert "| 1–3 |" in markdown({"fedavg": [rewritten("a", [0.5]), rewritten("b", [0.5, 0.6, 0.7])]})


def test_methods_with_different_tails_do_not_claim_one(rewritten):
    runs = {"a": [rewritten("a", [0.5])], "b": [rewritten("b", [0.5, 0.6])]}
    assert "mean of last rounds (%)" in markdown(runs)


def test_the_caption_counts_the_seeds(rewritten):
    one, two = rewritten("a", [0.5]), rewritten("b", [0.6])
    assert "one seed" in markdown({"a": [one]})
    assert "over 2 seeds" in markdown({"a": [one, two], "b": [one, two]})
    assert "over 1 to 2 seeds" in markdown({"a": [one, two], "b": [one]})


def test_a_method_without_runs_is_refused():
    with pytest.raises(RunError, match="no run of fedavg"):
        summary_panel({"fedavg": []}, short=True)
