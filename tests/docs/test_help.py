"""``help(proxyfl)`` is a good first page: every public name says what it is, with an example that holds."""

from __future__ import annotations

import doctest
import inspect

import pytest

import proxyfl

DOORS = {name for name in proxyfl.__all__ if name.startswith("register_")}
"""Their examples are files, which :mod:`test_doors` runs."""


@pytest.mark.parametrize("name", ["proxyfl", *proxyfl.__all__])
def test_every_public_name_has_an_example_that_holds(name: str) -> None:
    thing = proxyfl if name == "proxyfl" else getattr(proxyfl, name)
    text = inspect.getdoc(thing) or ""
    assert text
    if name in DOORS:
        assert f"{name}(" in text or f"@{name}" in text
        return
    assert ">>> " in text
    found = doctest.DocTestParser().get_doctest(text, {}, name, None, 0)
    told: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(found, out=told.append)
    assert not told, "".join(told)
