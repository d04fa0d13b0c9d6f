"""Settings as typed dataclasses: each field has its meaning, its range and what fidelities make of it."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from typing import Any, TypeVar

from proxyfl.core.errors import ConfigError, nearest

T = TypeVar("T")

OBJECT = "object:"
"""How the name of something begins that is not registered: only the program that made it has it."""

FIDELITIES = ("clean", "code", "paper")

LARGEST = 10**18
"""What no whole number of a config reaches, so that it fits wherever it is used."""


def known_fidelity(name: str) -> str:
    """The name, where it is one."""
    if name not in FIDELITIES:
        raise ConfigError(f"unknown fidelity '{name}'; {nearest(name, FIDELITIES)}")
    return name


def setting(
    default: Any,
    meaning: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[Any, ...] = (),
    later: bool = False,
    **fidelity: Any,
) -> Any:
    """A dataclass field with a meaning, an allowed range and, where they differ, values per fidelity.

    >>> from dataclasses import dataclass
    >>> import proxyfl
    >>> @dataclass(frozen=True)
    ... class Parameters:
    ...     sharpness: float = proxyfl.setting(0.1, "weight of the entropy", low=0)
    >>> Parameters().sharpness
    0.1

    A setting that came ``later`` counts for a run's identity only where it is not at its default, so that
    runs made before it existed keep their names.
    """
    unknown = set(fidelity) - set(FIDELITIES)
    if unknown:
        raise TypeError(f"not a fidelity: {', '.join(sorted(unknown))}")
    meta = {"meaning": meaning, "low": low, "high": high, "choices": choices, "fidelity": fidelity}
    return field(default=default, metadata={**meta, "later": later})


_types: Callable[[Any], dict[str, Any]] = functools.cache(typing.get_type_hints)
"""The type of each field; finding it out takes as long as all checks, so it is done once."""


def read_section(cls: type[T], table: Mapping[str, Any], fidelity: str, where: str = "") -> T:
    """Build a settings dataclass from a table: unknown keys, wrong types and ranges are errors."""
    fields = {f.name: f for f in dataclasses.fields(cls) if f.name not in getattr(cls, "beside", ())}  # type: ignore[arg-type]
    hints = _types(cls)
    for key in table:
        if key not in fields:
            known = [*fields, *getattr(cls, "beside", ())]
            raise ConfigError(f"unknown setting '{where}{key}'; {nearest(key, known, where)}")
    values: dict[str, Any] = {}
    for name, spec in fields.items():
        if dataclasses.is_dataclass(hints[name]):
            inner = table.get(name, {})
            if not isinstance(inner, Mapping):
                raise ConfigError(f"'{where}{name}' is a table of settings, not {inner!r}")
            values[name] = read_section(
                typing.cast(type[Any], hints[name]), inner, fidelity, f"{where}{name}."
            )
        elif name in table:
            values[name] = _checked(table[name], hints[name], spec.metadata, f"{where}{name}")
        elif fidelity in spec.metadata.get("fidelity", {}):
            values[name] = spec.metadata["fidelity"][fidelity]
    return cls(**values)


def check_fields(settings: Any, where: str) -> None:
    """Check what a frozen dataclass was built with as a file's settings are checked. A field that stands for
    one of the config's has that ``setting``'s name in errors, others are named below ``where``.
    """
    if not dataclasses.is_dataclass(settings):
        return
    hints = _types(type(settings))
    for spec in dataclasses.fields(settings):
        if "meaning" in spec.metadata:
            name = spec.metadata.get("setting", f"{where}{spec.name}")
            value = _checked(getattr(settings, spec.name), hints[spec.name], spec.metadata, name)
            object.__setattr__(settings, spec.name, value)


def _checked(value: Any, kind: Any, meta: Mapping[str, Any], where: str) -> Any:
    if kind is float and type(value) is int and abs(value) < LARGEST:
        value = float(value)
    if isinstance(kind, types.GenericAlias):
        kind = kind.__origin__
        value = kind(value) if kind is tuple and isinstance(value, list) else value
    if type(value) is not kind:
        names = {
            int: "a whole number",
            float: "a number",
            str: "text",
            bool: "true or false",
            tuple: "a list",
        }
        raise ConfigError(f"{where} must be {names.get(kind, kind)}, not {value!r}")
    low, high, choices = meta.get("low"), meta.get("high"), meta.get("choices")
    if kind is float and not math.isfinite(value):
        raise ConfigError(f"{where} must be a number, not {value}")
    if kind is str and not value.isprintable():
        raise ConfigError(f"{where} holds control characters: {value!r}")
    if kind is int and abs(value) >= LARGEST:
        raise ConfigError(f"{where} is outside the supported range; give a number below {LARGEST:g}")
    if low is not None and value < low:
        raise ConfigError(f"{where} = {value} is below {low}")
    if high is not None and value > high:
        raise ConfigError(f"{where} = {value} is above {high}")
    if choices and value not in choices and not str(value).startswith(OBJECT):
        hint = nearest(str(value), map(str, choices))
        raise ConfigError(f"{where} = {value!r} is not one of {', '.join(map(str, choices))}; {hint}")
    return value


def describe(cls: type[Any]) -> Iterator[tuple[str, Any, str, str]]:
    """(name, default, range, meaning) of every setting of a section, for listings."""
    for spec in dataclasses.fields(cls):
        meta = spec.metadata
        if "meaning" not in meta:
            continue
        if meta["choices"]:
            span = " | ".join(map(str, meta["choices"]))
        else:
            low = "" if meta["low"] is None else f"≥ {meta['low']:g}"
            high = "" if meta["high"] is None else f"≤ {meta['high']:g}"
            span = ", ".join(filter(None, (low, high)))
        other = "; ".join(f"{name}: {value}" for name, value in meta["fidelity"].items())
        yield spec.name, spec.default, span, meta["meaning"] + (f" ({other})" if other else "")
