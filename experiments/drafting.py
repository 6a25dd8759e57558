"""How many forward passes do drafts save, by source, and what is that in seconds?

    python experiments/drafting.py [--quick] [--rounds 1] [--parts passes time] [--workloads records ...]

`passes` counts in float32, with the costs of a pass held fixed so that no clock has a part in it, and compares every
output with that of `masked`, token for token. `time` measures in bfloat16, methods interleaved, with the costs that
the engine measures itself.

- **cold**: what earlier outputs left is cleared before every request.
- **warm**: the requests of a schema in a row, from the file's beginning and then from its end; those behind four others
  count. No request ever sees its own output.
- **unseen**: texts of two more domains, on which no setting of the package was ever tried.
- **finished**: the cold requests that ended by themselves. A weak model that loops flatters every drafter.
- **temperature 1**: cold, under a seed, against `masked` under the same seed; every third request.
- **batch 8**: cold within a family, eight requests at a time.
- **prompt lookup**: transformers' `prompt_lookup_num_tokens`, without a grammar: another text, for reference; every
  third request of a workload.

The last line of standard output is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch
from harness import COLOURS, ERR, conditions, finish, parser, plot, show, workload
from rich.progress import track

import jumpforward as jf
from jumpforward.bench import counted_passes
from jumpforward.decoding.costs import FixedCosts
from jumpforward.engine.prompt import encode_prompt

COSTS = FixedCosts(pass_s=0.0575, row_s=0.00055)  # of bfloat16 on two cores, behind 250 tokens
NUM_BEFORE = 4  # requests of a schema before one that counts as warm
MAX_NEW_TOKENS = 200
WORKLOADS = ("records", "calls", "text", "extraction", "unseen")

Case = dict[str, Any]


def main() -> None:
    options = _options()
    cases = [case for case in load(options.quick) if case["workload"] in options.workloads]
    results: dict[str, Any] = {}
    if "passes" in options.parts:
        engine = jf.Engine.from_pretrained(options.model, dtype="float32", pass_costs=COSTS)
        results["passes"] = count_passes(engine, cases, options.seed)
        show_passes(results["passes"])
        plot_passes(options, results["passes"])
    if "time" in options.parts:
        engine = jf.Engine.from_pretrained(options.model, dtype="bfloat16")
        results["time"] = measure(engine, cases, options.rounds)
        show_time(results["time"])
    num_requests = Counter(case["workload"] for case in cases)
    finish("drafting", conditions(options, num_requests=num_requests), **results)


def _options() -> argparse.Namespace:
    made = parser(__doc__)
    made.add_argument("--rounds", type=int, default=1, help="of the timing")
    made.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=WORKLOADS)
    made.add_argument("--parts", nargs="+", choices=["passes", "time"], default=["passes", "time"])
    return made.parse_args()


def load(quick: bool) -> list[Case]:
    """Return the requests: records, calls and text with a schema each, extraction and unseen with one a domain."""
    cases = workload("end_to_end")
    for name in ("extraction", "unseen"):
        cases += [case | {"workload": name} for case in workload(name)]
    schemas = {json.dumps(case["schema"]): jf.json_schema(case["schema"]) for case in cases}
    for case in cases:
        case["grammar"] = schemas[json.dumps(case["schema"])]
        case.setdefault("workload", case["family"])
    if not quick:
        return cases
    most = {"records": 1, "calls": 1, "people": NUM_BEFORE + 1}
    return [
        case for family, count in most.items() for case in [case for case in cases if case["family"] == family][:count]
    ]


def by_workload(cases: Sequence[Case]) -> dict[str, list[Case]]:
    found: dict[str, list[Case]] = {}
    for case in cases:
        found.setdefault(case["workload"], []).append(case)
    return found


def generate(engine: jf.Engine, case: Case, **options: Any) -> jf.Result:
    prompt = [{"role": "user", "content": case["prompt"]}]
    return engine.generate(prompt, case["grammar"], max_new_tokens=MAX_NEW_TOKENS, **options)


def cold(engine: jf.Engine, case: Case, **options: Any) -> jf.Result:
    engine.memory.clear()
    return generate(engine, case, **options)


def warm(cases: Sequence[Case], run: Callable[[Case], Any], clear: Callable[[], None]) -> list[tuple[Case, Any]]:
    """Run families in a row, forwards and backwards; return what came of the requests behind enough others."""
    counted = []
    for family in dict.fromkeys(case["family"] for case in cases if "answer" in case):
        members = [case for case in cases if case["family"] == family]
        for order in (members, members[::-1]):
            clear()
            outcomes = [(case, run(case)) for case in order]
            counted += outcomes[NUM_BEFORE:]
    return counted


# --- passes ------------------------------------------------------------------------------------------------------


def count_passes(engine: jf.Engine, cases: Sequence[Case], seed: int) -> dict[str, Any]:
    """Return passes and equality by workload and condition."""
    found: dict[str, dict[str, list[tuple[Case, jf.Result, jf.Result]]]] = {}
    masked: dict[str, jf.Result] = {}
    for number, case in enumerate(track(cases, "cold, and temperature 1", console=ERR)):
        conditions_of = found.setdefault(case["workload"], {})
        masked[case["name"]] = generate(engine, case, policy="masked")
        outcome = case, cold(engine, case), masked[case["name"]]
        conditions_of.setdefault("cold", []).append(outcome)
        if outcome[1].finish_reason == "end":
            conditions_of.setdefault("finished", []).append(outcome)
        if number % 3 == 0:
            draws = {"temperature": 1.0, "seed": seed}
            drawn = case, cold(engine, case, **draws), generate(engine, case, policy="masked", **draws)
            conditions_of.setdefault("temperature 1", []).append(drawn)
    ERR.print("warm")
    for case, result in warm(cases, lambda case: generate(engine, case), engine.memory.clear):
        found[case["workload"]].setdefault("warm", []).append((case, result, masked[case["name"]]))
    return {
        name: {condition: passes_summary(outcomes) for condition, outcomes in conditions_of.items()}
        for name, conditions_of in found.items()
    }


def passes_summary(outcomes: Sequence[tuple[Case, jf.Result, jf.Result]]) -> dict[str, Any]:
    accounts = [result.stats for _, result, _ in outcomes]
    num_tokens = sum(account.num_output_tokens for account in accounts)
    names = dict.fromkeys(name for account in accounts for name in account.sources)
    return {
        "num_requests": len(outcomes),
        "num_tokens_equal_masked": sum(result.token_ids == other.token_ids for _, result, other in outcomes),
        "num_output_tokens": num_tokens,
        "passes_per_token": sum(account.num_forward_passes for account in accounts) / num_tokens,
        "certain_per_token": sum(account.num_forced for account in accounts) / num_tokens,
        "share_of_fields_right": share_right(outcomes),
        "sources": {name: source_summary(name, accounts, num_tokens) for name in names},
    }


def source_summary(name: str, accounts: Sequence[jf.Stats], num_tokens: int) -> dict[str, float]:
    mine = [account.sources[name] for account in accounts if name in account.sources]
    proposed = sum(source.num_proposed for source in mine)
    return {
        "proposed_per_token": proposed / num_tokens,
        "acceptance": sum(source.num_accepted for source in mine) / max(1, proposed),
        "passes_saved_per_token": sum(source.num_passes_saved for source in mine) / num_tokens,
        "ms_per_token": 1000 * sum(source.seconds for source in mine) / num_tokens,
    }


def share_right(outcomes: Sequence[tuple[Case, jf.Result, jf.Result]]) -> float | None:
    """Return how many fields of the true answers the model wrote; None where no answer is known."""
    pairs = [
        (result.parsed or {}).get(key) == value
        for case, result, _ in outcomes
        for key, value in case.get("answer", {}).items()
    ]
    return sum(pairs) / len(pairs) if pairs else None


def show_passes(found: dict[str, Any]) -> None:
    rows = []
    for name, conditions_of in found.items():
        for condition, row in conditions_of.items():
            sources = "  ".join(
                f"{source_name} {source['passes_saved_per_token']:.3f} ({100 * source['acceptance']:.0f} %)"
                for source_name, source in row["sources"].items()
            )
            equal = f"{row['num_tokens_equal_masked']} of {row['num_requests']}"
            rows.append((name, condition, equal, row["passes_per_token"], sources))
    show("float32", ("workload", "condition", "tokens = masked", "passes / token", "saved by (accepted)"), rows)


def plot_passes(options: argparse.Namespace, found: dict[str, Any]) -> None:
    """Draw bars of a token: the passes that it took, and who saved the rest of one."""
    bars = [(f"{name}, {condition}", row) for name, of in found.items() for condition, row in of.items()][::-1]
    names = list(dict.fromkeys(source for _, row in bars for source in row["sources"]))
    with plot(options, "drafting", height=1.2 + 0.3 * len(bars)) as axes:
        left = [row["passes_per_token"] for _, row in bars]
        axes.barh([name for name, _ in bars], left, color="black", label="passes")
        for index, name in enumerate(names):
            saved = [row["sources"].get(name, {}).get("passes_saved_per_token", 0.0) for _, row in bars]
            axes.barh([bar for bar, _ in bars], saved, left=left, color=COLOURS[index], label=name)
            left = [start + width for start, width in zip(left, saved, strict=True)]
        axes.set_xlabel("forward passes a token, made and saved")
        axes.legend(ncols=6, loc="lower center", bbox_to_anchor=(0.5, 1.0))


# --- time --------------------------------------------------------------------------------------------------------


def measure(engine: jf.Engine, cases: Sequence[Case], rounds: int) -> dict[str, Any]:
    """Return seconds by workload and method; a ratio is the median over requests of the median over rounds."""
    generate(engine, cases[0])  # the first call of a process warms up threads and caches
    methods: dict[str, Callable[[Case], float]] = {
        "masked": lambda case: generate(engine, case, policy="masked").stats.total_s,
        "cold": lambda case: cold(engine, case).stats.total_s,
    }
    seconds: dict[tuple[str, str], list[float]] = {}
    for turn in track(range(rounds), "bfloat16, one at a time", console=ERR):
        for case in cases:
            names = list(methods)
            for name in [*names[turn % len(names) :], *names[: turn % len(names)]]:
                seconds.setdefault((case["name"], name), []).append(methods[name](case))
        for case in [case for members in by_workload(cases).values() for case in members[::3]]:
            seconds.setdefault((case["name"], "prompt lookup"), []).append(prompt_lookup(engine, case)["ms_per_token"])
        for case, result in warm(cases, lambda case: generate(engine, case), engine.memory.clear):
            seconds.setdefault((case["name"], "warm"), []).append(result.stats.total_s)
    found: dict[str, Any] = {}
    for name, members in by_workload(cases).items():
        found[name] = time_summary(members, seconds)
        found[name]["batch_8_speedup"] = batch_speedup(engine, members, rounds)
    return found


def time_summary(cases: Sequence[Case], seconds: dict[tuple[str, str], list[float]]) -> dict[str, float]:
    def of(case: Case, method: str) -> float:
        return median(seconds[case["name"], method])

    summary = {
        "masked_s": median(of(case, "masked") for case in cases),
        "cold_speedup": median(of(case, "masked") / of(case, "cold") for case in cases),
        "prompt_lookup_ms_per_token": median(
            of(case, "prompt lookup") for case in cases if (case["name"], "prompt lookup") in seconds
        ),
    }
    warmed = [case for case in cases if (case["name"], "warm") in seconds]
    if warmed:
        summary["warm_speedup"] = median(of(case, "masked") / of(case, "warm") for case in warmed)
    return summary


def batch_speedup(engine: jf.Engine, cases: Sequence[Case], rounds: int) -> float:
    """Return how many times faster eight at a time are with drafts than `masked`, eight at a time as well."""

    def seconds(policy: str) -> float:
        engine.memory.clear()
        requests = [
            {
                "prompt": [{"role": "user", "content": case["prompt"]}],
                "grammar": case["grammar"],
                "policy": policy,
                "max_new_tokens": MAX_NEW_TOKENS,
            }
            for case in cases
        ]
        start = time.perf_counter()
        engine.generate_batch(requests, batch_size=8)
        return time.perf_counter() - start

    return median(seconds("masked") / seconds("exact") for _ in range(rounds))


def prompt_lookup(engine: jf.Engine, case: Case) -> dict[str, float]:
    """Run transformers' own drafts from the prompt, without a grammar, up to as many tokens as usual."""
    ids = torch.tensor([encode_prompt([{"role": "user", "content": case["prompt"]}], engine.tokenizer, 2**31)])
    ends = list(engine.vocabulary.end_ids)
    with counted_passes(engine.model) as passes:
        start = time.perf_counter()
        output = engine.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=MAX_NEW_TOKENS,
            prompt_lookup_num_tokens=10,
            eos_token_id=ends,
            pad_token_id=ends[0],
        )
        elapsed_s = time.perf_counter() - start
    num_tokens = max(1, output.shape[1] - ids.shape[1])
    return {"ms_per_token": 1000 * elapsed_s / num_tokens, "passes_per_token": len(passes) / num_tokens}


def show_time(found: dict[str, Any]) -> None:
    columns = ("cold × masked", "warm × masked", "batch 8 × masked", "masked, s", "prompt lookup, ms / token")
    keys = ("cold_speedup", "warm_speedup", "batch_8_speedup", "masked_s", "prompt_lookup_ms_per_token")
    rows = [(name, *(row.get(key, "") for key in keys)) for name, row in found.items()]
    show("bfloat16", ("workload", *columns), rows)


if __name__ == "__main__":
    main()
