"""Places: what the live broker sends is what the reference finds in its log, whatever moves between any two facts."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from broker_rig import NODE, SECOND_US, Rig, publishing, subscribing

from whimbrel.hold.private import private_session
from whimbrel.log.reader import read
from whimbrel.model.notification import Notification
from whimbrel.mqtt.packets import Publish
from whimbrel.mqtt.properties import Properties
from whimbrel.pipeline.single import SingleProcess

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


@pytest.mark.parametrize("seed", range(4))
def test_the_live_broker_hears_what_the_reference_finds(seed: int, tmp_path: Path) -> None:
    """Devices move, fall silent and share a session; near is modified; reports wait for the disk."""
    rng, rig = random.Random(seed), Rig(tmp_path)
    cars = [rig.client(f"car{number}", expiry_s=3_600) for number in range(_CARS)]
    assert cars[0].ask("create", session="family")["ok"]
    for car in cars[:2]:
        assert car.ask("join", session="family", receipt="keep")["ok"]
    light = rig.client("light")
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
