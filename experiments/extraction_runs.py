"""Runs the task of extraction_texts.py by policy, and with parts of one policy's tokens put into another's output."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import torch
from extraction_texts import FAMILIES, Text
from harness import ERR
from jsonschema import Draft202012Validator
from rich.progress import track

import jumpforward as jf
from jumpforward.decoding.policy import policy_named
from jumpforward.engine.prompt import encode_prompt
from jumpforward.engine.request import Request

POLICIES = ("masked", "canonical", "retokenize")
WHITESPACES: tuple[Any, ...] = ("fixed", "flexible")
MAX_NEW_TOKENS = 64
BATCH_SIZE = 96
PREFIX_CACHE_BYTES = 4 << 30  # all texts' prompts, which every method begins with


@dataclass(frozen=True)
class Beginning:
    """A logits processor that leaves one choice at each of an output's first positions."""

    ids: tuple[int, ...]

    def __call__(self, output_ids: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        """Return the logits behind an output, shape (width,): within the beginning all but its token are refused."""
        if len(output_ids) >= len(self.ids):
            return logits
        only = torch.full_like(logits, -torch.inf)
        only[self.ids[len(output_ids)]] = 0.0
        return only


@dataclass(frozen=True)
class Answer:
    """What came of one text by one method.

    Attributes:
        text: the text.
        ids: the output's tokens, with those of an opening that was the prompt's.
        parsed: the document; None where the output is not complete.
        is_truncated: whether the budget ended it.
        written: the tokens in front of the first that the model was asked about.
        opening: the tokens of the family's opening; None where a token lies across its end, or the output begins
            otherwise.
        seams: of each stretch with tokens that are not the tokenizer's own, whether it begins within the opening.
    """

    text: Text
    ids: tuple[int, ...]
    parsed: Any
    is_truncated: bool
    written: tuple[int, ...]
    opening: tuple[int, ...] | None
    seams: tuple[bool, ...]

    @cached_property
    def right(self) -> dict[str, bool]:
        """Of each field, whether it is right."""
        return self.text.right(self.parsed)

    @cached_property
    def is_valid(self) -> bool:
        """Whether it is a complete document of the schema."""
        return self.parsed is not None and Draft202012Validator(self.text.family.schema).is_valid(self.parsed)

    def begins_with(self, ids: Sequence[int] | None) -> bool:
        """Whether the output's first tokens are these."""
        return ids is not None and self.ids[: len(ids)] == tuple(ids)


class Extraction:
    """The task on one engine."""

    def __init__(self, model: str | None, texts: Sequence[Text]) -> None:
        self.engine = jf.Engine.from_pretrained(
            model, dtype="float32", memory="off", drafters=(), prefix_cache_bytes=PREFIX_CACHE_BYTES
        )
        self._drafting = jf.Engine(self.engine.model, self.engine.tokenizer, memory="request")
        self.texts = texts
        self._grammars = {
            (family.name, whitespace): jf.json_schema(family.schema, whitespace=whitespace)
            for family in FAMILIES
            for whitespace in WHITESPACES
        }
        self._behind_openings = {family.name: jf.regex(family.pattern_behind_opening) for family in FAMILIES}

    def by_policy(self, shown: str) -> dict[str, dict[str, list[Answer]]]:
        """Return answers to all texts by whitespace setting and policy."""
        runs = [(whitespace, policy) for whitespace in WHITESPACES for policy in POLICIES]
        cases = [(text, *run) for text in self.texts for run in runs]  # those that share a prompt follow one another
        requests: list[Any] = [
            {
                "prompt": text.messages(shown),
                "grammar": self._grammars[text.family.name, whitespace],
                "policy": policy,
                "max_new_tokens": MAX_NEW_TOKENS,
            }
            for text, whitespace, policy in cases
        ]
        results: Any = self.engine.generate_batch(requests, batch_size=BATCH_SIZE, progress=True)
        found: dict[str, dict[str, list[Answer]]] = {}
        for (text, whitespace, policy), result in zip(cases, results, strict=True):
            found.setdefault(whitespace, {}).setdefault(policy, []).append(self._answer(text, result))
        return found

    def with_beginning(self, shown: str, masked: Sequence[Answer], ids: Sequence[tuple[int, ...]]) -> list[Answer]:
        """Return answers of `masked` with the first tokens of each output given.

        An output that begins so by itself is not made again.
        """
        places = [at for at, answer in enumerate(masked) if not answer.begins_with(ids[at])]
        requests = [self._request(shown, masked[at].text, "masked", Beginning(ids[at])) for at in places]
        return self._put(masked, places, requests)

    def behind_opening(
        self, shown: str, masked: Sequence[Answer], others: Sequence[Answer], policy: str
    ) -> list[Answer]:
        """Return answers of a policy behind the opening in the tokens of `masked`, as if that were the prompt's.

        Args:
            shown: the example of the prompt.
            masked: the outputs with these openings; one whose opening is None is left aside.
            others: the outputs of the policy with its own opening, which stand where the openings are the same.
            policy: what writes the rest.
        """
        places = [at for at, own in enumerate(masked) if own.opening and not others[at].begins_with(own.opening)]
        requests = [self._request_behind(shown, masked[at], policy) for at in places]
        return self._put(others, places, requests, [masked[at].opening or () for at in places])

    def checks(self, shown: str, masked: Sequence[Answer]) -> dict[str, int]:
        """Return how often two runs that are the same by law gave the same tokens.

        `exact` with drafts, and `masked`; `masked` behind its own opening as if that were the prompt's, and whole.
        """
        own = [answer for answer in masked if answer.opening]
        drafted = self._run([self._request(shown, answer.text, "exact") for answer in own], self._drafting)
        behind = self._run([self._request_behind(shown, answer, "masked") for answer in own])
        return {
            "num_checked": len(own),
            "num_exact_as_masked": sum(
                tuple(one.token_ids) == each.ids for one, each in zip(drafted, own, strict=True)
            ),
            "num_behind_opening_as_whole": sum(
                tuple(one.token_ids) == each.ids[len(each.opening or ()) :]
                for one, each in zip(behind, own, strict=True)
            ),
        }

    def _put(
        self,
        base: Sequence[Answer],
        places: Sequence[int],
        requests: Sequence[Request],
        openings: Sequence[tuple[int, ...]] | None = None,
    ) -> list[Answer]:
        """Return ``base`` with what comes of requests in some places, behind openings that were the prompts'."""
        found = list(base)
        for at, result, opening in zip(places, self._run(requests), openings or [()] * len(places), strict=True):
            found[at] = self._answer(base[at].text, result, opening)
        return found

    def _run(self, requests: Sequence[Request], engine: jf.Engine | None = None) -> list[jf.Result]:
        found = []
        starts = range(0, len(requests), BATCH_SIZE)
        for start in track(starts, "batches", console=ERR, transient=True):
            loop, tasks = (engine or self.engine).start(requests[start : start + BATCH_SIZE], shares=True)
            while not loop.is_idle:
                loop.wait()
                loop.step()
            found += [task.result() for task in tasks]
        return found

    def _request(self, shown: str, text: Text, policy: str, beginning: Beginning | None = None) -> Request:
        return Request(
            self._prompt_ids(shown, text),
            self._grammars[text.family.name, "fixed"],
            policy_named(policy),
            max_new_tokens=MAX_NEW_TOKENS,
            processor=beginning,
        )

    def _request_behind(self, shown: str, own: Answer, policy: str) -> Request:
        opening = own.opening or ()
        return Request(
            self._prompt_ids(shown, own.text) + opening,
            self._behind_openings[own.text.family.name],
            policy_named(policy),
            max_new_tokens=MAX_NEW_TOKENS - len(opening),
        )

    def _prompt_ids(self, shown: str, text: Text) -> tuple[int, ...]:
        return encode_prompt(text.messages(shown), self.engine.tokenizer, 2**31)

    def _answer(self, text: Text, result: jf.Result, opening: tuple[int, ...] = ()) -> Answer:
        """Return what a result says, behind an opening that was the prompt's."""
        ids = (*opening, *result.token_ids)
        token_bytes, family = self.engine.vocabulary.token_bytes, text.family
        ends = list(accumulate((len(token_bytes[token]) for token in ids), initial=0))
        output = self.engine.vocabulary.text_bytes(opening).decode() + result.text
        has_opening = output.startswith(family.opening) and len(family.opening) in ends
        asked = [kind is not jf.Provenance.FORCED for kind in result.provenance]
        return Answer(
            text,
            ids,
            json.loads(output, strict=False) if result.complete else None,
            result.finish_reason == "length",
            tuple(result.token_ids[: asked.index(True)] if True in asked else result.token_ids),
            ids[: ends.index(len(family.opening))] if has_opening else None,
            tuple(ends[seam.start] < len(family.opening) for seam in self.engine.find_seams(ids) or ()),
        )
