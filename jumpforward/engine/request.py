"""What one request asks for, checked before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from jumpforward.decoding.policy import Policy
from jumpforward.decoding.sampling import SamplingOptions
from jumpforward.errors import OptionError
from jumpforward.grammar.spec import Grammar


@dataclass(frozen=True, eq=False)
class Request:
    """A checked request.

    Raises:
        OptionError: an option has a value that means nothing.
    """

    prompt_ids: tuple[int, ...]
    grammar: Grammar
    policy: Policy
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    max_new_tokens: int = 256
    stop: tuple[bytes, ...] = ()
    logprobs: bool = False
    ensure_complete: bool = False

    def __post_init__(self) -> None:
        """Check what the other types do not."""
        if not isinstance(self.grammar, Grammar):
            raise OptionError("grammar", self.grammar, "a grammar, as jf.json_schema(...) or jf.regex(...) make")
        if isinstance(self.max_new_tokens, bool) or not isinstance(self.max_new_tokens, int):
            raise OptionError("max_new_tokens", self.max_new_tokens, "a whole number of at least 1")
        if self.max_new_tokens < 1:
            raise OptionError("max_new_tokens", self.max_new_tokens, "at least 1")


def stop_bytes(stop: str | Sequence[str] | None) -> tuple[bytes, ...]:
    """Return the stop strings as bytes; OptionError for anything but strings with something in them."""
    strings = [] if stop is None else [stop] if isinstance(stop, str) else stop
    if not isinstance(strings, Sequence) or not all(isinstance(string, str) and string for string in strings):
        raise OptionError("stop", stop, "a string that is not empty, or several")
    try:
        return tuple(string.encode() for string in strings)
    except UnicodeEncodeError as error:
        raise OptionError("stop", stop, f"text that UTF-8 can write ({error.reason})") from error
