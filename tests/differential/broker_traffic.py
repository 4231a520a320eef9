"""Random traffic for a broker: clients of both versions that come, go, publish, subscribe, and answer when they like.

Rule: what clients do depends on the seed and on what they were sent: brokers that say the same are told the same.
Rule: clients keep the protocol: what they answer they were asked, and what is unfinished they send again when they are
back in their session, with the identifier it had.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from broker_rig import Peer, Rig, subscribing

from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.packets import (
    V5,
    V311,
    Connack,
    Disconnect,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Subscribe,
    SubscriptionRequest,
    Unsubscribe,
    Will,
)
from whimbrel.mqtt.properties import NO_PROPERTIES, Properties, Property

__all__ = ["Traffic", "Voice"]

TOPICS = ("a", "a/b", "a/b/c", "b", "b/a", "$x/a")
FILTERS = ("a", "a/b", "a/#", "a/+", "#", "+", "+/a", "b", "$x/#", "$share/g/a", "$share/g/#", "$share/h/a/#")
CONTENT = ("n > 3", "n < 3", "n == 1", "n != 0", "require(n)", "begins-with(n, '1')", "id > 9 && n > 1")
MAX_UNFINISHED = 20
"""Fewer than a client of 5.0 may have without an answer."""


class Voice:
    """A client over all its connections, as it knows itself."""

    def __init__(self, name: str, version: int) -> None:
        self.name, self.version = name, version
        self.peer: Peer | None = None
        self.is_welcome = False
        self.heard: list[Packet] = []
        """Everything it was ever sent."""
        self.todo: list[Packet] = []
        """What it has to answer."""
        self.unfinished: dict[int, Publish | Pubrel] = {}
        """What it published at QoS 1 and 2 and has no last answer to."""
        self.accepted: list[Publish] = []
        """What it published at QoS 1 and 2 and was told to be accepted."""
        self.taken: list[Publish] = []
        """What it takes for new."""
        self._known: set[int] = set()
        """Identifiers of QoS 2 publications to it that are not released."""

    def listen(self) -> None:
        """Take in what it was sent."""
        peer = self.peer
        if peer is None:
            return
        for packet in peer.take():
            self.heard.append(packet)
            self._hear(packet)
        if peer.is_closed:
            self.peer, self.is_welcome = None, False
            self.todo.clear()

    def _hear(self, packet: Packet) -> None:
        if isinstance(packet, Connack):
            self._welcomed(packet)
        elif isinstance(packet, Publish):
            self._published(packet)
        elif isinstance(packet, Puback):
            self._finish(packet.packet_id, packet.code)
        elif isinstance(packet, Pubrec):
            if packet.code >= ReasonCode.UNSPECIFIED_ERROR:
                self._finish(packet.packet_id, packet.code)
            else:
                self._finish(packet.packet_id, packet.code)
                self.unfinished[packet.packet_id] = Pubrel(packet.packet_id)
                self.todo.append(Pubrel(packet.packet_id))
        elif isinstance(packet, Pubrel):
            self._known.discard(packet.packet_id)
            self.todo.append(Pubcomp(packet.packet_id))
        elif isinstance(packet, Pubcomp):
            self.unfinished.pop(packet.packet_id, None)

    def _welcomed(self, packet: Connack) -> None:
        self.is_welcome = packet.code == 0
        if not packet.session_present:
            self.unfinished.clear()
            self._known.clear()
        again = [each._replace(dup=True) if isinstance(each, Publish) else each for each in self.unfinished.values()]
        if self.is_welcome and again and self.peer is not None:
            self.peer.send(*again)

    def _published(self, packet: Publish) -> None:
        if packet.qos == 1:
            self.todo.append(Puback(packet.packet_id))
        elif packet.qos == 2:
            self.todo.append(Pubrec(packet.packet_id))
            if packet.packet_id in self._known:
                return
            self._known.add(packet.packet_id)
        self.taken.append(packet)

    def _finish(self, packet_id: int, code: ReasonCode) -> None:
        done = self.unfinished.pop(packet_id, None)
        if isinstance(done, Publish) and code < ReasonCode.UNSPECIFIED_ERROR:
            self.accepted.append(done)

    def free_identifier(self) -> int:
        """Return the lowest packet identifier that is free: what is freed too late is found out soon."""
        return next(number for number in range(1, 65_536) if number not in self.unfinished)

    def answer(self, count: int) -> None:
        """Answer the first *count* of what is to be answered."""
        now, self.todo = self.todo[:count], self.todo[count:]
        if self.peer is not None and now:
            self.peer.send(*now)
            self.listen()


class Traffic:
    """Clients at one broker, driven by *seed*; *is_stable* ones neither lose sessions nor what was published.

    With *has_content* they ask for content, more often than not.
    """

    def __init__(
        self,
        rig: Rig,
        seed: int,
        *,
        clients: int = 5,
        is_stable: bool = False,
        has_wills: bool = True,
        has_content: bool = False,
    ) -> None:
        self.rig, self.random = rig, Random(seed)
        self.is_stable, self.has_wills, self.has_content = is_stable, has_wills, has_content
        self.voices = [Voice(f"c{number}", self.random.choice((V5, V311))) for number in range(clients)]
        self.bodies = 0
        self.others: list[Callable[[], None]] = []
        """What else may happen between two things that clients do."""

    def run(self, steps: int) -> None:
        """Let *steps* things happen."""
        for _ in range(steps):
            self.step()

    def step(self) -> str:
        """Let one thing happen, and everybody hear of it; return what it was."""
        random = self.random
        kinds = (
            self._connect,
            self._go,
            self._subscribe,
            self._publish,
            self._answer,
            self._time,
            self._disk,
            self._rare,
        )
        kind = random.choices(kinds, (8, 4, 6, 30, 20, 6, 14, 3))[0]
        voice = random.choice(self.voices)
        kind(voice)
        self.listen()
        return f"{kind.__name__} {voice.name}"

    def listen(self) -> None:
        """Let everybody hear what there is."""
        while any(voice.peer is not None and (voice.peer.inbox or voice.peer.is_closed) for voice in self.voices):
            for voice in self.voices:
                voice.listen()

    def settle(self) -> None:
        """Sync until nobody waits, and everybody has heard what there is."""
        while self.rig.broker.wants_sync or self.rig.broker.has_work:
            self.rig.sync()
            self.rig.work()
            self.listen()

    # -- what clients do ---------------------------------------------------------------------------------------------

    def _connect(self, voice: Voice) -> None:
        if voice.peer is not None and self.random.random() < 0.8:
            return
        is_clean = not self.is_stable and self.random.random() < 0.3
        expiry_s = 1_000 if self.is_stable else self.random.choice((0, 0, 4, 1_000))
        options: dict[Property, object] = {}
        if self.random.random() < 0.3:
            options[Property.RECEIVE_MAXIMUM] = self.random.choice((1, 2, 5))
        if self.random.random() < 0.2:
            options[Property.TOPIC_ALIAS_MAXIMUM] = self.random.choice((1, 3))
        if self.random.random() < 0.1 and not self.is_stable:
            options[Property.MAXIMUM_PACKET_SIZE] = self.random.choice((20, 40))
        self.connect(voice, is_clean=is_clean, expiry_s=expiry_s, options=options, will=self._will(voice))

    def connect(
        self,
        voice: Voice,
        *,
        is_clean: bool = False,
        expiry_s: int = 1_000,
        options: dict[Property, object] | None = None,
        will: Will | None = None,
    ) -> None:
        """Let a client come; a connection it has is taken over."""
        old = voice.peer
        voice.peer = self.rig.connecting(
            voice.name, version=voice.version, clean=is_clean, expiry_s=expiry_s, options=options, will=will
        )
        if old is not None:  # the last words to it are heard too
            voice.heard += old.take()
        voice.is_welcome = False
        voice.todo.clear()

    def _will(self, voice: Voice) -> Will | None:
        random = self.random
        if not self.has_wills or random.random() < 0.6:
            return None
        properties = NO_PROPERTIES
        if voice.version == V5 and random.random() < 0.5:
            properties = Properties({Property.WILL_DELAY_INTERVAL: random.choice((1, 5))})
        return Will(random.choice(TOPICS), self._body(), random.randrange(3), random.random() < 0.2, properties)

    def _go(self, voice: Voice) -> None:
        peer, random = voice.peer, self.random
        if peer is None:
            return
        if random.random() < 0.5 or not voice.is_welcome:
            peer.drop()
        elif voice.version == V5 and random.random() < 0.5 and not self.is_stable:
            ways = (
                Disconnect(ReasonCode.DISCONNECT_WITH_WILL),
                Disconnect(properties=Properties({Property.SESSION_EXPIRY_INTERVAL: 0})),
            )
            peer.send(random.choice(ways))
        else:
            peer.send(Disconnect())

    def _subscribe(self, voice: Voice) -> None:
        if voice.peer is None or not voice.is_welcome or self.is_stable:
            return
        random, is_new = self.random, voice.version == V5
        wanted = random.sample(FILTERS, random.choice((1, 1, 2)))
        if random.random() < 0.3:
            voice.peer.send(Unsubscribe(1, tuple(wanted)))
            return
        requests = tuple(
            SubscriptionRequest(
                each,
                random.randrange(3),
                is_new and random.random() < 0.1 and not each.startswith("$share"),
                is_new and random.random() < 0.3,
                random.choice((0, 0, 1, 2)) if is_new else 0,
            )
            for each in wanted
        )
        identifiers = (random.randrange(1, 200),) if is_new and random.random() < 0.3 else ()
        user = (random.choice((("max", "0"), ("max", "2"), ("ttl", "3"), ("filter", "n > 3"))),)
        is_special = is_new and random.random() < 0.15
        if is_new and self.has_content and random.random() < 0.8:
            if random.random() < 0.7:  # without any options
                requests, identifiers = (SubscriptionRequest(random.choice(("a/#", "#", "+"))),), ()
            for name in "xyz":
                about = (("filter", random.choice(CONTENT)), ("name", name))
                voice.peer.send(Subscribe(1, requests, Properties(user=about, identifiers=identifiers)))
            return
        voice.peer.send(Subscribe(1, requests, Properties(user=user if is_special else (), identifiers=identifiers)))

    def subscribe_all(self, qos_of: Callable[[Voice], int], filter_of: Callable[[Voice], str]) -> None:
        """Let everybody come and subscribe once, and be told so."""
        for voice in self.voices:
            self.connect(voice)
            self.rig.settle()
            self.listen()
            assert voice.peer is not None
            voice.peer.send(subscribing(filter_of(voice), qos=qos_of(voice)))
            self.rig.settle()
            self.listen()

    def _publish(self, voice: Voice) -> None:
        if voice.peer is None:
            return
        if self.has_content and self.random.random() < 0.5:
            self._publish_plainly(voice.peer)
            return
        packets = []
        for _ in range(self.random.choice((1, 1, 2, 4))):
            qos = self.random.randrange(3) if voice.is_welcome and len(voice.unfinished) < MAX_UNFINISHED else 0
            packet_id = voice.free_identifier() if qos else 0
            packet = Publish(
                self.random.choice(TOPICS),
                self._body() if self.random.random() < 0.9 or self.is_stable else b"",
                qos,
                self.random.random() < 0.15,
                packet_id=packet_id,
                properties=self._properties(voice),
            )
            if qos:
                voice.unfinished[packet_id] = packet
            packets.append(packet)
        voice.peer.send(*packets)

    def _publish_plainly(self, peer: Peer) -> None:
        """Publish at QoS 0 and without any options, when nobody waits for the disk."""
        self.settle()
        count = self.random.choice((1, 4, 20))
        peer.send(*(Publish(self.random.choice(TOPICS), self._body()) for _ in range(count)))

    def _properties(self, voice: Voice) -> Properties:
        random = self.random
        if voice.version != V5 or random.random() < 0.6:
            return NO_PROPERTIES
        if random.random() < 0.6 and not self.is_stable:
            return Properties({Property.MESSAGE_EXPIRY_INTERVAL: random.choice((1, 3, 100))})
        return Properties({Property.CONTENT_TYPE: "text/plain"}, user=(("n", str(random.randrange(9))),))

    def _body(self) -> bytes:
        self.bodies += 1
        return b'{"n": %d, "id": %d}' % (self.random.randrange(7), self.bodies)

    def _answer(self, voice: Voice) -> None:
        voice.answer(self.random.choice((1, 3, 100)))

    # -- what happens to the broker ----------------------------------------------------------------------------------

    def _time(self, _voice: Voice) -> None:
        self.rig.tick(self.random.choice((0, 0, 0.5, 1, 5)))

    def _disk(self, _voice: Voice) -> None:
        self.rig.sync()

    def _rare(self, voice: Voice) -> None:
        if voice.peer is not None and self.random.random() < 0.5:
            is_choked = self.random.random() < 0.5
            self.rig.broker.set_choked(voice.peer.link, self.rig.now, is_choked=is_choked)
            self.rig.flush()
        for each in self.others:
            each()
