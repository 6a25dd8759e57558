"""Records as programs of known text and holes, and interleaved decoding, which runs them.

A program is text with holes, ``{"name": "`` NAME ``", "age": `` AGE ``}``, as users of LMQL and of guidance write it.
Known text is encoded by itself and fed as a chunk together with the tokens before it; a hole is generated under a
grammar of its own, up to and with the character that closes it. No token lies across the border of the two.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import xgrammar

import jumpforward as jf
from jumpforward.decoding.drafts import only_token
from jumpforward.decoding.sampling import Sampler, SamplingOptions, choose_tokens
from jumpforward.engine.runner import Runner
from jumpforward.vocab.encoder import PlainEncoder

INTEGER = r"-?[1-9][0-9]*|0"
NUMBER = r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?"


class Field(NamedTuple):
    """The pattern of a value, without the quotes around it; and of a string the most characters that it may have."""

    pattern: str
    max_length: int | None = None


class Hole(NamedTuple):
    """A value to be generated.

    Attributes:
        known: the text in front of it, from the closing character of the hole before.
        value: the pattern of what may stand in it.
        closing: the character that ends it.
        max_length: the most characters of a string; None for other values.
    """

    known: str
    value: str
    closing: str
    max_length: int | None

    @property
    def pattern(self) -> str:
        """The pattern of its value and closing character."""
        return f"({self.value}){re.escape(self.closing)}"


@dataclass(frozen=True)
class Program:
    """Holes with the known text in front of each, and the text behind the last."""

    holes: tuple[Hole, ...]
    end: str

    def num_full(self, values: Sequence[str]) -> int:
        """Return how many values are as long as they may be."""
        return sum(len(value) == hole.max_length for hole, value in zip(self.holes, values, strict=True))

    def values(self, text: str) -> list[tuple[int, int]] | None:
        """Return where the values stand in a finished text, in bytes; None if the text is not the program's."""
        holes = "".join(f"{re.escape(hole.known)}(?P<v{at}>{hole.value}){re.escape(hole.closing)}"
                        for at, hole in enumerate(self.holes))  # fmt: skip
        found = re.fullmatch(holes + re.escape(self.end), text)
        if found is None:
            return None
        spans = [found.span(f"v{at}") for at in range(len(self.holes))]
        return [(len(text[:start].encode()), len(text[:stop].encode())) for start, stop in spans]


def program(schema: Mapping[str, Any]) -> Program:
    """Return the program of a schema without choices: constants, bounded strings, numbers, enums, and objects of them.

    Raises:
        ValueError: something else is in it.
    """
    texts, values = [""], []
    for piece in _pieces(schema):
        if isinstance(piece, Field):
            values.append(piece)
            texts.append("")
        else:
            texts[-1] += piece
    known = [texts[0], *(text[1:] for text in texts[1:])]
    holes = (
        Hole(before, value.pattern, behind[0], value.max_length)
        for before, value, behind in zip(known, values, texts[1:], strict=False)
    )
    return Program(tuple(holes), known[-1])


def required_only(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema without its optional properties."""
    if "properties" not in schema:
        return dict(schema)
    kept = {name: required_only(schema["properties"][name]) for name in schema["required"]}
    return {**schema, "properties": kept}


def _pieces(schema: Mapping[str, Any]) -> Iterator[str | Field]:
    kind = schema.get("type")
    if "const" in schema:
        yield json.dumps(schema["const"])
    elif "enum" in schema:
        yield from _enum(schema["enum"])
    elif kind == "object" and set(schema["required"]) == set(schema["properties"]):
        for number, (name, member) in enumerate(schema["properties"].items()):
            yield f"{', ' if number else '{'}{json.dumps(name)}: "
            yield from _pieces(member)
        yield "}"
    elif kind == "string" and "maxLength" in schema:
        longest = schema["maxLength"]
        yield from ('"', Field(rf'[^"\\\r\n]{{0,{longest}}}', longest), '"')
    elif kind in ("integer", "number", "boolean"):
        yield Field({"integer": INTEGER, "number": NUMBER, "boolean": "true|false"}[kind])
    else:
        raise ValueError(f"expected required properties of types that a program has holes for, got {schema}")


def _enum(members: Sequence[Any]) -> Iterator[str | Field]:
    if all(isinstance(member, str) for member in members):
        yield from ('"', Field("|".join(re.escape(json.dumps(member)[1:-1]) for member in members)), '"')
    else:
        yield Field("|".join(re.escape(json.dumps(member)) for member in members))


@dataclass
class Interleaved:
    """What interleaved decoding made of a request.

    Attributes:
        token_ids: the output's tokens.
        num_known: of these, known text.
        num_certain: of these, a hole's only legal token, for which the model was not asked.
        num_forward_passes: the prompt's included.
        denied: tokens that the model would have taken under the whole record's grammar, and the hole's refused.
        num_denied_closed: how often the hole was closed there all the same.
        seconds: from the prompt's tokens to the last one, grammars ready.
    """

    token_ids: list[int] = field(default_factory=list)
    num_known: int = 0
    num_certain: int = 0
    num_forward_passes: int = 0
    denied: list[int] = field(default_factory=list)
    num_denied_closed: int = 0
    seconds: float = 0.0

    @property
    def num_denied(self) -> int:
        """How many tokens were refused."""
        return len(self.denied)


class Interleaver:
    """Runs programs on an engine's model, greedily, each in one cache."""

    def __init__(self, engine: jf.Engine) -> None:
        self.engine = engine
        self.runner = Runner(engine.model)
        self.encoder = PlainEncoder(engine.tokenizer, engine.vocabulary)
        self.grammar = cache(jf.regex)

    def run(self, prompt_ids: Sequence[int], made: Program, grammar: jf.Grammar, max_new_tokens: int) -> Interleaved:
        """Run a program; ``grammar`` is the whole record's, which says what the model would have liked to write."""
        grammars = [self.grammar(hole.pattern) for hole in made.holes]
        for each in (grammar, *grammars):
            self.engine.compiler.compile(each)
        start = time.perf_counter()
        state = _State(self, prompt_ids, grammar, max_new_tokens)
        for hole, own in zip(made.holes, grammars, strict=True):
            state.write_known(hole.known)
            state.fill(own)
        state.write_known(made.end)
        state.found.seconds = time.perf_counter() - start
        return state.found


class _State:
    """One program under way."""

    def __init__(self, parts: Interleaver, prompt_ids: Sequence[int], grammar: jf.Grammar, max_new_tokens: int) -> None:
        self._parts = parts
        self._cache = parts.runner.new_cache()
        self._prompt_ids = list(prompt_ids)
        self._compile = parts.engine.compiler.compile
        self._whole = self._compile(grammar).matcher()
        self._masks = xgrammar.allocate_token_bitmask(2, parts.runner.width)  # the hole's, and the whole record's
        self._max_new_tokens = max_new_tokens
        self.found = Interleaved()

    @property
    def _has_room(self) -> bool:
        return len(self.found.token_ids) < self._max_new_tokens

    def write_known(self, text: str) -> None:
        """Append the tokens of a text by itself."""
        ids = self._parts.encoder.encode(text.encode())
        if ids is None:
            raise ValueError(f"expected known text that the tokenizer spells, got {text!r}")
        for token in ids[: self._max_new_tokens - len(self.found.token_ids)]:
            self._append(token)
            self.found.num_known += 1

    def fill(self, grammar: jf.Grammar) -> None:
        """Generate up to the end of a hole, or of the room."""
        matcher = self._compile(grammar).matcher()
        while not matcher.is_accepting and self._has_room:
            matcher.fill_bitmask(self._masks, 0)
            token = only_token(self._masks[0].numpy())
            self.found.num_certain += token is not None
            token = self._ask() if token is None else token
            matcher.consume(token)
            self._append(token)

    def _append(self, token: int) -> None:
        if not self._whole.consume(token):
            raise ValueError(f"expected a program of the record's grammar, got token {token} outside of it")
        self.found.token_ids.append(token)

    def _ask(self) -> int:
        """Feed what is not cached; return the hole's likeliest token, and note one that the hole refuses."""
        chunk = [*self._prompt_ids, *self.found.token_ids][self._cache.lengths[0] :]
        logits = self._parts.runner.forward(self._cache, [chunk], [[len(chunk) - 1]])[0]
        self.found.num_forward_passes += 1
        self._whole.fill_bitmask(self._masks, 1)
        greedy = Sampler(SamplingOptions())
        ((chosen, wanted),) = choose_tokens(logits.repeat(2, 1), self._masks, [(greedy, [0, 0])])
        if chosen is None or wanted is None:
            raise ValueError("the model has no finite logit for a legal token")
        if wanted != chosen:
            self.found.denied.append(wanted)
            token_bytes = self._parts.engine.vocabulary.token_bytes
            self.found.num_denied_closed += token_bytes[wanted].startswith(token_bytes[chosen])
        return chosen


def across(ids: Sequence[int], places: Sequence[int], token_bytes: Sequence[bytes]) -> list[int | None]:
    """Return for each place in a text, in bytes, the token that lies across it; None where tokens meet there."""
    ends = list(accumulate((len(token_bytes[token]) for token in ids), initial=0))
    return [
        next((token for token, (start, stop) in zip(ids, pairwise(ends), strict=True) if start < place < stop), None)
        for place in places
    ]
