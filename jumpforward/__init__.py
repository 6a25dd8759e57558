"""Grammar-constrained generation on Hugging Face models with fewer forward passes.

    import jumpforward as jf

    engine = jf.Engine.from_pretrained()
    result = engine.generate("Name a colour: ", jf.choice(["red", "green", "blue"]))

Importing this is cheap: torch and transformers are loaded by the first use of :class:`Engine` or of a grammar.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from jumpforward.errors import (
    BadLineError,
    BadLogitsError,
    BatchError,
    EmptyMaskError,
    EngineClosedError,
    GenerateOptionError,
    GenerationError,
    GrammarError,
    GrammarWarning,
    JumpForwardError,
    MemoryFileError,
    ModelError,
    ModelNotFoundError,
    OptionError,
    OutOfMemoryError,
    PromptError,
    RequestTooLongError,
    RollbackUnsupportedError,
    TokenizerError,
    TokenRejectedError,
    VocabularyMismatchError,
)
from jumpforward.grammar.spec import Grammar, choice, ebnf, json_schema, lark, regex, structural_tag
from jumpforward.stats import Provenance, Stats

if TYPE_CHECKING:
    from jumpforward import hf
    from jumpforward.decoding.drafter import Bid, Drafter, DraftView
    from jumpforward.engine.engine import Engine
    from jumpforward.engine.handle import Handle
    from jumpforward.engine.pieces import TextPieces
    from jumpforward.engine.request import GenerationRequest
    from jumpforward.engine.result import Result

__version__ = "0.1.0"

__all__ = [
    "BadLineError",
    "BadLogitsError",
    "BatchError",
    "Bid",
    "DraftView",
    "Drafter",
    "EmptyMaskError",
    "Engine",
    "EngineClosedError",
    "GenerateOptionError",
    "GenerationError",
    "GenerationRequest",
    "Grammar",
    "GrammarError",
    "GrammarWarning",
    "Handle",
    "JumpForwardError",
    "MemoryFileError",
    "ModelError",
    "ModelNotFoundError",
    "OptionError",
    "OutOfMemoryError",
    "PromptError",
    "Provenance",
    "RequestTooLongError",
    "Result",
    "RollbackUnsupportedError",
    "Stats",
    "TextPieces",
    "TokenRejectedError",
    "TokenizerError",
    "VocabularyMismatchError",
    "choice",
    "ebnf",
    "hf",
    "json_schema",
    "lark",
    "regex",
    "structural_tag",
]

_LATE = {
    "Bid": "jumpforward.decoding.drafter",
    "DraftView": "jumpforward.decoding.drafter",
    "Drafter": "jumpforward.decoding.drafter",
    "Engine": "jumpforward.engine.engine",
    "GenerationRequest": "jumpforward.engine.request",
    "Handle": "jumpforward.engine.handle",
    "TextPieces": "jumpforward.engine.pieces",
    "Result": "jumpforward.engine.result",
}


def __getattr__(name: str) -> Any:
    """Load what needs torch when it is first asked for."""
    if name == "hf":
        return importlib.import_module("jumpforward.hf")
    if name in _LATE:
        return getattr(importlib.import_module(_LATE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
