"""Random traffic with named sessions: as ``broker_traffic``, and clients make, join, share and delete them."""

from __future__ import annotations

import json

from broker_rig import MARK, Peer, Rig
from broker_traffic import CONTENT, FILTERS, MAX_UNFINISHED, Traffic, Voice

from whimbrel.hold.private import is_private
from whimbrel.mqtt.packets import V5, Connect, Publish, Subscribe, SubscriptionRequest, Unsubscribe, Will
from whimbrel.mqtt.properties import NO_PROPERTIES, Properties, Property

__all__ = ["SessionTraffic"]

NAMES = ("ann", "bob", "cat")
PLAIN_FILTERS = tuple(each for each in FILTERS if not each.startswith("$share"))


class SessionTraffic(Traffic):
    """Clients that share sessions, which are open to all: passwords would only take time."""

    def __init__(self, rig: Rig, seed: int, *, clients: int = 5, has_content: bool = False) -> None:
        super().__init__(rig, seed, clients=clients, has_content=has_content)
        self.others.append(self._session_changes)

    def existing(self) -> list[str]:
        """Return the sessions that can be joined without guessing."""
        return sorted(session for session in self.rig.state.hold.sessions() if not is_private(session))

    def step(self) -> str:
        """Let one thing happen, of sessions now and then, and answer what the core asks its shell."""
        if self.random.random() < 0.25:
            voice = self.random.choice(self.voices)
            self._ask(voice)
            done = f"_ask {voice.name}"
        else:
            done = super().step()
        self._answer_questions()
        self.listen()
        return done

    def settle(self) -> None:
        """Sync and answer until nobody waits."""
        while self.rig.broker.wants_sync or self.rig.broker.blocking_tasks or self.rig.broker.has_work:
            self._answer_questions()
            super().settle()

    def _answer_questions(self) -> None:
        broker = self.rig.broker
        while (question := broker.blocking_tasks.next(self.rig.listened_us)) is not None:
            broker.on_answer(question, question.ask(), self.rig.now)
            self.rig.flush()

    def connect(
        self,
        voice: Voice,
        *,
        is_clean: bool = False,
        expiry_s: int = 1_000,
        options: dict[Property, object] | None = None,
        will: Will | None = None,
        sessions: list[str] | None = None,
    ) -> None:
        """Let a client come, in version 5 with some sessions."""
        old, random = voice.peer, self.random
        if sessions is None:
            sessions = [session for session in self.existing() if random.random() < 0.5]
            random.shuffle(sessions)
        told = dict(options or {})
        if expiry_s:
            told[Property.SESSION_EXPIRY_INTERVAL] = expiry_s
        modes = [("receipt", random.choice(("take", "keep"))) for _ in sessions]
        user = (*MARK, *(("session", session) for session in sessions), *modes)
        properties = Properties(told, user=user) if voice.version == V5 else NO_PROPERTIES
        voice.peer = Peer(self.rig, voice.version)
        voice.peer.send(
            Connect(
                voice.name,
                clean_start=is_clean,
                keep_alive_s=0,
                version=voice.version,
                will=will,
                properties=properties,
            )
        )
        if old is not None:  # the last words to it are heard too
            voice.heard += old.take()
        voice.is_welcome = False
        voice.todo.clear()

    def request(self, voice: Voice, verb: str, **members: object) -> None:
        """Let a client ask something of sessions."""
        if voice.peer is None or not voice.is_welcome or len(voice.unfinished) >= MAX_UNFINISHED:
            return
        qos = self.random.choice((0, 1, 1, 2))
        packet_id = voice.free_identifier() if qos else 0
        properties = Properties({Property.RESPONSE_TOPIC: "answers"}) if voice.version == V5 else NO_PROPERTIES
        body = json.dumps({"id": self.bodies, **members}).encode()
        packet = Publish(f"$whimbrel/session/{verb}", body, qos, packet_id=packet_id, properties=properties)
        if qos:
            voice.unfinished[packet_id] = packet
        voice.peer.send(packet)

    def _ask(self, voice: Voice) -> None:
        random, existing = self.random, self.existing()
        session = random.choice(existing) if existing else ""
        verb = random.choices(
            ("create", "join", "leave", "delete", "subscribe", "unsubscribe", "show", "list", "access"),
            (4, 10, 3, 1, 8, 2, 1, 1, 0.5),
        )[0]
        if verb == "create" or not session:
            self.request(voice, "create", session=random.choice(NAMES))
        elif verb == "join":
            self.request(voice, "join", session=session, receipt=random.choice(("take", "keep")))
        elif verb == "leave":
            self.request(voice, "leave", session=session)
        elif verb in {"delete", "show"}:
            self.request(voice, verb, session=session)
        elif verb == "access":
            self.request(voice, "access", session=session, open=True)
        elif verb == "list":
            self.request(voice, "list")
        elif verb == "unsubscribe":
            self.request(voice, "unsubscribe", session=session, topic=random.choice(PLAIN_FILTERS))
        elif random.random() < 0.5:
            options = random.choice(({}, {}, {"max": 0}, {"max": 2}, {"ttl": 3}, {"filter": "n > 3"}))
            topic = random.choice(PLAIN_FILTERS)
            self.request(voice, "subscribe", session=session, topic=topic, qos=random.randrange(3), **options)
        else:
            self._subscribe_in(voice, session)

    def _subscribe_in(self, voice: Voice, session: str) -> None:
        """Let a client subscribe in a session with SUBSCRIBE, joined or not."""
        if voice.peer is None or not voice.is_welcome or voice.version != V5:
            return
        wanted = self.random.choice(PLAIN_FILTERS)
        user: tuple[tuple[str, str], ...] = (("session", session), ("modify", "yes"))
        if self.random.random() < 0.2:
            voice.peer.send(Unsubscribe(1, (wanted,), Properties(user=user)))
            return
        if self.random.random() < 0.3:
            user = (*user, ("name", self.random.choice("xy")))
        if self.has_content and self.random.random() < 0.5:
            user = (*user, ("filter", self.random.choice(CONTENT)))
        identifiers = (self.random.randrange(1, 200),) if self.random.random() < 0.3 else ()
        requests = (SubscriptionRequest(wanted, self.random.randrange(3)),)
        voice.peer.send(Subscribe(1, requests, Properties(user=user, identifiers=identifiers)))

    def _session_changes(self) -> None:
        """Let somebody listen to what becomes of sessions."""
        voice = self.random.choice(self.voices)
        if voice.peer is not None and voice.is_welcome:
            voice.peer.send(Subscribe(1, (SubscriptionRequest("$whimbrel/session/#", 0),), NO_PROPERTIES))
