"""Walking a grammar byte by byte: xgrammar over a vocabulary of the 256 single bytes.

xgrammar answers "what is forced here" in whole characters. Over this vocabulary the same matcher
answers for every byte, also inside a character, and without any tokenizer.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import xgrammar

END_ID = 256  # behind the 256 bytes; xgrammar wants a token that ends the output


@lru_cache(maxsize=1)
def _compiler() -> xgrammar.GrammarCompiler:
    import xgrammar

    vocabulary = [bytes([value]) for value in range(256)] + [b""]
    info = xgrammar.TokenizerInfo(vocabulary, xgrammar.VocabType.RAW, vocab_size=END_ID + 1, stop_token_ids=[END_ID])
    # The cache stays off: a grammar's owner keeps what was compiled for it.
    return xgrammar.GrammarCompiler(info, cache_enabled=False)


def compile_bytewise(rules: xgrammar.Grammar) -> xgrammar.CompiledGrammar:
    """Return a grammar compiled for walks by bytes, which may share it."""
    return _compiler().compile_grammar(rules)


class ByteWalker:
    """A position in a grammar that moves by bytes. Queries change nothing."""

    def __init__(self, compiled: xgrammar.CompiledGrammar) -> None:
        """Begin at the start of a grammar that :func:`compile_bytewise` has compiled."""
        import xgrammar

        self._place_at(xgrammar.GrammarMatcher(compiled))

    def _place_at(self, matcher: xgrammar.GrammarMatcher) -> None:
        import xgrammar

        self._matcher = matcher
        self._bitmask = xgrammar.allocate_token_bitmask(1, END_ID + 1)

    def fork(self) -> ByteWalker:
        """Return an independent walker at the same place."""
        other = object.__new__(ByteWalker)
        other._place_at(self._matcher.fork())
        return other

    def reset(self) -> None:
        """Go back to the start of the grammar."""
        self._matcher.reset()

    def consume(self, data: bytes) -> bool:
        """Move over ``data``; False, and no move, where the grammar does not permit it."""
        return not data or bool(self._matcher.accept_string(data))

    def rollback(self, num_calls: int) -> None:
        """Undo the last ``num_calls`` successful calls of :meth:`consume` with bytes in them."""
        if num_calls:
            self._matcher.rollback(num_calls)

    @property
    def is_accepting(self) -> bool:
        """Whether the bytes so far are a complete output."""
        return bool(self._matcher.is_completed())

    def live_bytes(self) -> bytes:
        """Return the bytes that may come next, in ascending order."""
        self._matcher.fill_next_token_bitmask(self._bitmask)
        return np_bits(self._bitmask.numpy()[0])[:256].nonzero()[0].astype("uint8").tobytes()

    def place(self) -> str:
        """Return an opaque name of the place in the rules.

        Two bytes tried at one place lead to the same future if they lead to the same name.
        """
        return str(self._matcher._debug_print_internal_state())

    def forced_bytes(self) -> bytes:
        """Return the longest byte string that every completion starts with.

        It ends at the first place where the output may end. Exact to the byte, also inside a
        character.
        """
        forced = bytearray()
        num_calls = 0
        while not self.is_accepting:
            run = str(self._matcher.find_jump_forward_string()).encode()
            if not run:  # nothing, or the lead bytes of a character
                live = self.live_bytes()
                if len(live) != 1:
                    break
                run = live
            self.consume(run)
            num_calls += 1
            forced += run
        self.rollback(num_calls)
        return bytes(forced)


def np_bits(words: np.ndarray) -> np.ndarray:
    """Unpack int32 mask words of shape (n,) into booleans of shape (32 * n,), lowest bit first."""
    import numpy as np

    return np.unpackbits(words.view(np.uint8), bitorder="little").astype(bool)
