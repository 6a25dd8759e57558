"""What earlier outputs left: bounds, eviction, threads, files."""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jumpforward as jf
from jumpforward.decoding.memory import LEN_CONTEXT, Memory

IDS = st.lists(st.integers(0, 6), max_size=30)


@given(outputs=st.lists(IDS, max_size=4))
def test_a_context_knows_what_followed_it_the_most_recent_last(outputs: list[list[int]]) -> None:
    memory = Memory()
    expected: dict[tuple[int, ...], list[int]] = {}
    for ids in outputs:
        memory.add(7, ids, 0)
        for at, token in enumerate(ids):
            for first in range(max(0, at - LEN_CONTEXT), at):
                expected.setdefault(tuple(ids[first:at]), []).append(token)
    assert len(memory) == len(expected)
    for context, followers in expected.items():
        assert memory.recent(7, context) == tuple(followers[-8:])
        assert memory.recent(8, context) == ()


@given(outputs=st.lists(IDS, max_size=4), split=st.integers(0, 30))
def test_what_was_added_before_is_not_added_again(outputs: list[list[int]], split: int) -> None:
    whole, parts = Memory(), Memory()
    for ids in outputs:
        whole.add(1, ids, 0)
        parts.add(1, ids[:split], 0)
        parts.add(1, ids, min(split, len(ids)))
    assert list(whole._recent.items()) == list(parts._recent.items())


@given(
    steps=st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 4), min_size=2, max_size=6)), max_size=25),
    num_entries=st.integers(0, 12),
)
def test_what_was_not_used_for_longest_goes_first(steps: list[tuple[bool, list[int]]], num_entries: int) -> None:
    probe = Memory()
    probe.add(0, [1, 2], 0)
    memory = Memory(num_entries * probe.num_bytes)
    oracle: OrderedDict[tuple[int, ...], None] = OrderedDict()
    for is_read, ids in steps:
        if is_read:
            context = tuple(ids[:LEN_CONTEXT])
            assert bool(memory.recent(0, context)) == (context in oracle)
            if context in oracle:
                oracle.move_to_end(context)
            continue
        memory.add(0, ids, 0)
        for at in range(1, len(ids)):
            for first in range(max(0, at - LEN_CONTEXT), at):
                oracle[tuple(ids[first:at])] = None
                oracle.move_to_end(tuple(ids[first:at]))
        while len(oracle) > num_entries:
            oracle.popitem(last=False)
        assert memory.num_bytes <= memory.max_bytes
    assert [context[1:] for context in memory._recent] == list(oracle)


def test_the_bound_holds_for_what_python_really_takes() -> None:
    max_bytes = 2_000_000
    random = np.random.default_rng(0)
    outputs = [random.integers(0, 50_000, 100).tolist() for _ in range(40)]
    gc.collect()
    tracemalloc.start()
    try:
        memory = Memory(max_bytes)
        for _ in range(3):  # several tokens behind every context
            for ids in outputs:
                memory.add(2**50, ids, 0)
        taken_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert memory.num_bytes > 0.95 * max_bytes
    assert taken_bytes < 1.1 * max_bytes


def test_threads_share_a_memory() -> None:
    memory = Memory(200_000)

    def work(seed: int) -> int:
        random = np.random.default_rng(seed)
        for _ in range(150):
            ids = random.integers(0, 30, 20).tolist()
            memory.add(seed % 2, ids, 0)
            for at in range(1, 20):
                memory.recent(seed % 2, tuple(ids[max(0, at - 3) : at]))
            if seed == 3:
                memory.save("/dev/null")
        return memory.num_bytes

    with ThreadPoolExecutor(6) as threads:
        assert max(threads.map(work, range(6))) <= memory.max_bytes
    assert all(1 <= len(recent) <= 8 for recent in memory._recent.values())


@given(outputs=st.lists(IDS, max_size=4))
def test_a_saved_memory_comes_back(outputs: list[list[int]], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("memory") / "memory.json"
    memory, again = Memory(vocabulary="v"), Memory(vocabulary="v")
    for ids in outputs:
        memory.add(3, ids, 0)
    memory.save(path)
    again.load(path)
    assert list(again._recent.items()) == list(memory._recent.items())
    small = Memory(900, vocabulary="v")
    small.load(path)
    assert small.num_bytes <= 900
    memory.clear()
    assert len(memory) == 0


BAD_FILES: list[tuple[Any, str]] = [
    ({"version": 2, "vocabulary": "v", "entries": []}, "version 2"),
    ({"version": 1, "vocabulary": "w", "entries": []}, "another vocabulary"),
    ({"version": 1, "vocabulary": "v", "entries": [[[1, 2], "x"]]}, "damaged"),
    ({"version": 1, "vocabulary": "v", "entries": [[[1, 2], [1]], [[1, 2.5], [1]]]}, "damaged"),
    ({"version": 1, "vocabulary": "v", "entries": 5}, "damaged"),
    ({"version": 1}, "no saved memory"),
    ([1], "no saved memory"),
    ("{", "no saved memory"),
]


@pytest.mark.parametrize(("content", "message"), BAD_FILES)
def test_files_that_are_refused_change_nothing(content: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "memory.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    memory = Memory(vocabulary="v")
    memory.add(1, [1, 2, 3], 0)
    before = dict(memory._recent)
    with pytest.raises(jf.MemoryFileError, match=message):
        memory.load(path)
    assert dict(memory._recent) == before
