"""Session moves: private sessions that an older version stored go to the mount points that they belong to.

A mount point is a listener's prefix of topics. In this version it is a prefix of client identifiers too: these are
*mounted*.
Rule: at the first start of a version that mounts identifiers, a stored session moves if all its subscriptions are below
one mount point. Other private sessions stay outside, and so do the named sessions that their devices have joined.
Rule: a move takes along the subscriptions, owner, expiry, chosen policy, stored policies, and a will below the mount
point, as facts of the log: a session begins under the full identifier, and the old one ends.
Rule: no queued notification is lost. A session that holds one is marked (``_mark_of``) and keeps its identifier: its
client inside the mount point resumes it, no client outside may use it, and it moves when it is resumed and empty.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from whimbrel.broker.access.client_ids import MountedIds
from whimbrel.broker.limits.operator_notices import Notice
from whimbrel.broker.requests.policies import Policies, owner_of
from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.broker.waiting.commit_queue import CommitQueue
from whimbrel.broker.wire.clients import LiveClient
from whimbrel.hold.private import private_session
from whimbrel.model.bounds import MAX_NAME_BYTES
from whimbrel.model.facts import (
    Fact,
    InterestChanged,
    Mode,
    PolicyChange,
    PolicyChanged,
    PresenceChange,
    PresenceChanged,
    SessionChange,
    SessionChanged,
    WillChange,
    WillChanged,
)
from whimbrel.model.subscription import InterestChange
from whimbrel.mqtt.mounts import is_mounted

__all__ = ["SessionMoves"]

_FEW = 200
"""Most subscriptions of a session that moves while its client waits for CONNACK."""


class SessionMoves:
    """Moves sessions to the mount points of *ids*."""

    def __init__(self, commits: CommitQueue, state: BrokerState, ids: MountedIds, policies: Policies) -> None:
        self._commits, self._state, self._ids, self._policies = commits, state, ids, policies
        self.notices: list[Notice] = []

    def begin(self, now: int) -> None:
        """Move each session that is stored without its mount point, or mark it if it is not empty.

        No fact may be waiting to be applied.
        """
        for client in list(self._state.clients.values()):
            mount = self._mount_of(client)
            if mount is None:
                continue
            if self._is_movable(client):
                self.move(client, mount, now)
                text = f"a session moved to the mount point {mount!r}"
            else:
                self._enter(self._session(client, SessionChange.ACCESS, now, access=_mark_of(mount)))
                text = (
                    f"a session that holds something belongs to the mount point {mount!r}, and moves when it is empty"
                )
            self.notices.append(Notice(text, client.id, client.owner))

    def _mount_of(self, client: LiveClient) -> str | None:
        """Return the mount point that a session stored without one belongs to; None if the session stays as it is."""
        if self._ids.mount_of(client.id) or self.mark(client.id) is not None:
            return None
        subscriptions = self._state.hold.subscriptions(client.session)
        mounts = self._ids.mounts if subscriptions else ()
        for mount in mounts:
            if all(is_mounted(each.subject_filter or "", mount) for each in subscriptions):
                return mount if self._is_free(mount + client.id, mount) else None
        return None

    def _is_free(self, whole: str, mount: str) -> bool:
        fits = len(private_session(whole).encode()) <= MAX_NAME_BYTES
        return fits and whole not in self._state.clients and self._ids.mount_of(whole) == mount

    def mark(self, client_id: str) -> str | None:
        """Return the mount point that the session of *client_id* is marked with (``_mark_of``), or None."""
        return _mount_in(self._state.hold.access(private_session(client_id)))

    def before(self, mount: str, said: str) -> LiveClient | None:
        """Return the client whose session is stored without *mount* and marked to move there, or None.

        *said* is the client identifier in CONNECT, without the mount point.
        """
        if not mount or mount + said in self._state.clients or self.mark(said) != mount:
            return None
        return self._state.clients.get(said)

    def can_move_now(self, client: LiveClient) -> bool:
        """Return whether a session can move while its client waits for CONNACK: it is small, empty and unconnected."""
        is_short = self._state.hold.sizes(client.session)[0] <= _FEW
        return is_short and not self._commits.waiting and client.link is None and self._is_movable(client)

    def _is_movable(self, client: LiveClient) -> bool:
        """Return whether a session has no queued, held or unacknowledged message that a move would lose."""
        in_flight = (client.flying, client.queue, client.live, client.received, client.receiving, client.releasing)
        return not any(in_flight) and not self._state.hold.pending_count(client.session)

    def move(self, client: LiveClient, mount: str, now: int) -> None:
        """Move an empty session: begin it under its full identifier, and end the one under the old identifier."""
        whole = mount + client.id
        self._policies.give(client.session, private_session(whole), now)
        for fact in self._facts(client, whole, mount, self._commits.now(now)):
            self._enter(fact)

    def _enter(self, fact: Fact) -> None:
        self._commits.enter(fact, partial(self._state.applying, fact), is_owed=False)
        if isinstance(fact, PolicyChanged):
            self._state.note(fact)

    def _facts(self, client: LiveClient, whole: str, mount: str, now: int) -> Iterator[Fact]:
        """Yield the facts (log records) of a move, each with the next seq.

        The caller must enter a fact before it takes the next one: only then is the next seq known.
        """
        node, session = self._commits.node, private_session(whole)
        left, chosen = self._state.will_of(client.id), self._state.decisions.shape.chosen(client.id)
        has_will = left is not None and is_mounted(left.will.subject, mount)
        if left is not None and has_will:
            yield WillChanged(
                node=node, seq=self._commits.seq, changed_at=now, device=whole, change=WillChange.LEFT, will=left.will
            )
        yield PresenceChanged(
            node=node,
            seq=self._commits.seq,
            changed_at=now,
            device=whole,
            change=PresenceChange.JOINED,
            session=session,
            receipt=Mode.TAKE,
            session_expiry_us=client.expiry_us,
            confirms=None if client.is_unclaimed else client.confirms,
            owner=client.owner,
        )
        for subscription in self._state.hold.subscriptions(client.session):
            yield InterestChanged(
                node=node,
                seq=self._commits.seq,
                changed_at=now,
                change=InterestChange.ADDED,
                subscription=replace(subscription, session=session),
                device=whole,
            )
        if chosen is not None:
            yield PolicyChanged(
                node=node,
                seq=self._commits.seq,
                changed_at=now,
                change=PolicyChange.CHOSEN,
                owner=owner_of(client.owner, whole),
                name=chosen,
                device=whole,
            )
        yield PresenceChanged(
            node=node,
            seq=self._commits.seq,
            changed_at=now,
            device=whole,
            change=PresenceChange.DISCONNECTED,
            session_expiry_us=client.expiry_us,
            sent_seq=None if left is not None and left.is_excused else 0,
        )
        if has_will:
            yield WillChanged(
                node=node, seq=self._commits.seq, changed_at=now, device=client.id, change=WillChange.WITHDRAWN
            )
        yield self._session(client, SessionChange.DELETED, now)

    def _session(
        self, client: LiveClient, change: SessionChange, now: int, *, access: str | None = None
    ) -> SessionChanged:
        return SessionChanged(
            node=self._commits.node,
            seq=self._commits.seq,
            changed_at=self._commits.now(now),
            session=client.session,
            change=change,
            device=client.id,
            access=access,
        )


def _mark_of(mount: str) -> str:
    """Return the text that marks an old session as belonging to *mount*; it is stored as the session's access."""
    return json.dumps({"mount": mount}, ensure_ascii=False)


def _mount_in(access: str | None) -> str | None:
    """Return the mount point in a session's access text, or None if the text is no such mark (``_mark_of``)."""
    if access is None:
        return None
    try:
        found: object = json.loads(access)
    except ValueError:
        return None
    mount = found.get("mount") if isinstance(found, dict) else None
    return mount if isinstance(mount, str) else None
