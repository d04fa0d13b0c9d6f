"""What of a method rules and noise can cover, as its hooks show."""

from __future__ import annotations

from proxyfl.methods.base import Method, overrides


def uncovered(method: Method) -> str:
    """What of a method escapes clipping and noise; empty when nothing does."""
    reasons = []
    for part in method.parts:
        if overrides(part, "extras_form"):
            reasons.append(f"{part.name} sends more than weights ({part.sends})")
        elif overrides(part, "receive"):
            reasons.append(f"{part.name} reads single updates ({part.sends})")
    if own := own_weights(method):
        reasons.append(own)
    return "; ".join(reasons)


def reads_updates(method: Method) -> bool:
    """Whether any part looks at single updates."""
    return any(overrides(part, "receive") for part in method.parts)


def own_weights(method: Method) -> str:
    """That a method has its own weights for the mean; empty when it takes those of the settings."""
    has = overrides(method, "weights") or overrides(method, "weight_of")
    return f"{method.name} chooses weights of its own" if has else ""
