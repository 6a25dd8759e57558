"""Does forcing text change answers, for better or worse, and what decides that?

    python experiments/answers.py [--quick] [--num-texts 102] [--shown none ...]

Short texts with known answers (extraction_texts.py: three schemas, 24 templates), one JSON document each, greedy, by
policy and whitespace setting. Prompts show of the JSON: nothing (none); a form of the document in the task, written as
the grammar's fixed separators have it (spaced) or without spaces (compact); an example with its answer, in the fixed
separators, as an earlier turn of the chat (turn). Many requests run at a time, and without drafts, which then cost more
than they save and change nothing. `exact` is the same as `masked` by law; on some texts that is checked, with drafts.
Strings are compared without regard to upper and lower case.

Every other method is compared with `masked`, text by text (paired.py). With fixed separators three more runs say what
decides. All write the same bytes up to the first value (the opening), so that only tokens differ:

  first token     `masked`, but the first token is the one that `canonical` writes
  opening         `masked`, but the opening has the tokens that `canonical` writes without asking
  rest            the opening has the tokens that `masked` writes, and `canonical` writes what is behind it

The same comparison of `canonical` is split by whether `masked` begins with the same token, and by whether the output of
`masked` has a seam (a stretch of tokens that are not the tokenizer's own) in the opening, behind it, or nowhere. The
last line of standard output is one JSON object.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from extraction_runs import Answer, Extraction
from extraction_texts import SHOWN, texts
from harness import COLOURS, conditions, finish, parser, plot, show
from paired import compared, share

NUM_CHECKED = 5  # texts of each prompt
MARKS = {"canonical": "o", "retokenize": "s", "first token": "^", "opening": "v", "rest": "D"}

Answers = dict[str, list[Answer]]  # by method, in the order of the texts


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--num-texts", type=int, default=102)
    made.add_argument("--shown", nargs="+", default=list(SHOWN), choices=list(SHOWN), help="these prompts only")
    options = made.parse_args()
    if options.quick:
        options.num_texts = 3
    task = Extraction(options.model, texts(options.num_texts, options.seed))
    results = {shown: _measured(task, shown, options.seed) for shown in options.shown}
    for shown, result in results.items():
        _show(shown, result)
    _draw(options, results)
    finish("answers", conditions(options), results=results)


def _measured(task: Extraction, shown: str, seed: int) -> dict[str, Any]:
    found = task.by_policy(shown)
    fixed = found["fixed"]
    fixed |= _interventions(task, shown, fixed)
    return {
        "checks": task.checks(shown, fixed["masked"][:NUM_CHECKED]),
        "openings": _openings(task, fixed["masked"]),
        "num_tokens_across_opening": sum(answer.opening is None for answer in fixed["masked"]),
        "splits": _splits(fixed, seed),
        "methods": {
            whitespace: {method: _summary(each, method, seed) for method in each} for whitespace, each in found.items()
        },
    }


def _interventions(task: Extraction, shown: str, found: Answers) -> Answers:
    masked, canonical = found["masked"], found["canonical"]
    return {
        "first token": task.with_beginning(shown, masked, [each.written[:1] for each in canonical]),
        "opening": task.with_beginning(shown, masked, [each.written for each in canonical]),
        "rest": task.behind_opening(shown, masked, canonical, "canonical"),
    }


def _summary(found: Answers, method: str, seed: int) -> dict[str, Any]:
    masked, own = found["masked"], found[method]
    right = [list(answer.right.values()) for answer in own]
    return {
        "fields_right": share(sum(map(sum, right)), sum(map(len, right))),
        "documents_right": share(sum(map(all, right)), len(own)),
        "valid": share(sum(answer.is_valid for answer in own), len(own)),
        "truncated": share(sum(answer.is_truncated for answer in own), len(own)),
        "num_output_tokens": sum(len(answer.ids) for answer in own),
        "num_same_tokens_as": {name: sum(map(_same_tokens, found[name], own)) for name in ("masked", "canonical")},
        "num_same_document_as": {name: sum(map(_same_document, found[name], own)) for name in ("masked", "canonical")},
        "num_seams_in_opening": sum(map(sum, (answer.seams for answer in own))),
        "num_seams": sum(len(answer.seams) for answer in own),
        "versus_masked": _versus(masked, own, seed),
        "by_field": _by_field(masked, own),
    }


def _same_tokens(one: Answer, other: Answer) -> bool:
    return one.ids == other.ids


def _same_document(one: Answer, other: Answer) -> bool:
    return one.parsed == other.parsed


def _versus(masked: Sequence[Answer], own: Sequence[Answer], seed: int) -> dict[str, Any]:
    return compared(*([list(answer.right.values()) for answer in each] for each in (masked, own)), seed=seed)


def _by_field(masked: Sequence[Answer], own: Sequence[Answer]) -> dict[str, dict[str, int]]:
    """Return for each field how often it is right, and how often by one of the two methods alone."""
    counts: dict[str, Counter[str]] = {}
    for before, after in zip(masked, own, strict=True):
        for key, was in before.right.items():
            row = counts.setdefault(f"{before.text.family.name}.{key}", Counter())
            row.update(num_texts=1, num_right=after.right[key], num_lost=was and not after.right[key],
                       num_gained=after.right[key] and not was)  # fmt: skip
    return {name: dict(row) for name, row in counts.items()}


def _openings(task: Extraction, masked: Sequence[Answer]) -> dict[str, int]:
    """Return how often `masked` spells the opening in which way, tokens apart by `|`, values of keys left out."""
    spelled = Counter(_spelled(task, answer) for answer in masked)
    return dict(spelled.most_common())


def _spelled(task: Extraction, answer: Answer) -> str:
    token_bytes = task.engine.vocabulary.token_bytes
    return "|".join(token_bytes[token].decode(errors="replace") for token in answer.opening or answer.ids[:6])


def _splits(found: Answers, seed: int) -> dict[str, dict[str, Any]]:
    masked, canonical = found["masked"], found["canonical"]
    groups: dict[str, Callable[[Answer, Answer], bool]] = {
        "same first token": lambda own, other: own.begins_with(other.written[:1]),
        "other first token": lambda own, other: not own.begins_with(other.written[:1]),
        "no seam": lambda own, _: not own.seams,
        "seam in the opening": lambda own, _: any(own.seams),
        "seam behind it only": lambda own, _: bool(own.seams) and not any(own.seams),
    }
    splits = {}
    for name, belongs in groups.items():
        pairs = [pair for pair in zip(masked, canonical, strict=True) if belongs(*pair)]
        splits[name] = _versus([own for own, _ in pairs], [other for _, other in pairs], seed)
    return splits


def _show(shown: str, result: dict[str, Any]) -> None:
    columns = ("whitespace", "method", "= canonical", "fields", "documents", "valid", "cut off", "seams",
               "difference", "95 %", "worse", "better", "sign p", "McNemar p")  # fmt: skip
    rows = []
    for whitespace, methods in result["methods"].items():
        for method, row in methods.items():
            shares = (row[key]["share"] for key in ("fields_right", "documents_right", "valid", "truncated"))
            same = row["num_same_document_as"]["canonical"]
            rows.append([whitespace, method, same, *shares, row["num_seams"], *_cells(row["versus_masked"])])
    show(f"{shown} shown", columns, rows)
    split = [[name, row["num_texts"], *_cells(row)] for name, row in result["splits"].items()]
    show(f"{shown} shown, canonical by what masked wrote", ("group", "texts", *columns[8:]), split)
    show("openings of masked", ("tokens", "texts"), list(result["openings"].items()))
    show("checks", list(result["checks"]), [list(result["checks"].values())])


def _cells(row: dict[str, Any]) -> list[object]:
    interval = f"{row['low']:+.3f} to {row['high']:+.3f}"
    return [
        row["difference"],
        interval,
        row["num_texts_worse"],
        row["num_texts_better"],
        row["sign_p"],
        row["mcnemar_p"],
    ]


def _draw(options: Any, results: dict[str, Any]) -> None:
    with plot(options, "answers", height=5.5) as axes:
        ticks = []
        for shown, result in results.items():
            for whitespace, methods in result["methods"].items():
                ticks.append(f"shown: {shown}; {whitespace}")
                for index, (method, mark) in enumerate(MARKS.items()):
                    if method in methods:
                        _whisker(axes, len(ticks) - 1 + 0.15 * (index - 2), methods[method], method, mark, index)
        axes.axvline(0, color="black", linewidth=0.8)
        axes.set_yticks(range(len(ticks)), ticks)
        axes.invert_yaxis()
        axes.set_xlabel("difference to masked, in shares of fields right (95 % bootstrap intervals over texts)")
        handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
        axes.figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=len(MARKS))


def _whisker(axes: Any, height: float, row: dict[str, Any], method: str, mark: str, index: int) -> None:
    versus = row["versus_masked"]
    ends = [[versus["difference"] - versus["low"]], [versus["high"] - versus["difference"]]]
    axes.errorbar([versus["difference"]], [height], xerr=ends, fmt=mark, color=COLOURS[index], label=method,
                  markersize=5, capsize=2, linewidth=1)  # fmt: skip


if __name__ == "__main__":
    main()
