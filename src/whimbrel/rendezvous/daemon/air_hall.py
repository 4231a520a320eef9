"""A hall on the air in software: a controller and devices on Bumble's stack, all in one process.

For demonstrations, and to hold the real stack against the simulated radio: the same cores, the same messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from whimbrel.errors import WhimbrelError
from whimbrel.rendezvous.controller import Controller, Note, Parameters
from whimbrel.rendezvous.daemon.timers import LoopTimers, WallClock
from whimbrel.rendezvous.device import Device
from whimbrel.rendezvous.device.commands import Introduced, Tell, Verified
from whimbrel.rendezvous.events import Address
from whimbrel.rendezvous.nodes import ControllerNode, DeviceNode
from whimbrel.rendezvous.radio.bumble.adapter import Adapter, Limits
from whimbrel.rendezvous.radio.bumble.air.server import AirServer, RadioSpec
from whimbrel.rendezvous.radio.bumble.radio import BumbleRadio

__all__ = ["AirHall"]


class AirHall:
    """A controller, and devices around it."""

    def __init__(self, address: Address, parameters: Parameters | None = None, *, speed: float = 1.0) -> None:
        self._address = address
        self._parameters = parameters or Parameters(has_park=False)
        self._server = AirServer(speed=speed)
        self._radios: list[BumbleRadio] = []
        self._clock = WallClock()
        self.notes: list[Note] = []
        self.nodes: dict[Address, DeviceNode] = {}
        self.told: dict[Address, list[Introduced | Verified | Tell]] = {}
        self.troubles: list[WhimbrelError] = []
        self.watch: Callable[[BumbleRadio], None] = lambda _radio: None
        """Called with each radio before it is used; for those who write down what radios do."""
        self.controller: ControllerNode

    async def open(self) -> None:
        """Start the controller."""
        radio = await self._radio(self._address, self._parameters.name, (0.0, 0.0), 0)
        core = Controller(self._parameters, address=self._address, nonce_key=Random("hall").randbytes(32))  # noqa: S311 # a hall for show
        self.controller = ControllerNode(
            core, radio, LoopTimers(), now=self._clock.now, note=lambda note, _now: self.notes.append(note)
        )
        radio.handler = self.controller.handle
        self.watch(radio)
        self.controller.start()

    async def add(
        self, device: Device, *, place: tuple[float, float] = (0.0, 0.0), is_shown: bool = False
    ) -> DeviceNode:
        """Bring *device* into the hall; one that *is_shown* is discoverable."""
        radio = await self._radio(device.address, device.name, place, device.device_class)
        told = self.told.setdefault(device.address, [])
        node = DeviceNode(device, radio, LoopTimers(), now=self._clock.now, told=lambda each, _now: told.append(each))
        self.nodes[device.address] = node
        radio.handler = node.handle
        self.watch(radio)
        if is_shown:
            node.show()
        return node

    def exposure(self, who: Address) -> dict[str, float]:
        """Return for how many seconds a device was discoverable, and connectable."""
        return self.nodes[who].exposure.seconds(self._clock.now())

    async def _radio(self, address: Address, name: str, place: tuple[float, float], device_class: int) -> BumbleRadio:
        transport = await self._server.offer(RadioSpec(address=address, place=place))
        adapter = await Adapter.open(transport, device_name=name, device_class=device_class, limits=Limits())
        radio = BumbleRadio(adapter, now=self._clock.now, trouble=self.troubles.append)
        self._radios.append(radio)
        return radio

    async def until(self, is_so: Callable[[], bool], *, limit_s: float = 60.0) -> bool:
        """Wait until something is so, and return whether it is."""
        loop = asyncio.get_running_loop()
        end = loop.time() + limit_s
        while not is_so() and loop.time() < end:  # noqa: ASYNC110 # what is awaited is in another object's hands
            await asyncio.sleep(0.01)
        return is_so()

    async def close(self) -> None:
        """End everything."""
        await asyncio.gather(*(radio.close() for radio in self._radios))
        await self._server.close()
