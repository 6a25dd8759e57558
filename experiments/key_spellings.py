"""What a model says of the spellings of a key, and behind each of them."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import harness
import numpy as np
import torch
from continuations import Context, Tokens

import jumpforward as jf
from jumpforward.engine.prompt import encode_prompt
from jumpforward.grammar.paths import PathGraph
from jumpforward.grammar.segmentations import lattice, num_segmentations, segmentations
from jumpforward.vocab.encoder import PlainEncoder

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from documents import Document, drawn, own

KEY = re.compile(rb'[{ ]"([A-Za-z][A-Za-z_]{1,14}[A-Za-z])":')

PADDINGS = (1, 3)

MOST_TOKENS_BEFORE = 160  # of a document, in front of its key

PERSON = "Extract the person as JSON: Maria Lopez is a nurse of 34 from Valencia."

SHOWN = 'You answer with JSON in this format: {"name": "Mia Moor", "age": 40}'

PLACES = {  # what is in front of `name`
    "first key": (None, '{"'),
    "first key, format shown": (SHOWN, '{"'),
    "second key": (None, '{"age": 34, "'),
    "second record": (None, '[{"name": "Ann Lee", "age": 41}, {"'),
}


@dataclass(frozen=True)
class Place:
    """A context and a key that comes next."""

    label: str
    ids: Tokens
    key: bytes


@dataclass(frozen=True)
class Spelling:
    """One way to write a key, against the canonical one. Behind: the key, and the `":` that follows it."""

    place: str
    pieces: tuple[str, ...]
    num_extra_tokens: int
    first_seam_share: float  # the first border that only one of the two has, as a share of the key's length
    cost_nats: float
    kl_behind_key_nats: float
    kl_behind_colon_nats: float
    flips_behind_key: bool
    flips_behind_colon: bool


def places(engine: jf.Engine, encoder: PlainEncoder, folder: Path, num_keys: int, seed: int) -> list[Place]:
    """Return the contexts of `name`, and one context a document for keys of real documents."""
    found = []
    for label, (system, text) in PLACES.items():
        found.append(Place(label, (*_prompt(engine, PERSON, system), *(encoder.encode(text.encode()) or ())), b"name"))
    documents = drawn(folder, 4 * num_keys) or list(own())
    chooser = random.Random(seed)
    request = _prompt(engine, "Write a JSON document with example data.")
    for document in {id(document.schema): document for document in documents}.values():  # one of each schema
        place = _cut(document, encoder, request, chooser)
        if place is not None and len(found) < len(PLACES) + num_keys:
            found.append(place)
    return found


def _prompt(engine: jf.Engine, question: str, system: str | None = None) -> Tokens:
    messages = [*([{"role": "system", "content": system}] if system else []), {"role": "user", "content": question}]
    return encode_prompt(messages, engine.tokenizer, engine._runner.max_length)


def _cut(document: Document, encoder: PlainEncoder, request: Tokens, chooser: random.Random) -> Place | None:
    """Return a document's beginning in front of one of its keys around which the canonical tokens have borders."""
    ids = encoder.encode(document.data) or ()
    borders = [0, *accumulate(len(encoder.vocabulary.token_bytes[token]) for token in ids)]
    fitting = []
    for match in KEY.finditer(document.data):
        start, end = match.span(1)
        if start in borders[: MOST_TOKENS_BEFORE + 1] and {end, end + 2} <= set(borders):
            fitting.append(match)
    if not fitting:
        return None
    match = chooser.choice(fitting)
    before = ids[: borders.index(match.start(1))]
    return Place(document.data[: match.end(1)].decode()[-40:], (*request, *before), match[1])


def spelled(graph: PathGraph, canonical: tuple[bytes, ...], most: int, seed: int) -> list[tuple[bytes, ...]]:
    """Return the canonical spelling first, then all of two tokens, then others as they are drawn."""
    count = num_segmentations(graph)
    every = segmentations(graph, max_count=count) if count <= most else []
    key = b"".join(canonical)
    pairs = [(key[:cut], key[cut:]) for cut in range(1, len(key))]
    steps = {(edge.source, edge.target) for edge in graph.edges}
    found = dict.fromkeys([canonical, *(pair for pair in pairs if _fits(pair, steps)), *every])
    chooser = random.Random(f"{seed} {key!r}")
    while len(found) < min(most, count):
        found[_drawn_way(graph, chooser)] = None
    return list(found)[: max(most, 1)]


def _fits(pair: tuple[bytes, bytes], steps: set[tuple[int, int]]) -> bool:
    cut = len(pair[0])
    return (0, cut) in steps and (cut, cut + len(pair[1])) in steps


def _drawn_way(graph: PathGraph, chooser: random.Random) -> tuple[bytes, ...]:
    place, pieces = 0, []
    while place < len(graph.nodes) - 1:
        edge = chooser.choice(graph.edges_from(place))
        place = edge.target
        pieces.append(edge.string or b"")
    return tuple(pieces)


class Measurement:
    """Measures places with one engine."""

    def __init__(self, engine: jf.Engine, most_spellings: int, seed: int) -> None:
        self.engine, self._most, self._seed = engine, most_spellings, seed
        self.encoder = PlainEncoder(engine.tokenizer, engine.vocabulary)
        self._ids = {data: token for token, data in enumerate(engine.vocabulary.token_bytes) if data}
        self._colon = self._ids[b'":']
        self._break = self._ids[b"\n"]

    def canonical(self, key: bytes) -> Tokens:
        """Return a key's canonical tokens; the text in front of it ends with a quote, at which tokens fall apart."""
        ids = self.encoder.encode(key, (self._ids[b'"'],))
        if ids is None:
            raise RuntimeError(f"expected canonical tokens of {key!r} behind a quote, and there are none")
        return ids

    def place(self, place: Place) -> dict[str, Any]:
        """Return all spellings of a place, and what padding does there."""
        canonical = self.canonical(place.key)
        pieces = tuple(self.engine.vocabulary.token_bytes[token] for token in canonical)
        graph = lattice(place.key, self._ids.keys())
        ways = spelled(graph, pieces, self._most, self._seed)
        paths = [canonical, *(tuple(self._ids[piece] for piece in way) for way in ways[1:])]
        said = self._said(place.ids, paths)
        costs = [sum(float(said[path[:cut]][token]) for cut, token in enumerate(path)) for path in paths]
        found = [
            self._spelling(place, way, ways[0], costs[0] - cost, said, paths[0], path)
            for way, path, cost in zip(ways[1:], paths[1:], costs[1:], strict=True)
        ]
        return {
            "key": place.key.decode(),
            "num_spellings": num_segmentations(graph),
            "canonical_pieces": [piece.decode() for piece in pieces],
            "canonical_logprob_nats": costs[0],
            "canonical_share_of_those_measured": float(1 / np.exp(np.array(costs) - costs[0]).sum()),
            "spellings": found,
            "padding": {count: self._padded(place, canonical, said, count) for count in PADDINGS},
        }

    def _said(self, ids: Tokens, paths: Sequence[Tokens]) -> dict[Tokens, torch.Tensor]:
        """Return what the model says along each path, and behind the `":` that follows it."""
        along = [path[:cut] for path in paths for cut in range(len(path) + 1)]
        asked = sorted({*along, *((*path, self._colon) for path in paths)})
        return dict(zip(asked, Context(self.engine, ids).logprobs(asked), strict=True))

    def _spelling(
        self,
        place: Place,
        way: tuple[bytes, ...],
        canonical: tuple[bytes, ...],
        cost: float,
        said: dict[Tokens, torch.Tensor],
        usual: Tokens,
        path: Tokens,
    ) -> Spelling:
        borders, other = (set(accumulate(map(len, pieces))) for pieces in (way, canonical))
        key, colon = (said[path], said[usual]), (said[*path, self._colon], said[*usual, self._colon])
        return Spelling(
            place.label,
            tuple(piece.decode() for piece in way),
            len(way) - len(canonical),
            min(borders ^ other) / len(place.key),
            cost,
            kl(*key),
            kl(*colon),
            flips(*key),
            flips(*colon),
        )

    def _padded(
        self, place: Place, canonical: Tokens, said: dict[Tokens, torch.Tensor], count: int
    ) -> dict[str, float]:
        """Return what so many more tokens at the context's beginning change behind the key, and behind the colon."""
        padded = (place.ids[0], *[self._break] * count, *place.ids[1:], *canonical, self._colon)
        key, colon = harness.logprobs(self.engine, padded, num_last=2)
        return {
            "kl_behind_key_nats": kl(key, said[canonical]),
            "kl_behind_colon_nats": kl(colon, said[*canonical, self._colon]),
        }


def kl(logprobs: torch.Tensor, other: torch.Tensor) -> float:
    """Return the KL divergence of one distribution from another, both log-probabilities of shape (vocab,)."""
    return float((logprobs.exp() * (logprobs - other)).sum())


def flips(logprobs: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether the likeliest token is another."""
    return int(logprobs.argmax()) != int(other.argmax())
