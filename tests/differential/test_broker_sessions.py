"""Named sessions among random traffic: restarts, the fast lanes, and the tables all say what the living broker said.

What the hold itself decides is held to a naive twin elsewhere (``tests/property/test_hold.py``); here it is shown that
the broker says it to clients, writes it down, and finds it again.
"""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from random import Random

import pytest
from broker_rig import NODE, Rig
from session_traffic import SessionTraffic

from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.hold.store.memory import MemoryStore
from whimbrel.log.reader import read
from whimbrel.mqtt.packets import V5, Packet

CASES, STEPS = 60, 160


def _follow(rig: Rig, store: MemoryStore) -> None:
    applied, (put, drop) = rig.broker.applied, rig.state.view.changes()
    rig.log.sync()
    store.commit(applied, put, drop)


def _from_view(folder: Path, store: MemoryStore) -> BrokerState:
    state = BrokerState.restore(NODE, store.rows())
    for fact in read(folder, NODE, first=max(store.applied, 0) + 1):
        state.apply(fact)
    return state


def _restarted(traffic: SessionTraffic, folder: Path, state: BrokerState) -> SessionTraffic:
    rig = Rig(folder, state=state)
    rig.now = traffic.rig.now
    again = SessionTraffic(rig, 0)
    again.random, again.bodies = copy.deepcopy(traffic.random), traffic.bodies
    again.voices = []
    for voice in traffic.voices:
        peer, voice.peer = voice.peer, None
        other = copy.deepcopy(voice)
        voice.peer, other.is_welcome, other.todo = peer, False, []
        again.voices.append(other)
    return again


def _finish(traffic: SessionTraffic) -> dict[str, list[Packet]]:
    """Let everybody come back to all sessions and answer everything; return what they were sent."""
    before = {voice.name: len(voice.heard) for voice in traffic.voices}
    for voice in traffic.voices:
        traffic.connect(voice, sessions=traffic.existing())
        traffic.settle()
        if voice.version != V5:
            for session in traffic.existing():
                traffic.request(voice, "join", session=session, receipt="keep")
                traffic.settle()
    while any(voice.todo for voice in traffic.voices):
        for voice in traffic.voices:
            voice.answer(100)
        traffic.settle()
    return {voice.name: voice.heard[before[voice.name] :] for voice in traffic.voices}


@pytest.mark.parametrize("seed", range(CASES))
def test_the_view_and_the_log_say_the_same(seed: int, tmp_path: Path) -> None:
    """Whoever shares a session must not be able to tell how the broker remembered it."""
    traffic, store = SessionTraffic(Rig(tmp_path / "log"), seed), MemoryStore()
    traffic.others.append(lambda: _follow(traffic.rig, store))
    traffic.run(Random(seed).randrange(STEPS // 2, STEPS))
    by_log, by_view = (Path(shutil.copytree(traffic.rig.folder, tmp_path / name)) for name in ("by-log", "by-view"))
    ours = _restarted(traffic, by_view, _from_view(by_view, store))
    theirs = _restarted(traffic, by_log, _from_view(by_log, MemoryStore()))
    assert _finish(ours) == _finish(theirs)


@pytest.mark.parametrize("seed", range(CASES))
def test_the_living_broker_and_its_log_say_the_same(seed: int, tmp_path: Path) -> None:
    """What is in memory is what the log says, once nobody waits: the same is held, for the same."""
    traffic = SessionTraffic(Rig(tmp_path / "log"), seed)
    for _ in range(4):
        traffic.run(STEPS // 4)
        traffic.rig.tick()
        traffic.settle()
        traffic.rig.log.sync()
        replayed = _from_view(tmp_path / "log", MemoryStore())
        replayed.tick(traffic.rig.now)
        assert _told(traffic.rig.state) == _told(replayed)


def _told(state: BrokerState) -> dict[str, object]:
    """Return what is held, but for sessions that end with their connections: lanes pass the hold by for them."""
    hold = state.hold
    passing = {client.session for client in state.clients.values() if not client.is_persistent}
    return {
        "sessions": {
            session: (hold.subscriptions(session), hold.members(session), hold.pending_count(session))
            for session in hold.sessions()
            if session not in passing
        },
        "routes": len(state.routes),
        "subscribed": {session: sorted(map(str, found)) for session, found in state.subscribed_to.items() if found},
    }
