"""Small runs in fp32 that notice a change of bits for which nobody raised ``NUMERICS``.

python tools/numerics.py     compare with the hashes of this kind of machine, or record them if there are none

A change that is intended: raise ``NUMERICS`` in ``src/proxyfl/core/provenance.py``, then run this again.
Which hashes apply depends on ``NUMERICS``, torch, the processor and what torch alone computes there.
"""

from __future__ import annotations

import json
import sys
from importlib import metadata
from pathlib import Path

import hashes
from proxyfl.core.config import ComputeSettings
from proxyfl.core.provenance import NUMERICS, instructions

TABLE = Path(__file__).with_suffix(".json")
SETTINGS = {**hashes.TINY, "subset": 160}
CASES: list[hashes.Case] = [
    ("fedavg", "fedavg", SETTINGS),
    ("proxyfl", "proxyfl", SETTINGS),
    ("sage+gpt", "sage+gpt", SETTINGS),
    ("fedloke", "fedloke", SETTINGS),
    *((name, method, {**SETTINGS, **more}) for name, (method, more) in hashes.COMPOSITIONS.items()
      if name in ("fixmatch-gpl, trimmed", "fedavg, privacy")),
]  # fmt: skip


def key(numerics: int = NUMERICS) -> str:
    """Machines with the same key compute the same bits."""
    kind = instructions(ComputeSettings(dtype="fp32"))
    return f"numerics {numerics}, torch {metadata.version('torch')}, {kind}, {hashes.arithmetic()[:12]}"


def recorded() -> dict[str, dict[str, str]]:
    table: dict[str, dict[str, str]] = json.loads(TABLE.read_text("utf-8")) if TABLE.is_file() else {}
    return table


def computed() -> dict[str, str]:
    """The hash of the weights that each case ends with."""
    return {case[0]: hashes.trained(case, inline=True)[1]["weights"] for case in CASES}


def main() -> int:
    table, here, found = recorded(), key(), computed()
    changed = [name for name in found if here in table and table[here].get(name) != found[name]]
    if changed:
        print(f"other bits: {', '.join(changed)}; raise NUMERICS if that is intended, and run this again")
        return 1
    kept = {name: each for name, each in table.items() if name.startswith(f"numerics {NUMERICS}, ")}
    TABLE.write_text(json.dumps({**kept, here: found}, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print(f"{len(found)} cases, {'all equal' if here in table else 'recorded'}: {here}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
