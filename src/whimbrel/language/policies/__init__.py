"""The policy language (SUBLIM): decides what a device gets, by the notification and the state of the device."""

from whimbrel.language.policies.codes import PolicyCode
from whimbrel.language.policies.limits import DEFAULT_POLICY_LIMITS, PolicyCost, PolicyLimits
from whimbrel.language.policies.policy import Policy, parse_policy

__all__ = ["DEFAULT_POLICY_LIMITS", "Policy", "PolicyCode", "PolicyCost", "PolicyLimits", "parse_policy"]
