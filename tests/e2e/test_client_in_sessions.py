"""Named sessions with our client against a real broker: joined, shared, kept for who is away, and come back to."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.broker_process import BrokerProcess

from whimbrel.broker.access.passwords import Cost
from whimbrel.broker.access.users import Users
from whimbrel.client import (
    AccessControlList,
    Backoff,
    Client,
    ConnectRefusedError,
    Device,
    Grant,
    Join,
    Message,
    ReasonCode,
    Right,
    SessionRefusedError,
    SessionSubscription,
    SubscriptionRefusedError,
)

VERSIONS = pytest.mark.parametrize("version", [4, 5], ids=["3.1.1", "5"])
SOON = Backoff(first_s=0.05, most_s=0.2)
WORD, OTHER_WORD, WRONG = "word", "other word", "mistaken"
_PATIENCE_S = 60


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Yield a broker that tests share; each has sessions of its own."""
    settings = {"access": {"wrong_passwords_per_minute": 0}}
    with BrokerProcess(tmp_path_factory.mktemp("broker"), settings=settings) as process:
        yield process
    assert "Traceback" not in "".join(process.lines)


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """Yield a broker that a test may kill."""
    with BrokerProcess(tmp_path) as process:
        yield process
    assert "Traceback" not in "".join(process.lines)


@pytest.fixture
def session(request: pytest.FixtureRequest) -> str:
    """Return the name of a session that no other test has."""
    return "".join(each if each.isalnum() else "-" for each in request.node.name)


def _run(work: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(_PATIENCE_S):  # nothing here waits so long; a hang is a failure, not a pause
            await work

    asyncio.run(bounded())


def _client(broker: BrokerProcess, device: str, **options: Any) -> Client:
    options = {"reconnect": SOON, "rng": random.Random(device), **options}
    return Client("127.0.0.1", broker.port, client_id=device, **options)


async def _texts(client: Client, count: int) -> list[str]:
    return [(await anext(client.messages())).text for _ in range(count)]


# -- what sessions are for -------------------------------------------------------------------------------------------


@VERSIONS
def test_a_session_keeps_for_the_device_that_is_away(broker: BrokerProcess, session: str, version: int) -> None:
    """Read on the phone what came while it was off; what the tablet kept is still there."""

    async def work() -> None:
        phone, tablet = f"phone {session}", f"tablet {session}"
        async with _client(broker, phone, version=version) as client:
            await client.sessions.create(session, owner=WORD)
            await client.sessions.join(session, password=WORD)
            await client.subscribe(f"{session}/#", session=session, max=10, ttl_s=600, name="n")
        async with _client(broker, tablet, version=version, join=[Join(session, WORD, "keep")]) as client:
            for body in ("1", "2", "3"):
                await client.publish(f"{session}/t", body, qos=1)
            assert await _texts(client, 3) == ["1", "2", "3"]
        async with _client(broker, phone, version=version, join=[Join(session, WORD)]) as client:
            assert await _texts(client, 3) == ["1", "2", "3"]
            details = await client.sessions.show(session)
            assert [each.topic_filter for each in details.subscriptions] == [f"{session}/#"]
            assert set(details.devices) == {
                Device(device=phone, is_present=True, receipt="take"),
                Device(device=tablet, is_present=False, receipt="keep"),
            }

    _run(work())


@VERSIONS
def test_the_home_takes_subscriptions_that_name_no_session(broker: BrokerProcess, session: str, version: int) -> None:
    """An application need not say in every call where it lives; its private session stays its own."""

    async def work() -> None:
        async with _client(broker, f"d {session}") as client:
            await client.sessions.create(session)
        async with _client(broker, f"d {session}", version=version, join=[session]) as client:
            assert await client.subscribe(f"{session}/home", 1, filter="n > 1") == 1
            await client.subscribe(f"{session}/mine", 1, session="")
            found = await client.sessions.subscriptions(session)
            assert [(each.topic_filter, each.filter) for each in found] == [(f"{session}/home", "n > 1")]
            await client.publish(f"{session}/home", {"n": 1}, qos=1)
            await client.publish(f"{session}/mine", "mine", qos=1)
            await client.publish(f"{session}/home", {"n": 2}, qos=1)
            assert await _texts(client, 2) == ["mine", '{"n":2}']
            assert await client.unsubscribe(f"{session}/home")
            assert await client.sessions.subscriptions(session) == ()
            with pytest.raises(SubscriptionRefusedError):
                await client.subscribe("t", session="a session that nobody made")

    _run(work())


@VERSIONS
def test_devices_are_told_what_others_do(broker: BrokerProcess, session: str, version: int) -> None:
    """A list of subscriptions on a screen is right as long as somebody else changes it, too."""

    async def work() -> None:
        async with _client(broker, f"one {session}", version=version) as one:
            await one.sessions.create(session)
            await one.sessions.join(session)
            async with one.sessions.changes() as changes, _client(broker, f"two {session}", version=version) as two:
                await two.sessions.join(session)
                made = await two.sessions.subscribe(session, "a/#", subscription="n", ttl_s=60, max=5)
                expected = SessionSubscription(topic_filter="a/#", name="n", ttl_s=60, max=5)
                assert made == expected
                await two.sessions.unsubscribe(session, "a/#", subscription="n")
                await two.sessions.delete(session)
                told = [await anext(changes) for _ in range(3)]
                assert [each.change for each in told] == ["added", "removed", "deleted"]
                added, removed, deleted = (each.subscription for each in told)
                assert (added, deleted) == (expected, None)
                assert removed is not None
                assert (removed.topic_filter, removed.name) == ("a/#", "n")
                assert {each.device for each in told} == {f"two {session}"}
                with pytest.raises(SessionRefusedError):
                    await one.sessions.show(session)

    _run(work())


# -- who may -----------------------------------------------------------------------------------------------------------


def test_passwords_give_what_they_are_for(broker: BrokerProcess, session: str) -> None:
    """The user reads, the admin changes, the owner deletes."""

    async def work() -> None:
        async with _client(broker, f"o {session}") as owner:
            await owner.sessions.create(session, user="u", admin="a", owner="o")
            with pytest.raises(SessionRefusedError) as refused:
                await owner.sessions.create(session, owner="o")
            assert refused.value.code == ReasonCode.NOT_AUTHORIZED
            async with _client(broker, f"u {session}", join=[Join(session, "u")]) as user:
                with pytest.raises(SubscriptionRefusedError):
                    await user.subscribe("t")
                await user.sessions.subscribe(session, "t", password="a")  # noqa: S106
                with pytest.raises(SessionRefusedError):
                    await user.sessions.delete(session, password="a")  # noqa: S106
                await user.publish("t", "x", qos=1)
                assert await _texts(user, 1) == ["x"]
            await owner.sessions.delete(session, password="o")  # noqa: S106

    _run(work())


@VERSIONS
def test_a_wrong_password_keeps_out_and_is_not_shown(broker: BrokerProcess, session: str, version: int) -> None:
    """Whether there is no such session or the password is wrong is one answer."""

    async def work() -> None:
        async with _client(broker, f"o {session}") as owner:
            await owner.sessions.create(session, owner=WORD)
        for join in (Join(session, WRONG), Join(session), Join("a session that nobody made", WRONG)):
            with pytest.raises((ConnectRefusedError, SessionRefusedError)) as refused:
                async with _client(broker, f"d {session}", version=version, join=[join]):
                    pass
            assert isinstance(refused.value, ConnectRefusedError | SessionRefusedError)
            assert refused.value.code == ReasonCode.NOT_AUTHORIZED
            assert WRONG not in f"{refused.value!r} {refused.value}"

    _run(work())


def test_new_passwords_put_the_others_out(broker: BrokerProcess, session: str) -> None:
    """Whoever has the old one has nothing any more; whoever changed it stays, and comes back."""

    async def work() -> None:
        async with _client(broker, f"one {session}") as one:
            await one.sessions.create(session, owner=WORD)
            await one.sessions.join(session, password=WORD)
            async with (
                _client(broker, f"two {session}", join=[Join(session, WORD)]) as two,
                two.sessions.changes() as changes,
            ):
                await one.sessions.set_access(session, owner=OTHER_WORD)
                assert (await anext(changes)).change == "left"
                with pytest.raises(SessionRefusedError):
                    await two.sessions.join(session, password=WORD)
                await two.sessions.join(session, password=OTHER_WORD)
                assert len((await one.sessions.show(session)).devices) == 2

    _run(work())


def test_a_list_names_users_and_groups(tmp_path: Path) -> None:
    """Where the broker knows its users no password of a session is needed."""
    users = Users.read(tmp_path / "users", missing_ok=True)
    for name, groups in (("ann", []), ("bob", ["staff"]), ("eve", [])):
        users.add(name, WORD, groups=groups or None, cost=Cost.of_memory(1))
    settings = {"access": {"users": str(tmp_path / "users")}}

    async def work(broker: BrokerProcess) -> None:
        def client(user: str, **options: Any) -> Client:
            return _client(broker, user, username=user, password=WORD, **options)

        async with client("ann") as ann:
            await ann.sessions.create("ward")  # hers, as nothing else is said
            with pytest.raises(ConnectRefusedError):
                async with client("bob", join=["ward"]):
                    pass
            staff = Grant(who="staff", rights=frozenset({Right.JOIN}), is_group=True)
            await ann.sessions.set_access("ward", acl=AccessControlList(owner="ann", grants=(staff,)))
            assert [each.session for each in await ann.sessions.list()] == ["ward"]
            async with client("bob", join=["ward"]) as bob:
                with pytest.raises(SubscriptionRefusedError):
                    await bob.subscribe("t")
                [line] = await bob.sessions.list()
                assert (line.session, line.is_joined, line.devices) == ("ward", True, 1)
            with pytest.raises(ConnectRefusedError):
                async with client("eve", join=["ward"]):
                    pass

    with BrokerProcess(tmp_path / "broker", settings=settings) as broker:
        _run(work(broker))


# -- keys ------------------------------------------------------------------------------------------------------------


@VERSIONS
def test_keys_restrict_who_receives_from_whom(broker: BrokerProcess, session: str, version: int) -> None:
    """Only the holder of the consumer's private key gets what is for its public key."""
    public = "consumer:" + hashlib.sha256(b"my key").hexdigest()
    private = "consumer:private:my key"

    async def work() -> None:
        async with (
            _client(broker, f"in {session}", version=version, keys=[private]) as insider,
            _client(broker, f"out {session}", version=version) as outsider,
            _client(broker, f"from {session}", version=version) as publisher,
        ):
            for each in (insider, outsider):
                await each.subscribe(session)
            await publisher.sessions.set_keys([public])
            await publisher.publish(session, "secret", qos=1)
            await publisher.sessions.set_keys(remove=[public])
            await publisher.publish(session, "for all", qos=1)
            assert await _texts(insider, 1) == ["secret"]
            assert await _texts(outsider, 1) == ["for all"]

    _run(work())


def test_keys_of_one_publication_and_of_one_subscription(broker: BrokerProcess, session: str) -> None:
    """What is said with a packet is for that packet; the private key is not passed on."""
    public = "producer:" + hashlib.sha256(b"my key").hexdigest()

    async def work() -> None:
        async with _client(broker, f"d {session}") as client:
            await client.subscribe(session, keys=[public])
            await client.publish(session, "of anybody", qos=1)
            await client.publish(session, "of the producer", qos=1, keys=["producer:private:my key"])
            message: Message = await anext(client.messages())
            assert (message.text, message.user) == ("of the producer", ())
            with pytest.raises(SubscriptionRefusedError):
                await client.subscribe(session, keys=["producer:private:my key"])

    _run(work())


# -- a broker that dies ----------------------------------------------------------------------------------------------


@VERSIONS
def test_a_client_comes_back_to_its_sessions(own_broker: BrokerProcess, version: int) -> None:
    """Both to the one it was made with and to the one it joined later; nothing that was kept is missed."""

    async def work() -> None:
        async with _client(own_broker, "maker") as maker:
            for name in ("home", "later"):
                await maker.sessions.create(name, owner=WORD)
                await maker.sessions.subscribe(name, f"{name}/#", password=WORD)
        async with _client(own_broker, "d", version=version, join=[Join("home", WORD)]) as client:
            await client.sessions.join("later", password=WORD)
            await asyncio.to_thread(own_broker.kill)
            await asyncio.to_thread(own_broker.start)
            for number, name in enumerate(("home", "later", "home")):
                await client.publish(f"{name}/t", {"n": number}, qos=1)
            assert [json.loads(text)["n"] for text in await _texts(client, 3)] == [0, 1, 2]
            assert {each.session for each in await client.sessions.list() if each.is_joined} == {"home", "later"}

    _run(work())
