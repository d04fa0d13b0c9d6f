"""Names of methods: aliases, ``parent+addon``, bundles, refusals; parameters as each fidelity reads them."""

from __future__ import annotations

from typing import Any

import pytest

from proxyfl.core.errors import ConfigError, MethodError
from proxyfl.methods import create, find, recipes, registry, resolve
from proxyfl.methods.base import Addon, Method
from proxyfl.methods.fedavg import FedAvg, FedAvgSL
from proxyfl.methods.fixmatch import FixMatch
from proxyfl.methods.proxyfl import ProxyFL
from proxyfl.methods.registry import Recipe


@pytest.fixture
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is registered in a test is forgotten after it."""
    for name in ("_recipes", "_aliases", "_addons"):
        monkeypatch.setattr(registry, name, dict(getattr(registry, name)))


def test_canonical_names() -> None:
    names = [recipe.name for recipe in recipes()]
    assert {
        "fedavg", "fedavg-sl", "fedprox", "fixmatch-lpl", "fixmatch-gpl", "gpl-all", "lpl-all",
        "fedprox+fixmatch", "proxyfl", "gpt-only", "icpl-only",
    } <= set(names)  # fmt: skip
    assert len(names) == len(set(names))
    assert all(recipe.summary for recipe in recipes())


@pytest.mark.usefixtures("own_registry")
def test_a_class_is_registered_by_its_name() -> None:
    @registry.register
    class Bold(FixMatch):
        """Trusts everything.

        Or nearly so.
        """

        name = "bold"

    assert (find("bold").summary, find("bold").method) == ("Trusts everything.", Bold)
    assert isinstance(create("bold+gpt", {}), Bold)
    with pytest.raises(MethodError, match="'fedavg' is taken"):
        registry.register(FedAvg)


@pytest.mark.parametrize("given", ["mine", Method, object])
def test_what_is_no_method_is_answered_with_how_one_is_registered(given: Any) -> None:
    with pytest.raises(MethodError, match=r"register_method\(Recipe\("):
        registry.register(given)


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("fixmatch", "fixmatch-lpl"),
        ("fixmatch+proxyfl", "proxyfl"),
        ("fixmatch-lpl+prox", "fedprox+fixmatch"),
        ("fixmatch+prox", "fedprox+fixmatch"),
        ("icpl-prior", "icpl-only"),
        ("fedavg-full", "fedavg-sl"),
    ],
)
def test_aliases(alias: str, name: str) -> None:
    assert find(alias).name == name
    assert resolve(alias, {})[0] == name
    assert alias in registry.aliases_of(name)


@pytest.mark.parametrize(
    ("given", "name", "cls", "addons"),
    [
        ("fedavg-sl+prox", "fedavg-sl+prox", FedAvgSL, ("prox",)),
        ("fixmatch-gpl+gpt", "fixmatch-gpl+gpt", FixMatch, ("gpt",)),
        ("fixmatch-gpl+icpl+gpt", "fixmatch-gpl+icpl+gpt", FixMatch, ("icpl", "gpt")),
        ("fixmatch-gpl+gpt+icpl", "fixmatch-gpl+gpt+icpl", FixMatch, ("gpt", "icpl")),
        ("fixmatch-gpl+proxyfl", "fixmatch-gpl+proxyfl", FixMatch, ("icpl", "gpt")),
        ("fixmatch+gpt", "fixmatch-lpl+gpt", FixMatch, ("gpt",)),
        ("proxyfl+prox", "proxyfl+prox", ProxyFL, ("icpl", "gpt", "prox")),
        ("icpl-top1+gpt", "icpl-top1+gpt", ProxyFL, ("icpl", "gpt")),
        ("fixmatch-gpl+prior+icpl", "fixmatch-gpl+prior+icpl", FixMatch, ("prior", "icpl")),
        # names with a plus of their own can be added to as well
        ("fedprox+fixmatch", "fedprox+fixmatch", FixMatch, ("prox",)),
        ("fedprox+fixmatch+gpt", "fedprox+fixmatch+gpt", FixMatch, ("prox", "gpt")),
        ("fixmatch+prox+proxyfl", "fedprox+fixmatch+proxyfl", FixMatch, ("prox", "icpl", "gpt")),
        ("fixmatch+proxyfl+prox", "proxyfl+prox", ProxyFL, ("icpl", "gpt", "prox")),
        # what is there already is not there twice, and the name says so
        ("proxyfl+gpt", "proxyfl", ProxyFL, ("icpl", "gpt")),
        ("proxyfl+proxyfl", "proxyfl", ProxyFL, ("icpl", "gpt")),
        ("fedprox+prox", "fedprox", FedAvg, ("prox",)),
        ("fixmatch-gpl+gpt+gpt", "fixmatch-gpl+gpt", FixMatch, ("gpt",)),
        ("proxyfl+prior", "proxyfl", ProxyFL, ("icpl", "gpt")),
        # what is exactly a method with a name of its own has that name
        ("fedavg+prox", "fedprox", FedAvg, ("prox",)),
        ("fedavg+prox+gpt", "fedavg+prox+gpt", FedAvg, ("prox", "gpt")),
        ("gpt-only+icpl", "proxyfl", ProxyFL, ("icpl", "gpt")),
        ("icpl-only+gpt", "proxyfl", ProxyFL, ("icpl", "gpt")),
        ("icpl-prior+proxyfl", "proxyfl", ProxyFL, ("icpl", "gpt")),
        ("fixmatch-gpl+proto", "proto", FixMatch, ("proto",)),
        # FixMatch's own loss and local teacher, with ProxyFL's add-ons: not ProxyFL, as fixmatch+proxyfl is
        ("fixmatch-lpl+proxyfl", "fixmatch-lpl+proxyfl", FixMatch, ("icpl", "gpt")),
        ("fixmatch-lpl+proto", "fixmatch-lpl+proto", FixMatch, ("proto",)),
    ],
)
def test_grammar(given: str, name: str, cls: type[Method], addons: tuple[str, ...]) -> None:
    recipe = find(given)
    assert (recipe.name, recipe.method, recipe.addons) == (name, cls, addons)
    assert find(recipe.name) == recipe


def test_what_an_addon_needs_is_attached_before_it() -> None:
    method = create("fixmatch-gpl+icpl")
    assert [addon.name for addon in method.addons] == ["prior", "icpl"]
    assert [part.name for part in method.parts] == ["fixmatch", "prior", "icpl"]
    assert method.needs_heads
    assert method.all_wants == {"x", "u_weak", "u_strong", "teacher_x"}
    assert not create("fixmatch-gpl+gpt").needs_heads


@pytest.mark.parametrize("addon", ["gpt", "icpl", "proxyfl", "prox", "prior"])
def test_every_addon_parses_for_every_method(addon: str) -> None:
    for recipe in recipes():
        found = find(f"{recipe.name}+{addon}")
        assert set(registry.BUNDLES.get(addon, (addon,))) <= set(resolve(found.name, {})[1])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("proxfl", "unknown method 'proxfl'; did you mean 'proxyfl'?"),
        ("fixmatch-lgl+gpt", "unknown method 'fixmatch-lgl+gpt'; did you mean 'fixmatch-lpl'?"),
        ("fedavg+gtp", "unknown add-on '+gtp' in 'fedavg+gtp'; did you mean 'gpt'?"),
        ("fedavg+proxifl", "unknown add-on '+proxifl' in 'fedavg+proxifl'; did you mean 'proxyfl'?"),
        (
            "fedavg+",
            "unknown add-on '+' in 'fedavg+'; known: freematch, gpt, icpl, prior, proto, prox, "
            "proxyfl, softmatch",
        ),
    ],
)
def test_unknown_names(name: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        find(name)
    assert str(caught.value) == message


def test_parameters_are_checked() -> None:
    for parameters, message in (
        ({"tua": 0.5}, "unknown setting 'method.tua'; did you mean 'method.tau'?"),
        ({"tau": 1.5}, "method.tau = 1.5 is above 1"),
        (
            {"mask": "locl"},
            "method.mask = 'locl' is not one of local, global, either, all; did you mean 'local'?",
        ),
        ({"icpl": {"weight": -1}}, "method.icpl.weight = -1.0 is below 0"),
        ({"prior": {"ema": 2}}, "method.prior.ema = 2.0 is above 1"),
        ({"prox": {"weight": 1}}, "'proxyfl' has no add-on 'prox'; attached: prior, icpl, gpt"),
    ):
        with pytest.raises(ConfigError) as caught:
            resolve("proxyfl", parameters)
        assert str(caught.value) == message
    with pytest.raises(ConfigError, match="'fedavg' has no add-on 'gpt'; attached: none"):
        resolve("fedavg", {"gpt": {"epochs": 3}})


def test_suggestions_yield_to_what_is_given_and_vanish_where_they_do_not_fit() -> None:
    lenient = {"tau": 0.5, "weight": 2.0, "gpt": {"epochs": 7}, "nonsense": 3}
    _, tree = resolve("proxyfl", {"gpt": {"lr": 1.0}}, lenient=lenient)
    assert (tree["tau"], tree["weight"], tree["gpt"]["epochs"], tree["gpt"]["lr"]) == (0.5, 2.0, 7, 1.0)
    _, tree = resolve("fedavg", {"tau": 0.6}, lenient=lenient)
    assert tree == {"tau": 0.6, "strict": False, "steps": "matched"}


METHOD: dict[str, Any] = {
    "tau": 0.95, "strict": False, "teacher": "global", "mask": "either", "weight": 1.0, "over": "batch",
    "teacher_mode": "train",
}  # fmt: skip
PRIOR: dict[str, Any] = {"ema": 0.99, "pooling": "counts", "labelled": "true", "fixed": False}
ICPL: dict[str, Any] = {
    "weight": 1.0, "project": True, "keep_heads": False, "normalise": True, "label_set": "teacher",
    "scores": "global", "views": "both", "reduction": "anchors", "negatives": "positive", "sets": "prior",
    "train_proxies": True,
}  # fmt: skip
GPT: dict[str, Any] = {"epochs": 100, "lr": 0.005, "batch": 4, "margin": True, "anchor": "local"}
CODE = METHOD | {"prior": PRIOR, "icpl": ICPL, "gpt": GPT}
PAPER = (
    METHOD
    | {"mask": "global", "strict": True, "over": "selected"}
    | {"prior": PRIOR | {"ema": 0.0, "pooling": "clients", "labelled": "predicted"}}
    | {
        "icpl": ICPL
        | {
            "project": False, "label_set": "truth", "scores": "local", "views": "weak", "reduction": "hc+lc",
            "negatives": "all",
        },
        "gpt": GPT | {"batch": 0, "margin": False, "anchor": "global"},
    }
)  # fmt: skip


@pytest.mark.parametrize(("fidelity", "expected"), [("clean", CODE), ("code", CODE), ("paper", PAPER)])
def test_proxyfl_as_each_fidelity_reads_it(fidelity: str, expected: dict[str, Any]) -> None:
    assert resolve("proxyfl", {}, fidelity) == ("proxyfl", expected)


def test_ablations_use_proxyfls_own_mask() -> None:
    for name in ("gpt-only", "icpl-only"):
        assert resolve(name, {})[1]["mask"] == "either"
        assert resolve(name, {}, "paper")[1]["mask"] == "global"
    assert "gpt" not in resolve("icpl-only", {})[1]
    assert "icpl" not in resolve("gpt-only", {})[1]


@pytest.mark.parametrize(
    ("name", "teacher", "mask"),
    [
        ("fixmatch-lpl", "local", "local"),
        ("fixmatch-gpl", "global", "global"),
        ("lpl-all", "local", "all"),
        ("gpl-all", "global", "all"),
        ("fedprox+fixmatch", "local", "local"),
    ],
)
def test_the_fixmatch_family(name: str, teacher: str, mask: str) -> None:
    _, tree = resolve(name, {})
    assert (tree["teacher"], tree["mask"], tree["tau"], tree["weight"]) == (teacher, mask, 0.95, 1.0)
    assert tree["strict"] is False


def test_the_proximal_weight() -> None:
    assert resolve("fedprox", {})[1]["prox"] == {"weight": 0.001}


def test_a_created_method_has_the_parameters_given() -> None:
    method = create("proxyfl", {"tau": 0.5, "icpl": {"views": "weak", "project": False}})
    assert method.parameters.tau == 0.5
    icpl = next(addon for addon in method.addons if addon.name == "icpl")
    assert icpl.parameters.views == "weak"
    assert not method.needs_heads


def test_resolved_parameters_resolve_to_themselves() -> None:
    for recipe in recipes():
        for fidelity in ("clean", "code", "paper"):
            name, tree = resolve(recipe.name, {}, fidelity)
            assert resolve(name, tree, fidelity) == (name, tree)


def test_an_oracle_refuses_what_needs_unlabelled_images() -> None:
    for addon in ("icpl", "prior", "proxyfl"):
        message = rf"fedavg-sl cannot carry \+{addon}: it has no unlabelled images"
        with pytest.raises(MethodError, match=message):
            create(f"fedavg-sl+{addon}")
    assert create("fedavg-sl+gpt+prox").oracle


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("fedmatch+proxyfl", "proxyfl"),
        ("fedmatch+icpl", "icpl"),
        ("fedmatch+gpt+icpl", "gpt"),
        ("fedmatch+prior+proxyfl", "prior"),
        ("fedavg-sl+gpt+proxyfl", "proxyfl"),
    ],
)
def test_a_refusal_names_the_word_that_was_given(name: str, word: str) -> None:
    with pytest.raises(MethodError, match=rf"^\S+ cannot carry \+{word}: "):
        create(name)


def test_oracles_are_declared() -> None:
    declared = {recipe.name for recipe in recipes() if recipe.method.oracle}
    assert declared == {"fedavg-sl", "gpl-all-corrected"}


@pytest.mark.usefixtures("own_registry")
def test_registering_your_own() -> None:
    class Mine(FedAvg):
        name = "mine"

    registry.register(
        Recipe("mine", "a summary", Mine, ("prox",), {"steps": "labelled"}, {"tau": 0.5}), aliases=["my"]
    )
    assert resolve("my", {})[1] == {
        "tau": 0.95,
        "strict": False,
        "steps": "labelled",
        "prox": {"weight": 0.001},
    }
    assert resolve("my", {}, "paper")[1]["tau"] == 0.5
    assert isinstance(create("my+gpt"), Mine)
    for name, aliases in (("mine", []), ("my", []), ("other", ["fedavg"])):
        with pytest.raises(MethodError, match=r"the method name '.*' is taken"):
            registry.register(Recipe(name, "a summary", Mine), aliases=aliases)

    class Taken(Addon):
        name = "gpt"

    with pytest.raises(MethodError, match="the add-on name 'gpt' is taken"):
        registry.register_addon(Taken)


def test_what_was_registered_in_a_test_is_gone() -> None:
    with pytest.raises(ConfigError):
        find("mine")
