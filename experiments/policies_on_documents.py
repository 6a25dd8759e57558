"""What do the rules for writing forced text do to real documents, and to the model behind each jump?

    python experiments/policies_on_documents.py [FOLDER] [--quick] [--documents 300] [--asked 60]

Documents are those of boundary_rules.py: valid instances of the schemas in FOLDER, as `json.dumps` writes them, that
their grammars accept; without such a folder a few that tests/documents.py has. The rules are those of rules.py, asked
at every place of the canonical document where bytes are forced, and with flexible whitespace too, in whose grammars
other bytes are forced in the same documents. `exact` is what greedy masked decoding of the model confirms of the
canonical tokens of forced text, so that it is known only where the model is asked.

Without the model, for each rule: jumps at which what it writes is not what the finished document has; documents
without such a jump, whose whole token sequence is canonical (`retokenize` makes every one so in the end); the share of
the documents' tokens that it writes; and what it withholds.

With the model, behind a short prompt and at every jump with a wrong token (seam_effects.py): KL(canonical || its own)
of the next token, how often another token becomes the likeliest, and the nats that the document's own value gains or
loses. 95 % intervals are from drawing documents again.

First comes a vocabulary in which no look back is long enough: merges in a chain, so that one byte behind `abcdef` moves
every border in it. The last line of standard output is one JSON object.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import COLOURS, ERR, conditions, finish, parser, plot, show
from rich.progress import track
from rules import Rules, Run, Tokens, runs
from seam_effects import Asked

import jumpforward as jf
from jumpforward.engine.prompt import encode_prompt
from jumpforward.matching.compiler import GrammarCompiler
from jumpforward.testing import toy_tokenizer

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from documents import FOLDER, Document, drawn, own

CHAIN = ("fg", "ef", "de", "cd", "bc", "ab")  # in the order of their ranks
PROMPT = [{"role": "user", "content": "Write a JSON document."}]
STYLES = ("-", "--", ":", "-.")


@dataclass
class Tally:
    """What a rule did over all documents."""

    num_wrong: int = 0
    num_right_tokens: int = 0
    num_wrong_tokens: int = 0
    withheld_bytes: int = 0
    num_canonical: int = 0
    wrong_texts: list[str] = field(default_factory=list)

    def add(self, run: Run, committed: Tokens, rules: Rules) -> bool:
        """Count a jump; return whether all of it is the document's."""
        num_right = run.num_right(committed)
        self.num_right_tokens += num_right
        self.num_wrong_tokens += len(committed) - num_right
        self.withheld_bytes += len(run.forced) - len(rules.vocabulary.text_bytes(committed))
        if num_right == len(committed):
            return True
        self.num_wrong += 1
        self.wrong_texts.append(run.forced.decode(errors="replace"))
        return False


def main() -> None:
    options = _options()
    documents = drawn(options.folder, options.documents) if options.folder.is_dir() else []
    documents = documents or list(own())
    engine = jf.Engine.from_pretrained(options.model, dtype="float32")
    rules = Rules(engine.tokenizer)
    chain = _chain()
    counted = {whitespace: _count(rules, engine, documents, whitespace) for whitespace in ("fixed", "flexible")}
    asked = Asked(engine, rules, encode_prompt(PROMPT, engine.tokenizer, 2**31), options.seed)
    short = [document for document in documents if asked.has_room(document, options.max_tokens)]
    for document in track(short[: options.asked], "asking the model", console=ERR, transient=True):
        asked.add(document)
    results = {rule: asked.summary(rule) for rule in rules.all}
    exact = asked.exact()
    _show_chain(chain)
    _show_counts(counted)
    _show_effects(results, exact)
    _draw(options, asked)
    finish(
        "policies_on_documents",
        conditions(options, folder=None, num_documents=len(documents), num_asked=asked.num_documents, prompt=PROMPT),
        chain=chain,
        counted=counted,
        effects=results,
        exact=exact,
    )


def _options() -> argparse.Namespace:
    made = parser(__doc__)
    made.add_argument("folder", type=Path, nargs="?", default=FOLDER)
    made.add_argument("--documents", type=int, default=300)
    made.add_argument("--asked", type=int, default=60, help="documents along which the model is asked")
    made.add_argument("--max-tokens", type=int, default=250, help="of a document along which the model is asked")
    options = made.parse_args()
    if options.quick:
        options.documents, options.asked = 12, 4
    return options


def _chain() -> dict[str, Any]:
    """Return what each rule writes of `abcdef`, and whether it is right in front of `g` and `x`."""
    tokenizer = toy_tokenizer(CHAIN)
    rules, grammar = Rules(tokenizer), jf.regex("abcdef(g|x)")
    compiler = GrammarCompiler(rules.vocabulary, automata=False)
    found: dict[str, Any] = {rule: {} for rule in rules.all}
    for text in ("abcdefg", "abcdefx"):
        ids = rules.encoder.encode(text.encode())
        run = next(runs(grammar, compiler, rules.vocabulary, ids))
        for rule, choose in rules.all.items():
            committed = choose(run)
            found[rule]["writes"] = " ".join(rules.vocabulary.token_bytes[token].decode() for token in committed)
            found[rule][text] = run.num_right(committed) == len(committed)
    return found


def _count(rules: Rules, engine: jf.Engine, documents: Sequence[Document], whitespace: str) -> dict[str, Any]:
    """Ask every rule at every jump of every document."""
    tallies = {rule: Tally() for rule in rules.all}
    num_runs = num_tokens = num_inside = num_documents = 0
    for document in track(documents, whitespace, console=ERR, transient=True):
        ids, grammar = rules.encoder.encode(document.data), _grammar(document, whitespace)
        if ids is None or not grammar.accepts(document.data):
            continue
        right = dict.fromkeys(rules.all, True)
        num_documents, num_tokens = num_documents + 1, num_tokens + len(ids)
        for run in runs(grammar, engine.compiler, rules.vocabulary, ids):
            num_runs, num_inside = num_runs + 1, num_inside + run.num_inside(rules.vocabulary)
            for rule, choose in rules.all.items():
                right[rule] &= tallies[rule].add(run, choose(run), rules)
        for rule, tally in tallies.items():
            tally.num_canonical += right[rule] or rule == "retokenize"
    totals = {"num_documents": num_documents, "num_tokens": num_tokens, "num_jumps": num_runs, "num_inside": num_inside}
    return totals | {"rules": {rule: _counts(tally, totals) for rule, tally in tallies.items()}}


def _grammar(document: Document, whitespace: str) -> jf.Grammar:
    if whitespace == "fixed":
        return document.grammar
    with warnings.catch_warnings(action="ignore", category=jf.GrammarWarning):
        return jf.json_schema(document.schema, whitespace=whitespace)


def _counts(tally: Tally, totals: dict[str, int]) -> dict[str, Any]:
    return {
        "num_wrong_jumps": tally.num_wrong,
        "wrong_share_of_jumps": round(tally.num_wrong / max(1, totals["num_jumps"]), 5),
        "canonical_share_of_documents": round(tally.num_canonical / max(1, totals["num_documents"]), 4),
        "written_share_of_tokens": round(tally.num_right_tokens / max(1, totals["num_tokens"]), 4),
        "num_wrong_tokens": tally.num_wrong_tokens,
        "num_withheld_tokens": totals["num_inside"] - tally.num_right_tokens,
        "withheld_bytes_a_jump": round(tally.withheld_bytes / max(1, totals["num_jumps"]), 3),
        "wrong_texts": tally.wrong_texts if tally.num_wrong <= 10 else [],
    }


def _show_chain(chain: dict[str, Any]) -> None:
    rows = [(rule, row["writes"] or "nothing", *("right" if row[text] else "wrong" for text in ("abcdefg", "abcdefx")))
            for rule, row in chain.items()]  # fmt: skip
    show(f"a chain of merges, {' < '.join(CHAIN)}: what is written of `abcdef`", ("rule", "writes", "…g", "…x"), rows)


def _show_counts(counted: dict[str, Any]) -> None:
    for whitespace, found in counted.items():
        title = (
            f"{whitespace} whitespace: {found['num_documents']} documents, {found['num_tokens']} tokens, "
            f"{found['num_jumps']} jumps, {found['num_inside']} tokens within forced text"
        )
        columns = ("wrong jumps", "share", "documents canonical", "tokens written", "withheld", "withheld bytes a jump")
        names = (
            "num_wrong_jumps",
            "wrong_share_of_jumps",
            "canonical_share_of_documents",
            "written_share_of_tokens",
            "num_withheld_tokens",
            "withheld_bytes_a_jump",
        )
        show(
            title, ("rule", *columns), [(rule, *(row[name] for name in names)) for rule, row in found["rules"].items()]
        )


def _show_effects(results: dict[str, Any], exact: dict[str, Any]) -> None:
    def cell(value: Any) -> str:
        if not isinstance(value, dict):
            return "" if value is None else str(value)
        return f"{value['mean']:.3f} ({value['low']:.3f} to {value['high']:.3f})"

    names = (
        "num_wrong_jumps",
        "num_compared",
        "kl_nats_mean",
        "kl_nats_median",
        "flip_share",
        "value_nats_mean",
        "value_nats_median",
        "value_lost_share",
        "value_nats_a_document",
    )
    columns = ("wrong", "compared", "KL, nats", "median", "flips", "value, nats", "median", "lost", "a document")
    show(
        "behind jumps with a wrong token",
        ("rule", *columns),
        [(rule, *(cell(row[name]) for name in names)) for rule, row in results.items()],
    )
    show("exact: canonical tokens of forced text before the model", tuple(exact), [tuple(exact.values())])


def _draw(options: argparse.Namespace, asked: Asked) -> None:
    changed = {
        rule: [each.value_nats for effects in documents for each in effects]
        for rule, documents in asked.effects.items()
    }
    shown = [rule for rule, values in changed.items() if len(values) > 10]
    with plot(options, "policies_on_documents") as axes:
        for index, rule in enumerate(shown):
            axes.ecdf(
                changed[rule],
                label=f"{rule} ({len(changed[rule])} jumps)",
                color=COLOURS[index],
                linestyle=STYLES[index % len(STYLES)],
                linewidth=1.8,
            )
        axes.axvline(0, color="#555555", linewidth=0.8)
        axes.set(
            xlabel="nats that the document's value gains behind the jump (negative: loses)",
            ylabel="share of jumps with a wrong token, at most",
        )
        if shown:
            axes.legend(loc="upper left")


if __name__ == "__main__":
    main()
