"""What the tests of automata share: regular expressions that do not end, texts near them, and slow oracles."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from hypothesis import strategies as st

from jumpforward.grammar.dfa import Dfa
from jumpforward.vocab.vocabulary import Vocabulary

# Letters with several cases, with lengths in UTF-8 from one to four bytes, and with lead bytes in common.
TEXT_LETTERS = "aAbkKſß19 \n-é霍霏比😀😁\u212a\u0663"
ATOMS = ("a", "b", "1", "-", "é", "霍", "霏", "😀", "[ab]", "[^a]", "[霍-霏]", "[é-😀]", "[0-9]", r"\n", r"\x41", r"\-")
CLASSES = (r"\d", r"\w", r"\D", r"\W", r"[\w-]", ".")

texts = st.text(TEXT_LETTERS, max_size=6)


def patterns(atoms: tuple[str, ...]) -> st.SearchStrategy[str]:
    """Return regular expressions over these atoms; nested, alternating and repeated."""
    return st.recursive(
        st.sampled_from(atoms),
        lambda inner: st.one_of(
            st.builds("{}{}".format, inner, inner),
            st.builds("(?:{}|{})".format, inner, inner),
            st.builds("({}){}".format, inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{0,2}", "{2,}", "*?"])),
        ),
        max_leaves=8,
    )


def shortest_distances(dfa: Dfa) -> list[int | None]:
    """Return how many bytes each state is from an accepting one; None where there is no way. By relaxation."""
    far: list[int | None] = [0 if accepting else None for accepting in dfa.accepting[:-1]]
    for _ in range(dfa.num_states):
        for state in range(dfa.num_states):
            near = [far[target] for target in dfa.delta[state].tolist() if target != dfa.dead]
            known = [distance + 1 for distance in near if distance is not None]
            if known and (far[state] is None or min(known) < far[state]):
                far[state] = min(known)
    return far


def common_prefix(strings: list[bytes]) -> bytes:
    """Return the longest string that all of them begin with."""
    ends = range(min(map(len, strings)) + 1)
    return strings[0][: max(end for end in ends if len({string[:end] for string in strings}) == 1)]


def members(dfa: Dfa, max_length: int) -> set[bytes]:
    """Return all complete outputs of at most so many bytes, by trying every byte."""
    found, level = set(), [(b"", dfa.start)]
    for _ in range(max_length + 1):
        found |= {data for data, state in level if dfa.accepting[state]}
        level = [
            (data + bytes([byte]), int(dfa.delta[state, byte]))
            for data, state in level
            for byte in range(256)
            if dfa.delta[state, byte] != dfa.dead
        ]
    return found


@lru_cache(maxsize=64)
def vocabulary_of(pieces: tuple[bytes, ...], num_padding: int = 3) -> Vocabulary:
    """Return a vocabulary of an end token, these pieces, another special token and padding, in this order."""
    token_bytes = (b"", *pieces, b"", *[b""] * num_padding)
    special = len(pieces) + 1
    return Vocabulary(token_bytes, frozenset({0, special}), (0,), special + 1)


def bits(words: np.ndarray, width: int) -> np.ndarray:
    """Return packed int32 words as booleans, one bit after the other, by shifting."""
    return np.array([bool(int(words[index // 32]) & 0xFFFFFFFF & (1 << index % 32)) for index in range(width)])
