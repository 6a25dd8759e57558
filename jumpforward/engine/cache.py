"""The KV cache: one buffer a layer, and one length a row.

    keys, values: (rows, kv_heads, capacity, head_dim), one pair a layer
    lengths:      one integer a row

A pass is over some of the rows; it writes at each row's own offset, and never the padding of a ragged chunk. The
chunks of a pass come in rows of their own, or packed, one behind the other in one row. What lies behind a row's length
is never seen, so cropping is setting an integer. Layers with a sliding window keep everything, and have a mask of
their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
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
class _Chunk:
    """What a pass writes."""

    rows: Sequence[int]  # those in the pass, ascending
    starts: Sequence[int]  # of each, the length before the chunk
    counts: Sequence[int]  # of each, the number of its true tokens
    is_packed: bool = False
    _targets: dict[torch.device, tuple[torch.Tensor, ...]] = field(default_factory=dict)

    @cached_property
    def length(self) -> int:
        return max(self.counts)

    @cached_property
    def end(self) -> int:
        return max(start + count for start, count in zip(self.starts, self.counts, strict=True))

    @cached_property
    def is_even(self) -> bool:
        return not self.is_packed and len(set(zip(self.starts, self.counts, strict=True))) == 1

    @cached_property
    def index(self) -> slice | list[int]:
        """What selects the rows: a slice where they lie together, since that copies nothing."""
        first, last = self.rows[0], self.rows[-1]
        return slice(first, last + 1) if last - first + 1 == len(self.rows) else list(self.rows)

    def targets(self, device: torch.device) -> tuple[torch.Tensor, ...]:
        """Return, for each token that is no padding, its row in the pass and in the buffer, and its place in both.

        They are made once a device, and not once a layer.
        """
        if device not in self._targets:
            rows = enumerate(zip(self.rows, self.starts, self.counts, strict=True))
            places = [(at, row, col, start + col) for at, (row, start, count) in rows for col in range(count)]
            self._targets[device] = tuple(torch.tensor(places, device=device).unbind(1))
        return self._targets[device]


@dataclass
class _Place:
    """The shape of the buffers, and what is written to them; shared by all layers."""

    num_rows: int = 0
    capacity: int = 0
    chunk: _Chunk = field(default_factory=lambda: _Chunk([0], [0], [0]))


class RowLayer(CacheLayerMixin):
    """One layer's buffers."""

    is_sliding = False  # transformers asks; the mask knows about windows, the buffer does not

    def __init__(self, place: _Place) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._place = place

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Make buffers like these states, which have the shape (rows or 1, kv_heads, chunk, head_dim)."""
        self.keys, self.values = self._empty(key_states), self._empty(value_states)
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_args: Any, **_kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write a chunk at each row's offset; return the rows in the pass up to the end of the longest."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        keys, values = self.keys, self.values = [self._reshaped(buffer) for buffer in self.buffers]
        chunk = self._place.chunk
        index, end = chunk.index, chunk.end
        if chunk.is_even:
            start = chunk.starts[0]
            keys[index, :, start:end] = key_states
            values[index, :, start:end] = value_states
        else:
            passed, rows, columns, where = chunk.targets(keys.device)
            for buffer, states in ((keys, key_states), (values, value_states)):
                # Advanced indices around a slice put their axis first: (true tokens, kv_heads, head_dim).
                given = states[0].transpose(0, 1) if chunk.is_packed else states[passed, :, columns]
                buffer[rows, :, where] = given
        return keys[index, :, :end], values[index, :, :end]

    @property
    def buffers(self) -> tuple[torch.Tensor, ...]:
        """Keys and values, of shape (rows, kv_heads, capacity, head_dim); nothing before the first chunk."""
        return () if self.keys is None or self.values is None else (self.keys, self.values)

    def _reshaped(self, buffer: torch.Tensor) -> torch.Tensor:
        num_rows, capacity = self._place.num_rows, self._place.capacity
        if buffer.shape[0] == num_rows and buffer.shape[2] == capacity:
            return buffer
        reshaped = self._empty(buffer)
        old = buffer[:num_rows, :, :capacity]
        reshaped[: old.shape[0], :, : old.shape[2]] = old
        return reshaped

    def _empty(self, states: torch.Tensor) -> torch.Tensor:
        # Zeros, since 0 times a garbage NaN would still be NaN where a masked position is read.
        return states.new_zeros(self._place.num_rows, states.shape[1], self._place.capacity, states.shape[3])

    def get_seq_length(self) -> int:
        """Return the length before the current chunk."""
        return max(self._place.chunk.starts)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the number of keys that :meth:`update` will give, and the position of the first."""
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        """Return -1: the buffer grows."""
        return -1


class KVCache(Cache):
    """A cache of ``num_rows`` sequences of lengths of their own.

    Attributes:
        max_cells: the most tokens that the buffers have room for, in all rows together; None for no limit.
    """

    def __init__(self, kinds: Sequence[LayerKind], num_rows: int = 1, *, max_cells: int | None = None) -> None:
        self._place = _Place()
        self._lengths = [0] * num_rows
        self._written = [0] * num_rows  # how far each row may hold anything but zeros
        self._kinds = dict.fromkeys(kinds)
        self.max_cells = max_cells
        self._row_layers = [RowLayer(self._place) for _ in kinds]
        super().__init__(layers=list(self._row_layers))

    @property
    def lengths(self) -> tuple[int, ...]:
        """The number of cached tokens of each row."""
        return tuple(self._lengths)

    @property
    def num_bytes(self) -> int:
        """The memory that the buffers take."""
        return sum(buffer.nbytes for layer in self._row_layers for buffer in layer.buffers)

    @property
    def num_cells(self) -> int:
        """The number of tokens that the buffers have room for."""
        return self._place.num_rows * self._place.capacity

    def crop(self, length: int, row: int = 0) -> None:
        """Forget what a row holds behind its first ``length`` tokens.

        Raises:
            ValueError: the row holds fewer.
        """
        if not 0 <= length <= self._lengths[row]:
            raise ValueError(f"row {row} holds {self._lengths[row]} tokens and cannot be cropped to {length}")
        self._lengths[row] = length

    @torch.inference_mode()
    def clear(self, row: int) -> None:
        """Empty a row for another sequence. What it held is wiped out, since masked positions are multiplied by 0."""
        for layer in self._row_layers:
            for buffer in layer.buffers:
                buffer[row : row + 1, :, : self._written[row]] = 0
        self._lengths[row] = self._written[row] = 0

    @torch.inference_mode()
    def read(self, row: int, num_tokens: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return a copy of a row's first tokens: each layer's keys and values, (1, kv_heads, tokens, head_dim)."""
        copies = []
        for layer in self._row_layers:
            keys, values = (buffer[row : row + 1, :, :num_tokens].clone() for buffer in layer.buffers)
            copies.append((keys, values))
        return copies

    @torch.inference_mode()
    def write(self, row: int, num_tokens: int, states: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Append that many tokens to a row, from states that :meth:`read` gave."""
        self.begin([num_tokens], [row])
        for layer, (keys, values) in zip(self._row_layers, states, strict=True):
            layer.update(keys[:, :, :num_tokens], values[:, :, :num_tokens])
        self.advance()

    def begin(self, counts: Sequence[int], rows: Sequence[int] | None = None, *, is_packed: bool = False) -> None:
        """Announce a chunk of that many tokens for each of these rows, which ascend; by default for all.

        Packed, the chunks come one behind the other in a single row.

        Raises:
            RuntimeError: the buffers would outgrow ``max_cells``.
        """
        rows = range(len(self._lengths)) if rows is None else rows
        chunk = _Chunk(rows, [self._lengths[row] for row in rows], counts, is_packed)
        self._make_room(rows[-1], chunk.end)
        self._place.chunk = chunk
        for row, start, count in zip(rows, chunk.starts, counts, strict=True):
            self._written[row] = max(self._written[row], start + count)

    def _make_room(self, last_row: int, end: int) -> None:
        """Set the shape of the buffers, which each layer takes on when it is written to."""
        place = self._place
        needed_rows = max(last_row, *(row for row, length in enumerate(self._lengths) if length), 0) + 1
        needed = max(end, *self._lengths)
        num_rows, capacity = max(place.num_rows, needed_rows), _grown(place.capacity, needed)
        if self.max_cells is not None and num_rows * capacity > self.max_cells:
            num_rows, capacity = needed_rows, min(_grown(0, needed), self.max_cells // needed_rows)
            if capacity < needed:
                raise RuntimeError(f"{needed_rows} rows of {needed} tokens do not fit into {self.max_cells} cells")
        place.num_rows, place.capacity = num_rows, capacity

    def advance(self) -> None:
        """Take the announced chunk as written."""
        chunk = self._place.chunk
        for row, start, count in zip(chunk.rows, chunk.starts, chunk.counts, strict=True):
            self._lengths[row] = start + count

    def positions(self, device: torch.device) -> torch.Tensor:
        """Return the positions of the announced chunk as it comes: shape (rows, chunk), or packed (1, tokens)."""
        chunk = self._place.chunk
        return chunk.targets(device)[3][None] if chunk.is_packed else self._laid_out(device)

    def _laid_out(self, device: torch.device) -> torch.Tensor:
        """Return the positions in rows of their own, shape (rows, chunk). Padding repeats a row's last one."""
        chunk = self._place.chunk
        starts, counts = torch.tensor([chunk.starts, chunk.counts], device=device)[:, :, None]
        columns = torch.arange(chunk.length, device=device)
        return torch.add(starts, columns.minimum((counts - 1).clamp(min=0)))

    def attention_mask(self, device: torch.device, dtype: torch.dtype | None) -> Any:
        """Return what the announced chunk may attend to, in the form that the model takes.

        A mask has the shape (rows, 1, chunk, keys): True where a position may look, or with ``dtype`` 0 where it may
        and that type's least number elsewhere. None stands for the plain causal mask, which attention kernels do
        faster on their own. Models with layers of several kinds take a mapping from kind to mask.
        """
        masks = {kind.name: self._mask(kind.window, device, dtype) for kind in self._kinds}
        return masks if len(masks) > 1 else next(iter(masks.values()))

    def _mask(self, window: int | None, device: torch.device, dtype: torch.dtype | None) -> torch.Tensor | None:
        chunk = self._place.chunk
        # Only SDPA knows by itself that a prompt is causal; one position sees everything in any case.
        plain = chunk.is_even and (chunk.length == 1 or (chunk.starts[0] == 0 and dtype is None))
        if plain and (window is None or chunk.end <= window):
            return None
        query = self._laid_out(device)[:, None, :, None]  # (rows, 1, chunk, 1)
        key = torch.arange(chunk.end, device=device)  # (keys,)
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
