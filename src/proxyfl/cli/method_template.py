"""What ``proxyfl new-method`` writes: a method, its test and its page, complete and ready to be changed."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from string import Template
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from proxyfl.methods.registry import Recipe

CODE, PROSE = 88, 110
"""Longest lines: with 88 the files suit a folder without settings for a formatter as well."""
LEAD, MEANING = 0.8, "lead over the second class that is trusted below tau; 1: none"

METHOD = Template('''\
"""$name: a class far ahead of the second is trusted below tau, too.

Citation: none yet; name the paper here (authors, venue, year).

$idea

Equations::

    lead_i = p_i(first) - p_i(second)                 of the two likeliest classes
    sure_i = [p_i(first) >= tau or lead_i >= lead]

Deviations: none yet; say here where this file differs from the paper and its release.
"""

from __future__ import annotations

from dataclasses import dataclass

$imports


@dataclass(frozen=True)
class ${cls}Parameters($parent_parameters):
    """Parameters of $name."""

    lead: float = setting(
        $lead,
        "$meaning",
        low=0,
        high=1,
    )


class $cls($parent_class):
${own_name}    Parameters = ${cls}Parameters

    def confident(self, probabilities: Tensor) -> Tensor:
        far_ahead = torch.ge(lead(probabilities), self.parameters.lead)
        return super().confident(probabilities) | far_ahead


def lead(probabilities: Tensor) -> Tensor:
    """How far the likeliest class of each row is ahead of the second."""
    best = probabilities.topk(2, dim=1).values
    return best[:, 0] - best[:, 1]


$registration
''')

TEST = Template('''\
"""$name: the lead in numbers, and two rounds in which it decides."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

$imports

NAME = "$name"
TINY: dict[str, Any] = {
    "rounds": 2,
    "clients": 4,
    "per_round": 2,
    "subset": 120,
    "train__epochs": 1,
    "train__batch": 8,
}
PROBABILITIES = torch.tensor([[0.7, 0.2, 0.1], [0.5, 0.5, 0.0], [0.9, 0.06, 0.04]])


def test_the_lead_in_numbers() -> None:
    torch.testing.assert_close(lead(PROBABILITIES), torch.tensor([0.5, 0.0, 0.84]))
    torch.testing.assert_close(lead(torch.tensor([[0.25, 0.75]])), torch.tensor([0.5]))


def test_a_class_far_ahead_is_trusted_below_tau() -> None:
    def trusted(lead: float) -> list[bool]:
        method = create(NAME, {"tau": 0.8, "lead": lead})
        return [bool(sure) for sure in method.confident(PROBABILITIES)]

    assert trusted(lead=0.4) == [True, False, True]
    assert trusted(lead=1.0) == [False, False, True]


def test_two_rounds_in_which_the_lead_decides(tmp_path: Path) -> None:
    def metrics(lead: float) -> list[dict[str, Any]]:
        settings = {**TINY, "method__tau": 1.0, "method__lead": lead}
        experiment = proxyfl.Experiment(NAME, "digits", **settings)
        return experiment.run(tmp_path / str(lead)).metrics

    nobody, everybody = metrics(lead=1.0), metrics(lead=0.0)
    assert len(nobody) == len(everybody) == 2
    assert all(math.isfinite(value) for value in everybody[-1]["losses"].values())
    assert nobody != everybody
''')

IDEA = Template("""\
$parent is confident about an image whose most likely class reaches $tau. With many classes the \
remaining probability may be spread so thinly that a lower value is convincing, too, so a class with a \
sufficient lead over the second is also accepted. Everything else is unchanged.""")

PAGE = Template("""\
# $name

Say in one sentence what the method is. Name: `$name`. Cite the paper: authors, *title*, venue and year.

## Idea

$idea

| equation | in the code |
|---|---|
| lead = p(first) − p(second) | `$module.py: lead` |
| confident = [p(first) ≥ τ or lead ≥ λ] | `$cls.confident` |

$parameters

## Good to know

- `lead = 1` is equivalent to `$parent`; with `lead = 0` every image is confident.
- The same rule applies wherever confidence is needed, for example in add-ons.

## Deviations

None yet. Describe where the code differs from the paper and from its released program.

## Run it

`$run`
$results""")


def module_name(name: str) -> str:
    return name.replace("-", "_")


@dataclass(frozen=True)
class Draft:
    """A method to be written: for a checkout of proxyfl, or as a plug-in."""

    name: str
    parent: Recipe
    checkout: bool

    @property
    def module(self) -> str:
        return module_name(self.name)

    @property
    def cls(self) -> str:
        """The name in capitals, unless the file has that name for something else."""
        cls = "".join(word.capitalize() for word in re.split("[-_]", self.name))
        method = self.parent.method
        taken = {cls, f"{cls}Parameters"} & {"Tensor", "Recipe", method.__name__, method.Parameters.__name__}
        return f"{cls}Method" if taken else cls

    def method(self) -> str:
        parent = self.parent.method
        # Tensors that a parent sends have its name in front, and it looks for them there.
        inherited = "    # The name stays the parent's, since it is in front of what is sent.\n"
        own_name = inherited if parent.sends else f'    name = "{self.name}"\n'
        return METHOD.substitute(
            self._names,
            idea=_filled(f"Idea: {IDEA.substitute(parent=self.parent.name, tau='tau')}", CODE),
            imports=self._method_imports(),
            parent_class=parent.__name__,
            parent_parameters=parent.Parameters.__name__,
            own_name=own_name,
            registration=self._registration(),
            lead=LEAD,
            meaning=MEANING,
        )

    def test(self) -> str:
        if self.checkout:
            ours = f"from proxyfl.methods import create\nfrom proxyfl.methods.{self.module} import lead"
            return TEST.substitute(self._names, imports=f"import torch\n\nimport proxyfl\n{ours}")
        theirs = "import proxyfl\nimport torch\nfrom proxyfl.methods import create"
        return TEST.substitute(self._names, imports=f"{theirs}\n\nfrom {self.module} import lead")

    def page(self) -> str:
        """In a checkout, its tables are left to ``tools/method_pages.py``."""
        call = "proxyfl" if self.checkout else f"proxyfl --plugin {self.module}.py"
        table = f"<!-- parameters {self.name} -->\n<!-- /parameters -->"
        results = f"\n<!-- results {self.name} {self.parent.name} -->\n<!-- /results -->\n"
        return PAGE.substitute(
            self._names,
            idea=_filled(IDEA.substitute(parent=f"`{self.parent.name}`", tau="τ"), PROSE),
            run=f"{call} run digits --method {self.name}",
            parameters=table if self.checkout else self._table(call),
            results=results if self.checkout else "",
        )

    @property
    def _names(self) -> dict[str, str]:
        return {"name": self.name, "module": self.module, "cls": self.cls, "parent": self.parent.name}

    def _method_imports(self) -> str:
        wanted = {"proxyfl.core.settings": {"setting"}, "proxyfl.methods.registry": {"Recipe", "register"}}
        for cls in (self.parent.method, self.parent.method.Parameters):
            wanted.setdefault(cls.__module__, set()).add(cls.__name__)
        ours = [f"from {module} import {', '.join(sorted(wanted[module]))}" for module in sorted(wanted)]
        tensor = "from torch import Tensor"
        # In a checkout proxyfl is the project and stands apart; to a plug-in it is a package like torch.
        lines = [tensor, "", *ours] if self.checkout else [*ours, tensor]
        return "\n".join(["import torch", *lines])

    def _registration(self) -> str:
        summary = f"{self.parent.name}, and a class far ahead of the second is trusted too"
        parts = [_literal(self.name), _literal(summary), self.cls]
        if self.parent.addons:
            parts.append(_literal(self.parent.addons))
        tables = {"defaults": self.parent.defaults, "paper": self.parent.paper}
        tables = {key: table for key, table in tables.items() if table}
        line = ", ".join([*parts, *(f"{key}={_literal(table)}" for key, table in tables.items())])
        if len(line) + len("register(Recipe())") <= CODE:
            return f"register(Recipe({line}))"
        parts += [f"{key}={_tall(table)}" for key, table in tables.items()]
        arguments = "\n".join(f"{part}," for part in parts)
        return f"register(\n    Recipe(\n{textwrap.indent(arguments, ' ' * 8)}\n    )\n)"

    def _table(self, call: str) -> str:
        lines = [
            "## Parameters",
            "",
            "| parameter | default | range | meaning |",
            "|---|---|---|---|",
            f"| `lead` | {LEAD} | ≥ 0, ≤ 1 | {MEANING} |",
            "",
            f"The others are those of `{self.parent.name}`; `{call} methods show {self.name}` prints all.",
        ]
        return "\n".join(lines)


def _filled(text: str, width: int) -> str:
    return textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False)


def _tall(table: Mapping[str, Any]) -> str:
    """A dictionary with one entry a line."""
    return "\n".join(["{", *(f"    {_literal(key)}: {_literal(item)}," for key, item in table.items()), "}"])


def _literal(value: Any) -> str:
    """Python for a plain value, with double quotes."""
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_literal(key)}: {_literal(item)}" for key, item in value.items()) + "}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_literal, value))}{',' if len(value) == 1 else ''})"
    return repr(value)
