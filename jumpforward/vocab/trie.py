"""A vocabulary as a flat trie: shared beginnings once, and whole subtrees that can be skipped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True, eq=False)
class TokenTrie:
    """The byte strings of a vocabulary, as arrays over the nodes. Node 0 is the root, the empty string.

    Nodes are numbered level by level, so a level and the children of a node are slices, and skipping a subtree is
    leaving its root out of the next level. Ids without bytes (special and padded ones) are not in it.

    Attributes:
        byte: the last byte of each node's string, uint8; the root's means nothing.
        parent: the node one byte shorter, int32; the root is its own.
        first_child: int32, shape (num_nodes + 1,): the children of a node are the numbers from its entry up to the
            next node's.
        level_start: the first node of each level, and behind them the number of nodes.
        token_ids: the ids in the trie, in the order of their bytes, int32, shape (num_tokens,).
        token_node: the node of each of them, where its bytes end.
        subtree_start: for each node, where in ``token_ids`` the tokens of its subtree begin, int32.
        subtree_stop: where they end. Those of the node itself come first.
    """

    byte: np.ndarray
    parent: np.ndarray
    first_child: np.ndarray
    level_start: tuple[int, ...]
    token_ids: np.ndarray
    token_node: np.ndarray
    subtree_start: np.ndarray
    subtree_stop: np.ndarray

    @property
    def num_nodes(self) -> int:
        """How many nodes there are, the root among them."""
        return len(self.byte)

    @cached_property
    def num_levels(self) -> int:
        """How many levels there are: one more than the longest token has bytes."""
        return len(self.level_start) - 1

    def children(self, nodes: np.ndarray) -> np.ndarray:
        """Return the children of ``nodes``, in order."""
        start = self.first_child[nodes]
        counts = self.first_child[nodes + 1] - start
        skipped = np.cumsum(counts) - counts
        return np.repeat(start - skipped, counts) + np.arange(counts.sum(), dtype=np.int32)

    def find(self, data: bytes) -> int | None:
        """Return the node of a byte string; None where no token begins with it."""
        node = 0
        for value in data:
            low, high = self.first_child[node], self.first_child[node + 1]
            node = int(low + np.searchsorted(self.byte[low:high], value))
            if node == high or self.byte[node] != value:
                return None
        return node

    def tokens_below(self, node: int) -> np.ndarray:
        """Return the ids of the tokens that begin with a node's string, in the order of their bytes."""
        ids: np.ndarray = self.token_ids[self.subtree_start[node] : self.subtree_stop[node]]
        return ids

    @classmethod
    def build(cls, token_bytes: Sequence[bytes]) -> TokenTrie:
        """Return the trie of a vocabulary's ``token_bytes``; several ids may have the same bytes."""
        spelled = [index for index, token in enumerate(token_bytes) if token]
        spelled.sort(key=token_bytes.__getitem__)
        lengths = np.array([len(token_bytes[index]) for index in spelled], dtype=np.int64)
        data = np.frombuffer(b"".join(token_bytes[index] for index in spelled), dtype=np.uint8)
        return _grow(np.array(spelled, dtype=np.int32), data, lengths)


def _grow(ids: np.ndarray, data: np.ndarray, lengths: np.ndarray) -> TokenTrie:
    """Build level by level: sorted tokens that share a parent and a byte are neighbours, and share a node."""
    offset = np.cumsum(lengths) - lengths
    node_of = np.zeros(len(ids), dtype=np.int32)
    bytes_, parents = [np.zeros(1, dtype=np.uint8)], [np.zeros(1, dtype=np.int32)]
    starts, stops = [np.zeros(1, dtype=np.int32)], [np.full(1, len(ids), dtype=np.int32)]
    level_start = [0, 1]
    reaching = np.flatnonzero(lengths > 0)
    while len(reaching):
        value, parent = data[offset[reaching] + len(level_start) - 2], node_of[reaching]
        is_first = np.ones(len(reaching), dtype=bool)
        is_first[1:] = (value[1:] != value[:-1]) | (parent[1:] != parent[:-1])
        first = np.flatnonzero(is_first)
        bytes_.append(value[first])
        parents.append(parent[first])
        starts.append(reaching[first].astype(np.int32))
        stops.append((reaching[np.append(first[1:], len(reaching)) - 1] + 1).astype(np.int32))
        node_of[reaching] = level_start[-1] + np.cumsum(is_first) - 1
        level_start.append(level_start[-1] + len(first))
        reaching = reaching[lengths[reaching] >= len(level_start) - 1]
    parent = np.concatenate(parents)
    nodes = np.arange(len(parent) + 1)
    first_child = np.searchsorted(parent[1:], nodes).astype(np.int32) + 1
    return TokenTrie(
        np.concatenate(bytes_),
        parent,
        first_child,
        tuple(level_start),
        ids,
        node_of,
        np.concatenate(starts),
        np.concatenate(stops),
    )
