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
    recursion: in an unfolding (:mod:`jumpforward.grammar.unfolding`), the place looks like an earlier one on its
        path, and the way from there to here can be gone again and again with the same choices. That is true of a
        nested value and of a repeated part; the edge leads back to the earlier place. What a nested value adds to
        the end of the output is not drawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from jumpforward.grammar.dfa import Dfa

Stop = Literal["accepting", "whitespace", "branch", "join", "recursion"]

WHITESPACE = b" \t\n\r"


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
