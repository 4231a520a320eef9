"""The adapter: HCI commands with time limits and errors of ours, on Bumble's host and device.

Rule: nothing waits for ever. A command that is refused raises ``CommandRefusedError``, one that is not answered in time
``CommandSilentError``; an answer to a command that was given up is ignored.
Rule: what inquiries tell (class, clock offset, name) is kept; Bumble's own host leaves the clock offset out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from bumble import hci, transport
from bumble.core import AdvertisingData, BaseBumbleError
from bumble.device import Device, DeviceConfiguration
from bumble.host import Host
from bumble.transport.common import Transport

from whimbrel.rendezvous.events import Address, address_from
from whimbrel.rendezvous.radio.bumble.errors import CommandRefusedError, CommandSilentError, NoSuchTransportError

__all__ = ["Adapter", "Limits", "address_of", "hci_address"]

_EXTENDED_INQUIRY, _INQUIRY_WITH_RSSI, _PLAIN_INQUIRY = 2, 1, 0
_MAX_SHOWN_NAME_BYTES = 230
"""An extended inquiry response has 240 bytes for everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long the radio waits for its adapter and for other devices, in seconds."""

    open_s: float = 10.0
    command_s: float = 3.0
    page_s: float = 3.0
    """For the end of a page after its time is over."""
    name_s: float = 6.0
    channel_s: float = 3.0
    pairing_s: float = 10.0
    offset_s: float = 1.0
    retry_s: float = 0.5
    """Before a command is sent again that the adapter refused: it may be busy."""
    close_s: float = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """A device that answered an inquiry; only an extended answer has its name."""

    address: Address
    device_class: int
    clock_offset: int
    name: str | None


class _Host(Host):
    """Bumble's host with time limits, and with what it leaves out of inquiries."""

    def __init__(self, source: Any, sink: Any, limits: Limits) -> None:  # noqa: ANN401 # Bumble's own types are open
        super().__init__(source, sink)
        self.limits = limits
        self.last_command = "HCI_RESET_COMMAND"

    async def _send_command(self, command: Any, response_timeout: float | None = None) -> Any:  # noqa: ANN401 # as there
        self.last_command = command.name
        limit = response_timeout or self.limits.command_s
        try:
            return await super()._send_command(command, limit)
        except TimeoutError:
            raise CommandSilentError(command.name, limit) from None

    def on_command_processed(self, event: Any) -> None:  # noqa: ANN401 # as there
        """Take the answer to the command that waits; one to a command that was given up is ignored."""
        if self.pending_command is not None and self.pending_command.op_code != event.command_opcode:
            return
        if self.pending_response is not None and self.pending_response.done():
            return
        super().on_command_processed(event)

    def on_hci_inquiry_result_event(self, event: hci.HCI_Inquiry_Result_Event) -> None:
        """Take a plain answer to an inquiry."""
        for address, device_class, offset in zip(event.bd_addr, event.class_of_device, event.clock_offset, strict=True):
            self._hear(address, device_class, offset, b"")

    def on_hci_inquiry_result_with_rssi_event(self, event: hci.HCI_Inquiry_Result_With_RSSI_Event) -> None:
        """Take an answer to an inquiry with the strength of its signal, which is not used."""
        for address, device_class, offset in zip(event.bd_addr, event.class_of_device, event.clock_offset, strict=True):
            self._hear(address, device_class, offset, b"")

    def on_hci_extended_inquiry_result_event(self, event: hci.HCI_Extended_Inquiry_Result_Event) -> None:
        """Take an answer to an inquiry that says more, such as the name."""
        self._hear(event.bd_addr, event.class_of_device, event.clock_offset, event.extended_inquiry_response)

    def _hear(self, address: hci.Address, device_class: int, clock_offset: int, response: bytes) -> None:
        name: object = None
        with suppress(Exception):  # a stranger's radio may send anything
            name = AdvertisingData.from_bytes(response).get(AdvertisingData.Type.COMPLETE_LOCAL_NAME)
        heard = Heard(
            address=address_of(address),
            device_class=device_class,
            clock_offset=clock_offset & 0x7FFF,
            name=name if isinstance(name, str) else None,
        )
        self.emit("heard", heard)

    def on_hci_read_clock_offset_complete_event(self, event: hci.HCI_Read_Clock_Offset_Complete_Event) -> None:
        """Take the clock offset of a device that we are connected to."""
        self.emit("clock_offset", event.connection_handle, event.clock_offset & 0x7FFF if not event.status else 0)


class _Device(Device):
    """Bumble's device; *is_welcome* is called for every device that pages us."""

    is_welcome: Callable[[Address], bool] = staticmethod(lambda _address: True)

    def on_connection_request(self, bd_addr: hci.Address, class_of_device: int, link_type: int) -> None:
        """Accept a page, or refuse it."""
        self.classic_accept_any = self.is_welcome(address_of(bd_addr))
        super().on_connection_request(bd_addr, class_of_device, link_type)


class Adapter:
    """An adapter that has been opened and answers commands."""

    def __init__(self, name: str, opened: Transport, device: _Device, host: _Host, limits: Limits) -> None:
        self.name = name
        self._transport, self.device, self.host, self.limits = opened, device, host, limits
        self.terminated: asyncio.Future[None] = opened.source.terminated
        """Done when the adapter is gone."""

    @classmethod
    async def open(cls, name: str, *, device_name: str, device_class: int, limits: Limits) -> Adapter:
        """Open the adapter *name* (``usb:0``), and try everything that a controller or device needs of it."""
        opened = await _open_transport(name, limits)
        try:
            host = _Host(opened.source, opened.sink, limits)
            config = DeviceConfiguration(
                name=device_name,
                class_of_device=device_class,
                le_enabled=False,
                classic_enabled=True,
                classic_smp_enabled=False,
                connectable=False,
                discoverable=False,
                gap_service_enabled=False,
                gatt_service_enabled=False,
            )
            device = _Device(config=config, host=host)
            shown = device_name.encode()
            if len(shown) <= _MAX_SHOWN_NAME_BYTES:
                device.inquiry_response = bytes(AdvertisingData([(AdvertisingData.Type.COMPLETE_LOCAL_NAME, shown)]))
            else:
                device.inquiry_response = b""
            adapter = cls(name, opened, device, host, limits)
            await adapter._begin()
        except BaseException:
            await opened.close()
            raise
        return adapter

    async def _begin(self) -> None:
        """Bring the adapter up, and try an inquiry: better now than when it is needed."""
        try:
            async with asyncio.timeout(self.limits.open_s):
                await self.device.power_on()
        except TimeoutError:
            raise CommandSilentError(self.host.last_command, self.limits.open_s) from None
        except hci.HCI_Error as error:
            raise CommandRefusedError(self.host.last_command, error.error_name) from None
        for mode in (_EXTENDED_INQUIRY, _INQUIRY_WITH_RSSI, _PLAIN_INQUIRY):
            try:
                await self.command(hci.HCI_Write_Inquiry_Mode_Command(inquiry_mode=mode))
            except CommandRefusedError:
                continue
            break
        await self.command(hci.HCI_Write_Scan_Enable_Command(scan_enable=0))
        await self.command(hci.HCI_Inquiry_Command(lap=hci.HCI_GENERAL_INQUIRY_LAP, inquiry_length=1, num_responses=0))
        await self.command(hci.HCI_Inquiry_Cancel_Command())

    @property
    def address(self) -> Address:
        """The address of the adapter."""
        return address_of(self.device.public_address)

    async def command(self, command: hci.HCI_Command) -> None:
        """Send a command and wait until the adapter has accepted it."""
        try:
            if isinstance(command, hci.HCI_SyncCommand):
                await self.host.send_sync_command(command)
            elif isinstance(command, hci.HCI_AsyncCommand):
                await self.host.send_async_command(command)
        except hci.HCI_Error as error:
            raise CommandRefusedError(command.name, error.error_name) from None

    async def close(self) -> None:
        """Turn the scans off and let the adapter go."""
        with suppress(Exception):
            await self.command(hci.HCI_Write_Scan_Enable_Command(scan_enable=0))
        with suppress(Exception):
            async with asyncio.timeout(self.limits.close_s):
                await self._transport.close()


async def _open_transport(name: str, limits: Limits) -> Transport:
    try:
        async with asyncio.timeout(limits.open_s):
            return await transport.open_transport(name)
    except TimeoutError:
        raise NoSuchTransportError(name, f"it did not open within {limits.open_s:g} s") from None
    except (BaseBumbleError, OSError, ValueError, AssertionError, ImportError) as error:
        raise NoSuchTransportError(name, str(error) or type(error).__name__) from None
    except Exception as error:  # noqa: BLE001 # drivers raise what they like: usb1.USBError and bare exceptions
        raise NoSuchTransportError(name, f"{type(error).__name__}: {error}") from None


def address_of(address: hci.Address) -> Address:
    """Return Bumble's *address* as ours."""
    return address_from(bytes(address)[::-1])


def hci_address(address: Address) -> hci.Address:
    """Return our *address* as Bumble's."""
    return hci.Address(address, hci.Address.PUBLIC_DEVICE_ADDRESS)
