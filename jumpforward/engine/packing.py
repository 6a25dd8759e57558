"""Ragged chunks without padding.

Chunks of unlike length are fed as one row of tokens, one behind the other. Nearly all of a model works on each token by
itself and needs to know nothing of it. Only attention looks from token to token: there the rows are laid out again as
the mask has them, and short rows are not padded to the length of a prompt.

transformers lets a model's attention be chosen by name (its ``AttentionInterface``). The one that is registered here
lays rows out where a pass of ours is under way in the same thread, and is SDPA in every other call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import accumulate
from threading import Lock
from typing import Any, NamedTuple

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

ATTENTION = "jumpforward"
PACKABLE = "sdpa"  # what a model must attend with for its chunks to be packed
_LONG = 32  # tokens; the chunk of a prompt, say. Rows up to it are padded to the longest of them.


class _Group(NamedTuple):
    """Rows that attend together: which rows of the pass, how many, how long; and each token's place in three ways."""

    rows: slice | list[int]
    num_rows: int
    len_chunk: int
    packed: torch.Tensor  # among all tokens of the pass
    row: torch.Tensor  # the row in the group
    column: torch.Tensor  # the place in the row


class _Layout:
    """The chunks of a pass: so many tokens each."""

    def __init__(self, counts: Sequence[int]) -> None:
        self._counts = counts
        self._groups: dict[torch.device, list[_Group]] = {}  # made once a device, and not once a layer

    def groups(self, device: torch.device) -> list[_Group]:
        """Return the short rows as one group, and each long one by itself."""
        if device not in self._groups:
            short = [row for row, count in enumerate(self._counts) if 0 < count <= _LONG]
            long = [[row] for row, count in enumerate(self._counts) if count > _LONG]
            self._groups[device] = [self._group(rows, device) for rows in [short, *long] if rows]
        return self._groups[device]

    def _group(self, rows: list[int], device: torch.device) -> _Group:
        counts = self._counts
        starts = list(accumulate(counts, initial=0))
        places = [(starts[row] + column, at, column) for at, row in enumerate(rows) for column in range(counts[row])]
        lies_together = rows[-1] - rows[0] + 1 == len(rows)
        index = slice(rows[0], rows[-1] + 1) if lies_together else rows  # a slice copies nothing
        parts = torch.tensor(places, device=device).unbind(1)
        return _Group(index, len(rows), max(counts[row] for row in rows), *parts)


_LAYOUT: ContextVar[_Layout | None] = ContextVar("layout", default=None)


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **arguments: Any,
) -> tuple[torch.Tensor, None]:
    """Attend as SDPA does: query (1, heads, tokens, head_dim); keys, values (rows, kv_heads, keys, head_dim)."""
    layout = _LAYOUT.get()
    if layout is None or attention_mask is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **arguments)
    _, num_heads, num_tokens, head_dim = query.shape
    output = query.new_empty(1, num_tokens, num_heads, value.shape[-1])
    for group in layout.groups(query.device):
        laid_out = query.new_zeros(group.num_rows, num_heads, group.len_chunk, head_dim)
        # Advanced indices around a slice put their axis first: (tokens, heads, head_dim).
        laid_out[group.row, :, group.column] = query[0, :, group.packed].transpose(0, 1)
        mask = attention_mask[group.rows, :, : group.len_chunk]
        part, _ = sdpa_attention_forward(module, laid_out, key[group.rows], value[group.rows], mask, **arguments)
        output[0, group.packed] = part[group.row, group.column]  # from (rows, chunk, heads, head_dim)
    return output, None


AttentionInterface.register(ATTENTION, _attend)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)

_LOCK = Lock()
_packed_passes: dict[int, int] = {}  # by the id of a config, how many packed passes are under way


@contextmanager
def packed(config: Any, counts: Sequence[int]) -> Iterator[None]:
    """Have a model attend to packed chunks of so many tokens, in this thread, until the block ends."""
    token = _LAYOUT.set(_Layout(counts))
    with _LOCK:
        _packed_passes[id(config)] = _packed_passes.get(id(config), 0) + 1
        config._attn_implementation = ATTENTION
    try:
        yield
    finally:
        _LAYOUT.reset(token)
        with _LOCK:
            _packed_passes[id(config)] -= 1
            if not _packed_passes[id(config)]:
                del _packed_passes[id(config)]
                config._attn_implementation = PACKABLE
