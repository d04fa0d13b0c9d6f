"""Every method and add-on says in its module whom it follows, by which equations, and where it deviates."""

from __future__ import annotations

import inspect
import re
import sys

import pytest

from proxyfl.methods import registry
from proxyfl.methods.base import Part

PARTS: list[type[Part]] = [*(recipe.method for recipe in registry.recipes()), *registry.addons().values()]
MODULES = sorted({part.__module__ for part in PARTS if part.__module__.startswith("proxyfl.methods.")})

CITATION = re.compile(r"^Citation: |\([A-Z][\w ]+?( et al\.)?, [A-Za-z]+ (19|20)\d\d\)", re.MULTILINE)
"""(Authors, venue year), or a paragraph of its own."""
EQUATIONS = re.compile(r"::\n\n(    .*(\n|$))*    .* (=|<-) ")
"""An indented block after two colons that defines something."""
DEVIATIONS = re.compile(r"\n\nDeviations: \S")
"""A paragraph of its own."""

by_module = pytest.mark.parametrize("name", MODULES)


@by_module
def test_the_docstring_has_a_citation_equations_and_deviations(name: str) -> None:
    text = inspect.getdoc(sys.modules[name]) or ""
    for pattern in (CITATION, EQUATIONS, DEVIATIONS):
        assert pattern.search(text), f"{name} lacks {pattern.pattern}"
    assert len([part for part in text.split("\n\n") if not part.startswith("    ")]) >= 3, "the idea"


@by_module
def test_a_method_is_at_most_200_lines_of_code(name: str) -> None:
    source = inspect.getsource(sys.modules[name])
    without = re.sub(r'"""(?:.|\n)*?"""', "", source)
    code = [line for line in without.splitlines() if line.strip() and not line.strip().startswith("#")]
    assert 20 <= len(code) <= 200
