"""The compressor: paths on which a grammar leaves no choice become single edges.

An edge begins with a choice, a class of bytes with one target, and goes on over every byte that is then forced
(jump-forward decoding over a compressed automaton: SGLang, 2024). It stops where the output may end, where
several bytes may come next, or (a *join*) where another path arrives, so that text which several paths share is
an edge of its own. Joins are for the reader: forcing runs through them, and :func:`compress` can leave them out.

For a language {name: Paul|John, age: 20|30} the edges are ``{"name":"``, then ``Paul`` or ``John``, then
``","age":``, then ``[23]0}``.

Reasons for a stop:
    accepting: the output may end, whatever else may follow.
    whitespace: the branch exists only because optional whitespace is legal: one other byte may come next, and
        it may still come behind the whitespace.
    branch: several bytes may come next.
    join: one byte may come next, but another path arrives here.
    recursion: unfolding only; the place looks like an earlier one on its path, and the way from there to here can
        be gone again and again with the same choices. That is true of a nested value and of a repeated part; the
        edge leads back to the earlier place. What a nested value adds to the end of the output is not drawn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from jumpforward.grammar.bytewise import ByteWalker
from jumpforward.grammar.dfa import Dfa

Stop = Literal["accepting", "whitespace", "branch", "join", "recursion"]

WHITESPACE = b" \t\n\r"
_NUM_REPEATS = 8  # how often a way must be gone again before it counts as recursion


@dataclass(frozen=True)
class Node:
    """A place where forcing stops, or the start.

    Attributes:
        is_accepting: whether the output may end here.
        live: the bytes that may come next, in ascending order.
        is_open: whether a limit of the unfolding left out what follows.
    """

    is_accepting: bool
    live: bytes
    is_open: bool = False


@dataclass(frozen=True)
class Edge:
    """A choice and what it forces.

    Attributes:
        source: the node it leaves.
        steps: classes of bytes, one behind the other, any byte of each; a forced byte is a class of one.
        target: the node it leads to.
        stop: why it ends there.
    """

    source: int
    steps: tuple[bytes, ...]
    target: int
    stop: Stop

    @property
    def string(self) -> bytes | None:
        """The edge's one string; None if it has several."""
        return b"".join(self.steps) if all(len(step) == 1 for step in self.steps) else None


@dataclass(frozen=True)
class PathGraph:
    """A compressed automaton, or a part of an unfolded grammar. Node 0 is the start.

    Attributes:
        nodes: the places where forcing stops.
        edges: grouped by source, in the order of their first bytes; no two from one node share a first byte.
        num_states: the states of the automaton before compression; None for an unfolding.
        limits: the limits that an unfolding met, in words; empty where it is whole.
    """

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    num_states: int | None = None
    limits: tuple[str, ...] = ()

    def edges_from(self, node: int) -> list[Edge]:
        """Return the edges that leave a node."""
        return [edge for edge in self.edges if edge.source == node]

    def accepts(self, data: bytes) -> bool:
        """Return whether a path spells ``data`` from the start to an accepting node."""
        node, place = 0, 0
        while place < len(data):
            edge = next((edge for edge in self.edges_from(node) if data[place] in edge.steps[0]), None)
            part = data[place : place + len(edge.steps)] if edge else b""
            if edge is None or len(part) < len(edge.steps):
                return False
            if any(byte not in step for byte, step in zip(part, edge.steps, strict=True)):
                return False
            node, place = edge.target, place + len(part)
        return self.nodes[node].is_accepting


@dataclass(frozen=True)
class ForcedEdge:
    """What a grammar forces at one place: the bytes, why they end, and what may come then.

    ``stop`` is never ``join`` or ``recursion``: one place alone does not show them.
    """

    forced: bytes
    stop: Stop
    live: bytes


# -- regular grammars ---------------------------------------------------------------------------------------


def compress(dfa: Dfa, *, keep_joins: bool = True) -> PathGraph:
    """Return the automaton with its forced paths as single edges; the language stays the same."""
    choices = [_choices(dfa, state) for state in range(dfa.num_states)]
    stops = _stops(dfa, choices, keep_joins)
    numbers = {dfa.start: 0}
    order = [dfa.start]
    edges = []
    for source in order:
        for first, state in choices[source]:
            steps = [first]
            while stops[state] is None:
                ((byte, state),) = choices[state]
                steps.append(byte)
            if state not in numbers:
                numbers[state] = len(order)
                order.append(state)
            edges.append(Edge(numbers[source], tuple(steps), numbers[state], stops[state] or "join"))
    nodes = tuple(Node(bool(dfa.accepting[state]), dfa.live_bytes(state)) for state in order)
    return PathGraph(nodes, tuple(edges), dfa.num_states)


def _choices(dfa: Dfa, state: int) -> list[tuple[bytes, int]]:
    """Return the classes of live bytes with their targets, in the order of their lowest bytes."""
    row = dfa.delta[state]
    targets: dict[int, bytearray] = {}
    for byte in dfa.live_bytes(state):
        targets.setdefault(int(row[byte]), bytearray()).append(byte)
    return [(bytes(values), target) for target, values in targets.items()]


def _stops(dfa: Dfa, choices: list[list[tuple[bytes, int]]], keep_joins: bool) -> list[Stop | None]:
    """Return for each state why an edge stops there; None where it goes on."""
    num_arrivals = np.zeros(dfa.num_states + 1, dtype=int)
    for row in choices:
        num_arrivals[[target for _, target in row]] += 1
    stops: list[Stop | None] = []
    for state in range(dfa.num_states):
        live = dfa.live_bytes(state)
        if dfa.accepting[state]:
            stops.append("accepting")
        elif len(live) > 1:
            stops.append("whitespace" if _only_whitespace(dfa, state, live) else "branch")
        else:
            stops.append("join" if keep_joins and num_arrivals[state] > 1 else None)
    return stops


def _only_whitespace(dfa: Dfa, state: int, live: bytes) -> bool:
    others = live.translate(None, WHITESPACE)
    if len(others) != 1 or len(others) == len(live):
        return False
    behind = [dfa.delta[dfa.delta[state, byte], others[0]] for byte in live if byte in WHITESPACE]
    return all(target == dfa.delta[state, others[0]] for target in behind)


# -- grammars of any kind -----------------------------------------------------------------------------------


def forced_edge(walker: ByteWalker) -> ForcedEdge:
    """Return what is forced at the walker's place; the walker does not move."""
    forced = walker.forced_bytes()
    end = walker.fork()
    end.consume(forced)
    live = end.live_bytes()
    return ForcedEdge(forced, _stop_at(end, live), live)


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
            if live and alike and _repeats(end, path[len(place.path) :], live):
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


def _repeats(walker: ByteWalker, way: bytes, live: bytes) -> bool:
    """Return whether ``way`` can be gone again and again, with the same choices behind it each time."""
    is_accepting = walker.is_accepting
    num_gone, alike = 0, True
    while alike and num_gone < _NUM_REPEATS and walker.consume(way):
        num_gone += 1
        alike = walker.live_bytes() == live and walker.is_accepting == is_accepting
    walker.rollback(num_gone)
    return alike and num_gone == _NUM_REPEATS
