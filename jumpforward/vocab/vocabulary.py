"""Token id to bytes, by the tokenizer's own rules.

``decode`` is never asked: it drops spaces before punctuation, and turns half a character into U+FFFD.
What a token stands for follows from the tokenizer's decoder: byte-level alphabets (GPT-2's) and
SentencePiece-style pieces with byte fallback are read here; other kinds are refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tokenizers import models

from jumpforward.errors import TokenizerError
from jumpforward.vocab.trie import TokenTrie

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_ADDED_TOKEN_FIELDS = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")
_BPE_OPTIONS = (
    "dropout",
    "unk_token",
    "continuing_subword_prefix",
    "end_of_word_suffix",
    "fuse_unk",
    "byte_fallback",
    "ignore_merges",
)
ANY_BYTE = bytes(range(256))
_TEXT_BYTES = frozenset([*range(0x20, 0x7F), *range(0x80, 0xC0)])  # printable ASCII, and what follows a first byte

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """What every token id stands for.

    Attributes:
        token_bytes: the bytes of each id in ``range(width)``; empty for special, end and padded ids.
        special_ids: ids that never stand for text, the end ids among them.
        end_ids: the ids that end an output, in ascending order; at least one.
        num_tokens: how many ids the tokenizer knows; ids from there to ``width`` are padding.
    """

    token_bytes: tuple[bytes, ...]
    special_ids: frozenset[int]
    end_ids: tuple[int, ...]
    num_tokens: int

    @property
    def width(self) -> int:
        """How many logits the model gives, which can exceed the number of tokens."""
        return len(self.token_bytes)

    @cached_property
    def spellable_bytes(self) -> frozenset[int]:
        """The byte values that begin some token."""
        return frozenset(token[0] for token in self.token_bytes if token)

    @cached_property
    def spells_any_text(self) -> bool:
        """Whether printable ASCII, and each byte within a character, is a token of its own."""
        return {token[0] for token in self.token_bytes if len(token) == 1} >= _TEXT_BYTES

    @cached_property
    def trie(self) -> TokenTrie:
        """The tokens as a trie; built once for all grammars."""
        return TokenTrie.build(self.token_bytes)

    def text_bytes(self, ids: Iterable[int]) -> bytes:
        """Return the bytes that ``ids`` stand for, one after the other."""
        return b"".join(map(self.token_bytes.__getitem__, ids))

    @classmethod
    def from_tokenizer(
        cls,
        tokenizer: PreTrainedTokenizerBase,
        *,
        width: int | None = None,
        end_ids: Sequence[int] | None = None,
    ) -> Vocabulary:
        """Read a fast tokenizer's vocabulary.

        Args:
            tokenizer: a tokenizer with a ``tokenizers`` backend.
            width: how many logits the model gives; by default as many as the tokenizer has ids.
            end_ids: the ids that end an output; by default the tokenizer's end-of-text token.

        Raises:
            TokenizerError: a slow tokenizer, one without a byte table, or one without an end.
        """
        spec = backend_spec(tokenizer)
        to_bytes = _token_reader(spec)
        added = {token["id"]: token for token in spec["added_tokens"]}
        vocabulary = tokenizer.get_vocab()
        num_tokens = max(vocabulary.values()) + 1
        ends = tuple(sorted(set(_default_ends(tokenizer) if end_ids is None else end_ids)))
        special = {index for index, token in added.items() if token["special"]}
        special |= _unknown_ids(spec["model"], vocabulary)
        special |= set(tokenizer.all_special_ids) | set(ends)
        # An added token that the model's own vocabulary has too is spelled as the model's pieces are.
        plain = added.keys() - set(tokenizer.backend_tokenizer.get_vocab(with_added_tokens=False).values())

        width = num_tokens if width is None else width
        token_bytes = [b""] * width
        for piece, index in vocabulary.items():
            if index < width and index not in special:
                token_bytes[index] = piece.encode() if index in plain else to_bytes(piece)
        if not ends or ends[0] < 0 or ends[-1] >= width:
            raise TokenizerError(
                f"expected an end-of-text token among the model's {width} ids, got {list(ends)}; "
                "set tokenizer.eos_token, or eos_token_id in the model's generation config"
            )
        return cls(tuple(token_bytes), frozenset(special), ends, min(num_tokens, width))


def backend_spec(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Return the tokenizer's description of itself: what its ``tokenizer.json`` says, BPE's tables left out."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or not hasattr(backend, "to_str"):
        raise TokenizerError(
            f"expected a fast tokenizer, got {type(tokenizer).__name__}, which is a slow one; "
            "load it with AutoTokenizer.from_pretrained(..., use_fast=True)"
        )
    return {
        "normalizer": _state(backend.normalizer),
        "pre_tokenizer": _state(backend.pre_tokenizer),
        "decoder": _state(backend.decoder),
        "model": _model_state(backend.model),
        "added_tokens": [
            {"id": index, **{name: getattr(token, name) for name in _ADDED_TOKEN_FIELDS}}
            for index, token in backend.get_added_tokens_decoder().items()
        ],
    }


def _state(part: Any) -> dict[str, Any] | None:
    return None if part is None else json.loads(part.__getstate__())


def _model_state(model: Any) -> dict[str, Any]:
    """Return a model's description: of BPE only the options, since reading all its merges takes up to a second."""
    if not isinstance(model, models.BPE):
        return _state(model) or {}
    return {"type": "BPE", **{name: getattr(model, name) for name in _BPE_OPTIONS}}


def components(part: Any) -> list[dict[str, Any]]:
    """Return a tokenizer component as the flat list of its steps, in order."""
    if part is None:
        return []
    if part["type"] != "Sequence":
        return [part]
    inner = next(value for key, value in part.items() if isinstance(value, list))
    return [step for item in inner for step in components(item)]


def _default_ends(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    return [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]


def _unknown_ids(model: dict[str, Any], vocabulary: dict[str, int]) -> set[int]:
    """Return the ids that stand for text outside the vocabulary: BPE names the piece, Unigram the id."""
    ids = {vocabulary.get(model.get("unk_token") or ""), model.get("unk_id")}
    return {index for index in ids if index is not None}


def _token_reader(spec: dict[str, Any]) -> Any:
    """Return the function from a vocabulary entry to its bytes."""
    decoder = components(spec["decoder"])
    kinds = {step["type"] for step in decoder}
    if "ByteLevel" in kinds:
        return _byte_level
    if "ByteFallback" in kinds or spec["model"].get("byte_fallback"):
        return _byte_fallback(decoder)
    raise TokenizerError(
        f"expected a byte-level or byte-fallback tokenizer, got a {spec['model']['type']} model with the "
        f"decoder {sorted(kinds)}: its tokens have no byte strings, so that some text could never be spelled"
    )


def _byte_alphabet() -> dict[str, int]:
    """Return GPT-2's letters for the 256 bytes: printable ones stand for themselves."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [value for value in range(256) if value not in printable]
    letters = {chr(value): value for value in printable}
    return letters | {chr(256 + index): value for index, value in enumerate(others)}


_ALPHABET = _byte_alphabet()
BYTE_LETTERS = {value: letter for letter, value in _ALPHABET.items()}


def _byte_level(piece: str) -> bytes:
    if all(letter in _ALPHABET for letter in piece):
        return bytes(map(_ALPHABET.__getitem__, piece))
    return piece.encode()  # as the decoder does with a piece outside its alphabet


def _byte_fallback(decoder: list[dict[str, Any]]) -> Any:
    """SentencePiece-style pieces: a byte by name, or text with a letter that stands for the space."""
    replacements = [
        (step["pattern"]["String"], step["content"])
        for step in decoder
        if step["type"] == "Replace" and "String" in step["pattern"]
    ]
    replacements += [(step["replacement"], " ") for step in decoder if step["type"] == "Metaspace"]

    def to_bytes(piece: str) -> bytes:
        if match := _BYTE_PIECE.fullmatch(piece):
            return bytes([int(match[1], 16)])
        for old, new in replacements:
            piece = piece.replace(old, new)
        return piece.encode()

    return to_bytes
