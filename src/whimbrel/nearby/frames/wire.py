"""Encoding of frames: one CBOR map for each frame, in one datagram.

Rule: decoding any bytes gives a frame or ``MalformedFrameError``; the size is checked before anything is built.
Rule: every frame has the number of its format. A node reads its own format only; another is counted as malformed.
Rule: attributes keep their exact types: an int64 is encoded as a list of one, every other type as plain CBOR.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import cbor2

from whimbrel.errors import InvalidInputError, InvalidValueError, MalformedBodyError, Phrase, description_of
from whimbrel.model.attributes import Attributes, Int64, Limits, Scalar, checked
from whimbrel.model.bounds import INT64_MAX, flag, name, whole
from whimbrel.model.cbor_body import read_cbor
from whimbrel.model.notification import NotificationId
from whimbrel.model.place import Area, Place
from whimbrel.nearby.deployment import MAX_HOPS
from whimbrel.nearby.frames.values import Asked, Beacon, Event, Frame, Join, Objection, Request, Signable, ViewDigest
from whimbrel.nearby.vocabulary import FINGERPRINT_BYTES, MAX_TYPE_BYTES

__all__ = [
    "FRAMES",
    "FRAME_VERSION",
    "KEY_BYTES",
    "MAX_DURATION_US",
    "MAX_FRAME_BYTES",
    "SIGNATURE_BYTES",
    "MalformedFrameError",
    "decode",
    "encode",
    "signed_bytes",
]

FRAME_VERSION = 2
"""The number of this format; format 1 had no number."""
MAX_FRAME_BYTES = 65_000
KEY_BYTES, SIGNATURE_BYTES = 32, 64
MAX_DURATION_US = 7 * 86_400 * 1_000_000
_MAX_ASKED = 64
_MAX_LISTED = 128
_UINT64_MAX = 2**64 - 1
_LIMITS = Limits(max_bytes=MAX_FRAME_BYTES, max_depth=4)
_ATTRIBUTE_LIMITS = Limits(max_names=64, max_bytes=4_096, max_name_bytes=128)

_Read: TypeAlias = Callable[[str, object], Any]


class MalformedFrameError(InvalidInputError):
    """The bytes are not a valid frame. Reaction: drop and count them."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"no frame: {self.reason}"


class _Field(NamedTuple):
    """One field of a frame: its attribute, its name on the wire, and its decoder and encoder."""

    attribute: str
    name: str
    read: _Read
    write: Callable[[Any], object] = lambda value: value
    is_optional: bool = False
    is_signed: bool = True


# -- readers of single values ----------------------------------------------------------------------------------------


def _whole(high: int, low: int = 0) -> _Read:
    return lambda what, value: whole(what, value, low, high)


def _node(_what: str, value: object) -> str:
    return NotificationId(value, 0).node  # type: ignore[arg-type] # it checks


def _subject(what: str, value: object) -> str:
    return name(what, value, max_bytes=MAX_TYPE_BYTES)


def _sized_bytes_reader(size: int) -> _Read:
    def read(what: str, value: object) -> bytes:
        if type(value) is not bytes or len(value) != size:
            raise InvalidValueError(what, description_of(value), f"{size} bytes")
        return value

    return read


def _area(what: str, value: object) -> Area:
    if not isinstance(value, list | tuple) or len(value) != 3:
        raise InvalidValueError(what, description_of(value), "latitude, longitude and radius")
    latitude, longitude, radius_m = value
    return Area(Place(latitude, longitude), radius_m)


def _place(what: str, value: object) -> Place:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise InvalidValueError(what, description_of(value), "latitude and longitude")
    return Place(*value)


def _digest(what: str, value: object) -> ViewDigest:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise InvalidValueError(what, description_of(value), "a count and a hash")
    return ViewDigest(whole(what, value[0], 0, INT64_MAX), whole(what, value[1], 0, _UINT64_MAX))


def _numbers(most: int, high: int) -> _Read:
    def read(what: str, value: object) -> tuple[int, ...]:
        if not isinstance(value, list | tuple) or len(value) > most:
            raise InvalidValueError(what, description_of(value), f"a list of at most {most} numbers")
        return tuple(whole(what, each, 0, high) for each in value)

    return read


def _attributes(what: str, value: object) -> Attributes:
    if not isinstance(value, Mapping):
        raise InvalidValueError(what, description_of(value), "a map")
    return checked({each: _scalar(each, found) for each, found in value.items()}, limits=_ATTRIBUTE_LIMITS)


def _scalar(what: object, value: object) -> object:
    if isinstance(value, list | tuple):
        if len(value) != 1:
            raise InvalidValueError(f"attribute {what}", Phrase("a list"), "one value")
        return Int64(whole(f"attribute {what}", value[0], -INT64_MAX - 1, INT64_MAX))
    if isinstance(value, bool):
        raise InvalidValueError(f"attribute {what}", value, "an integer, a real, a string or bytes")
    return value


def _plain(attributes: Attributes) -> dict[str, object]:
    def one(value: Scalar) -> object:
        return [int(value)] if type(value) is Int64 else value

    return {each: one(value) for each, value in attributes.items()}


_SEQ, _DURATION = _whole(INT64_MAX), _whole(MAX_DURATION_US)
_AREA = _Field("area", "a", _area, lambda area: [area.centre.latitude, area.centre.longitude, area.radius_m])
_PLACE = _Field("place", "p", _place, lambda place: [place.latitude, place.longitude])
_FLOODED = (
    _Field("origin", "o", _node),
    _Field("seq", "q", _SEQ),
    _Field("sender", "s", _node, is_signed=False),
    _Field("hops", "h", _whole(MAX_HOPS), is_signed=False),
    _Field("subject", "t", _subject),
    _AREA,
    _Field("epoch", "e", _SEQ),
    _Field("max_hops", "g", _whole(MAX_HOPS)),
)
_SIGNED_WITH = (
    _Field("issued_at", "i", _SEQ, is_optional=True),
    _Field("key", "k", _sized_bytes_reader(KEY_BYTES), is_optional=True),
    _Field("signature", "z", _sized_bytes_reader(SIGNATURE_BYTES), is_optional=True, is_signed=False),
)
_BEACON = (
    *_FLOODED,
    _PLACE,
    _Field("moves", "m", flag),
    _Field("lifetime_us", "l", _DURATION),
    _Field("max_remaining_us", "r", _DURATION),
    _Field("latest", "n", _SEQ),
    _Field("latest_us", "u", _DURATION, is_signed=False),
    _Field("cell_m", "c", _whole(INT64_MAX)),
    _Field("fingerprint", "f", _sized_bytes_reader(FINGERPRINT_BYTES)),
    _Field("view", "v", _digest, list),
    _Field("members", "w", _numbers(_MAX_LISTED, _UINT64_MAX), list, is_optional=True),
    *_SIGNED_WITH,
)
_JOIN = (
    *_FLOODED,
    _Field("producer", "p", _node),
    _Field("accounted", "n", _SEQ),
    _Field("expired", "x", _SEQ),
    _Field("missed", "y", _SEQ),
    _Field("wants_view", "v", flag),
    _Field("is_leaving", "l", flag),
    *_SIGNED_WITH,
)
_EVENT = (
    *_FLOODED,
    _PLACE,
    _Field("number", "n", _whole(INT64_MAX, 1)),
    _Field("deadline_us", "d", _DURATION),
    _Field("remaining_us", "r", _DURATION, is_signed=False),
    _Field("attributes", "b", _attributes, _plain),
    *_SIGNED_WITH,
)
_REQUEST = (
    _Field("sender", "s", _node),
    _Field("to", "d", _node),
    _AREA,
    _Field("producer", "p", _node),
    _Field("subject", "t", _subject),
    _Field("epoch", "e", _SEQ),
    _Field("numbers", "n", _numbers(_MAX_ASKED, INT64_MAX), list),
    *_SIGNED_WITH,
)
_OBJECTION = (
    _Field("sender", "s", _node),
    _Field("to", "d", _node),
    _AREA,
    _Field("subject", "t", _subject),
    _Field("clock_us", "u", _SEQ),
    _Field("epoch", "e", _SEQ),
)
FRAMES: Mapping[str, tuple[type[Frame], tuple[_Field, ...]]] = {
    "beacon": (Beacon, _BEACON),
    "join": (Join, _JOIN),
    "event": (Event, _EVENT),
    "request": (Request, _REQUEST),
    "objection": (Objection, _OBJECTION),
}
"""All frames, by their names on the wire: class and fields."""
_NAMES = {made: kind for kind, (made, _) in FRAMES.items()}
_KIND, _VERSION = "", "#"
"""The map keys of the frame's name and of its format number; no field has these names."""


def encode(frame: Frame) -> bytes:
    """Return the bytes of *frame*."""
    kind = _NAMES[type(frame)]
    return cbor2.dumps({_KIND: kind, _VERSION: FRAME_VERSION, **_map_of(frame, FRAMES[kind][1])})


def signed_bytes(frame: Signable) -> bytes:
    """Return the bytes that the signature of *frame* covers: all fields that relays do not change."""
    kind = _NAMES[type(frame)]
    fields = tuple(each for each in FRAMES[kind][1] if each.is_signed)
    return cbor2.dumps({_KIND: kind, _VERSION: FRAME_VERSION, **_map_of(frame, fields)}, canonical=True)


def decode(data: bytes, *, max_bytes: int = MAX_FRAME_BYTES) -> Frame:
    """Return the frame that *data* encodes, or raise ``MalformedFrameError``."""
    if len(data) > max_bytes:
        raise MalformedFrameError(f"found {len(data)} bytes, allowed are {max_bytes}")
    try:
        tree = read_cbor(data, limits=_LIMITS)
        kind = tree.get(_KIND)
        if not isinstance(kind, str) or kind not in FRAMES:
            raise InvalidValueError("frame", kind, ", ".join(FRAMES))
        if tree.get(_VERSION) != FRAME_VERSION:
            raise InvalidValueError("format of a frame", tree.get(_VERSION), f"{FRAME_VERSION}, which this node reads")
        made, fields = FRAMES[kind]
        frame = made(**_values(tree, fields, kind))
        _check(frame)
    except (InvalidValueError, MalformedBodyError) as error:
        raise MalformedFrameError(str(error)) from None
    return frame


def _check(frame: Frame) -> None:
    """Raise ``InvalidValueError`` if fields contradict each other."""
    if isinstance(frame, Event) and frame.remaining_us > frame.deadline_us:
        raise InvalidValueError("remaining time", frame.remaining_us, f"at most the deadline, {frame.deadline_us}")
    if not isinstance(frame, Asked) and frame.hops > frame.max_hops:
        raise InvalidValueError("hops of a frame", frame.hops, f"at most those of its origin, {frame.max_hops}")
    if (
        not isinstance(frame, Objection)
        and len({each is None for each in (frame.key, frame.signature, frame.issued_at)}) > 1
    ):
        raise InvalidValueError(
            "key, signature and time of issue", Phrase("some without the others"), "all three, or none of them"
        )


def _values(tree: Mapping[object, object], fields: tuple[_Field, ...], what: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for each in fields:
        value = tree.get(each.name)
        if value is not None:
            values[each.attribute] = each.read(each.attribute, value)
        elif not each.is_optional:
            raise InvalidValueError(f"{each.attribute} of {what}", Phrase("nothing"), "a value")
    if len(tree) > 2 + sum(each.name in tree for each in fields):
        raise InvalidValueError(f"fields of {what}", Phrase("an unknown one"), ", ".join(each.name for each in fields))
    return values


def _map_of(frame: Frame, fields: tuple[_Field, ...]) -> dict[str, object]:
    pairs = ((each.name, getattr(frame, each.attribute), each.write) for each in fields)
    return {found: write(value) for found, value, write in pairs if value is not None}
