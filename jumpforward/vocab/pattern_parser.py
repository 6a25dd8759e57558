"""Reading the patterns of pre-tokenizers: the part of the regex language that they are written in.

A set of characters is not read but cut out, since the engine itself will be asked for its members.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

_MAX_INSTRUCTIONS = 2000
_ESCAPE = re.compile(r"\\(?:[pP]\{[^}]*\}|[sSdDwWhHrntfv]|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|[^\w\s])")
_INTERVAL = re.compile(r"\{(\d*)(,?)(\d*)\}")
# Without regard to case the engine also takes one letter (ß, ﬆ, ﬁ) for two.
_FOLDED_TOGETHER = re.compile(r"ss|st|f[fil]", re.IGNORECASE)


class UnknownRuleError(Exception):
    """A pattern or a step of a tokenizer that is not understood; raised and caught in this package."""


class Instruction(NamedTuple):
    """One place of a program.

    ``char`` consumes a member of a set; ``ahead`` and ``not_ahead`` go on where the next character is, or is not, a
    member; ``border`` where that is so of one of the characters on both sides; ``fork`` at all targets, the first
    preferred; ``match`` ends. ``look`` and ``not_look`` go on where the instructions up to their target would match, or
    would not. ``atom`` is the set's number, or the look's.
    """

    kind: str
    atom: int = -1
    targets: tuple[int, ...] = ()


@dataclass
class PatternParser:
    """A recursive-descent parser that writes a program while it reads.

    Attributes:
        pattern: what is read.
        atoms: the sets of characters it names, as patterns of their own, each once.
        program: the instructions.

    Raises:
        UnknownRuleError: by :meth:`parse`, at anything that is not understood.
    """

    pattern: str
    atoms: list[str] = field(default_factory=list)
    program: list[Instruction] = field(default_factory=list)
    _place: int = 0
    _num_looks: int = 0
    _is_in_look: bool = False

    def parse(self) -> None:
        """Read all of the pattern."""
        self._alternatives(ignore_case=False)
        if self._place < len(self.pattern):
            raise self._unknown("an unpaired ')'")
        self.program.append(Instruction("match"))

    def _unknown(self, what: str) -> UnknownRuleError:
        return UnknownRuleError(f"{what} at character {self._place} of the pattern {self.pattern!r}")

    def _takes(self, text: str) -> bool:
        if not self.pattern.startswith(text, self._place):
            return False
        self._place += len(text)
        return True

    def _next(self) -> str:
        return self.pattern[self._place : self._place + 1]

    def _alternatives(self, *, ignore_case: bool) -> None:
        """Read alternatives up to the end of their group; the first is preferred."""
        start = len(self.program)
        jumps: list[int] = []
        self._sequence(ignore_case=ignore_case)
        while self._takes("|"):
            self._insert(start, Instruction("fork", targets=(start + 1, len(self.program) + 2)))
            jumps.append(len(self.program))
            self.program.append(Instruction("fork"))  # to the end, which is not known yet
            start = len(self.program)
            self._sequence(ignore_case=ignore_case)
        for place in jumps:
            self.program[place] = Instruction("fork", targets=(len(self.program),))

    def _insert(self, at: int, instruction: Instruction) -> None:
        """Insert an instruction; what lies behind moves by one place, and so do the targets there."""
        moved = [
            each._replace(targets=tuple(target + (target >= at) for target in each.targets))
            for each in self.program[at:]
        ]
        self.program[at:] = [instruction, *moved]

    def _sequence(self, *, ignore_case: bool) -> None:
        while self._next() not in ("", "|", ")"):
            start = len(self.program)
            if ignore_case and _FOLDED_TOGETHER.match(self.pattern, self._place):
                raise self._unknown("letters that a single one can stand for without regard to case")
            self._item(ignore_case=ignore_case)
            self._repeat(start)
            if len(self.program) > _MAX_INSTRUCTIONS:
                raise self._unknown(f"more than {_MAX_INSTRUCTIONS} instructions")

    def _item(self, *, ignore_case: bool) -> None:
        if self._takes("(?!"):
            self._look("not_", ignore_case=ignore_case)
        elif self._takes("(?="):
            self._look("", ignore_case=ignore_case)
        elif self._takes(r"\b"):
            self._go_on_if("border", self._number(r"\w"))
        elif self._takes("(?i:"):
            self._alternatives(ignore_case=True)
            self._close()
        elif self._takes("(?:") or (self._next() == "(" and not self._at("(?") and self._takes("(")):
            self._alternatives(ignore_case=ignore_case)
            self._close()
        else:
            self.program.append(Instruction("char", self._atom(ignore_case)))

    def _look(self, negation: str, *, ignore_case: bool) -> None:
        """Read what a look asks for: a character, which the next one answers by itself, or more than that."""
        start = self._place
        atom = self._atom_if_any(ignore_case=ignore_case)
        if atom is not None and self._takes(")"):
            self._go_on_if(f"{negation}ahead", atom)
            return
        self._place = start
        if self._is_in_look:
            raise self._unknown("a look within a look")
        self._is_in_look = True
        place = len(self.program)
        self.program.append(Instruction(f"{negation}look"))  # how far it reaches is not known yet
        self._alternatives(ignore_case=ignore_case)
        self._close()
        self.program.append(Instruction("match"))
        self.program[place] = Instruction(f"{negation}look", self._num_looks, (len(self.program),))
        self._is_in_look = False
        self._num_looks += 1

    def _go_on_if(self, kind: str, atom: int) -> None:
        self.program.append(Instruction(kind, atom, (len(self.program) + 1,)))

    def _at(self, text: str) -> bool:
        return self.pattern.startswith(text, self._place)

    def _close(self) -> None:
        if not self._takes(")"):
            raise self._unknown("something other than ')'")

    def _atom_if_any(self, *, ignore_case: bool) -> int | None:
        try:
            return self._atom(ignore_case)
        except UnknownRuleError:
            return None

    def _atom(self, ignore_case: bool) -> int:
        """Read a set of characters; return its number."""
        start = self._place
        if self._next() == "[":
            self._skip_set()
        elif self._next() == "\\":
            if (escape := _ESCAPE.match(self.pattern, start)) is None:
                raise self._unknown("an escape that is not understood")
            self._place = escape.end()
        elif self._next() in ("", *"()|*+?{}^$"):
            raise self._unknown("something other than a character")
        else:
            self._place += 1
        atom = self.pattern[start : self._place]
        return self._number(f"(?i:{atom})" if ignore_case else atom)

    def _number(self, atom: str) -> int:
        if atom not in self.atoms:
            self.atoms.append(atom)
        return self.atoms.index(atom)

    def _skip_set(self) -> None:
        depth = 0
        while self._next():
            depth += {"[": 1, "]": -1}.get(self._next(), 0)
            self._place += 2 if self._next() == "\\" else 1
            if depth == 0:
                return
        raise self._unknown("a set without its ']'")

    def _repeat(self, start: int) -> None:
        """Read what says how often the instructions from ``start`` on are repeated, and write that down."""
        least, most = self._bounds()
        if (least, most) == (1, 1):
            return
        if self._next() in ("+", "?", "*"):
            raise self._unknown("a possessive, lazy or doubled repeat")
        body = self.program[start:]
        del self.program[start:]
        for _ in range(least):
            self._copy(body, start)
        if most is None:
            loop = len(self.program)
            self.program.append(Instruction("fork"))
            self._copy(body, start)
            self.program.append(Instruction("fork", targets=(loop,)))
            self.program[loop] = Instruction("fork", targets=(loop + 1, len(self.program)))
            return
        forks = []
        for _ in range(most - least):
            forks.append(len(self.program))
            self.program.append(Instruction("fork"))
            self._copy(body, start)
        for place in forks:
            self.program[place] = Instruction("fork", targets=(place + 1, len(self.program)))

    def _copy(self, body: list[Instruction], start: int) -> None:
        shift = len(self.program) - start
        self.program += [each._replace(targets=tuple(target + shift for target in each.targets)) for each in body]

    def _bounds(self) -> tuple[int, int | None]:
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._takes(sign):
                return bounds
        if self._next() != "{":
            return 1, 1
        interval = _INTERVAL.match(self.pattern, self._place)
        if interval is None or not (interval[1] or interval[3]):
            raise self._unknown("a repeat that is not understood")
        self._place = interval.end()
        least = int(interval[1] or 0)
        most = least if not interval[2] else int(interval[3]) if interval[3] else None
        if least > _MAX_INSTRUCTIONS or (most or 0) > _MAX_INSTRUCTIONS or (most is not None and most < least):
            raise self._unknown("a repeat that is not understood")
        return least, most
