"""The client and its two commands against a real broker: a process of its own, on any free port, killed at times."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.broker_process import BrokerProcess

from whimbrel.client import (
    Backoff,
    CannotConnectError,
    Client,
    ClientClosedError,
    ConnectRefusedError,
    DismissedError,
    Message,
    PublishRefusedError,
    ReasonCode,
    SubscriptionRefusedError,
    Will,
)

VERSIONS = pytest.mark.parametrize("version", [4, 5], ids=["3.1.1", "5"])
SOON = Backoff(first_s=0.05, most_s=0.2)
_PATIENCE_S = 60


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """Yield a broker that a test may kill."""
    with BrokerProcess(tmp_path) as broker:
        yield broker
    assert "Traceback" not in (said := "".join(broker.lines)), said


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Yield a broker that tests share; each has topics of its own."""
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as broker:
        yield broker
    assert "Traceback" not in (said := "".join(broker.lines)), said


def _run(work: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(_PATIENCE_S):  # nothing here waits so long; a hang is a failure, not a pause
            await work

    asyncio.run(bounded())


async def _take(client: Client, count: int) -> list[Message]:
    return [await anext(client.messages()) for _ in range(count)]


@asynccontextmanager
async def _two(broker: BrokerProcess, **options: Any) -> AsyncIterator[tuple[Client, Client]]:
    async with Client("127.0.0.1", broker.port, **options) as one, Client("127.0.0.1", broker.port, **options) as other:
        yield one, other


# -- publishing and subscribing --------------------------------------------------------------------------------------


@VERSIONS
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_arrives_as_it_was_sent(broker: BrokerProcess, version: int, qos: int) -> None:
    """The first thing anybody tries, at every quality and in both versions."""

    async def work() -> None:
        async with _two(broker, version=version) as (sender, receiver):
            assert await receiver.subscribe(f"plain/{version}/{qos}", qos) == qos
            assert await sender.publish(f"plain/{version}/{qos}", b"\x00body", qos=qos) is ReasonCode.SUCCESS
            [message] = await _take(receiver, 1)
            assert (message.topic, message.payload, message.qos) == (f"plain/{version}/{qos}", b"\x00body", qos)

    _run(work())


def test_properties_arrive_too(broker: BrokerProcess) -> None:
    """What version 5 has beside topic and payload."""

    async def work() -> None:
        async with _two(broker) as (sender, receiver):
            await receiver.subscribe("properties")
            await sender.publish(
                "properties", "größer", qos=1, expiry_s=60, content_type="text/plain", user=[("a", "1"), ("a", "2")]
            )
            [message] = await _take(receiver, 1)
            assert (message.text, message.user) == ("größer", (("a", "1"), ("a", "2")))

    _run(work())


@VERSIONS
def test_a_content_filter_selects(broker: BrokerProcess, version: int) -> None:
    """What Whimbrel is for: only what is wanted comes."""

    async def work() -> None:
        async with _two(broker, version=version) as (sender, receiver):
            await receiver.subscribe(f"beds/{version}/#", filter="temperature > 38.5")
            for temperature in (37.0, 39.5, 38.0, 40.0):
                await sender.publish(f"beds/{version}/4", {"temperature": temperature}, qos=1)
            found = [json.loads(message.payload)["temperature"] for message in await _take(receiver, 2)]
            assert found == [39.5, 40.0]
            await receiver.unsubscribe(f"beds/{version}/#", filter="temperature > 38.5")
            code = await sender.publish(f"beds/{version}/4", {"temperature": 41.0}, qos=1)
            assert code is (ReasonCode.NO_MATCHING_SUBSCRIBERS if version == 5 else ReasonCode.SUCCESS)

    _run(work())


def test_many_at_a_time_keep_their_order(broker: BrokerProcess) -> None:
    """More than the broker's receive maximum are published at once; nobody is thrown out, nothing is out of order."""

    async def work() -> None:
        async with _two(broker) as (sender, receiver):
            await receiver.subscribe("many", 2)
            await asyncio.gather(*(sender.publish("many", str(i), qos=2) for i in range(300)))
            assert [message.text for message in await _take(receiver, 300)] == [str(i) for i in range(300)]

    _run(work())


@VERSIONS
def test_a_full_queue_stops_reading_and_loses_nothing(broker: BrokerProcess, version: int) -> None:
    """A slow application, which even publishes while it handles a message, neither drowns nor waits for ever."""

    async def work() -> None:
        async with _two(broker, version=version, queue_messages=2) as (sender, receiver):
            await receiver.subscribe(f"flood/{version}", 0)
            for i in range(500):
                await sender.publish(f"flood/{version}", str(i))
            for i in range(500):
                assert (await anext(receiver.messages())).text == str(i)
                if i % 100 == 0:
                    await receiver.publish("elsewhere", b"", qos=1)

    _run(work())


# -- refusals --------------------------------------------------------------------------------------------------------


def test_refusals_name_code_and_reason(broker: BrokerProcess) -> None:
    """An application reacts to the code, a person to the reason."""

    async def work() -> None:
        async with Client("127.0.0.1", broker.port) as client:
            with pytest.raises(PublishRefusedError, match="the broker's own") as publication:
                await client.publish("$SYS/mine", b"", qos=1)
            with pytest.raises(SubscriptionRefusedError, match="64 levels") as subscription:
                await client.subscribe("/".join("a" * 100))
            assert publication.value.code is ReasonCode.NOT_AUTHORIZED
            assert subscription.value.code == ReasonCode.TOPIC_FILTER_INVALID

    _run(work())


@VERSIONS
def test_a_refused_connection_says_why(broker: BrokerProcess, version: int) -> None:
    """Entering raises at once: there is nothing to come back to."""

    async def work() -> None:
        with pytest.raises(ConnectRefusedError) as refused:
            async with Client("127.0.0.1", broker.port, client_id="x" * 5_000, version=version):
                pass
        assert refused.value.code == (ReasonCode.CLIENT_IDENTIFIER_NOT_VALID if version == 5 else 2)
        assert "client identifier" in str(refused.value)

    _run(work())


def test_where_nobody_listens_there_is_no_connection() -> None:
    """The most common mistake: the broker is not started, or the port is another."""

    async def work() -> None:
        with pytest.raises(CannotConnectError, match=r"127\.0\.0\.1 port 1: connection refused"):
            async with Client("127.0.0.1", 1):
                pass

    _run(work())


def test_who_is_taken_over_stays_away(broker: BrokerProcess) -> None:
    """Two clients of one name would throw each other out for ever."""

    async def work() -> None:
        async with _two(broker, client_id="twin", reconnect=SOON) as (one, other):
            with pytest.raises(DismissedError):
                await anext(one.messages())
            with pytest.raises(DismissedError):
                await one.publish("a", b"", qos=1)
            assert other.is_connected

    _run(work())


def test_a_closed_client_ends_the_iteration(broker: BrokerProcess) -> None:
    """A task that only listens ends with the client, without an error."""

    async def work() -> None:
        async with Client("127.0.0.1", broker.port) as client:
            listening = asyncio.create_task(_everything(client))
            await client.publish("a", b"", qos=1)
        assert await listening == []
        with pytest.raises(ClientClosedError):
            await client.publish("a", b"", qos=1)

    _run(work())


async def _everything(client: Client) -> list[Message]:
    return [message async for message in client.messages()]


# -- sessions --------------------------------------------------------------------------------------------------------


def test_a_session_keeps_what_comes_while_its_client_is_away(broker: BrokerProcess) -> None:
    """What makes it more than a socket."""

    async def work() -> None:
        async with Client("127.0.0.1", broker.port, client_id="sleeper", session_expiry_s=60) as client:
            await client.subscribe("kept", max=2, ttl_s=60, name="n")
        async with Client("127.0.0.1", broker.port) as sender:
            for body in ("1", "2", "3"):
                await sender.publish("kept", body, qos=1)
        async with Client("127.0.0.1", broker.port, client_id="sleeper", session_expiry_s=60) as client:
            assert [message.text for message in await _take(client, 2)] == ["2", "3"]

    _run(work())


def test_what_an_application_died_with_comes_again(broker: BrokerProcess) -> None:
    """It is acknowledged when the next is asked for: the message in hand was perhaps not handled."""

    async def work() -> None:
        options: dict[str, Any] = {"client_id": "mortal", "session_expiry_s": 60}
        with pytest.raises(ZeroDivisionError):
            await _dies_at_2(Client("127.0.0.1", broker.port, **options))
        async with Client("127.0.0.1", broker.port, **options) as client:
            [message] = await _take(client, 1)
            assert (message.text, message.dup) == ("2", True)
        async with Client("127.0.0.1", broker.port, **options) as client:
            await client.publish("task", "3", qos=1)
            assert [message.text for message in await _take(client, 1)] == ["3"]

    _run(work())


async def _dies_at_2(client: Client) -> None:
    async with client:
        await client.subscribe("task")
        for body in ("1", "2"):
            await client.publish("task", body, qos=1)
        async for message in client.messages():
            _ = 1 / (2 - int(message.text))


def test_a_clean_end_keeps_the_will(broker: BrokerProcess) -> None:
    """The will is for clients that are lost, and leaving is not being lost."""

    async def work() -> None:
        async with Client("127.0.0.1", broker.port) as watcher:
            await watcher.subscribe("will")
            async with Client("127.0.0.1", broker.port, will=Will("will", b"lost", 1)):
                pass
            await watcher.publish("will", b"no", qos=1)
            assert [message.payload for message in await _take(watcher, 1)] == [b"no"]

    _run(work())


# -- a broker that dies ----------------------------------------------------------------------------------------------


async def _restarted(broker: BrokerProcess) -> None:
    await asyncio.to_thread(broker.kill)
    await asyncio.to_thread(broker.start)


@VERSIONS
def test_a_client_comes_back_to_a_broker_that_was_killed(own_broker: BrokerProcess, version: int) -> None:
    """Its session is gone, so it subscribes again; what it published meanwhile is sent with the new connection."""

    async def work() -> None:
        async with _two(own_broker, version=version, reconnect=SOON, rng=random.Random(1)) as (sender, receiver):
            await receiver.subscribe("a/#", filter="n > 0")
            await asyncio.to_thread(own_broker.kill)
            publishing = asyncio.create_task(_until_heard(sender))
            await asyncio.to_thread(own_broker.start)
            [message] = await _take(receiver, 1)
            publishing.cancel()
            assert json.loads(message.payload)["n"] > 0

    _run(work())


async def _until_heard(sender: Client) -> None:
    """Publish again and again: the receiver may come back later than the sender, and QoS 1 keeps nothing for it."""
    for n in range(1_000_000):
        await sender.publish("a/b", {"n": n}, qos=1)


def test_qos_2_through_a_broker_that_dies_is_exactly_once(own_broker: BrokerProcess) -> None:
    """Nothing is lost and nothing comes twice, whenever the broker dies."""

    async def work() -> None:
        options: dict[str, Any] = {"session_expiry_s": 600, "reconnect": SOON}
        async with (
            Client("127.0.0.1", own_broker.port, client_id="from", **options) as sender,
            Client("127.0.0.1", own_broker.port, client_id="to", **options) as receiver,
        ):
            await receiver.subscribe("once", 2)
            publishing = asyncio.create_task(_publish_all(sender, 400))
            got = await _take(receiver, 100)
            await _restarted(own_broker)
            got += await _take(receiver, 150)
            await _restarted(own_broker)
            got += await _take(receiver, 150)
            await publishing
            await sender.publish("once", "end", qos=2)
            got += await _take(receiver, 1)
            assert [message.text for message in got] == [*map(str, range(400)), "end"]

    _run(work())


async def _publish_all(sender: Client, count: int) -> None:
    await asyncio.gather(*(sender.publish("once", str(i), qos=2) for i in range(count)))


# -- commands --------------------------------------------------------------------------------------------------------


def _whimbrel(
    broker: BrokerProcess, command: str, *arguments: str, piped: str = ""
) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "whimbrel", command, *arguments, "--port", str(broker.port)]
    return subprocess.run(words, input=piped, capture_output=True, text=True, check=False, timeout=_PATIENCE_S)


def test_what_the_commands_send_and_print(broker: BrokerProcess) -> None:
    """A retained message waits for the subscriber, so neither command has to be quick."""
    sent = _whimbrel(broker, "publish", "cli/a", "hello", "--qos", "1", "--retain", "--property", "k=v", "--json")
    assert (sent.returncode, sent.stderr) == (0, "")
    assert json.loads(sent.stdout)["topic"] == "cli/a"
    got = _whimbrel(broker, "subscribe", "cli/+", "--count", "1", "--timeout", "30")
    assert (got.returncode, got.stdout, got.stderr) == (0, "cli/a hello\n", "")
    got = _whimbrel(broker, "subscribe", "cli/+", "--count", "1", "--json", "--mqtt", "3.1.1")
    assert json.loads(got.stdout) == {"topic": "cli/a", "body": "hello", "qos": 1, "retain": True, "properties": {}}


def test_lines_are_published_in_order_and_kept_for_a_session(broker: BrokerProcess) -> None:
    """A pipe on one side, a command that runs now and then on the other."""

    async def work() -> None:
        async with Client("127.0.0.1", broker.port, client_id="now-and-then", session_expiry_s=60) as client:
            await client.subscribe("lines", 2, filter="n > 1")

    _run(work())
    lines = "".join(json.dumps({"n": n}) + "\n" for n in range(100))
    assert _whimbrel(broker, "publish", "lines", "--lines", "--qos", "2", piped=lines).returncode == 0
    session = ("--client-id", "now-and-then", "--session-expiry", "60", "--timeout", "30")
    got = _whimbrel(broker, "subscribe", "lines", "--filter", "n > 1", "--count", "98", *session)
    assert got.returncode == 0
    assert [json.loads(line.partition(" ")[2])["n"] for line in got.stdout.splitlines()] == list(range(2, 100))


def test_the_commands_exit_with_1_where_the_broker_says_no(broker: BrokerProcess) -> None:
    """A script sees by the code that it was not its own mistake."""
    done = _whimbrel(broker, "publish", "$SYS/mine", "x", "--qos", "1")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: publication to $SYS/mine refused: ")
    done = _whimbrel(broker, "subscribe", "/".join("a" * 100), "--count", "1")
    assert done.returncode == 1
    assert "refused" in done.stderr
