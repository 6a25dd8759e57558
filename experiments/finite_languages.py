"""Which law over texts does each policy have, and how far is it from masked sampling and from the model itself?

    python experiments/finite_languages.py [--quick] [--lost 5e-7] [--places 1000]

Languages that can be listed, at temperature 1. The laws are over texts, not tokens: every token path of a text counts.

  ideal       the model conditioned on the language: a path weighs what the model gives it without any mask, its end
              token included; weights are summed over a text's paths and divided by the sum of all
  canonical tokens of the ideal: the same, with each text's canonical tokens alone
  masked      ordinary masked sampling, by definition: the product of probabilities that are renormalised over the
              legal tokens at every position
  engine      masked, exact, canonical and retokenize: the engine's own runs (commits, drafts, masks, verification),
              of which only the forward pass and the draw are taken away: wherever the model is asked, the walk branches
              over all legal tokens with the model's probabilities under the mask
  xgrammar    the engine's commits, with the tokens of xgrammar's find_jump_forward_tokens in place of the stable ones:
              greedy longest match, its last token left out where a longer one begins with it
  alone       the same with the tokenizer's tokens of the forced text by itself, all of it

Total variation to masked is what spelling does (tokenization distortion); total variation of masked to the ideal is
what local masking does. KL is of the policy's law from the other, in nats. Paths that are too unlikely are cut off, the
same ones for masked and exact; their mass, under `lost`, is in the results. The first language has a scripted model:
two first tokens with 1/2 each, behind which the only legal one has 1/10 and 9/10. The last line of standard output is
one JSON object.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import harness
import numpy as np
from language_laws import FIRST_CUT, POLICIES, Kit, Language, Law, Says, Walk, canonical_weights, laws
from scipy.special import rel_entr

import jumpforward as jf
from jumpforward.engine.prompt import Prompt
from jumpforward.testing import ScriptedModel, toy_tokenizer

PEOPLE = {
    "type": "object",
    "properties": {"name": {"enum": ["Paul", "John"]}, "age": {"enum": [20, 30]}},
    "required": ["name", "age"],
}

WORDS = ["interest", "interested", "interesting", "internal", "international", "internet"]

MOST_VARIATION = 1e-6  # of what must be the same law
MONTHS = ["Jan", "Jun", "Jul"]


def asked(question: str, system: str | None = None) -> Prompt:
    """Return a question as chat messages."""
    return [*([{"role": "system", "content": system}] if system else []), {"role": "user", "content": question}]


def languages() -> list[Language]:
    """Return the languages that the real model is asked about, the smallest first."""
    people = [json.dumps({"name": name, "age": age}) for name in ("Paul", "John") for age in (20, 30)]
    person = "Extract the person as JSON: Paul, a carpenter from Leeds, will be 30 in May."
    schema = jf.json_schema(PEOPLE)
    shown = f"You answer with JSON in this format: {json.dumps({'name': 'Mia', 'age': 40})}"
    dates = [f"{day} {month}" for day in (1, 11, 21) for month in MONTHS]
    iso = [f"2026-{month:02}-{day:02}" for month in (1, 10, 11, 12) for day in (1, 10, 11)]
    when = "The fair opens on the first day of the seventh month of 2026. Answer with the date only, written as"
    word = "Fill in the gap with one word, as a JSON string: She was very ___ in old maps."
    return [
        Language("ISO dates", jf.choice(iso), iso, asked(f"{when} in 2025-12-24.")),
        Language("dates", jf.choice(dates), dates, asked(f"{when} in '24 Dec'.")),
        Language("words", jf.choice(WORDS), WORDS, asked(word.replace(", as a JSON string", ""))),
        Language("enum", jf.json_schema({"enum": WORDS}), [json.dumps(each) for each in WORDS], asked(word)),
        Language("object", schema, people, asked(person)),
        Language("object, format shown", schema, people, asked(person, shown)),
    ]


def variation(law: Law, other: Law) -> float:
    """Return the total variation distance of two laws, mass that one of them lost included."""
    return 0.5 * sum(abs(law.get(text, 0.0) - other.get(text, 0.0)) for text in law.keys() | other.keys())


def kl(law: Law, other: Law) -> float:
    """Return the KL divergence of ``law`` from ``other`` in nats, each scaled to 1."""
    texts = list(law.keys() | other.keys())
    first, second = (np.array([each.get(text, 0.0) for text in texts]) for each in (law, other))
    return max(0.0, float(rel_entr(first / first.sum(), second / second.sum()).sum()))  # rounding aside


def normalised(weights: Law) -> dict[bytes, float]:
    """Return weights as probabilities."""
    total = sum(weights.values())
    return {text: weight / total for text, weight in weights.items()}


def measure(kit: Kit, language: Language, most_lost: float, most_places: int) -> dict[str, Any]:
    """Return all laws of one language and how far they are from one another."""
    says = Says(kit, language)
    if disagreeing := [text for text in says.texts if not language.grammar.accepts(text)]:
        raise RuntimeError(f"the grammar of {language.name!r} does not accept {disagreeing}")
    canonical = canonical_weights(says)
    cut = FIRST_CUT
    while (found := laws(says, cut, sum(canonical.values()))).lost > most_lost and says.num_known < most_places:
        cut /= 4
    # A text may lie below the cut as a whole; its canonical path keeps its probability above zero.
    ideal = normalised({text: max(found.ideal[text], canonical[text]) for text in says.texts})
    masked = found.masked
    policies = {}
    for policy in POLICIES:
        walk = Walk(says, language, policy, cut)
        policies[policy] = {**_distances(walk.law, masked, ideal), "num_runs": walk.num_runs, "lost": walk.lost}
    policies["ideal, canonical tokens"] = _distances(normalised(canonical), masked, ideal)
    _check(language.name, policies)
    measured = {
        "num_texts": len(says.texts),
        "num_token_paths": found.num_paths,
        "num_places_asked": says.num_known,
        "cut": cut,
        "lost": found.lost,
        "language_logprob_nats": float(np.log(sum(found.ideal.values()))),
        "noncanonical_share_of_ideal": 1 - sum(canonical.values()) / sum(found.ideal.values()),
        "ideal": {text.decode(): round(ideal.get(text, 0.0), 6) for text in says.texts},
        "policies": policies,
    }
    _show(language.name, measured)
    return measured


def _distances(law: Law, masked: Law, ideal: Law) -> dict[str, Any]:
    return {
        "variation_to_masked": variation(law, masked),
        "variation_to_ideal": variation(law, ideal),
        "kl_to_masked_nats": kl(law, masked),
        "kl_to_ideal_nats": kl(law, ideal),
        "law": {text.decode(): round(float(law.get(text, 0.0)), 6) for text in ideal},
    }


def two_branches() -> tuple[Kit, Language]:
    """Return a scripted model: `a` or `b` with 1/2 each, and behind them the legal token with 1/10 and 9/10."""
    tokenizer = toy_tokenizer()
    ids = {letter: tokenizer.convert_tokens_to_ids(letter) for letter in "abxy"}
    width = len(tokenizer)

    def script(sequence: Sequence[int]) -> np.ndarray:
        shares = {
            ids["a"]: {ids["x"]: 0.1, ids["y"]: 0.9},
            ids["b"]: {ids["x"]: 0.1, ids["y"]: 0.9},
            ids["x"]: {tokenizer.eos_token_id: 1.0},
            ids["y"]: {tokenizer.eos_token_id: 1.0},
        }.get(sequence[-1], {ids["a"]: 0.5, ids["b"]: 0.5})
        return np.log([shares.get(token, 1e-30) for token in range(width)])

    engine = jf.Engine(ScriptedModel(script, width), tokenizer)
    return Kit(engine), Language("two branches", jf.choice(["ax", "by"]), ["ax", "by"], "??")


def main() -> None:
    """Measure every language, and hold `exact` to `masked`."""
    parser = harness.parser(__doc__, draws=False)
    parser.add_argument("--lost", type=float, default=5e-7, help="the most mass that may be cut off")
    parser.add_argument(
        "--places", type=int, default=1000, help="paths behind which the model is asked, until more may be lost"
    )
    options = parser.parse_args()
    scripted, branches = two_branches()
    results = {branches.name: measure(scripted, branches, options.lost, options.places)}
    kit = Kit(jf.Engine.from_pretrained(options.model, dtype="float32"))
    for language in languages()[: 2 if options.quick else None]:
        results[language.name] = measure(kit, language, options.lost, options.places)
    _plot(options, results)
    harness.finish("finite_languages", harness.conditions(options, temperature=1.0), results=results)


def _check(name: str, policies: Mapping[str, Any]) -> None:
    for policy in ("masked", "exact"):
        if (distance := policies[policy]["variation_to_masked"]) >= MOST_VARIATION:
            raise RuntimeError(f"{name}: expected {policy!r} within {MOST_VARIATION} of masked, got {distance:.2e}")


def _show(name: str, found: Mapping[str, Any]) -> None:
    rows = [
        (policy, *(f"{row[key]:.6f}" for key in list(row)[:4]), row.get("num_runs", ""))
        for policy, row in found["policies"].items()
    ]
    title = f"{name}: {found['num_texts']} texts, {found['num_token_paths']} paths, lost {found['lost']:.1e}"
    harness.show(title, ["law", "TV masked", "TV ideal", "KL masked", "KL ideal", "runs"], rows)


def _plot(options: Any, results: Mapping[str, Any]) -> None:
    """Draw both distances of every policy, language by language."""
    shown = ("exact", "canonical", "retokenize", "xgrammar", "alone")
    step = len(shown) + 1.5
    with harness.plot(options, "finite_languages", height=8) as axes:
        for block, found in enumerate(results.values()):
            for line, policy in enumerate(shown):
                row, y = found["policies"][policy], -(block * step + line)
                ends = row["variation_to_masked"], row["variation_to_ideal"]
                axes.plot(ends, (y, y), color="#8c8c8c", linewidth=1, zorder=1)
                axes.plot(ends[0], y, "o", color=harness.COLOURS[0], label="to masked sampling" if y == 0 else None)
                axes.plot(
                    ends[1], y, "D", mfc="white", color=harness.COLOURS[3], label="to the ideal" if y == 0 else None
                )
        places = [
            (-(block * step + line), policy) for block in range(len(results)) for line, policy in enumerate(shown)
        ]
        axes.set_yticks([y for y, _ in places], [policy for _, policy in places], fontsize=8)
        for block, name in enumerate(results):
            axes.text(1.01, -(block * step + 2), name, transform=axes.get_yaxis_transform(), va="center")
        axes.set_xlabel("total variation distance")
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)


if __name__ == "__main__":
    main()
