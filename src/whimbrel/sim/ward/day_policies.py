"""The policies of a doctor's device, whose texts lie beside this module."""

from __future__ import annotations

from enum import Enum
from importlib.resources import files

__all__ = ["DayPolicy", "policy_text"]


class DayPolicy(Enum):
    """What decides what the doctor is sent."""

    BLIND = "blind"
    """Nothing: everything is sent."""
    STATELESS = "stateless"
    STATEFUL = "stateful"
    REMEMBERING = "remembering"
    """The stateful one, which also remembers that the link was bad: ours, and not of the paper."""


def policy_text(policy: DayPolicy) -> str | None:
    """Return the text of a policy of the paper's section 5, or of ours, or ``None`` if there is none."""
    if policy is DayPolicy.BLIND:
        return None
    return (files(__package__) / f"icu_{policy.value}.policy").read_text(encoding="utf-8")
