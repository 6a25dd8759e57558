"""Law 6: what counts as stable stays, whatever text follows."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import border_texts, byte_fallback, byte_level, fast, same_beginning, unigram, with_words
from tokenizers import AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers

from jumpforward.testing import toy_tokenizer
from jumpforward.vocab.borders import StableBorders
from jumpforward.vocab.encoder import PlainEncoder
from jumpforward.vocab.vocabulary import ANY_BYTE, Vocabulary

CHAIN = ["fg", "ef", "de", "cd", "bc", "ab"]


def of(tokenizer):
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    return PlainEncoder(tokenizer, vocabulary), StableBorders(tokenizer, vocabulary)


def contractions():
    """A vocabulary in which nearly every pair of bytes is side by side nowhere."""
    return gpt2_split(["'s", "'re", "  ", "   ", "ab", "re", "ll"])


def gpt2_split(pieces):
    tokenizer = toy_tokenizer(pieces)
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    return fast(backend, eos_token=tokenizer.eos_token)


def added_words():
    """The same with added tokens, which cut a text before the pre-tokenizer sees it."""
    return with_words(contractions(), AddedToken("foobar"), AddedToken("foo", single_word=True), AddedToken("ab_id"))


def whole_words(split, *added):
    """Words of the vocabulary are taken whole where a pre-token ends behind them, and only there."""
    spec = json.loads(gpt2_split(["\t\t", "ab", "xy", " z", "..", "fo"]).backend_tokenizer.to_str())
    spec["model"] |= {"merges": [], "ignore_merges": True}
    spec["pre_tokenizer"]["use_regex"] = split
    return with_words(fast(Tokenizer.from_str(json.dumps(spec)), eos_token="<end>"), *added)


TOKENIZERS = {
    "whole words": lambda: whole_words(True),
    "whole words, nothing cut": lambda: whole_words(False),
    "whole words, added words": lambda: whole_words(True, AddedToken("foo"), AddedToken("-qq", single_word=True)),
    "whole words, added words, nothing cut": lambda: whole_words(
        False, AddedToken("foo"), AddedToken("-qq", single_word=True)
    ),
    "gpt2": byte_level,
    "digits": lambda: byte_level("digits"),
    "none": lambda: byte_level("none"),
    "chain": lambda: toy_tokenizer(CHAIN),
    "groups of digits": lambda: split_by(r"\p{N}{1,3}|\P{N}+", of_pieces=["34", "ab"]),
    "no merges": toy_tokenizer,
    "contractions": contractions,
    "added words": added_words,
    "llama3": lambda: byte_level("llama3"),
    "o200k": lambda: byte_level("o200k"),
    "deepseek": lambda: byte_level("deepseek"),
    "NFC": lambda: normalized(normalizers.NFC()),
    "chain in groups": lambda: chain_in_groups(),
    "unigram": unigram,
    "unigram, words": lambda: unigram(split=True),
    "byte fallback": byte_fallback,
    "byte fallback, nothing prepended": lambda: byte_fallback(prepend=False),
}


@pytest.fixture(scope="module", params=TOKENIZERS)
def pair(request):
    return of(TOKENIZERS[request.param]())


@settings(max_examples=400)
@given(whole=border_texts, where=st.integers(0, 40))
def test_law_6_stable_tokens_stay_whatever_follows(pair, whole, where):
    encoder, borders = pair
    known = whole[: where % (len(whole) + 1)]
    ids = encoder.encode(known.encode())
    if ids is not None:  # None: nothing is committed
        rest = whole[len(known) :].encode()
        for next_bytes in (ANY_BYTE, rest[:1]):
            num_stable = borders.num_stable(ids, next_bytes)
            assert 0 <= num_stable <= len(ids)
            assert same_beginning(encoder, ids, whole, num_stable)


@pytest.mark.parametrize(
    ("known", "following"),
    [
        ("ab  fooba", "r"),
        ("ab  foo", "z"),
        ("ab'r", "e"),
        ("ab  ", "z"),
        ("ab'", "s"),
        ("ab \u2003fooba", "r"),
        ("ab\t\t ", "z"),
        ("ab\t\t\u00a0", "z"),
        ("\t\tfo", "o"),
        ("xyfo", "o"),
        ("..-qq", "z"),
        ("ab\u00a0 ", "z"),
        ("ab \x1c", "z"),
    ],
)
@pytest.mark.parametrize("name", TOKENIZERS)
def test_law_6_where_a_longer_text_is_cut_otherwise(name, known, following):
    encoder, borders = of(TOKENIZERS[name]())
    ids = encoder.encode(known.encode())
    assert same_beginning(encoder, ids, known + following, borders.num_stable(ids))


def test_case_13_chain_merges_commit_nothing():
    encoder, borders = of(toy_tokenizer(CHAIN))
    spell = encoder.vocabulary.token_bytes.__getitem__
    assert [*map(spell, encoder.encode(b"abcdef"))] == [b"ab", b"cd", b"ef"]
    assert [*map(spell, encoder.encode(b"abcdefg"))] == [b"a", b"bc", b"de", b"fg"]
    assert borders.num_stable(encoder.encode(b"abcdef")) == 0
    assert borders.num_stable(encoder.encode(b"abcdef"), b"xz") == 3
    assert borders.num_stable(encoder.encode(b"abcdef|")) == 4


@pytest.mark.parametrize("num_dropped", [1, 2])
def test_case_13_dropping_the_last_tokens_is_not_enough(num_dropped):
    encoder, _ = of(toy_tokenizer(CHAIN))
    known = encoder.encode(b"abcdef")[:-num_dropped]
    assert encoder.encode(b"abcdefg")[: len(known)] != known


@pytest.mark.parametrize(
    ("known", "withheld", "piece"),
    [
        pytest.param('{"order', "order", ["or", "order", "Id", "orderId"], id="10"),
        pytest.param('{"of_person"', '"', ['":', 'n"'], id="11"),
        pytest.param("is ", " ", ["ye", "yes", " yes"], id="12"),
    ],
)
def test_cases_10_to_12_what_could_still_grow_is_withheld(known, withheld, piece):
    encoder, borders = of(gpt2_split(piece))
    ids = encoder.encode(known.encode())
    stable = encoder.vocabulary.text_bytes(ids[: borders.num_stable(ids)]).decode()
    assert known.startswith(stable)
    assert known.removeprefix(stable).endswith(withheld)
    assert stable


@pytest.mark.parametrize("split", ["gpt2", "digits"])
@pytest.mark.parametrize("known", ['{"name": "', '", "age": ', '"}, {"order_id": ', "]}\n", '"tags": ["'])
def test_common_json_commits_all_but_the_open_end(split, known):
    encoder, borders = of(byte_level(split))
    ids = encoder.encode(known.encode())
    assert borders.num_stable(ids) == len(ids) - 1


@pytest.mark.parametrize(
    "tokenizer",
    [
        pytest.param(lambda: split_by(r"\p{L}++|."), id="a possessive repeat"),
        pytest.param(lambda: split_by(r"(?<=a)b|."), id="a look behind"),
        pytest.param(lambda: split_by(r"\bfoo|."), id="a word border"),
        pytest.param(lambda: split_by(r"a*"), id="an empty match"),
        pytest.param(lambda: split_by(r"a|b", "merged_with_next"), id="cuts that are moved"),
        pytest.param(lambda: pre_tokenized(pre_tokenizers.Punctuation()), id="punctuation"),
        pytest.param(lambda: normalized(normalizers.Replace('": ', '":')), id="drops a space"),
        pytest.param(lambda: normalized(normalizers.Lowercase()), id="lower case"),
        pytest.param(lambda: with_words(byte_level(), AddedToken("foo", lstrip=True)), id="eats spaces"),
        pytest.param(lambda: changed_model(dropout=0.5), id="dropout"),
        pytest.param(lambda: changed_model(end_of_word_suffix="/"), id="word suffix"),
    ],
)
def test_law_6_what_is_not_understood_commits_nothing(tokenizer):
    chosen = tokenizer()
    vocabulary = Vocabulary.from_tokenizer(chosen)
    borders = StableBorders(chosen, vocabulary)
    assert borders.num_stable(chosen.encode('{"name": "Ann", "age": 31}', add_special_tokens=False)) == 0


def normalized(step):
    backend = Tokenizer.from_str(byte_level().backend_tokenizer.to_str())
    backend.normalizer = step
    return fast(backend, eos_token=byte_level().eos_token)


def split_by(pattern, behavior="isolated", of_pieces=()):
    return pre_tokenized(pre_tokenizers.Split(Regex(pattern), behavior), of_pieces)


def pre_tokenized(step, of_pieces=()):
    tokenizer = toy_tokenizer(of_pieces) if of_pieces else byte_level()
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([step, letters])
    return fast(backend, eos_token=tokenizer.eos_token)


def chain_in_groups():
    """A chain of merges inside words, and digits in threes."""
    tokenizer = toy_tokenizer([*CHAIN, "12", "123", "23", "3a", "  ", '":', ' "'])
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    groups = pre_tokenizers.Split(Regex(r"\p{N}{1,3}| ?[^\s\p{N}]+|\s+(?!\S)|\s+"), "isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence([groups, pre_tokenizers.ByteLevel(False, use_regex=False)])
    return fast(backend, eos_token=tokenizer.eos_token)


def changed_model(**options):
    spec = json.loads(byte_level().backend_tokenizer.to_str())
    spec["model"] |= options
    return fast(Tokenizer.from_str(json.dumps(spec)), eos_token=byte_level().eos_token)


def test_a_query_about_nothing():
    _, borders = of(byte_level())
    assert borders.num_stable([]) == 0


@settings(max_examples=200)
@given(whole=border_texts, where=st.integers(0, 40))
def test_tokens_fall_apart_where_they_are_said_to(pair, whole, where):
    encoder, borders = pair
    place = where % (len(whole) + 1)
    left, right = whole[:place], whole[place:]
    if not left or not right or not borders.are_independent(left[-1], right[0]):
        return
    both, alone = encoder.encode(whole.encode()), encoder.encode(right.encode())
    if both is not None and alone is not None:
        assert both[len(both) - len(alone) :] == alone
        assert encoder.vocabulary.text_bytes(both[: len(both) - len(alone)]) == left.encode()


@pytest.mark.parametrize(
    ("known", "next_bytes", "num_stable"),
    [
        pytest.param("x=", ANY_BYTE, 1, id="a stroke may be composed with a sign"),
        pytest.param("xe", b"\xcc", 1, id="an accent with a letter"),
        pytest.param("xe", b"1", 2, id="a digit with nothing"),
        pytest.param('x"', ANY_BYTE, 2, id="nothing with a quote"),
    ],
)
def test_law_6_composed_characters(known, next_bytes, num_stable):
    backend = Tokenizer.from_str(toy_tokenizer().backend_tokenizer.to_str())
    backend.normalizer = normalizers.NFC()
    encoder, borders = of(fast(backend, eos_token="<end>"))
    assert borders.num_stable(encoder.encode(known.encode()), next_bytes) == num_stable
