"""A disk that fills: publications are refused before it is full, the log is cut, and all goes on without a restart.

The broker has a small file system of its own (``unshare`` and tmpfs), which a burst or a neighbour fills.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.e2e.broker_process import BrokerProcess
from tests.e2e.raw_client import P, RawClient

MIB = 1 << 20
DISK_MIB = 32
FULL, ACCEPTED = 0x97, (0x00, 0x10)
_MAX_TRIES = 20_000
EXPIRY = ((P.SESSION_EXPIRY, 900),)
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "the-disk-is-full.md"
LOG = {"segment_bytes": 4 * MIB, "retain_free_bytes": 8 * MIB, "view_interval_s": 0.2}
SELDOM_S = 3_600.0


def _has_namespaces() -> bool:
    command = ["unshare", "-Urm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


pytestmark = pytest.mark.skipif(not _has_namespaces(), reason="this system gives no user and mount namespaces")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """Yield a broker on a small disk."""
    with _broker(tmp_path) as broker:
        yield broker


def _broker(folder: Path, **log: object) -> BrokerProcess:
    return BrokerProcess(folder, settings={"log": LOG | log}, disk_bytes=DISK_MIB * MIB)


def _disk(broker: BrokerProcess) -> Path:
    """Return the broker's data folder, as its own namespace has it."""
    return Path(f"/proc/{broker.pid}/root{broker.data}")


def _publish(client: RawClient, payload: bytes) -> int:
    answer = client.publish("t", payload, 1)
    assert answer is not None
    return answer.code


def _publish_until_accepted(client: RawClient, payload: bytes) -> int:
    """Publish again and again; return how often it was refused."""
    for refused in range(_MAX_TRIES):
        code = _publish(client, payload)
        if code in ACCEPTED:
            return refused
        assert code == FULL
    pytest.fail(f"refused {_MAX_TRIES} times")


def _fill(path: Path) -> None:
    """Write until the disk takes no more."""
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(MIB))


def _told(broker: BrokerProcess, words: str) -> list[str]:
    return [line for line in broker.lines if words in line]


def test_a_burst_larger_than_the_disk_is_accepted_in_the_end(tmp_path: Path) -> None:
    """CONNECT was refused for good: nothing could be cut, because the second checkpoint was never made.

    Here the view is written for want of room alone: by its timer, a log that grows slowly is cut before the disk fills.
    """
    refused = 0
    with _broker(tmp_path, view_interval_s=SELDOM_S) as broker:
        with RawClient(broker.port) as client:
            client.connect("burst")
            for _ in range(3 * DISK_MIB):
                refused += _publish_until_accepted(client, os.urandom(MIB // 2))
        assert refused, "the disk never filled"
        assert _told(broker, "log cut")
        with RawClient(broker.port) as client:
            assert client.connect("afterwards").code == 0


def test_a_neighbour_that_fills_the_disk_stops_publications_alone_and_nothing_for_good(broker: BrokerProcess) -> None:
    """What was acknowledged is there, clients come and go meanwhile, and when there is room all goes on."""
    with RawClient(broker.port) as sleeper:
        sleeper.connect("sleeper", clean=False, properties=EXPIRY)
        sleeper.subscribe(("t", 1))
    neighbour = _disk(broker) / "neighbour"
    with RawClient(broker.port) as client:
        client.connect("publisher")
        assert _publish(client, b"before") in ACCEPTED
        _fill(neighbour)
        refused = 0
        while _publish(client, bytes(100_000)) in ACCEPTED:
            refused += 1
            assert refused < 100, "the reserve is no larger"
        with RawClient(broker.port) as other:
            assert other.connect("other").code == 0
        neighbour.unlink()
        _publish_until_accepted(client, b"after")
    assert len(_told(broker, "the log cannot be written")) <= 1
    with RawClient(broker.port) as sleeper:
        sleeper.connect("sleeper", clean=False, properties=EXPIRY)
        payloads = [sleeper.message().payload for _ in range(refused + 2)]
    assert (payloads[0], payloads[-1]) == (b"before", b"after")


def test_the_page_about_a_full_disk_quotes_what_is_seen(broker: BrokerProcess) -> None:
    """An operator searches for the words of the log and of the command, and finds docs/how-to/the-disk-is-full.md."""
    quoted = dict(re.findall(r"^```text (\w+)\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL))
    with RawClient(broker.port) as sleeper:
        sleeper.connect("sleeper", clean=False, properties=EXPIRY)
        sleeper.subscribe(("t", 1))
    neighbour = _disk(broker) / "neighbour"
    with RawClient(broker.port) as client:
        client.connect("publisher")
        _fill(neighbour)
        while _publish(client, bytes(100_000)) in ACCEPTED:
            pass
        command = [sys.executable, "-m", "whimbrel", "publish", "t", "x", "--qos", "1", "--port", str(broker.port)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (1, quoted["publisher"])
        for number in range(_MAX_TRIES):  # small records, until the page of memory that the log has is full
            if _told(broker, "the log is written again"):
                break
            with RawClient(broker.port) as other:
                assert other.connect(f"other-{number}", clean=False, properties=EXPIRY).code == 0
        neighbour.unlink()
        _publish_until_accepted(client, b"after")
    events = re.findall(r"\[\w+ *\] (.*?)(?: {2,}| reason=)", quoted["lines"])
    assert len(events) == 3
    assert [event for event in events if not _told(broker, event)] == []
