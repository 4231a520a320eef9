"""A device: publisher, subscriber or both, as a pure core (Huang, 4.1.1 and 4.1.6).

Rule: the device decides nothing about matches. It sends the controller its publication and subscriptions, sleeps, and
obeys the controller's messages: page this address, listen for pages, turn the scans off.
Rule: it waits for a page for at least MIN_TIMEOUT, so that the other party has enough time (5.3); the default is twice
as long.
Rule: when the controller is lost, it goes back to the state it had before it joined, and looks for the controller
again if it still has a publication or subscription. A controller without park *releases* it instead: it listens for
pages and remembers the controller, which it pages when it has a message for it (``released``).
Rule: when the controller does not answer its page, it waits before it looks for a controller again. The wait doubles
and depends on its address, so that the pages of a crowd that arrived together do not collide for ever (Figure 4-9).
Rule: it proves only the groups that it has named itself, in an event that it still wants.
"""

from __future__ import annotations

from collections.abc import Mapping

from whimbrel.model.bounds import INT64_MAX, whole
from whimbrel.rendezvous import messages as m
from whimbrel.rendezvous.controller.parameters import MIN_TIMEOUT_US, PAGE_TIMEOUT_US
from whimbrel.rendezvous.device.admission import Admission, ask_owner
from whimbrel.rendezvous.device.backoff import backoff_us
from whimbrel.rendezvous.device.commands import (
    BecomeMaster,
    DeviceCommand,
    DeviceInput,
    FoundController,
    Heard,
    HeardPeer,
    Inquire,
    Introduced,
    JoinedController,
    LeaveController,
    LostController,
    LostPeer,
    PageController,
    Paged,
    PageEnded,
    PagePeer,
    Say,
    SetScans,
    Tell,
    WasParked,
    WasWoken,
)
from whimbrel.rendezvous.device.peers import Peers
from whimbrel.rendezvous.device.proofs import prove
from whimbrel.rendezvous.device.released import MAX_CALLS, Release
from whimbrel.rendezvous.device.states import PUBLISHER, SUBSCRIBER, DeviceState, Step, Table, next_state
from whimbrel.rendezvous.device.wishes import Wish, Wishes
from whimbrel.rendezvous.events import Address, EventId, GroupKey, Publication, Subscription
from whimbrel.rendezvous.refusals import Refusal
from whimbrel.rendezvous.tokens import DeviceKeys, GroupOwner
from whimbrel.rendezvous.wire import MalformedMessageError, decode

__all__ = ["PAGE_TIMEOUT_US", "Device"]


class Device:
    """The device at *address*; with *keys* and *tokens* it can prove its groups.

    With *nonce_key*, a secret of this run, it can ask other devices to prove theirs; with *owner* it owns a group, and
    *admission* decides which devices are admitted.
    """

    def __init__(
        self,
        *,
        address: Address,
        name: str,
        device_class: int = 0,
        keys: DeviceKeys | None = None,
        tokens: Mapping[GroupKey, bytes] | None = None,
        page_timeout_us: int = PAGE_TIMEOUT_US,
        is_discoverable: bool = False,
        owner: GroupOwner | None = None,
        admission: Admission = ask_owner,
        nonce_key: bytes | None = None,
    ) -> None:
        self.address, self.name, self.device_class = address, name, device_class
        self._keys, self._tokens = keys, dict(tokens or {})
        self._peers = Peers(
            address,
            keys=keys,
            tokens=self._tokens,
            owner=owner,
            admission=admission,
            nonce_key=nonce_key,
            answer_us=MIN_TIMEOUT_US,
        )
        self._page_timeout_us = whole("page_timeout_us", page_timeout_us, MIN_TIMEOUT_US, INT64_MAX >> 16)
        self._is_discoverable = is_discoverable
        self.wishes = Wishes()
        self.subscriber = DeviceState.DISCONNECTED
        self.publisher = DeviceState.INQUIRY_SCAN if is_discoverable else DeviceState.DISCONNECTED
        self.controller: Address | None = None
        self._released: Release | None = None
        self._is_looking = False
        self._failures = 0
        self._look_at: int | None = None
        """Time at which a device whose page was not answered looks for a controller again."""
        self._paging: dict[Address, Wish] = {}
        self._requests: list[m.FromDevice] = []
        """Messages for the next controller, besides the requests for ``wishes``."""
        self._listening: tuple[Wish | None, int] | None = None
        """The matched publication, and the time until which the device waits to be paged for it."""

    # -- what its user wants -------------------------------------------------------------------------------------------

    def publish(
        self, *, clock_offset: int = 0, keys: tuple[GroupKey, ...] = (), is_lasting: bool = False
    ) -> list[DeviceCommand]:
        """Publish this device's availability: to members of the groups *keys*, or without keys to every device."""
        self.wishes.drop_indirect()
        return self._want(Wish(self.describe(clock_offset, keys), is_lasting))

    def subscribe(self, wanted: Subscription, *, is_lasting: bool = False) -> list[DeviceCommand]:
        """Seek a device like *wanted*."""
        return self._want(Wish(wanted, is_lasting))

    def withdraw(self, wish: Wish) -> list[DeviceCommand]:
        """Remove an event: unpublish or unsubscribe."""
        message = self.wishes.withdraw(wish)
        return [] if message is None else self._say(message)

    def resume(
        self, identifier: EventId, event: Publication | Subscription, *, is_lasting: bool = False
    ) -> list[DeviceCommand]:
        """Renew an event of an earlier run of this device; submit it again if the controller no longer has it."""
        return self._want(Wish(event, is_lasting, id=identifier))

    def request(self, message: m.Unpublish | m.Unsubscribe) -> list[DeviceCommand]:
        """Send *message* to the controller, about an event of an earlier run of this device."""
        if self.controller is not None or self._released is not None:
            return self._say(message)
        self._requests.append(message)
        return self._look()

    def leave(self) -> list[DeviceCommand]:
        """Drop every event and leave the controller."""
        self.wishes = Wishes()
        is_looking, self._is_looking = self._is_looking, False
        looking: list[DeviceCommand] = [Inquire(False)] if is_looking else []
        if self.controller is not None:
            return [*looking, LeaveController()]
        return looking if self._released is None else self._leave_released()

    def join(self, owner: Address, group: GroupKey, *, now: int) -> list[DeviceCommand]:
        """Ask the owner of *group*, to whom we are connected, to admit us (2.3)."""
        return self._peers.join(owner, group, now=now)

    def admit(self, address: Address, *, is_admitted: bool, now: int) -> list[DeviceCommand]:
        """Decide on a device that asks to join the group that we own."""
        return self._peers.decide(address, is_admitted=is_admitted, now=now)

    def verify(self, address: Address, group: GroupKey, *, now: int) -> list[DeviceCommand]:
        """Ask the device at *address*, to which we are connected, to prove that it is a member of *group*."""
        return self._peers.verify(address, group, now=now)

    def describe(self, clock_offset: int = 0, keys: tuple[GroupKey, ...] = ()) -> Publication:
        """Return this device's publication: the values that discovery shows anyway, and its groups."""
        return Publication(
            address=self.address,
            clock_offset=clock_offset,
            name=self.name,
            device_class=self.device_class,
            keys=keys,
        )

    def _want(self, wish: Wish) -> list[DeviceCommand]:
        self.wishes.add(wish)
        return self._ask(wish)

    def _ask(self, wish: Wish) -> list[DeviceCommand]:
        """Send the request of *wish* to the controller, if there is one; else look for one."""
        if self.controller is None and self._released is None:
            return self._look()
        return self._say(self.wishes.ask(wish))

    def _say(self, message: m.FromDevice) -> list[DeviceCommand]:
        if self.controller is not None:
            return [Say(message)]
        if self._released is None:
            return []
        self._released.outbox.append(message)
        return self._call()

    def _look(self) -> list[DeviceCommand]:
        is_served = self.controller is not None or self._released is not None
        is_needed = self.wishes.all or self._requests
        if self._is_looking or self._look_at is not None or is_served or not is_needed:
            return []
        self._is_looking = True
        return [Inquire(True)]

    def accepts(self, controller: Address) -> bool:
        """Return whether *controller* is ours, or may become ours: while released, only the one that released us."""
        served_by = self.controller if self._released is None else self._released.controller
        return served_by in {None, controller}

    # -- what happens --------------------------------------------------------------------------------------------------

    def receive(self, happened: DeviceInput, *, now: int) -> list[DeviceCommand]:
        """Handle one input and return the commands for the shell, in order."""
        match happened:
            case FoundController() if self._is_looking:
                self._is_looking = False
                return [Inquire(False), PageController(happened.address, happened.clock_offset)]
            case JoinedController(address, is_caller) if self.accepts(address):
                return self._join(address, is_caller=is_caller)
            case LostController():
                return self._lose(now)
            case Heard(data) if self.controller is not None:
                return self._hear(data, now)
            case WasParked():
                self._step(Step.PARK)
            case WasWoken():
                self._step(Step.WAKE)
            case PageEnded(address, is_connected):
                return self._end_page(address, is_connected=is_connected, now=now)
            case Paged(address, has_layer):
                wish = self._awaited_wish()
                roles = [] if has_layer else [BecomeMaster(address)]
                introduced = Introduced(address=address, is_caller=False)
                met = self._peers.connect(address, _groups_of(wish), is_caller=False, now=now)
                return [*roles, introduced, *self._stop_listening(is_connected=True), *met]
            case HeardPeer(address, data):
                return self._peers.hear(address, data, now=now)
            case LostPeer(address):
                return self._peers.lose(address)
            case _:
                pass  # a controller that we do not look for, a second one, words after the connection was lost
        return []

    def timer(self, *, now: int) -> list[DeviceCommand]:
        """Handle deadlines that are over: of a page, of a new inquiry, of the released state, of peers."""
        done: list[DeviceCommand] = []
        if self._look_at is not None and self._look_at <= now:
            self._look_at = None
            done += self._look()
        if self._listening is not None and self._listening[1] <= now:
            done += self._stop_listening(is_connected=False)
        if self._released is not None and self.controller is None:
            done += self._check_release(self._released, now)
        return [*done, *self._peers.timer(now=now)]

    @property
    def next_due(self) -> int | None:
        """Time at which ``timer`` must be called; None without a deadline."""
        listening = None if self._listening is None else self._listening[1]
        due = [each for each in (self._look_at, listening, self._peers.next_due) if each]
        if self._released is not None and self.controller is None:
            due += [self._released.until] if self._released.call_at is None else [self._released.call_at]
        return min(due, default=None)

    def _step(self, step: Step) -> None:
        """Apply *step* to both states where their tables have it: subscriber and publisher share the connection."""
        for table, name in ((SUBSCRIBER, "subscriber"), (PUBLISHER, "publisher")):
            state = getattr(self, name)
            if (state, step) in table:
                setattr(self, name, next_state(table, state, step))

    def _join(self, address: Address, *, is_caller: bool) -> list[DeviceCommand]:
        if self.controller is not None:  # the loss of the connection before this one went unnoticed
            self.wishes.forget_questions()
            self._step(Step.LOSE)
        self.controller = address
        self._failures, self._look_at = 0, None
        is_looking, self._is_looking = self._is_looking, False
        self.subscriber = next_state(SUBSCRIBER, self.subscriber, Step.CONNECT if is_caller else Step.HEARD)
        is_heard = not is_caller and self.publisher is DeviceState.INQUIRY_SCAN
        self.publisher = next_state(PUBLISHER, self.publisher, Step.HEARD if is_heard else Step.CONNECT)
        if self._released is not None:  # it has our events; messages that waited while we were released are sent now
            waiting, self._released = self._released.outbox, None
            return [Say(message) for message in waiting]
        looking = [Inquire(False)] if is_looking else []
        requests, self._requests = self._requests, []
        return [*looking, *(Say(self.wishes.ask(wish)) for wish in self.wishes.all), *map(Say, requests)]

    # -- while we are released -----------------------------------------------------------------------------------------

    def _be_released(self, patience_us: int, now: int) -> list[DeviceCommand]:
        """Enter the released state: listen for pages. Without an event do nothing; the loss is then an ordinary one."""
        if self.controller is None or not self.wishes.all:
            return []
        self._step(Step.RELEASE)
        self._released = Release(self.controller, now + patience_us)
        return [SetScans(has_inquiry_scan=False, has_page_scan=True)]

    def _call(self) -> list[DeviceCommand]:
        """Page the controller that released us, unless a page is in progress or scheduled."""
        released = self._released
        if released is None or released.is_calling or released.call_at is not None:
            return []
        released.is_calling = True
        return [PageController(released.controller, None)]

    def _check_release(self, released: Release, now: int) -> list[DeviceCommand]:
        if released.until <= now and not released.is_calling:
            return self._leave_released()
        if released.call_at is not None and released.call_at <= now:
            released.call_at = None
            return self._call()
        return []

    def _lose_released(self, released: Release, now: int) -> list[DeviceCommand]:
        """Handle the announced end of the connection, or a page that the controller did not answer."""
        if self.controller is not None:
            self.controller = None
            released.outbox += self.wishes.repeat_questions()
            return self._call() if released.outbox else []
        released.is_calling = False
        released.failures += 1
        if released.failures >= MAX_CALLS:
            return self._leave_released()
        released.call_at = now + backoff_us(self.address, released.failures)
        return []

    def _leave_released(self) -> list[DeviceCommand]:
        """End the released state: the controller is gone, or we need it no longer."""
        self._released = None
        return self._restore()

    def _awaited_wish(self) -> Wish | None:
        """Return the publication for which a page is awaited: the matched one or, while released, the device's own."""
        if self._listening is not None:
            return self._listening[0]
        return None if self._released is None else self.wishes.publication

    def _be_answered(self, identifier: EventId) -> list[DeviceCommand]:
        """Continue after a match whose page never came; leave the controller if no event is left."""
        wish = self.wishes.by_id(identifier)
        done = [] if wish is None else [Tell(what="answered", id=identifier), *self._try_again(wish)]
        return done if self.wishes.all else [*done, LeaveController()]

    def _be_met(self) -> list[DeviceCommand]:
        """Continue after a page that came unannounced while released: it was for our publication, if there is one."""
        wish = self.wishes.publication
        if self._released is None or wish is None:
            return []
        if wish.is_lasting:
            return self._ask(wish)
        message = self.wishes.withdraw(wish)
        if not self.wishes.all:
            self.wishes.forget_questions()
            return self._leave_released()  # the controller finds out when it pages us
        return [] if message is None else self._say(message)

    # -- the controller is gone ----------------------------------------------------------------------------------------

    def _lose(self, now: int) -> list[DeviceCommand]:
        """Go back to the state before joining (4.1.6), and look for the controller again if an event is left."""
        if self._released is not None:
            return self._lose_released(self._released, now)
        if self.controller is None:  # it did not answer our page
            self._failures += 1
            self._look_at = now + backoff_us(self.address, self._failures)
        return self._restore()

    def _restore(self) -> list[DeviceCommand]:
        self.controller = None
        self._is_looking = False
        self.wishes.forget_questions()
        self._step(Step.LOSE)
        scans: list[DeviceCommand] = []
        if self._listening is None:
            scans.append(SetScans(self._is_discoverable, self._is_discoverable))
        if self._is_discoverable and self.publisher is DeviceState.DISCONNECTED:
            self.publisher = next_state(PUBLISHER, self.publisher, Step.SHOW)
        return [*scans, *self._look()]

    # -- what the controller says --------------------------------------------------------------------------------------

    def _hear(self, data: bytes, now: int) -> list[DeviceCommand]:
        try:
            message = decode(data)
        except MalformedMessageError as error:
            return [Tell(what="malformed", reason=str(error))]
        self._step(Step.WAKE)  # a parked device that receives a message is active again
        match message:
            case m.Accepted(identifier, is_indirect):
                return self._accept(identifier, is_indirect=is_indirect)
            case m.Refused():
                return self._be_refused(message)
            case m.Removed(identifier):
                self.wishes.pop_answered("unpublish", "unsubscribe")
                return [Tell(what="removed", id=identifier)]
            case m.Matched():
                return self._page(message)
            case m.WakeUp(identifier):
                return self._listen(identifier, now)
            case m.Matches():
                self._end(message.id)
                listed = Tell(
                    what="listed", id=message.id, listed=message.publications, is_complete=message.is_complete
                )
                return [listed]
            case m.Expired(identifier):
                done = [Tell(what="expired", id=identifier), *self._try_again(self.wishes.by_id(identifier))]
                is_shown = self._is_discoverable and not self.wishes.all  # then the controller is to find it again
                return [*done, LeaveController()] if is_shown else done
            case m.Sleep():
                is_waiting = self._listening is not None  # for a page; the scan ends with it
                return [SetScans(has_inquiry_scan=False, has_page_scan=is_waiting)]
            case m.Released(patience_us):
                return self._be_released(patience_us, now)
            case m.Answered(identifier):
                return self._be_answered(identifier)
            case m.Ask():
                named = {key for wish in self.wishes.all for key in wish.event.keys}
                proof = prove(
                    message, named, self._keys, self._tokens, address=self.address, controller=self.controller
                )
                return [] if proof is None else [Say(proof)]
            case _:
                return [Tell(what="unexpected", reason=type(message).__name__)]

    def _accept(self, identifier: EventId, *, is_indirect: bool) -> list[DeviceCommand]:
        if is_indirect:
            self.wishes.add_indirect(Wish(self.describe(), id=identifier, is_indirect=True))
        else:
            wish = self.wishes.pop_answered("publish", "subscribe", "renew")
            if wish is not None:
                wish.id = identifier
        return [Tell(what="accepted", id=identifier)]

    def _be_refused(self, message: m.Refused) -> list[DeviceCommand]:
        wish = self.wishes.pop_answered(message.request)
        told = Tell(what="refused", id=None if wish is None else wish.id, reason=f"{message.code}: {message.reason}")
        if wish is None or wish.is_over:
            return [told]
        if message.request == "renew" and message.code == Refusal.UNKNOWN_EVENT.code:
            wish.id = None
            return [Say(self.wishes.ask(wish))]  # forgotten meanwhile: submit it again
        self.wishes.end(wish)
        return [told]

    def _end(self, identifier: EventId) -> None:
        wish = self.wishes.by_id(identifier)
        if wish is not None:
            self.wishes.end(wish)

    def _page(self, matched: m.Matched) -> list[DeviceCommand]:
        wish = self.wishes.by_id(matched.id)
        noted = Say(m.Noted(matched.id))
        if wish is None or wish in self._paging.values():
            return [noted]  # withdrawn meanwhile: there is no device to look for; or it is being looked for
        self._paging[matched.address] = wish
        self.subscriber = next_state(SUBSCRIBER, self.subscriber, Step.MATCH)
        return [noted, PagePeer(matched.address, matched.clock_offset, self._page_timeout_us)]

    def _listen(self, identifier: EventId, now: int) -> list[DeviceCommand]:
        self._listening = self.wishes.by_id(identifier), now + self._page_timeout_us
        self.publisher = next_state(PUBLISHER, self.publisher, Step.MATCH)
        return [Say(m.Noted(identifier)), SetScans(has_inquiry_scan=False, has_page_scan=True)]

    # -- what becomes of a match ---------------------------------------------------------------------------------------

    def _end_page(self, address: Address, *, is_connected: bool, now: int) -> list[DeviceCommand]:
        wish = self._paging.pop(address, None)
        if not self._paging and self.subscriber is DeviceState.PAGE:
            self.subscriber = self._after_page(SUBSCRIBER, self.subscriber)
        if is_connected:
            if wish is not None:
                self.wishes.end(wish)
            met = self._peers.connect(address, _groups_of(wish), is_caller=True, now=now)
            return [Introduced(address=address, is_caller=True), *met]
        return [Tell(what="not reached", id=None if wish is None else wish.id), *self._try_again(wish)]

    def _stop_listening(self, *, is_connected: bool) -> list[DeviceCommand]:
        if self._listening is None:
            return self._be_met() if is_connected else []
        wish, self._listening = self._listening[0], None
        if self.publisher is DeviceState.PAGE_SCAN:
            self.publisher = self._after_page(PUBLISHER, self.publisher)
        is_shown = self._is_discoverable and self.controller is None and self._released is None
        scans = SetScans(has_inquiry_scan=is_shown, has_page_scan=is_shown or self._released is not None)
        if is_connected and wish is not None and not wish.is_lasting:
            self.wishes.end(wish)
            return [scans]
        return [scans, *self._try_again(wish)]

    def _try_again(self, wish: Wish | None) -> list[DeviceCommand]:
        if wish is None or wish.is_over:
            return []
        if not wish.is_lasting:
            self.wishes.end(wish)
            return []
        return self._ask(wish)

    def _after_page(self, table: Table, state: DeviceState) -> DeviceState:
        """Return the state after a page that we made or awaited."""
        following = next_state(table, state, Step.PAGED)
        return following if self._released is None else next_state(table, following, Step.RELEASE)


def _groups_of(wish: Wish | None) -> tuple[GroupKey, ...]:
    """Return the groups that the event of a meeting names."""
    return () if wish is None else wish.event.keys
