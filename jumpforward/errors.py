"""Everything jumpforward raises on purpose.

    JumpForwardError
    ├── GrammarError                  the grammar cannot be used (also a ValueError)
    ├── OptionError                   an option has a value that means nothing (also a ValueError)
    ├── GenerateOptionError           model.generate was asked for what is not possible here (also a ValueError)
    ├── PromptError                   the prompt cannot be used (also a ValueError)
    ├── TokenizerError                the tokenizer cannot be used (also a ValueError)
    ├── ModelError                    the model cannot be used (also a ValueError)
    │   ├── ModelNotFoundError        no such model, here or on the hub
    │   ├── VocabularyMismatchError   a draft model's ids stand for other text than the model's
    │   └── RollbackUnsupportedError  the model's cache cannot be cropped, and the policy needs that
    ├── RequestTooLongError           prompt and output never fit into the engine's cache (also a ValueError)
    ├── MemoryFileError               a file with what earlier outputs left cannot be read (also a ValueError)
    ├── EngineClosedError             the engine was closed before the request had ended (also a RuntimeError)
    ├── BatchError                    some requests of a batch failed (also a RuntimeError)
    ├── BadLineError                  a line of a batch's input file is no request (also a ValueError)
    └── GenerationError               something failed while tokens were being made (also a RuntimeError)
        ├── EmptyMaskError            the grammar permits no token of the vocabulary
        ├── BadLogitsError            the model's logits permit no legal token (NaN, or all -inf)
        ├── TokenRejectedError        the matcher refused a token that its own mask permits
        └── OutOfMemoryError          a forward pass has no room, however small it is made

The message says what was expected, what came, and what to do; the data is on the exception as
attributes. Mistakes in a call's arguments are also ``ValueError``, so that generic code catches them.

One warning, :class:`GrammarWarning`, marks a schema whose grammar is wider than the schema says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = [
    "BadLineError",
    "BadLogitsError",
    "BatchError",
    "EmptyMaskError",
    "EngineClosedError",
    "GenerateOptionError",
    "GenerationError",
    "GrammarError",
    "GrammarWarning",
    "JumpForwardError",
    "MemoryFileError",
    "ModelError",
    "ModelNotFoundError",
    "OptionError",
    "OutOfMemoryError",
    "PromptError",
    "RequestTooLongError",
    "RollbackUnsupportedError",
    "TokenRejectedError",
    "TokenizerError",
    "VocabularyMismatchError",
]


class JumpForwardError(Exception):
    """The root of the tree: catch this to catch everything jumpforward raises on purpose."""


class GrammarError(JumpForwardError, ValueError):
    """The grammar does not parse, is not supported, or describes nothing that can be spelled.

    ``kind`` is the grammar's kind (``"json_schema"``, ``"regex"``, ...), ``reason`` the cause alone.
    """

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(f"{kind}: {reason}")
        self.kind = kind
        self.reason = reason


class OptionError(JumpForwardError, ValueError):
    """An option has a value that means nothing. ``option`` names it, ``value`` is what came."""

    def __init__(self, option: str, value: object, expected: str) -> None:
        super().__init__(f"{option}={value!r}: expected {expected}")
        self.option = option
        self.value = value


class GenerateOptionError(JumpForwardError, ValueError):
    """``model.generate`` was asked for something that :func:`jumpforward.hf.generate` cannot do. ``option`` names it.

    That is another way to search (beams, contrastive search, assistants), or a field of the generation config.
    """

    def __init__(self, option: str, value: str) -> None:
        super().__init__(
            f"{option} asks for {value}, which cannot be had by custom_generate=jf.hf.generate: expected greedy "
            "decoding or sampling with temperature, top_k, top_p and min_p; leave it out, or leave custom_generate out"
        )
        self.option = option


class PromptError(JumpForwardError, ValueError):
    """The prompt is empty, is not text or messages, or does not fit into the model's context."""


class TokenizerError(JumpForwardError, ValueError):
    """The tokenizer gives no byte string for its tokens, or is of a kind that is not supported."""


class ModelError(JumpForwardError, ValueError):
    """The model is of a kind that is not supported."""


class ModelNotFoundError(ModelError):
    """No model of that name here or on the hub."""


class VocabularyMismatchError(ModelError):
    """A draft model has another tokenizer than the model: its ids stand for other text, or they are too few."""


class RollbackUnsupportedError(ModelError):
    """The policy verifies drafts, which needs a cache that can be cropped, and this model has none.

    A draft model needs such a cache too.
    """


class RequestTooLongError(JumpForwardError, ValueError):
    """Prompt and output never fit into the engine's cache: ``num_tokens`` came, ``max_tokens`` fit."""

    def __init__(self, message: str, num_tokens: int, max_tokens: int) -> None:
        super().__init__(message)
        self.num_tokens = num_tokens
        self.max_tokens = max_tokens


class MemoryFileError(JumpForwardError, ValueError):
    """A file with what earlier outputs left is damaged, or of another version or another vocabulary."""


class EngineClosedError(JumpForwardError, RuntimeError):
    """The engine was closed before the request had ended, or before it came."""


class BatchError(JumpForwardError, RuntimeError):
    """Some requests of a batch failed.

    ``results`` holds, for each request of the batch, its :class:`~jumpforward.Result` or the exception that ended it.
    """

    def __init__(self, message: str, results: Sequence[Any]) -> None:
        super().__init__(message)
        self.results = list(results)


class BadLineError(JumpForwardError, ValueError):
    """A line of a batch's input file is no JSON object, or lacks a field that its request needs."""


class GenerationError(JumpForwardError, RuntimeError):
    """Something failed while tokens were being made. ``text`` is the output up to there."""

    def __init__(self, message: str, text: str = "") -> None:
        super().__init__(message)
        self.text = text


class EmptyMaskError(GenerationError):
    """The grammar goes on here, but no token of the vocabulary can be its next step.

    ``missing_bytes`` are the bytes the grammar would accept next, none of which a token can spell.
    """

    def __init__(self, message: str, text: str = "", missing_bytes: bytes = b"") -> None:
        super().__init__(message, text)
        self.missing_bytes = missing_bytes


class BadLogitsError(GenerationError):
    """Every legal token has a logit of NaN or minus infinity."""


class TokenRejectedError(GenerationError):
    """The matcher refused a token that its mask permits: a bug in the grammar engine or here."""


class OutOfMemoryError(GenerationError):
    """A forward pass has no room in memory, also with a single token of a single request in it."""


class GrammarWarning(UserWarning):
    """The grammar made from a schema accepts more than the schema says."""
