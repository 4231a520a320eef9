"""Datagrams: what a frame costs on a link is counted, and has a bound at every radius."""

from __future__ import annotations

import pytest
from tests.unit.nearby_rig import SECOND
from tests.unit.test_nearby_signed import AMBULANCE, Station, announce, publish, run, station

from whimbrel.nearby.frames.values import Join, Request
from whimbrel.nearby.frames.wire import decode
from whimbrel.nearby.transport.daemon import monotonic_us

MOST = 9
"""Four cells for the subject, four for relays, and one beacon in five for those with other cells."""


def _sent(who: Station) -> list[int]:
    """Return how many datagrams each frame was that *who* sent."""
    return who.tape.each


@pytest.mark.parametrize("radius_m", [1.0, 200.0, 600.0, 1_500.0, 4_000.0, 5_000.0])
def test_a_frame_is_at_most_nine_datagrams_at_every_radius(radius_m: float) -> None:
    """A beacon of 4,000 m was 73 datagrams, through the daemon's own door."""

    def play() -> None:
        for x_m in range(0, 1_000, 125):
            light, car = station("ambulance", x_m), station("car", x_m)
            car.node.subscribe(AMBULANCE)
            announce(light, radius_m=radius_m, hops=2)
            light.daemon.perform(light.node.timer(now=monotonic_us() + SECOND))
            car.daemon.receive(light.tape.sent[0])
            car.daemon.perform(car.node.timer(now=monotonic_us() + 20_000))
            (join,) = (data for data in car.tape.sent if isinstance(decode(data), Join))
            light.daemon.receive(join)
            publish(light)
            assert len(light.tape.sent) == 3
            assert max(_sent(light) + _sent(car)) <= MOST

    run(play)


def test_a_request_is_one_datagram() -> None:
    """It is for one neighbour, whose own address it goes to."""

    def play() -> None:
        light, car = station("ambulance"), station("car", 10)
        car.node.subscribe(AMBULANCE)
        announce(light, radius_m=4_000.0, hops=2, deadline_us=10 * SECOND)
        car.daemon.receive(light.tape.sent[0])
        car.daemon.perform(car.node.timer(now=monotonic_us() + 20_000))
        light.daemon.receive(car.tape.sent[-1])
        for siren in (1, 2):
            publish(light, siren)
        car.daemon.receive(light.tape.sent[-1])
        car.daemon.perform(car.node.timer(now=monotonic_us() + 200_000))
        sent = dict(zip(car.tape.sent, car.tape.each, strict=True))
        (asked,) = (count for data, count in sent.items() if isinstance(decode(data), Request))
        assert asked == 1

    run(play)
