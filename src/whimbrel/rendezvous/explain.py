"""Why a publication answers a subscription, or does not: the rule of ``matching``, attribute by attribute."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from whimbrel.errors import InvalidValueError, MalformedBodyError
from whimbrel.model.json_body import read_json
from whimbrel.rendezvous.events import Address, Event, GroupKey, Publication, Subscription, fold
from whimbrel.rendezvous.matching import common_groups, has_common_key

__all__ = ["Line", "explain", "read_event"]

_FIELDS = ("address", "name", "class", "groups")
_ANYWHERE = Address("00:00:00:00:00:00")


@dataclass(frozen=True, slots=True)
class Line:
    """Result of the comparison of one attribute."""

    attribute: str
    is_consistent: bool
    why: str


def read_event(what: str, text: str) -> Event:
    """Return the publication or subscription that *text* describes as JSON; groups are names."""
    try:
        tree = read_json(text.encode())
    except MalformedBodyError as error:
        raise InvalidValueError(what, text, f"a JSON object: {error}") from None
    unknown = set(map(str, tree)) - set(_FIELDS)
    if unknown:
        raise InvalidValueError(what, ", ".join(sorted(unknown)), f"only {', '.join(_FIELDS)}")
    groups = tree.get("groups") or []
    if not isinstance(groups, list | tuple) or not all(isinstance(each, str) for each in groups):
        raise InvalidValueError(f"groups of {what}", groups, "a list of names")
    keys = tuple(GroupKey(hashlib.sha256(str(each).encode()).digest()) for each in groups)
    values = {"address": tree.get("address"), "name": tree.get("name"), "device_class": tree.get("class"), "keys": keys}
    if what == "SUBSCRIPTION":
        return Subscription(**values)  # type: ignore[arg-type]  # it checks what it is built of
    values = {"address": values["address"] or _ANYWHERE, "name": values["name"] or "", "keys": keys}
    return Publication(**values, clock_offset=0, device_class=tree.get("class") or 0)  # type: ignore[arg-type]  # so


def explain(publication: Event, subscription: Event) -> list[Line]:
    """Return, for each attribute, whether the two agree and why."""
    assert isinstance(publication, Publication)
    assert isinstance(subscription, Subscription)
    lines = [
        _compare("address", publication.address, subscription.address),
        _compare("name", publication.name, subscription.name),
        _compare("class", publication.device_class, subscription.device_class),
    ]
    common = len(common_groups(publication, subscription))
    if not publication.keys:
        why = "the publication is open to every device"
    elif common:
        why = f"{common} in common; both devices would have to prove one"
    else:
        why = "the publication is restricted, and the subscription names none of its groups"
    return [*lines, Line("groups", has_common_key(publication, subscription), why)]


def _compare(attribute: str, published: str | int, wanted: str | int | None) -> Line:
    if wanted is None:
        return Line(attribute, is_consistent=True, why="any will do")
    same = fold(str(published)) == fold(str(wanted))
    return Line(attribute, same, f"{wanted!r} is sought, {published!r} is published")
