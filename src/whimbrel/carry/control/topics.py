"""Topics of a node: their names and ids, from the control data, from a file, else from a hash of the name.

Rule: control data in force decides. A name that it does not list has the id of the topics file, else that of its hash.
If another name has that id, the name is refused.
Rule: a name has one id. When control data gives it another, the id that it had before has no name any more.
Rule: the administrative server also uses the hash of a name as its id if that id is free. So nodes that never met a
way-server use the same ids.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from whimbrel.carry.control.segments import BUILT_IN_TOPIC, ControlData, TopicPlan, topic_name
from whimbrel.carry.hello import MAX_TOPIC
from whimbrel.errors import InvalidValueError, MalformedLineError, Phrase

__all__ = ["MAX_FILE_TOPICS", "TopicNames", "hashed_topic", "read_topics"]

MAX_FILE_TOPICS = 10_000
_MAX_FILE_BYTES = 4 << 20
_LINE = re.compile(r"(?:(0[xX][0-9A-Fa-f]{1,4}|[0-9]{1,5})\s+)?(\S.*)")


def hashed_topic(name: str) -> int:
    """Return the id for *name* that its hash gives, 1 to 65,535."""
    digest = hashlib.blake2s(name.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % MAX_TOPIC + 1


def read_topics(path: Path) -> dict[str, int]:
    """Return the ids by name in the file *path*: per line an optional id and a name; ``#`` begins a comment."""
    try:
        with path.open("rb") as stream:
            text = stream.read(_MAX_FILE_BYTES + 1).decode()
    except OSError as error:
        raise InvalidValueError("topics file", str(path), f"one that can be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise InvalidValueError("topics file", str(path), "text in UTF-8") from None
    found: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        said = line.strip()
        if not said or said.startswith("#"):
            continue
        match = _LINE.fullmatch(said)
        assert match is not None
        name = topic_name("name of a topic", match[2])
        topic = hashed_topic(name) if match[1] is None else int(match[1], 0 if match[1][:2].lower() == "0x" else 10)
        if not BUILT_IN_TOPIC < topic <= MAX_TOPIC:
            raise MalformedLineError(str(path), number, 1, f"the id {topic}, allowed are 1 to {MAX_TOPIC}")
        if name in found or topic in found.values():
            raise MalformedLineError(str(path), number, 1, f"the name {name!r} or the id {topic:#06x} a second time")
        if len(found) == MAX_FILE_TOPICS:
            raise InvalidValueError("topics", Phrase("more topics"), f"at most {MAX_FILE_TOPICS}")
        found[name] = topic
    return found


class TopicNames:
    """The ids of names and the names of ids, at one node."""

    def __init__(self, file: Mapping[str, int] | None = None, names: Iterable[str] = ()) -> None:
        self._file = dict(file or {})
        self._plans: dict[str, TopicPlan] = {}
        self._names: dict[int, str] = {topic: name for name, topic in self._file.items()}
        self._learned = dict.fromkeys(names)
        """Names that the application used and that are in neither file nor control data."""
        for each in self._learned:
            self._names.setdefault(hashed_topic(each), each)

    def set_control(self, data: ControlData) -> None:
        """Use the names and ids of *data* from now on."""
        self._plans = {each.name: each for each in data.topics}
        self._names = {topic: name for name, topic in self._file.items() if name not in self._plans}
        for name in self._learned:
            if name not in self._plans:
                self._names.setdefault(hashed_topic(name), name)
        self._names |= {each.topic: each.name for each in data.topics}

    def id_of(self, name: str) -> int:
        """Return the id of the topic *name*."""
        topic_name("name of a topic", name)
        if name in self._plans:
            return self._plans[name].topic
        topic = self._file.get(name) or hashed_topic(name)
        other = self._names.get(topic, name)
        if other != name:
            sentence = f"topic {name!r} cannot be used: its id {topic:#06x} is that of {other!r}; give it one in a file"
            raise InvalidValueError("topic", name, "a name with an id of its own", sentence)
        self._learned[name] = None
        self._names[topic] = name
        return topic

    def name_of(self, topic: int) -> str:
        """Return the name of the topic with the id *topic*; for an unknown topic its id as text."""
        return self._names.get(topic, f"{topic:#06x}")

    def plan_of(self, topic: int) -> TopicPlan | None:
        """Return the plan of a topic in the control data in force, or None."""
        plan = self._plans.get(self._names.get(topic, ""))
        return plan if plan is not None and plan.topic == topic else None

    def plans(self) -> list[tuple[str, TopicPlan]]:
        """Return the topics of the control data in force, by name."""
        return list(self._plans.items())

    @property
    def all(self) -> list[tuple[int, str]]:
        """All known topics, as pairs of id and name, by id."""
        return sorted(self._names.items())
