"""The air: radios that hear each other within range, their connections, roles, park and beacons.

Rule: at most seven active slaves of a master; an eighth page is not answered. A parked slave hears its master at the
beacon only: it is woken there, and asked there whether it has something to say.
Rule: a connection whose devices have been out of range for the supervision time-out is lost, on both sides.
Rule: bytes take the slots that packets of 339 bytes take, and arrive whole and in order, or not at all.
Rule: a radio may listen for the pages of another address, and answer them as if it were that device (``stand_in``). No
ordinary radio can do so; the thesis supposes extra hardware (5.4.4). The paging device does not notice it.
Rule: time is moved by ``run``; everything that happens is passed to the handler of the radio that it concerns.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable
from random import Random
from typing import TypeAlias

from whimbrel.errors import InvalidValueError
from whimbrel.rendezvous.events import Address
from whimbrel.rendezvous.radio.interface import (
    Authenticated,
    InquiryResult,
    LinkLost,
    LinkMade,
    Overheard,
    PageFailed,
    Parked,
    RadioEvent,
    Received,
    RoleSwitched,
    Unparked,
)
from whimbrel.rendezvous.radio.simulated import stations as s
from whimbrel.rendezvous.radio.simulated.baseband import EventBaseband
from whimbrel.rendezvous.radio.simulated.links import Link
from whimbrel.rendezvous.radio.simulated.timing import SCAN_INTERVAL_TICKS, to_ticks, to_us
from whimbrel.rendezvous.radio.simulated.usage import Usage
from whimbrel.rendezvous.stand_in import StandIn

__all__ = ["BEACON_US", "RANGE_M", "SUPERVISION_US", "Air", "SimulatedRadio"]

RANGE_M = 10.0
BEACON_US = 640_000
SUPERVISION_US = 20_000_000
MAX_ACTIVE = 7

_SLOT_US = 625
_PACKET_BYTES, _PACKET_SLOTS = 339, 6
_CLOCK_BITS = 28
_OFFSET_MASK = 0x7FFF
_AWAY = (math.inf, math.inf)
"""Place of a device that is absent: outside every range."""

Handler: TypeAlias = Callable[[RadioEvent, int], None]


class Air:
    """Radios in one plane; *random* places their clocks and draws their back-offs."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._baseband = EventBaseband(self._is_in_range)
        self._radios: list[SimulatedRadio] = []
        self._by_address: dict[Address, SimulatedRadio] = {}
        self._links: dict[frozenset[Address], Link] = {}
        self._stand_ins: dict[tuple[Address, Address], int] = {}
        """Number of the extra station, by the address of the radio that stands in and the address it stands in for."""
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self.now = 0
        self.collisions = 0

    def add(
        self,
        address: Address,
        *,
        name: str,
        device_class: int = 0,
        place: tuple[float, float] = (0.0, 0.0),
        has_layer: bool = True,
    ) -> SimulatedRadio:
        """Put a radio into the air; one that *has_layer* offers the channel of our messages."""
        known = self._by_address.get(address)
        if known is not None and known.place != _AWAY:
            raise InvalidValueError("address", address, "an address that no other radio has")
        radio = known or self.reserve(address)
        radio.name, radio.device_class, radio.place, radio.has_layer = name, device_class, place, has_layer
        radio.usage.advance(self.now)
        return radio

    def reserve(self, address: Address) -> SimulatedRadio:
        """Create the radio of an absent device, with its clock and page channel, so that pages to it time out."""
        known = self._by_address.get(address)
        if known is not None:
            return known
        number = self._baseband.add(self._station())
        radio = SimulatedRadio(self, number, address=address, name="", device_class=0, place=_AWAY)
        self._radios.append(radio)
        self._by_address[address] = radio
        return radio

    def _station(self) -> s.Station:
        return s.Station(
            offset=self._random.getrandbits(_CLOCK_BITS),
            phase=self._random.randrange(SCAN_INTERVAL_TICKS),
            random=Random(self._random.getrandbits(64)),  # noqa: S311 # a made-up world draws from a seed
        )

    def stand_in(self, radio: SimulatedRadio, address: Address, mode: StandIn, clock_offset: int | None) -> None:
        """Set how *radio* treats pages for the device at *address*; an extra receiver of *radio* listens for them."""
        key = (radio.address, address)
        if key not in self._stand_ins:
            target = self.reserve(address)
            receiver = self._station()
            receiver.stands_in_for = target.number
            self._stand_ins[key] = self._baseband.add(receiver)
            self._radios.append(radio)
        number = self._stand_ins[key]
        self._baseband.set_scans(number, inquiry=False, page=False, tick=self.tick)
        receiver, own = self._baseband.stations[number], self._baseband.stations[radio.number]
        receiver.offset = own.offset + ((clock_offset or 0) << 2)
        receiver.is_silent = mode is not StandIn.ANSWER
        self._baseband.set_scans(number, inquiry=False, page=mode is not StandIn.OFF, tick=self.tick)

    # -- time ------------------------------------------------------------------------------------------------------

    def after(self, delay_us: int, do: Callable[[], None]) -> None:
        """Call *do* after *delay_us*."""
        self._count += 1
        heapq.heappush(self._heap, (self.now + delay_us, self._count, do))

    def run(self, duration_us: int) -> None:
        """Advance the time by *duration_us*, with all events in it."""
        end = self.now + duration_us
        while True:
            tick = self._baseband.next_tick
            next_air = math.inf if tick is None else to_us(tick)
            next_own = self._heap[0][0] if self._heap else math.inf
            if min(next_air, next_own) > end:
                break
            if next_own <= next_air:
                self.now = max(self.now, int(next_own))
                heapq.heappop(self._heap)[2]()
            else:
                assert tick is not None
                self.now = max(self.now, int(next_air))
                for _, happening in self._baseband.advance(tick + 1):
                    self._happen(happening)
        self.now = end

    @property
    def tick(self) -> int:
        """The first tick that has not begun; what radios do now counts from there."""
        return to_ticks(self.now)

    def _happen(self, happening: s.Happening) -> None:
        match happening:
            case s.Discovered(inquirer, scanner):
                found = self._radios[scanner]
                offset = self.offset_between(self._radios[inquirer], found)
                self._radios[inquirer].tell(
                    InquiryResult(
                        address=found.address,
                        clock_offset=offset,
                        name=found.name,
                        device_class=found.device_class,
                    )
                )
            case s.PageOver(pager, target, is_connected, answered_by):
                by = None if answered_by is None else self._radios[answered_by]
                self._radios[pager].usage.change(self.now, page=False)
                self._end_page(self._radios[pager], self._radios[target], by, is_connected=is_connected)
                self._radios[pager].page_next()
            case s.Overheard(listener, target):
                self._radios[listener].tell(Overheard(self._radios[target].address))
            case s.Collided():
                self.collisions += 1

    # -- range -----------------------------------------------------------------------------------------------------

    def _is_in_range(self, one: int, other: int) -> bool:
        return math.dist(self._radios[one].place, self._radios[other].place) <= RANGE_M

    def are_in_range(self, one: Address, other: Address) -> bool:
        """Return whether two radios are in range of each other."""
        return math.dist(self._by_address[one].place, self._by_address[other].place) <= RANGE_M

    def offset_between(self, own: SimulatedRadio, other: SimulatedRadio) -> int:
        """Return the clock offset of *other*, as *own* would measure it."""
        stations = self._baseband.stations
        return ((stations[other.number].offset >> 2) - (stations[own.number].offset >> 2)) & _OFFSET_MASK

    def refresh_range(self, radio: SimulatedRadio) -> None:
        """Update the connections of a radio that moved: out of range they time out, back in range they are kept."""
        self._baseband.refresh(self.tick)
        for link in [each for each in self._links.values() if radio.address in {each.master, each.slave}]:
            if self.are_in_range(link.master, link.slave):
                link.lost_at = None
            elif link.lost_at is None:
                link.lost_at = self.now + SUPERVISION_US
                self.after(SUPERVISION_US, lambda link=link: self._supervise(link))  # type: ignore[misc]  # bound now

    def _supervise(self, link: Link) -> None:
        if link.lost_at is not None and link.lost_at <= self.now and self._links.get(link.key) is link:
            del self._links[link.key]
            self._count_links(link)
            for end in (link.master, link.slave):
                self._by_address[end].tell(LinkLost(link.seen_by(end)))

    # -- connections -----------------------------------------------------------------------------------------------

    def baseband(self) -> EventBaseband:
        """Return the stations' side of the air."""
        return self._baseband

    def radio(self, address: Address) -> SimulatedRadio | None:
        """Return the radio at *address*."""
        return self._by_address.get(address)

    def link(self, one: Address, other: Address) -> Link | None:
        """Return the connection of two radios, of which *one* may take *other* for another device."""
        found = self._links.get(frozenset({one, other}))
        if found is not None or not self._stand_ins:
            return found
        aliased = (each for each in self._links.values() if each.alias == other and each.actor != one)
        return next((each for each in aliased if one in {each.master, each.slave}), None)

    def active_slaves(self, master: Address) -> int:
        """Return how many slaves of *master* have an active address."""
        return sum(1 for each in self._links.values() if each.master == master and not each.is_parked)

    def _end_page(
        self, pager: SimulatedRadio, target: SimulatedRadio, by: SimulatedRadio | None, *, is_connected: bool
    ) -> None:
        has_room = self.active_slaves(pager.address) < MAX_ACTIVE
        end = by or target
        is_known = self.link(pager.address, target.address) or self.link(pager.address, end.address)
        if not is_connected or not has_room or is_known is not None:
            pager.tell(PageFailed(target.address))
            return
        link = Link(pager.address, end.address)
        if by is not None:
            link.actor, link.alias = by.address, target.address
        self._links[link.key] = link
        self._count_links(link)
        made = LinkMade(
            pager.address, is_caller=False, name=pager.name, has_layer=pager.has_layer, as_address=link.alias
        )
        end.tell(made)
        pager.tell(LinkMade(target.address, is_caller=True, name=target.name, has_layer=end.has_layer))

    def _count_links(self, link: Link) -> None:
        """Record the current connections of both ends of *link* in their usage."""
        for end in (link.master, link.slave):
            mine = [each for each in self._links.values() if end in {each.master, each.slave}]
            self._by_address[end].usage.change(
                self.now,
                master=any(each.master == end and not each.is_parked for each in mine),
                slave=any(each.slave == end and not each.is_parked for each in mine),
                parked=any(each.slave == end and each.is_parked for each in mine),
            )

    def authenticate(self, asker: SimulatedRadio, link: Link, pin: str) -> None:
        """Report whether the device at the other end of *link* has this *pin*; if not, that device hangs up."""
        other = self._by_address[link.other(asker.address)]
        is_accepted = other.pin == pin

        def answer() -> None:
            if self._links.get(link.key) is link:
                asker.tell(Authenticated(other.address, is_accepted=is_accepted))
                if not is_accepted:
                    self.drop(link, other.address)

        self.after(4 * _SLOT_US, answer)

    def drop(self, link: Link, by: Address) -> None:
        """Close a connection."""
        if self._links.pop(link.key, None) is not None:
            other, link.closed_by = link.other(by), by
            self._count_links(link)
            under_way_us, known = max(0, link.free_at - self.now), link.seen_by(other)
            self.after(under_way_us + 2 * _SLOT_US, lambda: self._by_address[other].tell(LinkLost(known)))

    def switch(self, link: Link, to: Address) -> None:
        """Make *to* the master, if it is not and has room for a slave."""
        if link.master != to and self.active_slaves(to) < MAX_ACTIVE:
            link.master, link.slave = to, link.master
            self._count_links(link)
            self.after(4 * _SLOT_US, lambda: self._tell_roles(link))

    def _tell_roles(self, link: Link) -> None:
        for end in (link.master, link.slave):
            self._by_address[end].tell(RoleSwitched(link.seen_by(end), is_master=end == link.master))

    def park(self, link: Link) -> None:
        """Park the slave of *link*."""
        link.is_parked = True
        link.parked_at = max(link.free_at, self.now) + 4 * _SLOT_US  # after what is under way to it
        self._count_links(link)
        known = link.seen_by(link.slave)
        self.after(link.parked_at - self.now, lambda: self._by_address[link.slave].tell(Parked(known)))

    def at_beacon(self, do: Callable[[], None]) -> None:
        """Call *do* at the next beacon."""
        self.after(BEACON_US - self.now % BEACON_US, do)

    def wake(self, link: Link) -> bool:
        """Give the slave of *link* an active address now, send the messages that waited; return whether it is awake."""
        if self._links.get(link.key) is not link or not self.are_in_range(link.master, link.slave):
            return False
        if link.is_parked:
            if self.now <= link.parked_at or self.active_slaves(link.master) >= MAX_ACTIVE:
                return False
            link.is_parked = False
            self._count_links(link)
            self._by_address[link.slave].tell(Unparked(link.seen_by(link.slave)))
        for queue, sender in ((link.held, link.master), (link.waiting, link.slave)):
            while queue:
                self.carry(link, sender, queue.popleft())
        return True

    def poll(self, master: Address, seats: int) -> None:
        """Wake at most *seats* parked slaves with waiting messages."""
        speakers = [each for each in self._links.values() if each.master == master and each.is_parked and each.waiting]
        for link in speakers[:seats]:
            self.wake(link)

    def carry(self, link: Link, sender: Address, data: bytes) -> None:
        """Send *data* to the other end of an active connection."""
        packets = max(1, -(-len(data) // _PACKET_BYTES))
        link.free_at = max(link.free_at, self.now) + packets * _PACKET_SLOTS * _SLOT_US
        receiver = link.other(sender)
        sending, receiving = (self._by_address[end].usage for end in (sender, receiver))
        sending.sent_bytes, sending.sent_packets = sending.sent_bytes + len(data), sending.sent_packets + packets

        def arrive() -> None:
            is_open = self._links.get(link.key) is link or link.closed_by == sender
            if is_open and self.are_in_range(sender, receiver):
                receiving.received_bytes += len(data)
                receiving.received_packets += packets
                self._by_address[receiver].tell(Received(link.seen_by(receiver), data))

        self.after(link.free_at - self.now, arrive)


class SimulatedRadio:
    """One radio of the air; *handler* is told what happens to it."""

    def __init__(
        self, air: Air, number: int, *, address: Address, name: str, device_class: int, place: tuple[float, float]
    ) -> None:
        self._air, self.number, self._address = air, number, address
        self.name, self.device_class, self.place = name, device_class, place
        self.has_layer = True
        self.usage = Usage(air.now)
        self.pin: str | None = None
        """The fixed PIN of a device without software."""
        self.handler: Handler = lambda _event, _now: None
        self._pages: deque[tuple[SimulatedRadio, int, int]] = deque()
        """Pages that wait for the one before: a radio pages one device at a time."""

    @property
    def address(self) -> Address:
        """The address of this radio."""
        return self._address

    def tell(self, event: RadioEvent) -> None:
        """Hand *event* to the handler."""
        self.handler(event, self._air.now)

    def move(self, place: tuple[float, float]) -> None:
        """Carry the radio elsewhere."""
        self.place = place
        self._air.refresh_range(self)

    def inquire(self, *, is_on: bool) -> None:
        """Inquire without end, or stop."""
        self.usage.change(self._air.now, inquiry=is_on)
        self._air.baseband().inquire(self.number, is_on=is_on, tick=self._air.tick)

    def set_scans(self, *, inquiry: bool, page: bool) -> None:
        """Listen for inquiries and for pages, or not."""
        self.usage.change(self._air.now, inquiry_scan=inquiry, page_scan=page)
        self._air.baseband().set_scans(self.number, inquiry=inquiry, page=page, tick=self._air.tick)

    def stand_in(self, address: Address, mode: StandIn, *, clock_offset: int | None) -> None:
        """Listen for the pages of another address, or answer them in its place, or do neither any more."""
        self._air.stand_in(self, address, mode, clock_offset)

    def authenticate(self, address: Address, pin: str) -> None:
        """Pair with a connected device by *pin*."""
        link = self._air.link(self._address, address)
        if link is not None:
            self._air.authenticate(self, link, pin)

    def current_usage(self) -> Usage:
        """Return the usage of the radio up to now."""
        self.usage.advance(self._air.now)
        self.usage.answers = self._air.baseband().stations[self.number].answers
        return self.usage

    def page(self, address: Address, clock_offset: int | None, *, timeout_us: int) -> None:
        """Page a device; with its clock offset it is heard in half the time."""
        target = self._air.radio(address)
        if target is None:
            self._air.after(timeout_us, lambda: self.tell(PageFailed(address)))
            return
        own = self._air.baseband().stations[self.number].offset
        self._pages.append((target, own + ((clock_offset or 0) << 2), to_ticks(timeout_us)))
        self.page_next()

    def page_next(self) -> None:
        """Begin the next page if none goes on."""
        baseband = self._air.baseband()
        if self._pages and baseband.stations[self.number].paging is None:
            target, estimate, timeout = self._pages.popleft()
            self.usage.change(self._air.now, page=True)
            baseband.page(self.number, target.number, estimate=estimate, timeout=timeout, tick=self._air.tick)

    def switch_role(self, address: Address) -> None:
        """Become master of a connection in which we are slave."""
        link = self._air.link(self._address, address)
        if link is not None:
            self._air.switch(link, self._address)

    def park(self, address: Address) -> None:
        """Park a slave of ours; a waking one is parked after it has received the held messages."""
        link = self._air.link(self._address, address)
        if link is None or link.master != self._address:
            return
        if link.is_parked:
            link.is_parked_again = link.is_waking
        else:
            self._air.park(link)

    def unpark(self, address: Address) -> None:
        """Wake a parked slave at the next beacon."""
        link = self._air.link(self._address, address)
        if link is None or link.master != self._address or not link.is_parked:
            return
        link.is_parked_again = False
        if not link.is_waking:
            link.is_waking = True
            self._air.at_beacon(lambda: self._wake(link))

    def _wake(self, link: Link) -> None:
        if self._air.wake(link):
            link.is_waking = False
            if link.is_parked_again:
                link.is_parked_again = False
                self._air.park(link)
        elif self._air.link(link.master, link.slave) is link:
            self._air.at_beacon(lambda: self._wake(link))  # no address free, or not heard: at the next beacon

    def poll(self, *, seats: int) -> None:
        """Poll parked slaves for messages at the next beacon, and wake at most *seats* of them."""
        self._air.at_beacon(lambda: self._air.poll(self._address, seats))

    def send(self, address: Address, data: bytes) -> None:
        """Send bytes; a parked slave keeps them until it is polled or woken."""
        link = self._air.link(self._address, address)
        if link is None:
            return
        if not link.is_parked:
            self._air.carry(link, self._address, data)
        else:
            (link.held if link.master == self._address else link.waiting).append(data)

    def disconnect(self, address: Address) -> None:
        """Close a connection after what was sent; the other side is told."""
        link = self._air.link(self._address, address)
        if link is not None:
            self._air.drop(link, self._address)

    def clock_offset_of(self, address: Address) -> int:
        """Return the clock offset of a device that we are connected to."""
        other = self._air.radio(address)
        return 0 if other is None else self._air.offset_between(self, other)
