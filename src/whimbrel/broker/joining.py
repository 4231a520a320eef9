"""Joining: who may do what in a named session, found out before anything is done (Elvin proxy, 5.2.1).

CONNECT of version 5 names sessions, passwords and receipts as user properties; requests name one session at a time.
Rule: whether there is no such session, or the password is wrong, or a list has no place for the user, the answer is
the same and comes after the same time.
Rule: hashing takes long, so it is a question for the shell; what is open, or allowed by a list, is known at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from whimbrel.broker.clients import Joining, Link
from whimbrel.broker.keyring import Keyring, read_keys
from whimbrel.broker.questions import Questions
from whimbrel.broker.requests import check_session_name, read_mode
from whimbrel.broker.state import BrokerState
from whimbrel.broker.visitors import Visitors
from whimbrel.errors import InvalidValueError
from whimbrel.hold.access import ALL_RIGHTS, AccessControlList, Right, decoy, read_access
from whimbrel.model.facts import Mode
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.errors import ProtocolError
from whimbrel.mqtt.packets import V5, Connect

__all__ = ["NOT_ALLOWED", "Doorkeeper", "Wanted", "wanted_by"]

NOT_ALLOWED = "there is no such session, or what was given does not allow this"
_TOO_MANY = "too many wrong passwords from this address; try again in a minute"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A session that somebody wants to do something in."""

    session: str
    password: str | None = field(default=None, repr=False)
    mode: Mode = Mode.TAKE


def wanted_by(connect: Connect, *, username_is_session: bool = False) -> tuple[list[Wanted], Keyring]:
    """Return the sessions and keys that a CONNECT names, or raise ``ProtocolError`` with the code of the answer."""
    try:
        if username_is_session and connect.username is not None:
            return [_by_user_name(connect)], read_keys(_values(connect, "key"))
        if connect.version != V5:
            return [], read_keys(())
        sessions = [check_session_name(value) for value in _values(connect, "session")]
        if len(set(sessions)) < len(sessions):
            raise InvalidValueError("session", "one name twice", "each session once")
        passwords = _each("password", _values(connect, "password"), len(sessions))
        modes = _each("receipt", _values(connect, "receipt"), len(sessions))
        wanted = [
            Wanted(session=session, password=password or None, mode=read_mode(mode or Mode.TAKE.value))
            for session, password, mode in zip(sessions, passwords, modes, strict=True)
        ]
        return wanted, read_keys(_values(connect, "key"))
    except InvalidValueError as error:
        raise ProtocolError(ReasonCode.PROTOCOL_ERROR, f"user property {error}") from None


def _by_user_name(connect: Connect) -> Wanted:
    try:
        password = None if connect.password is None else connect.password.decode()
    except UnicodeDecodeError:
        password = None
    return Wanted(session=check_session_name(connect.username), password=password)


def _values(connect: Connect, wanted: str) -> list[str]:
    return [value for name, value in connect.properties.user if name == wanted]


def _each(what: str, values: list[str], count: int) -> list[str]:
    """Return one value for each session: none given, one for all, or one each."""
    if len(values) in {0, 1}:
        return (values or [""]) * count
    if len(values) != count:
        raise InvalidValueError(what, f"{len(values)} of them for {count} sessions", "none, one, or one for each")
    return values


class Doorkeeper:
    """Who finds out what somebody may do; *key* is random bytes, for the decoys."""

    def __init__(self, state: BrokerState, visitors: Visitors, questions: Questions, *, key: bytes) -> None:
        self._state, self._visitors, self._questions, self._key = state, visitors, questions, key

    def rights_in(
        self,
        link: Link,
        wanted: Sequence[Wanted],
        now: int,
        then: Callable[[Sequence[Joining], int], None],
        refuse: Callable[[ReasonCode, str], None],
    ) -> None:
        """Find out what may be done in sessions, and go on with *then*; or *refuse* whoever has to wait."""
        hold = self._state.hold
        doors = [
            _Door(each, hold.access(each.session), is_there=hold.has(each.session) and self.is_staying(each.session))
            for each in wanted
        ]
        groups = self._visitors.groups_of(link)
        at_once = [door.opens_at_once(link.user, groups) for door in doors]
        if all(rights is not None for rights in at_once):
            self._judged(link, doors, then, [rights or frozenset() for rights in at_once], now)
        elif self._questions.is_full:
            refuse(ReasonCode.SERVER_BUSY, "too many wait for their passwords")
        else:
            ask = partial(_judge, tuple(doors), link.user, groups, self._key)
            too_many = partial(refuse, ReasonCode.QUOTA_EXCEEDED, _TOO_MANY)
            self._questions.put(link.address, ask, partial(self._judged, link, doors, then), too_many)

    def _judged(
        self,
        link: Link,
        doors: Sequence[_Door],
        then: Callable[[Sequence[Joining], int], None],
        rights: Sequence[frozenset[Right]],
        now: int,
    ) -> None:
        if any(not each for each in rights):
            self._questions.was_wrong(link.address)
        joinings = [
            Joining(door.wanted.session, door.wanted.mode, each, door.access)
            for door, each in zip(doors, rights, strict=True)
        ]
        then(joinings, now)

    def is_staying(self, session: str) -> bool:
        """Tell whether a session is not about to be deleted."""
        return session not in self._state.deleting

    def is_as_it_was(self, joining: Joining) -> bool:
        """Tell whether what was found out still holds."""
        session, hold = joining.session, self._state.hold
        return hold.has(session) and self.is_staying(session) and hold.access(session) == joining.access


@dataclass(frozen=True, slots=True)
class _Door:
    """A session that somebody stands before; *access* is None where it is open, or not there."""

    wanted: Wanted
    access: str | None = field(repr=False)
    is_there: bool

    def opens_at_once(self, user: str | None, groups: frozenset[str]) -> frozenset[Right] | None:
        """Return the rights where they are known without hashing; None if they are not."""
        if not self.is_there:
            return None
        if self.access is None:
            return ALL_RIGHTS
        access = read_access(self.access)
        if not isinstance(access, AccessControlList):
            return None
        return access.rights(user=user, groups=groups) or None


def _judge(doors: tuple[_Door, ...], user: str | None, groups: frozenset[str], key: bytes) -> list[frozenset[Right]]:
    """Return the rights in each session; in any thread."""
    found: list[frozenset[Right]] = []
    for door in doors:
        rights = door.opens_at_once(user, groups)
        if rights is None and door.is_there and door.access is not None:
            access = read_access(door.access)
            if not isinstance(access, AccessControlList):
                found.append(access.rights(password=door.wanted.password))
                continue
        if rights is None:
            decoy(door.wanted.session, key).rights(password=door.wanted.password)
        found.append(rights or frozenset())
    return found
