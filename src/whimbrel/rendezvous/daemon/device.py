"""The device's daemon: a core on a radio, and the messages to its user.

Rule: when two devices meet, each sends its text and waits for the other's; then the device that paged hangs up. A
device that named groups sends its text only after the other has proven one of them, and hangs up if it does not.
Rule: a device that wants to join a group asks the device that it sought, and hangs up after the answer.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from whimbrel.errors import InvalidValueError, Phrase, WhimbrelError
from whimbrel.log.files import sync_file
from whimbrel.model.bounds import text, whole
from whimbrel.rendezvous.daemon.radios import open_radio
from whimbrel.rendezvous.daemon.settings import check_unpaired
from whimbrel.rendezvous.daemon.timers import LoopTimers, WallClock
from whimbrel.rendezvous.device import Device
from whimbrel.rendezvous.device.admission import Admission, ask_owner
from whimbrel.rendezvous.device.commands import DeviceCommand, Introduced, Tell, Verified
from whimbrel.rendezvous.events import KEY_BYTES, MAX_CLASS, MAX_NAME_BYTES, Address, GroupKey
from whimbrel.rendezvous.exposure import Exposure
from whimbrel.rendezvous.nodes import DeviceNode
from whimbrel.rendezvous.tokens import DeviceKeys, GroupOwner

__all__ = ["DeviceDaemon", "DeviceSettings", "Happening", "TokenFile"]

_NONCE_BYTES = 32
_TALK_S = 5.0
"""Seconds that the device that paged waits for the other's text before it hangs up."""
_ANSWERS = frozenset({"removed", "refused", "listed", "joined", "not admitted"})
"""Answers that end a waiting command. Several matching devices are an answer, too: a list."""
_TOKEN_LINE = re.compile(rf"([0-9a-f]{{{2 * KEY_BYTES}}}) ([0-9a-f]{{2,1024}})")
Happening = dict[str, object]
"""A message to the user, as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSettings:
    """Settings of a device's daemon."""

    transport: str
    name: str
    device_class: int = 0
    controller_name: str = "whimbrel-controller"
    seed: bytes | None = field(default=None, repr=False)
    """The device's secret; without one it proves no membership."""
    tokens: Path | None = None
    unpaired: str = "accept"
    link_keys: Path | None = None
    is_discoverable: bool = False
    verifies: bool = False
    """Whether it named groups, so that devices that it meets must prove one."""
    says: str = ""
    """Text to send to devices that it meets; empty: it sends nothing first."""
    joins: GroupKey | None = None
    """The group that it wants to join; it asks the device that it seeks to admit it."""
    owner: GroupOwner | None = field(default=None, repr=False)
    """The owner of the group that this device admits others to."""
    admission: Admission = ask_owner

    def __post_init__(self) -> None:
        text("name", self.name, max_bytes=MAX_NAME_BYTES)
        whole("class", self.device_class, 0, MAX_CLASS)
        check_unpaired(self.unpaired, self.link_keys)


class TokenFile:
    """Group tokens of a device: per line the group's public key and the token. Neither is a secret."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.tokens: dict[GroupKey, bytes] = {}
        lines = path.read_text(encoding="ascii", errors="replace").splitlines() if path.exists() else []
        for number, line in enumerate(lines, 1):
            found = _TOKEN_LINE.fullmatch(line)
            if found is None:
                where = f"line {number} of {path}"
                raise InvalidValueError(where, Phrase(f"{len(line)} characters"), "a group's public key and a token")
            self.tokens[GroupKey(bytes.fromhex(found[1]))] = bytes.fromhex(found[2])

    def keep(self, group: GroupKey, token: bytes) -> None:
        """Append a token that was issued over the air, and fsync it: its owner issues it only once."""
        self.tokens[group] = token
        is_new = not self._path.exists()
        with self._path.open("a", encoding="ascii") as stream:
            stream.write(f"{group.hex()} {token.hex()}\n")
            stream.flush()
            os.fsync(stream.fileno())
        if is_new:
            sync_file(self._path.parent)


class DeviceDaemon:
    """One device on one adapter; *told* gets what happens."""

    node: DeviceNode

    def __init__(self, settings: DeviceSettings, *, told: Callable[[Happening], None]) -> None:
        self.settings, self._told = settings, told
        self._clock = WallClock()
        self._met: dict[Address, _Meeting] = {}
        self._tokens = None if settings.tokens is None else TokenFile(settings.tokens)
        self.meetings = 0
        """Number of meetings that have ended."""
        self.answered = asyncio.Event()
        """Set when the device has its answer: from the controller, or from the owner of the group that it joins."""
        self.ended_meeting = asyncio.Event()

    async def serve(
        self,
        begin: Callable[[Device], Iterable[DeviceCommand]],
        *,
        until: Callable[[DeviceDaemon], asyncio.Future[None]],
    ) -> None:
        """Call *begin* with the device, and serve until the future that *until* returns is done."""
        settings = self.settings
        async with AsyncExitStack() as stack:
            radio = await open_radio(
                settings.transport,
                name=settings.name,
                device_class=settings.device_class,
                unpaired=settings.unpaired,
                link_keys=settings.link_keys,
                now=self._clock.now,
                trouble=self._trouble,
            )
            stack.push_async_callback(radio.close)
            tokens: Mapping[GroupKey, bytes] = {} if self._tokens is None else self._tokens.tokens
            core = Device(
                address=radio.address,
                name=settings.name,
                device_class=settings.device_class,
                keys=None if settings.seed is None else DeviceKeys(settings.seed),
                tokens=tokens,
                is_discoverable=settings.is_discoverable,
                owner=settings.owner,
                admission=settings.admission,
                nonce_key=secrets.token_bytes(_NONCE_BYTES) if settings.seed is not None else None,
            )
            self.node = DeviceNode(
                core,
                radio,
                LoopTimers(),
                now=self._clock.now,
                controller_name=settings.controller_name,
                told=self._take,
                keep_token=(lambda _group, _token: None) if self._tokens is None else self._tokens.keep,
            )
            radio.handler = self.node.handle
            self._told({"what": "ready", "address": radio.address, "name": settings.name})
            if settings.is_discoverable:
                self.node.show()
            self.node.do(begin(core))
            waiting = until(self)
            await asyncio.wait((waiting, radio.lost), return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            self._told({"what": "exposure", **self.exposure.seconds(self._clock.now())})
            if radio.lost.done():
                radio.lost.result()

    @property
    def exposure(self) -> Exposure:
        """Times for which the device was discoverable and connectable."""
        return self.node.exposure

    def admit(self, address: Address, *, is_admitted: bool) -> bool:
        """Decide on a device that asks to join our group; return whether it still waits for that."""
        commands = self.node.core.admit(address, is_admitted=is_admitted, now=self._clock.now())
        self.node.do(commands)
        return bool(commands)

    def _trouble(self, error: WhimbrelError) -> None:
        self._told({"what": "trouble", "reason": str(error)})

    # -- meetings ------------------------------------------------------------------------------------------------------

    def _take(self, told: Introduced | Verified | Tell, now: int) -> None:
        del now
        match told:
            case Introduced(address=address, is_caller=is_caller):
                self._told({"what": "introduced", "address": address, "is_caller": is_caller})
                self._meet(address, is_caller=is_caller)
            case Verified(address=address, group=group):
                shown = {"group": group.hex(), "skips_authentication": told.skips_authentication}
                self._told({"what": "verified", "address": address, **shown})
                self._speak(address)
            case Tell(what="data", address=address, data=data) if address is not None:
                self._told({"what": "data", "address": address, "text": data.decode(errors="replace")})
                self._hear(address)
            case Tell():
                self._told(_happening(told))
                if told.what in _ANSWERS:
                    self.answered.set()
                if told.what in {"not verified", "joined", "not admitted"} and told.address in self._met:
                    self._end(told.address, self._met[told.address], is_broken=told.what == "not verified")

    def _meet(self, address: Address, *, is_caller: bool) -> None:
        if self.settings.owner is not None:
            return  # the device that joins hangs up
        meeting = self._met[address] = _Meeting(is_caller)
        if self.settings.joins is not None and is_caller:  # it ends with the answer, for which the core waits a minute
            self.node.do(self.node.core.join(address, self.settings.joins, now=self._clock.now()))
            return
        if not self.settings.verifies:
            self._speak(address)
        loop = asyncio.get_running_loop()
        loop.call_later(_TALK_S, self._end, address, meeting)

    def _speak(self, address: Address) -> None:
        meeting = self._met.get(address)
        if meeting is not None and not meeting.has_spoken:
            meeting.has_spoken = True
            if self.settings.says:
                self.node.talk(address, self.settings.says.encode())
            self._end_if_done(address, meeting)

    def _hear(self, address: Address) -> None:
        meeting = self._met.get(address)
        if meeting is not None and not meeting.has_heard:
            meeting.has_heard = True
            self._end_if_done(address, meeting)

    def _end_if_done(self, address: Address, meeting: _Meeting) -> None:
        if meeting.is_caller and meeting.has_spoken and meeting.has_heard:
            asyncio.get_running_loop().call_soon(self._end, address, meeting)

    def _end(self, address: Address, meeting: _Meeting, *, is_broken: bool = False) -> None:
        if self._met.get(address) is not meeting:
            return
        del self._met[address]
        if meeting.is_caller or is_broken:
            self.node.hang_up(address)
        self.meetings += 1
        self._told({"what": "parted", "address": address})
        self.ended_meeting.set()


@dataclass(slots=True, eq=False)
class _Meeting:
    """A device that we are connected to."""

    is_caller: bool
    has_spoken: bool = False
    has_heard: bool = False


def _happening(told: Tell) -> Happening:
    shown: Happening = {"what": told.what}
    for name in ("id", "address", "reason"):
        value = getattr(told, name)
        if value is not None:
            shown[name] = value
    if told.what == "listed":
        shown["listed"] = [
            {"address": each.address, "name": each.name, "class": each.device_class} for each in told.listed
        ]
        shown["is_complete"] = told.is_complete
    return shown
