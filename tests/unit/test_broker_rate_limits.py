"""Rate limits: a client that sends too much is read from more slowly, and nobody else is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from broker_rig import Rig, publishing

from whimbrel.broker.limits.counters import Counters
from whimbrel.broker.limits.rate_limits import Meter, RateLimits, Rates, Slowed, TokenBucket
from whimbrel.broker.settings.config import Config, LimitSettings
from whimbrel.broker.shell.metrics import gauges, prometheus, system_values
from whimbrel.mqtt.codec import encode
from whimbrel.mqtt.packets import V5, Connect, Pingreq, Publish

SECOND_US = 1_000_000
MESSAGE = encode(Publish("t", b"1", 0), V5)


def _limits(client: Rates = Rates(), user: Rates = Rates(), burst_us: int = SECOND_US) -> RateLimits:  # noqa: B008 # values
    return RateLimits(client, user, burst_us, Counters())


def _drive(limits: RateLimits, until: int, now: int = 0) -> dict[Meter, bytes]:
    """Let time pass; return what passed of each."""
    passed: dict[Meter, bytes] = {}
    while (due := limits.next_at(now)) is not None and due <= until:
        now = max(now, due)
        for meter, data in limits.turn(now):
            passed[meter] = passed.get(meter, b"") + data
    return passed


def test_a_bucket_gives_its_burst_at_once_and_then_its_rate() -> None:
    """Tokens come with time, up to the burst."""
    bucket = TokenBucket(10, 2 * SECOND_US)
    assert bucket.tokens_left(0) == 20
    bucket.take(20)
    assert bucket.tokens_left(99_999) == 0
    assert bucket.tokens_left(100_000) == 1
    assert bucket.tokens_left(60 * SECOND_US) == 20


def test_a_bucket_without_a_rate_is_never_empty() -> None:
    """0 is any number."""
    bucket = TokenBucket(0, SECOND_US)
    bucket.take(1 << 40)
    assert bucket.tokens_left(0) > 1 << 60
    assert bucket.wait_us(0) == 0


def test_a_bucket_is_not_filled_by_a_clock_that_stands_or_goes_back() -> None:
    """Nobody gains by it."""
    bucket = TokenBucket(1, SECOND_US)
    assert bucket.tokens_left(SECOND_US) == 1
    bucket.take(1)
    assert bucket.tokens_left(0) == 0
    assert bucket.tokens_left(SECOND_US) == 0
    assert bucket.tokens_left(2 * SECOND_US) == 1


def test_a_flood_is_held_and_passes_at_its_rate() -> None:
    """Ten a second: ten at once, and then a hundred take ten seconds."""
    limits = _limits(Rates(messages=10))
    meter = limits.open("link", "c", None, b"")
    assert limits.receive(meter, MESSAGE * 110, 0) == MESSAGE * 10
    assert limits.slowed == 1
    assert _drive(limits, 5 * SECOND_US)[meter] == MESSAGE * 50
    assert limits.slowed == 1
    assert _drive(limits, 10 * SECOND_US, 5 * SECOND_US)[meter] == MESSAGE * 50
    assert limits.slowed == 0
    assert limits.next_at(10 * SECOND_US) is None


def test_only_publications_count_as_messages() -> None:
    """Pings and acknowledgements pass, in their order."""
    limits = _limits(Rates(messages=1))
    meter = limits.open("link", "c", None, b"")
    ping = encode(Pingreq(), V5)
    assert limits.receive(meter, ping * 5 + MESSAGE + ping * 5 + MESSAGE + ping, 0) == ping * 5 + MESSAGE + ping * 5


def test_a_packet_larger_than_the_burst_passes_in_pieces() -> None:
    """Bytes are counted as bytes: one large packet neither waits for ever nor passes at once."""
    limits = _limits(Rates(bytes=100))
    meter = limits.open("link", "c", None, b"")
    packet = encode(Publish("t", bytes(995), 0), V5)
    first = limits.receive(meter, packet, 0)
    assert len(first) == 100
    rest = _drive(limits, 60 * SECOND_US)[meter]
    assert first + rest == packet


def test_to_connect_again_gives_no_new_burst() -> None:
    """What a client used up is remembered, whatever connection it comes over."""
    limits = _limits(Rates(messages=10))
    meter = limits.open("link", "c", None, b"")
    limits.receive(meter, MESSAGE * 50, 0)
    limits.close(meter)
    again = limits.open("link", "c", None, b"")
    assert limits.receive(again, MESSAGE, 0) == b""
    assert limits.receive(limits.open("link", "other", None, b""), MESSAGE, 0) == MESSAGE
    assert limits.slowed == 1


def test_what_came_behind_connect_has_its_turn() -> None:
    """It is held like the rest, and the shell is told to look at once."""
    limits = _limits(Rates(messages=2))
    meter = limits.open("link", "c", None, MESSAGE * 3)
    assert limits.next_at(7) == 7
    assert limits.turn(7) == [(meter, MESSAGE * 2)]
    assert meter.is_waiting


def test_clients_of_one_user_share_and_others_do_not_wait() -> None:
    """A client that sends little waits for a turn of each of the others, not for all they have."""
    limits = _limits(user=Rates(messages=50))
    greedy = limits.open("greedy", "greedy", "ann", b"")
    modest = limits.open("modest", "modest", "ann", b"")
    other = limits.open("other", "other", "bob", b"")
    limits.receive(greedy, MESSAGE * 5_000, 0)
    assert limits.receive(modest, MESSAGE, 0) == b""
    assert limits.receive(other, MESSAGE, 0) == MESSAGE
    assert _drive(limits, SECOND_US // 5)[modest] == MESSAGE
    assert not modest.is_waiting
    assert greedy.is_waiting


def test_a_client_that_waits_for_itself_does_not_keep_its_user_waiting() -> None:
    """Its own rate is below its share of the user's."""
    limits = _limits(Rates(messages=1), Rates(messages=2))
    greedy, modest = (limits.open(name, name, "ann", b"") for name in ("greedy", "modest"))
    assert limits.receive(greedy, MESSAGE * 100, 0) == MESSAGE
    assert limits.receive(modest, MESSAGE, 0) == MESSAGE
    assert limits.receive(modest, MESSAGE, SECOND_US) == MESSAGE


def test_a_connection_that_is_gone_is_not_waited_for() -> None:
    """Its place in the queue of its user is free."""
    limits = _limits(user=Rates(messages=10))
    gone, here = (limits.open(name, name, "ann", b"") for name in ("gone", "here"))
    limits.receive(gone, MESSAGE * 100, 0)
    limits.receive(here, MESSAGE * 100, 0)
    limits.close(gone)
    limits.close(gone)
    passed = _drive(limits, SECOND_US)
    assert list(passed) == [here]
    assert len(passed[here]) == len(MESSAGE) * 10
    assert limits.slowed == 1


def test_it_is_said_once_that_a_client_begins_to_be_slowed() -> None:
    """Not once a pause; and again when it begins after a minute of peace."""
    counters = Counters()
    limits = RateLimits(Rates(messages=10), Rates(bytes=1_000_000), SECOND_US, counters)
    meter = limits.open("link", "c", "ann", b"")
    limits.receive(meter, MESSAGE * 200, 0)
    _drive(limits, 60 * SECOND_US)
    assert limits.news == [Slowed("c", "ann", "limits.client_messages_per_second")]
    assert counters.rate_pauses > counters.slowed_clients == 1
    limits.receive(meter, MESSAGE * 200, 200 * SECOND_US)
    assert len(limits.news) == 2


def test_memory_is_bounded_however_many_clients_there_were() -> None:
    """Those who are not connected and owe nothing are forgotten; those who are stay."""
    limits = _limits(Rates(messages=10))
    stays = limits.open("stays", "stays", None, b"")
    limits.receive(stays, MESSAGE * 11, 0)
    for number in range(30_000):
        limits.close(limits.open("link", f"client-{number}", None, b""))
    assert len(limits) <= 10_001
    assert limits.receive(limits.open("again", "stays", None, b""), MESSAGE, 0) == b""


def _limited(folder: Path, **limits: int) -> Rig:
    return Rig(folder, replace(Config(), limits=LimitSettings(**limits)))


def test_without_settings_nothing_is_metered(tmp_path: Path) -> None:
    """Off is off: no link has a meter."""
    rig = Rig(tmp_path)
    assert not rig.broker.rates.are_any
    assert rig.client("c").link.meter is None


@pytest.mark.parametrize("setting", ["client_messages_per_second", "client_bytes_per_second"])
def test_what_comes_in_one_piece_with_connect_is_metered(tmp_path: Path, setting: str) -> None:
    """Else a client would connect again and again, and say everything behind its CONNECT."""
    rig = _limited(tmp_path, **{setting: 1})
    watcher = rig.subscriber("watcher", "t")
    peer = rig.connecting("c")
    flood = b"".join(encode(publishing("t", b"%d" % number), V5) for number in range(100))
    peer = type(peer)(rig, V5)
    peer.send_bytes(encode(Connect("flood", version=V5), V5) + flood)
    rig.settle()
    assert watcher.payloads() == []
    assert peer.link.meter is not None
    passed = sum(len(data) for _, data in rig.broker.rates.turn(0))
    assert 0 < passed <= len(flood) // 50
    assert gauges(rig.broker).clients_slowed == 1
    assert system_values(rig.broker, 0)["$SYS/broker/clients/slowed"] == "1"
    assert "whimbrel_clients_slowed 1.0" in prometheus(rig.broker, 0, 0)
    assert "whimbrel_rate_pauses_total 1.0" in prometheus(rig.broker, 0, 0)
    (notice,) = rig.broker.take_notices()
    assert f"limits.{setting}" in notice.text
    assert notice.client == "flood"
    peer.drop()
    assert gauges(rig.broker).clients_slowed == 0


def test_clients_of_a_verified_user_share_its_rate(tmp_path: Path) -> None:
    """A name that nobody verified is only a claim: such a client has the limits of a client."""
    config = replace(Config(), limits=LimitSettings(user_messages_per_second=5))
    rig = Rig(tmp_path, config, verify=lambda _user, _password: True)
    first, second = (rig.client(name, username="ann", password=b"x").link.meter for name in ("first", "second"))
    assert first is not None
    assert second is not None
    assert first.shared is second.shared is not None
    assert rig.broker.rates.receive(first, MESSAGE * 9, 0) == MESSAGE * 5
    assert rig.broker.rates.receive(second, MESSAGE, 0) == b""
    open_to_all = Rig(tmp_path / "open", config).client("third", username="ann", password=b"x").link.meter
    assert open_to_all is not None
    assert open_to_all.shared is None
