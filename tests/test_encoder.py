"""Plain text to the tokenizer's own tokens, or to none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_tokenizers import gpt2_split
from strategies import END, any_text, byte_fallback, byte_level, fast, pieces, unigram, with_words
from tokenizers import AddedToken, Tokenizer, normalizers

import jumpforward as jf
from jumpforward.testing import toy_tokenizer
from jumpforward.vocab.encoder import PlainEncoder
from jumpforward.vocab.vocabulary import Vocabulary


def of(tokenizer):
    return PlainEncoder(tokenizer, Vocabulary.from_tokenizer(tokenizer))


def normalized(step):
    backend = Tokenizer.from_str(byte_level().backend_tokenizer.to_str())
    backend.normalizer = step
    return fast(backend, eos_token=END)


TOKENIZERS = {
    "gpt2": byte_level,
    "digits": lambda: byte_level("digits"),
    "none": lambda: byte_level("none"),
    "llama3": lambda: byte_level("llama3"),
    "byte fallback": byte_fallback,
    "byte fallback, nothing prepended": lambda: byte_fallback(prepend=False),
    "unigram": unigram,
    "NFC": lambda: normalized(normalizers.NFC()),
}
ENCODERS = {name: of(make()) for name, make in TOKENIZERS.items()}
every_tokenizer = pytest.mark.parametrize("name", TOKENIZERS)


@every_tokenizer
@given(text=any_text | st.text("ab  ▁e\u0301</s>|,:\"'"))
def test_the_tokens_spell_the_bytes_or_there_are_none(name, text):
    encoder = ENCODERS[name]
    ids = encoder.encode(text.encode())
    if ids is None:
        assert not encoder.round_trips or "▁" in text  # SentencePiece's own letter for the space
    else:
        assert encoder.vocabulary.text_bytes(ids) == text.encode()


@every_tokenizer
@given(text=any_text)
def test_plain_text_round_trips_where_the_self_test_says_so(name, text):
    encoder = ENCODERS[name]
    if encoder.round_trips:
        assert encoder.encode(text.encode()) is not None or "▁" in text


@every_tokenizer
@given(text=st.sampled_from([END, "</s>", "<unk>", "<s>", "<|start|>", "a</s>b", f"say {END} now"]))
def test_case_16_text_that_spells_a_special_token_stays_text(name, text):
    encoder = ENCODERS[name]
    ids = encoder.encode(text.encode())
    assert ids is None or not set(ids) & encoder.vocabulary.special_ids


def test_case_16_a_special_token_is_spelled_out():
    tokenizer = byte_level()
    encoder = of(tokenizer)
    text = f"a{END}b"
    assert tokenizer.eos_token_id in tokenizer.encode(text, add_special_tokens=False)
    assert encoder.vocabulary.text_bytes(encoder.encode(text.encode())) == text.encode()


@given(text=any_text)
def test_case_15_the_tokens_are_the_tokenizers_own(text):
    assert [*of(byte_level()).encode(text.encode())] == byte_level().encode(text, add_special_tokens=False)


@given(pieces, st.text("ab霍", max_size=8), st.integers(0, 8))
def test_left_context_gives_the_rest_of_the_canonical_tokens(drawn, text, where):
    encoder = of(toy_tokenizer(drawn))
    whole = encoder.encode(text.encode())
    left = whole[: where % (len(whole) + 1)]
    data = text.encode()[len(encoder.vocabulary.text_bytes(left)) :]
    if is_text(encoder.vocabulary.text_bytes(left) + data):
        assert encoder.encode(data, left) == whole[len(left) :]


@pytest.mark.parametrize(
    ("make", "text", "pieces"),
    [
        pytest.param(
            lambda: gpt2_split(["  ", " y"]), "x  y", ["x", " ", " y"], id="longest match would take two spaces"
        ),
        pytest.param(byte_fallback, "a,b", ["a", ",", "b"], id="a comma is no byte"),
    ],
)
def test_case_15_the_tokens_are_not_the_longest_that_fit(make, text, pieces):
    tokenizer = make()
    ids = of(tokenizer).encode(text.encode())
    assert [of(tokenizer).vocabulary.token_bytes[token].decode() for token in ids] == pieces
    assert not any(piece.startswith("<0x") for piece in tokenizer.convert_ids_to_tokens(list(ids)))
    assert [*ids[1:]] == tokenizer.encode(text, add_special_tokens=False)[1:]  # the first may have got a space


def is_text(data):
    return data.decode(errors="replace").encode() == data


def test_left_context_that_is_not_canonical_gives_none():
    encoder = of(toy_tokenizer(["ab", "bc"]))
    a, b, ab = (*encoder.encode(b"a"), *encoder.encode(b"b"), *encoder.encode(b"ab"))
    assert encoder.encode(b"c", (ab,)) == encoder.encode(b"c")
    assert encoder.encode(b"c", (a, b)) is None
    assert encoder.encode(b"b", (a,)) is None  # `ab` is one token
    assert encoder.encode(b"b", (b,)) == (b,)
    bc, c = (*encoder.encode(b"bc"), *encoder.encode(b"c"))
    assert encoder.encode(b"d", (ab, c)) == encoder.encode(b"d")
    assert encoder.encode(b"d", (a, bc)) is None  # as many tokens, the same bytes


@pytest.mark.parametrize("prepend", [True, False])
def test_left_context_in_the_middle_of_a_text(prepend):
    encoder = of(byte_fallback(prepend=prepend))
    whole = encoder.encode(b'"name": "Ann"')
    for count in range(len(whole) + 1):
        data = encoder.vocabulary.text_bytes(whole[count:])
        assert encoder.encode(data, whole[:count]) == whole[count:]


@pytest.mark.parametrize("data", [b"\xe9\x9c", b"a\xff", b"\x8d"])
def test_case_21_half_a_character_has_no_canonical_tokens(data):
    encoder = of(toy_tokenizer())
    assert encoder.encode(data) is None


def test_case_21_a_character_that_was_begun_is_completed():
    encoder = of(toy_tokenizer())
    left = encoder.encode("a霍".encode())[:-1]
    assert encoder.vocabulary.text_bytes(left) == b"a\xe9\x9c"
    assert encoder.encode(b"\x8d", left) == encoder.encode("霍".encode())[-1:]


def test_case_17_a_normalizer_gives_none_for_what_it_changes():
    encoder = of(normalized(normalizers.NFC()))
    assert not encoder.round_trips
    assert "e\u0301 o\u0308" in encoder.lossy_texts
    assert encoder.encode("e\u0301".encode()) is None
    assert encoder.encode(b"\xcc\x81", encoder.encode(b"e")) is None
    assert encoder.encode("é".encode()) is not None


def test_case_17_a_tokenizer_that_drops_the_space_is_refused():
    with pytest.raises(jf.TokenizerError, match="do not spell it"):
        of(normalized(normalizers.Replace('": ', '":')))


def test_case_18_no_space_is_put_before_a_text():
    encoder = of(byte_fallback())
    ids = encoder.encode(b"a>")
    assert encoder.vocabulary.text_bytes(ids) == b"a>"
    assert encoder.vocabulary.text_bytes(encoder.encode(b" a>")) == b" a>"
    assert b" a" not in [encoder.vocabulary.token_bytes[index] for index in ids]


def test_the_users_tokenizer_is_unchanged():
    tokenizer = with_words(byte_level(), AddedToken("<tool>"))
    tokenizer.backend_tokenizer.enable_truncation(3)
    tokenizer.backend_tokenizer.enable_padding(length=9)
    before = tokenizer.backend_tokenizer.to_str()
    encoder = of(tokenizer)
    text = f"a long enough text {END}"
    assert encoder.vocabulary.text_bytes(encoder.encode(text.encode())) == text.encode()
    assert tokenizer.backend_tokenizer.to_str() == before
    assert not tokenizer.backend_tokenizer.encode_special_tokens
    assert tokenizer.backend_tokenizer.truncation["max_length"] == 3


def test_the_self_test_finds_nothing_wrong_with_plain_tokenizers():
    assert all(ENCODERS[name].round_trips for name in ("gpt2", "digits", "none", "llama3"))
