"""From how many tokens on does a jump pay: what does a forward pass cost by the length of its chunk?

    python experiments/chunk_cost.py [--quick] [--contexts 128 512 2048] [--dtypes float32 bfloat16] [--rounds 9]

One row, chunks of 1 to 64 tokens behind a cache of some length. The settings take turns, and the lengths in each in an
order that is drawn anew, behind a pass that does not count, since the first one behind another setting is slow; medians
over rounds. `verified` asks for logits behind every token of the chunk, as a draft needs them; `written` behind the
last alone, as forced text does that is committed. For each setting:

  cost of n     the pass over n tokens, in passes over one token
  n singles     n divided by that: how many times faster than n passes over one token each
  to break even how many of the n - 1 draft tokens behind the first must be kept, so that the pass is no slower than
                ordinary decoding: cost of n, less 1
  line          what the engine takes a pass to cost: `a + b n`, fitted to these passes as it is while it runs, and how
                far the line is from a median at most

The curves are printed as `jumpforward report --chunk-cost` takes them. The last line of standard output is one JSON
object.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from harness import COLOURS, ERR, conditions, finish, parser, plot, show
from rich.progress import track

from jumpforward.decoding.costs import MeasuredCosts
from jumpforward.engine.pretrained import load_pretrained
from jumpforward.engine.runner import Runner
from jumpforward.report.chunk_cost import ChunkClock, ChunkCost, through_medians

LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
SHOWN = (2, 4, 8, 16, 32, 64)
HOW = ("verified", "written")
MARKERS = "osD^vx"


@dataclass
class Setting:
    """A model in one precision behind one context, and the seconds of its passes by how and length."""

    dtype: str
    num_context: int
    clock: ChunkClock
    spent: dict[str, dict[int, list[float]]] = field(default_factory=lambda: {how: {} for how in HOW})

    @property
    def name(self) -> str:
        """Its precision and context."""
        return f"{self.dtype}, {self.num_context} tokens"

    def curve(self, how: str) -> ChunkCost:
        """Return the medians."""
        return through_medians(self.spent[how], f"{self.name}, {how}")

    def result(self, how: str) -> dict[str, Any]:
        """Return the figures of one way to ask for logits."""
        curve = self.curve(how)
        line, error = self._line(how)
        return {
            "dtype": self.dtype,
            "num_context": self.num_context,
            "logits": how,
            "pass_ms": {length: round(1e3 * seconds, 3) for length, seconds in curve.points},
            "cost_in_single_passes": {length: round(cost, 3) for length, cost in relative(curve)},
            "chunk_cost_ms": curve.text(1e-3),
            "line_pass_ms": round(1e3 * line[0], 3),
            "line_token_ms": round(1e3 * line[1], 4),
            "line_max_error_share": round(error, 3),
        }

    def _line(self, how: str) -> tuple[tuple[float, float], float]:
        costs = MeasuredCosts()
        for length, times in self.spent[how].items():
            for seconds in times:
                costs.observe(length, seconds)
        pass_s, row_s = costs.now
        errors = (abs(pass_s + row_s * length - seconds) / seconds for length, seconds in self.curve(how).points)
        return (pass_s, row_s), max(errors)


def relative(curve: ChunkCost) -> list[tuple[int, float]]:
    """Return the points of a curve in passes over one token."""
    return [(length, seconds / curve.points[0][1]) for length, seconds in curve.points]


def main() -> None:
    options = _options()
    settings = list(_settings(options))
    order = random.Random(options.seed)
    for _ in track(range(options.rounds), "rounds", console=ERR, transient=True):
        for setting in settings:
            _measure(setting, order)
    _show(settings)
    _draw(options, settings)
    finish(
        "chunk_cost",
        conditions(options, contexts_measured=sorted({setting.num_context for setting in settings})),
        results=[setting.result(how) for setting in settings for how in HOW],
    )


def _options() -> argparse.Namespace:
    made = parser(__doc__)
    made.add_argument("--contexts", type=int, nargs="+", default=[128, 512, 2048])
    made.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    made.add_argument("--rounds", type=int, default=9)
    options = made.parse_args()
    if options.quick:
        options.contexts, options.rounds = [16, 64], 2
    return options


def _settings(options: argparse.Namespace) -> Iterator[Setting]:
    """Load the model in every precision; leave out contexts that it has no room for."""
    for dtype in options.dtypes:
        runner = Runner(load_pretrained(options.model, dtype, None)[0])
        for num_context in options.contexts:
            if num_context + LENGTHS[-1] > runner.max_length:
                ERR.print(f"no room for {num_context} tokens and a chunk: the model takes {runner.max_length}")
                continue
            yield Setting(dtype, num_context, ChunkClock(runner, num_context))


def _measure(setting: Setting, order: random.Random) -> None:
    """Time every length once, each way."""
    setting.clock.seconds(LENGTHS[-1])
    passes = [(how, length) for how in HOW for length in LENGTHS]
    for how, length in order.sample(passes, len(passes)):
        setting.spent[how].setdefault(length, []).append(setting.clock.seconds(length, verified=how == "verified"))


def _show(settings: list[Setting]) -> None:
    rows = [(setting, how, setting.curve(how)) for setting in settings for how in HOW]
    named = ("setting", "logits")
    show(
        "a pass, ms",
        (*named, *map(str, LENGTHS)),
        [(each.name, how, *(f"{1e3 * spent:.1f}" for _, spent in curve.points)) for each, how, curve in rows],
    )
    for title, value in (
        ("cost of n, in passes over one token", lambda _, cost: cost),
        ("times as fast as n single passes", lambda length, cost: length / cost),
        ("draft tokens that must be kept to break even", lambda _, cost: cost - 1),
    ):
        costs = [(each.name, how, dict(relative(curve))) for each, how, curve in rows]
        show(
            title,
            (*named, *map(str, SHOWN)),
            [(name, how, *(f"{value(length, cost[length]):.2f}" for length in SHOWN)) for name, how, cost in costs],
        )
    show(
        "the engine's line, and --chunk-cost in ms",
        (*named, "a, ms", "b, ms", "off by at most", "--chunk-cost"),
        [
            (
                each.name,
                how,
                row["line_pass_ms"],
                row["line_token_ms"],
                row["line_max_error_share"],
                row["chunk_cost_ms"],
            )
            for each, how, _ in rows
            for row in [each.result(how)]
        ],
    )


def _draw(options: argparse.Namespace, settings: list[Setting]) -> None:
    dtypes = list(dict.fromkeys(setting.dtype for setting in settings))
    contexts = sorted({setting.num_context for setting in settings})
    with plot(options, "chunk_cost", height=4.6) as axes:
        axes.plot(LENGTHS, LENGTHS, color="#555555", linewidth=0.8, linestyle=":", label="n single passes")
        for setting in settings:
            axes.plot(
                *zip(*relative(setting.curve("verified")), strict=True),
                color=COLOURS[dtypes.index(setting.dtype) % len(COLOURS)],
                linestyle="-" if dtypes.index(setting.dtype) == 0 else "--",
                marker=MARKERS[contexts.index(setting.num_context) % len(MARKERS)],
                markersize=5,
                label=setting.name,
            )
        axes.set(xscale="log", yscale="log", xlabel="tokens in the chunk", ylabel="cost, in passes over one token")
        axes.set_xticks(SHOWN, [str(length) for length in SHOWN])
        axes.set_yticks((1, 2, 4, 8), ("1", "2", "4", "8"))
        axes.minorticks_off()
        axes.set_ylim(0.9, 10)
        axes.legend(title="precision, context")


if __name__ == "__main__":
    main()
