"""One document walked through a grammar: what was forced, what was chosen, and why forcing stopped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, takewhile
from typing import Any

from jumpforward.grammar.bytewise import ByteWalker
from jumpforward.grammar.paths import Stop
from jumpforward.grammar.spec import Grammar
from jumpforward.grammar.unfolding import ForcedEdge, forced_edge, repeats

_FEW_BYTES = 8  # with more of them live, a place is inside a number or in free text, and not the next step of a loop


@dataclass(frozen=True)
class Choice:
    """A byte that the document chose where forcing had stopped.

    Attributes:
        place: the byte's index in the document.
        stop: why forcing stopped in front of it; never ``join``. ``recursion`` where an earlier choice on the way had
            the same live bytes and the way from there can be gone again and again; on it lies text that was
            forced, or would have been without optional whitespace. Numbers and free text are branches.
        live: the bytes that were legal.
    """

    place: int
    stop: Stop
    live: bytes


@dataclass(frozen=True)
class Walk:
    """A document's way through a grammar.

    Attributes:
        data: the document.
        forced: for each of its bytes, whether it was forced; shorter than the document where it was rejected.
        choices: the bytes that were not forced, in order.
        is_complete: whether the grammar accepts the document.
        expected: where it does not, the bytes that were legal behind the last accepted one; empty for a document
            that goes on behind its end.
        ends_alone: whether the grammar permits nothing but the end behind an accepted document.
    """

    data: bytes
    forced: tuple[bool, ...]
    choices: tuple[Choice, ...]
    is_complete: bool
    expected: bytes = b""
    ends_alone: bool = False

    @property
    def share_forced_bytes(self) -> float:
        """The share of the walked bytes that were forced."""
        return sum(self.forced) / max(1, len(self.forced))

    @cached_property
    def _live_at(self) -> dict[int, bytes]:
        return {choice.place: choice.live for choice in self.choices} | {len(self.data): self.expected}

    def live_bytes(self, place: int) -> bytes:
        """Return what could come in front of the byte ``place``, which was chosen, or at the end of the document."""
        return self._live_at[place]

    def num_forced_tokens(self, lengths: Sequence[int]) -> int:
        """Return how many of the tokens with these lengths in bytes, laid end to end, consist of forced bytes."""
        ends = list(accumulate(lengths))
        spans = zip(ends, lengths, strict=True)
        return sum(all(self.forced[end - length : end]) for end, length in spans if end <= len(self.forced))

    def spans(self) -> list[tuple[bool, bytes]]:
        """Return the walked bytes as runs of forced and of chosen characters.

        A character counts as forced when all its bytes were.
        """
        runs: list[tuple[bool, bytes]] = []
        place = 0
        for char in self.data[: len(self.forced)].decode(errors="surrogateescape"):
            piece = char.encode(errors="surrogateescape")
            is_forced = all(self.forced[place : place + len(piece)])
            place += len(piece)
            if runs and runs[-1][0] == is_forced:
                runs[-1] = (is_forced, runs[-1][1] + piece)
            else:
                runs.append((is_forced, piece))
        return runs

    def layout(self) -> dict[str, Any]:
        """Return the walk as JSON: places count bytes, classes of bytes are in hexadecimal."""
        return {
            "is_complete": self.is_complete,
            "num_bytes": len(self.data),
            "num_walked": len(self.forced),
            "share_forced_bytes": round(self.share_forced_bytes, 4),
            "spans": [{"forced": is_forced, "text": data.decode(errors="replace")} for is_forced, data in self.spans()],
            "choices": [
                {"place": choice.place, "stop": choice.stop, "num_live": len(choice.live), "live": choice.live.hex()}
                for choice in self.choices
            ],
            "expected": self.expected.hex(),
        }


def walk(grammar: Grammar, data: bytes) -> Walk:
    """Walk a document through a grammar, as far as it goes."""
    return walk_along(grammar.walker(), data)


def walk_along(walker: ByteWalker, data: bytes) -> Walk:
    """Walk a document from the walker's place, as far as it goes; the walker moves."""
    forced: list[bool] = []
    choices: list[Choice] = []
    while True:
        edge = forced_edge(walker)
        agreed = _len_common(edge.forced, data[len(forced) :])
        walker.consume(edge.forced[:agreed])
        forced += [True] * agreed
        place = len(forced)
        if agreed < len(edge.forced):
            return Walk(data, tuple(forced), tuple(choices), False, edge.forced[agreed : agreed + 1])
        if place == len(data):
            whole = walker.is_accepting
            return Walk(data, tuple(forced), tuple(choices), whole, edge.live, ends_alone=whole and not edge.live)
        if data[place] not in edge.live:
            return Walk(data, tuple(forced), tuple(choices), False, edge.live)
        choices.append(Choice(place, _stop(walker, edge, data, forced, choices), edge.live))
        walker.consume(data[place : place + 1])
        forced.append(False)


def _stop(walker: ByteWalker, edge: ForcedEdge, data: bytes, forced: Sequence[bool], choices: Sequence[Choice]) -> Stop:
    """Return why forcing stopped at the walker's place, which lies behind the bytes that ``forced`` tells of."""
    if edge.stop != "branch" or len(edge.live) > _FEW_BYTES:
        return edge.stop
    place = len(forced)
    earlier = next((choice.place for choice in reversed(choices) if choice.live == edge.live), place)
    loops = _has_fixed_text(earlier, forced, choices) and repeats(walker, data[earlier:place], edge.live)
    return "recursion" if loops else "branch"


def _has_fixed_text(start: int, forced: Sequence[bool], choices: Sequence[Choice]) -> bool:
    """Whether a byte from ``start`` on was forced, or would have been but for optional whitespace."""
    spaced = takewhile(lambda choice: choice.place >= start, reversed(choices))
    return any(forced[start:]) or any(choice.stop == "whitespace" for choice in spaced)


def _len_common(left: bytes, right: bytes) -> int:
    shorter = min(len(left), len(right))
    return next((place for place in range(shorter) if left[place] != right[place]), shorter)
