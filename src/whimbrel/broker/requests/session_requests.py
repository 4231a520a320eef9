"""Parse requests about named sessions, which are objects of JSON (docs/reference/sessions.md, "Requests").

Rule: a member that the verb does not know is refused, so that the client does not believe it had an effect.
Rule: an error never quotes a value that may be a password or a key.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from whimbrel.broker.access.passwords import read_access
from whimbrel.broker.requests.pages import MAX_ROWS
from whimbrel.errors import InvalidValueError, MalformedBodyError, Phrase, description_of
from whimbrel.hold.access import AccessControlList
from whimbrel.model.attributes import Limits
from whimbrel.model.facts import Mode
from whimbrel.model.json_body import read_json
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.errors import ProtocolError

__all__ = ["VERBS", "Request", "check_session_name", "id_of", "read_mode", "read_request"]

MAX_REQUEST_BYTES = 65_536
MAX_SESSION_NAME_BYTES = 255
_LIMITS = Limits(max_bytes=MAX_REQUEST_BYTES)
_LEVELS = ("user", "admin", "owner")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request; members that its verb does not use have their defaults."""

    verb: str
    id: object = None
    """The client's own identifier of the request, which the answer repeats."""
    session: str = ""
    password: str | None = field(default=None, repr=False)
    receipt: Mode = Mode.TAKE
    device: str | None = None
    passwords: Mapping[str, str] | None = field(default=None, repr=False)
    list: AccessControlList | None = None
    open: bool = False
    topic: str = ""
    name: str = ""
    filter: str | None = None
    ttl: int | None = None
    max: int | None = None
    qos: int = 1
    keys: tuple[str, ...] = field(default=(), repr=False)
    insecure: bool | None = None
    add: tuple[str, ...] = field(default=(), repr=False)
    remove: tuple[str, ...] = field(default=(), repr=False)
    client: str = ""
    policy: str | None = None
    near: str | None = None
    stale: str | None = None
    after: str = ""
    most: int | None = None


def read_request(verb: str, body: bytes) -> Request:
    """Parse *body* as a request, or raise ``ProtocolError`` with the code for the answer."""
    if verb not in VERBS:
        raise ProtocolError(ReasonCode.TOPIC_NAME_INVALID, f"a request {verb[:40]!r}; there are {', '.join(VERBS)}")
    if len(body) > MAX_REQUEST_BYTES:
        raise _refusal(f"a request of {len(body)} bytes, at most {MAX_REQUEST_BYTES} are allowed")
    try:
        tree = read_json(body or b"{}", limits=_LIMITS)
    except MalformedBodyError:
        raise _refusal("a body that is no object of JSON") from None
    needed, allowed = VERBS[verb]
    for member in tree:
        if member not in needed and member not in allowed and member != "id":
            names = ", ".join((*needed, *allowed, "id"))
            raise _refusal(f"a member {member[:40]!r}; {verb} has {names}")
    for member in needed:
        if member not in tree:
            raise _refusal(f"no member {member!r}, which {verb} needs")
    try:
        values = {member: _READERS[member](value) for member, value in tree.items() if value is not None}
    except InvalidValueError as error:
        raise _refusal(str(error)) from None
    request = Request(verb=verb, **values)  # type: ignore[arg-type]  # each reader returns what its member takes
    if verb == "create" and (refusal := _new_name_refusal(request.session)) is not None:
        raise _refusal(str(refusal))
    if verb == "access" and (request.passwords is not None) + (request.list is not None) + request.open != 1:
        raise _refusal("access takes one of passwords, list, and open: true")
    if verb == "create" and request.passwords is not None and request.list is not None:
        raise _refusal("a session has passwords or a list, not both")
    return request


def id_of(body: bytes) -> object:
    """Return the id in the body of a request that is refused, or None if the id cannot be read."""
    try:
        tree = read_json(body[: MAX_REQUEST_BYTES + 1], limits=_LIMITS)
        return None if tree.get("id") is None else _id(tree["id"])
    except (MalformedBodyError, InvalidValueError):
        return None


def check_session_name(value: object) -> str:
    """Return *value* if it is a valid session name, or raise ``InvalidValueError``."""
    if (
        isinstance(value, str)
        and value.isprintable()
        and 1 <= len(value.encode()) <= MAX_SESSION_NAME_BYTES
        and value[0] != "$"
        and not set(value) & set("/+#")
    ):
        return value
    allowed = f"1 to {MAX_SESSION_NAME_BYTES} bytes, no /, + or #, nothing unprintable, and not $ at the beginning"
    raise InvalidValueError("session", value[:40] if isinstance(value, str) else description_of(value), allowed)


def _new_name_refusal(session: str) -> InvalidValueError | None:
    """Return why a new session may not be called *session*, or None; existing sessions keep their names."""
    if session == unicodedata.normalize("NFC", session).strip():
        return None
    allowed = "composed characters (Unicode NFC) and no blanks at the ends: another name would look the same"
    return InvalidValueError("session", session[:40], allowed)


def read_mode(value: object) -> Mode:
    """Parse *value* as the mode in which a device receives a session's notifications: take or keep."""
    for mode in Mode:
        if value == mode.value:
            return mode
    raise InvalidValueError("receipt", value if isinstance(value, str) else description_of(value), "take or keep")


# -- members -----------------------------------------------------------------------------------------------------------


def _id(value: object) -> object:
    if isinstance(value, str | int | float):
        return value
    raise InvalidValueError("id", description_of(value), "text or a number")


def _text(what: str) -> Callable[[object], str]:
    def read(value: object) -> str:
        if _is_text(value):
            return str(value)
        raise InvalidValueError(what, description_of(value), "text, without halves of characters")

    return read


def _is_text(value: object) -> bool:
    """Return whether *value* is text that UTF-8 can encode: JSON may contain lone surrogates, which it cannot."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


def _number(what: str) -> Callable[[object], int]:
    def read(value: object) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 2**31 - 1:
            return value
        found = value if isinstance(value, int) else description_of(value)
        raise InvalidValueError(what, found, "a whole number from 0 on")

    return read


def _most(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_ROWS:
        return value
    found = value if isinstance(value, int) else description_of(value)
    raise InvalidValueError("most", found, f"a whole number from 1 to {MAX_ROWS}")


def _text_or_number(what: str) -> Callable[[object], str]:
    def read(value: object) -> str:
        if _is_text(value) or (isinstance(value, int | float) and not isinstance(value, bool)):
            return str(value)
        raise InvalidValueError(what, description_of(value), "text or a number")

    return read


def _flag(what: str) -> Callable[[object], bool]:
    def read(value: object) -> bool:
        if isinstance(value, bool):
            return value
        raise InvalidValueError(what, description_of(value), "true or false")

    return read


def _qos(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 2:
        return value
    raise InvalidValueError("qos", value if isinstance(value, int) else description_of(value), "0, 1 or 2")


def _texts(what: str) -> Callable[[object], tuple[str, ...]]:
    def read(value: object) -> tuple[str, ...]:
        if isinstance(value, list) and all(map(_is_text, value)):
            return tuple(value)
        found = Phrase("an array of other things") if isinstance(value, list) else description_of(value)
        raise InvalidValueError(what, found, "an array of texts")

    return read


def _passwords(value: object) -> Mapping[str, str]:
    if isinstance(value, dict) and all(level in _LEVELS and _is_text(word) for level, word in value.items()):
        return MappingProxyType(value)
    raise InvalidValueError("passwords", Phrase("another form"), "an object with texts for user, admin and owner")


def _acl(value: object) -> AccessControlList:
    tree = {"users": {}, "groups": {}, **value} if isinstance(value, dict) else value
    access = read_access(json.dumps({"list": tree}))
    assert isinstance(access, AccessControlList)
    return access


_READERS: Mapping[str, Callable[[object], object]] = {
    "id": _id,
    "session": check_session_name,
    "password": _text("password"),
    "receipt": read_mode,
    "device": _text("device"),
    "passwords": _passwords,
    "list": _acl,
    "open": _flag("open"),
    "topic": _text("topic"),
    "name": _text("name"),
    "filter": _text("filter"),
    "ttl": _number("ttl"),
    "max": _number("max"),
    "qos": _qos,
    "keys": _texts("keys"),
    "insecure": _flag("insecure"),
    "add": _texts("add"),
    "remove": _texts("remove"),
    "client": _text("client"),
    "policy": _text("policy"),
    "near": _text_or_number("near"),
    "stale": _text_or_number("stale"),
    "after": _text_or_number("after"),
    "most": _most,
}

_ONE = ("session",)
VERBS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "create": (_ONE, ("passwords", "list")),
    "join": (_ONE, ("password", "receipt")),
    "leave": (_ONE, ("device",)),
    "delete": (_ONE, ("password",)),
    "list": ((), ("after", "most")),
    "show": (_ONE, ("password", "after", "most")),
    "access": (_ONE, ("password", "passwords", "list", "open")),
    "subscribe": (
        ("session", "topic"),
        ("name", "filter", "ttl", "max", "qos", "keys", "insecure", "password", "policy", "near", "stale"),
    ),
    "unsubscribe": (("session", "topic"), ("name", "password")),
    "keys": ((), ("add", "remove")),
    "release": (("client",), ()),
}
"""For each verb its required members, and its optional ones."""


def _refusal(reason: str) -> ProtocolError:
    return ProtocolError(ReasonCode.PAYLOAD_FORMAT_INVALID, reason)
