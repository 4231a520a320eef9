"""Clients of a broker that dies, beside publishers and subscribers: members of a named session, retainers and wills.

Rule: nothing of whimbrel is imported, as in ``crash_checker``.
Rule: members and wills note what happens, and the judge of ``crash_checker`` judges it. A retainer judges by itself
(``Retained``), because the judge knows no retained messages.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from random import Random

from tests.e2e.broker_process import Settings
from tests.e2e.crash_checker import (
    STEADY,
    V5,
    V311,
    Accepted,
    Client,
    Habit,
    RefusedError,
    Rig,
    Sent,
    Subscriber,
    wire_after_properties,
    wire_connect,
    wire_publish,
    wire_read,
    wire_subscribe,
)

__all__ = ["EveryKind", "Retained"]

_PUBLISH, _PUBACK, _SUBACK, _PINGRESP = 3, 4, 9, 13
_EXISTS = 0x87
_MEMBERS_HEAR = "ward/#"
_SESSION, _WILL_TOPIC = "night", "ward/wills"
_PLACES = 4
"""Topics of a retainer."""


class EveryKind:
    """Members of a named session, retainers, clients whose wills are published, and two that are away to the end."""

    @property
    def settings(self) -> Settings:
        """What they need of the broker's configuration."""
        return {
            "mqtt": {"will_grace_s": 1},
            "sessions": {"max": 100_000},  # a member that is away misses nothing for want of room
        }

    def clients(self, rig: Rig, rng: Random) -> Sequence[Client]:
        """Return them."""
        session = _NamedSession(_MEMBERS_HEAR)
        members = [_Member(rig, f"member-{number}", Random(rng.random()), session) for number in range(2)]
        retainers = [_Retainer(rig, f"retainer-{version}", version, Random(rng.random())) for version in (V311, V5)]
        leavers = [_Leaver(rig, f"leaver-{version}", version, Random(rng.random())) for version in (V311, V5)]
        absentees = [
            _Absentee(rig, "absentee", V5, Random(rng.random()), "ward/#", 2),
            _AbsentMember(rig, "absent-member", Random(rng.random()), session),
        ]
        return [*members, *retainers, *leavers, *absentees]


# -- a named session ---------------------------------------------------------------------------------------------------


def _user_property(name: str, value: str) -> bytes:
    return b"\x26" + b"".join(len(each).to_bytes(2) + each for each in (name.encode(), value.encode()))


_JOINING = (
    _user_property("whimbrel", "1")
    + _user_property("whimbrel.session", _SESSION)
    + _user_property("whimbrel.receipt", "keep")
)


class _NamedSession:
    """The session ``night``, with one subscription: it is made once, and must be there from then on."""

    def __init__(self, topic_filter: str) -> None:
        self._topic_filter = topic_filter
        self._lock = asyncio.Lock()
        self.is_made = False

    async def make(self, rig: Rig) -> None:
        """Create it and subscribe in it, if that is not done; an answer says that it is durable."""
        async with self._lock:
            if self.is_made:
                return
            reader, writer = await asyncio.open_connection("127.0.0.1", rig.broker.port)
            try:
                properties = _user_property("whimbrel", "1")
                writer.write(wire_connect("founder", V5, is_clean=True, properties=properties))
                for verb, more in (("create", {}), ("subscribe", {"topic": self._topic_filter, "qos": 1})):
                    body = json.dumps({"session": _SESSION, **more}).encode()
                    writer.write(wire_publish(f"$whimbrel/session/{verb}", body, V5, qos=1, packet_id=1))
                    code = await _answer(reader)
                    if code not in ({0, _EXISTS} if verb == "create" else {0}):
                        raise AssertionError(f"the request {verb} was refused with {code:#x}")
                self.is_made = True
            finally:
                writer.transport.abort()


async def _answer(reader: asyncio.StreamReader) -> int:
    """Return the reason code of the next PUBACK."""
    while True:
        first, body = await wire_read(reader)
        if first >> 4 == _PUBACK:
            return body[2] if len(body) > 2 else 0


class _Member(Subscriber):
    """A device of the named session, which keeps for the others what it takes."""

    def __init__(self, rig: Rig, name: str, rng: Random, session: _NamedSession) -> None:
        super().__init__(rig, name, V5, rng, _MEMBERS_HEAR, 1)
        self._session = session

    def connect_packet(self) -> bytes:
        """Return a CONNECT that joins the session."""
        return wire_connect(self.name, self.version, receive_maximum=self.receive_maximum, properties=_JOINING)

    async def dial(self) -> asyncio.StreamReader:
        """Connect, once the session is there."""
        await self._session.make(self.rig)
        return await super().dial()

    async def open(self) -> asyncio.StreamReader:
        """Join; where that is refused, the session is lost."""
        try:
            return await super().open()
        except RefusedError as error:
            self.rig.faults[f"{self.name}: it cannot join the named session any more: {error}"] = None
            raise

    async def subscribe(self, reader: asyncio.StreamReader) -> None:  # noqa: ARG002 # what it has joined is subscribed
        """Note that it hears what the session hears."""
        self.note_subscribed()


# -- who is away -------------------------------------------------------------------------------------------------------


class _Absentee(Subscriber):
    """Subscribes and leaves, and comes back when all is over: for it, whatever was acknowledged must be on disk.

    A subscriber that is there may have received what the disk then loses, and misses nothing.
    """

    async def converse(self) -> None:
        """Subscribe; then wait for the end."""
        if self.is_subscribed:
            await self.rig.is_closing.wait()
        await super().converse()

    def habit(self) -> Habit:
        """Leave at once, or stay to the end."""
        return STEADY if self.rig.is_closing.is_set() else Habit("polite", messages=0)


class _AbsentMember(_Absentee, _Member):
    """A member of the named session that is away."""


# -- retained messages -------------------------------------------------------------------------------------------------


class Retained:
    """What may be retained on each topic: what was acknowledged last, and what is not acknowledged yet."""

    def __init__(self) -> None:
        self._last: dict[str, bytes] = {}
        self._pending: tuple[str, bytes] | None = None

    def send(self, topic: str, body: bytes) -> None:
        """Note a publication, of which there is one at a time; an empty *body* removes what is retained."""
        self._pending = topic, body

    def acknowledge(self) -> None:
        """Note that the broker has acknowledged it."""
        assert self._pending is not None
        topic, body = self._pending
        self._last[topic], self._pending = body, None

    @property
    def pending(self) -> tuple[str, bytes] | None:
        """The topic and body of what is not acknowledged."""
        return self._pending

    def violations(self, found: Mapping[str, bytes]) -> list[str]:
        """Return which of what was *found*, or was not, cannot be; one sentence each."""
        topics = sorted({*found, *self._last})
        return [
            f"{topic}: {found.get(topic, b'')!r} is retained, and {self._last.get(topic, b'')!r} was acknowledged"
            for topic in topics
            if found.get(topic, b"") != self._last.get(topic, b"") and (topic, found.get(topic, b"")) != self._pending
        ]


class _Retainer(Client):
    """Publishes retained messages, one at a time, and asks for them whenever it connects."""

    has_session = False

    def __init__(self, rig: Rig, name: str, version: int, rng: Random) -> None:
        super().__init__(rig, name, version, rng)
        self._retained = Retained()
        self._number = 0
        self._is_done = asyncio.Event()

    def connect_packet(self) -> bytes:
        """Return a CONNECT without a session: what is retained is nobody's session."""
        return wire_connect(self.name, self.version, is_clean=True)

    async def rest(self) -> None:
        """Return once its last publication is acknowledged and it has looked after that."""
        await self._is_done.wait()

    def lacks(self) -> str:
        """Return what it waits for, in words."""
        return f"an answer to {self._retained.pending}"

    async def converse(self) -> None:
        """Look what is retained; then publish."""
        reader = await self.open()
        found = await self._look(reader)
        for each in self._retained.violations(found):
            self.rig.faults[f"{self.name}: {each}"] = None
        while True:
            if self._retained.pending is None:
                if self.rig.is_closing.is_set():
                    self._is_done.set()
                    await asyncio.Event().wait()
                await asyncio.sleep(self.rng.random() * 0.03)
                self._number += 1
                body = b"" if self.rng.random() < 0.2 else f"{self.name} {self._number}".encode()
                self._retained.send(self._topic(self.rng.randrange(_PLACES)), body)
            assert self._retained.pending is not None
            topic, body = self._retained.pending
            self.write(wire_publish(topic, body, self.version, qos=1, packet_id=1, is_retained=True))
            while (await wire_read(reader))[0] >> 4 != _PUBACK:
                pass
            self._retained.acknowledge()

    def _topic(self, place: int | str) -> str:
        return f"state/{self.name}/{place}"

    async def _look(self, reader: asyncio.StreamReader) -> dict[str, bytes]:
        """Return what is retained, by topic. It has all been sent when a ping behind SUBACK is answered."""
        topic_filter = self._topic("+")
        self.write(wire_subscribe(2, topic_filter, self.version, qos=0))
        found: dict[str, bytes] = {}
        while True:
            first, body = await wire_read(reader)
            if first >> 4 == _PINGRESP:
                return found
            if first >> 4 == _SUBACK:
                self.write(b"\xc0\x00")
            elif first >> 4 == _PUBLISH and first & 1:
                end = 2 + int.from_bytes(body[:2])
                found[body[2:end].decode()] = body[wire_after_properties(body, end, self.version) :]


# -- wills -------------------------------------------------------------------------------------------------------------


class _Leaver(Client):
    """Connects as one client after the other, each with a will, and leaves without a word; none ever comes back."""

    has_session = False

    def __init__(self, rig: Rig, name: str, version: int, rng: Random) -> None:
        super().__init__(rig, name, version, rng)
        self._base, self._number = name, 0

    def connect_packet(self) -> bytes:
        """Return a CONNECT with a will."""
        return wire_connect(self.name, self.version, is_clean=True, will=(_WILL_TOPIC, f"{self.name} 1".encode()))

    async def rest(self) -> None:
        """Return at once: its wills are waited for by those who are to hear of them."""

    def lacks(self) -> str:
        """Return what it waits for, in words."""
        return "nothing"

    async def converse(self) -> None:
        """Be a client that was never there before, for a moment."""
        if self.rig.is_closing.is_set():
            await asyncio.Event().wait()
        self._number += 1
        self.name = f"{self._base}-{self._number}"
        key = (self.name, 1)
        sent = Sent(at=time.time(), key=key, topic=_WILL_TOPIC, qos=1)
        self.rig.note(sent)
        reader = await self.open()
        self.rig.note(Accepted(at=time.time(), key=key))
        self.rig.mark(sent)
        with suppress(TimeoutError):
            async with asyncio.timeout(self.rng.random() * 0.5):
                await reader.read(1)
