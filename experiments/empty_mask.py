"""What happens where no token is legal: a finite floor, minus infinity, and an error?

    python experiments/empty_mask.py

One row of a batch of three has an empty mask. A large negative number in place of illegal logits (the "finite
floor") leaves a distribution over tokens that are all illegal, so a token comes out and nothing is noticed. Minus
infinity makes the row's probabilities NaN: argmax turns that into a token again, and sampling fails for the whole
batch, the two good rows with it. The engine writes minus infinity and asks for an empty mask before it samples. The
last line of standard output is one JSON object.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from harness import conditions, finish, parser

import jumpforward as jf
from jumpforward.testing import ScriptedModel, toy_tokenizer

LEGAL = torch.tensor([[True, True, False, False], [False] * 4, [False, False, True, True]])
LOGITS = torch.tensor([[2.0, 1.0, 5.0, 0.0], [0.5, 3.0, 1.0, 2.0], [9.0, 0.0, 1.0, 2.0]])
FLOORS = {
    "-1e4": -1e4,
    "-1e9": -1e9,
    "finfo.min": torch.finfo(torch.float32).min,
    "-inf": -math.inf,
}


def main() -> None:
    options = parser(__doc__, draws=False).parse_args()
    results: dict[str, Any] = {name: masked(floor) for name, floor in FLOORS.items()}
    results["-1e4 added"] = sampled(LOGITS + torch.where(LEGAL, 0.0, -1e4))
    results["engine"] = engine()
    finish("empty_mask", conditions(options, model="scripted"), results=results)


def masked(floor: float) -> dict[str, Any]:
    return sampled(torch.where(LEGAL, LOGITS, floor))


def sampled(logits: torch.Tensor) -> dict[str, Any]:
    """Return what greedy choice and sampling make of the rows."""
    probabilities = torch.softmax(logits, dim=-1)
    try:
        drawn: Any = torch.multinomial(probabilities, 1, generator=torch.Generator().manual_seed(0)).flatten().tolist()
    except RuntimeError as error:
        drawn = f"RuntimeError for the whole batch: {str(error).splitlines()[0]}"
    return {
        "probabilities_of_empty_row": [
            None if math.isnan(value) else round(value, 4) for value in probabilities[1].tolist()
        ],
        "argmax": logits.argmax(dim=-1).tolist(),
        "argmax_of_probabilities": probabilities.argmax(dim=-1).tolist(),
        "sampled": drawn,
        "mean_probability_is_nan": bool(probabilities.mean().isnan()),
    }


def engine() -> dict[str, Any]:
    """Return what the engine does with a grammar that needs a byte which no token spells."""
    tokenizer = toy_tokenizer(single_bytes=(byte for byte in range(256) if byte != ord("z")))
    model = ScriptedModel(lambda _: [0.0] * len(tokenizer), width=len(tokenizer))
    try:
        text = jf.Engine(model, tokenizer).generate("a", jf.ebnf('root ::= "a" "z"')).text
    except jf.EmptyMaskError as error:
        return {"error": type(error).__name__, "text_so_far": error.text, "missing_bytes": error.missing_bytes.decode()}
    return {"error": None, "text": text}


if __name__ == "__main__":
    main()
