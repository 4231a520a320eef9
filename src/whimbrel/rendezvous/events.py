"""Events: publications and subscriptions of the rendezvous, and what they are made of (Huang, 4.1.2).

Rule: an invalid event cannot be built; every refusal names the value found and the values allowed.
Rule: NULL is ``None``, and for KEYS the empty tuple. Only a subscription may have NULL in other attributes; a
publication has a value in each.
Rule: group keys and tokens stand in no ``repr`` and in no error.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from typing import NewType, TypeAlias

from whimbrel.errors import InvalidValueError, Phrase, description_of
from whimbrel.model.bounds import text, whole

__all__ = [
    "ADDRESS_BYTES",
    "KEY_BYTES",
    "MAX_CLASS",
    "MAX_CLOCK_OFFSET",
    "MAX_KEYS",
    "MAX_NAME_BYTES",
    "MAX_NUMBER",
    "Address",
    "Event",
    "EventId",
    "GroupKey",
    "Kind",
    "Publication",
    "Subscription",
    "address_from",
    "address_to_bytes",
    "event_id",
    "fold",
    "kind_of",
    "read_address",
    "read_event_id",
]

Address = NewType("Address", str)
"""A Bluetooth device address as text, ``00:1A:7D:DA:71:0B``; with one spelling, so that equal addresses are equal."""
GroupKey = NewType("GroupKey", bytes)
"""The public key of a group, by which the group is named."""
EventId = NewType("EventId", str)
"""A code of the kind and a number of its collection (4.1.4): ``P1``, ``S17``."""

ADDRESS_BYTES, KEY_BYTES = 6, 32
MAX_CLOCK_OFFSET = 0x7FFF
"""Bits 16 to 2 of the difference of two clocks, as an inquiry reports it (HCI)."""
MAX_NAME_BYTES, MAX_CLASS = 248, 0xFFFFFF
MAX_KEYS = 16
MAX_NUMBER = 2**32 - 1

_ADDRESS = re.compile(r"[0-9A-Fa-f]{2}([:-]?)[0-9A-Fa-f]{2}(?:\1[0-9A-Fa-f]{2}){4}")
_EVENT_ID = re.compile(r"[PS][1-9][0-9]{0,9}")


class Kind(Enum):
    """The two kinds of event; the value is the code in an identifier."""

    PUBLICATION = "P"
    SUBSCRIPTION = "S"


def read_address(value: object) -> Address:
    """Parse an address: six pairs of hexadecimal digits, joined by ``:``, ``-`` or nothing."""
    if not isinstance(value, str) or not _ADDRESS.fullmatch(value):
        raise InvalidValueError("address", value, "six pairs of hexadecimal digits such as 00:1A:7D:DA:71:0B")
    return address_from(bytes.fromhex(re.sub("[:-]", "", value)))


def address_from(data: object) -> Address:
    """Return the address in six bytes, the first digits first."""
    if type(data) is not bytes or len(data) != ADDRESS_BYTES:
        raise InvalidValueError("address", data, f"{ADDRESS_BYTES} bytes")
    return Address(data.hex(":").upper())


def address_to_bytes(address: Address) -> bytes:
    """Return the six bytes of *address*."""
    return bytes.fromhex(address.replace(":", ""))


def event_id(kind: Kind, number: int) -> EventId:
    """Return the identifier of the event of this *kind* and *number*."""
    return EventId(f"{kind.value}{number}")


def read_event_id(value: object) -> EventId:
    """Parse an identifier: P or S and a number."""
    if not isinstance(value, str) or not _EVENT_ID.fullmatch(value) or int(value[1:]) > MAX_NUMBER:
        raise InvalidValueError("id", value, f"P or S and a number from 1 to {MAX_NUMBER}")
    return EventId(value)


def kind_of(identifier: EventId) -> Kind:
    """Return the kind of event that *identifier* stands for."""
    return Kind.PUBLICATION if identifier[0] == "P" else Kind.SUBSCRIPTION


def fold(name: str) -> str:
    """Return *name* so that spellings which differ in case only are equal: BOB, Bob and bob (4.1.3)."""
    return name.casefold()


def _check_keys(keys: object) -> tuple[GroupKey, ...]:
    if not isinstance(keys, tuple) or len(keys) > MAX_KEYS:
        raise InvalidValueError("keys", description_of(keys), f"at most {MAX_KEYS} group keys")
    if any(type(key) is not bytes or len(key) != KEY_BYTES for key in keys):
        raise InvalidValueError(
            "keys", Phrase("something that is not a group key"), f"public keys of {KEY_BYTES} bytes"
        )
    if len(set(keys)) != len(keys):
        raise InvalidValueError("keys", Phrase("the same key twice"), "every group once")
    return keys


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """A device that is available, as it describes itself; with keys, only to members of one of these groups."""

    address: Address
    clock_offset: int
    name: str
    device_class: int
    keys: tuple[GroupKey, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "address", read_address(self.address))
        whole("clock_offset", self.clock_offset, 0, MAX_CLOCK_OFFSET)
        text("name", self.name, max_bytes=MAX_NAME_BYTES)
        whole("class", self.device_class, 0, MAX_CLASS)
        _check_keys(self.keys)

    @property
    def is_restricted(self) -> bool:
        """Whether it is for members of its groups only."""
        return bool(self.keys)

    @property
    def contents(self) -> tuple[object, ...]:
        """Values to compare for equality: all but the clock offset, which is different each time it is read."""
        return (frozenset(self.keys), fold(self.name), self.device_class)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """A template of the devices that are sought; ``None`` matches any value."""

    address: Address | None = None
    name: str | None = None
    device_class: int | None = None
    keys: tuple[GroupKey, ...] = field(default=(), repr=False)
    """Groups that the subscriber claims to be in. NULL always counts among them (Table 4.2) and is left out."""

    def __post_init__(self) -> None:
        if self.address is not None:
            object.__setattr__(self, "address", read_address(self.address))
        if self.name is not None:
            text("name", self.name, max_bytes=MAX_NAME_BYTES)
        if self.device_class is not None:
            whole("class", self.device_class, 0, MAX_CLASS)
        _check_keys(self.keys)

    @property
    def is_restricted(self) -> bool:
        """Whether it names groups; the log then names no device of it."""
        return bool(self.keys)

    @property
    def contents(self) -> tuple[object, ...]:
        """Values to compare for equality, with the name case-folded, so that a repeated subscription is recognised."""
        name = None if self.name is None else fold(self.name)
        return (frozenset(self.keys), self.address, name, self.device_class)


Event: TypeAlias = Publication | Subscription
