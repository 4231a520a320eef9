"""The core of the broker, without I/O: it handles packets of clients, and produces packets and facts for the log.

A publication passes these steps, in order: ``receive`` decodes packets, and ``_handle_all`` groups consecutive packets
of one kind. ``PublishHandler`` reads their security keys, matches, admits and routes them, and gives each a seq.
The hold (the queues of all sessions) appends the resulting deliveries to the queues of clients (``HandOvers``).
``_end_step`` calls ``DeliveryHandler``, which checks each delivery with the ``Gate`` and writes it with the ``Sender``.
The shell then writes the links in ``dirty`` to their sockets.
Rule: the core uses no socket, disk, clock or thread. The shell passes in bytes and the time, fsyncs the log when
``wants_sync`` is true, and reports the last durable seq (``on_sync``).
Rule: every fact is applied by ``BrokerState``, which also replays the facts of a log. The code that answers clients
makes no decision that a restart would need to know.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from functools import partial
from typing import cast

from whimbrel.broker.access.authorizer import Authorizer
from whimbrel.broker.access.client_ids import MountedIds
from whimbrel.broker.access.keyring import NO_KEYS_AT_ALL
from whimbrel.broker.access.topic_rights import Rights
from whimbrel.broker.access.users import UserChanges
from whimbrel.broker.connect.back_pressure import BackPressure
from whimbrel.broker.connect.connecting import ConnectHandler
from whimbrel.broker.connect.timeouts import end_silent
from whimbrel.broker.connect.user_check import UserCheck
from whimbrel.broker.connect.will_handling import WillHandling
from whimbrel.broker.deliver.delivering import DeliveryHandler
from whimbrel.broker.deliver.shaping import TransformJob
from whimbrel.broker.deliver.system_messages import publish_system_messages
from whimbrel.broker.limits.memory import CONNECTION_BYTES
from whimbrel.broker.limits.operator_notices import Notice
from whimbrel.broker.limits.rate_limits import RateLimits
from whimbrel.broker.publish.admission import Admission
from whimbrel.broker.publish.publishing import PublishHandler
from whimbrel.broker.publish.reports import Reports
from whimbrel.broker.requests.client_requests import ClientRequests
from whimbrel.broker.requests.joining import NOT_ALLOWED
from whimbrel.broker.requests.named_sessions import Sessions
from whimbrel.broker.requests.ownership import NOT_YOURS, Ownership
from whimbrel.broker.requests.policies import Policies
from whimbrel.broker.settings.config import Config
from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.broker.state.feedback import Feedback
from whimbrel.broker.subscribe.interests import SubscribeHandler
from whimbrel.broker.subscribe.unreadable_filters import end_unreadable
from whimbrel.broker.waiting.blocking_tasks import BlockingTask, BlockingTasks
from whimbrel.broker.waiting.commit_queue import CommitQueue
from whimbrel.broker.waiting.driver import Driver
from whimbrel.broker.waiting.long_work import LongWork
from whimbrel.broker.wire.clients import Link
from whimbrel.broker.wire.events import Event
from whimbrel.broker.wire.gate import Gate
from whimbrel.broker.wire.listener_rules import ListenerRules, Verify
from whimbrel.broker.wire.sender import Sender
from whimbrel.log.writer import LogWriter
from whimbrel.model.clock import US_PER_S
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.packets import (
    V5,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Puback,
    PubackRun,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Subscribe,
    Unsubscribe,
)
from whimbrel.mqtt.server import Phase, ServerConnection, ServerLimits

__all__ = ["Broker", "Verify"]

_MAX_READ_BYTES = 1 << 20
"""Most bytes that one read of a socket may return, in addition to the bytes that wait already."""
_MAX_PACKETS = 2_000
"""Packets of one client that are handled in one turn of the event loop; each takes about 5 µs."""
_OF_FILTER = 40
"""Number of packets that one topic filter of a SUBSCRIBE or UNSUBSCRIBE counts as, against ``_MAX_PACKETS``."""
_MAX_WAITING = 10_000
"""Facts that may wait to be applied; while more wait, the shell does not read from clients."""
_PINGRESP = b"\xd0\x00"


class Broker:
    """The clients, their sessions and their packets; *state* is the state restored from the log or a snapshot."""

    def __init__(
        self,
        config: Config,
        log: LogWriter,
        state: BrokerState,
        *,
        rng: random.Random,
        authorizer: Authorizer | None = None,
        verify: Verify | None = None,
        died_at: int | None = None,
        now: int | None = None,
        has_plans: bool = True,
    ) -> None:
        """Take over from a broker that died at *died_at*; *died_at* and *now* default to the time of the last fact.

        With *has_plans* false, every publication goes through the hold (the queues of all sessions), and none
        is taken with a plan (``PublicationRuns``): this is slower, with the same results.
        """
        self.config, self.state, self.counters = config, state, state.volatile.counters
        self.memory = state.memory
        self.memory.most = config.limits.memory_bytes
        self.feedback = Feedback()
        """Results that the pipeline found and reports back; the shell reads them."""
        access = config.access
        self._listener = ListenerRules(verify=verify, admits_anonymous=access.admits_anonymous)
        self.blocking_tasks = BlockingTasks(
            access.wrong_passwords_per_minute, self.counters, most=access.passwords_waiting
        )
        """Slow tasks, such as password checks, that the shell runs in worker threads."""
        self._commits = CommitQueue(log)
        self._sender = state.volatile.sender = Sender(self.counters)
        self.events = self._sender.events
        self.events.per_second = config.observe.log_lines_per_second
        self._authorizer = authorizer = Authorizer() if authorizer is None else authorizer
        self._ids = authorizer.ids = MountedIds(each.mount for each in config.listeners)
        self._gate = state.volatile.gate = gate = Gate(authorizer, checks_sources=access.check_retain_source)
        self._delivering = DeliveryHandler(config, self._commits, state, self._sender, gate)
        self._long_work = LongWork(self._resume)
        self._driver = Driver(self._commits, self.blocking_tasks, self._long_work)
        self._admission = admission = Admission(config, state, authorizer)
        self._publishing = PublishHandler(
            config,
            self._commits,
            state,
            self._sender,
            authorizer,
            self._long_work,
            admission,
            self._delivering.pump_ready,
            has_plans=has_plans,
        )
        self._interests = SubscribeHandler(
            config, self._commits, state, self._sender, authorizer, self._delivering, self._long_work, admission, gate
        )
        self.history = self._interests.history
        self._ownership = Ownership(config, state, authorizer, self._interests)
        self._sessions = Sessions(
            config,
            self._commits,
            state,
            self._sender,
            authorizer,
            self._interests,
            self._delivering,
            self.blocking_tasks,
            self._driver,
            rng=rng,
        )
        self._publishing.answer = self._sessions.handle
        requests = ClientRequests(self._commits, state, self._sender, authorizer, self._long_work)
        self._publishing.answer_operator = requests.handle
        self._publishing.report = Reports(self._commits, state, self._sender, self._publishing).handle
        shaping = self._delivering.shaping
        self.transforms = shaping.jobs  # transforms of bodies that the shell runs; ``on_answer`` receives each result
        self._policies = Policies(
            config, self._commits, state, self._sender, self._publishing, shaping, self._long_work
        )
        self._user_check = UserCheck(self.blocking_tasks)
        wills = WillHandling(config, self._commits, state, authorizer, self._publishing)
        self._connecting = ConnectHandler(
            config,
            self._commits,
            state,
            self._sender,
            authorizer,
            self._delivering,
            self._sessions,
            wills,
            self._ownership,
            self._policies,
            self._user_check,
            rng=rng,
            opened=self._resume_after_connect,
            leaving=self.history.on_disconnect,
            ids=self._ids,
        )
        self._back_pressure = BackPressure(
            config.limits, self._commits, self.memory, self._sender, self._delivering, self._connecting
        )
        self._publishing.note_full = self._back_pressure.note_full
        self._interests.let_confirm = partial(self._connecting.change_receipts, is_confirming=True)
        self._limits = ServerLimits(
            packet_bytes=config.limits.packet_bytes,
            receive_maximum=config.limits.receive_maximum,
            topic_alias_maximum=config.limits.topic_alias_maximum,
            outbound_topic_aliases=config.mqtt.outbound_topic_aliases,
        )
        self.rates = RateLimits.of(config.limits, self.counters)
        """The rate limits of clients; the shell asks how many of the bytes that it read may be handled now."""
        self._most_held = config.limits.packet_bytes + _MAX_READ_BYTES
        """Most bytes that may wait behind an unanswered CONNECT; the shell stops reading at ``packet_bytes``."""
        self.links: set[Link] = set()
        self.is_draining = False
        self._begin(wills, died_at, now)

    def _begin(self, wills: WillHandling, died_at: int | None, now: int | None) -> None:
        """Continue from the restored state: record lost connections, and end subscriptions no longer allowed."""
        last_at = self._commits.last_at
        died_at, now = last_at if died_at is None else died_at, last_at if now is None else now
        self._connecting.take_over(died_at)
        wills.begin(now)
        self._sessions.absent.begin(died_at, now)
        self._ownership.end_shares(self._commits.last_at)
        self._ownership.notices += end_unreadable(self.state, self._interests, self._commits.last_at)

    def move_sessions(self, now: int, sync: Callable[[], int]) -> None:
        """Move stored sessions to the mount points of listeners (prefixes of topics and client identifiers).

        The shell calls this once, at the first start of a version in which mount points apply to client identifiers
        too, and before any client connects. *sync* fsyncs the log and returns the last durable seq.
        """
        while self._commits.waiting:
            self.on_sync(sync())
            self._commits.go_on()
        if self._ids:
            self._ownership.notices += self._connecting.move_sessions(self._commits.now(now))
        sync()

    # -- questions of the shell -------------------------------------------------------------------------------------

    @property
    def late(self) -> Mapping[str, int]:
        """Number of deliveries that missed their deadline, by subject."""
        return self._sender.late

    @property
    def dirty(self) -> list[Link]:
        """Links (connections in the core) that have bytes to write or are to be closed."""
        return self._sender.dirty

    @property
    def wants_sync(self) -> bool:
        """Whether a client waits for an fsync of the log."""
        return self._commits.wants_sync

    @property
    def chores(self) -> tuple[Sized, ...]:
        """Collections that are empty unless the shell has tasks to run, log to read, or lines to write for the core.

        They are the same objects for the whole life of the core, so that a turn without chores costs nothing.
        """
        lines = self.events.lines, self.events.left_out, self._ownership.notices, self._policies.notices
        return (self.blocking_tasks, self.transforms, self.history.asking, self.rates.news, *lines)

    @property
    def unfinished(self) -> tuple[Sized, ...]:
        """Collections that are empty unless the core has work for later turns or waits for the disk: see ``chores``."""
        delivering = self._delivering
        return (
            self._commits.waiting,
            self._long_work.unfinished,
            delivering.unfinished,
            delivering.deciding,
            self.history.ready,
        )

    @property
    def has_work(self) -> bool:
        """Whether unfinished work waits for ``go_on``, which the shell calls in each turn of the event loop."""
        return any((self._commits.is_behind, self._long_work, self._delivering.has_work, self.history.has_work))

    @property
    def applied(self) -> int:
        """The seq of the last fact (log record) that was applied to the state."""
        return self._commits.applied

    @property
    def has_backlog(self) -> bool:
        """Whether more than ``_MAX_WAITING`` facts wait to be applied; the shell then pauses reading.

        While a large fact is applied over several turns, clients are still read from. Without this bound, publications
        that have a seq and wait behind that fact would fill the memory.
        """
        return self._commits.waiting_facts > _MAX_WAITING

    @property
    def is_applying(self) -> bool:
        """Whether a fact (log record) is half applied; the state then corresponds to no seq and cannot be saved."""
        return self._commits.is_applying

    def complete(self) -> None:
        """Apply the rest of a half-applied fact (log record) at once; no turn of the event loop will follow."""
        self._commits.complete()

    def when_applied(self, action: Callable[[], None]) -> None:
        """Call *action* when every fact (log record) that has a seq by now is applied, and no fact is half applied."""
        self._commits.then(action)

    @property
    def is_refusing(self) -> bool:
        """Whether publications are refused because the log cannot be written."""
        return self._admission.is_refusing

    @property
    def is_short(self) -> bool:
        """Whether publications are refused because the disk is nearly full."""
        return self._admission.is_short

    # -- reports of the shell ---------------------------------------------------------------------------------------

    def open_link(
        self,
        shell: object,
        address: str,
        now: int,
        *,
        verified_user: str | None = None,
        listener: ListenerRules | None = None,
    ) -> Link:
        """Return a new link (connection in the core); *listener* is given if the listener has rules of its own."""
        rules = listener or self._listener
        self._ids.add(rules.mount)
        machine = ServerConnection(self._limits, mount=rules.mount)
        link = Link(machine, shell, address, verified_user=verified_user, listener=rules)
        link.last_at = now
        link.room = self.config.limits.send_buffer_bytes
        self.links.add(link)
        self.memory.counted += CONNECTION_BYTES
        return link

    def receive(self, link: Link, data: bytes, now: int) -> None:
        """Handle bytes received from a client."""
        if link.closing is not None:
            return
        link.last_at, link.is_heard = now, True
        self._long_work.tried = 0
        machine = link.machine
        packets: Sequence[Packet] = ()
        if link.is_busy:
            machine.hold(data)
        else:
            packets = machine.receive(data)  # bytes behind a CONNECT are decoded only after it is answered
        if len(link.held) != link.incoming_bytes or link.meter is not None or machine.alias_bytes:
            self._back_pressure.count_incoming(link)
        if link.is_busy:
            return
        client = link.client
        if len(packets) == 1 and type(packet := packets[0]) is Publish and client is not None:  # without the loop
            self._publishing.handle(link, client, (packet,), now)
            self._end_handling(link, now)
        else:
            self._handle_all(link, packets, now)

    def go_on(self, now: int) -> None:
        """Do one step of each kind of work that takes more than one turn of the event loop."""
        self._commits.now(now)
        self._long_work.tried = 0
        self._commits.go_on()
        self._long_work.go_on()
        self._delivering.go_on(self._commits.last_at)
        self.history.go_on(self._commits.last_at)
        self._end_step(now)

    def _resume(self, link: Link) -> None:
        """Handle the packets that waited behind a packet which took several turns."""
        packets, link.behind = link.behind, []
        if packets:
            self._handle_all(link, packets, self._commits.last_at)
        else:
            self.receive(link, b"", link.last_at)

    def _handle_all(self, link: Link, packets: Sequence[Packet], now: int) -> None:
        """Handle packets of one client in order; those beyond ``_MAX_PACKETS`` wait in ``link.behind``.

        They are handled in a later turn of the event loop.
        """
        at, count, left = 0, len(packets), _MAX_PACKETS
        while at < count and link.closing is None:
            packet = packets[at]
            if left <= 0:
                link.behind += packets[at:]
                self._long_work.begin(link, iter((None,)))  # the link waits for the next turn
                break
            begin = at
            if type(packet) is Publish:
                end, most = at + 1, min(count, at + left)
                while end < most and type(packets[end]) is Publish:
                    end += 1
                self._publish(link, cast("Sequence[Publish]", packets[at:end]), now)
                at = end
                if link.is_busy:
                    link.behind += packets[at:]
                    break
            elif type(packet) is Puback and link.client is not None:
                self._delivering.on_pubacks(link.client, (packet.packet_id,), now)
                at += 1
            elif type(packet) is PubackRun and link.client is not None:
                self._delivering.on_pubacks(link.client, packet.packet_ids, now)
                at += 1
                left -= len(packet.packet_ids)
            else:
                self._handle(link, packet, now)
                at += 1
                if type(packet) is Subscribe:
                    left -= _OF_FILTER * len(packet.requests)
                elif type(packet) is Unsubscribe:
                    left -= _OF_FILTER * len(packet.topic_filters)
                if link.is_busy:
                    link.behind += packets[at:]
                    break
            left -= at - begin
        self._end_handling(link, now)

    def _end_handling(self, link: Link, now: int) -> None:
        """Count the packets that wait, close a connection that failed, and send the deliveries that are ready."""
        machine = link.machine
        if link.behind or link.stalled is not None:
            self._back_pressure.count_incoming(link)
        if link.parked is not None and machine.held_bytes > self._most_held:
            self._sender.close(link, f"{machine.held_bytes} bytes came before CONNECT was answered")
        if link.closing is None and not link.is_busy:
            if machine.failure is not None:
                self._connecting.end_broken(link, machine.failure)
            elif link.held and machine.has_more:
                self._long_work.begin(link, iter((None,)))  # the link waits for the next turn
        self._end_step(now)

    def _end_step(self, now: int) -> None:
        """Send the deliveries that are ready; record clients whose connections are closing as disconnected."""
        if self.state.volatile.arrived:
            self._interests.retained.send_arrived()
        if self.state.volatile.ready:
            self._delivering.pump_ready(self._commits.last_at)
        if self._sender.full:
            self._back_pressure.note_full(now)
        if self._sender.leaving:
            self._let_go(now)

    def on_connection_closed(self, link: Link, now: int) -> None:
        """Handle the end of a connection: release its memory and record that its client is disconnected."""
        if link in self.links:
            self.links.remove(link)
            self.memory.counted -= CONNECTION_BYTES
            link.set_keyring(NO_KEYS_AT_ALL, self.memory)
        self._publishing.stalled.forget(link)
        if link.meter is not None:
            self.rates.close(link.meter)
        self.memory.count_incoming(-link.incoming_bytes)
        link.incoming_bytes = 0
        link.closing = link.closing or "the peer closed it"
        if link.client is None and link.parked is None and link.machine.failure is None:
            self.events.note(Event.CLOSED, link, now, reason=link.closing)
        link.machine.phase = Phase.CLOSED
        if link.client is not None and link.client.link is link:
            self._connecting.on_connection_lost(link.client, now, is_draining=self.is_draining)
            self._delivering.pump_ready(self._commits.last_at)
        self._let_go(now)

    def _let_go(self, now: int) -> None:
        """Record as disconnected each client whose connection is closing: no more bytes will be written to it."""
        leaving = self._sender.leaving
        while leaving:
            link = leaving.pop()
            if link.client is not None and link.client.link is link:
                self._connecting.on_connection_lost(link.client, now, is_draining=self.is_draining)
                self._delivering.pump_ready(self._commits.last_at)

    def set_choked(self, link: Link, now: int, *, is_choked: bool) -> None:
        """Pause writing to a client that reads too slowly, or resume writing when it reads again (back-pressure)."""
        link.is_choked = is_choked
        if is_choked:
            self._back_pressure.choke(link, now)
            self._let_go(now)
        else:
            self.on_bytes_written(link, self.config.limits.send_buffer_bytes // 2, now)

    def on_bytes_written(self, link: Link, unsent_bytes: int, now: int) -> None:
        """Send messages that waited for space in a connection's send buffer, after the shell wrote to its socket.

        *unsent_bytes* is the number of bytes that the buffer still contains.
        """
        self._back_pressure.drain(link, unsent_bytes, now)
        self.history.resume(link)
        self._let_go(now)

    def on_answer(self, question: BlockingTask | TransformJob, answer: object, now: int) -> None:
        """Pass an answer to the code that waits for it: the result of a blocking task or of a body's transform."""
        question.then(answer, now)
        self._delivering.pump_ready(self._commits.last_at)
        self._let_go(now)

    def on_sync(self, seq: int) -> None:
        """Apply the facts (log records) that waited for fsync, now that all up to *seq* are durable; answer clients."""
        self.refuse(is_refusing=False)
        self._long_work.tried = 0
        self._commits.durable(seq)
        if self.history.waiting:
            self.history.look()
        self._end_step(self._commits.last_at)

    def refuse(self, *, is_refusing: bool = True) -> None:
        """Refuse publications while the log cannot be written; waiting publications are accepted later."""
        self._admission.is_refusing = is_refusing

    def spare(self, *, is_short: bool) -> None:
        """Set whether the disk is nearly full: then publications are refused, but small changes are still accepted."""
        self._admission.is_short = is_short

    def tick(self, now: int) -> None:
        """Advance the time to *now*: expire queued notifications, publish wills that are due, and end sessions."""
        stamp = self._commits.now(now)
        # Facts that wait for fsync carry earlier times; the hold must not get ahead of them.
        self._commits.then(partial(self.state.tick, stamp))
        self._commits.then(partial(self.state.node.forget_places, stamp))
        self._connecting.tick(stamp)
        self._sessions.absent.tick(stamp)
        self.history.look()
        for link in self._publishing.stalled.retry(stamp):
            self._back_pressure.count_incoming(link)
        self._delivering.wake(stamp)
        self._delivering.pump_ready(stamp)
        self._let_go(now)

    def end_silent(self, now: int, listened_us: int) -> None:
        """Disconnect clients that exceeded their keep-alive timeout, or sent no CONNECT in time.

        *listened_us* is how long the broker has listened, by a clock that never jumps and that stops while the broker
        is suspended. The shell reads the sockets before it calls this.
        """
        self.blocking_tasks.listened_us = listened_us
        connect_timeout_us = int(self.config.limits.connect_timeout_s * US_PER_S)
        end_silent(list(self.links), self._sender, listened_us, connect_timeout_us=connect_timeout_us)
        self._let_go(now)

    def tell_system(self, values: Mapping[str, str], now: int) -> None:
        """Publish the broker's own ``$SYS`` messages: *values* per topic."""
        publish_system_messages(self.state, self._gate, self._sender, values, now)

    def replace_users(self, config: Config, verify: Verify | None, changes: UserChanges) -> int:
        """Replace the users; disconnect each client whose user was removed or changed, and return their count."""
        self._listener.verify, self._listener.admits_anonymous = verify, config.access.admits_anonymous
        self._user_check.epoch += 1
        self._ownership.replace(config)
        closed = 0
        for link in list(self.links):
            refusal = None if link.closing is not None else self._user_check.revocation(link, changes)
            if refusal is not None:
                self._sender.fail(link, *refusal)
                closed += 1
        self._let_go(self._commits.last_at)
        return closed

    def end_untrusted(self, refused: Iterable[tuple[Link, str]]) -> int:
        """Close connections whose certificates became invalid, each with its reason; return how many were closed."""
        closed = 0
        for link, reason in refused:
            if link.closing is None:
                self._sender.fail(link, ReasonCode.NOT_AUTHORIZED, reason)
                closed += 1
        self._let_go(self._commits.last_at)
        return closed

    def replace_rights(self, rights: Rights) -> None:
        """Replace the rights; they apply at once, also to publications that wait and to subscriptions made earlier."""
        self._commits.then(partial(self._replace_rights, rights))

    def _replace_rights(self, rights: Rights) -> None:
        now = self._commits.last_at
        self._authorizer.replace(rights)
        for link in list(self.links):
            if link.client is not None:
                if not (link.has_assigned_id or self._authorizer.may_connect(link.user, link.client.id)):
                    self._sender.fail(link, ReasonCode.NOT_AUTHORIZED, NOT_YOURS)
                elif not self._sessions.may_stay(link, link.client.id):
                    self._sender.fail(link, ReasonCode.NOT_AUTHORIZED, NOT_ALLOWED)
            self._connecting.review_receipts(link, now)
        self._ownership.end_shares(now)

    def take_notices(self) -> list[Notice]:
        """Return the notices for the operator since the last call; the shell writes them to the process log."""
        own, policies, news = self._ownership.notices, self._policies.notices, self.rates.news
        notices = [*own, *policies, *(each.notice() for each in news)]
        for told in (own, policies, news):
            told.clear()
        return notices

    def drain(self) -> None:
        """Disconnect all clients, because the broker stops."""
        self.is_draining = True
        for link in list(self.links):
            self._sender.fail(link, ReasonCode.SERVER_SHUTTING_DOWN, "the broker stops")

    # -- packets -----------------------------------------------------------------------------------------------------

    def _resume_after_connect(self, link: Link) -> None:
        """Handle the bytes that arrived while CONNECT was being answered, and open the client's rate-limit meter."""
        if link.is_choked:
            self._back_pressure.lag(link, self._commits.last_at, is_lagging=True)
        link.machine.go_on()
        if self.rates.are_any:
            assert link.client is not None
            behind = link.machine.take_held()
            link.meter = self.rates.open(link, link.client.id, link.user, behind)
        self.receive(link, b"", link.last_at)

    def _publish(self, link: Link, packets: Sequence[Publish], now: int) -> None:
        if link.client is None:
            self._sender.fail(link, ReasonCode.PROTOCOL_ERROR, "PUBLISH before CONNECT")
        else:
            self._publishing.handle(link, link.client, packets, now)

    def _handle(self, link: Link, packet: Packet, now: int) -> None:
        client = link.client
        if isinstance(packet, Connect):
            self._connect(link, packet, now)
        elif client is None:
            self._sender.fail(link, ReasonCode.PROTOCOL_ERROR, f"{type(packet).__name__.upper()} before CONNECT")
        elif isinstance(packet, Pubrec):
            self._delivering.on_pubrec(client, link, packet, now)
        elif isinstance(packet, Pubrel):
            self._publishing.answers.on_pubrel(link, client, packet.packet_id, now)
        elif isinstance(packet, Pubcomp):
            self._delivering.on_pubcomp(client, packet.packet_id, now)
        elif isinstance(packet, Subscribe):
            self._interests.subscribe(link, client, packet, now)
        elif isinstance(packet, Unsubscribe):
            self._interests.unsubscribe(link, client, packet, now)
        elif isinstance(packet, Pingreq):
            self._sender.send(link, _PINGRESP)
        elif isinstance(packet, Disconnect):
            self._connecting.disconnect(link, client, packet, now)
        else:
            self._sender.fail(link, ReasonCode.PROTOCOL_ERROR, f"{type(packet).__name__.upper()} from a client")

    def _connect(self, link: Link, connect: Connect, now: int) -> None:
        most = self.config.limits.connections
        link.parked = connect  # until CONNECT is answered
        if self.is_draining or self.is_refusing:
            reason = "the broker stops, or cannot write to its disk"
            self._connecting.refuse(link, ReasonCode.SERVER_UNAVAILABLE, reason)
        elif len(self.links) > most:
            self._connecting.refuse(link, ReasonCode.SERVER_BUSY, f"{most} connections, no more are allowed")
        elif connect.version != V5 and (full := self._no_room_for(link, connect)) is not None:
            self._connecting.refuse(link, ReasonCode.SERVER_UNAVAILABLE, full)
        else:
            self._driver.start(self._connecting.connect(link, connect, now))

    def _no_room_for(self, link: Link, connect: Connect) -> str | None:
        """Return why CONNECT is refused, or None: earlier publications of this client wait and there is no room.

        Only clients of MQTT 3.1.1 are refused for this.
        """
        return self._publishing.stalled.refusal(connect.client_id, link.machine.mount + connect.client_id)
