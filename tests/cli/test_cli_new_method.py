"""proxyfl new-method: what it writes trains, is clean and keeps the contract before anyone edits it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import proxyfl
from calling import TINY
from proxyfl.cli.new_method import can_be_parent
from proxyfl.methods import registry

ROOT = Path(__file__).parents[2]
SOURCE = Path(proxyfl.__file__).parents[1]
"""Where the package under test was imported from: child processes must import the same one."""


LONGEST = "a-name-of-just-40-letters-is-the-longest"
PACKAGE_FILE = "src/proxyfl/methods/__init__.py"


@pytest.fixture
def own_names(monkeypatch):
    """What a plug-in registers is forgotten after the test."""
    monkeypatch.setattr(registry, "_recipes", dict(registry._recipes))


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with the source and its tools, no tests and no pages."""
    for name in ("src", "tools"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in ("tests/methods", "tests/federation", "docs/methods"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    return tmp_path


def contents(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in sorted(folder.rglob("*")) if p.is_file()}


def python(*words: object, cwd: Path, **environment: str) -> str:
    line = [sys.executable, "-m", *map(str, words)]
    done = subprocess.run(line, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def assert_tidy(folder: Path, lines: int) -> None:
    """Clean by the project's rules, with lines of this length."""
    rules = re.search(r"select = \[(.*?)\]", (ROOT / "pyproject.toml").read_text())[1]
    ignored = re.search(r"ignore = \[(.*?)\]", (ROOT / "pyproject.toml").read_text())[1]
    chosen = [re.sub(r"[\" ]", "", text) for text in (rules, ignored)]
    options = ["--isolated", "--no-cache", "--line-length", lines]
    python("ruff", "check", *options, "--select", chosen[0], "--ignore", chosen[1], ".", cwd=folder)
    python("ruff", "format", "--check", *options, ".", cwd=folder)


def assert_tidy_by_its_own_rules(folder: Path, *files: str) -> None:
    python("ruff", "check", "--no-cache", *files, cwd=folder)
    python("ruff", "format", "--no-cache", "--check", *files, cwd=folder)


def test_a_plugin_of_three_files_and_the_next_three_commands(call, tmp_path):
    result = call("new-method", "my-method")
    assert result.exit_code == 0
    assert result.stdout == (
        "wrote my_method.py\n"
        "wrote test_my_method.py\n"
        "wrote my-method.md\n"
        "\n"
        "next\n"
        "  pytest test_my_method.py\n"
        "  proxyfl --plugin my_method.py run digits --method my-method\n"
        "  proxyfl --plugin my_method.py methods show my-method\n"
    )
    assert sorted(contents(tmp_path)) == ["my-method.md", "my_method.py", "test_my_method.py"]
    method = (tmp_path / "my_method.py").read_text()
    places = [method.index(f"\n{head}") for head in ("Citation: ", "Idea: ", "Equations::", "Deviations: ")]
    assert places == sorted(places)


def test_the_plugin_trains_alone_and_with_addons_and_shows_its_parameter(call, own_names):
    Path("our work").mkdir()
    told = call("new-method", "swift_lead", "--into", "our work", "--parent", "fixmatch-gpl").stdout
    assert "  proxyfl --plugin 'our work/swift_lead.py' run digits --method swift_lead\n" in told
    plugin = ["--plugin", "our work/swift_lead.py"]
    for method in ("swift_lead", "swift_lead+proxyfl"):
        result = call(*plugin, "run", "digits", "--method", method, *TINY, "--name", method)
        assert result.exit_code == 0, result.stderr
    shown = call(*plugin, "methods", "show", "swift_lead").stdout
    rows = {line.split()[0]: line.split() for line in shown.splitlines() if line.strip()}
    assert rows["lead"][1] == "0.8"
    assert rows["teacher"][1] == rows["mask"][1] == "global"  # as in the parent


@pytest.mark.slow
def test_its_own_test_passes_unedited(call, tmp_path):
    call("new-method", "my-method")
    plugins = {"PROXYFL_PLUGINS": "my_method.py"}
    told = python("pytest", "-p", "no:cacheprovider", "test_my_method.py", cwd=tmp_path, **plugins)
    assert "3 passed" in told


def test_what_is_written_is_tidy_whatever_the_name_and_the_parent(call, tmp_path):
    parents = [recipe.name for recipe in registry.recipes() if can_be_parent(recipe)]
    assert {"fixmatch-lpl", "fixmatch-gpl", "fedprox+fixmatch", "proxyfl"} <= set(parents)
    assert not {"fedavg", "fedavg-sl", "lpl-all", "gpl-all"} & set(parents)
    for number, parent in enumerate([*parents, "fixmatch+gpt+prox"]):
        assert call("new-method", f"other-{number}", "--parent", parent).exit_code == 0
    # Names that could meet others in the file: an import, the parent's class.
    for name, parent in ((LONGEST, "proxyfl"), ("tensor", "proxyfl"), ("fix-match", "fixmatch-gpl")):
        assert call("new-method", name, "--parent", parent).exit_code == 0
    assert "class FixMatchMethod(FixMatch):" in (tmp_path / "fix_match.py").read_text()
    assert_tidy(tmp_path, lines=110)
    for name in (LONGEST.replace("-", "_"), f"test_{LONGEST.replace('-', '_')}"):
        (tmp_path / f"{name}.py").unlink()
    assert_tidy(tmp_path, lines=88)  # what a folder without settings gets


@pytest.mark.slow
def test_in_a_checkout_it_joins_the_methods_there(call, checkout):
    (checkout / "results").mkdir()
    rows = "method,seed,mean_last,last,best\nfixmatch-lpl,1,0.9,0.8,0.95\n"
    (checkout / "results" / "digits-learning.csv").write_text(rows)
    result = call("new-method", "swift-lead")
    assert result.exit_code == 0
    assert result.stdout == (
        "wrote src/proxyfl/methods/swift_lead.py\n"
        "wrote tests/methods/test_swift_lead.py\n"
        "wrote docs/methods/swift-lead.md\n"
        "\n"
        "next\n"
        "  pytest tests/methods -k 'swift_lead or swift-lead'\n"
        "  proxyfl run digits --method swift-lead\n"
        "  python tools/refresh.py\n"
    )
    found = contents(checkout)
    assert found[PACKAGE_FILE] == (ROOT / PACKAGE_FILE).read_text()
    assert "from proxyfl.methods.swift_lead import lead\n" in found["tests/methods/test_swift_lead.py"]
    page = found["docs/methods/swift-lead.md"]
    assert re.search(
        r"<!-- parameters swift-lead -->\n## Parameters\n(.*\n)+\| `lead` \| 0.8 \| ≥ 0, ≤ 1 \| .*\n<!-- /pa",
        page,
    )
    assert "\n<!-- results swift-lead fixmatch-lpl -->\nPreset `digits`" in page
    assert page.endswith("\n| `fixmatch-lpl` | 90.0 % | 80.0 % | 95.0 % | 1 |\n<!-- /results -->\n")
    assert_tidy_by_its_own_rules(checkout, "tests", "src/proxyfl/methods/swift_lead.py")


@pytest.mark.slow
def test_a_checkout_elsewhere_is_named_with_into(call, checkout, monkeypatch):
    (checkout / "src" / "inside").mkdir()
    monkeypatch.chdir(checkout / "src" / "inside")
    told = call("new-method", "one", "--into", "../..").stdout
    assert "wrote ../../src/proxyfl/methods/one.py\n" in told
    assert "  pytest ../../tests/methods -k one\n" in told
    # Any other folder is one for plug-ins, even inside a checkout.
    assert "wrote two.py\n" in call("new-method", "two").stdout


WRONG = "cannot name a method; use lower-case letters, digits and single - or _, as in my-method"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("../mine", f"'../mine' {WRONG}"),
        ("my/method", f"'my/method' {WRONG}"),
        ("my\\method", f"'my\\method' {WRONG}"),
        ("My-Method", f"'My-Method' {WRONG}"),
        ("my--method", f"'my--method' {WRONG}"),
        ("2fast", f"'2fast' {WRONG}"),
        ("mine.py", f"'mine.py' {WRONG}"),
        ("mine+gpt", f"'mine+gpt' {WRONG}"),
        ("mine\n", f"'mine ' {WRONG}"),
        ("", f"'' {WRONG}"),
        (f"{LONGEST}s", f"'{LONGEST}s' is longer than 40 letters; choose a shorter name"),
        ("lambda", "'lambda' is a Python keyword; choose another name"),
        ("fedavg", "'fedavg' is taken: there is the method 'fedavg'; choose another name"),
        ("fixmatch", "'fixmatch' is taken: there is the method 'fixmatch'; choose another name"),
        ("gpl_all", "'gpl_all' is taken: there is the method 'gpl-all'; choose another name"),
        ("prior", "'prior' is taken: there is the add-on 'prior'; choose another name"),
        ("json", "'json' would hide the installed module 'json'; choose another name"),
    ],
)
def test_names_that_cannot_be(call, tmp_path, name, message):
    result = call("new-method", "--", name)
    assert (result.exit_code, result.stderr) == (2, f"error: {message}\n")
    assert contents(tmp_path) == {}


def test_names_that_a_checkout_has(call, checkout):
    (checkout / "tests/federation/test_loop.py").touch()
    before = contents(checkout)
    for name, reason in (
        ("find", "'find' is taken: proxyfl.methods has one"),
        ("loop", "tests/federation/test_loop.py exists, and names of test files are unique"),
    ):
        result = call("new-method", name)
        assert (result.exit_code, result.stderr) == (2, f"error: {reason}; choose another name\n")
        assert contents(checkout) == before


@pytest.mark.slow
def test_a_module_of_the_package_hides_no_other(call, checkout):
    assert call("new-method", "json").exit_code == 0  # proxyfl.methods.json hides nothing


@pytest.mark.parametrize("existing", ["my_method.py", "test_my_method.py", "my-method.md"])
def test_nothing_is_overwritten(call, tmp_path, existing):
    Path(existing).write_text("precious")
    result = call("new-method", "my-method")
    message = f"error: {existing} exists; choose another name. Nothing was written\n"
    assert (result.exit_code, result.stderr) == (2, message)
    assert contents(tmp_path) == {existing: "precious"}


def test_three_files_or_none(call, checkout):
    (checkout / "docs/methods").rmdir()
    before = contents(checkout)
    result = call("new-method", "my-method")
    message = "docs/methods/my-method.md cannot be written: No such file or directory. Nothing was written"
    assert (result.exit_code, result.stderr) == (2, f"error: {message}\n")
    assert contents(checkout) == before
    result = call("new-method", "my-method", "--into", "no/folder")
    message = "no/folder is not a folder; make it first, or name another with --into"
    assert (result.exit_code, result.stderr) == (2, f"error: {message}\n")


def test_parents_that_cannot_be(call, tmp_path, own_names):
    for parent in ("fedavg", "gpl-all", "gpl-all-corrected"):
        result = call("new-method", "mine", "--parent", parent)
        assert result.exit_code == 2
        start = f"error: --parent {parent} does not choose images by confidence; these do: fixmatch-lpl, "
        assert result.stderr.startswith(start)
    result = call("new-method", "mine", "--parent", "fixmach")
    assert result.stderr == "error: unknown method 'fixmach'; did you mean 'fixmatch'?\n"
    assert contents(tmp_path) == {}
    call("new-method", "first")
    result = call("--plugin", "first.py", "new-method", "second", "--parent", "first")
    message = "error: --parent first comes from a plug-in; name one of proxyfl's own methods\n"
    assert (result.exit_code, result.stderr) == (2, message)
    assert not Path("second.py").exists()


def test_help_and_where_it_is_listed(call):
    told = call("--help").stdout
    assert "│ new-method " in told.partition("─ Methods, data, settings ─")[2]
    assert "proxyfl new-method my-method" in call("new-method", "--help").stdout.partition("Examples")[2]


def contract(name: str, *words: object, cwd: Path, **environment: str) -> int:
    """How many tests of the contract a method passes."""
    file = "tests/methods/test_contract.py"
    options = ["-p", "no:cacheprovider", "-k", name, "--timeout", "600"]
    told = python("pytest", *words, *options, file, cwd=cwd, **environment)
    assert "skipped" not in told
    return int(re.search(r"(\d+) passed", told)[1])


@pytest.fixture
def clone(tmp_path):
    """A copy of the whole checkout, but for what is made by running it."""
    made = shutil.ignore_patterns("__pycache__", ".*")
    for name in ("src", "tests", "docs", "results", "tools", "benchmarks"):
        shutil.copytree(ROOT / name, tmp_path / "clone" / name, ignore=made)
    for file in (file for file in ROOT.iterdir() if file.is_file()):
        shutil.copy(file, tmp_path / "clone")
    return tmp_path / "clone"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_in_a_clone_it_touches_no_other_file_and_leaves_the_tests_green(clone):
    source = {"PYTHONPATH": str(clone / "src")}
    before = {path: path.read_bytes() for path in clone.rglob("*") if path.is_file()}
    python("proxyfl", "new-method", "swift-lead", cwd=clone, PYTHONDONTWRITEBYTECODE="1", **source)
    method, test = "src/proxyfl/methods/swift_lead.py", "tests/methods/test_swift_lead.py"
    after = {path: path.read_bytes() for path in clone.rglob("*") if path.is_file()}
    new = {str(path.relative_to(clone)) for path in after.keys() - before.keys()}
    assert new == {method, test, "docs/methods/swift-lead.md"}
    assert {path: after[path] for path in before} == before
    assert "| `lead` | 0.8 | ≥ 0, ≤ 1 | lead over" in (clone / "docs/methods/swift-lead.md").read_text()
    assert_tidy_by_its_own_rules(clone, method, test)
    python("mypy", "--strict", method, cwd=clone)
    listing = ["tests/docs/test_pages.py", "tests/docs/test_docstrings.py", "tests/report/test_plot_style.py"]
    listing += [
        "tests/cli/test_cli_know.py",
        "tests/methods/test_registry.py",
        "tests/core/test_config_toml.py",
    ]
    options = ["-p", "no:cacheprovider", "--timeout", "600"]
    python("pytest", *options, test, *listing, "tests/test_source_is_safe.py", cwd=clone, **source)
    assert contract("swift-lead", cwd=clone, **source) >= 10


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_contract_holds_for_a_plugin(call, tmp_path):
    call("new-method", "swift-lead")
    path = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(SOURCE)])}
    assert contract("swift-lead", "-p", "swift_lead", cwd=ROOT, **path) >= 10


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_kind_of_parent_gives_a_method_that_passes_its_test(call, tmp_path):
    parents = {recipe.method: recipe.name for recipe in registry.recipes() if can_be_parent(recipe)}
    for number, parent in enumerate(parents.values()):
        assert call("new-method", f"child-{number}", "--parent", parent).exit_code == 0
    told = python("pytest", "-p", "no:cacheprovider", ".", cwd=tmp_path)
    assert f"{3 * len(parents)} passed" in told
    python("mypy", "--strict", *sorted(tmp_path.glob("*.py")), cwd=tmp_path)
