"""Trimming and minimising an automaton whose missing edges mean rejection."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence, Set

Edges = Sequence[dict[int, int]]  # for each state, the next state by symbol


def live_states(edges: Edges, accepting: Iterable[int]) -> set[int]:
    """Return the states from which an accepting state can be reached."""
    sources: dict[int, list[int]] = defaultdict(list)
    for state, targets in enumerate(edges):
        for target in targets.values():
            sources[target].append(state)
    live = set(accepting)
    waiting = list(live)
    while waiting:
        for source in sources[waiting.pop()]:
            if source not in live:
                live.add(source)
                waiting.append(source)
    return live


def minimised(edges: Edges, accepting: Set[int]) -> tuple[list[dict[int, int]], set[int]]:
    """Return the smallest automaton of the same language, trimmed. State 0 is the start, and stays it.

    The start must be live, and every state must be reachable.
    """
    live = live_states(edges, accepting)
    trimmed = [{symbol: target for symbol, target in row.items() if target in live} for row in edges]
    block_of = _equivalent(trimmed, live, accepting)
    order: dict[int, int] = {block_of[0]: 0}
    rows: list[dict[int, int]] = [{} for _ in set(block_of.values())]
    for state in live:
        index = order.setdefault(block_of[state], len(order))
        if not rows[index]:
            rows[index] = {
                symbol: order.setdefault(block_of[target], len(order)) for symbol, target in trimmed[state].items()
            }
    return rows, {order[block_of[state]] for state in accepting}


def _equivalent(edges: Edges, live: Set[int], accepting: Set[int]) -> dict[int, int]:
    """Return the class of each live state: Hopcroft's partition refinement (1971), over existing edges only.

    A missing edge has no target to refine by, so both first blocks wait, not only the smaller one.
    """
    sources: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for state in live:
        for symbol, target in edges[state].items():
            sources[target].append((symbol, state))
    blocks = [set(block) for block in (accepting, live - accepting) if block]
    block_of = {state: index for index, block in enumerate(blocks) for state in block}
    waiting = set(range(len(blocks)))
    while waiting:
        entering: dict[int, set[int]] = defaultdict(set)
        for target in blocks[waiting.pop()]:
            for symbol, state in sources[target]:
                entering[symbol].add(state)
        for states in entering.values():
            _split(states, blocks, block_of, waiting)
    return block_of


def _split(states: set[int], blocks: list[set[int]], block_of: dict[int, int], waiting: set[int]) -> None:
    """Part every block into those in ``states`` and the others; the smaller part waits to split others."""
    touched: dict[int, set[int]] = defaultdict(set)
    for state in states:
        touched[block_of[state]].add(state)
    for index, inside in touched.items():
        if len(inside) == len(blocks[index]):
            continue
        outside = blocks[index] - inside if 2 * len(inside) > len(blocks[index]) else None
        small = inside if outside is None else outside
        blocks[index] -= small
        block_of.update(dict.fromkeys(small, len(blocks)))
        # Where the whole block waits, both parts now wait; else the smaller is enough.
        waiting.add(len(blocks))
        blocks.append(small)
