"""A broker without sockets: its core on a log, clients that speak in packets, and a clock that is moved by hand.

Rule: the rig does what the shell does and nothing more: it brings bytes and the time, takes what is to be written,
closes what is to be closed, and says what is durable. Only ``sync`` makes anything durable.
It stands here, and not beside the unit tests that use it too, because this folder is on the path of all tests.
"""

from __future__ import annotations

import hashlib
import json
import random
import weakref
from pathlib import Path
from typing import Any, TypeVar

from whimbrel.broker.access.authorizer import Authorizer
from whimbrel.broker.access.passwords import HASH_BYTES, Cost
from whimbrel.broker.broker import Broker, Verify
from whimbrel.broker.settings.config import AccessSettings, Config
from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.broker.wire.listener_rules import ListenerRules
from whimbrel.language.policies.limits import DEFAULT_POLICY_LIMITS
from whimbrel.log.writer import LogWriter
from whimbrel.mqtt.codec import Decoder, encode
from whimbrel.mqtt.packets import V5, Connack, Connect, Packet, Publish, Subscribe, SubscriptionRequest, Will
from whimbrel.mqtt.properties import NO_PROPERTIES, Properties, Property
from whimbrel.shape.faults import Fault, TransformError
from whimbrel.shape.transforms import perform

__all__ = [
    "ANSWERS",
    "MARK",
    "NODE",
    "SECOND_US",
    "START",
    "Peer",
    "Rig",
    "asking",
    "publishing",
    "quick_scrypt",
    "subscribing",
]

NODE = "node-1"
SECOND_US = 1_000_000
START = 1_700_000_000 * SECOND_US
QUICK = Config(access=AccessSettings(password_hash_mib=1))
"""Sessions that do not exist cost as much as a password: with the default, a test would do little but hash."""
SESSIONS = "$whimbrel/session/"
ANSWERS = f"{SESSIONS}answer"
"""Where 3.1.1 is answered; in version 5 our clients ask to be answered there too."""

MARK = (("whimbrel", "1"),)
"""The user properties of a CONNECT whose client knows Whimbrel."""

_P = TypeVar("_P", bound=Packet)


class Peer:
    """One connection of a client: what it was sent stands in ``inbox`` until it is taken."""

    def __init__(self, rig: Rig, version: int, address: str = "test", listener: ListenerRules | None = None) -> None:
        self._rig, self.version = rig, version
        self.link = rig.broker.open_link(self, address, rig.now, listener=listener)
        self._decoder = Decoder(version=version)
        self.inbox: list[Packet] = []
        self.is_closed = False
        rig.peers.append(self)

    def send(self, *packets: Packet) -> None:
        """Say *packets*, in one piece."""
        self.send_bytes(b"".join(encode(packet, self.version) for packet in packets))

    def send_bytes(self, data: bytes) -> None:
        """Say bytes, whatever they are."""
        self._rig.broker.receive(self.link, data, self._rig.now)
        self._rig.flush()

    def tell(self, *packets: Packet) -> list[Packet]:
        """Say *packets* and take what was sent up to now."""
        self.send(*packets)
        return self.take()

    def take(self) -> list[Packet]:
        """Return what was sent since the last time."""
        taken, self.inbox = self.inbox, []
        return taken

    def taken(self, kind: type[_P]) -> list[_P]:
        """Return what was sent since the last time, of one kind; the rest is forgotten."""
        return [packet for packet in self.take() if isinstance(packet, kind)]

    def payloads(self) -> list[bytes]:
        """Return the payloads of what was published to it since the last time."""
        return [packet.payload for packet in self.taken(Publish)]

    def ask(self, verb: str, *, sent_qos: int = 0, packet_id: int = 0, **members: Any) -> dict[str, Any]:
        """Make a request, let everything settle, and return the answer; what else was sent stays in ``inbox``."""
        self.send(asking(verb, sent_qos=sent_qos, packet_id=packet_id, version=self.version, **members))
        self._rig.settle()
        (answer,) = self.answers()
        return answer

    def answers(self) -> list[dict[str, Any]]:
        """Take the answers to requests; what else was sent stays in ``inbox``."""
        found = [each for each in self.inbox if isinstance(each, Publish) and each.topic == ANSWERS]
        self.inbox = [each for each in self.inbox if not (isinstance(each, Publish) and each.topic == ANSWERS)]
        return [json.loads(each.payload) for each in found]

    def drop(self) -> None:
        """Be cut off, without a word."""
        if not self.is_closed:
            self.is_closed = True
            self._rig.broker.on_connection_closed(self.link, self._rig.now)
            self._rig.flush()

    def read(self) -> None:
        """Take in what the broker has for it, as the shell's turn ends."""
        link = self.link
        if link.after_seq > self._rig.log.written_seq:  # as the shell does: the log first, then the bytes
            self._rig.log.sync(wait=False)
        data, link.is_dirty = b"".join(link.out), False
        link.out.clear()
        if self.is_closed:
            return
        self.inbox += self._decoder.receive(data)
        assert self._decoder.failure is None, self._decoder.failure
        if link.closing is not None:
            self.drop()
        elif link.room < self._rig.broker.config.limits.send_buffer_bytes // 2:
            self._rig.broker.on_bytes_written(link, 0, self._rig.now)


class Rig:
    """A broker on the log in *folder*; *state* is what was there before."""

    def __init__(
        self,
        folder: Path,
        config: Config = QUICK,
        *,
        state: BrokerState | None = None,
        authorizer: Authorizer | None = None,
        verify: Verify | None = None,
        now: int | None = None,
        has_plans: bool = True,
    ) -> None:
        self.now = START if now is None else now
        self.listened_us = 0
        """The clock of silence, which steps of the other do not move."""
        self.peers: list[Peer] = []
        self.folder = folder
        self.log = LogWriter(folder, NODE)
        self.log.open()
        self.state = BrokerState(NODE) if state is None else state
        self.broker = Broker(
            config,
            self.log,
            self.state,
            rng=random.Random(1),
            authorizer=authorizer,
            verify=verify,
            now=now,
            has_plans=has_plans,
        )
        # A test has many rigs, and forgets them; their files must not stay open for all the tests that come after.
        weakref.finalize(self, self.log._release)

    def flush(self) -> None:
        """End a turn: everybody reads what there is. By order of coming, so that a turn ends the same every time."""
        while self.broker.dirty:
            self.broker.dirty.clear()
            for peer in list(self.peers):
                peer.read()
        self.peers = [peer for peer in self.peers if not peer.is_closed]

    def sync(self) -> None:
        """Let the disk have everything, and say so."""
        self.broker.on_sync(self.log.sync())
        self.flush()

    def next_turn(self) -> None:
        """Let the broker do a piece of what it left for the next turn."""
        self.broker.go_on(self.now)
        self.flush()

    def answer_questions(self) -> None:
        """Ask what the core wants to know, one after the other, and tell it."""
        while (question := self.broker.blocking_tasks.next(self.listened_us)) is not None:
            self.broker.on_answer(question, question.ask(), self.now)
        self.flush()

    def settle(self) -> None:
        """Answer and sync until nobody waits."""
        broker = self.broker
        while broker.wants_sync or broker.blocking_tasks or broker.has_work or broker.transforms:
            self.answer_questions()
            self.transform()
            self.sync()
            self.work()

    def transform(self) -> None:
        """Make the bodies that policies wait for, one after the other."""
        while self.broker.transforms:
            job = self.broker.transforms.popleft()
            result: bytes | Fault
            try:
                result = perform(job.work, DEFAULT_POLICY_LIMITS)
            except TransformError as error:
                result = error.fault
            self.broker.on_answer(job, result, self.now)
            self.flush()

    def work(self) -> int:
        """Do all work that is too long for one turn; return how many turns it took."""
        turns = 0
        while self.broker.has_work:
            self.broker.go_on(self.now)
            self.flush()
            turns += 1
        return turns

    def tick(self, seconds: float = 0.0) -> None:
        """Let time pass."""
        self.broker.end_silent(self.now, self.listened_us)  # as the shell does every moment
        self.now += int(seconds * SECOND_US)
        self.listened_us += int(seconds * SECOND_US)
        self.broker.tick(self.now)
        self.broker.end_silent(self.now, self.listened_us)
        self.flush()

    def connecting(
        self,
        client_id: str,
        *,
        version: int = V5,
        clean: bool = True,
        expiry_s: int = 0,
        will: Will | None = None,
        keep_alive_s: int = 0,
        options: dict[Property, object] | None = None,
        user: tuple[tuple[str, str], ...] = (),
        username: str | None = None,
        password: bytes | None = None,
        address: str = "test",
        is_ours: bool = True,
        listener: ListenerRules | None = None,
    ) -> Peer:
        """Return a client whose CONNECT was sent, and perhaps not answered.

        *expiry_s*, *options* and the *user* properties are of 5.0. Its CONNECT says that it knows Whimbrel, unless it
        is not one of ours.
        """
        told = dict(options or {})
        if expiry_s:
            told[Property.SESSION_EXPIRY_INTERVAL] = expiry_s
        peer = Peer(self, version, address, listener)
        properties = Properties(told, user=(*MARK[: int(is_ours)], *user)) if version == V5 else NO_PROPERTIES
        peer.send(
            Connect(
                client_id,
                clean_start=clean,
                keep_alive_s=keep_alive_s,
                version=version,
                username=username,
                password=password,
                will=will,
                properties=properties,
            )
        )
        return peer

    def client(
        self,
        client_id: str,
        *,
        version: int = V5,
        clean: bool = True,
        expiry_s: int = 0,
        will: Will | None = None,
        options: dict[Property, object] | None = None,
        user: tuple[tuple[str, str], ...] = (),
        username: str | None = None,
        password: bytes | None = None,
        is_ours: bool = True,
        listener: ListenerRules | None = None,
    ) -> Peer:
        """Return a client that is connected; everything is synced on the way, and its CONNACK is taken."""
        peer = self.connecting(
            client_id,
            version=version,
            clean=clean,
            expiry_s=expiry_s,
            will=will,
            options=options,
            user=user,
            username=username,
            password=password,
            is_ours=is_ours,
            listener=listener,
        )
        self.settle()
        welcome = peer.inbox.pop(0)
        assert isinstance(welcome, Connack), welcome
        assert welcome.code == 0, welcome
        return peer

    def subscriber(self, client_id: str, *wanted: str, qos: int = 0, expiry_s: int = 0, version: int = V5) -> Peer:
        """Return a client that is connected and subscribes to *wanted*."""
        peer = self.client(client_id, expiry_s=expiry_s, version=version)
        peer.send(subscribing(*wanted, qos=qos))
        self.settle()
        peer.take()
        return peer

    def close(self) -> None:
        """Let go of the log."""
        self.log.close()


def subscribing(*wanted: str | SubscriptionRequest, qos: int = 0, packet_id: int = 1, **options: str) -> Subscribe:
    """Return a SUBSCRIBE; *options* are its user properties."""
    requests = tuple(
        each if isinstance(each, SubscriptionRequest) else SubscriptionRequest(each, qos) for each in wanted
    )
    return Subscribe(packet_id, requests, Properties(user=tuple(options.items())))


def publishing(
    topic: str, payload: bytes = b"", qos: int = 0, packet_id: int = 0, *, retain: bool = False, dup: bool = False
) -> Publish:
    """Return a PUBLISH without properties."""
    return Publish(topic, payload, qos, retain=retain, dup=dup, packet_id=packet_id)


def asking(verb: str, *, sent_qos: int = 0, packet_id: int = 0, version: int = V5, **members: Any) -> Publish:
    """Return the PUBLISH of a request about named sessions, to be answered at ``ANSWERS``."""
    properties = Properties({Property.RESPONSE_TOPIC: ANSWERS}) if version == V5 else NO_PROPERTIES
    body = json.dumps(members).encode()
    return Publish(SESSIONS + verb, body, sent_qos, packet_id=packet_id, properties=properties)


def quick_scrypt(password: bytes, salt: bytes, cost: Cost) -> bytes:
    """Hash without scrypt's cost, in place of ``passwords._scrypt``: for tests of what comes of passwords."""
    return hashlib.pbkdf2_hmac("sha256", password, salt + repr(cost).encode(), 1, HASH_BYTES)
