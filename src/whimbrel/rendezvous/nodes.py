"""Nodes: the thin shells that join a controller, or a device, to a radio.

Rule: a node decides nothing. It turns what the radio reports into inputs of a core and performs the core's commands, in
their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Protocol

from whimbrel.errors import InvalidValueError
from whimbrel.rendezvous import messages as m
from whimbrel.rendezvous.controller import (
    Authenticated,
    Connected,
    Controller,
    Disconnected,
    Found,
    Input,
    Note,
    NotReached,
    Overheard,
    Said,
)
from whimbrel.rendezvous.controller import commands as c
from whimbrel.rendezvous.controller.parameters import PAGE_TIMEOUT_US
from whimbrel.rendezvous.device import Device
from whimbrel.rendezvous.device import commands as d
from whimbrel.rendezvous.events import Address, GroupKey
from whimbrel.rendezvous.exposure import Exposure
from whimbrel.rendezvous.radio import interface as r
from whimbrel.rendezvous.radio.interface import (
    InquiryResult,
    LinkLost,
    LinkMade,
    PageFailed,
    Parked,
    Radio,
    RadioEvent,
    Received,
    RoleSwitched,
    Unparked,
)
from whimbrel.rendezvous.wire import encode

__all__ = ["ControllerNode", "DeviceNode", "Timers"]


class Timers(Protocol):
    """Timers: call a function after a delay."""

    def after(self, delay_us: int, do: Callable[[], None]) -> None:
        """Call *do* after *delay_us*."""
        ...


class ControllerNode:
    """A controller with a radio; facts for the log go to *note*, epochs of groups to *keep_epoch*."""

    def __init__(
        self,
        core: Controller,
        radio: Radio,
        timers: Timers,
        *,
        now: Callable[[], int],
        note: Callable[[Note, int], None] = lambda _note, _now: None,
        keep_epoch: Callable[[GroupKey, int], None] = lambda _group, _epoch: None,
    ) -> None:
        self.core, self._radio, self._timers, self._now, self._note = core, radio, timers, now, note
        self._keep_epoch = keep_epoch
        self._due: int | None = None
        self._calling: set[Address] = set()
        self._borrowing = radio if isinstance(radio, r.StandInRadio) else None
        if core.pairs and self._borrowing is None:
            allowed = "none: only the simulated radio can use the address of another device (5.4.4)"
            raise InvalidValueError("dumb pairs", len(core.pairs), allowed)

    def start(self) -> None:
        """Start to inquire and to be discoverable, without end; the core turns answering of pages on and off (4.1)."""
        self._radio.inquire(is_on=True)
        self._radio.set_scans(inquiry=True, page=False)
        self._take(())

    def handle(self, event: RadioEvent, now: int) -> None:
        """Handle an event of the radio."""
        del now  # the clock is read, so that a late event does not move time back
        match event:
            case InquiryResult():
                found = Found(
                    address=event.address,
                    clock_offset=event.clock_offset,
                    name=event.name,
                    device_class=event.device_class,
                )
                self._take((found,))
            case LinkMade(address, is_caller, _, has_layer, as_address):
                self._calling.discard(address)
                connected = Connected(
                    address=address, is_caller=not is_caller, has_layer=has_layer, as_address=as_address
                )
                self._take((connected,))
            case PageFailed(address) if address in self._calling:
                self._calling.discard(address)
                self._take((NotReached(address),))
            case PageFailed():
                pass  # the device paged us meanwhile, and is connected
            case LinkLost(address):
                self._calling.discard(address)
                self._take((Disconnected(address),))
            case Received(address, data):
                self._take((Said(address, data),))
            case r.Overheard(address):
                self._take((Overheard(address),))
            case r.Authenticated(address, is_accepted):
                self._take((Authenticated(address, is_accepted),))
            case RoleSwitched() | Parked() | Unparked():
                pass

    def _take(self, inputs: Iterable[Input]) -> None:
        self._perform(self.core.take(inputs, now=self._now()))
        while self.core.is_busy:
            self._perform(self.core.timer(now=self._now()))
        due = self.core.next_due
        if due is not None and (self._due is None or due < self._due):
            self._due = due
            self._timers.after(max(0, due - self._now()), lambda: self._timer(due))

    def _timer(self, due: int) -> None:
        if self._due == due:
            self._due = None
            self._take(())

    def _perform(self, commands: Iterable[c.Command]) -> None:
        for command in commands:
            match command:
                case c.Send(address, message):
                    self._radio.send(address, encode(message))
                case c.SwitchRole(address):
                    self._radio.switch_role(address)
                case c.Park(address):
                    self._radio.park(address)
                case c.Unpark(address):
                    self._radio.unpark(address)
                case c.Connect(address, clock_offset, timeout_us):
                    if address not in self._calling:
                        self._calling.add(address)
                        offset = self._radio.clock_offset_of(address) if clock_offset is None else clock_offset
                        self._radio.page(address, offset, timeout_us=timeout_us)
                case c.Disconnect(address) | c.Release(address):
                    self._radio.disconnect(address)
                case c.SetConnectable(is_on):
                    self._radio.set_scans(inquiry=True, page=is_on)
                case c.Poll(seats):
                    self._radio.poll(seats=seats)
                case c.KeepEpoch(group, epoch):
                    self._keep_epoch(group, epoch)
                case c.UseAddress(address, mode, clock_offset) if self._borrowing is not None:
                    self._borrowing.stand_in(address, mode, clock_offset=clock_offset)
                case c.Authenticate(address, pin) if self._borrowing is not None:
                    self._borrowing.authenticate(address, pin)
                case c.UseAddress() | c.Authenticate():
                    raise AssertionError(command)  # a controller without pairs commands neither
                case c.Note():
                    self._note(command, self._now())


class DeviceNode:
    """A device with a radio; *told* gets the messages to its user, *keep_token* each group token issued to it."""

    def __init__(
        self,
        core: Device,
        radio: Radio,
        timers: Timers,
        *,
        now: Callable[[], int],
        controller_name: str = "whimbrel-controller",
        told: Callable[[d.Introduced | d.Verified | d.Tell, int], None] = lambda _told, _now: None,
        keep_token: Callable[[GroupKey, bytes], None] = lambda _group, _token: None,
    ) -> None:
        self.core, self._radio, self._timers, self._now, self._told = core, radio, timers, now, told
        self._keep_token = keep_token
        self._controller_name = controller_name
        self._calling: Address | None = None
        self._paging: set[Address] = set()
        self.exposure = Exposure(now())

    def show(self) -> None:
        """Make a device discoverable and connectable that does not look for a controller itself."""
        self._scan(inquiry=True, page=True)

    def _scan(self, *, inquiry: bool, page: bool) -> None:
        self.exposure.set_scans(inquiry=inquiry, page=page, now=self._now())
        self._radio.set_scans(inquiry=inquiry, page=page)

    def talk(self, address: Address, data: bytes) -> None:
        """Send bytes of the application to a device that we are connected to."""
        self._radio.send(address, encode(m.Data(data)))

    def hang_up(self, address: Address) -> None:
        """Close the connection to a peer."""
        self._radio.disconnect(address)
        self.do(self.core.receive(d.LostPeer(address), now=self._now()))

    def do(self, commands: Iterable[d.DeviceCommand]) -> None:
        """Perform the core's commands, such as those that ``publish`` and ``subscribe`` return."""
        for command in commands:
            self._perform(command)
        due = self.core.next_due
        if due is not None:
            self._timers.after(max(0, due - self._now()), lambda: self.do_due(due))

    def do_due(self, due: int) -> None:
        """Call the core's ``timer`` at *due*, unless the core no longer has this deadline."""
        if self.core.next_due == due:
            self.do(self.core.timer(now=self._now()))

    def handle(self, event: RadioEvent, now: int) -> None:
        """Handle an event of the radio."""
        del now  # see above
        happened = self._input_of(event)
        if happened is not None:
            self.do(self.core.receive(happened, now=self._now()))

    def _input_of(self, event: RadioEvent) -> d.DeviceInput | None:
        match event:
            case InquiryResult(address=address, clock_offset=clock_offset, name=name):
                is_controller = name.startswith(self._controller_name)
                return d.FoundController(address=address, clock_offset=clock_offset) if is_controller else None
            case LinkMade():
                return self._input_of_link(event)
            case PageFailed(address) if address == self._calling:
                self._calling = None  # it may have paged us meanwhile
                return d.LostController() if self.core.controller is None else None
            case PageFailed(address) if address == self.core.controller:
                return None
            case PageFailed(address):
                self._paging.discard(address)
                return d.PageEnded(address, is_connected=False)
            case LinkLost(address):
                return d.LostController() if address == self.core.controller else d.LostPeer(address)
            case Received(address, data):
                return d.Heard(data) if address == self.core.controller else d.HeardPeer(address, data)
            case Parked():
                return d.WasParked()
            case Unparked():
                return d.WasWoken()
            case RoleSwitched() | r.Overheard() | r.Authenticated():
                return None

    def _input_of_link(self, made: LinkMade) -> d.DeviceInput:
        address = made.address
        if made.name.startswith(self._controller_name) and self.core.accepts(address):
            self._calling = None
            return d.JoinedController(address, is_caller=made.is_caller)
        self._paging.discard(address)  # a second controller is a device like any other
        if made.is_caller:
            return d.PageEnded(address, is_connected=True)
        return d.Paged(address, has_layer=made.has_layer)

    def _perform(self, command: d.DeviceCommand) -> None:
        match command:
            case d.Inquire(is_on):
                self._radio.inquire(is_on=is_on)
            case d.PageController(address, clock_offset):
                self._calling = address
                offset = self._radio.clock_offset_of(address) if clock_offset is None else clock_offset
                self._radio.page(address, offset, timeout_us=PAGE_TIMEOUT_US)
            case d.Say(message):
                self._say(message)
            case d.SetScans(has_inquiry_scan, has_page_scan):
                self._scan(inquiry=has_inquiry_scan, page=has_page_scan)
            case d.PagePeer(address, clock_offset, timeout_us):
                # The publication's offset is measured against the controller's clock, which both devices follow.
                controller = self.core.controller
                own = 0 if controller is None else self._radio.clock_offset_of(controller)
                self._paging.add(address)
                self._radio.page(address, (clock_offset + own) & 0x7FFF, timeout_us=timeout_us)
            case d.LeaveController():
                if self.core.controller is not None:
                    self._radio.disconnect(self.core.controller)
                    self.do(self.core.receive(d.LostController(), now=self._now()))
            case d.BecomeMaster(address):
                self._radio.switch_role(address)
            case d.SayPeer(address, peer_message):
                self._radio.send(address, encode(peer_message))
            case d.KeepToken(group, token):
                self._keep_token(group, token)
            case d.Introduced() | d.Verified() | d.Tell():
                self._told(command, self._now())

    def _say(self, message: m.FromDevice) -> None:
        controller = self.core.controller
        if controller is None:
            return
        if isinstance(message, m.Publish):
            offset = -self._radio.clock_offset_of(controller) & 0x7FFF
            message = m.Publish(replace(message.publication, clock_offset=offset))
        self._radio.send(controller, encode(message))
