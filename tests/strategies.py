"""What tests share: hypothesis strategies for grammars and vocabularies, tokenizers trained in process."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

import jumpforward as jf
from jumpforward.vocab.encoder import PlainEncoder

# Few letters, so that drawn strings share beginnings; two of them share the byte E9 9C / E6, two F0 9F 98.
LETTERS = 'ab{": ,霍霏比😀😁'
END = "<|end|>"

words = st.text(LETTERS, min_size=1, max_size=6)
languages = st.lists(st.text(LETTERS, max_size=8), min_size=1, max_size=6, unique=True)
pieces = st.lists(st.text(LETTERS, min_size=1, max_size=4), max_size=12, unique=True)
any_text = st.text(st.characters(codec="utf-8"), max_size=20)

# What pre-tokenizers and merges tell apart.
FRAGMENTS = [
    '{"', '": "', '", "', '": ', '"}', ", ", "[", "]", "name", "order", "_id", "s", "re", "'", "'s", "'l",
    "'r", " ", "  ", "   ", "\n", "\n\n", "\t ", "\u00a0", "\u2028", "\x1c", "1", "12", "٣", "½", "a", "ab", "abcdef",
    "fg", "z", "é", "e\u0301", "霍", "霍格", "😀", "\u200d", ".", "...", "_", "(", "foo", "foobar", "fo", "▁",
]  # fmt: skip
border_texts = st.one_of(
    st.lists(st.sampled_from(FRAGMENTS), max_size=8).map("".join),
    st.text("abcdefgxz' ", max_size=10),
    st.text('12345 ,"a_霍', max_size=12),
    any_text,
)


# -- grammars --

_atoms = st.sampled_from([(letter, frozenset({letter})) for letter in "ab霍霏😀"] + [("[a霍]", frozenset("a霍"))])


def _joined(left: tuple[str, frozenset[str]], right: tuple[str, frozenset[str]]) -> tuple[str, frozenset[str]]:
    return left[0] + right[0], frozenset(x + y for x in left[1] for y in right[1])


def _either(left: tuple[str, frozenset[str]], right: tuple[str, frozenset[str]]) -> tuple[str, frozenset[str]]:
    return f"({left[0]}|{right[0]})", left[1] | right[1]


def _maybe(part: tuple[str, frozenset[str]]) -> tuple[str, frozenset[str]]:
    return f"({part[0]})?", part[1] | {""}


def _twice(part: tuple[str, frozenset[str]]) -> tuple[str, frozenset[str]]:
    return f"({part[0]}){{2}}", frozenset(x + y for x in part[1] for y in part[1])


# A finite regular expression, and the set of the strings it matches.
regexes = st.recursive(
    _atoms,
    lambda inner: st.one_of(
        st.builds(_joined, inner, inner),
        st.builds(_either, inner, inner),
        st.builds(_maybe, inner),
        st.builds(_twice, inner),
    ),
    max_leaves=6,
).filter(lambda drawn: len(drawn[1]) <= 200)

_values = st.one_of(
    st.builds(lambda value: {"const": value}, words | st.booleans() | st.integers(-9, 99)),
    st.builds(lambda values: {"enum": values}, st.lists(words, min_size=1, max_size=3, unique=True)),
    st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"type": "string", "maxLength": 3}]),
    st.just({"type": "integer", "minimum": 0, "maximum": 120}),
)


def _object(properties: dict[str, Any], num_optional: int) -> dict[str, Any]:
    required = list(properties)[: max(0, len(properties) - num_optional)]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


schemas = st.recursive(
    _values,
    lambda inner: st.one_of(
        st.builds(_object, st.dictionaries(words, inner, min_size=1, max_size=3), st.integers(0, 1)),
        st.builds(lambda items: {"type": "array", "items": items, "minItems": 1, "maxItems": 2}, inner),
    ),
    max_leaves=4,
)

EBNF = (
    'root ::= "(" root ")" | "x"',
    'root ::= "ab" | "abcde"',
    'root ::= item ("," " " item)*\nitem ::= "霍格" | "霍比" [0-9]+',
    'root ::= "{" [^}]* "}"',
)

# Any kind of grammar. All describe short outputs, but not all describe few.
grammars = st.one_of(
    st.builds(jf.choice, languages),
    st.builds(lambda drawn: jf.regex(drawn[0]), regexes),
    st.builds(jf.json_schema, schemas),
    st.builds(jf.ebnf, st.sampled_from(EBNF)),
)


# -- tokenizers --

CORPUS = [
    '{"name": "Ann", "age": 31, "tags": ["red", "blue"], "address": {"city": "Paris", "zip": "75001"}}',
    '{"order_id": 10, "order_name": "first  order", "price": 12.50, "open": true, "note": null}',
    "The answer is yes. The answers are   not, don't, we'll, they're 'quoted' and   spaced.\n\n  Next line.",
    "if (a < b) {\n    return a;\n}\n\n",
    "在线 霍格沃茨 霍比特 é ü naïve café 😀😁",
] * 3


def fast(backend: Tokenizer, **special: Any) -> PreTrainedTokenizerFast:
    """Return the transformers tokenizer around a backend."""
    return PreTrainedTokenizerFast(tokenizer_object=backend, **special)


# Rules of the kinds that Llama 3, GPT-4o and DeepSeek V3 cut by, shortened.
SPLITS = {
    "llama3": [
        r"(?i:'s|'t|'re|'ll)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ],
    "o200k": [
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{M}]*[\p{Ll}\p{Lo}\p{M}]+(?i:'s|'re)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{M}]+"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s+(?!\S)|\s+"
    ],
    "deepseek": [
        r"\p{N}{1,3}",
        "[一-龥]+",
        r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{P}]?\p{L}+| ?[\p{P}\p{S}]+[\r\n]*|\s+(?!\S)|\s+",
    ],
}


@cache
def byte_level(split: str = "gpt2", num_tokens: int = 420) -> PreTrainedTokenizerFast:
    """Return a trained byte-level BPE: ``split`` is ``gpt2``, ``digits``, ``none`` or one of ``SPLITS``."""
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split in ("gpt2", "digits"))
    before: list[Any] = []
    if split == "digits":
        before = [pre_tokenizers.Digits(individual_digits=True)]
    if split in SPLITS:
        before = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in SPLITS[split]]
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence([*before, letters]) if split != "none" else letters
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=num_tokens,
        special_tokens=[END, "<|start|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    return fast(backend, eos_token=END, bos_token="<|start|>")


@cache
def byte_fallback(*, prepend: bool = True) -> PreTrainedTokenizerFast:
    """Return a trained SentencePiece-style BPE with byte fallback: as Llama 2's is built, or else as Gemma's."""
    steps = [normalizers.Prepend("▁")] * prepend + [normalizers.Replace(" ", "▁")]
    learner = Tokenizer(models.BPE())
    learner.normalizer = normalizers.Sequence(steps)
    learner.train_from_iterator(CORPUS[:4], trainers.BpeTrainer(vocab_size=160, show_progress=False))
    learned = json.loads(learner.to_str())["model"]
    names = ["<unk>", "<s>", "</s>", *(f"<0x{value:02X}>" for value in range(256)), *learned["vocab"]]
    vocabulary = {name: index for index, name in enumerate(dict.fromkeys(names))}
    merges = [tuple(merge) for merge in learned["merges"]]
    backend = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Sequence(steps)
    if not prepend:  # behind the normalizer there are no spaces: it cuts nothing
        backend.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *[decoders.Strip(" ", 1, 0)] * prepend]
    )
    return fast(backend, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


@cache
def unigram(*, register_unknown: bool = True, split: bool = False) -> PreTrainedTokenizerFast:
    """Return a unigram model with byte fallback, as T5-like and some multilingual models have."""
    scored = [("<unk>", 0.0), ("</s>", 0.0)]
    scored += [(f"<0x{value:02X}>", -12.0) for value in range(256)]
    scored += [(chr(value), -8.0) for value in range(0x21, 0x7F)]
    scored += [("▁", -4.0), ("▁the", -3.0), ("an", -3.5), ("swer", -3.5), ("▁answer", -3.0), ("é", -5.0)]
    backend = Tokenizer(models.Unigram(scored, unk_id=0, byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=split)
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="always")])
    return fast(backend, eos_token="</s>", **({"unk_token": "<unk>"} if register_unknown else {}))


def with_words(tokenizer: PreTrainedTokenizerFast, *added: AddedToken) -> PreTrainedTokenizerFast:
    """Return a copy of a tokenizer with added tokens."""
    copy = fast(Tokenizer.from_str(tokenizer.backend_tokenizer.to_str()), **tokenizer.special_tokens_map)
    copy.add_tokens(list(added))
    return copy


def same_beginning(encoder: PlainEncoder, ids: tuple[int, ...], text: str, num_tokens: int) -> bool:
    """Whether the encoding of a longer text begins with these tokens, also where it is no round trip."""
    longer = encoder.encode(text.encode())
    if longer is None:
        return encoder._anchors != ("",) or tuple(encoder._raw(text)[:num_tokens]) == ids[:num_tokens]
    return longer[:num_tokens] == ids[:num_tokens]
