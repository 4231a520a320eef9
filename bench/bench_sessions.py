"""What named sessions cost: a day of many devices coming and going, and how soon one that returns gets what is held.

The day is simulated: the broker's own core on a log and a view that are real, without sockets, a clock moved by hand.
Returning is measured on a broker process, over sockets, while others publish.
Rule: the day does what the shell does and nothing more: it brings bytes and the time, takes what is to be written,
closes what is to be closed, syncs when somebody waits, and writes the view now and then.
Rule: the day has a process of its own, so that its memory is that of the broker and of what simulates the devices.
"""

from __future__ import annotations

import gc
import hashlib
import heapq
import json
import math
import multiprocessing
import os
import random
import socket
import sqlite3
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import NamedTuple

from measure import Check, Figure, Grid, Report, in_fresh_process
from whimbrel.broker.broker import Broker
from whimbrel.broker.settings.config import Config, LimitSettings, LogSettings, MqttSettings, NodeSettings
from whimbrel.broker.shell.disk.storage import Storage
from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.broker.state.routes import Routes
from whimbrel.broker.wire.clients import Link
from whimbrel.hold.store.sqlite import SqliteStore
from whimbrel.log import layout
from whimbrel.log.export import export
from whimbrel.log.retention import retain
from whimbrel.match.matcher import Matcher
from whimbrel.mqtt.codec import Decoder, encode
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.packets import (
    V5,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    Suback,
    Subscribe,
    SubscriptionRequest,
)
from whimbrel.mqtt.properties import Properties, Property
from whimbrel.sim.load.generator import Generator
from whimbrel.sim.load.load import Latency, Load, LoadError
from whimbrel.sim.load.processes import resident_bytes, serve

__all__ = ["run"]

_SEED = 20_251
_SECOND_US = 1_000_000
_HOUR_S, _MINUTE_S = 3_600, 60
_NOON = 1_700_049_600 * _SECOND_US
"""A noon: midnight is in the middle of the day, and what is older is removed from the log then."""
_HOURS, _MIDNIGHT = 24, 12
_NODE = "node-1"
_MARK = ("whimbrel", "1")
_DEVICES = 5
_SUBSCRIPTIONS = 20
_WITH_CONTENT, _WITH_WILDCARD = 2, 3
"""How many of them ask for the content, and how many for all kinds of one place; the rest are for one subject each."""
_SUBJECTS_PER_SITE, _KINDS = 250, 5
_SESSIONS_PER_SITE = 250
"""The world grows with the sessions, so that a notification is for equally many of them at any size."""
_LEVELS = 50
_TTL_S, _MAX = (5 * _MINUTE_S, 6 * _HOUR_S), (20, 1_000)
"""Both are drawn so that each doubling is equally likely."""
_STAY_S, _AWAY_S = 30 * _MINUTE_S, 120 * _MINUTE_S
"""Means: a device is present a fifth of the time."""
_ABANDONED, _KEEPING = 0.1, 0.3
"""The part of the sessions to which nobody comes all day; and, up to this, of those in which everybody keeps."""
_KEEPS, _SILENT, _CUT_OFF = 0.4, 0.05, 0.2
"""How many devices of other sessions keep; how many visits acknowledge nothing; how many end without a word."""
_BODY_BYTES = 100
_IDENTIFIERS = 65_535
_DISCONNECT = encode(Disconnect(), V5)
_MEGABYTE = 1_000_000
_AIM_MS = 50.0
_RATE = 1_000.0
_RECEIVE_MAXIMUM = 32
_PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    sessions: int
    publications: int
    """In the day."""
    step_s: int
    """What happens within so many seconds is one turn of the broker."""
    segment_bytes: int
    upkeep_hours: int
    """How often the log is exported, and what is old removed."""
    groups: int
    """Sessions with something held that devices return to over sockets."""
    returning: int
    """Devices of each that return, each once."""
    held: int
    pause_s: float
    """Between two that return."""
    beside_s: float
    """How long others publish before what they noticed is noted."""


_FULL = _Sizes(
    sessions=10_000,
    publications=30_000,
    step_s=10,
    segment_bytes=16 << 20,
    upkeep_hours=3,
    groups=25,
    returning=10,
    held=1_000,
    pause_s=0.1,
    beside_s=5.0,
)
_QUICK = _Sizes(
    sessions=20,
    publications=400,
    step_s=1_800,
    segment_bytes=1 << 16,
    upkeep_hours=12,
    groups=2,
    returning=3,
    held=40,
    pause_s=0.02,
    beside_s=0.2,
)


# -- the world ---------------------------------------------------------------------------------------------------------


class _World:
    """Subjects, what sessions subscribe to among them, and what is published."""

    def __init__(self, sizes: _Sizes) -> None:
        self._rng = random.Random(f"{_SEED} world")
        self._sites = max(1, sizes.sessions // _SESSIONS_PER_SITE)
        subjects = self._sites * _SUBJECTS_PER_SITE
        ranks = list(range(subjects))
        self._rng.shuffle(ranks)
        # Few subjects have much to say and most have little, which is what ``max`` is for.
        self._weights = list(accumulate(1 / (rank + 1) for rank in ranks))
        self._numbers = range(subjects)
        self._padding = "x" * _BODY_BYTES

    @staticmethod
    def _subject(number: int) -> str:
        site, place = divmod(number, _SUBJECTS_PER_SITE)
        ward, kind = divmod(place, _KINDS)
        return f"site/{site}/ward/{ward}/kind-{kind}"

    def subscriptions(self) -> list[Subscribe]:
        """Return what one session subscribes to."""
        rng = self._rng
        plain = _SUBSCRIPTIONS - _WITH_CONTENT - _WITH_WILDCARD
        wanted: list[tuple[str, str | None]] = [(self._subject(n), None) for n in rng.sample(self._numbers, plain)]
        wards = rng.sample(range(len(self._numbers) // _KINDS), _WITH_WILDCARD)
        wanted += [(self._subject(ward * _KINDS).rpartition("/")[0] + "/+", None) for ward in wards]
        sites = [rng.randrange(self._sites) for _ in range(_WITH_CONTENT)]
        wanted += [(f"site/{site}/#", f"level >= {_LEVELS - rng.randint(1, 3)}") for site in sites]
        return [self._subscribe(number + 1, *each) for number, each in enumerate(wanted)]

    def _subscribe(self, packet_id: int, topic_filter: str, content: str | None) -> Subscribe:
        options = [("ttl", str(_drawn(self._rng, *_TTL_S))), ("max", str(_drawn(self._rng, *_MAX)))]
        if content is not None:
            options += [("filter", content), ("name", f"content-{packet_id}")]
        return Subscribe(packet_id, (SubscriptionRequest(topic_filter, 1),), Properties(user=tuple(options)))

    def publications(self, count: int) -> Iterator[tuple[str, bytes]]:
        """Yield *count* notifications."""
        for number in self._rng.choices(self._numbers, cum_weights=self._weights, k=count):
            head = json.dumps({"level": self._rng.randrange(_LEVELS), "text": ""})[:-2]
            yield self._subject(number), (head + self._padding[len(head) + 2 :] + '"}').encode()


def _drawn(rng: random.Random, low: int, high: int) -> int:
    return round(math.exp(rng.uniform(math.log(low), math.log(high))))


# -- the day -----------------------------------------------------------------------------------------------------------


class _Tally:
    """What happened so far."""

    __slots__ = ("acknowledged", "again", "comings", "handed", "published")

    def __init__(self) -> None:
        self.published = self.comings = self.handed = self.again = self.acknowledged = 0


class _Visit:
    """A device while it is connected."""

    __slots__ = ("_decoder", "acknowledges", "link")

    def __init__(self, *, acknowledges: bool) -> None:
        self._decoder = Decoder(version=V5)
        self.acknowledges = acknowledges
        self.link: Link | None = None

    def read(self, data: bytes, tally: _Tally) -> bytes:
        """Take in what the broker says; return the acknowledgements."""
        answer = bytearray()
        for packet in self._decoder.receive(data):
            if type(packet) is Publish:
                tally.handed += 1
                tally.again += packet.dup
                if self.acknowledges:
                    tally.acknowledged += 1
                    answer += b"\x40\x02" + packet.packet_id.to_bytes(2)
            else:
                _check_answer(packet)
        assert self._decoder.failure is None, self._decoder.failure
        return bytes(answer)


def _check_answer(packet: Packet) -> None:
    """Raise if the broker refuses anything: nothing of what is asked here may be."""
    codes: Sequence[int] = (ReasonCode.UNSPECIFIED_ERROR,)
    if isinstance(packet, Connack | Puback):
        codes = (packet.code,)
    elif isinstance(packet, Suback):
        codes = packet.codes
    elif isinstance(packet, Pingresp):
        codes = ()
    if any(code >= ReasonCode.UNSPECIFIED_ERROR for code in codes):
        raise LoadError(packet, "an answer that says yes")


class _Sample(NamedTuple):
    """How much there is at the end of an hour."""

    hour: int
    resident_bytes: int
    segments_bytes: int
    """The log."""
    parquet_bytes: int
    """What was exported of it."""
    view_bytes: int
    stored: int
    """Notifications in memory."""
    rows: int
    """Notifications in the view."""
    pending: int
    """Pairs of a session and a notification that it holds, or that a device of it has in flight."""
    held_bytes: int
    present: int
    published: int
    comings: int
    handed: int
    wall_s: float


class _Day:
    """A broker's core and everybody who comes to it."""

    def __init__(self, folder: Path, sizes: _Sizes, keeper: ProcessPoolExecutor) -> None:
        self._keeper = keeper
        """Where the log is exported and cut, as another process does for a broker."""
        self._upkeep: Future[float] | None = None
        self.upkeep_s = 0.0
        self._sizes, self._rng, self._world = sizes, random.Random(f"{_SEED} day"), _World(sizes)
        self.now = _NOON
        config = _config(folder, sizes)
        self.storage = Storage(config)
        self._matcher = Matcher()
        self.state, _ = self.storage.open(Routes(lambda: self._matcher))
        self.broker = Broker(config, self.storage.log, self.state, rng=random.Random(_SEED))
        self.tally = _Tally()
        self.samples: list[_Sample] = []
        self._began = time.perf_counter()
        self._is_abandoned: list[bool] = []
        self._keeps: list[bool] = []
        self._visits: dict[int, _Visit] = {}
        self._due: list[tuple[int, int]] = []
        """When each device comes next, or goes."""
        self._publisher = self._connected("publisher")
        self._settle()

    # -- what the shell does -----------------------------------------------------------------------------------------

    def _flush(self) -> None:
        """End a turn: everybody reads what there is, and acknowledges it."""
        broker = self.broker
        while broker.dirty:
            links = broker.dirty[:]
            broker.dirty.clear()
            for link in links:
                link.is_dirty, data = False, b"".join(link.out)
                link.out.clear()
                visit = link.shell
                assert isinstance(visit, _Visit)
                answer = visit.read(data, self.tally)
                if link.closing is not None:
                    self._hang_up(visit)
                elif answer:
                    broker.receive(link, answer, self.now)

    def _hang_up(self, visit: _Visit) -> None:
        """Close a connection; without the link nothing refers in a circle, and it is gone at once."""
        link, visit.link = visit.link, None
        if link is not None:
            self.broker.on_connection_closed(link, self.now)

    def _settle(self) -> None:
        """Sync until nobody waits."""
        self._flush()
        while self.broker.wants_sync or self.broker.has_work:
            self.broker.on_sync(self.storage.log.sync())
            self.broker.go_on(self.now)
            self._flush()

    def _connected(self, client: str, *user: tuple[str, str], acknowledges: bool = True) -> _Visit:
        visit = _Visit(acknowledges=acknowledges)
        visit.link = self.broker.open_link(visit, "bench", self.now)
        self._say(visit, encode(Connect(client, properties=Properties(user=(_MARK, *user))), V5))
        return visit

    def _say(self, visit: _Visit, data: bytes) -> None:
        assert visit.link is not None
        self.broker.receive(visit.link, data, self.now)

    def _write_view(self) -> None:
        put, drop = self.state.view.changes()
        self.storage.write_view(self.broker.applied, put, drop)

    # -- before the day ----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Make the sessions, subscribe, and let every device be a member."""
        rng, sessions = self._rng, self._sizes.sessions
        for session in range(sessions):
            body = json.dumps({"session": _session(session)}).encode()
            self._say(self._publisher, encode(Publish("$whimbrel/session/create", body, 1, packet_id=session + 1), V5))
        self._settle()
        sort = [rng.random() for _ in range(sessions)]
        self._is_abandoned = [each < _ABANDONED for each in sort]
        self._keeps = [
            sort[device // _DEVICES] < _KEEPING or rng.random() < _KEEPS for device in range(sessions * _DEVICES)
        ]
        for batch in _batches(range(sessions), 100):
            first = [session * _DEVICES for session in batch]
            self._come(first)
            self._settle()
            for device in first:
                asked = b"".join(encode(packet, V5) for packet in self._world.subscriptions())
                self._say(self._visits[device], asked)
            self._settle()
            self._go(first)
            self._settle()
        for batch in _batches(range(sessions * _DEVICES), 500):
            self._come(batch)
            self._settle()
            self._go(batch)
            self._settle()
        self._matcher.content.repack()
        self._write_view()
        self.tally = _Tally()

    def _come(self, devices: Sequence[int]) -> None:
        for device in devices:
            receipt = "keep" if self._keeps[device] else "take"
            self._visits[device] = self._connected(
                _device(device),
                ("session", _session(device // _DEVICES)),
                ("receipt", receipt),
                acknowledges=self._rng.random() >= _SILENT,
            )
        self.tally.comings += len(devices)

    def _go(self, devices: Sequence[int]) -> None:
        for device in devices:
            visit = self._visits.pop(device)
            if self._rng.random() < _CUT_OFF:
                self._hang_up(visit)
            else:
                self._say(visit, _DISCONNECT)

    # -- the day itself ----------------------------------------------------------------------------------------------

    def live(self) -> None:
        """Let the day pass, and look at it every hour."""
        sizes = self._sizes
        for device in range(sizes.sessions * _DEVICES):
            if not self._is_abandoned[device // _DEVICES]:
                self._due.append((self._after(self.now, _AWAY_S), device))
        heapq.heapify(self._due)
        steps = _HOURS * _HOUR_S // sizes.step_s
        news = self._world.publications(sizes.publications)
        for step in range(1, steps + 1):
            due = sizes.publications * step // steps - self.tally.published
            self._step([next(news) for _ in range(due)])
            if step * sizes.step_s % _MINUTE_S == 0:
                self.broker.tick(self.now)
                self._settle()
                self._write_view()
            hour, rest = divmod(step * sizes.step_s, _HOUR_S)
            if not rest:
                self._wait_for_upkeep()
                self._look(hour)
                if hour % sizes.upkeep_hours == 0:
                    self._upkeep = self._keeper.submit(_keep_up, self.storage.log_folder, self.now)
        self._wait_for_upkeep()

    def _wait_for_upkeep(self) -> None:
        """Wait for what was begun an hour ago, so that every run sees the same files."""
        if self._upkeep is not None:
            self.upkeep_s += self._upkeep.result()
            self._upkeep = None

    def linger(self, minutes: int) -> None:
        """Let some more time pass of which the view is not told, as before a crash."""
        count = self._sizes.publications * minutes * _MINUTE_S // (_HOURS * _HOUR_S)
        for _ in range(minutes * _MINUTE_S // self._sizes.step_s):
            self._step([])
        self._step(list(self._world.publications(count)))

    def _step(self, news: Sequence[tuple[str, bytes]]) -> None:
        """Let everybody come, go and publish who does within the next seconds."""
        self.now += self._sizes.step_s * _SECOND_US
        coming: list[int] = []
        going: list[int] = []
        while self._due[0][0] <= self.now:
            at, device = heapq.heappop(self._due)
            is_here = device in self._visits
            (going if is_here else coming).append(device)
            # From when it was due, so that visits are as long as drawn and not as steps are.
            after = self._after(at, _AWAY_S if is_here else _STAY_S)
            heapq.heappush(self._due, (max(after, self.now + 1), device))
        self._go(going)
        self._come(coming)
        if news:
            first = self.tally.published
            packets = (
                Publish(topic, body, 1, packet_id=(first + n) % _IDENTIFIERS + 1)
                for n, (topic, body) in enumerate(news)
            )
            self._say(self._publisher, b"".join(encode(packet, V5) for packet in packets))
            self.tally.published += len(news)
        self._settle()

    def _after(self, moment: int, mean_s: float) -> int:
        return moment + int(self._rng.expovariate(1 / mean_s) * _SECOND_US)

    def _look(self, hour: int) -> None:
        counts, tally = self.state.hold.counts(), self.tally
        self.samples.append(
            _Sample(
                hour=hour,
                resident_bytes=resident_bytes(os.getpid()),
                segments_bytes=_size(self.storage.log_folder, "*.seg"),
                parquet_bytes=_size(self.storage.log_folder, "*.parquet"),
                view_bytes=_size(self.storage.folder, "view-*"),
                stored=len(self.state.held),
                rows=_rows(self.storage.folder)["notification"],
                pending=counts["pending"],
                held_bytes=self.state.held.size_bytes,
                present=len(self._visits),
                published=tally.published,
                comings=tally.comings,
                handed=tally.handed,
                wall_s=time.perf_counter() - self._began,
            )
        )


def _config(folder: Path, sizes: _Sizes) -> Config:
    return Config(
        node=NodeSettings(name=_NODE, data=str(folder)),
        limits=LimitSettings(receive_maximum=_IDENTIFIERS),
        mqtt=MqttSettings(keep_alive_s=0),  # nobody sends PINGREQ here
        log=LogSettings(segment_bytes=sizes.segment_bytes),
    )


def _session(number: int) -> str:
    return f"session-{number:05}"


def _device(number: int) -> str:
    return f"device-{number // _DEVICES:05}-{number % _DEVICES}"


def _batches(items: range, size: int) -> Iterator[range]:
    return (items[at : at + size] for at in range(0, len(items), size))


def _size(folder: Path, names: str) -> int:
    return sum(path.stat().st_size for path in folder.rglob(names))


def _rows(folder: Path) -> Counter[str]:
    """Return how many rows of each kind the view has."""
    with closing(sqlite3.connect(f"file:{folder / f'view-{_NODE}.sqlite'}?mode=ro", uri=True)) as view:
        return Counter(dict(view.execute("SELECT kind, count(*) FROM rows GROUP BY kind").fetchall()))


class _DayFound(NamedTuple):
    """What a day came to."""

    samples: tuple[_Sample, ...]
    begin_s: float
    live_s: float
    upkeep_s: float
    """How long exporting the log and removing what is old took, in another process."""
    again: int
    acknowledged: int
    receipts: int
    displaced: int
    expired: int
    known: str
    """What the state was at the end, to be compared."""
    counts: dict[str, int]


def _lived(folder: Path, sizes: _Sizes) -> _DayFound:
    """Let a day pass; for a process of its own."""
    _collect_as_the_broker_does()
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as keeper:
        began = time.perf_counter()
        day = _Day(folder, sizes, keeper)
        day.begin()
        begun = time.perf_counter()
        day.live()
        lived = time.perf_counter()
        day.linger(5)
    day.storage.close()  # without a word to the view
    counters, tally = day.state.volatile.counters, day.tally
    return _DayFound(
        samples=tuple(day.samples),
        begin_s=begun - began,
        live_s=lived - begun,
        upkeep_s=day.upkeep_s,
        again=tally.again,
        acknowledged=tally.acknowledged,
        receipts=counters.receipts,
        displaced=counters.displaced,
        expired=counters.expired,
        known=_known(day.state),
        counts=day.state.hold.counts(),
    )


def _collect_as_the_broker_does() -> None:
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def _keep_up(log_folder: Path, now: int) -> float:
    """Export what is closed of the log and remove what is of days before; return the seconds that took."""
    began = time.perf_counter()
    export(log_folder, _NODE)
    retain(log_folder, before=layout.date_of(now), now=now)
    return time.perf_counter() - began


def _known(state: BrokerState) -> str:
    """Return a digest of what is held for whom, member by member and notification by notification."""
    digest, hold = hashlib.sha256(), state.hold
    for session in sorted(hold.sessions()):
        members = sorted(hold.members(session).items())
        digest.update(repr((session, members, len(hold.subscriptions(session)), hold.pending_count(session))).encode())
    for seq, message in sorted(state.hold.all_kept()):
        assert message is not None
        digest.update(repr((seq, message.subject, message.payload)).encode())
    digest.update(repr(sorted(state.clients)).encode())
    return digest.hexdigest()


# -- starting again ----------------------------------------------------------------------------------------------------


class _Restarted(NamedTuple):
    """How a broker came back to where it was."""

    seconds: float
    replayed: int
    rebuilt: str | None
    known: str
    counts: dict[str, int]
    resident_bytes: int
    pairs: int
    """Rows of the view that say that a session is owed a notification."""
    distinct: int
    """Notifications that any of them is about."""
    stored: int
    """Notifications in the view."""


def _restarted(folder: Path, sizes: _Sizes) -> _Restarted:
    """Look at the view, and start again from it and the rest of the log; for a process of its own."""
    owed: Counter[object] = Counter()
    stored = 0
    with closing(SqliteStore(folder / f"view-{_NODE}.sqlite")) as view:
        for key, _ in view.rows():
            if key[0] == "pending":
                owed[key[2]] += 1
            elif key[0] == "notification":
                stored += 1
    pairs, distinct = owed.total(), len(owed)
    owed.clear()
    storage = Storage(_config(folder, sizes))
    began = time.perf_counter()
    state, found = storage.open(Routes())
    seconds = time.perf_counter() - began
    storage.close()
    return _Restarted(
        seconds=seconds,
        replayed=found.replayed,
        rebuilt=found.rebuilt,
        known=_known(state),
        counts=state.hold.counts(),
        resident_bytes=resident_bytes(os.getpid()),
        pairs=pairs,
        distinct=distinct,
        stored=stored,
    )


# -- returning ---------------------------------------------------------------------------------------------------------


class _Caller:
    """A client that says and hears packets, and waits for each."""

    def __init__(self, port: int) -> None:
        self._link = socket.create_connection(("127.0.0.1", port), timeout=_PATIENCE_S)
        self._link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._decoder = Decoder(version=V5)
        self._heard: list[Packet] = []

    def send(self, data: bytes) -> None:
        """Say something."""
        self._link.sendall(data)

    def some(self) -> list[Packet]:
        """Return what was said to us and not yet returned: one packet at least."""
        while not self._heard:
            data = self._link.recv(1 << 18)
            if not data:
                raise LoadError("a closed connection", "a packet")
            self._heard = self._decoder.receive(data)
        heard, self._heard = self._heard, []
        return heard

    def next(self) -> Packet:
        """Return the next packet."""
        packet, *self._heard = self.some()
        return packet

    def ask(self, packet: Packet) -> None:
        """Say *packet* and wait for an answer that says yes."""
        self.send(encode(packet, V5))
        _check_answer(self.next())

    def leave(self) -> None:
        """Say goodbye, and wait until the broker has taken that in."""
        self.send(_DISCONNECT)
        with suppress(ConnectionError):
            while self._link.recv(1 << 18):
                pass

    def close(self) -> None:
        """Let go of the connection."""
        self._link.close()


class _Return(NamedTuple):
    """How a device got what was held."""

    first_s: float
    """From its CONNECT to the first notification."""
    all_s: float
    """From its CONNECT until the broker had taken in the last acknowledgement."""
    is_whole: bool
    """Whether it got everything once, in the order that it was accepted."""


class _Returns(NamedTuple):
    """How all of them did."""

    each: tuple[_Return, ...]
    beside: tuple[Latency, ...]
    """What those noticed meanwhile who have nothing to do with sessions."""
    resident_bytes: int

    def first_ms(self, part: float) -> float:
        """Return the milliseconds that *part* of them were within."""
        found = sorted(each.first_s * 1e3 for each in self.each)
        return found[min(int(len(found) * part), len(found) - 1)]


def _returned(sizes: _Sizes) -> _Returns:
    """Let devices return to sessions with much held for them, one after the other, while others publish."""
    with (
        tempfile.TemporaryDirectory(prefix="whimbrel-bench-") as name,
        serve(Path(name)) as broker,
        Generator() as generator,
        ThreadPoolExecutor(1) as pool,
    ):
        for group in range(sizes.groups):
            _prepare(broker.port, group, sizes)
            load = Load(
                port=broker.port,
                topic=f"held/{group}",
                bodies=(bytes(_BODY_BYTES),),
                count=sizes.held,
                qos=1,
                subscribers=0,
            )
            passed = generator.throughput(load)
            assert not passed.lost, passed
        is_over = threading.Event()
        beside = pool.submit(_beside, generator, broker.port, is_over, sizes)
        try:
            time.sleep(sizes.pause_s * 5)
            each = []
            for device in range(sizes.returning):
                for group in range(sizes.groups):
                    each.append(_return(broker.port, group, device, sizes.held))
                    time.sleep(sizes.pause_s)
        finally:
            is_over.set()
        return _Returns(tuple(each), tuple(beside.result()), resident_bytes(broker.pid))


def _prepare(port: int, group: int, sizes: _Sizes) -> None:
    """Make a session with a subscription, and let all its devices be members that are away."""
    made = {"session": _session(group)}
    wanted = made | {"topic": f"held/{group}", "max": sizes.held}
    with closing(_Caller(port)) as caller:
        caller.ask(Connect(f"maker-{group}"))
        caller.ask(Publish("$whimbrel/session/create", json.dumps(made).encode(), 1, packet_id=1))
        caller.ask(Publish("$whimbrel/session/subscribe", json.dumps(wanted).encode(), 1, packet_id=2))
        caller.leave()
    for device in range(sizes.returning):
        with closing(_Caller(port)) as caller:
            caller.ask(_joining(group, device))
            caller.leave()


def _joining(group: int, device: int) -> Connect:
    properties = Properties(
        {Property.RECEIVE_MAXIMUM: _RECEIVE_MAXIMUM}, user=(_MARK, ("session", _session(group)), ("receipt", "keep"))
    )
    return Connect(f"returning-{group}-{device}", properties=properties)


def _return(port: int, group: int, device: int, held: int) -> _Return:
    connect = encode(_joining(group, device), V5)
    seen: list[int] = []
    with closing(_Caller(port)) as caller:
        began = time.perf_counter()
        caller.send(connect)
        _check_answer(caller.next())
        given = [caller.next()]
        first_s = time.perf_counter() - began
        while True:
            numbers = [packet.packet_id for packet in given if isinstance(packet, Publish)]
            caller.send(b"".join(b"\x40\x02" + number.to_bytes(2) for number in numbers))
            seen += numbers
            if len(seen) >= held:
                break
            given = caller.some()
        caller.ask(Pingreq())
        all_s = time.perf_counter() - began
        caller.leave()
    # Packet identifiers follow the order in which notifications were accepted, round and round.
    is_in_order = all(0 < (later - earlier) % _IDENTIFIERS < _IDENTIFIERS // 2 for earlier, later in pairwise(seen))
    return _Return(first_s, all_s, is_in_order and len(seen) == held)


def _beside(generator: Generator, port: int, is_over: threading.Event, sizes: _Sizes) -> list[Latency]:
    """Publish to another topic at an even rate until it is over."""
    found = []
    load = Load(port=port, topic="others", bodies=(bytes(_BODY_BYTES),), count=int(_RATE * sizes.beside_s))
    while not is_over.is_set():
        found.append(generator.latency(load, rate=_RATE))
    return found


# -- what is told ------------------------------------------------------------------------------------------------------


def run(*, quick: bool) -> Report:
    """Measure everything; *quick* only proves that it runs and that nothing is lost."""
    sizes = _QUICK if quick else _FULL
    report = Report("sessions", packages=("whimbrel", "uvloop"))
    with tempfile.TemporaryDirectory(prefix="whimbrel-bench-") as name:
        day = in_fresh_process(_lived, Path(name), sizes)
        restarted = in_fresh_process(_restarted, Path(name), sizes)
    returns = _returned(sizes)
    report.grids += [_aims(day, restarted, returns, is_full=not quick), _hours(day)]
    report.figures += [*_day_figures(day, sizes), *_restart_figures(restarted), *_return_figures(returns, sizes)]
    report.checks += _checks(day, restarted, returns, sizes)
    report.notes += _NOTES
    return report


_NOTES = (
    f"Of {_SUBSCRIPTIONS} subscriptions {_WITH_WILDCARD} have a wildcard and {_WITH_CONTENT} a content filter.",
    "What they hold: for 5 minutes to 6 hours, at most 20 to 1,000 each; bodies of 100 bytes, QoS 1.",
    "A tenth of the sessions is abandoned all day, in a fifth all devices keep, in the others two of five do.",
    "Visits of 30 minutes, absences of 120 in the mean; one of 20 visits acknowledges nothing, one of 5 is cut off.",
    "What happens within 10 s of the day is one turn of the broker, with a sync; the view is written every minute.",
    "Resident memory is that of the broker's core and of the simulated devices, in one process, interpreter included.",
    "The day begins at noon. Every 3 hours what is closed of the log is exported, and what is of days before removed.",
    "Held or in flight: pairs of a session and a notification; of each: such pairs for one stored notification.",
    "Restart: the view is five minutes behind the log; until all subscriptions are in the indexes again.",
    "Returning: from CONNECT, on an open connection, to the first notification; receipt keep, every device once.",
    "They return one after the other, a tenth of a second after the last has everything: several in a second.",
    "The view of that broker is written every 5 s, as it is by default, and falls on some of those who return.",
)


def _mean(day: _DayFound, what: str, first: int, last: int) -> float:
    """Return the mean of a field of the samples from the *first* hour to the *last*."""
    return statistics.fmean(getattr(each, what) for each in day.samples if first <= each.hour <= last)


def _growth(day: _DayFound, what: str) -> float:
    """Return how much more there is in the second half of the day than in the quarter before it."""
    return _mean(day, what, _MIDNIGHT + 1, _HOURS) / _mean(day, what, _MIDNIGHT // 2 + 1, _MIDNIGHT)


def _hours(day: _DayFound) -> Grid:
    headings = (
        "hour",
        "resident MB",
        "log MB",
        "Parquet MB",
        "view MB",
        "stored",
        "held or in flight",
        "of each",
        "held MB",
        "present",
        "handed over",
        "s so far",
    )
    rows = tuple(
        (
            str(each.hour),
            each.resident_bytes / _MEGABYTE,
            each.segments_bytes / _MEGABYTE,
            each.parquet_bytes / _MEGABYTE,
            each.view_bytes / _MEGABYTE,
            float(each.stored),
            float(each.pending),
            each.pending / max(1, each.stored),
            each.held_bytes / _MEGABYTE,
            float(each.present),
            float(each.handed),
            each.wall_s,
        )
        for each in day.samples
    )
    return Grid("A simulated day, hour by hour", headings, rows)


def _day_figures(day: _DayFound, sizes: _Sizes) -> Iterator[Figure]:
    last = day.samples[-1]
    name = f"{sizes.sessions:,} sessions of {_DEVICES} devices"
    yield Figure(f"{name}: made, subscribed to {_SUBSCRIPTIONS} each, all joined once", day.begin_s, "s")
    yield Figure(f"{name}: a day of them", day.live_s, "s")
    yield Figure(f"{name}: published", float(last.published), "")
    yield Figure(f"{name}: came and went", float(last.comings), "times")
    yield Figure(f"{name}: handed over", float(last.handed), "")
    yield Figure(f"{name}: of these again, not having been acknowledged", float(day.again), "")
    yield Figure(f"{name}: lapsed, for a device each", float(day.expired), "")
    yield Figure(f"{name}: displaced, for a device each", float(day.displaced), "")
    yield Figure("one copy: sessions that a stored notification is held for, mean", last.pending / last.stored, "")
    yield Figure("memory: resident at the end of the day", last.resident_bytes / _MEGABYTE, "MB")
    yield Figure("disk: written to the log an hour", _hourly_log_bytes(day) / _MEGABYTE, "MB")
    yield Figure("disk: exporting and removing in all, in another process meanwhile", day.upkeep_s, "s")


def _hourly_log_bytes(day: _DayFound) -> float:
    """Return how much the log grows in an hour, before anything is removed from it."""
    found = [each.segments_bytes for each in day.samples if each.hour <= _MIDNIGHT]
    return (found[-1] - found[0]) / (len(found) - 1)


def _restart_figures(restarted: _Restarted) -> Iterator[Figure]:
    yield Figure("restart from the view and the rest of the log", restarted.seconds, "s")
    yield Figure("restart: facts replayed", float(restarted.replayed), "")
    yield Figure("restart: resident after it", restarted.resident_bytes / _MEGABYTE, "MB")


def _return_figures(returns: _Returns, sizes: _Sizes) -> Iterator[Figure]:
    name = f"returning, {sizes.held:,} held, {_RATE:,.0f} others a second"
    yield Figure(f"{name}: CONNECT to first notification, median", returns.first_ms(0.5), "ms")
    yield Figure(f"{name}: 99 of 100 within, aim ≤ {_AIM_MS:g}", returns.first_ms(0.99), "ms")
    yield Figure(f"{name}: longest", returns.first_ms(1.0), "ms")
    seconds = statistics.median(each.all_s for each in returns.each)
    yield Figure(f"{name}: until all are acknowledged, {_RECEIVE_MAXIMUM} at a time, median", seconds * 1e3, "ms")
    yield Figure(f"{name}: handed over and acknowledged", sizes.held / seconds, "/s")
    yield Figure("meanwhile, the others: median", statistics.median(each.p50_us for each in returns.beside), "µs")
    yield Figure("meanwhile, the others: 99 of 100 within", statistics.median(b.p99_us for b in returns.beside), "µs")
    yield Figure(
        f"returning: resident memory of the broker with {sizes.groups} such sessions",
        returns.resident_bytes / _MEGABYTE,
        "MB",
    )


def _checks(day: _DayFound, restarted: _Restarted, returns: _Returns, sizes: _Sizes) -> Iterator[Check]:
    is_once = all(each.stored == each.rows for each in day.samples)
    yield Check("one copy: in memory and in the view there are equally many notifications, every hour", is_once)
    claim = (
        f"one copy: {restarted.pairs:,} held in sessions, {restarted.distinct:,} different, {restarted.stored:,} stored"
    )
    yield Check(claim, restarted.distinct == restarted.stored)
    claim = f"every acknowledgement is a receipt: {day.acknowledged:,} and {day.receipts:,}"
    yield Check(claim, day.acknowledged == day.receipts)
    is_same = restarted.known == day.known and restarted.rebuilt is None
    found = " and ".join(f"{c['notifications']:,} stored for {c['pending']:,}" for c in (day.counts, restarted.counts))
    yield Check(f"after a restart everything is as it was: {found}", is_same)
    before, after = day.samples[_MIDNIGHT - 1], day.samples[_MIDNIGHT]
    yield Check("the log is shorter an hour after midnight than before", after.segments_bytes < before.segments_bytes)
    whole = sum(each.is_whole for each in returns.each)
    claim = f"returning: {whole:,} of {len(returns.each):,} devices got all {sizes.held:,} that were held, in order"
    yield Check(claim, whole == len(returns.each) == sizes.groups * sizes.returning)
    lost = sum(each.lost for each in returns.beside)
    yield Check(f"meanwhile, the others: {sum(b.expected for b in returns.beside):,} sent, {lost:,} lost", not lost)


def _aims(day: _DayFound, restarted: _Restarted, returns: _Returns, *, is_full: bool) -> Grid:
    """Set what was measured beside what the issue asks for; nothing where another size was measured."""
    copies = restarted.stored / max(1, restarted.distinct)
    measured: list[tuple[str, float, float, str]] = [
        ("memory: hours 13 to 24 ÷ hours 7 to 12", 1.1, _growth(day, "resident_bytes"), "times"),
        ("view: hours 13 to 24 ÷ hours 7 to 12", 1.1, _growth(day, "view_bytes"), "times"),
        ("log and Parquet: 12 hours after what was old was removed ÷ before", 1.1, _log_growth(day), "times"),
        ("stored copies of a notification that any session holds", 1.0, copies, ""),
        (f"returning: {_FULL.held:,} held, first within, 99 of 100", _AIM_MS, returns.first_ms(0.99), "ms"),
    ]
    rows = tuple(
        (
            what,
            f"≤ {aim:,g} {unit}".strip(),
            value if is_full else None,
            ("yes" if value <= aim else "**no**") if is_full else None,
        )
        for what, aim, value, unit in measured
    )
    return Grid("Aims", ("what", "aim", "measured", "met"), rows)


def _log_growth(day: _DayFound) -> float:
    """Compare halves of the day: at the end of both, twelve hours of the log are there."""
    before, after = (day.samples[hour - 1] for hour in (_MIDNIGHT, _HOURS))
    return (after.segments_bytes + after.parquet_bytes) / (before.segments_bytes + before.parquet_bytes)
