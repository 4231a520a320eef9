"""``whimbrel bench broker`` and its load: what is counted, what is refused, and what it says; brokers are made up."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import pytest

from whimbrel.cli.main import main
from whimbrel.errors import InvalidValueError
from whimbrel.mqtt.codec import Decoder
from whimbrel.mqtt.packets import V5, V311, Puback, Publish
from whimbrel.sim.load import generator
from whimbrel.sim.load.load import Latency, Load, LoadError, Throughput, publications
from whimbrel.sim.load.tally import Tally

PASSED = Throughput(
    sent=100, expected=200, arrived=200, seconds=(0.5,), broker_cpu_s=0.001, generator_cpu_s=0.1
)  # fmt: skip
PACED = Latency(rate=1_000, expected=10, arrived=10, p50_us=120.0, p99_us=450.0)


@dataclass(frozen=True)
class Done:
    """What a finished command left behind."""

    code: int
    out: str
    err: str


Run = Callable[..., Done]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command in this process."""

    def invoke(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["whimbrel", "bench", "broker", *arguments])
        with pytest.raises(SystemExit) as exited:
            main()
        captured = capsys.readouterr()
        return Done(int(exited.value.code or 0), captured.out, captured.err)

    return invoke


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Callable[[Throughput, Latency], None]:
    """Let the generator find what a test says, without any process."""

    class Pretended:
        passed, paced = PASSED, PACED

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            return None

        def throughput(self, load: Load, *, pid: int | None) -> Throughput:
            assert (load.host, load.port, pid) == ("127.0.0.1", 1_883, None)
            return self.passed

        def latency(self, load: Load, *, rate: float) -> Latency:
            assert load.publishers == 1
            assert rate
            return self.paced

    def pretended(passed: Throughput, paced: Latency) -> None:
        Pretended.passed, Pretended.paced = passed, paced

    monkeypatch.setattr(generator, "Generator", Pretended)
    return pretended


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ("--qos", "2"),
        ("--size", "7"),
        ("--count", "0"),
        ("--subscribers", "0"),
        ("--subscribers", "900"),
        ("--port", "0"),
        ("--pid", "1"),
        ("--rate", "-1"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(run: Run, arguments: tuple[str, ...]) -> None:
    """Exit code 2 means: the command was wrong, not the broker."""
    done = run(*arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err


@pytest.mark.usefixtures("pretend")
def test_it_tells_rate_processor_time_and_latency(run: Run) -> None:
    """These are the numbers one asks of a broker, a line each."""
    done = run("--port", "1883", "--count", "100", "--subscribers", "2")
    assert done.code == 0
    assert done.out.splitlines() == [
        "1 publisher, 2 subscribers, QoS 0, 64 bytes, 100 messages",
        "delivered      400 a second",
        "broker CPU     5.00 µs a delivery",
        "at  1,000/s    p50 0.120 ms, p99 0.450 ms",
        "lost           0",
    ]


@pytest.mark.usefixtures("pretend")
def test_the_same_is_told_as_json(run: Run) -> None:
    """A script that watches for a slower broker reads no prose."""
    done = run("--port", "1883", "--count", "100", "--subscribers", "2", "--json")
    found = json.loads(done.out)
    assert (found["deliveries_per_s"], found["broker_cpu_us"], found["lost"]) == (400, 5.0, 0)
    assert found["latency"] == {"rate": 1_000, "delivered": 10, "lost": 0, "p50_us": 120.0, "p99_us": 450.0}


@pytest.mark.usefixtures("pretend")
def test_without_a_rate_there_is_no_latency(run: Run) -> None:
    """Who wants only the throughput need not wait."""
    done = run("--port", "1883", "--count", "100", "--rate", "0", "--json")
    assert done.code == 0
    assert "latency" not in json.loads(done.out)


@pytest.mark.parametrize(
    ("passed", "paced"),
    [
        (Throughput(sent=100, expected=100, arrived=99, seconds=(1.0,), broker_cpu_s=None, generator_cpu_s=0), PACED),
        (Throughput(sent=90, expected=90, arrived=90, seconds=(1.0,), broker_cpu_s=None, generator_cpu_s=0), PACED),
        (PASSED, Latency(rate=1_000, expected=10, arrived=9, p50_us=1.0, p99_us=1.0)),
    ],
)
def test_it_fails_if_anything_was_lost(
    run: Run, pretend: Callable[[Throughput, Latency], None], passed: Throughput, paced: Latency
) -> None:
    """A broker that drops messages is quick, and no use."""
    pretend(passed, paced)
    assert run("--port", "1883", "--count", "100").code == 1


# -- the load ----------------------------------------------------------------------------------------------------------


def test_packet_identifiers_come_again_only_after_the_window() -> None:
    """Two publications under way with one identifier would be one to the broker."""
    blocks = publications(Load(port=1, qos=1, window=100), block=30)
    packets = Decoder(version=V311).receive(b"".join(blocks))
    identifiers = [packet.packet_id for packet in packets if isinstance(packet, Publish)]
    assert len(set(identifiers)) == len(identifiers) >= 200
    assert len({len(block) for block in blocks}) == 1


@pytest.mark.parametrize("step", [1, 7, 71, 10_000])
@pytest.mark.parametrize("filters", [(), (("a > 1",),)], ids=["3.1.1", "5"])
def test_a_tally_counts_and_acknowledges_however_the_stream_is_cut(
    step: int, filters: tuple[tuple[str, ...], ...]
) -> None:
    """It never looks at a packet, so it must be exact about bytes."""
    load = Load(port=1, qos=1, window=20, filters=filters)
    wire, tally = b"".join(publications(load, block=5)), Tally(load)
    answers = b"".join(tally.receive(wire[at : at + step]) for at in range(0, len(wire), step))
    assert tally.count == 40
    assert Decoder(version=V5 if filters else V311).receive(answers) == [Puback(n) for n in range(1, 41)]


def test_a_tally_at_qos_0_answers_nothing() -> None:
    """An acknowledgement that nobody asked for would be a breach of the protocol."""
    load = Load(port=1)
    tally = Tally(load)
    assert tally.receive(load.encode(0) * 3) == b""
    assert tally.count == 3


def test_a_tally_refuses_what_is_no_publication_of_its_length() -> None:
    """A stream out of step would be counted wrongly, and nobody would know."""
    load = Load(port=1)
    tally = Tally(load)
    tally.receive(load.encode(0))
    with pytest.raises(LoadError):
        tally.receive(b"\xd0\x00" + load.encode(0))


@pytest.mark.parametrize(
    "wrong",
    [{"bodies": (b"a", b"bc")}, {"qos": 2}, {"window": 0}, {"window": 40_000}, {"filters": ((), ()), "subscribers": 3}],
)
def test_a_load_that_cannot_be_counted_is_refused(wrong: dict[str, object]) -> None:
    """Counting by length needs one length, and identifiers must suffice."""
    with pytest.raises(InvalidValueError):
        Load(port=1, **wrong)  # type: ignore[arg-type]  # that is the point


def test_a_rate_is_that_of_the_median_round() -> None:
    """One round that the machine disturbed says nothing of the broker."""
    found = Throughput(
        sent=300, expected=300, arrived=300, seconds=(0.1, 0.2, 9.0), broker_cpu_s=0.003, generator_cpu_s=0
    )
    assert found.rate == pytest.approx(500)
    assert found.cpu_us == pytest.approx(10)
    assert found.lost == 0


@pytest.mark.slow
def test_a_broker_of_our_own_is_measured_and_loses_nothing(run: Run) -> None:
    """The whole of it, with processes and sockets, in small."""
    done = run("--count", "200", "--qos", "1", "--publishers", "3", "--subscribers", "2", "--rate", "500", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert (found["sent"], found["delivered"], found["lost"], found["latency"]["lost"]) == (200, 400, 0, 0)
