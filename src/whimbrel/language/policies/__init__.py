"""The policy language (SUBLIM): a policy decides what a device gets, from the notification and the device's state."""

from whimbrel.language.policies.codes import PolicyCode
from whimbrel.language.policies.limits import DEFAULT_POLICY_LIMITS, PolicyCost, PolicyLimits
from whimbrel.language.policies.policy import Policy, parse_policy

__all__ = ["DEFAULT_POLICY_LIMITS", "Policy", "PolicyCode", "PolicyCost", "PolicyLimits", "parse_policy"]
