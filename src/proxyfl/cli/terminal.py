"""The terminal: names and reasons from files reach it as text, never as its control sequences."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Console
from rich.segment import Segment

from proxyfl.core.text import printable

if TYPE_CHECKING:
    from rich.console import ConsoleOptions, RenderableType


class Terminal(Console):
    """A console whose own colours and bars are its only control sequences."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))
