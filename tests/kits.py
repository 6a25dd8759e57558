"""A real tokenizer and what this package makes of it, once a session."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import pytest
import real_tokenizers
from transformers import PreTrainedTokenizerFast

from jumpforward.decoding.boundary import Boundary
from jumpforward.matching.compiler import GrammarCompiler
from jumpforward.vocab.borders import StableBorders
from jumpforward.vocab.encoder import PlainEncoder
from jumpforward.vocab.vocabulary import Vocabulary


@dataclass(frozen=True)
class Kit:
    tokenizer: PreTrainedTokenizerFast
    vocabulary: Vocabulary
    encoder: PlainEncoder
    borders: StableBorders
    boundary: Boundary
    compiler: GrammarCompiler


def kit(name: str) -> Kit:
    """Return a tokenizer's kit; skip the test where its package is not installed."""
    try:
        return _kit(name)
    except real_tokenizers.MissingPackageError as error:
        pytest.skip(str(error))


@cache
def _kit(name: str) -> Kit:
    tokenizer = real_tokenizers.load(name)
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    encoder, borders = PlainEncoder(tokenizer, vocabulary), StableBorders(tokenizer, vocabulary)
    return Kit(tokenizer, vocabulary, encoder, borders, Boundary(encoder, borders), GrammarCompiler(vocabulary))
