"""Law 6: what counts as stable stays, whatever text follows."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from made_tokenizers import (
    CHAIN,
    FROM_THE_RIGHT,
    KINDS,
    changed_model,
    from_the_right,
    gpt2_split,
    normalized,
    pre_tokenized,
    split_by,
    unigram_with_ties,
)
from strategies import border_texts, byte_level, same_beginning, with_words
from tokenizers import AddedToken, normalizers, pre_tokenizers

from jumpforward.testing import toy_tokenizer
from jumpforward.vocab.borders import StableBorders
from jumpforward.vocab.encoder import PlainEncoder
from jumpforward.vocab.vocabulary import ANY_BYTE, Vocabulary


def of(tokenizer):
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    return PlainEncoder(tokenizer, vocabulary), StableBorders(tokenizer, vocabulary)


@pytest.fixture(scope="module", params=KINDS)
def pair(request):
    return of(KINDS[request.param]())


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
        ("112", "22"),
        ('"Ann",', ' "'),
    ],
)
@pytest.mark.parametrize("name", KINDS)
def test_law_6_where_a_longer_text_is_cut_otherwise(name, known, following):
    encoder, borders = of(KINDS[name]())
    ids = encoder.encode(known.encode())
    for next_bytes in (ANY_BYTE, following.encode()[:1]):
        assert same_beginning(encoder, ids, known + following, borders.num_stable(ids, next_bytes))


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
        pytest.param(lambda: split_by(r"a|b", behavior="merged_with_next"), id="cuts that are moved"),
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


@pytest.mark.parametrize("pattern", FROM_THE_RIGHT)
def test_groups_from_the_right_stay_when_the_number_has_ended(pattern):
    encoder, borders = of(from_the_right(pattern))
    ids = encoder.encode(b"ab 12345")
    spelled = [encoder.vocabulary.token_bytes[token] for token in ids]
    assert spelled[-3:] == [b" ", b"12", b"345"]
    for next_bytes in (ANY_BYTE, b"6,"):
        stable = spelled[: borders.num_stable(ids, next_bytes)]
        assert b"".join(stable) in (b"ab", b"ab ")
    assert borders.num_stable(ids, b",}") == len(ids)


def test_where_rounding_decides_nothing_is_stable():
    encoder, borders = of(unigram_with_ties())
    known = "x" + 5 * "1"  # 11 and 111, or 111 and 11
    ids = encoder.encode(known.encode())
    assert len(ids) == 3
    assert borders.num_stable(ids, b"y") == 1
    assert not borders.is_known(known)
    assert borders.num_stable(encoder.encode(b"x111y"), b"z") == 3


def test_a_query_about_nothing():
    _, borders = of(byte_level())
    assert borders.num_stable([]) == 0


@settings(max_examples=300)
@given(whole=border_texts, where=st.integers(0, 40), other=border_texts)
@example(whole="  \n11", where=3, other="霍")
@example(whole="  \n12", where=3, other="3")
def test_tokens_fall_apart_where_they_are_said_to(pair, whole, where, other):
    encoder, borders = pair
    place = where % (len(whole) + 1)
    left, right = whole[:place], whole[place:]
    if not left or not right or not borders.are_independent(left[-1], right[0]):
        return
    both, alone = encoder.encode(whole.encode()), encoder.encode(right.encode())
    if both is None or alone is None or not borders.is_known(right):
        return
    before = both[: len(both) - len(alone)]
    assert both == before + alone
    assert encoder.vocabulary.text_bytes(before) == left.encode()
    longer = encoder.encode((whole + other).encode())
    assert longer is None or longer[: len(before)] == before


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
    encoder, borders = of(normalized(normalizers.NFC(), ["zz"]))
    assert borders.num_stable(encoder.encode(known.encode()), next_bytes) == num_stable
