"""From the arguments of a call to a checked request."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import TYPE_CHECKING, Unpack

from jumpforward.decoding.boundary import Boundary
from jumpforward.decoding.policy import Policy, policy_named
from jumpforward.decoding.sampling import SamplingOptions
from jumpforward.engine.healing import take_back
from jumpforward.engine.prompt import Prompt, encode_prompt
from jumpforward.engine.request import Request, SamplingArguments, stop_bytes
from jumpforward.engine.runner import Runner
from jumpforward.errors import RollbackUnsupportedError
from jumpforward.grammar.spec import Grammar
from jumpforward.vocab.vocabulary import Vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Intake:
    """Makes the requests of one engine."""

    def __init__(
        self, runner: Runner, tokenizer: PreTrainedTokenizerBase, boundary: Boundary, vocabulary: Vocabulary
    ) -> None:
        self._runner = runner
        self._tokenizer = tokenizer
        self._boundary = boundary
        self._vocabulary = vocabulary
        self._lock = Lock()

    def request(
        self,
        prompt: Prompt,
        grammar: Grammar,
        *,
        policy: str = "exact",
        max_new_tokens: int = 256,
        min_new_tokens: int = 0,
        stop: str | Sequence[str] | None = None,
        ensure_complete: bool = False,
        heal: bool = False,
        logprobs: bool = False,
        **sampling: Unpack[SamplingArguments],
    ) -> Request:
        """Return what :meth:`jumpforward.Engine.generate` is asked for.

        Raises:
            OptionError, PromptError: an argument means nothing.
            RollbackUnsupportedError: the policy takes tokens back, and the model cannot.
            TypeError: there is no such argument.
        """
        options = SamplingOptions(**sampling)
        plan = policy_named(policy)
        self.check_rollback(plan)
        with self._lock:  # a call may set the tokenizer's padding, which two at a time must not
            ids = encode_prompt(prompt, self._tokenizer, self._runner.max_length)
        healed = ""
        if heal:
            ids, healed = take_back(ids, grammar.walker().live_bytes(), self._boundary, self._vocabulary)
        return Request(
            ids,
            grammar,
            plan,
            options,
            max_new_tokens,
            stop_bytes(stop),
            logprobs,
            ensure_complete,
            healed,
            min_new_tokens,
        )

    def check_rollback(self, plan: Policy) -> None:
        """Raise RollbackUnsupportedError where the policy takes tokens back, and the model cannot."""
        reason = self._runner.no_rollback_reason
        if reason is not None and (plan.rewrites or (plan.drafts and not plan.commits_stable)):
            raise RollbackUnsupportedError(
                f"policy {plan.name!r} takes tokens back, and this model cannot go back in its sequence: {reason}; "
                "use 'masked', or 'canonical', which then runs without drafts"
            )
