"""Where a sequence of tokens is not what the tokenizer makes of its text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from jumpforward.vocab.encoder import PlainEncoder, len_whole_characters


@dataclass(frozen=True)
class Seam:
    """A stretch of text that two tokenizations spell in two ways, with common borders around it and none inside.

    Attributes:
        start: the index of the sequence's first token in it.
        stop: the index behind its last.
        canonical: the tokenizer's own tokens for the same bytes.
    """

    start: int
    stop: int
    canonical: tuple[int, ...]


def find_seams(encoder: PlainEncoder, ids: Sequence[int]) -> list[Seam] | None:
    """Return the seams of a sequence; none if it is canonical. None where its text has no canonical tokens.

    The sequence is taken to stand in the middle of a text, as outputs do. At its end, ids without bytes are left out,
    and so are the tokens of an unfinished character; anywhere else they are a reason for None.
    """
    lengths = [len(encoder.vocabulary.token_bytes[index]) for index in ids]
    while lengths and not lengths[-1]:
        lengths.pop()
    data = encoder.vocabulary.text_bytes(ids)
    whole = len_whole_characters(data)
    while sum(lengths) > whole:
        lengths.pop()
    if 0 in lengths:
        return None
    canonical = encoder.encode(data[: sum(lengths)])
    return None if canonical is None else _differences(ids[: len(lengths)], canonical, encoder.vocabulary.token_bytes)


def _differences(ids: Sequence[int], canonical: Sequence[int], token_bytes: Sequence[bytes]) -> list[Seam]:
    """Compare two tokenizations of one text between their common borders."""
    own, other = (
        {end: index for index, end in enumerate(accumulate((len(token_bytes[each]) for each in tokens), initial=0))}
        for tokens in (ids, canonical)
    )
    common = sorted(own.keys() & other.keys())
    stretches = [(own[start], own[end], tuple(canonical[other[start] : other[end]])) for start, end in pairwise(common)]
    return [Seam(start, stop, spelled) for start, stop, spelled in stretches if tuple(ids[start:stop]) != spelled]
