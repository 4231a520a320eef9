"""The backbone: censuses, the plan of the administrative server, way-servers and the bridge."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.campus_rig import CAMPUS, NOON, Campus, S, a_participant, plan_of

from whimbrel.carry.application import CampusSample
from whimbrel.carry.backbone.admin import DAY_US, Admin
from whimbrel.carry.backbone.bridge import BothWays, Bridge, id_for_message, id_of, read_sample
from whimbrel.carry.backbone.census import (
    MAX_USERS,
    Census,
    MalformedCensusError,
    User,
    census_body,
    merge_users,
    read_census,
    user_name,
)
from whimbrel.carry.backbone.messages import SAMPLE_PROPERTY, control_body, read_control, read_time, time_body
from whimbrel.carry.backbone.settings import AdminSettings, WayServerSettings
from whimbrel.carry.backbone.way_server import WayServer
from whimbrel.carry.control.clock import CampusClock
from whimbrel.carry.control.keys import key_statement
from whimbrel.carry.control.segments import segments_of
from whimbrel.carry.control.topics import TopicNames, hashed_topic
from whimbrel.carry.daemon.journal import sample_name
from whimbrel.carry.daemon.status import node_status, status_lines
from whimbrel.carry.hello import Hello, Sample, Subscriptions, TimeQuestion
from whimbrel.carry.outputs import Tell
from whimbrel.carry.rules import Rules
from whimbrel.carry.signatures import SampleSigner
from whimbrel.client import Message
from whimbrel.errors import InvalidInputError, InvalidValueError, WhimbrelError
from whimbrel.model.replicas import plan
from whimbrel.mqtt.properties import Properties, Property

NEXT = SampleSigner(b"n" * 32)
NAMES = ("lunch", "news")


def a_way_server(address: int = 9, *, signer: SampleSigner = CAMPUS, **rest: Any) -> WayServer:
    """Return a way-server whose clock is set."""
    made = WayServer(
        address,
        Rules(),
        topics=TopicNames(dict.fromkeys(NAMES, 0) and {name: hashed_topic(name) for name in NAMES}),
        clock=CampusClock(),
        nonce=lambda: b"123456",
        signer=signer,
        secret=b"secret",
        name=f"gate-{address}",
        **rest,
    )
    made.clock.set(NOON, own=NOON)
    return made


def a_census(name: str, users: dict[str, tuple[int, tuple[str, ...]]], *, at: int = NOON, places: int = 10) -> Census:
    """Return a census of users that were seen some seconds after noon and subscribe to topics."""
    return Census(
        way_server=name,
        at=at,
        users={
            user: User(seen_at=NOON + seen_s * S, places=places, topics=topics)
            for user, (seen_s, topics) in users.items()
        },
    )


# -- way-servers ---------------------------------------------------------------------------------


def test_a_way_server_sets_clocks_and_learns_who_subscribes() -> None:
    """Hello, question, proof, answer: the node's clock is right and the gate has a user (3.1)."""
    gate, node = a_way_server(), a_participant(1, subscriptions=["lunch"], keys=[CAMPUS.public])
    campus = Campus(gate)
    campus.add(node, skew_us=-30 * 365 * 24 * 3_600 * S)
    campus.air.meet(1, 9)
    campus.run(2)
    assert node.clock.now(campus.daemons[1].own) == campus.now
    [(user, found)] = gate.census(own=campus.now).users.items()
    assert user == user_name(1, b"secret")
    assert (found.places, found.topics) == (10, ("lunch",))
    sample = campus.publish(1, "lunch", b"x")
    assert not sample.is_unsynchronised


def test_a_way_server_without_the_time_neither_tells_nor_asks() -> None:
    """Nothing is invented: it waits for the administrative server."""
    gate = a_way_server()
    gate.clock = CampusClock()
    assert gate.receive(1, Hello(()), own=NOON)[1:] == []
    assert gate.receive(1, TimeQuestion(b"123456"), own=NOON) == []
    gate.clock.set(NOON, own=NOON)
    assert [type(each) for each in gate.receive(1, TimeQuestion(b"123456"), own=NOON)] == [Tell]


def test_a_user_is_forgotten_after_the_window() -> None:
    """Who left the campus counts no more."""
    gate = a_way_server(window_us=600 * S)
    gate.receive(1, Hello(()), own=NOON)
    gate.receive(1, Subscriptions((hashed_topic("lunch"),), 10), own=NOON)
    assert len(gate.census(own=NOON + 599 * S).users) == 1
    assert len(gate.census(own=NOON + 600 * S).users) == 0


def test_the_topics_of_a_user_may_come_in_parts_and_change() -> None:
    """A later part adds, a new list replaces."""
    gate = a_way_server()
    gate.receive(1, Hello(()), own=NOON)
    lunch, news = sorted(map(hashed_topic, NAMES))
    gate.receive(1, Subscriptions((lunch,), 10), own=NOON)
    gate.receive(1, Subscriptions((news,), 10, is_first=False), own=NOON)
    [user] = gate.census(own=NOON).users.values()
    assert user.topics == NAMES
    gate.receive(1, Subscriptions((), 10), own=NOON)
    [user] = gate.census(own=NOON).users.values()
    assert user.topics == ()


def test_ten_thousand_invented_users_are_held_back() -> None:
    """A gate learns at most so many new users per second, keeps a bound, and no user has a thousand topics.

    The rate of frames, which would drop most of these subscriptions before, is not asked about.
    """
    gate = a_way_server()
    for number in range(10_000):
        gate.receive(1_000 + number, Hello(()), own=NOON)
        gate.handle(1_000 + number, Subscriptions((1,), 65_535), own=NOON)
    census = gate.census(own=NOON)
    assert len(census.users) <= 200
    assert max(each.places for each in census.users.values()) == 1_000
    assert gate.counts["not asked for"] + gate.counts["users held back"] >= 9_800
    assert len(census.users) <= MAX_USERS


def test_a_way_server_signs_the_control_data_in_force_with_its_new_key() -> None:
    """When the old key retires, a node that comes new can check what the gate has."""
    retires_at = NOON + 100 * S
    before = a_way_server()
    before.publish_control(plan_of("lunch"), own=NOON)
    statement = key_statement(CAMPUS, NEXT.public, at=retires_at - 1, retires_at=retires_at)
    after = a_way_server(signer=NEXT, statements=[statement], keys=[CAMPUS.public])
    after.restore(before.memory(), own=NOON)
    assert after.control.in_force == plan_of("lunch")
    fresh, old = a_participant(1, keys=[NEXT.public]), a_participant(2, keys=[CAMPUS.public])
    campus = Campus(after, fresh, old)
    campus.air.meet(1, 9)
    campus.air.meet(2, 9)
    campus.now = retires_at
    campus.daemons[9].perform(after.renew_control(own=campus.now))
    campus.run(4)
    assert fresh.control.in_force == old.control.in_force == plan_of("lunch")


# -- censuses ---------------------------------------------------------------------------------


def test_a_user_met_at_two_gates_counts_once_as_it_was_met_last() -> None:
    """It has changed its subscriptions between the gates."""
    north = a_census("north", {"u": (0, ("lunch",)), "v": (0, ("news",))})
    south = a_census("south", {"u": (5, ("news",))})
    users = merge_users([north, south], now=NOON + 10 * S, window_us=3_600 * S)
    assert {user: each.topics for user, each in users.items()} == {"u": ("news",), "v": ("news",)}
    assert merge_users([north, south], now=NOON + 3_602 * S, window_us=3_600 * S).keys() == {"u"}


users = st.dictionaries(
    st.text("0123456789abcdef", min_size=16, max_size=16),
    st.builds(
        User,
        seen_at=st.integers(0, 2**63 - 1),
        places=st.integers(0, 1_000),
        topics=st.lists(st.sampled_from(["lunch", "news", "é"]), unique=True).map(sorted).map(tuple),
    ),
    max_size=5,
)


@given(users=users)
def test_a_census_survives_its_message(users: dict[str, User]) -> None:
    """What a gate says the admin reads."""
    census = Census(way_server="north", at=5, users=users)
    assert read_census(census_body(census)) == census


@given(
    body=st.binary(max_size=60)
    | st.recursive(st.none() | st.integers() | st.text(max_size=3), st.lists).map(
        lambda tree: json.dumps({"way_server": "n", "at": 1, "topics": ["a"], "users": tree}).encode()
    )
)
def test_any_bytes_are_a_census_or_our_error(body: bytes) -> None:
    """The broker carries what anybody with rights sends."""
    for read in (read_census, read_control, read_time):
        with suppress(InvalidInputError):
            read(body)


def test_control_data_and_time_survive_their_messages() -> None:
    """All way-servers get the same, with one version."""
    assert read_control(control_body(plan_of("lunch", "é"))) == plan_of("lunch", "é")
    assert read_time(time_body(NOON)) == NOON
    with pytest.raises(MalformedCensusError, match="found 8388609 bytes"):
        read_census(b" " * ((8 << 20) + 1))


# -- the administrative server ---------------------------------------------------------------------------------


def an_admin(**rest: Any) -> Admin:
    """Return the admin of a campus with two topics and two gates."""
    made = Admin(NAMES, **rest)
    made.take_census(a_census("north", {f"{each:02}": (0, ("lunch",)) for each in range(16)}))
    made.take_census(a_census("south", {"00": (1, ("lunch", "news")), "99": (0, ("news",))}))
    return made


def test_the_plan_is_computed_from_the_merged_censuses_with_the_same_formula() -> None:
    """Where no pipeline runs."""
    data = an_admin().turn(now=NOON + 2 * S)
    assert data is not None
    assert (data.users, data.places) == (17, 170)
    wanted = plan({"lunch": 16, "news": 2}, nodes=17, slots_per_node=10)
    assert {each.name: (each.subscribers, each.copies) for each in data.topics} == {
        "lunch": (16, wanted["lunch"]),
        "news": (2, wanted["news"]),
    }


def test_the_plan_of_the_broker_counts_where_there_is_one() -> None:
    """The pipeline saw more than the gates; a topic that it does not name keeps its source's copy."""
    admin = an_admin()
    admin.take_plan({"campus/lunch": 3, "campus/more": 7, "home/kitchen": 9}, now=NOON)
    data = admin.turn(now=NOON)
    assert data is not None
    assert {each.name: each.copies for each in data.topics} == {"lunch": 3, "more": 7, "news": 1}
    admin.take_plan({}, now=NOON)
    again = admin.turn(now=NOON + 60 * S)
    assert again is not None
    assert {each.name for each in again.topics} == set(NAMES)


def test_a_version_is_new_only_when_there_is_something_new_and_never_goes_back() -> None:
    """Its clock may be set back, and it may be restarted."""
    admin = an_admin()
    first = admin.turn(now=NOON)
    assert first is not None
    assert admin.turn(now=NOON + 60 * S) is None
    admin.take_census(a_census("south", {}, at=NOON + S))
    assert admin.turn(now=NOON + 1) is None, "at most one version a minute"
    second = admin.turn(now=NOON + 120 * S)
    assert second is not None
    restarted = an_admin(state=admin.state)
    third = restarted.turn(now=5)
    assert third is not None
    assert first.version < second.version < third.version


def test_ids_are_hashes_where_they_are_free_and_rest_a_day() -> None:
    """Nodes that met no gate use the same ids; an id that had another meaning today is not given again."""
    admin = Admin({"pinned": 0x00F1})
    admin.take_plan({f"campus/{name}": 2 for name in NAMES}, now=NOON)
    data = admin.turn(now=NOON)
    assert data is not None
    ids = {each.name: each.topic for each in data.topics}
    assert ids == {"pinned": 0x00F1, **{name: hashed_topic(name) for name in NAMES}}
    admin.take_plan({"campus/lunch": 2}, now=NOON)
    assert admin.turn(now=NOON + 60 * S) is not None
    assert hashed_topic("news") in admin.state.released
    admin.take_plan({"campus/lunch": 2, "campus/news": 2}, now=NOON)
    back = admin.turn(now=NOON + 120 * S)
    assert back is not None
    assert {each.name: each.topic for each in back.topics}["news"] == hashed_topic("news") + 1
    admin.take_plan({}, now=NOON)
    admin.turn(now=NOON + 200 * S)
    admin.turn(now=NOON + 300 * S + DAY_US)
    assert hashed_topic("news") not in admin.state.released


def test_whatever_the_brokers_users_publish_control_data_fits_its_segments() -> None:
    """A client with the right to publish below campus/ decides about the plan's subjects, and not about the campus."""
    admin = Admin({"lunch": 5})
    flood = {f"campus/{each:0250}": 2 for each in range(3_000)}
    admin.take_plan({**flood, "campus/C++": 2, "campus/" + "x" * 256: 2, "campus/": 2}, now=NOON)
    data = admin.turn(now=NOON)
    assert data is not None
    assert segments_of(data, CAMPUS)
    assert (data.topics[0].name, len(data.topics) > 150) == ("lunch", True)
    assert admin.left_out == 3 + 3_001 - len(data.topics)


def test_topics_that_come_and_go_all_day_leave_ids_for_new_ones() -> None:
    """As it was, all of them rested, and the search for a free id never ended once 65,535 had ended within a day."""
    admin = Admin({"lunch": 5})
    for minute in range(18):
        admin.take_plan({f"campus/{minute}-{each}": 2 for each in range(1_900)}, now=NOON)
        data = admin.turn(now=NOON + minute * 60 * S)
        assert data is not None
        assert len({each.topic for each in data.topics}) == 1_901
    assert len(admin.state.released) == 30_000


def test_a_file_may_take_an_id_that_a_hash_had() -> None:
    """The owner of the campus decides; the other topic gets another id."""
    before = Admin(["lunch"])
    before.turn(now=NOON)
    after = Admin({"lunch": 7, "thief": hashed_topic("lunch")}, state=before.state)
    data = after.turn(now=NOON + 60 * S)
    assert data is not None
    assert {each.name: each.topic for each in data.topics} == {"lunch": 7, "thief": hashed_topic("lunch")}


def test_the_merged_census_has_what_the_pipeline_needs() -> None:
    """Nodes, places, and subscribers by the subject under which samples are logged."""
    assert an_admin().census(now=NOON) == {
        "nodes": 17, "places": 170, "subscribers": {"campus/lunch": 16, "campus/news": 2}
    }  # fmt: skip


def test_without_users_the_default_number_of_copies_stands() -> None:
    """A campus that opens in the morning."""
    data = Admin(NAMES).turn(now=NOON)
    assert data is not None
    assert {each.copies for each in data.topics} == {8}


# -- the bridge ---------------------------------------------------------------------------------


def a_message(
    body: bytes = b"pasta", *, name: str = "lunch", sample: str = "", number: str = "", expiry_s: int = 0
) -> Message:
    """Return a message of ``campus/<name>`` as it comes."""
    user = [(SAMPLE_PROPERTY, sample)] * bool(sample) + [("whimbrel.id", number)] * bool(number)
    values = {Property.MESSAGE_EXPIRY_INTERVAL: expiry_s} if expiry_s else {}
    return Message(topic=f"campus/{name}", payload=body, properties=Properties(values, user=tuple(user)))


def test_a_sample_keeps_its_id_on_the_broker_and_crosses_once() -> None:
    """What went up does not come down, and an older one does not cross after a newer."""
    sample = replace(plan_sample(), body=b"pasta")
    message = a_message(sample=sample_name(sample.id), expiry_s=9)
    found = id_of(message)
    assert found is not None
    assert found == sample.id
    came = read_sample(message, found, sample.topic, now=NOON)
    assert (came.id, came.body, came.expires_at) == (sample.id, b"pasta", NOON + 9 * S)
    bridge = Bridge()
    assert bridge.is_new("lunch", sample.id)
    assert not bridge.is_new("lunch", sample.id)
    assert not bridge.is_new("lunch", sample.id._replace(published_at=1))
    assert bridge.newest == {"lunch": sample.id}


def plan_sample() -> Sample:
    """Return a sample of the topic lunch."""
    campus = Campus(a_participant(1))
    return campus.publish(1, "lunch", b"pasta")


@pytest.mark.parametrize("sample", ["x", "1.2", f"{2**63}.{'0' * 16}", "1.0123456789ABCDEF"])
def test_a_strange_id_is_refused(sample: str) -> None:
    """Anybody may write a user property."""
    with pytest.raises(InvalidValueError, match=SAMPLE_PROPERTY):
        id_of(a_message(sample=sample))


def test_a_message_of_more_than_a_sample_cannot_cross() -> None:
    """A sample has at most 1,024 bytes."""
    with pytest.raises(WhimbrelError, match="bytes of a sample's body: found 1025"):
        read_sample(a_message(b"x" * 1_025), id_for_message("town:1", at=NOON), 1, now=NOON)


def as_application(message_id: str, body: bytes = b"pasta") -> CampusSample:
    """Return a sample with this id as the application of a node gets it."""
    at, _, publisher = message_id.partition(".")
    return CampusSample(topic="lunch", id=message_id, published_at=int(at), publisher=publisher, body=body)


def test_nobody_who_has_both_ways_receives_a_sample_twice() -> None:
    """By its id, or by the broker's number of a message that got its id later; two of one publisher are two."""
    up = sample_name(plan_sample().id)
    named = sample_name(id_for_message("town:7", at=NOON))
    for order in (1, -1):
        ways = BothWays()
        first: list[CampusSample | Message] = [as_application(up), a_message(sample=up)]
        assert [ways.is_first(each) for each in first[::order]] == [True, False]
        second: list[CampusSample | Message] = [as_application(named), a_message(number="town:7")]
        assert [ways.is_first(each) for each in second[::order]] == [True, False]
        assert ways.is_first(as_application(up.replace("18", "19", 1)))
        assert ways.is_first(a_message(number="town:8"))


# -- settings and status ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: WayServerSettings(campus_key="k"), "name: found ''"),
        (lambda: WayServerSettings(name="n"), "campus_key: found nothing, allowed is a file with the secret key"),
        (
            lambda: WayServerSettings(name="n", campus_key="k", clock="sun"),
            "clock: found 'sun', allowed is admin or own",
        ),
        (lambda: WayServerSettings(name="n", campus_key="k", previous_key="p"), "previous_until: found ''"),
        (lambda: WayServerSettings(name="n", campus_key="k", places=0), "places: found 0"),
        (lambda: AdminSettings(password_file="f"), "password_file: found 'f', allowed is none without a user"),  # noqa: S106 # a path
        (lambda: AdminSettings(target=2), "target: found 2"),
    ],
)
def test_a_bad_setting_of_the_backbone_is_one_sentence(make: Any, sentence: str) -> None:
    """What was found and what is allowed."""
    with pytest.raises(InvalidValueError) as raised:
        make()
    assert str(raised.value).startswith(sentence)


def test_a_previous_key_names_the_new_one_alike_at_every_gate(tmp_path: Path) -> None:
    """Two statements with two ids would be carried for ever."""
    for name, seed in (("old", b"c"), ("new", b"n")):
        (tmp_path / name).write_text((seed * 32).hex(), encoding="ascii")
        (tmp_path / name).chmod(0o600)
    settings = WayServerSettings(
        name="n", campus_key=str(tmp_path / "new"), previous_key=str(tmp_path / "old"),
        previous_until="2027-01-01T00:00:00Z",
    )  # fmt: skip
    [statement] = settings.statements()
    assert settings.statements() == [statement]
    node = a_participant(1, keys=[CAMPUS.public])
    node.control.receive(statement, now=0)
    assert NEXT.public in node.control.ring.keys(now=0)


def test_the_status_of_a_way_server_says_how_old_everything_is() -> None:
    """Control data, clock and census each have an age."""
    gate = a_way_server()
    campus = Campus(gate)
    gate.publish_control(plan_of("lunch"), own=NOON)
    status = node_status(gate, campus.daemons[9].transport, own=NOON + 7 * S)
    added = {"role": "way-server", "name": "north", "broker": "away", "users": 0, "census_age_s": None}
    lines = status_lines({**status, **added})
    assert lines[:5] == [
        "way-server 0000000000000009: none in reach",
        "name: north",
        "broker: away",
        "users: 0",
        "census_age_s: unknown",
    ]
    assert "clock: set 7.0 s ago; samples may be 60 s in the future" in lines
    assert f"control data: version {NOON}, 7.0 s old" in lines
