"""How much an engine does at a time, and in how much memory."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TypedDict

from jumpforward.errors import OptionError


class EngineLimits(TypedDict, total=False):
    """What an engine may be told about serving several requests; the fields of :class:`Limits`."""

    batch_size: int
    token_budget: int
    max_padding: int | None
    max_cache_bytes: int | None
    prefix_cache_bytes: int
    max_waiting: int


@dataclass(frozen=True)
class Limits:
    """Limits of an engine that serves several requests.

    Attributes:
        batch_size: how many requests run at a time; the others wait for a row of the cache.
        token_budget: the most tokens that a step feeds. Longer prompts are cut, so that other requests get on.
        max_padding: the most padding, in tokens, for whose sake chunks of unlike length share a pass. By default as
            much as costs about what another pass would, which is measured. Models that attend by SDPA need none; see
            :mod:`jumpforward.engine.attention`.
        max_cache_bytes: the most memory that the KV cache takes; None for no limit. While buffers are exchanged
            for larger ones, one layer's are there twice.
        prefix_cache_bytes: the most memory for beginnings of prompts that are kept for other requests; 0 keeps none.
        max_waiting: how many requests may wait; ``submit`` blocks while there are as many.

    Raises:
        OptionError: a value that means nothing.
    """

    batch_size: int = 8
    token_budget: int = 512
    max_padding: int | None = None
    max_cache_bytes: int | None = None
    prefix_cache_bytes: int = 256 << 20
    max_waiting: int = 256

    def __post_init__(self) -> None:
        """Check every value."""
        for field in fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name in ("max_padding", "prefix_cache_bytes") else 1
            optional = field.default is None
            if value is None and optional:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                expected = f"a whole number of at least {least}" + (", or None" if optional else "")
                raise OptionError(field.name, value, expected)
