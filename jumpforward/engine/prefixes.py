"""Beginnings of prompts that were computed for one request and serve others.

The key is token ids alone. What a grammar makes of the tokens behind them is no part of it, and only keys and values
are kept, which depend on nothing but the ids before them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import takewhile
from operator import eq
from threading import Lock
from typing import NamedTuple

import torch

# Keys and values of each layer, of shape (1, kv_heads, tokens, head_dim).
States = list[tuple[torch.Tensor, torch.Tensor]]

MIN_TOKENS = 16  # fewer are fed faster than they are looked after


class Match(NamedTuple):
    """The beginning of a prompt that is kept: its length, and states of at least that many tokens."""

    num_tokens: int
    states: States


class PrefixCache:
    """Prefixes within a limit in bytes; the one that served least recently makes room. For several threads."""

    def __init__(self, max_bytes: int, bytes_per_token: int) -> None:
        self._max_tokens = max_bytes // bytes_per_token if bytes_per_token else 0
        self._kept: OrderedDict[tuple[int, ...], States] = OrderedDict()  # in the order of their last use
        self._lock = Lock()

    @property
    def num_tokens(self) -> int:
        """How many tokens are kept."""
        return sum(map(len, self._kept))

    @property
    def is_enabled(self) -> bool:
        """Whether anything is ever kept."""
        return self._max_tokens >= MIN_TOKENS

    def longest(self, ids: Sequence[int]) -> Match:
        """Return the longest kept beginning of ``ids``, short of their last token, which must be fed."""
        with self._lock:
            best = max(self._kept, key=lambda kept: num_common(kept, ids), default=())
            num_tokens = min(num_common(best, ids), len(ids) - 1)
            if num_tokens < MIN_TOKENS:
                return Match(0, [])
            self._kept.move_to_end(best)
            return Match(num_tokens, self._kept[best])

    def keep(self, ids: tuple[int, ...], read: Callable[[], States]) -> None:
        """Keep a prefix, unless it is too long, or adds little to one that is kept. ``read`` gives its states."""
        if not MIN_TOKENS <= len(ids) <= self._max_tokens or len(ids) - self.longest(ids).num_tokens < MIN_TOKENS:
            return
        with self._lock:
            for kept in [kept for kept in self._kept if num_common(kept, ids) == len(kept)]:
                del self._kept[kept]  # the new one contains it
            while self.num_tokens + len(ids) > self._max_tokens:
                self._kept.popitem(last=False)
            self._kept[ids] = read()

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._kept.clear()


def num_common(first: Sequence[int], second: Sequence[int]) -> int:
    """Return how many tokens two sequences have in common at their beginnings."""
    return sum(takewhile(bool, map(eq, first, second)))
