"""Messages on the backbone: the topics on the broker, and the bodies of control data, time and merged census.

| topic | from | retained | body |
|---|---|---|---|
| ``campus-backbone/census/<way-server>`` | a way-server | yes | its census |
| ``campus-backbone/census`` | admin | yes | users, places and subscribers of all together, which the pipeline reads |
| ``campus-backbone/control`` | admin | yes | control data, which way-servers sign |
| ``campus-backbone/time`` | admin | no | the time |
| ``campus-backbone/up/<topic>`` | a way-server | yes | a sample of nodes, with its id |
| ``campus-backbone/down/<topic>`` | admin | yes | a sample that was published on the broker, with an id |
| ``campus/<topic>`` | anybody | as sent | a sample; from the admin, once, with its id |

Rule: any bytes are a message or raise ``InvalidInputError``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from whimbrel.carry.control.segments import ControlData, TopicPlan
from whimbrel.errors import InvalidValueError, WhimbrelError, description_of
from whimbrel.model.bounds import instant
from whimbrel.model.census import BACKBONE, CENSUS_SUBJECT

__all__ = [
    "CENSUS",
    "CONTROL",
    "DOWN",
    "MAX_CONTROL_BYTES",
    "SAMPLE_PROPERTY",
    "TIME",
    "UP",
    "control_body",
    "read_control",
    "read_time",
    "time_body",
]

CENSUS = CENSUS_SUBJECT
CONTROL, TIME = f"{BACKBONE}/control", f"{BACKBONE}/time"
UP, DOWN = f"{BACKBONE}/up", f"{BACKBONE}/down"
SAMPLE_PROPERTY = "campus.sample"
"""The user property with the id of a sample."""
MAX_CONTROL_BYTES = 4 << 20


def control_body(data: ControlData) -> bytes:
    """Return control data as JSON."""
    topics = [[each.topic, each.name, each.subscribers, each.copies] for each in data.topics]
    said = {"version": data.version, "users": data.users, "places": data.places, "topics": topics}
    return json.dumps(said, ensure_ascii=False, separators=(",", ":")).encode()


def read_control(body: bytes) -> ControlData:
    """Parse the control data in the body of a message."""
    said = _read("control data", body)
    try:
        topics = tuple(
            TopicPlan(topic=topic, name=name, subscribers=subscribers, copies=copies)
            for topic, name, subscribers, copies in said["topics"]
        )
        return ControlData(version=said["version"], users=said["users"], places=said["places"], topics=topics)
    except WhimbrelError:
        raise
    except (ValueError, LookupError, TypeError) as error:
        raise InvalidValueError("control data", description_of(body), f"JSON of its form ({error})") from None


def time_body(at: int) -> bytes:
    """Return the time as JSON."""
    return json.dumps({"at": at}).encode()


def read_time(body: bytes) -> int:
    """Parse the time in the body of a message."""
    return instant("time", _read("time", body).get("at"))


def _read(what: str, body: bytes) -> Mapping[str, Any]:
    try:
        said = json.loads(body) if len(body) <= MAX_CONTROL_BYTES else None
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict):
        raise InvalidValueError(what, description_of(body), f"an object of JSON of at most {MAX_CONTROL_BYTES} bytes")
    return said
