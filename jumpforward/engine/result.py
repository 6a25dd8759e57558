"""What a request gives back."""

from __future__ import annotations

import json
from functools import cached_property
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, SkipValidation

from jumpforward.engine.sequence import FinishReason
from jumpforward.stats import Provenance, Stats


class Result(BaseModel):
    """The output of one request.

    Attributes:
        text: the output, without the end token and cut in front of a stop string; an unfinished character at its end
            is left out.
        healed: the text of tokens that were taken back from the prompt; the tokens begin with it, the text does not.
        token_ids: the output's tokens, an end token included. They are final.
        provenance: for each token, who chose it.
        sources: for each token, the name of the source that drafted it; None where none did.
        finish_reason: ``"end"`` (an end token), ``"length"`` (``max_new_tokens``) or ``"stop"`` (a stop string).
        complete: whether the text is a complete output of the grammar, and not only the beginning of one.
        logprobs: on request, for each token the log-probability that the model gave it before masking and warping;
            None where the model was not asked.
        seed: the seed that was used; None when greedy.
        stats: the account of the request.
    """

    model_config = ConfigDict(frozen=True)

    text: str
    healed: str = ""
    token_ids: list[int]
    provenance: list[Provenance]
    sources: list[str | None]
    finish_reason: FinishReason
    complete: bool
    logprobs: list[float | None] | None = None
    seed: int | None = None
    stats: Stats
    grammar: SkipValidation[Any] = Field(exclude=True, repr=False)  # a Grammar; no part of the record

    @cached_property
    def parsed(self) -> Any:
        """The value of a complete output of a JSON Schema: a pydantic object, or a JSON value. Otherwise None.

        Raises:
            pydantic.ValidationError: the model has rules that its schema cannot state.
        """
        if not self.complete or self.grammar.kind != "json_schema":
            return None
        return self.grammar.parse(self.text)

    def record(self) -> dict[str, Any]:
        """Return everything as one JSON object."""
        record: dict[str, Any] = json.loads(self.model_dump_json())
        is_document = self.complete and self.grammar.kind == "json_schema"
        return record | {"parsed": json.loads(self.text, strict=False) if is_document else None}
