"""Real tokenizers: bytes of tokens, cuts, stable tokens (law 6), and documents walked with forced text."""

from __future__ import annotations

import importlib.metadata
import json
import unicodedata
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import real_tokenizers
from documents import FOLDER, drawn, own
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from kits import kit
from strategies import any_text, border_texts, same_beginning

from jumpforward.vocab.canonical import find_seams
from jumpforward.vocab.cutting import Cutting
from jumpforward.vocab.encoder import NASTY_TEXTS, PLAIN_TEXTS
from jumpforward.vocab.split_rule import END
from jumpforward.vocab.vocabulary import ANY_BYTE, backend_spec, components

NAMES = real_tokenizers.NAMES
BYTE_LEVEL = ("smollm2", "qwen2.5", "qwen3.6", "deepseek-v3", "tekken", "cl100k", "o200k")
COMPOSING = ("qwen2.5", "qwen3.6", "mon-unigram")  # NFC
LOSSLESS = tuple(name for name in NAMES if name not in COMPOSING)
NUM_DRAWN = 6

every = pytest.mark.parametrize("name", NAMES)


def test_every_package_is_installed():
    """It fails where the others skip: a run in which nothing was tested must not pass for one in which all was."""
    for package in real_tokenizers.requirements():
        importlib.metadata.version(package)


# -- bytes and plain text --


@every
def test_the_tokenizer_is_understood(name):
    assert kit(name).borders.reason is None
    assert kit(name).encoder.round_trips == (name in LOSSLESS)


@every
def test_token_bytes_are_those_of_the_tokenizers_file(name):
    chosen = kit(name)
    own_list = real_tokenizers.ranks(name)
    listed = decoded(chosen) if own_list is None else {index: token for token, index in own_list.items()}
    token_bytes = chosen.vocabulary.token_bytes
    assert all(token_bytes[index] == token for index, token in listed.items())
    added = chosen.tokenizer.backend_tokenizer.get_added_tokens_decoder()
    others = set(range(len(token_bytes))) - listed.keys() - added.keys()
    assert all(len(token_bytes[index]) <= 1 or not is_text(token_bytes[index]) for index in others)


def is_text(data):
    return "\ufffd" not in data.decode(errors="replace")


def decoded(chosen):
    """Token bytes by the tokenizer's own decoder, where they are whole characters."""
    backend = chosen.tokenizer.backend_tokenizer
    found = {}
    for piece, index in backend.get_vocab(with_added_tokens=False).items():
        if index not in chosen.vocabulary.special_ids:
            data = backend.decoder.decode(["a", piece]).removeprefix("a").encode()
            if is_text(data):
                found[index] = data
    return found


@every
@settings(max_examples=100)
@given(text=any_text | border_texts)
def test_the_bytes_of_all_tokens_are_the_text(name, text):
    chosen = kit(name)
    assume("▁" not in text and chosen.vocabulary.spellable_bytes.issuperset(text.encode()))  # SmolLM2 lacks 20 bytes
    ids = chosen.tokenizer.encode(text, add_special_tokens=False)
    assert chosen.vocabulary.text_bytes(ids).decode() == normalized(name, text)


def normalized(name, text):
    if name == "mon-unigram":
        kept = "".join(char for char in text if char not in "\u00ad\u200b\u200c\u200d\u2060\ufeff")
        text = "".join(" " if unicodedata.category(char) == "Zs" else char for char in kept)
        text = text if text.startswith(" ") or not text else " " + text
    if name in ("mistral-v1", "mistral-v3") and text:
        text = " " + text
    return unicodedata.normalize("NFC", text) if name in COMPOSING else text


@every
@pytest.mark.parametrize("text", [*PLAIN_TEXTS, *NASTY_TEXTS])
def test_cases_15_to_19_nasty_texts_are_spelled_or_have_no_tokens(name, text):
    encoder = kit(name).encoder
    ids = encoder.encode(text.encode())
    if ids is None:
        assert text in encoder.lossy_texts
        return
    assert encoder.vocabulary.text_bytes(ids) == text.encode()
    assert not set(ids) & encoder.vocabulary.special_ids
    for count in range(len(ids) + 1):
        rest = encoder.vocabulary.text_bytes(ids[count:])
        assert encoder.encode(rest, ids[:count]) in (ids[count:], None)


@every
def test_case_16_no_special_token_is_made_of_its_spelling(name):
    chosen = kit(name)
    for index in sorted(chosen.vocabulary.special_ids)[:40]:
        content = chosen.tokenizer.convert_ids_to_tokens(index)
        ids = chosen.encoder.encode(f"say {content} now".encode())
        assert ids is None or not set(ids) & chosen.vocabulary.special_ids
        assert ids is not None or name == "mon-unigram"  # a unigram model finds its control pieces in text too


# -- cuts --


@pytest.mark.parametrize("name", [*BYTE_LEVEL, "mon-unigram"])
@settings(max_examples=150)
@given(text=border_texts)
@example(text="a\r\n\r\n  b\n\n/c\u3000 d12345 ９９Ⅷ x\u0301y !?\n' 'S 'ſ 'LLa")
def test_the_cuts_are_the_pre_tokenizers_own(name, text):
    backend = kit(name).tokenizer.backend_tokenizer
    assume(name in BYTE_LEVEL or "▁" not in text)
    (cuts,) = cutting(name).cuts(text, END)
    pieces = [place for _, place in backend.pre_tokenizer.pre_tokenize_str(text)]
    assert [*pairwise(cuts)] == [(start, end) for start, end in pieces if start < end]


@cache
def cutting(name):
    return Cutting(components(backend_spec(kit(name).tokenizer)["pre_tokenizer"]))


# -- stable tokens --


def of_tokens(name, ranks):
    """The text of some tokens of the vocabulary, which are as likely to meet as any others."""
    token_bytes = kit(name).vocabulary.token_bytes
    data = b"".join(token_bytes[rank % len(token_bytes)] for rank in ranks)
    return data.decode(errors="ignore")


ranks = st.lists(st.integers(0, 1 << 20), max_size=5)


@every
@settings(max_examples=100)
@given(text=border_texts, ranks=ranks, where=st.integers(0, 60), left=st.integers(0, 20))
def test_law_6_stable_tokens_stay_whatever_follows(name, text, ranks, where, left):
    chosen = kit(name)
    whole = text + of_tokens(name, ranks)
    known = whole[: where % (len(whole) + 1)]
    ids = chosen.encoder.encode(known.encode())
    assume(ids is not None)
    rest = whole[len(known) :].encode()
    for next_bytes in (ANY_BYTE, rest[:1]):
        assert same_beginning(chosen.encoder, ids, whole, chosen.borders.num_stable(ids, next_bytes))
    in_context = chosen.encoder.encode(whole.encode())
    if in_context is not None:
        forced = known.encode()[len(chosen.vocabulary.text_bytes(in_context[:left])) :]
        stable = chosen.boundary.spell(in_context[:left], forced).stable
        assert in_context[left : left + len(stable)] == stable


@every
@settings(max_examples=100)
@given(text=border_texts, ranks=ranks, cut=st.integers(0, 40), kept=st.integers(0, 20))
def test_rewriting_gives_what_encoding_gives(name, text, ranks, cut, kept):
    chosen = kit(name)
    data = (text + of_tokens(name, ranks)).encode()
    known = data[: cut % (len(data) + 1)]
    output = chosen.encoder.encode(known)
    expected = chosen.encoder.encode(data)
    assume(output is not None and expected is not None)
    single = tuple(token for index in output[kept:] for token in one_by_one(chosen, index))
    for sampled in (output, output[:kept] + single):
        rewrite = chosen.boundary.rewrite(sampled, min(kept, len(output)), data[len(known) :])
        assert (*sampled[: rewrite.num_kept], *rewrite.ids) == expected


def one_by_one(chosen, index):
    """Tokens of single characters for a token, as a model may write them; the token itself where there are none."""
    chars = [
        chosen.encoder.encode(char.encode()) for char in chosen.vocabulary.token_bytes[index].decode(errors="ignore")
    ]
    ids = tuple(token for char in chars for token in char or ())
    same = chosen.vocabulary.text_bytes(ids) == chosen.vocabulary.token_bytes[index]
    return ids if same else (index,)


# -- documents --


@cache
def documents():
    return (*own(), *(drawn(FOLDER, NUM_DRAWN) if FOLDER.is_dir() else []))


def test_all_own_documents_are_there():
    assert len(own()) == 5


def walks(chosen):
    """Give the documents that the tokenizer spells, each with its canonical tokens and a new matcher."""
    spelled = [(document, chosen.encoder.encode(document.data)) for document in documents()]
    found = [(document, ids) for document, ids in spelled if ids is not None]
    assert len(found) >= len(spelled) - 1
    for document, ids in found:
        yield document, ids, chosen.compiler.compile(document.grammar).matcher()


@every
def test_law_6_documents_walked_with_forced_tokens_stay_canonical(name):
    chosen = kit(name)
    num_forced = 0
    for _, ids, matcher in walks(chosen):
        output = ()
        while len(output) < len(ids):
            forced = matcher.forced_bytes()
            stable = chosen.boundary.spell(output, forced, matcher.live_bytes).stable if forced else ()
            num_forced += len(stable)
            output += stable or ids[len(output) : len(output) + 1]
            assert output == ids[: len(output)]
            assert all(map(matcher.consume, stable or output[-1:]))
        assert matcher.is_accepting
    assert num_forced > (100 if FOLDER.is_dir() else 50)


@every
def test_law_12_forced_tokens_are_legal_behind_any_spelling(name):
    chosen = kit(name)
    random = np.random.default_rng(0)
    for document, _, matcher in walks(chosen):
        output, data = (), b""
        while data != document.data:
            forced = matcher.forced_bytes()
            stable = chosen.boundary.spell(output, forced, matcher.live_bytes).stable if forced else ()
            chunk = stable or (any_token(name, document.data[len(data) :], random),)
            assert all(map(matcher.consume, chunk))
            output += chunk
            data = chosen.vocabulary.text_bytes(output)
            assert document.data.startswith(data)
        assert matcher.is_accepting
        assert not set(output) & chosen.vocabulary.special_ids


def any_token(name, rest, random):
    """One of the tokens with which a text can begin."""
    ids = by_bytes(name)
    fitting = [ids[rest[:length]] for length in range(1, min(16, len(rest)) + 1) if rest[:length] in ids]
    return fitting[random.integers(len(fitting))]


@cache
def by_bytes(name):
    return {token: index for index, token in enumerate(kit(name).vocabulary.token_bytes) if token}


@every
def test_documents_that_are_retokenized_end_as_their_encoding(name):
    chosen = kit(name)
    random = np.random.default_rng(1)
    for document, ids, matcher in walks(chosen):
        output, num_canonical = (), 0
        while matcher is not None:
            if forced := matcher.forced_bytes():
                rewrite = chosen.boundary.rewrite(output, num_canonical, forced)
                if rewrite is not None:
                    output, num_canonical = replaced(output, rewrite, matcher)
                    assert find_seams(chosen.encoder, output) == []
            data = chosen.vocabulary.text_bytes(output)
            if data == document.data:
                break
            token = any_token(name, document.data[len(data) :], random)
            assert matcher.consume(token)
            output += (token,)
        rewrite = chosen.boundary.rewrite(output, num_canonical, b"")
        assert (*output[: rewrite.num_kept], *rewrite.ids) == ids


def replaced(output, rewrite, matcher):
    """Put new tokens in the place of an output's last ones, in the matcher too."""
    matcher.rollback(len(output) - rewrite.num_kept)
    assert all(map(matcher.consume, rewrite.ids))
    new = (*output[: rewrite.num_kept], *rewrite.ids)
    return new, len(new)


def test_the_documents_hold_what_is_hard():
    text = "".join(document.data.decode() for document in own())
    assert all(part in text for part in ("😀", "霍", "  ", "\\u0001", "1234567", "</s>", "<|im_end|>", "don't", "\\t"))
    assert json.loads(own()[3].data)
