"""Restarts: the log alone, and the view with the log's tail, give the same broker, and it owes what was promised.

A crash here is a copy of the log as it is on the disk: what was appended and not synced is not in it.
"""

from __future__ import annotations

import copy
import shutil
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from broker_rig import NODE, Rig, publishing, subscribing
from broker_traffic import Traffic, Voice
from policy_traffic import PolicyTraffic

from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.broker.state.volatile_state import VolatileState
from whimbrel.broker.wire.clients import LiveClient
from whimbrel.hold.store.memory import MemoryStore
from whimbrel.log.reader import read
from whimbrel.match.topics import matches
from whimbrel.mqtt.packets import Packet, Puback, Publish, Pubrec, Pubrel
from whimbrel.mqtt.properties import Properties, Property

CASES, STEPS = 80, 120
FILTERS = ("a/#", "+", "#", "b", "a/b")


def _follow(rig: Rig, store: MemoryStore) -> None:
    """Bring a view up to date, as the shell does: the log is synced first."""
    applied, (put, drop) = rig.broker.applied, rig.state.view.changes()
    rig.log.sync()
    store.commit(applied, put, drop)


def _viewed(traffic: Traffic, store: MemoryStore) -> None:
    """Have a view follow the traffic now and then."""
    traffic.others.append(lambda: _follow(traffic.rig, store))


def _from_log(folder: Path) -> BrokerState:
    state = BrokerState(NODE)
    for fact in read(folder, NODE):
        state.apply(fact)
    return state


def _from_view(folder: Path, store: MemoryStore) -> BrokerState:
    state = BrokerState.restore(NODE, store.rows())
    for fact in read(folder, NODE, first=max(store.applied, 0) + 1):
        state.apply(fact)
    return state


def _crashed(traffic: Traffic, folder: Path) -> Path:
    """Return a copy of what the disk has."""
    shutil.copytree(traffic.rig.folder, folder)
    return folder


def _restarted(traffic: Traffic, folder: Path, state: BrokerState) -> Traffic:
    """Return the clients of *traffic*, none of them connected, at a broker that knows *state*."""
    rig = Rig(folder, state=state)
    rig.now = traffic.rig.now
    again = Traffic(rig, 0)
    again.random = copy.deepcopy(traffic.random)
    again.is_stable, again.has_wills = traffic.is_stable, traffic.has_wills
    again.voices = [_cut_off(voice) for voice in traffic.voices]
    again.bodies = traffic.bodies
    return again


def _cut_off(voice: Voice) -> Voice:
    peer, voice.peer = voice.peer, None
    other = copy.deepcopy(voice)
    voice.peer = peer
    other.is_welcome, other.todo = False, []
    return other


def _finish(traffic: Traffic) -> dict[str, list[Packet]]:
    """Let everybody come back and answer everything; return what they were sent."""
    before = {voice.name: len(voice.heard) for voice in traffic.voices}
    for voice in traffic.voices:
        traffic.connect(voice)
        traffic.settle()
    while any(voice.todo for voice in traffic.voices):
        for voice in traffic.voices:
            voice.answer(100)
        traffic.settle()
    return {voice.name: voice.heard[before[voice.name] :] for voice in traffic.voices}


@pytest.mark.parametrize("seed", range(CASES))
def test_the_view_and_the_log_say_the_same(seed: int, tmp_path: Path) -> None:
    """A view saves time; a client that could tell it from the log would have been told something wrong."""
    traffic, store = Traffic(Rig(tmp_path / "log"), seed), MemoryStore()
    _viewed(traffic, store)
    traffic.run(Random(seed).randrange(STEPS // 2, STEPS))
    by_log, by_view = (_crashed(traffic, tmp_path / name) for name in ("by-log", "by-view"))
    ours = _restarted(traffic, by_view, _from_view(by_view, store))
    theirs = _restarted(traffic, by_log, _from_log(by_log))
    assert _finish(ours) == _finish(theirs)


@pytest.mark.parametrize("seed", range(CASES // 4))
def test_the_view_and_the_log_say_the_same_of_policies(seed: int, tmp_path: Path) -> None:
    """Variables, choices and decisions come back alike, and what is sent again is what was decided."""
    traffic, store = PolicyTraffic(Rig(tmp_path / "log"), seed), MemoryStore()
    _viewed(traffic, store)
    traffic.run(Random(seed).randrange(STEPS // 2, STEPS))
    by_log, by_view = (_crashed(traffic, tmp_path / name) for name in ("by-log", "by-view"))
    first, second = _from_log(by_log), _from_view(by_view, store)
    for name in ("policies", "choices", "failures"):
        assert getattr(first.decisions.shape, name) == getattr(second.decisions.shape, name)
    variables = [{key: each.values for key, each in s.decisions.shape.variables.items()} for s in (first, second)]
    assert variables[0] == variables[1]
    assert first.decisions.by_seq == second.decisions.by_seq
    ours, theirs = _restarted(traffic, by_view, second), _restarted(traffic, by_log, first)
    assert _finish(ours) == _finish(theirs)


@pytest.mark.parametrize("seed", range(CASES))
def test_what_was_acknowledged_survives_crashes(seed: int, tmp_path: Path) -> None:
    """The promise of the whole: accepted means delivered, at QoS 2 once, however often the broker dies."""
    random = Random(seed)
    traffic = Traffic(Rig(tmp_path / "log"), seed, is_stable=True, has_wills=False)
    qos = {voice.name: random.randrange(3) for voice in traffic.voices}
    wanted = {voice.name: random.choice(FILTERS) for voice in traffic.voices}
    traffic.subscribe_all(lambda voice: qos[voice.name], lambda voice: wanted[voice.name])
    store = MemoryStore()
    for crash in range(3):
        _viewed(traffic, store)
        traffic.run(random.randrange(STEPS))
        folder = _crashed(traffic, tmp_path / f"crash-{crash}")
        owed = {voice.name: _unanswered(voice) for voice in traffic.voices}
        if random.random() < 0.5:  # the view is lost, and is made anew
            store = MemoryStore()
        traffic = _restarted(traffic, folder, _from_view(folder, store))
        sent = _finish(traffic)
        for name, packets in owed.items():
            assert packets <= {_known_by(each) for each in sent[name] if isinstance(each, Publish)}, name
    accepted = [packet for voice in traffic.voices for packet in voice.accepted]
    for voice in traffic.voices:
        _check(voice, accepted, qos[voice.name], wanted[voice.name])


def test_a_tick_does_not_overtake_what_waits_for_the_disk(tmp_path: Path) -> None:
    """Ticks are not in the log: one that ends what is not yet applied has the living and a replay disagree (rule 1)."""
    rig = Rig(tmp_path)
    rig.subscriber("keeper", "a", qos=2, expiry_s=60)
    properties = Properties({Property.MESSAGE_EXPIRY_INTERVAL: 3})
    rig.client("publisher").send(Publish("a", b"x", 2, packet_id=1, properties=properties))
    rig.tick(5)
    rig.settle()
    rig.log.sync()
    replayed = _from_log(tmp_path)
    replayed.tick(rig.now)
    assert sorted(seq for seq, _ in rig.state.hold.all_kept()) == sorted(seq for seq, _ in replayed.hold.all_kept())


@pytest.mark.parametrize("has_view", [False, True])
def test_a_retained_hand_over_is_released_after_a_restart(tmp_path: Path, *, has_view: bool) -> None:
    """The client has its identifier until PUBREL comes (4.3.3), whether a session holds the publication or not."""
    rig, store = Rig(tmp_path / "log"), MemoryStore()
    rig.client("publisher").send(publishing("a", b"x", 2, 1, retain=True))
    rig.settle()
    keeper = rig.client("keeper", expiry_s=60)
    keeper.send(subscribing("a", qos=2))
    rig.settle()
    (given,) = keeper.taken(Publish)
    keeper.send(Pubrec(given.packet_id))
    rig.settle()
    assert keeper.take() == [Pubrel(given.packet_id)]
    if has_view:
        _follow(rig, store)
    rig.log.sync()
    folder = Path(shutil.copytree(rig.folder, tmp_path / "crash"))
    again = Rig(folder, state=_from_view(folder, store))
    assert again.client("keeper", clean=False, expiry_s=60).take() == [Pubrel(given.packet_id)]


def test_a_plain_subscription_of_a_view_is_plain(tmp_path: Path) -> None:
    """Else every publication after a restart takes the slow way, through content that nobody asked about."""
    rig, store = Rig(tmp_path), MemoryStore()
    rig.subscriber("keeper", "a", qos=1, expiry_s=60)
    _follow(rig, store)
    assert not _from_log(tmp_path).routes.has_content
    assert not _from_view(tmp_path, store).routes.has_content


def _known_by(packet: Publish) -> tuple[int, bytes, int, bool]:
    return packet.packet_id, packet.payload, packet.qos, packet.dup


def _unanswered(voice: Voice) -> set[tuple[int, bytes, int, bool]]:
    """Return what a client has and did not answer, as it is to be sent again."""
    if voice.peer is None:
        return set()
    latest = {each.packet_id: each for each in voice.heard if isinstance(each, Publish) and each.qos}
    identifiers = [each.packet_id for each in voice.todo if isinstance(each, (Puback, Pubrec))]
    return {_known_by(latest[identifier]._replace(dup=True)) for identifier in identifiers}


def _check(voice: Voice, accepted: list[Publish], granted: int, wanted: str) -> None:
    """Hold what a client took against what everybody was told to be accepted."""
    taken = Counter(packet.payload for packet in voice.taken)
    for packet in accepted:
        qos = min(packet.qos, granted)
        if qos and matches(wanted, packet.topic):
            count = taken[packet.payload]
            assert count == 1 if qos == 2 else count >= 1, f"{voice.name}: {packet}, {count} times"


def test_a_replay_fills_no_queue(tmp_path: Path) -> None:
    """Its clients are not connected: what they were handed is in the hold, and once more in memory for nothing."""
    rig = Rig(tmp_path)
    for number in range(3):
        rig.subscriber(f"subscriber-{number}", "a", qos=number, expiry_s=60)
    publisher = rig.client("publisher")
    for number in range(1, 41):
        publisher.send(publishing("a", b"%d" % number, 1, number % 30 + 1))
        rig.settle()
    replayed = _from_log(tmp_path)
    assert _of_the_shell(replayed) == _of_the_shell_at_first(replayed)
    assert replayed.hold.pending_count("$mqtt/subscriber-1") == 40


def test_a_replay_keeps_no_retained_copy_for_a_client_that_went(tmp_path: Path) -> None:
    """A broker that runs sends such a copy again when its client is back; a restart does not know of it."""
    rig = Rig(tmp_path)
    rig.client("publisher").send(publishing("a", b"x", qos=1, packet_id=1, retain=True))
    rig.settle()
    phone = rig.client("phone", expiry_s=60)
    phone.send(subscribing("a", qos=1))
    rig.settle()
    assert len(phone.taken(Publish)) == 1  # and it is not acknowledged
    phone.drop()
    rig.settle()
    assert _of_the_shell(rig.state)["phone"]["_again"] != []
    replayed = _from_log(tmp_path)
    assert _of_the_shell(replayed) == _of_the_shell_at_first(replayed)


@pytest.mark.parametrize("seed", range(CASES // 8))
def test_a_replay_leaves_the_shell_as_it_begins(seed: int, tmp_path: Path) -> None:
    """Whatever happened, and whether the log or a view says it: nothing waits for a connection that there is not."""
    traffic, store = Traffic(Rig(tmp_path / "log"), seed), MemoryStore()
    _viewed(traffic, store)
    traffic.run(STEPS)
    folder = _crashed(traffic, tmp_path / "crashed")
    for replayed in (_from_log(folder), _from_view(folder, store)):
        assert _of_the_shell(replayed) == _of_the_shell_at_first(replayed)


def _of_the_shell(state: BrokerState) -> dict[str, dict[str, object]]:
    """Return what a state knows beside its node: by client, and under no name of a client what all share."""
    found = {name: _values(client, LiveClient) for name, client in state.clients.items()}
    shared = _values(state.volatile, VolatileState)
    del shared["counters"]  # what happened is counted in a replay too
    return {**found, "": {**shared, "system": list(state.volatile.system)}}


def _of_the_shell_at_first(state: BrokerState) -> dict[str, dict[str, object]]:
    """Return the same of a state that has these clients and did nothing yet."""
    begun = BrokerState(NODE)
    for name, client in state.clients.items():
        begun.clients[name] = LiveClient(name, client.session, begun.memory)
    return _of_the_shell(begun)


def _values(of: object, kind: type) -> dict[str, object]:
    return {slot: getattr(of, slot) for slot in kind.__slots__}  # type: ignore[attr-defined]  # it has slots
