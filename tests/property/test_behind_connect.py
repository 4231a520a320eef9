"""What comes behind a CONNECT: however the network cuts it, and whatever the CONNECT waits for, it means the same.

Every prefix of a legal stream arrives in one write at every state of a connection: before its CONNECT, while a password
is verified, while a session is joined, while the disk is waited for, and when it is open. The client must hear the same
answers, and the log must have the same publications, as if each packet had come alone and been answered.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, count
from pathlib import Path
from unittest.mock import patch

import pytest
from broker_rig import MARK, NODE, Peer, Rig, publishing, quick_scrypt, subscribing
from hypothesis import given, settings
from hypothesis import strategies as st

from whimbrel.broker.settings.config import Config, LimitSettings, SessionSettings
from whimbrel.log.reader import read
from whimbrel.model.notification import Notification
from whimbrel.mqtt.codec import encode
from whimbrel.mqtt.packets import V5, V311, Connack, Connect, Packet, Pingreq, Publish, Suback, Unsubscribe
from whimbrel.mqtt.properties import NO_PROPERTIES, Properties, Property

WORD = "sesame"
PACKET_BYTES = 1_024
LASTING: dict[Property, object] = {Property.SESSION_EXPIRY_INTERVAL: 60}

Step = Callable[[Rig], None]
STEPS: dict[str, Step] = {
    "nothing": lambda _rig: None,
    "the passwords are verified": Rig.answer_questions,
    "the disk has everything": Rig.sync,
    "it is open": Rig.settle,
}
"""What may have happened between two writes of a client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A way to connect."""

    version: int = V5
    clean: bool = True
    options: dict[Property, object] = field(default_factory=dict)
    user: tuple[tuple[str, str], ...] = ()
    username: str | None = None

    def connect(self, client_id: str) -> Connect:
        """Return the CONNECT."""
        return Connect(
            client_id,
            clean_start=self.clean,
            keep_alive_s=0,
            version=self.version,
            username=self.username,
            password=None if self.username is None else WORD.encode(),
            will=None,
            properties=Properties(self.options, user=(*MARK, *self.user)) if self.version == V5 else NO_PROPERTIES,
        )


LOCKED = (("session", "locked"), ("password", WORD))
WAYS = {
    "passing": Way(),
    "persistent": Way(clean=False, options=LASTING),
    "persistent, 3.1.1": Way(version=V311, clean=False),
    "with a password": Way(username="ann"),
    "joining": Way(user=(("session", "open"),)),
    "joining with a password": Way(user=LOCKED),
    "all of it": Way(clean=False, options=LASTING, username="ann", user=LOCKED),
}


@pytest.fixture(scope="module", autouse=True)
def _quick_passwords() -> Iterator[None]:
    """Hash without scrypt's cost; what a password waits for is what counts here."""
    with patch("whimbrel.broker.access.passwords._scrypt", quick_scrypt):
        yield


Stream = Callable[[str, int], list[Packet]]
"""What a client of a name and a version says behind its CONNECT; topics of all names have the same length."""


def everything(name: str, version: int) -> list[Packet]:
    """Return packets of all kinds that need no answer before the next; bodies look like packets."""
    ping, acknowledged = encode(Pingreq(), version), encode(publishing("x", b"y", 1, 9), version)
    packets: list[Packet] = [
        subscribing(f"{name}/#", qos=1, packet_id=1, session="") if version == V5 else subscribing(f"{name}/#", qos=1),
        publishing(f"{name}/a", ping * 3, 0),
        publishing(f"{name}/b", acknowledged, 1, 2),
        Pingreq(),
        publishing(f"{name}/c", bytes(130), 2, 3),
        Unsubscribe(4, (f"{name}/never",)),
        publishing(f"{name}/d", b"last", 1, 5),
    ]
    if version == V5:
        alias = Properties({Property.TOPIC_ALIAS: 1})
        packets[4:4] = [Publish(f"{name}/e", b"named", properties=alias), Publish("", b"alias", properties=alias)]
    return packets


@dataclass(frozen=True, slots=True)
class Heard:
    """What came of a stream: the answers, in any order, and what the log has, in order."""

    answers: list[str]
    logged: list[tuple[str, bytes, int]]


class World:
    """A broker that many clients connect to, one after the other."""

    def __init__(self, folder: Path) -> None:
        config = replace(
            Config(), limits=LimitSettings(packet_bytes=PACKET_BYTES), sessions=SessionSettings(devices=100_000)
        )
        self.rig = Rig(folder, config, verify=lambda _user, password: password == WORD.encode())
        self._numbers = count(1)
        self._answers: dict[str, list[str]] = {}
        maker = self.rig.client("maker")
        assert maker.ask("create", session="open")["ok"]
        assert maker.ask("create", session="locked", passwords={"owner": WORD})["ok"]
        maker.drop()

    def name(self) -> str:
        """Return the name of another client."""
        return f"c{next(self._numbers):06}"

    def say(self, name: str, way: Way, writes: Iterable[tuple[bytes, Step]]) -> None:
        """Let a client write, and the broker make its step behind each of them."""
        peer = Peer(self.rig, way.version)
        for data, step in writes:
            peer.send_bytes(data)
            step(self.rig)
        self.rig.settle()
        assert not peer.is_closed, peer.inbox
        assert type(peer.inbox[0]) is Connack
        self._answers[name] = sorted(_summary(packet, name) for packet in peer.take())
        peer.drop()

    def heard(self) -> dict[str, Heard]:
        """Return what came of everything that was said, by client."""
        self.rig.settle()
        self.rig.close()
        logged: dict[str, list[tuple[str, bytes, int]]] = {}
        for fact in read(self.rig.folder, NODE):
            if isinstance(fact, Notification) and fact.publisher in self._answers:
                told = (str(fact.subject).replace(fact.publisher, "*"), fact.body, fact.qos)
                logged.setdefault(fact.publisher, []).append(told)
        return {name: Heard(answers, logged.get(name, [])) for name, answers in self._answers.items()}


def _summary(packet: Packet, name: str) -> str:
    """Return what a packet says, but for the name and for numbers that depend on who came before."""
    if isinstance(packet, Publish):
        packet = packet._replace(topic=packet.topic.replace(name, "*"), packet_id=0)
    return repr(packet)


def _packets(name: str, way: Way, stream: Stream) -> list[bytes]:
    return [encode(packet, way.version) for packet in (way.connect(name), *stream(name, way.version))]


def _alone(packets: Sequence[bytes]) -> list[tuple[bytes, Step]]:
    """Let each packet come alone, and be answered."""
    return [(packet, Rig.settle) for packet in packets]


def _cut(packets: Sequence[bytes], cuts: Sequence[tuple[int, Step]]) -> Iterator[tuple[bytes, Step]]:
    """Cut the stream at some bytes, and let the broker make a step behind each cut."""
    data, at = b"".join(packets), 0
    for cut, step in sorted(cuts, key=lambda each: each[0]):
        yield data[at:cut], step
        at = cut
    yield data[at:], Rig.settle


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("way", WAYS)
def test_every_prefix_in_one_write_means_the_same(way: str, step: str, tmp_path: Path) -> None:
    """A payload that has bytes of other packets in it would be stored, delivered and acknowledged like a right one."""
    world, chosen = World(tmp_path), WAYS[way]
    alone = world.name()
    world.say(alone, chosen, _alone(_packets(alone, chosen, everything)))
    ends = list(accumulate(map(len, _packets(alone, chosen, everything))))
    length = ends[-1]
    # Around the ends of packets everywhere, and every byte between them in one of the steps.
    cut_at = {*range(1 + list(STEPS).index(step), length + 1, len(STEPS)), *ends, *(end + 1 for end in ends[:-1])}
    names = {cut: world.name() for cut in sorted(cut_at)}
    for cut, name in names.items():
        world.say(name, chosen, _cut(_packets(name, chosen, everything), [(cut, STEPS[step])]))
    heard = world.heard()
    assert len(heard[alone].logged) >= 4
    assert any("Suback" in answer for answer in heard[alone].answers)
    for cut, name in names.items():
        assert heard[name] == heard[alone], f"cut at {cut} of {length}"


@st.composite
def cuts(draw: st.DrawFn) -> list[tuple[int, Step]]:
    """Draw where the stream is cut, and what happens behind each cut."""
    return draw(st.lists(st.tuples(st.integers(0, 500), st.sampled_from(list(STEPS.values()))), max_size=6))


@settings(max_examples=60)
@given(way=st.sampled_from(list(WAYS.values())), where=st.lists(cuts(), min_size=1, max_size=8))
def test_any_cuts_mean_the_same(way: Way, where: list[list[tuple[int, Step]]]) -> None:
    """Half packets before, behind and around the CONNECT wait together, in order."""
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        alone, *names = [world.name() for _ in range(len(where) + 1)]
        world.say(alone, way, _alone(_packets(alone, way, everything)))
        for name, each in zip(names, where, strict=True):
            world.say(name, way, _cut(_packets(name, way, everything), each))
        heard = world.heard()
    assert [heard[name] for name in names] == [heard[alone]] * len(names)


@pytest.mark.parametrize("way", ["persistent", "with a password", "joining with a password"])
def test_a_packet_of_the_longest_kind_waits_behind_connect(way: str, tmp_path: Path) -> None:
    """A legal stream is not refused because the disk is slow: there is room for the longest packet and for more."""
    world, chosen = World(tmp_path), WAYS[way]

    def long(name: str, _version: int) -> list[Packet]:
        return [publishing(f"{name}/long", bytes(PACKET_BYTES - 20)), *everything(name, V5)]

    alone, name = world.name(), world.name()
    world.say(alone, chosen, _alone(_packets(alone, chosen, long)))
    world.say(name, chosen, _cut(_packets(name, chosen, long), []))
    heard = world.heard()
    assert heard[name] == heard[alone]


def test_what_waits_behind_connect_is_bounded(tmp_path: Path) -> None:
    """Whoever sends without end before CONNACK is sent away."""
    world = World(tmp_path)
    peer = world.rig.connecting("greedy", expiry_s=60, username="ann", password=WORD.encode())
    for _ in range(20):
        peer.send_bytes(encode(publishing("a", bytes(900)), V5) * 100)
    assert peer.is_closed
    assert peer.link.machine.held_bytes < PACKET_BYTES + (1 << 20) + 100_000
    assert peer.taken(Suback) == []
