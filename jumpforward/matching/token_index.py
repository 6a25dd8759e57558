"""What every token does in every state of a byte automaton: σ (which are legal) and τ (where they lead).

The idea of an index over automaton states is Willard and Louf's (2023). Here it is made of effects: a string's
effect is the function from the state before it to the state behind it. A walk over the token trie composes
effects byte by byte, each pair of an effect and a byte class once, however many tokens and states it concerns; a
string whose effect is dead everywhere takes its subtree with it. Tokens with one effect share one column of τ.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jumpforward.grammar.dfa import Dfa
from jumpforward.vocab.trie import TokenTrie
from jumpforward.vocab.vocabulary import Vocabulary

MAX_ENTRIES = 1 << 25
_CHUNK_ENTRIES = 1 << 21  # how many entries are computed at once
_NEVER = np.iinfo(np.int32).max


class IndexTooLargeError(Exception):
    """The index would exceed its limit; raised and caught in this package."""


@dataclass(frozen=True, eq=False)
class TokenIndex:
    """σ and τ of an automaton over a vocabulary.

    The states are the automaton's, its dead state, and behind that one more: the output has ended. A state from
    which no tokens of this vocabulary lead to a complete output counts as dead, though bytes might.

    Attributes:
        effect_of: for each token id, the number of its effect, int32, shape (width,).
        next_state: for each effect and state, the state behind it, int32, shape (num_effects, num_states + 2).
        masks: the legal tokens of each state, packed, int32, shape (num_states + 2, ceil(width / 32)).
        fewest_tokens: for each state, how many tokens the shortest way to a complete output has, without the end
            token, int32; a dead state has the largest number there is.
    """

    effect_of: np.ndarray
    next_state: np.ndarray
    masks: np.ndarray
    fewest_tokens: np.ndarray
    _slowest: np.ndarray

    @property
    def dead(self) -> int:
        """The state behind a token that is not legal."""
        return len(self.masks) - 2

    @property
    def ended(self) -> int:
        """The state behind an end token."""
        return len(self.masks) - 1

    @property
    def num_bytes(self) -> int:
        """The memory that the index takes."""
        return self.effect_of.nbytes + self.next_state.nbytes + self.masks.nbytes + self.fewest_tokens.nbytes

    def allowed(self, state: int) -> np.ndarray:
        """Return the ids of the legal tokens, in ascending order."""
        return np.flatnonzero(self.next_state[self.effect_of, state] != self.dead)

    def fewest(self, state: int) -> int | None:
        """Return the fewest tokens to a complete output; None where there is no way."""
        count = int(self.fewest_tokens[state])
        return None if count == _NEVER else count

    def completing_mask(self, state: int, num_tokens: int) -> np.ndarray:
        """Return the packed mask of the tokens behind which ``num_tokens - 1`` more can complete the output.

        Not empty if ``num_tokens`` is at least 1 and at least :meth:`fewest`. The end token counts as a token.
        """
        if self._slowest[state] < num_tokens:
            mask: np.ndarray = self.masks[state]
            return mask
        legal = self.fewest_tokens[self.next_state[:, state]] < num_tokens
        packed: np.ndarray = _packed(legal[self.effect_of][None])[0]
        return packed

    @classmethod
    def build(cls, dfa: Dfa, vocabulary: Vocabulary, *, max_entries: int = MAX_ENTRIES) -> TokenIndex:
        """Return the index of an automaton over a vocabulary.

        Args:
            dfa: the automaton.
            vocabulary: the vocabulary; its trie is built if this is the first index over it.
            max_entries: the most 4-byte entries that a table of the index may have.

        Raises:
            IndexTooLargeError: one would have more.
        """
        num_columns = dfa.num_states + 2
        _check(num_columns * max(num_columns, vocabulary.width // 32 + 1), max_entries)
        effects, effect_of_node = _Effects(dfa, max_entries).walk(vocabulary.trie)
        effect_of, rows = _used(effects, effect_of_node, vocabulary)
        # Behind the tokens' effects that of an end token.
        table = np.full((len(rows) + 1, num_columns), dfa.dead, dtype=np.int32)
        table[:-1, :-1] = rows
        table[-1, :-1][dfa.accepting] = num_columns - 1
        effect_of[list(vocabulary.end_ids)] = len(rows)
        fewest = _fewest_tokens(table[:-1], np.append(dfa.accepting, True))
        table[fewest[table] == _NEVER] = dfa.dead
        costs = np.where(table == dfa.dead, 0, fewest[table])
        return cls(effect_of, table, _masks(table != dfa.dead, effect_of), fewest, costs.max(axis=0))


def _check(num_entries: int, max_entries: int) -> None:
    if num_entries > max_entries:
        raise IndexTooLargeError(f"the token index needs more than max_entries={max_entries} entries in a table")


class _Effects:
    """All effects found so far, as rows of next states. Effect 0 is dead everywhere, effect 1 does nothing."""

    def __init__(self, dfa: Dfa, max_entries: int) -> None:
        self._max_entries = max_entries
        self._class_of_byte = dfa.byte_classes
        _, examples = np.unique(dfa.byte_classes, return_index=True)
        self._step = np.ascontiguousarray(dfa.delta[:, examples].T)  # (num_classes, num_states + 1)
        states = np.arange(dfa.num_states + 1, dtype=np.int32)
        self._rows = np.stack([np.full_like(states, dfa.dead), states])
        self._numbers = {row.tobytes(): index for index, row in enumerate(self._rows)}
        self._behind = np.full((2, len(self._step)), -1, dtype=np.int32)  # effect, class of one more byte

    def walk(self, trie: TokenTrie) -> tuple[np.ndarray, np.ndarray]:
        """Return the effects' rows, and for each node of the trie the number of its string's effect."""
        effect_of_node = np.zeros(trie.num_nodes, dtype=np.int32)
        effect_of_node[0] = 1
        nodes = np.zeros(1, dtype=np.int32)
        while len(nodes):
            below = trie.children(nodes)
            before, symbol = effect_of_node[trie.parent[below]], self._class_of_byte[trie.byte[below]]
            self._learn(before, symbol)
            effect_of_node[below] = self._behind[before, symbol]
            nodes = below[effect_of_node[below] != 0]
        return self._rows[: len(self._numbers)], effect_of_node

    def _learn(self, before: np.ndarray, symbol: np.ndarray) -> None:
        """Compute the effects of these strings with these bytes behind them, where they are new."""
        num_classes = len(self._step)
        unknown = self._behind[before, symbol] < 0
        pairs = np.unique(before[unknown] * np.int64(num_classes) + symbol[unknown])
        len_chunk = max(1, _CHUNK_ENTRIES // self._step.shape[1])
        for start in range(0, len(pairs), len_chunk):
            effect, byte_class = np.divmod(pairs[start : start + len_chunk], num_classes)
            rows = self._step[byte_class[:, None], self._rows[effect]]
            numbers = [self._numbers.setdefault(row.tobytes(), len(self._numbers)) for row in rows]
            self._behind[effect, byte_class] = numbers
            self._store(np.array(numbers), rows)

    def _store(self, numbers: np.ndarray, rows: np.ndarray) -> None:
        _check(len(self._numbers) * rows.shape[1], self._max_entries)
        missing = len(self._numbers) - len(self._rows)
        if missing > 0:  # at least doubled, so that growing costs no more than filling
            more = max(missing, len(self._rows))
            self._rows = np.concatenate([self._rows, np.empty((more, rows.shape[1]), dtype=np.int32)])
            self._behind = np.concatenate([self._behind, np.full((more, len(self._step)), -1, dtype=np.int32)])
        self._rows[numbers] = rows


def _used(effects: np.ndarray, effect_of_node: np.ndarray, vocabulary: Vocabulary) -> tuple[np.ndarray, np.ndarray]:
    """Return each id's effect and the effects' rows, without those that are only on the way to a token.

    An id without bytes has effect 0, dead everywhere.
    """
    trie = vocabulary.trie
    used, numbers = np.unique(np.append(effect_of_node[trie.token_node], 0), return_inverse=True)
    effect_of = np.zeros(vocabulary.width, dtype=np.int32)
    effect_of[trie.token_ids] = numbers[:-1]
    return effect_of, effects[used]


def _fewest_tokens(table: np.ndarray, accepting: np.ndarray) -> np.ndarray:
    """Return for each state the fewest tokens to an accepting one: breadth first, backwards over all tokens."""
    num_states = len(accepting)
    follows = np.zeros((num_states, num_states), dtype=bool)
    follows[np.arange(num_states), table] = True
    source, target = np.nonzero(follows)
    fewest = np.where(accepting, 0, _NEVER).astype(np.int32)
    reached, count = accepting, 0
    while reached.any():
        count += 1
        found = np.zeros(num_states, dtype=bool)
        found[source[reached[target]]] = True
        reached = found & (fewest == _NEVER)
        fewest[reached] = count
    return fewest


def _masks(legal: np.ndarray, effect_of: np.ndarray) -> np.ndarray:
    """Return the packed masks of all states from the legal effects, boolean, (num_effects, num_columns)."""
    by_state = np.ascontiguousarray(legal.T)
    len_chunk = max(1, _CHUNK_ENTRIES // len(effect_of))
    chunks = range(0, len(by_state), len_chunk)
    return np.concatenate([_packed(by_state[start : start + len_chunk][:, effect_of]) for start in chunks])


def _packed(legal: np.ndarray) -> np.ndarray:
    """Pack booleans of shape (rows, width) into int32 words, (rows, ceil(width / 32)), lowest bit first."""
    packed = np.packbits(legal, axis=1, bitorder="little")
    words = np.zeros((len(legal), -(-legal.shape[1] // 32) * 4), dtype=np.uint8)
    words[:, : packed.shape[1]] = packed
    return words.view(np.int32)
