"""The first minute: filters matched one by one, and the change to the kernels under load, give the same deliveries."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

from broker_rig import NODE, Rig, publishing, subscribing
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import attributes, filters

from whimbrel.broker.state.broker_state import BrokerState
from whimbrel.broker.state.routes import Routes
from whimbrel.language.printer import print_filter
from whimbrel.match.matcher import Matcher
from whimbrel.model.attributes import Attributes
from whimbrel.model.subscription import Subscription

_SUBJECTS = ("ward/3/bed", "ward/4/bed", "lab")


def _subscription(number: int, subject_filter: str, text: str | None) -> Subscription:
    return Subscription(session=f"s{number}", subject_filter=subject_filter, filter_text=text)


def _found(routes: Routes, subject: str, rows: list[Attributes]) -> list[list[tuple[str, object]]]:
    handles = routes.by_content([subject] * len(rows), rows)
    return [list(routes.subscribers(subject, each)) for each in handles]


@settings(max_examples=40, deadline=None)
@given(
    texts=st.lists(filters().map(print_filter).filter(lambda text: "\0" not in text), min_size=1, max_size=24),
    removed=st.sets(st.integers(0, 23), max_size=6),
    rows=st.lists(attributes(), min_size=1, max_size=16),
    moment=st.integers(0, 24),
    data=st.data(),
)
def test_the_kernels_take_over_and_nobody_notices(
    texts: list[str], removed: set[int], rows: list[Attributes], moment: int, data: st.DataObject
) -> None:
    """A broker listens before its kernels are there; a delivery must not depend on when they came."""
    jobs: list[Callable[[], None]] = []
    plain, changing = Routes(), Routes(lambda: Matcher(run=jobs.append))
    for number, text in enumerate(texts):
        subscription = _subscription(number, data.draw(st.sampled_from(("ward/+/bed", "ward/3/#", "lab"))), text)
        for routes in (plain, changing):
            routes.put(subscription)
        if number == moment:
            changing._matcher.content.repack()  # the kernels come, and everything so far is packed
        if number in removed:
            for routes in (plain, changing):
                routes.remove(subscription.session, (subscription.subject_filter, subscription.name))
    for subject in _SUBJECTS:
        assert _found(changing, subject, rows) == _found(plain, subject, rows)
    changing._matcher.content.repack(whole=True)
    assert not changing.unpacked
    for subject in _SUBJECTS:
        assert _found(changing, subject, rows) == _found(plain, subject, rows)


_FILTERS = [f"pulse > {60 + number}" for number in range(20)] + [f"begins-with(bed, 'ICU-{n}')" for n in range(4)]


def _deliveries(folder: Path, routes: Routes, jobs: list[Callable[[], None]], at: int) -> dict[str, list[bytes]]:
    """Return what each client of a broker is sent; the packing that waits in *jobs* is done in the middle of it."""
    rig = Rig(folder, state=BrokerState(NODE, routes=routes))
    peers = {}
    for number, text in enumerate(_FILTERS):
        peer = peers[f"client-{number}"] = rig.client(f"client-{number}")
        peer.send(subscribing("bed/#", qos=number % 2, filter=text))
    publisher, rng = rig.client("publisher"), random.Random(5)
    rig.settle()
    routes.settle()
    routes.settle()  # nothing came since the first: what there is is worth a packing
    for number in range(60):
        body = json.dumps({"bed": f"ICU-{rng.randrange(6)}", "pulse": rng.randrange(50, 90), "n": number}).encode()
        publisher.send(publishing(f"bed/{number % 3}", body, number % 2, number % 2 * (number + 1)))
        if number == at:
            while jobs:
                jobs.pop()()
        if number % 7 == 0:  # some wait for the disk while the kernels come
            rig.settle()
    rig.settle()
    return {name: peer.payloads() for name, peer in peers.items()}


def test_a_broker_delivers_the_same_when_the_kernels_come_under_load(tmp_path: Path) -> None:
    """Each client gets the same messages in the same order as from a broker whose kernels never come."""
    jobs: list[Callable[[], None]] = []
    never = _deliveries(tmp_path / "plain", Routes(lambda: Matcher(run=jobs.append)), [], -1)
    jobs.clear()
    routes = Routes(lambda: Matcher(run=jobs.append))
    assert _deliveries(tmp_path / "changing", routes, jobs, 30) == never
    assert not routes.unpacked
    assert sum(map(len, never.values())) > 300
