"""The wire: one CBOR map for each message, on one L2CAP channel.

Rule: any bytes give a message or ``MalformedMessageError``; size and depth are checked before anything is built.
Rule: the error names the field and what is allowed, and never shows the bytes of a key, token or answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import cbor2

from whimbrel.errors import InvalidInputError, InvalidValueError, MalformedBodyError, Phrase, description_of
from whimbrel.model.attributes import Limits
from whimbrel.model.bounds import INT64_MAX, flag, text, whole
from whimbrel.model.cbor_body import read_cbor
from whimbrel.rendezvous import messages as m
from whimbrel.rendezvous.events import (
    KEY_BYTES,
    MAX_CLASS,
    MAX_CLOCK_OFFSET,
    MAX_KEYS,
    MAX_NAME_BYTES,
    GroupKey,
    Publication,
    Subscription,
    address_from,
    address_to_bytes,
    read_event_id,
)
from whimbrel.rendezvous.refusals import Refusal

__all__ = [
    "CHALLENGE_BYTES",
    "MAX_DATA_BYTES",
    "MAX_MESSAGE_BYTES",
    "MAX_REQUEST_BYTES",
    "MESSAGES",
    "SIGNATURE_BYTES",
    "MalformedMessageError",
    "decode",
    "encode",
    "name_of",
]

MAX_MESSAGE_BYTES = 131_072
"""A list of 262 publications with names of 248 bytes takes 75,000."""
MAX_REQUEST_BYTES = 4_096
"""A publication with 16 keys and a name of 248 bytes takes less than 1,000, a proof less than 700."""
MAX_TOKEN_BYTES = 512
MAX_DATA_BYTES = 65_536
"""Bytes of an application in one message between devices."""
CHALLENGE_BYTES, SIGNATURE_BYTES = 32, 64
_MAX_REASON_BYTES = 512
_MAX_LISTED = 512
_LIMITS = Limits(max_bytes=MAX_MESSAGE_BYTES, max_depth=4)

_Read: TypeAlias = Callable[[str, object], Any]


class MalformedMessageError(InvalidInputError):
    """The bytes are not a valid message of the rendezvous; with the code of the refusal and the reason."""

    def __init__(self, reason: str, refusal: Refusal = Refusal.MALFORMED) -> None:
        super().__init__(reason, refusal)
        self.reason, self.refusal = reason, refusal

    def __str__(self) -> str:
        return f"error {self.refusal.code}: {self.reason}"


class _Field(NamedTuple):
    """One field of a message: how it is called here and on the wire, and how it is read and written."""

    attribute: str
    name: str
    read: _Read
    write: Callable[[Any], object] = lambda value: value
    is_optional: bool = False


# -- readers of single values ----------------------------------------------------------------------------------------


def _sized_bytes_reader(size: int) -> _Read:
    def read(what: str, value: object) -> bytes:
        if type(value) is not bytes or len(value) != size:
            raise InvalidValueError(what, description_of(value), f"{size} bytes")
        return value

    return read


def _token(what: str, value: object) -> bytes:
    if type(value) is not bytes or len(value) > MAX_TOKEN_BYTES:
        raise InvalidValueError(what, description_of(value), f"at most {MAX_TOKEN_BYTES} bytes")
    return value


def _data(what: str, value: object) -> bytes:
    if type(value) is not bytes or len(value) > MAX_DATA_BYTES:
        raise InvalidValueError(what, description_of(value), f"at most {MAX_DATA_BYTES} bytes")
    return value


def _whole(high: int, low: int = 0) -> _Read:
    return lambda what, value: whole(what, value, low, high)


def _text(max_bytes: int) -> _Read:
    return lambda what, value: text(what, value, max_bytes=max_bytes)


def _keys(what: str, value: object) -> tuple[GroupKey, ...]:
    """Read the keys of a subscription; NULL among them is ignored, since it always counts (Table 4.2)."""
    if not isinstance(value, list | tuple) or not 1 <= len(value) <= MAX_KEYS + 1:
        raise InvalidValueError(what, description_of(value), f"a list of 1 to {MAX_KEYS} group keys, or NULL")
    keys = [key for key in value if key is not None]
    if any(type(key) is not bytes or len(key) != KEY_BYTES for key in keys):
        raise InvalidValueError(
            what, Phrase("something that is not a group key"), f"public keys of {KEY_BYTES} bytes, or NULL"
        )
    return tuple(GroupKey(key) for key in keys)


def _publication_keys(what: str, value: object) -> tuple[GroupKey, ...]:
    keys = _keys(what, value)
    if keys and isinstance(value, list | tuple) and len(keys) != len(value):
        raise MalformedMessageError(Refusal.MIXED_KEYS.reason, Refusal.MIXED_KEYS)
    return keys


def _read_list(what: str, value: object) -> tuple[m.Listed, ...]:
    if not isinstance(value, list | tuple) or len(value) > _MAX_LISTED:
        raise InvalidValueError(what, description_of(value), f"a list of at most {_MAX_LISTED} publications")
    return tuple(m.Listed(**_fields_of(each, _LISTED, what)) for each in value)


def _to_list(keys: tuple[GroupKey, ...]) -> list[GroupKey] | None:
    return list(keys) or None


_ID = _Field("id", "id", lambda _what, value: read_event_id(value))
_ADDRESS = _Field("address", "address", lambda _what, value: address_from(value), address_to_bytes)
_OFFSET = _Field("clock_offset", "clock_offset", _whole(MAX_CLOCK_OFFSET))
_NAME = _Field("name", "name", _text(MAX_NAME_BYTES))
_CLASS = _Field("device_class", "class", _whole(MAX_CLASS))
_GROUP = _Field("group", "group", _sized_bytes_reader(KEY_BYTES))
_DEVICE_KEY = _Field("device_key", "device_key", _sized_bytes_reader(KEY_BYTES))
_ANSWER = _Field("answer", "answer", _sized_bytes_reader(SIGNATURE_BYTES))
_TOKEN = _Field("token", "token", _token)
_CHALLENGE = _Field("challenge", "challenge", _sized_bytes_reader(CHALLENGE_BYTES))
_LISTED = (_ADDRESS, _NAME, _CLASS)
_PUBLICATION = (
    _Field("keys", "keys", _publication_keys, _to_list, is_optional=True),
    _ADDRESS,
    _OFFSET,
    _NAME,
    _CLASS,
)
_SUBSCRIPTION = (
    _Field("keys", "keys", _keys, _to_list, is_optional=True),
    _ADDRESS._replace(is_optional=True),
    _NAME._replace(is_optional=True),
    _CLASS._replace(is_optional=True),
)
_UNUSED_OFFSET = _OFFSET._replace(is_optional=True)
"""A subscription may carry a clock offset; it is read and ignored (4.1.2)."""

MESSAGES: Mapping[str, tuple[type[m.Message], tuple[_Field, ...]]] = {
    "publish": (m.Publish, _PUBLICATION),
    "subscribe": (m.Subscribe, (*_SUBSCRIPTION, _UNUSED_OFFSET)),
    "unpublish": (m.Unpublish, (_ID,)),
    "unsubscribe": (m.Unsubscribe, (_ID,)),
    "renew": (m.Renew, (_ID,)),
    "noted": (m.Noted, (_ID,)),
    "proof": (m.Proof, (_GROUP, _CHALLENGE, _DEVICE_KEY, _TOKEN._replace(is_optional=True), _ANSWER)),
    "join": (m.Join, (_TOKEN, _DEVICE_KEY)),
    "data": (m.Data, (_Field("data", "data", _data),)),
    "accepted": (m.Accepted, (_ID, _Field("is_indirect", "indirect", flag))),
    "refused": (
        m.Refused,
        (
            _Field("request", "request", _text(32)),
            _Field("code", "code", _whole(0xFFFF)),
            _Field("reason", "reason", _text(_MAX_REASON_BYTES)),
        ),
    ),
    "removed": (m.Removed, (_ID,)),
    "matched": (m.Matched, (_ID, _ADDRESS, _OFFSET)),
    "wake up": (m.WakeUp, (_ID,)),
    "matches": (
        m.Matches,
        (
            _ID,
            _Field("publications", "publications", _read_list, lambda many: [_map_of(one, _LISTED) for one in many]),
            _Field("is_complete", "complete", flag),
        ),
    ),
    "expired": (m.Expired, (_ID,)),
    "sleep": (m.Sleep, ()),
    "released": (m.Released, (_Field("patience_us", "patience_us", _whole(INT64_MAX >> 16, 1)),)),
    "answered": (m.Answered, (_ID,)),
    "ask": (
        m.Ask,
        (_GROUP, _CHALLENGE, _Field("wants_token", "token", flag)),
    ),
    "group token": (m.GroupTokenIssued, (_TOKEN,)),
}
"""Every message: its name on the wire, its class and its fields; the docs page lists the same."""
_NAMES = {made: name for name, (made, _) in MESSAGES.items()}


def name_of(message: m.Message) -> str:
    """Return the name of *message* on the wire."""
    return _NAMES[type(message)]


def encode(message: m.Message) -> bytes:
    """Return the bytes of *message*."""
    name = _NAMES[type(message)]
    if isinstance(message, m.Publish):
        fields = _map_of(message.publication, _PUBLICATION)
    elif isinstance(message, m.Subscribe):
        fields = _map_of(message.subscription, _SUBSCRIPTION)
    else:
        fields = _map_of(message, MESSAGES[name][1])
    return cbor2.dumps({"message": name, **fields})


def decode(data: bytes) -> m.Message:
    """Return the message that *data* encodes, or raise ``MalformedMessageError``."""
    try:
        tree = read_cbor(data, limits=_LIMITS)
        name = tree.get("message")
        if not isinstance(name, str) or name not in MESSAGES:
            raise InvalidValueError("message", name, ", ".join(MESSAGES))
        made, fields = MESSAGES[name]
        values = _fields_of({key: value for key, value in tree.items() if key != "message"}, fields, name)
        if made is m.Publish:
            return m.Publish(Publication(**values))
        if made is m.Subscribe:
            values.pop("clock_offset", None)
            return m.Subscribe(Subscription(**values))
        return made(**values)
    except (InvalidValueError, MalformedBodyError) as error:
        raise MalformedMessageError(str(error)) from None


def _fields_of(tree: object, fields: tuple[_Field, ...], what: str) -> dict[str, Any]:
    if not isinstance(tree, Mapping):
        raise InvalidValueError(what, description_of(tree), "a map")
    values: dict[str, Any] = {}
    for each in fields:
        value = tree.get(each.name)
        if value is not None:
            values[each.attribute] = each.read(each.name, value)
        elif not each.is_optional:
            raise InvalidValueError(f"{each.name} of {what}", Phrase("nothing"), "a value")
    if len(tree) > sum(each.name in tree for each in fields):
        raise InvalidValueError(
            f"fields of {what}", Phrase("an unknown one"), ", ".join(each.name for each in fields) or "none"
        )
    return values


def _map_of(value: object, fields: tuple[_Field, ...]) -> dict[str, object]:
    tree = ((each.name, getattr(value, each.attribute), each.write) for each in fields)
    pairs = ((name, None if found is None else write(found)) for name, found, write in tree)
    return {name: found for name, found in pairs if found is not None}
