"""What becomes of a round's updates: aggregators are small values that can be put around each other.

>>> from proxyfl.aggregation import Clip, FedAdam, TrimmedMean
>>> FedAdam(lr=0.03, inner=Clip(2.0, by="median", inner=TrimmedMean(hostile=0.3))).inner
Clip(length=2.0, by='median', inner=TrimmedMean(hostile=0.3))

One of your own: :class:`Aggregator`.
"""

from proxyfl.aggregation.base import Accumulator, Aggregator, Round, Settled
from proxyfl.aggregation.build import register_aggregator
from proxyfl.aggregation.clipping import Clip
from proxyfl.aggregation.coordinates import Median, TrimmedMean
from proxyfl.aggregation.krum import Krum
from proxyfl.aggregation.mean import Mean
from proxyfl.aggregation.privacy import DifferentialPrivacy
from proxyfl.aggregation.server import FedAdam, FedAvgM, FedYogi

__all__ = [
    "Accumulator",
    "Aggregator",
    "Clip",
    "DifferentialPrivacy",
    "FedAdam",
    "FedAvgM",
    "FedYogi",
    "Krum",
    "Mean",
    "Median",
    "Round",
    "Settled",
    "TrimmedMean",
    "register_aggregator",
]
