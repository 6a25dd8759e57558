"""Tokenizers of every kind, made in process out of few tokens, so that drawn texts meet what is special about each."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from strategies import byte_fallback, byte_level, fast, unigram, with_words
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from jumpforward.testing import toy_tokenizer

# Every merge is made only because of what stands behind it, so that one more letter moves all borders before it.
CHAIN = ["fg", "ef", "de", "cd", "bc", "ab"]
LONG_CHAIN = [left + right for left, right in pairwise("cdefghijklmn")][::-1]
WORDS = ["or", "ord", "orde", "order", "Id", "orderId"]
DIGITS = ["12", "123", "23", "234", "34", "345", "11", "111", "33"]

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# Digits in threes from the right: as matches, and as places where groups begin (SuperBPE's rule).
FROM_THE_RIGHT = [r"\d{1,3}(?=(\d{3})*\b)", r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))", r"(?=(\d{3})+(?!\d))"]

Step = Any  # of a tokenizer: a normalizer or a pre-tokenizer


def changed(tokenizer: PreTrainedTokenizerFast, **parts: Any) -> PreTrainedTokenizerFast:
    """Return a copy of a tokenizer with other parts."""
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    for name, part in parts.items():
        setattr(backend, name, part)
    return fast(backend, eos_token=tokenizer.eos_token)


def changed_model(**options: Any) -> PreTrainedTokenizerFast:
    """Return a trained byte-level tokenizer whose model has other options."""
    spec = json.loads(byte_level().backend_tokenizer.to_str())
    spec["model"] |= options
    return fast(Tokenizer.from_str(json.dumps(spec)), eos_token=byte_level().eos_token)


def normalized(step: Step, pieces: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """Return a tokenizer behind a normalizer: one of these pieces, or a trained one."""
    return changed(toy_tokenizer(pieces) if pieces else byte_level(), normalizer=step)


def pre_tokenized(*steps: Step, pieces: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """Return a tokenizer behind a pre-tokenizer: one of these pieces, or a trained one."""
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made = toy_tokenizer(pieces) if pieces else byte_level()
    return changed(made, pre_tokenizer=pre_tokenizers.Sequence([*steps, letters]))


def split_by(*patterns: str, behavior: str = "isolated", pieces: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """Return a tokenizer that cuts by patterns, one after the other."""
    return pre_tokenized(*(pre_tokenizers.Split(Regex(each), behavior) for each in patterns), pieces=pieces)


def gpt2_split(pieces: Sequence[str]) -> PreTrainedTokenizerFast:
    """Return a tokenizer of these pieces that cuts as GPT-2's does."""
    return changed(toy_tokenizer(pieces), pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=False))


def contractions() -> PreTrainedTokenizerFast:
    """Return a tokenizer in which nearly every pair of bytes is side by side nowhere."""
    return gpt2_split(["'s", "'re", "  ", "   ", "ab", "re", "ll"])


def whole_words(split: bool, *added: AddedToken) -> PreTrainedTokenizerFast:
    """Words of the vocabulary are taken whole where a pre-token ends behind them, and only there."""
    spec = json.loads(gpt2_split(["\t\t", "ab", "xy", " z", "..", "fo"]).backend_tokenizer.to_str())
    spec["model"] |= {"merges": [], "ignore_merges": True}
    spec["pre_tokenizer"]["use_regex"] = split
    return with_words(fast(Tokenizer.from_str(json.dumps(spec)), eos_token="<end>"), *added)


def chain_in_groups() -> PreTrainedTokenizerFast:
    """A chain of merges inside words, and digits in threes."""
    pieces = [*CHAIN, "12", "123", "23", "3a", "  ", '":', ' "']
    return split_by(r"\p{N}{1,3}| ?[^\s\p{N}]+|\s+(?!\S)|\s+", pieces=pieces)


def from_the_right(pattern: str, *behind: str) -> PreTrainedTokenizerFast:
    """Digits in groups from the right."""
    return split_by(pattern, *behind, pieces=[*DIGITS, ", ", ' "', "ab"])


def unigram_with_ties() -> PreTrainedTokenizerFast:
    """A unigram model in which many ways to spell a text are equally good but for rounding."""
    scored = [("<unk>", 0.0), ("</s>", 0.0), *((f"<0x{value:02X}>", -12.0) for value in range(256))]
    scored += [(chr(value), -6.3) for value in range(0x21, 0x7F)]
    scored += [("▁", -2.7), ("▁▁", -3.3), ("▁▁▁", -3.1), ("11", -4.9), ("111", -5.3), ("ab", -6.1), ("▁a", -5.7)]
    backend = Tokenizer(models.Unigram(scored, unk_id=0, byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="never")])
    return fast(backend, eos_token="</s>")


FOO, QQ = AddedToken("foo"), AddedToken("-qq", single_word=True)
KINDS: dict[str, Callable[[], PreTrainedTokenizerFast]] = {
    "whole words": lambda: whole_words(True),
    "whole words, nothing cut": lambda: whole_words(False),
    "whole words, added words": lambda: whole_words(True, FOO, QQ),
    "whole words, added words, nothing cut": lambda: whole_words(False, FOO, QQ),
    "gpt2": byte_level,
    "digits": lambda: byte_level("digits"),
    "none": lambda: byte_level("none"),
    "chain": lambda: toy_tokenizer([*WORDS, *CHAIN, ' "', '":', "12", "123"]),
    "long chain": lambda: toy_tokenizer(LONG_CHAIN),
    "chain in groups": chain_in_groups,
    "chain behind NFC": lambda: normalized(normalizers.NFC(), [*CHAIN, ' "', '":', "12", "123", "e\u0301"]),
    "groups of digits": lambda: split_by(r"\p{N}{1,3}|\P{N}+", pieces=["34", "ab"]),
    "groups from the right": lambda: from_the_right(FROM_THE_RIGHT[0]),
    "groups from the right, then words": lambda: from_the_right(FROM_THE_RIGHT[1], GPT2),
    "groups that begin from the right, then words": lambda: from_the_right(FROM_THE_RIGHT[2], GPT2),
    "a rule that sees far, then words": lambda: split_by("foo|12(?=3)", GPT2, pieces=[" \n", "  ", "ab", "fo", "23"]),
    "no merges": toy_tokenizer,
    "contractions": contractions,
    "added words": lambda: with_words(
        contractions(), AddedToken("foobar"), AddedToken("foo", single_word=True), AddedToken("ab_id")
    ),
    "a digit is an added word": lambda: with_words(
        split_by(r"\p{N}{1,3}|\P{N}+", pieces=["22", "222", "ab", "33"]), AddedToken("1")
    ),
    "llama3": lambda: byte_level("llama3"),
    "o200k": lambda: byte_level("o200k"),
    "deepseek": lambda: byte_level("deepseek"),
    "NFC": lambda: normalized(normalizers.NFC()),
    "unigram": unigram,
    "unigram, words": lambda: unigram(split=True),
    "unigram, ties": unigram_with_ties,
    "byte fallback": byte_fallback,
    "byte fallback, nothing prepended": lambda: byte_fallback(prepend=False),
    "byte fallback, cut at spaces that are none any more": lambda: changed(
        byte_fallback(prepend=False), pre_tokenizer=pre_tokenizers.Split(Regex(" [^ ]*|[^ ]+"), "isolated")
    ),
}
