"""Runs grouped into cells over seeds, and what each cell is worth."""

from __future__ import annotations

import csv

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxyfl.core.errors import ConfigError, RunError
from proxyfl.results.cells import Spread, ranks
from proxyfl.results.compare import compare
from proxyfl.results.exports import cells_to_csv
from proxyfl.results.panels import panels, question, speed_up
from proxyfl.results.settings import hashable, plain, short_names
from written_runs import write_run


@pytest.fixture
def write(tmp_path):
    def write(method, seed, accuracies, **settings):
        name = f"run-{len(list(tmp_path.iterdir()))}"
        return write_run(tmp_path / name, method, seed, accuracies, **settings)

    return write


def labels(comparison):
    return [str(contender) for contender in comparison.contenders]


def the_cell(comparison, name, *group):
    return comparison.cells[comparison.contender(name), group]


def test_real_runs_make_a_cell_per_method(runs):
    (one, two), (three,) = runs["fedavg"], runs["proxyfl"]
    found = compare([three, two, one])
    assert (found.settings, found.groups, found.follow, found.notes) == ((), ((),), (), ())
    assert labels(found) == ["fedavg", "proxyfl"]
    cell = the_cell(found, "fedavg")
    assert cell.seeds == [1, 2]
    assert cell.spread("mean-last") == Spread.of([one.summary.mean_last, two.summary.mean_last])
    assert [each.value("best") for each in cell.outcomes] == [one.summary.best, two.summary.best]
    assert (found.tails, found.seed_sets) == ([2], {frozenset({1, 2}), frozenset({1})})


def test_numbers_of_a_cell(write):
    runs = [write("fedavg", 1, [0.5, 0.7, 0.6]), write("fedavg", 2, [0.4, 0.5, 0.8])]
    cell = the_cell(compare(runs), "fedavg")
    assert cell.spread("last") == Spread(pytest.approx(0.7), pytest.approx(0.02**0.5))
    assert cell.spread("best").mean == pytest.approx(0.75)
    assert cell.spread("mean-last").mean == pytest.approx((1.8 + 1.7) / 6)
    assert cell.outcomes[0].summary.megabytes == pytest.approx(3)


def test_rounds_to_an_accuracy_are_a_median_and_only_where_all_seeds_get_there(write):
    runs = [
        write("fedavg", 1, [0.1, 0.5, 0.4, 0.9]),
        write("fedavg", 2, [0.1, 0.2, 0.3, 0.8]),
        write("fedavg", 3, [0.5, 0.2, 0.3, 0.8]),
    ]
    cell = the_cell(compare(runs), "fedavg")
    assert [outcome.rounds_to(0.5) for outcome in cell.outcomes] == [2, 4, 1]
    assert cell.rounds_to(0.5) == 2
    assert cell.rounds_to(0.8) == 4
    assert cell.rounds_to(0.81) is None
    assert the_cell(compare(runs[:2]), "fedavg").rounds_to(0.5) == 3


def test_speed_up_is_the_ratio_of_rounds(write):
    runs = [write("fedavg", 1, [0.1, 0.2, 0.8, 0.8]), write("proxyfl", 1, [0.2, 0.8, 0.8, 0.9])]
    found = compare(runs)
    asked = question(found, target=0.8)
    assert str(asked.baseline) == "fedavg"
    assert speed_up(found, the_cell(found, "proxyfl"), asked) == pytest.approx(1.5)
    assert speed_up(found, the_cell(found, "fedavg"), question(found, target=0.8, against="proxyfl")) == (
        pytest.approx(2 / 3)
    )
    late = question(found, target=0.85, against="fedavg")
    assert speed_up(found, the_cell(found, "proxyfl"), late) is None


def test_speed_ups_are_over_the_first_that_gets_to_the_target(write):
    curves = {"fedavg": [0.5, 0.6], "fixmatch-lpl": [0.6, 0.7], "sage": [0.7, 0.8], "proxyfl": [0.8, 0.9]}
    found = compare([write(method, 1, curve) for method, curve in curves.items()])
    reaching = {0.6: "fixmatch-lpl", 0.75: "sage", 0.85: "proxyfl", 0.95: "fixmatch-lpl"}
    assert {aim: str(question(found, target=aim).baseline) for aim in reaching} == reaching
    assert str(question(found, target=0.85, against="sage").baseline) == "sage"
    apart = compare(
        [write(method, 1, curve, alpha=10.0) for method, curve in curves.items()]
        + [write(method, 1, [0.6] if method == "sage" else [0.5], alpha=1.0) for method in curves]
    )
    assert str(question(apart, target=0.6).baseline) == "sage"
    assert str(question(apart, target=0.65).baseline) == "fixmatch-lpl"


def test_the_default_target_is_a_whole_per_cent_of_the_best_of_a_group(write):
    runs = [write("fedavg", 1, [0.5]), write("proxyfl", 1, [0.919])]
    assert question(compare(runs)).target == 0.83
    runs += [write("fedavg", 1, [0.02], alpha=10.0), write("proxyfl", 1, [0.1], alpha=10.0)]
    found = compare(runs)
    (one, two), asked = found.groups, question(found)
    assert (asked.targets, asked.target) == ({one: 0.83, two: 0.09}, None)
    assert all(
        the_cell(found, "proxyfl", *group).rounds_to(asked.targets[group]) == 1 for group in (one, two)
    )
    assert question(found, target=0.5).target == 0.5


def test_a_setting_that_differs_makes_groups_in_order(write):
    runs = [
        write(method, seed, [0.5], alpha=alpha)
        for alpha in (10.0, 1.0, 0.1)
        for method in ("proxyfl", "fedavg")
        for seed in (1, 2)
    ]
    found = compare(runs)
    assert found.settings == ("partition.alpha",)
    assert found.groups == ((0.1,), (1.0,), (10.0,))
    assert found.describe((0.1,)) == "alpha = 0.1"
    assert len(found.cells) == 6
    assert all(cell.seeds == [1, 2] for cell in found.cells.values())


def test_methods_differ_in_their_own_parameters_without_being_told_apart_by_them(write):
    """FixMatch's mask is not ProxyFL's; that is what the methods are."""
    found = compare([write("fixmatch-gpl", 1, [0.5]), write("proxyfl", 1, [0.6]), write("fedavg", 1, [0.4])])
    assert found.settings == found.follow == ()
    assert labels(found) == ["fedavg", "fixmatch-gpl", "proxyfl"]


def test_a_parameter_that_varies_within_a_method_names_its_rows(write):
    runs = [write("fedavg", 1, [0.5])]
    runs += [write("proxyfl", 1, [0.6], **{"method.gpt.epochs": epochs}) for epochs in (100, 20)]
    found = compare(runs)
    assert found.settings == ()
    assert labels(found) == ["fedavg", "proxyfl gpt.epochs=20", "proxyfl gpt.epochs=100"]
    assert str(found.contender("proxyfl gpt.epochs=20")) == "proxyfl gpt.epochs=20"
    with pytest.raises(ConfigError, match=r"'proxyfl' .*2 rows .*'proxyfl gpt.epochs=100'"):
        found.contender("proxyfl")


def test_variants_of_one_method_are_rows_that_can_be_compared(write):
    found = compare([write("proxyfl", 1, [tau], method__tau=tau) for tau in (0.9, 0.95)])
    assert (labels(found), found.settings) == (["proxyfl tau=0.9", "proxyfl tau=0.95"], ())
    assert found.gain((), "last").paired.mean == pytest.approx(0.05)


def test_a_parameter_that_all_methods_went_through_makes_groups(write):
    runs = [
        write(method, 1, [0.5], method__tau=tau) for method in ("proxyfl", "fedavg") for tau in (0.9, 0.95)
    ]
    found = compare(runs)
    assert found.settings == ("method.tau",)
    assert found.describe((0.9,)) == "tau = 0.9"
    assert labels(found) == ["fedavg", "proxyfl"]


def test_a_parameter_that_follows_the_data_does_not_tear_a_method_apart(write):
    """Presets give ProxyFL its epochs of tuning by the data set."""
    epochs = {"digits": 100, "cifar100": 10}
    runs = [
        write("proxyfl", 1, [0.6], data__name=data, **{"method.gpt.epochs": count})
        for data, count in epochs.items()
    ]
    runs += [write("fedavg", 1, [0.5], data__name=data) for data in epochs]
    found = compare(runs)
    assert labels(found) == ["fedavg", "proxyfl"]
    assert found.settings == ("data.name",)
    assert "method.gpt.epochs" in found.follow
    assert len(found.cells) == 4
    found = compare([*runs, write("proxyfl", 1, [0.7], **{"method.gpt.epochs": 20})])
    assert labels(found)[1:] == [f"proxyfl gpt.epochs={count}" for count in (10, 20, 100)]
    assert "method.gpt.epochs" not in found.follow


def test_a_setting_and_a_parameter_of_one_name_are_told_apart(write):
    runs = [write("fedmatch", 1, [0.5], **{"method.lr": rate}) for rate in (0.01, 0.02)]
    runs += [write("fedavg", 1, [0.5], **{"train.lr": rate}) for rate in (0.05, 0.1)]
    found = compare(runs)
    assert found.describe((0.1,)) == "train.lr = 0.1"
    assert labels(found) == ["fedavg", "fedmatch method.lr=0.01", "fedmatch method.lr=0.02"]


def test_settings_that_follow_another_do_not_make_groups_of_their_own(write):
    runs = [write("fedavg", 1, [0.5], fidelity=fidelity) for fidelity in ("clean", "code")]
    found = compare(runs)
    assert found.settings == ("fidelity",)
    assert {"data.flip", "federation.sampling", "train.leak_momentum"} <= set(found.follow)


def test_where_a_run_was_computed_and_what_it_keeps_tell_nothing_apart(write):
    runs = [write("fedavg", 1, [0.5]), write("fedavg", 2, [0.5], device="cuda", keep__checkpoints=5)]
    found = compare(runs)
    assert found.settings == ()
    assert the_cell(found, "fedavg").seeds == [1, 2]


def test_twins_that_came_out_otherwise_are_refused_by_name(write):
    one, two = write("fedavg", 1, [0.5]), write("fedavg", 1, [0.6], keep__checkpoints=5)
    with pytest.raises(RunError, match=f"{one.path} and {two.path} have the same settings"):
        compare([one, two])


def test_twins_with_the_same_accuracies_count_once(write):
    one, two, other = write("fedavg", 1, [0.5]), write("fedavg", 1, [0.5]), write("fedavg", 2, [0.7])
    found = compare([one, two, other])
    cell = the_cell(found, "fedavg")
    assert (cell.seeds, cell.outcomes[0].name) == ([1, 2], str(one.path))
    assert found.notes == (f"counted once: a run that is there twice: {one.path} and {two.path}",)
    found = compare([one, two, other, write("fedavg", 2, [0.7])])
    assert the_cell(found, "fedavg").seeds == [1, 2]
    assert found.notes == (f"counted once: 2 runs that are there twice: {one.path} and {two.path}, …",)


def test_a_run_that_is_named_twice_counts_once(write):
    run = write("fedavg", 1, [0.5])
    assert the_cell(compare([run, type(run)(run.path / ".." / run.path.name)]), "fedavg").seeds == [1]


def test_unfinished_runs_are_left_out_with_a_note_or_taken_in(write):
    runs = [
        write("fedavg", 1, [0.5, 0.6]),
        write("fedavg", 2, [0.5], missing=1),
        write("fedavg", 3, [], missing=2),
    ]
    found = compare(runs)
    assert the_cell(found, "fedavg").seeds == [1]
    assert found.notes == (
        f"left out, not finished: {runs[1].path}, 1 of 2 rounds",
        f"left out, not finished: {runs[2].path}, 0 of 2 rounds",
    )
    found = compare(runs, partial=True)
    assert the_cell(found, "fedavg").seeds == [1, 2]
    assert found.notes[0] == f"taken in, not finished: {runs[1].path}, 1 of 2 rounds"
    assert found.tails == [1, 2]
    with pytest.raises(RunError, match="no finished run to compare"):
        compare(runs[1:])
    with pytest.raises(RunError, match="no finished run to compare"):
        compare([])


def test_a_run_that_cannot_be_read_is_left_out_with_a_note(write):
    good, bad = write("fedavg", 1, [0.5]), write("fedavg", 2, [0.5])
    bad.directory.config.write_text("[method")
    found = compare([good, bad])
    assert the_cell(found, "fedavg").seeds == [1]
    assert found.notes[0].startswith(f"left out, cannot be read: {bad.path}")


def test_where_keeps_runs_by_setting(write):
    runs = [
        write(method, 1, [0.5], alpha=alpha, missing=alpha == 10)
        for alpha in (0.1, 1.0, 10.0)
        for method in ("fedavg", "fixmatch-gpl", "proxyfl")
    ]
    found = compare(runs, where=[("partition.alpha", 0.1), ("alpha", 1)])
    assert (found.groups, found.notes) == (((0.1,), (1.0,)), ())
    found = compare(runs, where=[("method", "fedavg"), ("method.name", "proxyfl"), ("alpha", 1)])
    assert (labels(found), found.settings) == (["fedavg", "proxyfl"], ())
    assert labels(compare(runs, where=[("method.gpt.epochs", 100)])) == ["proxyfl"]
    with pytest.raises(ConfigError, match=r"partition.alpha = 0.2; .*0.1, 1, 10"):
        compare(runs, where=[("alpha", 0.2)])
    with pytest.raises(ConfigError, match=r"'partition.alfa'; did you mean"):
        compare(runs, where=[("partition.alfa", 0.2)])


def test_the_gain_of_the_best_over_the_second(write):
    values = {"fedavg": (0.5, 0.5, 0.5), "fixmatch-gpl": (0.6, 0.7, 0.8), "proxyfl": (0.65, 0.72, 0.9)}
    found = compare([write(m, s, [v]) for m, each in values.items() for s, v in enumerate(each)])
    gain = found.gain((), "last")
    assert (str(gain.best), str(gain.second)) == ("proxyfl", "fixmatch-gpl")
    assert gain.paired.mean == pytest.approx(0.17 / 3)
    assert (gain.paired.low, gain.paired.high) == pytest.approx((0.02, 0.1))


def test_a_gain_is_over_shared_seeds_or_none(write):
    runs = [write("fedavg", 1, [0.5]), write("proxyfl", 1, [0.51]), write("proxyfl", 2, [0.9])]
    assert compare(runs).gain((), "last").paired.mean == pytest.approx(0.01)
    assert compare([runs[0], runs[2]]).gain((), "last").paired is None
    assert compare(runs[:1]).gain((), "last") is None


def test_what_knows_every_label_is_not_ranked(write):
    values = {"fedavg": 0.5, "fedavg-sl": 0.9, "proxyfl": 0.6}
    found = compare([write(method, 1, [value]) for method, value in values.items()])
    asked = question(found, "last")
    assert [str(cell.contender) for cell in found.ranked((), "last")] == ["proxyfl", "fedavg"]
    assert str(found.gain((), "last").best) == "proxyfl"
    assert asked.targets == {(): 0.54}  # 90 % of the best method's
    assert str(asked.baseline) == "proxyfl"  # FedAvg does not get there, and the oracle is no baseline
    listing = panels(found, asked)[0]
    assert [row[0].text for row in listing.rows] == ["fedavg", "fedavg-sl", "proxyfl"]
    assert any("Not ranked" in line and line.endswith("may: fedavg-sl.") for line in listing.caption)
    (oracle,) = [row for row in csv.DictReader(cells_to_csv(found, asked).splitlines()) if row["rank"] == ""]
    assert oracle["method"] == "fedavg-sl"


def test_oracles_alone_are_ranked_among_themselves(write):
    runs = [write("fedavg-sl", 1, [0.9]), write("gpl-all-corrected", 1, [0.8])]
    assert str(compare(runs).gain((), "last").best) == "fedavg-sl"


def test_equal_numbers_have_equal_ranks(write):
    values = {"fedavg": 0.4, "fixmatch-lpl": 0.60001, "fixmatch-gpl": 0.6, "proxyfl": 0.5}
    found = compare([write(method, 1, [value]) for method, value in values.items()])
    marked = {str(who): rank for who, rank in found.ranks((), "last").items()}
    assert marked == {"fixmatch-lpl": 1, "fixmatch-gpl": 1, "proxyfl": 2}
    assert ranks({"fedavg": 0.5}) == {}


def test_the_order_of_methods_does_not_hang_on_the_order_of_runs(write):
    names = ["fedavg", "fedavg+proto", "fixmatch-gpl", "sage", "proxyfl"]
    assert labels(compare([write(name, 1, [0.5]) for name in reversed(names)])) == names


def test_contenders_by_name_and_alias(write):
    found = compare([write("proxyfl", 1, [0.5])])
    with pytest.raises(ConfigError, match=r"'proxifl' .*'proxyfl'"):
        found.contender("proxifl")
    assert str(question(found).baseline) == "proxyfl"


def test_values_and_names():
    assert hashable([1, [2, "x"]]) == (1, (2, "x"))
    assert short_names(["data.name", "labels.ratio", "partition.alpha", "labels.seed"]) == {
        "data.name": "data", "labels.ratio": "label ratio", "partition.alpha": "alpha",
        "labels.seed": "labels.seed",
    }  # fmt: skip
    assert [plain(v) for v in (0.1, 1.0, True, (1, 0.5), "x", 0.123456789)] == [
        "0.1", "1", "true", "[1,0.5]", "x", "0.123456789",
    ]  # fmt: skip


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_printed_number_is_the_number(value):
    assert float(plain(value)) == value
