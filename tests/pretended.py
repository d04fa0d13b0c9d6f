"""A Ray cluster without Ray: its actors live in this process, and die when told to."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from proxyfl.engines.cluster.connection import Lost, Needs


class Pretended:
    """An actor: its answers are computed when they are asked for. One that is dead gives none, and one that
    waits for room has no node.
    """

    def __init__(self, cluster: PretendedCluster, kind: type, without: Collection[str]) -> None:
        self.cluster, self.thing, self.without = cluster, kind(), without
        self.node, self.dead = "", False

    def __getattr__(self, name: str) -> Any:
        return Asked(self, name)


class Asked:
    def __init__(self, actor: Pretended, name: str) -> None:
        self.actor, self.name = actor, name

    def remote(self, *parts: Any) -> Callable[[], bytes]:
        def answer() -> bytes:
            cluster = self.actor.cluster
            cluster.asked.append((self.name, self.actor.node))
            try:
                cluster.about_to(self.actor, self.name)
                if self.actor.dead:
                    raise Lost("the process or its node ended")
            except Lost:
                cluster.dismiss(self.actor)
                raise
            cluster.here = self.actor.node
            said: bytes = getattr(self.actor.thing, self.name)(*parts)
            return said

        answer.asked, answer.actor = self.name, self.actor  # type: ignore[attr-defined]
        return answer


class PretendedCluster:
    """``rooms`` is what each node has room for; ``about_to`` is called before an actor does something."""

    rooms: dict[str, int]
    about_to: Callable[[Pretended, str], None]
    latest: PretendedCluster

    def __init__(self, address: str) -> None:
        self.actors: list[Pretended] = []
        self.asked: list[tuple[str, str]] = []
        self.here = ""
        type(self).latest = self

    def require_room(self, needs: Needs, what: str) -> int:
        return self.room(needs)

    def room(self, needs: Needs, without: Collection[str] = ()) -> int:
        return sum(room for node, room in self.rooms.items() if node not in without)

    def hire(self, kind: type, needs: Needs, without: Collection[str] = ()) -> Pretended:
        hired = Pretended(self, kind, without)
        self.actors.append(hired)
        self._place()
        return hired

    def _place(self) -> None:
        """Whoever waits gets a node with room."""
        for actor in [actor for actor in self.actors if not actor.node]:
            living = [other.node for other in self.actors]
            rooms = {node: room for node, room in self.rooms.items() if node not in actor.without}
            actor.node = next((node for node, room in rooms.items() if living.count(node) < room), "")

    def dismiss(self, actor: Pretended) -> None:
        if actor in self.actors:
            self.actors.remove(actor)
            self._place()

    def ask(self, actor: Pretended, what: str, *given: Any) -> Any:
        return getattr(actor, what).remote(*given)

    def put(self, thing: Any) -> Any:
        return thing

    def first(self, refs: list[Any], seconds: float) -> set[Any]:
        """Whoever is starting is quicker than who trains."""
        there = [ref for ref in refs if ref.actor.node]
        return {min(there, key=lambda ref: ref.asked == "train")} if there else set()

    def answer(self, ref: Callable[[], bytes]) -> bytes:
        return ref()

    def close(self) -> None: ...
