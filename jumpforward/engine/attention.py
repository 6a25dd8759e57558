"""Attention in the passes of an engine: ragged chunks without padding, and keys that are not copied.

Chunks of unlike length are fed as one row of tokens, one behind the other: they are *packed*. Nearly all of a model
works on each token by itself and needs to know nothing of it. Only attention looks from token to token: there the rows
are laid out again as the mask has them, and short rows are not padded to the length of a prompt.

Where several heads share keys and values (grouped queries), SDPA under a mask is commonly fed copies of these, one for
each head, of the whole past and in every layer. Here the heads that share are asked as if they were one head with more
tokens, which gives the same sums and copies nothing; transformers does so too, but for one token at a time only.

transformers lets a model's attention be chosen by name (its ``AttentionInterface``). The one that is registered here is
SDPA in every call that is not a pass of ours.
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
REPLACED = "sdpa"  # what a model must attend with for ours to take its place
_PER_HEAD = ("position_bias", "softcap")  # arguments under which heads cannot be taken together
_MOST_SPREAD = 2  # rows that are attended to, for each that is asked about
_LONG = 32  # tokens; the chunk of a prompt, say. Rows up to it are padded to the longest of them.


def lying_together(rows: Sequence[int]) -> Sequence[int]:
    """Return ascending rows with those between them, which are then attended to in vain: that is a slice of a buffer.

    Where so many lie between that a copy of the others is smaller, return the rows alone.
    """
    span = range(rows[0], rows[-1] + 1)
    return span if len(span) <= _MOST_SPREAD * len(rows) else rows


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

    def __init__(self, counts: Sequence[int], *, is_packed: bool) -> None:
        self.is_packed = is_packed
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
        attended = lying_together(rows)
        index = slice(attended.start, attended.stop) if isinstance(attended, range) else rows
        at = {row: place for place, row in enumerate(attended)}
        places = [(starts[row] + column, at[row], column) for row in rows for column in range(counts[row])]
        parts = torch.tensor(places, device=device).unbind(1)
        return _Group(index, len(attended), max(counts[row] for row in rows), *parts)


_PASS: ContextVar[_Layout | None] = ContextVar("pass", default=None)


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **arguments: Any,
) -> tuple[torch.Tensor, None]:
    """Attend as SDPA does.

    Args:
        module: the attention layer.
        query: (rows, heads, tokens, head_dim), or (1, heads, tokens of all rows, head_dim) where chunks are packed.
        key: (rows, kv_heads, keys, head_dim).
        value: as ``key``.
        attention_mask: (rows, 1, tokens, keys), or None.
        **arguments: whatever else transformers gives.

    Returns:
        (rows, tokens, heads, head_dim), with rows and tokens of the query, and no weights.
    """
    layout = _PASS.get()
    if layout is None or attention_mask is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **arguments)
    if not layout.is_packed:
        return _attend_rows(module, query, key, value, attention_mask, **arguments)
    _, num_heads, num_tokens, head_dim = query.shape
    output = query.new_empty(1, num_tokens, num_heads, value.shape[-1])
    for group in layout.groups(query.device):
        laid_out = query.new_zeros(group.num_rows, num_heads, group.len_chunk, head_dim)
        # Advanced indices around a slice put their axis first: (tokens, heads, head_dim).
        laid_out[group.row, :, group.column] = query[0, :, group.packed].transpose(0, 1)
        mask = attention_mask[group.rows, :, : group.len_chunk]
        part, _ = _attend_rows(module, laid_out, key[group.rows], value[group.rows], mask, **arguments)
        output[0, group.packed] = part[group.row, group.column]  # from (rows, chunk, heads, head_dim)
    return output, None


def _attend_rows(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    **arguments: Any,
) -> tuple[torch.Tensor, None]:
    """Attend from rows of their own, where heads that share keys become one with more tokens."""
    num_rows, num_heads, num_tokens, head_dim = query.shape
    num_kv_heads = key.shape[1]
    if num_kv_heads == num_heads or mask.shape[1] != 1 or any(arguments.get(name) is not None for name in _PER_HEAD):
        return sdpa_attention_forward(module, query, key, value, mask, **arguments)
    num_sharing = num_heads // num_kv_heads
    output = torch.nn.functional.scaled_dot_product_attention(
        query.reshape(num_rows, num_kv_heads, num_sharing * num_tokens, head_dim),
        key,
        value,
        attn_mask=mask.repeat(1, 1, num_sharing, 1),
        dropout_p=arguments.get("dropout", 0.0),
        scale=arguments.get("scaling"),
    )
    return output.reshape(num_rows, num_heads, num_tokens, -1).transpose(1, 2).contiguous(), None


AttentionInterface.register(ATTENTION, _attend)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)

_LOCK = Lock()
_passes: dict[int, int] = {}  # by the id of a config, how many passes are under way


@contextmanager
def attending(config: Any, counts: Sequence[int], *, is_packed: bool) -> Iterator[None]:
    """Have a model that attends by SDPA attend as said above, in this thread, until the block ends.

    ``counts`` are the tokens of each row.
    """
    token = _PASS.set(_Layout(counts, is_packed=is_packed))
    with _LOCK:
        _passes[id(config)] = _passes.get(id(config), 0) + 1
        config._attn_implementation = ATTENTION
    try:
        yield
    finally:
        _PASS.reset(token)
        with _LOCK:
            _passes[id(config)] -= 1
            if not _passes[id(config)]:
                del _passes[id(config)]
                config._attn_implementation = REPLACED
