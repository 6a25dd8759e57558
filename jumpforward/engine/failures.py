"""What is said when a run cannot go on. Each function returns an exception; ``text`` is the output so far."""

from __future__ import annotations

from typing import Any

from jumpforward.errors import BadLogitsError, EmptyMaskError, OutOfMemoryError, TokenRejectedError
from jumpforward.matching.matcher import Matcher

_LEN_SHOWN = 60


def empty_mask(text: str, matcher: Matcher) -> EmptyMaskError:
    """No token of the vocabulary is legal where the matcher stands."""
    if matcher.is_accepting:
        return EmptyMaskError(
            f"behind {text[-_LEN_SHOWN:]!r} the output is complete and cannot go on, and an end token is not legal "
            "yet: use a smaller min_new_tokens, or another grammar",
            text,
        )
    missing = matcher.missing_bytes()
    wanted = ", ".join(repr(bytes([value])) for value in missing[:8]) or "tokens that it does not have"
    return EmptyMaskError(
        f"behind {text[-_LEN_SHOWN:]!r} the grammar can only be completed with {wanted}, which the vocabulary "
        "cannot spell; use another tokenizer, or change the grammar",
        text,
        missing,
    )


def bad_logits(text: str, model: Any) -> BadLogitsError:
    """No legal token has a finite logit."""
    return BadLogitsError(
        f"behind {text[-_LEN_SHOWN:]!r} every legal token has a logit of NaN or minus infinity: expected finite "
        f"logits from {type(model).__name__} in {model.dtype}; try another dtype",
        text,
    )


def token_rejected(text: str, token: int, data: bytes) -> TokenRejectedError:
    """The matcher refuses a token that its mask permits."""
    return TokenRejectedError(
        f"the mask permits token {token} ({data!r}) and the matcher refuses it; please report the grammar and the "
        "tokenizer",
        text,
    )


def no_room(text: str, error: Exception) -> OutOfMemoryError:
    """A forward pass runs out of memory with a single token in it."""
    wrapped = OutOfMemoryError(
        f"a forward pass has no room in memory, also with one token of one request in it ({error}): use a smaller "
        "batch_size, a max_cache_bytes, a shorter prompt, or a smaller dtype",
        text,
    )
    wrapped.__cause__ = error
    return wrapped
