"""A pre-tokenizer's pattern, that can be asked which of its cuts are final.

The programs and their ordered threads are Pike's virtual machine, as Cox describes it ("Regular Expression Matching:
the Virtual Machine Approach", 2009): the first thread in order is what a backtracking engine would try first, so that
the machine finds the engine's own match. A state is the ordered tuple of the threads' places, and what a character does
to a state is remembered, which makes a lazy automaton of it. The threads that are alive at the end of a known text are
what a text behind it can still change.

What a look-ahead says is a fact of a place in the text, whatever thread asks. So looks are run first, from every place,
and stand beside the next character in what a thread sees there. Behind the end of a known text some are open: a thread
that goes on behind an open one is unsure, and its match ends no other thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from functools import cache
from typing import NamedTuple

from tokenizers import Regex, pre_tokenizers

from jumpforward.vocab.pattern_parser import Instruction, PatternParser, UnknownRuleError

Thread = tuple[int, bool]  # a place in the program, and whether everything that it looked at is known
Threads = tuple[Thread, ...]
Cuts = tuple[int, ...]  # where pieces begin, in ascending order, and where the last of them ends if that is known

_START: Threads = ((0, True),)
_MAX_WAYS = 64
_UNKNOWN = -1  # what is seen in front of a character that is not known


class Ahead(NamedTuple):
    """What comes behind a known text: one character, the end, or (both None and False) anything at all."""

    char: str | None = None
    is_end: bool = False


ANYTHING = Ahead()
END = Ahead(is_end=True)


class TooManyWaysError(Exception):
    """A text can still be cut in more ways than are looked at; raised and caught in this package.

    Attributes:
        place: up to here there is one way.
    """

    def __init__(self, place: int) -> None:
        super().__init__(f"more than {_MAX_WAYS} ways to cut a text, from character {place} on")
        self.place = place


class Match(IntEnum):
    """Whether threads match at a place."""

    NONE = 0
    MAYBE = 1
    SURE = 2


class SplitRule:
    """A pattern, compiled. Text is cut in front of every match of it and behind.

    Characters are told apart by signatures: bit i is set where set i of the pattern holds the character. Members are
    asked of the tokenizer's own engine, once each. What is seen at a place is the signature of the next character, 0 at
    the end of the text; behind those bits one for a word's character before the place, and two for each look: whether
    it may hold, and whether it does.
    """

    def __init__(self, pattern: str) -> None:
        """Compile a pattern.

        Raises:
            UnknownRuleError: it has parts that are not understood.
        """
        parser = PatternParser(pattern)
        parser.parse()
        self._program = parser.program
        try:
            self._sets = [pre_tokenizers.Split(Regex(f"(?:{atom})"), "removed") for atom in parser.atoms]
        except Exception as error:  # the engine has no type of its own for this
            raise UnknownRuleError(f"the pattern {pattern!r}, which the engine refuses: {error}") from error
        self._behind_word = 1 << len(self._sets)
        self._first_look = len(self._sets) + 1
        self._looks = {each.atom: place + 1 for place, each in enumerate(self._program) if "look" in each.kind}
        self._word = next((each.atom for each in self._program if each.kind == "border"), None)
        self.signature = cache(self._signature)
        self._step = cache(self._step_uncached)
        self._reached = cache(self._reached_uncached)
        self._passed = cache(self._passed_uncached)
        if any(self._program[place].kind == "border" for place in self._passed(0)):
            raise UnknownRuleError(f"the pattern {pattern!r}, which asks what is before its match")

    def cuts(self, text: str, ahead: Ahead) -> list[Cuts]:
        """Return every way in which a text can be cut, given what comes behind it.

        A way is a tuple of places: each piece begins at one and ends at the next. Where the last place is the text's
        length, a cut is certain to be there; else the last piece goes on behind the text, and may end anywhere there.

        Raises:
            TooManyWaysError: there are too many.
        """
        seen = self._seen(text, ahead)
        found: dict[Cuts, None] = {}
        stack: list[tuple[Cuts, int]] = [((0,), 0)]
        parted = len(text)  # where the ways part
        while stack:
            cuts, start = stack.pop()
            ends = set(self._ends(seen, start, ahead))
            parted = min(parted, start) if len(ends) > 1 else parted
            for end in ends:
                before = cuts if end is None else _with(cuts, start)
                if end is not None and start < end <= len(text):
                    stack.append((_with(before, end), end))
                elif start < len(text) and (end is None or end == start):  # what no match holds is a piece too
                    stack.append((before, start + 1))
                else:  # it ends with the text, or goes on
                    found[_with(before, start) if ahead.is_end else before] = None
            if len(stack) + len(found) > _MAX_WAYS:
                raise TooManyWaysError(parted)
        return list(found)

    @property
    def is_one_character(self) -> bool:
        """Whether every match is a single character."""
        return [instruction.kind for instruction in self._program] == ["char", "match"]

    def cuts_between(self, left: str, right: str) -> bool:
        """Whether two characters next to each other are always cut apart."""
        threads, match = self._step(_START, self._seen_between(left, right))
        return not self.joins(left, right) and (match is Match.SURE or self._surely_matches(threads))

    def is_undecided(self, left: str, right: str) -> bool:
        """Whether it takes more than two characters next to each other to say if a match begins between them."""
        threads, match = self._step(_START, self._seen_between(left, right))
        return match is Match.MAYBE or (bool(threads) and not self._surely_matches(threads))

    def joins(self, left: str, right: str) -> bool:
        """Whether what lies on one side of a place between these two characters can matter to the cuts on the other.

        It can if some match holds both, or if a look from the left goes on behind the right one.
        """
        first, seen = self.signature(left), self._seen_between(left, right)
        chars = (place for place, each in enumerate(self._program) if each.kind == "char" and first >> each.atom & 1)
        behind = [place + 1 for place in chars]
        looks = set(self._looks.values()) & set().union(*map(self._passed, [0, *behind]))
        return any(self._step(((place, True),), seen)[0] for place in [*behind, *looks])

    def _signature(self, char: str) -> int:
        return sum(1 << index for index, members in enumerate(self._sets) if not members.pre_tokenize_str(char))

    def _seen_between(self, left: str, right: str) -> int:
        """Return what is seen between two characters where nothing else is known: all looks are open."""
        seen = self._behind(self.signature(left)) | self.signature(right)
        return seen | sum(1 << self._first_look + 2 * look for look in self._looks)

    def _behind(self, signature: int) -> int:
        """Return what is seen of a character behind it."""
        return self._behind_word if self._word is not None and signature >> self._word & 1 else 0

    def _seen(self, text: str, ahead: Ahead) -> list[int]:
        """Return what is seen at every place of a text, its end included."""
        seen = [*map(self.signature, text), 0 if ahead.char is None else self.signature(ahead.char)]
        if self._word is not None:
            seen = [now | self._behind(before) for before, now in zip([0, *seen[:-1]], seen, strict=True)]
        if ahead == ANYTHING:
            seen[-1] = _UNKNOWN
        if self._looks:
            seen = [now | self._looks_from(seen, place, ahead) for place, now in enumerate(seen)]
        return seen

    def _looks_from(self, seen: Sequence[int], place: int, ahead: Ahead) -> int:
        bits = 0
        for look, start in self._looks.items():
            ends = set(self._ends(seen, place, ahead, ((start, True),)))
            may_hold, holds = ends != {None}, None not in ends
            bits |= (may_hold | holds << 1) << self._first_look + 2 * look
        return bits

    def _ends(self, seen: Sequence[int], start: int, ahead: Ahead, threads: Threads = _START) -> Iterator[int | None]:
        """Give where a match that begins at ``start`` may end; one more than the length stands for behind the text.

        None stands for no match.
        """
        length = len(seen) - 1
        best: int | None = None
        for place in range(start, length):
            threads, match = self._step(threads, seen[place])
            if match is Match.MAYBE:
                yield place
            best = place if match is Match.SURE else best
            if not threads:
                yield best
                return
        threads, match = self._step(threads, seen[length])
        if threads:
            yield length + 1
        if match is Match.MAYBE:
            yield length
        if ahead == ANYTHING or not self._surely_matches(threads):
            yield length if match is Match.SURE else best

    def _surely_matches(self, threads: Threads) -> bool:
        """Whether one of the threads has matched, or will, whatever comes next."""
        return any(sure and self._program[place].kind == "match" for place, sure in self._reached(threads, _UNKNOWN))

    def _step_uncached(self, threads: Threads, seen: int) -> tuple[Threads, Match]:
        """Move threads over a character; say whether one matches in front of it, which ends those behind in order."""
        moved: dict[Thread, None] = {}
        match = Match.NONE
        for place, sure in self._reached(threads, seen):
            instruction = self._program[place]
            if instruction.kind == "match" and sure:
                return tuple(moved), Match.SURE
            if instruction.kind == "match":
                match = Match.MAYBE
            elif seen >> instruction.atom & 1:
                moved[place + 1, sure] = None
        return tuple(moved), match

    def _reached_uncached(self, threads: Threads, seen: int) -> Threads:
        """Return the places that consume or match which threads get to, in order."""
        found: dict[Thread, None] = {}
        visited: set[Thread] = set()
        stack = list(reversed(threads))
        while stack:
            thread = place, sure = stack.pop()
            if thread in visited or (place, True) in visited:
                continue
            visited.add(thread)
            kind, _, targets = instruction = self._program[place]
            if kind in ("char", "match"):
                found[thread] = None
            elif kind == "fork":
                stack.extend((target, sure) for target in reversed(targets))
            else:
                may_pass, passes = self._looked(instruction, seen)
                if may_pass:
                    stack.append((targets[0], sure and passes))
        return tuple(found)

    def _looked(self, instruction: Instruction, seen: int) -> tuple[bool, bool]:
        """Return whether an instruction that looks may let a thread pass, and whether it does."""
        kind, atom, _ = instruction
        if seen == _UNKNOWN:
            return True, False
        if kind in ("look", "not_look"):
            bits = seen >> self._first_look + 2 * atom
            may_hold, holds = bool(bits & 1), bool(bits & 2)
            return (may_hold, holds) if kind == "look" else (not holds, not may_hold)
        is_member = bool(seen >> atom & 1)
        passes = is_member != bool(seen & self._behind_word) if kind == "border" else is_member == (kind == "ahead")
        return passes, passes

    def _passed_uncached(self, place: int) -> frozenset[int]:
        """Return the places that a thread may get to before it consumes, in the bodies of looks too."""
        found: set[int] = set()
        stack = [place]
        while stack:
            at = stack.pop()
            if at not in found:
                found.add(at)
                kind, _, targets = self._program[at]
                stack += [*targets, at + 1] if kind in ("look", "not_look") else targets
        return frozenset(found)


def _with(cuts: Cuts, place: int) -> Cuts:
    return cuts if cuts[-1] == place else (*cuts, place)
