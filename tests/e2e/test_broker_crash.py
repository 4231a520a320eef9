"""A broker killed among its clients: nothing acknowledged is lost, QoS 2 comes once, and the log says the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from single_process import SingleProcess
from tests.e2e.broker_process import BrokerProcess
from tests.e2e.crash_checker import (
    Accepted,
    Acknowledged,
    Connected,
    Event,
    Key,
    Received,
    Released,
    Run,
    Sent,
    Subscribed,
    crash,
    is_admitted,
    violations,
)
from tests.e2e.raw_client import Clients, Kind, P, Packet, Properties, RawClient

from whimbrel.log.reader import read
from whimbrel.model.facts import Outcome
from whimbrel.model.notification import Notification
from whimbrel.node.publication import packet_id_of

KILLS, SEED = 3, 20_260_101


# -- a real broker -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[0.0, 0.02], ids=["fast disk", "slow disk"])
def crashed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Run]:
    """Return the folder of a broker that was killed three times and then stopped, and what its clients saw."""
    folder = tmp_path_factory.mktemp("crash")
    return folder, crash(folder, kills=KILLS, seed=SEED, fsync_s=request.param)


def test_kill_9_breaks_no_promise(crashed: tuple[Path, Run]) -> None:
    """What was acknowledged arrives, in order, in time, and at QoS 2 once, whatever moment the broker died."""
    _, run = crashed
    assert not run.violations, f"seed {run.seed}:\n" + "\n".join(run.violations)


def test_the_run_was_hard_enough(crashed: tuple[Path, Run]) -> None:
    """A run in which nothing was sent again, redelivered or released would prove nothing."""
    _, run = crashed
    numbers = run.summary()
    assert numbers["publications"] == numbers["acknowledged"] != numbers["sent"], f"seed {run.seed}: {numbers}"
    again = [each for each in run.history if isinstance(each, Received) and each.is_dup]
    assert {each.qos for each in again} == {1, 2}
    assert any(isinstance(each, Released) for each in run.history)


def test_the_log_tells_what_the_subscribers_acknowledged(crashed: tuple[Path, Run]) -> None:
    """Whoever folds the log later must come to the same deliveries as those who were there."""
    folder, run = crashed
    facts = list(read(folder / "data" / "log", "node-1"))
    bodies = {each.seq: each for each in facts if isinstance(each, Notification)}
    outcomes: dict[tuple[str, int, Key], Outcome] = {}
    for each in SingleProcess(assume_receipts=False).run(facts).deliveries:
        if each.device is not None:
            publisher, number = bodies[each.seq].body.decode().split()
            outcomes[each.device, packet_id_of(each.seq), (publisher, int(number))] = each.outcome
    delivered = {what for what, outcome in outcomes.items() if outcome is Outcome.DELIVERED}
    acknowledged = {
        (each.subscriber, each.packet_id, each.key) for each in run.history if isinstance(each, Acknowledged)
    }
    assert delivered <= acknowledged, f"seed {run.seed}: {sorted(delivered - acknowledged)[:5]}"
    # An acknowledgement may die with the broker; before it is asked for again, the notification may expire.
    unknown = {what for what in acknowledged - delivered if outcomes.get(what) is not Outcome.EXPIRED}
    assert not unknown, f"seed {run.seed}: {sorted(unknown)[:5]}"


def test_calamities_break_no_promise(tmp_path: Path) -> None:
    """Clocks that are set, pauses, full disks, cut logs and lost views, between kills."""
    run = crash(tmp_path, kills=KILLS, seed=SEED, has_calamities=True)
    assert not run.violations, f"seed {run.seed}:\n" + "\n".join(run.violations)
    assert run.calamities


# -- one promise each --------------------------------------------------------------------------------------------------

LASTING: Properties = ((P.SESSION_EXPIRY, 3_600),)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """Yield a broker whose view follows its log closely."""
    with BrokerProcess(tmp_path, settings={"log": {"view_interval_s": 0.1}}, is_forked=False) as process:
        yield process
    assert "Traceback" not in (told := "".join(process.lines)), told[-2_000:]


@pytest.fixture
def clients(broker: BrokerProcess) -> Iterator[Clients]:
    """Yield the test's clients."""
    with Clients(broker.port, "crash") as clients:
        yield clients


def back(clients: Clients) -> RawClient:
    """Return the subscriber, connected again."""
    return clients.connect("subscriber", clean=False, properties=LASTING)


def handed_over(clients: Clients, qos: int, properties: Properties = ()) -> tuple[RawClient, Packet]:
    """Return a subscriber with a lasting session, and the message that it was sent and has not acknowledged."""
    subscriber = back(clients)
    subscriber.subscribe((clients.topic("t"), qos))
    clients.connect("publisher").publish(clients.topic("t"), b"once", qos, properties=properties)
    return subscriber, subscriber.receive(Kind.PUBLISH)


def pause(client: RawClient, seconds: float) -> None:
    """Let time pass in which the broker has nothing to say to *client*."""
    client._socket.settimeout(seconds)
    with pytest.raises(TimeoutError):
        client.next_packet()


@pytest.mark.parametrize("qos", [1, 2])
def test_what_was_sent_before_a_crash_is_sent_again_with_dup(broker: BrokerProcess, clients: Clients, qos: int) -> None:
    """Whoever was killed cannot know that a message did not arrive, and must say so (MQTT-3.3.1-1)."""
    _, first = handed_over(clients, qos)
    broker.kill()
    broker.start()
    again = back(clients).receive(Kind.PUBLISH)
    assert (first.dup, again.dup) == (False, True)
    assert (again.packet_id, again.payload) == (first.packet_id, b"once")


def test_what_was_received_before_a_crash_is_released_after_it(broker: BrokerProcess, clients: Clients) -> None:
    """The receipt stands in the log and the hand-over in the view: both must be put together again (MQTT-4.3.3-5)."""
    subscriber, message = handed_over(clients, 2)
    pause(subscriber, 0.5)  # the view is written with the message on its way
    subscriber.answer(Kind.PUBREC, message.packet_id)
    assert subscriber.receive(Kind.PUBREL).packet_id == message.packet_id
    broker.kill()
    broker.start()
    assert back(clients).receive(Kind.PUBREL).packet_id == message.packet_id


def test_qos_2_that_was_sent_does_not_expire(clients: Clients) -> None:
    """The receiver keeps its packet identifier until PUBREL; only the exchange itself may end it (MQTT-4.3.3-7)."""
    subscriber, message = handed_over(clients, 2, ((P.MESSAGE_EXPIRY, 1),))
    pause(subscriber, 2.0)
    subscriber.drop()
    again = back(clients)
    repeated = again.receive(Kind.PUBLISH)
    assert (repeated.packet_id, repeated.dup) == (message.packet_id, True)
    again.answer(Kind.PUBREC, message.packet_id)
    assert again.receive(Kind.PUBREL).packet_id == message.packet_id


# -- the judge ---------------------------------------------------------------------------------------------------------

KEY: Key = ("p", 1)
NEXT: Key = ("p", 2)
SUBSCRIBED = Subscribed(at=0, subscriber="s", topic_filter="a/#", qos=2)
SENT = Sent(at=1, key=KEY, topic="a/b", qos=1)
SENT_NEXT = replace(SENT, key=NEXT)
ACCEPTED = Accepted(at=2, key=KEY)
RECEIVED = Received(at=3, subscriber="s", key=KEY, topic="a/b", qos=1, packet_id=7)
RECEIVED_NEXT = replace(RECEIVED, key=NEXT, packet_id=8)
AGAIN = replace(RECEIVED, at=4, is_dup=True)
SENT_2, RECEIVED_2, AGAIN_2 = (replace(each, qos=2) for each in (SENT, RECEIVED, AGAIN))
RELEASED = Released(at=3.5, subscriber="s", packet_id=7)
EXPIRING = replace(SENT, expiry_s=10)

ALLOWED: dict[str, list[Event]] = {
    "delivered": [SUBSCRIBED, SENT, ACCEPTED, RECEIVED],
    "not acknowledged": [SUBSCRIBED, SENT],
    "subscribed too late": [SENT, SUBSCRIBED, ACCEPTED],
    "another topic": [SUBSCRIBED, replace(SENT, topic="b"), ACCEPTED],
    "expired": [SUBSCRIBED, EXPIRING, ACCEPTED],
    "rounded": [SUBSCRIBED, EXPIRING, ACCEPTED, replace(RECEIVED, at=12.9)],
    "again, with DUP": [SUBSCRIBED, SENT, ACCEPTED, RECEIVED, AGAIN],
    "sent twice, accepted twice": [SUBSCRIBED, SENT, SENT, ACCEPTED, RECEIVED, RECEIVED],
    "the old again after the new": [SUBSCRIBED, SENT, SENT_NEXT, RECEIVED, RECEIVED_NEXT, AGAIN],
    "QoS 2, again before PUBREL": [SUBSCRIBED, SENT_2, ACCEPTED, RECEIVED_2, AGAIN_2, RELEASED],
    "QoS 2, released twice": [SUBSCRIBED, SENT_2, ACCEPTED, RECEIVED_2, RELEASED, RELEASED],
    "session kept": [Connected(at=0, client="s", is_resumed=False), Connected(at=1, client="s", is_resumed=True)],
}

FORBIDDEN: dict[str, list[Event]] = {
    "is lost": [SUBSCRIBED, SENT, ACCEPTED],
    "is lost (QoS 2": [SUBSCRIBED, SENT_2, ACCEPTED],
    "after its expiry": [SUBSCRIBED, EXPIRING, ACCEPTED, replace(RECEIVED, at=13.1)],
    "came after": [SUBSCRIBED, SENT, SENT_NEXT, RECEIVED_NEXT, RECEIVED],
    "times without DUP": [SUBSCRIBED, SENT, ACCEPTED, RECEIVED, RECEIVED],
    "without DUP, and was sent 1 times": [SUBSCRIBED, SENT_2, SENT_2, ACCEPTED, RECEIVED, RECEIVED],
    "given 2 times": [SUBSCRIBED, SENT_2, ACCEPTED, RECEIVED_2, RELEASED, AGAIN_2, RELEASED],
    "never released": [SUBSCRIBED, SENT_2, ACCEPTED, RECEIVED_2],
    "never sent": [SUBSCRIBED, RECEIVED],
    "never sent to a/b": [SUBSCRIBED, replace(SENT, topic="a/c"), RECEIVED],
    "not asked for": [replace(SUBSCRIBED, topic_filter="c"), SENT, RECEIVED],
    "session was lost": [Connected(at=0, client="s", is_resumed=False), Connected(at=1, client="s", is_resumed=False)],
}


@pytest.mark.parametrize("name", ALLOWED)
def test_the_judge_accuses_nobody_innocent(name: str) -> None:
    """A judge that cries wolf is switched off."""
    assert violations(ALLOWED[name], ended_at=100.0) == []


@pytest.mark.parametrize("name", FORBIDDEN)
def test_the_judge_sees_each_broken_promise(name: str) -> None:
    """A judge that cannot fail proves nothing."""
    found = violations(FORBIDDEN[name], ended_at=100.0)
    assert len(found) == 1
    assert name in found[0]


def test_what_may_still_come_is_not_excused_by_its_expiry() -> None:
    """An expiry in an hour is no reason to lose a notification today."""
    assert violations([SUBSCRIBED, EXPIRING, ACCEPTED], ended_at=10.9)
    assert not violations([SUBSCRIBED, EXPIRING, ACCEPTED], ended_at=11.0)


@pytest.mark.parametrize(
    ("topic_filter", "topic", "is_wanted"),
    [("a/b", "a/b", True), ("a/+", "a/b", True), ("a/#", "a", True), ("#", "a/b", True), ("+", "a/b", False)],
)
def test_the_judge_knows_topic_filters(topic_filter: str, topic: str, *, is_wanted: bool) -> None:
    """Who wanted what decides what may be missed."""
    assert is_admitted(topic_filter, topic) is is_wanted
