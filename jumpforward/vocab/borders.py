"""Which borders between forced tokens no continuation can move.

Two facts make a border between two bytes safe, for every BPE:

1. No token of the vocabulary contains the two bytes side by side. Merges only grow tokens, so none ever
   crosses the border, and what is left of it is tokenized as if it stood alone.
2. The pre-tokenizer's cuts left of it are settled: no text behind the known bytes changes them. How far
   that reaches is known here for pre-tokenizers whose rule has been worked out; for others nothing is
   settled, and nothing counts as stable. Added tokens are found before the pre-tokenizer's turn: where
   one could still begin, the text behind may end, as far as the pre-tokenizer sees.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from jumpforward.vocab.vocabulary import Vocabulary, backend_spec, components

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# GPT-2's rule looks one character past a run of white space (`\s+(?!\S)`), and an apostrophe can still
# become a contraction ('re, 've, 'll). Everything before such a tail is cut for good.
_OPEN_TAIL = re.compile(r"(\s+|'[rvl]?)\Z")
_NO_TAIL = re.compile(r"\Z")  # without a pre-tokenizer there are no cuts


class StableBorders:
    """The borders of one tokenizer that stay whatever follows."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._settled = _settled_rule(backend_spec(tokenizer))
        self._side_by_side = _side_by_side(vocabulary.token_bytes)

    def num_stable(self, ids: Sequence[int]) -> int:
        """Return how many of the canonical tokens ``ids`` of a text stay whatever text follows."""
        data = self._vocabulary.text_bytes(ids)
        settled = self._settled(data)
        ends = list(accumulate(len(self._vocabulary.token_bytes[index]) for index in ids))
        for count in range(len(ids), 0, -1):
            end = ends[count - 1]
            if end < len(data) and end <= settled and not self._side_by_side[data[end - 1], data[end]]:
                return count
        return 0


def _side_by_side(token_bytes: Sequence[bytes]) -> np.ndarray:
    """Return, for all pairs of bytes, whether some token contains them next to each other.

    Boolean, shape (256, 256): first byte, second byte.
    """
    data = np.frombuffer(b"".join(token_bytes), dtype=np.uint8)
    lengths = np.array([len(token) for token in token_bytes if token])
    inside = np.ones(len(data), dtype=bool)
    inside[np.cumsum(lengths) - 1] = False  # a token's last byte has no neighbour to the right
    pairs = np.zeros((256, 256), dtype=bool)
    first = np.flatnonzero(inside)
    pairs[data[first], data[first + 1]] = True
    return pairs


def _settled_rule(spec: dict[str, Any]) -> Callable[[bytes], int]:
    """Return the function from a text to the length of its prefix whose cuts are final."""
    plain_bpe = spec["model"]["type"] == "BPE" and not any(
        spec["model"].get(key) for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix")
    )
    steps = components(spec["pre_tokenizer"])
    added = [token for token in spec["added_tokens"] if not token["special"]]
    takes_spaces = any(token["lstrip"] for token in added)
    if not plain_bpe or takes_spaces or not _only_moves_spaces(components(spec["normalizer"])):
        return _nothing
    # An added token can begin in the last characters; one more, so that it also begins behind the border.
    reach = 1 + max(len(token["content"]) for token in added) if added else 0
    if not steps:
        return partial(_before_tail, reach, _NO_TAIL)
    *before, last = steps
    digits_apart = all(step["type"] == "Digits" and step["individual_digits"] for step in before)
    if last["type"] != "ByteLevel" or not digits_apart:
        return _nothing
    return partial(_before_tail, reach, _OPEN_TAIL if last["use_regex"] else _NO_TAIL)


def _only_moves_spaces(steps: list[dict[str, Any]]) -> bool:
    """Whether a normalizer does no more than SentencePiece's writing of spaces."""
    return all(
        step["type"] == "Prepend" or (step["type"] == "Replace" and step["pattern"].get("String") == " ")
        for step in steps
    )


def _nothing(data: bytes) -> int:  # noqa: ARG001  (one of three rules of one form)
    return 0


def _before_tail(reach: int, open_tail: re.Pattern[str], data: bytes) -> int:
    """Return the length of what is cut for good: all but ``reach`` characters, and the open tail of that."""
    text = data.decode(errors="surrogateescape")
    known = text[: max(0, len(text) - reach)]
    tail = open_tail.search(known)
    return len(known[: tail.start() if tail else None].encode(errors="surrogateescape"))
