"""How a tokenizer cuts a text into the pieces that its model sees one by one, and what of that is final."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from jumpforward.vocab.agreeing import common_beginning
from jumpforward.vocab.pattern_parser import UnknownRuleError
from jumpforward.vocab.split_rule import END, Ahead, Cuts, SplitRule, TooManyWaysError

_LITERAL = re.compile(r"[\w\s]+")
# GPT-2's pattern, which the byte-level step applies by itself.
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


class Cutting:
    """The cuts of a pre-tokenizer: rules that are applied one after the other, each to the pieces of the one before.

    Attributes:
        rules: the rules, in order; without any, a text is one piece.
    """

    def __init__(self, steps: Sequence[dict[str, Any]], space: str = " ") -> None:
        """Read a pre-tokenizer's steps, and with which letter a space comes to them.

        Raises:
            UnknownRuleError: one of them is not understood.
        """
        self._space = space
        self.rules = [rule for index, step in enumerate(steps) for rule in _rules(step, index == len(steps) - 1, space)]

    def cuts(self, text: str, ahead: Ahead) -> list[Cuts]:
        """Return every way to cut a text, in the form of :meth:`SplitRule.cuts`.

        Raises:
            TooManyWaysError: there are too many.
        """
        text, ahead = self._as_seen(text), ahead._replace(char=ahead.char and self._as_seen(ahead.char))
        ways: list[Cuts] = [(0, len(text)) if ahead.is_end and text else (0,)]
        for rule in self.rules:
            try:
                ways = [finer for way in ways for finer in _refined(rule, text, way, ahead)]
            except TooManyWaysError as error:  # of the last piece of one way; what is known of all is where they part
                place = common_beginning(ways)[-1]
                raise TooManyWaysError(place + (error.place if len(ways) == 1 else 0)) from None
        return ways

    def signatures(self, char: str) -> tuple[int, ...]:
        """Return what a character is to each rule; characters with the same signatures are treated alike."""
        return tuple(rule.signature(self._as_seen(char)) for rule in self.rules)

    def parts(self, left: str, right: str) -> bool:
        """Whether two characters next to each other are always in pieces of their own."""
        return any(rule.cuts_between(self._as_seen(left), self._as_seen(right)) for rule in self.rules)

    def joins(self, left: str, right: str) -> bool:
        """Whether what lies on one side of a place between these two characters can matter to the cuts on the other.

        To later rules a cut there is the end of their text.
        """
        left, right = self._as_seen(left), self._as_seen(right)
        if any(rule.joins(left, right) for rule in self.rules):
            return True
        return any(rule.is_undecided(left, right) for rule in self.rules[:-1])

    def _as_seen(self, text: str) -> str:
        return text.replace(" ", self._space)


def _refined(rule: SplitRule, text: str, way: Cuts, ahead: Ahead) -> list[Cuts]:
    """Return the ways in which a rule cuts the pieces of one way."""
    finer: Cuts = (0,)
    for start, end in pairwise(way):
        (inner,) = rule.cuts(text[start:end], END)
        finer = (*finer, *(start + place for place in inner[1:]))
    start = way[-1]
    if start == len(text):
        return [finer]
    return [(*finer, *(start + place for place in inner[1:])) for inner in rule.cuts(text[start:], ahead)]


def _rules(step: dict[str, Any], is_last: bool, space: str) -> list[SplitRule]:
    """Return a step's rules: one, or none where it cuts nothing."""
    kind = step["type"]
    if kind == "ByteLevel" and is_last:  # behind it the text is in other letters
        return [SplitRule(_GPT2)] if step["use_regex"] else []
    if kind == "Digits":
        return [SplitRule(r"\p{N}" if step["individual_digits"] else r"\p{N}+")]
    if kind == "Metaspace" and is_last and step["replacement"] == "▁":
        return [SplitRule("[ ▁][^ ▁]*|[^ ▁]+")] if step["split"] else []
    if kind == "Split" and (pattern := _pattern(step)) is not None:
        if pattern == " " != space:  # as Gemma's has it: there are none any more
            return []
        if step["behavior"] == "Isolated":
            return [SplitRule(pattern)]
    raise UnknownRuleError(f"the pre-tokenizer's step {kind}")


def _pattern(step: dict[str, Any]) -> str | None:
    """Return what a step splits by, as a pattern; None for a string with other than words and spaces."""
    (form, content) = next(iter(step["pattern"].items()))
    return content if form == "Regex" or _LITERAL.fullmatch(content) else None
