"""Agents: policies compiled once and kept while they are in force (the paper's DLL, sections 4.1 and 6.1).

Rule: a text that was accepted once must run for ever, whatever today's limits are: they bound what is put, not what is
replayed. One that no version of ours can read any more is as good as none.
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
    """Return the policy that is put, or raise ``PolicyError``; ``compress`` is refused where it could not be done."""
    return _with_images(Policy(text, limits=limits), has_images=has_images)


def admitting(text: str, limits: PolicyLimits) -> Generator[None, None, Policy]:
    """Do what ``admit`` does in pieces, yielding after each."""
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
    """Compiled policies by their text, the least recently used ones forgotten."""

    def __init__(self, most: int = 1_024) -> None:
        self.most = most
        """How many are kept."""
        self._kept: OrderedDict[str, Policy | None] = OrderedDict()

    def of(self, text: str) -> Policy | None:
        """Return the policy of a *text* that was accepted once; None if it cannot be read any more."""
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
        """Keep a policy that was compiled when it was admitted."""
        self._keep(policy.text, policy)

    def _keep(self, text: str, policy: Policy | None) -> None:
        self._kept[text] = policy
        self._kept.move_to_end(text)
        if len(self._kept) > self.most:
            self._kept.popitem(last=False)
