"""The show: runs the parts of the demo one after the other, and provides a view of the current state.

| phase | what happens |
|---|---|
| opening | the broker starts, the people's sessions are created |
| warming up | devices come, go and publish; Spark starts, and makes its first batch |
| busy | the same, with the pipeline following; this phase lasts the requested seconds |
| coming to rest | no device publishes; everything sent is acknowledged, everything on its way arrives |
| closing | the broker stops, as for an operator |
| accounting | the pipeline processes the log to its end, and its tables are added up |
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from whimbrel.cli.demo.broker import NODE, WardBroker
from whimbrel.cli.demo.devices import Devices
from whimbrel.cli.demo.pipeline import WardPipeline
from whimbrel.cli.demo.summary import Summary, summed_up
from whimbrel.cli.demo.tallies import Receipt, Tallies
from whimbrel.cli.demo.view import Bed, DemoSnapshot, Owner, PipelineView, Why
from whimbrel.hold.private import asked_for
from whimbrel.language.filters import Filter
from whimbrel.language.trace import reasons, trace
from whimbrel.match.topics import matches
from whimbrel.model.attributes import checked
from whimbrel.sim.fleet import FLEET, Fleet, Wish, moves, readings

__all__ = ["Show"]

_SPARK_SECONDS = 60


class Show:
    """The demo in *folder*: *seconds* of a ward that publishes *per_s* readings per second."""

    def __init__(self, folder: Path, *, seconds: float, rng: random.Random, per_s: float, fleet: Fleet = FLEET) -> None:
        self._seconds, self._rng, self._per_s, self._fleet = seconds, rng, per_s, fleet
        self._begun = time.monotonic()
        self._busy_from: float | None = None
        self._busy_until: float | None = None
        self._phase = "opening"
        self._ended = asyncio.Event()
        self._tallies = Tallies(self._begun)
        self._broker = WardBroker(folder / "broker")
        self._loop = asyncio.get_running_loop()
        self._follows, self._accounted = asyncio.Event(), asyncio.Event()
        self._pipeline = WardPipeline(
            self._broker.log, NODE, folder / "tables", on_first=self._on_first, on_end=self._on_end
        )
        self._devices: Devices | None = None
        self._filters: dict[str, Filter] = {}

    @property
    def is_ending(self) -> bool:
        """Whether the demo is ending, or has been told to end."""
        return self._ended.is_set()

    def end(self) -> None:
        """End the busy phase now."""
        self._ended.set()

    def _on_first(self) -> None:
        """Handle the pipeline's first batch; the pipeline's thread calls this."""
        self._say(self._follows)

    def _on_end(self) -> None:
        """Handle the end of the pipeline, successful or not; the pipeline's thread calls this."""
        self._say(self._ended, self._accounted)

    def _say(self, *events: asyncio.Event) -> None:
        with suppress(RuntimeError):  # the demo was aborted, and no caller waits
            for event in events:
                self._loop.call_soon_threadsafe(event.set)

    async def run(self) -> Summary:
        """Run all phases; return the account."""
        try:
            self._pipeline.start()  # Spark starts slowly, and need not wait for the broker
            await self._broker.start()
            self._devices = devices = Devices(self._fleet, self._broker.port, self._tallies)
            await devices.prepare()
            self._pipeline.follow()
            await self._be_busy(devices)
            self._ended.set()
            self._phase = "coming to rest"
            await devices.settle()
            self._phase = "closing the broker"
            await self._broker.stop()
            await devices.close()
            self._phase = "the pipeline takes the log to its end"
            self._pipeline.finish()
            await self._accounted.wait()
            ledger = self._pipeline.result()
            self._phase = "adding up"
            return await asyncio.to_thread(
                summed_up, ledger, sent=devices.sent(), heard=devices.heard(), failures=devices.failures
            )
        finally:
            self._pipeline.break_off()
            if self._devices is not None:
                await self._devices.close()
            await self._broker.kill()

    async def _be_busy(self, devices: Devices) -> None:
        rng = self._rng
        plan = moves(self._fleet, random.Random(rng.random())), readings(random.Random(rng.random()), per_s=self._per_s)
        living = asyncio.create_task(devices.live(*plan))
        ended, follows = asyncio.create_task(self._ended.wait()), asyncio.create_task(self._follows.wait())
        self._phase = "warming up"
        await asyncio.wait([living, ended, follows], return_when=asyncio.FIRST_COMPLETED)
        self._phase, self._busy_from = "busy", time.monotonic()
        await asyncio.wait([living, ended], timeout=self._seconds, return_when=asyncio.FIRST_COMPLETED)
        for task in (ended, follows, living):
            task.cancel()
        await living
        self._busy_until = time.monotonic()
        self._pipeline.check()

    # -- the view ------------------------------------------------------------------------------------------------------

    def view(self) -> DemoSnapshot:
        """Return the current state of the demo, for its page."""
        now, tallies, devices = time.monotonic(), self._tallies, self._devices
        plan = self._pipeline.view
        return DemoSnapshot(
            phase=self._phase,
            elapsed_s=now - self._begun,
            busy_s=0.0 if self._busy_from is None else (self._busy_until or now) - self._busy_from,
            seconds=self._seconds,
            devices=len(self._fleet.devices),
            present=0 if devices is None else devices.present,
            published=tallies.published,
            received=tallies.received,
            published_per_s=tuple(tallies.per_second("published", now, _SPARK_SECONDS)),
            received_per_s=tuple(tallies.per_second("received", now, _SPARK_SECONDS)),
            latency=tallies.latency(now),
            longest_held_us=tallies.longest_held_us,
            owners=() if devices is None else self._owners(devices, plan),
            why=tuple(self._why(receipt, now) for receipt in tallies.recent),
            pipeline=plan,
            beds={bed: Bed(*vitals) for bed, vitals in tallies.vitals.items()},
            batteries=dict(tallies.batteries),
        )

    def _owners(self, devices: Devices, plan: PipelineView) -> tuple[Owner, ...]:
        owned: dict[str, list[str]] = {}
        for device in self._fleet.listening():
            owned.setdefault(device.session or device.name, []).append(device.name)
        found = [
            Owner(
                name=name,
                here=tuple(each for each in theirs if devices.is_present(each)),
                away=tuple(each for each in theirs if not devices.is_present(each)),
                held=max((plan.away.get(each, 0) for each in theirs), default=0),
            )
            for name, theirs in owned.items()
        ]
        return tuple(sorted(found, key=lambda owner: (-owner.held, not owner.away, owner.name)))

    def _why(self, receipt: Receipt, now: float) -> Why:
        clock = datetime.fromtimestamp(time.time() - (now - receipt.at_s), tz=UTC).strftime("%H:%M:%S")
        return Why(clock, receipt.device, receipt.subject, self._reason(receipt), receipt.waited_us)

    def _reason(self, receipt: Receipt) -> str:
        """Return why the device got a notification: the attributes, with values, that made one of its filters true."""
        values = checked(json.loads(receipt.body))
        for wish in self._wishes(receipt.device):
            if wish.filter_text is None or not matches(asked_for(wish.subject_filter) or "#", receipt.subject):
                continue
            wanted = self._filters.setdefault(wish.filter_text, Filter(wish.filter_text))
            if wanted.verdict(values) is True:
                seen = {name: value for part in reasons(trace(wanted.tree, values)) for name, value in part.seen}
                return ", ".join(f"{name} is {value!s}" for name, value in seen.items())
        return "it asked for all of it"

    def _wishes(self, device: str) -> tuple[Wish, ...]:
        plan = next(each for each in self._fleet.devices if each.name == device)
        shared = (wish for person in self._fleet.people if person.session == plan.session for wish in person.wishes)
        return (*plan.wishes, *shared)
