from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import matplotlib
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.colors import to_rgb

from proxyfl.core.errors import ConfigError, ProxyFLError, RunError
from proxyfl.methods import registry
from proxyfl.report import plot_style


def a_figure():
    figure = plot_style.new_figure(3, 2)
    axes = figure.add_subplot()
    axes.plot([1, 2], [3, 4])
    plot_style.dress(axes, title="Growth", x="day", y="height (cm)", grid="y")
    return figure


def test_a_picture_is_saved_as_png_and_svg_whatever_the_suffix(tmp_path):
    for path in (tmp_path / "a", tmp_path / "a.png", tmp_path / "a.svg"):
        assert plot_style.save(a_figure(), path) == [tmp_path / "a.png", tmp_path / "a.svg"]
    assert plot_style.save_csv(tmp_path / "a.png", ("x",), [(1,)]) == tmp_path / "a.csv"


def test_dots_in_a_name_are_kept(tmp_path):
    png, svg = plot_style.save(a_figure(), tmp_path / "new" / "alpha-0.1")
    assert (png.name, svg.name) == ("alpha-0.1.png", "alpha-0.1.svg")


def test_the_same_picture_has_the_same_bits(tmp_path):
    first, second = (plot_style.save(a_figure(), tmp_path / name) for name in ("a", "b"))
    assert [file.read_bytes() for file in first] == [file.read_bytes() for file in second]


def test_nothing_but_the_files_is_left(tmp_path):
    plot_style.save(a_figure(), tmp_path / "a")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.png", "a.svg"]


def test_csv_is_plain(tmp_path):
    path = plot_style.save_csv(tmp_path / "a", ("name", "value"), [("x, y", 0.1), ("z", 3)])
    assert path.read_bytes() == b'name,value\n"x, y",0.1\nz,3\n'


def test_settings_of_the_users_own_plots_are_untouched(tmp_path):
    before = dict(matplotlib.rcParams)
    plot_style.save(a_figure(), tmp_path / "a")
    assert dict(matplotlib.rcParams) == before


@pytest.mark.slow
def test_no_backend_is_chosen(tmp_path):
    code = (
        "import sys; from proxyfl.report import plot_style; f = plot_style.new_figure(1, 1); f.add_subplot();"
        f"plot_style.save(f, {str(tmp_path / 'a')!r}); assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_matplotlib_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ProxyFLError, match=r"pip install 'proxyfl\[plot\]'"):
        plot_style.new_figure(1, 1)


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"writing .*file/a\.csv failed.*another folder"):
        plot_style.save_csv(tmp_path / "file" / "a", ("x",), [])


def test_a_path_without_a_name_is_refused():
    with pytest.raises(ConfigError, match="does not name a picture"):
        plot_style.save_csv(Path("/"), ("x",), [])


def own_methods():
    """The methods that come with the library, whatever other tests have registered."""
    recipes = registry.recipes()
    return [recipe.name for recipe in recipes if recipe.method.__module__.startswith("proxyfl.methods.")]


def test_every_method_has_a_look_of_its_own():
    found = plot_style.looks([*own_methods(), "mine", "yours", "fixmatch-gpl+icpl"])
    assert len({(look.colour, look.line) for look in found.values()}) == len(found)
    assert len({(look.line, look.marker) for look in found.values()}) == len(found)


def test_families_share_a_colour_and_compositions_take_it_over():
    family = plot_style.looks(["proxyfl", "gpt-only", "icpl-top5"]).values()
    assert {look.colour for look in family} == {plot_style.VERMILLION}
    found = plot_style.looks(["fixmatch-gpl+icpl", "fixmatch-gpl+gpt", "fedprox+fixmatch+gpt", "fedavg+a+b"])
    assert [look.colour for look in found.values()] == [
        plot_style.BLUE,
        plot_style.BLUE,
        plot_style.SKY,
        plot_style.BLACK,
    ]


def test_a_method_looks_the_same_whoever_is_beside_it():
    assert (
        plot_style.looks(["proxyfl"])["proxyfl"] == plot_style.looks(["mine", "fedavg", "proxyfl"])["proxyfl"]
    )


@settings(deadline=None, max_examples=20)
@given(st.lists(st.text("abc+", min_size=1), max_size=40, unique=True))
def test_any_methods_drawn_together_have_different_looks(names):
    known = own_methods()
    assert len(set(plot_style.looks([*names, *known]).values())) == len({*names, *known})


def test_a_look_that_is_taken_is_not_given_twice(monkeypatch):
    for name in ("_recipes", "_shown"):
        monkeypatch.setattr(registry, name, dict(getattr(registry, name)))
    mine = dataclasses.replace(registry.find("fedavg"), name="mine")
    registry.register(mine, registry.Shown("mine", 1, "black", "solid", "o"))
    assert plot_style.looks(["mine"])["mine"] not in plot_style.own_looks().values()
    assert plot_style.looks(["mine", "fedavg"])["fedavg"] == plot_style.Look(plot_style.BLACK, "-", "o")


def test_looks_and_ranks_of_the_methods_of_the_paper():
    found = plot_style.looks(["proxyfl", "icpl-uniform", "sage"])
    assert list(found.values()) == [
        plot_style.Look("#D55E00", "-", "*", 2.6, 11),
        plot_style.Look("#D55E00", (4, (8.0, 2.2)), ">"),
        plot_style.Look("#009E73", "-", "h"),
    ]
    first = ("fedavg", "fixmatch-lpl", "flexmatch", "fixmatch-gpl", "sage", "feddb", "proto", "proxyfl")
    ranks = [registry.shown(name).rank for name in first]
    assert ranks == sorted(set(ranks))


def test_there_are_looks_for_any_number_of_methods():
    assert len(plot_style.looks(f"method{number}" for number in range(100))) == 100


def test_lines_stand_out_from_white():
    for look in (*plot_style.own_looks().values(), *plot_style.looks("abcdefgh").values()):
        red, green, blue = to_rgb(look.colour)
        assert 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.72
