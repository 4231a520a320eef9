"""Censuses: which users a way-server has met, to which topics they subscribe, and how many places they have.

Rule: a user is named by a keyed hash of its node's address. All way-servers of a campus compute the same name, and
nobody without the key can tell which node it is.
Rule: a user counts for a while after a way-server met it. A user of two censuses counts once, with the later record.
Rule: any bytes are a census or raise ``MalformedCensusError``; the size of a census is bounded.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from whimbrel.carry.control.segments import topic_name
from whimbrel.errors import InvalidInputError, WhimbrelError
from whimbrel.model.bounds import INT64_MAX, name, whole

__all__ = [
    "MAX_CENSUS_BYTES",
    "MAX_USERS",
    "MAX_USER_PLACES",
    "Census",
    "MalformedCensusError",
    "User",
    "census_body",
    "merge_users",
    "read_census",
    "subscribers_of",
    "user_name",
]

MAX_USERS = 10_000
MAX_USER_PLACES = 1_000
"""Most places that count for one user: a node that lies must not decide how much memory the campus has."""
MAX_USER_TOPICS = 1_000
MAX_CENSUS_BYTES = 8 << 20


class MalformedCensusError(InvalidInputError):
    """A message is not a census. Reaction: ignore it, and keep the last one of that way-server."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"census: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """A node that a way-server has met: when, its places of memory, and its topics."""

    seen_at: int
    places: int
    topics: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Census:
    """The users that a way-server had met *at* a time, by name."""

    way_server: str
    at: int
    users: Mapping[str, User]


def user_name(address: int, secret: bytes) -> str:
    """Return the name of the node at *address* in the censuses of the campus that has *secret*."""
    return hashlib.blake2s(address.to_bytes(8, "big"), key=secret, digest_size=8, person=b"census").hexdigest()


def merge_users(censuses: Iterable[Census], *, now: int, window_us: int) -> dict[str, User]:
    """Return the users of all *censuses* that were met within the window, each with its latest record."""
    found: dict[str, User] = {}
    for census in censuses:
        for user, each in census.users.items():
            known = found.get(user)
            if now - each.seen_at < window_us and (known is None or each.seen_at > known.seen_at):
                found[user] = each
    return found


def subscribers_of(users: Iterable[User]) -> dict[str, int]:
    """Return how many of *users* subscribe to each topic."""
    return dict(sorted(Counter(topic for user in users for topic in user.topics).items()))


def census_body(census: Census) -> bytes:
    """Return a census as the JSON body of a message; users refer to a list of topics by index."""
    topics = sorted({topic for user in census.users.values() for topic in user.topics})
    numbers = {topic: number for number, topic in enumerate(topics)}
    users = [
        [user, each.seen_at, each.places, sorted(numbers[topic] for topic in each.topics)]
        for user, each in sorted(census.users.items())
    ]
    said = {"way_server": census.way_server, "at": census.at, "topics": topics, "users": users}
    return json.dumps(said, ensure_ascii=False, separators=(",", ":")).encode()


def read_census(body: bytes) -> Census:
    """Parse the census in the body of a message."""
    if len(body) > MAX_CENSUS_BYTES:
        raise MalformedCensusError(f"found {len(body)} bytes, allowed are {MAX_CENSUS_BYTES}")
    try:
        said = json.loads(body)
        topics = [topic_name("name of a topic", each) for each in said["topics"]]
        if len(said["users"]) > MAX_USERS:
            raise MalformedCensusError(f"found {len(said['users'])} users, allowed are {MAX_USERS}")
        users = {}
        for user, seen_at, places, numbers in said["users"]:
            if len(numbers) > MAX_USER_TOPICS:
                raise MalformedCensusError(f"a user with {len(numbers)} topics, allowed are {MAX_USER_TOPICS}")
            users[name("user", user, max_bytes=16)] = User(
                seen_at=whole("seen_at", seen_at, 0, INT64_MAX),
                places=whole("places", places, 0, MAX_USER_PLACES),
                topics=tuple(topics[whole("topic", each, 0, len(topics) - 1)] for each in numbers),
            )
        way_server = name("way_server", said["way_server"], max_bytes=64)
        return Census(way_server=way_server, at=whole("at", said["at"], 0, INT64_MAX), users=users)
    except MalformedCensusError:
        raise
    except WhimbrelError as error:
        raise MalformedCensusError(str(error)) from None
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise MalformedCensusError(f"not JSON of this form ({type(error).__name__})") from None
