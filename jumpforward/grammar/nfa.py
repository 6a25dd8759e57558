"""From the program of a pattern to a deterministic automaton over classes of characters.

Thompson's construction (1968), then the subset construction over the classes of characters that the pattern
cannot tell apart. A class is one symbol however many characters it has; bytes come later.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from jumpforward.errors import GrammarError
from jumpforward.grammar.pattern import Anchor, Chars, Either, Joined, Program, Ranges, Repeated

# Subsets have many members in a few ill-natured patterns; this bounds the work where the number of states does not.
_MEMBERS_PER_STATE = 64


@dataclass(frozen=True)
class CharAutomaton:
    """A deterministic automaton over classes of characters; state 0 is the start.

    Attributes:
        edges: for each state, the next state by class; a class that leads nowhere is absent.
        accepting: the states in which the text may end.
        classes: the ranges of code points of each class; no two overlap.
    """

    edges: list[dict[int, int]]
    accepting: set[int]
    classes: list[Ranges]


class _Fragment(NamedTuple):
    """A part of the automaton: the states from ``low`` to the newest when it was made, its way in and out."""

    low: int
    entry: int
    exit: int


@dataclass
class _Nfa:
    """States with edges. An edge reads a set of characters (an index), or an anchor, or nothing (None)."""

    max_states: int
    edges: list[list[tuple[int | str | None, int]]] = field(default_factory=list)
    sets: dict[Ranges, int] = field(default_factory=dict)

    def add(self, *edges: tuple[int | str | None, int]) -> int:
        self._check(len(self.edges) + 1)
        self.edges.append(list(edges))
        return len(self.edges) - 1

    def single(self, label: int | str | None) -> _Fragment:
        entry = self.add()
        self.edges[entry].append((label, self.add()))
        return _Fragment(entry, entry, entry + 1)

    def joined(self, parts: list[_Fragment]) -> _Fragment:
        if not parts:
            return self.single(None)
        for left, right in pairwise(parts):
            self.edges[left.exit].append((None, right.entry))
        return _Fragment(parts[0].low, parts[0].entry, parts[-1].exit)

    def either(self, parts: list[_Fragment]) -> _Fragment:
        entry = self.add(*((None, part.entry) for part in parts))
        leave = self.add()
        for part in parts:
            self.edges[part.exit].append((None, leave))
        return _Fragment(parts[0].low, entry, leave)

    def repeated(self, part: _Fragment, least: int, most: int | None) -> _Fragment:
        """Copy the part as often as it may come; from the least number on, its way in can also leave."""
        num_copies = max(least, 1) if most is None else most
        if not num_copies:
            return self.single(None)._replace(low=part.low)
        length = len(self.edges) - part.low
        self._check(len(self.edges) + (num_copies - 1) * (length + 1))
        copies = [part, *(self._copy(part, length) for _ in range(num_copies - 1))]
        leave = self.add()
        # A state of its own before each copy: the part's entry may have edges back to it from inside.
        gates = [self.add((None, copy.entry)) for copy in copies]
        for gate in gates[least:]:
            self.edges[gate].append((None, leave))
        for copy, after in zip(copies, [*gates[1:], leave], strict=True):
            self.edges[copy.exit].append((None, after))
        if most is None:
            self.edges[copies[-1].exit].append((None, gates[-1]))
        return _Fragment(part.low, gates[0], leave)

    def _copy(self, part: _Fragment, length: int) -> _Fragment:
        shift = len(self.edges) - part.low
        for edges in self.edges[part.low : part.low + length]:
            self.edges.append([(label, target + shift) for label, target in edges])
        return _Fragment(part.low + shift, part.entry + shift, part.exit + shift)

    def _check(self, num_states: int) -> None:
        if num_states > self.max_states * _MEMBERS_PER_STATE:
            raise too_large("regex", self.max_states)


def too_large(kind: str, max_states: int) -> GrammarError:
    """Return the error for an automaton beyond its limit."""
    return GrammarError(
        kind, f"its automaton needs more than max_states={max_states} states, or more work than they allow"
    )


def char_automaton(program: Program, max_states: int) -> CharAutomaton:
    """Return the automaton of a program. Every state can be reached; not every state can reach the end.

    Raises:
        GrammarError: more than ``max_states`` states, or as much work as they are allowed; or a ``$`` with a
            newline behind it.
    """
    nfa = _Nfa(max_states)
    whole = _build(nfa, program)
    classes, classes_of_set = _classes(list(nfa.sets))
    subsets = _Subsets(nfa, whole.exit)
    known = {subsets.reach(whole.entry, at_start=True): 0}
    edges: list[dict[int, int]] = []
    num_members = 0
    waiting = list(known)
    for members, _ in waiting:
        targets: dict[int, set[int]] = defaultdict(set)
        for label, target in members:
            for index in classes_of_set[label]:
                targets[index].add(target)
        num_members += len(members)
        edges.append({})
        for index, reached in targets.items():
            subset = subsets.union(reached)
            if subset not in known:
                known[subset] = len(known)
                waiting.append(subset)
            edges[-1][index] = known[subset]
        if len(known) > max_states or num_members > max_states * _MEMBERS_PER_STATE:
            raise too_large("regex", max_states)
    return CharAutomaton(edges, {known[subset] for subset in waiting if subset[1]}, classes)


def _build(nfa: _Nfa, program: Program) -> _Fragment:
    parts: list[_Fragment] = []
    for step in program:
        match step:
            case Chars(ranges):
                parts.append(nfa.single(nfa.sets.setdefault(ranges, len(nfa.sets))))
            case Anchor(place):
                parts.append(nfa.single(place))
            case Repeated(least, most):
                parts.append(nfa.repeated(parts.pop(), least, most))
            case Joined(num_parts) | Either(num_parts):
                cut = len(parts) - num_parts
                taken = parts[cut:]
                del parts[cut:]
                parts.append(nfa.joined(taken) if isinstance(step, Joined) else nfa.either(taken))
    return parts.pop()


Subset = tuple[frozenset[tuple[int, int]], bool]  # edges that read a character: (set, target); accepting


class _Subsets:
    """What can be read next from a state, through edges that read nothing."""

    def __init__(self, nfa: _Nfa, final: int) -> None:
        self._nfa = nfa
        self._final = final
        self._known: dict[int, Subset] = {}
        self._num_members = 0
        self._with_newline = {index for ranges, index in nfa.sets.items() if _contains(ranges, ord("\n"))}

    def union(self, states: Iterable[int]) -> Subset:
        parts = [self._known.get(state) or self._remember(state) for state in states]
        return frozenset().union(*(members for members, _ in parts)), any(end for _, end in parts)

    def _remember(self, state: int) -> Subset:
        subset = self._known[state] = self.reach(state)
        self._num_members += len(subset[0])
        if self._num_members > self._nfa.max_states * _MEMBERS_PER_STATE:
            raise too_large("regex", self._nfa.max_states)
        return subset

    def reach(self, state: int, *, at_start: bool = False) -> Subset:
        """Return what is read next. Behind an end anchor nothing is read, but the text may end."""
        moves: set[tuple[int, int]] = set()
        seen = {(state, "")}
        waiting = [(state, "")]
        while waiting:
            here, anchor = waiting.pop()
            for label, target in self._nfa.edges[here]:
                if isinstance(label, int):
                    self._read(moves, label, target, anchor)
                elif label != "^" or at_start:
                    after = (target, max(anchor, "" if label in (None, "^") else str(label)))
                    if after not in seen:
                        seen.add(after)
                        waiting.append(after)
        return frozenset(moves), any(reached == self._final for reached, _ in seen)

    def _read(self, moves: set[tuple[int, int]], label: int, target: int, anchor: str) -> None:
        if anchor == "$" and label in self._with_newline:
            raise GrammarError("regex", "'$' with a newline behind it is not supported")
        if not anchor:
            moves.add((label, target))


def _contains(ranges: Ranges, code: int) -> bool:
    index = bisect_left(ranges, (code + 1, 0)) - 1
    return index >= 0 and ranges[index][1] >= code


def _classes(sets: list[Ranges]) -> tuple[list[Ranges], list[list[int]]]:
    """Split all characters by the sets they are in; return each class's ranges, and each set's classes."""
    changes: dict[int, set[int]] = defaultdict(set)
    for index, ranges in enumerate(sets):
        for low, high in ranges:
            changes[low] ^= {index}
            changes[high + 1] ^= {index}
    classes: dict[frozenset[int], list[tuple[int, int]]] = defaultdict(list)
    places = sorted(changes)
    inside: set[int] = set()
    for low, end in pairwise(places):
        inside ^= changes[low]
        if inside:
            classes[frozenset(inside)].append((low, end - 1))
    members: list[list[int]] = [[] for _ in sets]
    for index, signature in enumerate(classes):
        for owner in signature:
            members[owner].append(index)
    return [tuple(ranges) for ranges in classes.values()], members
