"""Feedback: what the pipeline found out from this node's log, as the broker knows it (docs/reference/mqtt.md, "$SYS").

``feedback_reader`` reads it from the pipeline's tables, in a thread; here it is held, asked for, and put into words.
Rule: what is known stays known until something newer is read: a pipeline that stopped, or a file that is broken, makes
it older and not less.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from types import MappingProxyType

from whimbrel.mqtt.topics import disallowed_in

__all__ = ["Announcements", "Feedback", "Lessons"]

REPLICAS_TOPIC = "$SYS/broker/replicas"
LINK_TOPICS = "$SYS/broker/link/"
MAX_SUBJECTS = 1_000
MAX_PLAN_BYTES = 262_144
MAX_PARTS = 256
MAX_LINKS = 1_000
_NO_LEVEL = re.compile(r"[+#/\0]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lessons:
    """What one look at the tables found; None is a table that is as it was, or not there."""

    connections: Mapping[str, float] | None = None
    """NetworkConnection by device, of those it is known of."""
    replicas: Mapping[str, int] | None = None
    """Copies of a sample by subject, the largest first."""
    written_at: int | None = None
    """When the newest file of what was read was written."""
    troubles: tuple[str, ...] = ()
    """Why a table could not be read, a sentence for each."""


class Feedback:
    """What is known now."""

    def __init__(self) -> None:
        self._connections: Mapping[str, float] = MappingProxyType({})
        self._replicas: Mapping[str, int] = MappingProxyType({})
        self._written_at: int | None = None
        self.plan: tuple[str, ...] = ()
        """The copies by subject as JSON, the largest first, in parts that fit a message; none if there is no plan."""
        self.troubles: tuple[str, ...] = ()
        """Why the last look was not as it should be."""
        self.failures = 0
        """How often a table could not be read."""

    def take(self, lessons: Lessons) -> None:
        """Take in what was found."""
        if lessons.connections is not None:
            self._connections = lessons.connections
        if lessons.replicas is not None:
            self._replicas, self.plan = lessons.replicas, tuple(_plan(lessons.replicas))
        if lessons.written_at is not None:
            self._written_at = max(self._written_at or lessons.written_at, lessons.written_at)
        self.troubles = lessons.troubles
        self.failures += len(lessons.troubles)

    def network_connection(self, device: str) -> float | None:
        """Return how much of what was sent to a device it received, 0 to 1; None if that is not known."""
        return self._connections.get(device)

    def replicas(self, subject: str) -> int | None:
        """Return how many copies of a subject's samples are to be spread; None if that is not known."""
        return self._replicas.get(subject)

    @property
    def devices(self) -> int:
        """How many devices something is known of."""
        return len(self._connections)

    @property
    def subjects(self) -> int:
        """How many subjects there is a plan for."""
        return len(self._replicas)

    def age_us(self, now: int) -> int | None:
        """Return how long ago the pipeline last wrote what is known; None if it never did."""
        return None if self._written_at is None else max(0, now - self._written_at)


class Announcements:
    """What stands under ``$SYS`` of what was learned; of links only where *tells_links*."""

    def __init__(self, *, tells_links: bool) -> None:
        self._tells_links = tells_links
        self._plan: tuple[str, ...] = ()
        self._links: dict[str, str] = {}

    def changes(self, learned: Feedback, connected: Collection[str]) -> dict[str, str]:
        """Return what is to be published under which topic, where it is new; empty text takes a topic away.

        Of many links that changed, some wait until the next time: no client waits for the broker meanwhile.
        """
        changes: dict[str, str] = {}
        if learned.plan != self._plan:
            for number in range(max(len(learned.plan), len(self._plan))):
                before, now = (parts[number] if number < len(parts) else "" for parts in (self._plan, learned.plan))
                if before != now:
                    changes[_part_topic(number)] = now
            self._plan = learned.plan
        if self._tells_links:
            changes |= self._link_changes(learned, connected)
        return changes

    def _link_changes(self, learned: Feedback, connected: Collection[str]) -> dict[str, str]:
        changes: dict[str, str] = {}
        for device, said in _with_link(learned, connected):
            if len(changes) < MAX_LINKS and self._links.get(device) != said:
                self._links[device] = changes[LINK_TOPICS + device] = said
        for device in [each for each in self._links if each not in connected]:
            del self._links[device]
            changes[LINK_TOPICS + device] = ""
        return changes


def _part_topic(number: int) -> str:
    """Return the topic of a part of the plan: the first has the topic alone, the others a number behind it."""
    return f"{REPLICAS_TOPIC}/{number}" if number else REPLICAS_TOPIC


def _plan(replicas: Mapping[str, int]) -> Iterator[str]:
    """Yield the plan in parts, each an object of JSON."""
    rows = iter(replicas.items())
    for _ in range(MAX_PARTS):
        members: list[str] = []
        left = MAX_PLAN_BYTES - 1
        for subject, copies in islice(rows, MAX_SUBJECTS):
            member = f"{json.dumps(subject, ensure_ascii=False)}:{copies}"
            left -= len(member.encode()) + 1
            if left < 0:
                rows = chain([(subject, copies)], rows)
                break
            members.append(member)
        if not members:
            return
        yield "{" + ",".join(members) + "}"


def _with_link(learned: Feedback, connected: Iterable[str]) -> Iterable[tuple[str, str]]:
    """Yield the devices whose link is known, with the text; one whose name is no level of a topic has no topic."""
    for device in connected:
        connection = learned.network_connection(device)
        if connection is not None and not _NO_LEVEL.search(device) and disallowed_in(device) is None:
            yield device, f"{connection:.3f}"
