"""The controller: one deterministic loop over the five concerns of the thesis (Huang, 4.1.1, Figures 4-7 and 4-8).

The thesis has five threads and two locks: new connections, existing connections, disconnections, processing and
cleaning. Here they are steps of one round. Inputs are applied first, in order: from then on no match has a device that
is gone, or an event that its device removed. Then the round does three things, each at most ``work`` times: it flushes
events of gone devices, processes arrivals, and removes expired entries. So a storm of disconnections or a flood of
messages delays matching by a bounded amount of work and never starves it.

Rule: pure. Time is an argument, challenges are derived from a key, and the same inputs give the same commands.
Rule: commands are performed in order.
Rule: devices may send any bytes. Every queue, cache and table is bounded by the piconet's size or by a parameter.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

from whimbrel.errors import InvalidValueError
from whimbrel.rendezvous import messages as m
from whimbrel.rendezvous.controller.commands import (
    Command,
    Connect,
    Disconnect,
    NoteKind,
    Poll,
    Send,
    SetConnectable,
    SwitchRole,
)
from whimbrel.rendezvous.controller.deciding import Decider
from whimbrel.rendezvous.controller.dumb import DumbDevices, DumbPair, PairState
from whimbrel.rendezvous.controller.inputs import (
    Authenticated,
    Connected,
    Disconnected,
    Found,
    Input,
    NotReached,
    Overheard,
    Said,
    Timer,
)
from whimbrel.rendezvous.controller.openings import Record, Stage
from whimbrel.rendezvous.controller.parameters import MIN_TIMEOUT_US, Parameters
from whimbrel.rendezvous.controller.piconet import Member
from whimbrel.rendezvous.controller.proofs.members import NONCE_KEY_BYTES
from whimbrel.rendezvous.controller.requests import Requests
from whimbrel.rendezvous.controller.state import State
from whimbrel.rendezvous.events import Address, GroupKey, Publication
from whimbrel.rendezvous.refusals import Refusal

__all__ = ["NONCE_KEY_BYTES", "Controller"]

_CACHES_US = 1_000_000
_LINGER_US = 640_000
"""Time for messages, in microseconds, of a device that answered our page, before it is released again."""
_Key = TypeVar("_Key", bound=Hashable)


class Controller:
    """A controller at *address*; *nonce_key* is a secret from which its challenges are made.

    *epochs* are the highest epochs of groups that an earlier run has seen (``KeepEpoch``). *pairs* are dumb devices,
    each with the smart device in whose place the controller answers; this needs a ``StandInRadio`` (5.4.4).
    """

    def __init__(
        self,
        parameters: Parameters | None = None,
        *,
        address: Address,
        nonce_key: bytes,
        epochs: Mapping[GroupKey, int] | None = None,
        pairs: Iterable[DumbPair] = (),
    ) -> None:
        self.parameters, self.address = parameters or Parameters(), address
        self._state = State(self.parameters)
        self.pairs = tuple(pairs)
        self._dumb = DumbDevices(self._state, self.pairs, drop=self._drop)
        self._decider = Decider(
            self._state,
            address=address,
            nonce_key=nonce_key,
            epochs=epochs or {},
            drop_silent=self._drop_silent,
            dumb=self._dumb,
        )
        self._requests = Requests(self._state, self._decider, self._dumb)
        self._gone: OrderedDict[Address, Member] = OrderedDict()
        self._is_connectable = False
        self._poll_at: int | None = None
        self._is_blocked = False
        self._caches_at = 0

    # -- the loop ------------------------------------------------------------------------------------------------------

    def receive(self, happened: Input, *, now: int) -> list[Command]:
        """Apply one input, run one round, and return the commands for the shell, in order."""
        return self.take((happened,), now=now)

    def timer(self, *, now: int) -> list[Command]:
        """Run one round without an input."""
        return self.take((), now=now)

    def take(self, inputs: Iterable[Input], *, now: int) -> list[Command]:
        """Apply *inputs* in their order, run one round, and return the commands for the shell, in order."""
        for each in inputs:
            self._take_one(each, now)
        if self._gone:
            for _ in range(min(self.parameters.work, len(self._gone))):
                self._flush(self._gone.popitem(last=False)[1], now)
        if self._state.arrivals.is_waiting:
            self._process(now)
        self._decider.check_deadlines(now=now, work=self.parameters.work)
        self._clean(now)
        self._poll(now)
        self._page(now)
        self._dumb.update(now=now)
        return self._drain_commands()

    @property
    def is_busy(self) -> bool:
        """Whether another round has work to do at once."""
        return bool(self._gone) or (self._state.arrivals.is_waiting and not self._is_blocked)

    @property
    def next_due(self) -> int | None:
        """Time at which ``timer`` must be called; ``None``: not before the next input."""
        state = self._state
        queues = (state.expiring, state.connecting, state.idle)
        due = [next(iter(queue.values())) for queue in queues if queue]
        due += state.lingering.values()
        due += [at for _, at in state.unaware.values()][:1]
        times = self._decider.next_due, self._poll_at, state.piconet.pager.next_due, self._dumb.next_due
        due += [each for each in times if each is not None]
        return min(due, default=None)

    @property
    def look_ups(self) -> int:
        """Number of look-ups of the open events for triggers; the heads of two queues count as one."""
        return self._state.arrivals.look_ups

    def sizes(self) -> dict[str, int]:
        """Return the number of entries of each table and queue; all are bounded."""
        state = self._state
        return {
            "devices": len(state.piconet),
            "active": len(state.piconet.active),
            "events": len(state.records),
            "queued": len(state.arrivals),
            "verifying": self._decider.waiting,
            "strangers": len(state.strangers),
            "removed": len(state.removed),
            "pairs": len(state.pairs),
            "members": len(self._decider.members),
        }

    def refused_proofs(self) -> dict[str, int]:
        """Return the number of refused proofs of membership, by the check that they failed."""
        return self._decider.refused_proofs

    def open_events(self) -> list[Record]:
        """Return the open events, in no particular order; for tests and reports."""
        return [each for each in self._state.records.values() if each.stage is Stage.OPEN]

    def pair_states(self, *, now: int) -> dict[Address, PairState]:
        """Return the state of each smart device that a dumb device is paired with; for tests and reports."""
        return self._dumb.states(now=now)

    # -- new and existing connections, disconnections ------------------------------------------------------------------

    def _take_one(self, happened: Input, now: int) -> None:
        match happened:
            case Connected():
                self._connect(happened, now)
            case Disconnected(address):
                self._disconnect(address, now)
            case NotReached(address):
                self._miss(address, now)
            case Said(address, data):
                self._hear(address, data, now)
            case Found():
                self._find(happened, now)
            case Overheard(address):
                self._dumb.overhear(address, now=now)
            case Authenticated(address, is_accepted):
                self._dumb.authenticate(address, is_accepted=is_accepted)
            case Timer():
                pass

    def _connect(self, happened: Connected, now: int) -> None:
        state, address = self._state, happened.address
        released = state.piconet.get(address)
        if released is not None and released.is_released:
            self._return(released, now, is_caller=happened.is_caller)
            return
        self._disconnect(address, now, is_stranger_kept=True)
        if address in self._gone:  # the device is back before its events were flushed
            self._flush(self._gone.pop(address), now)
        seated = state.piconet.join(address, has_layer=happened.has_layer, now=now)
        if seated is None:
            state.out.append(Disconnect(address, Refusal.NO_ROOM))
            return
        state.out += seated
        if happened.as_address is not None:
            member = state.piconet.get(address)
            assert member is not None
            self._dumb.catch(member, happened.as_address, now=now)
            return
        if happened.is_caller:
            state.out.append(SwitchRole(address))
        state.strangers.discard(address)
        waiting = state.publication_of(address)
        if waiting is None:
            state.start_idle_timer(address, now=now)
        elif waiting.stage is Stage.OPEN:
            state.connecting.pop(waiting.id, None)
            member = state.piconet.get(address)
            assert member is not None
            state.tell(member, m.Accepted(waiting.id, is_indirect=True))
            state.settle(address)
        elif waiting.stage is Stage.ANSWERING and waiting.id in state.connecting:
            del state.connecting[waiting.id]
            member = state.piconet.get(address)
            assert member is not None
            state.tell(member, m.Accepted(waiting.id, is_indirect=True))
            self._decider.go_on_with(address, now=now)

    def _return(self, member: Member, now: int, *, is_caller: bool) -> None:
        """Make a released device active that is connected again, and send its waiting messages."""
        state = self._state
        state.out += state.piconet.seat(member, now=now)
        if is_caller:
            state.out.append(SwitchRole(member.address))
        outbox, member.outbox = member.outbox, []
        state.out += (Send(member.address, message) for message in outbox)
        state.lingering[member.address] = now + (self.parameters.answer_us if is_caller else _LINGER_US)
        self._decider.go_on_with(member.address, now=now)

    def _miss(self, address: Address, now: int) -> None:
        """Handle an unanswered page: a released device is gone after two of them, any other device after one."""
        member = self._state.piconet.get(address)
        if member is None or not member.is_released:
            self._disconnect(address, now)
        elif self._state.piconet.pager.fail(address):
            self._disconnect(address, now, is_missed=True)

    def _disconnect(
        self, address: Address, now: int, *, is_stranger_kept: bool = False, is_missed: bool = False
    ) -> None:
        member = self._state.piconet.get(address)
        if member is not None and member.is_released and not is_missed:
            return  # it is disconnected anyway
        if member is not None:
            member.is_gone = True
            self._gone[address] = member
        elif address in self._state.strangers and not is_stranger_kept:
            for record in list(self._state.of_owner.get(address, {}).values()):
                if record.stage is Stage.ANSWERING:
                    self._state.connecting.pop(record.id, None)
                    self._decider.go_on_with(address, now=now)
                    continue
                self._state.erase(record, now=now, is_remembered=False)
                self._state.note(NoteKind.FLUSHED, record, detail="not reached")

    def _flush(self, member: Member, now: int) -> None:
        """Remove the events of a gone device; it can renew them if it comes back soon (4.1.6, 5.4.1)."""
        state = self._state
        for record in list(state.of_owner.get(member.address, {}).values()):
            if record.stage is Stage.ANSWERING:
                continue
            state.erase(record, now=now, is_remembered=True)
            state.note(NoteKind.FLUSHED, record, detail="disconnected")
            self._decider.cancel(record, now=now)
        self._decider.end_conversations(member, now=now)
        self._dumb.lose(member)
        state.piconet.leave(member.address)
        for table in (state.idle, state.lingering, state.unaware):
            table.pop(member.address, None)

    def _drop(self, member: Member, reason: Refusal, now: int) -> None:
        if not member.is_released:
            self._state.out.append(Disconnect(member.address, reason))
        self._disconnect(member.address, now, is_missed=True)

    def _drop_silent(self, members: list[Member], now: int) -> None:
        for member in members:
            if not member.is_gone:
                self._drop(member, Refusal.SILENT, now)
        for member in members:
            if self._gone.pop(member.address, None) is not None:
                self._flush(member, now)

    def _hear(self, address: Address, data: bytes, now: int) -> None:
        state = self._state
        member = state.piconet.get(address)
        if member is None or member.is_released:  # a released device repeats its messages when it is connected
            return
        state.lingering.pop(address, None)
        if not state.piconet.may_speak(member, now=now):
            self._drop(member, Refusal.TOO_FAST, now)
            return
        state.out += state.piconet.wake(member)
        self._requests.handle(member, data, now=now)
        state.settle(address)

    def _find(self, found: Found, now: int) -> None:
        """Publish a device that an inquiry heard, with the values that the inquiry shows, so without keys (4.1.1)."""
        state = self._state
        member = state.piconet.get(found.address)
        is_over = member is not None and member.is_released and found.address not in state.of_owner
        if member is not None and is_over and state.piconet.pager.is_free(found.address):
            self._disconnect(found.address, now, is_missed=True)  # released devices hide: it has gone its own way
            self._flush(self._gone.pop(found.address), now)
        is_known = found.address in state.of_owner or state.piconet.get(found.address) is not None
        is_paged = state.introduced.get(found.address, now=now) is not None
        is_controller = found.name.startswith(self.parameters.name)
        if (
            self._dumb.find(found.address, now=now)
            or is_known
            or is_paged
            or is_controller
            or len(state.strangers) >= self.parameters.max_members
        ):
            return
        try:
            publication = Publication(
                address=found.address,
                clock_offset=found.clock_offset,
                name=found.name,
                device_class=found.device_class,
            )
        except InvalidValueError:
            return  # an invalid description by a stranger's radio is not passed on
        if state.enqueue(found.address, publication, now=now, is_indirect=True) is not None:
            state.strangers.add(found.address)

    # -- processing ----------------------------------------------------------------------------------------------------

    def _process(self, now: int) -> None:
        """Process queued events in order; an event whose answer waits for an active slot blocks those behind it."""
        self._is_blocked = False
        for _ in range(self.parameters.work):
            head = self._state.arrivals.head()
            if head is None:
                return
            record, candidates = head
            is_here = self._state.piconet.get(record.owner) is not None
            if not is_here and (not record.is_indirect or record.owner in self._gone):
                self._state.arrivals.pop(record)  # its device is gone and will be flushed
                continue
            if not self._decider.decide(record, candidates, now=now):
                self._is_blocked = True
                return
            self._state.arrivals.pop(record)
            self._state.settle(record.owner)

    # -- cleaning ------------------------------------------------------------------------------------------------------

    def _clean(self, now: int) -> None:
        state, work = self._state, self.parameters.work
        for identifier in _due(state.connecting, now, work):
            record = state.records[identifier]
            if record.stage is Stage.ANSWERING:
                del state.connecting[identifier]
                self._decider.go_on_with(record.owner, now=now)
                continue
            state.erase(record, now=now, is_remembered=False)
            state.note(NoteKind.FLUSHED, record, detail="not reached")
        for identifier in _due(state.expiring, now, work):
            record = state.records[identifier]
            state.erase(record, now=now, is_remembered=True)
            state.note(NoteKind.EXPIRED, record)
            member = state.piconet.get(record.owner)
            if member is not None:
                state.tell(member, m.Expired(identifier))
                state.settle(record.owner)
        for address in _due(state.idle, now, work):
            member = state.piconet.get(address)
            if member is not None:
                self._drop(member, Refusal.IDLE, now)
            state.idle.pop(address, None)
        for address in [each for each, due in state.lingering.items() if due <= now]:
            del state.lingering[address]
            state.settle(address)
        for address in [each for each, (_, due) in state.unaware.items() if due <= now]:
            identifier, _ = state.unaware.pop(address)
            member = state.piconet.get(address)
            if member is not None:
                state.tell(member, m.Answered(identifier))
        if now >= self._caches_at:  # an expired entry is never used, so it may stay for a while
            self._caches_at = now + _CACHES_US
            for cache in (state.removed, state.pairs, state.introduced, self._decider.members):
                cache.clean(now=now, work=self.parameters.remembered)

    def _poll(self, now: int) -> None:
        if not self.parameters.has_park or len(self._state.piconet) == len(self._state.piconet.active):
            self._poll_at = None
        elif self._poll_at is None:
            self._poll_at = now + self.parameters.poll_us
        elif now >= self._poll_at:
            self._poll_at = now + self.parameters.poll_us
            self._state.out.append(Poll(max(1, self._state.piconet.free_seats)))

    def _page(self, now: int) -> None:
        """Page the next released device, if none is being paged."""
        address, room = self._state.piconet.next_page(now=now)
        if address is not None:
            self._state.out += [*room, Connect(address, None, timeout_us=MIN_TIMEOUT_US)]

    def _drain_commands(self) -> list[Command]:
        state = self._state
        state.out += state.piconet.keep_seat_free()
        if state.piconet.is_open is not self._is_connectable:
            self._is_connectable = state.piconet.is_open
            state.out.append(SetConnectable(self._is_connectable))
        commands, state.out = state.out, []
        return commands


def _due(queue: OrderedDict[_Key, int], now: int, work: int) -> list[_Key]:
    """Return the first entries of *queue* whose time has come, at most *work* of them."""
    due: list[_Key] = []
    if not queue:
        return due
    for key, at in queue.items():
        if at > now or len(due) >= work:
            break
        due.append(key)
    return due
