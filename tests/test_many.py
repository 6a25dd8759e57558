"""Law 10: a request's result is what it is alone, whatever runs beside it. And laws 8, 9 and 11 across schedules."""

from __future__ import annotations

from concurrent.futures import CancelledError, Future
from functools import cache
from typing import Any

import pytest
import torch
from helpers import fresh_logits, scripted_engine, tiny_engine
from hypothesis import given, settings
from hypothesis import strategies as st

import jumpforward as jf
from jumpforward.decoding import sampling
from jumpforward.decoding.costs import FixedCosts
from jumpforward.decoding.masks import DraftMasks
from jumpforward.engine import passes
from jumpforward.engine.cache import KVCache
from jumpforward.engine.limits import Limits
from jumpforward.engine.loop import Loop
from jumpforward.engine.prefixes import PrefixCache
from jumpforward.engine.task import Task
from jumpforward.stats import Counters

PIECES = ['{"', '":', ' "', '",', "ab", "abc", "true", ": ", ", ", "10"]
RECORD = {
    "type": "object",
    "properties": {"ab": {"type": "boolean"}, "n": {"enum": [1, 10, 11]}, "s": {"type": "string", "maxLength": 4}},
    "required": ["ab", "n", "s"],
}
SHARED = "the same beginning of every prompt "
GRAMMARS = [jf.json_schema(RECORD), jf.regex("[abc]{3,9}(xy|xz)w"), jf.choice(["abcab", "abcd!", "x" * 30])]
OPTIONS: list[dict[str, Any]] = [
    {"policy": "exact"},
    {"policy": "canonical", "logprobs": True},
    {"policy": "masked"},
    {"policy": "exact", "temperature": 1.0, "seed": 3, "logprobs": True},
    {"policy": "canonical", "temperature": 0.7, "top_k": 20, "seed": 4},
    {"policy": "exact", "stop": ["b", '":']},
    {"policy": "exact", "max_new_tokens": 5},
]
PROMPTS = ["a", SHARED + "one", SHARED + "two, and longer", "ab" * 60, SHARED * 3]
REQUESTS = [
    {"prompt": prompt, "grammar": GRAMMARS[(row + column) % 3], "max_new_tokens": 24} | options
    for row, prompt in enumerate(PROMPTS)
    for column, options in enumerate(OPTIONS)
]


@cache
def engine_of(kind: str) -> jf.Engine:
    return tiny_engine(kind, PIECES, seed=1, max_draft=40)


@cache
def alone(kind: str, number: int) -> jf.Result:
    return engine_of(kind).generate(**REQUESTS[number])


def task_of(engine: jf.Engine, arguments: dict[str, Any]) -> tuple[Task, Future[Any]]:
    """Return a task whose grammar counts as compiled once the future has a result."""
    compiled: Future[Any] = Future()
    return Task(engine._intake.request(**arguments), compiled, Counters(), engine._new_run), compiled


def poison(loop: Loop) -> None:
    """Put NaN into every row that is free, and nonsense behind the end of every other."""
    cache = loop._cache
    assert isinstance(cache, KVCache)
    with torch.inference_mode():
        for row, length in enumerate(cache.lengths):
            for layer in cache._row_layers:
                for buffer in layer.buffers:
                    if row < len(buffer):
                        buffer[row, :, length : cache._written[row]] = 1e4 if length else torch.nan


def check_account(result: jf.Result) -> None:
    """Law 9, as far as a result tells."""
    stats = result.stats
    assert stats.num_sampled + stats.num_forced + stats.num_drafted == stats.num_output_tokens == len(result.token_ids)
    assert stats.num_drafted + stats.num_rejected == stats.num_proposed
    num_fed = sum(length * count for length, count in stats.chunk_lengths.items())
    num_cached = num_fed + stats.num_reused_tokens - stats.num_cropped
    assert 0 <= num_cached < stats.num_prompt_tokens + stats.num_output_tokens
    assert num_cached >= stats.num_prompt_tokens or stats.num_output_tokens == stats.num_forced
    assert stats.num_forward_passes == sum(stats.chunk_lengths.values())


def check_same(result: jf.Result, expected: jf.Result) -> None:
    assert result.token_ids == expected.token_ids
    assert result.provenance == expected.provenance
    assert (result.text, result.finish_reason, result.complete) == (
        expected.text,
        expected.finish_reason,
        expected.complete,
    )
    assert (result.logprobs is None) == (expected.logprobs is None)
    assert (result.stats.num_proposed, result.stats.num_rejected) == (
        expected.stats.num_proposed,
        expected.stats.num_rejected,
    )
    if result.logprobs is not None and expected.logprobs is not None:
        assert [value is None for value in result.logprobs] == [value is None for value in expected.logprobs]
        for value, other in zip(result.logprobs, expected.logprobs, strict=True):
            assert value is None or value == pytest.approx(other, abs=1e-3)
    check_account(result)


class Broken(Exception):
    """What goes wrong in a neighbour."""


def breaks(task: Task, num_prepared: int) -> None:
    """Have a task's run raise when it is prepared for the ``num_prepared``-th time."""
    start = task.start

    def start_and_break(row: Any) -> Any:
        run = start(row)
        prepare, count = run.prepare, 0

        def failing() -> int:
            nonlocal count
            count += 1
            if count > num_prepared:
                raise Broken
            return prepare()

        run.prepare = failing
        return run

    task.start = start_and_break


# Which request; when it arrives; how long its grammar takes; what becomes of it, and when.
arrivals = st.lists(
    st.tuples(
        st.integers(0, len(REQUESTS) - 1),
        st.integers(0, 12),
        st.integers(0, 6),
        st.sampled_from(["ends", "ends", "ends", "breaks", "is cancelled"]),
        st.integers(0, 8),
    ),
    min_size=1,
    max_size=9,
)
limits = st.builds(
    Limits,
    token_budget=st.sampled_from([2, 16, 512]),
    max_padding=st.sampled_from([0, 4, 512]),
    max_cache_bytes=st.sampled_from([None, 200 * 4 * 64 * 4]),
    prefix_cache_bytes=st.sampled_from([0, 60 * 4 * 64 * 4, 1 << 24]),
)


def run_schedule(kind: str, arrivals: list[Any], num_rows: int, limits: Limits, *, is_poisoned: bool) -> list[Task]:
    """Run requests as they arrive, step by step, to the end of all; return their tasks."""
    engine = engine_of(kind)
    prefixes = PrefixCache(limits.prefix_cache_bytes, engine._runner.bytes_per_token)
    loop = Loop(engine._runner, limits, num_rows=num_rows, prefixes=prefixes)
    made = [task_of(engine, REQUESTS[number]) for number, *_ in arrivals]
    now = 0
    while now < 20 or not loop.is_idle:
        for (number, arrives, len_compile, fate, when), (task, compiled) in zip(arrivals, made, strict=True):
            if now == arrives:
                loop.add(task)
                if fate == "breaks":
                    breaks(task, when)
            if now == arrives + len_compile:
                compiled.set_result(engine.compiler.compile(REQUESTS[number]["grammar"]))
            if fate == "is cancelled" and now == arrives + when:
                task.is_cancelled = True
        loop.step()
        if is_poisoned:
            poison(loop)
        now += 1
        assert now < 5000
    assert set(loop._cache.lengths) == {0}
    return [task for task, _ in made]


@given(arrivals=arrivals, num_rows=st.integers(1, 4), limits=limits, is_poisoned=st.booleans())
@settings(max_examples=30)
def test_law_10_a_result_is_what_it_is_alone(
    arrivals: list[Any], num_rows: int, limits: Limits, is_poisoned: bool
) -> None:
    tasks = run_schedule("llama", arrivals, num_rows, limits, is_poisoned=is_poisoned)
    for (number, *_, fate, _), task in zip(arrivals, tasks, strict=True):
        if isinstance(task.outcome, jf.Result):
            check_same(task.outcome, alone("llama", number))
        elif fate == "breaks":
            assert isinstance(task.outcome, Broken)
        else:
            assert fate == "is cancelled"
            assert isinstance(task.outcome, CancelledError)


def test_law_10_in_any_batch_size_and_order() -> None:
    engine = engine_of("llama")
    for batch_size, order in ((1, 1), (3, 1), (5, -1), (40, 1)):
        numbers = range(len(REQUESTS))[::order]
        results = engine.generate_batch([REQUESTS[number] for number in numbers], batch_size=batch_size)
        for number, result in zip(numbers, results, strict=True):
            check_same(result, alone("llama", number))


@pytest.mark.parametrize("kind", ["gemma3", "mistral", "gpt2"])
def test_law_10_on_other_models(kind: str) -> None:
    results = engine_of(kind).generate_batch(REQUESTS, batch_size=4)
    for number, result in enumerate(results):
        check_same(result, alone(kind, number))


def test_a_model_with_a_cache_of_its_own_serves_one_at_a_time() -> None:
    engine = tiny_engine("mamba", PIECES)
    requests = [
        {"prompt": prompt, "grammar": grammar, "policy": policy, "max_new_tokens": 12}
        for prompt in ("ab", SHARED)
        for grammar in GRAMMARS
        for policy in ("masked", "canonical")
    ]
    expected = [engine.generate(**request) for request in requests]
    for result, other in zip(engine.generate_batch(requests, batch_size=4), expected, strict=True):
        check_same(result, other)
    with engine:
        handles = [engine.submit(**request) for request in requests]
        assert [handle.result().token_ids for handle in handles] == [result.token_ids for result in expected]


def test_law_8_logprobs_across_a_schedule_are_those_of_fresh_passes() -> None:
    engine = engine_of("llama")
    requests = [request | {"logprobs": True} for request in REQUESTS]
    for request, result in zip(requests, engine.generate_batch(requests, batch_size=6), strict=True):
        prompt = engine.tokenizer(request["prompt"])["input_ids"]
        logits = fresh_logits(engine.model, [*prompt, *result.token_ids]).log_softmax(-1)
        assert any(logprob is not None for logprob in result.logprobs)
        for index, (token, logprob) in enumerate(zip(result.token_ids, result.logprobs, strict=True)):
            if logprob is not None:
                assert logprob == pytest.approx(float(logits[len(prompt) - 1 + index, token]), abs=1e-3)


def test_law_9_no_pass_and_no_token_is_lost_from_the_accounts() -> None:
    engine = scripted_engine(PIECES, token_budget=20, max_padding=3)
    results = engine.generate_batch(REQUESTS, batch_size=4)
    num_fed = sum(length * count for result in results for length, count in result.stats.chunk_lengths.items())
    num_rows = sum(result.stats.num_forward_passes for result in results)
    assert num_rows == sum(len(call) for call in engine.model.calls)
    num_padded = sum(map(len, (row for call in engine.model.calls for row in call))) - num_fed
    assert 0 <= num_padded <= 3 * len(engine.model.calls)
    assert len(engine.model.calls) < num_rows  # passes are shared
    assert sum(result.stats.num_reused_tokens for result in results) > 0


def test_a_mask_reflects_every_accepted_token_before_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare the masks at the moment of choosing with those of a matcher that walks the ids anew."""
    # What only the grammar drafts for ends where text begins: in front of a row that nobody looks at.
    engine = tiny_engine(
        "llama", PIECES, seed=1, max_draft=40, drafters=["forced"], pass_costs=FixedCosts(pass_s=1.0, row_s=0.0)
    )
    num_checked = num_put_off = 0
    answers, complete = passes._answers, DraftMasks.complete

    def counted(masks: DraftMasks, tokens: Any, matcher: Any) -> None:
        nonlocal num_put_off
        num_put_off += sum(row > 0 for row in masks._unread)
        complete(masks, tokens, matcher)

    def checked(runner: Any, runs: Any, pieces: Any) -> Any:
        def choose(logits: Any, bitmask: Any, requests: Any) -> Any:
            nonlocal num_checked
            wanted = [(run, row) for run, piece in zip(runs, pieces, strict=True) for row in piece.rows]
            for line, (run, row) in zip(bitmask, wanted, strict=True):
                matcher = engine.compiler.compile(run.request.grammar).matcher()
                assert all(matcher.consume(token) for token in [*run.sequence.output_ids, *run._draft.tokens[:row]])
                expected = torch.zeros(1, len(line), dtype=torch.int32)
                matcher.fill_bitmask(expected, 0)
                assert torch.equal(line, expected[0])
                num_checked += 1
            return sampling.choose_tokens(logits, bitmask, requests)

        monkeypatch.setattr(passes, "choose_tokens", choose)
        return answers(runner, runs, pieces)

    monkeypatch.setattr(passes, "_answers", checked)
    monkeypatch.setattr(DraftMasks, "complete", counted)
    for result in engine.generate_batch(REQUESTS, batch_size=5):
        walker = result.grammar.walker()
        assert walker.consume(engine.vocabulary.text_bytes(result.token_ids))
    assert num_checked > 200
    assert num_put_off > 20


def test_case_35_what_was_drafted_outlives_steps_in_which_a_row_is_not_scheduled() -> None:
    engine = engine_of("llama")
    made = [task_of(engine, REQUESTS[number]) for number in (0, 1)]
    loop = Loop(engine._runner, Limits(token_budget=1), num_rows=2)
    for number, (task, compiled) in enumerate(made):
        compiled.set_result(engine.compiler.compile(REQUESTS[number]["grammar"]))
        loop.add(task)
    kept = 0
    while not loop.is_idle:
        runs = [task.run for task, _ in made if task.run is not None]
        before = [(run, run._draft, run.counters.chunk_lengths.total()) for run in runs]
        loop.step()
        for run, draft, num_passes in before:
            if draft is not None and draft.tokens and run.counters.chunk_lengths.total() == num_passes:
                assert run._draft is draft
                kept += 1
    assert kept
    for number, (task, _) in enumerate(made):
        check_same(task.result(), alone("llama", number))


def test_one_choice_for_all_rows_of_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = scripted_engine(PIECES)
    sizes = []
    choose = passes.choose_tokens
    monkeypatch.setattr(passes, "choose_tokens", lambda *args: sizes.append(len(args[0])) or choose(*args))
    requests = [{"prompt": "a", "grammar": GRAMMARS[1], "policy": "masked"} for _ in range(4)]
    sampled = [request | {"temperature": 1.0, "seed": seed} for seed, request in enumerate(requests)]
    engine.compiler.compile(GRAMMARS[1])  # so that all are ready at once
    engine.generate_batch([*requests, *sampled])
    assert len(sizes) == len(engine.model.calls)
    assert sizes[0] == 8
