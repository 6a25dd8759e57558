"""Two methods over the same texts: by how much one is better, and whether that is more than chance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.stats import binomtest, bootstrap

NUM_RESAMPLES = 9999


def share(num_hits: int, num_tries: int) -> dict[str, Any]:
    """Return a share with its exact (Clopper-Pearson) interval of 95 %; None for each where nothing was tried."""
    if not num_tries:
        return {"num_hits": 0, "num_tries": 0, "share": None, "low": None, "high": None}
    interval = binomtest(num_hits, num_tries).proportion_ci()
    ends = {"low": float(interval.low), "high": float(interval.high)}
    return {"num_hits": num_hits, "num_tries": num_tries, "share": num_hits / num_tries, **ends}


def compared(base: Sequence[Sequence[bool]], other: Sequence[Sequence[bool]], seed: int) -> dict[str, Any]:
    """Return what is other in ``other`` than in ``base``: for each text, which of its fields are right.

    ``difference`` is in shares of all fields, with a percentile bootstrap interval of 95 % over texts; ``sign_p`` is
    of texts with fewer against texts with more fields right, ``mcnemar_p`` of texts that are right in every field by
    one method alone. Both are exact and two-sided.
    """
    changes = np.array([sum(new) - sum(old) for old, new in zip(base, other, strict=True)], dtype=float)
    num_fields = sum(map(len, base))
    scale = len(changes) / max(1, num_fields)
    low, high = _interval(changes, seed)
    num_worse, num_better = int((changes < 0).sum()), int((changes > 0).sum())
    lost = sum(all(old) and not all(new) for old, new in zip(base, other, strict=True))
    gained = sum(all(new) and not all(old) for old, new in zip(base, other, strict=True))
    return {
        "num_texts": len(changes),
        "difference": float(changes.sum()) / max(1, num_fields),
        "low": scale * low,
        "high": scale * high,
        "num_texts_worse": num_worse,
        "num_texts_better": num_better,
        "sign_p": _p(num_worse, num_better),
        "num_documents_lost": lost,
        "num_documents_gained": gained,
        "mcnemar_p": _p(lost, gained),
    }


def _interval(values: np.ndarray, seed: int) -> tuple[float, float]:
    if len(set(values.tolist())) < 2:  # nothing to resample
        return (float(values[0]),) * 2 if len(values) else (0.0, 0.0)
    rng = np.random.default_rng(seed)
    found = bootstrap((values,), np.mean, n_resamples=NUM_RESAMPLES, method="percentile", rng=rng)
    return float(found.confidence_interval.low), float(found.confidence_interval.high)


def _p(num_first: int, num_second: int) -> float:
    """Return the two-sided exact p of a fair coin; 1 where it was never tossed."""
    return float(binomtest(num_first, num_first + num_second).pvalue) if num_first + num_second else 1.0
