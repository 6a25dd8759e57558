"""What every token id stands for, by the tokenizer's own rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import END, any_text, byte_fallback, byte_level, fast, unigram, with_words
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

import jumpforward as jf
from jumpforward import testing
from jumpforward.matching.compiler import GrammarCompiler
from jumpforward.vocab.vocabulary import Vocabulary, components


def raw(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("split", ["gpt2", "digits", "none", "llama3"])
@given(text=any_text)
def test_the_bytes_of_byte_level_tokens_are_the_text(split, text):
    tokenizer = byte_level(split)
    assert Vocabulary.from_tokenizer(tokenizer).text_bytes(raw(tokenizer, text)) == text.encode()


@given(text=any_text)
def test_the_bytes_of_byte_fallback_tokens_are_the_text(text):
    tokenizer = byte_fallback(prepend=False)
    data = Vocabulary.from_tokenizer(tokenizer).text_bytes(raw(tokenizer, text))
    assert data == text.replace("▁", " ").encode()  # SentencePiece's own letter for the space


@given(text=st.text("aé<0xF> ▁\n"))
def test_case_18_a_prepended_space_is_in_the_bytes(text):
    tokenizer = byte_fallback()
    data = Vocabulary.from_tokenizer(tokenizer).text_bytes(raw(tokenizer, text))
    assert data == (" " + text.replace("▁", " ") if text else "").encode()


@given(text=st.text("answer the霍é"))
def test_the_bytes_of_unigram_tokens_are_the_text(text):
    tokenizer = unigram()
    data = Vocabulary.from_tokenizer(tokenizer).text_bytes(raw(tokenizer, text))
    assert data.removeprefix(b" ") == text.removeprefix(" ").encode()


def test_case_18_sentencepiece_letters_become_what_they_stand_for():
    tokenizer = byte_fallback()
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    named = {piece: vocabulary.token_bytes[index] for piece, index in tokenizer.get_vocab().items()}
    assert named["<0x0A>"] == b"\n"
    assert named["<0xE6>"] == b"\xe6"
    assert named["▁"] == b" "
    assert all("▁".encode() not in token for token in vocabulary.token_bytes)
    assert vocabulary.spellable_bytes == set(range(256))


def test_case_19_nothing_is_lost_that_decode_would_lose():
    tokenizer = byte_level()
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    tokenizer.clean_up_tokenization_spaces = True
    ids = raw(tokenizer, "a , b . 霍")
    assert vocabulary.text_bytes(ids) == "a , b . 霍".encode()
    halves = raw(testing.toy_tokenizer(), "霍")
    assert [*map(Vocabulary.from_tokenizer(testing.toy_tokenizer()).token_bytes.__getitem__, halves)] == [
        b"\xe9",
        b"\x9c",
        b"\x8d",
    ]
    assert "\ufffd" in testing.toy_tokenizer().decode(halves[:1])


def test_special_tokens_have_no_bytes():
    tokenizer = byte_level()
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    special = set(tokenizer.all_special_ids)
    assert special <= vocabulary.special_ids
    assert {index for index, token in enumerate(vocabulary.token_bytes) if not token} == special
    assert vocabulary.end_ids == (tokenizer.eos_token_id,)


@pytest.mark.parametrize("registered", [True, False])
def test_the_unknown_token_of_a_unigram_model_is_special(registered):
    vocabulary = Vocabulary.from_tokenizer(unigram(register_unknown=registered))
    assert vocabulary.token_bytes[0] == b""
    assert 0 in vocabulary.special_ids


def test_the_unknown_token_of_a_bpe_model_is_special():
    backend = Tokenizer.from_str(byte_fallback().backend_tokenizer.to_str())
    vocabulary = Vocabulary.from_tokenizer(fast(backend, eos_token="</s>"))
    assert vocabulary.token_bytes[0] == b""


def test_added_tokens_are_their_own_text():
    tokenizer = with_words(byte_level(), AddedToken("<tool> é"), AddedToken("<mark>", special=True))
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    tool, mark = tokenizer.convert_tokens_to_ids(["<tool> é", "<mark>"])
    assert vocabulary.token_bytes[tool] == "<tool> é".encode()
    assert vocabulary.token_bytes[mark] == b""
    assert mark in vocabulary.special_ids
    assert tool not in vocabulary.special_ids
    assert vocabulary.text_bytes(raw(tokenizer, "a<tool> éb")) == "a<tool> éb".encode()


def test_an_added_token_that_the_model_knows_too_is_a_piece():
    tokenizer = with_words(byte_fallback(prepend=False), AddedToken("▁▁", normalized=False))
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    both = tokenizer.convert_tokens_to_ids("▁▁")
    assert both < len(byte_fallback())
    assert both in raw(tokenizer, "a  b")
    assert vocabulary.text_bytes(raw(tokenizer, "a  b")) == b"a  b"


def test_case_34_several_end_ids_end_an_output_and_have_no_bytes():
    tokenizer = byte_level()
    vocabulary = Vocabulary.from_tokenizer(tokenizer, end_ids=[300, 1, 300])
    assert vocabulary.end_ids == (1, 300)
    assert {1, 300} <= vocabulary.special_ids
    assert vocabulary.token_bytes[300] == b""
    compiler = GrammarCompiler(vocabulary)
    for end in vocabulary.end_ids:
        matcher = compiler.compile(jf.choice([""])).matcher()
        assert matcher.consume(end)
        assert matcher.is_terminated


def test_case_41_the_logits_can_be_wider_than_the_vocabulary():
    tokenizer = byte_level()
    vocabulary = Vocabulary.from_tokenizer(tokenizer, width=512)
    assert vocabulary.width == 512
    assert vocabulary.num_tokens == len(tokenizer)
    assert not any(vocabulary.token_bytes[len(tokenizer) :])


def test_the_logits_can_be_narrower_than_the_vocabulary():
    tokenizer = with_words(byte_level(), AddedToken("<tool>"))
    vocabulary = Vocabulary.from_tokenizer(tokenizer, width=400)
    assert vocabulary.width == vocabulary.num_tokens == 400


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: Vocabulary.from_tokenizer(fast(byte_level().backend_tokenizer)), id="none"),
        pytest.param(lambda: Vocabulary.from_tokenizer(byte_level(), end_ids=[]), id="empty"),
        pytest.param(lambda: Vocabulary.from_tokenizer(byte_level(), end_ids=[0, 420]), id="too large"),
        pytest.param(lambda: Vocabulary.from_tokenizer(byte_level(), end_ids=[-1, 0]), id="negative"),
    ],
)
def test_an_output_must_be_able_to_end(make):
    with pytest.raises(jf.TokenizerError, match="end-of-text"):
        make()


def test_a_slow_tokenizer_is_refused():
    class Slow:
        def get_vocab(self):
            return {}

    with pytest.raises(jf.TokenizerError, match="fast tokenizer, got Slow"):
        Vocabulary.from_tokenizer(Slow())


@pytest.mark.parametrize(
    ("model", "decoder"),
    [
        (models.WordPiece({"[UNK]": 0, "a": 1, "##b": 2}, unk_token="[UNK]"), decoders.WordPiece()),
        (models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]"), None),
        (models.BPE({"a": 0, "b</w>": 1}, [], end_of_word_suffix="</w>"), decoders.BPEDecoder("</w>")),
    ],
)
def test_a_tokenizer_without_byte_strings_is_refused(model, decoder):
    backend = Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    if decoder:
        backend.decoder = decoder
    with pytest.raises(jf.TokenizerError, match="byte-level or byte-fallback"):
        Vocabulary.from_tokenizer(fast(backend, eos_token="a"))


def test_components_are_flat():
    one, two = {"type": "NFC"}, {"type": "Lowercase"}
    nested = {"type": "Sequence", "normalizers": [one, {"type": "Sequence", "normalizers": [two]}]}
    assert components(nested) == [one, two]
    assert components(one) == [one]
    assert components(None) == []


def test_the_toy_tokenizer_has_bytes_pieces_and_an_end():
    tokenizer = testing.toy_tokenizer(["ab", "霍"], single_bytes=b"abc")
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    assert set(vocabulary.token_bytes) == {b"a", b"b", b"c", b"ab", "霍".encode(), b""}
    assert vocabulary.end_ids == (vocabulary.width - 1,)
    assert tokenizer.convert_ids_to_tokens(vocabulary.width - 1) == testing.END != END
    assert vocabulary.spellable_bytes == {*b"abc", 0xE9}
