"""What happened in a request, as numbers that add up."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from rich.table import Table


_TIMED = ("model", "mask", "boundary", "draft", "choice", "compile", "wait")


class Provenance(StrEnum):
    """Who chose a token."""

    SAMPLED = "sampled"  # the model, at a position of its own
    FORCED = "forced"  # the grammar: the only legal token, or a stable spelling of forced text
    DRAFTED = "drafted"  # a drafter, and the model would have chosen the same
    RETOKENIZED = "retokenized"  # the tokenizer, in place of others with the same text that the model had chosen
    HEALED = "healed"  # stands for an end of the prompt that was taken back, and maybe for more


class SourceStats(BaseModel):
    """What one source of drafts did in a request. ``num_accepted + num_rejected == num_proposed``.

    Attributes:
        num_proposed: its draft tokens that the model was asked about.
        num_accepted: of these, confirmed by the model.
        num_rejected: of these, not kept: refused, or behind a token that was, whoever proposed that.
        num_passes_saved: forward passes that its accepted tokens saved: one each, save where a draft ended the output,
            so that its last token had a pass of its own.
        seconds: what it took, to propose and to learn.
    """

    model_config = ConfigDict(frozen=True)

    num_proposed: int = 0
    num_accepted: int = 0
    num_rejected: int = 0
    num_passes_saved: int = 0
    seconds: float = 0.0


class Stats(BaseModel):
    """The account of one request.

    ``num_sampled + num_forced + num_drafted + num_retokenized + num_healed == num_output_tokens``,
    ``num_drafted + num_rejected == num_proposed``, and the chunks' tokens and ``num_reused_tokens`` together are those
    in the cache at the end, which are the sequence's but for its last ones, and ``num_cropped``.

    ``num_proposed`` and ``num_rejected`` are the sums over ``sources``, and so is ``num_drafted`` of what they call
    accepted, save for tokens that stand for healed text.

    Where several requests share a pass, it counts in the account of each, with that request's own tokens, without
    padding, and with the whole of its duration: an account says what a request took and waited for. Sums over requests
    are therefore more than what the model did.

    Attributes:
        policy: the policy that ran.
        num_prompt_tokens: tokens of the prompt.
        num_output_tokens: tokens of the output, an end token included.
        num_sampled: of these, chosen by the model one by one.
        num_forced: of these, decided by the grammar without asking the model.
        num_drafted: of these, proposed by a drafter and confirmed by the model.
        num_retokenized: of these, the tokenizer's own in place of others that were rewritten.
        num_healed: of these, for text of the prompt that was taken back (and maybe for more).
        num_withheld: canonical tokens of forced text that were not written at once, because text behind them could
            change them; counted at every stop.
        num_withheld_unknown: of these, where not enough is known of the tokenizer to say what could change them.
        num_seams_sampled: stretches of the output in which its tokens are not the tokenizer's own, since the model
            chose so under the mask. None where the text has no canonical tokens.
        num_seams_forced: the same where forced text was written.
        num_proposed: draft tokens that the model was asked about.
        num_rejected: of these, not kept: a token that the model would not have chosen, and those behind it.
        num_cropped: tokens that were fed and then taken out of the cache again: those rejected, those that were certain
            behind them.
        num_reused_tokens: tokens of the prompt that were not fed but copied from another request's.
        num_forward_passes: calls of the model in which the request had a part, the prompt's included.
        chunk_lengths: how many passes fed how many tokens, as {length: passes}; the prompt's pass is one of them, or
            several where it was cut.
        compile_s: seconds until the grammar was compiled; near 0 when it was compiled before.
        wait_s: seconds that the request waited for its turn: to be taken in, and for a row of the cache.
        model_s: seconds inside the model's forward.
        mask_s: seconds spent filling masks and walking the matcher along drafts.
        boundary_s: seconds spent finding forced text that is written without asking, and its tokens.
        draft_s: seconds spent in sources of drafts.
        choice_s: seconds spent masking logits and choosing tokens (on a GPU: and waiting for them).
        total_s: seconds in all, from the request to its last token.
        sources: what each source of drafts did, by its name.
    """

    model_config = ConfigDict(frozen=True)

    policy: str
    num_prompt_tokens: int
    num_output_tokens: int
    num_sampled: int
    num_forced: int
    num_drafted: int
    num_retokenized: int
    num_healed: int
    num_withheld: int
    num_withheld_unknown: int
    num_seams_sampled: int | None
    num_seams_forced: int | None
    num_proposed: int
    num_rejected: int
    num_cropped: int
    num_reused_tokens: int
    num_forward_passes: int
    chunk_lengths: dict[int, int]
    compile_s: float
    wait_s: float
    model_s: float
    mask_s: float
    boundary_s: float
    draft_s: float
    choice_s: float
    total_s: float
    sources: dict[str, SourceStats] = {}

    @property
    def passes_per_token(self) -> float:
        """Forward passes divided by output tokens: 1 for ordinary decoding."""
        return self.num_forward_passes / max(1, self.num_output_tokens)

    @property
    def num_seams(self) -> int | None:
        """Stretches in which the tokens are not the tokenizer's own; None where that cannot be said."""
        if self.num_seams_sampled is None or self.num_seams_forced is None:
            return None
        return self.num_seams_sampled + self.num_seams_forced

    @property
    def overhead_s(self) -> float:
        """Seconds outside the model's forward, compiling and waiting left aside.

        With other requests beside it, also the seconds of passes in which it had no part.
        """
        return self.total_s - self.model_s - self.compile_s - self.wait_s

    def table(self) -> Table:
        """Return the account as a table for a terminal."""
        from rich.table import Table

        table = Table(title=f"policy {self.policy}", title_justify="left", show_header=False)
        table.add_column(style="bold")
        table.add_column(justify="right")
        for name, value in self._rows():
            table.add_row(name, value)
        return table

    def _rows(self) -> Iterator[tuple[str, str]]:
        total = max(1, self.num_output_tokens)
        yield "forward passes", f"{self.num_forward_passes} ({self.passes_per_token:.2f} a token)"
        yield "prompt tokens", str(self.num_prompt_tokens)
        yield "output tokens", str(self.num_output_tokens)
        for name, count in (
            ("sampled", self.num_sampled),
            ("forced", self.num_forced),
            ("drafted", self.num_drafted),
            ("retokenized", self.num_retokenized),
            ("healed", self.num_healed),
        ):
            if not count and name in ("retokenized", "healed"):
                continue
            yield f"  {name}", f"{count} ({100 * count / total:.0f} %)"
        if self.num_withheld:
            yield "withheld", f"{self.num_withheld} ({self.num_withheld_unknown} as the tokenizer is not understood)"
        if self.num_seams is not None:
            yield "not canonical", f"{self.num_seams} seams ({self.num_seams_forced} by forcing)"
        yield "prompt tokens reused", str(self.num_reused_tokens)
        yield "draft tokens rejected", f"{self.num_rejected} of {self.num_proposed}"
        for name, source in self.sources.items():
            if source.num_proposed:
                yield f"  of {name}", f"{source.num_rejected} of {source.num_proposed}"
        yield (
            "chunk lengths",
            "  ".join(f"{length}×{count}" for length, count in sorted(self.chunk_lengths.items())),
        )
        yield "seconds", f"{self.total_s:.3f}"
        for name in _TIMED:
            yield f"  {name}", f"{getattr(self, f'{name}_s'):.3f}"

    def __str__(self) -> str:
        """Return the account as text, one line a number."""
        return f"policy {self.policy}\n" + "\n".join(f"{name:<22} {value}" for name, value in self._rows())


@dataclass
class SourceCounters:
    """The account of a source of drafts while it is being written."""

    num_accepted: int = 0
    num_rejected: int = 0
    num_passes_saved: int = 0
    seconds: float = 0.0

    def close(self) -> SourceStats:
        """Return the account of a request that ends now."""
        return SourceStats(
            num_proposed=self.num_accepted + self.num_rejected,
            num_accepted=self.num_accepted,
            num_rejected=self.num_rejected,
            num_passes_saved=self.num_passes_saved,
            seconds=self.seconds,
        )


@dataclass
class Counters:
    """The account while it is being written."""

    sources: defaultdict[str, SourceCounters] = field(default_factory=lambda: defaultdict(SourceCounters))
    num_cropped: int = 0
    num_withheld: int = 0
    num_withheld_unknown: int = 0
    num_seams_sampled: int | None = None
    num_seams_forced: int | None = None
    num_reused_tokens: int = 0
    chunk_lengths: Counter[int] = field(default_factory=Counter)
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    started_s: float = field(default_factory=time.perf_counter)
    _lap_s: float | None = None
    _nested_s: float = 0.0

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Add the block's duration to the seconds of ``what``, without that of timed blocks inside it."""
        outer_nested_s, self._nested_s = self._nested_s, 0.0
        start = time.perf_counter()
        try:
            yield
        finally:
            elapsed_s = time.perf_counter() - start
            self.seconds[what] += elapsed_s - self._nested_s
            self._nested_s = outer_nested_s + elapsed_s

    def spent(self, source: str, seconds: float) -> None:
        """Add what a source of drafts took, which the timed block around it does then not count."""
        self.sources[source].seconds += seconds
        self.seconds["draft"] += seconds
        self._nested_s += seconds

    def withheld(self, num_tokens: int, *, is_understood: bool) -> None:
        """Count tokens of forced text that are not written at once, and whether it is understood why."""
        self.num_withheld += num_tokens
        self.num_withheld_unknown += 0 if is_understood else num_tokens

    def lap(self, what: str) -> None:
        """Add the time since the last lap, or since the start, to the seconds of ``what``."""
        now = time.perf_counter()
        self.seconds[what] += now - (self.started_s if self._lap_s is None else self._lap_s)
        self._lap_s = now

    def close(self, policy: str, num_prompt_tokens: int, provenance: list[Provenance]) -> Stats:
        """Return the account of a request that ends now."""
        kinds = Counter(provenance)
        seconds = {f"{name}_s": self.seconds[name] for name in _TIMED}
        sources = {name: source.close() for name, source in self.sources.items()}
        return Stats(
            policy=policy,
            num_prompt_tokens=num_prompt_tokens,
            num_output_tokens=len(provenance),
            num_sampled=kinds[Provenance.SAMPLED],
            num_forced=kinds[Provenance.FORCED],
            num_drafted=kinds[Provenance.DRAFTED],
            num_retokenized=kinds[Provenance.RETOKENIZED],
            num_healed=kinds[Provenance.HEALED],
            num_withheld=self.num_withheld,
            num_withheld_unknown=self.num_withheld_unknown,
            num_seams_sampled=self.num_seams_sampled,
            num_seams_forced=self.num_seams_forced,
            num_proposed=sum(source.num_proposed for source in sources.values()),
            num_rejected=sum(source.num_rejected for source in sources.values()),
            num_cropped=self.num_cropped,
            num_reused_tokens=self.num_reused_tokens,
            num_forward_passes=sum(self.chunk_lengths.values()),
            chunk_lengths=dict(self.chunk_lengths),
            total_s=time.perf_counter() - self.started_s,
            sources=sources,
            **seconds,
        )


@contextmanager
def timed_together(accounts: Sequence[Counters], what: str) -> Iterator[None]:
    """Add the block's whole duration to the seconds of ``what`` in each account."""
    with ExitStack() as stack:
        for counters in accounts:
            stack.enter_context(counters.timed(what))
        yield
