"""``model.generate`` with ``custom_generate=jf.hf.generate``, against plain ``generate`` with xgrammar's processor."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from functools import partial
from typing import Any

import pytest
import torch
from helpers import tiny_engine, tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    DynamicCache,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    StoppingCriteria,
    StoppingCriteriaList,
)
from transformers.generation.streamers import BaseStreamer
from xgrammar.contrib.hf import LogitsProcessor as XGrammarProcessor

import jumpforward as jf
from jumpforward.errors import (
    EmptyMaskError,
    GenerateOptionError,
    OptionError,
    PromptError,
    RollbackUnsupportedError,
)
from jumpforward.hf_engines import engine_for
from jumpforward.testing import toy_tokenizer

PIECES = ['{"', '":', ' "', "name", "age", "true", "false", ": ", ", ", "abc"]
TOKENIZER = toy_tokenizer(PIECES)
END = TOKENIZER.eos_token_id
RECORD = jf.json_schema(
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 4}, "age": {"type": "boolean"}},
        "required": ["name", "age"],
    }
)
WORDS = jf.choice(["abcabc", "abcname", "name", "true"])
DIGITS = jf.regex(r"[a-c]{1,30}")
GRAMMARS = {"record": RECORD, "words": WORDS, "digits": DIGITS}
MODEL = tiny_model("llama", len(TOKENIZER) + 3)
MODEL.generation_config = GenerationConfig(eos_token_id=END, pad_token_id=END)
JUMP = partial(jf.hf.generate, tokenizer=TOKENIZER)


def padded(*prompts: list[int]) -> dict[str, torch.Tensor]:
    longest = max(map(len, prompts))
    ids = [[END] * (longest - len(prompt)) + prompt for prompt in prompts]
    mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}


ONE = padded([1, 2, 3])
THREE = padded([1, 2, 3], [7], [4, 5, 6, 7, 8])


def masked_by_xgrammar(grammars: list[jf.Grammar], **arguments: Any) -> Any:
    """Plain generate with xgrammar's processor behind the caller's own."""
    config = copy.deepcopy(MODEL.generation_config)
    config.update(**{"eos_token_id": arguments["eos_token_id"]} if "eos_token_id" in arguments else {})
    engine = engine_for(MODEL, TOKENIZER, config)
    mask = XGrammarProcessor([engine.compiler.pushdown(grammar).tokens for grammar in grammars])
    own = arguments.pop("logits_processor", [])
    return MODEL.generate(**arguments, logits_processor=LogitsProcessorList([*own, mask]))


def jumping(grammar: Any, **arguments: Any) -> Any:
    return MODEL.generate(**arguments, custom_generate=JUMP, grammar=grammar)


@settings(max_examples=25)
@given(
    prompts=st.lists(st.lists(st.integers(0, 200), min_size=1, max_size=6), min_size=1, max_size=4),
    names=st.lists(st.sampled_from(sorted(GRAMMARS)), min_size=4, max_size=4),
    max_new_tokens=st.integers(1, 40),
    options=st.fixed_dictionaries(
        {},
        optional={
            "repetition_penalty": st.sampled_from([0.5, 1.3]),
            "no_repeat_ngram_size": st.just(8),
            "suppress_tokens": st.just([65, 66, 67, 200]),
            "eos_token_id": st.sampled_from([[END, 201], [201]]),
            "pad_token_id": st.just(9),
        },
    ),
)
def test_exact_equals_plain_generate_with_xgrammar(prompts, names, max_new_tokens, options):
    grammars = [GRAMMARS[name] for name in names[: len(prompts)]]
    arguments = {**padded(*prompts), "max_new_tokens": max_new_tokens, "do_sample": False, **options}
    expected = masked_by_xgrammar(grammars, **arguments)
    assert torch.equal(jumping(grammars, **arguments), expected)


def test_exact_needs_fewer_passes_and_masked_as_many() -> None:
    passes: list[int] = []
    handle = MODEL.register_forward_pre_hook(lambda *_: passes.append(1))
    counts = {}
    for policy in ("masked", "exact"):
        passes.clear()
        found = MODEL.generate(**ONE, custom_generate=JUMP, grammar=RECORD, policy=policy, max_new_tokens=60)
        counts[policy] = len(passes)
    handle.remove()
    assert counts["exact"] < counts["masked"] == found.shape[1] - 3


def test_without_a_grammar_it_is_plain_generate() -> None:
    for sampled in (False, True):
        arguments = {**THREE, "max_new_tokens": 12, "do_sample": sampled, "return_dict_in_generate": True}
        torch.manual_seed(1)
        expected = MODEL.generate(**arguments, output_scores=True)
        torch.manual_seed(1)
        found = MODEL.generate(**arguments, output_scores=True, custom_generate=JUMP)
        assert torch.equal(found.sequences, expected.sequences)
        assert all(map(torch.equal, found.scores, expected.scores))


@pytest.mark.parametrize("policy", ["masked", "exact"])
def test_scores_and_logits_are_those_of_plain_generate(policy: str) -> None:
    grammars = [RECORD, WORDS, DIGITS]
    arguments = {
        **THREE,
        "max_new_tokens": 30,
        "do_sample": False,
        "return_dict_in_generate": True,
        "output_scores": True,
        "output_logits": True,
        "repetition_penalty": 1.2,
    }
    expected = masked_by_xgrammar(grammars, **arguments)
    found = MODEL.generate(**arguments, custom_generate=JUMP, grammar=grammars, policy=policy)
    assert torch.equal(found.sequences, expected.sequences)
    for name in ("scores", "logits"):
        steps, others = getattr(found, name), getattr(expected, name)
        assert len(steps) == len(others) == found.sequences.shape[1] - 5
        for row, output in enumerate(found.sequences[:, 5:].tolist()):
            length = output.index(END) + 1 if END in output else len(output)
            for mine, other in zip(steps[:length], others[:length], strict=True):
                torch.testing.assert_close(mine[row], other[row], rtol=1e-4, atol=1e-4)
            assert all(mine[row].isnan().all() for mine in steps[length:])


def test_a_result_object_has_only_what_was_asked_for() -> None:
    arguments = {**ONE, "max_new_tokens": 9, "do_sample": False, "repetition_penalty": 1.2}
    plain = jumping(RECORD, **arguments)
    for asked in ([], ["scores"], ["logits"]):
        wanted = {f"output_{name}": True for name in asked}
        found = jumping(RECORD, **arguments, return_dict_in_generate=True, **wanted)
        assert torch.equal(found.sequences, plain)
        assert [name for name in ("scores", "logits") if getattr(found, name) is not None] == asked


def test_draws_follow_torchs_seed_and_each_row_has_its_own() -> None:
    arguments = {**padded([1, 2, 3], [7]), "max_new_tokens": 30, "do_sample": True, "temperature": 3.0, "top_k": 50}
    outputs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outputs.append(jumping(DIGITS, num_return_sequences=3, **arguments).tolist())
    assert outputs[0] == outputs[1] != outputs[2]
    assert len({tuple(row) for row in outputs[0][:3]}) == 3
    assert [row[:3] for row in outputs[0]] == [[1, 2, 3]] * 3 + [[END, END, 7]] * 3
    for policy in ("masked", "exact"):
        torch.manual_seed(1)
        found = MODEL.generate(**arguments, custom_generate=JUMP, grammar=DIGITS, policy=policy, num_return_sequences=3)
        assert found.tolist() == outputs[0]


def test_sampled_scores_are_warped_behind_the_mask() -> None:
    arguments = {**ONE, "max_new_tokens": 8, "do_sample": True, "temperature": 0.7, "top_k": 2}
    torch.manual_seed(0)
    found = jumping(DIGITS, **arguments, return_dict_in_generate=True, output_scores=True)
    output = found.sequences[0, 3:].tolist()
    for token, scores in zip(output, found.scores, strict=True):
        assert 1 <= int(scores[0].isfinite().sum()) <= 2
        assert scores[0, token].isfinite()


@pytest.mark.parametrize("options", [{"min_new_tokens": 7}, {"min_length": 10}])
def test_no_end_before_the_least_length(options: dict[str, int]) -> None:
    short = jf.regex("a{1,20}")
    plain = jumping(short, **ONE, max_new_tokens=30, do_sample=False, sequence_bias={(END,): 50.0})
    assert plain[0].tolist().index(END) < 6
    arguments = {**ONE, "max_new_tokens": 30, "do_sample": False, **options}
    found = jumping(short, **arguments, sequence_bias={(END,): 50.0})
    assert found[0, 3:].tolist().index(END) == 7
    assert torch.equal(found, masked_by_xgrammar([short], **arguments, sequence_bias={(END,): 50.0}))


def test_an_output_that_must_end_too_early_is_an_error() -> None:
    with pytest.raises(EmptyMaskError, match="min_new_tokens"):
        jumping(jf.choice(["a"]), **ONE, max_new_tokens=30, min_new_tokens=5)
    engine = tiny_engine("llama", PIECES)
    with pytest.raises(EmptyMaskError, match="min_new_tokens"):
        engine.generate("x", jf.choice(["a"]), min_new_tokens=2)
    with pytest.raises(OptionError, match="min_new_tokens"):
        engine.generate("x", jf.choice(["a"]), min_new_tokens=5, max_new_tokens=4)
    for policy in ("masked", "exact", "canonical", "retokenize"):
        result = engine.generate("x", jf.regex("(abc){1,9}"), min_new_tokens=3, max_new_tokens=30, policy=policy)
        assert len(result.token_ids) >= 4


class AfterA(LogitsProcessor):
    """Wants ``c`` behind ``a``: what it does depends on the last token."""

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        scores[input_ids[:, -1] == 97, 99] += 30
        scores[input_ids[:, -1] == 99, 97] += 30
        return scores


def test_processors_see_the_ids_of_every_position() -> None:
    pattern = jf.regex("abc[ac]{6}abc[ac]{4}")
    arguments = {**padded([1, 2, 97], [7]), "max_new_tokens": 40, "do_sample": False}
    own = [AfterA(), RepetitionPenaltyLogitsProcessor(0.9)]
    expected = masked_by_xgrammar([pattern, pattern], **arguments, logits_processor=own)
    found = jumping(pattern, **arguments, logits_processor=LogitsProcessorList(own))
    assert torch.equal(found, expected)
    assert not torch.equal(found, jumping(pattern, **arguments))  # they change something


class OnText(StoppingCriteria):
    """Stops a row that has this many of a token."""

    def __init__(self, token: int, count: int) -> None:
        self.token, self.count = token, count

    def __call__(self, input_ids: torch.LongTensor, scores: Any, **_: Any) -> torch.BoolTensor:
        return (input_ids == self.token).sum(dim=1) >= self.count


@pytest.mark.parametrize("policy", ["masked", "exact"])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_criteria_stop_a_row_at_the_token_where_plain_generate_stops(policy: str, count: int) -> None:
    pattern = jf.regex("(ab){12}c")
    prompts = [[1, 2, 3], [98]]
    options = {"max_new_tokens": 40, "do_sample": False, "stopping_criteria": StoppingCriteriaList([OnText(98, count)])}
    found = MODEL.generate(**padded(*prompts), custom_generate=JUMP, grammar=pattern, policy=policy, **options)
    for prompt, row in zip(prompts, found.tolist(), strict=True):  # xgrammar's processor takes no padding by others
        expected = masked_by_xgrammar([pattern], **padded(prompt), **options)[0].tolist()
        whole = [END] * (3 - len(prompt)) + expected
        assert row == whole + [END] * (len(row) - len(whole))
    assert found.shape[1] < 20


class Recorder(BaseStreamer):
    def __init__(self) -> None:
        self.puts: list[list[int]] = []
        self.ended = False

    def put(self, value: torch.Tensor) -> None:
        self.puts.append(value.flatten().tolist())

    def end(self) -> None:
        self.ended = True


@pytest.mark.parametrize("grammar", [None, RECORD])
def test_a_bound_streamer_gets_the_prompt_and_every_token(grammar: jf.Grammar | None) -> None:
    streamer = Recorder()
    bound = partial(jf.hf.generate, tokenizer=TOKENIZER, streamer=streamer)
    found = MODEL.generate(**ONE, custom_generate=bound, grammar=grammar, max_new_tokens=20, do_sample=False)
    assert streamer.puts == [[1, 2, 3], *([token] for token in found[0, 3:].tolist())]
    assert streamer.ended
    with pytest.raises(GenerateOptionError, match="3 rows"):
        MODEL.generate(**THREE, custom_generate=bound, grammar=grammar, max_new_tokens=20)


def test_transformers_passes_on_neither_tokenizer_nor_streamer() -> None:
    """Where this fails, transformers has changed: a call's own streamer would then get the prompt twice."""
    seen = {}

    def loop(model: Any, input_ids: Any, tokenizer: Any = None, streamer: Any = None, grammar: Any = None, **_: Any):
        seen.update(tokenizer=tokenizer, streamer=streamer, grammar=grammar)
        return input_ids

    MODEL.generate(**ONE, custom_generate=loop, tokenizer=TOKENIZER, streamer=Recorder(), grammar=RECORD)
    assert seen == {"tokenizer": None, "streamer": None, "grammar": RECORD}


def test_the_tokenizer_beside_the_model_is_found(tmp_path: Any) -> None:
    with pytest.raises(OptionError, match="partial"):
        MODEL.generate(**ONE, custom_generate=jf.hf.generate, grammar=RECORD)
    MODEL.save_pretrained(tmp_path)
    TOKENIZER.save_pretrained(tmp_path)
    model = type(MODEL).from_pretrained(tmp_path)
    found = model.generate(
        **ONE, custom_generate=jf.hf.generate, grammar=RECORD, tokenizer=TOKENIZER, max_new_tokens=30
    )
    assert torch.equal(found, jumping(RECORD, **ONE, max_new_tokens=30, do_sample=False))


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"num_beams": 2}, "beam_search"),
        ({"penalty_alpha": 0.5, "top_k": 4, "trust_remote_code": True}, "contrastive_search"),
        ({"prompt_lookup_num_tokens": 3}, "assisted_generation"),
        ({"typical_p": 0.5}, "typical_p"),
        ({"guidance_scale": 2.0}, "guidance_scale"),
        ({"forced_eos_token_id": END}, "forced_eos_token_id"),
        ({"renormalize_logits": True}, "renormalize_logits"),
        ({"output_hidden_states": True, "return_dict_in_generate": True}, "output_hidden_states"),
        ({"prefix_allowed_tokens_fn": lambda *_: [1]}, "prefix_allowed_tokens_fn"),
        ({"cache": DynamicCache()}, "cache"),
        ({"position_ids": torch.tensor([[4, 5, 6]])}, "position_ids"),
        (
            {"policy": "canonical", "return_dict_in_generate": True, "output_scores": True},
            "output_scores",
        ),
    ],
)
def test_what_cannot_be_honoured_is_a_named_error(options: dict[str, Any], option: str) -> None:
    with pytest.raises(GenerateOptionError, match=option):
        jumping(RECORD, **ONE, max_new_tokens=4, **options)


def test_mistakes_are_those_of_the_engine() -> None:
    with pytest.raises(OptionError, match="3 rows"):
        jumping([RECORD, WORDS], **THREE, max_new_tokens=4)
    with pytest.raises(OptionError, match="policy"):
        jumping(RECORD, **ONE, max_new_tokens=4, policy="fast")
    with pytest.raises(OptionError, match="grammar"):
        jumping(["a", "b", "c"], **THREE, max_new_tokens=4)
    with pytest.raises(PromptError, match="mask"):
        MODEL.generate(
            torch.tensor([[1], [2]]),
            attention_mask=torch.tensor([[1], [0]]),
            custom_generate=JUMP,
            grammar=RECORD,
            max_new_tokens=4,
        )
    recurrent = tiny_model("mamba", len(TOKENIZER))
    with pytest.raises(RollbackUnsupportedError):
        recurrent.generate(ONE["input_ids"], custom_generate=JUMP, grammar=WORDS, max_new_tokens=4)


def test_engines_are_kept_with_the_model_and_go_with_it() -> None:
    model = copy.deepcopy(MODEL)
    config = model.generation_config
    engine = engine_for(model, TOKENIZER, config)
    assert engine_for(model, TOKENIZER, config) is engine
    assert engine_for(model, TOKENIZER, GenerationConfig(eos_token_id=[END, 3])) is not engine
    model.generate(**ONE, custom_generate=JUMP, grammar=RECORD, max_new_tokens=4)
    assert engine_for(model, TOKENIZER, config) is engine
    assert engine_for(copy.deepcopy(model), TOKENIZER, config) is not engine
    assert not vars(pickle.loads(pickle.dumps(model)))["_jumpforward"]
    for end in range(20):
        engine_for(model, TOKENIZER, GenerationConfig(eos_token_id=end))
    assert len(vars(model)["_jumpforward"]["engines"]) <= 4
    gone = weakref.ref(model)
    del model, engine
    gc.collect()
    assert gone() is None


@pytest.mark.model
def test_the_real_model_on_a_padded_batch(real_engine: jf.Engine) -> None:
    tokenizer, model = real_engine.tokenizer, real_engine.model
    texts = [
        "As JSON: Ann is 41.",
        "The capital of France is",
        "As JSON, with name and age: Bob, who is seven years old.",
    ]
    person = jf.json_schema(
        {
            "type": "object",
            "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
            "required": ["name", "age"],
        }
    )
    grammars = [person, jf.regex(r" [A-Z][a-z]{2,9}\."), person]
    inputs = tokenizer(texts, return_tensors="pt", padding=True, padding_side="left")
    arguments = {**inputs, "max_new_tokens": 40, "do_sample": False, "eos_token_id": tokenizer.eos_token_id}
    found = model.generate(**arguments, custom_generate=jf.hf.generate, grammar=grammars)
    engine = engine_for(model, None, GenerationConfig(eos_token_id=tokenizer.eos_token_id))
    mask = XGrammarProcessor([engine.compiler.pushdown(grammar).tokens for grammar in grammars])
    assert torch.equal(found, model.generate(**arguments, logits_processor=LogitsProcessorList([mask])))
