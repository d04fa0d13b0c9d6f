from tiny_runs import rewritten, runs

__all__ = ["rewritten", "runs"]
