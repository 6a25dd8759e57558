"""The KV cache: one buffer a layer, and one length a row.

    keys, values: (rows, kv_heads, capacity, head_dim), one pair a layer
    lengths:      one integer a row

Writing scatters at each row's own offset. What lies behind a row's length is never seen, so cropping is setting an
integer, and the padding of a ragged chunk may leave anything there. Layers with a sliding window keep everything,
and have a mask of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import Cache, DynamicCache, PreTrainedConfig
from transformers.cache_utils import CacheLayerMixin, DynamicLayer, DynamicSlidingWindowLayer

FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True)
class LayerKind:
    """How a layer attends: to everything, or to the last ``window`` positions."""

    window: int | None

    @property
    def name(self) -> str:
        """The kind's name in transformers' mask mappings."""
        return FULL if self.window is None else SLIDING


def layer_kinds(config: PreTrainedConfig) -> list[LayerKind] | str:
    """Return the kind of every layer, or why the model's cache cannot be cropped."""
    layers = DynamicCache(config=config).layers
    kinds = []
    for layer in layers:
        if type(layer) is DynamicLayer:
            kinds.append(LayerKind(None))
        elif type(layer) is DynamicSlidingWindowLayer:
            kinds.append(LayerKind(layer.sliding_window))
        else:
            return f"its cache has layers of the type {type(layer).__name__}, which keep no past to go back to"
    return kinds or "its configuration does not say what layers its cache has"


@dataclass
class _Place:
    """Where the current chunk goes; shared by all layers."""

    starts: list[int]  # per row
    len_chunk: int = 0

    @property
    def end(self) -> int:
        return max(self.starts) + self.len_chunk

    @property
    def is_even(self) -> bool:
        return min(self.starts) == max(self.starts)


class RowLayer(CacheLayerMixin):
    """One layer's buffers."""

    is_sliding = False  # transformers asks; the mask knows about windows, the buffer does not

    def __init__(self, place: _Place) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._place = place

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Make buffers like these states, which have the shape (rows, kv_heads, chunk, head_dim)."""
        capacity = _grown(0, self._place.end)
        self.keys = _empty_like(key_states, capacity)
        self.values = _empty_like(value_states, capacity)
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_args: Any, **_kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write a chunk at each row's offset; return all rows up to the end of the longest."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        keys = self.keys = self._with_room(self.keys)
        values = self.values = self._with_room(self.values)
        place = self._place
        if place.is_even:
            start = place.starts[0]
            keys[:, :, start : start + place.len_chunk] = key_states
            values[:, :, start : start + place.len_chunk] = value_states
        else:
            offsets = torch.tensor(place.starts, device=keys.device)[:, None]
            where = offsets + torch.arange(place.len_chunk, device=keys.device)  # (rows, chunk)
            rows = torch.arange(len(place.starts), device=keys.device)[:, None]
            # Advanced indices around a slice put their axes first: (rows, chunk, kv_heads, head_dim).
            keys[rows, :, where] = key_states.transpose(1, 2)
            values[rows, :, where] = value_states.transpose(1, 2)
        return keys[:, :, : place.end], values[:, :, : place.end]

    def _with_room(self, buffer: torch.Tensor | None) -> torch.Tensor:
        if buffer is None:
            raise RuntimeError("the layer has no buffers yet")
        capacity = _grown(buffer.shape[2], self._place.end)
        if capacity == buffer.shape[2]:
            return buffer
        grown = _empty_like(buffer, capacity)
        grown[:, :, : buffer.shape[2]] = buffer
        return grown

    def get_seq_length(self) -> int:
        """Return the length before the current chunk."""
        return max(self._place.starts)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the number of keys that :meth:`update` will give, and the position of the first."""
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        """Return -1: the buffer grows."""
        return -1


class KVCache(Cache):
    """A cache of ``num_rows`` sequences of lengths of their own."""

    def __init__(self, kinds: Sequence[LayerKind], num_rows: int = 1) -> None:
        self._place = _Place([0] * num_rows)
        self._kinds = dict.fromkeys(kinds)
        super().__init__(layers=[RowLayer(self._place) for _ in kinds])

    @property
    def lengths(self) -> tuple[int, ...]:
        """The number of cached tokens of each row."""
        return tuple(self._place.starts)

    def crop(self, length: int, row: int = 0) -> None:
        """Forget what a row holds behind its first ``length`` tokens.

        Raises:
            ValueError: the row holds fewer.
        """
        if not 0 <= length <= self._place.starts[row]:
            raise ValueError(f"row {row} holds {self._place.starts[row]} tokens and cannot be cropped to {length}")
        self._place.starts[row] = length

    def begin(self, len_chunk: int) -> None:
        """Announce a chunk of ``len_chunk`` positions a row, shorter rows padded on the right."""
        self._place.len_chunk = len_chunk

    def advance(self, num_tokens: Sequence[int]) -> None:
        """Take the announced chunk as written, with this many true tokens in each row."""
        self._place.starts[:] = [start + count for start, count in zip(self.lengths, num_tokens, strict=True)]
        self._place.len_chunk = 0

    def positions(self, device: torch.device) -> torch.Tensor:
        """Return the positions of the announced chunk, shape (rows, chunk)."""
        offsets = torch.tensor(self._place.starts, device=device)[:, None]
        return offsets + torch.arange(self._place.len_chunk, device=device)

    def attention_mask(self, device: torch.device, dtype: torch.dtype | None) -> Any:
        """Return what the announced chunk may attend to, in the form that the model takes.

        A mask has the shape (rows, 1, chunk, keys): True where a position may look, or with ``dtype`` 0 where it may
        and that type's least number elsewhere. None stands for the plain causal mask, which attention kernels do
        faster on their own. Models with layers of several kinds take a mapping from kind to mask.
        """
        masks = {kind.name: self._mask(kind.window, device, dtype) for kind in self._kinds}
        return masks if len(masks) > 1 else next(iter(masks.values()))

    def _mask(self, window: int | None, device: torch.device, dtype: torch.dtype | None) -> torch.Tensor | None:
        place = self._place
        # Only SDPA knows by itself that a prompt is causal; one position sees everything in any case.
        plain = place.is_even and (place.len_chunk == 1 or (place.starts[0] == 0 and dtype is None))
        if plain and (window is None or place.end <= window):
            return None
        query = self.positions(device)[:, None, :, None]  # (rows, 1, chunk, 1)
        key = torch.arange(place.end, device=device)  # (keys,)
        allowed = key <= query
        if window is not None:
            allowed &= key > query - window
        if dtype is None:
            return allowed
        return torch.zeros_like(allowed, dtype=dtype).masked_fill_(~allowed, torch.finfo(dtype).min)


def _grown(capacity: int, needed: int) -> int:
    """Return a capacity of at least ``needed``: doubled until it is enough."""
    capacity = max(capacity, 64)
    while capacity < needed:
        capacity *= 2
    return capacity


def _empty_like(states: torch.Tensor, capacity: int) -> torch.Tensor:
    rows, heads, _, dim = states.shape
    # Zeros, since 0 times a garbage NaN would still be NaN where a masked position is read.
    return states.new_zeros(rows, heads, capacity, dim)
