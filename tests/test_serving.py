"""Requests in the background: handles, threads, coroutines, the end of everything, and a soak."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import random_script, scripted_engine
from test_many import GRAMMARS, PIECES, REQUESTS, alone, check_account, check_same, engine_of

import jumpforward as jf
from jumpforward.engine.loop import Loop
from jumpforward.engine.service import Slots
from jumpforward.testing import toy_tokenizer

PATIENCE_S = 60.0
LONG = jf.regex("[ab]{400}")


class Gate:
    """Lets a scripted model pass only when told to, so that what happens meanwhile is no matter of time."""

    def __init__(self, engine: jf.Engine) -> None:
        self.entered = threading.Event()
        self._open = threading.Event()
        script = engine.model.script

        def gated(ids: Any) -> Any:
            self.entered.set()
            assert self._open.wait(PATIENCE_S)
            return script(ids)

        engine.model.script = gated

    def open(self) -> None:
        self._open.set()


def until(condition: Callable[[], bool]) -> None:
    """Wait for what another thread will make true."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.fixture
def engine() -> Iterator[jf.Engine]:
    engine = scripted_engine(PIECES, batch_size=2, max_waiting=3)
    engine.compiler.compile(LONG)
    with engine:
        yield engine


def thread_of(engine: jf.Engine) -> threading.Thread | None:
    return engine._serving._service._thread


def test_law_10_and_13_in_the_background() -> None:
    engine = engine_of("llama")
    handles = [engine.submit(**request) for request in REQUESTS]
    for number, handle in enumerate(handles):
        assert "".join(handle) == alone("llama", number).text
        assert list(handle) == []  # exhausted
        assert handle.is_done
        check_same(handle.result(PATIENCE_S), alone("llama", number))
        assert not handle.cancel()
    until(lambda: thread_of(engine) is None)


def test_law_10_and_13_for_coroutines() -> None:
    engine = engine_of("llama")

    async def streamed(request: Any) -> str:
        return "".join([piece async for piece in engine.astream(**request)])

    async def everything() -> tuple[list[jf.Result], list[str]]:
        results = asyncio.gather(*(engine.agenerate(**request) for request in REQUESTS))
        texts = asyncio.gather(*(streamed(request) for request in REQUESTS))
        return await results, await texts

    results, texts = asyncio.run(everything())
    for number, (result, text) in enumerate(zip(results, texts, strict=True)):
        check_same(result, alone("llama", number))
        assert text == result.text


def test_bad_arguments_raise_at_once(engine: jf.Engine) -> None:
    with pytest.raises(jf.OptionError):
        engine.submit("a", LONG, top_k=3)
    with pytest.raises(jf.PromptError):
        asyncio.run(engine.agenerate("", LONG))
    assert thread_of(engine) is None


def test_an_error_comes_out_of_result_and_stream(engine: jf.Engine) -> None:
    engine.model.script = lambda ids: np.full(engine.vocabulary.width, np.nan, dtype=np.float32)
    handle = engine.submit("a", LONG)
    with pytest.raises(jf.BadLogitsError):
        list(handle)
    with pytest.raises(jf.BadLogitsError):
        handle.result(PATIENCE_S)
    with pytest.raises(jf.BadLogitsError):
        asyncio.run(engine.agenerate("a", LONG))


def test_a_cancelled_request_frees_its_row(engine: jf.Engine) -> None:
    gate = Gate(engine)
    running, other, waiting = (engine.submit("a", LONG, max_new_tokens=30) for _ in range(3))
    assert gate.entered.wait(PATIENCE_S)
    with pytest.raises(TimeoutError):
        running.result(0)
    assert running.cancel()
    gate.open()
    with pytest.raises(CancelledError):
        running.result()
    with pytest.raises(CancelledError):
        list(running)
    assert waiting.result(PATIENCE_S).token_ids == other.result(PATIENCE_S).token_ids


def test_a_handle_that_nobody_holds_frees_its_row(engine: jf.Engine) -> None:
    gate = Gate(engine)
    handles = [engine.submit("a", LONG) for _ in range(2)]
    waiting = engine.submit("a", jf.choice(["ab", "cd"]))
    assert gate.entered.wait(PATIENCE_S)
    futures = [handle._result for handle in handles]
    del handles
    gc.collect()
    assert all(future.cancelled() for future in futures)
    gate.open()
    assert waiting.result(PATIENCE_S).complete
    assert engine.submit("a", jf.choice(["ab", "cd"])).result().complete  # held as long as it is waited for


def test_a_stream_that_is_left_frees_its_row(engine: jf.Engine) -> None:
    for number, _ in enumerate(engine.submit("a", LONG, max_new_tokens=400, policy="masked")):
        if number == 3:
            break

    async def left() -> None:
        pieces = engine.astream("a", LONG, max_new_tokens=400, policy="masked")
        await anext(pieces)
        await pieces.aclose()
        waiting = asyncio.create_task(engine.agenerate("a", LONG, max_new_tokens=400, policy="masked"))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(left())
    until(lambda: thread_of(engine) is None)
    assert len(engine.model.calls) < 900  # 3 * 400 if nothing had been cancelled


def test_a_wait_for_a_piece_that_is_given_up_loses_no_piece(engine: jf.Engine) -> None:
    gate = Gate(engine)

    async def impatient() -> str:
        handle = engine.submit("a", LONG, max_new_tokens=20)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(handle), 0.01)
        gate.open()
        return "".join([piece async for piece in handle])

    text = asyncio.run(impatient())
    assert text == engine.generate("a", LONG, max_new_tokens=20).text


def test_submit_blocks_while_too_many_wait(engine: jf.Engine) -> None:
    gate = Gate(engine)
    handles = [engine.submit("a", LONG, max_new_tokens=4) for _ in range(2)]
    assert gate.entered.wait(PATIENCE_S)  # one or two of them have their rows
    slots = engine._serving._service.slots
    late: list[jf.Result] = []
    more = [
        threading.Thread(target=lambda: late.append(engine.submit("a", LONG, max_new_tokens=4).result()))
        for _ in range(8)
    ]
    for thread in more:
        thread.start()
    until(lambda: len(slots._waiting) >= 4)
    assert slots._num_free == 0
    assert not late
    gate.open()
    for thread in more:
        thread.join(PATIENCE_S)
    assert len(late) == 8
    assert {tuple(result.token_ids) for result in late} == {tuple(handles[0].result().token_ids)}
    until(lambda: thread_of(engine) is None)
    assert slots._num_free == 3


def test_slots_are_given_in_order_and_never_lost() -> None:
    slots = Slots(1)
    first, second, third, fourth = (slots.take() for _ in range(4))
    assert first.done()
    assert second.cancel()
    slots.give()
    assert third.done()
    assert not fourth.done()
    slots.close()
    assert isinstance(fourth.exception(), jf.EngineClosedError)
    assert isinstance(slots.take().exception(), jf.EngineClosedError)


def test_a_wait_for_a_slot_that_is_given_up_leaves_the_slots_as_they_were(engine: jf.Engine) -> None:
    slots = engine._serving._service.slots
    taken = [slots.take() for _ in range(3)]

    async def given_up() -> None:
        waiting = [asyncio.create_task(engine.agenerate("a", LONG)) for _ in range(2)]
        await asyncio.sleep(0)
        assert len(slots._waiting) == 2
        slots.give()  # the first is given one, and gives up before it hears of that
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    asyncio.run(given_up())
    for _ in taken[1:]:
        slots.give()
    until(lambda: thread_of(engine) is None)
    assert slots._num_free == 3


def test_closing_ends_every_request_and_is_final() -> None:
    engine = scripted_engine(PIECES, batch_size=1, max_waiting=2)
    gate = Gate(engine)
    handles = [engine.submit("a", LONG) for _ in range(2)]
    assert gate.entered.wait(PATIENCE_S)
    late: list[Exception] = []

    def submit_late() -> None:
        try:
            handles.append(engine.submit("a", LONG))
        except jf.EngineClosedError as error:
            late.append(error)

    threads = [threading.Thread(target=submit_late) for _ in range(3)]
    for thread in threads:
        thread.start()
    until(lambda: len(engine._serving._service.slots._waiting) == 2)
    closing = threading.Thread(target=engine.close)
    closing.start()
    until(lambda: len(late) == 2)
    gate.open()
    closing.join(PATIENCE_S)
    assert len(handles) == 3
    for handle in handles:
        with pytest.raises(jf.EngineClosedError, match="was closed"):
            handle.result(PATIENCE_S)
        with pytest.raises(jf.EngineClosedError):
            list(handle)
    engine.close()
    with pytest.raises(jf.EngineClosedError):
        engine.submit("a", LONG)
    with pytest.raises(jf.EngineClosedError):
        engine.generate_batch([{"prompt": "a", "grammar": LONG}])
    with pytest.raises(jf.EngineClosedError):
        asyncio.run(engine.agenerate("a", LONG))
    assert engine.generate("a", LONG, max_new_tokens=3).token_ids


def test_an_error_of_the_loop_itself_ends_all_and_the_engine_goes_on(
    engine: jf.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as context:
        context.setattr(Loop, "step", lambda _: 1 / 0)
        handles = [engine.submit("a", LONG) for _ in range(3)]
        for handle in handles:
            with pytest.raises(ZeroDivisionError):
                handle.result(PATIENCE_S)
        until(lambda: thread_of(engine) is None)
        context.setattr(Loop, "__init__", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            engine.submit("a", LONG).result(PATIENCE_S)
        until(lambda: thread_of(engine) is None)
    assert engine.submit("a", LONG, max_new_tokens=3).result(PATIENCE_S).token_ids
    assert engine._serving._service.slots._num_free == 3


def test_an_engine_is_let_go_when_its_requests_have_ended() -> None:
    def used() -> weakref.ref[jf.Engine]:
        engine = scripted_engine(PIECES)
        engine.submit("a", LONG, max_new_tokens=3).result(PATIENCE_S)
        engine.generate_batch([{"prompt": "a", "grammar": LONG, "max_new_tokens": 3}])
        return weakref.ref(engine)

    gc.disable()  # a cycle might hold a model for long
    try:
        gone = used()
        until(lambda: gone() is None)
    finally:
        gc.enable()


UNFINISHED = """
import sys
sys.path.insert(0, sys.argv[1])
from test_serving import LONG, PIECES, jf, scripted_engine
engine = scripted_engine(PIECES, batch_size=1)
handles = [engine.submit("a", LONG, max_new_tokens=400, policy="masked") for _ in range(50)]
next(handles[0])
print("leaves")
"""


def test_a_program_that_ends_is_not_kept_by_its_requests() -> None:
    tests = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", UNFINISHED, str(tests)], cwd=tests.parent, capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["leaves"], "")


def soak_script(width: int) -> Any:
    script, bad = random_script(width), ord("z")

    def soaking(ids: Any) -> np.ndarray:
        return np.full(width, np.nan, dtype=np.float32) if ids[0] == bad and len(ids) % 3 == 0 else script(ids)

    return soaking


def test_soak() -> None:
    """2,000 requests: mixed grammars, bad grammars, NaN, cancellations, consumers that leave."""
    num_requests = 2000
    engine = scripted_engine(
        PIECES,
        script=soak_script(len(toy_tokenizer(PIECES, single_bytes=range(128)))),
        single_bytes=range(128),
        batch_size=8,
        max_waiting=32,
        token_budget=40,
        max_cache_bytes=16 * 400,
        prefix_cache_bytes=16 * 200,
    )
    random = np.random.default_rng(0)
    grammars = [*GRAMMARS, jf.regex("[ab]{1,5}"), jf.choice(["é", "ü"])]  # no token spells the last
    ends: dict[str, int] = {}
    handles: list[jf.Handle] = []

    def end(handle: jf.Handle) -> None:
        try:
            result = handle.result(PATIENCE_S)
        except (jf.JumpForwardError, CancelledError) as error:
            ends[type(error).__name__] = ends.get(type(error).__name__, 0) + 1
        else:
            check_account(result)
            ends["Result"] = ends.get("Result", 0) + 1

    for number in range(num_requests):
        prompt = str(random.choice(["a", "z", "shared by many of them " + "ab" * int(random.integers(4)), "b" * 500]))
        options: Any = {"policy": str(random.choice(["exact", "canonical", "masked"])), "max_new_tokens": 8}
        if random.random() < 0.3:
            options |= {"temperature": 1.0, "seed": number}
        handles.append(engine.submit(prompt, grammars[int(random.integers(len(grammars)))], **options))
        fate = random.random()
        if fate < 0.1:
            handles[-1].cancel()
        elif fate < 0.2:
            handles.pop(int(random.integers(len(handles))))  # nobody waits for it any more
            ends["left"] = ends.get("left", 0) + 1
        if len(handles) > 60:
            end(handles.pop(int(random.integers(len(handles)))))
    for handle in handles:
        end(handle)
    assert sum(ends.values()) == num_requests
    assert ends.keys() == {
        "Result",
        "left",
        "CancelledError",
        "BadLogitsError",
        "EmptyMaskError",
        "RequestTooLongError",
    }
    assert min(ends.values()) > 20
    until(lambda: thread_of(engine) is None)
    service = engine._serving._service
    assert service.slots._num_free == 32
    assert not service._inbox
    assert engine._serving.prefixes.num_tokens <= 200
    engine.close()
