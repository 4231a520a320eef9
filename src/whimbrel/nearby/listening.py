"""Listening in: forwarding of events out of their area, to the node's log or to a broker, with place and deadline.

Rule: an event keeps its identity as the attribute ``event`` (``node:seq``), by which duplicates are recognised.
Rule: the place of the producer is the attribute ``producer_place``, a text such as ``53.34,-6.25``.
Rule: a signed event whose age the listener could not check, because its clock is not set, has ``age_known`` = 0: it may
be a replayed recording.
Rule: the log has the area as place and radius, and the deadline as an instant of the listener's own clock. On a broker
they are members of the JSON body, because MQTT has no fields for them; the message expires with the deadline.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

from whimbrel.model.attributes import Attributes, FrozenAttributes
from whimbrel.model.clock import format_time
from whimbrel.model.facts import later
from whimbrel.model.notification import Notification
from whimbrel.nearby.group.outputs import Deliver

if TYPE_CHECKING:  # neither files nor sockets need be loaded for the other
    from whimbrel.client import Client
    from whimbrel.log.writer import LogWriter

__all__ = ["SUBJECT", "append_event", "body_of", "notification_of", "publish_event", "subject_of"]

SUBJECT = "nearby"


def subject_of(event_type: str) -> str:
    """Return the subject of events of a type: ``nearby/<event type>``; wildcards in a type's name become ``_``."""
    return f"{SUBJECT}/{event_type}".translate(str.maketrans("+#", "__"))


def _attributes(heard: Deliver) -> Attributes:
    event = heard.event
    mark = {"age_known": 0} if event.key is not None and not heard.is_age_known else {}
    return FrozenAttributes({**event.attributes, **mark, "event": str(event.id), "producer_place": str(event.place)})


def notification_of(heard: Deliver, *, node: str, seq: int, at: int) -> Notification:
    """Return an event, heard at *at*, as a publication of the listening node with the seq *seq*."""
    event = heard.event
    return Notification(
        node=node,
        seq=seq,
        published_at=at,
        subject=subject_of(event.subject),
        publisher=event.origin,
        attributes=_attributes(heard),
        place=event.area.centre,
        radius_m=event.area.radius_m,
        deadline_at=at + heard.left_us,
    )


def append_event(log: LogWriter, heard: Deliver, *, at: int) -> Notification:
    """Append an event to the log of the listening node, and fsync."""
    fact = notification_of(heard, node=log.node, seq=log.next_seq, at=later(log.last_at, at))
    log.append(fact)
    log.sync()
    return fact


def body_of(heard: Deliver, *, at: int) -> bytes:
    """Return an event, heard at *at*, as the JSON body of a message."""
    said = {name: value.hex() if isinstance(value, bytes) else value for name, value in _attributes(heard).items()}
    area = {"place": str(heard.event.area.centre), "radius_m": heard.event.area.radius_m}
    time = {"remaining_ms": heard.left_us / 1e3, "deadline_at": format_time(at + heard.left_us)}
    return json.dumps({**said, **area, **time}, ensure_ascii=False).encode()


async def publish_event(client: Client, heard: Deliver, *, at: int) -> None:
    """Publish an event, heard at *at*, on the broker that *client* is connected to."""
    expiry_s = max(1, math.ceil(heard.left_us / 1e6))
    body, subject = body_of(heard, at=at), subject_of(heard.event.subject)
    await client.publish(subject, body, qos=1, content_type="application/json", expiry_s=expiry_s)
