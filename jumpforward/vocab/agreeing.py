"""What several sequences begin with alike."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile


def common_beginning(sequences: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the longest beginning that all of them have; there must be one of them."""
    columns = takewhile(lambda column: len(set(column)) == 1, zip(*sequences, strict=False))
    return tuple(column[0] for column in columns)
