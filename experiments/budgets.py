"""Is constrained output valid where the budget of tokens is short? Shape is not length.

    python experiments/budgets.py [--quick] [--num-texts 48]

The texts of extraction_texts.py, greedy, at budgets of 8 to 96 tokens, behind prompts that show no JSON (none), or an
example with its answer as an earlier turn of the chat (turn):

  unconstrained       any text; its document is the first JSON object in it, wherever that begins: prose and code
                      fences around it are forgiven
  fixed               the schema's grammar with `, ` and `: `
  flexible            the same, whitespace left to the model
  ensured             a regex of the same documents with `ensure_complete`: only tokens are legal behind which the
                      output can still be completed within the budget; a budget below the shortest document is refused

An output is valid where its document parses and jsonschema finds it to be one of the schema. Shares are of all
attempts, and of those that finished: where the model wrote the end token. A document that is complete when its budget
ends is valid, and not finished. Intervals are exact (Clopper-Pearson).

Since decoding is greedy, a smaller budget gives the beginning of what a larger one gives, so that one run at the
largest is enough. `ensured` runs again at each budget into which its document does not fit; where it fits, every token
of it was legal under the smaller budget too, and legal tokens are among those of the larger one. Both are checked on
some texts. The last line of standard output is one JSON object.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from extraction_texts import FAMILIES, Text, texts
from harness import COLOURS, conditions, finish, parser, plot, show
from jsonschema import Draft202012Validator
from paired import share

import jumpforward as jf

BUDGETS = (8, 16, 20, 24, 28, 32, 36, 40, 48, 64, 96)
QUICK_BUDGETS = (8, 40, 56)
BATCH_SIZE = 48
NUM_CHECKED = 6
CHECKED_BUDGET = 40
STYLES = {"unconstrained": ("x", ":"), "fixed": ("o", "-"), "flexible": ("s", "--"), "ensured": ("^", "-.")}
ANY_TEXT = jf.regex(r"[\s\S]*")


@dataclass(frozen=True)
class Attempt:
    """What came of one text within one budget: tokens, the document in them, and whether an end token is the last."""

    text: Text
    ids: tuple[int, ...]
    document: Any
    has_ended: bool

    @property
    def is_valid(self) -> bool:
        """Whether there is a document, and it is one of the schema."""
        return self.document is not None and Draft202012Validator(self.text.family.schema).is_valid(self.document)

    @property
    def num_right(self) -> int:
        """How many fields are right."""
        return sum(self.text.right(self.document).values())


class Budgets:
    """The task on one engine."""

    def __init__(self, model: str | None, cases: Sequence[Text], budgets: Sequence[int]) -> None:
        self.engine = jf.Engine.from_pretrained(model, dtype="float32", memory="off", drafters=())
        self.cases = cases
        self.budgets = budgets
        whitespaces: tuple[Any, ...] = ("fixed", "flexible")
        self._grammars = {
            "unconstrained": dict.fromkeys((family.name for family in FAMILIES), ANY_TEXT),
            "ensured": {family.name: jf.regex(family.pattern) for family in FAMILIES},
            **{
                whitespace: {family.name: jf.json_schema(family.schema, whitespace=whitespace) for family in FAMILIES}
                for whitespace in whitespaces
            },
        }

    def attempts(self, method: str, shown: str) -> dict[int, list[Attempt]]:
        """Return attempts by budget, from the largest on, in the order of the texts."""
        found = {}
        results: list[jf.Result | None] = [None] * len(self.cases)
        for budget in sorted(self.budgets, reverse=True):
            places = [at for at, result in enumerate(results) if self._must_run(method, at, result, budget)]
            again = self._run(method, shown, [self.cases[at] for at in places], budget)
            for at, result in zip(places, again, strict=True):
                results[at] = result
            found[budget] = [
                self._cut(case, None if self._is_refused(method, case, budget) else result, budget)
                for case, result in zip(self.cases, results, strict=True)
            ]
        return found

    def checks(self, method: str, shown: str, attempts: Sequence[Attempt]) -> dict[str, int]:
        """Return how many attempts of CHECKED_BUDGET have the tokens of a run with that budget."""
        own = [attempt for attempt in attempts if attempt.ids][:NUM_CHECKED]
        results = self._run(method, shown, [attempt.text for attempt in own], CHECKED_BUDGET)
        same = [tuple(result.token_ids) == attempt.ids for result, attempt in zip(results, own, strict=True)]
        return {"num_checked": len(same), "num_same": sum(same)}

    def shortest(self, name: str) -> int:
        """Return how many tokens the shortest document of a family takes, without an end token."""
        compiled: Any = self.engine.compiler.compile(self._grammars["ensured"][name])
        return compiled.fewest_tokens

    def _must_run(self, method: str, at: int, result: jf.Result | None, budget: int) -> bool:
        if self._is_refused(method, self.cases[at], budget):
            return False
        return result is None or (method == "ensured" and _num_text_tokens(result) > budget)

    def _is_refused(self, method: str, case: Text, budget: int) -> bool:
        return method == "ensured" and budget < self.shortest(case.family.name)

    def _run(self, method: str, shown: str, cases: Sequence[Text], budget: int) -> list[jf.Result]:
        requests: list[Any] = [
            {
                "prompt": case.messages(shown),
                "grammar": self._grammars[method][case.family.name],
                "max_new_tokens": budget,
                "ensure_complete": method == "ensured",
            }
            for case in cases
        ]
        results: Any = self.engine.generate_batch(requests, batch_size=BATCH_SIZE, progress=True)
        return results

    def _cut(self, case: Text, result: jf.Result | None, budget: int) -> Attempt:
        """Return what a result would have been within a budget that is not larger than its own."""
        if result is None:
            return Attempt(case, (), None, has_ended=False)
        ids = tuple(result.token_ids[:budget])
        written = self.engine.vocabulary.text_bytes(ids).decode(errors="ignore")
        return Attempt(
            case, ids, first_object(written), result.finish_reason == "end" and len(result.token_ids) <= budget
        )


def _num_text_tokens(result: jf.Result) -> int:
    return len(result.token_ids) - (result.finish_reason == "end")


def first_object(text: str) -> Any:
    """Return the first JSON object in a text: at the first brace from which one can be read. None where there is none.

    Not strict: xgrammar lets control characters into strings of a bounded length.
    """
    decoder = json.JSONDecoder(strict=False)
    for at, character in enumerate(text):
        if character == "{":
            try:
                return decoder.raw_decode(text, at)[0]
            except json.JSONDecodeError:
                continue
    return None


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--num-texts", type=int, default=48)
    options = made.parse_args()
    if options.quick:
        options.num_texts = len(FAMILIES)
    budgets = QUICK_BUDGETS if options.quick else BUDGETS
    task = Budgets(options.model, texts(options.num_texts, options.seed), budgets)
    results = {}
    checks: dict[str, dict[str, int]] = {}
    for shown in ("none", "turn"):
        found = {method: task.attempts(method, shown) for method in STYLES}
        results[shown] = {
            method: {budget: _summary(of_method[budget]) for budget in budgets} for method, of_method in found.items()
        }
        _show(shown, results[shown])
    for method in STYLES:
        checks[method] = task.checks(method, "turn", found[method][CHECKED_BUDGET])
    shortest = {family.name: task.shortest(family.name) for family in FAMILIES}
    show("checks", ("method", "checked", "same"), [[method, *row.values()] for method, row in checks.items()])
    _draw(options, results["turn"])
    found_conditions = conditions(options, budgets=budgets, shortest_document_tokens=shortest)
    finish("budgets", found_conditions, checks=checks, results=results)


def _summary(attempts: Sequence[Attempt]) -> dict[str, Any]:
    ended = [attempt for attempt in attempts if attempt.has_ended]
    valid = [attempt for attempt in attempts if attempt.is_valid]
    num_fields = sum(len(attempt.text.answer) for attempt in attempts)
    return {
        "valid": share(len(valid), len(attempts)),
        "valid_of_finished": share(sum(attempt.is_valid for attempt in ended), len(ended)),
        "finished": share(len(ended), len(attempts)),
        "fields_right": share(sum(attempt.num_right for attempt in valid), num_fields),
        "fields_right_of_valid": share(
            sum(attempt.num_right for attempt in valid), sum(len(attempt.text.answer) for attempt in valid)
        ),
    }


def _show(shown: str, result: dict[str, Any]) -> None:
    for key in ("valid", "valid_of_finished", "fields_right"):
        rows = [[method, *(_cell(row[key]) for row in of_method.values())] for method, of_method in result.items()]
        show(f"{shown} shown: {key.replace('_', ' ')}", ("method", *map(str, next(iter(result.values())))), rows)


def _cell(row: dict[str, Any]) -> str:
    return "" if row["share"] is None else f"{row['num_hits']}/{row['num_tries']}"


def _draw(options: Any, result: dict[str, Any]) -> None:
    with plot(options, "budgets") as axes:
        for index, (method, (mark, line)) in enumerate(STYLES.items()):
            rows = [row["valid"] for row in result[method].values()]
            budgets = [budget + 0.5 * (index - 1.5) for budget in result[method]]  # side by side where they are equal
            heights = [row["share"] for row in rows]
            ends = [[row["share"] - row["low"] for row in rows], [row["high"] - row["share"] for row in rows]]
            axes.errorbar(budgets, heights, yerr=ends, fmt=mark, linestyle=line, color=COLOURS[index],
                          capsize=2, linewidth=1.4, label=f"{method}, of all attempts")  # fmt: skip
        finished = {budget: row["valid_of_finished"]["share"] for budget, row in result["fixed"].items()}
        reached = {budget: value for budget, value in finished.items() if value is not None}
        axes.plot(reached.keys(), reached.values(), "o", color="black", fillstyle="none", markersize=10, linewidth=0,
                  label="fixed, of those that finished")  # fmt: skip
        axes.set_xlabel("max_new_tokens (prompts with an example)")
        axes.set_ylabel("share of valid documents")
        axes.set_ylim(-0.03, 1.08)
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))


if __name__ == "__main__":
    main()
