"""What do requests of a running engine wait for, and what do kept prefixes save them?

    python experiments/serving.py [--quick] [--dtype float32]

latency  seconds to the first text of 16 requests that arrive together, alone, with one more among them whose grammar
         takes seconds to compile, and alone again. The others' latency must not move.
prefix   16 questions behind one system prompt of 1,000 tokens, with and without kept prefixes.

No request remembers another's output. The last line of standard output is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from statistics import median
from time import perf_counter
from typing import Any

from harness import COLOURS, conditions, finish, parser, plot, show
from throughput import FAMILY_BATCH_SIZE, Case, mixed_cases

import jumpforward as jf

_LEN_SYSTEM_PROMPT = 1000


def main() -> None:
    options = _options()
    engine = jf.Engine.from_pretrained(options.model, dtype=options.dtype, prefix_cache_bytes=0, memory="request")
    latency = asyncio.run(_latency(engine, mixed_cases(options.num_served)))
    prefix = _prefix(engine, options)
    columns = ("requests", "median, s", "most, s", "the slow one, s")
    rows = [(name, row["median_s"], row["most_s"], row.get("slow_s", "")) for name, row in latency.items()]
    show("time to first text", columns, rows)
    columns = ("kept prefixes", "prompt tokens", "prefilled", "s")
    kept = [(name, *prefix[name].values()) for name in ("without", "with")]
    show(f"{options.num_questions} questions behind one prompt", columns, kept)
    with plot(options, "serving") as axes:
        for index, (name, row) in enumerate(latency.items()):
            waits = sorted(row["first_s"])
            axes.step(
                waits, range(1, len(waits) + 1), where="post", label=name, color=COLOURS[index], linewidth=3 - index
            )
        axes.set_xlabel("seconds since all arrived")
        axes.set_ylabel("requests with text")
        axes.legend(title="a slow grammar")
    finish("serving", conditions(options), latency=latency, prefix=prefix)


def _options() -> argparse.Namespace:
    made = parser(__doc__, draws=False)
    made.add_argument("--dtype", default="float32")
    options = made.parse_args()
    options.num_served, options.num_questions = (3, 2) if options.quick else (16, 16)
    return options


async def _latency(engine: jf.Engine, cases: Sequence[Case]) -> dict[str, Any]:
    """Return the seconds to the first text of each request, with and without a slow grammar among them."""
    found: dict[str, Any] = {}
    for name, slow in (("without", None), ("with", _slow_grammar()), ("without again", None)):
        served = jf.Engine(engine.model, engine.tokenizer, prefix_cache_bytes=0, memory="request")
        for case in cases:
            served.compiler.compile(case.grammar)
        grammars = [case.grammar for case in cases]
        first_s = [_first_text_s(served, case, grammar) for case, grammar in zip(cases, grammars, strict=True)]
        if slow is not None:
            first_s.insert(1, _first_text_s(served, cases[0], slow))
        seconds = await asyncio.gather(*first_s)
        row = {} if slow is None else {"slow_s": seconds.pop(1)}
        found[name] = {"median_s": median(seconds), "most_s": max(seconds), "first_s": seconds, **row}
        served.close()
    return found


async def _first_text_s(engine: jf.Engine, case: Case, grammar: jf.Grammar) -> float:
    start = perf_counter()
    pieces = engine.astream(case.prompt, grammar, max_new_tokens=24)
    first_s = None
    async for _ in pieces:
        first_s = first_s or perf_counter() - start
    return first_s or perf_counter() - start


def _slow_grammar() -> jf.Grammar:
    """Return a grammar that takes seconds to compile: many bounded strings over unlike alphabets."""
    letters = [chr(code) for code in range(ord("a"), ord("z"))]
    fields = {f"field_{letter}": {"type": "string", "pattern": f"^[ -Z{letter}-~]{{1,49}}$"} for letter in letters}
    return jf.json_schema({"type": "object", "properties": fields, "required": list(fields)})


def _prefix(engine: jf.Engine, options: argparse.Namespace) -> dict[str, Any]:
    """Return prefilled tokens and seconds with and without kept prefixes."""
    system = _system_prompt(engine)
    requests: list[Any] = [
        {
            "prompt": [
                {"role": "system", "content": system},
                {"role": "user", "content": f"Does rule {number} of the list apply to parcels?"},
            ],
            "grammar": jf.choice(["yes", "no"]),
        }
        for number in range(1, options.num_questions + 1)
    ]
    found = {}
    for name, limit in (("without", 0), ("with", 256 << 20)):
        kept = jf.Engine(engine.model, engine.tokenizer, prefix_cache_bytes=limit, memory="request")
        for request in requests:
            kept.compiler.compile(request["grammar"])
        start = perf_counter()
        results: list[Any] = kept.generate_batch(requests, batch_size=FAMILY_BATCH_SIZE)
        seconds = perf_counter() - start
        accounts = [result.stats for result in results]
        found[name] = {
            "num_prompt_tokens": sum(each.num_prompt_tokens for each in accounts),
            "num_prefilled_tokens": sum(each.num_prompt_tokens - each.num_reused_tokens for each in accounts),
            "seconds": seconds,
            "texts": [result.text for result in results],
        }
        kept.close()
    agree = found["with"].pop("texts") == found["without"].pop("texts")
    return {**found, "texts_equal": agree, "speedup": found["without"]["seconds"] / found["with"]["seconds"]}


def _system_prompt(engine: jf.Engine) -> str:
    """Return a list of rules of about 1,000 tokens."""
    rules: list[str] = []
    while len(engine.tokenizer("\n".join(rules))["input_ids"]) < _LEN_SYSTEM_PROMPT:
        number = len(rules) + 1
        rules.append(f"Rule {number}: an order of kind {number % 7} is sent within {number % 5 + 1} days.")
    return "\n".join(rules)


if __name__ == "__main__":
    main()
