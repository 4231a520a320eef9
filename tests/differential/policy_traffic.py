"""Random traffic of devices that put policies, choose them, subscribe with them, and report their battery."""

from __future__ import annotations

from pathlib import Path
from random import Random

from broker_rig import NODE, SECOND_US, Peer, Rig, subscribing
from broker_traffic import FILTERS, Traffic, Voice

from whimbrel.log.reader import read
from whimbrel.model.facts import Decided, Fact, Receipt
from whimbrel.mqtt.packets import V5, Puback, Publish, Subscribe, SubscriptionRequest
from whimbrel.mqtt.properties import Properties

__all__ = ["POLICIES", "PolicyTraffic", "prompt_log", "undecided"]

POLICIES = (
    "if (m.n > 3) { return NULL; } return m;",
    "if (device.Battery < 0.5) { return NULL; } m.low = 0; return m;",
    "if (state.n == NULL) { state.n = 0; } state.n = state.n + 1; if (state.n % 3 == 0) { return NULL; } m.c = 1;",
    "return summarise(m, 2, 'n');",
    "return project(m, 'id');",
)
_NAMES = ("p", "q", "r")


class PolicyTraffic(Traffic):
    """Traffic in which policies decide."""

    def __init__(self, rig: Rig, seed: int, *, clients: int = 5, is_stable: bool = False) -> None:
        super().__init__(rig, seed, clients=clients, is_stable=is_stable, has_wills=False)

    def step(self) -> str:
        """Let one thing happen, now and then one about policies."""
        if self.random.random() > 0.2:
            return super().step()
        voice = self.random.choice(self.voices)
        did = self._shape(voice)
        self.listen()
        return f"{did} {voice.name}"

    def settle(self) -> None:
        """Sync and transform until nobody waits."""
        while self.rig.broker.transforms:
            self.rig.transform()
        super().settle()

    def listen(self) -> None:
        """Let everybody hear what there is; bodies are made at once."""
        self.rig.transform()
        super().listen()

    def _shape(self, voice: Voice) -> str:
        random, peer = self.random, voice.peer
        kind, number, text = random.randrange(4), random.choice(_NAMES), random.choice(POLICIES)
        battery, wanted, qos = random.random(), random.choice(FILTERS), random.randrange(3)
        if peer is None or not voice.is_welcome:
            return "nothing"
        if kind == 0:
            peer.send(Publish(f"$whimbrel/policy/{number}", b"" if random.random() < 0.1 else text.encode()))
        elif kind == 1:
            peer.send(Publish("$whimbrel/policy", b"" if random.random() < 0.2 else number.encode()))
        elif kind == 2:
            peer.send(Publish("$whimbrel/report", b'{"battery": %f}' % battery))
        elif voice.version == V5 and not self.is_stable:
            requests = (SubscriptionRequest(wanted, qos),)
            peer.send(Subscribe(1, requests, Properties(user=(("whimbrel.policy", number),))))
        return ("put", "choose", "report", "subscribe")[kind]


_PLACES = ("a/1", "a/2", "b/1")
_WANTED = ("a/#", "a/1", "+/1", "$share/g/a/#", "$share/g/a/#", "$share/h/+/1")


def prompt_log(folder: Path, seed: int, *, steps: int = 80) -> list[Fact]:
    """Return the log of a broker whose clients stay, and acknowledge everything at once.

    So nothing is decided later than it is published, and who reads the log without ``undecided`` can find it again.
    """
    random, rig = Random(seed), Rig(folder)
    peers = {name: rig.client(name) for name in ("c0", "c1", "c2", "c3")}
    for number, text in enumerate(POLICIES):
        peers["c0"].send(Publish(f"$whimbrel/policy/{number}", text.encode()))
    rig.settle()
    for step in range(steps):
        rig.now += random.choice((0, SECOND_US // 2, SECOND_US))
        _act(random, random.choice(list(peers.values())), step)
        _acknowledge(rig, list(peers.values()))
    rig.close()
    return list(read(folder, NODE))


def _act(random: Random, peer: Peer, step: int) -> None:
    kind, name = random.random(), str(random.randrange(len(POLICIES)))
    if kind < 0.15:
        named = {} if random.random() < 0.4 else {"whimbrel.policy": name}
        request = subscribing(random.choice(_WANTED), qos=random.randrange(2))
        peer.send(request._replace(properties=Properties(user=tuple(named.items()))))
    elif kind < 0.2:
        peer.send(Publish("$whimbrel/policy", random.choice((b"", name.encode(), name.encode()))))
    elif kind < 0.3:
        peer.send(Publish("$whimbrel/report", b'{"battery": %f}' % random.random()))
    else:
        rest = "x" * random.choice((0, 0, 5_000))
        body = f'{{"n": {random.randrange(7)}, "id": {step}, "rest": "{rest}"}}'.encode()
        qos = random.randrange(2)
        peer.send(Publish(random.choice(_PLACES), body, qos, packet_id=qos))


def _acknowledge(rig: Rig, peers: list[Peer]) -> None:
    """Let everybody acknowledge until nothing is sent any more."""
    while True:
        rig.settle()
        heard = [(peer, packet) for peer in peers for packet in peer.taken(Publish) if packet.qos]
        if not heard:
            return
        for peer, packet in heard:
            peer.send(Puback(packet.packet_id))


def undecided(facts: list[Fact]) -> list[Fact]:
    """Return a log as it would be without receipts and decisions."""
    return [fact for fact in facts if not isinstance(fact, Decided | Receipt)]
