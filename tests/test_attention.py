"""Attention of ours is what transformers makes of padded rows and of keys that are copied for each head."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from helpers import scripted_engine, tiny_model, tiny_runner
from hypothesis import given
from hypothesis import strategies as st
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from jumpforward.engine.attention import ATTENTION, REPLACED, _attend_rows, _Layout, lying_together
from jumpforward.engine.cache import KVCache
from jumpforward.engine.runner import Runner

WIDTH = 64
KINDS = ["llama", "gemma3", "mistral", "gpt2"]
counts = st.one_of(st.integers(0, 6), st.integers(30, 36))
ragged = st.lists(counts, min_size=3, max_size=3).filter(any)
even = st.integers(1, 6).map(lambda count: [count] * 3)


def fed(runner: Runner, passes: list[list[int]], rows: list[int], ours: bool) -> tuple[list[torch.Tensor], KVCache]:
    """Feed rows of a cache chunks of so many tokens each, pass by pass; return all logits, and the cache."""
    generator = torch.Generator().manual_seed(0)
    cache = runner.new_cache(max(rows) + 1)
    assert isinstance(cache, KVCache)
    logits = []
    runner.packs = runner._attends_here = ours
    try:
        for lengths in passes:
            chunks = [torch.randint(WIDTH, (length,), generator=generator).tolist() for length in lengths]
            logits += runner.forward(cache, chunks, [list(range(length)) for length in lengths], rows)
    finally:
        runner.packs = runner._attends_here = True
    return logits, cache


@pytest.mark.parametrize("kind", KINDS)
@given(
    passes=st.lists(ragged | even, min_size=1, max_size=3),
    rows=st.sampled_from([[0, 1, 2], [0, 2, 3], [1, 7, 8]]),
)
def test_ours_is_what_transformers_makes_of_padded_rows(kind: str, passes: list[list[int]], rows: list[int]) -> None:
    runner = tiny_runner(kind)
    assert runner.packs
    ours, cache = fed(runner, passes, rows, ours=True)
    padded, other = fed(runner, passes, rows, ours=False)
    assert cache.lengths == other.lengths
    for one, two in zip(ours, padded, strict=True):
        torch.testing.assert_close(one, two, atol=1e-4, rtol=1e-4)
    for row in rows:
        for one, two in zip(cache.read(row, 99), other.read(row, 99), strict=True):
            torch.testing.assert_close(one, two, atol=1e-4, rtol=1e-4)


def test_no_padding_is_fed_and_equal_chunks_stay_in_rows() -> None:
    runner = tiny_runner("llama")
    shapes: list[torch.Size] = []
    handle = runner.model.register_forward_pre_hook(
        lambda _, __, arguments: shapes.append(arguments["input_ids"].shape), with_kwargs=True
    )
    fed(runner, [[1, 40, 0, 3], [2, 2, 2, 2]], [0, 1, 2, 3], ours=True)
    handle.remove()
    assert shapes == [(1, 44), (4, 2)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@given(
    st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(1, 5), st.integers(1, 9), st.integers(0, 99)
)
def test_heads_that_share_keys_are_asked_together(
    dtype: torch.dtype, num_rows: int, num_kv_heads: int, num_sharing: int, num_tokens: int, num_keys: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)

    def drawn(num_heads: int, length: int) -> torch.Tensor:
        return torch.randn(num_rows, num_heads, length, 4, generator=generator, dtype=torch.float64).to(dtype)

    module = torch.nn.Module()
    module.num_key_value_groups = num_sharing  # type: ignore[assignment]
    query, key, value = drawn(num_kv_heads * num_sharing, num_tokens), *(drawn(num_kv_heads, num_keys) for _ in "kv")
    mask = torch.rand(num_rows, 1, num_tokens, num_keys, generator=generator) < 0.7
    mask[..., 0] = True  # a row that sees nothing is NaN
    ours, _ = _attend_rows(module, query, key, value, mask, scaling=0.3)
    theirs, _ = sdpa_attention_forward(module, query, key, value, mask, scaling=0.3)
    torch.testing.assert_close(ours, theirs)


def test_keys_are_copied_neither_for_heads_nor_around_a_row_that_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = tiny_runner("llama")
    fed_keys: list[torch.Tensor] = []
    sdpa = torch.nn.functional.scaled_dot_product_attention

    def listening(query: torch.Tensor, key: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
        fed_keys.append(key)
        return sdpa(query, key, *arguments, **options)

    _, cache = fed(runner, [[8, 8, 8], [1, 1, 1]], [0, 1, 2], ours=True)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", listening)
    for chunks, rows in (([[1, 2]] * 3, [0, 1, 2]), ([[1], [2, 3], [4]], [0, 1, 2]), ([[1], [2]], [0, 2])):
        runner.forward(cache, chunks, [[0]] * len(chunks), rows)
    buffers = {buffer.untyped_storage().data_ptr() for layer in cache._row_layers for buffer in layer.buffers}
    assert len(fed_keys) == 3 * len(cache._row_layers)
    assert {key.untyped_storage().data_ptr() for key in fed_keys} <= buffers


class Broken(Exception):
    """What goes wrong in a pass."""


def test_a_model_is_left_as_it_was() -> None:
    model = tiny_model("llama", WIDTH)
    runner = Runner(model)
    seen: list[Any] = []
    handle = model.register_forward_pre_hook(lambda *_: seen.append(model.config._attn_implementation))
    fed(runner, [[1, 4], [2, 2]], [0, 1], ours=True)
    assert seen == [ATTENTION, ATTENTION]
    assert model.config._attn_implementation == REPLACED
    handle.remove()

    def fail(*_: Any) -> None:
        raise Broken

    handle = model.lm_head.register_forward_pre_hook(fail)
    with pytest.raises(Broken):
        fed(runner, [[1, 4]], [0, 1], ours=True)
    handle.remove()
    assert model.config._attn_implementation == REPLACED


def test_other_threads_use_the_model_meanwhile() -> None:
    model = tiny_model("llama", WIDTH)
    runner = Runner(model)
    ids = torch.randint(WIDTH, (2, 9), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        expected = model(ids).logits
    wanted, _ = fed(runner, [[1, 5], [3, 2]], [0, 1], ours=True)

    def plain(_: int) -> None:
        with torch.inference_mode():
            torch.testing.assert_close(model(ids).logits, expected)

    def packed(_: int) -> None:
        for one, two in zip(fed(runner, [[1, 5], [3, 2]], [0, 1], ours=True)[0], wanted, strict=True):
            torch.testing.assert_close(one, two)

    with ThreadPoolExecutor(4) as threads:
        done = [threads.submit(work, turn) for turn in range(20) for work in (plain, packed)]
        for each in done:
            each.result()
    assert model.config._attn_implementation == REPLACED


def test_what_packed_rows_are_laid_out_by_is_made_once_a_device_and_covers_every_token_once() -> None:
    layout = _Layout([1, 40, 0, 3, 33, 2], is_packed=True)
    groups = layout.groups(torch.device("cpu"))
    assert groups is layout.groups(torch.device("cpu"))
    assert sorted(torch.cat([group.packed for group in groups]).tolist()) == list(range(79))
    assert [(group.rows, group.len_chunk) for group in groups] == [
        (slice(0, 6), 3),
        (slice(1, 2), 40),
        (slice(4, 5), 33),
    ]
    meta = layout.groups(torch.device("meta"))  # another device: layers of a model may be on several
    assert {group.packed.device.type for group in meta} == {"meta"}


def test_rows_with_a_few_others_between_them_are_not_copied() -> None:
    assert lying_together([2, 3]) == range(2, 4)
    assert lying_together([2, 5]) == range(2, 6)
    assert lying_together([2, 6]) == [2, 6]


def test_models_that_attend_in_their_own_way_are_padded() -> None:
    assert not tiny_runner("llama", "eager").packs
    assert not scripted_engine()._runner.packs  # it says that it attends by SDPA
