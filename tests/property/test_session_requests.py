"""Named sessions and garbage: whatever a client says of them is answered or refused, and no secret is said back.

Rule: the broker under these tests is the core; what it raises would have ended the process.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from broker_rig import ANSWERS, Peer, Rig, asking, quick_scrypt
from hypothesis import example, given
from hypothesis import strategies as st

from whimbrel.broker.access.authorizer import Authorizer
from whimbrel.broker.access.topic_rights import Action, Rights, Rule
from whimbrel.broker.requests.session_requests import VERBS, read_request
from whimbrel.broker.settings.config import AccessSettings, Config
from whimbrel.model.keys import Scheme
from whimbrel.mqtt.codec import encode
from whimbrel.mqtt.errors import ProtocolError
from whimbrel.mqtt.packets import (
    V5,
    V311,
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
    Unsubscribe,
    Will,
)
from whimbrel.mqtt.properties import Properties, Property

SECRET = "sesame-0815"
TOPICS = "$whimbrel/session/"
CONFIG = replace(Config(), access=AccessSettings(wrong_passwords_per_minute=0))
"""Without a limit: what is answered anew for ever would be found out."""

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
names = st.sampled_from(["ann", "bob", "", "a/b", "$x", SECRET]) | texts
keys = (
    st.builds("{}:private:{}".format, st.sampled_from([each.value for each in Scheme]), st.just(SECRET) | texts)
    | st.sampled_from(
        [SECRET, f"x:private:{SECRET}", f"producer:{SECRET}", f"consumer:{'ab' * 32}", f"producer:{'0' * 40}"]
    )
    | texts
)
leaves: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=12) | names | keys
)
trees = st.recursive(
    leaves, lambda each: st.lists(each, max_size=3) | st.dictionaries(names, each, max_size=3), max_leaves=6
)
passwords = st.dictionaries(
    st.sampled_from(["user", "admin", "owner"]), st.just(SECRET) | st.text(max_size=5), max_size=3
)
lists = st.fixed_dictionaries(
    {"owner": names},
    optional={
        "users": st.dictionaries(names, st.lists(st.sampled_from(["join", "delete", "fly"]), max_size=2), max_size=2),
        "groups": st.dictionaries(names, st.lists(st.sampled_from(["join", "delete", "fly"]), max_size=2), max_size=2),
    },
)
known: dict[str, st.SearchStrategy[Any]] = {
    "session": st.sampled_from(["ann", "bob", "locked"]) | names,
    "password": st.just(SECRET) | texts,
    "receipt": st.sampled_from(["take", "keep", SECRET]),
    "device": st.sampled_from(["pda", "other"]) | texts,
    "passwords": passwords,
    "list": lists,
    "open": st.booleans(),
    "topic": st.sampled_from(["a", "a/+", "#", "$share/g/a", "$SYS/#", "$filter/eA/a", "a//", "+/#", "$whimbrel/#"])
    | texts,
    "name": texts,
    "filter": st.sampled_from(["x > 1", "x >", f"'{SECRET}'", "x == 1 &&"]) | texts,
    "ttl": st.integers(-1, 2**33),
    "max": st.integers(-1, 2**33),
    "qos": st.integers(-1, 3),
    "keys": st.lists(keys, max_size=3),
    "insecure": st.booleans(),
    "policy": st.sampled_from(["quiet", "#", ""]) | texts,
    "near": st.sampled_from(["52.5,13.4,200", "200", 200, 0.5, "any", "91,0,5", "1,2;3,4;5,6", "nan"]) | texts,
    "stale": st.sampled_from(["90s", "2m", 60, -1, 0.5, "1e400"]) | texts,
    "add": st.lists(keys, max_size=3),
    "remove": st.lists(keys, max_size=3),
    "client": st.sampled_from(["maker", "pda", "other"]) | texts,
    "after": names | st.integers(-1, 5),
    "most": st.integers(-1, 2_000),
}


OPERATORS = Rights([Rule(topics=("$whimbrel/session/release",), actions=frozenset({Action.OPERATE}), is_allowing=True)])
"""Everybody may do everything, and everybody is an operator."""


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """Return a verb and members that are nearly right."""
    verb = draw(st.sampled_from(sorted(VERBS)))
    needed, allowed = VERBS[verb]
    chosen = [*needed, *draw(st.lists(st.sampled_from(allowed), unique=True))] if allowed else [*needed]
    members = {name: draw(known[name]) for name in chosen}
    if draw(st.integers(0, 9)) == 0:
        members[draw(names | st.sampled_from(sorted(known)))] = draw(trees)
    return verb, members


user_properties = st.lists(
    st.tuples(st.sampled_from(["session", "password", "receipt", "insecure", "name", "ttl", "max", "filter"]), names)
    | st.tuples(st.just("key"), keys)
    | st.tuples(st.just("receipt"), st.just("r" * 65_535))
    | st.tuples(texts, texts),
    max_size=5,
).map(tuple)


@contextmanager
def _rig() -> Iterator[Rig]:
    """Yield a broker with an open session, and one with passwords, in both of which something is held."""
    with tempfile.TemporaryDirectory() as folder, patch("whimbrel.broker.access.passwords._scrypt", quick_scrypt):
        rig = Rig(Path(folder), CONFIG, authorizer=Authorizer(OPERATORS))
        maker = rig.client("maker")
        for session, access in (("ann", {}), ("locked", {"passwords": {"owner": "sesame-4711"}})):
            more: dict[str, Any] = access
            assert maker.ask("create", session=session, **more)["ok"]
            word: dict[str, Any] = {"password": "sesame-4711"} if more else {}
            assert maker.ask("subscribe", session=session, topic="a", **word)["ok"]
        maker.send(Publish("a", b"1", 1, packet_id=1))
        rig.settle()
        maker.drop()
        try:
            yield rig
        finally:
            rig.close()


def _alive(rig: Rig) -> None:
    """Show that the broker goes on, and that what it has can be written down."""
    rig.settle()
    rig.tick(1)
    rig.settle()
    rig.state.view.changes()
    assert rig.client("alive").tell(Pingreq()) == [Pingresp()]


def _said(packets: Sequence[Packet]) -> str:
    """Return everything that is a reason or an answer."""
    said = []
    for packet in packets:
        if isinstance(packet, Publish) and packet.topic == ANSWERS:
            answer = json.loads(packet.payload)
            said.append(str(answer.get("reason", "")))
        elif isinstance(packet, Connack | Disconnect | Puback | Suback):
            said.append(packet.properties.text(Property.REASON_STRING) or "")
    return "\n".join(said)


def _knows(*values: object) -> bool:
    """Tell whether the secret stands where it is no secret, as a name of something."""
    return SECRET in json.dumps(values, ensure_ascii=False, default=str)


@given(verb=st.sampled_from(sorted(VERBS)) | texts, body=st.binary(max_size=60))
def test_any_bytes_are_a_request_or_a_protocol_error(verb: str, body: bytes) -> None:
    """Garbage has one way out."""
    with suppress(ProtocolError):
        assert read_request(verb, body).verb == verb


@given(verb=st.sampled_from(sorted(VERBS)), tree=trees)
def test_any_json_is_a_request_or_a_protocol_error(verb: str, tree: object) -> None:
    """Also where it is JSON, of whatever shape."""
    with suppress(ProtocolError):
        assert read_request(verb, json.dumps(tree).encode()).verb == verb


@given(asked=st.lists(requests(), max_size=4), version=st.sampled_from([V311, V5]), is_joined=st.booleans())
@example(asked=[("subscribe", {"session": "ann", "topic": "a", "filter": "x >"})], version=V5, is_joined=False)
@example(asked=[("leave", {"session": "none", "device": "pda"})], version=V5, is_joined=False)
@example(
    asked=[("delete", {"session": "bob", "password": SECRET}), ("release", {"client": "pda"})],
    version=V5,
    is_joined=False,
)
def test_requests_that_are_nearly_right_are_answered(
    asked: list[tuple[str, dict[str, Any]]], version: int, *, is_joined: bool
) -> None:
    """Each once, yes or no, and never with an exception; nor does a refusal say a password or a key."""
    with _rig() as rig:
        peer = rig.client("pda", version=version)
        if is_joined:
            assert peer.ask("join", session="ann")["ok"]
        for number, (verb, members) in enumerate(asked, start=1):
            qos = number % 3
            peer.send(asking(verb, sent_qos=qos, packet_id=number if qos else 0, version=version, **members))
        rig.settle()
        packets = [each for each in peer.take() if not (isinstance(each, Publish) and each.topic != ANSWERS)]
        answers = sum(isinstance(each, Publish) for each in packets)
        if (
            peer.is_closed
        ):  # it released its own session: what it asked behind that, or waits for a password, is too late
            assert ("release", "pda") in [(verb, members.get("client")) for verb, members in asked]
            said = [json.loads(each.payload)["request"] for each in packets if isinstance(each, Publish)]
            assert said[-1] == "release"
        else:
            assert answers == len(asked)
        names_of = [
            {k: v for k, v in members.items() if k not in {"password", "passwords", "keys", "add", "remove"}}
            for _, members in asked
        ]
        assert SECRET not in _said(packets) or _knows(names_of) or _has_key_named(asked)
        _alive(rig)


def _has_key_named(asked: list[tuple[str, dict[str, Any]]]) -> bool:
    """Tell whether the secret is the name of a member, or of something in it: an error may say names."""
    return any(
        _knows(list(members), [list(each) for each in members.values() if isinstance(each, dict)])
        for _, members in asked
    )


@given(topic=texts, payload=st.binary(max_size=20), qos=st.sampled_from([0, 1, 2]), user=user_properties)
def test_anything_published_under_the_sessions_is_answered_or_refused(
    topic: str, payload: bytes, qos: int, user: tuple[tuple[str, str], ...]
) -> None:
    """Whatever the topic, and whatever the properties."""
    with _rig() as rig:
        watcher = rig.subscriber("watcher", "#", "$whimbrel/#", TOPICS + "#")
        peer = rig.client("pda")
        plain = topic.replace("+", "").replace("#", "")
        properties = Properties({Property.RESPONSE_TOPIC: ANSWERS}, user=user)
        packet = Publish(TOPICS + plain, payload, qos, packet_id=7 if qos else 0, properties=properties)
        peer.send_bytes(encode(packet, V5))
        rig.settle()
        found = peer.take()
        assert peer.is_closed or len(found) == (2 if qos else 1)
        assert watcher.take() == []
        assert SECRET not in _said(found)
        _alive(rig)


@given(user=user_properties, will=user_properties, version=st.sampled_from([V311, V5]))
def test_any_user_properties_in_connect_are_answered(
    user: tuple[tuple[str, str], ...], will: tuple[tuple[str, str], ...], version: int
) -> None:
    """With a CONNACK that says yes or why not."""
    with _rig() as rig:
        peer = Peer(rig, version)
        last = Will("w", b"1", properties=Properties(user=will))
        peer.send(Connect("pda", version=version, will=last, properties=Properties(user=user)))
        rig.settle()
        found = peer.take()
        assert isinstance(found[0], Connack)
        quotable = [value for name, value in user if name in {"session", "receipt"}]
        assert SECRET not in _said(found) or _knows(quotable)
        peer.drop()
        _alive(rig)


@given(user=user_properties, topic=known["topic"], is_joined=st.booleans())
def test_any_user_properties_in_subscribe_are_answered(
    user: tuple[tuple[str, str], ...], topic: str, *, is_joined: bool
) -> None:
    """SUBACK and UNSUBACK have a code for each topic filter; or the packet is against the protocol."""
    with _rig() as rig:
        peer = rig.client("pda", user=(("session", "ann"),) if is_joined else ())
        properties = Properties(user=user)
        peer.send_bytes(encode(Subscribe(1, (SubscriptionRequest(topic or "a", 1),), properties), V5))
        if not peer.is_closed:
            peer.send_bytes(encode(Unsubscribe(2, (topic or "a",), properties), V5))
        rig.settle()
        found = [each for each in peer.take() if not isinstance(each, Publish)]
        assert peer.is_closed or len(found) == 2
        quotable = [value for name, value in user if name in {"session", "name", "ttl", "max", "filter"}]
        assert SECRET not in _said(found) or _knows(quotable)
        _alive(rig)


@given(users=st.lists(user_properties, max_size=3), qos=st.sampled_from([0, 1, 2]), has_keys=st.booleans())
def test_any_user_properties_in_publish_are_answered(
    users: list[tuple[tuple[str, str], ...]], qos: int, *, has_keys: bool
) -> None:
    """And no private key is ever passed on."""
    with _rig() as rig:
        watcher = rig.subscriber("watcher", "#", qos=1)
        peer = rig.client("pda", user=(("key", "consumer:" + "ab" * 32),) if has_keys else ())
        for number, user in enumerate(users, start=1):
            properties = Properties(user=user)
            peer.send(Publish("a", b"1", qos, packet_id=number if qos else 0, properties=properties))
        rig.settle()
        found = peer.take()
        assert len(found) == len(users) * (qos > 0)
        assert SECRET not in _said(found)
        passed = [value for each in watcher.taken(Publish) for name, value in each.properties.user if name == "key"]
        assert not any(":private:" in value for value in passed)
        _alive(rig)


# -- any order of things, with the disk anywhere between them ----------------------------------------------------------

DEVICES = ("d0", "d1", "d2")
WORD = "sesame-4711"
operations = st.lists(
    st.tuples(
        st.sampled_from([
            "connect", "connect", "drop", "join", "join", "leave", "put out", "create", "delete", "access",
            "subscribe", "unsubscribe", "publish", "publish", "publish", "acknowledge", "acknowledge", "sync", "part",
        ]),
        st.integers(0, 2),
        st.sampled_from(["ann", "bob"]),
        st.integers(0, 5),
    ),
    max_size=60,
)  # fmt: skip


class _Crowd:
    """Devices that share two sessions, and what each has acknowledged."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.peers: dict[str, Peer] = {}
        self.has: dict[str, set[bytes]] = {device: set() for device in DEVICES}
        self.unacknowledged: dict[str, list[Publish]] = {device: [] for device in DEVICES}
        self.published = 0
        self.has_left = False
        """Whether somebody left: what is acknowledged after that counts for nobody, and may come again, marked DUP."""

    def do(self, what: str, number: int, session: str, more: int) -> None:
        """Let one thing happen, as far as it can."""
        rig, device = self.rig, DEVICES[number]
        peer = self.peers.get(device)
        if what == "sync":
            rig.settle()
        elif what == "part":
            rig.answer_questions()
            rig.broker.on_sync(max(0, rig.log.sync() - more))
            rig.flush()
        elif what == "connect":
            joined = [("session", each) for at, each in enumerate(("ann", "bob")) if more & (1 << at)]
            words = [("password", WORD), ("receipt", "keep" if more & 4 else "take")] if joined else []
            self.unacknowledged[device].clear()
            options: dict[Property, object] = {Property.RECEIVE_MAXIMUM: 2}
            self.peers[device] = rig.connecting(device, user=(*joined, *words), options=options)
        elif peer is None or peer.is_closed:
            return
        elif what == "drop":
            self.listen()
            peer.drop()
        elif what == "publish":
            self.published += 1
            peer.send(Publish("a", b"no. %d" % self.published, more % 2, packet_id=self.published if more % 2 else 0))
        elif what == "acknowledge":
            self.listen()
            taken = self.unacknowledged[device][: more + 1]
            del self.unacknowledged[device][: more + 1]
            peer.send(*(Puback(each.packet_id) for each in taken))
            self.has[device] |= {each.payload for each in taken}
        else:
            self.has_left |= what in {"leave", "put out", "access"}
            peer.send(self._request(what, session, more))
        self.listen()

    @staticmethod
    def _request(what: str, session: str, more: int) -> Publish:
        word: dict[str, Any] = {"password": WORD}
        if what == "put out":
            return asking("leave", session=session, device=DEVICES[more % 3])
        if what in {"create", "leave"}:
            return asking(what, session=session)
        if what == "access":
            access: dict[str, Any] = {"open": True} if more % 2 else {"passwords": {"owner": WORD}}
            return asking(what, session=session, **access, **(word if more > 2 else {}))
        if what == "join":
            return asking(what, session=session, receipt="keep" if more % 2 else "take", **(word if more > 1 else {}))
        members: dict[str, Any] = word if what == "delete" else {**word, "topic": "a"}
        return asking(what, session=session, **members)

    def listen(self) -> None:
        """Take in what came: nothing that was acknowledged, and nothing of QoS 0, comes a second time."""
        for device, peer in self.peers.items():
            for packet in peer.taken(Publish):
                if packet.topic != ANSWERS:
                    assert packet.payload not in self.has[device] or (self.has_left and packet.dup), (device, packet)
                    if packet.qos:
                        self.unacknowledged[device].append(packet)
                    else:
                        self.has[device].add(packet.payload)

    def check(self) -> None:
        """Hold what connections know against what the hold knows."""
        hold = self.rig.state.hold
        for device, client in self.rig.state.clients.items():
            if client.link is None or device not in DEVICES:
                continue
            present = {each for each in ("ann", "bob") if hold.members(each).get(device, (False,))[0]}
            assert set(client.link.rights) == present
            on_its_way: dict[str, set[int]] = {"ann": set(), "bob": set()}
            for out in (*client.flying.values(), *client.queue):
                also = client._also.get(out.message.seq, ())
                for terms in (*out.terms, *also):
                    if out.qos:
                        on_its_way[terms.session].add(out.message.seq)
            for session, seqs in on_its_way.items():
                found = hold._state.sessions.get(session)
                bearer = None if found is None else found.bearer(device)
                assert seqs == set(() if bearer is None else bearer.in_flight)
            assert set(client._also) <= {out.message.seq for out in client.queue}


@given(done=operations)
def test_connections_and_hold_agree_whatever_happens_and_wherever_the_disk_is(
    done: list[tuple[str, int, str, int]],
) -> None:
    """Who is present has rights and nobody else has; what is in flight is on its way; nothing comes twice."""
    with _rig() as rig:
        crowd = _Crowd(rig)
        for each in done:
            crowd.do(*each)
        rig.settle()
        crowd.listen()
        crowd.check()
        _alive(rig)
