"""The flat token trie, against the plain list of tokens."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jumpforward.vocab.trie import TokenTrie

vocabularies = st.lists(st.binary(max_size=5) | st.text("abc霍", max_size=4).map(str.encode), max_size=30)


def spelled(trie: TokenTrie) -> list[bytes]:
    """Return each node's string, by following its parents."""
    strings = [b""]
    for node in range(1, trie.num_nodes):
        assert trie.parent[node] < node
        strings.append(strings[trie.parent[node]] + bytes([trie.byte[node]]))
    return strings


@given(vocabularies)
def test_nodes_are_the_beginnings_of_tokens_once_each(tokens):
    trie = TokenTrie.build(tokens)
    prefixes = {token[:end] for token in tokens for end in range(len(token) + 1)} | {b""}
    strings = spelled(trie)
    assert len(strings) == len(set(strings))
    assert set(strings) == prefixes
    assert [strings.index(string) for string in strings] == [trie.find(string) for string in strings]


@given(vocabularies, st.binary(max_size=3))
def test_tokens_below_a_node_begin_with_its_string(tokens, other):
    trie = TokenTrie.build(tokens)
    for node, string in enumerate(spelled(trie)):
        below = trie.tokens_below(node).tolist()
        assert sorted(below) == [index for index, token in enumerate(tokens) if token and token.startswith(string)]
        assert [tokens[index] for index in below] == sorted(tokens[index] for index in below)
    assert (trie.find(other) is None) == (not any(token.startswith(other) for token in [*tokens, b""]))


@given(vocabularies)
def test_every_token_ends_at_its_node_and_ids_without_bytes_are_left_out(tokens):
    trie = TokenTrie.build(tokens)
    strings = spelled(trie)
    assert {int(index): strings[node] for index, node in zip(trie.token_ids, trie.token_node, strict=True)} == {
        index: token for index, token in enumerate(tokens) if token
    }


@given(vocabularies, st.data())
def test_children_of_some_nodes_leave_out_the_other_subtrees(tokens, data):
    trie = TokenTrie.build(tokens)
    chosen = sorted(data.draw(st.sets(st.integers(0, trie.num_nodes - 1))))
    expected = [node for node in range(1, trie.num_nodes) if trie.parent[node] in chosen]
    assert sorted(trie.children(np.array(chosen, dtype=np.int32)).tolist()) == expected


@given(vocabularies)
def test_levels_are_lengths(tokens):
    trie = TokenTrie.build(tokens)
    lengths = [len(string) for string in spelled(trie)]
    assert lengths == sorted(lengths)
    assert [lengths.index(level) for level in range(trie.num_levels)] == list(trie.level_start[:-1])
    assert trie.level_start[-1] == trie.num_nodes
