"""The policies of a doctor's device; their texts are in files beside this module."""

from __future__ import annotations

from enum import Enum
from importlib.resources import files

__all__ = ["DayPolicy", "policy_text"]


class DayPolicy(Enum):
    """The policy that decides which messages the doctor gets, and in which form."""

    BLIND = "blind"
    """No policy: everything is sent."""
    STATELESS = "stateless"
    STATEFUL = "stateful"
    REMEMBERING = "remembering"
    """The stateful policy, extended to remember that the link was bad; ours, not the paper's."""


def policy_text(policy: DayPolicy) -> str | None:
    """Return the text of a policy from the paper's section 5 or of ours; ``None`` for ``BLIND``."""
    if policy is DayPolicy.BLIND:
        return None
    return (files(__package__) / f"icu_{policy.value}.policy").read_text(encoding="utf-8")
