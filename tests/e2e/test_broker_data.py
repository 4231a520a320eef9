"""The data directory of a broker: who may read it, what time it keeps, and what happens when a part is missing."""

from __future__ import annotations

import json
import resource
import shutil
import stat
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.broker_process import BrokerProcess, Settings
from tests.e2e.raw_client import Clients, Kind, P, Properties, RawClient, publish_packet
from tests.e2e.stepped_clock import SteppedClock

from whimbrel.hold.store.sqlite import SqliteStore
from whimbrel.log import layout
from whimbrel.log.reader import read
from whimbrel.model.notification import Notification

NODE = "node-1"
SETTINGS: Settings = {"log": {"segment_bytes": 65_536, "view_interval_s": 0.1}}
LASTING: Properties = ((P.SESSION_EXPIRY, 3_600),)
DAY_S = 86_400
PATIENCE_S = 30.0


@pytest.fixture
def clock(tmp_path: Path) -> Iterator[SteppedClock]:
    """Yield the clocks of the broker."""
    clock = SteppedClock(tmp_path / "clock")
    yield clock
    clock.close()


@pytest.fixture
def broker(tmp_path: Path, clock: SteppedClock) -> Iterator[BrokerProcess]:
    """Yield a broker with short segments, whose view follows its log closely."""
    with BrokerProcess(tmp_path, settings=SETTINGS, clock=clock) as process:
        yield process
    assert "Traceback" not in (told := "".join(process.lines)), told[-2_000:]


@pytest.fixture
def clients(broker: BrokerProcess) -> Iterator[Clients]:
    """Yield the test's clients."""
    with Clients(broker.port, "data") as clients:
        yield clients


def back(clients: Clients, expiry_s: int = 3_600) -> RawClient:
    """Return the subscriber, connected again."""
    return clients.connect("subscriber", clean=False, properties=((P.SESSION_EXPIRY, expiry_s),))


def pinged(client: RawClient, seconds: float) -> None:
    """Let time pass in which a client does nothing but ping."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        client.send(b"\xc0\x00")
        assert client.next_packet().kind is Kind.PINGRESP  # on a busy machine it takes its time
        client._socket.settimeout(0.2)
        with pytest.raises(TimeoutError):
            client.next_packet()
        client._socket.settimeout(PATIENCE_S)


# -- who may read it ---------------------------------------------------------------------------------------------------


def loose(folder: Path) -> list[str]:
    """Return what others than its owner may do anything with."""
    found = [folder, *folder.rglob("*")]
    return [f"{each}: {each.stat().st_mode:o}" for each in found if stat.S_IMODE(each.stat().st_mode) & 0o077]


def test_nobody_else_may_read_what_a_broker_keeps(broker: BrokerProcess, clients: Clients) -> None:
    """Bodies, client identifiers and password hashes are there: not for every user of the machine."""
    back(clients).subscribe((clients.topic("t"), 1))
    clients.connect("publisher").publish(clients.topic("t"), b"secret", 1)
    assert {each.suffix for each in broker.data.rglob("*")} >= {".seg", ".sqlite", ".sqlite-wal", ".sqlite-shm"}
    assert not loose(broker.data)


def test_what_was_open_to_others_is_closed_at_the_next_start(broker: BrokerProcess) -> None:
    """A folder that an older version made stays as it was until somebody tightens it."""
    broker.kill()
    for each in [broker.data, *broker.data.rglob("*")]:
        each.chmod(0o755 if each.is_dir() else 0o644)
    broker.start()
    assert not loose(broker.data)


# -- time --------------------------------------------------------------------------------------------------------------


def test_a_session_outlives_the_kill_of_an_idle_broker(
    broker: BrokerProcess, clients: Clients, clock: SteppedClock
) -> None:
    """A client that only pings leaves no record; its session must not be dated by the last one there is."""
    subscriber = back(clients, expiry_s=60)
    subscriber.subscribe((clients.topic("t"), 1))
    clients.connect("publisher").publish(clients.topic("t"), b"unacknowledged", 1)
    assert subscriber.receive(Kind.PUBLISH).payload == b"unacknowledged"
    clock.step(wall_s=100, monotonic_s=100)
    pinged(subscriber, 3)
    broker.kill()
    broker.start()
    pinged(clients.connect("witness"), 0.5)  # what is over is over by now
    again = back(clients, expiry_s=60)
    assert again.connack.session_present
    assert again.receive(Kind.PUBLISH).payload == b"unacknowledged"


def test_time_that_a_broker_was_down_counts(broker: BrokerProcess, clients: Clients, clock: SteppedClock) -> None:
    """A session lives when in doubt, and no longer: an hour of downtime ends one of a minute."""
    back(clients, expiry_s=60)
    broker.kill()
    clock.step(wall_s=3_600, monotonic_s=3_600)
    broker.start()
    assert not back(clients, expiry_s=60).connack.session_present


def test_a_clock_that_was_set_while_the_broker_was_down_ends_no_session(
    broker: BrokerProcess, clients: Clients, clock: SteppedClock
) -> None:
    """The machine ran on, and knows how long it was."""
    back(clients, expiry_s=60)
    broker.kill()
    clock.step(wall_s=3 * DAY_S)
    broker.start()
    assert back(clients, expiry_s=60).connack.session_present


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_record_of_days_ahead_does_not_stop_time(
    broker: BrokerProcess, clients: Clients, clock: SteppedClock, *, is_restarted: bool
) -> None:
    """The clock was wrong and is right again: what expires still does, in the time that it was given."""
    broker.kill()
    clock.step(wall_s=3 * DAY_S)
    (broker.data / f"heartbeat-{NODE}").unlink()  # as if the machine had started with that clock
    broker.start()
    subscriber = back(clients)
    subscriber.subscribe((clients.topic("t"), 1))
    subscriber.drop()
    clock.step(wall_s=-3 * DAY_S)
    if is_restarted:
        broker.kill()
        broker.start()
    publisher = clients.connect("publisher")
    publisher.publish(clients.topic("t"), b"short", 1, properties=((P.MESSAGE_EXPIRY, 1),))
    publisher.publish(clients.topic("t"), b"long", 1)
    pinged(publisher, 2)
    assert back(clients).receive(Kind.PUBLISH).payload == b"long"
    assert any("ahead of" in line for line in broker.lines)


def test_a_clock_that_is_wrong_for_a_moment_does_not_get_into_the_log(
    broker: BrokerProcess, clients: Clients, clock: SteppedClock
) -> None:
    """One record of next week would stay ahead of everybody's clock for a week."""
    publisher = clients.connect("publisher")
    clock.step(wall_s=7 * DAY_S)
    pinged(publisher, 1)
    publisher.publish(clients.topic("t"), b"meanwhile", 1)
    clock.step(wall_s=-7 * DAY_S)
    pinged(publisher, 1)
    broker.stop()
    times = [each.published_at for each in read(broker.data / "log", NODE) if isinstance(each, Notification)]
    assert 0 < max(times) < (time.time() + DAY_S) * 1e6
    assert any("jumped" in line for line in broker.lines)
    broker.start()


# -- what is missing ---------------------------------------------------------------------------------------------------


def filled(clients: Clients, broker: BrokerProcess, *, segments: int = 3) -> RawClient:
    """Let a session subscribe and hold one message; then write until the log has several segments."""
    subscriber = back(clients)
    subscriber.subscribe((clients.topic("t"), 1))
    subscriber.disconnect()
    publisher = clients.connect("publisher")
    publisher.publish(clients.topic("t"), b"kept", 1)
    while len(layout.segments(broker.data / "log", NODE)) < segments:
        publisher.publish(clients.topic("retained"), bytes(20_000), 1, retain=True)
    return publisher


def view(broker: BrokerProcess) -> Path:
    """Return where the view is."""
    return broker.data / f"view-{NODE}.sqlite"


def cut(broker: BrokerProcess) -> int:
    """Remove the oldest segments and the checkpoints, as only a stranger does; return where the log begins then."""
    found = layout.segments(broker.data / "log", NODE)
    for _, path in found[:-1] + layout.checkpoints(broker.data / "log", NODE):
        path.unlink()
    return found[-1][0]


def refusal(broker: BrokerProcess) -> str:
    """Return why a broker does not start."""
    with pytest.raises(AssertionError) as refused:
        broker.start()
    return str(refused.value).splitlines()[-1]


def kept(broker: BrokerProcess) -> set[Path]:
    """Return the views that there are, in use or set aside."""
    return {each for each in broker.data.glob("view-*") if not each.name.endswith(("-wal", "-shm"))}


def test_a_cut_log_needs_its_view(broker: BrokerProcess, clients: Clients) -> None:
    """The view is the only copy of what is older: a broker that starts without it would have forgotten everybody."""
    filled(clients, broker)
    broker.stop()
    begin = cut(broker)
    broker.start()
    assert back(clients).receive(Kind.PUBLISH).payload == b"kept"
    broker.kill()
    for suffix in ("", "-wal", "-shm"):
        Path(f"{view(broker)}{suffix}").unlink(missing_ok=True)
    told = refusal(broker)
    assert f"1 to {begin - 1}" in told
    assert "--accept-loss" in told
    broker.start("--accept-loss")
    assert not back(clients).connack.session_present


def test_a_damaged_view_of_a_cut_log_is_kept_and_not_replaced(broker: BrokerProcess, clients: Clients) -> None:
    """It may be the only copy there is: whoever repairs it must find it."""
    filled(clients, broker)
    broker.stop()
    begin = cut(broker)
    damaged = view(broker).read_bytes()[:4_096] + bytes(8_192)
    view(broker).write_bytes(damaged)
    told = refusal(broker)
    assert f"1 to {begin - 1}" in told
    assert "--accept-loss" in told
    assert view(broker).read_bytes() == damaged
    broker.start("--accept-loss")
    assert damaged in {each.read_bytes() for each in kept(broker)}
    assert not loose(broker.data)


def test_a_damaged_view_of_a_whole_log_is_made_again(broker: BrokerProcess, clients: Clients) -> None:
    """Nothing is missing then; still the damaged file is set aside, not removed."""
    filled(clients, broker)
    broker.stop()
    view(broker).write_bytes(b"no database" * 1_000)
    broker.start()
    assert len(kept(broker)) == 2
    assert back(clients).receive(Kind.PUBLISH).payload == b"kept"


def test_a_view_that_is_behind_a_cut_log_is_refused(broker: BrokerProcess, clients: Clients) -> None:
    """An old copy of the view and a log that was cut meanwhile have a gap between them."""
    back(clients).disconnect()
    broker.stop()
    old = view(broker).read_bytes()
    broker.start()
    filled(clients, broker)
    broker.stop()
    view(broker).write_bytes(old)
    begin = cut(broker)
    told = refusal(broker)
    assert f" to {begin - 1}" in told
    assert "--accept-loss" in told
    assert view(broker).read_bytes() == old
    broker.start("--accept-loss")
    broker.restart()


def test_a_log_shorter_than_its_view_is_refused(broker: BrokerProcess, clients: Clients) -> None:
    """Durable records are missing: their numbers were given to somebody, and must not be given to anybody else."""
    filled(clients, broker)
    broker.stop()
    store = SqliteStore(view(broker))
    last = store.applied
    store.close()
    found = layout.segments(broker.data / "log", NODE)
    found[-1][1].unlink()
    told = refusal(broker)
    assert f"{found[-1][0]} to {last}" in told
    assert "--accept-loss" in told
    broker.start("--accept-loss")
    assert back(clients).receive(Kind.PUBLISH).payload == b"kept"  # the view knows it still
    broker.restart()  # and from now on nothing is missing
    assert layout.segments(broker.data / "log", NODE)[0][0] == last + 1


def test_numbers_that_were_exported_are_not_given_again(broker: BrokerProcess, clients: Clients) -> None:
    """Parquet has facts under them: others under the same numbers would be seen beside those, or never."""
    filled(clients, broker)
    broker.stop()
    exported = broker.data / "log" / "segments" / NODE / "exported.json"
    exported.write_text(json.dumps({"seq": 100_000}), encoding="utf-8")
    told = refusal(broker)
    assert "100000" in told
    assert "--accept-loss" in told
    broker.start("--accept-loss")
    assert back(clients).receive(Kind.PUBLISH).payload == b"kept"
    broker.kill()
    assert layout.segments(broker.data / "log", NODE)[0][0] == 100_001
    broker.start()


def test_damage_that_the_view_proves_durable_is_not_cut(broker: BrokerProcess, clients: Clients) -> None:
    """No mark stands behind the last group of a killed broker; the view says all the same that it was there."""
    filled(clients, broker)
    pinged(clients.connect("witness"), 1)  # the view is written
    broker.kill()
    path = layout.segments(broker.data / "log", NODE)[-1][1]
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    shorter = path.read_bytes()
    assert "--accept-loss" in refusal(broker)
    assert path.read_bytes() == shorter
    path.write_bytes(whole)
    broker.start()


def test_a_view_goes_on_after_a_full_disk(broker: BrokerProcess, clients: Clients) -> None:
    """Nobody restarts a broker for it, and without a view each restart would replay more than the last."""
    publisher = filled(clients, broker)
    _, hard = resource.prlimit(broker.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (80_000, hard))  # a segment has room, the view has not
    until = time.monotonic() + PATIENCE_S
    number = 0
    while not any("view cannot be written" in line for line in broker.lines) and time.monotonic() < until:
        number += 1
        publisher.send(publish_packet(clients.topic(f"r/{number}"), bytes(9_000), qos=1, packet_id=7, retain=True))
        publisher.receive(Kind.PUBACK)
    resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (hard, hard))
    while not any("view follows the log again" in line for line in broker.lines) and time.monotonic() < until:
        pinged(publisher, 0.2)
    broker.kill()
    copy = broker.data.parent / "copy"
    shutil.copytree(broker.data, copy, ignore=shutil.ignore_patterns("control"))  # a socket
    broker.start()
    (told,) = [line for line in broker.lines[-6:] if "log opened" in line]
    assert "replayed=0" in told or int(told.split("replayed=")[1].split()[0]) < 50
    assert back(clients).receive(Kind.PUBLISH).payload == b"kept"


def test_a_bounded_log_is_cut_and_needs_no_view(tmp_path: Path) -> None:
    """The broker cuts by itself, and what a session holds is in the checkpoints: the view is only a view."""
    settings = {"log": {**SETTINGS["log"], "retain_bytes": 300_000}}
    with BrokerProcess(tmp_path, "--http-port", "0", settings=settings) as broker, Clients(broker.port, "cut") as own:
        publisher = filled(own, broker)
        log = broker.data / "log"
        until = time.monotonic() + PATIENCE_S
        while layout.segments(log, NODE)[0][0] == 1 and time.monotonic() < until:
            publisher.publish(own.topic("retained"), bytes(20_000), 1, retain=True)
        begin = layout.segments(log, NODE)[0][0]
        assert begin > 1
        with urllib.request.urlopen(f"http://127.0.0.1:{broker.ports['http']}/metrics") as answer:
            told = answer.read().decode()
        assert "whimbrel_log_oldest_seq" in told
        assert "whimbrel_log_cut_bytes_total" in told
        broker.kill()
        for path in kept(broker):
            path.unlink()
        broker.start()
        assert back(own).receive(Kind.PUBLISH).payload == b"kept"
        assert any("began with a checkpoint" in line for line in broker.lines)


def test_a_renamed_node_is_refused(broker: BrokerProcess) -> None:
    """An empty start under a new name would look as if everybody had been forgotten."""
    broker.stop()
    with pytest.raises(AssertionError) as refused:
        broker.start("--node", "node-2")
    assert "node.name: found 'node-2', allowed is 'node-1'" in str(refused.value)
    assert not (broker.data / "log" / "segments" / "node-2").exists()
    broker.start()
