"""What clients hold: sources, the label split, partitions, views and streams of batches."""

from proxyfl.data.dataset import Dataset, Split
from proxyfl.data.partition import Partition, federate

__all__ = ["Dataset", "Partition", "Split", "federate"]
