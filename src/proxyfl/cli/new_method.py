"""``proxyfl new-method``: a method of your own to start from: its file, its test and its page.

In a checkout of proxyfl they go where the other methods are; in any other folder they are a plug-in. What is
written is complete: it trains, and its test passes before the first line of it is changed.
"""

from __future__ import annotations

import ast
import importlib.util
import keyword
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from proxyfl.cli.common import command, examples
from proxyfl.cli.method_template import Draft, module_name
from proxyfl.core.errors import ConfigError

if TYPE_CHECKING:
    from proxyfl.methods.registry import Recipe

EXAMPLES = examples(
    "proxyfl new-method my-method",
    "proxyfl new-method my-method --parent fixmatch-gpl --into experiments",
)
NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")
LONGEST_NAME = 40


def new_method(
    name: Annotated[str, typer.Argument(metavar="NAME", help="As in my-method.", show_default=False)],
    into: Annotated[
        Path, typer.Option("--into", metavar="DIR", help="A checkout of proxyfl, or another folder.")
    ] = Path(),
    parent: Annotated[
        str, typer.Option("--parent", metavar="METHOD", help="The method to start from.")
    ] = "fixmatch-lpl",
) -> None:
    """Write a method to start from: its file, its test and its page. It can be trained unchanged.

    In a checkout of proxyfl it joins the methods there; elsewhere it is a plug-in.
    """
    _check_name(name)
    place = Place.at(into)
    files = place.files(name)
    for file in files:
        if file.exists():
            raise ConfigError(f"{file} exists; choose another name. Nothing was written")
    _check_free(name, place)
    draft = Draft(name, _parent(parent), place.checkout)
    _write(dict(zip(files, (draft.method(), draft.test(), draft.page()), strict=True)))
    place.fill(files[-1])
    for file in files:
        typer.echo(f"wrote {file}")
    typer.echo("\nnext")
    for line in place.next_commands(name):
        typer.echo(f"  {line}")


@dataclass(frozen=True)
class Place:
    """Where the files go: a checkout of proxyfl, or a folder in which they are a plug-in."""

    folder: Path
    checkout: bool

    @classmethod
    def at(cls, folder: Path) -> Place:
        if not folder.is_dir():
            raise ConfigError(f"{folder} is not a folder; make it first, or name another with --into")
        found = cls(folder, checkout=True)
        is_checkout = found.package.is_file() and (folder / "pyproject.toml").is_file()
        return found if is_checkout else cls(folder, checkout=False)

    @property
    def package(self) -> Path:
        return self.folder / "src" / "proxyfl" / "methods" / "__init__.py"

    def fill(self, page: Path) -> None:
        """The tables of a page, by the checkout's own tool, which finds the new method in the source."""
        tool, source = self.folder / "tools" / "method_pages.py", self.folder / "src"
        if self.checkout and tool.is_file():
            environment = {**os.environ, "PYTHONPATH": str(source)}
            subprocess.run([sys.executable, "-B", str(tool), str(page)], env=environment, check=True)

    def files(self, name: str) -> tuple[Path, Path, Path]:
        """The method, its test and its page."""
        method, test, page = f"{module_name(name)}.py", f"test_{module_name(name)}.py", f"{name}.md"
        if not self.checkout:
            return self.folder / method, self.folder / test, self.folder / page
        tests, docs = self.folder / "tests" / "methods", self.folder / "docs" / "methods"
        return self.package.parent / method, tests / test, docs / page

    def next_commands(self, name: str) -> list[str]:
        """Test it, train it, and complete or see its page."""
        method, test, _ = self.files(name)
        if self.checkout:
            wanted = " or ".join(dict.fromkeys([module_name(name), name]))
            return [
                shlex.join(["pytest", str(test.parent), "-k", wanted]),
                command("run", "digits", "--method", name),
                shlex.join(["python", str(self.folder / "tools" / "refresh.py")]),
            ]
        return [
            shlex.join(["pytest", str(test)]),
            command("--plugin", method, "run", "digits", "--method", name),
            command("--plugin", method, "methods", "show", name),
        ]


def _check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"'{name}' cannot name a method; use lower-case letters, digits and single - "
            "or _, as in my-method"
        )
    if len(name) > LONGEST_NAME:
        raise ConfigError(f"'{name}' is longer than {LONGEST_NAME} letters; choose a shorter name")
    if keyword.iskeyword(name):
        raise ConfigError(f"'{name}' is a Python keyword; choose another name")


def _check_free(name: str, place: Place) -> None:
    """No method, add-on or module has this name, nor one that differs in hyphens only."""
    from proxyfl.methods import registry

    methods = [known for r in registry.recipes() for known in (r.name, *registry.aliases_of(r.name))]
    for kind, names in (("method", methods), ("add-on", [*registry.addons(), *registry.BUNDLES])):
        for known in names:
            if module_name(known) == module_name(name):
                raise ConfigError(f"'{name}' is taken: there is the {kind} '{known}'; choose another name")
    if place.checkout:
        _check_free_in_checkout(module_name(name), place)
        return
    spec = importlib.util.find_spec(module_name(name))
    if spec is not None and spec.origin is not None:
        raise ConfigError(f"'{name}' would hide the installed module '{spec.name}'; choose another name")


def _check_free_in_checkout(module: str, place: Place) -> None:
    tree = ast.parse(place.package.read_text(encoding="utf-8"))
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    if module in {alias.asname or alias.name for node in imports for alias in node.names}:
        raise ConfigError(f"'{module}' is taken: proxyfl.methods has one; choose another name")
    for other in (place.folder / "tests").rglob(f"test_{module}.py"):
        raise ConfigError(f"{other} exists, and names of test files are unique; choose another name")


def _parent(name: str) -> Recipe:
    """A method that asks how confident it is: the new one answers that differently."""
    from proxyfl.methods import registry

    found = registry.find(name)
    if not found.method.__module__.startswith("proxyfl."):
        raise ConfigError(f"--parent {name} comes from a plug-in; name one of proxyfl's own methods")
    if not can_be_parent(found):
        known = ", ".join(recipe.name for recipe in registry.recipes() if can_be_parent(recipe))
        raise ConfigError(f"--parent {name} does not choose images by confidence; these do: {known}")
    return found


def can_be_parent(recipe: Recipe) -> bool:
    """Whether a recipe's method is of FixMatch's family and chooses images by confidence itself, neither by
    an add-on nor by true labels.
    """
    from proxyfl.methods import registry
    from proxyfl.methods.base import Addon
    from proxyfl.methods.fixmatch import FixMatch

    _, parameters = registry.resolve(recipe.name, {})
    chooses = issubclass(recipe.method, FixMatch) and parameters.get("mask") != "all"
    weighed = any(registry.addons()[name].weigh is not Addon.weigh for name in recipe.addons)
    return chooses and not weighed and not recipe.method.oracle


def _write(files: Mapping[Path, str]) -> None:
    """All files or none: those made are removed again when one cannot be written."""
    made: list[Path] = []
    try:
        for path, text in files.items():
            with path.open("x", encoding="utf-8", newline="\n") as file:
                made.append(path)
                file.write(text)
    except BaseException as error:
        for undone in made:
            undone.unlink(missing_ok=True)
        if isinstance(error, OSError):
            reason = error.strerror or error
            raise ConfigError(f"{path} cannot be written: {reason}. Nothing was written") from error
        raise
