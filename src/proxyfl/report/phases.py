"""What a step and a round consist of, as bars."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from proxyfl.core.errors import RunError
from proxyfl.core.spans import PSEUDO, STRONG, WEAK, loss_span
from proxyfl.profiling.phases import NETWORK, Phase, Profile
from proxyfl.report import plot_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BAR = 0.3
"""Height of a bar with its gap, in inches."""

COLOURS = {
    "network": plot_style.BLUE,
    "views": plot_style.ORANGE,
    "losses": plot_style.VERMILLION,
    "other": "#999999",
    "client": plot_style.GREEN,
    "server": plot_style.PURPLE,
}


def kind_of(name: str) -> str:
    """What a phase of a step belongs to: network, views, losses or other."""
    if name in NETWORK:
        return "network"
    if name in (WEAK, STRONG):
        return "views"
    return "losses" if name.startswith((loss_span(), PSEUDO)) else "other"


def phase_bars(profile: Profile, path: str | Path) -> list[Path]:
    """A profile as PNG, SVG and CSV; gives the three files."""
    if not profile.step:
        raise RunError("the profile holds no step to draw")
    rows: list[tuple[object, ...]] = [
        ("step", phase.name, phase.ms, profile.share(phase), phase.gflop, phase.gflops or "")
        for phase in profile.step
    ]
    for where, once in (("client", profile.client), ("server", profile.server)):
        rows += [(where, phase.name, phase.ms, "", "", "") for phase in once]
    figure = _draw(profile)
    header = ("where", "phase", "ms", "share_of_step", "gflop", "gflop_per_second")
    return [*plot_style.save(figure, path), plot_style.save_csv(path, header, rows)]


def _draw(profile: Profile) -> Figure:
    once = (*profile.client, *profile.server)
    counts = [len(profile.step), max(1, len(once))]
    figure = plot_style.new_figure(8.4, BAR * sum(counts) + 2.9)
    above, below = figure.subplots(2, 1, height_ratios=[count + 1 for count in counts])
    shares = [f"{phase.ms:,.1f} ms · {100 * profile.share(phase):.1f} %" for phase in profile.step]
    _bars(above, profile.step, shares, [kind_of(phase.name) for phase in profile.step])
    title = f"Time per step: {profile.method} on {profile.data}"
    plot_style.dress(above, title=title, x=f"ms per step, {profile.step_ms:,.0f} in total", grid="x")
    kinds = ["client"] * len(profile.client) + ["server"] * len(profile.server)
    _bars(below, once, [f"{phase.ms:,.1f} ms" for phase in once], kinds)
    plot_style.dress(below, title="Once per round, on the client and on the server", x="ms", grid="x")
    plot_style.note(figure, caption(profile))
    return figure


def _bars(axes: Axes, bars: Sequence[Phase], words: Sequence[str], kinds: Sequence[str]) -> None:
    places = range(len(bars))
    for kind in dict.fromkeys(kinds):
        mine = [place for place in places if kinds[place] == kind]
        axes.barh(mine, [bars[place].ms for place in mine], 0.7, color=COLOURS[kind], label=kind, zorder=2)
    longest = max((bar.ms for bar in bars), default=0.0) or 1.0
    for place, text in zip(places, words, strict=True):
        axes.text(
            bars[place].ms + longest / 100,
            place,
            text,
            va="center",
            fontsize=plot_style.SMALL,
            color=plot_style.INK,
        )
    axes.set_xlim(0, 1.35 * longest)
    axes.set_ylim(len(bars) - 0.4, -0.6)
    axes.set_yticks(list(places), [bar.name for bar in bars])
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=plot_style.SMALL, frameon=False)


def caption(profile: Profile) -> str:
    """What was measured, on two lines."""
    network, threads = profile.network_phase, profile.threads
    return (
        f"{profile.network}, {profile.dtype}, {threads} thread{'s' * (threads > 1)} on {profile.device}. "
        f"Client {profile.client_id}: {profile.images:,} {profile.called}, mean of {profile.steps} of "
        f"{profile.steps_per_round} steps. Server: {profile.updates} updates.\n"
        f"Network: {network.gflops:,.0f} GFLOP/s; a matrix product here: {profile.peak:,.0f}. "
        f"Convolutions: {100 * (profile.conv_forward + profile.conv_backward):.0f} % of a step's time."
    )
