"""Named sessions and keys that every connection of a client joins and presents (docs/reference/sessions.md).

Rule: a password or a key never appears in a ``repr`` or an error.
Rule: the *home* of a client is the first session in its constructor, for good; without one it is the private session,
whose name is the empty text. The home of a connection may differ after sessions were left or joined; the client then
names the session in its packets.

Version 5 transmits sessions and keys in CONNECT; requests transmit them in 3.1.1, and joins beyond CONNECT's maximum.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from whimbrel.errors import InvalidValueError, Phrase
from whimbrel.model.bounds import name as bounded_name
from whimbrel.model.keys import Scheme
from whimbrel.mqtt.packets import V5

__all__ = ["PRIVATE", "Join", "Joins", "Receipt", "check_session", "checked_keys", "checked_password", "join_members"]

Receipt: TypeAlias = Literal["take", "keep"]
"""Receipt mode: with ``take``, a message that this device acknowledges is removed for the absent devices too."""

_MARK = ("whimbrel", "1")
"""User property by which a broker recognises our client, whose user properties have no prefix
(docs/reference/mqtt.md)."""

PRIVATE = ""
"""The name of a connection's private session."""

_IN_CONNECT = 16
"""Most sessions in CONNECT."""
_RECEIPTS = ("take", "keep")
_MAX_NAME_BYTES = 255
_MAX_PASSWORD_BYTES = 1_024
_BROKERS_OWN = ("$whimbrel/", "$SYS/")
_NOT_SHOWN = Phrase("one (not shown)")
_SCHEMES = "|".join(scheme.value for scheme in Scheme)
_KEY = re.compile(rf"(?:{_SCHEMES}):(?:private:.+|[0-9a-fA-F]{{40}}|[0-9a-fA-F]{{64}})", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Join:
    """A session to join.

    >>> Join("ward", "secret")
    Join(session='ward', receipt='take')
    """

    session: str
    password: str | None = field(default=None, repr=False)
    receipt: Receipt = "take"

    def __post_init__(self) -> None:
        check_session(self.session)
        checked_password(self.password)
        if self.receipt not in _RECEIPTS:
            raise InvalidValueError("receipt", self.receipt, " or ".join(_RECEIPTS))


def check_session(session: str) -> None:
    """Raise ``InvalidValueError`` if *session* is not a valid name of a session."""
    bounded_name("session", session, max_bytes=_MAX_NAME_BYTES)
    if session.startswith("$") or not session.isprintable() or set(session) & set("/+#"):
        allowed = "text without /, +, # and what cannot be printed, that does not begin with $"
        raise InvalidValueError("session", session, allowed)


def checked_password(password: str | None) -> str | None:
    """Return *password* if it is valid, or raise ``InvalidValueError`` without showing it."""
    if password is None:
        return None
    try:
        return bounded_name("password", password, max_bytes=_MAX_PASSWORD_BYTES)
    except InvalidValueError as error:
        sentence = f"the password of a session must be {error.allowed}"
        raise InvalidValueError("password of a session", _NOT_SHOWN, error.allowed, sentence) from None


def checked_keys(keys: Iterable[str]) -> tuple[str, ...]:
    """Return *keys* if all are valid, or raise ``InvalidValueError`` without showing them."""
    if isinstance(keys, str):  # a text is a sequence of texts too
        raise InvalidValueError("keys", Phrase("one text"), "a sequence of texts")
    found = tuple(keys)
    for key in found:
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            allowed = f"<scheme>:private:<text> or <scheme>:<40 or 64 digits of hex>, the scheme one of {_SCHEMES}"
            raise InvalidValueError("key", _NOT_SHOWN, allowed.replace("|", ", "))
    return found


class Joins:
    """Sessions and keys for the next connection."""

    def __init__(self, joins: Sequence[Join | str] = (), keys: Sequence[str] = ()) -> None:
        self._joins: dict[str, Join] = {}
        self._keys: dict[str, None] = dict.fromkeys(checked_keys(keys))
        if isinstance(joins, str):
            raise InvalidValueError("join", joins, "a sequence of sessions")
        for each in joins:
            join = each if isinstance(each, Join) else Join(each)
            if join.session in self._joins:
                raise InvalidValueError("join", join.session, "each session once")
            self._joins[join.session] = join
        self.home: Final = next(iter(self._joins), PRIVATE)

    def __contains__(self, session: str) -> bool:
        return session in self._joins

    # -- what changes it ---------------------------------------------------------------------------------------------

    def add(self, join: Join) -> None:
        """Record a joined session."""
        self._joins[join.session] = join

    def remove(self, session: str) -> Join | None:
        """Remove a session that was left; return its ``Join``."""
        return self._joins.pop(session, None)

    def change_keys(self, *, add: Sequence[str], remove: Sequence[str]) -> None:
        """Record a change of the connection's keys."""
        for key in remove:
            self._keys.pop(key, None)
        self._keys.update(dict.fromkeys(add))

    # -- what a connection is given ----------------------------------------------------------------------------------

    def in_connect(self, version: int) -> tuple[tuple[str, str], ...]:
        """Return the user properties of CONNECT; with ``_MARK`` the broker accepts names without a prefix."""
        if version != V5:
            return ()
        joins = self._first()
        said = [("session", join.session) for join in joins]
        if any(join.password is not None for join in joins):
            said += [("password", join.password or "") for join in joins]  # empty: no password for this session
        if any(join.receipt != "take" for join in joins):
            said += [("receipt", join.receipt) for join in joins]
        return (_MARK, *said, *(("key", key) for key in self._keys))

    def by_request(self, version: int) -> list[tuple[str, str, dict[str, object]]]:
        """Return the requests that follow CONNECT: verb, session and members."""
        is_new = version == V5
        requests: list[tuple[str, str, dict[str, object]]] = []
        if self._keys and not is_new:
            requests.append(("keys", "", {"add": list(self._keys), "remove": []}))
        joins = [*self._joins.values()][_IN_CONNECT if is_new else 0 :]
        return [*requests, *(("join", join.session, join_members(join)) for join in joins)]

    def home_of_connection(self, version: int) -> str:
        """Return the home session that the broker assumes for a connection."""
        return next((join.session for join in self._first()), PRIVATE) if version == V5 else PRIVATE

    def session_for(self, topic_filter: str, session: str | None) -> str:
        """Return the session of a subscription; the default for None is the client's home."""
        if topic_filter.startswith(_BROKERS_OWN):
            return PRIVATE
        if session is None:
            return self.home
        if session != PRIVATE:
            check_session(session)
        return session

    def _first(self) -> list[Join]:
        return [*self._joins.values()][:_IN_CONNECT]


def join_members(join: Join) -> dict[str, object]:
    """Return the members of a request to join."""
    members: dict[str, object] = {"session": join.session, "receipt": join.receipt}
    if join.password is not None:
        members["password"] = join.password
    return members
