"""Small stand-ins for a tokenizer and a model, for tests of code that works with jumpforward.

tokenizer = toy_tokenizer(["ab", "abc"])
model = ScriptedModel(lambda ids: favour(tokenizer, ids), width=len(tokenizer))
engine = jumpforward.Engine(model, tokenizer)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, PreTrainedTokenizerFast
from transformers.modeling_outputs import CausalLMOutputWithPast

from jumpforward.vocab.vocabulary import BYTE_LETTERS

__all__ = ["END", "ScriptedModel", "toy_tokenizer"]

END = "<end>"


def toy_tokenizer(pieces: Iterable[str] = (), *, single_bytes: Iterable[int] = range(256)) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer with these pieces, in order of merge priority, and single bytes.

    Every split of a piece into two tokens is a merge. The last id is :data:`END`, the end of the output.
    ``single_bytes`` leaves bytes out, to make a vocabulary that cannot spell everything.
    """
    letters = [BYTE_LETTERS[value] for value in single_bytes]
    spelled = ["".join(BYTE_LETTERS[value] for value in piece.encode()) for piece in pieces]
    vocabulary = {piece: index for index, piece in enumerate(dict.fromkeys([*letters, *spelled]))}
    merges = [
        (piece[:cut], piece[cut:])
        for piece in spelled
        for cut in range(1, len(piece))
        if piece[:cut] in vocabulary and piece[cut:] in vocabulary
    ]
    backend = Tokenizer(models.BPE(vocabulary, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=END)


class ScriptedModel(torch.nn.Module):
    """A causal language model whose logits are a function of the tokens so far.

    ``script(ids)`` gives the logits behind ``ids``, the whole sequence, as ``width`` numbers. The ids of earlier
    calls come out of the cache, where they are stored as keys, so that a wrong cache gives wrong logits.

    Attributes:
        calls: for every forward pass, the ids that were fed, one list a row.
    """

    main_input_name = "input_ids"

    def __init__(self, script: Callable[[Sequence[int]], Any], width: int, *, max_length: int = 4096) -> None:
        super().__init__()
        self.script = script
        # Any configuration of a model with one layer that attends to everything.
        self.config = LlamaConfig(vocab_size=width, num_hidden_layers=1, max_position_embeddings=max_length)
        self.config._attn_implementation = "sdpa"
        self.anchor = torch.nn.Parameter(torch.zeros(1))  # gives the module a device and a dtype
        self.calls: list[list[list[int]]] = []

    @property
    def device(self) -> torch.device:
        """The device that ids go to."""
        return self.anchor.device

    @property
    def dtype(self) -> torch.dtype:
        """The type of the logits."""
        return self.anchor.dtype

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        cache: Any = None,
        use_cache: bool = True,  # noqa: ARG002  (transformers passes it)
        logits_to_keep: int | torch.Tensor = 0,
    ) -> CausalLMOutputWithPast:
        """Return the logits of the kept positions, shape (rows, kept, width)."""
        self.calls.append(input_ids.tolist())
        fed = input_ids[:, None, :, None].to(torch.float64)  # (rows, heads, chunk, head_dim)
        keys = fed if cache is None else cache.update(fed, fed, 0)[0]
        history = keys[:, 0, :, 0].long().tolist()
        rows, len_chunk = input_ids.shape
        positions = list(range(len_chunk))
        if isinstance(logits_to_keep, torch.Tensor):
            positions = logits_to_keep.tolist()
        elif logits_to_keep:
            positions = positions[-logits_to_keep:]
        logits = torch.empty(rows, len(positions), self.config.vocab_size, dtype=self.dtype)
        for row in range(rows):
            for index, position in enumerate(positions):
                visible = self._visible(attention_mask, position_ids, row, position, len(history[row]) - len_chunk)
                logits[row, index] = torch.as_tensor(self.script(history[row][:visible]), dtype=self.dtype)
        return CausalLMOutputWithPast(logits=logits, cache=cache)

    @staticmethod
    def _visible(mask: Any, position_ids: Any, row: int, position: int, start: int) -> int:
        """Return how many tokens a position sees, which mask and position must agree on."""
        visible = start + position + 1
        if mask is not None:
            visible = int(mask[min(row, mask.shape[0] - 1), 0, position].sum())
        if position_ids is not None and int(position_ids[row, position]) != visible - 1:
            raise AssertionError(f"position {int(position_ids[row, position])} sees {visible} tokens")
        return visible
