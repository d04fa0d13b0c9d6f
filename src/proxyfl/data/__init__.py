"""What clients hold: sources, the label split, partitions, views and streams of batches."""
