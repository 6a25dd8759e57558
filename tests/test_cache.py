"""Law 8: after any run of ragged chunks and crops, logits are those of a fresh prefill."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from helpers import fresh_logits, tiny_model, tiny_runner
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import DynamicCache

from jumpforward.engine.cache import layer_kinds

WIDTH = 64
KINDS = ["llama", "gemma3", "mistral", "gpt2"]

# A chunk for each of up to three rows, and how much of it is taken back.
turns = st.lists(
    st.lists(
        st.tuples(st.lists(st.integers(0, WIDTH - 1), min_size=1, max_size=12), st.integers(0, 12)),
        min_size=3,
        max_size=3,
    ),
    min_size=1,
    max_size=8,
)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", KINDS)
@given(turns=turns, num_rows=st.integers(1, 3))
@settings(max_examples=12)
def test_law_8_ragged_chunks_and_crops(kind: str, attention: str, turns: list[Any], num_rows: int) -> None:
    runner = tiny_runner(kind, attention)
    cache = runner.new_cache(num_rows)
    rows: list[list[int]] = [[] for _ in range(num_rows)]
    for turn in turns:
        chunks = [chunk for chunk, _ in turn[:num_rows]]
        logits = runner.forward(cache, chunks, [range(len(chunk)) for chunk in chunks])
        for row, (chunk, num_taken_back) in enumerate(turn[:num_rows]):
            before = len(rows[row])
            rows[row] += chunk
            expected = fresh_logits(runner.model, rows[row])[before:]
            assert torch.allclose(logits[row], expected, atol=1e-4)
            del rows[row][max(0, len(rows[row]) - num_taken_back) :]
            cache.crop(len(rows[row]), row)
        assert cache.lengths == tuple(map(len, rows))


@pytest.mark.parametrize("kind", KINDS)
def test_law_8_beyond_the_first_capacity(kind: str) -> None:
    runner = tiny_runner(kind)
    ids = torch.randint(0, WIDTH, (200,), generator=torch.Generator().manual_seed(0)).tolist()
    cache = runner.new_cache()
    pieces = [ids[:50], ids[50:51], ids[51:140], ids[140:]]
    logits = torch.cat([runner.forward(cache, [piece], [range(len(piece))])[0] for piece in pieces])
    assert torch.allclose(logits, fresh_logits(runner.model, ids), atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_law_8_ragged_rows_grow_together(kind: str) -> None:
    runner = tiny_runner(kind)
    ids = torch.randint(0, WIDTH, (3, 150), generator=torch.Generator().manual_seed(1)).tolist()
    cache = runner.new_cache(3)
    lengths = [0, 0, 0]
    for num_fed in ([40, 7, 1], [3, 50, 30], [60, 2, 90], [1, 1, 1]):  # the second and the third outgrow the buffers
        chunks = [row[start : start + count] for row, start, count in zip(ids, lengths, num_fed, strict=True)]
        logits = runner.forward(cache, chunks, [[len(chunk) - 1] for chunk in chunks])
        lengths = [start + count for start, count in zip(lengths, num_fed, strict=True)]
        for row, length in enumerate(lengths):
            assert torch.allclose(logits[row][0], fresh_logits(runner.model, ids[row][:length])[-1], atol=1e-4)
    assert cache.lengths == tuple(lengths)


@pytest.mark.parametrize("kind", KINDS)
def test_what_lies_behind_a_length_is_never_seen(kind: str) -> None:
    runner = tiny_runner(kind)
    cache = runner.new_cache(2)
    runner.forward(cache, [[1, 2, 3, 4], [5]], [[], []])
    cache.crop(2, 0)
    with torch.inference_mode():
        for layer, (row, length) in product(cache.layers, enumerate(cache.lengths)):
            layer.keys[row, :, length:] = 1e4
            layer.values[row, :, length:] = 1e4
    first, second = runner.forward(cache, [[7, 8], [9]], [[1], [0]])
    assert torch.allclose(first[0], fresh_logits(runner.model, [1, 2, 7, 8])[-1], atol=1e-4)
    assert torch.allclose(second[0], fresh_logits(runner.model, [5, 9])[-1], atol=1e-4)


def test_a_crop_goes_back_only() -> None:
    runner = tiny_runner("llama")
    cache = runner.new_cache()
    runner.forward(cache, [[1, 2]], [[]])
    for length in (-1, 3):
        with pytest.raises(ValueError, match="cannot be cropped"):
            cache.crop(length)
    assert cache.lengths == (2,)


def test_transformers_layers_are_what_the_cache_reads_them_for() -> None:
    kinds = layer_kinds(tiny_model("gemma3", WIDTH).config)
    assert [kind.window for kind in kinds] == [5, None, 5, None]
    assert [kind.name for kind in kinds] == ["sliding_attention", "full_attention"] * 2
    assert isinstance(layer_kinds(tiny_model("mamba", WIDTH).config), str)


def test_case_48_transformers_own_cache_crops_by_a_negative_number_only() -> None:
    cache = DynamicCache(config=tiny_model("llama", WIDTH).config)
    tiny_model("llama", WIDTH)(input_ids=torch.tensor([[1, 2, 3]]), cache=cache)
    cache.crop(-1)
    assert cache.get_seq_length() == 2
    with pytest.raises(ValueError, match="positive"):
        cache.crop(1)
