"""Law 8: after any run of ragged chunks and crops, logits are those of a fresh prefill. And what a model must be."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from helpers import fresh_logits, tiny_engine, tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import DynamicCache, T5Config, T5ForConditionalGeneration

import jumpforward as jf
from jumpforward.engine.cache import KVCache, layer_kinds
from jumpforward.engine.runner import NativeCache, Runner

WIDTH = 64
KINDS = ["llama", "gemma3", "mistral", "gpt2"]
RUNNERS: dict[tuple[str, str], Runner] = {}


def runner_of(kind: str, attention: str = "sdpa") -> Runner:
    if (kind, attention) not in RUNNERS:
        model = tiny_model(kind, WIDTH)
        model.set_attn_implementation(attention)
        RUNNERS[kind, attention] = Runner(model)
    return RUNNERS[kind, attention]


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
    runner = runner_of(kind, attention)
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
    runner = runner_of(kind)
    ids = torch.randint(0, WIDTH, (200,), generator=torch.Generator().manual_seed(0)).tolist()
    cache = runner.new_cache()
    pieces = [ids[:50], ids[50:51], ids[51:140], ids[140:]]
    logits = torch.cat([runner.forward(cache, [piece], [range(len(piece))])[0] for piece in pieces])
    assert torch.allclose(logits, fresh_logits(runner.model, ids), atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_what_lies_behind_a_length_is_never_seen(kind: str) -> None:
    runner = runner_of(kind)
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


def test_only_the_kept_positions_have_logits() -> None:
    runner = runner_of("llama")
    kept = runner.forward(runner.new_cache(), [[1, 2, 3, 4]], [[1, 3]])[0]
    assert kept.shape == (2, WIDTH)
    assert torch.allclose(kept, fresh_logits(runner.model, [1, 2, 3, 4])[[1, 3]], atol=1e-5)


def test_a_crop_goes_back_only() -> None:
    runner = runner_of("llama")
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


class OlderModel(torch.nn.Module):
    """A model as older transformers have them: `past_key_values`, whole logits."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = tiny_model("llama", WIDTH)
        self.config = self.inner.config
        self.device, self.dtype = self.inner.device, self.inner.dtype

    def forward(self, input_ids: Any, attention_mask: Any = None, past_key_values: Any = None, use_cache: bool = True):
        return self.inner(
            input_ids=input_ids, attention_mask=attention_mask, cache=past_key_values, use_cache=use_cache
        )


def test_case_51_the_older_names_of_arguments_work() -> None:
    model = OlderModel()
    runner = Runner(model)
    assert runner.no_rollback_reason is not None  # without positions a ragged row would be misplaced
    logits = runner.forward(runner.new_cache(), [[1, 2, 3]], [[2]])[0]
    assert torch.allclose(logits[0], fresh_logits(model.inner, [1, 2, 3])[-1], atol=1e-4)


def test_case_49_a_recurrent_model_runs_without_drafts_and_says_why_not_exact() -> None:
    engine = tiny_engine("mamba", ["ab", "abc"])
    schema = {"type": "object", "properties": {"ab": {"type": "boolean"}}, "required": ["ab"]}
    grammar = jf.json_schema(schema)
    for policy in ("masked", "canonical"):
        result = engine.generate("ab", grammar, policy=policy)
        assert result.complete
        assert result.stats.num_proposed == 0
    with pytest.raises(jf.RollbackUnsupportedError, match="LinearAttentionLayer"):
        engine.generate("ab", grammar, policy="exact")
    cache = engine._runner.new_cache()
    assert isinstance(cache, NativeCache)
    with pytest.raises(jf.RollbackUnsupportedError):
        engine._runner.new_cache(2)
    ids = [1, 5, 9, 2, 7, 7, 3]
    engine._runner.forward(cache, [ids[:3]], [[]])
    steps = engine._runner.pieces(cache, ids[3:])
    last = [engine._runner.forward(cache, [piece], [[len(piece) - 1]])[0][-1] for piece in steps][-1]
    assert torch.allclose(last, fresh_logits(engine.model, ids)[-1], atol=1e-3)
    with pytest.raises(jf.RollbackUnsupportedError):
        cache.crop(2)


def test_an_encoder_decoder_model_is_refused() -> None:
    config = T5Config(vocab_size=32, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    with pytest.raises(jf.ModelError, match="decoder-only"):
        Runner(T5ForConditionalGeneration(config))
    with pytest.raises(jf.ModelError, match="got str"):
        Runner("gpt2")


def test_a_cache_of_a_stranger_is_refused() -> None:
    with pytest.raises(TypeError, match="new_cache"):
        runner_of("llama").forward(DynamicCache(), [[1]], [[0]])
    assert isinstance(runner_of("llama").new_cache(), KVCache)
