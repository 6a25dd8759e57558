"""How much probability has every other spelling of forced text, and does that say how often `exact` rejects a draft?

    python experiments/noncanonical_mass.py [--quick] [--seeds 3]

`exact` drafts forced text in its canonical tokens and keeps them as far as the model would have chosen them under the
mask. Along a forced run the plain mask gives the canonical tokens p1, p2, ...: the non-canonical mass of the run is 1
minus their product. Sampled, a draft should be rejected with that probability; greedy, where one of them is not the
likeliest legal token.

Predicted from the probabilities behind each draft, and counted in the same runs of the engine (only forced text is
drafted, and a draft is a whole run). After a rejection the rest of the run is drafted anew, and counts as another: runs
are told apart into the first of an output, later ones, and rests. Not all that is refused is a matter of spelling: a
token that goes on behind the run's end (` false` for a draft that ends with the space) is counted by itself. Also
predicted without the runs that are counted: rejections a document by the masses along the greedy output alone, against
the mean over seeds.

Each request is made twice: as it is, and behind a system prompt that shows the document's format (keys and separators
as the grammar has them, with stand-ins for values). Records, calls and extraction texts of workloads/. The last line of
standard output is one JSON object.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import harness
import numpy as np
from forced_runs import Observer, Run
from rich.progress import track
from scipy.stats import binomtest, spearmanr

import jumpforward as jf
from jumpforward.decoding.costs import FixedCosts

MAX_NEW_TOKENS = 120

NUM_BINS = 8

KINDS = ("first", "later", "rest")

STAND_INS = {"string": "...", "integer": 0, "number": 0.0, "boolean": True, "null": None}


def stand_in(schema: dict[str, Any]) -> Any:
    """Return a document that shows a schema's format."""
    if "enum" in schema:
        return schema["enum"][0]
    if "const" in schema:
        return schema["const"]
    for choice in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        return stand_in(choice)
    if schema.get("type") == "object":
        return {name: stand_in(part) for name, part in schema.get("properties", {}).items()}
    if schema.get("type") == "array":
        return [stand_in(schema.get("items", {"type": "string"}))]
    return STAND_INS[schema.get("type", "string")]


def prompt(case: dict[str, Any], is_shown: bool) -> list[dict[str, str]]:
    """Return a request as chat messages."""
    system = f"You answer with one JSON object in this format: {json.dumps(stand_in(case['schema']))}"
    shown = [{"role": "system", "content": system}] if is_shown else []
    return [*shown, {"role": "user", "content": case["prompt"]}]


def cases(quick: bool) -> list[dict[str, Any]]:
    """Return records, calls, and a text of every family of extraction."""
    framed = [case for case in harness.workload("end_to_end") if case["family"] != "text"]
    texts: dict[str, list[dict[str, Any]]] = {}
    for case in harness.workload("extraction"):
        texts.setdefault(case["family"], []).append(case)
    return framed[:2] if quick else [*framed[::2], *(family[0] for family in texts.values())]


def observe(engine: jf.Engine, observer: Observer, case: dict[str, Any], is_shown: bool, **sampling: Any) -> list[Run]:
    """Return the forced runs of one output."""
    grammar = jf.json_schema(case["schema"])
    options = {"policy": "exact", "max_new_tokens": MAX_NEW_TOKENS, **sampling}
    request = engine._intake.request(prompt(case, is_shown), grammar, **options)
    observer.watch(engine.vocabulary, engine.compiler.compile(grammar).matcher())
    loop, tasks = engine.start([replace(request, processor=observer.hear)])
    while not loop.is_idle:
        loop.wait()
        loop.step()
    tasks[0].result()
    return observer.runs


def sampled_summary(runs: Sequence[Run]) -> dict[str, Any]:
    """Return how many drafts should have been rejected, with the standard deviation of that, and how many were."""
    masses = np.array([run.mass for run in runs])
    rejected = np.array([run.is_rejected for run in runs])
    return {
        "num_runs": len(runs),
        "mean_mass": float(masses.mean()) if runs else None,
        "expected_rejections": float(masses.sum()),
        "expected_deviation": float(np.sqrt((masses * (1 - masses)).sum())),
        "num_rejected": int(rejected.sum()),
        "expected_beyond": float(sum(run.mass_beyond for run in runs)),
        "num_rejected_beyond": sum(run.is_beyond for run in runs),
        "brier_score": float(((masses - rejected) ** 2).mean()) if runs else None,
        "brier_score_of_the_mean": float(((rejected.mean() - rejected) ** 2).mean()) if runs else None,
    }


def greedy_summary(runs: Sequence[Run]) -> dict[str, Any]:
    """Return how many drafts were rejected, and how many had a token that is not the likeliest."""
    return {
        "num_runs": len(runs),
        "num_predicted": sum(not run.is_likeliest for run in runs),
        "num_rejected": sum(run.is_rejected for run in runs),
        "num_rejected_beyond": sum(run.is_beyond for run in runs),
        "num_agreeing": sum(run.is_rejected != run.is_likeliest for run in runs),
        "expected_if_sampled": float(sum(run.mass for run in runs)),
    }


def bins(runs: Sequence[Run]) -> list[dict[str, float]]:
    """Return predicted and measured shares in bins of about as many runs, with 95 % Wilson intervals."""
    ordered = sorted(runs, key=lambda run: run.mass)
    found = []
    for part in np.array_split(np.arange(len(ordered)), NUM_BINS):
        chosen = [ordered[index] for index in part]
        if chosen:
            count = sum(run.is_rejected for run in chosen)
            low, high = binomtest(count, len(chosen)).proportion_ci(method="wilson")
            mass = float(np.mean([run.mass for run in chosen]))
            found.append(
                {"num_runs": len(chosen), "mean_mass": mass, "share_rejected": count / len(chosen)}
                | {"low": float(low), "high": float(high)}
            )
    return found


def by_document(greedy: Sequence[Sequence[Run]], sampled: Sequence[Sequence[Sequence[Run]]]) -> dict[str, Any]:
    """Return rejections a document as the greedy output predicts them, and as they were on average over seeds."""
    predicted = [sum(run.mass for run in runs if run.kind != "rest") for runs in greedy]
    measured = [
        float(np.mean([sum(run.is_rejected for run in runs if run.kind != "rest") for runs in seeds]))
        for seeds in sampled
    ]
    related = float(spearmanr(predicted, measured).statistic) if len(set(predicted)) > 1 < len(set(measured)) else None
    return {
        "mean_predicted": float(np.mean(predicted)),
        "mean_measured": float(np.mean(measured)),
        "rank_correlation": related,
        "documents": [
            {"predicted": round(each, 3), "measured": round(other, 3)}
            for each, other in zip(predicted, measured, strict=True)
        ],
    }


def measure(engine: jf.Engine, observer: Observer, requests: Sequence[Any], is_shown: bool, seeds: range) -> Any:
    """Return everything about one form of the prompt.

    Each request takes the next seeds: a position's noise hangs on the seed alone, and would be the same in all of them.
    """
    greedy, sampled = [], []
    label = "format shown" if is_shown else "plain"
    for number, case in enumerate(track(requests, label, console=harness.ERR)):
        own = [number * len(seeds) + seed for seed in seeds]
        greedy.append(observe(engine, observer, case, is_shown))
        sampled.append([observe(engine, observer, case, is_shown, temperature=1.0, seed=seed) for seed in own])
    every = [run for document in sampled for runs in document for run in runs]
    plain = [run for runs in greedy for run in runs]
    refused = Counter(run.refused for run in every if run.refused)
    return {
        "sampled": {"all": sampled_summary(every)}
        | {kind: sampled_summary([run for run in every if run.kind == kind]) for kind in KINDS},
        "greedy": {"all": greedy_summary(plain)}
        | {kind: greedy_summary([run for run in plain if run.kind == kind]) for kind in KINDS},
        "calibration": bins(every),
        "by_document": by_document(greedy, sampled),
        "refused": [{"draft": pair[0], "chosen": pair[1], "count": count} for pair, count in refused.most_common(8)],
    }


def main() -> None:
    """Measure both forms of the prompt."""
    parser = harness.parser(__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="sampled outputs of a request")
    options = parser.parse_args()
    requests = cases(options.quick)
    num_seeds = 1 if options.quick else options.seeds
    seeds = range(options.seed, options.seed + num_seeds)
    observer = Observer()
    engine = jf.Engine.from_pretrained(
        options.model,
        dtype="float32",
        drafters=["forced", observer],
        memory="off",
        pass_costs=FixedCosts(pass_s=1.0, row_s=0.0),  # rows are free, so that a draft is a whole run
    )
    results = {
        name: measure(engine, observer, requests, is_shown, seeds)
        for name, is_shown in (("plain", False), ("format shown", True))
    }
    _show(results)
    _plot(options, results)
    conditions = harness.conditions(options, num_requests=len(requests), max_new_tokens=MAX_NEW_TOKENS)
    harness.finish("noncanonical_mass", conditions, results=results)


def _show(results: dict[str, Any]) -> None:
    rows = []
    for prompt_form, found in results.items():
        for kind in ("all", *KINDS):
            drawn, greedy = found["sampled"][kind], found["greedy"][kind]
            expected = f"{drawn['expected_rejections']:.1f} ± {1.96 * drawn['expected_deviation']:.1f}"
            rows.append(
                (
                    prompt_form,
                    kind,
                    drawn["num_runs"],
                    expected,
                    drawn["num_rejected"],
                    drawn["num_rejected_beyond"],
                    greedy["num_runs"],
                    greedy["num_predicted"],
                    greedy["num_rejected"],
                )
            )
    columns = ["prompt", "runs", "number", "expected", "rejected", "beyond", "greedy: number", "predicted", "rejected"]
    harness.show("drafts of forced text that were rejected", columns, rows)
    for name, found in results.items():
        lines = [(f"{each['draft']!r}", f"{each['chosen']!r}", each["count"]) for each in found["refused"]]
        harness.show(f"{name}: refused", ["draft", "chosen", "times"], lines)


def _plot(options: Any, results: dict[str, Any]) -> None:
    """Draw measured against predicted shares."""
    with harness.plot(options, "noncanonical_mass", width=6, height=5) as axes:
        axes.plot((0, 1), (0, 1), color="#8c8c8c", linewidth=1)
        for (name, found), marker, colour in zip(
            results.items(), "os", (harness.COLOURS[0], harness.COLOURS[3]), strict=True
        ):
            points = found["calibration"]
            measured = np.array([each["share_rejected"] for each in points])
            reach = np.abs([[each["low"], each["high"]] for each in points] - measured[:, None]).T
            axes.errorbar(
                [each["mean_mass"] for each in points], measured, reach, fmt=marker, color=colour, capsize=3, label=name
            )
        axes.set_xlabel("non-canonical mass of the run under the mask (predicted)")
        axes.set_ylabel("share of drafts rejected (measured)")
        axes.legend(loc="upper left")


if __name__ == "__main__":
    main()
