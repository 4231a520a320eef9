"""Wills as facts: written with CONNECT, known after a crash, and published once, when they are due."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from broker_rig import NODE, SECOND_US, Rig, publishing, subscribing

from whimbrel.broker.access.authorizer import Authorizer
from whimbrel.broker.access.topic_rights import Action, Rights, Rule
from whimbrel.broker.broker import Verify
from whimbrel.broker.settings.config import Config, LimitSettings
from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.hold.store.memory import MemoryStore
from whimbrel.log.reader import read
from whimbrel.model.facts import WillChange, WillChanged
from whimbrel.model.notification import Notification
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.packets import V5, V311, Connack, Disconnect, Publish, Will
from whimbrel.mqtt.properties import Properties, Property

GRACE_S, DAYS_S = 30, 600_000
WILL = Will("a", b"lost", 1)


def delayed(delay_s: int) -> Will:
    """Return a will that waits."""
    return WILL._replace(properties=Properties({Property.WILL_DELAY_INTERVAL: delay_s}))


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    """Return a broker in which somebody subscribes to wills, and stays subscribed."""
    rig = Rig(tmp_path / "log")
    rig.subscriber("heir", "a", qos=1, expiry_s=DAYS_S)
    return rig


Restart = Callable[..., Rig]


@pytest.fixture(params=["log", "view"])
def restarted(request: pytest.FixtureRequest, tmp_path: Path) -> Restart:
    """Return how a broker that was killed starts again, from its log alone or from a view and the rest."""
    number = 0

    def restart(
        rig: Rig, *, down_s: float = 0.0, authorizer: Authorizer | None = None, verify: Verify | None = None
    ) -> Rig:
        nonlocal number
        number += 1
        folder = tmp_path / f"again-{number}"
        shutil.copytree(rig.folder, folder)
        state = BrokerState(NODE)
        applied = 0
        if request.param == "view":
            store = MemoryStore()
            rig.state.view.touch_all()
            put, _ = rig.state.view.changes()
            store.replace(rig.broker.applied, put)
            state, applied = BrokerState.restore(NODE, store.rows()), store.applied
        for fact in read(folder, NODE, first=applied + 1):
            state.apply(fact)
        now = rig.now + int(down_s * SECOND_US)
        return Rig(folder, state=state, authorizer=authorizer, verify=verify, now=now)

    return restart


def heard(rig: Rig) -> list[bytes]:
    """Return what the heir is owed, or was sent."""
    rig.settle()
    heir = rig.client("heir", clean=False, expiry_s=DAYS_S)
    found = heir.payloads()
    heir.drop()
    return found


def changes(rig: Rig) -> list[WillChange]:
    """Return what the log says of wills."""
    rig.sync()
    return [each.change for each in read(rig.folder, NODE) if isinstance(each, WillChanged)]


@pytest.mark.parametrize("version", [V5, V311])
def test_a_will_is_durable_before_connack(rig: Rig, version: int) -> None:
    """A client that is told it is connected may rely on its will, also if its session is worth nothing."""
    peer = rig.connecting("c", will=WILL, version=version)
    assert peer.take() == []
    rig.settle()
    assert len(peer.taken(Connack)) == 1
    assert changes(rig) == [WillChange.LEFT]


def test_a_goodbye_withdraws_it_for_ever(rig: Rig, restarted: Restart) -> None:
    """And nothing is withdrawn that was never left."""
    rig.client("c", will=WILL).send(Disconnect())
    rig.client("d").send(Disconnect())
    assert changes(rig) == [WillChange.LEFT, WillChange.WITHDRAWN]
    again = restarted(rig)
    again.tick(3_600)
    assert heard(again) == []


def test_a_killed_broker_gives_clients_a_grace(rig: Rig, restarted: Restart) -> None:
    """Nobody could stay connected to it: who does not come back is lost, and not before."""
    rig.client("c", will=WILL)
    again = restarted(rig, down_s=3_600)
    again.tick(GRACE_S - 1)
    assert heard(again) == []
    again.tick(1)
    assert heard(again) == [b"lost"]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("will", [WILL, None])
@pytest.mark.parametrize("expiry_s", [0, 60])
def test_who_comes_back_in_the_grace_is_not_lost(
    rig: Rig, restarted: Restart, will: Will | None, expiry_s: int, *, clean: bool
) -> None:
    """It did nothing wrong, so it may come back in any way; most clients come with a clean start."""
    rig.client("c", will=WILL, expiry_s=expiry_s)
    again = restarted(rig, down_s=5)
    peer = again.client("c", will=will, clean=clean, expiry_s=expiry_s)
    again.tick(GRACE_S + 1)
    assert heard(again) == []
    peer.drop()
    assert heard(again) == ([] if will is None else [b"lost"])


def test_a_second_crash_in_the_grace_gives_another(rig: Rig, restarted: Restart) -> None:
    """The client could come back as little as before."""
    rig.client("c", will=WILL)
    again = restarted(rig, down_s=5)
    again.tick(GRACE_S - 1)
    again.settle()
    third = restarted(again, down_s=5)
    third.tick(GRACE_S - 1)
    assert heard(third) == []
    third.tick(1)
    assert heard(third) == [b"lost"]


def test_a_broker_that_is_stopped_gives_the_same_grace(rig: Rig, restarted: Restart) -> None:
    """An upgrade must not declare everybody dead."""
    rig.client("c", will=WILL)
    rig.broker.drain()
    rig.flush()
    rig.settle()
    again = restarted(rig, down_s=5)
    again.tick(GRACE_S - 1)
    assert heard(again) == []
    again.tick(1)
    assert heard(again) == [b"lost"]


@pytest.mark.parametrize("is_lost_before", [True, False])
def test_a_delay_is_waited_for_after_a_restart(rig: Rig, restarted: Restart, *, is_lost_before: bool) -> None:
    """It is how long the client may be away; while the broker is down it cannot come back."""
    peer = rig.client("c", will=delayed(10), expiry_s=60)
    if is_lost_before:
        peer.drop()
    rig.sync()
    again = restarted(rig, down_s=40)
    again.tick(9)
    assert heard(again) == []
    again.tick(1)
    assert heard(again) == [b"lost"]


def test_a_delay_that_is_longer_than_the_grace_is_kept(rig: Rig, restarted: Restart) -> None:
    """Time that the broker was down counts, as it does for everything."""
    rig.client("c", will=delayed(100), expiry_s=600).drop()
    rig.sync()
    again = restarted(rig, down_s=40)
    again.tick(59)
    assert heard(again) == []
    again.tick(1)
    assert heard(again) == [b"lost"]


def test_a_clean_start_ends_the_session_and_so_the_delay(rig: Rig, restarted: Restart) -> None:
    """3.1.3.2.2; its client was lost before the broker was, so it is not excused by that."""
    rig.client("c", will=delayed(100), expiry_s=600).drop()
    rig.sync()
    again = restarted(rig)
    again.client("c", clean=True)
    assert heard(again) == [b"lost"]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_it_is_published_once_however_often_the_broker_dies(rig: Rig, restarted: Restart, qos: int) -> None:
    """Before its publication is durable it is not passed on; afterwards it is not published again."""
    rig.client("c", will=WILL._replace(qos=qos))
    again = restarted(rig)
    live = again.subscriber("live", "a", qos=2)
    again.tick(GRACE_S)
    assert live.payloads() == []  # written, and not yet durable
    third = restarted(again)  # which loses it
    live = third.subscriber("live", "a", qos=2)
    third.tick(GRACE_S)
    third.settle()
    assert live.payloads() == [b"lost"]
    fourth = restarted(third)
    live = fourth.subscriber("live", "a", qos=2)
    fourth.tick(3_600)
    fourth.settle()
    assert live.payloads() == []
    (fact,) = [each for each in read(fourth.folder, NODE) if isinstance(each, Notification)]
    (left,) = [each for each in read(fourth.folder, NODE) if isinstance(each, WillChanged)]
    assert fact.will_seq == left.seq


def test_everything_of_it_survives(rig: Rig, restarted: Restart) -> None:
    """Retain, expiry and the properties that travel with it."""
    properties = Properties(
        {Property.MESSAGE_EXPIRY_INTERVAL: 60, Property.CONTENT_TYPE: "application/json"}, user=(("k", "v"),)
    )
    rig.client("c", will=Will("a", b'{"pulse": 0}', 1, True, properties))
    again = restarted(rig)
    again.tick(GRACE_S)
    again.settle()
    late = again.client("late")
    late.send(subscribing("a", qos=1))
    again.settle()
    (found,) = late.taken(Publish)
    assert (found.payload, found.retain, found.properties.user) == (b'{"pulse": 0}', True, (("k", "v"),))
    assert found.properties.integer(Property.MESSAGE_EXPIRY_INTERVAL) == 60
    assert found.properties.text(Property.CONTENT_TYPE) == "application/json"


def test_rights_are_asked_again_when_it_is_published(rig: Rig, restarted: Restart) -> None:
    """They may have been taken away since CONNECT."""
    rig.client("c", will=WILL)
    nothing = Rights(
        [Rule(topics=("a",), actions=frozenset({Action.SUBSCRIBE}), is_allowing=True, user=None)],
        allows_by_default=False,
    )
    again = restarted(rig, authorizer=Authorizer(nothing))
    again.tick(GRACE_S)
    assert heard(again) == []
    assert changes(again)[-1] is WillChange.WITHDRAWN


def of_users(rig: Rig, restarted: Restart, rights: Rights) -> Rig:
    """Let ann leave a will, kill the broker, and return the next one, which knows users and rights."""
    rig.client("c", will=WILL, username="ann", password=b"")
    return restarted(rig, authorizer=Authorizer(rights), verify=lambda _name, _password: True)


@pytest.fixture
def with_users(tmp_path: Path) -> Rig:
    """Return the broker with a heir, whose clients have verified users."""
    rig = Rig(tmp_path / "log", verify=lambda _name, _password: True)
    heir = rig.client("heir", expiry_s=DAYS_S, username="heir", password=b"")
    heir.send(subscribing("a", qos=1))
    rig.settle()
    heir.drop()
    rig.sync()
    return rig


@pytest.mark.parametrize(("allowed", "is_told"), [("ann", True), ("bob", False)])
def test_it_is_published_with_the_rights_of_the_user_who_left_it(
    with_users: Rig, restarted: Restart, allowed: str, *, is_told: bool
) -> None:
    """Nobody is connected then; the log and the view know whose it was."""
    rules = [
        Rule(topics=("a",), actions=frozenset({Action.PUBLISH}), is_allowing=True, user=allowed),
        Rule(topics=("a",), actions=frozenset({Action.SUBSCRIBE}), is_allowing=True, user=None),
    ]
    again = of_users(with_users, restarted, Rights(rules, allows_by_default=False))
    again.tick(GRACE_S)
    again.settle()
    published = [each.body for each in read(again.folder, NODE) if isinstance(each, Notification)]
    assert published == [b"lost"] * is_told
    assert (changes(again)[-1] is WillChange.WITHDRAWN) is not is_told


@pytest.mark.parametrize(("user", "is_told"), [("ann", False), ("bob", True)])
def test_another_user_with_the_client_identifier_withdraws_nothing(
    with_users: Rig, restarted: Restart, user: str, *, is_told: bool
) -> None:
    """A session that ended with its connection is nobody's; the will is still that of the user who left it."""
    again = of_users(with_users, restarted, Rights.OPEN)
    again.client("c", username=user, password=b"")
    again.settle()
    published = [each.body for each in read(again.folder, NODE) if isinstance(each, Notification)]
    assert published == [b"lost"] * is_told


def test_a_full_disk_delays_a_will_and_does_not_lose_it(rig: Rig) -> None:
    """It is published when the disk takes it."""
    peer = rig.client("c", will=WILL)
    rig.broker.refuse()
    peer.drop()
    rig.tick(1)
    rig.broker.refuse(is_refusing=False)
    rig.tick(1)
    assert heard(rig) == [b"lost"]


def test_wills_count_for_what_is_held(tmp_path: Path) -> None:
    """Else anybody could fill the memory with wills of clients that never come back."""
    config = replace(Config(), limits=LimitSettings(held_bytes=50_000))
    rig = Rig(tmp_path / "log", config)
    codes = []
    for number in range(8):
        peer = rig.connecting(f"c{number}", will=Will("a", bytes(10_000)))
        rig.settle()
        codes.append(peer.taken(Connack)[0].code)
    assert codes[:5] == [ReasonCode.SUCCESS] * 5
    assert codes[5:] == [ReasonCode.QUOTA_EXCEEDED] * 3


def test_a_publication_of_its_client_is_no_will(rig: Rig, restarted: Restart) -> None:
    """Only the publication that says so takes a will's place."""
    peer = rig.client("c", will=WILL)
    peer.send(publishing("a", b"alive", 1, 1))
    rig.settle()
    again = restarted(rig)
    again.tick(GRACE_S)
    assert heard(again) == [b"alive", b"lost"]
