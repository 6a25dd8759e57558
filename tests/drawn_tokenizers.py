"""Tokenizers drawn at random: merges in any order, of any two tokens; any pattern; any scores. Few letters, so that
texts meet what is odd about them."""

from __future__ import annotations

import random
from collections.abc import Sequence

from made_tokenizers import FROM_THE_RIGHT, GPT2
from strategies import SPLITS, fast
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from jumpforward.vocab.vocabulary import BYTE_LETTERS

LETTERS = ("a", "b", "c", "d", " ", "  ", "1", "2", "12", "'", "s", '"', ":", ",", "\n", "é", "e\u0301", "霍", "\u00a0")
PATTERNS = (
    *((pattern,) for pattern in (GPT2, *FROM_THE_RIGHT)),
    *((pattern, GPT2) for pattern in FROM_THE_RIGHT),
    *map(tuple, SPLITS.values()),
    (r"\p{N}{1,3}|\P{N}+",),
    (r"a[ab]*c|a|b",),
    (r"ab|abc(?=d)", GPT2),
    (r"\s+(?!\S)|\S+|\s",),
)


def drawn(seed: int) -> tuple[PreTrainedTokenizerFast, list[str]]:
    """Return a tokenizer, and the letters that it is about."""
    draw = random.Random(seed)
    letters = draw.sample(LETTERS, draw.randint(3, 7))
    backend = draw.choice([_byte_level, _byte_level, _byte_fallback, _unigram])(draw, letters)
    if draw.random() < 0.15:
        content = text(draw, letters, 4) or "zz"
        backend.add_tokens([AddedToken(content, normalized=False, single_word=draw.random() < 0.4)])
    return fast(backend, eos_token="</s>"), letters


def text(draw: random.Random, letters: Sequence[str], most: int) -> str:
    """Return a text of up to so many letters."""
    return "".join(draw.choice(letters) for _ in range(draw.randint(0, most)))


def _merges(draw: random.Random, known: list[str]) -> list[tuple[str, str]]:
    """Return merges of any two tokens that there are by then; longer ones are preferred, so that chains come about."""
    merges: list[tuple[str, str]] = []
    pool = list(known)
    for _ in range(draw.randint(0, 14)):
        pair = draw.choice(pool), draw.choice(pool)
        if len("".join(pair)) <= 8 and pair not in merges:
            merges.append(pair)
            pool += ["".join(pair)] * 2
    return merges


def _byte_level(draw: random.Random, letters: Sequence[str]) -> Tokenizer:
    merges = _merges(draw, [BYTE_LETTERS[byte] for byte in "".join(letters).encode()])
    pieces = dict.fromkeys([*BYTE_LETTERS.values(), *map("".join, merges), "</s>"])
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    backend = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=draw.random() < 0.4))
    patterns = draw.choice(PATTERNS) if draw.random() < 0.8 else ()
    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    backend.pre_tokenizer = pre_tokenizers.Sequence([*cuts, pre_tokenizers.ByteLevel(False, use_regex=False)])
    backend.decoder = decoders.ByteLevel()
    if draw.random() < 0.25:
        backend.normalizer = normalizers.NFC()
    backend.add_special_tokens([AddedToken("</s>", normalized=False)])
    return backend


def _named_bytes() -> list[str]:
    return ["<unk>", "</s>", *(f"<0x{value:02X}>" for value in range(256))]


def _known(draw: random.Random, letters: Sequence[str]) -> list[str]:
    """Return most of the letters as SentencePiece writes them; the others are spelled by their bytes."""
    return [letter for letter in sorted({*"".join(letters).replace(" ", "▁"), "▁"}) if draw.random() < 0.9]


def _spaced(draw: random.Random, backend: Tokenizer) -> Tokenizer:
    """Have spaces written as SentencePiece does, by a normalizer or by a pre-tokenizer."""
    prepend = draw.random() < 0.5
    if draw.random() < 0.5:
        scheme = "always" if prepend else "never"
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=draw.random() < 0.5)
    else:
        before = [normalizers.Prepend("▁")] * prepend
        backend.normalizer = normalizers.Sequence([*before, normalizers.Replace(" ", "▁")])
        backend.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    backend.add_special_tokens([AddedToken("</s>", normalized=False)])
    return backend


def _byte_fallback(draw: random.Random, letters: Sequence[str]) -> Tokenizer:
    known = _known(draw, letters)
    merges = _merges(draw, known) if known else []
    pieces = dict.fromkeys([*_named_bytes(), *known, *map("".join, merges)])
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    model = models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    return _spaced(draw, Tokenizer(model))


def _unigram(draw: random.Random, letters: Sequence[str]) -> Tokenizer:
    known = _known(draw, letters)
    longer = [
        "".join(draw.choice(known or ["a"]) for _ in range(draw.randint(2, 5))) for _ in range(draw.randint(0, 14))
    ]
    scored = dict.fromkeys(_named_bytes(), -12.0)
    scored |= {piece: -3.0 - 4 * draw.random() for piece in known} | {
        piece: -2.0 - 8 * draw.random() for piece in longer
    }
    return _spaced(draw, Tokenizer(models.Unigram(list(scored.items()), unk_id=0, byte_fallback=True)))
