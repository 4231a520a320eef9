"""A broker with users and rights on the rig, and what its clients do, in a word each."""

from __future__ import annotations

from pathlib import Path

from broker_rig import Peer, Rig, publishing, subscribing

from whimbrel.broker.access.authorizer import Authorizer
from whimbrel.broker.access.topic_rights import Action, Rights, Rule
from whimbrel.mqtt.packets import V5, Puback, Publish, Suback

__all__ = ["allowing", "connect", "denying", "guarded", "publish", "received", "subscribe"]

SUBSCRIBE = frozenset({Action.SUBSCRIBE})


def allowing(**topics: str) -> Rights:
    """Return rights that let every user receive some topics, and only these; everybody may publish everything."""
    publish = Rule(topics=("#", "$whimbrel/#"), actions=frozenset({Action.PUBLISH}), is_allowing=True)
    rules = [
        Rule(topics=tuple(wanted.split()), actions=SUBSCRIBE, is_allowing=True, user=user)
        for user, wanted in topics.items()
    ]
    return Rights([publish, *rules], allows_by_default=False)


def denying(**topics: str) -> Rights:
    """Return rights that keep some topics from users, and nothing else."""
    return Rights(
        [
            Rule(topics=tuple(kept.split()), actions=SUBSCRIBE, is_allowing=False, user=user)
            for user, kept in topics.items()
        ]
    )


def guarded(folder: Path, rights: Rights) -> Rig:
    """Return a broker that believes every user's password."""
    return Rig(folder, authorizer=Authorizer(rights), verify=lambda _user, _password: True)


def connect(rig: Rig, client_id: str, user: str | None, *, expiry_s: int = 0, version: int = V5, **more: bool) -> Peer:
    """Return a user's client that is connected."""
    password = None if user is None else b"x"
    return rig.client(client_id, expiry_s=expiry_s, version=version, username=user, password=password, **more)  # type: ignore[arg-type]


def subscribe(rig: Rig, peer: Peer, *wanted: str, qos: int = 0) -> tuple[int, ...]:
    """Subscribe, and return the answer's codes; what else came stays."""
    peer.send(subscribing(*wanted, qos=qos))
    rig.settle()
    (answer,) = [each for each in peer.inbox if isinstance(each, Suback)]
    peer.inbox.remove(answer)
    return answer.codes


def received(rig: Rig, peer: Peer) -> list[bytes]:
    """Return what came, acknowledged."""
    found: list[bytes] = []
    while True:
        rig.settle()
        came = peer.taken(Publish)
        if not came:
            return found
        found += [each.payload for each in came]
        acknowledged = [Puback(each.packet_id) for each in came if each.qos == 1]
        if acknowledged:
            peer.send(*acknowledged)


def publish(rig: Rig, peer: Peer, topic: str, payload: bytes, qos: int = 1, *, retain: bool = False) -> None:
    """Publish, until it is accepted."""
    peer.send(publishing(topic, payload, qos, 1 if qos else 0, retain=retain))
    rig.settle()
    peer.take()
