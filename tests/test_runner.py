"""What is found out about a model, what it is called with, and what `masked` is: an ordinary loop over it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import ALONE, fresh_logits, tiny_engine, tiny_model, tiny_runner
from transformers import AutoModelForCausalLM, DynamicCache, T5Config, T5ForConditionalGeneration

import jumpforward as jf
from jumpforward.engine.cache import KVCache
from jumpforward.engine.runner import NativeCache, Runner
from jumpforward.testing import toy_tokenizer

WIDTH = 64
PIECES = ['{"', '":', ' "', "ab", "abc", "true", ": ", "10"]
GRAMMAR = jf.json_schema(
    {"type": "object", "properties": {"ab": {"type": "boolean"}, "n": {"enum": [1, 10]}}, "required": ["ab", "n"]}
)


@contextmanager
def arguments_of(model: torch.nn.Module) -> Iterator[list[dict[str, Any]]]:
    """Collect the keyword arguments of every call of a model."""
    calls: list[dict[str, Any]] = []
    handle = model.register_forward_pre_hook(lambda _, __, arguments: calls.append(arguments), with_kwargs=True)
    try:
        yield calls
    finally:
        handle.remove()


def test_what_a_model_is_called_with() -> None:
    runner = tiny_runner("llama")
    cache = runner.new_cache(2)
    with arguments_of(runner.model) as calls:
        runner.forward(cache, [[1, 2, 3], [4, 5, 6]], [[2], [0, 2]])
        runner.forward(cache, [[7, 8], [9]], [[1], [0]])
        cache.crop(3, 0)
        runner.forward(cache, [[7], [8]], [[0], [0]])
    first, second, third = calls
    assert all(call["cache"] is cache and call["use_cache"] for call in calls)
    assert all("past_key_values" not in call for call in calls)
    assert first["attention_mask"] is None  # the plain causal mask, which kernels do on their own
    assert first["logits_to_keep"].tolist() == [0, 2]
    assert second["input_ids"].tolist() == [[7, 8, 9]]  # packed
    assert second["position_ids"].tolist() == [[3, 4, 3]]
    assert second["logits_to_keep"].tolist() == [1, 2]
    assert second["attention_mask"].shape == (2, 1, 2, 5)
    assert third["position_ids"].tolist() == [[3], [4]]
    assert third["attention_mask"].tolist() == [[[[True] * 4 + [False]]], [[[True] * 5]]]


def test_layers_of_several_kinds_get_a_mask_each() -> None:
    runner = tiny_runner("gemma3")
    with arguments_of(runner.model) as calls:
        runner.forward(runner.new_cache(), [[1, 2, 3, 4, 5, 6, 7]], [[6]])
    masks = calls[0]["attention_mask"]
    assert masks["full_attention"] is None
    assert masks["sliding_attention"][0, 0, 6].tolist() == [False, False, True, True, True, True, True]


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_case_50_a_chunk_is_its_single_steps_but_for_the_last_bits(kind: str) -> None:
    runner = tiny_runner(kind)
    ids = [1, 5, 9, 2, 7, 7, 3, 60]
    whole = runner.forward(runner.new_cache(), [ids], [range(len(ids))])[0]
    cache = runner.new_cache()
    steps = torch.cat([runner.forward(cache, [[token]], [[0]])[0] for token in ids])
    assert torch.allclose(whole, steps, atol=1e-5)


def test_only_the_kept_positions_have_logits() -> None:
    runner = tiny_runner("llama")
    kept = runner.forward(runner.new_cache(), [[1, 2, 3, 4]], [[1, 3]])[0]
    assert kept.shape == (2, WIDTH)
    assert torch.allclose(kept, fresh_logits(runner.model, [1, 2, 3, 4])[[1, 3]], atol=1e-5)


class OldModel(torch.nn.Module):
    """A model with the arguments of older transformers: `past_key_values`, and all logits."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.inner = tiny_model("llama", width)
        self.config = self.inner.config
        self.device, self.dtype = self.inner.device, self.inner.dtype

    def forward(
        self,
        input_ids: Any,
        attention_mask: Any = None,
        position_ids: Any = None,
        past_key_values: Any = None,
        use_cache: bool = True,
    ) -> Any:
        return self.inner(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            cache=past_key_values,
            use_cache=use_cache,
        )


class OlderModel(OldModel):
    """One that takes no positions either."""

    def forward(self, input_ids: Any, attention_mask: Any = None, past_key_values: Any = None, use_cache: bool = True):
        return super().forward(input_ids, attention_mask, None, past_key_values, use_cache)


def test_case_51_the_older_names_of_arguments_work() -> None:
    model = OldModel()
    runner = Runner(model)
    assert runner.no_rollback_reason is None
    cache = runner.new_cache(2)
    runner.forward(cache, [[1, 2, 3], [4]], [[], []])
    cache.crop(1, 0)
    with arguments_of(model) as calls:
        first, second = runner.forward(cache, [[5], [6, 7]], [[0], [0, 1]])
    assert calls[0]["past_key_values"] is cache
    assert calls[0].keys() == {"input_ids", "attention_mask", "position_ids", "past_key_values", "use_cache"}
    assert torch.allclose(first, fresh_logits(model.inner, [1, 5])[[1]], atol=1e-4)
    assert torch.allclose(second, fresh_logits(model.inner, [4, 6, 7])[[1, 2]], atol=1e-4)


def test_case_51_exact_is_masked_on_an_older_model() -> None:
    tokenizer = toy_tokenizer(PIECES)
    engine = jf.Engine(OldModel(len(tokenizer)), tokenizer)
    masked, exact = (engine.generate("ab", GRAMMAR, policy=policy) for policy in ("masked", "exact"))
    assert exact.token_ids == masked.token_ids
    assert exact.stats.num_forward_passes < masked.stats.num_forward_passes


def test_a_model_that_takes_no_positions_keeps_its_own_cache() -> None:
    model = OlderModel()
    runner = Runner(model)
    assert runner.no_rollback_reason is not None  # a ragged row would be misplaced
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
    withheld = engine.generate("ab", jf.choice(["xyabcq", "xyabq"]), policy="canonical")  # `ab` could become `abc`
    assert (withheld.complete, withheld.stats.num_proposed) == (True, 0)
    with pytest.raises(jf.RollbackUnsupportedError, match="LinearAttentionLayer"):
        engine.generate("ab", grammar, policy="exact")
    cache = engine._runner.new_cache()
    assert isinstance(cache, NativeCache)
    with pytest.raises(jf.RollbackUnsupportedError):
        engine._runner.new_cache(2)
    ids = [1, 5, 9, 2, 7, 7, 3]
    engine._runner.forward(cache, [ids[:3]], [[]])
    assert not engine._runner.takes_chunk(cache.length)
    steps = [[token] for token in ids[3:]]
    last = [engine._runner.forward(cache, [piece], [[len(piece) - 1]])[0][-1] for piece in steps][-1]
    assert torch.allclose(last, fresh_logits(engine.model, ids)[-1], atol=1e-3)
    with pytest.raises(jf.RollbackUnsupportedError):
        cache.crop(2)


def ordinary_loop(engine: jf.Engine, prompt: str, grammar: jf.Grammar, max_new_tokens: int) -> list[int]:
    """Return what greedy masked decoding makes, by the plainest means: no cache, and a mask tried token by token."""
    vocabulary = engine.vocabulary
    ids = engine.tokenizer(prompt)["input_ids"]
    made: list[int] = []
    walker = grammar.walker()
    while len(made) < max_new_tokens:
        logits = fresh_logits(engine.model, [*ids, *made])[-1]
        legal = [token for token, data in enumerate(vocabulary.token_bytes) if data and walker.fork().consume(data)]
        legal += vocabulary.end_ids if walker.is_accepting else ()
        made.append(max(legal, key=lambda token: float(logits[token])))
        if made[-1] in vocabulary.end_ids:
            break
        walker.consume(vocabulary.token_bytes[made[-1]])
    return made


@pytest.mark.parametrize("kind", ["llama", "gemma3", "mistral", "gpt2", "mamba"])
def test_masked_is_an_ordinary_loop(kind: str) -> None:
    for seed in range(2):
        engine = tiny_engine(kind, PIECES, seed)
        result = engine.generate("ab", GRAMMAR, policy="masked", max_new_tokens=20)
        assert result.token_ids == ordinary_loop(engine, "ab", GRAMMAR, 20)
        assert set(result.provenance) == {jf.Provenance.SAMPLED}


def test_an_encoder_decoder_model_is_refused() -> None:
    config = T5Config(vocab_size=32, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    with pytest.raises(jf.ModelError, match="decoder-only"):
        Runner(T5ForConditionalGeneration(config))
    with pytest.raises(jf.ModelError, match="got str"):
        Runner("gpt2")


def test_a_cache_of_a_stranger_is_refused() -> None:
    with pytest.raises(TypeError, match="new_cache"):
        tiny_runner("llama").forward(DynamicCache(), [[1]], [[0]])
    assert isinstance(tiny_runner("llama").new_cache(), KVCache)


def test_a_model_whose_layers_are_spread_by_a_device_map_is_the_same(tmp_path: Path) -> None:
    tokenizer = toy_tokenizer(["ab"])
    whole = tiny_model("llama", len(tokenizer))
    whole.save_pretrained(tmp_path / "model")
    places: dict[str, str] = dict.fromkeys(("model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head"), "cpu")
    places |= {f"model.layers.{index}": ("cpu", "disk")[index % 2] for index in range(4)}
    spread = AutoModelForCausalLM.from_pretrained(
        tmp_path / "model", device_map=places, offload_folder=tmp_path / "offloaded"
    )
    assert {parameter.device.type for parameter in spread.parameters()} == {"cpu", "meta"}
    grammar = jf.regex("(ab|cd){3,9}")
    for policy in ("exact", "canonical"):
        first, second = (
            jf.Engine(model, tokenizer, end_ids=[tokenizer.eos_token_id], **ALONE).generate(
                "ab", grammar, policy=policy
            )
            for model in (whole, spread)
        )
        assert first.token_ids == second.token_ids
        assert first.stats.chunk_lengths == second.stats.chunk_lengths
