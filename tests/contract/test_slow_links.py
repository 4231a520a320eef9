"""One suite for both links: traffic control where we are root and the kernel has it, and the relay."""

from __future__ import annotations

from pathlib import Path

import pytest

from whimbrel.lab.own_processes import FailedPointError, OwnPoint, make_points

TRIED = '''
import os
import socket
import time
from threading import Thread

from whimbrel.sim.ward.slow_links import RelayedLink, ShapedLink


def transfer(kind, rates, size, queue_bytes):
    """Let a broker send as fast as it can at several rates; return what came, and how long it took."""
    link = {"tc": ShapedLink, "relay": RelayedLink}[kind](queue_bytes=queue_bytes)
    listening = socket.create_server((link.host, 0))
    link.set_rate(rates[0])
    device = link.connect(listening.getsockname()[1])
    broker, _ = listening.accept()
    device.sendall(b"up")
    said = broker.recv(2)
    body = os.urandom(size * len(rates))
    sender = Thread(target=broker.sendall, args=(body,), daemon=True)
    sender.start()
    came, took = b"", []
    device.settimeout(30)
    for number, rate in enumerate(rates, start=1):
        link.set_rate(rate)
        begun = time.monotonic()
        while len(came) < number * size:
            came += device.recv(1 << 16)
        took.append(time.monotonic() - begun)
    sender.join()
    link.close()
    return {"said": said.decode(), "is_whole": came == body, "took_s": took, "core_s": 0.0}
'''
RATES = [3_200_000, 800_000]
SIZE = 150_000


@pytest.mark.parametrize("kind", ["tc", "relay"])
def test_a_link_passes_what_its_rate_says(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In order and whole, and never faster than the rate of now; a busy machine may make it slower."""
    (tmp_path / "tried_links.py").write_text(TRIED, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    settings = {"kind": kind, "rates": RATES, "size": SIZE, "queue_bytes": 32_768}
    try:
        (found,) = make_points([OwnPoint(make="tried_links:transfer", settings=settings)], tmp_path / "points")
    except FailedPointError as error:
        if kind == "tc" and "NoNamespaceError" in str(error):
            pytest.skip(str(error))
        raise
    assert (found["said"], found["is_whole"]) == ("up", True)
    first_s, then_s = found["took_s"]
    least_s = [8 * SIZE / rate for rate in RATES]
    assert first_s > 0.5 * least_s[0]  # the kernel has some of it before the link was slow
    assert then_s > 0.5 * least_s[1]  # and some of it left at the first rate
    assert first_s + then_s > 0.7 * sum(least_s)
