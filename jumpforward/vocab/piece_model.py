"""A tokenizer's model alone: the tokens of one piece of a text, as the pre-tokenizer would hand it over."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import tokenizers

from jumpforward.vocab.pattern_parser import UnknownRuleError
from jumpforward.vocab.vocabulary import BYTE_LETTERS, components

_CHANGES_BPE = ("dropout", "continuing_subword_prefix", "end_of_word_suffix")


class PieceModel:
    """Tokenizes pieces. Loads its own copy of the model, at the first piece, where one is needed.

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

    def whole(self, piece: bytes) -> tuple[int, ...]:
        """Return the tokens of a piece that ends behind these bytes."""
        if self.takes_whole:
            token = self._backend.model.token_to_id(self._letters(piece))
            if token is not None:
                return (token,)
        return self.beginning(piece)

    def beginning(self, piece: bytes) -> tuple[int, ...]:
        """Return the tokens of the beginning of a longer piece, if it has a border behind these bytes."""
        return tuple(token.id for token in self._merging.tokenize(self._letters(piece))) if piece else ()

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
    spaces = [
        step["content"] for step in normalizer if step["type"] == "Replace" and step["pattern"] == {"String": " "}
    ]
    spaces += [step["replacement"] for step in steps if step["type"] == "Metaspace"]
    space = spaces[-1] if spaces else " "
    return lambda data: data.decode().replace(" ", space)
