"""Many runs as one set of results. ``proxyfl.results`` can be called itself:

>>> found = proxyfl.results("runs")                                     # doctest: +SKIP
>>> found.runs.groupby(["method", "alpha"])["mean_last"].agg(["mean", "std"])  # doctest: +SKIP
>>> found.rounds.pivot_table("accuracy", "round", "method")             # doctest: +SKIP

``runs`` has one row per run and ``rounds`` one per run and round; both are pandas data frames, which need the
extra ``pandas``. Damaged and duplicate runs are left out and listed in ``found.notes``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from proxyfl.results.frames import Results


class _Room(ModuleType):
    """A package that can be called: importing any part of it puts it where the function would be."""

    def __call__(self, places: str | Path | Iterable[str | Path], **where: Any) -> Results:
        """The runs at some places: each a run or a folder with runs in it, two levels deep.

        ``where`` keeps those with a setting: ``method="proxyfl"``, ``alpha=[0.1, 1.0]``, ``train__epochs=2``.
        """
        from proxyfl.results.frames import gather

        return gather([places] if isinstance(places, str | Path) else places, where)


results = sys.modules[__name__]
results.__class__ = _Room
