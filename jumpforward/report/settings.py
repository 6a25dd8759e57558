"""Under which settings a report walks its documents."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from jumpforward.grammar.spec import Grammar, Whitespace, json_schema, json_schema_in_any_order

Strictness = Literal["strict", "open"]


class Setting(BaseModel):
    """How a schema becomes a grammar.

    Attributes:
        strictness: ``strict`` permits no properties beyond those that the schema names.
        whitespace: as for :func:`jumpforward.json_schema`.
    """

    model_config = ConfigDict(frozen=True)

    strictness: Strictness = "strict"
    whitespace: Whitespace = "fixed"

    @property
    def name(self) -> str:
        """The setting in words, which is its key in the JSON layout."""
        return f"{self.strictness}, {self.whitespace}"

    @property
    def separators(self) -> tuple[str, str]:
        """What documents are written with, under flexible whitespace too."""
        return (",", ":") if self.whitespace == "compact" else (", ", ": ")

    def grammar(self, schema: Any, *, any_order: bool = False) -> Grammar:
        """Return a schema's grammar; raises as :func:`jumpforward.json_schema` does."""
        strict = self.strictness == "strict"
        if any_order:
            return json_schema_in_any_order(schema, whitespace=self.whitespace, strict=strict)
        return json_schema(schema, whitespace=self.whitespace, strict=strict)


class Options(BaseModel):
    """What is asked of a report; the same options over the same corpus give the same report.

    Attributes:
        settings: the settings, in the order in which they are shown.
        tokenizers: names of tokenizers, as :func:`jumpforward.engine.pretrained.load_tokenizer` takes them.
        num_sampled: documents that are sampled for a schema that has no instances.
        seed: makes them repeatable.
        time_limit_s: seconds after which a schema is given up.
        num_rows: how many rows of the corpus are read; None for all.
    """

    model_config = ConfigDict(frozen=True)

    settings: tuple[Setting, ...]
    tokenizers: tuple[str, ...]
    num_sampled: int = 2
    seed: int = 0
    time_limit_s: float = 60.0
    num_rows: int | None = None
