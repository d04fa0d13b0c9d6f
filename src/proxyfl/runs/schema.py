"""Are these the records and the state of a run? Checksums may be right and the content untrusted."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

MOST_ROUNDS = 10**8
LARGEST = 1e30


def require_records(lines: Sequence[Mapping[str, Any]]) -> None:
    """Raise :class:`ValueError` where a line of metrics is not of the form that rounds are written in, or a
    round is missing or there twice.
    """
    for number, line in enumerate(lines, 1):
        for name, (wanted, fits) in FORM.items():
            if name in REQUIRED and name not in line:
                raise ValueError(f"a round has no {name}")
            if name in line and not fits(line[name]):
                raise ValueError(f"{name} of a round is not {wanted}")
        if line["round"] != number:
            raise ValueError(f"line {number} is of round {line['round']}")


def require_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    """Raise :class:`ValueError` where a line about a client is not of the form that rounds write it in, a
    client is in a round twice, or rounds are not in order.
    """
    known, last = set[int](), 0
    for row in rows:
        for name, (wanted, fits) in ROW.items():
            if name in ("round", "client") and name not in row:
                raise ValueError(f"a line about a client has no {name}")
            if name in row and not fits(row[name]):
                raise ValueError(f"{name} of a client is not {wanted}")
        if row["round"] > last:
            known, last = set(), row["round"]
        if row["round"] < last or row["client"] in known:
            raise ValueError(f"round {row['round']} of client {row['client']} is not in order")
        known.add(row["client"])


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return (math.isfinite(value) if isinstance(value, float) else True) and -LARGEST <= value <= LARGEST


def _is_finite(value: Any, depth: int = 0) -> bool:
    """A number, or lists and tables of numbers, at whatever size: what methods tell of a round."""
    if isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
        return depth <= 3 and all(_is_finite(part, depth + 1) for part in inner)
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or (type(value) is int and abs(value) <= LARGEST)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= LARGEST


def _all_in(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """A table whose every value, at whatever depth, fits."""

    def check(value: Any, depth: int = 0) -> bool:
        if not isinstance(value, dict) or depth > 3:
            return False
        return all(check(v, depth + 1) if isinstance(v, dict) else fits(v) for v in value.values())

    return check


def _is_traffic(value: Any) -> bool:
    return (
        _all_in(_is_count)(value)
        and all(_is_count(value.get(name)) for name in ("bytes_up", "bytes_down"))
        and all(isinstance(value.get(name, {}), dict) for name in ("up", "down", "down_once", "numbers"))
    )


def _is_validation(value: Any) -> bool:
    return _all_in(_is_number)(value) and _is_number(value.get("accuracy"))


def _is_privacy(value: Any) -> bool:
    return _all_in(_is_number)(value) and all(_is_number(value.get(name)) for name in ("epsilon", "delta"))


Form = tuple[str, Callable[[Any], bool]]
REQUIRED = ("round", "traffic")
_NUMBERS: Form = ("a table of numbers", _all_in(_is_number))
_FINITE: Form = ("made of numbers", _is_finite)
_CLIENTS: Form = ("a list of clients", lambda value: isinstance(value, list) and all(map(_is_count, value)))
_SHARES: Form = (
    "a list of shares",
    lambda value: isinstance(value, list) and all(v is None or _is_number(v) for v in value),
)
_ROUND: Form = ("a whole number", lambda value: _is_count(value) and 0 < value < MOST_ROUNDS)
_COUNT: Form = ("a whole number", _is_count)
_SHARE: Form = ("a share", lambda value: _is_number(value) and 0 <= value <= 1)
FORM: dict[str, Form] = {
    "round": _ROUND,
    "accuracy": _SHARE,
    "traffic": ("a table of sizes", _is_traffic),
    "losses": _NUMBERS,
    "server": _NUMBERS,
    "measures": _NUMBERS,
    "validation": ("a table of numbers with an accuracy", _is_validation),
    "pseudo": _NUMBERS,
    "clients": _CLIENTS,
    "attempt": _COUNT,
    "online": _CLIENTS,
    "late": _CLIENTS,
    "idle": _CLIENTS,
    "rejected": _CLIENTS,
    **dict.fromkeys(("privacy", "record_privacy"), ("a table with epsilon and delta", _is_privacy)),
    **dict.fromkeys(("counts", "prior", "class_counts", "client_weights", "proxy_loss"), _FINITE),
    "failed": ("a table of reasons", _all_in(lambda value: isinstance(value, str))),
    "per_class": _SHARES,
    "precision": _SHARES,
}
ROW: dict[str, Form] = {
    "round": _ROUND,
    "client": _COUNT,
    "images": _COUNT,
    "labelled": _SHARE,
    "norm": ("a length", lambda value: _is_number(value) and value >= 0),
    "cosine": ("a cosine", lambda value: _is_number(value) and -1 <= value <= 1),
    "trusted": ("a share", lambda value: _is_number(value) and 0 <= value <= 10),
    "losses": (
        "a table of numbers",
        lambda value: isinstance(value, dict) and all(map(_is_number, value.values())),
    ),
    "held": _COUNT,
    "accuracy": _SHARE,
}
