"""Wills and a broker that is killed: who does not come back is announced, once, and nobody else is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.e2e.broker_process import BrokerProcess, Settings
from tests.e2e.raw_client import Clients, Kind, P, Properties, RawClient, Will

from whimbrel.log.reader import read
from whimbrel.model.facts import WillChanged
from whimbrel.model.notification import Notification

GRACE_S = 2
SETTINGS: Settings = {"log": {"view_interval_s": 0.1}, "mqtt": {"will_grace_s": GRACE_S}}
LASTING: Properties = ((P.SESSION_EXPIRY, 3_600),)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """Yield a broker that waits two seconds for its clients after a restart."""
    with BrokerProcess(tmp_path, settings=SETTINGS) as process:
        yield process
    assert "Traceback" not in (told := "".join(process.lines)), told[-2_000:]


@pytest.fixture
def clients(broker: BrokerProcess) -> Iterator[Clients]:
    """Yield the test's clients."""
    with Clients(broker.port, "wills") as clients:
        yield clients


def watching(clients: Clients) -> RawClient:
    """Return a client that learns of everybody who is lost, also if it is away."""
    watcher = clients.connect("watcher", clean=False, properties=LASTING)
    watcher.subscribe((clients.topic("lost/#"), 1))
    return watcher


def leaving(clients: Clients, name: str, qos: int = 1, properties: Properties = ()) -> RawClient:
    """Return a client that leaves a will."""
    will = Will(topic=clients.topic(f"lost/{name}"), payload=name.encode(), qos=qos, properties=properties)
    return clients.connect(name, will=will, properties=LASTING if properties else ())


def told(watcher: RawClient, seconds: float) -> list[bytes]:
    """Return what is said to the watcher in so many seconds; it acknowledges all of it."""
    found: list[bytes] = []
    watcher._socket.settimeout(seconds)
    while True:
        try:
            message = watcher.receive(Kind.PUBLISH)
        except (TimeoutError, AssertionError):
            return found
        found.append(message.payload)
        watcher.answer(Kind.PUBACK, message.packet_id)


def test_wills_survive_a_kill(broker: BrokerProcess, clients: Clients) -> None:
    """Of four clients one says goodbye, one comes back, one never does; and one will is delayed."""
    watching(clients)
    leaving(clients, "polite").disconnect()
    leaving(clients, "back")
    leaving(clients, "gone")
    leaving(clients, "delayed", properties=((P.WILL_DELAY, 1),))
    clients.connect("witness").ping()  # what was said before it has been read
    broker.kill()
    broker.start()
    watcher = watching(clients)
    again = leaving(clients, "back")
    assert sorted(told(watcher, GRACE_S + 3)) == [b"delayed", b"gone"]
    again.ping()
    broker.kill()
    broker.start()
    leaving(clients, "back")
    assert told(watching(clients), GRACE_S + 3) == []


@pytest.mark.parametrize("qos", [0, 1])
def test_a_will_is_published_once_though_the_broker_dies_meanwhile(
    broker: BrokerProcess, clients: Clients, qos: int
) -> None:
    """Killed at random moments around the time it is due, again and again."""
    watching(clients)
    for number in range(3):
        leaving(clients, f"lost-{number}", qos)
    for number in range(4):
        broker.kill()
        broker.start()
        watcher = watching(clients)
        watcher._socket.settimeout(GRACE_S - 0.3 + 0.2 * number)
        with suppress(TimeoutError):
            while watcher.next_packet():  # and says nothing to it
                pass
    broker.stop()
    facts = list(read(broker.data / "log", "node-1"))
    published = [each.will_seq for each in facts if isinstance(each, Notification)]
    left = {each.seq for each in facts if isinstance(each, WillChanged)}
    assert len(published) == len(set(published))
    assert set(published) <= left
    broker.start()
    told(watching(clients), GRACE_S + 3)
    facts = list(read(broker.data / "log", "node-1"))
    assert sorted(each.body for each in facts if isinstance(each, Notification)) == [b"lost-0", b"lost-1", b"lost-2"]
