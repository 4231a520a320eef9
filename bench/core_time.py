"""Cost of a delivery in the broker's core, without sockets: the program that ``bench_versions`` runs per checkout.

    python bench/core_time.py CHECKOUT SCENARIO…                  # prints one line of JSON: µs a delivery, by scenario
    python bench/core_time.py CHECKOUT --instructions SCENARIO…   # and the instructions of each delivery beside them

The core is driven by the rig of the checkout's own tests. Only calls of the core are timed, by the thread's own clock;
sockets, the disk and the other programs of the machine have no part in it. The least of some runs is printed: what else
goes on in a machine makes a run slower and never faster.

On a busy machine times differ from run to run by more than a change makes. Instructions do not: ``--instructions`` runs
each scenario a second time, in a process of its own under valgrind's callgrind, with hash seed 0. It writes a dump
before the loop over the publications and another after it, and the second has what was executed between the two: the
core, and the clients of the rig that read and acknowledge (the same in both checkouts of a comparison). The first loop
of the process, of two blocks, fills caches and is not counted. Compare two checkouts by the quotient of their counts.
valgrind has to be installed; it takes about a minute for a scenario.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from broker_rig import Peer, Rig

_RUNS = 5
_BLOCK = 50
_TOPIC = b"whimbrel/bench"
_BODY = bytes(64)
_RIGHTS_RULES = 100
_LEAST_ROOM = 100_000
_USER_PROPERTY = b"\x26" + len(b"ward").to_bytes(2) + b"ward" + len(b"3b").to_bytes(2) + b"3b"
_POLICY = b"if (device.Battery < 0.5) { return NULL; } return m;"
_QOS_SHIFT = 1
# callgrind writes a dump where a C function of this name is entered; Python's call of it marks a place in the loop.
_BEFORE_THE_LOOP, _AFTER_THE_LOOP = "getppid", "getsid"
_TOTAL = re.compile(r"^totals: ([0-9]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One publisher and some plain subscribers, and perhaps one more: in a named session, or with a policy."""

    qos: int
    subscribers: int
    count: int
    is_named: bool = False
    """Whether one more subscriber is a member of a named session, which subscribes."""
    has_policy: bool = False
    """Whether one more subscriber has chosen a policy, which lets everything pass."""
    is_stored: bool = False
    """Whether the sessions of the subscribers outlive their connections: each QoS 1 copy is fsynced first."""
    has_property: bool = False
    """Whether each publication has a user property."""
    has_rights: bool = False
    has_near: bool = False
    """Whether another client says ``near=200`` of another subject, and reports where it is."""


SCENARIOS = {
    "1 → 1, QoS 0": Scenario(qos=0, subscribers=1, count=20_000),
    "1 → 1, QoS 1": Scenario(qos=1, subscribers=1, count=8_000),
    "1 → 100, QoS 0": Scenario(qos=0, subscribers=100, count=4_000),
    "1 → 100, QoS 1": Scenario(qos=1, subscribers=100, count=400),
    "1 → 1, QoS 0, rights": Scenario(qos=0, subscribers=1, count=20_000, has_rights=True),
    "1 → 1, QoS 1, rights": Scenario(qos=1, subscribers=1, count=8_000, has_rights=True),
    "1 → 100, QoS 0, rights": Scenario(qos=0, subscribers=100, count=4_000, has_rights=True),
    "1 → 100, QoS 1, rights": Scenario(qos=1, subscribers=100, count=400, has_rights=True),
    "1 → 1, QoS 0, near elsewhere": Scenario(qos=0, subscribers=1, count=20_000, has_near=True),
    "1 → 1, QoS 1, near elsewhere": Scenario(qos=1, subscribers=1, count=8_000, has_near=True),
    "1 → 100, QoS 0, near elsewhere": Scenario(qos=0, subscribers=100, count=4_000, has_near=True),
    "1 → 100, QoS 1, near elsewhere": Scenario(qos=1, subscribers=100, count=400, has_near=True),
    "1 → 99, QoS 0": Scenario(qos=0, subscribers=99, count=4_000),
    "1 → 99 and a named session, QoS 0": Scenario(qos=0, subscribers=99, count=4_000, is_named=True),
    "1 → a named session, QoS 0": Scenario(qos=0, subscribers=0, count=4_000, is_named=True),
    "1 → 99, QoS 1": Scenario(qos=1, subscribers=99, count=400),
    "1 → 99 and a named session, QoS 1": Scenario(qos=1, subscribers=99, count=400, is_named=True),
    "1 → a named session, QoS 1": Scenario(qos=1, subscribers=0, count=4_000, is_named=True),
    "1 → 99 and a policy, QoS 0": Scenario(qos=0, subscribers=99, count=2_000, has_policy=True),
    "1 → a policy, QoS 0": Scenario(qos=0, subscribers=0, count=4_000, has_policy=True),
    "1 → 99 and a policy, QoS 1": Scenario(qos=1, subscribers=99, count=400, has_policy=True),
    "1 → a policy, QoS 1": Scenario(qos=1, subscribers=0, count=2_000, has_policy=True),
    "1 → a stored session, QoS 1": Scenario(qos=1, subscribers=1, count=4_000, is_stored=True),
    "1 → 100 stored sessions, QoS 1": Scenario(qos=1, subscribers=100, count=200, is_stored=True),
    "1 → 1, QoS 1, user property": Scenario(qos=1, subscribers=1, count=8_000, has_property=True),
    "1 → a stored session, QoS 1, user property": Scenario(
        qos=1, subscribers=1, count=4_000, is_stored=True, has_property=True
    ),
}
SHARES = {
    f"{other}, QoS {qos}": (f"1 → 99, QoS {qos}", f"1 → 99 and {other}, QoS {qos}", f"1 → {other}, QoS {qos}")
    for other in ("a named session", "a policy")
    for qos in (0, 1)
}
"""By the one more subscriber: the scenarios without the subscriber, with both, and with the subscriber alone."""


def cost_of_others(found: Mapping[str, float], name: str) -> float:
    """Return the cost of 99 deliveries beside one more subscriber, divided by their cost without it.

    A publication costs cost(99), cost(99 + 1) or cost(1 alone). The cost of the others beside that subscriber is
    cost(99 + 1) - cost(1 alone). The result is 1.0 if the subscriber costs them nothing.
    """
    without, both, alone = (found[each] * _deliveries(SCENARIOS[each]) for each in SHARES[name])
    return (both - alone) / without


def _deliveries(scenario: Scenario) -> int:
    return scenario.subscribers + scenario.is_named + scenario.has_policy


@dataclass(slots=True)
class _Driven:
    """A core with clients that acknowledge what they get, and the time that it took."""

    rig: Rig
    qos: int
    extra_bytes: dict[int, int]
    """By the number of a subscriber's link: what its version has more in each PUBLISH than 3.1.1."""
    properties: bytes = b""
    """What stands between the packet identifier and the body of each PUBLISH of the publisher."""
    took_ns: int = 0
    arrived: int = 0
    _head: bytes = field(default=len(_TOPIC).to_bytes(2) + _TOPIC)

    def packet(self, number: int) -> bytes:
        """Return a PUBLISH, of 3.1.1 unless it has properties."""
        identifier = (number % 60_000 + 1).to_bytes(2) if self.qos else b""
        rest = self._head + identifier + self.properties + _BODY
        return bytes((0x30 | self.qos << _QOS_SHIFT, len(rest))) + rest

    def timed(self, call: Callable[..., object], *arguments: object) -> None:
        """Call the core."""
        began = time.thread_time_ns()
        call(*arguments)
        self.took_ns += time.thread_time_ns() - began

    def settle(self) -> None:
        """Let clients read and acknowledge, and the disk sync, until nothing is left to do."""
        broker = self.rig.broker
        self._read()
        while broker.wants_sync or broker.has_work:
            if broker.wants_sync:
                self.timed(broker.on_sync, self.rig.log.sync())
            if broker.has_work:
                self.timed(broker.go_on, self.rig.now)
            self._read()

    def _read(self) -> None:
        broker, now, at = self.rig.broker, self.rig.now, 2 + len(self._head)
        while broker.dirty:
            dirty = list(broker.dirty)
            broker.dirty.clear()
            for link in dirty:
                data, link.is_dirty = b"".join(link.out), False
                link.out.clear()
                extra = self.extra_bytes.get(id(link))
                if extra is not None and data:
                    stride = at + (2 if self.qos else 0) + len(_BODY) + extra
                    starts = range(0, len(data), stride)
                    self.arrived += len(starts)
                    if self.qos:
                        acknowledgements = b"".join(b"\x40\x02" + data[each + at : each + at + 2] for each in starts)
                        self.timed(broker.receive, link, acknowledgements, now)
                if link.room < _LEAST_ROOM:
                    broker.on_bytes_written(link, 0, now)


def _run(scenario: Scenario, *, is_marked: bool = False) -> float:
    """Return the µs for each delivery. Where it *is_marked*, callgrind sees where the loop begins and ends."""
    from broker_rig import QUICK, Rig  # of the checkout

    from whimbrel.mqtt.packets import V5, V311

    with tempfile.TemporaryDirectory() as folder:
        limits = replace(QUICK.limits, receive_maximum=_BLOCK)  # of a publisher of 5.0, which sends a block at once
        authorizer = _authorizer() if scenario.has_rights else None
        rig = Rig(Path(folder), replace(QUICK, limits=limits), authorizer=authorizer)
        publisher = rig.client("publisher", version=V5 if scenario.has_property else V311)
        peers = [
            rig.client(f"subscriber-{number}", version=V311, clean=not scenario.is_stored)
            for number in range(scenario.subscribers)
        ]
        extra = {id(peer.link): 0 for peer in peers}
        if scenario.is_named:
            rig.client("operator", version=V5).ask("create", session="ward")
            peers.append(rig.client("member", version=V5, user=(("session", "ward"),)))
            extra[id(peers[-1].link)] = 1
        if scenario.has_policy:
            peers.append(_with_policy(rig))
            extra[id(peers[-1].link)] = 0
        for peer in peers:
            _subscribe(rig, peer, scenario.qos)
        if scenario.has_near:
            _be_near(rig)
        properties = bytes((len(_USER_PROPERTY),)) + _USER_PROPERTY if scenario.has_property else b""
        driven = _Driven(rig, scenario.qos, extra, properties)
        blocks = [
            b"".join(driven.packet(number) for number in range(begin, begin + _BLOCK))
            for begin in range(0, scenario.count, _BLOCK)
        ]
        if is_marked:
            gc.collect()
            os.getppid()
        for block in blocks:
            driven.timed(rig.broker.receive, publisher.link, block, rig.now)
            driven.settle()
        if is_marked:
            os.getsid(0)
        expected = scenario.count * len(peers)
        if driven.arrived != expected:
            raise SystemExit(f"{driven.arrived} of {expected} deliveries arrived")
        return driven.took_ns / expected / 1e3


def _with_policy(rig: Rig) -> Peer:
    """Return a client that has put and chosen a policy, and reported what the policy asks for."""
    from broker_rig import publishing

    from whimbrel.mqtt.packets import V311

    peer = rig.client("phone", version=V311)
    peer.send(publishing("$whimbrel/policy/low", _POLICY, qos=1, packet_id=1))
    rig.settle()
    peer.send(publishing("$whimbrel/policy", b"low", qos=1, packet_id=2))
    peer.send(publishing("$whimbrel/report", b'{"battery": 0.9}'))
    rig.settle()
    peer.take()
    return peer


def _be_near(rig: Rig) -> None:
    from broker_rig import publishing, subscribing

    peer = rig.client("elsewhere")
    peer.send(subscribing("other/#", near="200"))
    peer.send(publishing("$whimbrel/report", b'{"place": "52.52,13.405"}'))
    rig.settle()
    peer.take()


def _subscribe(rig: Rig, peer: Peer, qos: int) -> None:
    from whimbrel.mqtt.packets import Subscribe, SubscriptionRequest
    from whimbrel.mqtt.properties import NO_PROPERTIES

    peer.send(Subscribe(1, (SubscriptionRequest(_TOPIC.decode(), qos),), NO_PROPERTIES))
    rig.settle()


def _authorizer() -> Any:
    """Return one whose rights are about others, and allow at their end."""
    from whimbrel.broker.access.authorizer import Authorizer
    from whimbrel.broker.access.topic_rights import Rights

    others = "".join(
        f'[[rule]]\nuser = "user{number}"\ntopics = ["home/{number}/#"]\nallow = ["publish", "subscribe"]\n\n'
        for number in range(_RIGHTS_RULES - 1)
    )
    text = f'default = "deny"\n\n{others}[[rule]]\ntopics = ["#"]\nallow = ["publish", "subscribe"]\n'
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(text)
        file.flush()
        return Authorizer(Rights.read(Path(file.name)))


def _instructions(root: str, name: str, valgrind: str) -> float:
    """Return the instructions for each delivery of the scenario *name*, counted in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        words = [valgrind, "--quiet", "--tool=callgrind", f"--callgrind-out-file={folder}/counts"]
        words += [f"--dump-before={mark}" for mark in (_BEFORE_THE_LOOP, _AFTER_THE_LOOP)]
        words += [sys.executable, __file__, root, "--loop", name]
        env = {**os.environ, "PYTHONHASHSEED": "0"}
        subprocess.run(words, env=env, stdout=subprocess.DEVNULL, check=True)  # noqa: S603 # this script again
        dumps = [file.read_text(encoding="utf-8", errors="replace") for file in Path(folder).iterdir()]
    totals = [_TOTAL.search(dump) for dump in dumps if f"--dump-before={_AFTER_THE_LOOP}\n" in dump]
    if len(totals) != 1 or totals[0] is None:
        raise SystemExit(f"callgrind wrote {len(totals)} dumps at the end of the loop of {name}; there must be one")
    scenario = SCENARIOS[name]
    return int(totals[0][1]) / scenario.count / _deliveries(scenario)


def _loop(scenario: Scenario) -> None:
    """Run a short loop that fills caches, and then the one that callgrind counts."""
    _run(replace(scenario, count=2 * _BLOCK))
    _run(scenario, is_marked=True)


def main() -> None:
    """Measure the scenarios that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout")
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"some of: {'; '.join(SCENARIOS)}")
    parser.add_argument("--instructions", action="store_true", help="count instructions, with valgrind")
    parser.add_argument("--loop", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_intermixed_args()
    root, names = asked.checkout, asked.scenarios or list(SCENARIOS)
    if unknown := [name for name in names if name not in SCENARIOS]:
        parser.error(f"found the scenario {unknown[0]!r}, allowed are: {'; '.join(SCENARIOS)}")
    valgrind = shutil.which("valgrind")
    if asked.instructions and valgrind is None:
        parser.exit(2, "valgrind was not found; --instructions needs its callgrind, so install valgrind.\n")
    sys.path[:0] = [str(Path(root) / "src"), str(Path(root) / "tests" / "differential"), str(Path(root) / "tests")]
    if asked.loop:
        _loop(SCENARIOS[names[0]])
        return
    found: dict[str, object] = {}
    for name in names:
        found[name] = took = min(_run(SCENARIOS[name]) for _ in range(_RUNS))
        if asked.instructions and valgrind is not None:
            found[name] = {"microseconds": took, "instructions": _instructions(root, name, valgrind)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
