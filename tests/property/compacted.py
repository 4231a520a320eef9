"""Facts as a broker appends them: plain enough for a compact record, and that record."""

from __future__ import annotations

from whimbrel.log.records import publication_body, receipt_body, receipt_prefix
from whimbrel.model.codecs import attributes_of
from whimbrel.model.facts import Fact, Receipt
from whimbrel.model.notification import Notification, NotificationId


def as_it_came(fact: Fact) -> tuple[Fact, bytes] | None:
    """Return *fact* without what a compact record cannot say, and the body of that record; None if it has none."""
    match fact:
        case Notification():
            return _publication(fact)
        case Receipt():
            return _delivery(fact)
        case _:
            return None


def _publication(fact: Notification) -> tuple[Notification, bytes]:
    plain = Notification(
        node=fact.node,
        seq=fact.seq,
        published_at=fact.published_at,
        publisher=fact.publisher,
        subject=fact.subject,
        attributes=attributes_of(fact.body),
        body=fact.body,
        qos=fact.qos,
        retain=fact.retain,
        expires_at=fact.expires_at,
        properties=fact.properties,
        packet_id=fact.packet_id,
    )
    body = publication_body(
        fact.seq,
        fact.published_at,
        (fact.publisher or "").encode(),
        (fact.subject or "").encode(),
        fact.body,
        qos=fact.qos,
        retain=fact.retain,
        expires_at=fact.expires_at,
        packet_id=fact.packet_id,
        properties=fact.properties,
    )
    return plain, body


def _delivery(fact: Receipt) -> tuple[Receipt, bytes]:
    plain = Receipt(
        node=fact.node,
        seq=fact.seq,
        handed_at=fact.handed_at,
        session=fact.session,
        device=fact.device,
        notification=NotificationId(fact.node, fact.notification.seq),
        subscriptions=fact.subscriptions,
        via=fact.via,
    )
    prefix = receipt_prefix(fact.session, fact.device, fact.subscriptions)
    return plain, receipt_body(fact.seq, fact.handed_at, prefix, fact.notification.seq, fact.via)
