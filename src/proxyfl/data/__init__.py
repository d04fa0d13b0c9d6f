"""What clients hold: sources, the label split, partitions, views and streams of batches."""

from proxyfl.data.dataset import Dataset, Split
from proxyfl.data.partition import Partition, make_partition

__all__ = ["Dataset", "Partition", "Split", "make_partition"]
