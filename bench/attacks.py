"""Cost attacks: what a client can send that costs the broker more than the client (issue by issue, all reproduced).

Each attack is a function that runs until a time is over, in a process of its own; some have something prepared before.
The sizes are those at which an earlier version stopped for seconds; the bounds that hold now, in counted work, are in
``tests/unit/test_broker_attacks.py``.
Rule: an attacker waits for no more than it must, and knows no manners: it comes again when it is cut off.
"""

from __future__ import annotations

import io
import json
import random
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, count, cycle, repeat
from pathlib import Path

from PIL import Image

from hostile_links import HOST, HostileLink, HostileLinks, connect, publish, subscribe
from websocket_peer import client_frame, upgrade_request
from whimbrel.mqtt.codec import encode
from whimbrel.mqtt.packets import V5, Connack, Disconnect, Pingreq, Puback, Publish, Suback
from whimbrel.mqtt.properties import Properties, Property
from whimbrel.sim.load.processes import raise_file_limit

__all__ = ["ATTACKS", "NEWCOMERS", "Attack", "Target", "attack"]

NEWCOMERS = {"known-here": b"right", "newcomer-there": b"right", "newcomer-here": b"right"}
"""Users who want to log in while the attack goes on: from the attacker's address, where one was right before, and from
another."""
_ELSEWHERE = "127.0.0.2"
_MANY_SOCKETS = 12_000
_SETUP_S = 240.0
_PATIENCE_S = 60.0
_SEED = 2
_MEGABYTE = 1_000_000
_SMALL_MEMORY = "[limits]\nheld_bytes = 67108864\nretained_bytes = 67108864\n"
_SMALL_TOGETHER = "[limits]\nmemory_bytes = 402653184\n"
_MUCH_RETAINED = "[limits]\nheld_bytes = 67108864\nretained_bytes = 268435456\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The broker that is attacked, for how long, and with how much of the full sizes."""

    ports: Mapping[str, int]
    """Of ``mqtt``, ``mqtts`` and ``ws``."""
    folder: Path
    """Where attacker and benchmark tell each other how far they are."""
    seconds: float
    part: float = 1.0

    @property
    def port(self) -> int:
        """The port of MQTT over TCP."""
        return self.ports["mqtt"]

    def begin(self) -> float:
        """Say that everything is prepared, wait for the well-behaved client, and return when the attack is over."""
        (self.folder / "prepared").touch()
        while not (self.folder / "begin").exists():
            time.sleep(0.01)
        return time.monotonic() + self.seconds

    def size(self, full: int, least: int = 2) -> int:
        """Return how many of something that are *full* in a full run."""
        return max(least, int(full * self.part))


Act = Callable[[Target], Counter[str]]
"""Prepares, begins, and attacks until the target's time is over; returns the answers and how often each came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One row of the table."""

    name: str
    act: Act
    settings: str = _SMALL_MEMORY
    options: tuple[str, ...] = ()
    """Of ``whimbrel serve``."""
    has_users: bool = False
    has_tls: bool = False
    allowed_mib: int = 128
    """How much the broker's memory may grow: what the settings allow for this attack, and 64 MiB for the rest."""
    wanted: tuple[str, ...] = field(default=())
    """Answers without which the attack was none, or somebody was kept out who must not be."""


# -- packets -----------------------------------------------------------------------------------------------------------


def _again_and_again(target: Target, packets: Sequence[bytes], *, links: int = 1, under_way: int = 2) -> Counter[str]:
    """Send *packets* in turn on each of some links, *under_way* before the first is answered by SUBACK or PUBACK."""
    with HostileLinks() as crowd:
        _flood(crowd, target, packets, links=links, under_way=under_way)
        return crowd.told


def _flood(crowd: HostileLinks, target: Target, packets: Sequence[bytes], *, links: int, under_way: int) -> None:
    turns, deadline = cycle(packets), target.begin()
    waiting: dict[HostileLink, int] = {}
    while time.monotonic() < deadline:
        while len(waiting) < links and (link := crowd.open(target.port, connect())) is not None:
            waiting[link] = 0
        for link in list(waiting):
            if link.is_closed:
                del waiting[link]
                continue
            waiting[link] -= sum(isinstance(each, Suback | Puback) for each in link.take())
            while waiting[link] < under_way:
                link.send(next(turns))
                waiting[link] += 1
        crowd.turn()


def _torrent(target: Target, port: int, data: bytes, hello: Callable[[], bytes] = connect) -> Counter[str]:
    """Send *data* on four links as fast as the broker takes it, whatever it answers."""
    with HostileLinks() as crowd:
        deadline, sent = target.begin(), 0
        while time.monotonic() < deadline:
            while len(crowd.links) < 4 and crowd.open(port, hello(), is_read=False) is not None:
                pass
            for link in list(crowd.links):
                if len(link.waiting) < len(data):
                    link.send(data)
                    sent += 1
            crowd.turn()
        crowd.told["MB sent"] = sent * len(data) // _MEGABYTE
        return crowd.told


def _small_subscribes(target: Target) -> Counter[str]:
    packets = (subscribe(f"p/{number}", packet_id=number + 1) for number in range(target.size(25_000)))
    return _torrent(target, target.port, b"".join(packets))


def _pings(target: Target) -> Counter[str]:
    return _torrent(target, target.port, encode(Pingreq(), V5) * target.size(131_072))


def _small_publications(target: Target) -> Counter[str]:
    return _torrent(target, target.port, publish("a", b"") * target.size(40_000))


def _behind_long_work(target: Target) -> Counter[str]:
    """Send a long SUBSCRIBE, and behind it megabytes that wait for it."""
    topics = [f"p/{number}" for number in range(target.size(10_000))]  # a packet of more is refused unread
    behind = publish("behind", bytes(target.size(_MEGABYTE))) * 20
    return _torrent(target, target.port, subscribe(*topics, qos=1) + behind)


def _long_filter(leaves: int, first: int = 0) -> str:
    return " || ".join(f"attribute{number} > {number}.5" for number in range(first, first + leaves))


def _topics_with_one_filter(target: Target) -> Counter[str]:
    topics = [f"a/{number}" for number in range(target.size(2_000))]
    return _again_and_again(target, [subscribe(*topics, qos=1, filter=_long_filter(target.size(650)))])


def _plain_topics(target: Target) -> Counter[str]:
    topics = [f"p/{number}" for number in range(target.size(10_000))]  # a packet of more is refused unread
    return _again_and_again(target, [subscribe(*topics, qos=1)])


# -- filters and patterns ----------------------------------------------------------------------------------------------


def _large_filters(target: Target) -> Counter[str]:
    texts = [_long_filter(target.size(600), first) for first in range(target.size(1_500, 20))]
    packets = [subscribe("f/a", name=f"n{number}", filter=text) for number, text in enumerate(texts)]
    return _again_and_again(target, packets, links=4, under_way=20)


def _published_at(target: Target, filters: Sequence[str], bodies: Sequence[bytes], *, holders: int) -> Counter[str]:
    """Subscribe to *filters*, then publish *bodies* in turn, as fast as the broker takes them at QoS 1."""
    packets = [publish("s/a", body, 1, number + 1) for number, body in enumerate(bodies)]
    with HostileLinks() as crowd:
        _subscribe_all(crowd, target, filters, holders)
        _flood(crowd, target, packets, links=1, under_way=1)
        return crowd.told


def _subscribe_all(crowd: HostileLinks, target: Target, filters: Sequence[str], holders: int) -> None:
    """Subscribe on *holders* links, no faster than ``limits.session_work_per_second`` lets them."""
    links = [link for _ in range(holders) if (link := crowd.open(target.port, connect())) is not None]
    for number, text in enumerate(filters):
        links[number % holders].send(subscribe("s/a", name=f"n{number}", filter=text))
        if number % 1_000 == 999:
            crowd.run_until(time.monotonic() + 1)

    def is_answered() -> bool:
        return sum(isinstance(each, Suback) for link in links for each in link.inbox) == len(filters)

    assert crowd.run_until(time.monotonic() + _SETUP_S, is_answered), crowd.told


def _growing_contains(target: Target) -> Counter[str]:
    filters = [f"contains(a, '{'a' * length}')" for length in range(1, target.size(1_000) + 1)]
    body = json.dumps({"a": "a" * target.size(250_000)}).encode()
    return _published_at(target, filters, [body], holders=4)


def _heavy_patterns(target: Target) -> Counter[str]:
    longest = 1_000
    eighteen = " || ".join(f"regex(a, '(x|y)*x(x|y){{{longest - n}}}z')" for n in range(18))
    admitted = " || ".join(f"regex(a, '(x|y)*x(x|y){{{n}}}z')" for n in range(120, 138))
    filters = ["regex(a, '(x|y)*x(x|y){1000}z')", eighteen, admitted, "regex(a, '(x|y)*x(x|y){740}z')"]
    rng = random.Random(_SEED)
    lengths = [target.size(_MEGABYTE - 1_000), 2_000, 700, 200]
    bodies = [json.dumps({"a": "".join(rng.choices("xy", k=length))}).encode() for length in lengths]
    return _published_at(target, filters, bodies, holders=2)


def _dearest_patterns(target: Target) -> Counter[str]:
    """Subscribe with many of the dearest patterns that are admitted, and publish what is just not too long for them."""
    filters = [f"regex(a, '(x|y)*x(x|y){{{740 - number}}}z')" for number in range(target.size(100))]
    body = json.dumps({"a": "".join(random.Random(_SEED).choices("xy", k=1_300))}).encode()
    return _published_at(target, filters, [body], holders=4)


def _many_patterns(target: Target) -> Counter[str]:
    filters = [f"regex(a, 'sensor-{number}-(alarm|alert)[0-9]*$')" for number in range(target.size(5_000))]
    rng = random.Random(_SEED)
    bodies = [json.dumps({"a": f"at home, sensor-{rng.randrange(9_999)}-alarm"}).encode() for _ in range(100)]
    bodies.append(json.dumps({"a": "sensor-" * (target.size(_MEGABYTE - 1_000) // 7)}).encode())
    return _published_at(target, filters, bodies, holders=8)


# -- retained ----------------------------------------------------------------------------------------------------------


def _retain_many(target: Target) -> None:
    """Retain 100,000 small messages under some topics each."""
    number = target.size(100_000)
    with HostileLinks() as crowd:
        link = crowd.open(target.port, connect())
        assert link is not None
        for first in range(0, number, 1_000):
            some = range(first, min(first + 1_000, number))
            link.send(*(publish(f"r/{each % 100}/{each}", b"%064d" % each, retain=True) for each in some))
            crowd.run_until(time.monotonic() + _SETUP_S, lambda: len(link.waiting) < 1 << 18)
        link.send(publish("r/last", b"last", 1, 1, retain=True))
        done = crowd.run_until(time.monotonic() + _SETUP_S, lambda: bool(crowd.told["PUBACK 0x10"]) or link.is_closed)
        assert done, crowd.told


def _everything_again(target: Target) -> Counter[str]:
    """Subscribe to everything, on four links, as soon as about a tenth of it was read."""
    _retain_many(target)
    with HostileLinks() as crowd:
        deadline, packet, asked = target.begin(), subscribe("#", qos=0), 0
        next_bytes: dict[HostileLink, int] = {}
        while time.monotonic() < deadline:
            while len(crowd.links) < 4 and (link := crowd.open(target.port, connect(), is_read=False)) is not None:
                next_bytes[link] = 1
            for link in list(next_bytes):
                if link.is_closed:
                    del next_bytes[link]
                elif link.received_bytes >= next_bytes[link]:
                    link.send(packet)
                    asked += 1
                    next_bytes[link] = link.received_bytes + target.size(1_000_000, 1_000)
            crowd.turn()
        crowd.told["subscribed to #"] = asked
        return crowd.told


def _retain_megabytes(target: Target) -> Counter[str]:
    packets = [
        publish(f"large/{number}", bytes(target.size(_MEGABYTE)), 1, number % 60_000 + 1, retain=True)
        for number in range(600 if target.part >= 1 else 5)
    ]
    return _again_and_again(target, packets, under_way=1)


# -- absent sessions ---------------------------------------------------------------------------------------------------


def _leave(target: Target, names: Sequence[str], topic_filter: str) -> None:
    """Let clients subscribe in sessions that stay, 200 at a time, and go."""
    goodbye, remaining = encode(Disconnect(), V5), iter(names)
    with HostileLinks() as crowd:
        deadline = time.monotonic() + _SETUP_S
        while time.monotonic() < deadline:
            while len(crowd.links) < 200 and (name := next(remaining, None)) is not None:
                crowd.open(target.port, connect(name, expiry_s=3_600), subscribe(topic_filter, qos=1))
            if not crowd.links:
                break
            crowd.turn()
            for link in list(crowd.links):
                if any(isinstance(each, Suback) for each in link.take()):
                    link.send(goodbye)
        assert crowd.told["SUBACK 0x01"] == len(names), crowd.told


def _publish_to_crowd(target: Target) -> Counter[str]:
    _leave(target, [f"absent-{number}" for number in range(target.size(20_000, 50))], "crowd/#")
    packets = [publish("crowd/all", b"%064d" % number, 1, number + 1) for number in range(500)]
    return _again_and_again(target, packets, under_way=4)


_RETURNING = "returning"


def _hold_many(target: Target) -> None:
    total = target.size(20_000, 50)
    _leave(target, [_RETURNING], "held/#")
    with HostileLinks() as crowd:
        publisher = crowd.open(target.port, connect())
        assert publisher is not None
        waiting = 0
        for number in range(total):
            publisher.send(publish("held/x", b"%064d" % number, 1, number % 60_000 + 1))
            waiting += 1
            while waiting >= 30 or (number == total - 1 and waiting):  # the broker's Receive Maximum is 32
                crowd.turn()
                waiting -= sum(isinstance(each, Puback) for each in publisher.take())
                assert not publisher.is_closed


def _return_again(target: Target) -> Counter[str]:
    """Come back to what is held, wait for the first of it, and leave, again and again."""
    _hold_many(target)
    with HostileLinks() as crowd:
        deadline, returns = target.begin(), 0
        link: HostileLink | None = None
        while time.monotonic() < deadline:
            if link is None or link.is_closed:
                link = crowd.open(target.port, connect(_RETURNING, is_clean=False, expiry_s=3_600))
            elif any(isinstance(each, Publish) for each in link.take()):
                returns += 1
                link.close()
            crowd.turn(0.002)
        crowd.told["returned"] = returns
        return crowd.told


# -- policies ----------------------------------------------------------------------------------------------------------


_GUARDED = "if (m.secret == 1) { return NULL; } return compress(m, 0.1, 0, 1);"
_SECRET = b'{"secret": 1}'
_DEAREST = (
    "function f(a, b, c) { " + "x = a < b; " * 50 + "return 0; } " + "z = f(m.a, m.b, m.c); " * 23 + "return m;",
    "function f(c) { " + f"x = {' or '.join(['c in device.s'] * 30)}; " * 5 + "} " + "z = f(m.c); " * 15 + "return m;",
)
"""As many steps as one run may take: comparisons of 16 KB, which an earlier version took for one step each, and looks
into a set for names of 1,000 characters, the dearest that is accepted now. The last that is accepted counts."""
_NO_SECRET = "no secret was sent"


def _device(crowd: HostileLinks, target: Target, policy: str, *texts: str) -> HostileLink:
    """Return a device that puts *texts*, one over the other, chooses what was accepted last if any, and subscribes."""
    link = crowd.open(target.port, connect())
    assert link is not None
    link.send(*(publish(f"$whimbrel/policy/{policy}", text.encode(), 1, 1) for text in texts))
    if texts:
        link.send(publish("$whimbrel/policy", policy.encode(), 1, 2))
    link.send(subscribe("s/#", qos=0))
    ready = crowd.run_until(time.monotonic() + _SETUP_S, lambda: any(isinstance(each, Suback) for each in link.inbox))
    assert ready, crowd.told
    link.take()
    return link


def _slow_jpeg(number: int) -> bytes:
    """Return a JPEG of 2,500 × 2,500 with 300 scans more than it needs; each *number* is another."""
    out = io.BytesIO()
    Image.new("RGB", (2_500, 2_500), (number % 256, number // 256 % 256, 9)).save(out, "JPEG", progressive=True)
    body = out.getvalue()
    return body[:-2] + body[body.rindex(b"\xff\xda") : -2] * 300 + body[-2:]


def _deep_png(number: int) -> bytes:
    """Return a PNG of 16 bits a channel; each *number* is another."""
    side = 3_500
    rows = (b"\0" + number.to_bytes(8) * side) * side
    head = side.to_bytes(4) * 2 + bytes((16, 6, 0, 0, 0))
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(rows, 1)), (b"IEND", b""))
    framed = (len(data).to_bytes(4) + name + data + zlib.crc32(name + data).to_bytes(4) for name, data in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(framed)


def _slow_pictures(target: Target) -> Counter[str]:
    """Publish pictures that are slow to decode, and after them what a device's policy keeps from it."""
    pictures = [make(number) for number in range(target.size(14)) for make in (_slow_jpeg, _deep_png)]
    bodies = chain(pictures, repeat(_SECRET))
    with HostileLinks() as crowd:
        device, stranger = _device(crowd, target, "guarded", _GUARDED), crowd.open(target.port, connect())
        assert stranger is not None
        deadline, numbers, secrets, due = target.begin(), count(1), 0, time.monotonic()
        while time.monotonic() < deadline:
            while due <= time.monotonic() and not stranger.waiting:
                stranger.send(publish("s/a", next(bodies), 1, next(numbers)))
                due += 0.02
            crowd.turn(0.01)
            stranger.take()
            secrets += sum(isinstance(each, Publish) and each.payload == _SECRET for each in device.take())
        crowd.told["secrets sent" if secrets else _NO_SECRET] = secrets or 1
        return crowd.told


def _dearest_policy(target: Target) -> Counter[str]:
    """Publish, for twenty devices on the dearest policy that is accepted, what makes it dear."""
    return _for_twenty(target, *reversed(_DEAREST))


def _no_policy(target: Target) -> Counter[str]:
    """Publish the same for twenty devices without a policy: what the row before is to be compared with."""
    return _for_twenty(target)


def _for_twenty(target: Target, *texts: str) -> Counter[str]:
    long = {"a": "Ж" * 16_384 + "a", "b": "Ж" * 16_384 + "b", "c": "c" * 1_000}
    body = json.dumps(long, ensure_ascii=False).encode()
    turns = cycle([publish("s/a", body, 1, number + 1) for number in range(100)])
    with HostileLinks() as crowd:
        devices = [_device(crowd, target, f"dear-{number}", *texts) for number in range(target.size(20))]
        stranger = crowd.open(target.port, connect())
        assert stranger is not None
        deadline, due = target.begin(), time.monotonic()
        while time.monotonic() < deadline:
            while due <= time.monotonic() and len(stranger.waiting) < len(body):
                stranger.send(next(turns))
                due += 0.02
            crowd.turn(0.01)
            stranger.take()
            for device in devices:
                crowd.told["copies"] += sum(isinstance(each, Publish) for each in device.take())
        return crowd.told


# -- passwords ---------------------------------------------------------------------------------------------------------


def _newcomers(crowd: HostileLinks, target: Target) -> Iterator[None]:
    """Log in with right passwords while the attack goes on, one after the other."""
    for name, password in NEWCOMERS.items():
        source = _ELSEWHERE if name == "newcomer-there" else ""
        began = time.monotonic()
        link = crowd.open(target.port, connect(username=name, password=password), source=source)
        assert link is not None
        while not link.inbox and not link.is_closed:
            yield
        is_in = any(isinstance(each, Connack) and not each.code for each in link.take())
        took_ms = (time.monotonic() - began) * 1e3
        crowd.told[f"{name} {'let in' if is_in else 'kept out'} after {took_ms:,.0f} ms"] = 1


def _wait_for_all(crowd: HostileLinks, newcomers: Iterator[None]) -> None:
    """Let the newcomers be answered, if that takes no longer than a minute."""
    deadline = time.monotonic() + _PATIENCE_S
    for _ in newcomers:
        if time.monotonic() > deadline:
            crowd.told[f"a newcomer waited for more than {_PATIENCE_S:g} s"] = 1
            break
        crowd.turn()


def _log_in(target: Target, name: str) -> None:
    """Log in and go: from now on the broker knows that this user was right at this address."""
    with HostileLinks() as crowd:
        crowd.open(target.port, connect(username=name, password=NEWCOMERS[name]))
        crowd.run_until(time.monotonic() + _SETUP_S, lambda: bool(crowd.told))
        assert crowd.told == {"CONNACK 0x00": 1}, crowd.told


def _wrong_passwords(target: Target) -> Counter[str]:
    """Guess 300 times a second, all from one address, under many names."""
    names = target.size(100)
    _log_in(target, "known-here")
    with HostileLinks() as crowd:
        began, numbers = target.begin() - target.seconds, count()
        newcomers = _newcomers(crowd, target)
        number = next(numbers)
        while (now := time.monotonic()) < began + target.seconds:
            while began + number / 300 <= now:
                crowd.open(target.port, connect(username=f"guessed-{number % names}", password=b"wrong"))
                number = next(numbers)
            if now > began + target.seconds / 4:
                next(newcomers, None)
            crowd.turn()
        _wait_for_all(crowd, newcomers)
        return crowd.told


def _create_sessions(target: Target) -> Counter[str]:
    """Ask for named sessions with passwords, 300 at a time, again and again."""
    _log_in(target, "known-here")
    with HostileLinks() as crowd:
        began, numbers = target.begin() - target.seconds, count()
        newcomers = _newcomers(crowd, target)
        link: HostileLink | None = None
        while (now := time.monotonic()) < began + target.seconds:
            if link is None or link.is_closed:
                link = crowd.open(target.port, connect(username="well-behaved", password=b"well-behaved"))
                assert link is not None
                asked = 0
            while asked < target.size(300):
                link.send(_request(next(numbers)))
                asked += 1
            asked -= sum(isinstance(each, Publish) for each in link.take())
            if now > began + target.seconds / 4:
                next(newcomers, None)
            crowd.turn()
        _wait_for_all(crowd, newcomers)
        return crowd.told


def _request(number: int) -> bytes:
    body = json.dumps({"id": number, "session": f"made-{number}", "passwords": {"owner": "x"}}).encode()
    properties = Properties({Property.RESPONSE_TOPIC: "$whimbrel/session/answer"})
    return encode(Publish("$whimbrel/session/create", body, properties=properties), V5)


def _large_reports(target: Target) -> Counter[str]:
    """Report nine kilobytes of members from 1,500 devices, whose sessions stay."""
    members = {f"m{number}": "x" * 70 for number in range(100)}
    report = json.dumps({"battery": 0.5, **members}).encode()
    with HostileLinks() as crowd:
        deadline = target.begin()
        for number in range(target.size(1_500)):
            link = crowd.open(target.port, connect(f"device-{number}", is_clean=False, expiry_s=900))
            if link is None or time.monotonic() > deadline:
                break
            link.send(publish("$whimbrel/report", report, qos=1, packet_id=1))
            while not link.is_closed and not any(isinstance(each, Puback) for each in link.take()):
                crowd.turn()
        while time.monotonic() < deadline:
            crowd.turn()
        return crowd.told


# -- lists -------------------------------------------------------------------------------------------------------------

_POLICIES_EACH = 100
"""How many policies one client may put."""
_POLICY = b"if (device.Battery < 0.5) { return NULL; } return m;"


def _asked(topic: str, members: Mapping[str, object], packet_id: int) -> bytes:
    """Return a request at QoS 1 that wants an answer."""
    properties = Properties({Property.RESPONSE_TOPIC: "$whimbrel/session/answer"})
    body = json.dumps(members).encode()
    return encode(Publish(topic, body, 1, packet_id=packet_id, properties=properties), V5)


def _make(target: Target, packets: Sequence[bytes]) -> None:
    """Send *packets* of QoS 1, a few under way, and wait until all are acknowledged."""
    with HostileLinks() as crowd:
        link = crowd.open(target.port, connect())
        assert link is not None
        waiting = 0
        for number, packet in enumerate(packets, start=1):
            link.send(packet)
            waiting += 1
            while waiting >= 30 or (number == len(packets) and waiting):  # the broker's Receive Maximum is 32
                crowd.turn()
                waiting -= sum(isinstance(each, Puback) for each in link.take())
                assert not link.is_closed
        assert crowd.told["PUBACK 0x00"] == len(packets), crowd.told


def _list_again(target: Target) -> Counter[str]:
    """Ask for all policies and sessions on twenty links, again and again."""
    policies, sessions = target.size(1_000, 10), target.size(20_000, 10)
    for first in range(0, policies, _POLICIES_EACH):
        some = range(first, min(first + _POLICIES_EACH, policies))
        _make(target, [publish(f"$whimbrel/policy/p{each}", _POLICY, 1, each + 1) for each in some])
    create = "$whimbrel/session/create"
    _make(target, [_asked(create, {"session": f"s{each}"}, each % 60_000 + 1) for each in range(sessions)])
    listing = [
        packet
        for each in range(1, 101)
        for packet in (
            _asked("$whimbrel/policy", {"list": True}, 2 * each),
            _asked("$whimbrel/session/list", {}, 2 * each + 1),
        )
    ]
    return _again_and_again(target, listing, links=20, under_way=16)


# -- connections -------------------------------------------------------------------------------------------------------


def _held_open(target: Target, port: int, wanted: int, first: Sequence[bytes] = (), drip: bytes = b"") -> Counter[str]:
    """Keep *wanted* connections open that say *first* and then nothing, or a byte of *drip* now and then."""
    raise_file_limit(_MANY_SOCKETS)
    with HostileLinks() as crowd:
        deadline, opened, next_drip, at = target.begin(), 0, 0.0, 0
        while (now := time.monotonic()) < deadline:
            some = 0
            while len(crowd.links) < wanted and some < 50:  # the others are served meanwhile
                if crowd.open(port, *first, is_read=False) is None:
                    break
                opened, some = opened + 1, some + 1
            if drip and now > next_drip:
                next_drip, at = now + 0.5, at + 1
                for link in list(crowd.links):
                    link.send(drip[at % len(drip) : at % len(drip) + 1])
            crowd.turn()
        crowd.told["opened"] = opened
        crowd.told["still open"] = len(crowd.links)
        return crowd.told


def _silent_tls(target: Target) -> Counter[str]:
    return _held_open(target, target.ports["mqtts"], target.size(3_000))


def _silent(target: Target) -> Counter[str]:
    return _held_open(target, target.port, target.size(5_000))


def _endless_handshakes(target: Target) -> Counter[str]:
    first = b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\nX: "
    return _held_open(target, target.ports["ws"], target.size(2_000), [first], b"x")


def _silent_requests(target: Target) -> Counter[str]:
    """Use up file descriptors through the port for metrics and health."""
    return _held_open(target, target.ports["http"], target.size(5_000))


# -- WebSocket ---------------------------------------------------------------------------------------------------------


def _web_socket(target: Target, frames: bytes) -> Counter[str]:
    """Open WebSockets, CONNECT, and send *frames* as fast as the broker takes them."""
    hello = upgrade_request(HOST)
    return _torrent(target, target.ports["ws"], frames, lambda: hello + client_frame(connect()))


def _tiny_frames(target: Target) -> Counter[str]:
    stream = publish("w/s", bytes(64)) * 200
    return _web_socket(target, b"".join(client_frame(stream[at : at + 1]) for at in range(len(stream))))


def _fragments(target: Target) -> Counter[str]:
    """Send messages of 1 MB in fragments of 64 KB, each a publication that nobody gets."""
    packet, size = publish("w/large", bytes(target.size(_MEGABYTE))), 1 << 16
    parts = [packet[at : at + size] for at in range(0, len(packet), size)]
    frames = [client_frame(part, is_first=not number, is_final=False) for number, part in enumerate(parts)]
    return _web_socket(target, b"".join(frames) + client_frame(b"", is_first=False))


# -- the table ---------------------------------------------------------------------------------------------------------


def _nothing(target: Target) -> Counter[str]:
    time.sleep(max(0.0, target.begin() - time.monotonic()))
    return Counter()


_WS = ("--ws-port", "0")

ATTACKS = (
    Attack(name="no attack", act=_nothing),
    Attack(
        name="packet: 2,000 topic filters, one content filter of 16 KB",
        act=_topics_with_one_filter,
        wanted=("SUBACK 0x97",),
        allowed_mib=192,
    ),
    Attack(name="packet: 10,000 plain topic filters", act=_plain_topics, wanted=("SUBACK 0x01",), allowed_mib=192),
    Attack(name="packet: 25,000 small SUBSCRIBEs in one write", act=_small_subscribes, wanted=("MB sent",)),
    Attack(name="packet: 131,072 PINGREQs in one write", act=_pings, wanted=("MB sent",)),
    Attack(name="packet: 40,000 publications of 6 bytes in one write", act=_small_publications, wanted=("MB sent",)),
    Attack(name="packet: 20 MB behind a long SUBSCRIBE", act=_behind_long_work, wanted=("MB sent",), allowed_mib=192),
    Attack(name="filter: 1,500 of 16 KB on four links", act=_large_filters, wanted=("SUBACK 0x00",), allowed_mib=640),
    Attack(
        name="filter: contains() of 1 to 1,000 a's, 250 KB of a's",
        act=_growing_contains,
        wanted=("SUBACK 0x00",),
        allowed_mib=256,
    ),
    Attack(
        name="pattern: (x|y)*x(x|y){1000}z, 18 in one filter, 1 MB",
        act=_heavy_patterns,
        wanted=("SUBACK 0x8f",),
        allowed_mib=256,
    ),
    Attack(
        name="pattern: 100 of the dearest that are admitted",
        act=_dearest_patterns,
        wanted=("SUBACK 0x00",),
        allowed_mib=256,
    ),
    Attack(
        name="pattern: 5,000 ordinary ones, short and 1 MB",
        act=_many_patterns,
        wanted=("SUBACK 0x00",),
        allowed_mib=384,
    ),
    Attack(
        name="retained: # over 100,000, again and again",
        act=_everything_again,
        settings=_MUCH_RETAINED,
        wanted=("subscribed to #",),
        allowed_mib=128,
    ),
    Attack(name="retained: 600 of 1 MB", act=_retain_megabytes, wanted=("PUBACK 0x10",), allowed_mib=192),
    Attack(
        name="absent: a publication for 20,000 sessions, again and again",
        act=_publish_to_crowd,
        settings=_SMALL_TOGETHER,
        wanted=("PUBACK 0x00",),
        allowed_mib=448,
    ),
    Attack(
        name="absent: back to 20,000 held messages, again and again",
        act=_return_again,
        wanted=("returned",),
        allowed_mib=192,
    ),
    Attack(
        name="reports: 9 KB each from 1,500 devices, under 48 MiB",
        act=_large_reports,
        settings="[limits]\nmemory_bytes = 50331648\n",
        wanted=("PUBACK 0x97",),
        allowed_mib=112,
    ),
    Attack(
        name="policies: pictures that are slow to decode",
        act=_slow_pictures,
        wanted=(_NO_SECRET, "PUBACK 0x00"),
        allowed_mib=320,
    ),
    Attack(
        name="policies: 20 devices on the dearest one",
        act=_dearest_policy,
        wanted=("copies", "PUBACK 0x00"),
        allowed_mib=256,
    ),
    Attack(
        name="policies: 20 devices without one get the same",
        act=_no_policy,
        wanted=("copies", "PUBACK 0x00"),
        allowed_mib=256,
    ),
    Attack(
        name="login: 300 wrong passwords a second",
        act=_wrong_passwords,
        has_users=True,
        wanted=("known-here let in", "newcomer-there let in"),
        allowed_mib=384,
    ),
    Attack(
        name="requests: lists of 1,000 policies and 20,000 sessions, 20 links",
        act=_list_again,
        wanted=("PUBACK 0x00",),
        allowed_mib=192,
    ),
    Attack(
        name="TLS: 3,000 connections that never shake hands",
        act=_silent_tls,
        has_tls=True,
        wanted=("opened",),
        allowed_mib=320,  # 80 KB each, which OpenSSL and the event loop take
    ),
    Attack(
        name="requests: 300 sessions with passwords, again and again",
        act=_create_sessions,
        has_users=True,
        wanted=("known-here let in", "newcomer-there let in"),
        allowed_mib=384,
    ),
    Attack(name="WebSocket: 2,000 handshakes that never end", act=_endless_handshakes, options=_WS, wanted=("opened",)),
    Attack(name="WebSocket: frames of one byte", act=_tiny_frames, options=_WS, wanted=("MB sent",)),
    Attack(name="WebSocket: 1 MB in fragments", act=_fragments, options=_WS, wanted=("MB sent",), allowed_mib=192),
    Attack(name="connections: 5,000 that say nothing", act=_silent, wanted=("opened",)),
    Attack(
        name="connections: 5,000 to the HTTP port that say nothing",
        act=_silent_requests,
        options=("--http-port", "0"),
        wanted=("opened",),
    ),
)
_BY_NAME = {each.name: each for each in ATTACKS}


def attack(name: str, target: Target) -> Counter[str]:
    """Run the attack *name*; return the answers and how often each came."""
    return _BY_NAME[name].act(target)
