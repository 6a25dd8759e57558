"""The rules by which engines write forced text at once, and the places in documents where they are asked.

Each rule takes a place where bytes are forced and says which tokens it would write there:

  alone       the tokens of the forced bytes by themselves, all of them
  longest     greedy longest match over the vocabulary, all of it: xgrammar's find_jump_forward_tokens
  drop 1      the canonical tokens in context, without the last: MLC's rule
  look back   without those from which on some token could go on legally; the last four tokens are looked at, no
              further: llguidance's rule (`chop_tokens` in its toktrie/src/toktree.rs)
  any text    this package's stable tokens, whatever text may follow
  stable      the same, knowing what the grammar permits behind the forced bytes: policy `canonical`
  retokenize  everything, the output's end included, in canonical tokens: policy `retokenize`
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import jumpforward as jf
from jumpforward.decoding.boundary import Boundary
from jumpforward.grammar.bytewise import ByteWalker
from jumpforward.matching.compiler import GrammarCompiler
from jumpforward.matching.matcher import Matcher
from jumpforward.vocab.borders import StableBorders
from jumpforward.vocab.encoder import PlainEncoder, len_whole_characters
from jumpforward.vocab.vocabulary import Vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LOOK_BACK = 4

Tokens = tuple[int, ...]


class Run(NamedTuple):
    """A place in a document where bytes are forced, and what stands there in the end."""

    left: Tokens
    forced: bytes
    rest: Tokens  # the document's canonical tokens from here on
    matcher: Matcher
    walker: ByteWalker

    def num_right(self, committed: Tokens) -> int:
        """Return how many of the tokens that a rule writes the document has too, up to the first that it has not."""
        pairs = enumerate(committed)
        return next((at for at, token in pairs if self.rest[at : at + 1] != (token,)), len(committed))

    def num_inside(self, vocabulary: Vocabulary) -> int:
        """Return how many of the document's tokens lie within the forced bytes: no rule can do better."""
        ends = accumulate(len(vocabulary.token_bytes[token]) for token in self.rest)
        return sum(1 for _ in iter(lambda: next(ends, len(self.forced) + 1) <= len(self.forced), False))


class Rules:
    """The rules of one tokenizer. Each takes a run and returns the tokens that it would write."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.vocabulary = Vocabulary.from_tokenizer(tokenizer)
        self.encoder = PlainEncoder(tokenizer, self.vocabulary)
        self._borders = StableBorders(tokenizer, self.vocabulary)
        self.boundary = Boundary(self.encoder, self._borders)
        self._sorted = sorted({token for token in self.vocabulary.token_bytes if token})
        self._by_bytes = {token: index for index, token in enumerate(self.vocabulary.token_bytes) if token}
        self._longest = max(map(len, self._sorted))
        self.all: dict[str, Callable[[Run], Tokens]] = {
            "alone": self._alone,
            "longest": self._greedy,
            "drop 1": lambda run: self.boundary.spell(run.left, run.forced).ids[:-1],
            "look back": self._look_back,
            "any text": lambda run: self.boundary.spell(run.left, run.forced).stable,
            "stable": lambda run: self.boundary.spell(run.left, run.forced, run.matcher.live_bytes).stable,
            "retokenize": self._retokenize,
        }

    def forget(self) -> None:
        """Forget the seams seen so far."""
        self.boundary = Boundary(self.encoder, self._borders)
        self._borders.forget()

    def _alone(self, run: Run) -> Tokens:
        return self.encoder.encode(run.forced[: len_whole_characters(run.forced)]) or ()

    def _greedy(self, run: Run) -> Tokens:
        ids, data = [], run.forced
        while data:
            fitting = (data[:length] for length in range(min(self._longest, len(data)), 0, -1))
            token = next((piece for piece in fitting if piece in self._by_bytes), None)
            if token is None:
                break
            ids.append(self._by_bytes[token])
            data = data[len(token) :]
        return tuple(ids)

    def _look_back(self, run: Run) -> Tokens:
        ids = self.boundary.spell(run.left, run.forced).ids
        end = self.vocabulary.text_bytes(ids[-LOOK_BACK:])[-self._longest :]
        ahead = run.walker.fork()
        ahead.consume(run.forced)
        live = ahead.live_bytes()
        for start in range(len(end)):
            if self._goes_on(end[start:], ahead, live):
                lengths = accumulate(len(self.vocabulary.token_bytes[token]) for token in reversed(ids))
                num_dropped = next(count for count, length in enumerate(lengths, 1) if length >= len(end) - start)
                return ids[: len(ids) - num_dropped]
        return ids

    def _goes_on(self, beginning: bytes, ahead: ByteWalker, live: bytes) -> bool:
        """Whether some token begins so and goes on legally."""
        place = bisect_right(self._sorted, beginning)
        while place < len(self._sorted) and self._sorted[place].startswith(beginning):
            more = self._sorted[place][len(beginning) :]
            if more[0] in live and ahead.consume(more):
                ahead.rollback(1)
                return True
            place += 1
        return False

    def _retokenize(self, run: Run) -> Tokens:
        rewrite = self.boundary.rewrite(run.left, len(run.left), run.forced)
        return () if rewrite is None else (*run.left[: rewrite.num_kept], *rewrite.ids)[len(run.left) :]


def runs(grammar: jf.Grammar, compiler: GrammarCompiler, vocabulary: Vocabulary, ids: Tokens) -> Iterator[Run]:
    """Walk a document by its canonical tokens, and give every place in it where bytes are forced."""
    matcher, walker = compiler.pushdown(grammar).matcher(), grammar.walker()
    len_ahead = 0  # bytes from here on that belong to a run already given
    for index, token in enumerate(ids):
        if len_ahead <= 0 and (forced := matcher.forced_bytes()):
            len_ahead = len(forced)
            yield Run(ids[:index], forced, ids[index:], matcher, walker)
        matcher.consume(token)
        walker.consume(vocabulary.token_bytes[token])
        len_ahead -= len(vocabulary.token_bytes[token])
