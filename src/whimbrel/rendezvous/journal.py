"""The controller's log: the changes of events, as publications under ``rendezvous/…``.

Rule: the controller is a node with a log like any other (``log/``). Opened, matched, listed, notified, expired, renewed
and flushed are facts; keys, tokens and challenges are never logged, and a restricted event names no device
(``commands.Note``).
Rule: on disk first. A fact is durable before it is published to a broker.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import fields
from types import TracebackType
from typing import TYPE_CHECKING, Self

from whimbrel.model.facts import later
from whimbrel.model.notification import Notification
from whimbrel.rendezvous.controller.commands import Note

if TYPE_CHECKING:  # sockets need not be loaded to keep a log
    from whimbrel.client import Client
    from whimbrel.log.writer import LogWriter

__all__ = ["SUBJECT", "NoteLog", "attributes_of", "notification_of", "publish_notes", "subject_of"]

SUBJECT = "rendezvous"
_NAMES = {"id": "event", "address": "device", "other_id": "other_event", "other_address": "other_device"}


def subject_of(note: Note) -> str:
    """Return the subject of *note*, such as ``rendezvous/matched``."""
    return f"{SUBJECT}/{note.kind.value}"


def attributes_of(note: Note) -> dict[str, str | int]:
    """Return the fields of *note* that are not None, as attributes."""
    said = ((each.name, getattr(note, each.name)) for each in fields(note) if each.name != "kind")
    return {_NAMES.get(name, name): value for name, value in said if value is not None}


def notification_of(note: Note, *, node: str, seq: int, at: int) -> Notification:
    """Return *note* as the publication number *seq* of *node*."""
    return Notification(
        node=node, seq=seq, published_at=at, subject=subject_of(note), publisher=node, attributes=attributes_of(note)
    )


class NoteLog:
    """Appends facts to the log of a controller."""

    def __init__(self, log: LogWriter) -> None:
        self._log = log

    def __enter__(self) -> Self:
        self._log.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._log.__exit__(kind, error, trace)

    def append(self, note: Note, at: int) -> Notification:
        """Buffer *note*, of the time *at*, for the next ``sync``."""
        log = self._log
        fact = notification_of(note, node=log.node, seq=log.next_seq, at=later(log.last_at, at))
        log.append(fact)
        return fact

    def sync(self) -> None:
        """Write the buffered facts, and fsync."""
        self._log.sync()


async def publish_notes(client: Client, notes: Iterable[Note], *, prefix: str = "") -> int:
    """Publish *notes* to the broker that *client* is connected to, each accepted before the next; return how many.

    The broker's rights file says who may: the controller's user needs ``publish`` on ``rendezvous/#`` and nothing else,
    every device that watches ``subscribe``.
    """
    count = 0
    for note in notes:
        body = json.dumps(attributes_of(note), ensure_ascii=False).encode()
        await client.publish(prefix + subject_of(note), body, qos=1, content_type="application/json")
        count += 1
    return count
