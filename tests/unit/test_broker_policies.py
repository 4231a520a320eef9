"""Policies in the broker: put, chosen, and asked at the one gate before everything that is sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from broker_rig import ANSWERS, NODE, Peer, Rig, publishing, subscribing
from single_process import SingleProcess

from whimbrel.broker.settings.config import Config, PolicySettings
from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.language.policies.limits import DEFAULT_POLICY_LIMITS
from whimbrel.log.reader import read
from whimbrel.model.facts import Decided, Fact, Outcome, PolicyChanged, Receipt
from whimbrel.mqtt.codes import ReasonCode
from whimbrel.mqtt.packets import V5, V311, Connack, Puback, Pubcomp, Publish, Pubrec, Pubrel, Suback
from whimbrel.mqtt.properties import Properties, Property
from whimbrel.shape.transforms import perform
from whimbrel.shape.variables import Choices

_LOW = "if (device.Battery < 0.5) { return NULL; } return m;"
_COUNTER = """
if (state.n == NULL) { state.n = 0; }
state.n = state.n + 1;
m.n = state.n;
return m;
"""


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    """Return a broker."""
    return Rig(tmp_path)


def _put(peer: Peer, rig: Rig, name: str, text: str) -> None:
    (answer,) = _answered(peer, rig, f"$whimbrel/policy/{name}", text.encode())
    assert answer.code == 0, answer


def _answered(peer: Peer, rig: Rig, topic: str, payload: bytes) -> list[Puback]:
    peer.send(Publish(topic, payload, 1, packet_id=99))
    rig.settle()
    return peer.taken(Puback)


def _choose(peer: Peer, rig: Rig, name: str) -> None:
    (answer,) = _answered(peer, rig, "$whimbrel/policy", name.encode())
    assert answer.code == 0, answer


def _report(peer: Peer, rig: Rig, **members: object) -> None:
    peer.send(Publish("$whimbrel/report", json.dumps(members).encode(), 0))
    rig.settle()


def _facts(rig: Rig) -> list[Fact]:
    rig.sync()
    return list(read(rig.folder, NODE))


def _decisions(rig: Rig) -> list[tuple[str, Outcome]]:
    return [(fact.device, fact.outcome) for fact in _facts(rig) if isinstance(fact, Decided)]


def _outcomes(rig: Rig) -> list[tuple[str, Outcome]]:
    return [(fact.device, fact.outcome) for fact in _facts(rig) if isinstance(fact, Receipt)]


def _phone(rig: Rig, qos: int, policy: str = _LOW, *, name: str = "phone", expiry_s: int = 0) -> Peer:
    phone = rig.client(name, expiry_s=expiry_s, clean=not expiry_s)
    _put(phone, rig, "p", policy)
    _choose(phone, rig, "p")
    phone.send(subscribing("ward/#", qos=qos))
    rig.settle()
    phone.take()
    return phone


# -- putting -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [V5, V311])
def test_a_policy_is_put_and_what_is_wrong_with_one_is_said(rig: Rig, version: int) -> None:
    """Code and position: in the reason string of version 5, in 3.1.1 where all answers are."""
    peer = rig.client("laptop", version=version)
    _put(peer, rig, "icu", _LOW)
    (answer,) = _answered(peer, rig, "$whimbrel/policy/bad", b"return m")
    if version == V5:
        assert answer.code == ReasonCode.PAYLOAD_FORMAT_INVALID
        assert "line 1, column" in (answer.properties.text(Property.REASON_STRING) or "")
    peer.send(Publish("$whimbrel/policy/bad", b"x = 1", 1, packet_id=98))
    rig.settle()
    told = peer.answers()
    if version == V311:
        assert (told[-1]["ok"], told[-1]["line"], told[-1]["column"]) == (False, 1, 6)
    assert list(rig.state.decisions.shape.policies) == ["icu"]
    (fact,) = [fact for fact in _facts(rig) if isinstance(fact, PolicyChanged)]
    assert (fact.name, fact.owner, fact.text) == ("icu", "$mqtt/laptop", _LOW)


def test_a_policy_of_a_user_is_that_users_alone(tmp_path: Path) -> None:
    """Who could replace it could rewrite what its devices get."""
    rig = Rig(tmp_path, verify=lambda _user, _password: True)
    alice = rig.client("a", username="alice", password=b"x")
    _put(alice, rig, "icu", _LOW)
    mallory = rig.client("alice", username="mallory", password=b"x")
    (answer,) = _answered(mallory, rig, "$whimbrel/policy/icu", b"return NULL;")
    assert answer.code == ReasonCode.NOT_AUTHORIZED
    (answer,) = _answered(mallory, rig, "$whimbrel/policy/icu", b"")
    assert answer.code == ReasonCode.NOT_AUTHORIZED
    (answer,) = _answered(alice, rig, "$whimbrel/policy/icu", b"")
    assert answer.code == 0
    assert not rig.state.decisions.shape.policies


def test_policies_are_listed_and_shown(rig: Rig) -> None:
    """To whoever may ask: the text is no secret."""
    peer = rig.client("laptop")
    _put(peer, rig, "icu", _LOW)
    _choose(peer, rig, "icu")
    for body in (b'{"id": 1, "list": true}', b'{"id": 2, "show": "icu"}', b'{"id": 3, "show": "none"}', b'{"id": 4}'):
        peer.send(Publish("$whimbrel/policy", body, 0, properties=Properties({Property.RESPONSE_TOPIC: ANSWERS})))
    rig.settle()
    listed, shown, missing, strange = peer.answers()
    version = rig.state.decisions.shape.policies["icu"].seq
    known = {"policy": "icu", "version": version, "owner": None, "suspended": False, "devices": 1}
    assert listed["policies"] == [known]
    assert (shown["ok"], shown["text"]) == (True, _LOW)
    assert (missing["ok"], strange["ok"]) == (False, False)


class _UnreadChoices(Choices):
    """Choices of devices that nobody goes through."""

    def values(self) -> Any:
        """Fail."""
        raise AssertionError("there may be a hundred thousand devices")


def test_a_list_of_policies_does_not_go_through_the_devices(rig: Rig) -> None:
    """A thousand policies of a hundred thousand devices are listed in a few turns of the loop."""
    peer = rig.client("laptop")
    for name in "abc":
        _put(peer, rig, name, _LOW)
    choices = rig.state.decisions.shape.choices = _UnreadChoices()
    for device, chosen in {"d1": "a", "d2": "b", "d3": "a", "d4": "c"}.items():
        choices[device] = chosen
    choices.pop("d4")
    for request in ('{"list": true}', '{"show": "a"}'):
        properties = Properties({Property.RESPONSE_TOPIC: ANSWERS})
        peer.send(Publish("$whimbrel/policy", request.encode(), 0, properties=properties))
        rig.settle()
    listed, shown = peer.answers()
    assert [(each["policy"], each["devices"]) for each in listed["policies"]] == [("a", 2), ("b", 1), ("c", 0)]
    assert shown["devices"] == 2


def test_limits_are_those_of_the_configuration(tmp_path: Path) -> None:
    """Of what is put, of how many there are, and of what a device may keep."""
    rig = Rig(tmp_path, Config(policies=PolicySettings(count=1, steps=20, variable_bytes=10)))
    peer = rig.client("laptop")
    (answer,) = _answered(peer, rig, "$whimbrel/policy/long", (_COUNTER * 2).encode())
    assert answer.code == ReasonCode.PAYLOAD_FORMAT_INVALID
    assert "at most 20 are allowed" in (answer.properties.text(Property.REASON_STRING) or "")
    _put(peer, rig, "p", "state.much = 'more than ten bytes'; return m;")
    (answer,) = _answered(peer, rig, "$whimbrel/policy/q", _LOW.encode())
    assert (answer.code, len(rig.state.decisions.shape.policies)) == (ReasonCode.QUOTA_EXCEEDED, 1)
    _choose(peer, rig, "p")
    peer.send(subscribing("ward/#"))
    peer.send(publishing("ward/3", b"x"))
    rig.settle()
    assert _decisions(rig) == [("laptop", Outcome.WITHHELD)]


def test_a_long_policy_is_read_in_turns_with_others(rig: Rig) -> None:
    """To compile 16 KB takes 30 ms; what the client sent behind it waits, and is handled in order."""
    author, other = rig.client("author"), rig.client("other")
    text = "if (m.a > 1) { return m; }\n" * 450
    author.send(Publish("$whimbrel/policy/long", text.encode()), Publish("$whimbrel/policy", b"long"))
    turns = 0
    while rig.broker.has_work:
        rig.broker.go_on(rig.now)
        turns += 1
    assert turns > 20
    other.send(publishing("x"))
    rig.settle()
    assert rig.state.decisions.shape.chosen("author") == "long"


@pytest.mark.parametrize("body", [b"none", b"\xff", b"a/b", b'{"choose": 7}', b'{"id": [1], "list": true}', b"{"])
def test_what_is_no_choice_is_refused(rig: Rig, body: bytes) -> None:
    """Hostile bytes, and a name that nothing was put under."""
    (answer,) = _answered(rig.client("phone"), rig, "$whimbrel/policy", body)
    assert answer.code.is_error
    assert rig.state.decisions.shape.chosen("phone") is None


def test_a_subscription_names_a_policy_that_there_is(rig: Rig) -> None:
    """One that was misspelt would send everything, and nobody would know."""
    phone = rig.client("phone")
    _put(phone, rig, "p", _LOW)
    phone.send(subscribing("a", policy="p"), subscribing("b", packet_id=2, policy="q"))
    rig.settle()
    good, bad = phone.taken(Suback)
    assert (good.codes, bad.codes) == ((0,), (ReasonCode.TOPIC_FILTER_INVALID,))
    assert "there is no policy 'q'" in (bad.properties.text(Property.REASON_STRING) or "")


def test_history_does_not_pass_by_a_policy(rig: Rig) -> None:
    """What the log has is sent as it was published, so it is refused where a policy decides."""
    phone, other = _phone(rig, 1), rig.client("other")
    phone.send(subscribing("a", packet_id=7, since="1h"))
    _put(other, rig, "q", _LOW)
    other.send(subscribing("b", packet_id=8, since="1h", policy="q"))
    rig.settle()
    for peer in (phone, other):
        (refused,) = peer.taken(Suback)
        assert refused.codes == (ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,)
        assert "where a policy decides" in (refused.properties.text(Property.REASON_STRING) or "")


# -- deciding ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("has_plans", [True, False])
def test_what_a_policy_withholds_is_not_sent_and_not_taken_from_others(
    tmp_path: Path, qos: int, *, has_plans: bool
) -> None:
    """At any QoS the account has both as they happened."""
    rig = Rig(tmp_path, has_plans=has_plans)
    phone = _phone(rig, qos)
    other = rig.subscriber("other", "ward/#", qos=qos)
    _report(phone, rig, battery=0.4)
    publisher = rig.client("monitor")
    publisher.send(publishing("ward/3", b'{"pulse":60}', qos, packet_id=7 * bool(qos)))
    rig.settle()
    assert (phone.payloads(), other.payloads()) == ([], [b'{"pulse":60}'])
    assert ("phone", Outcome.WITHHELD) in _outcomes(rig)
    _report(phone, rig, battery=0.5)
    publisher.send(publishing("ward/3", b'{"pulse":61}', qos, packet_id=8 * bool(qos)))
    rig.settle()
    (sent,) = phone.taken(Publish)
    assert (sent.payload, sent.qos, sent.dup) == (b'{"pulse":61}', qos, False)
    if qos:
        phone.send(Puback(sent.packet_id) if qos == 1 else Pubrec(sent.packet_id))
        rig.settle()
    assert _decisions(rig) == [("phone", Outcome.WITHHELD), ("phone", Outcome.DELIVERED)]
    assert [each for each in _outcomes(rig) if each[0] == "phone"] == _decisions(rig)


def test_a_withheld_copy_of_a_named_session_waits_for_the_others(rig: Rig) -> None:
    """A policy decides for its device: what it withholds is not taken from the devices that are away."""
    phone = rig.client("phone")
    assert phone.ask("create", session="team")["ok"]
    assert phone.ask("join", session="team")["ok"]
    assert phone.ask("subscribe", session="team", topic="ward/#")["ok"]
    _put(phone, rig, "p", _LOW)
    _choose(phone, rig, "p")
    _report(phone, rig, battery=0.1)
    rig.client("monitor").send(publishing("ward/3", b"{}", 1, packet_id=7))
    rig.settle()
    assert phone.payloads() == []
    tablet = rig.client("tablet")
    assert tablet.ask("join", session="team")["ok"]
    rig.settle()
    assert tablet.payloads() == [b"{}"]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_share_goes_to_the_next_if_a_policy_withholds(rig: Rig, qos: int) -> None:
    """Work that is divided is done by somebody."""
    phone = _phone(rig, qos)
    phone.send(subscribing("$share/g/job/#", qos=qos))
    other = rig.subscriber("zebra", "$share/g/job/#", qos=qos)
    _report(phone, rig, battery=0.1)
    rig.client("monitor").send(publishing("job/1", b"{}", qos, packet_id=7 * bool(qos)))
    rig.settle()
    assert (phone.payloads(), other.payloads()) == ([], [b"{}"])


@pytest.mark.parametrize("qos", [0, 1])
def test_retained_messages_pass_the_same_gate(rig: Rig, qos: int) -> None:
    """A subscription must not be a way around a policy."""
    rig.client("monitor").send(publishing("ward/3", b'{"pulse":60}', 1, packet_id=7, retain=True))
    rig.settle()
    phone = rig.client("phone")
    _put(phone, rig, "p", _LOW)
    _choose(phone, rig, "p")
    _report(phone, rig, battery=0.4)
    phone.send(subscribing("ward/#", qos=qos))
    rig.settle()
    assert phone.payloads() == []
    _put(phone, rig, "p", "m.seen = 1; return m;")
    phone.send(subscribing("ward/#", qos=qos))
    rig.settle()
    (sent,) = phone.taken(Publish)
    assert (sent.payload, sent.retain, sent.qos) == (b'{"pulse":60,"seen":1}', True, qos)
    assert _decisions(rig) == [("phone", Outcome.WITHHELD), ("phone", Outcome.DELIVERED)]


def test_the_policy_of_the_device_wins_and_else_the_first_that_sends(rig: Rig) -> None:
    """By session, subject filter and name; withheld if all withhold, as it is for one without a policy."""
    phone = rig.client("phone")
    _put(phone, rig, "none", "return NULL;")
    _put(phone, rig, "two", "m.by = 2; return m;")
    _put(phone, rig, "own", "m.by = 0; return m;")
    phone.send(subscribing("a/#", policy="none"), subscribing("a/+", packet_id=2, policy="two"))
    monitor = rig.client("monitor")
    rig.settle()
    phone.take()
    monitor.send(publishing("a/1", b"{}"))
    rig.settle()
    assert phone.payloads() == [b'{"by":2}']
    _choose(phone, rig, "own")
    monitor.send(publishing("a/1", b"{}"))
    rig.settle()
    assert phone.payloads() == [b'{"by":0}']
    _choose(phone, rig, "")
    phone.send(subscribing("a/+", packet_id=3, policy="none"))
    rig.settle()
    phone.take()
    monitor.send(publishing("a/1", b"{}"))
    rig.settle()
    assert phone.payloads() == []
    phone.send(subscribing("a/1", packet_id=4))
    rig.settle()
    phone.take()
    monitor.send(publishing("a/1", b"{}"))
    rig.settle()
    assert phone.payloads() == [b"{}"]


def test_at_qos_2_the_decision_is_synced_before_the_bytes_leave(rig: Rig) -> None:
    """Exactly once holds for the decision too."""
    phone = _phone(rig, 2, _COUNTER)
    rig.client("monitor").send(publishing("ward/3", b"{}", 2, packet_id=7))
    rig.next_turn()
    assert rig.broker.wants_sync
    assert phone.payloads() == []
    rig.settle()
    assert phone.payloads() == [b'{"n":1}']


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("from_view", [False, True])
def test_what_is_sent_again_after_a_crash_is_what_was_decided(tmp_path: Path, qos: int, *, from_view: bool) -> None:
    """The policy does not run a second time: the body is the first one's, and the variables are those of the log."""
    rig = Rig(tmp_path)
    phone = _phone(rig, qos, _COUNTER, expiry_s=600)
    monitor = rig.client("monitor")
    for number in range(3):
        monitor.send(publishing("ward/3", b"{}", qos, packet_id=7 + number))
    rig.settle()
    first = phone.taken(Publish)
    assert [each.payload for each in first] == [b'{"n":1}', b'{"n":2}', b'{"n":3}']
    phone.send(Puback(first[0].packet_id) if qos == 1 else Pubrec(first[0].packet_id))
    rig.settle()
    state = BrokerState(NODE)
    if from_view:
        put, _ = rig.state.view.changes()
        state = BrokerState.restore(NODE, put.items())
    else:
        for fact in _facts(rig):
            state.apply(fact)
    rig.log.sync()
    rig.close()
    again = Rig(tmp_path, state=state, now=rig.now)
    phone = again.client("phone", expiry_s=600, clean=False)
    again.settle()
    sent = phone.taken(Publish)
    assert [(each.payload, each.dup, each.packet_id) for each in sent] == [
        (each.payload, True, each.packet_id) for each in first[1:]
    ]
    assert len(_decisions(again)) == 3
    assert again.state.decisions.shape.manual("phone", "p") == {"n": 3}
    for each in sent:
        phone.send(Puback(each.packet_id) if qos == 1 else Pubrec(each.packet_id))
    again.settle()
    assert not again.state.decisions.by_seq
    again.client("m2").send(publishing("ward/3", b"{}", qos, packet_id=9))
    again.settle()
    assert phone.payloads() == [b'{"n":4}']


def test_variables_follow_the_policy_and_the_session(rig: Rig) -> None:
    """A device whose session ended begins anew, or state would grow with every client that ever was."""
    phone = _phone(rig, 0, _COUNTER)
    rig.client("monitor").send(publishing("ward/3", b"{}"))
    rig.next_turn()
    assert phone.payloads() == [b'{"n":1}']
    phone.drop()
    rig.settle()
    shape = rig.state.decisions.shape
    assert (shape.chosen("phone"), shape.manual("phone", "p"), shape.automatic("phone")) == (None, {}, {})


@pytest.mark.parametrize("qos", [0, 1])
def test_the_others_have_theirs_before_a_policy_decides(rig: Rig, qos: int) -> None:
    """A decision takes as long as sending to a hundred, so it has a turn of its own."""
    phone, other = _phone(rig, qos, _COUNTER), rig.subscriber("other", "ward/#", qos=qos)
    monitor = rig.client("monitor")
    for number in (1, 2):
        monitor.send(publishing("ward/3", b"{}", qos, packet_id=number * qos))
    rig.sync()
    assert (phone.payloads(), other.payloads(), _decisions(rig)) == ([], [b"{}", b"{}"], [])
    rig.next_turn()
    assert phone.payloads() == [b'{"n":1}', b'{"n":2}']


def test_a_transform_keeps_one_device_waiting_and_nobody_else(rig: Rig) -> None:
    """In order for the device; the others have it at once."""
    phone = _phone(rig, 1, "if (m.big == 1) { return project(m, 'big'); } return m;")
    other = rig.subscriber("other", "ward/#", qos=1)
    monitor = rig.client("monitor")
    large = json.dumps({"big": 1, "rest": "x" * 5_000}).encode()
    monitor.send(publishing("ward/3", large, 1, packet_id=7), publishing("ward/3", b'{"big":2}', 1, packet_id=8))
    rig.sync()
    assert (phone.payloads(), other.payloads()) == ([], [large, b'{"big":2}'])
    rig.settle()
    assert phone.payloads() == [b'{"big":1}', b'{"big":2}']


_LARGE = json.dumps({"big": 1, "rest": "x" * 5_000}).encode()


def _checked(rig: Rig) -> list[str | None]:
    """Return what the pipeline finds otherwise of each hand-over to the phone."""
    rows = SingleProcess(assume_receipts=False).run(_facts(rig)).deliveries
    return [row.difference for row in rows if row.device == "phone"]


def test_a_report_while_a_body_is_made_counts(rig: Rig) -> None:
    """A decision is that of the state at its number, or no reader of the log could find it again."""
    phone = _phone(rig, 1, "if (device.Battery < 0.5) { return project(m, 'big'); } return project(m, 'rest');")
    _report(phone, rig, battery=0.2)
    rig.client("monitor").send(publishing("ward/3", _LARGE, 1, packet_id=7))
    rig.sync()
    rig.next_turn()
    assert len(rig.broker.transforms) == 1
    phone.send(Publish("$whimbrel/report", b'{"battery": 0.9}', 0))
    rig.now += 2_000_000
    rig.settle()
    (body,) = phone.payloads()
    assert body.startswith(b'{"rest":"xxx')
    phone.send(Puback(_packet_id(rig)))
    assert _checked(rig) == [None]


def test_a_body_that_is_another_each_time_is_made_a_few_times_only(rig: Rig) -> None:
    """A policy that writes the time into a long body asks for another one whenever a second has passed."""
    phone = _phone(rig, 1, "m.at = getTime(); return m;")
    rig.client("monitor").send(publishing("ward/3", _LARGE, 1, packet_id=7))
    rig.sync()
    rig.next_turn()
    made = 0
    while rig.broker.transforms:
        job = rig.broker.transforms.popleft()
        rig.now += 1_000_000
        made += 1
        rig.broker.on_answer(job, perform(job.work, DEFAULT_POLICY_LIMITS), rig.now)
    rig.settle()
    assert (made, phone.payloads(), _decisions(rig)) == (3, [], [("phone", Outcome.WITHHELD)])
    assert _checked(rig) == [None]


def _packet_id(rig: Rig) -> int:
    (client,) = (client for client in rig.state.clients.values() if client.flying)
    (packet_id,) = client.flying
    return packet_id


def test_a_device_that_goes_while_a_body_is_made_gets_it_when_it_comes_back(rig: Rig) -> None:
    """Nothing was decided yet: the hold has it still."""
    phone = _phone(rig, 1, "return project(m, 'big');", expiry_s=600)
    large = json.dumps({"big": 1, "rest": "x" * 5_000}).encode()
    rig.client("monitor").send(publishing("ward/3", large, 1, packet_id=7))
    rig.sync()
    phone.drop()
    rig.settle()
    assert _decisions(rig) == []
    phone = rig.client("phone", expiry_s=600, clean=False)
    rig.settle()
    assert phone.payloads() == [b'{"big":1}']


def test_a_policy_that_keeps_failing_is_suspended_and_its_owner_told(rig: Rig) -> None:
    """What it cannot decide about is withheld, until it is put anew."""
    phone = rig.client("phone")
    too_many = "".join(f"state.v{n} = 1; " for n in range(257)) + "return m;"
    _put(phone, rig, "p", too_many)
    _choose(phone, rig, "p")
    phone.send(subscribing("ward/#", "$whimbrel/policy/+/suspended"))
    rig.settle()
    phone.take()
    monitor = rig.client("monitor")
    for _ in range(11):
        monitor.send(publishing("ward/3", b"{}"))
    rig.settle()
    (told,) = phone.taken(Publish)
    assert told.topic == "$whimbrel/policy/p/suspended"
    assert json.loads(told.payload)["publisher"] == "monitor"
    assert [notice.client for notice in rig.broker.take_notices()] == ["phone"]
    _put(phone, rig, "p", "return m;")
    monitor.send(publishing("ward/3", b"{}"))
    rig.settle()
    assert phone.payloads() == [b"{}"]


def test_what_was_withheld_was_not_due(rig: Rig) -> None:
    """Or NetworkConnection would fall because of the policy and not because of the link."""
    phone = _phone(rig, 0)
    _report(phone, rig, battery=0.4, received=0)
    monitor = rig.client("monitor")
    for _ in range(5):
        monitor.send(publishing("ward/3", b"{}"))
    _report(phone, rig, battery=0.9, received=0)
    monitor.send(publishing("ward/3", b"{}"), publishing("ward/3", b"{}"))
    _report(phone, rig, battery=0.9, received=1)
    shape = rig.state.decisions.shape
    assert shape.automatic("phone")["NetworkConnection"] == 0.5


def test_decisions_for_one_device_take_turns_with_other_clients(rig: Rig) -> None:
    """A thousand that waited for it would stop the broker for a quarter of a second."""
    phone = _phone(rig, 1, _COUNTER, expiry_s=600)
    phone.drop()
    monitor = rig.client("monitor")
    for number in range(60):
        monitor.send(publishing("ward/3", b"{}", 1, packet_id=number + 1))
        rig.settle()
    phone = rig.connecting("phone", clean=False, expiry_s=600)
    rig.sync()
    first = len(phone.payloads())
    assert 0 < first < 60
    rig.settle()
    assert first + len(phone.payloads()) == 60


def test_an_exchange_at_qos_2_comes_to_its_end(rig: Rig) -> None:
    """PUBREL and PUBCOMP as for everybody else."""
    phone = _phone(rig, 2, _COUNTER)
    rig.client("monitor").send(publishing("ward/3", b"{}", 2, packet_id=7))
    rig.settle()
    (sent,) = phone.taken(Publish)
    phone.send(Pubrec(sent.packet_id))
    rig.settle()
    assert [each.packet_id for each in phone.taken(Pubrel)] == [sent.packet_id]
    phone.send(Pubcomp(sent.packet_id))
    rig.settle()
    assert not rig.state.clients["phone"].releasing


def test_a_device_names_its_policy_in_connect(rig: Rig) -> None:
    """What was held for it is decided about too; a session that goes on keeps the choice, a clean start does not."""
    _put(rig.client("laptop"), rig, "p", _COUNTER)
    rig.subscriber("phone", "ward/#", qos=1, expiry_s=600).drop()
    monitor = rig.client("monitor")
    monitor.send(publishing("ward/3", b"{}", 1, packet_id=7))
    rig.settle()
    phone = rig.client("phone", expiry_s=600, clean=False, user=(("policy", "p"),))
    rig.settle()
    (sent,) = phone.taken(Publish)
    assert sent.payload == b'{"n":1}'
    phone.send(Puback(sent.packet_id))
    phone.drop()
    phone = rig.client("phone", expiry_s=600, clean=False)
    monitor.send(publishing("ward/3", b"{}", 1, packet_id=8))
    rig.settle()
    assert phone.payloads() == [b'{"n":2}']
    rig.client("phone", user=(("policy", "p"),))
    assert rig.state.decisions.shape.chosen("phone") == "p"
    assert rig.state.decisions.shape.manual("phone", "p") == {}
    chosen = [fact.name for fact in _facts(rig) if isinstance(fact, PolicyChanged) and fact.device == "phone"]
    assert chosen == ["p", "p"]
    rig.client("phone")
    assert rig.state.decisions.shape.chosen("phone") is None


@pytest.mark.parametrize("user", [(("policy", "a/b"),), (("policy", "p"), ("policy", "q"))])
def test_a_connect_with_no_policy_name_is_refused(rig: Rig, user: tuple[tuple[str, str], ...]) -> None:
    """As all options that do not parse are."""
    peer = rig.connecting("phone", user=user)
    rig.settle()
    (welcome,) = peer.taken(Connack)
    assert welcome.code == ReasonCode.PROTOCOL_ERROR


# -- owners ------------------------------------------------------------------------------------------------------------


def test_without_users_a_policy_is_that_of_the_client_that_put_it(rig: Rig) -> None:
    """Who could replace it could send a doctor's device whatever passes, or nothing."""
    owner, stranger = rig.client("laptop"), rig.client("stranger")
    _put(owner, rig, "icu", _LOW)
    for text in (b"return NULL;", b""):
        (answer,) = _answered(stranger, rig, "$whimbrel/policy/icu", text)
        assert answer.code == ReasonCode.NOT_AUTHORIZED
        assert "another client's" in (answer.properties.text(Property.REASON_STRING) or "")
    owner.drop()
    rig.settle()
    (answer,) = _answered(stranger, rig, "$whimbrel/policy/icu", b"return NULL;")
    assert answer.code == ReasonCode.NOT_AUTHORIZED
    _put(rig.client("laptop"), rig, "icu", "return m;")


def test_one_owner_cannot_take_all_names(tmp_path: Path) -> None:
    """A quota for each; a new version of one's own needs no room."""
    rig = Rig(tmp_path, Config(policies=PolicySettings(per_owner=2)))
    one, other = rig.client("one"), rig.client("other")
    for name in ("a", "b", "a"):
        _put(one, rig, name, _LOW)
    (answer,) = _answered(one, rig, "$whimbrel/policy/c", _LOW.encode())
    assert answer.code == ReasonCode.QUOTA_EXCEEDED
    assert "policies.per_owner" in (answer.properties.text(Property.REASON_STRING) or "")
    _put(other, rig, "c", _LOW)


def test_a_connect_that_chooses_a_policy_there_is_not_is_refused(rig: Rig) -> None:
    """It would get everything as it is, and nobody would know; as a choice later and a subscription are."""
    peer = rig.connecting("phone", user=(("policy", "misspelt"),))
    rig.settle()
    (welcome,) = peer.taken(Connack)
    assert welcome.code == ReasonCode.TOPIC_NAME_INVALID
    assert "there is no policy 'misspelt'" in (welcome.properties.text(Property.REASON_STRING) or "")
    assert rig.state.decisions.shape.chosen("phone") is None


@pytest.mark.parametrize("policy", ["return NULL;", "m.n = 1; return m;"])
def test_a_decision_is_forgotten_with_its_receipt_whoever_else_waits_for_the_notification(
    rig: Rig, policy: str
) -> None:
    """A clean session's copy is sent beside the hold, and a replay forgets the decision with its receipt as well."""
    rig.subscriber("away", "t", qos=1, expiry_s=3_600).drop()
    phone = rig.client("phone", options={Property.RECEIVE_MAXIMUM: 1})
    phone.send(subscribing("t", qos=1))
    publisher = rig.client("publisher")
    for number in (1, 2):
        publisher.send(publishing("t", b'{"a":1}', 1, number))
        rig.settle()
    (first,) = phone.taken(Publish)
    _put(phone, rig, "p", policy)
    _choose(phone, rig, "p")
    phone.send(Puback(first.packet_id))
    rig.settle()
    assert len(_decisions(rig)) == 1
    for copy in phone.taken(Publish):
        phone.send(Puback(copy.packet_id))
        rig.settle()
    (decided,) = (fact for fact in _facts(rig) if isinstance(fact, Decided))
    assert rig.state.decisions.find_decisions("phone", decided.notification.seq) == ()
