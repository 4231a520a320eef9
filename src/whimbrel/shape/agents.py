"""Agents: policies compiled once and kept while they are in force (the paper's DLL, sections 4.1 and 6.1).

Rule: a policy text that was accepted once runs for ever: today's limits bound new policies, not replayed ones. A text
that this version cannot parse any more counts as no policy.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Generator

from whimbrel.errors import PolicyError
from whimbrel.language.policies.codes import PolicyCode
from whimbrel.language.policies.limits import DEFAULT_POLICY_LIMITS, PolicyLimits
from whimbrel.language.policies.policy import Policy
from whimbrel.model.bounds import INT64_MAX
from whimbrel.shape.images import are_supported

__all__ = ["Agents", "admit", "admitting"]

_UNBOUNDED = PolicyLimits(steps=INT64_MAX, bytes=INT64_MAX, pixels=INT64_MAX)


def admit(text: str, limits: PolicyLimits = DEFAULT_POLICY_LIMITS, *, has_images: bool | None = None) -> Policy:
    """Compile a new policy, or raise ``PolicyError``; ``compress`` is refused where no image library is installed."""
    return _with_images(Policy(text, limits=limits), has_images=has_images)


def admitting(text: str, limits: PolicyLimits) -> Generator[None, None, Policy]:
    """Compile and check a policy like ``admit``, in short steps: yield after each, return the policy."""
    return _with_images((yield from Policy.reading(text, limits)))


def _with_images(policy: Policy, *, has_images: bool | None = None) -> Policy:
    has_images = are_supported() if has_images is None else has_images
    if policy.needs_images and not has_images:
        text = policy.text
        at = max(text.find("compress"), 0)
        reason = "compress needs an image library, which is not installed: pip install 'whimbrel[images]'"
        raise PolicyError(PolicyCode.MISSING, reason, text, at, min(len(text), at + len("compress")))
    return policy


class Agents:
    """Cache of compiled policies by their text; the least recently used is evicted first."""

    def __init__(self, most: int = 1_024) -> None:
        self.most = most
        """Most policies in the cache."""
        self._kept: OrderedDict[str, Policy | None] = OrderedDict()

    def of(self, text: str) -> Policy | None:
        """Return the compiled policy of a *text* that was accepted once; None if it cannot be parsed any more."""
        if text in self._kept:
            self._kept.move_to_end(text)
            return self._kept[text]
        try:
            policy: Policy | None = Policy(text, limits=_UNBOUNDED)
        except PolicyError:
            policy = None
        self._keep(text, policy)
        return policy

    def put(self, policy: Policy) -> None:
        """Cache a policy that ``admit`` has compiled."""
        self._keep(policy.text, policy)

    def _keep(self, text: str, policy: Policy | None) -> None:
        self._kept[text] = policy
        self._kept.move_to_end(text)
        if len(self._kept) > self.most:
            self._kept.popitem(last=False)
