"""The only file that calls ``model.forward``, and what is found out about a model before it is used."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any, Protocol

import torch

from jumpforward.engine.attention import REPLACED, attending, lying_together
from jumpforward.engine.cache import KVCache, LayerKind, layer_kinds
from jumpforward.errors import ModelError, RollbackUnsupportedError

_PROBE_IDS = (0, 1, 1, 0, 1, 0)  # ids that every vocabulary has
_PROBE_ERRORS = (
    AttributeError,
    IndexError,
    KeyError,
    RuntimeError,
    TypeError,
    ValueError,
)
_TOLERANCE = {
    torch.float64: 1e-4,
    torch.float32: 1e-3,
}  # of the logits' spread; a wrong cache is off by about 1
_LOW_PRECISION_TOLERANCE = 0.15


class SequenceCache(Protocol):
    """What a request keeps between forward passes: :class:`KVCache`, or the model's own cache."""

    @property
    def lengths(self) -> tuple[int, ...]:
        """The number of cached tokens of each row."""
        ...

    def crop(self, length: int, row: int = 0) -> None:
        """Forget what a row holds behind its first ``length`` tokens."""
        ...


class NativeCache:
    """The model's own cache, for models that keep a recurrent state: one row, forward only."""

    def __init__(self, reason: str) -> None:
        self._reason = reason
        self.length = 0
        self.states: Any = None

    @property
    def lengths(self) -> tuple[int, ...]:
        """The number of cached tokens."""
        return (self.length,)

    def crop(self, length: int, row: int = 0) -> None:
        """Do nothing at the present length; refuse every other."""
        if row or length != self.length:
            raise RollbackUnsupportedError(f"this model cannot go back in its sequence: {self._reason}")


@dataclass(frozen=True)
class Row:
    """The place of one sequence in a cache."""

    cache: SequenceCache
    index: int = 0

    @property
    def length(self) -> int:
        """The number of its cached tokens."""
        return self.cache.lengths[self.index]

    def crop(self, length: int) -> None:
        """Forget what is behind its first ``length`` tokens; see :meth:`KVCache.crop`."""
        self.cache.crop(length, self.index)


class Runner:
    """Runs one model.

    Attributes:
        model: the model, in evaluation mode.
        width: how many logits it gives.
        max_length: the longest sequence it takes, in tokens.
        no_rollback_reason: why its cache cannot be cropped; None where it can.
        packs: whether chunks of unlike length are fed without padding; see :mod:`jumpforward.engine.attention`.
        bytes_per_token: the memory that a token takes in a cache of ours; 0 where there is none.
    """

    def __init__(self, model: Any) -> None:
        """Look at a causal language model, and try out its cache on a few tokens.

        Raises:
            ModelError: it is not a decoder that maps ids to logits.
        """
        self.config = _checked_config(model)
        self.model = model.eval()
        text_config = self.config.get_text_config(decoder=True)
        self.max_length = int(getattr(text_config, "max_position_embeddings", None) or 2**31)
        parameters = inspect.signature(model.forward).parameters
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"
        self._takes_positions = "position_ids" in parameters
        self._takes_keep = "logits_to_keep" in parameters
        attention = getattr(self.config, "_attn_implementation", None)
        # Eager attention adds its mask to the scores; SDPA takes booleans.
        self._mask_dtype = model.dtype if attention == "eager" else None
        self._attends_here = attention == REPLACED
        self.packs = self._attends_here and self._takes_positions
        self._takes_chunks = True
        self.bytes_per_token = 0
        self.width, self._kinds, self.no_rollback_reason = self._probe()

    def new_cache(self, num_rows: int = 1, *, max_cells: int | None = None) -> SequenceCache:
        """Return an empty cache; ``max_cells`` limits the tokens that it has room for, in all rows together.

        Raises:
            RollbackUnsupportedError: several rows, for a model that needs its own cache.
        """
        if self.no_rollback_reason is None:
            return KVCache(self._kinds, num_rows, max_cells=max_cells)
        if num_rows != 1:
            raise RollbackUnsupportedError(f"only one row at a time: {self.no_rollback_reason}")
        return NativeCache(self.no_rollback_reason)

    @property
    def end_ids(self) -> list[int]:
        """The ids that end an output by the model's generation config."""
        configured = getattr(getattr(self.model, "generation_config", None), "eos_token_id", None)
        return [configured] if isinstance(configured, int) else list(configured or [])

    def takes_chunk(self, length: int) -> bool:
        """Return whether several tokens can be fed behind ``length`` cached ones; a recurrent state may take one."""
        return self._takes_chunks or length == 0

    @torch.inference_mode()
    def forward(
        self,
        cache: SequenceCache,
        chunks: Sequence[Sequence[int]],
        keep: Sequence[Sequence[int]],
        rows: Sequence[int] | None = None,
    ) -> list[torch.Tensor]:
        """Feed rows a chunk each, and return the logits at the positions to keep, one tensor a row.

        Args:
            cache: the rows' past; it holds the chunks afterwards. One of ours is as before if the pass fails.
            chunks: for each row the ids that follow what is cached; at least one row is not empty.
            keep: for each row, ascending indices into its chunk.
            rows: the rows of the cache, ascending; by default all.

        Returns:
            for each row, float32 logits of shape (kept, width), free for the caller to overwrite.
        """
        if isinstance(cache, NativeCache):
            return [self._forward_native(cache, chunks[0], keep[0])]
        if not isinstance(cache, KVCache):
            raise TypeError(f"expected a cache of new_cache(), got {type(cache).__name__}")
        rows = range(len(chunks)) if rows is None else rows
        counts = [len(chunk) for chunk in chunks]
        if self.packs and (len(set(counts)) > 1 or rows[-1] - rows[0] + 1 > len(rows)):
            return self._forward_packed(cache, chunks, keep, rows)
        device, len_chunk = self.model.device, max(counts)
        ids = torch.tensor([[*chunk, *[0] * (len_chunk - len(chunk))] for chunk in chunks], device=device)
        cache.begin(counts, rows)
        wanted = sorted(set().union(*keep))
        output = self._call_with(cache, ids, wanted, counts, is_packed=False)
        index = {position: place for place, position in enumerate(wanted)}
        if len(chunks) == 1:
            return [output.logits[0].float()]
        return [output.logits[row, [index[position] for position in kept]].float() for row, kept in enumerate(keep)]

    def _forward_packed(
        self,
        cache: KVCache,
        chunks: Sequence[Sequence[int]],
        keep: Sequence[Sequence[int]],
        rows: Sequence[int],
    ) -> list[torch.Tensor]:
        """Feed the chunks one behind the other in one row."""
        given = dict(zip(rows, chunks, strict=True))
        rows_of_pass = lying_together(rows)
        counts = [len(given.get(row, ())) for row in rows_of_pass]
        starts = dict(zip(rows_of_pass, accumulate(counts, initial=0), strict=False))
        ids = torch.tensor([list(chain(*chunks))], device=self.model.device)
        cache.begin(counts, rows_of_pass, is_packed=True)
        wanted = [starts[row] + position for row, kept in zip(rows, keep, strict=True) for position in kept]
        output = self._call_with(cache, ids, wanted, counts, is_packed=True)
        return list(output.logits[0].float().split([len(kept) for kept in keep]))

    def _call_with(
        self, cache: KVCache, ids: torch.Tensor, wanted: Sequence[int], counts: Sequence[int], *, is_packed: bool
    ) -> Any:
        """Feed the chunk that a cache of ours expects."""
        positions = {"position_ids": cache.positions(ids.device)} if self._takes_positions else {}
        mask = cache.attention_mask(ids.device, self._mask_dtype)
        with attending(self.config, counts, is_packed=is_packed) if self._attends_here else nullcontext():
            output = self._call(ids, cache, wanted, attention_mask=mask, **positions)
        cache.advance()
        return output

    def _call(self, ids: torch.Tensor, states: Any, wanted: Sequence[int], **arguments: Any) -> Any:
        """Call the model; its output's logits are those of the wanted positions only."""
        if self._takes_keep:
            arguments["logits_to_keep"] = torch.tensor(wanted, device=ids.device, dtype=torch.long)
        arguments[self._cache_argument] = states
        output = self.model(input_ids=ids, use_cache=True, **arguments)
        if not self._takes_keep:
            output.logits = output.logits[:, list(wanted)]
        return output

    def _forward_native(self, cache: NativeCache, chunk: Sequence[int], keep: Sequence[int]) -> torch.Tensor:
        output = self._call(torch.tensor([list(chunk)], device=self.model.device), cache.states, keep)
        cache.states = getattr(output, self._cache_argument, None)
        if cache.states is None:
            raise ModelError(f"{type(self.model).__name__} gives no cache back, so that nothing can be continued")
        cache.length += len(chunk)
        logits: torch.Tensor = output.logits[0]
        return logits.float()

    def _probe(self) -> tuple[int, list[LayerKind], str | None]:
        """Return the width, the kinds of the layers, and why the cache cannot be cropped if it cannot."""
        ids = torch.tensor([_PROBE_IDS], device=self.model.device)
        with torch.inference_mode():
            reference = self.model(input_ids=ids, use_cache=False).logits[0].float()  # (ids, width)
        kinds = layer_kinds(self.config)
        if isinstance(kinds, str):
            reason: str | None = kinds
        else:
            reason = self._rollback_failure(kinds, reference[-1])
            if reason is not None and self._attends_here:
                self._attends_here = self.packs = False
                reason = self._rollback_failure(kinds, reference[-1])
        if reason is not None:
            self._takes_chunks = _failure(self._without_rollback, reference[-1], self.model.dtype) is None
        return reference.shape[-1], [] if isinstance(kinds, str) else kinds, reason

    def _rollback_failure(self, kinds: list[LayerKind], reference: torch.Tensor) -> str | None:
        return _failure(lambda: self._with_rollback(kinds), reference, self.model.dtype)

    def _with_rollback(self, kinds: list[LayerKind]) -> list[torch.Tensor]:
        """Return the probe's last logits from two ragged rows, one of them with a wrong turn."""
        cache = KVCache(kinds, num_rows=2)
        self.forward(cache, [_PROBE_IDS[:3], _PROBE_IDS[:1]], [[], []])
        self.forward(cache, [_PROBE_IDS[:2], _PROBE_IDS[1:4]], [[0], []])
        cache.crop(3, 0)
        logits = self.forward(cache, [_PROBE_IDS[3:], _PROBE_IDS[4:]], [[2], [1]])
        self.bytes_per_token = cache.num_bytes // cache.num_cells
        return logits

    def _without_rollback(self) -> list[torch.Tensor]:
        """Return the probe's last logits from the model's own cache, fed in two chunks."""
        cache = NativeCache("")
        self.forward(cache, [_PROBE_IDS[:3]], [[2]])
        return self.forward(cache, [_PROBE_IDS[3:]], [[2]])


def _failure(attempt: Callable[[], list[torch.Tensor]], reference: torch.Tensor, dtype: torch.dtype) -> str | None:
    """Say how an attempt at the probe's last logits fails, if it does."""
    expected = torch.nan_to_num(reference)  # a logit that is always NaN is no fault of the cache
    try:
        worst = max(float((torch.nan_to_num(logits[0]) - expected).abs().max()) for logits in attempt())
    except _PROBE_ERRORS as error:
        return f"a cache of ours does not fit it ({type(error).__name__}: {error})"
    allowed = _TOLERANCE.get(dtype, _LOW_PRECISION_TOLERANCE) * (float(expected.std()) or 1.0)
    return None if worst <= allowed else f"with a cache of ours its logits differ by {worst:.3g} from a plain pass"


def _checked_config(model: Any) -> Any:
    config = getattr(model, "config", None)
    if config is None or not callable(getattr(model, "forward", None)):
        raise ModelError(f"expected a Hugging Face causal language model, got {type(model).__name__}")
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(
            f"{type(model).__name__} is an encoder-decoder model: expected a decoder-only model, such as "
            "AutoModelForCausalLM gives"
        )
    return config
