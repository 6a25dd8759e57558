"""A tokenizer's model alone: the tokens of one piece of a text, as the pre-tokenizer would hand it over."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import tokenizers

from jumpforward.vocab.pattern_parser import UnknownRuleError
from jumpforward.vocab.rewriting import space_letter
from jumpforward.vocab.unigram import UnigramPaths
from jumpforward.vocab.vocabulary import BYTE_LETTERS, components

_CHANGES_BPE = ("dropout", "continuing_subword_prefix", "end_of_word_suffix")


Tokens = tuple[int, ...]


class PieceModel:
    """Tokenizes pieces. Loads its own copy of the model, at the first piece, where one is needed.

    Tokens come with whether they are all there are: where rounding decides between several spellings, and may decide
    otherwise behind other text, only what these have in common is returned.

    Attributes:
        takes_whole: whether a piece that is a token is that token, whatever the merges say.
    """

    def __init__(self, spec: dict[str, Any], backend: tokenizers.Tokenizer) -> None:
        """Take a tokenizer's description and its backend.

        Raises:
            UnknownRuleError: the model's tokens may depend on more than the piece.
        """
        model = spec["model"]
        is_plain = model["type"] == "Unigram" or (
            model["type"] == "BPE" and not any(model.get(key) for key in _CHANGES_BPE)
        )
        if not is_plain:
            raise UnknownRuleError(f"the model {model['type']} with {[key for key in _CHANGES_BPE if model.get(key)]}")
        self._backend = backend
        self.takes_whole = bool(model.get("ignore_merges"))
        self._letters = _letters_of(components(spec["normalizer"]), components(spec["pre_tokenizer"]))
        self._paths = UnigramPaths(model["vocab"]) if model["type"] == "Unigram" else None

    def whole(self, piece: bytes) -> tuple[Tokens, bool]:
        """Return the tokens of a piece that ends behind these bytes."""
        if self.takes_whole:
            token = self._backend.model.token_to_id(self._letters(piece))
            if token is not None:
                return (token,), True
        return self.beginning(piece)

    def beginning(self, piece: bytes) -> tuple[Tokens, bool]:
        """Return the tokens of the beginning of a longer piece, if it has a border behind these bytes."""
        if not piece:
            return (), True
        letters = self._letters(piece)
        tokens = self._merging.tokenize(letters)
        len_known = len(letters) if self._paths is None else self._paths.len_known(letters)
        if len_known == len(letters):
            return tuple(token.id for token in tokens), True
        end = len(letters[:len_known].encode())
        return tuple(token.id for token in tokens if token.offsets[1] <= end), False

    def is_known(self, text: str) -> bool:
        """Whether the tokens of a text are sure to be the same wherever it stands, as far as rounding goes."""
        return self._paths is None or self.beginning(text.encode())[1]

    @cached_property
    def _merging(self) -> Any:
        """The model without the rule that a piece which is a token is taken whole."""
        if not self.takes_whole:
            return self._backend.model
        merging = copy.deepcopy(self._backend.model)
        merging.ignore_merges = False
        return merging


def _letters_of(normalizer: Sequence[dict[str, Any]], steps: Sequence[dict[str, Any]]) -> Callable[[bytes], str]:
    """Return the function from a piece's bytes to the letters in which the model reads them."""
    if steps and steps[-1]["type"] == "ByteLevel":
        return lambda data: "".join(map(BYTE_LETTERS.__getitem__, data))
    space = next((step["replacement"] for step in steps if step["type"] == "Metaspace"), space_letter(normalizer))
    return lambda data: data.decode().replace(" ", space)
