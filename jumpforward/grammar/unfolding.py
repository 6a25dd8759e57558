"""The compressor's view of grammars of any kind, one forced edge after the other.

A grammar that nests has no finite automaton, so its graph is made while it is walked, within limits. What the
reasons for a stop mean stands in :mod:`jumpforward.grammar.paths`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from jumpforward.grammar.bytewise import ByteWalker
from jumpforward.grammar.paths import WHITESPACE, Edge, Node, PathGraph, Stop

_NUM_REPEATS = 8  # how often a way must be gone again before it counts as recursion


@dataclass(frozen=True)
class ForcedEdge:
    """What a grammar forces at one place: the bytes, why they end, and what may come then.

    ``stop`` is never ``join`` or ``recursion``: one place alone does not show them.
    """

    forced: bytes
    stop: Stop
    live: bytes


def forced_edge(walker: ByteWalker) -> ForcedEdge:
    """Return what is forced at the walker's place; the walker does not move."""
    forced = walker.forced_bytes()
    walker.consume(forced)
    live = walker.live_bytes()
    edge = ForcedEdge(forced, _stop_at(walker, live), live)
    walker.rollback(bool(forced))
    return edge


def _stop_at(walker: ByteWalker, live: bytes) -> Stop:
    if walker.is_accepting:
        return "accepting"
    others = live.translate(None, WHITESPACE)
    if len(others) == 1 < len(live) and all(others in after for after in _behind_whitespace(walker, live)):
        return "whitespace"
    return "branch"


def _behind_whitespace(walker: ByteWalker, live: bytes) -> Iterator[bytes]:
    for byte in live:
        if byte in WHITESPACE:
            walker.consume(bytes([byte]))
            after = walker.live_bytes()
            walker.rollback(1)
            yield after


@dataclass
class _Place:
    """A node while it is unfolded: where the walker is, and the way there."""

    walker: ByteWalker
    live: bytes
    path: bytes
    depth: int
    parent: int | None


def unfold(walker: ByteWalker, *, max_depth: int = 8, max_nodes: int = 100) -> PathGraph:
    """Return the graph of what can follow the walker's place, breadth first. The walker does not move.

    Args:
        walker: a place in a grammar of any kind.
        max_depth: how many choices a path has at most.
        max_nodes: how many nodes there are at most.

    Nodes whose followers a limit left out are ``is_open``, and ``limits`` names the limit. Bytes that lead to
    the same place in the rules share an edge, and so do the continuation bytes of a character.
    """
    return _Unfolding(walker.fork(), max_depth, max_nodes).graph()


class _Unfolding:
    def __init__(self, walker: ByteWalker, max_depth: int, max_nodes: int) -> None:
        self._max_depth = max_depth
        self._max_nodes = max_nodes
        self._edges: list[Edge] = []
        self._open: set[int] = set()
        self._limits: dict[str, None] = {}
        self._places = [_Place(walker, walker.live_bytes(), b"", 0, None)]

    def graph(self) -> PathGraph:
        waiting = deque([0])
        while waiting:
            source = waiting.popleft()
            if self._places[source].live and self._may_expand(source):
                first_new = len(self._places)
                self._expand(source)
                waiting.extend(range(first_new, len(self._places)))
        nodes = [
            Node(place.walker.is_accepting, place.live, index in self._open) for index, place in enumerate(self._places)
        ]
        return PathGraph(tuple(nodes), tuple(self._edges), None, tuple(self._limits))

    def _may_expand(self, source: int) -> bool:
        limit = None
        if self._places[source].depth >= self._max_depth:
            limit = f"max_depth={self._max_depth}"
        elif len(self._places) >= self._max_nodes:
            limit = f"max_nodes={self._max_nodes}"
        if limit is not None:
            self._open.add(source)
            self._limits[limit] = None
        return limit is None

    def _expand(self, source: int) -> None:
        place = self._places[source]
        for first in same_place(place.walker, place.live):
            end = place.walker.fork()
            end.consume(first[:1])
            steps = [first, *_rest_of_character(end, first[0])]
            forced = end.forced_bytes()
            end.consume(forced)
            steps += [bytes([byte]) for byte in forced]
            self._arrive(source, tuple(steps), end)

    def _arrive(self, source: int, steps: tuple[bytes, ...], end: ByteWalker) -> None:
        before, live = self._places[source], end.live_bytes()
        path = before.path + b"".join(step[:1] for step in steps)
        earlier = self._earlier(source, end, live, path)
        if earlier is not None:
            self._edges.append(Edge(source, steps, earlier, "recursion"))
            return
        self._edges.append(Edge(source, steps, len(self._places), _stop_at(end, live)))
        self._places.append(_Place(end, live, path, before.depth + 1, source))

    def _earlier(self, nearest: int, end: ByteWalker, live: bytes, path: bytes) -> int | None:
        """Return the nearest node on the path which the place repeats."""
        node: int | None = nearest
        while node is not None:
            place = self._places[node]
            alike = place.live == live and place.walker.is_accepting == end.is_accepting
            if live and alike and repeats(end, path[len(place.path) :], live):
                return node
            node = place.parent
        return None


def same_place(walker: ByteWalker, live: bytes) -> list[bytes]:
    """Group live bytes by the place in the rules that they lead to, in the order of their lowest bytes."""
    groups: dict[str, bytearray] = {}
    for byte in live:
        walker.consume(bytes([byte]))
        groups.setdefault(walker.place(), bytearray()).append(byte)
        walker.rollback(1)
    return [bytes(group) for group in groups.values()]


def _rest_of_character(walker: ByteWalker, lead: int) -> Iterator[bytes]:
    """Move over the continuation bytes of a character as long as it does not matter which they are."""
    for _ in range((lead >= 0xC2) + (lead >= 0xE0) + (lead >= 0xF0)):
        groups = same_place(walker, walker.live_bytes())
        if len(groups) != 1:
            return
        walker.consume(groups[0][:1])
        yield groups[0]


def repeats(walker: ByteWalker, way: bytes, live: bytes) -> bool:
    """Return whether ``way`` can be gone again and again, with the same choices behind it each time."""
    is_accepting = walker.is_accepting
    num_gone, alike = 0, True
    while alike and num_gone < _NUM_REPEATS and walker.consume(way):
        num_gone += 1
        alike = walker.live_bytes() == live and walker.is_accepting == is_accepting
    walker.rollback(num_gone)
    return alike and num_gone == _NUM_REPEATS
