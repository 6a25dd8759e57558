"""Law 7: `exact` is `masked`, token for token, whatever is drafted; and `canonical` writes what the grammar permits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from helpers import LegalGuesses, random_script, scripted_engine, set_drafters, tiny_engine
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from strategies import grammars

import jumpforward as jf
from jumpforward.decoding.drafter import Bid, Drafter, DraftView
from jumpforward.decoding.drafts import Draft
from jumpforward.decoding.verify import Kept
from jumpforward.stats import Provenance

PIECES = ['{"', '":', ' "', '",', "ab", "abc", "bc", "aa", "true", "霍", "name", ": ", ", ", "10", '"a', "cd"]
PROMPT = "a"
SAMPLING: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0, "seed": 1},
    {"temperature": 0.7, "top_k": 5, "seed": 2},
    {"temperature": 1.3, "top_p": 0.8, "seed": 3},
    {"temperature": 1.0, "min_p": 0.05, "seed": 4},
]


@cache
def shared_engine(seed: int, max_draft: int = 256) -> jf.Engine:
    automata = seed % 2 == 0  # both matchers, for regular grammars
    return scripted_engine(PIECES, seed=seed, automata=automata, max_draft=max_draft)


class Scripted(Drafter):
    """A drafter that proposes what a list says, whatever is legal."""

    name = "scripted"

    def __init__(self, proposals: Sequence[Sequence[int]]) -> None:
        self._proposals = proposals
        self.num_asked = 0

    def propose(self, view: DraftView) -> Bid | None:
        self.num_asked += 1
        if not self._proposals:
            return None
        return Bid(self._proposals[len(view.output_ids) % len(self._proposals)], 0.99)


def both(engine: jf.Engine, grammar: jf.Grammar, **options: Any) -> tuple[jf.Result, jf.Result]:
    masked = engine.generate(PROMPT, grammar, policy="masked", max_new_tokens=24, **options)
    return masked, engine.generate(PROMPT, grammar, policy="exact", max_new_tokens=24, **options)


@given(grammar=grammars, sampling=st.sampled_from(SAMPLING), seed=st.integers(0, 5))
def test_law_7_exact_is_masked_token_for_token(grammar: jf.Grammar, sampling: dict[str, Any], seed: int) -> None:
    masked, exact = both(shared_engine(seed), grammar, **sampling)
    assert exact.token_ids == masked.token_ids
    assert exact.text == masked.text
    assert exact.complete == masked.complete
    assert exact.stats.num_forward_passes <= masked.stats.num_forward_passes


@given(
    grammar=grammars,
    sampling=st.sampled_from(SAMPLING),
    proposals=st.lists(st.lists(st.integers(-5, 400), max_size=30), max_size=4),
    with_forced=st.booleans(),
)
def test_law_7_holds_for_adversarial_drafters(
    grammar: jf.Grammar, sampling: dict[str, Any], proposals: list[list[int]], with_forced: bool
) -> None:
    engine = shared_engine(0)
    usual = engine._drafting.drafters
    set_drafters(engine, Scripted(proposals), *(usual if with_forced else ()))
    try:
        masked, exact = both(engine, grammar, **sampling)
    finally:
        set_drafters(engine, *usual)
    assert exact.token_ids == masked.token_ids


@given(
    grammar=grammars,
    sampling=st.sampled_from(SAMPLING),
    seed=st.integers(0, 1),
    max_draft=st.integers(1, 4),
    limit=st.integers(1, 24),
    stop=st.sampled_from([None, "b", "霍", 'a":', ["zz", "a"]]),
    logprobs=st.booleans(),
)
def test_law_7_holds_under_short_drafts_limits_and_stop_strings(
    grammar: jf.Grammar, sampling: dict[str, Any], seed: int, max_draft: int, limit: int, stop: Any, logprobs: bool
) -> None:
    options = {"max_new_tokens": limit, "stop": stop, "logprobs": logprobs, **sampling}
    engine = shared_engine(seed, max_draft)
    masked, exact = (engine.generate(PROMPT, grammar, policy=policy, **options) for policy in ("masked", "exact"))
    assert exact.token_ids == masked.token_ids
    assert (exact.text, exact.finish_reason, exact.complete) == (masked.text, masked.finish_reason, masked.complete)
    for known, ours in zip(masked.logprobs or [], exact.logprobs or [], strict=True):
        assert ours is None or ours == pytest.approx(known, abs=1e-5)


@given(grammar=grammars, sampling=st.sampled_from(SAMPLING), seed=st.integers(0, 1), len_draft=st.integers(1, 6))
def test_law_7_holds_for_legal_guesses(
    grammar: jf.Grammar, sampling: dict[str, Any], seed: int, len_draft: int
) -> None:
    engine = shared_engine(seed)
    usual = engine._drafting.drafters
    set_drafters(engine, LegalGuesses(seed, len_draft, engine.vocabulary.width))
    try:
        masked, exact = both(engine, grammar, **sampling)
    finally:
        set_drafters(engine, *usual)
    assert exact.token_ids == masked.token_ids
    assert exact.stats.num_forward_passes <= masked.stats.num_forward_passes


def test_law_7_holds_for_a_drafter_that_is_always_right_or_always_wrong() -> None:
    grammar = jf.regex("[a-d]{12}")
    engine = scripted_engine(PIECES)
    masked = engine.generate(PROMPT, grammar, policy="masked")
    right = [masked.token_ids[index:] for index in range(len(masked.token_ids))]
    for shift, expected in ((0, 1), (1, len(masked.token_ids))):
        set_drafters(engine, Scripted([right[(index + shift) % len(right)] for index in range(len(right))]))
        exact = engine.generate(PROMPT, grammar, policy="exact")
        assert exact.token_ids == masked.token_ids
        assert exact.stats.num_forward_passes <= expected


def test_a_draft_goes_on_over_tokens_that_are_certain() -> None:
    grammar = jf.regex("[ab]x[ab]y[ab]z")
    engine = scripted_engine()
    masked = engine.generate(PROMPT, grammar, policy="masked").token_ids
    wrong = engine.tokenizer("q")["input_ids"]
    # Right from end to end; and wrong where only one token is legal, so that the drafter is asked again behind it.
    for proposals in ([masked, [], [], [], []], [[masked[0], *wrong, *wrong], [], masked[2:], [], []]):
        set_drafters(engine, Scripted(proposals))
        exact = engine.generate(PROMPT, grammar)
        assert exact.token_ids == masked
        assert exact.stats.num_forward_passes == 1
        assert exact.stats.num_rejected == 0


@pytest.mark.parametrize(
    ("kind", "sampling"), [("llama", SAMPLING[1]), *((kind, {}) for kind in ("llama", "gemma3", "mistral", "gpt2"))]
)
def test_law_7_on_tiny_random_models(kind: str, sampling: dict[str, Any]) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 6}, "ab": {"type": "boolean"}, "n": {"enum": [1, 10]}},
        "required": ["name", "ab", "n"],
    }
    for seed in range(2):
        masked, exact = both(tiny_engine(kind, PIECES, seed), jf.json_schema(schema), **sampling)
        assert exact.token_ids == masked.token_ids
        assert exact.stats.num_forward_passes < masked.stats.num_forward_passes


def keep_everything(draft: Draft, choices: dict[int, int | None]) -> list[Kept]:
    """What verification would be if it believed every draft."""
    kept = [Kept(token, Provenance.DRAFTED) for token in draft.tokens]
    return [*kept, Kept(choices[len(draft.tokens)], Provenance.SAMPLED)] if draft.has_next else kept


def test_law_7_fails_without_verification(monkeypatch: pytest.MonkeyPatch) -> None:
    grammar = jf.json_schema({"type": "object", "properties": {"name": {"type": "boolean"}}, "required": ["name"]})
    monkeypatch.setattr("jumpforward.engine.run.verify", keep_everything)
    differing = 0
    for seed in range(10):
        masked, exact = both(shared_engine(seed), grammar)
        differing += exact.token_ids != masked.token_ids
    assert differing >= 5


# --- the law itself, by enumeration ------------------------------------------------------------------------------

LANGUAGE = ["abc", "abcd", "aab", "bcd"]
AMBIGUOUS = ["ab", "abc", "bc", "aa", "cd", "bcd", "abcd"]


def spellings(text: bytes, token_bytes: dict[int, bytes]) -> list[list[int]]:
    """Return every way to write ``text`` in tokens."""
    ways: list[list[list[int]]] = [[[]]] + [[] for _ in text]
    for end in range(1, len(text) + 1):
        for token, data in token_bytes.items():
            if text[:end].endswith(data):
                ways[end] += [[*way, token] for way in ways[end - len(data)]]
    return ways[len(text)]


def exact_law(engine: jf.Engine, script: Any) -> dict[tuple[int, ...], float]:
    """Return the probability of every token path of masked sampling at temperature 1, end token included."""
    token_bytes = {index: data for index, data in enumerate(engine.vocabulary.token_bytes) if data}
    end = engine.vocabulary.end_ids[0]
    paths = [(*way, end) for text in LANGUAGE for way in spellings(text.encode(), token_bytes)]
    prefixes = {path[:cut] for path in paths for cut in range(len(path))}
    prompt = engine.tokenizer(PROMPT)["input_ids"]
    law = dict.fromkeys(paths, 1.0)
    for prefix in prefixes:
        legal = sorted({path[len(prefix)] for path in paths if path[: len(prefix)] == prefix})
        logits = np.asarray(script([*prompt, *prefix]), dtype=np.float64)[legal]
        weights = np.exp(logits - logits.max())
        share = dict(zip(legal, weights / weights.sum(), strict=True))
        for path in paths:
            if path[: len(prefix)] == prefix:
                law[path] *= share[path[len(prefix)]]
    return law


def p_value(policy: str) -> float:
    """Return how well samples of a policy agree with the law of masked sampling."""
    num_samples = 2000
    engine = scripted_engine(AMBIGUOUS, single_bytes=range(97, 123))
    width = len(engine.tokenizer)
    assert 20 <= width <= 60
    script = random_script(width, seed=7, spread=1.0)
    engine.model.script = script
    law = exact_law(engine, script)
    assert sum(law.values()) == pytest.approx(1)
    assert len(law) > 15
    grammar = jf.choice(LANGUAGE)
    seen = Counter(
        tuple(engine.generate(PROMPT, grammar, policy=policy, temperature=1.0, seed=seed).token_ids)
        for seed in range(num_samples)
    )
    assert set(seen) <= set(law)
    common = [path for path, share in law.items() if share * num_samples >= 5]
    observed = [seen[path] for path in common]
    expected = [law[path] * num_samples for path in common]
    rest = num_samples - sum(observed), num_samples - sum(expected)
    return float(chisquare([*observed, rest[0]], [*expected, rest[1]]).pvalue)


@pytest.mark.parametrize("policy", ["masked", "exact"])
def test_law_7_by_enumeration(policy: str) -> None:
    assert p_value(policy) > 1e-3


def test_law_7_by_enumeration_fails_without_verification(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jumpforward.engine.run.verify", keep_everything)
    assert p_value("exact") < 1e-9


# --- canonical ---------------------------------------------------------------------------------------------------


@given(grammar=grammars, sampling=st.sampled_from(SAMPLING), seed=st.integers(0, 5))
@settings(max_examples=40)
def test_canonical_writes_what_the_grammar_permits(grammar: jf.Grammar, sampling: dict[str, Any], seed: int) -> None:
    engine = shared_engine(seed)
    result = engine.generate(PROMPT, grammar, policy="canonical", max_new_tokens=24, **sampling)
    data = engine.vocabulary.text_bytes(result.token_ids)
    walker = grammar.walker()
    assert walker.consume(data)
    if result.finish_reason == "end":
        assert result.complete
        assert grammar.accepts(data)


def test_canonical_commits_the_stable_spelling_and_counts_it() -> None:
    schema = {"type": "object", "properties": {"name": {"enum": ["aa", "bc"]}}, "required": ["name"]}
    engine = scripted_engine(['{"', '":', ' "', "na", "me", "name"])
    result = engine.generate(PROMPT, jf.json_schema(schema), policy="canonical")
    pieces = [engine.vocabulary.token_bytes[token] for token in result.token_ids]
    assert pieces[:3] == [b'{"', b"name", b'":']
    assert result.provenance[:3] == [Provenance.FORCED] * 3


@given(options=st.lists(st.text("abcd", min_size=1, max_size=9), min_size=1, max_size=4, unique=True))
def test_canonical_commits_only_what_every_continuation_begins_with(options: list[str]) -> None:
    engine = shared_engine(0)
    encode = engine.tokenizer.backend_tokenizer.encode
    forced = jf.choice(options).walker().forced_bytes()
    stable = engine._boundary.spell((), forced).stable
    result = engine.generate(PROMPT, jf.choice(options), policy="canonical")
    assert tuple(result.token_ids[: len(stable)]) == stable
    assert result.provenance[: len(stable)] == [Provenance.FORCED] * len(stable)
    for text in options:
        assert tuple(encode(text, add_special_tokens=False).ids[: len(stable)]) == stable


def test_canonical_has_the_model_check_the_withheld_tail() -> None:
    engine = scripted_engine(["ab", "abc"])
    result = engine.generate(PROMPT, jf.choice(["xyabcq", "xyabq"]), policy="canonical")
    assert result.provenance[:2] == [Provenance.FORCED] * 2
    assert result.stats.num_proposed == 1  # `ab`, which `abc` would replace


def test_every_legal_path_of_a_small_language_is_reachable_by_both_policies() -> None:
    engine = scripted_engine(AMBIGUOUS, single_bytes=range(97, 123))
    grammar = jf.choice(["ab", "abc"])
    texts = {
        (policy, engine.generate(PROMPT, grammar, policy=policy, temperature=3.0, seed=seed).text)
        for policy, seed in product(("masked", "exact", "canonical"), range(40))
    }
    assert texts == set(product(("masked", "exact", "canonical"), ("ab", "abc")))
