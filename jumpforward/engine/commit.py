"""What a policy writes into a sequence without asking the model."""

from __future__ import annotations

from collections.abc import Sequence as Ids
from itertools import accumulate

from jumpforward.decoding.boundary import Boundary, Rewrite
from jumpforward.decoding.policy import Policy
from jumpforward.engine.sequence import Sequence
from jumpforward.matching.matcher import Matcher
from jumpforward.stats import Counters, Provenance
from jumpforward.vocab.vocabulary import Vocabulary


class Committer:
    """Writes the forced text of one request, as far and in the way that its policy has it."""

    def __init__(
        self,
        policy: Policy,
        sequence: Sequence,
        matcher: Matcher,
        boundary: Boundary,
        vocabulary: Vocabulary,
        counters: Counters,
    ) -> None:
        self._policy = policy
        self._sequence = sequence
        self._matcher = matcher
        self._boundary = boundary
        self._vocabulary = vocabulary
        self._counters = counters
        self._num_canonical = 0  # of the output's tokens: as they would be encoded
        if policy.rewrites:
            sequence.num_final = 0

    def commit(self) -> int:
        """Write what can be written; return how many of the output's tokens stayed what they were.

        Everything behind them is new to the model. A sequence that has ended is brought into its final form.
        """
        num_before = len(self._sequence.output_ids)
        with self._counters.timed("boundary"):
            if self._sequence.finish_reason is not None:
                return self._finish() if self._policy.rewrites else num_before
            forced = self._matcher.forced_bytes() if self._policy.forces else b""
            if not forced:
                return num_before
            if self._policy.rewrites:
                return self._rewrite(forced)
            spelling = self._boundary.spell(self._sequence.output_ids, forced, self._matcher.live_bytes)
            self._counters.withheld(spelling.num_withheld, is_understood=spelling.is_understood)
            self._append(spelling.stable)
        return num_before

    def stable(self, output_ids: Ids[int]) -> Ids[int]:
        """Return the stable tokens of what is forced behind ``output_ids``, at whose end the matcher stands."""
        forced = self._matcher.forced_bytes()
        return self._boundary.spell(output_ids, forced, self._matcher.live_bytes).stable if forced else ()

    def _append(self, tokens: Ids[int]) -> bool:
        """Append forced tokens; False where it ends with some of them."""
        for token in tokens:
            # A budget may leave no room for this spelling, though there is some for another.
            if self._sequence.finish_reason is not None or not self._matcher.consume(token):
                return False
            self._sequence.append(token, Provenance.FORCED)
        return True

    def _rewrite(self, forced: bytes) -> int:
        """Append all forced text in its canonical form, which may be another one for tokens before it."""
        output = self._sequence.output_ids
        rewrite = self._boundary.rewrite(output, self._num_canonical, forced)
        if rewrite is None or not self._replace(rewrite):
            num_before = len(output)
            self._append(self._boundary.tokens(output, forced))
            return num_before
        if self._sequence.finish_reason is None:
            self._num_canonical = len(output)
        return rewrite.num_kept

    def _replace(self, rewrite: Rewrite) -> bool:
        """Put a rewrite into effect; False, and no change, where there is no room for it or the matcher refuses it."""
        old = self._sequence.output_ids[rewrite.num_kept :]
        len_old = len(self._vocabulary.text_bytes(old))
        starts = accumulate((len(self._vocabulary.token_bytes[token]) for token in rewrite.ids), initial=0)
        num_instead = sum(start < len_old for start in list(starts)[:-1])
        if num_instead - len(old) > self._sequence.num_left:
            return False
        instead = rewrite.ids[:num_instead]
        self._matcher.rollback(len(old))
        for index, token in enumerate(instead):
            if not self._matcher.consume(token):
                self._matcher.rollback(index)
                for each in old:
                    self._matcher.consume(each)
                return False
        if old:
            self._sequence.rewrite(rewrite.num_kept, instead, self._provenance(rewrite.num_kept, instead))
        self._sequence.num_final = rewrite.num_final
        self._append(rewrite.ids[num_instead:])
        return True

    def _finish(self) -> int:
        """Bring the end of a sequence that has ended into canonical form, where there is room for that."""
        sequence = self._sequence
        sequence.num_final = None
        text_ids = list(sequence.text_ids)
        if sequence.finish_reason == "stop" or self._num_canonical == len(text_ids):
            return len(sequence.output_ids)
        rewrite = self._boundary.rewrite(text_ids, self._num_canonical, b"")
        if rewrite is None or rewrite.num_kept + len(rewrite.ids) - len(text_ids) > sequence.num_left:
            return len(sequence.output_ids)
        self._num_canonical = rewrite.num_kept + len(rewrite.ids)
        sequence.rewrite(rewrite.num_kept, rewrite.ids, self._provenance(rewrite.num_kept, rewrite.ids))
        return rewrite.num_kept

    def _provenance(self, num_kept: int, tokens: Ids[int]) -> list[Provenance]:
        """Return whose the tokens are that take the place of those behind the first ``num_kept``.

        The tokenizer's, if they stand for some text of tokens that were not forced.
        """
        token_bytes, sequence = self._vocabulary.token_bytes, self._sequence
        by_byte = [
            kind
            for token, kind in zip(sequence.output_ids[num_kept:], sequence.provenance[num_kept:], strict=True)
            for _ in token_bytes[token]
        ]
        found = []
        end = 0
        for token in tokens:
            start, end = end, end + len(token_bytes[token])
            kinds = set(by_byte[start:end])
            if Provenance.HEALED in kinds:
                found.append(Provenance.HEALED)
            else:
                found.append(Provenance.FORCED if kinds <= {Provenance.FORCED} else Provenance.RETOKENIZED)
        return found
