"""Rate limits: never more than the rate and the burst, nothing lost, and no client of a user starves."""

from __future__ import annotations

from functools import lru_cache

from hypothesis import given
from hypothesis import strategies as st

from whimbrel.broker.limits.counters import Counters
from whimbrel.broker.limits.rate_limits import Meter, RateLimits, Rates
from whimbrel.broker.limits.receive_buffer import ReceiveBuffer
from whimbrel.mqtt.codec import encode
from whimbrel.mqtt.packets import V5, Pingreq, Publish

SECOND_US = 1_000_000

packets = st.lists(
    st.one_of(
        st.just(encode(Pingreq(), V5)),
        st.integers(0, 400).map(lambda size: encode(Publish("t", bytes(size), 0), V5)),
    ),
    max_size=40,
)


@lru_cache(maxsize=8)  # of three streams one grows, and is looked at twice
def _messages(data: bytes) -> int:
    """Return how many PUBLISH packets begin in *data*, which begins with a packet."""
    inflow = ReceiveBuffer()
    inflow.put(data)
    return inflow.take(1 << 62, 1 << 62)[1]


def _most(rate: int, burst_us: int, now: int) -> int:
    """Return how many millionths may have passed by *now*: a burst of one is always allowed."""
    return max(rate * burst_us, SECOND_US) + rate * now


@given(packets, st.lists(st.integers(1, 50), max_size=30), st.lists(st.tuples(st.integers(0, 4), st.integers(0, 90))))
def test_what_passes_is_what_came_however_it_is_cut(
    stream: list[bytes], cuts: list[int], takes: list[tuple[int, int]]
) -> None:
    """No byte is lost, doubled or moved; no take has more than it may; and all messages are counted once."""
    data, inflow, passed, counted = b"".join(stream), ReceiveBuffer(), b"", 0
    at = 0
    for cut in [*cuts, len(data)]:
        inflow.put(data[at : at + cut])
        at += cut
        for messages, size in takes[:2]:
            took, used = inflow.take(messages, size)
            assert used <= messages
            assert len(took) <= size
            passed, counted = passed + took, counted + used
    took, used = inflow.take(1 << 62, 1 << 62)
    assert passed + took == data
    assert counted + used == sum(packet[0] >> 4 == 3 for packet in stream)
    assert not inflow.has_more


@given(st.binary(max_size=64), st.lists(st.integers(1, 9), max_size=20))
def test_any_bytes_pass_in_order(data: bytes, cuts: list[int]) -> None:
    """What is no MQTT is for the decoder to refuse; the beginning of a head may wait for its rest."""
    inflow, passed, at = ReceiveBuffer(), b"", 0
    for cut in [*cuts, len(data)]:
        inflow.put(data[at : at + cut])
        at += cut
        passed += inflow.take(1 << 62, 1 << 62)[0]
    assert data.startswith(passed)
    assert len(data) - len(passed) < 5


@given(
    st.lists(st.tuples(st.integers(0, 2), packets, st.integers(0, 3 * SECOND_US)), max_size=25),
    st.builds(Rates, st.integers(0, 20), st.integers(0, 2_000)),
    st.builds(Rates, st.integers(0, 20), st.integers(0, 2_000)),
    st.sampled_from([100_000, SECOND_US, 5 * SECOND_US]),
)
def test_never_more_than_rate_times_time_and_the_burst(
    arrivals: list[tuple[int, list[bytes], int]], per_client: Rates, per_user: Rates, burst_us: int
) -> None:
    """At every moment, for each client and for the user of all three; in the end all of it has passed, in order."""
    limits = RateLimits(per_client, per_user, burst_us, Counters())
    meters = [limits.open(number, f"c{number}", "ann", b"") for number in range(3)]
    sent, passed = [b""] * 3, [b""] * 3
    now = 0

    def note(meter: Meter, data: bytes) -> None:
        number = meters.index(meter)
        passed[number] += data
        for rates, streams in [(per_client, [passed[number]]), (per_user, passed)]:
            if rates.bytes:
                assert sum(map(len, streams)) * SECOND_US <= _most(rates.bytes, burst_us, now)
            if rates.messages:
                assert sum(map(_messages, streams)) * SECOND_US <= _most(rates.messages, burst_us, now)

    for number, stream, pause_us in arrivals:
        data = b"".join(stream)
        sent[number] += data
        note(meters[number], limits.receive(meters[number], data, now))
        until = now + pause_us
        while (due := limits.next_at(now)) is not None and due <= until:
            now = max(now, due)
            for meter, some in limits.turn(now):
                note(meter, some)
        now = until
    for _ in range(100_000):
        if (due := limits.next_at(now)) is None:
            break
        now = max(now, due)
        for meter, some in limits.turn(now):
            note(meter, some)
    assert passed == sent
    assert limits.slowed == 0


@given(st.integers(2, 6), st.integers(1, 200), st.integers(1, 40))
def test_no_client_of_a_user_starves(clients: int, rate: int, rounds: int) -> None:
    """Of clients that all have more to send than their user may, each gets its share but for a turn or two."""
    limits = RateLimits(Rates(), Rates(messages=rate), SECOND_US, Counters())
    packet = encode(Publish("t", b"x", 0), V5)
    meters = [limits.open(number, f"c{number}", "ann", b"") for number in range(clients)]
    passed, now = [0] * clients, 0
    for number, meter in enumerate(meters):  # the first empties the bucket; from then on they are equals
        limits.receive(meter, packet * (rate * (rounds + 3)), 0)
        assert meter.is_waiting, number
    while now < rounds * SECOND_US:
        due = limits.next_at(now)
        assert due is not None
        now = max(now, due)
        for meter, data in limits.turn(now):
            passed[meters.index(meter)] += data.count(packet)
    turn = max(1, rate // 50)
    assert sum(passed) <= rate * now / SECOND_US
    assert max(passed) - min(passed) <= turn
    assert sum(passed) >= rate * rounds - rate // 10 - 1
