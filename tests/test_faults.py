"""What goes wrong in one request, or in one pass, stays there; memory limits; and prefixes that are computed once."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
import torch
from helpers import LegalGuesses, random_script, scripted_engine, set_drafters, tiny_engine
from hypothesis import given
from hypothesis import strategies as st
from test_many import GRAMMARS, PIECES, PROMPTS, REQUESTS, SHARED, alone, check_account, check_same, engine_of, task_of

import jumpforward as jf
from jumpforward.engine import passes
from jumpforward.engine.limits import Limits
from jumpforward.engine.loop import Loop
from jumpforward.engine.prefixes import MIN_TOKENS, PrefixCache, num_common
from jumpforward.testing import toy_tokenizer


def failing_passes(engine: jf.Engine, monkeypatch: pytest.MonkeyPatch, fails: Any) -> list[int]:
    """Have passes fail where ``fails(ids)`` gives an exception; return how many tokens, with padding, each had."""
    sizes: list[int] = []
    forward = engine.model.forward

    def failing(**arguments: Any) -> Any:
        sizes.append(arguments["input_ids"].numel())
        error = fails(arguments["input_ids"])
        output = forward(**arguments)  # by now the cache has been written to
        if error is not None:
            raise error
        return output

    monkeypatch.setattr(engine.model, "forward", failing)
    return sizes


OUT_OF_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried to"),
    MemoryError(),
]


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=lambda error: type(error).__name__)
def test_without_room_a_pass_is_made_again_with_fewer_tokens(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    engine = engine_of("llama")
    expected = [alone("llama", number) for number in range(len(REQUESTS))]
    sizes = failing_passes(engine, monkeypatch, lambda ids: error if ids.numel() > 30 else None)
    for result, other in zip(engine.generate_batch(REQUESTS), expected, strict=True):
        check_same(result, other)
    assert max(sizes) > 30
    num_failed = sum(size > 30 for size in sizes)
    assert 0 < num_failed <= 4  # it is not tried again and again


def test_without_room_to_choose_the_pass_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of("llama")
    expected = [alone("llama", number) for number in range(len(REQUESTS))]
    choose, num_failed = passes.choose_tokens, 0

    def failing(logits: Any, *arguments: Any) -> Any:
        nonlocal num_failed
        if len(logits) > 5:
            num_failed += 1
            raise OUT_OF_MEMORY[0]
        return choose(logits, *arguments)

    monkeypatch.setattr(passes, "choose_tokens", failing)
    for result, other in zip(engine.generate_batch(REQUESTS), expected, strict=True):
        check_same(result, other)
    assert num_failed


def test_without_room_for_one_token_the_request_fails_and_the_engine_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of("llama")
    with monkeypatch.context() as context:
        failing_passes(engine, context, lambda _: OUT_OF_MEMORY[0])
        outcomes = engine.generate_batch(REQUESTS[:3], return_errors=True)
        assert [type(outcome) for outcome in outcomes] == [jf.OutOfMemoryError] * 3
        assert "batch_size" in str(outcomes[0])
        assert outcomes[0].__cause__ is OUT_OF_MEMORY[0]
        with pytest.raises(jf.OutOfMemoryError):
            engine.generate(**REQUESTS[0])
    check_same(engine.generate(**REQUESTS[0]), alone("llama", 0))


def test_the_budget_recovers() -> None:
    engine = engine_of("llama")
    loop = Loop(engine._runner, Limits(token_budget=100), num_rows=1)
    loop._scheduler.token_budget = 20
    for _ in range(1000):
        loop.step()
    assert loop._scheduler.token_budget == 100


def test_a_pass_that_fails_ends_those_in_it_and_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = tiny_engine("llama", PIECES, seed=1, max_draft=40, token_budget=4096, prefix_cache_bytes=0, max_padding=16)
    engine._runner.packs = False  # chunks of unlike length are then in passes of their own
    ids = torch.tensor(engine.tokenizer("ab" * 60)["input_ids"])
    error = RuntimeError("the device is on fire")
    failing_passes(
        engine, monkeypatch, lambda fed: error if fed.shape[1] >= 60 and (fed[:, :60] == ids).all(1).any() else None
    )
    outcomes = engine.generate_batch(REQUESTS, return_errors=True)
    for number, (request, outcome) in enumerate(zip(REQUESTS, outcomes, strict=True)):
        if request["prompt"] == "ab" * 60:
            assert outcome is error
        elif outcome is not error:  # nor in one pass with one of those
            check_same(outcome, alone("llama", number))
    assert sum(outcome is error for outcome in outcomes) < len(REQUESTS) / 2


def test_logits_that_are_not_numbers_end_their_request_alone() -> None:
    width = len(toy_tokenizer(PIECES))
    bad = toy_tokenizer(PIECES)("z")["input_ids"][0]

    def script(ids: Any) -> np.ndarray:
        logits = random_script(width)(ids)
        return np.full(width, np.nan, dtype=np.float32) if ids[0] == bad and len(ids) > 4 else logits

    engine = scripted_engine(PIECES, script=script)
    requests = [{"prompt": prompt, "grammar": GRAMMARS[1]} for prompt in "abzcdz"]
    outcomes = engine.generate_batch(requests, batch_size=3, return_errors=True)
    expected = [engine.generate(**request) for request in requests if request["prompt"] != "z"]
    for index in (2, 5):
        assert isinstance(outcomes.pop(index if index == 2 else 4), jf.BadLogitsError)
    for outcome, other in zip(outcomes, expected, strict=True):
        check_same(outcome, other)


def test_a_batch_tells_of_every_request_that_failed() -> None:
    engine = scripted_engine(PIECES, single_bytes=range(97, 123))
    requests = [
        {"prompt": "a", "grammar": jf.choice(["ab", "cd"])},
        {"prompt": "a", "grammar": jf.choice(["12", "34"])},  # no token spells it
        {"prompt": "", "grammar": jf.choice(["ab"])},
        {"prompt": "a", "grammar": jf.choice(["abab"]), "ensure_complete": True, "max_new_tokens": 1},
        {"prompt": "a", "grammar": jf.choice(["ab"]), "top_k": 2},
        {"prompt": "b", "grammar": jf.choice(["ab", "cd"])},
    ]
    outcomes = engine.generate_batch(requests, return_errors=True)
    kinds = [jf.Result, jf.EmptyMaskError, jf.PromptError, jf.OptionError, jf.OptionError, jf.Result]
    assert [type(outcome) for outcome in outcomes] == kinds
    with pytest.raises(jf.BatchError, match="4 of 6 requests failed, the first with EmptyMaskError") as caught:
        engine.generate_batch(requests)
    assert [type(outcome) for outcome in caught.value.results] == kinds
    assert engine.generate_batch([]) == []
    with pytest.raises(TypeError, match="no_such_option"):
        engine.generate_batch([requests[0] | {"no_such_option": 1}])
    with pytest.raises(jf.OptionError, match="batch_size"):
        engine.generate_batch(requests, batch_size=0)


def test_a_drafter_that_raises_ends_the_request_it_drafts_for() -> None:
    engine = scripted_engine(PIECES)

    class FailsFor(LegalGuesses):
        def propose(self, view: Any) -> Any:
            if len(view.prompt_ids) == 2 and view.output_ids:
                raise LookupError
            return super().propose(view)

    set_drafters(engine, *engine._drafting.drafters, FailsFor(0, 3, engine.vocabulary.width))
    requests = [{"prompt": "x" * length, "grammar": GRAMMARS[1]} for length in (1, 2, 3)]
    first, second, third = engine.generate_batch(requests, return_errors=True)
    assert isinstance(second, LookupError)
    check_same(first, engine.generate(**requests[0]))
    check_same(third, engine.generate(**requests[2]))


def test_a_progress_bar_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    engine = scripted_engine(PIECES)
    engine.generate_batch(REQUESTS[:3], progress=True)
    assert "100%" in capsys.readouterr().err
    engine.generate_batch(REQUESTS[:3])
    assert capsys.readouterr() == ("", "")


BAD_LIMITS: list[dict[str, Any]] = [
    {"batch_size": 0},
    {"batch_size": None},
    {"batch_size": 2.5},
    {"token_budget": True},
    {"max_padding": -1},
    {"max_cache_bytes": 0},
    {"prefix_cache_bytes": None},
    {"max_waiting": 0},
]


@pytest.mark.parametrize("limit", BAD_LIMITS)
def test_limits_that_mean_nothing_are_refused(limit: dict[str, Any]) -> None:
    with pytest.raises(jf.OptionError, match=next(iter(limit))):
        scripted_engine(PIECES, **limit)


def test_a_memory_limit_is_kept_and_what_never_fits_is_told_what_would() -> None:
    engine = engine_of("llama")
    per_token = engine._runner.bytes_per_token
    assert per_token == 4 * 2 * 2 * 8 * 4  # layers, keys and values, heads, head_dim, bytes
    limits = Limits(max_cache_bytes=200 * per_token + 5)
    loop = Loop(engine._runner, limits, num_rows=8)
    made = [task_of(engine, request) for request in REQUESTS]
    for request, (task, compiled) in zip(REQUESTS, made, strict=True):
        compiled.set_result(engine.compiler.compile(request["grammar"]))
        loop.add(task)
    most_rows = 0
    while not loop.is_idle:
        loop.step()
        assert loop._cache.num_bytes <= limits.max_cache_bytes
        most_rows = max(most_rows, len(loop._running))
    assert most_rows > 1
    for number, (task, _) in enumerate(made):
        check_same(task.result(), alone("llama", number))
    small = tiny_engine("llama", PIECES, max_cache_bytes=30 * per_token)
    with pytest.raises(jf.RequestTooLongError, match="max_new_tokens=29 would fit") as caught:
        small.generate("a", GRAMMARS[0], max_new_tokens=40)
    assert (caught.value.num_tokens, caught.value.max_tokens) == (41, 30)
    assert small.generate("a", GRAMMARS[0], max_new_tokens=29).stats.num_output_tokens <= 29
    with pytest.raises(jf.RequestTooLongError, match="a shorter prompt would fit"):
        small.generate("ab" * 30, GRAMMARS[0], max_new_tokens=1)


def many_behind_one_prefix(engine: jf.Engine, num_requests: int = 8) -> list[jf.Result]:
    grammars = [GRAMMARS[0], jf.choice(["abcab", "abcd!"])]
    return engine.generate_batch(
        [
            {"prompt": SHARED * 3 + "?" * number, "grammar": grammars[number % 2], "max_new_tokens": 12}
            for number in range(1, num_requests + 1)
        ],
        batch_size=4,
    )


def test_a_shared_prefix_is_computed_once_whatever_the_grammars() -> None:
    engine = tiny_engine("llama", PIECES, seed=1)
    plain = tiny_engine("llama", PIECES, seed=1, prefix_cache_bytes=0)
    num_shared = len(engine.tokenizer(SHARED * 3)["input_ids"])
    results, expected = many_behind_one_prefix(engine), many_behind_one_prefix(plain)
    assert [result.stats.num_reused_tokens for result in expected] == [0] * 8
    computed, *reused = sorted(
        result.stats.num_reused_tokens for result in results
    )  # whose grammar is ready goes first
    assert computed == 0
    assert all(num_reused >= num_shared for num_reused in reused)
    for result, other in zip(results, expected, strict=True):
        check_same(result, other)
    again = many_behind_one_prefix(engine)  # kept beyond a batch
    assert again[0].stats.num_reused_tokens >= num_shared


@pytest.mark.parametrize("shares", [False, True])
def test_a_loop_for_callers_shares_prefixes_with_others_if_it_is_asked_to(shares: bool) -> None:
    engine = tiny_engine("llama", PIECES, seed=1)
    reused = []
    for _ in range(2):
        loop, (task,) = engine.start([engine._intake.request(SHARED * 3, GRAMMARS[1])], shares=shares)
        while not loop.is_idle:
            loop.wait()
            loop.step()
        check_same(task.result(), engine.generate(SHARED * 3, GRAMMARS[1]))
        reused.append(task.result().stats.num_reused_tokens > 0)
    assert reused == [False, shares]


def test_a_request_that_waits_for_a_prefix_goes_on_if_that_never_comes() -> None:
    engine = tiny_engine("llama", PIECES, seed=1, token_budget=20, prefix_cache_bytes=1 << 24)
    limits = engine._limits
    loop = Loop(engine._runner, limits, num_rows=2, prefixes=engine._serving.prefixes)
    made = [task_of(engine, {"prompt": SHARED * 3 + end, "grammar": GRAMMARS[1]}) for end in "ab"]
    for task, compiled in made:
        compiled.set_result(engine.compiler.compile(GRAMMARS[1]))
        loop.add(task)
    (first, _), (second, _) = made
    loop.step()
    loop.step()
    assert first.run.row.length > 0
    assert second.run.row.length == 0  # it waits
    first.is_cancelled = True
    while not loop.is_idle:
        loop.step()
    check_same(second.result(), engine.generate(SHARED * 3 + "b", GRAMMARS[1]))
    assert second.result().stats.num_reused_tokens == 0


@given(first=st.lists(st.integers(0, 2)), second=st.lists(st.integers(0, 2)))
def test_what_prompts_have_in_common_is_their_beginning(first: list[int], second: list[int]) -> None:
    longest = max(length for length in range(len(first) + 1) if first[:length] == second[:length])
    assert num_common(first, second) == longest


def ids_of(*numbers: int) -> tuple[int, ...]:
    return tuple(number for number in numbers for _ in range(MIN_TOKENS))


def test_prefixes_are_kept_within_a_limit_and_the_least_recently_used_goes_first() -> None:
    prefixes = PrefixCache(max_bytes=6 * MIN_TOKENS * 10, bytes_per_token=10)
    for numbers in ((1, 2), (3, 4), (5, 6)):
        prefixes.keep(ids_of(*numbers), list)
    assert prefixes.num_tokens == 6 * MIN_TOKENS
    assert prefixes.longest(ids_of(1, 2, 9)).num_tokens == 2 * MIN_TOKENS
    assert prefixes.longest(ids_of(1, 2)).num_tokens == 2 * MIN_TOKENS - 1  # the last token must be fed
    prefixes.keep(ids_of(7, 8), list)  # 3, 4 goes
    assert prefixes.longest(ids_of(3, 4, 9)).num_tokens == 0
    assert prefixes.longest(ids_of(1, 9)).num_tokens == MIN_TOKENS
    prefixes.keep(ids_of(1, 2, 3), list)  # in the place of 1, 2, which it contains; 5, 6 goes
    assert prefixes.longest(ids_of(1, 2, 3, 4)).num_tokens == 3 * MIN_TOKENS
    assert prefixes.longest(ids_of(5, 6, 9)).num_tokens == 0
    assert prefixes.num_tokens == 5 * MIN_TOKENS
    prefixes.keep(ids_of(*range(10, 17)), lambda: pytest.fail("what is too long is not even read"))
    prefixes.keep((*ids_of(1, 2, 3), 4), lambda: pytest.fail("one more token is not worth it"))
    prefixes.clear()
    assert prefixes.num_tokens == 0
    assert not PrefixCache(0, 10).is_enabled


def test_a_prefix_that_is_as_long_as_the_prompt_leaves_its_last_token_to_be_fed() -> None:
    engine = tiny_engine("llama", PIECES, seed=1)
    request = {"prompt": PROMPTS[4], "grammar": GRAMMARS[0], "logprobs": True}
    first, second = (engine.generate_batch([request])[0] for _ in range(2))
    assert second.stats.num_reused_tokens == first.stats.num_prompt_tokens - 1
    check_same(second, first)


def test_a_slow_grammar_holds_up_nobody_else() -> None:
    engine = engine_of("llama")
    slow, compiled = task_of(engine, REQUESTS[0])
    quick, ready = task_of(engine, REQUESTS[1])
    ready.set_result(engine.compiler.compile(REQUESTS[1]["grammar"]))
    loop = Loop(engine._runner, Limits(), num_rows=1)
    loop.add(slow)
    loop.add(quick)
    while quick.outcome is None:
        loop.step()
    assert slow.outcome is None
    assert loop.is_waiting_for_grammars
    compiled.set_exception(jf.GrammarError("regex", "too large"))
    loop.wait()
    loop.step()
    assert isinstance(slow.outcome, jf.GrammarError)
    check_same(quick.result(), alone("llama", 1))


def test_a_grammar_is_compiled_once_however_many_share_it_and_others_overtake(monkeypatch: Any) -> None:
    engine = scripted_engine(PIECES)
    slow, quick = jf.regex("[ab]{4}"), jf.regex("[ab]{5}")
    go_on, started, compiled = threading.Event(), threading.Event(), []
    inner = engine.compiler._indexes._make

    def make(grammar: jf.Grammar) -> Any:
        compiled.append(grammar)
        if grammar is slow:
            started.set()
            assert go_on.wait(60)
        return inner(grammar)

    monkeypatch.setattr(engine.compiler._indexes, "_make", make)
    with engine:
        waiting = [engine.submit("a", slow) for _ in range(20)]
        assert started.wait(60)
        assert engine.submit("a", quick).result(60).complete
        assert engine.generate("a", quick).complete
        assert not any(handle.is_done for handle in waiting)
        go_on.set()
        assert all(handle.result(60).complete for handle in waiting)
    assert sorted(compiled, key=id) == sorted([slow, quick], key=id)


def test_a_compile_error_is_told_to_all_who_share_the_grammar_and_is_not_kept(monkeypatch: Any) -> None:
    engine = scripted_engine(PIECES)
    bad, good = jf.regex("[ab]{4}"), jf.regex("[ab]{5}")
    inner = engine.compiler._indexes._make

    def make(grammar: jf.Grammar) -> Any:
        if grammar is bad:
            raise MemoryError
        return inner(grammar)

    requests = [{"prompt": "a", "grammar": grammar} for grammar in (bad, good, bad)]
    with monkeypatch.context() as context:
        context.setattr(engine.compiler._indexes, "_make", make)
        outcomes = engine.generate_batch(requests, return_errors=True)
        assert [type(outcome) for outcome in outcomes] == [MemoryError, jf.Result, MemoryError]
    for result in engine.generate_batch(requests):
        check_account(result)


def test_a_future_for_a_grammar_is_shared_while_it_is_under_way() -> None:
    engine = scripted_engine(PIECES)
    grammar = jf.regex("[ab]{4}")
    futures: list[Future[Any]] = [engine._serving.compile(grammar) for _ in range(5)]
    assert {future.result().grammar for future in futures} == {grammar}
    engine.close()
    with pytest.raises(jf.EngineClosedError):
        engine._serving.compile(grammar)
