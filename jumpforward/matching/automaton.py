"""A matcher for regular grammars: a state, and a table."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from jumpforward.errors import GrammarError
from jumpforward.grammar.dfa import Dfa
from jumpforward.grammar.pattern import XGRAMMAR, xgrammar_difference
from jumpforward.grammar.spec import Grammar
from jumpforward.matching.token_index import IndexTooLargeError, TokenIndex
from jumpforward.vocab.vocabulary import Vocabulary

if TYPE_CHECKING:
    import torch


class _Place(NamedTuple):
    """A state, and the place before it. Forks share their past."""

    state: int
    before: _Place | None = None


@dataclass(frozen=True, eq=False)
class CompiledAutomaton:
    """A regular grammar compiled for a vocabulary: shared by requests, never changed."""

    grammar: Grammar
    vocabulary: Vocabulary
    dfa: Dfa = field(repr=False)
    index: TokenIndex = field(repr=False)

    def matcher(self) -> AutomatonMatcher:
        """Return a new matcher at the start of the grammar."""
        return AutomatonMatcher(self, _Place(self.dfa.start), 0)

    @property
    def fewest_tokens(self) -> int | None:
        """The tokens of the shortest complete output, without the end token; None if none can be spelled."""
        return self.index.fewest(self.dfa.start)


def automaton_for(grammar: Grammar, vocabulary: Vocabulary) -> CompiledAutomaton | str:
    """Return the grammar compiled into an automaton; where that cannot be, why, as a sentence's end."""
    found = index_of(grammar, vocabulary)
    return found if isinstance(found, str) else CompiledAutomaton(grammar, vocabulary, *found)


def index_of(grammar: Grammar, vocabulary: Vocabulary) -> tuple[Dfa, TokenIndex] | str:
    """Return the grammar's byte automaton and its token index; where that cannot be, why, as a sentence's end."""
    dfa = dfa_for(grammar)
    if isinstance(dfa, str):
        return dfa
    try:
        return dfa, TokenIndex.build(dfa, vocabulary)
    except IndexTooLargeError as error:
        return str(error)


def dfa_for(grammar: Grammar) -> Dfa | str:
    """Return the byte automaton of a regular grammar, read as xgrammar reads it; else why there is none."""
    try:
        if grammar.kind == "choice":
            return Dfa.from_strings(json.loads(grammar.source))
        if grammar.kind != "regex":
            return f"a grammar of kind {grammar.kind} need not be regular"
        if (difference := xgrammar_difference(grammar.source)) is not None:
            return f"{difference} would be read in another way"
        return Dfa.from_regex(grammar.source, dialect=XGRAMMAR)
    except GrammarError as error:
        return error.reason


class AutomatonMatcher:
    """A place in a regular grammar. See :class:`jumpforward.matching.matcher.Matcher`."""

    def __init__(self, compiled: CompiledAutomaton, place: _Place, num_consumed: int) -> None:
        self._compiled = compiled
        self._index = compiled.index
        self._place = place
        self._num_consumed = num_consumed

    def consume(self, token: int) -> bool:
        """Move over a token; False, and no move, where it is not legal. One lookup."""
        index = self._index
        if not 0 <= token < len(index.effect_of):
            return False
        state = index.next_state.item(index.effect_of.item(token), self._place.state)
        if state == index.dead:
            return False
        self._place = _Place(state, self._place)
        self._num_consumed += 1
        return True

    def rollback(self, num_tokens: int) -> None:
        """Undo the last ``num_tokens`` tokens, one step each.

        Raises:
            ValueError: fewer have been consumed.
        """
        if not 0 <= num_tokens <= self._num_consumed:
            raise ValueError(f"cannot undo {num_tokens} of {self._num_consumed} tokens")
        for _ in range(num_tokens):
            self._place = self._place.before or self._place
        self._num_consumed -= num_tokens

    def fork(self) -> AutomatonMatcher:
        """Return an independent matcher at the same place. Nothing is copied."""
        return AutomatonMatcher(self._compiled, self._place, self._num_consumed)

    def forced_bytes(self) -> bytes:
        """Return the bytes that every completion starts with, up to where the output may end."""
        return b"" if self.is_terminated else self._compiled.dfa.forced(self._place.state)[0]

    def has_choice(self) -> bool:
        """Whether the language goes on in several ways, and its tokens there lie in several words of the row."""
        if self.is_accepting or self.forced_bytes():
            return False
        return int(np.count_nonzero(self._index.masks[self._place.state])) > 1

    def fill_bitmask(self, bitmask: torch.Tensor, row: int) -> None:
        """Write the legal tokens into a row of ``bitmask``: copy the state's row."""
        bitmask.numpy()[row] = self._index.masks[self._place.state]

    def fill_completing_bitmask(self, bitmask: torch.Tensor, row: int, num_tokens: int) -> None:
        """Write only those legal tokens behind which ``num_tokens - 1`` more can complete the output.

        Some token is legal as long as ``num_tokens`` is at least 1 and at least :attr:`fewest_tokens`, and stays
        so while one token at a time is chosen from this mask and ``num_tokens`` counts down. The end token counts.
        """
        bitmask.numpy()[row] = self._index.completing_mask(self._place.state, num_tokens)

    def live_bytes(self, behind: bytes = b"") -> bytes:
        """Return the bytes that may come next, or behind bytes that the grammar permits, in ascending order."""
        dfa = self._compiled.dfa
        return b"" if self.is_terminated else dfa.live_bytes(dfa.run(behind, self._place.state))

    def missing_bytes(self) -> bytes:
        """Return the bytes, anywhere from here on, that no token contains."""
        if self.is_terminated:
            return b""
        needed = self._compiled.dfa.bytes_from(self._place.state)
        return bytes(sorted(needed - set(b"".join(self._compiled.vocabulary.token_bytes))))

    @property
    def fewest_tokens(self) -> int | None:
        """The fewest tokens from here to a complete output, without the end token; None where there is no way."""
        return self._index.fewest(self._place.state)

    @property
    def is_accepting(self) -> bool:
        """Whether the output so far is complete."""
        return self.fewest_tokens == 0

    @property
    def is_terminated(self) -> bool:
        """Whether an end token has been consumed."""
        return self._place.state == self._index.ended
