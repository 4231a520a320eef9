"""Kill a broker many times among its clients, or send it malformed packets by the million; report what it broke.

    python bench/crash_soak.py --kills 100 [--calamities] [--fsync-ms N] [--seed N] [--json]
    python bench/crash_soak.py --malformed 1000000 [--seed N] [--json]

The first is ``tests/e2e/test_broker_crash.py`` for as long as you like: kill -9 at random moments, restart on the same
data, and in the end every promise checked (``tests/e2e/crash_checker.py``). With calamities, clocks are set, the
process is paused, disks are full, logs are cut and views are lost meanwhile (``tests/e2e/calamities.py``). The second
opens a connection for each packet, because the broker closes after a malformed one; a client that behaves is served
throughout.
Rule: the exit status is 1 if anything was violated; the seed is always printed.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random, SystemRandom

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the clients are those of the tests

from tests.e2e.broker_process import BrokerProcess
from tests.e2e.crash_checker import crash, wire_connect, wire_packet, wire_publish, wire_subscribe

__all__ = ["main"]

_BATCH = 200
"""Connections at a time."""
_ROUND = 50_000
"""Packets between two looks at the broker's memory."""
_SLACK_BYTES = 32 << 20
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # a million closed connections must not wait for their last segments
_TIMEOUT_S = 30.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--kills", type=int, help="how often the broker is killed")
    what.add_argument("--malformed", type=int, help="how many malformed packets are sent")
    parser.add_argument(
        "--calamities", action="store_true", help="set clocks, pause, fill disks, cut logs and lose views between kills"
    )
    parser.add_argument("--fsync-ms", type=float, default=0.0, help="how much longer the broker's disk takes")
    parser.add_argument("--seed", type=int, default=None, help="drawn and printed if not given")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end, and progress to stderr")
    options = parser.parse_args(arguments)
    seed = SystemRandom().randrange(1 << 32) if options.seed is None else options.seed

    def progress(line: str) -> None:
        print(line, file=sys.stderr if options.json else sys.stdout, flush=True)

    progress(f"seed {seed}")
    with tempfile.TemporaryDirectory() as folder:
        if options.kills is not None:
            fsync_s = options.fsync_ms / 1_000
            run = crash(
                Path(folder),
                kills=options.kills,
                seed=seed,
                fsync_s=fsync_s,
                has_calamities=options.calamities,
                progress=progress,
            )
            summary = run.summary()
        else:
            summary = malformed(Path(folder), count=options.malformed, seed=seed, progress=progress)
    found = summary["violations"]
    assert isinstance(found, list)
    if options.json:
        print(json.dumps(summary, indent=2))
    else:
        for name, value in summary.items():
            if name != "violations":
                print(f"{name:>20}  {value}")
        print("\n".join(map(str, found)) or "no violations")
    return 1 if found else 0


# -- malformed packets -------------------------------------------------------------------------------------------------


def malformed(folder: Path, *, count: int, seed: int, progress: Callable[[str], None]) -> dict[str, object]:
    """Send *count* malformed packets, half of them before CONNECT; return how it went and how memory grew."""
    began, rng = time.monotonic(), Random(seed)
    violations: list[str] = []
    memory: list[int] = []
    with BrokerProcess(folder) as broker:
        sent = 0
        while sent < count:
            for _ in range(0, min(_ROUND, count - sent), _BATCH):
                batch = min(_BATCH, count - sent)
                unclosed = _attack(broker.port, [_malformed(rng) for _ in range(batch)])
                sent += batch
                if unclosed:
                    violations.append(f"{unclosed} connections stayed open after malformed packets")
            if not _is_served(broker.port):
                violations.append(f"after {sent} packets nobody else was served")
            memory.append(_rss_bytes(broker.pid))
            progress(f"{sent} of {count} packets, {memory[-1] >> 20} MiB, {sent / (time.monotonic() - began):.0f}/s")
    # The first round fills caches; from there on nothing may pile up.
    growth = memory[-1] - memory[0]
    if growth > _SLACK_BYTES:
        violations.append(f"memory grew by {growth >> 20} MiB after the first {_ROUND} packets")
    if any("Traceback" in line for line in broker.lines):
        violations.append("the broker wrote a traceback:\n" + "".join(broker.lines[-40:]))
    return {
        "seed": seed,
        "malformed": sent,
        "seconds": round(time.monotonic() - began, 1),
        "rss_first_mib": memory[0] >> 20,
        "rss_last_mib": memory[-1] >> 20,
        "rss_growth_mib": growth >> 20,
        "violations": violations,
    }


def _malformed(rng: Random) -> bytes:
    """Return a packet that no version of MQTT allows, in half of the cases after a CONNECT that it does."""
    body = rng.randbytes(rng.randint(2, 60))
    wrong = rng.choice((
        wire_packet(rng.choice((0x00, 0x0F)), body),  # no such packet
        wire_packet(0x36, b"\x00\x01a\x00\x01\x00" + body),  # QoS 3
        wire_packet(0x80, b"\x00\x01\x00\x00\x01a\x00" + body),  # SUBSCRIBE without its flags
        wire_packet(0x30, b"\x00\x02\xff\xfe\x00" + body),  # not UTF-8
        wire_packet(0x32, b"\x00\x01a\x00\x00\x00" + body),  # packet identifier 0
        b"\x30\xff\xff\xff\xff\x7f" + body,  # a length of five bytes
        wire_packet(0x20, b"\x00\x00"),  # CONNACK from a client
        wire_packet(0x10, b"\x00\x04MQTT\x05\x01\x00\x00\x00\x00\x00" + body),  # CONNECT with a reserved flag
    ))  # fmt: skip
    if rng.random() < 0.5:
        return wrong
    return wire_connect(f"attacker-{rng.randrange(1_000)}", rng.choice((4, 5)), is_clean=True) + wrong


def _attack(port: int, packets: Sequence[bytes]) -> int:
    """Send each on a connection of its own; return how many of them the broker left open."""
    unclosed = 0
    with ExitStack() as stack:
        sockets = []
        for data in packets:
            link = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT_S))
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            link.sendall(data)
            sockets.append(link)
        for link in sockets:
            try:
                while link.recv(4_096):
                    pass
            except TimeoutError:
                unclosed += 1
            except ConnectionError:
                pass
    return unclosed


def _is_served(port: int) -> bool:
    """Tell whether a client that behaves gets its own message back."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT_S) as link:
        link.sendall(wire_connect("witness", 4, is_clean=True) + wire_subscribe(1, "witness", 4, qos=0))
        link.sendall(wire_publish("witness", b"still here", 4))
        heard = b""
        while b"still here" not in heard:
            more = link.recv(4_096)
            if not more:
                return False
            heard += more
        return True
    return False


def _rss_bytes(pid: int) -> int:
    pages = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    sys.exit(main())
