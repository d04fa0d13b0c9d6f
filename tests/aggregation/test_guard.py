"""The guard: what it refuses and in which words."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from proxyfl.aggregation.effort import Effort
from proxyfl.aggregation.guard import Guard
from proxyfl.aggregation.mean import WeightedMean
from proxyfl.core.errors import UpdateRefused
from proxyfl.core.flat import Flat
from proxyfl.core.state import Update

SENT = {"w": torch.zeros(2, 3), "steps": torch.tensor(0)}


MOST = {7: Effort(10, steps=4, epochs=2, visits=32), 8: Effort(5, steps=2, epochs=2, visits=16)}
"""What clients of 10 and of 5 images can do in two epochs."""


def guard(**options: Any) -> Guard:
    return Guard(4, SENT, MOST, **options)


def update(**changes: Any) -> Update:
    weights = {"w": torch.ones(2, 3), "steps": torch.tensor(3)}
    good = Update(4, 7, 10, weights, {"prior/counts": torch.ones(3)}, {"steps": 3.0})
    return dataclasses.replace(good, **changes)


def refusal(given: Update, **options: Any) -> str:
    with pytest.raises(UpdateRefused) as caught:
        guard(**options).check(given)
    return str(caught.value)


def test_a_good_update_passes() -> None:
    guard().check(update())
    guard().check(update(samples=1))
    guard(max_norm=2.5).check(update())


def test_weights_of_further_trainings_are_held_to_the_same() -> None:
    three = Guard(4, SENT, {7: dataclasses.replace(MOST[7], times=3)}, max_norm=3.0)
    three.check(update(again=(weights(), weights())))
    for again, reason in (
        ((weights(),), "has weights of 2 trainings, not 3"),
        ((weights(), {}), "tensors missing"),
        ((weights(), weights(w=torch.full((2, 3), math.nan))), "not finite"),
        ((weights(w=torch.full((2, 3), 9.0)), weights()), moved("22", "3")),
    ):
        three.seen.clear()
        with pytest.raises(UpdateRefused, match=re.escape(reason)):
            three.check(update(again=again))
    assert refusal(update(again=(weights(),))) == "has weights of 2 trainings, not 1"


def weights(**changes: Any) -> dict[str, Any]:
    return {**update().weights, **changes}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"w": torch.full((2, 3), math.nan)}, "'w' holds values that are not finite"),
        ({"steps": torch.tensor(-1)}, "'steps' holds negative values"),
        ({"w": torch.ones(3, 2)}, "'w' has shape (3, 2), not (2, 3)"),
        ({"w": torch.ones(2, 3).double()}, "'w' is torch.float64, not torch.float32"),
        ({"v": torch.ones(1)}, "tensors missing: [], unknown: ['v']"),
    ],
)
def test_weights_that_lie_in_long_tensors_are_held_to_the_same(changes: dict[str, Any], reason: str) -> None:
    guard().check(update(weights=Flat.of(weights())))
    assert refusal(update(weights=Flat.of(weights(**changes)))) == reason


def moved(length: str, limit: str) -> str:
    return f"moves the weights by {length}, more than {limit}"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"round": 3}, "belongs to round 3, not 4"),
        ({"client": 9}, "was not asked in this round"),
        ({"samples": 11}, "claims 11 images, registered 10"),
        ({"samples": 0}, "claims 0 images, registered 10"),
        ({"samples": -5}, "claims -5 images, registered 10"),
        ({"weights": {"w": torch.ones(2, 3)}}, "tensors missing: ['steps'], unknown: []"),
        ({"weights": weights(more=torch.ones(1))}, "tensors missing: [], unknown: ['more']"),
        ({"weights": weights(w=torch.ones(3, 2))}, "'w' has shape (3, 2), not (2, 3)"),
        ({"weights": weights(w=torch.ones(2, 3).double())}, "'w' is torch.float64, not torch.float32"),
        ({"weights": weights(steps=torch.tensor(3.0))}, "'steps' is torch.float32, not torch.int64"),
        ({"weights": weights(w=torch.full((2, 3), math.nan))}, "'w' holds values that are not finite"),
        ({"weights": weights(w=torch.full((2, 3), math.inf))}, "'w' holds values that are not finite"),
        (
            {"weights": weights(w=torch.tensor([[1.0, 9, 2], [3, math.nan, 4]]))},
            "'w' holds values that are not finite",
        ),
        ({"extras": {"a/b": torch.tensor([1.0, -math.inf])}}, "'a/b' holds values that are not finite"),
        ({"metrics": {"loss/x": math.nan}}, "its metrics are not finite"),
        # whole numbers are whole numbers: True is 1 and 4.0 is 4 for Python, but no client says so
        ({"round": 4.0}, "belongs to round 4.0, not 4"),
        ({"client": 7.0}, "was not asked in this round"),
        ({"client": [7]}, "was not asked in this round"),
        ({"samples": True}, "claims True images, registered 10"),
        ({"samples": 5.0}, "claims 5.0 images, registered 10"),
        ({"samples": 1e300}, "claims 1e+300 images, registered 10"),
        ({"samples": 10**5000}, "claims far too many images, registered 10"),
        ({"samples": math.nan}, "claims nan images, registered 10"),
        ({"samples": "10"}, "claims '10' images, registered 10"),
        ({"samples": None}, "claims None images, registered 10"),
        # names that are paths, or would move the cursor of whoever reads the log
        ({"weights": weights(**{"../../w": torch.ones(1)})}, "tensors missing: [], unknown: ['../../w']"),
        ({"weights": weights(**{"\x1b[2J": torch.ones(1)})}, "tensors missing: [], unknown: ['\\x1b[2J']"),
        ({"weights": {}}, "tensors missing: ['steps', 'w'], unknown: []"),
        ({"weights": {**weights(), 3: torch.ones(1)}}, "contains something that is not a named tensor"),
        ({"weights": None}, "contains something that is not a named tensor"),
        ({"weights": weights(w=[[1.0] * 3] * 2)}, "'w' is not a tensor"),
        ({"weights": weights(w=torch.ones(1).expand(2, 3))}, "'w' is not a plain array of real numbers"),
        ({"weights": weights(w=torch.ones(2, 3).cfloat())}, "'w' is not a plain array of real numbers"),
        ({"weights": weights(w=torch.ones(2, 3).bfloat16())}, "'w' is torch.bfloat16, not torch.float32"),
        ({"weights": weights(steps=torch.tensor(2**62))}, "'steps' holds values beyond 1e+15"),
        ({"weights": weights(steps=torch.tensor(-(2**63)))}, "'steps' holds values beyond 1e+15"),
        ({"weights": weights(steps=torch.tensor(-1))}, "'steps' holds negative values"),
        # finite, but the mean's square is not
        (
            {"weights": weights(w=torch.full((2, 3), 3.4e38))},
            moved("8.33e+38", "1e+06"),
        ),
        (
            {"weights": weights(w=torch.full((2, 3), -5e5))},
            moved("1.22e+06", "1e+06"),
        ),
        ({"extras": {"a/b": torch.tensor([3e38])}}, "'a/b' holds values beyond 1e+15"),
        ({"extras": {"a/b": torch.tensor([1j])}}, "'a/b' is not a plain array of real numbers"),
        ({"carry": {"w": torch.ones(3)}}, "'w' has shape (3,), not (2, 3)"),
        ({"carry": {"w": torch.full((2, 3), math.nan)}}, "'w' holds values that are not finite"),
        ({"metrics": {"loss/x": 1e21}}, "its metrics are implausible: loss/x is 1e+21"),
        ({"metrics": {"loss/x": 10**400}}, "its metrics are not finite"),
        ({"metrics": {"loss/x": True}}, "its metrics are not finite"),
        ({"metrics": {"loss/x": "1"}}, "its metrics are not finite"),
        ({"metrics": {"steps": -1.0}}, "its metrics count steps as -1.0"),
        ({"metrics": {"steps": 0.5}}, "its metrics count steps as 0.5"),
        ({"metrics": {"steps": 1e16}}, "its metrics are implausible: steps is 1e+16"),
        ({"metrics": {"accuracy": 1.0}}, "its metrics contain 'accuracy', which was not requested"),
        ({"metrics": {"loss/\n": 1.0}}, "its metrics contain 'loss/\\n', which was not requested"),
        (
            {"metrics": {"loss/" + "x" * 41: 1.0}},
            f"its metrics contain 'loss/{'x' * 41}', which was not requested",
        ),
        ({"metrics": {7: 1.0}}, "its metrics contain 7, which was not requested"),
        (
            {"metrics": {f"loss/{k}": 1.0 for k in range(65)}},
            "its metrics are not a table of at most 64 numbers",
        ),
        ({"metrics": [1.0]}, "its metrics are not a table of at most 64 numbers"),
        (
            {"metrics": {"pseudo/visits": 4.0, "pseudo/selected": 1.0}},
            "its metrics have pseudo/visits without ['excluded_images']",
        ),
        ({"seconds": math.nan}, "took nan seconds"),
        ({"seconds": -1.0}, "took -1.0 seconds"),
    ],
)
def test_refusals(changes: dict[str, Any], message: str) -> None:
    assert refusal(update(**changes)) == message
    assert len(message.splitlines()) == 1


def test_variances_stay_above_zero_unless_noise_moved_them() -> None:
    sent = {"norm.running_var": torch.tensor([1.0, 0.0]), "seen": torch.tensor([-1, 4])}

    def told(variances: list[float], seen: list[int], **options: Any) -> str:
        new = {"norm.running_var": torch.tensor(variances), "seen": torch.tensor(seen)}
        try:
            Guard(4, sent, MOST, **options).check(update(weights=new, extras={}))
        except UpdateRefused as refused:
            return str(refused)
        return ""

    assert told([0.0, 0.5], [-1, 0]) == "", "a counter that was sent negative may stay so"
    assert told([-1e-30, 0.5], [-1, 4]) == "'norm.running_var' holds negative values"
    assert told([0.0, 0.5], [-2, 4]) == "'seen' holds negative values"
    assert told([0.0, 0.5], [-1, -1], noised=True) == "'seen' holds negative values"
    assert told([-3.0, 0.5], [-1, 4], noised=True) == "", "the server puts those right after its sum"


def test_tensors_without_memory_of_their_own() -> None:
    for strange in (torch.ones(2, 3).to_sparse(), torch.ones(2, 3, device="meta")):
        assert refusal(update(weights=weights(w=strange))) == "'w' is not a plain array of real numbers"


def test_many_unknown_names_make_a_short_reason() -> None:
    strange = {f"{'n' * 500}{k}": torch.ones(1) for k in range(1000)}
    reason = refusal(update(weights=weights(**strange)))
    assert len(reason) < 600
    assert reason.endswith("…]")


@pytest.mark.parametrize(
    ("extras", "message"),
    [
        ({}, "'prior/counts' is missing"),
        ({"prior/counts": torch.ones(4)}, "'prior/counts' has shape (4,), not (3,)"),
        ({"prior/counts": torch.ones(3).double()}, "'prior/counts' is torch.float64, not torch.float32"),
        ({"prior/counts": torch.ones(3).long()}, "'prior/counts' is torch.int64, not torch.float32"),
        (
            {"prior/counts": torch.tensor([1.0, math.nan, 1.0])},
            "'prior/counts' holds values that are not finite",
        ),
        (
            {"prior/counts": torch.ones(3), "prior/more": torch.ones(1)},
            "sends 'prior/more', which was not requested",
        ),
        (
            {"prior/counts": torch.ones(3), "../prior/x": torch.ones(1)},
            "sends '../prior/x', which was not requested",
        ),
    ],
)
def test_extras_of_another_form(extras: dict[str, Any], message: str) -> None:
    form = {"prior/counts": (3,)}
    guard(extras=form, parts={"prior", "mine"}).check(update())
    assert refusal(update(extras=extras), extras=form, parts={"prior", "mine"}) == message


def test_a_part_that_declares_no_form_may_send_any() -> None:
    given = update(extras={"mine/table": torch.ones(5, dtype=torch.int32)})
    guard(parts={"mine"}).check(given)
    assert refusal(given, parts={"other"}) == "sends 'mine/table', which was not requested"


def test_momentum_is_handed_on_only_where_the_run_does_so() -> None:
    given = update(carry={"w": torch.ones(2, 3)})
    guard().check(given)
    message = "passes something to the next client, which this run does not do"
    assert refusal(given, carries=False) == message


def test_a_client_cannot_answer_for_another() -> None:
    strict = guard()
    with pytest.raises(UpdateRefused, match="says it is client 7"):
        strict.check(update(), asked=8)
    strict.check(update(), asked=7)  # whose own answer is not thereby one too many


anything = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.integers(), max_size=2),
)
tensors = st.dictionaries(
    st.sampled_from(["w", "steps", "a/b", "../w", ""]),
    st.one_of(
        anything,
        st.builds(
            lambda shape, kind, value: torch.full(shape, value).to(kind),
            st.sampled_from([(2, 3), (), (3,), (0,)]),
            st.sampled_from([torch.float32, torch.int64, torch.bool, torch.complex64, torch.float64]),
            st.floats(width=32),
        ),
    ),
)


@settings(max_examples=150, deadline=None)
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "round": anything,
            "client": anything,
            "samples": anything,
            "weights": st.one_of(anything, tensors),
            "extras": st.one_of(anything, tensors),
            "carry": st.one_of(anything, tensors),
            "metrics": st.one_of(anything, st.dictionaries(st.text(max_size=8), anything)),
            "seconds": anything,
        },
    )
)
def test_whatever_comes_is_refused_or_can_be_averaged(changes: dict[str, Any]) -> None:
    given = update(**changes)
    try:
        guard().check(given)
    except UpdateRefused:
        return
    mean = WeightedMean(update().weights)
    mean.add(given.joined(mean.layout), given.samples)
    mean.add(update().joined(mean.layout), 10)
    assert all(bool(torch.isfinite(value).all()) for value in mean.mean().values())


def test_an_answer_counts_once() -> None:
    strict = guard()
    strict.check(update())
    with pytest.raises(UpdateRefused, match="answered twice"):
        strict.check(update())
    strict.check(update(client=8, samples=5))


def test_a_refused_update_may_be_sent_again() -> None:
    strict = guard()
    with pytest.raises(UpdateRefused):
        strict.check(update(samples=99))
    strict.check(update())


def test_too_long_a_change() -> None:
    # six ones: sqrt(6) = 2.449
    assert refusal(update(), max_norm=2.4) == "moves the weights by 2.45, more than 2.4"


def test_class_counts_are_bounded_by_the_visits_of_an_epoch() -> None:
    form: Any = {"extras": {"prior/counts": (3,)}, "counts": ("prior/counts",)}

    def told(*counts: float) -> str:
        try:
            guard(**form).check(update(extras={"prior/counts": torch.tensor(counts)}))
        except UpdateRefused as refused:
            return str(refused)
        return ""

    assert told(32.0, 0.0, 0.0) == told(0.0, 0.0, 0.0) == told(10.0, 11.0, 11.0) == ""
    wanted = "its class counts add up to {}; with 10 images it can have seen at most 32"
    assert told(33.0, 0.0, 0.0) == wanted.format("33")
    assert told(20.0, 0.0, 20.0) == wanted.format("40")
    assert told(9e14, 0.0, 0.0) == wanted.format("9e+14")
    assert told(40.0, -39.0, 0.0) == "its class counts are negative"
    guard(extras=form["extras"]).check(update(extras={"prior/counts": torch.full((3,), 9e14)}))


@pytest.mark.parametrize(
    ("name", "largest"),
    [
        ("loss/supervised", 3e6),  # 3 steps
        ("steps", 40),  # ten times 4
        ("count/unsure", 100 * (2 * 32 + 7)),  # two epochs of 32 visits, 7 numbers among the weights
        ("pseudo/selected", 320),
        ("pseudo/set_size", 320 * 10),  # of 10 classes
        ("pseudo/excluded_images", 10),
    ],
)
def test_what_is_written_down_is_bounded_by_what_the_client_registered(name: str, largest: float) -> None:
    def given(value: float) -> Update:
        return update(metrics={"steps": 3.0, name: float(value)})

    guard(classes=10).check(given(largest))
    more = largest * 1.1 if name.startswith("loss/") else largest + 1
    assert refusal(given(more), classes=10) == f"its metrics are implausible: {name} is {float(more)!r}"
    sign = "implausible: loss/supervised is" if name.startswith("loss/") else f"count {name} as"
    assert (
        refusal(given(-more), classes=10) == f"its metrics {'are ' * (name[0] == 'l')}{sign} {-float(more)!r}"
    )


def test_a_loss_may_grow_with_the_squared_length_of_the_weights() -> None:
    sent = {"w": torch.full((2, 3), 1e2), "steps": torch.tensor(0)}  # six times a hundred: 6e4 squared
    large = Guard(4, sent, MOST)
    large.check(update(metrics={"steps": 1.0, "loss/penalty": 5.9e7}))
    with pytest.raises(UpdateRefused, match="loss/penalty is 61000000"):
        Guard(4, sent, MOST).check(update(metrics={"steps": 1.0, "loss/penalty": 6.1e7}))
    assert refusal(update(metrics={"loss/a": 1.1e6})) == "its metrics are implausible: loss/a is 1100000.0"
