"""Random traffic of devices that put policies, choose them, subscribe with them, and report their battery."""

from __future__ import annotations

from broker_rig import Rig
from broker_traffic import FILTERS, Traffic, Voice

from whimbrel.mqtt.packets import V5, Publish, Subscribe, SubscriptionRequest
from whimbrel.mqtt.properties import Properties

__all__ = ["POLICIES", "PolicyTraffic"]

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
