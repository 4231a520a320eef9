"""Joining: determine a client's rights in a named session before its request is carried out (Elvin proxy, 5.2.1).

CONNECT of version 5 names sessions, passwords and receipts as user properties (``own_properties``); requests name one
session each.
Rule: a missing session, a wrong password and a user missing from the access list all give the same answer, after the
same time. If no session has a password, the answer comes at once, since times then reveal nothing.
Rule: hashing takes long, so the shell does it in a thread; the rights of open sessions and of listed users are known at
once.
Rule: a hash with less than today's recommended cost is replaced when its password is given, which changes no rights.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from whimbrel.broker.access.authorizer import Authorizer
from whimbrel.broker.access.keyring import Keyring, read_keys
from whimbrel.broker.access.passwords import MIN_SALT_BYTES, Cost, Passwords, decoy, read_access
from whimbrel.broker.requests.policies import check_policy_name
from whimbrel.broker.requests.session_requests import check_session_name, read_mode
from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.broker.waiting.blocking_tasks import BlockingTasks, RequesterId
from whimbrel.broker.waiting.driver import Procedure, answer_to
from whimbrel.broker.wire.clients import Joining, Link
from whimbrel.broker.wire.own_properties import IN_CONNECT, Pairs, is_marked, split_own
from whimbrel.errors import InvalidValueError, Phrase
from whimbrel.hold.access import ALL_RIGHTS, AccessControlList, Right
from whimbrel.hold.private import is_private
from whimbrel.model.facts import Mode
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.errors import ProtocolError
from whimbrel.mqtt.packets import Connect

__all__ = ["NOT_ALLOWED", "JoinAuthorizer", "Wanted", "hash_passwords", "policy_of", "wanted_by"]

NOT_ALLOWED = "there is no such session, or its password or list does not allow you this"
_TOO_MANY = "too many wrong passwords from this address; try again in a minute"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A session named in a request."""

    session: str
    password: str | None = field(default=None, repr=False)
    mode: Mode = Mode.TAKE


def wanted_by(connect: Connect, *, username_is_session: bool = False) -> tuple[list[Wanted], Keyring]:
    """Parse the sessions and keys that a CONNECT names, or raise ``ProtocolError`` with the code for the answer."""
    user = connect.properties.user
    try:
        own, _ = split_own(user, IN_CONNECT, is_ours=is_marked(user))
        if username_is_session and connect.username is not None:
            return [_by_user_name(connect)], read_keys(_values(own, "key"))
        sessions = [check_session_name(value) for value in _values(own, "session")]
        if len(set(sessions)) < len(sessions):
            raise InvalidValueError("session", Phrase("a name twice"), "each session once")
        passwords = _each("password", _values(own, "password"), len(sessions))
        modes = _each("receipt", _values(own, "receipt"), len(sessions))
        wanted = [
            Wanted(session=session, password=password or None, mode=read_mode(mode or Mode.TAKE.value))
            for session, password, mode in zip(sessions, passwords, modes, strict=True)
        ]
        return wanted, read_keys(_values(own, "key"))
    except InvalidValueError as error:
        raise ProtocolError(ReasonCode.PROTOCOL_ERROR, f"user property {error}") from None


def policy_of(connect: Connect) -> tuple[bool, str | None]:
    """Return whether a CONNECT chooses a policy, and the policy's name; an empty name is None and chooses no policy."""
    user = connect.properties.user
    try:
        own, _ = split_own(user, IN_CONNECT, is_ours=is_marked(user))
        named = _values(own, "policy")
        if len(named) > 1:
            raise InvalidValueError("policy", Phrase(f"{len(named)} values"), "one")
        return bool(named), check_policy_name(named[0]) if named and named[0] else None
    except InvalidValueError as error:
        raise ProtocolError(ReasonCode.PROTOCOL_ERROR, f"user property {error}") from None


def _by_user_name(connect: Connect) -> Wanted:
    try:
        password = None if connect.password is None else connect.password.decode()
    except UnicodeDecodeError:
        password = None
    return Wanted(session=check_session_name(connect.username), password=password)


def _values(own: Pairs, wanted: str) -> list[str]:
    return [value for name, value in own if name == wanted]


def _each(what: str, values: list[str], count: int) -> list[str]:
    """Return one value for each of *count* sessions; *values* is empty, has one value for all, or one for each."""
    if len(values) in {0, 1}:
        return (values or [""]) * count
    if len(values) != count:
        raise InvalidValueError(
            what, Phrase(f"{len(values)} values for {count} sessions"), "none, one, or one for each"
        )
    return values


class JoinAuthorizer:
    """Determines rights in sessions; *write* stores a session's access when its hashes were replaced."""

    def __init__(
        self,
        state: BrokerState,
        authorizer: Authorizer,
        blocking_tasks: BlockingTasks,
        *,
        rng: random.Random,
        cost: Cost,
        write: Callable[[str, str, int], None],
    ) -> None:
        self._state, self._authorizer, self._blocking_tasks = state, authorizer, blocking_tasks
        self._rng, self._cost, self._write = rng, cost, write
        self._key = rng.randbytes(MIN_SALT_BYTES)
        self._cheap = {
            session: (access, below)
            for session in state.hold.sessions()
            if not is_private(session)
            and (access := state.hold.access(session)) is not None
            and (below := _below(access, cost)) is not None
        }
        """Sessions with hashes that cost less than *cost*, each with its access text and the lowest of these costs."""
        self._raised: dict[str, tuple[str, str]] = {}
        """Per session, its access text before and after its hashes were replaced."""

    def rights_in(self, link: Link, wanted: Sequence[Wanted], now: int) -> Procedure[tuple[list[Joining], int]]:
        """Return the rights in each of the sessions *wanted*, and the time at which they were determined.

        The rights are empty if a session does not exist, or if neither the password nor the user gives any. Raise
        ``ProtocolError`` if the client gave too many wrong passwords.
        """
        hold = self._state.hold
        doors = [
            _Door(each, hold.access(each.session), is_there=hold.has(each.session) and self.is_staying(each.session))
            for each in wanted
        ]
        groups = self._authorizer.groups_of(link)
        at_once = [door.opens_at_once(link.user, groups) for door in doors]
        if not self._state.named.has_passwords or all(rights is not None for rights in at_once):
            return _joinings(doors, [rights or frozenset() for rights in at_once]), now
        salt, asker = self._rng.randbytes(MIN_SALT_BYTES), _asker(link, doors)
        ask = partial(_judge, tuple(doors), link.user, groups, self._key, salt, self._cost, self._lowest_cost())
        (rights, raised), now = yield from answer_to(link, asker, ask, _TOO_MANY)
        self._blocking_tasks.learn(asker, is_right=all(rights))
        self._raise(doors, raised, now)
        return _joinings(doors, rights), now

    def _lowest_cost(self) -> Cost | None:
        """Return the lowest hash cost in a session with password hashes below the configured cost.

        If several sessions have such hashes, it is one of them; if no session has, return None.
        """
        while self._cheap:
            session, (access, cost) = next(iter(self._cheap.items()))
            found = self._state.hold.access(session)
            if found == access:
                return cost
            del self._cheap[session]
            if (
                found is not None and (lower := _below(found, self._cost)) is not None
            ):  # only some of its levels have new hashes
                self._cheap[session] = (found, lower)
        return None

    def _raise(self, doors: Sequence[_Door], raised: Sequence[str | None], now: int) -> None:
        """Store the access of sessions whose hashes were replaced."""
        for door, access in zip(doors, raised, strict=True):
            session = door.wanted.session
            is_changing = session in self._state.volatile.changing or not self.is_staying(session)
            if access is not None and not is_changing and self._state.hold.access(session) == door.access:
                self._raised[session] = (door.access or "", access)
                self._write(session, access, now)

    def is_staying(self, session: str) -> bool:
        """Return whether a session exists and is not about to be deleted."""
        return session not in self._state.volatile.deleting

    def is_as_it_was(self, joining: Joining) -> bool:
        """Return whether the rights that were determined for *joining*, a request to join a session, still hold.

        They do if the session exists, is not about to be deleted, and has the same access.
        """
        session, hold = joining.session, self._state.hold
        access = hold.access(session)
        is_same = access == joining.access or self._raised.get(session) == (joining.access, access)
        return hold.has(session) and self.is_staying(session) and is_same


@dataclass(frozen=True, slots=True)
class _Door:
    """A session that a client asks to enter; *access* is None if it is open or does not exist."""

    wanted: Wanted
    access: str | None = field(repr=False)
    is_there: bool

    def opens_at_once(self, user: str | None, groups: frozenset[str]) -> frozenset[Right] | None:
        """Return the rights if they are known without hashing, otherwise None."""
        if not self.is_there:
            return None
        if self.access is None:
            return ALL_RIGHTS
        access = read_access(self.access)
        if not isinstance(access, AccessControlList):
            return None
        return access.rights(user=user, groups=groups) or None


def _joinings(doors: Sequence[_Door], rights: Sequence[frozenset[Right]]) -> list[Joining]:
    return [
        Joining(door.wanted.session, door.wanted.mode, each, door.access)
        for door, each in zip(doors, rights, strict=True)
    ]


def _asker(link: Link, doors: Sequence[_Door]) -> RequesterId:
    """Return the requester of a password check, by which the rate limit counts."""
    names = tuple(f"session {door.wanted.session}" for door in doors)
    return RequesterId(link.address, names[0] if link.client is None else f"client {link.client.id}", names)


def _judge(
    doors: tuple[_Door, ...],
    user: str | None,
    groups: frozenset[str],
    key: bytes,
    salt: bytes,
    cost: Cost,
    beside: Cost | None,
) -> tuple[list[frozenset[Right]], list[str | None]]:
    """Return the client's rights in each session, and the sessions' new access texts; runs in any thread.

    A session has a new access text if a password hash in it was replaced by one at *cost*, otherwise None.
    """
    found: list[frozenset[Right]] = []
    raised: list[str | None] = []
    for door in doors:
        rights, more = door.opens_at_once(user, groups), None
        if rights is None:
            access = read_access(door.access) if door.is_there and door.access is not None else None
            is_decoy = not isinstance(access, Passwords)
            asked = decoy(door.wanted.session, key, cost=cost) if is_decoy else access
            assert isinstance(asked, Passwords)
            rights, more = asked.examine(door.wanted.password, salt=salt, cost=cost, beside=beside)
            if is_decoy:
                rights = frozenset()
        found.append(rights)
        raised.append(None if more is None else more.to_text())
    return found, raised


def _below(access: str, cost: Cost) -> Cost | None:
    """Return the lowest cost of the password hashes in *access*, or None if that is *cost* or higher."""
    found = read_access(access)
    least = found.lowest_cost() if isinstance(found, Passwords) else cost
    return least if least.is_below(cost) else None


def hash_passwords(salt: bytes, cost: Cost, words: dict[str, str]) -> str | InvalidValueError:
    """Return a session's access with the passwords *words* (by level), or why they are invalid; runs in any thread."""
    try:
        user, admin, owner = (words.get(level) for level in ("user", "admin", "owner"))
        return Passwords.create(salt=salt, user=user, admin=admin, owner=owner, cost=cost).to_text()
    except InvalidValueError as error:
        return error
