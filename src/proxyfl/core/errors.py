"""Errors that people read: each says what was wrong and what to do about it."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping

from proxyfl.core.text import one_line, shortened


class ProxyFLError(Exception):
    """Something the user can fix. The command line prints it on one line, without a traceback.

    Text quoted from an untrusted file cannot move the cursor or fill the screen.

    >>> import proxyfl
    >>> try:
    ...     proxyfl.Train(lr=-1)
    ... except proxyfl.ProxyFLError as error:
    ...     print(error)
    train.lr = -1.0 is below 0
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(one_line(message))


class ConfigError(ProxyFLError):
    """A setting that does not exist, has the wrong type or is out of range."""


class DataError(ProxyFLError):
    """A data set that is missing, damaged or does not fit."""


class RunError(ProxyFLError):
    """A run directory that cannot be created, read or continued."""


class BelowQuorum(RunError):
    """A round with too few usable updates. Nothing of it was kept, so that it may be played again.

    ``failed`` are the clients that gave none, and why.
    """

    def __init__(self, round: int, asked: int, answered: int, needed: int, failed: Mapping[int, str]) -> None:
        self.round, self.asked, self.answered, self.needed = round, asked, answered, needed
        self.failed = failed
        lack = self.lack("clients", "client {}".format)
        super().__init__(f"{lack}; the last checkpoint is kept, resume when this is fixed")

    def lack(self, called: str, name: Callable[[int], str]) -> str:
        """What was lacking and why; a reason that several gave is named once."""
        reasons: dict[str, list[str]] = {}
        for client, reason in sorted(self.failed.items()):
            who = name(client)
            reasons.setdefault(reason.removeprefix(who).lstrip(": "), []).append(who)
        why = shortened([f"{shortened(who)}: {reason}" for reason, who in reasons.items()], "; ")
        return (
            f"round {self.round}: {self.answered} of {self.asked} {called} gave a usable update, "
            f"{self.needed} are needed ({why})"
        )


class MethodError(ProxyFLError):
    """A method that cannot be built, or cannot carry an add-on."""


class UpdateRefused(ProxyFLError):
    """A client's update that the guard does not let in."""


def nearest(word: str, known: Iterable[str], where: str = "") -> str:
    """A hint to append to an error about an unknown ``word`` of the section ``where``."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    if close:
        return f"did you mean '{where}{close[0]}'?"
    return f"known: {', '.join(names)}" if names else "none are known"


def missing_extra(package: str, extra: str) -> ProxyFLError:
    """The error for an optional dependency that is not installed."""
    return ProxyFLError(f"this needs {package}; install it with: pip install 'proxyfl[{extra}]'")
