"""Does jumping forward pay end to end, and does `exact` change nothing?

    python experiments/end_to_end.py [--quick] [--repeats 3] [--dtypes float32 bfloat16] [--policies exact ...]

Three families of requests (records with required fields, function calls with optional parameters, free text inside a
small frame), greedy, by plain `model.generate` with xgrammar's logits processor and by every policy, interleaved in
one run. Ratios are medians over a family's cases of each case's median over rounds; passes are sums over the family.
The last line of standard output is one JSON object.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from statistics import median
from typing import Any

from harness import COLOURS, ERR, conditions, finish, parser, plot, show, workload
from rich.progress import track

import jumpforward as jf
from jumpforward.bench import GENERATE, METHODS, Comparison, compare

BASES = (GENERATE, "masked")  # what the others are compared with
POLICIES = [method for method in METHODS if method not in BASES]


def main() -> None:
    options = _options()
    cases = workload("end_to_end")
    if options.quick:
        cases = [case for index, case in enumerate(cases) if index % 5 == 0]
    measured = {}
    for dtype in options.dtypes:
        engine = jf.Engine.from_pretrained(options.model, dtype=dtype)
        comparisons = _run(engine, cases, options, dtype)
        measured[dtype] = _families(cases, comparisons, options.methods)
        _show(dtype, measured[dtype])
    _plot(options, measured)
    finish("end_to_end", conditions(options, num_cases=len(cases)), results=measured)


def _options() -> argparse.Namespace:
    made = parser(__doc__, draws=False)
    made.add_argument("--repeats", type=int, default=3)
    made.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    made.add_argument("--policies", nargs="+", choices=POLICIES, default=POLICIES, help="beside the two bases")
    options = made.parse_args()
    options.methods, options.max_new_tokens = (*BASES, *options.policies), 160
    if options.quick:  # a case or two of each family
        options.repeats, options.max_new_tokens = 1, 32
    return options


def _run(engine: jf.Engine, cases: list[dict[str, Any]], options: argparse.Namespace, dtype: str) -> list[Comparison]:
    return [
        compare(
            engine,
            [{"role": "user", "content": case["prompt"]}],
            jf.json_schema(case["schema"]),
            max_new_tokens=options.max_new_tokens,
            repeats=options.repeats,
            methods=options.methods,
        )
        for case in track(cases, dtype, console=ERR)
    ]


def _families(
    cases: list[dict[str, Any]], comparisons: list[Comparison], methods: Sequence[str]
) -> dict[str, dict[str, dict[str, float]]]:
    families: dict[str, list[Comparison]] = {}
    for case, comparison in zip(cases, comparisons, strict=True):
        families.setdefault(case["family"], []).append(comparison)
    return {family: {method: _summary(method, members) for method in methods} for family, members in families.items()}


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


def _show(dtype: str, families: dict[str, dict[str, dict[str, float]]]) -> None:
    ratios = ("passes / token", "passes / masked", "× generate", "× masked", "overhead, %")
    rows = [
        (
            family,
            method,
            f"{row['num_tokens_equal_masked']} of {row['num_cases']}",
            row["passes_per_token"],
            row["passes_ratio_to_masked"],
            row["speedup_over_generate"],
            row["speedup_over_masked"],
            100 * row["overhead_share"],
        )
        for family, methods in families.items()
        for method, row in methods.items()
    ]
    show(dtype, ("family", "method", "tokens = masked", *ratios), rows)


def _plot(options: argparse.Namespace, measured: dict[str, Any]) -> None:
    """Draw how many times faster than `masked` each policy was, a bar a family and type."""
    groups = [(dtype, family) for dtype, families in measured.items() for family in families]
    with plot(options, "end_to_end") as axes:
        for index, policy in enumerate(options.policies):
            places = [place + 0.27 * (index - 1) for place in range(len(groups))]
            speeds = [measured[dtype][family][policy]["speedup_over_masked"] for dtype, family in groups]
            axes.bar(places, speeds, 0.25, label=policy, color=COLOURS[index])
        axes.axhline(1, color="black", linewidth=0.8)
        axes.set_xticks(range(len(groups)), [f"{family}\n{dtype}" for dtype, family in groups])
        axes.set_ylabel("times as fast as masked")
        axes.legend(ncols=len(options.policies), loc="lower center", bbox_to_anchor=(0.5, 1.0))


if __name__ == "__main__":
    main()
