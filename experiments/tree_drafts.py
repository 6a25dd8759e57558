"""Would drafts that branch pay: every alternative of a small branch drafted side by side, and the chosen one kept?

    python experiments/tree_drafts.py [--quick]

Since drafts change no output, passes and rows depend on the final tokens alone. So the model writes each output once,
and then the engine's own sources draft it again, with the engine's own rule of length, against the tokens that are
known. What the model would have chosen behind a token that it refused is not known: where the text there is the
output's own, in other tokens, the same next token is taken.

- **linear**: the drafts as they are.
- **end**: where a draft ends for want of a bid, and the grammar leaves at most B texts there (values of an enum, true
  and false, the next optional key or the end of the object), each of them is drafted, with the text that it forces
  behind it. Alternatives share the rows that they have in common.
- **every**: the same also beside every guess of the draft.
- **oracle**: only where the draft really fails, which nobody knows beforehand: a bound on what any choice of places
  can bring.

With R rows added for a pass saved, a tree pays where a row costs less than 1/R of a pass: the break-even ratio.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import harness
import numpy as np
import xgrammar
from rich.progress import track

import jumpforward as jf
from jumpforward.decoding.boundary import Boundary
from jumpforward.decoding.costs import FixedCosts
from jumpforward.decoding.drafter import DraftRequest
from jumpforward.decoding.drafts import Draft, DraftBuilder
from jumpforward.decoding.masks import DraftMasks
from jumpforward.decoding.sampling import Sampler, SamplingOptions
from jumpforward.engine.drafting import Drafting
from jumpforward.engine.prefixes import num_common
from jumpforward.engine.prompt import encode_prompt
from jumpforward.matching.matcher import Matcher
from jumpforward.stats import Counters
from jumpforward.vocab.borders import StableBorders
from jumpforward.vocab.encoder import PlainEncoder

# What a row costs, in passes, on two cores; measured by end_to_end.py and drafting.py.
RATIOS = {"bfloat16": 0.55 / 57.5, "float32": 0.1}
WORKLOADS = ("records", "calls", "text", "extraction")
SIZES = (2, 3, 4, 8)
PLACES = ("end", "every", "oracle")
MAX_NEW_TOKENS = 200
MAX_TEXT = 64  # bytes of an alternative
NUM_OF_DOMAIN = 5  # texts of each domain of extraction

Case = dict[str, Any]
Path = Sequence[int]  # tokens
Tally = Counter[str]  # tokens, passes, rows of linear drafts, and tree rows besides


def main() -> None:
    options = harness.parser(__doc__, draws=False).parse_args()
    cases = load(options)
    engine = jf.Engine.from_pretrained(options.model, dtype="float32", pass_costs=costs("bfloat16"))
    for case in track(cases, "outputs", console=harness.ERR):
        record(engine, case, 60 if options.quick else MAX_NEW_TOKENS)
    results = {dtype: measure(engine, cases, dtype) for dtype in RATIOS}
    for dtype, found in results.items():
        show(dtype, found)
    draw(options, results["bfloat16"])
    harness.finish(
        "tree_drafts",
        harness.conditions(options, num_requests=len(cases), row_cost_in_passes=RATIOS),
        results=results,
        num_engine_passes={name: sum(case["num_passes"] for case in of(cases, name)) for name in WORKLOADS},
    )


def costs(dtype: str) -> FixedCosts:
    return FixedCosts(1.0, RATIOS[dtype])


def load(options: argparse.Namespace) -> list[Case]:
    """Return requests, each with its workload and its grammar."""
    cases = [case | {"workload": case["family"]} for case in harness.workload("end_to_end")]
    extraction = [case | {"workload": "extraction"} for case in harness.workload("extraction")]
    for family in dict.fromkeys(case["family"] for case in extraction):
        cases += [case for case in extraction if case["family"] == family][:NUM_OF_DOMAIN]
    if options.quick:
        cases = [of(cases, workload)[0] for workload in WORKLOADS]
    return [case | {"grammar": jf.json_schema(case["schema"])} for case in cases]


def of(cases: Sequence[Case], workload: str) -> list[Case]:
    return [case for case in cases if case["workload"] == workload]


def record(engine: jf.Engine, case: Case, max_new_tokens: int) -> None:
    """Add the prompt's tokens, the model's output, and the passes it took, to a request."""
    prompt = [{"role": "user", "content": case["prompt"]}]
    engine.memory.clear()
    result = engine.generate(prompt, case["grammar"], max_new_tokens=max_new_tokens)
    case["prompt_ids"] = encode_prompt(prompt, engine.tokenizer, 2**31)
    case["output_ids"] = result.token_ids
    case["num_passes"] = result.stats.num_forward_passes


def alternatives(matcher: Matcher, most: int) -> list[bytes]:
    """Return the texts with which a small branch goes on; none at a wide one.

    They end where the next branches are, or, where those fit in too, where the ones behind them are.
    """
    found: list[bytes] = []
    level = [b""]
    while len(level) <= most and level != found:
        found, level = level, [longer for text in level for longer in split(matcher, text)]
    return found if len(found) > 1 else []


def split(matcher: Matcher, text: bytes) -> list[bytes]:
    """Return ``text`` with each byte that may follow, and what that forces; itself where nothing may."""
    live = matcher.live_bytes(text) if len(text) < MAX_TEXT else b""
    return [forced_from(matcher, text + bytes([byte])) for byte in live] or [text]


def forced_from(matcher: Matcher, text: bytes) -> bytes:
    """Return ``text`` and what is forced behind it."""
    while len(text) < MAX_TEXT and len(live := matcher.live_bytes(text)) == 1:
        text += live
    return text


class Kind(NamedTuple):
    """What is drafted."""

    place: str | None
    most: int


class Replay:
    """One request, drafted again."""

    def __init__(self, engine: jf.Engine, drafting: Drafting, boundary: Boundary, case: Case, kind: Kind) -> None:
        """Draft ``kind.most`` alternatives at places of ``kind.place``; linear drafts where that is None."""
        greedy = SamplingOptions()
        self.kind = kind
        self.truth = case["output_ids"]
        self.output: list[int] = []
        self.vocabulary = engine.vocabulary
        self.boundary = boundary
        self.matcher = engine.compiler.compile(case["grammar"]).matcher()
        self.builder = DraftBuilder(
            drafting.drafters,
            DraftRequest(case["prompt_ids"], case["grammar"], engine.vocabulary, Sampler(greedy)),
            drafting.paces.of(greedy),
            Counters(),
            skips_certain=True,
            max_draft=engine.max_draft,
        )
        self.tally: Tally = Counter(tokens=len(self.truth))

    def run(self) -> Tally:
        """Draft until the output is there; return what that took."""
        masks = DraftMasks(xgrammar.allocate_token_bitmask(self.builder.max_draft + 1, self.vocabulary.width))
        self.matcher.live_bytes()  # from here on it is walked by bytes too
        while rest := self.truth[len(self.output) :]:
            draft = self.builder.build(self.output, self.matcher, masks, len(rest))
            masks.complete(draft.tokens, self.matcher)
            self.settle(draft, rest)
        return self.tally

    def settle(self, draft: Draft, rest: Path) -> None:
        num_right = num_common(draft.tokens, rest)
        num_kept = num_right
        if draft.open_rows:
            self.tally["passes"] += 1
            self.tally["rows"] += draft.open_rows[-1] + 1
            if num_right < len(draft.tokens) or draft.has_next:
                num_kept += 1
            if self.kind.place is not None:
                num_kept = max(num_kept, self.grow(draft, rest, num_right))
        num_kept = min(num_kept, len(rest))
        choices = {row: self.choice(draft, rest, row, num_right) for row in draft.open_rows}
        self.output += rest[:num_kept]
        for token in rest[:num_kept]:
            self.matcher.consume(token)
        self.builder.learn(draft, self.output, choices, num_kept, scores={})

    def choice(self, draft: Draft, rest: Path, row: int, num_right: int) -> int | None:
        """Return the model's choice at a row, as far as it is known."""
        if row <= num_right:
            return rest[row] if row < len(rest) else None
        text_bytes = self.vocabulary.text_bytes
        wanted, behind = text_bytes(draft.tokens[:row]), b""
        for token in rest:
            if behind == wanted:
                return token
            behind += text_bytes([token])
        return None

    def grow(self, draft: Draft, rest: Path, num_right: int) -> int:
        """Add trees to a draft, and return how many tokens the output gets by the best of them."""
        best = 0
        for start, paths in self.trees(draft, num_right):
            linear = draft.tokens[start:]
            nodes = {tuple(path[:end]) for path in paths for end in range(1, len(path) + 1)}
            nodes -= {tuple(linear[:end]) for end in range(1, len(linear) + 1)}
            self.tally["tree_rows"] += len(nodes)
            if start <= num_right:
                best = max(best, *(start + num_common(path, rest[start:]) + 1 for path in paths))
        return best

    def trees(self, draft: Draft, num_right: int) -> Iterator[tuple[int, list[Path]]]:
        """Give places in a draft, and the alternatives there."""
        ahead = self.matcher.fork()
        output = list(self.output)
        for start in range(len(draft.tokens) + draft.has_next):
            is_end = start == len(draft.tokens)
            wanted = {"end": is_end, "every": True, "oracle": start == num_right}
            if wanted[str(self.kind.place)]:
                texts = alternatives(ahead, self.kind.most)
                paths = [self.boundary.spell(output, text).ids for text in texts]
                if paths := [path for path in paths if path]:
                    yield start, paths
            if not is_end:
                ahead.consume(draft.tokens[start])
                output.append(draft.tokens[start])


def measure(engine: jf.Engine, cases: Sequence[Case], dtype: str) -> dict[str, Any]:
    """Return by workload what linear drafts take, and every kind of tree."""
    kinds = [Kind(place, most) for place in PLACES for most in SIZES]
    linear = replay(engine, cases, dtype, Kind(None, 0))
    trees = {kind: replay(engine, cases, dtype, kind) for kind in track(kinds, dtype, console=harness.ERR)}
    return {
        workload: {
            "num_requests": len(of(cases, workload)),
            "num_output_tokens": before["tokens"],
            "passes_per_token": before["passes"] / before["tokens"],
            "rows_per_pass": before["rows"] / max(1, before["passes"]),
            "trees": {f"{place} {most}": summary(trees[place, most][workload], before, dtype) for place, most in kinds},
        }
        for workload, before in linear.items()
    }


def replay(engine: jf.Engine, cases: Sequence[Case], dtype: str, kind: Kind) -> dict[str, Tally]:
    """Draft every request again, with nothing left from the one before; return what that took by workload."""
    encoder = PlainEncoder(engine.tokenizer, engine.vocabulary)
    boundary = Boundary(encoder, StableBorders(engine.tokenizer, engine.vocabulary))
    drafting = Drafting(boundary, engine.compiler, pass_costs=costs(dtype))
    tallies = {workload: Counter() for workload in WORKLOADS}
    for case in cases:
        drafting.memory.clear()
        tallies[case["workload"]] += Replay(engine, drafting, boundary, case, kind).run()
    return tallies


def summary(tree: Tally, linear: Tally, dtype: str) -> dict[str, float | None]:
    saved = linear["passes"] - tree["passes"]
    added = tree["rows"] + tree["tree_rows"] - linear["rows"]
    ratio = RATIOS[dtype]
    before, after = linear["passes"] + ratio * linear["rows"], tree["passes"] + ratio * (linear["rows"] + added)
    return {
        "passes_saved_percent": 100 * saved / max(1, linear["passes"]),
        "rows_added_percent": 100 * added / max(1, linear["rows"]),
        "break_even_row_in_passes": saved / added if added > 0 else None,
        "predicted_time_percent": 100 * (after / before - 1),
    }


def show(dtype: str, found: dict[str, Any]) -> None:
    columns = ("workload", "passes / token", "place", "B", "passes saved, %", "rows added, %", "break-even", "time, %")
    rows = [
        (workload, row["passes_per_token"], *kind.split(), *tree.values())
        for workload, row in found.items()
        for kind, tree in row["trees"].items()
    ]
    harness.show(f"a row costs {RATIOS[dtype]:.3f} passes ({dtype})", columns, rows)


def draw(options: argparse.Namespace, found: dict[str, Any]) -> None:
    """Draw the predicted change in time over the price of a row: above 0 a tree is slower than no tree."""
    prices = np.logspace(-3, -0.7, 60)
    with harness.plot(options, "tree_drafts") as axes:
        styles = zip(found.items(), harness.COLOURS, ("-", "--", "-.", ":"), strict=False)
        for (workload, row), colour, dashes in styles:
            for kind, width in (("end 4", 2.2), ("oracle 4", 1.0)):
                tree, rows = row["trees"][kind], prices * row["rows_per_pass"]  # rows in passes, by linear drafts
                after = 1 - tree["passes_saved_percent"] / 100 + rows * (1 + tree["rows_added_percent"] / 100)
                change = 100 * (after / (1 + rows) - 1)
                axes.plot(prices, change, dashes, color=colour, linewidth=width, label=f"{workload}, {kind}")
        for dtype, ratio in RATIOS.items():
            axes.axvline(ratio, color="#444444", linewidth=0.8)
            axes.annotate(dtype, (ratio, 1), xycoords=("data", "axes fraction"), fontsize=8, ha="center", va="bottom")
        axes.axhline(0, color="#444444", linewidth=0.8)
        axes.set(xscale="log", xlabel="price of a row, in passes", ylabel="predicted change in time, %")
        axes.legend(fontsize=8)


if __name__ == "__main__":
    main()
