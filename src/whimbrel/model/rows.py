"""Rows: a fact as the plain values of its table's columns, and back.

Rule: the columns are those of ``model.tables``, in that order; they are spelled again here because a node that only
writes its log needs no Arrow. A test holds the two together.
Rule: plain means: times as integers (microseconds UTC), enums as their value, attributes as our mapping, keys as
``{"scheme", "digest"}`` sorted, places, areas and displays as dictionaries of their parts.
Rule: a column that was added later may be null, whatever the fact's own default: older files do not have it.
Rule: ``fact_of(*row_of(fact)) == fact``. A row from elsewhere gives a fact or ``InvalidValueError`` naming the column.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, TypeAlias, TypeVar

from whimbrel.errors import InvalidValueError, Phrase
from whimbrel.model.attributes import INT32_MAX, NO_ATTRIBUTES, Attributes, FrozenAttributes, Limits, checked
from whimbrel.model.device import DeviceState, Display
from whimbrel.model.facts import (
    Decided,
    Fact,
    InterestChanged,
    Mode,
    Outcome,
    PolicyChange,
    PolicyChanged,
    PresenceChange,
    PresenceChanged,
    Receipt,
    Reported,
    SessionChange,
    SessionChanged,
    WillChange,
    WillChanged,
)
from whimbrel.model.keys import NO_KEYS, KeyHash, KeyHashes, Scheme
from whimbrel.model.near import ANYWHERE, Anywhere, Around, Near
from whimbrel.model.notification import Notification, NotificationId
from whimbrel.model.place import Area, Place
from whimbrel.model.polygon import Polygon
from whimbrel.model.subscription import InterestChange, Subscription, SubscriptionIdentity
from whimbrel.model.will import LastWill

__all__ = ["COLUMNS", "UNBOUNDED", "fact_of", "row_of", "subscription_values", "values_of"]

Row: TypeAlias = Mapping[str, Any]
"""A row from outside; what is in it is found out here."""

COLUMNS: dict[str, tuple[str, ...]] = {
    "publications": (
        *("node", "seq", "published_at", "publisher", "subject", "attributes", "body", "qos", "retain", "place"),
        *("radius_m", "expires_at", "deadline_at", "keys", "deliver_insecure", "properties", "packet_id"),
        "will_seq",
    ),
    "interests": (
        *("node", "seq", "changed_at", "change", "device", "session", "subject_filter", "name", "filter_text"),
        *("ttl_us", "max_held", "policy", "near", "keys", "accept_insecure", "qos", "no_local"),
        *("retain_as_published", "identifier", "around_m", "corners", "hears_anywhere", "stale_us"),
    ),
    "presence": (
        *("node", "seq", "changed_at", "device", "session", "change", "receipt", "packet_id", "session_expiry_us"),
        *("sent_seq", "confirms", "owner"),
    ),
    "sessions": ("node", "seq", "changed_at", "change", "session", "device", "access"),
    "reports": ("node", "seq", "reported_at", "device", "battery", "display", "received", "sent", "place", "members"),
    "receipts": (
        *("node", "seq", "handed_at", "session", "device", "notification_node", "notification_seq", "subscriptions"),
        *("outcome", "body_hash", "via", "battery", "network_connection", "display", "published_at", "subject"),
    ),
    "wills": (
        *("node", "seq", "changed_at", "device", "change", "subject", "body", "qos", "retain", "delay_us"),
        *("expiry_us", "keys", "deliver_insecure", "properties"),
    ),
    "policies": ("node", "seq", "changed_at", "change", "owner", "name", "text", "device"),
    "decisions": (
        *("node", "seq", "decided_at", "session", "device", "notification_node", "notification_seq", "policy_seq"),
        *("policy", "outcome", "reason", "body_hash", "body_bytes", "body", "attributes", "read", "changed", "removed"),
        *("steps", "bytes_read", "pixels_read", "publisher"),
    ),
}
"""The columns of each table of the log: node, seq, the fact's own time, then the rest."""

UNBOUNDED = Limits(max_names=INT32_MAX, max_bytes=INT32_MAX, max_name_bytes=INT32_MAX)
"""What was accepted once must be readable for ever, whatever limits a node had then; a record's size bounds it."""

_E = TypeVar("_E", bound=Enum)
_MISSING = object()


def row_of(fact: Fact) -> tuple[str, dict[str, object]]:
    """Return the table of *fact* and its row."""
    table, values = values_of(fact)
    return table, dict(zip(COLUMNS[table], values, strict=True))


def values_of(fact: Fact) -> tuple[str, tuple[object, ...]]:
    """Return the table of *fact* and its row's values in the order of ``COLUMNS``; the third is its time."""
    table, values = _WRITERS[type(fact)]
    return table, values(fact)


def fact_of(table: str, row: Mapping[str, object]) -> Fact:
    """Return the fact that *row* of *table* records; columns with a natural default may be missing."""
    reader = _READERS.get(table)
    if reader is None:
        raise InvalidValueError("table", table, ", ".join(_READERS))
    return reader(row)


# -- to values -------------------------------------------------------------------------------------------------------


def _publication_values(fact: Notification) -> tuple[object, ...]:
    return (
        fact.node,
        fact.seq,
        fact.published_at,
        fact.publisher,
        fact.subject,
        fact.attributes,
        fact.body,
        fact.qos,
        fact.retain,
        _place_value(fact.place),
        fact.radius_m,
        fact.expires_at,
        fact.deadline_at,
        _keys_value(fact.keys),
        fact.deliver_insecure,
        fact.properties or None,
        fact.packet_id,
        fact.will_seq,
    )


def _interest_values(fact: InterestChanged) -> tuple[object, ...]:
    head = (fact.node, fact.seq, fact.changed_at, fact.change.value, fact.device)
    return (*head, *subscription_values(fact.subscription))


def subscription_values(wanted: Subscription) -> tuple[object, ...]:
    """Return the columns of ``interests`` that describe a subscription, in their order: all after ``device``."""
    near = wanted.near
    return (
        wanted.session,
        wanted.subject_filter,
        wanted.name,
        wanted.filter_text,
        wanted.ttl_us,
        wanted.max_held,
        wanted.policy,
        {"latitude": near.centre.latitude, "longitude": near.centre.longitude, "radius_m": near.radius_m}
        if isinstance(near, Area)
        else None,
        _keys_value(wanted.keys),
        wanted.accept_insecure,
        wanted.qos,
        wanted.no_local,
        wanted.retain_as_published,
        wanted.identifier,
        near.radius_m if isinstance(near, Around) else None,
        [_place_value(corner) for corner in near.corners] if isinstance(near, Polygon) else None,
        True if isinstance(near, Anywhere) else None,
        wanted.stale_us,
    )


def _presence_values(fact: PresenceChanged) -> tuple[object, ...]:
    receipt = None if fact.receipt is None else fact.receipt.value
    return (
        fact.node,
        fact.seq,
        fact.changed_at,
        fact.device,
        fact.session,
        fact.change.value,
        receipt,
        fact.packet_id,
        fact.session_expiry_us,
        fact.sent_seq,
        fact.confirms,
        fact.owner,
    )


def _session_values(fact: SessionChanged) -> tuple[object, ...]:
    return (fact.node, fact.seq, fact.changed_at, fact.change.value, fact.session, fact.device, fact.access)


def _report_values(fact: Reported) -> tuple[object, ...]:
    state = fact.state
    return (
        fact.node,
        fact.seq,
        state.reported_at,
        state.device,
        state.battery,
        _display_value(state.display),
        state.received,
        state.sent,
        _place_value(state.place),
        state.members or None,
    )


def _receipt_values(fact: Receipt) -> tuple[object, ...]:
    return (
        fact.node,
        fact.seq,
        fact.handed_at,
        fact.session,
        fact.device,
        fact.notification.node,
        fact.notification.seq,
        [{"subject_filter": each.subject_filter, "name": each.name} for each in fact.subscriptions],
        fact.outcome.value,
        fact.body_hash,
        fact.via,
        None if fact.battery is None else float(fact.battery),
        None if fact.network_connection is None else float(fact.network_connection),
        _display_value(fact.display),
        fact.published_at,
        fact.subject,
    )


def _will_values(fact: WillChanged) -> tuple[object, ...]:
    will = fact.will
    head = (fact.node, fact.seq, fact.changed_at, fact.device, fact.change.value)
    if will is None:
        return (*head, None, None, None, None, None, None, [], True, None)
    return (
        *head,
        will.subject,
        will.body,
        will.qos,
        will.retain,
        will.delay_us,
        will.expiry_us,
        _keys_value(will.keys),
        will.deliver_insecure,
        will.properties or None,
    )


def _policy_values(fact: PolicyChanged) -> tuple[object, ...]:
    head = (fact.node, fact.seq, fact.changed_at, fact.change.value)
    return (*head, fact.owner, fact.name, fact.text, fact.device)


def _decision_values(fact: Decided) -> tuple[object, ...]:
    return (
        fact.node,
        fact.seq,
        fact.decided_at,
        fact.session,
        fact.device,
        fact.notification.node,
        fact.notification.seq,
        fact.policy_seq,
        fact.policy,
        fact.outcome.value,
        fact.reason,
        fact.body_hash,
        fact.body_bytes,
        fact.body,
        fact.attributes,
        fact.read,
        fact.changed,
        list(fact.removed),
        fact.steps,
        fact.bytes_read,
        fact.pixels_read,
        fact.publisher,
    )


def _place_value(place: Place | None) -> dict[str, float] | None:
    return None if place is None else {"latitude": place.latitude, "longitude": place.longitude}


def _display_value(display: Display | None) -> dict[str, int] | None:
    return None if display is None else {"width_px": display.width_px, "height_px": display.height_px}


def _keys_value(keys: KeyHashes) -> list[dict[str, object]]:
    if not keys.hashes:
        return []
    ordered = sorted((each.scheme.value, each.digest) for each in keys.hashes)
    return [{"scheme": scheme, "digest": digest} for scheme, digest in ordered]


_WRITERS: dict[type, tuple[str, Callable[[Any], tuple[object, ...]]]] = {
    Notification: ("publications", _publication_values),
    InterestChanged: ("interests", _interest_values),
    PresenceChanged: ("presence", _presence_values),
    SessionChanged: ("sessions", _session_values),
    Reported: ("reports", _report_values),
    Receipt: ("receipts", _receipt_values),
    WillChanged: ("wills", _will_values),
    PolicyChanged: ("policies", _policy_values),
    Decided: ("decisions", _decision_values),
}


# -- from a row: what the facts check themselves when they are built is not checked twice ------------------------------


def _publication(row: Row) -> Notification:
    return Notification(
        node=_needed(row, "node"),
        seq=_needed(row, "seq"),
        published_at=_needed(row, "published_at"),
        publisher=row.get("publisher"),
        subject=row.get("subject"),
        attributes=_attributes(row),
        body=row.get("body", b""),
        qos=row.get("qos", 0),
        retain=_flag(row, "retain", default=False),
        place=_place(row),
        radius_m=row.get("radius_m"),
        expires_at=row.get("expires_at"),
        deadline_at=row.get("deadline_at"),
        keys=_keys(row),
        deliver_insecure=_flag(row, "deliver_insecure", default=True),
        properties=_or(b"", row.get("properties")),
        packet_id=row.get("packet_id"),
        will_seq=row.get("will_seq"),
    )


def _interest(row: Row) -> InterestChanged:
    return InterestChanged(
        node=_needed(row, "node"),
        seq=_needed(row, "seq"),
        changed_at=_needed(row, "changed_at"),
        change=_member(InterestChange, row, "change"),
        device=row.get("device"),
        subscription=Subscription(
            session=_needed(row, "session"),
            subject_filter=row.get("subject_filter"),
            name=row.get("name", ""),
            filter_text=row.get("filter_text"),
            ttl_us=row.get("ttl_us"),
            max_held=row.get("max_held"),
            policy=row.get("policy"),
            near=_near(row),
            stale_us=row.get("stale_us"),
            keys=_keys(row),
            accept_insecure=_flag(row, "accept_insecure", default=True),
            qos=row.get("qos"),
            no_local=_or(False, row.get("no_local")),
            retain_as_published=_or(False, row.get("retain_as_published")),
            identifier=row.get("identifier"),
            seq=_needed(row, "seq"),
            changed_at=_needed(row, "changed_at"),
        ),
    )


def _presence(row: Row) -> PresenceChanged:
    return PresenceChanged(
        node=_needed(row, "node"),
        seq=_needed(row, "seq"),
        changed_at=_needed(row, "changed_at"),
        device=_needed(row, "device"),
        session=row.get("session"),
        change=_member(PresenceChange, row, "change"),
        receipt=None if row.get("receipt") is None else _member(Mode, row, "receipt"),
        packet_id=row.get("packet_id"),
        session_expiry_us=row.get("session_expiry_us"),
        sent_seq=row.get("sent_seq"),
        confirms=_maybe_flag(row, "confirms"),
        owner=row.get("owner"),
    )


def _session(row: Row) -> SessionChanged:
    return SessionChanged(
        node=_needed(row, "node"),
        seq=_needed(row, "seq"),
        changed_at=_needed(row, "changed_at"),
        change=_member(SessionChange, row, "change"),
        session=_needed(row, "session"),
        device=row.get("device"),
        access=row.get("access"),
    )


def _report(row: Row) -> Reported:
    return Reported(
        node=_needed(row, "node"),
        seq=_needed(row, "seq"),
        state=DeviceState(
            device=_needed(row, "device"),
            reported_at=_needed(row, "reported_at"),
            battery=row.get("battery"),
            display=_display(row),
            received=row.get("received"),
            sent=row.get("sent"),
            place=_place(row),
            members=_maybe_attributes(row, "members") or NO_ATTRIBUTES,
        ),
    )


def _receipt(row: Row) -> Receipt:
    body_hash, via = row.get("body_hash"), row.get("via")
    if body_hash is not None and type(body_hash) is not bytes:
        raise InvalidValueError("body_hash", body_hash, "bytes")
    if via is not None and not isinstance(via, str):
        raise InvalidValueError("via", via, "a string")
    return Receipt(
        node=_needed(row, "node"),
        seq=_needed(row, "seq"),
        handed_at=_needed(row, "handed_at"),
        session=_needed(row, "session"),
        device=_needed(row, "device"),
        notification=_notification(row),
        subscriptions=_subscriptions(row),
        outcome=Outcome.DELIVERED if "outcome" not in row else _member(Outcome, row, "outcome"),
        body_hash=body_hash,
        via=via,
        battery=_number(row, "battery"),
        network_connection=_number(row, "network_connection"),
        display=_display(row),
        published_at=row.get("published_at"),
        subject=row.get("subject"),
    )


def _will(row: Row) -> WillChanged:
    change = _member(WillChange, row, "change")
    will = None
    if change is WillChange.LEFT:
        will = LastWill(
            subject=_needed(row, "subject"),
            body=_or(b"", row.get("body")),
            qos=_or(0, row.get("qos")),
            retain=_or(False, row.get("retain")),
            delay_us=_or(0, row.get("delay_us")),
            expiry_us=row.get("expiry_us"),
            keys=_keys(row),
            deliver_insecure=_flag(row, "deliver_insecure", default=True),
            properties=_or(b"", row.get("properties")),
        )
    return WillChanged(
        node=_needed(row, "node"),
        seq=_needed(row, "seq"),
        changed_at=_needed(row, "changed_at"),
        device=_needed(row, "device"),
        change=change,
        will=will,
    )


def _policy(row: Row) -> PolicyChanged:
    return PolicyChanged(
        node=_needed(row, "node"),
        seq=_needed(row, "seq"),
        changed_at=_needed(row, "changed_at"),
        change=_member(PolicyChange, row, "change"),
        owner=_needed(row, "owner"),
        name=row.get("name"),
        text=row.get("text"),
        device=row.get("device"),
    )


def _decision(row: Row) -> Decided:
    return Decided(
        node=_needed(row, "node"),
        seq=_needed(row, "seq"),
        decided_at=_needed(row, "decided_at"),
        session=_needed(row, "session"),
        device=_needed(row, "device"),
        notification=_notification(row),
        policy_seq=_needed(row, "policy_seq"),
        policy=_needed(row, "policy"),
        outcome=_member(Outcome, row, "outcome"),
        reason=row.get("reason"),
        body_hash=row.get("body_hash"),
        body_bytes=row.get("body_bytes"),
        body=row.get("body"),
        attributes=_maybe_attributes(row, "attributes"),
        read=_attributes(row, "read"),
        changed=_attributes(row, "changed"),
        removed=_texts(row, "removed"),
        steps=row.get("steps", 0),
        bytes_read=row.get("bytes_read", 0),
        pixels_read=row.get("pixels_read", 0),
        publisher=row.get("publisher"),
    )


_READERS: dict[str, Callable[[Row], Fact]] = {
    "publications": _publication,
    "interests": _interest,
    "presence": _presence,
    "sessions": _session,
    "reports": _report,
    "receipts": _receipt,
    "wills": _will,
    "policies": _policy,
    "decisions": _decision,
}


def _needed(row: Row, column: str) -> Any:  # noqa: ANN401 # the fact that is built of it checks it
    value = row.get(column, _MISSING)
    if value is _MISSING:
        raise InvalidValueError(column, Phrase("nothing"), "a value in every row")
    return value


def _or(default: int | bytes, value: Any) -> Any:  # noqa: ANN401 # the fact that is built of it checks it
    """Return *value*, or *default* for null: what older files have in columns that came later."""
    return default if value is None else value


def _flag(row: Row, column: str, *, default: bool) -> bool:
    value = row.get(column, default)
    if value is True or value is False:
        return value is True
    raise InvalidValueError(column, value, "true or false")


def _maybe_flag(row: Row, column: str) -> bool | None:
    return None if row.get(column) is None else _flag(row, column, default=False)


def _number(row: Row, column: str) -> float | None:
    value = row.get(column)
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    raise InvalidValueError(column, value, "a number")


def _member(kind: type[_E], row: Row, column: str) -> _E:
    value = _needed(row, column)
    found = kind._value2member_map_.get(value) if isinstance(value, str) else None
    if not isinstance(found, kind):
        raise InvalidValueError(column, value, ", ".join(str(each.value) for each in kind))
    return found


def _maybe_attributes(row: Row, column: str) -> Attributes | None:
    return None if row.get(column) is None else _attributes(row, column)


def _texts(row: Row, column: str) -> tuple[str, ...]:
    value = row.get(column, ())
    if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
        raise InvalidValueError(column, value, "a list of texts")
    return tuple(value)


def _attributes(row: Row, column: str = "attributes") -> FrozenAttributes:
    value = row.get(column, {})
    if type(value) is FrozenAttributes:
        return value
    if not isinstance(value, Mapping):
        raise InvalidValueError(column, value, "names and values")
    found = checked(value, limits=UNBOUNDED)
    assert isinstance(found, FrozenAttributes)
    return found


def _parts(row: Row, column: str, names: tuple[str, ...]) -> list[Any] | None:
    """Return the parts of a value of several, in the order of *names*, or None if there is none."""
    value = row.get(column)
    if value is None:
        return None
    if not isinstance(value, Mapping) or value.keys() != set(names):
        raise InvalidValueError(column, value, f"an object of {', '.join(names)}")
    return [value[name] for name in names]


def _place(row: Row) -> Place | None:
    parts = _parts(row, "place", ("latitude", "longitude"))
    return None if parts is None else Place(*parts)


def _near(row: Row) -> Near | None:
    """Return where a subscription wants notifications from: at most one of four columns says so."""
    found: list[Near] = []
    parts = _parts(row, "near", ("latitude", "longitude", "radius_m"))
    if parts is not None:
        found.append(Area(Place(parts[0], parts[1]), parts[2]))
    if row.get("around_m") is not None:
        found.append(Around(row["around_m"]))
    if row.get("corners") is not None:
        found.append(Polygon(tuple(Place(*each) for each in _items(row, "corners", ("latitude", "longitude")))))
    if _maybe_flag(row, "hears_anywhere"):
        found.append(ANYWHERE)
    if len(found) > 1:
        raise InvalidValueError("near", [str(each) for each in found], "one of near, around_m, corners, hears_anywhere")
    return found[0] if found else None


def _display(row: Row) -> Display | None:
    parts = _parts(row, "display", ("width_px", "height_px"))
    return None if parts is None else Display(*parts)


def _items(row: Row, column: str, names: tuple[str, ...]) -> list[list[Any]]:
    value = row.get(column, [])
    if not isinstance(value, list | tuple):
        raise InvalidValueError(column, value, f"a list of objects of {', '.join(names)}")
    items = [_parts({column: each}, column, names) for each in value]
    found = [parts for parts in items if parts is not None]
    if len(found) != len(items):
        raise InvalidValueError(column, None, "no null in the list")
    return found


def _keys(row: Row) -> KeyHashes:
    if row.get("keys", []) == []:  # nearly always, and asked of every row
        return NO_KEYS
    hashes = _items(row, "keys", ("scheme", "digest"))
    return KeyHashes(frozenset(KeyHash(_member(Scheme, {"keys": scheme}, "keys"), digest) for scheme, digest in hashes))


def _subscriptions(row: Row) -> tuple[SubscriptionIdentity, ...]:
    found = []
    for subject_filter, name in _items(row, "subscriptions", ("subject_filter", "name")):
        if not (subject_filter is None or isinstance(subject_filter, str)) or not isinstance(name, str):
            raise InvalidValueError("subscriptions", (subject_filter, name), "texts; subject_filter may be null")
        found.append(SubscriptionIdentity(subject_filter, name))
    return tuple(found)


def _notification(row: Row) -> NotificationId:
    node, seq = _needed(row, "notification_node"), _needed(row, "notification_seq")
    try:
        return NotificationId(node, seq)
    except InvalidValueError as error:
        raise InvalidValueError(f"notification_{error.what}", error.found, error.allowed) from None
