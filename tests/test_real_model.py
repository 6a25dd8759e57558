"""The default model on schemas as people write them: exact is masked, and what comes out is valid."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
import torch
from helpers import fresh_logits

import jumpforward as jf
from jumpforward.decoding.policy import POLICIES
from jumpforward.stats import Provenance

pytestmark = pytest.mark.model


def record(required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties) if required is None else required}


def text(length: int = 20) -> dict[str, Any]:
    return {"type": "string", "maxLength": length}


INTEGER, BOOLEAN = {"type": "integer"}, {"type": "boolean"}
SCHEMAS: dict[str, dict[str, Any]] = {
    "person": record(name=text(), age=INTEGER, city=text(), active=BOOLEAN),
    "nested": record(id=INTEGER, address=record(street=text(), postal_code={"type": "string", "pattern": "[0-9]{5}"})),
    "array": record(tags={"type": "array", "items": text(8), "minItems": 2, "maxItems": 3}),
    "objects in an array": record(
        points={"type": "array", "items": record(x=INTEGER, y=INTEGER), "minItems": 1, "maxItems": 2}
    ),
    "enum with a common beginning": record(kind={"enum": ["alpha", "alphabet", "beta"]}, rank={"enum": [1, 12, "1"]}),
    "optional keys that share a beginning": record(["id"], id=INTEGER, orderId=INTEGER, orderName=text(10)),
    "function call": record(
        name={"const": "get_weather"},
        arguments=record(["location"], location=text(), unit={"enum": ["celsius", "fahrenheit"]}, days=INTEGER),
    ),
    "constants outside ASCII": record(
        greeting={"const": "在线 😀 é"}, place={"enum": ["霍格沃茨", "霍比特"]}, ok=BOOLEAN
    ),
    "nullable": record(middle_name={"anyOf": [text(10), {"type": "null"}]}, born={"type": "string", "format": "date"}),
    "keys that need escapes": {
        "type": "object",
        "properties": {'k\u0001"q\\': INTEGER, "a/b": {"const": "a/b"}, "size (cm)": {"type": "number"}},
        "required": ['k\u0001"q\\', "a/b", "size (cm)"],
    },
    "numbers": record(price={"type": "number"}, count={"type": "integer", "minimum": 0, "maximum": 120}),
    "recursive": {
        "$defs": {"node": record(["v"], v={"const": 1}, next={"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]})},
        "$ref": "#/$defs/node",
    },
    "special spellings": record(markup={"const": "a</s>b<|im_end|>"}, next={"enum": ["<|im_start|>", "<x>"]}),
}
PROMPT = [{"role": "user", "content": "One example as JSON about Ann, 41, from Paris, order 17, sunny, 21 degrees."}]
OTHERS = {
    "regex": jf.regex(r"(The answer is )(yes|no)(, because [a-z ]{5,20}\.)?"),
    "ebnf": jf.ebnf('root ::= "SELECT " col (", " col)* " FROM users"\ncol ::= "name" | "age" | "city"'),
    "choice": jf.choice(["positive", "negative", "neutral", "not sure"]),
    "flexible whitespace": jf.json_schema(SCHEMAS["nested"], whitespace="flexible", max_whitespace=2),
    "compact": jf.json_schema(SCHEMAS["array"], whitespace="compact"),
}


def check(engine: jf.Engine, grammar: jf.Grammar, **options: Any) -> dict[str, jf.Result]:
    results = {
        policy: engine.generate(PROMPT, grammar, policy=policy, max_new_tokens=44, **options)
        for policy in ("masked", "exact", "canonical")
    }
    masked, exact = results["masked"], results["exact"]
    assert exact.token_ids == masked.token_ids
    assert (exact.text, exact.finish_reason, exact.complete) == (masked.text, masked.finish_reason, masked.complete)
    assert exact.stats.num_forward_passes < masked.stats.num_forward_passes
    for result in results.values():
        walker = grammar.walker()
        assert walker.consume(engine.vocabulary.text_bytes(result.token_ids))
    return results


@pytest.mark.parametrize("name", SCHEMAS)
def test_law_7_on_schemas(real_engine: jf.Engine, name: str) -> None:
    for result in check(real_engine, jf.json_schema(SCHEMAS[name])).values():
        if result.complete:
            jsonschema.validate(result.parsed, SCHEMAS[name])


@pytest.mark.parametrize("name", OTHERS)
def test_law_7_on_other_grammars(real_engine: jf.Engine, name: str) -> None:
    check(real_engine, OTHERS[name])


@pytest.mark.parametrize("name", ["person", "function call"])
def test_law_7_sampled(real_engine: jf.Engine, name: str) -> None:
    options = {"temperature": 1.0, "top_p": 0.95, "seed": 7}
    check(real_engine, jf.json_schema(SCHEMAS[name]), **options)


def test_law_8_after_jumps_rejections_and_crops(real_engine: jf.Engine) -> None:
    result = real_engine.generate(PROMPT, jf.json_schema(SCHEMAS["person"]), logprobs=True)
    assert result.stats.num_rejected > 0
    template = real_engine.tokenizer.apply_chat_template(PROMPT, add_generation_prompt=True, tokenize=False)
    prompt = real_engine.tokenizer(template, add_special_tokens=False)["input_ids"]
    expected = fresh_logits(real_engine.model, [*prompt, *result.token_ids]).log_softmax(-1)
    for index, (token, logprob) in enumerate(zip(result.token_ids, result.logprobs, strict=True)):
        if logprob is not None:
            assert logprob == pytest.approx(float(expected[len(prompt) - 1 + index, token]), abs=1e-3)


def test_the_default_model_has_no_special_ids_in_its_text(real_engine: jf.Engine) -> None:
    results = check(real_engine, jf.json_schema(SCHEMAS["special spellings"]))
    special = real_engine.vocabulary.special_ids - set(real_engine.vocabulary.end_ids)
    for result in results.values():
        assert not special.intersection(result.token_ids)
        assert result.parsed["markup"] == "a</s>b<|im_end|>"


def test_model_generate_with_xgrammars_processor_agrees_with_masked(real_engine: jf.Engine) -> None:
    from jumpforward.bench import compare

    comparison = compare(real_engine, PROMPT, jf.json_schema(SCHEMAS["numbers"]), max_new_tokens=30, repeats=1)
    assert comparison.agrees("model.generate", "masked")
    assert comparison.agrees("exact", "masked")
    assert comparison.passes("model.generate") == comparison.passes("masked")
    assert torch.isfinite(torch.tensor(comparison.speedup("exact", "masked")))
    assert comparison.table().row_count == 1 + len(POLICIES)


def test_law_10_on_24_mixed_requests(real_engine: jf.Engine) -> None:
    grammars = [*map(jf.json_schema, SCHEMAS.values()), *OTHERS.values()]
    options: list[dict[str, Any]] = [
        {"policy": "exact"},
        {"policy": "canonical"},
        {"policy": "masked", "temperature": 1.0, "seed": 5},
        {"policy": "exact", "temperature": 0.8, "top_p": 0.9, "seed": 6},
    ]
    requests = [
        {"prompt": PROMPT if number % 3 else f"Request {number}:", "grammar": grammars[number % len(grammars)]}
        | {"max_new_tokens": 6 + number % 8}
        | options[number % 4]
        for number in range(24)
    ]
    alone = [real_engine.generate(**request) for request in requests]
    for result, expected in zip(real_engine.generate_batch(requests, batch_size=6), alone, strict=True):
        assert result.token_ids == expected.token_ids
        assert (result.text, result.finish_reason) == (expected.text, expected.finish_reason)
        # Who drafts depends on what a pass costs and what was remembered; what is forced depends on nothing else.
        forced = [[kind is Provenance.FORCED for kind in one.provenance] for one in (result, expected)]
        assert forced[0] == forced[1]
