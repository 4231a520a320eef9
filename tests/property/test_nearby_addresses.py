"""Multicast addresses: a member listens where its producer sends, and a producer where its members send."""

from __future__ import annotations

import ipaddress
from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st

from whimbrel.model.place import Area, Place, Plane, Point
from whimbrel.nearby.cells import Cell
from whimbrel.nearby.datagrams import MAX_DATAGRAMS, datagrams_of, travel_us
from whimbrel.nearby.deployment import Deployment
from whimbrel.nearby.frames.values import Event, Request
from whimbrel.nearby.transport.multicast import (
    addresses_for,
    addresses_of,
    deployment_address,
    group_address,
    node_address,
)

TOWN = Deployment()
EVENT = Event(
    origin="light",
    seq=1,
    sender="light",
    hops=0,
    max_hops=1,
    subject="light",
    area=Area(Place(0, 0), 1),
    place=Place(0, 0),
    epoch=0,
    number=1,
    deadline_us=1,
    remaining_us=1,
    attributes={},
)
centres = st.builds(Place, st.floats(-85, 85), st.floats(-180, 180))
offsets = st.floats(-5_000, 5_000)


@given(centres, st.floats(0, 5_000), offsets, offsets)
def test_who_is_inside_listens_where_the_frame_goes(centre: Place, radius_m: float, east: float, north: float) -> None:
    """Whatever the size of the area: the consumer does not know it before it hears the beacon."""
    area = Area(centre, radius_m)
    place = Plane(centre).place(Point(east, north))
    assume(area.contains(place))
    frame = replace(EVENT, area=area)
    sent = set(addresses_of(frame, deployment=TOWN))
    consumer = addresses_for("car", place, subjects=["light"], announced=[], is_relay=False, deployment=TOWN)
    relay = addresses_for("relay", place, subjects=[], announced=[], is_relay=True, deployment=TOWN)
    producer = addresses_for("light", None, subjects=[], announced=[("light", area)], is_relay=False, deployment=TOWN)
    assert len(sent & consumer) == 1
    assert not sent & relay
    assert len(set(addresses_of(replace(frame, hops=1), deployment=TOWN)) & relay) == 1
    assert producer == sent | {node_address("light")}
    request = Request(sender="car", to="relay", area=area, producer="light", subject="light", epoch=0, numbers=(1,))
    assert set(addresses_of(request, deployment=TOWN)) == {node_address("relay")} <= relay
    assert len(consumer) <= 9  # its cell of each level, the one that has none, and its own


@given(centres | st.builds(Place, st.floats(-90, 90), st.floats(-180, 180)), st.floats(0, 5_000), st.integers(0, 1))
def test_a_frame_is_as_many_datagrams_as_are_counted_and_at_most_eight(
    centre: Place, radius_m: float, hops: int
) -> None:
    """Anywhere on Earth, at every radius; one beacon in five is one more."""
    frame = replace(EVENT, area=Area(centre, radius_m), hops=hops)
    count = datagrams_of(frame, deployment=TOWN)
    assert len(addresses_of(frame, deployment=TOWN)) == count
    assert count <= MAX_DATAGRAMS - 1
    assert travel_us(frame, deployment=TOWN) == count * TOWN.airtime_us


@given(centres, st.integers(50, 100_000))
def test_a_producer_with_other_cells_is_heard_where_there_are_none(centre: Place, cell_m: int) -> None:
    """Else nobody would notice that two deployments differ: their addresses hardly ever coincide."""
    other = Deployment(cell_m=cell_m)
    for deployment in (TOWN, other):
        heard = addresses_for("car", centre, subjects=["light"], announced=[], is_relay=False, deployment=deployment)
        assert deployment_address("light") in heard
        assert deployment_address("sign") not in heard


def test_an_address_is_transient_link_local_multicast() -> None:
    """It must not leave the link, and belongs to no one else (RFC 4291)."""
    address = ipaddress.IPv6Address(group_address("traffic light", Cell(0, 1, 2)))
    assert address.is_multicast
    assert address.packed[1] == 0x12
    assert str(address) != group_address("traffic light", Cell(0, 1, 3))
