"""One sequence: its ids, where each came from, its bytes, and how it ended. No tensors."""

from __future__ import annotations

from collections.abc import Sequence as Ids
from typing import Literal

from jumpforward.stats import Provenance
from jumpforward.vocab.vocabulary import Vocabulary

FinishReason = Literal["end", "length", "stop"]


class Sequence:
    """A prompt and its output so far.

    Attributes:
        prompt_ids: the prompt's tokens, which never change.
        output_ids: the output's tokens, an end token included.
        provenance: for each output token, who chose it.
        sources: for each output token, the source that drafted it; None where none did.
        logprobs: for each output token, the model's log-probability of it where one is known.
        data: the output's bytes, cut in front of a stop string.
        finish_reason: why it ended; None while it goes on.
        num_final: how many of the output's tokens are sure never to be rewritten; None stands for all.
    """

    def __init__(
        self,
        prompt_ids: Ids[int],
        vocabulary: Vocabulary,
        *,
        max_new_tokens: int,
        stop: Ids[bytes] = (),
        num_healed_bytes: int = 0,
    ) -> None:
        """Begin with no output. Its first ``num_healed_bytes`` bytes will be the prompt's, and no part of its data."""
        self.prompt_ids = tuple(prompt_ids)
        self.output_ids: list[int] = []
        self.provenance: list[Provenance] = []
        self.sources: list[str | None] = []
        self.logprobs: list[float | None] = []
        self.data = bytearray()
        self.finish_reason: FinishReason | None = None
        self.num_final: int | None = None
        self._num_healed_bytes = num_healed_bytes  # that are still to come
        self._vocabulary = vocabulary
        self._max_new_tokens = max_new_tokens
        self._stop = stop

    def __len__(self) -> int:
        """Return the number of tokens, the prompt's included."""
        return len(self.prompt_ids) + len(self.output_ids)

    @property
    def num_left(self) -> int:
        """How many tokens the output has room for."""
        return self._max_new_tokens - len(self.output_ids)

    def tokens_from(self, start: int) -> list[int]:
        """Return the sequence's tokens from index ``start`` on: with the cached length, what is not cached."""
        len_prompt = len(self.prompt_ids)
        return [*self.prompt_ids[start:], *self.output_ids[max(0, start - len_prompt) :]]

    def append(self, token: int, provenance: Provenance, source: str | None = None) -> None:
        """Add a token. It may end the sequence: by what it is, by what it spells, or by being the last."""
        self.output_ids.append(token)
        self.provenance.append(Provenance.HEALED if self._num_healed_bytes else provenance)
        self.sources.append(source)
        self.logprobs.append(None)
        if token in self._vocabulary.end_ids:
            self.finish_reason = "end"
            return
        self._grow(self._vocabulary.token_bytes[token])

    @property
    def text_ids(self) -> list[int]:
        """The output's tokens without an end token."""
        return self.output_ids[:-1] if self.finish_reason == "end" else self.output_ids

    def rewrite(self, num_kept: int, tokens: Ids[int], provenance: Ids[Provenance]) -> None:
        """Put ``tokens`` in place of the text tokens behind the first ``num_kept``.

        They spell what those spelled, and maybe more, which may end the sequence as :meth:`append` does.
        """
        stop = len(self.text_ids)
        num_old = len(self._vocabulary.text_bytes(self.output_ids[num_kept:stop]))
        self.output_ids[num_kept:stop] = tokens
        self.provenance[num_kept:stop] = provenance
        self.sources[num_kept:stop] = [None] * len(tokens)
        self.logprobs[num_kept:stop] = [None] * len(tokens)
        self._grow(self._vocabulary.text_bytes(tokens)[num_old:])

    def _grow(self, new: bytes) -> None:
        """Add bytes that the last tokens brought, and end if they or the number of tokens say so."""
        num_healed = min(self._num_healed_bytes, len(new))
        self._num_healed_bytes -= num_healed
        self._spell(new[num_healed:])
        if self.finish_reason is None and self.num_left == 0:
            self.finish_reason = "length"

    def _spell(self, new: bytes) -> None:
        """Add bytes, and end in front of the first stop string that they complete."""
        longest = max(map(len, self._stop), default=0)
        searched_from = max(0, len(self.data) - longest + 1)
        self.data += new
        found = [at for stop in self._stop if (at := self.data.find(stop, searched_from)) >= 0]
        if found:
            del self.data[min(found) :]
            self.finish_reason = "stop"

    @property
    def num_certain_bytes(self) -> int:
        """How many of the bytes are sure to be in the final text: all that no stop string can still take back."""
        if self.finish_reason is not None:
            return len(self.data)
        pending = (_len_overlap(self.data, stop) for stop in self._stop)
        return len(self.data) - max(pending, default=0)


def _len_overlap(data: bytearray, stop: bytes) -> int:
    """Return the length of the longest end of ``data`` with which ``stop`` begins."""
    longest = min(len(data), len(stop) - 1)
    return next((length for length in range(longest, 0, -1) if data.endswith(stop[:length])), 0)
