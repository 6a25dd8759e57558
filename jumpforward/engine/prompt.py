"""What the user calls a prompt, to ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jumpforward.errors import PromptError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = Mapping[str, Any]
Prompt = str | Sequence[Message]


def encode_prompt(prompt: Prompt, tokenizer: PreTrainedTokenizerBase, max_length: int) -> tuple[int, ...]:
    """Return the ids of a prompt: text as it is, or chat messages through the tokenizer's template.

    Raises:
        PromptError: nothing to continue from, neither text nor messages, no chat template, or no room for a token.
    """
    return checked_ids(
        _text_ids(prompt, tokenizer) if isinstance(prompt, str) else _chat_ids(prompt, tokenizer), max_length
    )


def checked_ids(ids: Sequence[int], max_length: int) -> tuple[int, ...]:
    """Return the ids of a prompt; PromptError where there are none, or no room behind them."""
    if not ids:
        raise PromptError("the prompt is empty: expected text or chat messages to continue from")
    if len(ids) >= max_length:
        raise PromptError(
            f"the prompt has {len(ids)} tokens and the model's context {max_length}: expected room for at least one "
            "more; shorten the prompt or use a model with a longer context"
        )
    return tuple(ids)


def _text_ids(text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    return _encoded(text, tokenizer) if text else []


def _chat_ids(messages: Sequence[Message], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    if not isinstance(messages, Sequence) or not all(_is_message(message) for message in messages):
        raise PromptError(
            f"expected text, or a list of messages with 'role' and 'content', got {type(messages).__name__}"
        )
    if not messages:
        return []
    if tokenizer.chat_template is None:
        raise PromptError("this tokenizer has no chat template: expected the prompt as one string")
    from jinja2 import TemplateError

    try:
        text = tokenizer.apply_chat_template(
            [dict(message) for message in messages], add_generation_prompt=True, tokenize=False
        )
    except TemplateError as error:  # such as a role that the template does not know
        raise PromptError(f"the tokenizer's chat template refuses these messages: {error}") from error
    # The template writes the special tokens that a chat begins with by itself.
    return _encoded(str(text), tokenizer, add_special_tokens=False)


def _encoded(text: str, tokenizer: PreTrainedTokenizerBase, **options: bool) -> list[int]:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise PromptError(f"the prompt is not text that UTF-8 can write: {error}") from error
    ids: list[int] = tokenizer(text, **options)["input_ids"]
    return ids


def _is_message(message: Any) -> bool:
    return isinstance(message, Mapping) and "role" in message and "content" in message
