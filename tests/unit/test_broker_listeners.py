"""Listeners with settings of their own: what may be configured, whom they let in, and where they mount topics."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from broker_rig import Rig, publishing, subscribing

from whimbrel.broker.access.passwords import Cost
from whimbrel.broker.access.users import Users
from whimbrel.broker.settings.config import (
    SECTIONS,
    AccessSettings,
    Config,
    LimitSettings,
    ListenerSettings,
    MqttSettings,
)
from whimbrel.broker.settings.config_files import print_config, read_config
from whimbrel.broker.settings.fields import ConfigError, settings_of
from whimbrel.broker.shell.operate.user_files import UserFiles
from whimbrel.broker.wire.listener_rules import ListenerRules
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.mounts import mount_filter, mount_packet
from whimbrel.mqtt.packets import V5, V311, Connack, Disconnect, Puback, Publish, Pubrec, Suback, Unsubscribe, Will
from whimbrel.mqtt.properties import Properties, Property

HOME = ListenerRules(mount="home/7/")


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    """Return a broker with all defaults."""
    return Rig(tmp_path)


def _read(folder: Path, document: str) -> Config:
    path = folder / "whimbrel.toml"
    path.write_text(document, encoding="utf-8")
    return read_config(path)


# -- the configuration -------------------------------------------------------------------------------------------------


def test_a_listener_of_its_own_is_read_and_printed(tmp_path: Path) -> None:
    """What is printed reads back as it was."""
    config = _read(tmp_path, '[[listener]]\nport = 1884\nmount = "home/7/"\n[[listener]]\nname = "local"\nsocket = "s"')
    first, second = config.listeners
    assert (first.name, first.port, first.mount) == ("listener-1", 1884, "home/7/")
    assert (second.name, second.socket, second.mode) == ("local", "s", 0o660)
    assert _read(tmp_path, print_config(config)) == config


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("[listener]\nport = 1", "listeners are written [[listener]], with two brackets"),
        ("[[listener]]\nprot = 1", "[[listener]] 1 has no setting prot; did you mean port?"),
        ("[[listener]]\n", "listener listener-1 needs either a port or a socket, and not both"),
        ('[[listener]]\nport = 1\nsocket = "s"', "needs either a port or a socket, and not both"),
        ('[[listener]]\nport = 1\nmount = "home"', "[[listener]] 1: mount: found 'home', allowed is a topic that ends"),
        ('[[listener]]\nport = 1\nmount = "+/"', "mount: found '+/'"),
        ('[[listener]]\nport = 1\nmount = "$SYS/"', "mount: found '$SYS/'"),
        ('[[listener]]\nsocket = "s"\nsocket_mode = "rw"', "socket_mode: found 'rw', allowed is octal digits"),
        ('[[listener]]\nsocket = "s"\nsocket_mode = "1777"', "socket_mode: found '1777'"),
        ('[[listener]]\nport = 1\ntls_key = "k"', "needs both tls_certificate and tls_key, or neither"),
        ('[[listener]]\nport = 1\ntls_client_ca = "k"', "has tls_client_ca, but no tls_certificate"),
        ('[[listener]]\nport = 1\ntls_revoked = "k"', "has tls_revoked, which needs tls_client_ca"),
        ("[[listener]]\nport = 1883", "listener listener-1 and listen.port are both on 1883"),
        ("[[listener]]\nport = 1\n[[listener]]\nport = 1", "listener listener-2 and listener listener-1 are both on 1"),
        ('[[listener]]\nport = 1\nname = "a"\n[[listener]]\nport = 2\nname = "a"', "two listeners are called a"),
        ('[[listener]]\nport = 1\nname = "a b"', "name: found 'a b'"),
        ("[[listener]]\nport = 0\n" * 65, "65 listeners, at most 64 are allowed"),
        ('[tls]\nrevoked = "k"', "tls.revoked needs tls.client_ca"),
    ],
)
def test_a_listener_that_cannot_be_is_refused_with_its_reason(tmp_path: Path, document: str, message: str) -> None:
    """An operator corrects a file by what is said about it."""
    with pytest.raises(ConfigError) as raised:
        _read(tmp_path, document)
    assert message in str(raised.value)


def _user_files(folder: Path, **files: str) -> UserFiles:
    for file, name in files.items():
        Users.read(folder / file, missing_ok=True).add(name, "secret", groups=[file], cost=Cost.of_memory(1))
    listeners = tuple(ListenerSettings(name=file, port=0, users=str(folder / file)) for file in files)
    return UserFiles.of(Config(access=AccessSettings(password_hash_mib=1), listeners=listeners))


def test_each_listener_verifies_the_users_of_its_own_file(tmp_path: Path) -> None:
    """A user of one listener has no password on another, and is in the groups of its own file everywhere."""
    users = _user_files(tmp_path, staff="ann", guests="ben")
    staff, guests = users.verify_with(str(tmp_path / "staff")), users.verify_with(str(tmp_path / "guests"))
    assert staff is not None
    assert guests is not None
    assert staff("ann", b"secret")
    assert guests("ben", b"secret")
    assert not staff("ben", b"secret")
    assert (users.groups("ann"), users.groups(None)) == (frozenset({"staff"}), frozenset())
    assert users.verify_with("") is None


def test_a_name_in_two_users_files_is_refused(tmp_path: Path) -> None:
    """Rights and sessions go by names: two users of one name would share them."""
    with pytest.raises(ConfigError, match=r"ann is in .*staff and in .*guests; a user's name may be in one"):
        _user_files(tmp_path, staff="ann", guests="ann")


# -- who is let in -----------------------------------------------------------------------------------------------------


def test_a_listener_asks_for_its_own_users(rig: Rig) -> None:
    """One listener lets anybody in, the other asks for a password; both lead to the same broker."""
    guarded = ListenerRules(verify=lambda name, password: (name, password) == ("ann", b"x"), admits_anonymous=False)
    inside = rig.client("phone", username="ann", password=b"x", listener=guarded)
    inside.send(subscribing("a"))
    for credentials in ((None, None), ("ann", b"y")):
        refused = rig.connecting("b", username=credentials[0], password=credentials[1], listener=guarded)
        rig.settle()
        (answer,) = refused.taken(Connack)
        assert answer.code == ReasonCode.BAD_USER_NAME_OR_PASSWORD
    inside.take()
    rig.client("sensor").send(publishing("a", b"21"))
    assert inside.payloads() == [b"21"]


# -- mount points ------------------------------------------------------------------------------------------------------


def test_topics_of_a_mounted_client_stand_below_its_mount_point(rig: Rig) -> None:
    """It publishes and subscribes as if it were alone; every other client sees whole topics."""
    outside, inside = rig.subscriber("outside", "#"), rig.client("inside", listener=HOME)
    inside.send(subscribing("lamp/#"))
    inside.take()
    inside.send(publishing("lamp/1", b"on"))
    rig.client("other").send(publishing("home/7/lamp/2", b"off"), publishing("lamp/3", b"no"))
    assert [(each.topic, each.payload) for each in outside.taken(Publish)] == [
        ("home/7/lamp/1", b"on"),
        ("home/7/lamp/2", b"off"),
        ("lamp/3", b"no"),
    ]
    assert [(each.topic, each.payload) for each in inside.taken(Publish)] == [("lamp/1", b"on"), ("lamp/2", b"off")]


def test_a_mounted_client_reaches_nothing_else(rig: Rig) -> None:
    """Neither the broker's own topics, nor other mount points, nor named sessions."""
    inside = rig.client("inside", listener=HOME)
    inside.send(subscribing("#", "$SYS/#", "../8/#", "$whimbrel/#"))
    inside.take()
    other = rig.client("other")
    for qos in (0, 1):  # "home/7/#" admits "home/7", which has no name below the mount point
        inside.send(subscribing("#", qos=qos))
        other.send(*(publishing(topic, b"no", qos, qos) for topic in ("home/8/x", "home/77/x", "home/7", "home/7/")))
        rig.settle()
    rig.broker.tell_system({"$SYS/broker/uptime": "1"}, rig.now)
    rig.flush()
    assert inside.payloads() == []
    refused = rig.connecting("joiner", user=(("session", "ann"),), listener=HOME)
    rig.settle()
    (answer,) = refused.taken(Connack)
    assert answer.code == ReasonCode.NOT_AUTHORIZED
    assert "mount point" in (answer.properties.text(Property.REASON_STRING) or "")


@pytest.mark.parametrize("qos", [1, 2])
def test_what_is_held_comes_without_the_mount_point(rig: Rig, qos: int) -> None:
    """A session that is resumed at its mount point goes on where it was."""
    inside = rig.client("inside", expiry_s=60, listener=HOME)
    inside.send(subscribing("lamp", qos=qos))
    rig.settle()
    inside.drop()
    rig.client("other").send(publishing("home/7/lamp", b"on", 1, 1))
    rig.settle()
    again = rig.connecting("inside", clean=False, expiry_s=60, listener=HOME)
    rig.settle()
    welcome, *_ = again.inbox
    assert isinstance(welcome, Connack)
    assert welcome.session_present
    assert [(each.topic, each.payload) for each in again.taken(Publish)] == [("lamp", b"on")]


def test_a_session_with_other_subscriptions_is_not_resumed_at_a_mount_point(rig: Rig) -> None:
    """What they asked for has no name there; the session begins anew, as the standard says it may."""
    rig.subscriber("phone", "secret/#", expiry_s=60).drop()
    rig.client("other").send(publishing("secret/1", b"no", 1, 1))
    rig.settle()
    again = rig.connecting("phone", clean=False, expiry_s=60, listener=HOME)
    rig.settle()
    assert [each.session_present for each in again.inbox if isinstance(each, Connack)] == [False]
    assert again.payloads() == []


def test_shares_filters_and_unsubscribing_are_mounted(rig: Rig) -> None:
    """What stands before a topic filter stays before it."""
    inside = rig.client("inside", version=V311, listener=HOME)
    encoded = "dmFsdWUgPiAyMA"  # value > 20
    inside.send(subscribing("$share/g/lamp", f"$filter/{encoded}/oven"))
    (answer,) = inside.taken(Suback)
    assert answer.codes == (0, 0)
    other = rig.client("other")
    other.send(publishing("home/7/lamp", b"on"), publishing("home/7/oven", b"21"), publishing("home/7/oven", b"19"))
    assert [(each.topic, each.payload) for each in inside.taken(Publish)] == [("lamp", b"on"), ("oven", b"21")]
    inside.send(Unsubscribe(2, (f"$filter/{encoded}/oven",)))
    rig.settle()
    inside.take()
    other.send(publishing("home/7/oven", b"25"))
    assert inside.payloads() == []


def test_what_says_where_stays_before_the_topic() -> None:
    """In 3.1.1 the place of a publication, and of a subscription, stands before the topic."""
    place = mount_packet(publishing("$place/52.5,13.4,100/lamp"), "home/7/")
    assert place == publishing("$place/52.5,13.4,100/home/7/lamp")
    assert mount_filter("$near/50/$filter/abc/$share/g/lamp", "home/7/") == "$near/50/$filter/abc/$share/g/home/7/lamp"
    assert mount_filter("$near/50/$near/50/lamp", "home/7/") == "$near/50/home/7/$near/50/lamp"


def test_wills_retained_messages_and_response_topics_are_mounted(rig: Rig) -> None:
    """Requests and answers stay below the mount point, whoever serves them."""
    outside = rig.subscriber("outside", "home/#")
    lost = rig.client("lost", will=Will("gone", b"bye", retain=True), listener=HOME)
    lost.drop()
    rig.settle()
    reader = rig.client("reader", listener=HOME)
    reader.send(subscribing("#"))
    rig.settle()
    assert [(each.topic, each.retain) for each in reader.taken(Publish)] == [("gone", True)]
    question = Properties({Property.RESPONSE_TOPIC: "answers/1"})
    rig.client("asker", listener=HOME).send(Publish("ask", b"?", properties=question))
    whole, own = outside.taken(Publish)[-1], reader.taken(Publish)[-1]
    assert (whole.topic, whole.properties.text(Property.RESPONSE_TOPIC)) == ("home/7/ask", "home/7/answers/1")
    assert (own.topic, own.properties.text(Property.RESPONSE_TOPIC)) == ("ask", "answers/1")
    foreign = Properties({Property.RESPONSE_TOPIC: "elsewhere"})
    outside.send(Publish("home/7/ask", b"?", properties=foreign))
    assert reader.taken(Publish)[-1].properties.text(Property.RESPONSE_TOPIC) is None


def test_aliases_of_a_mounted_client_stand_for_its_own_topics(rig: Rig) -> None:
    """In both directions."""
    inside = rig.client("inside", options={Property.TOPIC_ALIAS_MAXIMUM: 4}, listener=HOME)
    inside.send(subscribing("lamp"))
    inside.take()
    alias = Properties({Property.TOPIC_ALIAS: 1})
    inside.send(Publish("lamp", b"1", properties=alias), Publish("", b"2", properties=alias))
    assert [(each.topic, each.payload) for each in inside.taken(Publish)] == [("lamp", b"1"), ("", b"2")]


# -- how long a message may be, and whether it is retained -------------------------------------------------------------


@pytest.mark.parametrize("has_plans", [True, False])
def test_a_body_that_is_too_long_is_refused_and_the_connection_stays(tmp_path: Path, *, has_plans: bool) -> None:
    """As Mosquitto's message_size_limit does: version 5 is told, version 3.1.1 has no words for it."""
    config = replace(Config(), limits=LimitSettings(message_bytes=4))
    rig = Rig(tmp_path, config, has_plans=has_plans)
    reader = rig.subscriber("reader", "a", qos=1)
    for version in (V5, V311):
        publisher = rig.client(f"publisher-{version}", version=version)
        sent = [publishing("a", b"12345", 1, 1), publishing("a", b"1234", 1, 2), publishing("a", b"12345")]
        answers = publisher.tell(*sent, publishing("a", b"12345", 2, 3))
        first, second, third = answers
        assert isinstance(first, Puback)
        assert isinstance(third, Pubrec)
        assert first.code == third.code == (ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR if version == V5 else 0)
        assert second == Puback(2)
        if version == V5:
            assert first.properties.text(Property.REASON_STRING) == "a body of 5 bytes, at most 4 are allowed"
        assert reader.payloads() == [b"1234"]
    lost = rig.connecting("lost", will=Will("a", b"12345"))
    assert [each.code for each in lost.taken(Connack)] == [ReasonCode.PACKET_TOO_LARGE]


def test_where_nothing_is_retained_clients_are_told_so(tmp_path: Path) -> None:
    """CONNACK says it, a client that retains all the same is sent away, and what was retained is not sent."""
    before = Rig(tmp_path)
    publisher = before.client("publisher")
    publisher.send(publishing("a", b"old", retain=True))
    publisher.drop()
    before.settle()
    config = replace(Config(), mqtt=MqttSettings(retain_available=False))
    rig = Rig(tmp_path / "next", config, state=before.state)
    client = rig.connecting("client")
    (welcome,) = client.taken(Connack)
    assert welcome.properties.integer(Property.RETAIN_AVAILABLE) == 0
    client.send(subscribing("a"))
    rig.settle()
    assert client.payloads() == []
    client.send(publishing("a", b"new", retain=True))
    (goodbye,) = client.taken(Disconnect)
    assert goodbye.code == ReasonCode.RETAIN_NOT_SUPPORTED
    lost = rig.connecting("lost", will=Will("a", b"x", retain=True))
    assert [each.code for each in lost.taken(Connack)] == [ReasonCode.RETAIN_NOT_SUPPORTED]


# -- what the page for those who come from Mosquitto says --------------------------------------------------------------


def test_from_mosquitto_names_settings_that_exist() -> None:
    """A page that maps options to settings which are not there would cost an evening."""
    page = (Path(__file__).parents[2] / "docs/how-to/from-mosquitto.md").read_text(encoding="utf-8")
    known = {f"{section}.{key}" for section, kind in SECTIONS.items() for key in settings_of(kind)}
    named = {f"{section}.{key}" for section, key in re.findall(r"`([a-z]+)\.([a-z_]+)`", page) if section in SECTIONS}
    assert named <= known
    own = set(re.findall(r"`([a-z_]+)(?: = [^`]*)?` of a `\[\[listener\]\]`", page))
    assert own <= set(settings_of(ListenerSettings))
    assert {"mount", "users", "protocol", "anonymous"} <= own
