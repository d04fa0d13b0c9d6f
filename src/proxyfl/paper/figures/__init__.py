"""The figures of the ProxyFL paper, drawn from finished runs: PNG and SVG, their data beside them as CSV.

Figure 5a is :func:`proxyfl.report.bubbles.partition_bubbles`, figure 5b
:func:`proxyfl.report.curves.accuracy_curves`.
"""

from proxyfl.paper.figures.excluded import excluded_bars
from proxyfl.paper.figures.lowconf import low_confidence_bars, oracle_curves
from proxyfl.paper.figures.proxies import proxy_map
from proxyfl.paper.figures.recall import recall_curves
from proxyfl.paper.figures.tuning import tuning_epochs

__all__ = [
    "excluded_bars",
    "low_confidence_bars",
    "oracle_curves",
    "proxy_map",
    "recall_curves",
    "tuning_epochs",
]
