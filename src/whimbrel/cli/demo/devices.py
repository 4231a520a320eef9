"""The ward's devices: clients over real sockets that perform the fleet's plan and record what they see.

Rule: a device does one thing after the other, in a task of its own; its next actions wait in a queue.
Rule: a device that vanishes sends nothing, not even a DISCONNECT; a device that leaves first waits for its answers.
Rule: the demo ends only when no notification is on its way. To find out, every connected device repeatedly sends the
broker a request. None is on its way when two rounds of answers arrive and no device received a notification meanwhile.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from whimbrel.cli.demo.tallies import Receipt, Tallies
from whimbrel.client import Client, ClientError, Join, Message
from whimbrel.sim.fleet import Change, Device, Fleet, Move, Reading, Wish
from whimbrel.sim.witnesses import Heard, Sent

__all__ = ["Devices"]

_KEPT_S = 24 * 3_600
_SETTLE_S = 60.0
_SILENT_ROUNDS = 2
_PAUSE_S = 0.5
"""Pause in seconds after a round of answers: longer than any device takes to process a received message."""


class _Wanderer(Client):
    """A client that can disappear without a DISCONNECT."""

    async def vanish(self) -> None:
        """Break the connection, as an empty battery does."""
        if self._link is not None:
            self._link.abort()
        await self.close()


@dataclass(eq=False, slots=True)
class _Line:
    """One connection of a device."""

    client: _Wanderer
    begun_us: int
    sending: set[asyncio.Task[None]] = field(default_factory=set)
    is_open: bool = True
    """Whether the device still sends over this connection."""
    has_gone: bool = False
    """Whether the connection ended without a DISCONNECT."""


@dataclass(slots=True)
class _Told:
    """A publication: its device, QoS and connection, and whether it was acknowledged."""

    device: str
    qos: int
    line: _Line
    is_acknowledged: bool = False


class _Alive:
    """One device and its state."""

    def __init__(self, plan: Device) -> None:
        self.plan = plan
        self.moves: asyncio.Queue[Change] = asyncio.Queue()
        self.line: _Line | None = None
        self.listening: asyncio.Task[None] | None = None
        self.heard = Heard()
        self.has_subscribed = False


class Devices:
    """All devices of *fleet*, at the broker on *port*."""

    def __init__(self, fleet: Fleet, port: int, tallies: Tallies) -> None:
        self._fleet, self._port, self._tallies = fleet, port, tallies
        self._alive = {device.name: _Alive(device) for device in fleet.devices}
        self._told: dict[bytes, _Told] = {}
        self._lives: list[asyncio.Task[None]] = []
        self._is_over = False
        self.failures: list[str] = []
        """Events that should not have happened."""

    # -- what happens ------------------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Create the sessions of the people, with their subscriptions."""
        async with Client("127.0.0.1", self._port, client_id="caretaker", reconnect=None) as client:
            for person in self._fleet.people:
                await client.sessions.create(person.session)
                for number, wish in enumerate(person.wishes):
                    await client.sessions.subscribe(
                        person.session,
                        wish.subject_filter,
                        filter=wish.filter_text,
                        ttl_s=wish.ttl_s,
                        max=wish.max_held,
                        subscription=str(number),
                    )

    async def live(self, moves: Iterator[Move], readings: Iterator[Reading]) -> None:
        """Connect and disconnect devices, and publish readings, at their planned times, until cancelled."""
        begun = time.monotonic()
        self._lives = [asyncio.create_task(self._life(alive)) for alive in self._alive.values()]
        try:
            async with asyncio.TaskGroup() as together:
                together.create_task(self._move(moves, begun))
                together.create_task(self._publish(readings, begun))
        except asyncio.CancelledError:
            pass

    async def _move(self, moves: Iterator[Move], begun: float) -> None:
        for move in moves:
            await asyncio.sleep(max(0.0, begun + move.at_s - time.monotonic()))
            self._alive[move.device].moves.put_nowait(move.change)

    async def _publish(self, readings: Iterator[Reading], begun: float) -> None:
        for number, reading in enumerate(readings):
            await asyncio.sleep(max(0.0, begun + reading.at_s - time.monotonic()))
            line = self._alive[reading.device].line
            if line is not None and line.is_open:
                task = asyncio.create_task(self._say(line, reading, number))
                line.sending.add(task)
                task.add_done_callback(line.sending.discard)

    async def _say(self, line: _Line, reading: Reading, number: int) -> None:
        body = reading.body(number, time.time_ns() // 1_000)
        told = self._told[hashlib.sha256(body).digest()] = _Told(reading.device, reading.qos, line)
        self._tallies.note_published(time.monotonic())
        self._tallies.note_values(reading.values)
        try:
            await line.client.publish(reading.subject, body, qos=reading.qos, expiry_s=reading.expiry_s)
        except ClientError as error:
            if not line.has_gone:
                self.failures.append(f"{reading.device} could not publish: {error}")
        else:
            told.is_acknowledged = reading.qos > 0

    # -- one device --------------------------------------------------------------------------------------------------

    async def _life(self, alive: _Alive) -> None:
        while True:
            change = await alive.moves.get()
            try:
                if change is Change.COMES:
                    await self._come(alive)
                else:
                    await self._go(alive, change)
            except ClientError as error:
                self.failures.append(f"{alive.plan.name} {change.value}: {error}")
            finally:
                alive.moves.task_done()

    async def _come(self, alive: _Alive) -> None:
        plan = alive.plan
        client = _Wanderer(
            "127.0.0.1",
            self._port,
            client_id=plan.name,
            session_expiry_s=_KEPT_S if plan.is_kept else 0,
            reconnect=None,
            join=[] if plan.session is None else [Join(plan.session, receipt=plan.receipt)],
        )
        begun_us = time.time_ns() // 1_000
        await client.__aenter__()
        line = _Line(client, begun_us)
        alive.listening = asyncio.create_task(self._listen(alive, line))
        if not (plan.is_kept and alive.has_subscribed):
            for wish in plan.wishes:
                await _subscribe(client, wish)
            alive.has_subscribed = True
        alive.line = line

    async def _go(self, alive: _Alive, change: Change) -> None:
        line, listening = alive.line, alive.listening
        if line is None or listening is None:
            return  # it failed to connect
        alive.line, line.is_open = None, False
        if change is Change.VANISHES:
            line.has_gone = True
            listening.cancel()
            await line.client.vanish()
        else:
            if line.sending:
                await asyncio.wait(line.sending)
            listening.cancel()
        with suppress(asyncio.CancelledError):
            await listening
        if change is Change.LEAVES:
            await line.client.__aexit__(None, None, None)

    async def _listen(self, alive: _Alive, line: _Line) -> None:
        try:
            async for message in line.client.messages():
                self._note(alive, line, message)
                await asyncio.sleep(alive.plan.handles_s)
        except ClientError as error:
            if not (line.has_gone or self._is_over):
                self.failures.append(f"{alive.plan.name} was cut off: {error}")

    def _note(self, alive: _Alive, line: _Line, message: Message) -> None:
        alive.heard.note(hashlib.sha256(message.payload).digest(), is_dup=message.dup)
        sent_us = int(json.loads(message.payload)["sent_us"])
        waited_us = max(0, time.time_ns() // 1_000 - sent_us)
        receipt = Receipt(
            time.monotonic(), alive.plan.name, message.topic, message.payload, waited_us, sent_us >= line.begun_us
        )
        self._tallies.note_received(receipt, is_told=alive.plan.session is not None)

    # -- the end -----------------------------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Wait until everything sent is acknowledged, and everything on its way has arrived."""
        try:
            async with asyncio.timeout(_SETTLE_S):
                for alive in self._alive.values():
                    await alive.moves.join()
                sending = [task for line in self._open() for task in line.sending]
                if sending:
                    await asyncio.wait(sending)
                await self._fall_silent()
        except TimeoutError:
            self.failures.append(f"the ward did not come to rest in {_SETTLE_S:g} s")
        except ClientError as error:
            self.failures.append(f"the ward did not come to rest: {error}")
        for alive in self._alive.values():
            alive.heard.is_present = alive.line is not None
        self._is_over = True  # from now on, a disconnection is not a failure

    async def _fall_silent(self) -> None:
        silent, before = 0, -1
        while silent < _SILENT_ROUNDS:
            await asyncio.gather(*(line.client.sessions.list() for line in self._open()))
            await asyncio.sleep(_PAUSE_S)
            received = self._tallies.received
            silent = silent + 1 if received == before else 0
            before = received

    async def close(self) -> None:
        """Disconnect all devices, after the broker has ended."""
        self._is_over = True
        for life in self._lives:
            life.cancel()
        for alive in self._alive.values():
            line, alive.line = alive.line, None
            if line is not None:
                line.is_open = False
                await line.client.close()
        listening = [alive.listening for alive in self._alive.values() if alive.listening is not None]
        for task in listening:
            task.cancel()
        await asyncio.gather(*self._lives, *listening, return_exceptions=True)

    def _open(self) -> list[_Line]:
        return [alive.line for alive in self._alive.values() if alive.line is not None]

    # -- what is told ------------------------------------------------------------------------------------------------

    def is_present(self, device: str) -> bool:
        """Return whether a device is connected."""
        return self._alive[device].line is not None

    @property
    def present(self) -> int:
        """Number of connected devices."""
        return len(self._open())

    def sent(self) -> dict[bytes, Sent]:
        """Return the publications, by the hash of their bodies."""
        return {
            body_hash: Sent(told.device, told.qos, told.is_acknowledged, told.line.has_gone)
            for body_hash, told in self._told.items()
        }

    def heard(self) -> dict[str, Heard]:
        """Return the received notifications, by device."""
        return {device.name: self._alive[device.name].heard for device in self._fleet.listening()}


async def _subscribe(client: Client, wish: Wish) -> None:
    await client.subscribe(
        wish.subject_filter, filter=wish.filter_text, ttl_s=wish.ttl_s, max=wish.max_held, session=""
    )
