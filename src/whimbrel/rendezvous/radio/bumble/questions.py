"""Queries of the adapter for names and clock offsets of other devices, with a cache.

Rule: a query that times out has no answer. An adapter that does not report clock offsets is queried once.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

from bumble import hci

from whimbrel.errors import WhimbrelError
from whimbrel.rendezvous.events import Address
from whimbrel.rendezvous.radio.bumble.adapter import Adapter, address_of, hci_address
from whimbrel.rendezvous.radio.bumble.errors import CommandSilentError, RadioError
from whimbrel.rendezvous.radio.bumble.links import Link

__all__ = ["PAGE_SCAN_R1", "REMEMBERED", "Questions", "given_offset"]

PAGE_SCAN_R1 = 1
REMEMBERED = 1_024
"""Devices whose name and clock offset are remembered."""

_CLOCK_OFFSET_IS_VALID = 0x8000
_V = TypeVar("_V")


class Questions:
    """Asks one adapter."""

    def __init__(self, adapter: Adapter, *, trouble: Callable[[WhimbrelError], None]) -> None:
        self._adapter, self._limits, self._trouble = adapter, adapter.limits, trouble
        self._names: OrderedDict[Address, str] = OrderedDict()
        self._offsets: OrderedDict[Address, int] = OrderedDict()
        self._name_answers: dict[Address, asyncio.Future[str]] = {}
        self._offset_answers: dict[int, asyncio.Future[int]] = {}
        self._is_offset_known = True
        """Whether this adapter answers when it is asked for a clock offset."""
        adapter.device.on("remote_name", lambda address, name: self._take_name(address_of(address), name))
        adapter.device.on("remote_name_failure", lambda address, _error: self._take_name(address_of(address), ""))
        adapter.host.on("clock_offset", self._take_offset)

    def name_of(self, address: Address) -> str | None:
        """Return the last known name of a device, or None."""
        return self._names.get(address)

    def offset_of(self, address: Address) -> int | None:
        """Return the last measured clock offset of a device, or None."""
        return self._offsets.get(address)

    def learn(self, address: Address, name: str, offset: int) -> None:
        """Cache name and clock offset from an inquiry."""
        _keep(self._names, address, name)
        _keep(self._offsets, address, offset)

    async def ask_name(self, address: Address) -> str:
        """Request the name of a device and return it, empty without an answer."""
        answer = self._name_answers.setdefault(address, asyncio.get_running_loop().create_future())
        command = hci.HCI_Remote_Name_Request_Command(
            bd_addr=hci_address(address),
            page_scan_repetition_mode=PAGE_SCAN_R1,
            reserved=0,
            clock_offset=given_offset(self._offsets.get(address)),
        )
        try:
            await self._adapter.command(command)
            async with asyncio.timeout(self._limits.name_s):
                name = await asyncio.shield(answer)
        except (TimeoutError, RadioError):
            return ""
        finally:
            self._name_answers.pop(address, None)
        if name:
            _keep(self._names, address, name)
        return name

    def _take_name(self, address: Address, name: str) -> None:
        answer = self._name_answers.get(address)
        if answer is not None and not answer.done():
            answer.set_result(name)

    # -- clock offsets -------------------------------------------------------------------------------------------------

    async def ask_offset(self, link: Link) -> None:
        """Measure the clock offset of a connected device."""
        if not self._is_offset_known:
            return
        handle = link.connection.handle
        answer = self._offset_answers[handle] = asyncio.get_running_loop().create_future()
        try:
            await self._adapter.command(hci.HCI_Read_Clock_Offset_Command(connection_handle=handle))
            async with asyncio.timeout(self._limits.offset_s):
                _keep(self._offsets, link.address, await answer)
        except (TimeoutError, RadioError):  # pages take twice as long; nothing else is lost
            if not link.gone.is_set():
                self._is_offset_known = False
                self._trouble(CommandSilentError("HCI_READ_CLOCK_OFFSET_COMMAND", self._limits.offset_s))
        finally:
            self._offset_answers.pop(handle, None)

    def _take_offset(self, handle: int, offset: int) -> None:
        answer = self._offset_answers.get(handle)
        if answer is not None and not answer.done():
            answer.set_result(offset)


def given_offset(offset: int | None) -> int:
    """Return a clock offset as HCI takes it: 0 stands for one that is not known."""
    return 0 if offset is None else offset | _CLOCK_OFFSET_IS_VALID


def _keep(table: OrderedDict[Address, _V], address: Address, value: _V) -> None:
    table[address] = value
    table.move_to_end(address)
    if len(table) > REMEMBERED:
        table.popitem(last=False)
