"""The text of a deployment's settings files: what counts, with comments where a table could be misread."""

from __future__ import annotations

from typing import Any

import tomli_w

SETTLED = (("partition", "clients"), ("federation", "quorum"))
"""What the experiment need not say: it follows from the list of sites and from the federation's quorum."""

NOTES = {
    "[experiment.data]": "data, labels and partition: how a simulation, or --sample, shares its data out.\n"
    "# Sites have their own images, of the form given above: of these three tables only labels.where counts.",
    "[experiment.federation]": "number of rounds and of sites per round; the quorum is set above",
}
"""Comments in ``federation.toml``, by the line that they stand above."""


def to_toml(table: dict[str, Any], command: str) -> str:
    """Settings as a file that says what it is for."""
    lists = {name: list(value) if isinstance(value, tuple) else value for name, value in table.items()}
    if isinstance(experiment := table.get("experiment"), dict):
        lists["experiment"] = _without_settled(experiment)
    text = f"# {command}\n" + tomli_w.dumps(lists)
    for head, note in NOTES.items():
        text = text.replace(f"\n{head}\n", f"\n# {note}\n{head}\n")
    return text


def _without_settled(tree: dict[str, Any]) -> dict[str, Any]:
    kept = {name: dict(table) if isinstance(table, dict) else table for name, table in tree.items()}
    for table, name in SETTLED:
        if isinstance(kept.get(table), dict):
            kept[table].pop(name, None)
    return kept
