"""Matching: whether a publication answers a subscription (Huang, 4.1.3).

Rule: NULL is a wildcard in subscriptions only; for KEYS, the publication decides whether NULL matches.
Rule: attributes are compared before keys, though the thesis begins with keys (Figure 4-10): the verdict is the same,
and no token is requested without need. The clock offset is ignored, and comparison ignores case.
Rule: never a device with itself.
Rule: a template is four comparisons, not a filter of ``language/``, and its keys are not Elvin's keys.
"""

from __future__ import annotations

from whimbrel.rendezvous.events import Address, GroupKey, Publication, Subscription, fold

__all__ = ["common_groups", "has_common_key", "is_compatible", "is_consistent"]


def is_consistent(publication: Publication, subscription: Subscription) -> bool:
    """Return whether address, name and class agree: each is equal, or NULL in the subscription."""
    return (
        (subscription.address is None or subscription.address == publication.address)
        and (subscription.name is None or fold(subscription.name) == fold(publication.name))
        and (subscription.device_class is None or subscription.device_class == publication.device_class)
    )


def common_groups(publication: Publication, subscription: Subscription) -> tuple[GroupKey, ...]:
    """Return the groups that both name, in the publication's order, in which they are tried."""
    claimed = set(subscription.keys)
    return tuple(key for key in publication.keys if key in claimed)


def has_common_key(publication: Publication, subscription: Subscription) -> bool:
    """Return whether the lists of keys share an element once NULL is appended to the subscription's (Table 4.2)."""
    return not publication.keys or bool(common_groups(publication, subscription))


def is_compatible(publication: Publication, subscription: Subscription, subscriber: Address) -> bool:
    """Return whether the two match, apart from the proofs of membership, which need messages."""
    return (
        publication.address != subscriber
        and is_consistent(publication, subscription)
        and has_common_key(publication, subscription)
    )
