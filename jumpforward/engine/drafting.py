"""What an engine drafts with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from jumpforward.decoding.boundary import Boundary
from jumpforward.decoding.costs import MeasuredCosts, PassCosts
from jumpforward.decoding.drafter import Drafter
from jumpforward.decoding.forced import ForcedText
from jumpforward.decoding.formats import FixedFormats
from jumpforward.decoding.guesses import RejectedRows
from jumpforward.decoding.lookup import CopiedText
from jumpforward.decoding.memory import DEFAULT_MEMORY_BYTES, MEMORY_SCOPES, EarlierTokens, MemoryScope, memory_for
from jumpforward.decoding.pace import Paces
from jumpforward.engine.draft_model import DraftModel
from jumpforward.engine.limits import EngineLimits
from jumpforward.errors import OptionError
from jumpforward.matching.compiler import GrammarCompiler

if TYPE_CHECKING:
    from jumpforward.engine.draft_model import ModelToDraft

# The order decides between bids of the same worth.
DEFAULT_DRAFTERS = ("guesses", "memory", "forced", "formats", "lookup")


class EngineOptions(EngineLimits, total=False):
    """What an engine may be told; see :class:`jumpforward.Engine` and its limits."""

    max_draft: int
    automata: bool
    drafters: Sequence[str | Drafter]
    memory: MemoryScope
    memory_bytes: int
    pass_costs: PassCosts | None


class Drafting:
    """The sources of an engine's drafts, and what they share.

    Attributes:
        drafters: the sources.
        memory: what earlier outputs left; None where requests share nothing.
        paces: how long drafts may be.
    """

    def __init__(
        self,
        boundary: Boundary,
        compiler: GrammarCompiler,
        *,
        drafters: Sequence[str | Drafter] = DEFAULT_DRAFTERS,
        memory: MemoryScope = "grammar",
        memory_bytes: int = DEFAULT_MEMORY_BYTES,
        pass_costs: PassCosts | None = None,
        draft_model: ModelToDraft | None = None,
    ) -> None:
        """Make the sources that are given by name.

        Raises:
            OptionError: there is no such source or scope, two sources have one name, or ``memory_bytes`` is below 0.
            ModelError: the draft model does not fit; see :class:`~jumpforward.engine.draft_model.DraftModel`.
        """
        if memory not in MEMORY_SCOPES:
            raise OptionError("memory", memory, f"one of {', '.join(MEMORY_SCOPES)}")
        if isinstance(memory_bytes, bool) or not isinstance(memory_bytes, int) or memory_bytes < 0:
            raise OptionError("memory_bytes", memory_bytes, "a whole number of at least 0")
        self.memory = memory_for(memory, compiler.vocabulary, memory_bytes)
        makers: dict[str, Callable[[], Drafter]] = {
            "guesses": RejectedRows,
            "memory": lambda: EarlierTokens(memory, self.memory),
            "forced": lambda: ForcedText(boundary),
            "formats": lambda: FixedFormats(boundary, lambda grammar: compiler.pushdown(grammar).matcher()),
            "lookup": lambda: CopiedText(boundary),
        }
        costs = MeasuredCosts() if pass_costs is None else pass_costs
        is_shared = self.memory is not None
        made = [_made(each, makers) for each in drafters]
        if draft_model is not None:
            made.append(DraftModel(draft_model, compiler.vocabulary, costs.for_draft_model(), is_shared=is_shared))
        names = [drafter.name for drafter in made]
        if len(set(names)) < len(names):
            raise OptionError("drafters", names, "sources of different names")
        self.drafters = tuple(drafter for drafter in made if memory != "off" or not isinstance(drafter, EarlierTokens))
        self.paces = Paces(costs, shared=is_shared)


def _made(drafter: str | Drafter, makers: dict[str, Callable[[], Drafter]]) -> Drafter:
    if isinstance(drafter, Drafter):
        return drafter
    if drafter not in makers:
        raise OptionError("drafters", drafter, f"objects of jumpforward.Drafter, or names among {', '.join(makers)}")
    return makers[drafter]()
