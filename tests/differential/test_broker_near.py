"""Places: what the live broker sends is what the reference finds in its log, whatever moves between any two facts.

The broker asks the hold about one subscription after the other, or a grid; or the grid comes to be asked on the way.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from broker_rig import NODE, SECOND_US, Rig, publishing, subscribing
from single_process import SingleProcess

from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.broker.state.places import near_routes
from whimbrel.broker.state.places.near_routes import NearRoutes
from whimbrel.broker.state.routes import Routes
from whimbrel.hold.private import private_session
from whimbrel.log.reader import read
from whimbrel.match.matcher import Matcher
from whimbrel.model.notification import Notification
from whimbrel.mqtt.packets import Publish, Unsubscribe
from whimbrel.mqtt.properties import Properties

_STEPS, _CARS = 250, 5
_NEARS = ("", "300", "900", "52.5,13.4,400", "52.5,13.4;52.5,13.41;52.51,13.41;52.51,13.4")


def _spot(rng: random.Random) -> str:
    return f"{52.5 + rng.randrange(8) / 500:.4f},{13.4 + rng.randrange(8) / 500:.4f}"


def _published(rng: random.Random, number: int) -> Publish:
    topic, said = rng.choice(["hazard/ice", "hazard/fog", "taxi"]), []
    if rng.random() < 0.8:
        said.append(("place", _spot(rng)))
        if rng.random() < 0.6:
            said.append(("radius", str(rng.choice([0, 250, 600, 5_000]))))
    body, qos = json.dumps({"n": number, "depth": rng.randrange(3)}).encode(), rng.randrange(2)
    return Publish(topic, body, qos, packet_id=qos * (number + 1), properties=Properties(user=tuple(said)))


@pytest.mark.parametrize("grid_from", [None, 0, _STEPS // 3], ids=["one by one", "grid", "grid on the way"])
@pytest.mark.parametrize("seed", range(4))
def test_the_live_broker_hears_what_the_reference_finds(
    seed: int, grid_from: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Devices move, fall silent, share a session, leave it; near is modified; reports wait for the disk."""
    monkeypatch.setattr(near_routes, "_PIECE", 1)
    step, rng = 0, random.Random(seed)
    near = NearRoutes(Matcher, lambda: grid_from is not None and step >= grid_from, few=0)
    rig = Rig(tmp_path, state=BrokerState(NODE, routes=Routes(near=near)))
    cars = [rig.client(f"car{number}", expiry_s=3_600) for number in range(_CARS)]
    assert cars[0].ask("create", session="family")["ok"]
    for car in cars[:2]:
        assert car.ask("join", session="family", receipt="keep")["ok"]
    light, tag = rig.client("light"), rig.client("tag")
    heard: list[set[bytes]] = [set() for _ in cars]
    for step in range(_STEPS):
        at = rng.randrange(_CARS)
        car, what = cars[at], rng.random()
        if what < 0.1:
            options = {"near": rng.choice(_NEARS), "filter": rng.choice(["", "depth > 0"]), "session": ""}
            options["stale"] = rng.choice(["", "30", "600"])
            if at < 2 and rng.random() < 0.5:
                options["session"] = "family"
            user = tuple((name, value) for name, value in options.items() if value or name == "session")
            wanted = subscribing(rng.choice(["hazard/#", "#"]), qos=1, packet_id=1)
            car.send(wanted._replace(properties=Properties(user=user)))
        elif what < 0.14:  # the family is where its tag is, too, while it has it
            tag.ask(rng.choice(["leave", "join", "join"]), session="family", receipt="keep")
        elif what < 0.2:
            tag.send(publishing("$whimbrel/report", json.dumps({"place": _spot(rng)}).encode()))
        elif what < 0.22:
            car.send(Unsubscribe(3, (rng.choice(["hazard/#", "#"]),)))
        elif what < 0.5:
            qos = rng.randrange(2)
            body = json.dumps({"place": _spot(rng)}).encode()
            car.send(publishing("$whimbrel/report", body, qos, 2 * qos))
        elif what < 0.95:
            light.send(_published(rng, step))
        else:
            rig.now += rng.randrange(1, 60) * SECOND_US
        if rng.random() < 0.5:
            rig.settle()
    rig.settle()
    rig.log.sync()
    assert (near.grid is not None) is (grid_from is not None)
    for car, own in zip(cars, heard, strict=True):
        own |= {each.payload for each in car.taken(Publish) if not each.topic.startswith("$")}
    facts = list(read(tmp_path, NODE))
    bodies = {fact.seq: fact.body for fact in facts if isinstance(fact, Notification)}
    single = SingleProcess(assume_receipts=False).run(facts)
    wanted_by: dict[str, set[bytes]] = {}
    for match in single.matches:
        wanted_by.setdefault(match.session, set()).add(bodies[match.seq])
    for number, own in enumerate(heard):
        shared = wanted_by.get("family", set()) if number < 2 else set()
        assert own == wanted_by.get(private_session(f"car{number}"), set()) | shared
