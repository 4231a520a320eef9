"""What one policy among a hundred subscribers costs a publication: `python bench/policy_fanout.py [--quick]`.

A broker's core on its log, without sockets: one publisher, a hundred subscribers at QoS 0, of which none or one has
chosen the policy of the intensive care unit. Processor time of the thread a publication, the least of several runs that
take turns, so that a busy machine is unfair to neither.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "differential"))

from broker_rig import Peer, Rig, subscribing  # the path to it is set above

from whimbrel.mqtt.codec import encode
from whimbrel.mqtt.packets import V5, Publish

__all__ = ["main"]

_SUBSCRIBERS, _AT_ONCE = 100, 10
_POLICY = Path(__file__).parents[1] / "examples" / "policies" / "icu.policy"
_RESULT = Path(__file__).parent / "results" / "policy-fanout.json"


class _Ward:
    """A broker and its clients."""

    def __init__(self, folder: Path, *, has_policy: bool) -> None:
        self._rig = Rig(folder)
        self._peers = [self._rig.client(f"c{number}") for number in range(_SUBSCRIBERS)]
        for peer in self._peers:
            peer.send(subscribing("icu/#"))
        if has_policy:
            first = self._peers[0]
            first.send(Publish("$whimbrel/policy/icu", _POLICY.read_bytes()))
            self._rig.settle()
            first.send(Publish("$whimbrel/policy", b"icu"))
            first.send(Publish("$whimbrel/report", b'{"battery": 0.9, "responsible": ["p1"]}'))
        self._rig.settle()
        self._publisher = self._rig.client("publisher")
        self._all: list[Peer] = [*self._peers, self._publisher]

    def publish(self, count: int) -> tuple[float, float]:
        """Return the microseconds of the processor that a publication takes: until the others have it, and in all."""
        rig, broker, others, spent = self._rig, self._rig.broker, 0.0, 0.0
        bodies = [b'{"patientID": "p%d", "pulse": %d}' % (each % 2, 40 + each % 60) for each in range(_AT_ONCE)]
        data = b"".join(encode(Publish("icu/1", body), V5) for body in bodies)
        for _ in range(count // _AT_ONCE):
            rig.now += 1_000
            begin = time.thread_time()
            broker.receive(self._publisher.link, data, rig.now)
            others += time.thread_time() - begin
            while broker.has_work:
                broker.go_on(rig.now)
            if any(peer.link.after_seq > rig.log.written_seq for peer in self._peers):
                rig.log.sync(wait=False)
            spent += time.thread_time() - begin
            for peer in self._all:
                peer.link.out.clear()
                peer.link.is_dirty = False
                broker.on_bytes_written(peer.link, 0, rig.now)
            broker.dirty.clear()
            if broker.wants_sync:
                rig.sync()
        return others / count * 1e6, spent / count * 1e6


def main() -> None:
    """Measure, print, and keep what was found unless it was a quick run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only prove that it runs")
    count, rounds = (100, 1) if parser.parse_args().quick else (2_000, 7)
    with tempfile.TemporaryDirectory() as folder:
        wards = {name: _Ward(Path(folder) / name, has_policy=name == "one") for name in ("none", "one")}
        spent = [{name: ward.publish(count) for name, ward in wards.items()} for _ in range(rounds)]
        first, whole = ({name: min(each[name][part] for each in spent) for name in wards} for part in (0, 1))
    found = {
        "what": "microseconds of the processor a publication to 100 subscribers, by how many have a policy",
        "machine": f"{platform.machine()}, CPython {platform.python_version()}",
        "command": "python bench/policy_fanout.py",
        "until the others have it": {name: round(value, 1) for name, value in first.items()},
        "in all": {name: round(value, 1) for name, value in whole.items()},
    }
    text = json.dumps(found, indent=2)
    print(text)
    if count > 100:
        _RESULT.write_text(text + "\n")


if __name__ == "__main__":
    main()
