"""The section ``[policies]`` of the configuration: the number of policies, and the cost of one run of a policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from whimbrel.broker.settings import fields as setting
from whimbrel.broker.settings.fields import Section
from whimbrel.language.policies.limits import DEFAULT_POLICY_LIMITS as _DEFAULT
from whimbrel.language.policies.limits import PolicyLimits
from whimbrel.model.bounds import INT32_MAX, INT64_MAX

__all__ = ["PolicySettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySettings(Section):
    """Limits on the cost of devices' policies; `whimbrel policy explain` shows the highest cost of one.

    A policy that could cost more is refused when it is stored. A policy that was stored before a limit was lowered
    stays in force; it then withholds messages that exceed the limits of bodies, images and variables, with the reason.
    """

    section: ClassVar[str] = "policies"

    count: int = setting.whole(1_000, 0, 100_000, "How many policies there may be.")
    per_owner: int = setting.whole(
        100, 0, 100_000, "How many of these one user may put; where there are no users, one client."
    )
    steps: int = setting.whole(
        _DEFAULT.steps, 0, 1_000_000, "How many steps one run may take; 5,000 are about a millisecond of the broker."
    )
    bytes: int = setting.constant(
        setting.whole(_DEFAULT.bytes, 0, INT64_MAX, "How many bytes the transforms of one run may read, all together.")
    )
    pixels: int = setting.constant(
        setting.whole(
            _DEFAULT.pixels, 0, INT64_MAX, "How many pixels the transforms of one run may read, all together."
        )
    )
    body_bytes: int = setting.whole(
        _DEFAULT.body_bytes, 0, INT32_MAX, "The longest body that a transform reads; a longer one is withheld."
    )
    image_pixels: int = setting.whole(
        _DEFAULT.image_pixels, 0, INT32_MAX, "The largest image that a transform reads; a larger one is withheld."
    )
    steps_per_second: int = setting.whole(
        50_000,
        0,
        INT32_MAX,
        "How many steps the policies of all devices may take in a second, in equal shares; 0: no bound. A device that "
        "takes more waits. Decisions of up to 200 steps do not count, nor do characters that strings do not have.",
    )
    variables: int = setting.constant(
        setting.whole(_DEFAULT.variables, 0, 1_024, "How many variables a policy may keep for one device.")
    )
    variable_bytes: int = setting.constant(
        setting.whole(
            _DEFAULT.variable_bytes, 0, 1_048_576, "How many bytes these may have, names and values together."
        )
    )

    @property
    def limits(self) -> PolicyLimits:
        """Limits of one run of a policy, in the form that the policy code uses."""
        return PolicyLimits(**{name: getattr(self, name) for name in PolicyLimits.__slots__})
