"""What does one spelling of a key cost, and what does it do to the tokens behind it?

    python experiments/spellings.py [FOLDER] [--quick] [--keys 36] [--spellings 16]

A key of a JSON document can be written in many tokens: `name` in eight ways with SmolLM2's. Behind the same text each
spelling has a log-probability of its own, and leaves the model in another state. Contexts are a request for a person
with `name` to come next in four places, and beginnings of real documents: valid instances of the schemas in FOLDER
(see tests/documents.py for where it is by default), drawn with a fixed seed, and cut in front of one key each. Of a
key's spellings the canonical one and all with two tokens are taken, and others drawn, up to the number given.

Measured without a mask, each spelling against the canonical one: the log-probability that it costs, and the model's
next-token distribution behind the key, and behind the `":` that follows: KL divergence of the spelling's distribution
from the canonical one's, in nats, and whether the likeliest token is another (a flip).

Length and place are told apart by tables of both, and by a linear model of log KL with a level for each context. More
tokens also move all that follows to later positions: `padding` is the canonical spelling with so many line breaks more
behind the context's first token, against the canonical one without. Intervals are 95 % bootstraps over contexts. The
last line of standard output is one JSON object.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import harness
import numpy as np
from key_spellings import PADDINGS, PLACES, Measurement, Spelling, places
from rich.progress import track

import jumpforward as jf

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from documents import FOLDER

NUM_RESAMPLES = 1000
MEASURES = ("kl_behind_key_nats", "kl_behind_colon_nats")


def interval(
    groups: Sequence[Sequence[Any]], statistic: Callable[[list[Any]], float], seed: int
) -> dict[str, float | int]:
    """Return a statistic of pooled groups and its 95 % bootstrap interval over groups."""
    groups = [group for group in groups if group]
    pooled = [each for group in groups for each in group]
    if not pooled:
        return {"num": 0}
    generator = np.random.default_rng(seed)
    drawn_groups = generator.integers(len(groups), size=(NUM_RESAMPLES, len(groups)))
    values = [statistic([each for index in row for each in groups[index]]) for row in drawn_groups]
    low, high = np.quantile(values, (0.025, 0.975))
    return {"num": len(pooled), "value": statistic(pooled), "low": float(low), "high": float(high)}


def summary(groups: Sequence[Sequence[Spelling]], seed: int) -> dict[str, Any]:
    """Return the medians and shares of a group of spellings, grouped by place."""
    median = {
        name: interval(
            groups, lambda pooled, name=name: float(np.median([getattr(each, name) for each in pooled])), seed
        )
        for name in ("cost_nats", *MEASURES)
    }
    share = {
        name: interval(groups, lambda pooled, name=name: float(np.mean([getattr(each, name) for each in pooled])), seed)
        for name in ("flips_behind_key", "flips_behind_colon")
    }
    return {"median": median, "share": share}


def slopes(groups: Sequence[Sequence[Spelling]], name: str, seed: int) -> dict[str, Any]:
    """Return by what KL is multiplied an extra token, and from a first seam at the key's start to one at its end."""
    centred = [np.array(_rows(group, name)) for group in groups if len(group) > 1]
    lines = [list(rows - rows.mean(axis=0)) for rows in centred]

    def slope(column: int) -> Callable[[list[Any]], float]:
        def fitted(pooled: list[Any]) -> float:
            rows = np.array(pooled)
            return float(np.exp(np.linalg.lstsq(rows[:, :2], rows[:, 2], rcond=None)[0][column]))

        return fitted

    return {
        "factor_an_extra_token": interval(lines, slope(0), seed),
        "factor_from_start_to_end": interval(lines, slope(1), seed),
    }


def _rows(group: Sequence[Spelling], name: str) -> list[list[float]]:
    least = 1e-9  # nats; a KL of rounding errors is no effect
    return [
        [each.num_extra_tokens, each.first_seam_share, float(np.log(max(getattr(each, name), least)))] for each in group
    ]


STRATA: dict[str, Callable[[Spelling], bool]] = {
    "all but the canonical one": lambda each: True,  # noqa: ARG005
    "0 or fewer extra tokens": lambda each: each.num_extra_tokens <= 0,
    "1 extra token": lambda each: each.num_extra_tokens == 1,
    "2 extra tokens": lambda each: each.num_extra_tokens == 2,
    "3 extra tokens": lambda each: each.num_extra_tokens == 3,
    "4 or more": lambda each: each.num_extra_tokens >= 4,
    "1 extra, first seam in the first third": lambda each: each.num_extra_tokens == 1 and each.first_seam_share < 1 / 3,
    "1 extra, in the second": lambda each: each.num_extra_tokens == 1 and 1 / 3 <= each.first_seam_share < 2 / 3,
    "1 extra, in the last": lambda each: each.num_extra_tokens == 1 and each.first_seam_share >= 2 / 3,
}


def main() -> None:
    """Measure every place."""
    options = _options()
    measurement = Measurement(
        jf.Engine.from_pretrained(options.model, dtype="float32"), options.spellings, options.seed
    )
    chosen = places(measurement.engine, measurement.encoder, options.folder, options.keys, options.seed)
    found = [measurement.place(place) for place in track(chosen, console=harness.ERR)]
    groups = [each["spellings"] for each in found]
    results = {
        "strata": {
            name: summary([[each for each in group if fits(each)] for group in groups], options.seed)
            for name, fits in STRATA.items()
        },
        "slopes": {name: slopes(groups, name, options.seed) for name in ("kl_behind_key_nats", "kl_behind_colon_nats")},
        "padding": {
            str(count): {
                name: interval([[each["padding"][count][name]] for each in found], _median, options.seed)
                for name in MEASURES
            }
            for count in PADDINGS
        },
        "name": [
            {"place": place.label, **each, "spellings": [asdict(one) for one in each["spellings"]]}
            for place, each in zip(chosen, found, strict=True)
            if place.label in PLACES
        ],
        "keys": [{key: each[key] for key in each if key != "spellings"} for each in found[len(PLACES) :]],
    }
    _show(results)
    _plot(options, groups, results)
    conditions = {**harness.conditions(options, num_places=len(chosen)), "folder": options.folder.name}
    harness.finish("spellings", conditions, results=results)


def _options() -> Any:
    parser = harness.parser(__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER)
    parser.add_argument("--keys", type=int, default=36, help="real documents, one key each")
    parser.add_argument("--spellings", type=int, default=16, help="the most of a key")
    options = parser.parse_args()
    if options.quick:
        options.keys, options.spellings = 2, 6
    return options


def _median(values: list[float]) -> float:
    return float(np.median(values))


def _show(results: dict[str, Any]) -> None:
    for row in results["name"]:
        lines = [
            ("·".join(row["canonical_pieces"]), f"{row['canonical_logprob_nats']:.2f}", "", "", "", ""),
            *(
                (
                    "·".join(each["pieces"]),
                    f"-{each['cost_nats']:.2f}",
                    f"{each['kl_behind_key_nats']:.3f}",
                    each["flips_behind_key"],
                    f"{each['kl_behind_colon_nats']:.3f}",
                    each["flips_behind_colon"],
                )
                for each in row["spellings"]
            ),
        ]
        harness.show(f"name: {row['place']}", ["spelling", "nats", "KL", "flips", 'KL behind ":', "flips"], lines)
    columns = ["spellings", "number", "cost, nats", "KL", "flips", 'KL behind ":', "flips"]
    rows = [
        (
            name,
            each["median"]["cost_nats"]["num"],
            *(_cell(each["median"]["cost_nats"]), _cell(each["median"]["kl_behind_key_nats"])),
            *(_cell(each["share"]["flips_behind_key"]), _cell(each["median"]["kl_behind_colon_nats"])),
            _cell(each["share"]["flips_behind_colon"]),
        )
        for name, each in results["strata"].items()
    ]
    rows += [
        (
            f"padding of {count}",
            each[MEASURES[0]]["num"],
            "",
            _cell(each[MEASURES[0]]),
            "",
            _cell(each[MEASURES[1]]),
            "",
        )
        for count, each in results["padding"].items()
    ]
    harness.show("medians and shares, 95 % intervals", columns, rows)
    for name, each in results["slopes"].items():
        harness.show(name, ["factor", "value"], [(factor, _cell(value)) for factor, value in each.items()])


def _cell(each: dict[str, float | int]) -> str:
    return f"{each['value']:.3f} ({each['low']:.3f} to {each['high']:.3f})" if each["num"] else "none"


def _plot(options: Any, groups: Sequence[Sequence[Spelling]], results: dict[str, Any]) -> None:
    """Draw what a spelling costs against what it does behind the key, by its number of tokens."""
    kinds = {"no extra token": (-99, 0), "1": (1, 1), "2": (2, 2), "3 and more": (3, 99)}
    every = [each for group in groups for each in group]
    with harness.plot(options, "spellings", height=5) as axes:
        for (label, (least, most)), marker, colour in zip(kinds.items(), "sox^", harness.COLOURS, strict=False):
            chosen = [each for each in every if least <= each.num_extra_tokens <= most]
            axes.plot(
                [each.cost_nats for each in chosen],
                [max(each.kl_behind_key_nats, 1e-6) for each in chosen],
                marker,
                color=colour,
                markersize=4,
                alpha=0.7,
                label=label,
            )
        floor = results["padding"][str(PADDINGS[-1])][MEASURES[0]]
        axes.axhline(floor["value"], color="#444444", linestyle="--", linewidth=1)
        axes.text(1.0, floor["value"], f" padding of {PADDINGS[-1]}", transform=axes.get_yaxis_transform(), va="center")
        axes.set_yscale("log")
        axes.set_xlabel("log-probability lost against the canonical spelling, nats")
        axes.set_ylabel("KL of the next token behind the key, nats")
        axes.legend(title="extra tokens", loc="lower right", bbox_to_anchor=(1.0, 0.06))


if __name__ == "__main__":
    main()
