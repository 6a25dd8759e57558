"""Masked sampling: illegal logits are minus infinity, and every position has noise of its own.

A draw is the largest of logit plus Gumbel noise (the Gumbel-max trick), with noise that depends on seed and position
alone. The same position in a longer chunk then gives the same token: a chunk moves logits by about 1e-5, which moves
a draw only where the two best are that close. Inverting a cumulative sum would add those differences up, and changed
one token in a few hundred when it was tried.

A finite floor instead of minus infinity would let an illegal token win where no legal one is left. Here an empty
set of legal tokens is an error (raised by the caller, who knows the text), as are logits without a finite maximum.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from numbers import Integral, Real

import numpy as np
import torch
import xgrammar
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from jumpforward.errors import OptionError

_LEAST_NOISE = np.float32(1e-30)
_TEMPERATURES = (1e-30, 1e30)  # beyond, float32 has no room for a logit divided by it
_TYPES = {"temperature": Real, "top_k": Integral, "top_p": Real, "min_p": Real, "seed": Integral}
_NO_IDS = torch.LongTensor()  # the warpers used here look at scores only


@dataclass(frozen=True)
class SamplingOptions:
    """How a token is drawn from the masked distribution. Temperature 0 takes the likeliest legal token.

    Raises:
        OptionError: a value outside its range, or one that has no effect at temperature 0.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        """Check every value."""
        for name, kind in _TYPES.items():
            value = getattr(self, name)
            if value is None and name != "temperature":
                continue
            if isinstance(value, bool) or not isinstance(value, kind):
                raise OptionError(name, value, "a number" if kind is Real else "a whole number")
        least, most = _TEMPERATURES
        if self.temperature != 0 and not least <= self.temperature <= most:
            raise OptionError("temperature", self.temperature, f"0, or a number from {least} to {most}")
        if self.top_k is not None and self.top_k < 1:
            raise OptionError("top_k", self.top_k, "a whole number of at least 1")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise OptionError("top_p", self.top_p, "a number above 0 and at most 1")
        if self.min_p is not None and not 0 <= self.min_p <= 1:
            raise OptionError("min_p", self.min_p, "a number from 0 to 1")
        if self.seed is not None and not 0 <= self.seed < 2**64:
            raise OptionError("seed", self.seed, "a whole number from 0 to 2**64 - 1")
        for name in ("top_k", "top_p", "min_p"):
            if self.is_greedy and getattr(self, name) is not None:
                raise OptionError(name, getattr(self, name), "nothing, or a temperature above 0 beside it")

    @property
    def is_greedy(self) -> bool:
        """Whether nothing is drawn."""
        return self.temperature == 0

    def warpers(self) -> LogitsProcessorList:
        """Return transformers' warpers for these options, in the order of ``generate``."""
        warpers = LogitsProcessorList()
        if self.temperature not in (0, 1):
            warpers.append(TemperatureLogitsWarper(float(self.temperature)))
        if self.top_k is not None:
            warpers.append(TopKLogitsWarper(int(self.top_k)))
        if self.top_p is not None and self.top_p < 1:
            warpers.append(TopPLogitsWarper(self.top_p))
        if self.min_p is not None:
            warpers.append(MinPLogitsWarper(self.min_p))
        return warpers


class Sampler:
    """Chooses tokens for one request: the same at a position whatever chunk the position comes in.

    Attributes:
        seed: the seed in use; drawn where none was given; None when greedy.
    """

    def __init__(self, options: SamplingOptions) -> None:
        self._warpers = options.warpers()
        self.seed: int | None = None
        if not options.is_greedy:
            self.seed = secrets.randbits(63) if options.seed is None else int(options.seed)

    def choose(self, logits: torch.Tensor, bitmask: torch.Tensor, positions: Sequence[int]) -> list[int | None]:
        """Return the chosen token of every row of one request; see :func:`choose_tokens`."""
        return choose_tokens(logits, bitmask, [(self, positions)])[0]

    def draw(self, masked: torch.Tensor, positions: Sequence[int]) -> torch.Tensor:
        """Return a drawn token for each row of masked logits, int64, shape (rows,)."""
        noise = torch.from_numpy(np.stack([self._exponentials(at, masked.shape[-1]) for at in positions]))
        scores = self._warpers(_NO_IDS, masked)
        # Minus the logarithm of an exponential variable is a Gumbel variable.
        return (scores - noise.to(masked.device).log_()).argmax(dim=-1)

    def _exponentials(self, position: int, width: int) -> np.ndarray:
        """Return the noise of a position: exponential, float32, shape (width,), never 0."""
        generator = np.random.Generator(np.random.SFC64([self.seed or 0, position]))
        return np.maximum(generator.standard_exponential(width, dtype=np.float32), _LEAST_NOISE)


@torch.inference_mode()  # in which the logits were made
def apply_masks(logits: torch.Tensor, bitmask: torch.Tensor) -> None:
    """Overwrite illegal entries of ``logits`` with minus infinity; shapes as in :func:`choose_tokens`.

    xgrammar's kernel for CPUs goes from bit to bit: a row of 49,152 tokens takes it 140 to 240 us, and this 30.
    """
    if logits.device.type != "cpu":
        xgrammar.apply_token_bitmask_inplace(logits, bitmask)
        return
    illegal = np.invert(bitmask.numpy().astype("<i4", copy=False)).view(np.uint8)
    bits = np.unpackbits(illegal, axis=-1, count=logits.shape[-1], bitorder="little")
    logits.masked_fill_(torch.from_numpy(bits.view(np.bool_)), -torch.inf)


def choose_tokens(
    logits: torch.Tensor, bitmask: torch.Tensor, requests: Sequence[tuple[Sampler, Sequence[int]]]
) -> list[list[int | None]]:
    """Choose for several requests at once: one mask for all rows, one maximum, and draws where there are any.

    Args:
        logits: the model's, float32, shape (rows, width); illegal entries are overwritten with minus infinity.
        bitmask: int32, shape (rows, ceil(width / 32)), on the same device.
        requests: for each, its sampler, and for each of its rows the index of the row's token in the output. The
            requests' rows follow one another.

    Returns:
        for each request the chosen token of each of its rows; None where no legal token has a finite logit.
    """
    apply_masks(logits, bitmask)
    best, ids = logits.max(dim=-1)  # NaN, if there is one among the legal entries
    spans = list(pairwise(accumulate((len(positions) for _, positions in requests), initial=0)))
    for (start, end), (sampler, positions) in zip(spans, requests, strict=True):
        if sampler.seed is not None and positions:
            ids[start:end] = sampler.draw(logits[start:end], positions)
    finite = torch.isfinite(best).tolist()
    chosen = [token if usable else None for token, usable in zip(ids.tolist(), finite, strict=True)]
    return [chosen[start:end] for start, end in spans]
