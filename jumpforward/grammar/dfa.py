"""The byte automaton (Q, Σ = 256 bytes, δ, q0, F) of a regular grammar: minimal, and every state alive.

Ranges of code points become UTF-8 byte sequences by splitting them where the number of bytes, or a leading digit
in base 64, changes (Thompson and Pike; Cox, "Regular Expression Matching in the Wild", 2010). Byte states that
read the same are one state, so a minimal automaton over characters gives a minimal one over bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from jumpforward.errors import GrammarError
from jumpforward.grammar import pattern as patterns
from jumpforward.grammar.minimal import Edges, live_states, minimised
from jumpforward.grammar.nfa import CharAutomaton, char_automaton, too_large

MAX_STATES = 10_000

_Targets = tuple[tuple[int, int, int], ...]  # (lowest, highest, state): values of digits still to be read
# For each number of bytes: the first code point, the last, and the bits of the lead byte above its digit.
_FORMS = ((0, 0x7F, 0x00), (0x80, 0x7FF, 0xC0), (0x800, 0xFFFF, 0xE0), (0x10000, 0x10FFFF, 0xF0))


@dataclass(frozen=True, eq=False)
class Dfa:
    """A trimmed, minimal automaton over bytes. States are numbered breadth first, so equal languages are equal.

    Attributes:
        delta: the next state, int32, shape (num_states + 1, 256): row = state, column = byte. The last row is
            the dead state, into which every byte leads that no complete output has at that place.
        accepting: whether the output may end, boolean, shape (num_states + 1,).
    """

    delta: np.ndarray
    accepting: np.ndarray

    start = 0

    @property
    def num_states(self) -> int:
        """How many states there are besides the dead one."""
        return len(self.delta) - 1

    @property
    def dead(self) -> int:
        """The state of a string that no complete output begins with."""
        return len(self.delta) - 1

    @cached_property
    def byte_classes(self) -> np.ndarray:
        """For each byte, the number of its class: bytes that lead to the same state from everywhere. (256,)."""
        columns = np.ascontiguousarray(self.delta.T)
        numbers: dict[bytes, int] = {}
        return np.array([numbers.setdefault(column.tobytes(), len(numbers)) for column in columns])

    def run(self, data: bytes, state: int = 0) -> int:
        """Return the state behind ``data``."""
        delta = self.delta
        for byte in data:
            state = int(delta[state, byte])
        return state

    def accepts(self, data: bytes) -> bool:
        """Return whether ``data`` is a complete output."""
        return bool(self.accepting[self.run(data)])

    def live_bytes(self, state: int) -> bytes:
        """Return the bytes that may come next, in ascending order."""
        return np.flatnonzero(self.delta[state] != self.dead).astype(np.uint8).tobytes()

    def bytes_from(self, state: int) -> set[int]:
        """Return the bytes on all paths from a state."""
        seen, waiting, found = {state}, [state], set[int]()
        while waiting:
            place = waiting.pop()
            for byte in self.live_bytes(place):
                found.add(byte)
                if (target := int(self.delta[place, byte])) not in seen:
                    seen.add(target)
                    waiting.append(target)
        return found

    @cached_property
    def _only_step(self) -> list[tuple[int, int] | None]:
        """For each state, the one byte that may come next and its target; None where there is a choice."""
        alive = self.delta != self.dead
        single = (alive.sum(axis=1) == 1) & ~self.accepting
        byte = alive.argmax(axis=1)
        target = self.delta[np.arange(len(self.delta)), byte]
        steps = zip(single.tolist(), byte.tolist(), target.tolist(), strict=True)
        return [(value, after) if forced else None for forced, value, after in steps]

    def forced(self, state: int) -> tuple[bytes, int]:
        """Return the bytes that every completion starts with, up to where it may end, and the state behind."""
        run = bytearray()
        while (step := self._only_step[state]) is not None:
            run.append(step[0])
            state = step[1]
        return bytes(run), state

    @classmethod
    def from_regex(
        cls, pattern: str, *, dialect: patterns.Dialect = patterns.PYTHON, max_states: int = MAX_STATES
    ) -> Dfa:
        """Return the automaton of the strings that ``re.fullmatch`` finds in UTF-8.

        Args:
            pattern: a regular expression in Python's syntax.
            dialect: flags, and what ``\\s`` means; see :mod:`jumpforward.grammar.pattern`.
            max_states: the most states that are built, over characters and over bytes.

        Raises:
            GrammarError: the pattern does not parse, uses what is not regular or not supported, matches no
                string, or needs more states than that.
        """
        chars = char_automaton(patterns.parse(pattern, dialect), max_states)
        if 0 not in live_states(chars.edges, chars.accepting):
            raise GrammarError("regex", f"{pattern!r} matches no string")
        small = CharAutomaton(*minimised(chars.edges, chars.accepting), chars.classes)
        return cls._numbered(_Lowering(small, max_states).edges, small.accepting)

    @classmethod
    def from_strings(cls, strings: Iterable[str], *, max_states: int = MAX_STATES) -> Dfa:
        """Return the automaton of exactly these strings.

        Raises:
            GrammarError: there are none, one has no UTF-8 form, or they need more states than ``max_states``.
        """
        edges: list[dict[int, int]] = [{}]
        accepting = set()
        for text in strings:
            state = 0
            for byte in _encoded(text):
                if byte not in edges[state]:
                    edges[state][byte] = len(edges)
                    edges.append({})
                state = edges[state][byte]
            accepting.add(state)
        if not accepting:
            raise GrammarError("choice", "expected at least one string, got none")
        rows, ends = _folded(edges, accepting)
        if len(rows) > max_states:
            raise too_large("choice", max_states)
        return cls._numbered(rows, ends, start=len(rows) - 1)

    @classmethod
    def _numbered(cls, edges: Edges, accepting: set[int], start: int = 0) -> Dfa:
        """Number the states breadth first, by ascending bytes, and write them as arrays."""
        numbers = {start: 0}
        order = [start]
        for state in order:
            for _, target in sorted(edges[state].items()):
                if target not in numbers:
                    numbers[target] = len(order)
                    order.append(target)
        delta = np.full((len(order) + 1, 256), len(order), dtype=np.int32)
        for index, state in enumerate(order):
            row = edges[state]
            delta[index, list(row)] = [numbers[target] for target in row.values()]
        ends = np.zeros(len(order) + 1, dtype=bool)
        ends[[numbers[state] for state in accepting]] = True
        return cls(delta, ends)


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise GrammarError("choice", f"{text!r} has no UTF-8 form: {error.reason}") from error


def _folded(edges: Sequence[dict[int, int]], accepting: set[int]) -> tuple[list[dict[int, int]], set[int]]:
    """Make states of a tree one where they read the same. Children have higher numbers; the root comes last."""
    known: dict[tuple[bool, tuple[tuple[int, int], ...]], int] = {}
    number = [0] * len(edges)
    for state in range(len(edges) - 1, -1, -1):
        row = tuple(sorted((byte, number[target]) for byte, target in edges[state].items()))
        number[state] = known.setdefault((state in accepting, row), len(known))
    return [dict(row) for _, row in known], {index for index, (ends, _) in enumerate(known) if ends}


class _Lowering:
    """Edges over bytes from edges over characters; states between the bytes of a character are added."""

    def __init__(self, chars: CharAutomaton, max_states: int) -> None:
        self._max_states = max_states
        self._inner: dict[tuple[int, _Targets], int] = {}
        self.edges: list[dict[int, int]] = [{} for _ in chars.edges]
        for state, row in enumerate(chars.edges):
            targets = _merged(
                (low, high, after) for symbol, after in row.items() for low, high in chars.classes[symbol]
            )
            for num_digits, (first, last, lead) in enumerate(_FORMS):
                part = tuple(_clipped(targets, first, last))
                for digit, rest in _by_digit(part, num_digits):
                    self.edges[state][lead + digit] = self._state(num_digits, rest)

    def _state(self, num_digits: int, targets: _Targets) -> int:
        """Return the state that reads ``num_digits`` more bytes and then goes where ``targets`` say."""
        if not num_digits:
            return targets[0][2]
        key = (num_digits, targets)
        if key not in self._inner:
            if len(self.edges) >= self._max_states:
                raise too_large("regex", self._max_states)
            self._inner[key] = index = len(self.edges)
            self.edges.append({})
            for digit, rest in _by_digit(targets, num_digits - 1):
                self.edges[index][0x80 + digit] = self._state(num_digits - 1, rest)
        return self._inner[key]


def _merged(ranges: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Sort ranges, and join neighbours that lead to the same state."""
    merged: list[tuple[int, int, int]] = []
    for low, high, target in sorted(ranges):
        if merged and merged[-1][1] == low - 1 and merged[-1][2] == target:
            merged[-1] = (merged[-1][0], high, target)
        else:
            merged.append((low, high, target))
    return merged


def _clipped(ranges: Iterable[tuple[int, int, int]], first: int, last: int) -> Iterator[tuple[int, int, int]]:
    for low, high, target in ranges:
        if low <= last and high >= first:
            yield max(low, first), min(high, last), target


def _by_digit(ranges: _Targets, num_below: int) -> Iterator[tuple[int, _Targets]]:
    """Group ranges by their leading digit in base 64, with ``num_below`` digits left behind it."""
    span = 64**num_below
    groups: dict[int, list[tuple[int, int, int]]] = {}
    for low, high, target in ranges:
        for digit in range(low // span, high // span + 1):
            base = digit * span
            piece = (max(low - base, 0), min(high - base, span - 1), target)
            groups.setdefault(digit, []).append(piece)
    for digit, pieces in groups.items():
        yield digit, tuple(pieces)
