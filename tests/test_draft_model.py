"""A draft model: law 7 whatever it drafts, everything accepted where it is the model, silence where it does not pay."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import ALONE, favouring, random_script, scripted_engine, tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import grammars
from test_drafts import PIECES, PROMPTS, RECORD, SAMPLING, check_sources

import jumpforward as jf
from jumpforward.decoding.allowance import Allowance
from jumpforward.decoding.costs import FixedCosts
from jumpforward.decoding.drafter import Stake
from jumpforward.testing import ScriptedModel, toy_tokenizer

WIDTH = len(toy_tokenizer(PIECES))
LETTERS = jf.regex("[a-d]{40}")
DRAWN = {"temperature": 1.0, "seed": 1}


def scripted(script: Any = None, width: int = WIDTH, **options: Any) -> ScriptedModel:
    return ScriptedModel(script or random_script(width), width, **options)


def drafting_engine(draft: Any, costs: FixedCosts | None = None, **options: Any) -> jf.Engine:
    """An engine whose only source is a draft model; with free passes of it unless ``costs`` says otherwise."""
    more = {"pass_costs": costs} if costs is not None else {}
    return scripted_engine(PIECES, draft_model=draft, **{"drafters": [], **more, **options})


@cache
def combined(row_s: float, draft_s: float, automata: bool, with_others: bool) -> tuple[jf.Engine, ScriptedModel]:
    draft = scripted()
    drafters = jf.Engine.DEFAULT_DRAFTERS if with_others else ()
    costs = FixedCosts(1.0, row_s, draft_s)
    return drafting_engine(draft, costs, drafters=drafters, memory="grammar", automata=automata), draft


@given(
    grammar=grammars,
    prompt=st.sampled_from(PROMPTS),
    sampling=st.sampled_from(SAMPLING),
    seeds=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    prices=st.sampled_from([(0.0, 0.0), (0.05, 0.02), (0.05, 0.3)]),
    automata=st.booleans(),
    with_others=st.booleans(),
    policy=st.sampled_from(["exact", "canonical"]),
)
@settings(max_examples=120)
def test_law_7_whatever_a_draft_model_drafts(
    grammar: jf.Grammar,
    prompt: str,
    sampling: dict[str, Any],
    seeds: tuple[int, int],
    prices: tuple[float, float],
    automata: bool,
    with_others: bool,
    policy: str,
) -> None:
    engine, draft = combined(*prices, automata, with_others)
    engine.model.script, draft.script = (random_script(WIDTH, seed) for seed in seeds)
    options = {"max_new_tokens": 24, **sampling}
    plain = scripted_engine(PIECES, seed=seeds[0], automata=automata, drafters=[])
    expected = plain.generate(prompt, grammar, policy="masked" if policy == "exact" else policy, **options)
    drafted = engine.generate(prompt, grammar, policy=policy, **options)
    assert drafted.token_ids == expected.token_ids
    check_sources(drafted)


@pytest.mark.parametrize("sampling", SAMPLING, ids=str)
@pytest.mark.parametrize("grammar", [LETTERS, jf.json_schema(RECORD)], ids=["regex", "schema"])
def test_a_draft_model_that_is_the_model_is_always_right(grammar: jf.Grammar, sampling: dict[str, Any]) -> None:
    engine = drafting_engine(scripted(random_script(WIDTH, 5)), seed=5)
    masked = engine.generate("a", grammar, policy="masked", **sampling)
    drafted = engine.generate("a", grammar, **sampling)
    assert drafted.token_ids == masked.token_ids
    own = drafted.stats.sources["model"]
    assert own.num_rejected == 0
    assert own.num_accepted == drafted.sources.count("model") > 0
    assert drafted.stats.num_forward_passes <= 1 + len(drafted.token_ids) // 16  # the most guesses of a draft
    assert "model" in str(drafted.stats)


@pytest.mark.parametrize("kind", ["llama", "gemma3", "gpt2"])
@pytest.mark.parametrize("sampling", [{}, DRAWN], ids=str)
def test_law_8_a_draft_models_cache_goes_back_with_the_draft(kind: str, sampling: dict[str, Any]) -> None:
    tokenizer = toy_tokenizer(PIECES)
    free = {"drafters": [], "pass_costs": FixedCosts(1.0, 0.0), "memory": "off"}
    model, other = tiny_model(kind, WIDTH), tiny_model(kind, WIDTH, seed=1)
    twice = jf.Engine(model, tokenizer, draft_model=model, **free)
    masked = twice.generate("ab abcd", LETTERS, policy="masked", **sampling)
    drafted = twice.generate("ab abcd", LETTERS, **sampling)
    assert drafted.token_ids == masked.token_ids
    assert drafted.stats.num_rejected == 0
    unlike = jf.Engine(model, tokenizer, draft_model=other, **free)
    assert unlike.generate("ab abcd", LETTERS, **sampling).token_ids == masked.token_ids


@given(
    chosen=st.lists(st.tuples(grammars, st.sampled_from(PROMPTS), st.sampled_from(SAMPLING)), min_size=2, max_size=5),
    seeds=st.tuples(st.integers(0, 2), st.integers(0, 2)),
)
@settings(max_examples=25)
def test_law_7_in_batches(chosen: list[tuple[jf.Grammar, str, dict[str, Any]]], seeds: tuple[int, int]) -> None:
    engine, draft = combined(0.05, 0.02, True, False)
    engine.model.script, draft.script = (random_script(WIDTH, seed) for seed in seeds)
    requests = [
        {"prompt": prompt, "grammar": grammar, "max_new_tokens": 16, **options} for grammar, prompt, options in chosen
    ]
    expected = [engine.generate(**request, policy="masked").token_ids for request in requests]
    results = engine.generate_batch(requests, batch_size=3)
    assert [result.token_ids for result in results] == expected


def test_a_draft_model_that_raises_ends_the_request_that_asked_it() -> None:
    tokenizer = toy_tokenizer(PIECES)
    (bad,) = tokenizer("b")["input_ids"]

    def script(ids: Sequence[int]) -> np.ndarray:
        if ids[0] == bad and len(ids) > 4:
            raise LookupError("no such row")
        return random_script(WIDTH, 5)(ids)

    engine = drafting_engine(scripted(script), seed=5)
    requests = [{"prompt": prompt, "grammar": LETTERS} for prompt in ("a", "b", "c")]
    results = engine.generate_batch(requests, return_errors=True)
    assert isinstance(results[1], LookupError)
    for request, result in zip(requests[::2], results[::2], strict=True):
        assert result.token_ids == engine.generate(**request, policy="masked").token_ids
    assert engine.generate(**requests[1], policy="masked").complete  # which asks no source
    loop, (task,) = engine.start([engine._intake.request(**requests[1])])
    while not loop.is_idle:
        loop.wait()
        loop.step()
    assert isinstance(task.outcome, LookupError)
    assert task.run is not None
    assert not task.run._builder._drafters  # nor their caches, however long the task is kept


def test_logits_that_are_not_numbers_draft_nothing() -> None:
    draft = scripted(lambda ids: np.full(WIDTH, np.nan if len(ids) > 3 else 0.0, dtype=np.float32))
    engine = drafting_engine(draft)
    result = engine.generate("a", LETTERS)
    assert result.token_ids == engine.generate("a", LETTERS, policy="masked").token_ids
    assert len(draft.calls) > 10


def test_behind_its_context_a_draft_model_is_silent() -> None:
    short = scripted(random_script(WIDTH, 5), max_length=12)
    engine = drafting_engine(short, seed=5)
    result = engine.generate("a", LETTERS)
    assert result.token_ids == engine.generate("a", LETTERS, policy="masked").token_ids
    assert 0 < result.sources.count("model") <= 12


# --- where it pays ------------------------------------------------------------------------------------------------


def seconds(result: jf.Result, costs: FixedCosts, draft: ScriptedModel) -> float:
    rows = sum(length * count for length, count in result.stats.chunk_lengths.items())
    return result.stats.num_forward_passes * costs.pass_s + rows * costs.row_s + len(draft.calls) * costs.draft_s


@pytest.mark.parametrize("draft_s", [0.02, 0.1, 0.3, 1.0, 3.0])
@pytest.mark.parametrize("is_right", [True, False])
def test_it_falls_silent_where_it_takes_longer_than_it_saves(draft_s: float, is_right: bool) -> None:
    costs = FixedCosts(1.0, 0.03, draft_s)
    draft = scripted(random_script(WIDTH, 5 if is_right else 6))
    engine = drafting_engine(draft, costs, memory="grammar", seed=5)
    long = jf.regex("[a-d]{200}")
    for prompt in "abcd":
        engine.generate(prompt, long)
    draft.calls.clear()
    result = engine.generate("cd", long)
    plain_s = len(result.token_ids) * (costs.pass_s + costs.row_s)
    taken_s = seconds(result, costs, draft)
    assert result.token_ids == engine.generate("cd", long, policy="masked").token_ids
    assert taken_s < 1.03 * plain_s
    if is_right and draft_s <= 0.3:
        assert taken_s < (0.25 + 1.2 * draft_s) * plain_s
    if draft_s >= 1:
        assert len(draft.calls) <= 3


def test_it_is_not_asked_where_others_know() -> None:
    text = '{"name": "abcd", "ab": true, "n": 10}'
    script = favouring(text, toy_tokenizer(PIECES))
    draft = scripted(script)
    engine = drafting_engine(draft, FixedCosts(1.0, 0.03, 0.1), drafters=["forced"])
    draft.calls.clear()
    engine.model.script = script
    result = engine.generate("a", jf.json_schema(RECORD))
    assert result.text == text
    assert {"model", "forced"} <= set(result.sources)
    assert len(draft.calls) < len(result.token_ids) - result.sources.count("forced")


def test_narrow_scopes_leave_no_trace() -> None:
    costs = FixedCosts(1.0, 0.03, 0.05)
    engine = drafting_engine(scripted(random_script(WIDTH, 6)), costs, memory="request", seed=5)
    first, _, again = (engine.generate(prompt, LETTERS) for prompt in ("a", "b", "a"))
    assert again.sources == first.sources
    assert again.stats.chunk_lengths == first.stats.chunk_lengths


def test_an_allowance_is_spent_earned_and_tried_again() -> None:
    allowance = Allowance(start_s=1.0)
    stake = Stake(reach=1.0, rival=0.0, bar=0.1, token_s=1.0)
    assert allowance.permits(stake, 0.5, "greedy")
    assert not allowance.permits(stake._replace(rival=0.6), 0.5, "greedy")  # another source is nearly as sure
    assert not allowance.permits(stake, 0.65, "greedy")
    allowance.spend(1.5)
    assert not allowance.permits(stake, 0.0, "greedy")
    allowance.learn(stake, "greedy", is_drafted=True, is_right=True)
    assert allowance.permits(stake, 0.0, "greedy")
    for _ in range(100):
        allowance.learn(stake, "greedy", is_drafted=True, is_right=False)
    assert not allowance.permits(stake, 0.0, "greedy")
    allowance.grow(2000.0)
    assert not allowance.permits(stake, 0.2, "greedy")
    assert allowance.permits(stake, 0.2, "drawn")
    assert any(allowance.permits(stake, 5.0, "greedy") for _ in range(300))


# --- what does not fit --------------------------------------------------------------------------------------------


def test_a_draft_model_of_another_width() -> None:
    with pytest.raises(jf.VocabularyMismatchError, match=rf"{WIDTH} logits.*{WIDTH + 8}"):
        drafting_engine(scripted(width=WIDTH + 8))
    padded = scripted(favouring("abab", toy_tokenizer(PIECES), padding=8), width=WIDTH + 8)
    engine = drafting_engine((padded, toy_tokenizer(PIECES)))
    engine.model.script = favouring("abab", engine.tokenizer)
    assert engine.generate("a", jf.regex("[a-d]+")).stats.sources["model"].num_rejected == 0
    with pytest.raises(jf.VocabularyMismatchError, match=f"{WIDTH} tokens.*{WIDTH - 1}"):
        drafting_engine((scripted(width=WIDTH - 1), toy_tokenizer(PIECES)))


def test_a_draft_model_with_another_tokenizer() -> None:
    other = toy_tokenizer([*PIECES[:-1], "dc"])
    with pytest.raises(jf.VocabularyMismatchError, match="stands for b'dc' and not for b'cd'"):
        drafting_engine((scripted(), other))


def test_a_draft_model_that_cannot_go_back() -> None:
    with pytest.raises(jf.RollbackUnsupportedError, match="leave draft_model out"):
        drafting_engine(tiny_model("mamba", WIDTH))


def test_from_pretrained_loads_a_draft_model_by_its_folder(tmp_path: Path) -> None:
    toy_tokenizer(PIECES).save_pretrained(tmp_path / "model")
    tiny_model("llama", WIDTH).save_pretrained(tmp_path / "model")
    toy_tokenizer(PIECES).save_pretrained(tmp_path / "draft")
    tiny_model("llama", WIDTH + 8).save_pretrained(tmp_path / "draft")  # other padding
    engine = jf.Engine.from_pretrained(str(tmp_path / "model"), draft_model=str(tmp_path / "draft"), **ALONE)
    assert engine.generate("a", LETTERS).stats.sources["model"].num_proposed
    toy_tokenizer([*PIECES[:-1], "dc"]).save_pretrained(tmp_path / "draft")
    with pytest.raises(jf.VocabularyMismatchError):
        jf.Engine.from_pretrained(str(tmp_path / "model"), draft_model=str(tmp_path / "draft"))


def test_no_model_at_all() -> None:
    with pytest.raises(jf.ModelError, match="got str"):
        drafting_engine("a name, which only from_pretrained takes")
