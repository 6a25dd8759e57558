"""Masking, interleaving, jumping forward: what does each take for the same records, and what do borders change?

    python experiments/three_methods.py [--quick] [--cases 4]

Requests whose schemas leave nothing open but the values: records, function calls without their optional parameters,
and two domains of extraction (the first `--cases` texts of each). Greedy, float32, by

  masked       a mask over the tokens, one pass a token: the way of finite-state machines
  interleaved  a program of known text and holes (programs.py): known text is encoded by itself and fed as a chunk, each
               hole is generated under a grammar of its own up to its closing character, and no token lies across
  exact        jumping forward, forced text verified by the model; drafts of forced text only
  canonical    jumping forward, stable forced text written without asking; drafts of forced text only
  exact, all   `exact` with every source of drafts, the default

Positions with one legal token take no pass, save under `masked`. A border is where a hole begins, and where it ends
behind its closing character. For every text that each method finished: how many borders have a token of its own across
them, and how many a canonical one; and how many strings are as long as they may be. At every position of interleaving
the likeliest token under the whole record's grammar is looked at too: `denied` are those that its hole does not permit.

Passes are counted with the costs of a pass held fixed, so that no clock has a part in them. Seconds are of one run
each, without compiling; they are secondary. The last line of standard output is one JSON object.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from harness import COLOURS, ERR, conditions, finish, parser, plot, show, workload
from programs import Interleaved, Interleaver, Program, across, program, required_only
from rich.progress import track

import jumpforward as jf
from jumpforward.bench import run_method
from jumpforward.decoding.costs import FixedCosts
from jumpforward.engine.prompt import encode_prompt
from jumpforward.engine.text import whole_characters

COSTS = FixedCosts(pass_s=0.03, row_s=0.003)  # of float32 on two cores
METHODS = ("masked", "interleaved", "exact", "canonical", "exact, all")
HATCHES = ("", "//", "..", "xx", "--")
MAX_NEW_TOKENS = 200
NUM_EXAMPLES = 6


@dataclass
class Case:
    """A request."""

    family: str
    name: str
    prompt: list[dict[str, str]]
    grammar: jf.Grammar
    program: Program


@dataclass
class Output:
    """What a method made of it. ``values`` is None where it did not finish."""

    case: Case
    method: str
    text: str
    token_ids: list[int]
    num_passes: int
    seconds: float
    values: list[str] | None
    own_across: list[int | None]  # for each border, the token of this output that lies across it
    canonical_across: list[int | None]
    interleaved: Interleaved | None


class Methods:
    """Runs a request by every method."""

    def __init__(self, model: str | None) -> None:
        self.forced = jf.Engine.from_pretrained(model, dtype="float32", drafters=["forced"], pass_costs=COSTS)
        self.all = jf.Engine(self.forced.model, self.forced.tokenizer, pass_costs=COSTS)
        self.interleaver = Interleaver(self.forced)
        self.token_bytes = self.forced.vocabulary.token_bytes

    def run(self, case: Case, method: str) -> Output:
        """Run one method once."""
        if method == "interleaved":
            prompt_ids = encode_prompt(case.prompt, self.forced.tokenizer, self.interleaver.runner.max_length)
            found = self.interleaver.run(prompt_ids, case.program, case.grammar, MAX_NEW_TOKENS)
            return self._output(case, method, found.token_ids, found.num_forward_passes, found.seconds, found)
        engine = self.all if method == "exact, all" else self.forced
        outcome = run_method(engine, method.removesuffix(", all"), case.prompt, case.grammar, MAX_NEW_TOKENS)
        seconds = outcome.seconds - outcome.result.stats.compile_s
        ids = [token for token in outcome.token_ids if self.token_bytes[token]]
        return self._output(case, method, ids, outcome.num_forward_passes, seconds)

    def _output(
        self, case: Case, method: str, ids: list[int], num_passes: int, seconds: float, found: Interleaved | None = None
    ) -> Output:
        data = self.forced.vocabulary.text_bytes(ids)
        text = whole_characters(data)
        spans = case.program.values(text)
        values = None if spans is None else [data[start:stop].decode() for start, stop in spans]
        borders = [place for start, stop in spans or () for place in (start, stop + 1) if place < len(data)]
        own = across(ids, borders, self.token_bytes)
        ids_of_text = self.interleaver.encoder.encode(data) or ()
        canonical = across(ids_of_text, borders, self.token_bytes)
        return Output(case, method, text, ids, num_passes, seconds, values, own, canonical, found)


def main() -> None:
    options = _options()
    methods = Methods(options.model)
    cases = list(_cases(options))
    outputs = [
        methods.run(case, method)
        for case in track(cases, "requests", console=ERR, transient=True)
        for method in METHODS
    ]
    families = {family: _family(outputs, family) for family in dict.fromkeys(case.family for case in cases)}
    families["all"] = _family(outputs, None)
    borders = _borders(outputs, methods.token_bytes)
    _show(families, borders)
    _draw(options, families)
    finish(
        "three_methods",
        conditions(options, num_cases=len(cases), max_new_tokens=MAX_NEW_TOKENS, costs=vars(COSTS)),
        families=families,
        borders=borders,
        examples=list(_examples(outputs))[:NUM_EXAMPLES],
    )


def _options() -> argparse.Namespace:
    made = parser(__doc__, draws=False)
    made.add_argument("--cases", type=int, default=4, help="texts of each domain of extraction")
    options = made.parse_args()
    options.cases = 1 if options.quick else options.cases
    return options


def _cases(options: argparse.Namespace) -> Iterable[Case]:
    all_of_them = 1 if options.quick else None
    most = {"records": all_of_them, "calls": all_of_them, "orders": options.cases, "incidents": options.cases}
    rows = [*workload("end_to_end"), *workload("extraction")]
    for family, count in most.items():
        for row in [row for row in rows if row["family"] == family][:count]:
            schema = required_only(row["schema"])
            prompt = [{"role": "user", "content": row["prompt"]}]
            yield Case(family, row["name"], prompt, jf.json_schema(schema), program(schema))


def _family(outputs: Sequence[Output], family: str | None) -> dict[str, dict[str, Any]]:
    chosen = [output for output in outputs if family in (output.case.family, None)]
    masked = {output.case.name: output for output in chosen if output.method == "masked"}
    return {method: _summary([each for each in chosen if each.method == method], masked) for method in METHODS}


def _summary(outputs: Sequence[Output], masked: dict[str, Output]) -> dict[str, Any]:
    others = [masked[output.case.name] for output in outputs]
    both = [
        (own.values, other.values)
        for own, other in zip(outputs, others, strict=True)
        if own.values is not None and other.values is not None
    ]
    found = {
        "num_cases": len(outputs),
        "num_finished": sum(output.values is not None for output in outputs),
        "num_output_tokens": sum(len(output.token_ids) for output in outputs),
        "num_forward_passes": sum(output.num_passes for output in outputs),
        "passes_ratio_to_masked": sum(output.num_passes for output in outputs)
        / sum(each.num_passes for each in others),
        "seconds": round(sum(output.seconds for output in outputs), 3),
        "num_texts_equal_masked": sum(own.text == other.text for own, other in zip(outputs, others, strict=True)),
        "num_values": sum(len(own) for own, _ in both),
        "num_values_equal_masked": sum(one == two for own, other in both for one, two in zip(own, other, strict=True)),
    }
    found["num_values_full"] = sum(
        output.case.program.num_full(output.values) for output in outputs if output.values is not None
    )
    programs = [output.interleaved for output in outputs if output.interleaved is not None]
    if programs:
        names = ("num_known", "num_certain", "num_denied", "num_denied_closed")
        found |= {name: sum(getattr(each, name) for each in programs) for name in names}
    return found


def _borders(outputs: Sequence[Output], token_bytes: Sequence[bytes]) -> dict[str, Any]:
    """Return what lies across the borders of finished texts, by method; and what interleaving refused."""
    found: dict[str, Any] = {}
    for method in METHODS:
        chosen = [output for output in outputs if output.method == method and output.canonical_across]
        found[method] = {
            "num_borders": sum(len(output.canonical_across) for output in chosen),
            "num_canonical_across": sum(token is not None for output in chosen for token in output.canonical_across),
            "num_own_across": sum(token is not None for output in chosen for token in output.own_across),
            "canonical_across": _named((output.canonical_across for output in chosen), token_bytes),
            "own_across": _named((output.own_across for output in chosen), token_bytes),
        }
    denied = [output.interleaved.denied for output in outputs if output.interleaved is not None]
    found["interleaved"]["denied"] = _named(denied, token_bytes)
    return found


def _named(lists: Iterable[Sequence[int | None]], token_bytes: Sequence[bytes]) -> dict[str, int]:
    counts = Counter(
        token_bytes[token].decode(errors="replace") for tokens in lists for token in tokens if token is not None
    )
    return dict(counts.most_common())


def _examples(outputs: Sequence[Output]) -> Iterable[dict[str, str]]:
    """Give the values in which interleaving and masking differ first, request by request."""
    masked = {output.case.name: output for output in outputs if output.method == "masked"}
    for output in outputs:
        other = masked[output.case.name]
        if output.method != "interleaved" or output.values is None or other.values is None:
            continue
        pairs = zip(other.values, output.values, strict=True)
        first = next(((theirs, own) for theirs, own in pairs if theirs != own), None)
        if first is not None:
            yield {"case": output.case.name, "masked": first[0], "interleaved": first[1]}


def _show(families: dict[str, dict[str, dict[str, Any]]], borders: dict[str, Any]) -> None:
    columns = (
        "finished",
        "tokens",
        "passes",
        "/ masked",
        "seconds",
        "texts = masked",
        "values = masked",
        "full length",
    )
    show(
        "the same requests by each method",
        ("family", "method", *columns),
        [
            (
                family,
                method,
                f"{row['num_finished']} of {row['num_cases']}",
                row["num_output_tokens"],
                row["num_forward_passes"],
                row["passes_ratio_to_masked"],
                f"{row['seconds']:.1f}",
                row["num_texts_equal_masked"],
                f"{row['num_values_equal_masked']} of {row['num_values']}",
                row["num_values_full"],
            )
            for family, methods in families.items()
            for method, row in methods.items()
        ],
    )
    show(
        "borders of finished texts with a token across",
        ("method", "borders", "canonical", "its own", "which canonical", "which of its own"),
        [
            (
                method,
                row["num_borders"],
                row["num_canonical_across"],
                row["num_own_across"],
                *(_most(row[name]) for name in ("canonical_across", "own_across")),
            )
            for method, row in borders.items()
        ],
    )
    own = borders["interleaved"] | families["all"]["interleaved"]
    ERR.print(
        f"interleaving refused the likeliest token at {own['num_denied']} places: {_most(own['denied'])}; "
        f"at {own['num_denied_closed']} of them it closed the hole all the same",
        markup=False,
    )


def _most(counts: dict[str, int]) -> str:
    return "  ".join(f"{text!r} {count}" for text, count in list(counts.items())[:6])


def _draw(options: argparse.Namespace, families: dict[str, dict[str, dict[str, Any]]]) -> None:
    width = 0.8 / len(METHODS)
    with plot(options, "three_methods") as axes:
        for index, (method, colour, hatch) in enumerate(zip(METHODS, COLOURS, HATCHES, strict=False)):
            shares = [methods[method]["passes_ratio_to_masked"] for methods in families.values()]
            places = [at + (index - (len(METHODS) - 1) / 2) * width for at in range(len(families))]
            bars = axes.bar(
                places, shares, width, color=colour, hatch=hatch, edgecolor="white", linewidth=0.5, label=method
            )
            axes.bar_label(bars, fmt="%.2f", fontsize=7)
        axes.set_xticks(range(len(families)), families)
        axes.set(ylabel="forward passes / masked")
        axes.legend(ncols=len(METHODS), loc="upper center", bbox_to_anchor=(0.5, 1.15))


if __name__ == "__main__":
    main()
