"""Which runs an item needs, at which settings, and that items share them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from proxyfl.cli.common import read_seeds
from proxyfl.core.config import Config
from proxyfl.core.errors import ConfigError
from proxyfl.data import sources
from proxyfl.methods import registry
from proxyfl.paper import plan, results
from proxyfl.paper.catalogue import ITEMS, item
from proxyfl.paper.cost import ALIKE, ESTIMATED, MEASURED, Experience, core_seconds, estimate, protocol
from proxyfl.paper.items import Column, Row
from proxyfl.paper.plan import Case
from proxyfl.paper.results import Result, gather, recorded, to_csv
from proxyfl.paper.scales import NAMES, TUNING_SEEDS, scale
from proxyfl.runs import settings
from proxyfl.runs.batch import BY_WORKERS, Job
from proxyfl.runs.settings import identities, identity, resolve
from written_runs import write_run

FOLDER = Path("runs")


def one(name: str, size: str, row: str, column: str) -> Case:
    return next(case for case in plan.cases(item(name), scale(size)) if case.key == (row, column))


def path(name: str, size: str, row: str, column: str, seed: int = 1) -> Path:
    return one(name, size, row, column).job(seed, FOLDER).path


def test_all_tables_and_figures_are_there() -> None:
    assert [name for name in ITEMS if name.startswith("table")] == [f"table{k}" for k in range(1, 10)]
    with_data = "fig1b fig2a fig2b fig2c fig5a fig5b fig5c fig6 fig7".split()
    assert [name for name in ITEMS if name.startswith("fig") and ITEMS[name].has_data] == with_data
    assert [name for name, each in ITEMS.items() if not each.has_data] == ["fig1a", "fig3", "fig4"]


@pytest.mark.parametrize("size", NAMES)
def test_every_row_is_a_method_that_takes_its_settings(size: str) -> None:
    for each in ITEMS.values():
        for case in plan.cases(each, scale(size)):
            assert registry.find(case.row.method).name == case.config.method.name


def test_numbers_of_runs() -> None:
    counts = {name: len(plan.cases(each, scale("full"))) for name, each in ITEMS.items() if each.rows}
    assert counts == {
        "table1": 168, "table2": 60, "table3": 7, "table4": 32, "table5": 16, "table6": 168, "table8": 14,
        "table9": 24, "fig1b": 9, "fig2a": 1, "fig2b": 3, "fig2c": 4, "fig5b": 6, "fig5c": 1, "fig6": 1,
        "fig7": 20, "comparison": 20, "warm": 0, "control": 0, "cost": 56,
        **dict.fromkeys(("labels", "epochs", "clients", "skew"), 0),
    }  # fmt: skip


@pytest.mark.parametrize("size", ["full", "mini"])
def test_items_share_runs(size: str) -> None:
    proxyfl = path("table1", size, "ProxyFL", "cifar10@0.1")
    assert proxyfl == path("table2", size, "GPT + ICPL", "cifar10@0.1")
    assert proxyfl == path("table9", size, "FixMatch + ProxyFL", "cifar10@0.1")
    drawn = "cifar10@0.1" if size == "full" else "svhn@0.1"
    assert path("fig2a", size, "ProxyFL", drawn) == path("table1", size, "ProxyFL", drawn)
    bound = path("table1", size, "FedAvg-SL", "svhn@0.5")
    assert bound == path("table6", size, "FedAvg-SL", "svhn@0.5")
    assert path("table2", size, "GPT", "cifar10@0.1") == path("fig7", size, "Q = 100", "cifar10@0.1")
    assert path("table2", size, "GPT", "cifar100@0.1") == path("fig7", size, "Q = 10", "cifar100@0.1")
    assert path("table5", size, "ICPL-P", "svhn@0.1") == path("table2", size, "ICPL", "svhn@0.1")


def test_what_differs_is_another_run() -> None:
    proxyfl = path("table1", "full", "ProxyFL", "cifar10@0.1")
    assert proxyfl != path("table6", "full", "ProxyFL", "cifar10@0.1")
    assert proxyfl != path("fig1b", "full", "ProxyFL", "cifar10@0.1")
    assert proxyfl != path("table1", "mini", "ProxyFL", "cifar10@0.1")
    assert proxyfl != path("table1", "full", "ProxyFL", "cifar10@0.1", seed=2)
    masks = ["FixMatch-GPL", "FixMatch-GPL with ProxyFL's mask"]
    assert len({path("table2", "full", row, "cifar10@0.1") for row in masks}) == 2


def test_full_scale_is_the_preset() -> None:
    case = one("table1", "full", "ProxyFL", "svhn@0.1")
    assert identity(case.config) == identity(resolve("svhn"))


def test_rounds_to_an_accuracy_need_longer_runs_at_full_scale_only() -> None:
    assert one("table3", "full", "LPL", "cifar100@0.1").config.federation.rounds == 600
    assert one("table1", "full", "FixMatch-LPL", "cifar100@0.1").config.federation.rounds == 500
    assert path("table3", "mini", "LPL", "svhn@0.1") == path("table1", "mini", "FixMatch-LPL", "svhn@0.1")
    assert path("table3", "full", "LPL", "cifar100@0.1") == path("fig5b", "full", "LPL", "cifar100@0.1")


def test_mini_protocols_are_the_documented_ones() -> None:
    cifar = one("table1", "mini", "FedAvg", "cifar10@0.5").config
    assert (cifar.data.subset, cifar.data.image_size, cifar.model.width) == (10_000, 0, 1)
    assert (cifar.train.batch, cifar.train.mu, cifar.train.epochs, cifar.federation.rounds) == (32, 2, 2, 40)
    svhn = one("table1", "mini", "FedAvg", "svhn@0.1").config
    assert (svhn.data.subset, svhn.data.image_size, svhn.model.width, svhn.train.lr) == (10_000, 16, 1, 0.1)
    assert (svhn.train.batch, svhn.train.mu, svhn.train.epochs, svhn.federation.rounds) == (32, 2, 2, 40)
    assert not set(TUNING_SEEDS) & set(range(1, scale("mini").seeds + 1))


def test_every_column_of_micro_is_digits_and_the_same_run() -> None:
    cases = plan.cases(item("table4"), scale("micro"))
    assert {plan.data_of(case) for case in cases} == {"digits"}
    assert (len(cases), len(plan.jobs(cases, [1], FOLDER))) == (32, 8)


def test_a_choice_takes_a_part() -> None:
    size = scale("mini")
    only = plan.read_choice("data=cifar10, data=svhn,alpha=0.10,method=sage", size)
    found = plan.cases(item("table1"), size, only)
    assert [case.key for case in found] == [("SAGE", "cifar10@0.1"), ("SAGE", "svhn@0.1")]


def test_data_that_the_paper_lacks_has_to_be_named() -> None:
    size = scale("mini")
    assert not [case for case in plan.cases(item("table2"), size) if case.column.data == "digits"]
    named = plan.cases(item("table2"), size, plan.read_choice("data=digits", size))
    assert {case.config.data.name for case in named} == {"digits"}
    assert len(named) == 15


def test_columns_are_chosen_where_an_item_has_no_rows_too() -> None:
    size = scale("mini")

    def keys(name: str, only: str) -> list[str]:
        return [column.key for column in plan.columns(item(name), size, plan.read_choice(only, size))]

    assert keys("fig5a", "") == keys("fig5a", "data=svhn") == ["svhn@0.1"]
    assert keys("fig5a", "data=digits") == ["digits@0.1"]
    assert keys("fig5a", "data=digits,data=cifar10,alpha=0.1") == ["cifar10@0.1", "digits@0.1"]
    assert keys("fig5a", "data=cinic10") == keys("fig2b", "alpha=0.5") == []
    assert keys("fig2b", "alpha=10,row=nonesuch") == ["svhn@10"]


@pytest.mark.parametrize("text", ["cifar10", "colour=red", "data=cifar11", "alpha=low"])
def test_a_choice_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        plan.read_choice(text, scale("mini"))


def test_seeds_are_a_count_or_a_list() -> None:
    assert read_seeds("3") == (1, 2, 3)
    assert read_seeds("7, 5,7") == (7, 5)
    assert read_seeds("7,") == (7,)
    with pytest.raises(ConfigError, match="--seeds many"):
        read_seeds("many")
    assert read_seeds("0,") == (0,)
    with pytest.raises(ConfigError, match="selects no run"):
        read_seeds("0")


def test_unknown_items_and_drawings_are_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'table2'"):
        item("tabel2")
    with pytest.raises(ConfigError, match="drawing without data"):
        item("fig3")


def test_data_that_is_not_at_hand_is_told_with_its_cure(tmp_path: Path) -> None:
    assert sources.absent(["digits", "cinic10"], tmp_path) == {
        "cinic10": f"proxyfl data fetch cinic10 --data-root {tmp_path}"
    }


def test_cost_is_from_finished_runs_where_there_are_any(quick: Path) -> None:
    cases = plan.cases(item("table2"), scale("micro"))
    known = Experience.of(plan.jobs(cases, [2], quick))
    proxyfl, icpl = (one("table2", "micro", row, "cifar10@0.1").config for row in ("GPT + ICPL", "ICPL"))
    assert known.cost(proxyfl)[1] == MEASURED
    assert known.cost(icpl)[1] == ALIKE
    assert known.cost(one("table2", "mini", "ICPL", "cifar10@0.1").config)[1] == ESTIMATED
    known.seconds.clear()
    known.seconds[protocol(proxyfl), "proxyfl"] = [2.0, 4.0]
    known.seconds[protocol(proxyfl), "sage"] = [9.0]
    assert known.cost(proxyfl) == (3.0, MEASURED)
    assert known.cost(icpl) == (5.0, ALIKE)


def test_a_run_that_had_workers_cost_all_of_their_cores(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", "fedavg", 1, [0.5, 0.6])
    assert run.summary.seconds == core_seconds(run) == 4.0
    run.directory.event(BY_WORKERS, workers=3)
    assert core_seconds(run) == 12.0
    run.directory.event(BY_WORKERS, workers="many")
    assert core_seconds(run) == 12.0


def test_the_formula_grows_with_the_work() -> None:
    small, large = (one("table1", size, "ProxyFL", "cifar10@0.1").config for size in ("mini", "full"))
    labelled = one("table1", "mini", "FedAvg", "cifar10@0.1").config
    assert estimate(labelled) < estimate(small) < estimate(large) / 100


def test_a_seed_of_a_reduced_protocol_draws_its_own_labels_and_partition() -> None:
    mini, full = (
        one("table1", size, "ProxyFL", "svhn@0.1").job(3, FOLDER).config for size in ("mini", "full")
    )
    assert (mini.seed, mini.labels.seed, mini.partition.seed) == (3, 3, 3)
    assert (full.seed, full.labels.seed, full.partition.seed) == (3, 7, 0)


def test_every_method_of_a_seed_starts_from_one_run_that_repeats_nothing() -> None:
    cases = [one("table1", "mini", row, "svhn@0.1") for row in ("FedAvg", "ProxyFL", "FedAvg-SL")]
    jobs = plan.jobs(cases, [1, 2], FOLDER)
    assert {job.config.model.weights_hash for job in jobs} == {plan.UNKNOWN}
    starts = plan.starts(cases, jobs, FOLDER, None, plan.Known())
    assert [job.config.seed for job in starts] == [1001, 1002]
    for start in starts:
        assert start.config.method.name == "fedavg"
        assert (start.config.labels.seed, start.config.partition.seed) == (start.config.seed - 1000,) * 2
        assert (start.config.train.epochs, start.config.federation.rounds) == (5, 15)
        assert start.config.data == jobs[0].config.data
        assert start.config.model.weights_hash == ""
    assert {job.config.model.weights for job in jobs} == {str(job.path.resolve()) for job in starts}
    other = one("table1", "mini", "FedAvg", "svhn@0.5").job(1, FOLDER).config.model.weights
    assert other not in {str(job.path.resolve()) for job in starts}, "another partition, another start"


def test_labels_per_class_follow_the_ratio(tmp_path: Path) -> None:
    for ratio, wanted in ((0.1, 100), (0.2, 200)):
        labels = resolve("svhn", scale("mini").protocols["svhn"].settings).labels
        assert max(1, round(labels.ten_percent * ratio / 0.1 * 10_000 / 73_257)) == wanted


@pytest.mark.parametrize(
    ("data", "paper"), [("svhn", 150), ("cifar10", 300), ("fashion-mnist", 150), ("digits", 300)]
)
def test_ramps_in_rounds_are_shortened_like_the_runs(data: str, paper: int) -> None:
    case = Case(item("table1"), scale("mini"), Row("FedLoKe", "fedloke"), Column(data, 0.1))
    rounds = case.config.federation.rounds
    assert case.config.method.parameters["ramp"] == round(200 * rounds / paper)


def test_runs_on_record_count_as_done_and_bring_their_start(
    made: Callable[..., Result], tmp_path: Path
) -> None:
    case = one("table1", "mini", "ProxyFL", "svhn@0.1")
    assert case.start is not None
    start = case.start.job(1, FOLDER)
    common = made("Common start", "svhn@0.1", 1, [0.5], final_hash="a" * 64, identity="1")
    known = plan.Known({identity(start.config): common})
    job = case.job(1, FOLDER, known=known)
    assert job.config.model.weights_hash == "a" * 64
    assert not job.finished
    known[identity(job.config)] = made("ProxyFL", "svhn@0.1", 1, [0.5], identity="2")
    assert case.job(1, FOLDER, known=known).finished
    assert not one("table1", "mini", "SAGE", "svhn@0.1").job(1, FOLDER, known=known).finished
    (tmp_path / "mini-x.csv").write_text(to_csv({("r", "c"): [*known.values()]}), encoding="utf-8")
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    assert {each.final_hash for each in recorded(tmp_path).values()} == {"a" * 64, ""}
    found = gather([case], [1], FOLDER, known)
    assert [each.row for each in found[case.key]] == ["ProxyFL"]


def test_a_start_that_came_with_the_results_is_not_made_again(
    made: Callable[..., Result], tmp_path: Path
) -> None:
    case = one("table1", "mini", "ProxyFL", "svhn@0.1")
    assert case.start is not None
    start = case.start.job(1, tmp_path)
    hashed = "a" * 64
    common = made("Common start", "svhn@0.1", 1, [0.5], final_hash=hashed, identity=identity(start.config))
    (tmp_path / "mini-warm.csv").write_text(to_csv({("r", "c"): [common]}), encoding="utf-8")
    missing = [case.job(1, tmp_path)]
    assert len(plan.starts([case], missing, tmp_path, None, recorded(tmp_path))) == 1, "its weights are lost"
    file = tmp_path / "starts" / f"{hashed}.safetensors"
    file.parent.mkdir()
    file.touch()
    known = recorded(tmp_path)
    assert plan.starts([case], missing, tmp_path, None, known) == []
    model = case.job(1, tmp_path, known=known).config.model
    assert (model.weights, model.weights_hash) == (str(file.resolve()), hashed)


def test_a_run_in_another_precision_counts_as_done(made: Callable[..., Result], tmp_path: Path) -> None:
    case = one("table1", "mini", "ProxyFL", "svhn@0.1")
    config = case.job(1, tmp_path).config
    other = {"fp32": "bf16", "bf16": "fp32"}[config.compute.dtype]
    elsewhere = replace(config, compute=replace(config.compute, dtype=other))
    known = plan.Known({identity(elsewhere): made("ProxyFL", "svhn@0.1", 1, [0.5])})
    assert case.job(1, tmp_path, known=known).finished
    assert not case.job(2, tmp_path, known=known).finished


def test_what_the_paper_shows_of_one_data_set_is_shown_of_the_one_that_a_scale_measures() -> None:
    mini, full = ({case.column.data for case in plan.cases(item("fig6"), scale(s))} for s in ("mini", "full"))
    assert (mini, full) == ({"svhn"}, {"cifar100"})
    assert {case.column.data for case in plan.cases(item("table2"), scale("mini"))} >= {"cifar10", "svhn"}


def test_a_control_has_as_many_steps_as_a_run_and_its_start_but_no_start() -> None:
    case = one("control", "mini", "ProxyFL", "svhn@0.1")
    assert case.start is None
    warm = one("table1", "mini", "ProxyFL", "svhn@0.1")
    assert warm.start is not None

    def epochs(case: Case) -> int:
        return case.config.federation.rounds * case.config.train.epochs

    assert abs(epochs(case) - epochs(warm) - epochs(warm.start)) <= 1


def test_questions_are_asked_about_every_method_at_every_place() -> None:
    cases = plan.cases(item("labels"), scale("mini"))
    places = {(case.row.method, case.row.at, case.config.labels.per_class) for case in cases}
    assert places == {
        (method, n, n) for method in ("fedavg", "fixmatch-gpl", "proxyfl") for n in (1, 2, 5, 10, 20, 50)
    }


def test_exported_runs_bring_the_weights_they_started_from_and_no_others(
    made: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = one("comparison", "mini", "ProxyFL", "svhn@0.1")
    assert case.start is not None
    model = case.start.job(1, tmp_path).path / "models" / "last.safetensors"
    model.parent.mkdir(parents=True)
    model.write_bytes(b"weights")
    monkeypatch.setattr(results, "weights_hash", lambda path: "a" * 64)
    monkeypatch.setattr(Job, "finished", True)
    for start, kept in (
        ("b" * 64, []),
        ("a" * 64, [tmp_path / "out" / "starts" / f"{'a' * 64}.safetensors"]),
    ):
        exported = {case.key: [made("ProxyFL", "svhn@0.1", 1, [0.5], start_hash=start)]}
        assert results.keep_starts(exported, [case], [1], tmp_path, tmp_path / "out") == kept
    assert kept[0].read_bytes() == b"weights"


def test_identities_are_computed_once_for_all_items_that_share_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[Config] = []
    compute = settings._identities
    monkeypatch.setattr(settings, "_identities", lambda config: counted.append(config) or compute(config))
    plan._seeded.cache_clear()
    cases = [one("table1", "mini", row, "svhn@0.1") for row in ("FedAvg", "ProxyFL")]
    known = plan.Known()
    twice = [plan.jobs(cases, [1], FOLDER, None, known) for _ in range(2)]
    assert [job.path for job in twice[0]] == [job.path for job in twice[1]]
    assert len(counted) == 3, "two runs and the start that they share"


def test_the_identity_in_each_precision_is_that_of_the_config_in_it() -> None:
    config = resolve("digits", {"compute": {"dtype": "bf16"}})
    assert list(identities(config)) == ["bf16", "fp32"]
    for dtype, name in identities(config).items():
        assert name == identity(replace(config, compute=replace(config.compute, dtype=dtype)))
