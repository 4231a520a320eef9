"""The administrative server: one plan for all way-servers, from their censuses and the pipeline's plan (3.1, 3.3).

Rule: L of a topic comes from the broker's plan, which the pipeline made. Without such a plan the same formula computes
L here from the merged censuses; without users each topic has the default L.
Rule: control data gets a new version when its content changes, at most once in *every_us*; versions only grow.
Rule: the id of a topic is a hash of its name where that is free. It is not reused for a day after
its topic ended.
Rule: any client of the broker may publish below ``campus/``, and so bring topics into the broker's plan. Those that
cannot be topics here are left out, and so are the last ones where control data would not fit its segments.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from whimbrel.carry.backbone.census import Census, User, merge_users, subscribers_of
from whimbrel.carry.backbone.way_server import WINDOW_US
from whimbrel.carry.control.segments import MAX_SEGMENTS, ControlData, TopicPlan, segment_count, topic_name
from whimbrel.carry.control.topics import hashed_topic
from whimbrel.carry.daemon.journal import SUBJECT, subject_of
from whimbrel.carry.hello import MAX_COPIES, MAX_TOPIC
from whimbrel.carry.rules import COPIES
from whimbrel.errors import InvalidValueError
from whimbrel.model.clock import US_PER_S
from whimbrel.model.replicas import TARGET, plan

__all__ = ["DAY_US", "MAX_TOPICS", "Admin", "AdminState"]

DAY_US = 24 * 3_600 * US_PER_S
MAX_TOPICS = 2_000
"""Most topics of a campus; with names of 20 bytes they fit the segments of control data, longer ones are fewer."""
_MAX_WAY_SERVERS = 1_000
_MAX_RELEASED = 30_000
"""Most ids that rest; with those of ``MAX_TOPICS`` they leave more than half of all ids free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminState:
    """State that the administrative server keeps on disk: the last version, and the ids of topics."""

    version: int = 0
    ids: Mapping[str, int] = field(default_factory=dict)
    released: Mapping[int, int] = field(default_factory=dict)
    """Ids that are not reused yet, and when their topics ended."""


def _can_be_topic(name: str) -> bool:
    try:
        topic_name("name of a topic", name)
    except InvalidValueError:
        return False
    return True


class Admin:
    """The plan of a campus; its topics are *names*, and those in the broker's plan and in the censuses."""

    def __init__(
        self,
        names: Mapping[str, int] | Collection[str] = (),
        *,
        state: AdminState | None = None,
        copies: int = COPIES,
        target: float = TARGET,
        window_us: int = WINDOW_US,
        every_us: int = 60 * US_PER_S,
    ) -> None:
        self._names = dict(names) if isinstance(names, Mapping) else {each: hashed_topic(each) for each in names}
        self.state = state or AdminState()
        self._copies, self._target, self._window_us, self._every_us = copies, target, window_us, every_us
        self._censuses: dict[str, Census] = {}
        self._plan: dict[str, int] = {}
        self._said: ControlData | None = None
        self._said_at: int | None = None
        self._misnamed = self._excess = 0
        """Number of subjects of the plan that cannot be topics, and of topics that do not fit the control data."""
        self.plan_at: int | None = None
        """When the broker's plan was received last."""

    @property
    def censuses(self) -> dict[str, Census]:
        """The last census of each way-server."""
        return dict(self._censuses)

    @property
    def has_plan(self) -> bool:
        """Whether the broker has a plan."""
        return bool(self._plan)

    @property
    def left_out(self) -> int:
        """Number of topics that are not in the control data, because of their names or because there are too many."""
        return self._misnamed + self._excess

    def take_census(self, census: Census) -> None:
        """Store the census of a way-server, unless a later one is known."""
        known = self._censuses.get(census.way_server)
        if known is None and len(self._censuses) >= _MAX_WAY_SERVERS:
            raise InvalidValueError("way-servers", len(self._censuses) + 1, f"at most {_MAX_WAY_SERVERS}")
        if known is None or census.at >= known.at:
            self._censuses[census.way_server] = census

    def take_plan(self, copies: Mapping[str, int], *, now: int) -> None:
        """Store the broker's plan, L by subject; an empty plan removes the last one."""
        prefix = f"{SUBJECT}/"
        found = {
            subject.removeprefix(prefix): max(1, min(count, MAX_COPIES))
            for subject, count in copies.items()
            if subject.startswith(prefix)
        }
        self._plan = {name: count for name, count in found.items() if _can_be_topic(name)}
        self._misnamed = len(found) - len(self._plan)
        self.plan_at = now

    def users(self, *, now: int) -> dict[str, User]:
        """Return all users, each once."""
        return merge_users(self._censuses.values(), now=now, window_us=self._window_us)

    def census(self, *, now: int) -> dict[str, object]:
        """Return the merged census, which the pipeline reads: nodes, places, and subscribers by subject."""
        users = self.users(now=now)
        subscribers = subscribers_of(users.values())
        return {
            "nodes": len(users),
            "places": sum(each.places for each in users.values()),
            "subscribers": {subject_of(name): subscribers.get(name, 0) for name in self._topics(subscribers)},
        }

    def turn(self, *, now: int) -> ControlData | None:
        """Return control data with a new version if its content has changed, else None."""
        if self._said_at is not None and 0 <= now - self._said_at < self._every_us:
            return None
        data = self._control(now)
        if self._said is not None and replace(data, version=self._said.version) == self._said:
            return None
        version = max(now, self.state.version + 1)
        self._said, self._said_at = replace(data, version=version), now
        self.state = replace(self.state, version=version)
        return self._said

    def _topics(self, subscribers: Iterable[str]) -> list[str]:
        """Return the names of at most ``MAX_TOPICS`` topics, those of the topics file first."""
        return self._all_topics(subscribers)[:MAX_TOPICS]

    def _all_topics(self, subscribers: Iterable[str]) -> list[str]:
        met = [name for name in subscribers if not name.startswith("0x")]  # a way-server did not know its name
        return list(dict.fromkeys([*self._names, *sorted(self._plan), *met]))

    def _control(self, now: int) -> ControlData:
        """Return the control data of as many topics as fit its segments, the first of ``_topics``."""
        users = self.users(now=now)
        counts = subscribers_of(users.values())
        names = self._topics(counts)
        state = self._name(names, now)
        while segment_count(data := self._control_of(names, state.ids, users, counts)) > MAX_SEGMENTS:
            names = names[: len(names) * 15 // 16]
            state = self._name(names, now)
        self.state, self._excess = state, len(self._all_topics(counts)) - len(names)
        return data

    def _control_of(
        self, names: Collection[str], ids: Mapping[str, int], users: Mapping[str, User], counts: Mapping[str, int]
    ) -> ControlData:
        places = sum(each.places for each in users.values())
        subscribers = {name: counts.get(name, 0) for name in names}
        copies = self._plan_copies(subscribers, len(users), places)
        topics = [
            TopicPlan(topic=ids[name], name=name, subscribers=subscribers[name], copies=copies[name]) for name in names
        ]
        topics.sort(key=lambda each: each.topic)
        return ControlData(version=0, users=len(users), places=places, topics=tuple(topics))

    def _plan_copies(self, subscribers: Mapping[str, int], nodes: int, places: int) -> dict[str, int]:
        if self._plan:
            return {name: self._plan.get(name, 1) for name in subscribers}
        if not nodes or places < nodes:
            return dict.fromkeys(subscribers, self._copies)
        found = plan(subscribers, nodes=nodes, slots_per_node=places // nodes, target=self._target)
        return {name: min(count, MAX_COPIES) for name, count in found.items()}

    def _name(self, names: Collection[str], now: int) -> AdminState:
        """Return the state with an id for each name; ids of topics that have ended are not reused for a day.

        If more than ``_MAX_RELEASED`` topics ended within the day, the ids of those that ended first are reused.
        """
        released = {topic: at for topic, at in self.state.released.items() if now - at < DAY_US}
        pinned = {name: self._names[name] for name in names if name in self._names}
        wanted, fixed = set(names), set(pinned.values())
        ids = {
            name: topic
            for name, topic in self.state.ids.items()
            if name in wanted and name not in pinned and topic not in fixed
        }
        ids |= pinned
        used = set(ids.values())
        released |= {topic: now for topic in self.state.ids.values() if topic not in used}
        if len(released) > _MAX_RELEASED:
            released = dict(sorted(released.items(), key=lambda each: each[1])[-_MAX_RELEASED:])
        taken = set(ids.values()) | released.keys()
        for name in sorted(wanted - ids.keys()):
            topic = hashed_topic(name)
            while topic in taken:
                topic = topic % MAX_TOPIC + 1
            ids[name] = topic
            taken.add(topic)
        return replace(self.state, ids=ids, released=released)
