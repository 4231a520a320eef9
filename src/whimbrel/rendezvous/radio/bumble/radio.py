"""The radio on a real adapter: the ``Radio`` of the nodes, by HCI and L2CAP.

Rule: one thing at a time. An adapter can do one inquiry, page or request for a name; so they wait in one queue, and the
inquiry without end is interrupted for the others.
Rule: a connection is reported when it can be used: its name and clock offset are known, and our channel is open, or the
other side has none. The pager opens it and sends an empty message; before that the other side sends nothing, because
Bumble drops what arrives before its caller has the channel.
Rule: nothing waits for ever (``Limits``), and what a stranger sends ends a connection at most.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

from bumble import hci
from bumble.core import BaseBumbleError, PhysicalTransport
from bumble.core import ConnectionError as BumbleConnectionError
from bumble.device import Connection as BumbleConnection
from bumble.l2cap import ClassicChannelSpec

from whimbrel.errors import WhimbrelError
from whimbrel.rendezvous.events import Address
from whimbrel.rendezvous.radio.bumble.adapter import Adapter, Heard, address_of, hci_address
from whimbrel.rendezvous.radio.bumble.errors import (
    MAX_SLAVES,
    AdapterLostError,
    CommandRefusedError,
    CommandSilentError,
    RadioError,
    TooManySlavesError,
)
from whimbrel.rendezvous.radio.bumble.framing import TooLongError
from whimbrel.rendezvous.radio.bumble.links import MAX_EARLY, MAX_EARLY_BYTES, Link
from whimbrel.rendezvous.radio.bumble.pairing import KeyFile, Unpaired, UnpairedError, secure
from whimbrel.rendezvous.radio.bumble.questions import PAGE_SCAN_R1, REMEMBERED, Questions, given_offset
from whimbrel.rendezvous.radio.interface import (
    InquiryResult,
    LinkLost,
    LinkMade,
    PageFailed,
    RadioEvent,
    Received,
    RoleSwitched,
)

if TYPE_CHECKING:
    from bumble.l2cap import ClassicChannel

__all__ = ["PSM", "BumbleRadio", "NoParkError"]

PSM = 0x1C47
"""The L2CAP port of our channel, one that is free for applications (odd, the upper byte even, from 0x1001)."""

_SLOT_US = 625
_MAX_PAGE_SLOTS = 0xFFFF
_PACKET_TYPES = 0xCC18
_INQUIRY_LENGTH, _INQUIRY_S = 8, 10.24
_PAGE_TRIES = 3

_log = logging.getLogger(__name__)
_Handler: TypeAlias = Callable[[RadioEvent, int], None]
_Job: TypeAlias = Callable[[], Awaitable[None]]


class NoParkError(RadioError):
    """A real radio cannot park. Reaction: a controller with ``has_park=False``."""

    def __str__(self) -> str:
        return "real radios have had no park since Bluetooth 5.0; a controller on one needs has_park = false"


class BumbleRadio:
    """One adapter; *handler* is told what happens to it, *trouble* what went wrong."""

    def __init__(
        self,
        adapter: Adapter,
        *,
        now: Callable[[], int],
        trouble: Callable[[WhimbrelError], None] = lambda _error: None,
        unpaired: Unpaired = Unpaired.ACCEPT,
        keys: KeyFile | None = None,
    ) -> None:
        self._adapter, self._limits, self._now, self._trouble = adapter, adapter.limits, now, trouble
        self.handler: _Handler = lambda _event, _now: None
        self._unpaired, self._keys = unpaired, keys
        self._links: dict[Address, Link] = {}
        self._jobs: deque[_Job] = deque()
        self._wake = asyncio.Event()
        self._is_inquiring = False
        self._inquiry_over = asyncio.Event()
        self._scans: tuple[bool, bool] = (False, False)
        self._scans_set: tuple[bool, bool] = (False, False)
        self._page_slots: int | None = None
        self._page: tuple[Address, asyncio.Future[BumbleConnection]] | None = None
        self._questions = Questions(adapter, trouble=trouble)
        self._heard: OrderedDict[Address, Heard] = OrderedDict()
        """Devices whose names are being asked for."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[None] = self._loop.create_future()
        """Done, with an error, when the adapter is gone."""
        adapter.terminated.add_done_callback(self._be_lost)
        self._listen()
        self._spawn(self._work())

    def _listen(self) -> None:
        device, host = self._adapter.device, self._adapter.host
        device.on("connection", self._on_connection)
        device.on("connection_failure", self._on_page_failure)
        host.on("heard", self._on_heard)
        host.on("inquiry_complete", self._inquiry_over.set)
        device.auto_restart_inquiry = False
        if self._keys is not None:
            device.keystore = self._keys
        device.create_l2cap_server(ClassicChannelSpec(psm=PSM), self._on_channel)

    async def close(self) -> None:
        """Close every connection and let the adapter go."""
        self._adapter.terminated.remove_done_callback(self._be_lost)
        for link in list(self._links.values()):
            link.is_closing = True
        await asyncio.gather(*(link.close(self._limits.close_s) for link in list(self._links.values())))
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._adapter.close()

    def _be_lost(self, _terminated: object) -> None:
        if not self.lost.done():
            self.lost.set_exception(AdapterLostError(self._adapter.name))
            self.lost.exception()  # retrieved, so that asyncio logs nothing if no caller waits

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = self._loop.create_task(self._watch(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _watch(self, work: Coroutine[object, object, None]) -> None:
        try:
            await work
        except WhimbrelError as error:
            self._trouble(error)
        except BaseBumbleError as error:  # a connection that ended in the middle
            _log.debug("%s", error)

    def _tell(self, event: RadioEvent) -> None:
        self.handler(event, self._now())

    # -- what the nodes ask for ----------------------------------------------------------------------------------------

    @property
    def address(self) -> Address:
        """The address of this radio."""
        return self._adapter.address

    def inquire(self, *, is_on: bool) -> None:
        """Inquire without end, or stop."""
        self._is_inquiring = is_on
        self._wake.set()

    def set_scans(self, *, inquiry: bool, page: bool) -> None:
        """Listen for inquiries and for pages, or not."""
        self._scans = inquiry, page
        self._spawn(self._set_scans())

    def page(self, address: Address, clock_offset: int | None, *, timeout_us: int) -> None:
        """Page a device; with its clock offset it is heard in half the time."""
        self._add_job(lambda: self._page_now(address, clock_offset, timeout_us))

    def switch_role(self, address: Address) -> None:
        """Become master of a connection in which we are slave."""
        if address in self._links:
            command = hci.HCI_Switch_Role_Command(bd_addr=hci_address(address), role=hci.Role.CENTRAL)
            self._spawn(self._adapter.command(command))

    def park(self, address: Address) -> None:
        """Refuse: a real radio cannot park."""
        raise NoParkError(address)

    def unpark(self, address: Address) -> None:
        """Refuse: a real radio cannot park."""
        raise NoParkError(address)

    def poll(self, *, seats: int) -> None:
        """Refuse: a real radio cannot park."""
        raise NoParkError(seats)

    def send(self, address: Address, data: bytes) -> None:
        """Send bytes."""
        link = self._links.get(address)
        if link is not None and not link.is_closing:
            link.write(data)

    def disconnect(self, address: Address) -> None:
        """Close a connection after what was sent; the other side is told."""
        link = self._links.get(address)
        if link is not None and not link.is_closing:
            link.is_closing = True
            self._spawn(self._close(link))

    def clock_offset_of(self, address: Address) -> int:
        """Return the clock offset of a device that we are connected to, or were last; 0 if it is not known."""
        return self._questions.offset_of(address) or 0

    # -- one thing at a time -------------------------------------------------------------------------------------------

    def _add_job(self, job: _Job) -> None:
        self._jobs.append(job)
        self._wake.set()

    async def _work(self) -> None:
        while True:
            self._wake.clear()
            try:
                if self._jobs:
                    await self._jobs.popleft()()
                elif self._is_inquiring:
                    await self._inquire()
                else:
                    await self._wake.wait()
            except WhimbrelError as error:
                self._trouble(error)
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._limits.retry_s):
                        await self._wake.wait()

    async def _inquire(self) -> None:
        """Inquire for 10.24 s, or until another operation waits."""
        self._inquiry_over.clear()
        inquiry = hci.HCI_Inquiry_Command(
            lap=hci.HCI_GENERAL_INQUIRY_LAP, inquiry_length=_INQUIRY_LENGTH, num_responses=0
        )
        await self._adapter.command(inquiry)
        over, woken = (asyncio.ensure_future(event.wait()) for event in (self._inquiry_over, self._wake))
        try:
            async with asyncio.timeout(_INQUIRY_S + self._limits.command_s):
                await asyncio.wait((over, woken), return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            self._trouble(CommandSilentError("the end of HCI_INQUIRY_COMMAND", _INQUIRY_S + self._limits.command_s))
        finally:
            over.cancel()
            woken.cancel()
        if not self._inquiry_over.is_set():
            await self._adapter.command(hci.HCI_Inquiry_Cancel_Command())

    async def _set_scans(self) -> None:
        if self._scans != self._scans_set:
            self._scans_set = inquiry, page = self._scans
            await self._adapter.command(hci.HCI_Write_Scan_Enable_Command(scan_enable=inquiry | page << 1))

    # -- inquiry ---------------------------------------------------------------------------------------------

    def _on_heard(self, heard: Heard) -> None:
        name = heard.name if heard.name is not None else self._questions.name_of(heard.address)
        if name is not None:
            self._report(heard, name)
        elif heard.address not in self._heard and len(self._heard) < REMEMBERED:
            self._heard[heard.address] = heard
            self._add_job(lambda: self._ask_heard(heard.address))

    async def _ask_heard(self, address: Address) -> None:
        """Request the name of a device that was heard; without an answer, it is requested when it is heard again."""
        name = await self._questions.ask_name(address)
        heard = self._heard.pop(address, None)
        if heard is not None and name:
            self._report(heard, name)

    def _report(self, heard: Heard, name: str) -> None:
        self._questions.learn(heard.address, name, heard.clock_offset)
        self._tell(
            InquiryResult(
                address=heard.address, clock_offset=heard.clock_offset, name=name, device_class=heard.device_class
            )
        )

    # -- pages ---------------------------------------------------------------------------------------------------------

    async def _page_now(self, address: Address, clock_offset: int | None, timeout_us: int) -> None:
        link = self._links.get(address)
        if link is not None and link.is_closing:
            with suppress(TimeoutError):
                async with asyncio.timeout(2 * self._limits.close_s):
                    await link.gone.wait()
        if address in self._links:
            self._tell(PageFailed(address))
            return
        try:
            if sum(each.connection.role == hci.Role.CENTRAL for each in self._links.values()) >= MAX_SLAVES:
                raise TooManySlavesError(address)
            connection = await self._connect_patiently(address, clock_offset, timeout_us)
        except RadioError as error:
            self._trouble(error)
            connection = None
        except BumbleConnectionError:
            connection = None
        if connection is None:
            self._tell(PageFailed(address))

    async def _connect_patiently(self, address: Address, clock_offset: int | None, timeout_us: int) -> BumbleConnection:
        """Page; an adapter that refuses may be busy, and that is not the fault of the device that is paged."""
        for number in range(1, _PAGE_TRIES):
            with suppress(CommandRefusedError):
                return await self._connect(address, clock_offset, timeout_us)
            await asyncio.sleep(number * self._limits.retry_s)
        return await self._connect(address, clock_offset, timeout_us)

    async def _connect(self, address: Address, clock_offset: int | None, timeout_us: int) -> BumbleConnection:
        slots = max(1, min(_MAX_PAGE_SLOTS, timeout_us // _SLOT_US))
        if slots != self._page_slots:
            await self._adapter.command(hci.HCI_Write_Page_Timeout_Command(page_timeout=slots))
            self._page_slots = slots
        to, device = hci_address(address), self._adapter.device
        made: asyncio.Future[BumbleConnection] = asyncio.get_running_loop().create_future()
        self._page = address, made
        device.pending_connections[to] = _pending(device, to)
        command = hci.HCI_Create_Connection_Command(
            bd_addr=to,
            packet_type=_PACKET_TYPES,
            page_scan_repetition_mode=PAGE_SCAN_R1,
            reserved=0,
            clock_offset=given_offset(clock_offset),
            allow_role_switch=1,
        )
        limit_s = timeout_us / 1e6 + self._limits.page_s
        try:
            await self._adapter.command(command)
            async with asyncio.timeout(limit_s):
                return await made
        except TimeoutError:
            with suppress(RadioError):
                await self._adapter.command(hci.HCI_Create_Connection_Cancel_Command(bd_addr=to))
            raise CommandSilentError("the end of HCI_CREATE_CONNECTION_COMMAND", limit_s) from None
        finally:
            self._page = None
            device.pending_connections.pop(to, None)

    def _on_page_failure(self, error: BumbleConnectionError) -> None:
        if self._page is not None and address_of(error.peer_address) == self._page[0] and not self._page[1].done():
            self._page[1].set_exception(error)

    # -- connections ---------------------------------------------------------------------------------------------------

    def _on_connection(self, connection: BumbleConnection) -> None:
        if connection.transport != PhysicalTransport.BR_EDR:
            return
        address = address_of(connection.peer_address)
        page = self._page
        is_caller = page is not None and page[0] == address and connection.role == hci.Role.CENTRAL
        link = self._links[address] = Link(address, connection, is_caller)
        connection.on("disconnection", lambda _reason: self._on_disconnection(link))
        connection.on("role_change", lambda role: self._on_role(link, role))
        if is_caller and page is not None and not page[1].done():
            page[1].set_result(connection)
        self._spawn(self._greet(link))

    async def _greet(self, link: Link) -> None:
        """Open our channel or wait for it, learn name and clock offset, and tell that there is a connection."""
        if self._unpaired is not Unpaired.ACCEPT and not await self._secure(link):
            return
        if link.is_caller:
            await self._open_channel(link)
        name = self._questions.name_of(link.address)
        if name is None:
            name = await self._questions.ask_name(link.address)
        await self._questions.ask_offset(link)
        if not link.is_caller:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._limits.channel_s):
                    await link.has_channel.wait()
        if link.is_closing or link.gone.is_set():
            return
        link.is_told = True
        has_layer = link.channel is not None
        self._tell(LinkMade(link.address, is_caller=link.is_caller, name=name, has_layer=has_layer))
        early, link.early = link.early, []
        for data in early:
            self._tell(Received(link.address, data))

    async def _secure(self, link: Link) -> bool:
        """Encrypt the connection; if that fails, close it and return ``False``."""
        try:
            if self._unpaired is Unpaired.REFUSE and not (
                self._keys is not None and await self._keys.has(link.address)
            ):
                raise UnpairedError(link.address, "it is not paired")
            await secure(link.connection, is_caller=link.is_caller, limit_s=self._limits.pairing_s)
        except WhimbrelError as error:
            self._trouble(error)
            if not link.gone.is_set():
                self.disconnect(link.address)
                if link.is_caller:
                    self._tell(PageFailed(link.address))
            return False
        return True

    async def _open_channel(self, link: Link) -> None:
        with suppress(BaseBumbleError, TimeoutError, asyncio.CancelledError):
            async with asyncio.timeout(self._limits.channel_s):
                channel = await link.connection.create_l2cap_channel(ClassicChannelSpec(psm=PSM))
                self._use(link, channel)
                link.write(b"")  # from here on we hear

    def _on_channel(self, channel: ClassicChannel) -> None:
        link = self._links.get(address_of(channel.connection.peer_address))
        is_secure = self._unpaired is Unpaired.ACCEPT or channel.connection.is_encrypted
        if link is not None and link.channel is None and not link.is_caller and is_secure:
            self._use(link, channel)

    def _use(self, link: Link, channel: ClassicChannel) -> None:
        link.channel = channel
        channel.sink = lambda piece: self._hear(link, piece)

    def _hear(self, link: Link, piece: bytes) -> None:
        if link.is_closing:
            return
        try:
            messages = [each for each in link.deframer.feed(piece) if each]
        except TooLongError as error:
            self._trouble(error)
            self._break(link)
            return
        link.has_channel.set()
        if link.is_told:
            for data in messages:
                self._tell(Received(link.address, data))
            return
        link.early += messages
        if len(link.early) > MAX_EARLY or sum(map(len, link.early)) > MAX_EARLY_BYTES:
            self._break(link)

    def _break(self, link: Link) -> None:
        """Close a connection on our own initiative: our side gets the same event as after a loss."""
        self.disconnect(link.address)
        if link.is_told:
            self._tell(LinkLost(link.address))

    async def _close(self, link: Link) -> None:
        await link.close(self._limits.close_s)
        if not link.gone.is_set():
            self._forget(link)
            self._trouble(CommandSilentError("the end of HCI_DISCONNECT_COMMAND", self._limits.close_s))

    def _forget(self, link: Link) -> None:
        link.gone.set()
        if self._links.get(link.address) is link:
            del self._links[link.address]

    def _on_disconnection(self, link: Link) -> None:
        self._forget(link)
        if link.is_closing:
            return
        if link.is_told:
            self._tell(LinkLost(link.address))
        elif link.is_caller:
            self._tell(PageFailed(link.address))

    def _on_role(self, link: Link, role: hci.Role) -> None:
        if link.is_told:
            self._tell(RoleSwitched(link.address, is_master=role == hci.Role.CENTRAL))


def _pending(device: object, to: hci.Address) -> BumbleConnection:
    """Return the connection that Bumble completes when the page is answered; so it knows that we are master."""
    from bumble.device import Device

    assert isinstance(device, Device)
    return BumbleConnection(
        device=device,
        handle=0,
        transport=PhysicalTransport.BR_EDR,
        self_address=device.public_address,
        self_resolvable_address=None,
        peer_address=to,
        peer_resolvable_address=None,
        role=hci.Role.CENTRAL,
        parameters=BumbleConnection.Parameters(0, 0, 0),
    )
