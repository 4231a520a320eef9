"""Named sessions for an application: create, join, inspect and change them (docs/reference/sessions.md).

Rule: a joined session is joined again on every new connection, until it is left or the broker reports its end.
Rule: requests that must not be done twice (``create``, ``delete``, ``access``) are sent once. If the connection is lost
meanwhile, the outcome is unknown: the client raises ``RequestLostError`` and does not rejoin the session, because a
session that cannot be joined any longer would make every new connection fail.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from whimbrel.client.answers import (
    Members,
    SessionDetails,
    SessionSubscription,
    SessionSummary,
    change_of,
    details_of,
    members_of,
    next_of,
    subscription_of,
    subscriptions_of,
    summaries_of,
)
from whimbrel.client.changes import ChangeQueues, SessionChanges
from whimbrel.client.errors import ClientError, MalformedAnswerError, RequestLostError, SessionRefusedError
from whimbrel.client.interest import Interest
from whimbrel.client.joining import Join, Joins, Receipt, check_session, checked_keys, checked_password, join_members
from whimbrel.client.requests import ANSWERS, TOPICS, Request, Requests
from whimbrel.errors import InvalidValueError, Phrase
from whimbrel.hold.access import AccessControlList
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.packets import Publish

__all__ = ["CHANGES", "Sessions"]

CHANGES = f"{TOPICS}+/changes"
_LEVELS = {("owner",), ("user", "admin"), ("user", "admin", "owner")}


class Sessions:
    """The named sessions of a broker, for one client; available as ``client.sessions``.

    A client that has joined a session has the rights with which it joined; the argument *password* gives the rights of
    that password instead. A refusal raises ``SessionRefusedError``.
    """

    def __init__(
        self,
        joins: Joins,
        requests: Requests,
        ask: Callable[[Request], Awaitable[Members]],
        queues: ChangeQueues,
        device: Callable[[], str],
    ) -> None:
        self._joins, self._requests, self._ask, self._queues, self._device = joins, requests, ask, queues, device

    # -- sessions ----------------------------------------------------------------------------------------------------

    async def create(
        self,
        name: str,
        *,
        owner: str | None = None,
        admin: str | None = None,
        user: str | None = None,
        acl: AccessControlList | None = None,
        exist_ok: bool = False,
    ) -> bool:
        """Create the session *name*, without joining it; return whether it was created now.

        If the session exists, the broker refuses with 0x87; with *exist_ok* it stays as it is, if this client may see
        it.

        The passwords are for *owner*; or for *user* and *admin*; or for all three. Without passwords and without a list
        (*acl*), the session belongs to the connected user, or is open to every client if the broker has verified no
        user.
        """
        try:
            await self._request("create", name, _access(owner=owner, admin=admin, user=user, acl=acl))
        except SessionRefusedError as refusal:
            if not exist_ok or refusal.code != ReasonCode.NOT_AUTHORIZED:
                raise
            try:
                await self.show(name, password=owner or admin or user)
            except SessionRefusedError:
                raise refusal from None
            return False
        return True

    async def join(
        self, name: str, *, password: str | None = None, receipt: Receipt = "take"
    ) -> tuple[SessionSubscription, ...]:
        """Join, and return the session's subscriptions; notifications held for this device follow as messages.

        With the *receipt* ``take``, a message that this device acknowledges is removed for the absent devices too.
        """
        join = Join(name, password, receipt)
        answer = await self._ask(Request("join", name, join_members(join)))
        self._joins.add(join)
        return await self._all_subscriptions(name, answer, None)

    async def leave(self, name: str, *, device: str | None = None) -> None:
        """Leave the session, so that nothing is held for this device any longer; or put another *device* out of it."""
        await self._request("leave", name, {} if device is None else {"device": device})
        if device is None or device == self._device():
            self._joins.remove(name)

    async def delete(self, name: str, *, password: str | None = None) -> None:
        """Delete the session and its held notifications."""
        await self._in_doubt_out("delete", name, {}, password)
        self._joins.remove(name)

    async def release(self, client_id: str) -> str | None:
        """Remove the owner of the private session of *client_id*; return that user, or None. For operators.

        The right to it is ``operate`` on ``$whimbrel/session/release`` in the broker's rights file.
        """
        answer = await self._ask(Request("release", "", {"client": client_id}))
        owner = answer.get("owner")
        return owner if isinstance(owner, str) else None

    async def list(self) -> tuple[SessionSummary, ...]:
        """Return the sessions that this device is a member of or that its user owns, by name; requested in pages."""
        answer = await self._ask(Request("list", "", {}))
        found, after = summaries_of(answer), ""
        while (following := next_of(answer, str, after)) is not None:
            after = following
            answer = await self._ask(Request("list", "", {"after": after}))
            found += summaries_of(answer)
        return found

    async def show(self, name: str, *, password: str | None = None) -> SessionDetails:
        """Return the session's subscriptions (requested in pages), devices, and number of held notifications."""
        answer = await self._request("show", name, {}, password)
        subscriptions = await self._all_subscriptions(name, answer, password)
        return replace(details_of(answer), subscriptions=subscriptions)

    async def _all_subscriptions(
        self, name: str, answer: Members, password: str | None
    ) -> tuple[SessionSubscription, ...]:
        """Return the subscriptions of an answer and of all following pages."""
        found, after = subscriptions_of(answer), 0
        while (following := next_of(answer, int, after)) is not None:
            after = following
            answer = await self._request("show", name, {"after": after}, password)
            found += subscriptions_of(answer)
        return found

    async def subscriptions(self, name: str, *, password: str | None = None) -> tuple[SessionSubscription, ...]:
        """Return the session's subscriptions."""
        return (await self.show(name, password=password)).subscriptions

    async def set_access(
        self,
        name: str,
        *,
        password: str | None = None,
        owner: str | None = None,
        admin: str | None = None,
        user: str | None = None,
        acl: AccessControlList | None = None,
        is_open: bool = False,
    ) -> None:
        """Set new passwords or a list for the session, or open it to every client; *password* is a current one.

        All other devices are put out, and have to join again. If this device has joined the session, it rejoins with
        the highest of the new passwords.
        """
        members = _access(owner=owner, admin=admin, user=user, acl=acl)
        if is_open == bool(members):
            found = Phrase(", ".join([*members, *["open"] * is_open]) or "none")
            raise InvalidValueError("access", found, "passwords, or a list, or open")
        joined = await self._in_doubt_out("access", name, members or {"open": True}, password)
        if joined is not None:
            self._joins.add(Join(name, owner or admin, joined.receipt))

    # -- subscriptions -----------------------------------------------------------------------------------------------

    async def subscribe(
        self,
        name: str,
        topic_filter: str,
        *,
        qos: int = 1,
        filter: str | None = None,  # noqa: A002 # the word of the wire and of the command line
        ttl_s: int | None = None,
        max: int | None = None,  # noqa: A002
        subscription: str = "",
        keys: Sequence[str] = (),
        insecure: bool | None = None,
        near: str | None = None,
        stale_s: float | None = None,
        password: str | None = None,
    ) -> SessionSubscription:
        """Subscribe in the session *name*, which need not be joined; *subscription* is the name of the subscription."""
        interest = Interest(
            topic_filter=topic_filter, qos=qos, filter_text=filter, ttl_s=ttl_s, max_held=max, name=subscription,
            keys=checked_keys(keys), insecure=insecure, session=name, near=near, stale_s=stale_s,
        )  # fmt: skip
        answer = await self._request("subscribe", name, interest.members(), password)
        return subscription_of(answer.get("subscription"))

    async def unsubscribe(
        self, name: str, topic_filter: str, *, subscription: str = "", password: str | None = None
    ) -> None:
        """Remove the subscription to *topic_filter* with the name *subscription*."""
        members = Interest(topic_filter=topic_filter, name=subscription, session=name).naming_members()
        await self._request("unsubscribe", name, members, password)

    # -- keys --------------------------------------------------------------------------------------------------------

    async def set_keys(self, add: Sequence[str] = (), remove: Sequence[str] = ()) -> None:
        """Add and remove keys of this connection and of every later one.

        A key is removed by the text with which it was added.
        """
        added, removed = checked_keys(add), checked_keys(remove)
        await self._ask(Request("keys", "", {"add": list(added), "remove": list(removed)}))
        self._joins.change_keys(add=added, remove=removed)

    # -- being told --------------------------------------------------------------------------------------------------

    def changes(self) -> SessionChanges:
        """Iterate over the changes that other devices make to the sessions in which this device is present.

        Changes are received from the first step of the iteration on, or from ``async with client.sessions.changes() as
        …`` on. A full queue of changes stops all reading from the broker, as a full queue of ``messages`` does: keep
        iterating.
        """
        return SessionChanges(self._queues)

    def on_message(self, packet: Publish) -> None:
        """Handle a publication about sessions. For internal use by the client."""
        if packet.topic == ANSWERS:
            self._requests.on_answer(packet.payload)
        elif packet.topic.endswith("/changes"):
            change = change_of(members_of(packet.payload))
            if change.change in {"left", "deleted"}:
                self._joins.remove(change.session)
            self._queues.put(change)

    # -- asking ------------------------------------------------------------------------------------------------------

    async def _request(self, verb: str, name: str, members: Members, password: str | None = None) -> Members:
        check_session(name)
        given = {"session": name, **members}
        if checked_password(password) is not None:
            given["password"] = password
        return await self._ask(Request(verb, name, given))

    async def _in_doubt_out(self, verb: str, name: str, members: Members, password: str | None) -> Join | None:
        """Make a request, and do not rejoin the session if the outcome is unknown; return its ``Join``."""
        joined = self._joins.remove(name)
        try:
            await self._request(verb, name, members, password)
        except BaseException as error:
            is_known = isinstance(error, ClientError) and not isinstance(error, RequestLostError | MalformedAnswerError)
            if joined is not None and is_known:
                self._joins.add(joined)
            raise
        if joined is not None:
            self._joins.add(joined)
        return joined


def _access(
    *, owner: str | None, admin: str | None, user: str | None, acl: AccessControlList | None
) -> dict[str, object]:
    """Return the members of a request for passwords or an access list; empty without either."""
    words = {"user": user, "admin": admin, "owner": owner}
    passwords = {level: checked_password(word) for level, word in words.items() if word is not None}
    if passwords and acl is not None:
        raise InvalidValueError("access", "both", "one", "give passwords or a list (acl), not both")
    if acl is not None:
        return dict(members_of(acl.to_text().encode()))
    if not passwords:
        return {}
    if tuple(passwords) not in _LEVELS:
        allowed = "owner; or user and admin; or user, admin and owner"
        raise InvalidValueError("passwords", Phrase(", ".join(passwords)), allowed)
    return {"passwords": passwords}
