"""Does jumping forward pay end to end, and does `exact` change nothing?

    python experiments/end_to_end.py [--quick] [--repeats 3] [--dtypes float32 bfloat16]

Three families of requests (records with required fields, function calls with optional parameters, free text inside a
small frame), greedy, by plain `model.generate` with xgrammar's logits processor and by every policy, interleaved in
one run. Ratios are medians over a family's cases of each case's median over rounds; passes are sums over the family.
The last line of standard output is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

import jumpforward as jf
from jumpforward.bench import GENERATE, METHODS, Comparison, compare

WORKLOAD = Path(__file__).parent / "workloads" / "end_to_end.jsonl"
ERR = Console(stderr=True)


def main() -> None:
    options = _options()
    cases = [json.loads(line) for line in WORKLOAD.read_text().splitlines()]
    if options.quick:
        cases = [case for index, case in enumerate(cases) if index % 5 == 0]
    measured = {}
    for dtype in options.dtypes:
        engine = jf.Engine.from_pretrained(options.model, dtype=dtype)
        comparisons = _run(engine, cases, options.repeats, dtype)
        measured[dtype] = _families(cases, comparisons)
        ERR.print(_table(dtype, measured[dtype]))
    record = {"experiment": "end_to_end", "conditions": _conditions(options, len(cases)), "results": measured}
    sys.stdout.write(json.dumps(record) + "\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a hub id or a folder; by default SmolLM2-135M-Instruct")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--quick", action="store_true", help="a case or two of each family, one round")
    options = parser.parse_args()
    if options.quick:
        options.repeats = 1
    return options


def _run(engine: jf.Engine, cases: list[dict[str, Any]], repeats: int, dtype: str) -> list[Comparison]:
    return [
        compare(
            engine,
            [{"role": "user", "content": case["prompt"]}],
            jf.json_schema(case["schema"]),
            max_new_tokens=160,
            repeats=repeats,
        )
        for case in track(cases, dtype, console=ERR)
    ]


def _families(cases: list[dict[str, Any]], comparisons: list[Comparison]) -> dict[str, dict[str, dict[str, float]]]:
    families: dict[str, list[Comparison]] = {}
    for case, comparison in zip(cases, comparisons, strict=True):
        families.setdefault(case["family"], []).append(comparison)
    return {family: {method: _summary(method, members) for method in METHODS} for family, members in families.items()}


def _summary(method: str, members: list[Comparison]) -> dict[str, float]:
    outcomes = [outcome for member in members for outcome in member.outcomes[method]]
    accounts = [outcome.result.stats for outcome in outcomes if outcome.result is not None]
    total_s = sum(account.total_s for account in accounts)
    return {
        "num_cases": len(members),
        "num_tokens_equal_masked": sum(member.agrees(method, "masked") for member in members),
        "num_output_tokens": sum(len(member.outcomes[method][0].token_ids) for member in members),
        "num_forward_passes": sum(member.passes(method) for member in members),
        "passes_per_token": sum(member.passes(method) for member in members)
        / sum(len(member.outcomes[method][0].token_ids) for member in members),
        "passes_ratio_to_masked": sum(member.passes(method) for member in members)
        / sum(member.passes("masked") for member in members),
        "median_s": median(member.seconds(method) for member in members),
        "speedup_over_generate": median(member.speedup(method, GENERATE) for member in members),
        "speedup_over_masked": median(member.speedup(method, "masked") for member in members),
        "overhead_share": sum(account.overhead_s for account in accounts) / total_s if accounts else 0.0,
    }


def _table(dtype: str, families: dict[str, dict[str, dict[str, float]]]) -> Table:
    ratios = ("passes / token", "passes / masked", "× generate", "× masked", "overhead")
    table = Table("family", "method", "tokens = masked", *ratios, title=dtype)
    for family, methods in families.items():
        for method, row in methods.items():
            table.add_row(
                family,
                method,
                f"{row['num_tokens_equal_masked']} of {row['num_cases']}",
                f"{row['passes_per_token']:.3f}",
                f"{row['passes_ratio_to_masked']:.3f}",
                f"{row['speedup_over_generate']:.2f}",
                f"{row['speedup_over_masked']:.2f}",
                f"{100 * row['overhead_share']:.1f} %",
            )
    return table


def _conditions(options: argparse.Namespace, num_cases: int) -> dict[str, Any]:
    return {
        "model": options.model or "SmolLM2-135M-Instruct",
        "num_cases": num_cases,
        "repeats": options.repeats,
        "num_threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "versions": {name: version(name) for name in ("jumpforward", "torch", "transformers", "xgrammar")},
    }


if __name__ == "__main__":
    main()
