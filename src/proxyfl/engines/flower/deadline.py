"""How long a round waits: the federation's deadline, or, where it asks for that, what sites usually need.

A multiple of the slowest answer of the last rounds, never more than the deadline. Whoever is late by such a
shorter deadline has the whole one in the next round, so that no site is shut out for being slow once; whoever
is late by the whole one changes nothing.
"""

from __future__ import annotations

from collections import deque

ROUNDS = 5
"""The last rounds whose slowest answers count; as many must be known before anything is shortened."""

LEAST = 10.0
"""Seconds that every round waits: small models must not fail for a moment's load."""


class Deadline:
    """Seconds for the next round; ``factor`` 0 leaves the deadline as it is."""

    def __init__(self, most: float, factor: float = 0.0) -> None:
        self.most, self.factor = most, factor
        self.slowest: deque[float] = deque(maxlen=ROUNDS)

    def seconds(self) -> float:
        if not self.factor or len(self.slowest) < ROUNDS:
            return self.most
        return min(self.most, max(LEAST, self.factor * max(self.slowest)))

    def took(self, seconds: float, *, late: bool) -> None:
        """A round's last answer came after so many seconds; whether somebody was late."""
        if late and self.seconds() < self.most:
            self.slowest.clear()
        elif seconds:
            self.slowest.append(seconds)
