"""What do requests of a running engine wait for, and what do kept prefixes save them?

    python experiments/serving.py [--quick] [--dtype float32]

latency  seconds to the first text of 16 requests that arrive together, alone and with one more among them whose grammar
         takes long to compile, in turn; with all cores for the model, and with all but one. The others' latency must
         not move.
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

import torch
from harness import COLOURS, conditions, finish, parser, plot, show
from throughput import FAMILY_BATCH_SIZE, Case, mixed_cases

import jumpforward as jf

_LEN_SYSTEM_PROMPT = 1000


def main() -> None:
    options = _options()
    engine = jf.Engine.from_pretrained(options.model, dtype=options.dtype, prefix_cache_bytes=0, memory="request")
    latency = _latency(engine, mixed_cases(options.num_served), options.rounds)
    prefix = _prefix(engine, options)
    columns = ("threads of the model", "a slow grammar", "median, s", "most, s", "the slow one, s")
    rows = [
        (row["num_threads"], row["slow_grammar"], row["median_s"], row["most_s"], row.get("slow_s", ""))
        for row in latency
    ]
    show("time to first text, medians over rounds", columns, rows)
    columns = ("kept prefixes", "prompt tokens", "prefilled", "s")
    kept = [(name, *prefix[name].values()) for name in ("without", "with")]
    show(f"{options.num_questions} questions behind one prompt", columns, kept)
    with plot(options, "serving") as axes:
        for index, row in enumerate(latency):
            waits, number = row["first_s"], range(1, len(row["first_s"]) + 1)
            label = f"{row['num_threads']} threads, {row['slow_grammar']} a slow grammar"
            axes.step(waits, number, where="post", label=label, color=COLOURS[index // 2], linestyle="-:"[index % 2])
        axes.set_xlabel("seconds since all arrived")
        axes.set_ylabel("requests with text")
        axes.legend()
    finish("serving", conditions(options), latency=latency, prefix=prefix)


def _options() -> argparse.Namespace:
    made = parser(__doc__, draws=False)
    made.add_argument("--dtype", default="float32")
    options = made.parse_args()
    options.num_served, options.num_questions = (3, 2) if options.quick else (16, 16)
    options.rounds = 1 if options.quick else 3
    return options


def _latency(engine: jf.Engine, cases: Sequence[Case], rounds: int) -> list[dict[str, Any]]:
    """Return the seconds to first texts by the number of the model's threads, with and without a slow grammar."""
    num_cores = torch.get_num_threads()
    found = []
    for num_threads in (num_cores, max(1, num_cores - 1)):
        torch.set_num_threads(num_threads)
        runs: dict[str, list[tuple[list[float], float | None]]] = {"without": [], "with": []}
        for _ in range(rounds):
            for name, of_setting in runs.items():
                of_setting.append(asyncio.run(_first_texts_s(engine, cases, has_slow=name == "with")))
        found += [
            {"num_threads": num_threads, "slow_grammar": name, **_summary(runs[name])} for name in ("without", "with")
        ]
    torch.set_num_threads(num_cores)
    return found


def _summary(runs: Sequence[tuple[list[float], float | None]]) -> dict[str, Any]:
    """Return medians over rounds; ``first_s`` of the requests in the order of their first texts."""
    row: dict[str, Any] = {
        "median_s": median(median(seconds) for seconds, _ in runs),
        "most_s": median(max(seconds) for seconds, _ in runs),
        "first_s": [median(each) for each in zip(*(sorted(seconds) for seconds, _ in runs), strict=True)],
    }
    slow_s = [seconds for _, seconds in runs if seconds is not None]
    return row | {"slow_s": median(slow_s)} if slow_s else row


async def _first_texts_s(
    engine: jf.Engine, cases: Sequence[Case], *, has_slow: bool
) -> tuple[list[float], float | None]:
    """Return the seconds to the first text of each request, and of one whose grammar is slow, if it is among them."""
    served = jf.Engine(engine.model, engine.tokenizer, prefix_cache_bytes=0, memory="request")
    for case in cases:
        served.compiler.compile(case.grammar)
    first_s = [_first_text_s(served, case, case.grammar) for case in cases]
    if has_slow:
        first_s.insert(1, _first_text_s(served, cases[0], _slow_grammar()))
    seconds = await asyncio.gather(*first_s)
    slow_s = seconds.pop(1) if has_slow else None
    served.close()
    return seconds, slow_s


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
