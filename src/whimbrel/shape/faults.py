"""Faults: reasons for which a policy could not decide. Reaction: withhold the notification and log the reason.

Rule: a body that cannot be transformed, or takes too long, is the fault of its publisher, never of the policy.
Rule: the texts never change: older logs contain them.
"""

from __future__ import annotations

from enum import Enum

from whimbrel.errors import WhimbrelError

__all__ = ["Fault", "TransformError"]


class Fault(Enum):
    """Reason of a failed decision; the ``reason`` column of ``decisions``."""

    VARIABLES = "the policy keeps more variables, or longer ones, than a device may have"
    ATTRIBUTES = "the attributes that the policy set are longer than it may send"
    BODY_BYTES = "the body is longer than a transform may read"
    PIXELS = "the image has more pixels than a transform may read"
    UNREADABLE = "the body begins as an image or JSON and is none"
    TIME_OUT = "the transform took longer than it may"
    OVERLOADED = "too many transforms wait"
    NOT_INSTALLED = "the image library is not installed; pip install 'whimbrel[images]'"
    DECODER = "the body ended the process that was to transform it"
    SUSPENDED = "the policy is suspended for this device and publisher: it failed too often in a row"
    ERROR = "the policy or a transform failed, which is a defect of Whimbrel; please report it"

    @property
    def is_of_policy(self) -> bool:
        """Whether the policy itself failed, not a transform of a body; a policy that keeps failing is suspended."""
        return self in {Fault.VARIABLES, Fault.ATTRIBUTES, Fault.ERROR}


class TransformError(WhimbrelError):
    """A body cannot be transformed. Reaction: withhold the notification."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault)
        self.fault = fault

    def __str__(self) -> str:
        return self.fault.value
