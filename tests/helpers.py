"""Scripted and tiny random models, and engines over them, shared by the tests of decoding and engine."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
import xgrammar
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

import jumpforward as jf
from jumpforward.decoding.costs import FixedCosts
from jumpforward.decoding.drafter import Bid, Drafter, DraftView
from jumpforward.decoding.policy import policy_named
from jumpforward.engine.passes import ask
from jumpforward.engine.request import Request
from jumpforward.engine.run import Run
from jumpforward.engine.runner import Row, Runner
from jumpforward.grammar.bytewise import np_bits
from jumpforward.stats import Counters
from jumpforward.testing import ScriptedModel, toy_tokenizer

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
# No clock and no other request has a part in what is drafted, and rows are free.
ALONE: dict[str, Any] = {"memory": "off", "pass_costs": FixedCosts(pass_s=1.0, row_s=0.0)}
MIXED = ["sliding_attention", "full_attention"] * 2


def random_script(width: int, seed: int = 0, spread: float = 3.0) -> Callable[[Sequence[int]], np.ndarray]:
    """Return a script in which every sequence has random logits of its own."""

    def script(ids: Sequence[int]) -> np.ndarray:
        digest = hashlib.blake2b(np.asarray([seed, *ids], dtype=np.int64).tobytes(), digest_size=8).digest()
        return np.random.default_rng(int.from_bytes(digest, "little")).normal(0, spread, width).astype(np.float32)

    return script


def scripted_engine(
    pieces: Sequence[str] = (),
    *,
    script: Callable[[Sequence[int]], Any] | None = None,
    padding: int = 0,
    seed: int = 0,
    single_bytes: Sequence[int] = range(256),
    max_length: int = 4096,
    **options: Any,
) -> jf.Engine:
    """Return an engine over a scripted model; by default one with random logits. Its calls count from here."""
    tokenizer = toy_tokenizer(pieces, single_bytes=single_bytes)
    width = len(tokenizer) + padding
    model = ScriptedModel(script or random_script(width, seed), width, max_length=max_length)
    engine = jf.Engine(model, tokenizer, **ALONE | options)
    model.calls.clear()
    return engine


def set_drafters(engine: jf.Engine, *drafters: Drafter) -> None:
    """Have an engine draft with these and nothing else."""
    engine._drafting.drafters = drafters


def start(engine: jf.Engine, grammar: jf.Grammar, policy: str, **options: Any) -> Run:
    """Return a run in a cache of its own, for :func:`step`."""
    request = Request((0,), grammar, policy_named(policy), **options)
    row = Row(engine._runner.new_cache())
    return engine._new_run(request, engine.compiler.compile(grammar), Counters(), row)


def step(engine: jf.Engine, run: Run) -> None:
    """Make at least one token with at most one pass, as a loop with nothing else in it does."""
    if num_tokens := run.prepare():
        (answer,) = ask(engine._runner, [run], [num_tokens])
        run.take(*answer)


def favouring(
    text: str, tokenizer: Any, *, padding: int = 0, num_prompt: int = 1
) -> Callable[[Sequence[int]], np.ndarray]:
    """Return a script that wants to write ``text`` behind a prompt, token by canonical token, then to end."""
    wanted = [*tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids, tokenizer.eos_token_id]
    width = len(tokenizer) + padding

    def script(ids: Sequence[int]) -> np.ndarray:
        logits = np.zeros(width, dtype=np.float32)
        position = len(ids) - num_prompt
        if 0 <= position < len(wanted):
            logits[wanted[position]] = 9.0
        return logits

    return script


class LegalGuesses(Drafter):
    """A drafter whose tokens are all legal, end tokens too, and mostly not what the model wants."""

    name = "legal"

    def __init__(self, seed: int, len_draft: int, width: int) -> None:
        self._seed = seed
        self._len_draft = len_draft
        self._bitmask = xgrammar.allocate_token_bitmask(1, width)

    def propose(self, view: DraftView) -> Bid:
        random = np.random.default_rng([self._seed, *view.output_ids])
        ahead = view.matcher.fork()
        tokens: list[int] = []
        while len(tokens) < self._len_draft:
            ahead.fill_bitmask(self._bitmask, 0)
            legal = np.flatnonzero(np_bits(self._bitmask.numpy()[0]))
            if not len(legal):
                break
            tokens.append(int(random.choice(legal)))
            ahead.consume(tokens[-1])
        return Bid(tokens, 0.99)


def tiny_model(kind: str, width: int, seed: int = 0, **options: Any) -> Any:
    """Return a small random model in float32 and evaluation mode."""
    torch.manual_seed(seed)
    makers: dict[str, Callable[[], Any]] = {
        "llama": lambda: LlamaForCausalLM(LlamaConfig(vocab_size=width, **SIZES | options)),
        "gemma3": lambda: Gemma3ForCausalLM(
            Gemma3TextConfig(vocab_size=width, head_dim=8, sliding_window=5, layer_types=MIXED, **SIZES | options)
        ),
        "mistral": lambda: MistralForCausalLM(MistralConfig(vocab_size=width, sliding_window=5, **SIZES | options)),
        "gpt2": lambda: GPT2LMHeadModel(
            GPT2Config(vocab_size=width, n_embd=32, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0, **options)
        ),
        "mamba": lambda: MambaForCausalLM(
            MambaConfig(vocab_size=width, hidden_size=32, num_hidden_layers=2, state_size=4, **options)
        ),
    }
    model = makers[kind]().eval()
    with torch.no_grad():  # small random models are nearly uniform; make their choices matter
        for name, parameter in model.named_parameters():
            if "norm" not in name and parameter.dim() > 1:
                parameter.mul_(3)
    return model


def tiny_engine(kind: str, pieces: Sequence[str], seed: int = 0, **options: Any) -> jf.Engine:
    """Return an engine over a small random model and a toy vocabulary."""
    tokenizer = toy_tokenizer(pieces)
    model = tiny_model(kind, len(tokenizer), seed)
    model.generation_config.eos_token_id = None
    return jf.Engine(model, tokenizer, **ALONE | options)


@cache
def tiny_runner(kind: str, attention: str = "sdpa", width: int = 64) -> Runner:
    """Return a runner of a small random model, the same for every test."""
    model = tiny_model(kind, width)
    if attention != "sdpa":
        model.set_attn_implementation(attention)
    return Runner(model)


def fresh_logits(model: Any, ids: Sequence[int]) -> torch.Tensor:
    """Return the logits of a plain pass without any cache, shape (ids, width)."""
    with torch.inference_mode():
        logits: torch.Tensor = model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0]
    return logits
