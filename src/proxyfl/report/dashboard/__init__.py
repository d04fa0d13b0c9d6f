"""The live page: a small server on this machine that lists runs and follows those that are running."""
