"""A pre-tokenizer's pattern, that can be asked which of its cuts are final.

The programs and their ordered threads are Pike's virtual machine, as Cox describes it ("Regular Expression Matching:
the Virtual Machine Approach", 2009): the first thread in order is what a backtracking engine would try first, so that
the machine finds the engine's own match. A state is the ordered tuple of the threads' places, and what a character does
to a state is remembered, which makes a lazy automaton of it. The threads that are alive at the end of a known text are
what a text behind it can still change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

from tokenizers import Regex, pre_tokenizers

from jumpforward.vocab.pattern_parser import PatternParser, UnknownRuleError

Threads = tuple[int, ...]
Cuts = tuple[int, ...]  # where pieces begin, in ascending order, and where the last of them ends if that is known

_START: Threads = (0,)
_MAX_STRUCTURES = 64
_ALL_PASS, _ALL_FAIL = -1, -2


class Ahead(NamedTuple):
    """What comes behind a known text: one character, the end, or (both None and False) anything at all."""

    char: str | None = None
    is_end: bool = False


ANYTHING = Ahead()
END = Ahead(is_end=True)


class SplitRule:
    """A pattern, compiled. Text is cut in front of every match of it and behind.

    Characters are told apart by signatures: bit i is set where set i of the pattern holds the character. Members are
    asked of the tokenizer's own engine, once each. The end of a text has the signature 0.
    """

    def __init__(self, pattern: str) -> None:
        """Compile a pattern.

        Raises:
            UnknownRuleError: it has parts that are not understood, or it matches the empty text.
        """
        parser = PatternParser(pattern)
        parser.parse()
        self._program = parser.program
        try:
            self._sets = [pre_tokenizers.Split(Regex(f"(?:{atom})"), "removed") for atom in parser.atoms]
        except Exception as error:  # the engine has no type of its own for this
            raise UnknownRuleError(f"the pattern {pattern!r}, which the engine refuses: {error}") from error
        self.signature = cache(self._signature)
        self._step = cache(self._step_uncached)
        self._reached = cache(self._reached_uncached)
        if any(self._program[place].kind == "match" for place in self._reached(_START, _ALL_PASS)):
            raise UnknownRuleError(f"the pattern {pattern!r}, which matches the empty text")

    def cuts(self, text: str, ahead: Ahead) -> list[Cuts]:
        """Return every way in which a text can be cut, given what comes behind it.

        A way is a tuple of places: each piece begins at one and ends at the next. Where the last place is the text's
        length, a cut is certain to be there; else the last piece goes on behind the text, and may end anywhere there.

        Raises:
            UnknownRuleError: there are too many.
        """
        signatures = [self.signature(char) for char in text]
        signatures = [self.signature(char) for char in text]
        found: dict[Cuts, None] = {}
        stack: list[tuple[Cuts, int]] = [((0,), 0)]
        while stack:
            cuts, start = stack.pop()
            for end in self._ends(signatures, start, ahead):
                if end is None and start < len(text):
                    stack.append((cuts, start + 1))
                elif end is None:  # what no match holds ends with the text, or goes on
                    found[_with(cuts, start) if ahead.is_end else cuts] = None
                elif end <= len(text):
                    stack.append((_with(_with(cuts, start), end), end))
                else:
                    found[_with(cuts, start)] = None
            if len(stack) + len(found) > _MAX_STRUCTURES:
                raise UnknownRuleError(f"a rule with more than {_MAX_STRUCTURES} ways to cut a text")
        return list(found)

    @property
    def is_one_character(self) -> bool:
        """Whether every match is a single character."""
        return [instruction.kind for instruction in self._program] == ["char", "match"]

    def cuts_between(self, left: str, right: str) -> bool:
        """Whether two characters next to each other are always cut apart."""
        return not self.joins(left, right) and self._surely_matches(self._step(_START, self.signature(right))[0])

    def _signature(self, char: str) -> int:
        return sum(1 << index for index, members in enumerate(self._sets) if not members.pre_tokenize_str(char))

    def joins(self, left: str, right: str) -> bool:
        """Whether some match may hold two characters next to each other."""
        first, second = self.signature(left), self.signature(right)
        return any(
            bool(self._step((place + 1,), second)[0])
            for place, instruction in enumerate(self._program)
            if instruction.kind == "char" and first >> instruction.atom & 1
        )

    def _ends(self, signatures: Sequence[int], start: int, ahead: Ahead) -> Iterator[int | None]:
        """Give where a match that begins at ``start`` may end; one more than the length stands for behind the text.

        None stands for no match.
        """
        threads, best = _START, None
        for place in range(start, len(signatures)):
            threads, matched = self._step(threads, signatures[place])
            best = place if matched else best
            if not threads:
                yield best
                return
        length = len(signatures)
        if ahead == ANYTHING:
            yield from self._ends_before_anything(threads, best, length)
            return
        threads, matched = self._step(threads, 0 if ahead.char is None else self.signature(ahead.char))
        if threads:
            yield length + 1
        if not self._surely_matches(threads):
            yield length if matched else best

    def _ends_before_anything(self, threads: Threads, best: int | None, length: int) -> Iterator[int | None]:
        certain = self._reached(threads, _ALL_FAIL)
        ends: set[int | None] = set()
        for place in self._reached(threads, _ALL_PASS):
            is_match = self._program[place].kind == "match"
            ends.add(length if is_match else length + 1)
            if is_match and place in certain:
                break
        else:
            ends.add(best)
        yield from ends

    def _surely_matches(self, threads: Threads) -> bool:
        """Whether one of the threads has matched, or will, whatever comes next."""
        return any(self._program[place].kind == "match" for place in self._reached(threads, _ALL_FAIL))

    def _step_uncached(self, threads: Threads, signature: int) -> tuple[Threads, bool]:
        """Move threads over a character; say whether one matches in front of it, which ends those behind in order."""
        moved: dict[int, None] = {}
        for place in self._reached(threads, signature):
            instruction = self._program[place]
            if instruction.kind == "match":
                return tuple(moved), True
            if signature >> instruction.atom & 1:
                moved[place + 1] = None
        return tuple(moved), False

    def _reached_uncached(self, threads: Threads, ahead: int) -> Threads:
        """Return the places that consume or match which threads get to, in order.

        ``ahead`` is the signature of the next character, or what becomes of every look at it.
        """
        found: dict[int, None] = {}
        seen: set[int] = set()
        stack = list(reversed(threads))
        while stack:
            place = stack.pop()
            if place in seen:
                continue
            seen.add(place)
            kind, atom, targets = self._program[place]
            if kind in ("char", "match"):
                found[place] = None
            elif kind == "fork":
                stack.extend(reversed(targets))
            elif ahead == _ALL_PASS or (ahead != _ALL_FAIL and (ahead >> atom & 1) == (kind == "ahead")):
                stack.append(place + 1)
        return tuple(found)


def _with(cuts: Cuts, place: int) -> Cuts:
    return cuts if cuts[-1] == place else (*cuts, place)
