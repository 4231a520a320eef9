"""Feedback: results that the pipeline computed from this node's log (docs/reference/mqtt.md, "$SYS").

The results are the quality of devices' links and the replica plan (how many copies of each subject's samples to
spread). ``feedback_reader`` reads them from the pipeline's tables, in a thread. The code here keeps the latest results
and makes the ``$SYS`` messages.
Rule: a result is kept until a newer one is read. If the pipeline stopped, or a file is broken, results only get older.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from types import MappingProxyType

from whimbrel.mqtt.topics import disallowed_in

__all__ = ["Announcements", "Feedback", "PipelineResults"]

REPLICAS_TOPIC = "$SYS/broker/replicas"
LINK_TOPICS = "$SYS/broker/link/"
MAX_SUBJECTS = 1_000
MAX_PLAN_BYTES = 262_144
MAX_PARTS = 256
MAX_LINKS = 1_000
_NO_LEVEL = re.compile(r"[+#/\0]")


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineResults:
    """Results of reading the pipeline's tables once; None stands for a table that is unchanged or missing."""

    connections: Mapping[str, float] | None = None
    """NetworkConnection (share of messages received, 0 to 1) of each device for which the pipeline has one."""
    replicas: Mapping[str, int] | None = None
    """Number of copies of a sample to spread, per subject; the largest first."""
    written_at: int | None = None
    """Time at which the newest of the files that were read was written."""
    troubles: tuple[str, ...] = ()
    """One sentence for each table that could not be read, with the cause."""


class Feedback:
    """The latest results of the pipeline."""

    def __init__(self) -> None:
        self._connections: Mapping[str, float] = MappingProxyType({})
        self._replicas: Mapping[str, int] = MappingProxyType({})
        self._written_at: int | None = None
        self.plan: tuple[str, ...] = ()
        """The replica plan as JSON, the largest numbers first, in parts that fit a message; empty if there is none."""
        self.troubles: tuple[str, ...] = ()
        """Failures of the latest reading, one sentence for each table."""
        self.failures = 0
        """Number of times that a table could not be read."""

    def take(self, lessons: PipelineResults) -> None:
        """Store the results that *lessons* (one read of the pipeline's tables) has, and count failed reads."""
        if lessons.connections is not None:
            self._connections = lessons.connections
        if lessons.replicas is not None:
            self._replicas, self.plan = lessons.replicas, tuple(_plan(lessons.replicas))
        if lessons.written_at is not None:
            self._written_at = max(self._written_at or lessons.written_at, lessons.written_at)
        self.troubles = lessons.troubles
        self.failures += len(lessons.troubles)

    def network_connection(self, device: str) -> float | None:
        """Return the share (0 to 1) of the messages sent to a device that it received, or None if it is unknown."""
        return self._connections.get(device)

    def replicas(self, subject: str) -> int | None:
        """Return how many copies of a subject's samples are to be spread, or None if the plan omits the subject."""
        return self._replicas.get(subject)

    @property
    def devices(self) -> int:
        """Number of devices with a known link quality."""
        return len(self._connections)

    @property
    def subjects(self) -> int:
        """Number of subjects in the replica plan."""
        return len(self._replicas)

    def age_us(self, now: int) -> int | None:
        """Return the microseconds since the pipeline wrote the newest result, or None if there is no result."""
        return None if self._written_at is None else max(0, now - self._written_at)


class Announcements:
    """The retained ``$SYS`` messages about the pipeline's results; link qualities only if *tells_links* is set."""

    def __init__(self, *, tells_links: bool) -> None:
        self._tells_links = tells_links
        self._plan: tuple[str, ...] = ()
        self._links: dict[str, str] = {}

    def changes(self, learned: Feedback, connected: Collection[str]) -> dict[str, str]:
        """Return the changed messages: topic to new text, where an empty text removes the retained message.

        *learned* has the results, *connected* the connected devices. At most ``MAX_LINKS`` new link qualities are
        returned per call, so that one call does not hold up the event loop; the others are returned by later calls.
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
    """Return the topic of a part of the plan: the plan's topic, followed by *number* if that is not 0."""
    return f"{REPLICAS_TOPIC}/{number}" if number else REPLICAS_TOPIC


def _plan(replicas: Mapping[str, int]) -> Iterator[str]:
    """Yield the replica plan in parts: each is a JSON object, within the limits of subjects and bytes of a part."""
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
    """Yield each connected device with a known link quality, and the quality as text.

    Devices are left out whose names cannot be a level of a topic.
    """
    for device in connected:
        connection = learned.network_connection(device)
        if connection is not None and not _NO_LEVEL.search(device) and disallowed_in(device) is None:
            yield device, f"{connection:.3f}"
