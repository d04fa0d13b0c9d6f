from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from proxyfl.core.errors import RunError
from proxyfl.report.tables import Spread, caption, duration, summary_rows, to_markdown, to_rich


def printed(rows, width=80):
    console = Console(width=width, record=True, quiet=False, file=None, highlight=False)
    with console.capture() as capture:
        console.print(to_rich(rows))
    return capture.get()


def test_mean_and_sample_standard_deviation():
    spread = Spread.of([0.80, 0.90, 1.00])
    assert spread.mean == pytest.approx(0.9)
    assert spread.std == pytest.approx(0.1)
    assert spread.percent() == "90.00 ± 10.00"
    assert Spread.of([0.5]).percent() == "50.00"


@given(st.lists(st.floats(0, 1), min_size=2, max_size=5), st.randoms())
def test_the_order_of_seeds_does_not_matter(values, random):
    shuffled = random.sample(values, len(values))
    assert Spread.of(values).percent() == Spread.of(shuffled).percent()


def test_a_row_of_one_run(rewritten):
    (row,) = summary_rows({"fedavg": [rewritten("a", [0.5, 0.875, 0.75], seconds=20, mb=2)]})
    assert row.mean_last == Spread(pytest.approx((0.5 + 0.875 + 0.75) / 3))
    assert (row.last, row.best) == (Spread(0.75), Spread(0.875))
    assert (row.rounds, row.runs, row.tail) == ((3, 3), 1, 3)
    assert row.seconds == pytest.approx(60)
    assert row.megabytes == pytest.approx(6)


def test_rows_of_real_runs_equal_their_summaries(runs):
    fedavg, proxyfl = summary_rows(runs)
    assert (fedavg.method, proxyfl.method) == ("fedavg", "proxyfl")
    one, two = (run.summary for run in runs["fedavg"])
    assert fedavg.last.mean == pytest.approx((one.last + two.last) / 2)
    assert fedavg.last.std == pytest.approx(abs(one.last - two.last) / 2**0.5)
    assert proxyfl.mean_last == Spread(runs["proxyfl"][0].summary.mean_last)
    assert proxyfl.megabytes > fedavg.megabytes > 0


def test_markdown(rewritten):
    runs = {
        "fedavg": [rewritten("a", [0.5, 0.75], 20, 2), rewritten("b", [0.5, 0.85], 30, 2)],
        "proxyfl": [rewritten("c", [0.625, 0.875], 60, 2.5)],
    }
    heading, *lines = to_markdown(summary_rows(runs)).splitlines()
    assert heading.startswith(
        "| method | accuracy, mean of last 2 rounds (%) | last round (%) | best round (%) |"
    )
    assert heading.endswith("| rounds | time | sent (MB) |")
    assert lines == [
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        "| fedavg | 65.00 ± 3.54 | 80.00 ± 7.07 | 80.00 ± 7.07 | 2 | 50 s | 4.0 |",
        "| proxyfl | 75.00 | 87.50 | 87.50 | 2 | 2:00 min | 5.0 |",
    ]


def test_the_terminal_table_fits_80_columns_unbroken(rewritten):
    runs = {"fixmatch-gpl": [rewritten("a", [0.5, 0.75], 65), rewritten("b", [0.5, 0.85], 65)]}
    heading, line = printed(summary_rows(runs)).splitlines()
    assert heading.split() == ["method", "mean", "last", "2", "last", "best", "rounds", "time", "MB"]
    assert line.split("  ")[0] == "fixmatch-gpl"
    assert "65.00 ± 3.54  80.00 ± 7.07  80.00 ± 7.07       2  2:10 min  2.0" in line


def test_numbers_stay_whole_in_a_narrow_terminal(rewritten):
    runs = {"fixmatch-gpl": [rewritten("a", [0.5, 0.75], 65), rewritten("b", [0.5, 0.85], 65)]}
    lines = printed(summary_rows(runs), width=76).splitlines()
    assert "80.00 ± 7.07" in lines[-1]
    assert "2:10 min" in lines[-1]


def test_runs_of_different_length_show_the_range(rewritten):
    rows = summary_rows({"fedavg": [rewritten("a", [0.5]), rewritten("b", [0.5, 0.6, 0.7])]})
    assert rows[0].rounds == (1, 3)
    assert "| 1–3 |" in to_markdown(rows)


def test_methods_with_different_tails_do_not_claim_one(rewritten):
    rows = summary_rows({"a": [rewritten("a", [0.5])], "b": [rewritten("b", [0.5, 0.6])]})
    assert "mean of last rounds (%)" in to_markdown(rows)


def test_the_caption_counts_the_seeds(rewritten):
    one, two = rewritten("a", [0.5]), rewritten("b", [0.6])
    assert "one seed" in caption(summary_rows({"a": [one]}))
    assert "over 2 seeds" in caption(summary_rows({"a": [one, two], "b": [one, two]}))
    assert "over 1 to 2 seeds" in caption(summary_rows({"a": [one, two], "b": [one]}))


def test_a_method_without_runs_is_refused():
    with pytest.raises(RunError, match="no run of fedavg"):
        summary_rows({"fedavg": []})


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (59.4, "59 s"),
        (59.6, "1:00 min"),
        (125, "2:05 min"),
        (3599.7, "1:00 h"),
        (11520, "3:12 h"),
    ],
)
def test_durations(seconds, text):
    assert duration(seconds) == text
