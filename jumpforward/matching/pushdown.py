"""xgrammar's matcher behind the protocol: every kind of grammar."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import xgrammar

from jumpforward.grammar.spec import Grammar
from jumpforward.vocab.vocabulary import Vocabulary

if TYPE_CHECKING:
    import torch

    from jumpforward.grammar.bytewise import ByteWalker


@dataclass(frozen=True, eq=False)
class CompiledGrammar:
    """A grammar compiled for a vocabulary: shared by requests, never changed."""

    grammar: Grammar
    vocabulary: Vocabulary
    tokens: xgrammar.CompiledGrammar = field(repr=False)

    def matcher(self) -> PushdownMatcher:
        """Return a new matcher at the start of the grammar."""
        return PushdownMatcher(self, xgrammar.GrammarMatcher(self.tokens), None, [])


class PushdownMatcher:
    """A place in a grammar of any kind. See :class:`jumpforward.matching.matcher.Matcher`."""

    def __init__(
        self,
        compiled: CompiledGrammar,
        tokens: xgrammar.GrammarMatcher,
        walker: ByteWalker | None,
        consumed: list[int],
    ) -> None:
        self._compiled = compiled
        self._tokens = tokens
        self._walker = walker
        self._consumed = consumed

    def consume(self, token: int) -> bool:
        """Move over a token; False, and no move, where it is not legal."""
        vocabulary = self._compiled.vocabulary
        if self.is_terminated or not 0 <= token < vocabulary.width or not self._tokens.accept_token(token):
            return False
        if self._walker is not None:
            self._walker.consume(vocabulary.token_bytes[token])
        self._consumed.append(token)
        return True

    def rollback(self, num_tokens: int) -> None:
        """Undo the last ``num_tokens`` tokens.

        Raises:
            ValueError: fewer have been consumed.
        """
        if not 0 <= num_tokens <= len(self._consumed):
            raise ValueError(f"cannot undo {num_tokens} of {len(self._consumed)} tokens")
        if not num_tokens:
            return
        self._tokens.rollback(num_tokens)
        undone = self._consumed[-num_tokens:]
        del self._consumed[-num_tokens:]
        if self._walker is not None:  # an end token has no bytes, and was no step there
            self._walker.rollback(sum(1 for token in undone if self._compiled.vocabulary.token_bytes[token]))

    def fork(self) -> PushdownMatcher:
        """Return an independent matcher at the same place."""
        walker = self._walker.fork() if self._walker is not None else None
        return PushdownMatcher(self._compiled, self._tokens.fork(), walker, self._consumed.copy())

    def _bytewise(self) -> ByteWalker:
        """Return a walker over bytes at the same place: made when it is first asked for, and kept up from then on."""
        if self._walker is None:
            self._walker = self._compiled.grammar.walker()
            for token in self._consumed:
                self._walker.consume(self._compiled.vocabulary.token_bytes[token])
        return self._walker

    def forced_bytes(self) -> bytes:
        """Return the bytes that every completion starts with, up to where the output may end."""
        if self.is_terminated:  # xgrammar must not be asked then
            return b""
        if self._compiled.grammar.has_multibyte_literals:  # only then can they end inside a character
            return self._bytewise().forced_bytes()
        return str(self._tokens.find_jump_forward_string()).encode()

    def fill_bitmask(self, bitmask: torch.Tensor, row: int) -> None:
        """Write the legal tokens into a row of ``bitmask``."""
        if self.is_terminated:
            bitmask[row] = 0
        else:
            self._tokens.fill_next_token_bitmask(bitmask, row)

    def has_choice(self) -> bool:
        """Whether the grammar goes on in several ways, for a vocabulary that spells them."""
        return self._compiled.vocabulary.spells_any_text and not self.is_accepting and not self.forced_bytes()

    def live_bytes(self, behind: bytes = b"") -> bytes:
        """Return the bytes that may come next, or behind bytes that the grammar permits, in ascending order."""
        if self.is_terminated:
            return b""
        walker = self._bytewise()
        if not walker.consume(behind):
            raise ValueError(f"the grammar does not permit {behind!r} here")
        live = walker.live_bytes()
        walker.rollback(1 if behind else 0)
        return live

    def missing_bytes(self) -> bytes:
        """Return the bytes that may come next and that no token begins with."""
        spellable = self._compiled.vocabulary.spellable_bytes
        return bytes(byte for byte in self.live_bytes() if byte not in spellable)

    @property
    def is_accepting(self) -> bool:
        """Whether the output so far is complete."""
        return self.is_terminated or bool(self._tokens.is_completed())

    @property
    def is_terminated(self) -> bool:
        """Whether an end token has been consumed."""
        return bool(self._tokens.is_terminated())
