"""The policy language (SUBLIM): what a device gets, by what arrives and the state it is in."""

from whimbrel.language.policies.codes import PolicyCode
from whimbrel.language.policies.limits import DEFAULT_POLICY_LIMITS, PolicyCost, PolicyLimits
from whimbrel.language.policies.policy import Policy, parse_policy

__all__ = ["DEFAULT_POLICY_LIMITS", "Policy", "PolicyCode", "PolicyCost", "PolicyLimits", "parse_policy"]
