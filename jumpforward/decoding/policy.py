"""The presets: what may be committed without asking the model, and what is drafted and then verified."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from jumpforward.errors import OptionError

PolicyName = Literal["masked", "exact", "canonical", "retokenize"]


@dataclass(frozen=True)
class Policy:
    """What a policy does with forced text.

    Attributes:
        name: its name in calls and on the command line.
        commits_stable: append stable tokens of forced text without asking the model. Moves the distribution.
        skips_certain: take a position's only legal token without asking the model. Moves nothing.
        drafts: propose tokens and keep those that the model would have chosen. Moves nothing.
        rewrites: append all forced text, and let it change the tokens before it to the canonical ones. Moves the
            distribution, and tokens that the model sampled.
    """

    name: str
    commits_stable: bool
    skips_certain: bool
    drafts: bool
    rewrites: bool = False

    @property
    def forces(self) -> bool:
        """Whether tokens are written that the model was not asked about and might not have chosen."""
        return self.commits_stable or self.rewrites


POLICIES = {
    policy.name: policy
    for policy in (
        Policy("masked", commits_stable=False, skips_certain=False, drafts=False),
        Policy("exact", commits_stable=False, skips_certain=True, drafts=True),
        Policy("canonical", commits_stable=True, skips_certain=True, drafts=True),
        Policy("retokenize", commits_stable=False, skips_certain=True, drafts=False, rewrites=True),
    )
}


def policy_named(name: str) -> Policy:
    """Return the policy of that name; OptionError where there is none."""
    if not isinstance(name, str) or name not in POLICIES:
        raise OptionError("policy", name, f"one of {', '.join(POLICIES)}")
    return POLICIES[name]
