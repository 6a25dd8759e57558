"""The seam between prompt and output: tokens of the prompt that the output's beginning could merge with.

A prompt that ends in the middle of what would be one token leads a model astray: behind ``is `` (with the space) it has
seldom seen ``yes``, since `` yes`` is a token. Taking such tokens back and writing their text again is known as token
healing (guidance has done so since 2023). Which ones to take is the question of stable borders: those that some
beginning of an output would change.
"""

from __future__ import annotations

from jumpforward.decoding.boundary import Boundary
from jumpforward.vocab.vocabulary import Vocabulary

MAX_HEALED_TOKENS = 4


def take_back(
    prompt_ids: tuple[int, ...], first_bytes: bytes, boundary: Boundary, vocabulary: Vocabulary
) -> tuple[tuple[int, ...], str]:
    """Return the prompt without the tokens to be taken back, and their text, given what outputs can begin with.

    At most four, never all, never a special token, and only such that together are whole characters.
    """
    start = len(prompt_ids)
    while start and vocabulary.token_bytes[prompt_ids[start - 1]]:
        start -= 1
    num_open = boundary.num_open(prompt_ids[start:], first_bytes)
    for count in range(min(num_open, MAX_HEALED_TOKENS, len(prompt_ids) - 1), 0, -1):
        kept, taken = prompt_ids[:-count], vocabulary.text_bytes(prompt_ids[-count:])
        if _is_text(taken):
            return kept, taken.decode()
    return prompt_ids, ""


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
