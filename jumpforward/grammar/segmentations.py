"""The ways to write a text as pieces of a vocabulary."""

from __future__ import annotations

from collections.abc import Collection

from jumpforward.grammar.paths import Edge, Node, PathGraph


def lattice(text: bytes, pieces: Collection[bytes]) -> PathGraph:
    """Return the graph whose nodes are the places between bytes and whose edges are the pieces that fit there.

    Pieces that lie on no way through the whole text are left out. Edges of one node may share a first byte here.
    """
    fits = [(start, text[start:end]) for start, end in _spans(len(text)) if text[start:end] in pieces]
    to_end = {len(text)}
    for start, piece in reversed(fits):  # by descending start
        if start + len(piece) in to_end:
            to_end.add(start)
    from_start = {0}
    edges = []
    for start, piece in fits:
        end = start + len(piece)
        if start in from_start and end in to_end:
            from_start.add(end)
            steps = tuple(bytes([byte]) for byte in piece)
            edges.append(Edge(start, steps, end, "accepting" if end == len(text) else "branch"))
    nodes = [Node(place == len(text), text[place : place + 1]) for place in range(len(text) + 1)]
    return PathGraph(tuple(nodes), tuple(edges))


def _spans(length: int) -> list[tuple[int, int]]:
    return [(start, end) for start in range(length) for end in range(start + 1, length + 1)]


def num_segmentations(graph: PathGraph) -> int:
    """Return how many ways lead through a lattice."""
    ways = [0] * len(graph.nodes)
    ways[0] = 1
    for edge in graph.edges:  # by ascending source
        ways[edge.target] += ways[edge.source]
    return ways[-1]


def segmentations(graph: PathGraph, *, max_count: int = 64) -> list[tuple[bytes, ...]]:
    """Return the ways through a lattice as pieces, at most ``max_count``, longest first pieces last."""
    found: list[tuple[bytes, ...]] = []
    waiting: list[tuple[int, tuple[bytes, ...]]] = [(0, ())]
    while waiting and len(found) < max_count:
        place, pieces = waiting.pop()
        if place == len(graph.nodes) - 1:
            found.append(pieces)
        following = [(edge.target, (*pieces, edge.string or b"")) for edge in graph.edges_from(place)]
        waiting += reversed(following)
    return found
