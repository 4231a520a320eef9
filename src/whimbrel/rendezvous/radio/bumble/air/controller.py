"""One radio of the air: Bumble's Controller with what the standard demands and it leaves out.

Added are inquiries with scans that are enforced, class and name, pages that are answered only by a radio in reach that
listens, within the page time-out, clock offsets, at most seven slaves, one page or inquiry at a time, refused
connections and link keys that are compared. Pages take some milliseconds instead of a second: time is not simulated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from random import Random
from typing import Any

from bumble import hci, lmp
from bumble.controller import Connection, Controller

from whimbrel.rendezvous.radio.bumble.air.ether import Ether
from whimbrel.rendezvous.radio.bumble.errors import MAX_SLAVES

__all__ = ["AirController"]

_INQUIRY_SCAN, _PAGE_SCAN = 1, 2
_SLOT_S = 625e-6
_CLOCK_BITS = 28
_ANSWER_S = 0.02
"""How long a scanner takes to answer an inquiry or a page."""
_INQUIRY_UNIT_S = 1.28
_OK = hci.HCI_StatusReturnParameters(hci.HCI_ErrorCode.SUCCESS)
_Status = hci.HCI_ErrorCode


class AirController(Controller):
    """A radio at *place*; *refuses* and *ignores* are commands that it refuses at once, or never answers."""

    lmp_features = hci.LmpFeatureMask.EXTENDED_FEATURES | hci.LmpFeatureMask.SECURE_SIMPLE_PAIRING_CONTROLLER_SUPPORT
    acl_data_packet_length = 1_021

    def __init__(
        self,
        name: str,
        *,
        ether: Ether,
        address: str,
        place: tuple[float, float] = (0.0, 0.0),
        random: Random,
        refuses: frozenset[str] = frozenset(),
        ignores: frozenset[str] = frozenset(),
        host_source: Any = None,  # noqa: ANN401 # Bumble's own types are open
        host_sink: Any = None,  # noqa: ANN401 # as above
    ) -> None:
        public = hci.Address(address, hci.Address.PUBLIC_DEVICE_ADDRESS)
        super().__init__(name, host_source=host_source, host_sink=host_sink, link=ether, public_address=public)
        self.ether, self.place, self.refuses, self.ignores = ether, place, refuses, ignores
        self._clock = random.getrandbits(_CLOCK_BITS)
        self.device_class, self.response, self._page_timeout_s = 0, bytes(240), 5.12
        self._inquiry: asyncio.Task[None] | None = None
        self._page: tuple[hci.Address, asyncio.Task[None]] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def on_hci_command_packet(self, command: hci.HCI_Command) -> None:
        """Execute a command, unless this radio refuses or ignores it."""
        if command.name in self.ignores:
            return
        if command.name not in self.refuses:
            super().on_hci_command_packet(command)
        elif isinstance(command, hci.HCI_SyncCommand):
            refused = hci.HCI_StatusReturnParameters(_Status.UNKNOWN_HCI_COMMAND_ERROR)
            self.send_hci_packet(
                hci.HCI_Command_Complete_Event(
                    num_hci_command_packets=1, command_opcode=command.op_code, return_parameters=refused
                )
            )
        else:
            self._send_hci_command_status(_Status.UNKNOWN_HCI_COMMAND_ERROR, command.op_code)

    def _run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # -- what a radio says of itself -----------------------------------------------------------------------------------

    def offset_of(self, other: AirController) -> int:
        """Return the clock offset of *other*: bits 16 to 2 of its clock less one's own; clocks do not drift here."""
        return ((other._clock >> 2) - (self._clock >> 2)) & 0x7FFF

    def on_hci_write_class_of_device_command(
        self, command: hci.HCI_Write_Class_Of_Device_Command
    ) -> hci.HCI_StatusReturnParameters:
        """Store the class of device."""
        self.device_class = command.class_of_device
        return _OK

    def on_hci_write_extended_inquiry_response_command(
        self, command: hci.HCI_Write_Extended_Inquiry_Response_Command
    ) -> hci.HCI_StatusReturnParameters:
        """Store the response to inquiries."""
        self.response = command.extended_inquiry_response
        return _OK

    def on_hci_write_inquiry_mode_command(self, _command: object) -> hci.HCI_StatusReturnParameters:
        """Accept any mode; results are always extended ones."""
        return _OK

    def on_hci_write_secure_connections_host_support_command(self, _command: object) -> hci.HCI_StatusReturnParameters:
        """Accept the setting without using it."""
        return _OK

    def on_hci_write_page_timeout_command(
        self, command: hci.HCI_Write_Page_Timeout_Command
    ) -> hci.HCI_StatusReturnParameters:
        """Store the page time-out."""
        self._page_timeout_s = command.page_timeout * _SLOT_S / self.ether.speed
        return _OK

    # -- inquiry -------------------------------------------------------------------------------------------------------

    def on_hci_inquiry_command(self, command: hci.HCI_Inquiry_Command) -> None:
        """Begin an inquiry, unless an inquiry or a page is in progress."""
        if self._inquiry is not None or self._page is not None:
            self._send_hci_command_status(_Status.COMMAND_DISALLOWED_ERROR, command.op_code)
            return
        self._send_hci_command_status(_Status.SUCCESS, command.op_code)
        self._inquiry = self._run(self._inquire(command.inquiry_length * _INQUIRY_UNIT_S / self.ether.speed))

    async def _inquire(self, duration_s: float) -> None:
        """Report each scanner once, since adapters filter duplicates."""
        loop = asyncio.get_running_loop()
        end, heard = loop.time() + duration_s, set[AirController]()
        while loop.time() < end:
            await asyncio.sleep(_ANSWER_S)
            for each in self.ether.neighbours(self):
                if each.classic_scan_enable & _INQUIRY_SCAN and each not in heard:
                    heard.add(each)
                    self.send_hci_packet(
                        hci.HCI_Extended_Inquiry_Result_Event(
                            num_responses=1,
                            bd_addr=each.public_address,
                            page_scan_repetition_mode=1,
                            reserved=0,
                            class_of_device=each.device_class,
                            clock_offset=self.offset_of(each),
                            rssi=-50,
                            extended_inquiry_response=each.response,
                        )
                    )
        self._inquiry = None
        self.send_hci_packet(hci.HCI_Inquiry_Complete_Event(status=0))

    def on_hci_inquiry_cancel_command(self, _command: object) -> hci.HCI_StatusReturnParameters:
        """End the inquiry."""
        if self._inquiry is not None:
            self._inquiry.cancel()
            self._inquiry = None
        return _OK

    def on_hci_remote_name_request_command(self, command: hci.HCI_Remote_Name_Request_Command) -> None:
        """Ask a radio for its name, if it is connected or listens."""
        self._send_hci_command_status(_Status.SUCCESS, command.op_code)
        peer = self.ether.peer(self, command.bd_addr)
        is_connected = command.bd_addr in self.classic_connections
        if peer is not None and (is_connected or peer.classic_scan_enable & _PAGE_SCAN):
            self.send_lmp_packet(command.bd_addr, lmp.LmpNameReq(0))
            return
        failed = hci.HCI_Remote_Name_Request_Complete_Event(
            status=_Status.PAGE_TIMEOUT_ERROR, bd_addr=command.bd_addr, remote_name=b""
        )
        asyncio.get_running_loop().call_later(self._page_timeout_s, self.send_hci_packet, failed)

    # -- pages ---------------------------------------------------------------------------------------------------------

    def on_hci_create_connection_command(self, command: hci.HCI_Create_Connection_Command) -> None:
        """Page a radio until it answers or the page time-out ends."""
        if self._page is not None or self._inquiry is not None:
            self._send_hci_command_status(_Status.COMMAND_DISALLOWED_ERROR, command.op_code)
        elif command.bd_addr in self.classic_connections:
            self._send_hci_command_status(_Status.CONNECTION_ALREADY_EXISTS_ERROR, command.op_code)
        elif self.slaves >= MAX_SLAVES:
            self._send_hci_command_status(_Status.CONNECTION_LIMIT_EXCEEDED_ERROR, command.op_code)
        else:
            self._send_hci_command_status(hci.HCI_COMMAND_STATUS_PENDING, command.op_code)
            self._page = command.bd_addr, self._run(self._page_until_heard(command))

    @property
    def slaves(self) -> int:
        """Number of connections in which this radio is master."""
        return sum(each.role == hci.Role.CENTRAL for each in self.classic_connections.values())

    async def _page_until_heard(self, command: hci.HCI_Create_Connection_Command) -> None:
        loop = asyncio.get_running_loop()
        address, end = command.bd_addr, loop.time() + self._page_timeout_s
        try:
            while loop.time() < end:
                await asyncio.sleep(_ANSWER_S)
                peer = self.ether.peer(self, address)
                if peer is None or not peer.classic_scan_enable & _PAGE_SCAN:
                    continue
                if address in self.classic_connections:  # it paged us meanwhile
                    self.on_classic_connection_complete(address, _Status.CONNECTION_ALREADY_EXISTS_ERROR)
                    return
                await self._connect(command)
                return
            self.on_classic_connection_complete(address, _Status.PAGE_TIMEOUT_ERROR)
        finally:
            self._page = None

    async def _connect(self, command: hci.HCI_Create_Connection_Command) -> None:
        """Connect by Bumble's own code, with its command status suppressed."""
        address, status = command.bd_addr, self._send_hci_command_status
        self._send_hci_command_status = lambda *_args: None  # type: ignore[method-assign]  # for this call
        try:
            super().on_hci_create_connection_command(command)
        finally:
            self._send_hci_command_status = status  # type: ignore[method-assign]  # as it was
        future = self.classic_pending_commands[address][lmp.Opcode.LMP_HOST_CONNECTION_REQ]
        answered, _ = await asyncio.wait((future,), timeout=self._page_timeout_s)
        if not answered:
            self.on_classic_connection_complete(address, _Status.PAGE_TIMEOUT_ERROR)

    def on_classic_connection_complete(self, peer_address: hci.Address, status: int) -> None:
        """Report the result to the host; remove a connection that failed."""
        if status not in {_Status.SUCCESS, _Status.CONNECTION_ALREADY_EXISTS_ERROR}:
            self.classic_connections.pop(peer_address, None)
        super().on_classic_connection_complete(peer_address, status)

    def on_hci_create_connection_cancel_command(
        self, command: hci.HCI_Create_Connection_Cancel_Command
    ) -> hci.HCI_StatusAndAddressReturnParameters:
        """End a page."""
        if self._page is not None and self._page[0] == command.bd_addr:
            self._page[1].cancel()
            self._page = None
            self.on_classic_connection_complete(command.bd_addr, _Status.UNKNOWN_CONNECTION_IDENTIFIER_ERROR)
        return hci.HCI_StatusAndAddressReturnParameters(status=_Status.SUCCESS, bd_addr=command.bd_addr)

    def on_classic_connection_request(self, peer_address: hci.Address, link_type: int) -> None:
        """Pass a connection request to our host, after ending an older connection of the same device."""
        if peer_address in self.classic_connections:
            self.on_classic_disconnected(peer_address, _Status.CONNECTION_TIMEOUT_ERROR)
        super().on_classic_connection_request(peer_address, link_type)

    def on_hci_reject_connection_request_command(self, command: hci.HCI_Reject_Connection_Request_Command) -> None:
        """Refuse a page."""
        self._send_hci_command_status(_Status.SUCCESS, command.op_code)
        self.classic_connections.pop(command.bd_addr, None)
        refusal = lmp.LmpNotAccepted(lmp.Opcode.LMP_HOST_CONNECTION_REQ, command.reason)
        self.send_lmp_packet(command.bd_addr, refusal)

    # -- connections ---------------------------------------------------------------------------------------------------

    def on_classic_role_change_request(self, peer_address: hci.Address) -> None:
        """Refuse a role change if the other radio is already master of seven slaves."""
        peer = self.ether.peer(self, peer_address)
        if peer is not None and peer.slaves >= MAX_SLAVES:
            full = lmp.LmpNotAccepted(lmp.Opcode.LMP_SWITCH_REQ, _Status.CONNECTION_LIMIT_EXCEEDED_ERROR)
            self.send_lmp_packet(peer_address, full)
            return
        super().on_classic_role_change_request(peer_address)

    def on_hci_read_clock_offset_command(self, command: hci.HCI_Read_Clock_Offset_Command) -> None:
        """Measure the clock offset of a connected radio."""
        self._send_hci_command_status(_Status.SUCCESS, command.op_code)
        connection = self.find_classic_connection_by_handle(command.connection_handle)
        peer = None if connection is None else self.ether.peer(self, connection.peer_address)
        self.send_hci_packet(
            hci.HCI_Read_Clock_Offset_Complete_Event(
                status=_Status.SUCCESS if peer is not None else _Status.UNKNOWN_CONNECTION_IDENTIFIER_ERROR,
                connection_handle=command.connection_handle,
                clock_offset=0 if peer is None else self.offset_of(peer),
            )
        )

    # -- link keys -----------------------------------------------------------------------------------------------------

    def on_hci_authentication_requested_command(self, command: hci.HCI_Authentication_Requested_Command) -> None:
        """Begin authentication: request the link key from our host, then from the other; without a key they pair."""
        connection = self.find_classic_connection_by_handle(command.connection_handle)
        if connection is None:
            self._send_hci_command_status(_Status.UNKNOWN_CONNECTION_IDENTIFIER_ERROR, command.op_code)
            return
        self._send_hci_command_status(hci.HCI_COMMAND_STATUS_PENDING, command.op_code)
        connection.ssp_state.is_initiator = True
        self.send_hci_packet(hci.HCI_Link_Key_Request_Event(bd_addr=connection.peer_address))

    def on_hci_link_key_request_reply_command(
        self, command: hci.HCI_Link_Key_Request_Reply_Command
    ) -> hci.HCI_StatusAndAddressReturnParameters:
        """Handle the link key of a host; when both hosts have replied, the keys are compared."""
        own, peer = self._ends(command.bd_addr)
        if own is not None and peer is not None:
            own.ssp_state.link_key = command.link_key
            if own.ssp_state.is_initiator:
                peer.controller.send_hci_packet(hci.HCI_Link_Key_Request_Event(bd_addr=self.public_address))
            else:
                is_same = peer.ssp_state.link_key == command.link_key
                _end_authentication(peer, _Status.SUCCESS if is_same else _Status.AUTHENTICATION_FAILURE_ERROR)
        return hci.HCI_StatusAndAddressReturnParameters(status=_Status.SUCCESS, bd_addr=command.bd_addr)

    def on_hci_link_key_request_negative_reply_command(
        self, command: hci.HCI_Link_Key_Request_Negative_Reply_Command
    ) -> hci.HCI_StatusAndAddressReturnParameters:
        """Handle a missing key: pair if the host that began has none, fail if only the other host has none."""
        own, peer = self._ends(command.bd_addr)
        if own is not None and peer is not None and not own.ssp_state.is_initiator:
            _end_authentication(peer, _Status.PIN_OR_KEY_MISSING_ERROR)
            return hci.HCI_StatusAndAddressReturnParameters(status=_Status.SUCCESS, bd_addr=command.bd_addr)
        return super().on_hci_link_key_request_negative_reply_command(command)

    def on_hci_set_connection_encryption_command(self, command: hci.HCI_Set_Connection_Encryption_Command) -> None:
        """Encrypt a connection if both ends have the same key."""
        self._send_hci_command_status(_Status.SUCCESS, command.op_code)
        found = self.find_classic_connection_by_handle(command.connection_handle)
        own, peer = (None, None) if found is None else self._ends(found.peer_address)
        if own is None or peer is None:
            return
        key = own.ssp_state.link_key
        status = _Status.SUCCESS if key and key == peer.ssp_state.link_key else _Status.PIN_OR_KEY_MISSING_ERROR
        for end in (own, peer) if status == _Status.SUCCESS else (own,):
            end.controller.send_hci_packet(
                hci.HCI_Encryption_Change_Event(
                    status=status,
                    connection_handle=end.handle,
                    encryption_enabled=hci.HCI_Encryption_Change_Event.Enabled.AES_CCM,
                )
            )

    def _ends(self, peer: hci.Address) -> tuple[Connection | None, Connection | None]:
        """Return our end of a connection and the other end."""
        other = self.ether.peer(self, peer)
        return self.classic_connections.get(peer), None if other is None else other.classic_connections.get(
            self.public_address
        )

    def lose(self, address: hci.Address) -> None:
        """End the connection to the radio at *address*, which is silent, unless a new one has begun there."""
        peer = self.ether.find_classic_controller(address)
        is_connected = peer is not None and self.public_address in peer.classic_connections
        if address in self.classic_connections and not is_connected:  # a new process may be at this address by now
            self.on_classic_disconnected(address, _Status.CONNECTION_TIMEOUT_ERROR)

    def stop(self) -> None:
        """Remove this radio from the air: the process behind it has ended."""
        for task in list(self._tasks):
            task.cancel()
        self.ether.remove(self)


def _end_authentication(initiator: Connection, status: hci.HCI_ErrorCode) -> None:
    initiator.controller.send_hci_packet(
        hci.HCI_Authentication_Complete_Event(status=status, connection_handle=initiator.handle)
    )
