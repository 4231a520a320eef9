"""Figures of campus daemons: memory and core time, a full segment, Hello bytes, energy, and one that lies.

Run as ``python bench/campus_nodes.py quiet|segment|bytes|energy|hostile|liar [SECONDS] [SEED …]``; ``hostile`` takes
kinds of frames instead. Each row is printed and written to ``bench/results/campus-nodes.json`` as soon as it is known:
a run of ``liar`` that is stopped keeps the liars that it has finished. ``quiet`` and ``segment`` want a network
namespace with two ends of a virtual cable, ``desk`` and ``plug``: ``unshare -Urn sh bench/campus_nodes.sh quiet 120``.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import logging
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "reference"))  # the plain twin is the tests' own

from campus_simulator import CampusSimulator

from whimbrel.carry.control.clock import CampusClock
from whimbrel.carry.control.segments import ControlData, TopicPlan, segments_of
from whimbrel.carry.control.topics import TopicNames
from whimbrel.carry.daemon.daemon import CampusDaemon
from whimbrel.carry.daemon.service import NodeService
from whimbrel.carry.daemon.settings import NodeSettings
from whimbrel.carry.hello import (
    NONCE_BYTES,
    SIGNATURE_BYTES,
    Acknowledgement,
    Answer,
    Entry,
    Hello,
    Request,
    Sample,
    SampleId,
    TimeAnswer,
    TopicsQuestion,
)
from whimbrel.carry.neighbours.shares import OWN_HOST
from whimbrel.carry.outputs import Output
from whimbrel.carry.participant import Participant
from whimbrel.carry.rules import Rules
from whimbrel.carry.signatures import SampleSigner
from whimbrel.carry.wire import LINK, RADIO, Part, Profile, encode
from whimbrel.sim.campus.air import MemoryAir, MemoryTransport
from whimbrel.sim.campus.outcome import Recorder
from whimbrel.sim.campus.scenario import Campus
from whimbrel.sim.contacts.table import Contacts
from whimbrel.sim.kernels.crossings import fast_contacts_of
from whimbrel.sim.mobility.waypoint import RandomWaypoint

RESULTS = Path(__file__).parent / "results" / "campus-nodes.json"
US = 1_000_000
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


def core_s(process: int) -> float:
    """Return the core seconds of a process so far."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def resident_mb(process: int) -> float:
    """Return the resident memory of a process in megabytes."""
    return int(Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1]) * PAGE / 1e6


def quiet(seconds: float) -> list[dict[str, Any]]:
    """Run a node with four neighbours that say Hello and have nothing to say; return what the first one costs."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "whimbrel", "campus", "node", "--data"]
        nodes = [
            subprocess.Popen(  # noqa: S603 # our own command
                [*command, f"{folder}/{each}", "--interface", "desk" if each else "plug"], stderr=subprocess.DEVNULL
            )
            for each in range(5)
        ]
        time.sleep(10)
        before, at = core_s(nodes[0].pid), time.monotonic()
        time.sleep(seconds)
        spent, took = core_s(nodes[0].pid) - before, time.monotonic() - at
        row = {"resident_mb": round(resident_mb(nodes[0].pid), 1), "core_percent": round(100 * spent / took, 2)}
        for each in nodes:
            each.terminate()
        for each in nodes:
            each.wait()
    return [{"case": "quiet", "neighbours": 4, "seconds": seconds, **row, "load_at_the_end": os.getloadavg()[0]}]


def segment(seconds: float, count: int = 100) -> list[dict[str, Any]]:
    """Run *count* daemons in one process on one link, ten of which publish; return what a Hello costs."""

    async def run() -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            stop = asyncio.Event()
            services = []
            for number in range(count):
                settings = NodeSettings(
                    data=f"{folder}/{number}",
                    interface="desk" if number % 2 else "plug",
                    address=f"{number + 1:x}",
                    log_bytes=0,
                )
                service = NodeService(settings)
                service.open()
                services.append(service)
            tasks = []
            for each in services:
                tasks.append(asyncio.ensure_future(each.run(stop)))
                await asyncio.sleep(1 / count)
            for each in services[:10]:
                await each.daemon.publish(f"topic {each.participant.address}", b"x" * 100)
            for each in services:
                await each.daemon.subscribe("topic 1")
            await asyncio.sleep(20)
            spent, at = time.process_time(), time.monotonic()
            sent = sum(each.transport.counts["sent"] for each in services)
            size = sum(each.transport.counts["bytes sent"] for each in services)
            heard = sum(each.transport.counts["received"] for each in services)
            await asyncio.sleep(seconds)
            spent, took = time.process_time() - spent, time.monotonic() - at
            sent = sum(each.transport.counts["sent"] for each in services) - sent
            size = sum(each.transport.counts["bytes sent"] for each in services) - size
            heard = sum(each.transport.counts["received"] for each in services) - heard
            got = sum(bool(each.participant.carrier.all_retrieved) for each in services)
            copies = sum(
                copy.copies
                for each in services
                for copy in each.participant.carrier.stored
                if copy.sample.publisher == 1
            )
            stop.set()
            await asyncio.gather(*tasks)
            for each in services:
                each.close()
            return {
                "daemons": count,
                "seconds": round(took, 1),
                "frames_sent": sent,
                "frames_heard": heard,
                "bytes_per_hello": round(size / sent, 1),
                "bytes_per_s_and_node": round(size / took / count, 1),
                "core_us_per_hello_heard": round(1e6 * spent / heard, 1),
                "core_percent_per_node": round(100 * spent / took / count, 2),
                "subscribers_served": got,
                "copies_of_one_sample": copies,
                "resident_mb_all": round(resident_mb(os.getpid()), 1),
            }

    return [{"case": "segment", **asyncio.run(run()), "load_at_the_end": os.getloadavg()[0]}]


def size_of(message: Any, profile: Profile) -> int:
    """Return the bytes of a message's frames."""
    return sum(map(len, encode(1, message, profile=profile)))


def hello_of(entries: int) -> Hello:
    """Return a Hello with so many samples."""
    return Hello(tuple(Entry(topic, SampleId(1, 1), has_copies=True) for topic in range(entries)))


def heard_per_s(neighbours: int, profile: Profile, seconds: int = 10) -> int:
    """Run daemons with ten samples each in reach of one; return the bytes of Hello that this one hears per second."""
    now = [1_000_000 * US]
    air, daemons = MemoryAir(), list[CampusDaemon]()
    for address in range(neighbours + 1):
        made = Participant(address, Rules(), topics=TopicNames(), clock=CampusClock(), nonce=lambda: bytes(NONCE_BYTES))
        for number in range(10 if address else 0):
            made.publish_sample(Sample(topic=number + 1, published_at=now[0], publisher=address, body=b"x"))
            made.carrier.stored[number].copies = 1  # it waits: no requests disturb the count
        daemons.append(CampusDaemon(made, MemoryTransport(address, air, profile=profile), own=lambda: now[0]))
        if address:
            air.meet(0, address)
    for _ in range(seconds):
        now[0] += US
        for each in daemons:
            each.turn()
            each.read()
    assert all(each.transport.counts["sent"] >= seconds for each in daemons)
    return sum(each.transport.counts["bytes sent"] for each in daemons[1:]) // seconds


def hello_bytes() -> list[dict[str, Any]]:
    """Return the bytes that a node hears per second: our Hellos, and an epidemic's lists of all samples there are."""
    rows = []
    for profile in (LINK, RADIO):
        for neighbours in (1, 4, 10, 50, 100):
            ours = heard_per_s(neighbours, profile)
            assert ours == neighbours * size_of(hello_of(10), profile)
            epidemic = {
                f"epidemic_{each}_samples": neighbours * size_of(hello_of(each), profile) for each in (100, 1_000)
            }
            rows.append({"case": "bytes", "profile": profile.name, "neighbours": neighbours, "hello": ours, **epidemic})
    return rows


def energy(seed: int) -> list[dict[str, Any]]:
    """Return the energy of transmitting per delivered sample in the paper's world, at 3 V and nominal bit rates."""
    seconds, campus = 8_000.0, Campus(hello_s=10.0)
    contacts = fast_contacts_of(RandomWaypoint().walks(seconds, seed=seed), range_m=50)
    world = campus.world(nodes=contacts.nodes, seconds=seconds, seed=seed)
    recorder = Recorder(world)
    simulator = CampusSimulator(contacts, campus, world, [recorder])
    simulator.run()
    outcome = recorder.outcome()
    counters, delivered = outcome.counters, len(outcome.delivered_s)
    stored = sum(len(each.stored) for each in simulator.carriers) / contacts.nodes
    said = contacts.nodes * seconds / 10
    sample = Sample(topic=1, published_at=1, publisher=1, body=b"x" * 100)
    rows = []
    for radio, milliamperes, bits_per_s in (("802.15.4", 24.7, 250e3), ("Bluetooth", 57, 1e6), ("Wi-Fi", 219, 11e6)):
        profile = RADIO if radio == "802.15.4" else LINK
        request = Request(topic=1, id=SampleId(1, 1), is_subscriber=True, wants_copies=True)
        answers, hellos = counters["answer"], said * size_of(hello_of(round(stored)), profile)
        pulled = counters["request"] * size_of(request, profile) + answers * size_of(Answer(sample, 4), profile)
        air_s = 8 * (hellos + pulled) / bits_per_s
        rows.append(
            {
                "case": "energy", "radio": radio, "seed": seed, "milliamperes": milliamperes, "bits_per_s": bits_per_s,
                "delivered": delivered, "bytes_per_delivery": round((hellos + pulled) / delivered),
                "bytes_without_hello": round(pulled / delivered),
                "millijoules_per_delivery": round(3 * milliamperes * air_s / delivered, 2),
                "millijoules_without_hello": round(3 * milliamperes * 8 * pulled / bits_per_s / delivered, 3),
            }
        )  # fmt: skip
    return rows


class LyingParticipant(Participant):
    """A node that names a newer sample of every topic, has copies of it, and never gives it."""

    topics_named = 0

    def hello(self, *, own: int) -> Hello:
        """Return what it stores, and lies that are as new as a clock allows."""
        lie = SampleId(self.clock.now(own), self.address)
        lies = [Entry(topic, lie, has_copies=True) for topic in range(1, self.topics_named + 1)]
        return Hello(tuple(sorted([*super().hello(own=own).entries, *lies])))


class SilentLiar(LyingParticipant):
    """One that answers no request for what it invented; the other refuses it."""

    def handle(self, sender: int, part: Part, *, own: int, host: str = OWN_HOST) -> list[Output]:
        """Do what a participant does, but say nothing of samples that there are not."""
        if isinstance(part, Request):
            names = {(copy.sample.topic, copy.sample.id) for copy in self.carrier.stored}
            if (part.topic, part.id) not in names:
                return []
        return super().handle(sender, part, own=own, host=host)


LIARS: dict[str, type[Participant]] = {"none": Participant, "refuses": LyingParticipant, "silent": SilentLiar}


def events_of(contacts: Contacts, campus: Campus, world: Any) -> Iterator[tuple[float, int, int, int]]:
    """Return contacts, publications and Hellos in order."""
    assert campus.hello_s is not None
    nodes = contacts.nodes
    found = [(start, 0, low, high) for start, _, low, high in contacts.rows()]
    found += [(end, 2, low, high) for _, end, low, high in contacts.rows()]
    found += [(each.time_s, 1, number, 0) for number, each in enumerate(world.publications)]
    count = int(contacts.seconds / campus.hello_s) * nodes
    found += [(number * campus.hello_s / nodes, 3, number % nodes, 0) for number in range(count)]
    return iter(sorted(found))


def liar(seconds: float, seed: int, how: str) -> dict[str, Any]:
    """Run daemons on made-up air in the paper's world, one of which lies as ``LIARS`` says; return the mean delay."""
    campus = Campus(interval_s=1_000, hello_s=5.0, warmup_s=0)
    contacts = fast_contacts_of(RandomWaypoint().walks(seconds, seed=seed), range_m=50)
    world = campus.world(nodes=contacts.nodes, seconds=seconds, seed=seed)
    now = [0]
    air, daemons, delays = MemoryAir(), list[CampusDaemon](), list[float]()
    names = {f"t{topic}": topic + 1 for topic in range(campus.topics)}
    begun = time.process_time()
    for node in range(contacts.nodes):
        kind = LIARS[how] if node == contacts.nodes - 1 else Participant
        made = kind(
            node, Rules(places=campus.memory, hello_us=5 * US), topics=TopicNames(names), clock=CampusClock(),
            nonce=lambda: bytes(NONCE_BYTES),
        )  # fmt: skip
        if isinstance(made, LyingParticipant):
            made.topics_named = campus.topics
        for topic, subscribers in enumerate(world.subscribers):
            if node in subscribers:
                made.subscribe(f"t{topic}")
        daemons.append(
            CampusDaemon(
                made, MemoryTransport(node, air), own=lambda: now[0],
                deliver=lambda sample: delays.append((now[0] - sample.published_at) / US),
            )
        )  # fmt: skip
    for time_s, event, one, other in events_of(contacts, campus, world):
        now[0] = round(time_s * US)
        if event == 0:
            air.meet(one, other)
        elif event == 2:
            air.part(one, other)
        elif event == 1:
            each = world.publications[one]
            sample = Sample(topic=each.topic + 1, published_at=each.published_at, publisher=each.publisher)
            daemon = daemons[each.publisher]
            daemon.perform(daemon.participant.adopt(sample, copies=world.copies[each.topic], own=now[0]))
        else:
            daemons[one].turn()
            near = [one, *(each.address for each in air.neighbours(one))]
            for _ in range(3):
                for node in near:
                    daemons[node].read()
    requests, held = (
        sum(each.participant.counts[name] for each in daemons) for name in ("unanswered", "grants held back")
    )
    return {
        "case": "liar", "liar": how, "seed": seed, "seconds": seconds, "hello_s": 5, "interval_s": 1_000,
        "delay_mean_s": round(sum(delays) / len(delays), 2), "retrieved": len(delays), "unanswered": requests,
        "grants_held_back": held, "core_s": round(time.process_time() - begun, 1),
    }  # fmt: skip


def hostile_frames(kind: str, count: int) -> Iterator[tuple[bytes, bool]]:
    """Yield frames of a hostile neighbour, and whether they go to all; one comes each 100 microseconds."""
    rng = random.Random(kind)
    sample = SampleId(0, 1)
    request = Request(topic=1, id=sample, is_subscriber=True, wants_copies=True)
    for number in range(count):
        now = 1_000_000 * US + number * 100
        match kind:
            case "any bytes":
                yield bytes([2, 1 + number % 9]) + rng.randbytes(rng.randrange(8, 300)), bool(number % 2)
            case "60 invented ids in each Hello":
                ids = [SampleId(now + each, 66) for each in range(60)]
                yield encode(66, Hello(tuple(Entry(each % 8 + 1, ids[each], True) for each in range(60))))[0], True
            case "a Hello from an invented address each time":
                yield encode(1_000 + number, Hello((Entry(1, SampleId(now, number), True),)))[0], True
            case "a sample from the future each time":
                yield encode(1_000 + number, Hello((Entry(1, SampleId(now * 2, number), True),)))[0], True
            case "a request for everything":
                yield encode(66, Hello(()) if number % 1_000 == 0 else request)[0], number % 1_000 == 0
            case "a request for copies from an invented address each time":
                hello, asked = Hello(()), Request(topic=1, id=sample, is_subscriber=False, wants_copies=True)
                yield encode(1_000 + number // 2, asked if number % 2 else hello)[0], not number % 2
            case "copies acknowledged by an invented address each time":
                said = Hello(()), Request(topic=1, id=sample, is_subscriber=False, wants_copies=True)
                part = (*said, Acknowledgement(1, sample, 4))[number % 3]
                yield encode(1_000 + number // 3, part)[0], number % 3 == 0
            case "a request for everything, by 1,000 addresses":
                address, is_hello = 1_000 + number // 10 % 1_000, number % 10 < 5
                yield encode(address, Hello(()) if is_hello else request)[0], is_hello
            case "control data announced and never given":
                yield encode(66, Hello((Entry(0, SampleId(now, 0), False),)))[0], True
            case "forged control data, given by 1,000 addresses" | "replayed control data, given by 1,000 addresses":
                version = 1_000_000 * US + 10 + number // 2
                segment = replace(FORGED, published_at=version) if kind.startswith("forged") else REPLAYED
                given = Answer(segment, 0) if number % 2 else Hello((Entry(0, segment.id, False),))
                yield encode(1_000 + number // 2 % 1_000, given)[0], not number % 2
            case "forged times, given by 1,000 addresses":
                parts = (Hello(()), TopicsQuestion(), TimeAnswer(bytes(NONCE_BYTES), now, bytes(SIGNATURE_BYTES)))
                which = number % 2 if number % 200 < 10 else 2
                yield encode(1_000 + number // 200 % 1_000, parts[which])[0], which == 0


HOSTILE = (
    "any bytes", "60 invented ids in each Hello", "a Hello from an invented address each time",
    "a sample from the future each time", "a request for everything",
    "a request for everything, by 1,000 addresses", "control data announced and never given",
    "forged control data, given by 1,000 addresses", "replayed control data, given by 1,000 addresses",
    "forged times, given by 1,000 addresses", "a request for copies from an invented address each time",
    "copies acknowledged by an invented address each time",
)  # fmt: skip
CAMPUS = SampleSigner(b"c" * 32)


def control(version: int, signer: SampleSigner) -> Sample:
    """Return control data of eight topics, in one segment."""
    topics = tuple(TopicPlan(topic=each, name=f"t{each}", subscribers=3, copies=8) for each in range(1, 9))
    [segment] = segments_of(ControlData(version=version, users=10, places=100, topics=topics), signer)
    return segment


FORGED, REPLAYED = control(1, SampleSigner(b"s" * 32)), control(1, CAMPUS)


def flooded(kind: str, count: int) -> tuple[CampusDaemon, MemoryTransport, float]:
    """Send *count* frames of a kind to a node, 10,000 a second; return it, its transport and its core seconds."""
    now = [1_000_000 * US]
    air = MemoryAir()
    transport = MemoryTransport(1, air)
    made = Participant(
        1, Rules(), topics=TopicNames({f"t{each}": each for each in range(1, 9)}), clock=CampusClock(),
        nonce=lambda: bytes(NONCE_BYTES), keys=[CAMPUS.public],
    )  # fmt: skip
    made.clock.set(now[0], own=now[0])
    in_force = made.control.receive(control(2, CAMPUS), now=now[0])
    assert in_force is not None
    made.follow(in_force, 1)
    for each in range(1, 9):
        made.subscribe(f"t{each}")
    daemon = CampusDaemon(made, transport, own=lambda: now[0])
    daemon.perform(made.adopt(Sample(topic=1, published_at=0, publisher=1, body=bytes(1_000)), copies=8, own=now[0]))
    air.meet(1, 66)
    MemoryTransport(66, air)
    spent, frames = 0.0, enumerate(hostile_frames(kind, count))
    while second := list(
        itertools.islice(frames, 10_000)
    ):  # made before the time is taken: that is not the node's work
        begun = time.process_time()
        for number, (data, came_to_all) in second:
            now[0] = 1_000_000 * US + number * 100
            transport.put(data, came_to_all=came_to_all)
            if number % 10_000 == 0:
                daemon.turn()
            daemon.read()
        spent += time.process_time() - begun
    return daemon, transport, spent


def grown_kb(kind: str, count: int) -> int:
    """Return by how many kilobytes the objects of a node have grown after *count* hostile frames."""
    flooded(kind, 1)
    gc.collect()
    tracemalloc.start()
    found = flooded(kind, count)
    gc.collect()
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del found
    return round(size / 1_000)


def hostile(kinds: Iterable[str], count: int = 100_000) -> Iterator[dict[str, Any]]:
    """Send *count* frames of each kind to a node; yield what they cost it, its memory after 20 and 100 % of them."""
    for kind in kinds:
        daemon, transport, spent = flooded(kind, count)
        made, sent = daemon.participant, transport.counts["bytes sent"]
        yield {
                "case": "hostile", "kind": kind, "frames": count, "seconds_of_traffic": count / 10_000,
                "core_us_per_frame": round(1e6 * spent / count, 1), "bytes_sent_per_s": round(sent / (count / 10_000)),
                "kilobytes_after_a_fifth": grown_kb(kind, count // 5), "kilobytes": grown_kb(kind, count),
                "neighbours": len(made.neighbours), "requests_waiting": made.pending,
                "frames_dropped": made.counts["too many frames"],
                "control_ignored": made.control.ignored, "times_forged": made.counts["forged times"],
                "copies_left_of_8": sum(each.copies for each in made.carrier.stored),
            }  # fmt: skip


def main() -> None:
    """Measure what the arguments name, and keep it."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    what, *rest = sys.argv[1:]
    rows: Iterable[dict[str, Any]]
    match what:
        case "quiet":
            rows = quiet(float(rest[0]))
        case "segment":
            rows = segment(float(rest[0]))
        case "bytes":
            rows = hello_bytes()
        case "energy":
            rows = [row for seed in rest or ["1"] for row in energy(int(seed))]
        case "hostile":
            rows = hostile(rest or HOSTILE)
        case "liar":
            rows = (liar(float(rest[0]), int(seed), how) for seed in rest[1:] for how in LIARS)
        case _:
            raise SystemExit(__doc__)
    known = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {"rows": []}
    known["machine"] = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    command = "python bench/campus_nodes.py " + " ".join(sys.argv[1:])
    known["rows"] = [row for row in known["rows"] if row["command"] != command or "condition" in row]
    for row in rows:
        print(row, flush=True)
        known["rows"].append({"command": command, **row})
        RESULTS.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
