"""History: a SUBSCRIBE with ``since`` gets older notifications from the log in order, then live ones, each once.

A replay asks for chunks of the log, which the shell reads outside the event loop, and sends them as its client reads.
At the end of the applied facts, it opens a buffer (a *tap* of the commit queue) that collects the publications from
then on. It then reads the log up to the first of these, and adds the subscription. When that is applied, it first sends
the publications from the tap: all have lower seqs than the subscription, and all live ones have higher seqs.
Rule: a notification is sent from the log if its seq is lower than the subscription's, and live if it is higher.
Rule: copies from the log have QoS 0. A client that loses its connection asks again from the last seq that it has.
Rule: only applied facts are read, so no client gets from the log what live subscribers have not got yet.
Rule: no policy decides about copies from the log. So ``since`` is refused where a policy applies, and a connection is
closed with that reason if its device chooses a policy meanwhile.
Rule: a client with a persistent session keeps its subscription if the connection is lost before the replay is done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from whimbrel.broker.settings.log import LogSettings
from whimbrel.broker.state.history import HistoryChunk, HistoryPlace, HistoryQuestion, PastMatches
from whimbrel.broker.subscribe.requested import Since
from whimbrel.broker.waiting.commit_queue import CatchUpBuffer, CommitQueue, Pieces
from whimbrel.broker.wire.clients import Link, LiveClient
from whimbrel.broker.wire.gate import Gate, has_room
from whimbrel.broker.wire.sender import Sender
from whimbrel.hold.commands import Identity
from whimbrel.hold.private import is_private, is_shared
from whimbrel.language.allowance import Allowance
from whimbrel.log.records import BODY
from whimbrel.model.clock import US_PER_S, format_time
from whimbrel.model.proximity import Sighting
from whimbrel.model.subscription import Subscription
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.errors import ProtocolError
from whimbrel.node.publication import KeptNotification

__all__ = ["History"]

_PIECE = 100
"""Most copies that are sent in one turn of the event loop."""
_SHAPED = "a policy was chosen while history was sent, and since is not offered where a policy decides"

_Put = Callable[[Callable[[], Pieces] | None], None]
"""Function that adds a subscription; its argument, if not None, is run before the subscription is applied."""


@dataclass(slots=True, eq=False)
class _Replay:
    """One SUBSCRIBE with ``since``, from the first message that it gets from the log until it gets live ones."""

    link: Link
    client: LiveClient
    subscription: Subscription
    matches: PastMatches
    next_seq: int
    put: _Put
    chunk: deque[KeptNotification] = field(default_factory=deque)
    tap: CatchUpBuffer | None = None
    is_over: bool = False
    place: HistoryPlace = field(default_factory=HistoryPlace)

    @property
    def identity(self) -> Identity:
        """The identity of the subscription within its session."""
        return self.subscription.subject_filter, self.subscription.name


class History:
    """The replays of all connections; *settings* limit their count and how far back each may go."""

    def __init__(
        self,
        commits: CommitQueue,
        sender: Sender,
        gate: Gate,
        settings: LogSettings,
        allowance: Callable[[], Allowance],
        sightings: Callable[[str], list[Sighting]],
        chosen: Callable[[str], str | None] = lambda _: None,
    ) -> None:
        self._sightings = sightings
        self._commits, self._sender, self._gate, self._allowance = commits, sender, gate, allowance
        self._chosen = chosen
        """Function that returns the policy that a device has chosen, or None."""
        self._most, self._longest_us = settings.history_count, settings.history_s * US_PER_S
        self._replays: dict[Link, list[_Replay]] = {}
        self.asking: deque[_Replay] = deque()
        """Replays that need the next chunk of the log."""
        self.ready: deque[_Replay] = deque()
        """Replays that have copies to send, or reached the end of a chunk."""
        self.waiting: list[_Replay] = []
        """Replays that wait until the publications with a seq are written and applied."""
        self.oldest_seq, self.oldest_at = 1, 0
        """The first seq of the log and the time of its beginning; the shell updates them."""

    def __len__(self) -> int:
        return sum(map(len, self._replays.values()))

    @property
    def has_work(self) -> bool:
        """Whether a replay waits for ``go_on``, which sends more of its messages."""
        return bool(self.ready)

    # -- begin and end -----------------------------------------------------------------------------------------------

    def begins(self, seq: int, at: int) -> None:
        """Set the seq and time at which the log begins now."""
        self.oldest_seq, self.oldest_at = seq, at

    def start_of(self, since: Since, subscription: Subscription, now: int) -> tuple[tuple[int, int], str]:
        """Return the seq and the time at which *since* begins, or raise ``ProtocolError``.

        The text tells where the log begins, if *since* asks for older notifications; otherwise it is empty.
        """
        node, is_time = self._commits.node, since.seconds is not None
        if not self._longest_us:
            raise _not_offered("this broker offers no history (log.history_s)")
        if not is_private(subscription.session) or is_shared(subscription.subject_filter):
            raise _not_offered("since is for a client's own subscriptions, not for shares and named sessions")
        if not is_time and since.node != node:
            raise _not_offered(f"since names the node {since.node!r}, and this is {node!r}")
        if len(self) >= self._most:
            raise ProtocolError(ReasonCode.QUOTA_EXCEEDED, "too many clients ask for history now (log.history_count)")
        since_at = now - min(self._longest_us, self._longest_us if since.seconds is None else since.seconds * US_PER_S)
        first = 0 if is_time else since.seq + 1
        is_older = since_at < self.oldest_at if is_time else first < self.oldest_seq
        if not is_older or self.oldest_seq <= 1:
            return (first, since_at), ""
        begin = f"{node}:{self.oldest_seq}, after {format_time(self.oldest_at)}"
        return (first, since_at), f"what is older was cut: the log begins with {begin}"

    def begin(
        self, link: Link, client: LiveClient, subscription: Subscription, first: int, since_at: int, put: _Put
    ) -> None:
        """Replay the publications in the log that *subscription* matches, from seq *first* and time *since_at* on.

        Then call *put*, which adds the subscription. From now on all copies over this connection carry their
        notification's id.
        """
        self.cancel(link, subscription.session, (subscription.subject_filter, subscription.name))
        link.numbered_by, link.is_plain = self._commits.node, False
        sightings = self._sightings(subscription.session)
        found = PastMatches(self._commits.node, subscription, client.id, since_at=since_at, sightings=sightings)
        replay = _Replay(link, client, subscription, found, max(first, self.oldest_seq), put)
        self._replays.setdefault(link, []).append(replay)
        self.ready.append(replay)

    def cancel(self, link: Link, session: str, identity: Identity) -> bool:
        """Cancel the replay for a subscription; return whether one existed."""
        for replay in self._replays.get(link, ()):
            if (replay.subscription.session, replay.identity) == (session, identity):
                self._end(replay)
                return True
        return False

    def on_disconnect(self, link: Link) -> None:
        """Cancel the replays of a client that disconnects; a persistent session gets its subscriptions."""
        for replay in list(self._replays.get(link, ())):
            self._end(replay)
            if replay.client.is_persistent:
                replay.put(None)

    def _end(self, replay: _Replay) -> None:
        replay.is_over = True
        replay.chunk.clear()
        self._close_tap(replay)
        left = self._replays[replay.link]
        left.remove(replay)
        if not left:
            del self._replays[replay.link]

    def _close_tap(self, replay: _Replay) -> None:
        if replay.tap is not None:
            self._commits.close_tap(replay.tap)
            replay.tap = None

    # -- reads by the shell ------------------------------------------------------------------------------------------

    def next_question(self, now: int) -> HistoryQuestion | None:
        """Return a request for the next chunk of the log to read, or None; the replays take turns."""
        while self.asking:
            replay = self.asking.popleft()
            if not replay.is_over:
                return HistoryQuestion(replay, replay.place, replay.matches, replay.next_seq, self._last(replay), now)
        return None

    @property
    def has_questions(self) -> bool:
        """Whether the shell has a chunk of the log to read."""
        return bool(self.asking)

    def on_chunk(self, question: HistoryQuestion, chunk: HistoryChunk) -> None:
        """Handle a chunk of the log that the shell has read for a replay."""
        replay = question.replay
        assert isinstance(replay, _Replay)
        if replay.is_over:
            return
        if chunk.trouble is not None or chunk.missing:
            told = chunk.trouble or f"{chunk.missing} numbers from {question.first} on were cut while they were sent"
            self._sender.fail(replay.link, ReasonCode.UNSPECIFIED_ERROR, f"the history cannot be read: {told}")
            return
        replay.next_seq = chunk.next_seq
        replay.chunk.extend(chunk.messages)
        self.ready.append(replay)

    # -- sending -----------------------------------------------------------------------------------------------------

    def go_on(self, now: int) -> None:
        """Send the next copies of one replay, at most ``_PIECE``."""
        if not self.ready:
            return
        replay = self.ready.popleft()
        link, sent = replay.link, 0
        if replay.is_over or link.closing is not None or self._is_shaped(replay):
            return
        while replay.chunk and sent < _PIECE and has_room(link):
            self._send(replay, replay.chunk.popleft(), now)
            sent += 1
        if not replay.chunk:
            self._decide(replay)
        elif has_room(link):
            self.ready.append(replay)

    def resume(self, link: Link) -> None:
        """Continue the replays of a connection whose send buffer may have room again."""
        for replay in self._replays.get(link, ()):
            if replay.chunk and replay not in self.ready:
                self.ready.append(replay)

    def look(self) -> None:
        """Continue the replays that waited until the latest log records were written and applied."""
        waiting, self.waiting = self.waiting, []
        for replay in waiting:
            if not replay.is_over:
                self._decide(replay)

    def _is_shaped(self, replay: _Replay) -> bool:
        """Return whether the device has chosen a policy meanwhile, and if so, close its connection."""
        if self._chosen(replay.client.id) is None:
            return False
        self._sender.fail(replay.link, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, _SHAPED)
        return True

    def _send(self, replay: _Replay, message: KeptNotification, now: int) -> None:
        if self._gate.refusal(replay.link, replay.client.id, message, now) is None:
            self._sender.live(replay.link, message, _identifiers(replay.subscription), now, retain=False)

    def _last(self, replay: _Replay) -> int:
        """Return the last seq that may be read for a replay now."""
        last = min(self._commits.written, self._commits.applied)
        return last if replay.tap is None else min(last, replay.tap.first - 1)

    def _decide(self, replay: _Replay) -> None:
        """Continue a replay whose chunk is sent: read the next chunk, or add the subscription if none is left.

        If the latest facts are not applied yet, wait for them.
        """
        if replay.tap is not None and replay.tap.is_full:
            self._close_tap(replay)  # the log grew faster than it was read: read from the log again
        if replay.next_seq <= self._last(replay):
            self.asking.append(replay)
            return
        if replay.tap is None:
            replay.tap = self._commits.open_tap()
        if replay.next_seq < replay.tap.first:
            self.waiting.append(replay)
            return
        tap = replay.tap
        self._end(replay)
        replay.put(lambda: self._sending_tapped(replay, tap))

    def _sending_tapped(self, replay: _Replay, tap: CatchUpBuffer) -> Iterator[None]:
        """Send the publications between the last chunk of the log and the subscription, yielding at intervals."""
        link, client, allowance = replay.link, replay.client, self._allowance()
        for done, body in enumerate(tap.bodies, start=1):
            if done % _PIECE == 0:
                yield
                allowance.renew()
            seq, number = BODY.unpack_from(body)
            now = self._commits.last_at
            ask = partial(replay.matches.message, seq, number, body[BODY.size :], now)
            message = yield from allowance.attempting(ask)
            if client.link is not link or link.closing is not None or self._is_shaped(replay):
                return
            if message is None or self._gate.refusal(link, client.id, message, now) is not None:
                continue
            if client.live or not has_room(link):
                client.put_behind(message, _identifiers(replay.subscription), retain=False)
            else:
                self._sender.live(link, message, _identifiers(replay.subscription), now, retain=False)


def _not_offered(reason: str) -> ProtocolError:
    return ProtocolError(ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, reason)


def _identifiers(subscription: Subscription) -> tuple[int, ...]:
    return () if subscription.identifier is None else (subscription.identifier,)
